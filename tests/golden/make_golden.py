#!/usr/bin/env python3
"""Record what an independent implementation says about a GGUF model, for test_golden.c; or compare with it in full.

    make_golden.py MODEL.gguf OUT.json              record expectations
    make_golden.py MODEL.gguf --compare DUMP        KL divergence over the whole vocabulary at every position, where DUMP
                                                    is the program dump_logits of the build

The reference is `transformers` in F32 on the dequantised tensors of the same file (it undoes what GGUF does to a model:
the permuted rows of q and k, the 1 added to Gemma's norms). Token ids come from the Hugging Face `tokenizers`
library. Needs: torch, transformers, accelerate, tokenizers, gguf. Made with transformers 5.24.0, torch 2.15.0, gguf 0.19.0.
"""

import json
import os
import subprocess
import sys
import tempfile

import gguf
import numpy
import tokenizers
import torch
import transformers

CONTINUATION = 48
TOP = 64
POSITIONS = 6

PROMPTS = [
    # English
    "The capital of France is",
    "Once upon a time, in a small village by the sea, there lived",
    "Water boils at 100 degrees Celsius because",
    "To be, or not to be, that is the question:",
    "Dear Sir or Madam,\n\nI am writing to complain about the",
    "The three laws of thermodynamics can be summarised as follows:\n1.",
    "Q: What is the largest planet in the solar system?\nA:",
    "She didn't know whether they'd come, but she couldn't",
    "In 1969, Neil Armstrong and Buzz Aldrin",
    "Recipe for pancakes:\n- 200 g flour\n- 2 eggs\n-",
    "   leading spaces, double  spaces and a trailing one ",
    "The price rose from $1,234.56 to $98,765.43, an increase of",
    # code
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "#include <stdio.h>\n\nint main(void) {\n\tprintf(\"Hello",
    "SELECT name, COUNT(*) FROM users WHERE age > 18 GROUP BY",
    "function debounce(fn, ms) {\n  let timer = null;\n  return (...args) => {",
    "<html>\n  <head>\n    <title>Test</title>\n",
    "{\"name\": \"Alice\", \"age\": 30, \"tags\": [\"a\", \"b\"],",
    "fn main() {\r\n    let v: Vec<i32> = vec![1, 2, 3];\r\n",
    "$ git log --oneline | head -n 5\n",
    # Chinese
    "中国的首都是",
    "从前有一座山，山上有一座庙，",
    "床前明月光，疑是地上霜。",
    "人工智能是计算机科学的一个分支，",
    "请用一句话介绍你自己：",
    "二〇二四年，全球平均气温比工业化前高出1.5℃。",
    "问：水的化学式是什么？\n答：",
    "我喜欢喝咖啡，但是 my friend 喜欢喝 tea。",
    # emoji and other scripts
    "I love pizza 🍕 and",
    "Weather today: ☀️ 25°C, tomorrow: 🌧️",
    "👩‍👩‍👧‍👦 family, 🇫🇷 flag, 👍🏽 thumbs up:",
    "🎉🎉🎉 Happy birthday to",
    "Привет, как дела? Сегодня",
    "こんにちは、私の名前は",
    "naïve café résumé — “quoted” … ½",
    # longer than the sliding window of Gemma 3
    "\n".join(f"{i} times {j} is {i * j}." for i in range(2, 11) for j in range(2, 12)) + "\n11 times 2 is",
]


def read_gguf(path):
    reader = gguf.GGUFReader(path)
    return lambda key: reader.fields[key].contents() if key in reader.fields else None


def smollm_tokenizer(field):
    """The pipeline of SmolLM2's own tokenizer.json: single digits, then GPT-2's split, on the file's vocabulary."""
    tokens = field("tokenizer.ggml.tokens")
    merges = [tuple(m.split(" ")) for m in field("tokenizer.ggml.merges")]
    t = tokenizers.Tokenizer(tokenizers.models.BPE({s: i for i, s in enumerate(tokens)}, merges))
    t.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [tokenizers.pre_tokenizers.Digits(individual_digits=True),
         tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    return lambda text: t.encode(text).ids


def gemma_tokenizer(field):
    """The pipeline of Gemma 3's own tokenizer.json: spaces become U+2581, then BPE with byte fallback, no other split. The
    file has scores instead of merges: a pair merges when the whole is in the vocabulary, best score first."""
    tokens, scores = field("tokenizer.ggml.tokens"), field("tokenizer.ggml.scores")
    kinds = field("tokenizer.ggml.token_type")
    vocab = {s: i for i, s in enumerate(tokens)}
    merges = []
    for whole, i in vocab.items():
        if kinds[i] != 1:  # normal tokens alone are made by merging
            continue
        pairs = [(whole[:c], whole[c:]) for c in range(1, len(whole)) if whole[:c] in vocab and whole[c:] in vocab]
        pairs.sort(key=lambda p: (vocab[p[0]], vocab[p[1]]))
        merges += [(scores[i], len(merges) + n, p) for n, p in enumerate(pairs)]
    merges.sort(key=lambda m: (-m[0], m[1]))
    t = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, [m[2] for m in merges], byte_fallback=True, fuse_unk=True,
                                                   unk_token="<unk>"))
    t.normalizer = tokenizers.normalizers.Replace(" ", "▁")
    # tokens of their own in the text ("user defined": runs of spaces and line ends, HTML tags)
    t.add_tokens([tokenizers.AddedToken(tokens[i], normalized=False) for i, k in enumerate(kinds) if k == 4])
    bos = field("tokenizer.ggml.bos_token_id")
    return lambda text: [bos] + t.encode(text).ids


def load(path):
    field = read_gguf(path)
    folder, name = os.path.split(os.path.abspath(path))
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    model.eval()
    encode = {"llama": smollm_tokenizer, "gemma3": gemma_tokenizer}[field("general.architecture")](field)
    return model, encode


def log_softmax(model, ids):
    with torch.no_grad():
        return torch.log_softmax(model(torch.tensor([ids])).logits[0].double(), dim=-1)


def greedy(model, ids):
    """The continuation and, for each token of it, how far the second best logit lay below the best."""
    tokens, gaps = [], []
    with torch.no_grad():
        out = model(torch.tensor([ids]), use_cache=True)
        for _ in range(CONTINUATION):
            top = out.logits[0, -1].topk(2)
            tokens.append(int(top.indices[0]))
            gaps.append(round(float(top.values[0] - top.values[1]), 4))
            out = model(torch.tensor([tokens[-1:]]), past_key_values=out.past_key_values, use_cache=True)
    return tokens, gaps


def record(path, out):
    model, encode = load(path)
    cases = []
    for text in PROMPTS:
        ids = encode(text)
        logp = log_softmax(model, ids)
        last = len(ids) - 1
        positions = sorted({round(last * i / (POSITIONS - 1)) for i in range(POSITIONS)})
        tokens, gaps = greedy(model, ids)
        cases.append({
            "prompt": text,
            "ids": ids,
            "positions": [
                {"at": p, "ids": (top := logp[p].topk(TOP)).indices.tolist(), "logprobs": [round(v, 4) for v in top.values.tolist()]}
                for p in positions],
            "continuation": tokens,
            "gaps": gaps,
        })
        print(f"{len(cases)}/{len(PROMPTS)} {len(ids)} tokens", file=sys.stderr)
    with open(out, "w") as f:
        f.write('{"model": %s, "size": %d, "cases": [\n' % (json.dumps(os.path.basename(path)), os.path.getsize(path)))
        f.write(",\n".join(json.dumps(c, separators=(",", ":")) for c in cases))
        f.write("\n]}\n")


def compare(path, dump):
    model, encode = load(path)
    worst = 0.0
    for text in PROMPTS:
        ids = encode(text)
        want = log_softmax(model, ids)
        with tempfile.NamedTemporaryFile() as f:
            subprocess.run([dump, path, f.name] + [str(i) for i in ids], check=True)
            got = numpy.fromfile(f.name, dtype=numpy.float32).reshape(len(ids), -1)
        got = torch.log_softmax(torch.from_numpy(got).double(), dim=-1)
        kl = (want.exp() * (want - got)).sum(dim=-1)
        same = (want.argmax(dim=-1) == got.argmax(dim=-1)).double().mean()
        worst = max(worst, float(kl.mean()))
        print(f"mean KL {float(kl.mean()):.2e}  max {float(kl.max()):.2e}  same best token {float(same):6.1%}  {len(ids):4} tokens  {text[:40]!r}")
    print(f"largest mean KL of a prompt: {worst:.2e}")


if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[2] == "--compare":
        compare(sys.argv[1], sys.argv[3])
    elif len(sys.argv) == 3:
        record(sys.argv[1], sys.argv[2])
    else:
        sys.exit(__doc__)
