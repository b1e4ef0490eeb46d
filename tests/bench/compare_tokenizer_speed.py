#!/usr/bin/env python3
"""Encoding speed of inferd beside the PyPI package `tokenizers`: same texts, same core, taking turns in one run.

    ninja -C build tests/bench/bench_tokenizer
    python tests/bench/compare_tokenizer_speed.py --data ../shared/data

Each side runs in one thread, pinned to the same core, and its processor time is counted. A text is cut into documents of
--document bytes at most (at line ends where there are any; 0: one document), which each side encodes one after another:
inferd through text_encode, the package through encode_batch_fast, its fastest call (no offsets). Both keep what they learn
between passes (the package a cache of words, inferd one bit a token), so there are two figures: `first`, the first pass
over the text in a fresh process, and `again`, the fastest of the passes after it. Speeds are in MB/s (10^6 bytes), a ratio
over 1 means that inferd is faster. The numbers of tokens must be equal.
"""
import argparse
import glob
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"


def read(*patterns):
    """The files that match, in order of their names, as one text."""
    paths = sorted(p for pattern in patterns for p in glob.glob(pattern, recursive=True))
    if not paths:
        sys.exit(f"no file matches {patterns}")
    return "".join(open(p, encoding="utf-8").read().replace("\0", "") for p in paths)


def texts(options):
    data = f"{options.data}/text"
    here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
    return {
        "English": read(f"{data}/moby-dick.txt"),
        "Chinese": read(f"{data}/zh-*.txt") * 8,
        "51 languages": read(f"{data}/udhr/*.txt"),
        "code": read(f"{here}/engine/**/*.c", f"{here}/server/**/*.c", f"{here}/tests/**/*.py"),
    }


def documents(text, most):
    """Parts of at most this many bytes, cut behind line ends where a line is not longer by itself."""
    if not most:
        return [text]
    parts, part, size = [], [], 0
    for line in text.splitlines(keepends=True):
        length = len(line.encode())
        if size + length > most and part:
            parts.append("".join(part))
            part, size = [], 0
        part.append(line)
        size += length
    return parts + ["".join(part)] if part else parts


def reference(folder, parts, passes, pipe):
    """In a process of its own: the tokens, the first pass, the fastest pass."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
    times = []
    for _ in range(1 + passes):
        start = time.process_time()
        encodings = tokenizer.encode_batch_fast(parts, add_special_tokens=False)
        times.append(time.process_time() - start)
    pipe.send((sum(len(e.ids) for e in encodings), times[0], min(times[1:])))


def run_reference(folder, parts, passes):
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=reference, args=(folder, parts, passes, theirs))
    process.start()
    answer = ours.recv()
    process.join()
    return answer


def run_inferd(program, folder, parts, passes):
    with tempfile.NamedTemporaryFile(suffix=".documents") as f:
        f.write(b"".join(part.encode() + b"\0" for part in parts))
        f.flush()
        ask = f"1 {f.name}\n{passes} {f.name}\n"
        run = subprocess.run([program, "--passes", folder], input=ask, stdout=subprocess.PIPE, text=True, check=True)
    first, again = (line.split() for line in run.stdout.splitlines())
    return int(first[1]), float(first[2]), float(again[2])


def measure(options, name, folder, text_name, text):
    parts = documents(text, options.document)
    size = sum(len(part.encode()) for part in parts) / 1e6
    mine, other = [], []
    for _ in range(options.repeat):
        mine.append(run_inferd(options.program, folder, parts, options.passes))
        other.append(run_reference(folder, parts, options.passes))
    if {n for n, _, _ in mine} != {n for n, _, _ in other}:
        sys.exit(f"{name}, {text_name}: {mine[0][0]} tokens, the package has {other[0][0]}")
    first, again = ([min(r[i] for r in side) for side in (mine, other)] for i in (1, 2))
    print(f"| {name} | {text_name} | {size / first[0]:.1f} | {size / first[1]:.1f} | {first[1] / first[0]:.1f} "
          f"| {size / again[0]:.1f} | {size / again[1]:.1f} | {again[1] / again[0]:.1f} |", flush=True)
    return min(first[1] / first[0], again[1] / again[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="the folder with text/ and tokenizers/")
    parser.add_argument("--program", default="build/tests/bench/bench_tokenizer")
    parser.add_argument("--document", type=int, default=4096, metavar="BYTES")
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--repeat", type=int, default=3, help="fresh processes of each side, in turn")
    parser.add_argument("--core", type=int, default=min(os.sched_getaffinity(0)))
    parser.add_argument("--only", default="", help="names of tokenizers that hold this")
    options = parser.parse_args()
    os.sched_setaffinity(0, {options.core})
    print("| tokenizer | text | first: inferd | tokenizers | ratio | again: inferd | tokenizers | ratio |")
    print("|---|---|---|---|---|---|---|---|")
    worst = 1e9
    for path in sorted(glob.glob(f"{options.data}/tokenizers/*/tokenizer.json")):
        folder = os.path.dirname(path)
        for text_name, text in texts(options).items() if options.only in folder else ():
            worst = min(worst, measure(options, os.path.basename(folder), folder, text_name, text))
    print(f"lowest ratio: {worst:.2f}")
    sys.exit(0 if worst >= 1 else 1)


if __name__ == "__main__":
    main()
