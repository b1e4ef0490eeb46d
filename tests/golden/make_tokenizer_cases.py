#!/usr/bin/env python3
"""Write tests/unit/data/tokenizer_cases.json: small tokenizers of every component, and what the PyPI package
`tokenizers` (the Rust core of Hugging Face) makes of some texts with them. Run it with that package installed:

    python3 tests/golden/make_tokenizer_cases.py > tests/unit/data/tokenizer_cases.json
"""
import json
import sys

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

CORPUS = [
    "The quick brown fox jumps over the lazy dog. It's 12345 o'clock, isn't it? We'll see; they've gone.",
    "the cat sat on the mat, the rat ate the hat; that is what the man said to the other man in the town",
    "def main(argc, argv):\n    return argc + 1\n\n\nint x = 10;\t// done\r\n",
    "Größe, naïve café, señor, Ελληνικά γράμματα, русский язык, עברית, 中文字符, 日本語, 한국어",
    "hello hello world world HELLO World 2024 2025 100 1000 10000",
]

TEXTS = [
    "", " ", "  ", "a", "hello world", " hello  world ", "The quick brown fox, isn't it?", "IT'S We'LL o'clock 'tis don'T",
    "12345 100 7 1234567", "\n\n\n  x\n \t y\r\n", "naïve café GRÖSSE Ελληνικά", "cafe\u0301 a\u030a \u1e9b\u0323 ﬁ ①②", "中文字符,日本語。한국어",
    "😀👍🏽 x", "a-b_c.d!e?f;g", "...!!!???", "<s>hello</s>", "x<sep>y <sep> z<sep>", " <m> <m>x<m> ", "word words sword word",
    "Hello WORLD", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "▁x ▁▁ y", "'ſ \u2028\u00a0\u3000x", "ab12cd34 ef 56",
    "$5+3=8^2|`~<>", "İstanbul ΑΣ", "thethethe the the", "aXb XX ａé①ﬁ… e\u0301 e\u0301\u0302 가각 é\u0301",
]

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace("{1,3}", "")
QWEN35 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
UP, LOW = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TEKKEN = rf"[^\r\n\p{{L}}\p{{N}}]?{UP}*{LOW}+|[^\r\n\p{{L}}\p{{N}}]?{UP}+{LOW}*|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
C = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
O200K = rf"[^\r\n\p{{L}}\p{{N}}]?{UP}*{LOW}+{C}|[^\r\n\p{{L}}\p{{N}}]?{UP}+{LOW}*{C}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def train(pre, alphabet, vocab_size, **model):
    t = Tokenizer(models.BPE(**model))
    t.pre_tokenizer = pre
    specials = ["<unk>"] + ["<0x%02X>" % b for b in range(256)] if model.get("byte_fallback") else ["<unk>"]
    t.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=specials, initial_alphabet=alphabet, show_progress=False))
    return json.loads(t.to_str())["model"]


def byte_model():
    return train(pre_tokenizers.ByteLevel(add_prefix_space=False), pre_tokenizers.ByteLevel.alphabet(), 420)


def char_model(byte_fallback):
    m = train(pre_tokenizers.Metaspace(), [], 640 if byte_fallback else 300, byte_fallback=byte_fallback, unk_token="<unk>", fuse_unk=True)
    return m


def unigram_model(byte_fallback):
    t = Tokenizer(models.Unigram())
    t.pre_tokenizer = pre_tokenizers.Metaspace()
    t.train_from_iterator(CORPUS, trainers.UnigramTrainer(vocab_size=150, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False))
    m = json.loads(t.to_str())["model"]
    if byte_fallback:
        m["vocab"] += [["<0x%02X>" % b, 0.0] for b in range(256)]
        m["byte_fallback"] = True
    return m


BYTE_DECODER = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
FALLBACK_DECODER = {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]}
STRIP_DECODER = {"type": "Sequence", "decoders": FALLBACK_DECODER["decoders"] + [{"type": "Strip", "content": " ", "start": 1, "stop": 0}]}


def byte_level(prefix=False, regex=False):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": regex}


def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def seq(*parts):
    return {"type": "Sequence", "pretokenizers": list(parts)}


def added(content, id, **flags):
    token = {"id": id, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    token.update(flags)
    return token


def template(before, behind):
    def special(name):
        return {"SpecialToken": {"id": name, "type_id": 0}}
    sequence = [{"Sequence": {"id": "A", "type_id": 0}}]
    return {"type": "TemplateProcessing", "single": [special(n) for n, _ in before] + sequence + [special(n) for n, _ in behind], "pair": sequence + [{"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {n: {"id": n, "ids": [i], "tokens": [n]} for n, i in before + behind}}


# What SentencePiece's trainer makes of these rules (normalization_rule_tsv): ａ -> a, ﬁ -> fi, ① -> 1, é -> e, e + U+0301 -> e,
# U+00A0 -> space, … -> ..., 가 -> ka, X -> nothing.
CHARSMAP = (
    "AAQAAABkAQBYDQAAAAAAgMwYAgCBBQAACwAAgKAFAAABAACAqTUAAICUAgCmBQAAAwAAgAcAAICgBQAAsAQCAIB9AAAQAACAgQ0AAA0AAICBHQAACQAAgBQAAAAXAAAAFg"
    "AAAJHUAgAYAAAAGwAAABoAAAAdAAAAHAAAAB8AAAAeAAAArMACACAAAAAjAAAAIgAAACUAAAAkAAAAJwAAACYAAAApAAAAKAAAACsAAAAqAAAALQAAACwAAAAvAAAALgAA"
    "ADEAAAC9jAIAMwAAADIAAAA1AAAANAAAADcAAAA2AAAAOQAAADgAAAA7AAAAOgAAAGXMAwA8AAAAPwAAAD4AAABBAAAAQAAAAEMAAABCAAAARQAAAEQAAABHAAAARgAAAE"
    "kAAABIAAAASwAAAEoAAABNAAAATAAAAE8AAABOAAAAUQAAAFAAAABTAAAAUgAAAFUAAABUAAAAVwAAAFYAAABZAAAAWAAAAFsAAABaAAAAXQAAAFwAAABfAAAAXgAAAGEA"
    "AABgAAAAYwAAAGIAAABlAAAAZAAAAGcAAABmAAAAaQAAAGgAAABrAAAAagAAAG0AAABsAAAAbwAAAG4AAABxAAAAcAAAAHMAAAByAAAAdQAAAHQAAAB3AAAAdgAAAHkAAA"
    "B4AAAAewAAAHoAAAB9AAAAfAAAAH8AAAB+AAAAgQAAAIAAAACDAAAAggAAAIUAAACEAAAAhwAAAIYAAACJAAAAiAAAAIsAAACKAAAAjQAAAIwAAACPAAAAjgAAAJEAAACQ"
    "AAAAkwAAAJIAAACVAAAAlAAAAJcAAACWAAAAmQAAAJgAAADD7AAAwvQAAJ0AAACcAAAAnwAAAJ4AAAChAAAAoAAAAKMAAACiAAAApQAAAKQAAACnAAAApgAAAKkAAACoAA"
    "AAqwAAAKoAAACtAAAArAAAAK8AAACuAAAAsQAAALAAAACzAAAA6jQAALUAAAC0AAAA7+gAALYAAAC5AAAAuAAAALsAAADiyAAAvQAAALwAAAC/AAAAvgAAAMEAAADAAAAA"
    "wwAAAMIAAADFAAAAxAAAAMcAAADGAAAAyQAAAMgAAADLAAAAygAAAM0AAADMAAAAzwAAAM4AAADRAAAA0AAAANMAAADSAAAA1QAAANQAAADXAAAA1gAAANkAAADYAAAA2w"
    "AAANoAAADdAAAA3AAAAN8AAADeAAAA4QAAAOAAAADjAAAA4gAAAOUAAADkAAAA5wAAAOYAAADpAAAA6AAAAOsAAADqAAAA7QAAAOwAAADvAAAA7gAAAPEAAADwAAAA8wAA"
    "APIAAAD1AAAA9AAAAPcAAAD2AAAA+QAAAPgAAAD7AAAA+gAAAP0AAAD8AAAA/wAAAP4AAAAAIAAuLi4AMQBhAGUAZmkAa2EA"
)

PREPEND = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}


def tokenizers():
    """(name, model name, changes to the model, the other components)"""
    for name, regex in [("gpt2", GPT2), ("llama3", LLAMA3), ("qwen2", QWEN2), ("qwen35", QWEN35), ("tekken", TEKKEN), ("o200k", O200K),
                        ("oddregex", r"[a-z]+|\d{2}|\s"), ("lookahead", r"\d{1,3}(?=(?:\d{3})*\b)|\w+")]:
        yield f"split-{name}", "bytes", {}, {"pre_tokenizer": seq(split(regex), byte_level())}
        yield f"split-{name}-ignore-merges", "bytes", {"ignore_merges": True}, {"pre_tokenizer": seq(split(regex), byte_level())}
    for prefix in (False, True):
        for regex in (False, True):
            yield f"bytelevel-{prefix}-{regex}", "bytes", {}, {"pre_tokenizer": byte_level(prefix, regex)}
    for behavior in ("Isolated", "Removed", "Contiguous", "MergedWithPrevious", "MergedWithNext"):
        for invert in (False, True):
            yield f"behavior-{behavior}-{invert}", "bytes", {}, {"pre_tokenizer": seq(split(r"[aeiou]|\d", behavior, invert), byte_level())}
            yield f"literal-{behavior}-{invert}", "bytes", {}, {"pre_tokenizer": seq(split(" ", behavior, invert, "String"), byte_level())}
        yield f"punctuation-{behavior}", "bytes", {}, {"pre_tokenizer": seq({"type": "Punctuation", "behavior": behavior}, byte_level())}
    yield "known-removed-inverted", "bytes", {}, {"pre_tokenizer": seq(split(LLAMA3, "Removed", True), byte_level())}
    yield "digits-one", "bytes", {}, {"pre_tokenizer": seq({"type": "Digits", "individual_digits": True}, byte_level(False, True))}
    yield "digits-runs", "bytes", {}, {"pre_tokenizer": seq({"type": "Digits", "individual_digits": False}, byte_level(False, True))}
    yield "whitespace", "bytes", {}, {"pre_tokenizer": seq({"type": "Whitespace"}, byte_level(True))}
    yield "whitespace-split", "bytes", {}, {"pre_tokenizer": seq({"type": "WhitespaceSplit"}, byte_level(True))}
    yield "char-delimiter", "bytes", {}, {"pre_tokenizer": seq({"type": "CharDelimiterSplit", "delimiter": "-"}, byte_level())}
    for form in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase"):
        yield f"normalizer-{form}", "bytes", {}, {"normalizer": {"type": form}, "pre_tokenizer": byte_level(False, True)}
    yield "normalizer-replace", "bytes", {}, {"normalizer": {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": "_"}, "pre_tokenizer": byte_level(False, True)}
    yield "normalizer-precompiled", "bytes", {}, {"normalizer": {"type": "Precompiled", "precompiled_charsmap": CHARSMAP}, "pre_tokenizer": byte_level(False, True)}
    for left in (False, True):
        for right in (False, True):
            yield f"normalizer-strip-{left}-{right}", "bytes", {}, {"normalizer": {"type": "Sequence", "normalizers": [{"type": "Strip", "strip_left": left, "strip_right": right}, {"type": "NFC"}]}, "pre_tokenizer": byte_level(False, True)}
    for scheme in ("always", "first", "never"):
        for cut in (False, True):
            for model in ("chars", "fallback"):
                metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": cut}
                yield f"metaspace-{scheme}-{cut}-{model}", model, {}, {"pre_tokenizer": metaspace, "decoder": metaspace}
    for fuse in (False, True):
        yield f"unknown-{fuse}", "chars", {"fuse_unk": fuse}, {"normalizer": PREPEND, "pre_tokenizer": None, "decoder": STRIP_DECODER}
    yield "no-unknown", "chars", {"unk_token": None}, {"normalizer": PREPEND, "pre_tokenizer": None, "decoder": STRIP_DECODER}
    yield "fallback-strip", "fallback", {}, {"normalizer": PREPEND, "pre_tokenizer": None, "decoder": STRIP_DECODER}
    yield "fallback", "fallback", {}, {"normalizer": PREPEND["normalizers"][1], "pre_tokenizer": None, "decoder": FALLBACK_DECODER}
    flags = [("plain", {}), ("lstrip", {"lstrip": True}), ("rstrip", {"rstrip": True}), ("both", {"lstrip": True, "rstrip": True}), ("single-word", {"single_word": True}),
             ("normalized", {"normalized": True, "special": False}), ("ordinary", {"special": False})]
    for name, flag in flags:
        tokens = [added("<s>", 0), added("</s>", 1), added("<sep>", 2, **flag), added("<m>", 3, **flag), added("word", 4, **flag), added("Hello", 5, **flag)]
        yield f"added-{name}-bytes", "bytes", {}, {"added_tokens": tokens, "normalizer": {"type": "Lowercase"}, "pre_tokenizer": byte_level(False, True), "post_processor": template([("<s>", 0)], [("</s>", 1)])}
        yield f"added-{name}-chars", "fallback", {}, {"added_tokens": tokens, "normalizer": PREPEND, "pre_tokenizer": None, "decoder": STRIP_DECODER, "post_processor": template([("<s>", 0)], [])}
        yield f"added-{name}-first", "fallback", {}, {"added_tokens": tokens, "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}, "decoder": FALLBACK_DECODER}
    for model in ("unigram", "unigram-fallback"):
        metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
        yield model, model, {}, {"pre_tokenizer": metaspace, "decoder": metaspace if model == "unigram" else FALLBACK_DECODER}
        yield f"{model}-whole", model, {}, {"normalizer": PREPEND, "pre_tokenizer": None, "decoder": STRIP_DECODER}


def number(whole, vocab):
    """Give the added tokens the ids that follow the vocabulary."""
    whole = json.loads(json.dumps(whole))
    ids = {}
    for i, token in enumerate(whole["added_tokens"]):
        token["id"] = ids[token["content"]] = len(vocab) + i - sum(t["content"] in vocab for t in whole["added_tokens"][:i])
    for special in ((whole["post_processor"] or {}).get("special_tokens") or {}).values():
        special["ids"] = [ids[special["id"]]]
    return whole


def main():
    shared = {"bytes": byte_model(), "chars": char_model(False), "fallback": char_model(True), "unigram": unigram_model(False), "unigram-fallback": unigram_model(True)}
    out = []
    for name, model, changes, parts in tokenizers():
        whole = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": BYTE_DECODER, **parts}
        whole = number(whole, shared[model]["vocab"])
        parts = {key: whole[key] for key in parts}
        t = Tokenizer.from_str(json.dumps({**whole, "model": {**shared[model], **changes}}))
        cases = []
        for text in TEXTS:
            ids = t.encode(text, add_special_tokens=False).ids
            case = {"text": text, "ids": ids, "decoded": t.decode(ids, skip_special_tokens=False)}
            special = t.encode(text, add_special_tokens=True).ids
            if special != ids:
                case["ids_special"] = special
            skipped = t.decode(ids, skip_special_tokens=True)
            if skipped != case["decoded"]:
                case["decoded_skip_special"] = skipped
            cases.append(case)
        # what differs from the defaults of the test only
        out.append({"name": name, "model": model, "changes": changes, "parts": parts, "cases": cases})
    json.dump({"models": shared, "tokenizers": out}, sys.stdout, ensure_ascii=False, separators=(",", ":"))
    print()


main()
