#!/usr/bin/env python3
"""Compare inferd's tokenizers with the PyPI package `tokenizers` on many generated texts.

    ninja -C build tests/golden/tokenize_records
    python tests/golden/compare_tokenizers.py -n 100000 FOLDER...         # folders with a tokenizer.json
    python tests/golden/compare_tokenizers.py -n 2000 --small             # those of make_tokenizer_cases.py

Of each text: the ids without and with special tokens, and what the ids decode to with special tokens and without. Texts are
those of tokenizer_texts.py; a twentieth of them is broken UTF-8, which inferd gets as bytes and the package as Python's
bytes.decode(errors="replace") makes it (one U+FFFD for each maximal ill-formed part, as text.h says). Besides, half as many
lists of random ids are decoded.

Left out are code points that Python's Unicode (that of inferd's libraries, 14.0) does not assign, and those that the package's
own older tables do not know: they are found by asking its normalizers and its Punctuation about every code point and comparing
with Python's unicodedata, and are listed. Prints every disagreement up to --show of each kind, and exits 1 if there is one.
"""
import argparse
import base64
import collections
import io
import json
import os
import random
import subprocess
import sys
import tempfile
import unicodedata

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import tokenizers  # noqa: E402
from tokenizers import Tokenizer, normalizers, pre_tokenizers  # noqa: E402

import make_tokenizer_cases  # noqa: E402
from tokenizer_texts import Texts  # noqa: E402

ADD_SPECIAL_ALWAYS, PARSE_SPECIAL = 4, 2  # enum text_encode_flags
BATCH = 5000


# ---- what the two sides' Unicode tables know ----

def assigned():
    return (c for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co"))


def unlike_python(component):
    """The code points that this component of the package takes otherwise than Python's unicodedata."""
    if component == "Punctuation":
        split = pre_tokenizers.Punctuation()

        def differs(c):
            category = unicodedata.category(chr(c))
            mark = category[0] == "P" or (c < 128 and category[0] == "S")
            return (len(split.pre_tokenize_str("a" + chr(c))) == 2) != mark
    else:
        normalizer = getattr(normalizers, component)()

        def differs(c):  # alone, with marks that compose, and between marks of the highest and the lowest combining class
            texts = ("a" + chr(c), "a\u0327" + chr(c) + "\u0301", "a\u0345" + chr(c) + "\u0334")
            return any(normalizer.normalize_str(t) != unicodedata.normalize(component, t) for t in texts)
    found = {c for c in assigned() if differs(c)}
    parts = {ord(p) for c in found for p in unicodedata.normalize("NFD", chr(c))}  # these compose to it
    return found | {p for p in parts if p > 0x7f}


def components_of(json_value):
    """The types of all components."""
    if isinstance(json_value, list):
        return set().union(*map(components_of, json_value)) if json_value else set()
    if isinstance(json_value, dict):
        return {json_value.get("type")} | components_of(list(json_value.values()))
    return set()


def left_out_of(whole, known={}):
    left_out = set()
    types = components_of([whole["normalizer"], whole["pre_tokenizer"]])
    for component in sorted(types & {"NFC", "NFD", "NFKC", "NFKD", "Punctuation"}):
        if component not in known:
            known[component] = unlike_python(component)
        left_out |= known[component]
    return left_out


def as_ranges(code_points):
    ranges = []
    for c in sorted(code_points):
        if ranges and ranges[-1][1] == c - 1:
            ranges[-1][1] = c
        else:
            ranges.append([c, c])
    return " ".join(f"{a:04X}" if a == b else f"{a:04X}-{b:04X}" for a, b in ranges)


# ---- asking ----

class Inferd:
    """Records to tests/golden/tokenize_records.c and its answers."""

    def __init__(self, program, model):
        self.command = [program, model]

    def run(self, records):
        return subprocess.run(self.command, input=b"".join(records), stdout=subprocess.PIPE, check=True).stdout

    def encode(self, texts, flags):
        answer = self.run(b"E %d %d\n%b\n" % (flags, len(t), t) for t in texts)
        return [[int(i) for i in line.split()] for line in answer.split(b"\n")[:-1]]

    def decode(self, lists, skip_special):
        answer = self.run(b"D %d %d %b\n" % (skip_special, len(ids), " ".join(map(str, ids)).encode()) for ids in lists)
        texts, at = [], 0
        while at < len(answer):
            end = answer.index(b"\n", at)
            length = int(answer[at:end])
            texts.append(answer[end + 1:end + 1 + length].decode())
            at = end + 1 + length
        return texts


class Report:
    def __init__(self, show):
        self.show, self.done, self.different = show, collections.Counter(), collections.Counter()

    def compare(self, what, inputs, want, got):
        if len(got) != len(want):
            sys.exit(f"{what}: {len(got)} answers to {len(want)} requests")
        for given, w, g in zip(inputs, want, got):
            self.done[what] += 1
            if w != g:
                self.different[what] += 1
                if self.different[what] <= self.show:
                    at = next((i for i, (a, b) in enumerate(zip(w, g)) if a != b), min(len(w), len(g)))
                    part = slice(max(0, at - 3), at + 12)
                    print(f"  {what} of {given!r}: at {at}\n    tokenizers ..{w[part]!r}..\n    inferd     ..{g[part]!r}..")


def random_ids(r, size):
    n = r.randrange(1, 12)
    if r.random() < 0.5:  # bytes and other early tokens
        return [r.randrange(min(size, 600)) for _ in range(n)]
    return [r.randrange(size) for _ in range(n)]


def compare(name, program, path, whole, n, seed, show):
    reference, inferd, report = Tokenizer.from_str(json.dumps(whole)), Inferd(program, path), Report(show)
    left_out = left_out_of(whole)
    texts = Texts(random.Random(seed), [t["content"] for t in whole["added_tokens"]], left_out)
    size = reference.get_vocab_size()
    categories = [*texts.categories, "broken"]
    counts = collections.Counter()
    for start in range(0, n, BATCH):
        given = []
        for i in range(start, min(start + BATCH, n)):
            category = "broken" if i % 20 == 0 else categories[i % (len(categories) - 1)]
            counts[category] += 1
            given.append(texts.broken() if category == "broken" else texts.text(category).encode())
        as_text = [b.decode(errors="replace") for b in given]
        ids = [e.ids for e in reference.encode_batch_fast(as_text, add_special_tokens=False)]
        report.compare("ids", given, ids, inferd.encode(given, PARSE_SPECIAL))
        with_special = [e.ids for e in reference.encode_batch_fast(as_text, add_special_tokens=True)]
        report.compare("ids with special tokens", given, with_special, inferd.encode(given, PARSE_SPECIAL | ADD_SPECIAL_ALWAYS))
        lists = with_special + [random_ids(texts.r, size) for _ in range(len(given) // 2)]
        report.compare("text", lists, reference.decode_batch(lists, skip_special_tokens=False), inferd.decode(lists, False))
        if any(t["special"] and t["normalized"] for t in whole["added_tokens"]):
            skipped = [make_tokenizer_cases.decode_without_special(reference, whole, ids) for ids in lists]
        else:
            skipped = reference.decode_batch(lists, skip_special_tokens=True)
        report.compare("text without special tokens", lists, skipped, inferd.decode(lists, True))
    failed = sum(report.different.values())
    print(f"{name}: {n} texts: " + ", ".join(f"{report.done[w] - report.different[w]} of {report.done[w]} {w}" for w in report.done), flush=True)
    return failed, counts, left_out


def small_tokenizers(folder, only):
    shared = make_tokenizer_cases.shared_models()
    for name, whole in make_tokenizer_cases.whole_tokenizers(shared):
        if only in name:
            path = f"{folder}/{name}.json"
            with open(path, "w", encoding="utf-8") as f:
                json.dump(whole, f)
            yield name, path, whole


def field(message, number):
    """The bytes of a field of a protobuf message."""
    def varint(at):
        value = shift = 0
        while True:
            value |= (message[at] & 0x7f) << shift
            shift, at = shift + 7, at + 1
            if message[at - 1] < 0x80:
                return value, at

    at = 0
    while at < len(message):
        key, at = varint(at)
        size = {0: None, 1: 8, 5: 4}.get(key & 7, -1)
        if size is None:
            _, at = varint(at)
            continue
        if size < 0:
            size, at = varint(at)
        if key >> 3 == number:
            return message[at:at + size]
        at += size
    raise KeyError(number)


def sentencepiece_tokenizers(folder):
    """Unigram behind the character maps that SentencePiece makes of its own rules (as T5, XLM-R, ALBERT have them)."""
    import sentencepiece

    shared = make_tokenizer_cases.shared_models()
    for rule in ("nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf"):
        out = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(make_tokenizer_cases.CORPUS), model_writer=out, vocab_size=120, model_type="unigram",
                                                 normalization_rule_name=rule, minloglevel=2)
        charsmap = base64.b64encode(field(field(out.getvalue(), 3), 2)).decode()
        for model in ("unigram", "unigram-fallback"):
            metaspace = make_tokenizer_cases.METASPACE
            parts = {"normalizer": {"type": "Precompiled", "precompiled_charsmap": charsmap}, "pre_tokenizer": metaspace, "decoder": metaspace}
            name, whole = f"{rule}-{model}", make_tokenizer_cases.assemble(shared[model], {}, parts)
            with open(f"{folder}/{name}.json", "w", encoding="utf-8") as f:
                json.dump(whole, f)
            yield name, f"{folder}/{name}.json", whole


def folders(paths):
    for path in paths:
        with open(f"{path}/tokenizer.json", encoding="utf-8") as f:
            yield os.path.basename(os.path.normpath(path)), path, json.load(f)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*")
    parser.add_argument("--small", action="store_true", help="the small tokenizers of make_tokenizer_cases.py as well")
    parser.add_argument("--sentencepiece", action="store_true", help="tokenizers with the character maps of the package `sentencepiece`")
    parser.add_argument("--only", default="", help="of the small ones those whose name holds this")
    parser.add_argument("--program", default="build/tests/golden/tokenize_records")
    parser.add_argument("-n", type=int, default=100000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", type=int, default=5)
    args = parser.parse_args()
    failed, counts, left_out = 0, collections.Counter(), set()
    print(f"tokenizers {tokenizers.__version__}, Python's Unicode {unicodedata.unidata_version}, seed {args.seed}")
    with tempfile.TemporaryDirectory() as temporary:
        for name, path, whole in [*folders(args.folders), *(small_tokenizers(temporary, args.only) if args.small else ()),
                                  *(sentencepiece_tokenizers(temporary) if args.sentencepiece else ())]:
            bad, more, out = compare(name, args.program, path, whole, args.n, args.seed, args.show)
            failed, counts, left_out = failed + bad, counts + more, left_out | out
    print("texts of each category: " + ", ".join(f"{n} {c}" for c, n in counts.items()))
    print(f"left out, besides what Unicode {unicodedata.unidata_version} does not assign: {len(left_out)} code points: {as_ranges(left_out) or 'none'}")
    print(f"{failed} disagreements")
    sys.exit(1 if failed else 0)


main()
