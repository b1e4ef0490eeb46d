#!/usr/bin/env python3
"""The perplexity that `inferd eval` tells beside that of an independent implementation, over the same windows.

    compare_perplexity.py MODEL.gguf TEXT [--tokens 4000] [--context 512] [--stride 256] [--inferd build/inferd]

The reference is `transformers` in F32 on the dequantised tensors of the same file, with the windows as its documentation
has them (docs: "Perplexity of fixed-length models"): begin at i * stride, score only what no window before scored. Token
ids come from the Hugging Face `tokenizers` library (make_golden.py). Needs torch, transformers, accelerate, tokenizers, gguf.
"""

import argparse
import json
import math
import os
import subprocess

import torch

from make_golden import load, read_gguf


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("model")
    parser.add_argument("text")
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--stride", type=int, default=256)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--inferd", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../build/inferd"))
    o = parser.parse_args()
    torch.set_num_threads(o.threads)

    run = [o.inferd, "eval", o.model, "--text", o.text, "--json", f"--max-tokens={o.tokens}", f"--context={o.context}",
           f"--stride={o.stride}", f"--threads={o.threads}"]
    ours = json.loads(subprocess.run(run, check=True, capture_output=True, text=True).stdout.splitlines()[-1])

    model, encode = load(o.model)
    with open(o.text, encoding="utf-8") as f:
        ids = encode(f.read())
    bos = [read_gguf(o.model)("tokenizer.ggml.bos_token_id")] if ours["bos"] else []
    ids = ids[len(bos):][: o.tokens]  # the reference's encoder puts its BOS once, before the text
    total, n, scored, begin = 0.0, 0, 0 if bos else 1, 0
    with torch.inference_mode():
        while scored < len(ids):
            window = ids[begin : begin + o.context - len(bos)]
            logits = model(torch.tensor([bos + window])).logits[0].double()
            logprobs = torch.log_softmax(logits[:-1], dim=-1)
            targets = torch.tensor((bos + window)[1:])
            chosen = logprobs[torch.arange(len(targets)), targets]
            new = begin + len(window) - scored
            total -= chosen[-new:].sum().item()
            n += new
            scored = begin + len(window)
            begin += o.stride
    theirs = math.exp(total / n)
    print(f"{os.path.basename(o.model)}: {n} tokens, context {o.context}, stride {o.stride}, BOS {bool(bos)}")
    print(f"transformers {theirs:.6f}, inferd {ours['perplexity']:.6f} ({ours['tokens']} tokens), "
          f"difference {100 * (ours['perplexity'] / theirs - 1):+.5f} %")
    raise SystemExit(0 if n == ours["tokens"] and abs(ours["perplexity"] / theirs - 1) < 1e-3 else 1)


if __name__ == "__main__":
    main()
