#!/usr/bin/env python3
"""Texts that a careless tokenizer takes hours or gigabytes for: 1 MB of any one character, of spaces, of random bytes, ...

    ninja -C build tests/bench/bench_tokenizer
    python tests/bench/hostile_texts.py --data ../shared/data

Runs `bench_tokenizer --hostile` (which says what the texts and the limits are) on every tokenizer.json and GGUF under --data,
on a GGUF of each pre-tokenizer kind of engine/text/pre_kinds.c (the gpt-2 vocabulary under another name), and on some small
tokenizers of make_tokenizer_cases.py. Exits 1 if a text goes over a limit. Takes about 15 minutes.
"""
import argparse
import glob
import json
import os
import re
import struct
import subprocess
import sys
import tempfile

TOP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path.insert(0, os.path.join(TOP, "tests", "golden"))


def kinds():
    """The first name of each row of the table."""
    with open(f"{TOP}/engine/text/pre_kinds.c", encoding="utf-8") as f:
        return re.findall(r'^    \{"([a-z0-9.-]+)[^"]*", \{', f.read(), re.M)


def with_kind(gguf, kind):
    """The same file with another tokenizer.ggml.pre: the key, its type (8: string), a length, the bytes."""
    at = gguf.index(b"tokenizer.ggml.pre") + len(b"tokenizer.ggml.pre") + 4
    (length,) = struct.unpack_from("<Q", gguf, at)
    return gguf[:at] + struct.pack("<Q", len(kind)) + kind.encode() + gguf[at + 8 + length:]


def small(folder, names):
    import make_tokenizer_cases  # needs the package `tokenizers`

    for name, whole in make_tokenizer_cases.whole_tokenizers(make_tokenizer_cases.shared_models()):
        if name in names:
            with open(f"{folder}/{name}.json", "w", encoding="utf-8") as f:
                json.dump(whole, f)
            yield f"{folder}/{name}.json"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="the folder with tokenizers/ and gguf/")
    parser.add_argument("--program", default="build/tests/bench/bench_tokenizer")
    parser.add_argument("--only", choices=["real", "kinds", "small"])
    args = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        real = sorted(glob.glob(f"{args.data}/tokenizers/*/tokenizer.json")) + sorted(glob.glob(f"{args.data}/gguf/*.gguf"))
        if args.only in (None, "real"):
            failed |= subprocess.call([args.program, "--hostile", "1", *real])
        if args.only in (None, "kinds"):
            with open(f"{args.data}/gguf/ggml-vocab-gpt-2.gguf", "rb") as f:
                gguf = f.read()
            for kind in kinds():
                with open(f"{folder}/{kind}.gguf", "wb") as f:
                    f.write(with_kind(gguf, kind))
                failed |= subprocess.call([args.program, "--hostile", "8", f"{folder}/{kind}.gguf"])
        if args.only in (None, "small"):
            names = ("falcon", "bloom", "deepseek-llm", "deepseek-v3", "whitespace", "split-oddregex", "behavior-MergedWithNext-True", "normalizer-precompiled",
                     "normalizer-NFKC", "normalizer-NFD", "normalizer-replace", "added-both-bytes", "added-normalized-both-chars", "metaspace-first-True-fallback",
                     "unigram-precompiled", "unigram-fallback-whole", "fallback-some-True", "fallback-strip")
            for path in small(folder, names):
                failed |= subprocess.call([args.program, "--hostile", "8", path])
    sys.exit(1 if failed else 0)


main()
