#!/usr/bin/env python3
"""Compare inferd's tokens with those of the PyPI package `tokenizers` on many generated texts.

    python3 tests/golden/compare_tokenizers.py --inferd build/inferd -n 100000 FOLDER...

Each FOLDER holds a tokenizer.json. The texts mix scripts, combining marks, emoji sequences, long runs, digits, white space,
special tokens and random code points (assigned ones: two libraries may know different Unicode versions). Prints every
disagreement of ids or of decoded text, up to --show of them, and exits 1 if there is one.
"""
import argparse
import json
import random
import subprocess
import sys
import unicodedata

from tokenizers import Tokenizer

WORDS = """the of and to a in that is was he for it with as his on be at by I this had not are but from or have an they which one you
were her all she there would their we him been has when who will more no if out so said what up its about into than them can only
other new some could time these two may then do first any my now such like our over man me even most made after also did many before
must through back years where much your way well down should because each just those people how too little state good very make
world still own see men work long get here between both life being under never day same another know while last might us great old
year off come since against go came right used take three""".split()
SCRIPTS = """привет мир как дела κόσμε γειά σου नमस्ते दुनिया สวัสดีชาวโลก こんにちは世界 안녕하세요 세계 你好,世界。 مرحبا بالعالم שלום עולם
Dữ liệu Größe façade naïve São Łódź İstanbul ǅ ﬁ ﬀ ① ² Ⅷ ½ ٣٤٥ 四五六 ᏣᎳᎩ ᐊᒻ 𐌰𐌱 𝔘𝔫𝔦 ꙮ""".split()
SPACES = [" ", "  ", "    ", "\n", "\n\n\n", "\t", "\r\n", "\u00a0", "\u2028", "\u3000", "\x0b", "\x85", "\u2003", "\u200b"]
EMOJI = ["👩‍👩‍👧‍👦", "👍🏽", "🏳️‍🌈", "😀", "🇩🇪", "❤️", "1️⃣"]
SIGNS = ["'s", "'S", "'t", "'ll", "'RE", "'ve", "'m", "'d", "'ſ", ".", ",", ";", "::", "!?", "...", "--", "_", "/", "\\", "(", ")", "[]", "{}",
         "<|", "|>", "</", "@", "#", "$", "%", "^", "&", "*", "~", "`", '"', "+", "=", "«", "»", "—", "…", "，", "。"]


def code_point(r):
    while True:
        c = r.choice([r.randrange(1, 0x250), r.randrange(0x250, 0x3000), r.randrange(0x3000, 0x10000), r.randrange(0x10000, 0x32000)])
        if unicodedata.category(chr(c)) not in ("Cn", "Cs"):
            return chr(c)


def text(r, specials):
    out = []
    for _ in range(r.randrange(1, 14)):
        kind = r.randrange(12)
        if kind < 3:
            word = r.choice(WORDS)
            out.append(r.choice([word, word.capitalize(), word.upper(), word + r.choice(WORDS)]))
        elif kind < 5:
            out.append(r.choice(SCRIPTS))
        elif kind == 5:
            out.append(r.choice(SPACES) * r.randrange(1, 5))
        elif kind == 6:
            out.append(str(r.randrange(10 ** r.randrange(1, 12))))
        elif kind == 7:
            out.append(r.choice("abceiouxyzAEé한") + "".join(chr(r.randrange(0x300, 0x36f)) for _ in range(r.randrange(1, 4))))
        elif kind == 8:
            out.append(r.choice(EMOJI) * r.randrange(1, 3))
        elif kind == 9:
            out.append("".join(code_point(r) for _ in range(r.randrange(1, 9))))
        elif kind == 10:
            out.append(r.choice(SIGNS) * r.choice([1, 1, 1, 2, 3, 40]))
        else:
            out.append(r.choice(specials) if specials and r.random() < 0.7 else r.choice(["<s>", "▁", "a" * 70, "ab" * 30, " " * 60]))
        if r.random() < 0.4:
            out.append(r.choice(SPACES))
    return "".join(out)


def ask(inferd, folder, requests):
    """One answer for each request, in order."""
    lines = "".join(json.dumps(q) + "\n" for q in requests)
    run = subprocess.run([inferd, "tokenize", "--model", folder, "--jsonl"], input=lines.encode(), stdout=subprocess.PIPE, check=False)
    answers = [json.loads(line) for line in run.stdout.split(b"\n") if line]
    if len(answers) != len(requests):
        sys.exit(f"{folder}: {len(answers)} answers to {len(requests)} requests")
    return answers


def compare(args, folder):
    with open(f"{folder}/tokenizer.json", encoding="utf-8") as f:
        specials = [t["content"] for t in json.load(f)["added_tokens"]]
    reference = Tokenizer.from_file(f"{folder}/tokenizer.json")
    r = random.Random(args.seed)
    ids_differ = texts_differ = 0
    for start in range(0, args.n, 10000):
        texts = [text(r, specials) for _ in range(min(10000, args.n - start))]
        want = [e.ids for e in reference.encode_batch(texts, add_special_tokens=False)]
        for t, ids, got in zip(texts, want, ask(args.inferd, folder, [{"text": t} for t in texts])):
            if got.get("ids") != ids:
                ids_differ += 1
                if ids_differ <= args.show:
                    print(f"  {t!r}\n    want {ids}\n    got  {got.get('ids', got)}")
        decoded = reference.decode_batch(want, skip_special_tokens=False)
        for ids, t, got in zip(want, decoded, ask(args.inferd, folder, [{"ids": ids} for ids in want])):
            if got.get("text") != t:
                texts_differ += 1
                if texts_differ <= args.show:
                    print(f"  {ids}\n    want {t!r}\n    got  {got.get('text', got)!r}")
    print(f"{folder}: {args.n} texts, {ids_differ} with other ids, {texts_differ} decoded otherwise")
    return ids_differ + texts_differ


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--inferd", default="build/inferd")
    parser.add_argument("-n", type=int, default=100000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", type=int, default=10)
    args = parser.parse_args()
    sys.exit(1 if sum(compare(args, folder) for folder in args.folders) else 0)


main()
