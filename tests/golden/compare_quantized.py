#!/usr/bin/env python3
"""Does `transformers` load what `inferd quantize` writes, and do we agree on the logits?

    compare_quantized.py DUMP MODEL FOLDER...        DUMP is the program dump_logits of the build, MODEL what the FOLDERs were made from
    compare_quantized.py --tokens INFERD MODEL.gguf FOLDER TEXT...   token ids: ours of the GGUF, ours of FOLDER, and those of `tokenizers`

For each FOLDER: `safetensors` reads it, `transformers` (with `compressed-tensors`) loads it and computes in F32, W8A8, the
logits of a text; then the relative difference of our engine's from those (2-norm), and of both from MODEL's: perplexity, KL divergence, top-1
agreement. Needs: torch, transformers, compressed-tensors, accelerate, gguf. Made with transformers 5.24.0, compressed-tensors 0.20.1.
"""

import json
import os
import subprocess
import sys
import tempfile

os.environ.setdefault("TQDM_DISABLE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy
import torch
import transformers
from safetensors import safe_open
from tokenizers import Tokenizer

TEXT = (
    "It was a bright cold day in April, and the clocks were striking thirteen. The harbour lay quiet under a thin mist; "
    "two boats had come in during the night with herring and with news, and nobody on the quay believed either. \"You will see,\" said the "
    "old man, \"that by noon they'll have sold all of it.\" In 1998 the price was 12.50 a crate.\n\ndef area(r):\n    return 3.14159 * r ** 2\n"
)


def load(path):
    if path.endswith(".gguf"):
        folder, name = os.path.split(path)
        return transformers.AutoModelForCausalLM.from_pretrained(folder or ".", gguf_file=name, dtype=torch.float32)
    return transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)


def logits_of(model, ids):
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].double().numpy()


def ours(dump, path, ids):
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "logits")
        subprocess.run([dump, path, out, *map(str, ids)], check=True)
        return numpy.fromfile(out, dtype=numpy.float32).reshape(len(ids), -1).astype(float)


def log_softmax(z):
    z = z - z.max(-1, keepdims=True)
    return z - numpy.log(numpy.exp(z).sum(-1, keepdims=True))


def relative(a, b):
    return float(numpy.linalg.norm(a - b) / numpy.linalg.norm(b))


def describe(name, z, reference, ids):
    p, q = log_softmax(reference), log_softmax(z)
    perplexity = float(numpy.exp(-q[numpy.arange(len(ids) - 1), ids[1:]].mean()))
    kl = float((numpy.exp(p) * (p - q)).sum(-1).mean())
    print(f"  {name:22} perplexity {perplexity:9.4f}  KL from the model {kl:.5f}  top-1 {(z.argmax(-1) == reference.argmax(-1)).mean():.3f}"
          f"  relative {relative(z, reference):.4f}")


def compare(dump, model, folders):
    ids = transformers.AutoTokenizer.from_pretrained(folders[0])(TEXT)["input_ids"]
    reference = logits_of(load(model), ids)
    print(f"{model}: {len(ids)} tokens")
    describe("transformers, model", reference, reference, ids)
    for folder in folders:
        print(folder)
        types = {}
        for name in sorted(f for f in os.listdir(folder) if f.endswith(".safetensors")):
            with safe_open(os.path.join(folder, name), "pt") as f:
                for key in f.keys():
                    t = f.get_slice(key).get_dtype()
                    types[t] = types.get(t, 0) + 1
        print(f"  tensors: {types}")
        theirs, own = logits_of(load(folder), ids), ours(dump, folder, ids)
        describe("transformers, W8A8", theirs, reference, ids)
        describe("inferd, W8A8", own[:, :theirs.shape[1]], reference, ids)
        print(f"  inferd from transformers, relative: {relative(own[:, :theirs.shape[1]], theirs):.5f}")


def compare_tokens(inferd, model, folder, files):
    texts = ["Hello, world!", "  two  spaces\tand\n\nlines\n\n\n", "<|im_start|>user\nhi<|im_end|>\n", "<start_of_turn>user\nx<end_of_turn>\n",
             "\U0001f469‍\U0001f469‍\U0001f467 naïve a\u0301 \u00a0 nbsp", "for (int i=0;i<1000;i++){x[i]+=3.14159;}", "\r\n\r\n x \t"]
    for name in files:
        with open(name, encoding="utf-8") as f:
            text = f.read(18000)
        texts += [text[i:i + 1500] for i in range(0, len(text), 1500)]

    def encode(path):
        done = subprocess.run([inferd, "tokenize", "-m", path, "--jsonl"], input="".join(json.dumps({"text": t}) + "\n" for t in texts),
                              capture_output=True, text=True, check=True)
        return [(answer["ids"], answer["ids_special"]) for answer in map(json.loads, done.stdout.splitlines())]

    tokenizer = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    of_gguf, of_folder = encode(model), encode(folder)
    of_library = [(tokenizer.encode(t, add_special_tokens=False).ids, tokenizer.encode(t).ids) for t in texts]
    print(f"{len(texts)} texts; tokenizers differs in {sum(a != b for a, b in zip(of_gguf, of_library))}, "
          f"our reading of tokenizer.json in {sum(a != b for a, b in zip(of_gguf, of_folder))}")


if __name__ == "__main__":
    if len(sys.argv) > 4 and sys.argv[1] == "--tokens":
        compare_tokens(*sys.argv[2:5], sys.argv[5:])
    elif len(sys.argv) > 3:
        compare(sys.argv[1], sys.argv[2], sys.argv[3:])
    else:
        sys.exit(__doc__)
