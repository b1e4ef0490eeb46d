#!/usr/bin/env python3
"""Write tests/unit/data/tokenizer_cases.json: small tokenizers of every component, and what the PyPI package
`tokenizers` (the Rust core of Hugging Face) makes of some texts with them. Run it with that package installed:

    python3 tests/golden/make_tokenizer_cases.py > tests/unit/data/tokenizer_cases.json
"""
import collections
import json
import math
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
    "a²b ³¹ ¼x ½", "he\u200dl\u200clo ⓐⓑ _a_ __ b_", "<s><s>x< s><s >", "<sep><m><sep> \n <m>word<sep>_", "x-y,z. 1-2 -- 1234567 12ab",
    "sep⒕ sepⓐ sep‿ word\u200d <unk> <unk>x", "a  b   c    d", "hello\tworld\r\n\r\n  end  ", "ΣΑΣ ǅ ſ K ß ẞ", "...a\r\n!!\n\n b/c //", "the-cat the\u2581cat",
]

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace("{1,3}", "")
QWEN35 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
UP, LOW = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TEKKEN = rf"[^\r\n\p{{L}}\p{{N}}]?{UP}*{LOW}+|[^\r\n\p{{L}}\p{{N}}]?{UP}+{LOW}*|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
C = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
O200K = rf"[^\r\n\p{{L}}\p{{N}}]?{UP}*{LOW}+{C}|[^\r\n\p{{L}}\p{{N}}]?{UP}+{LOW}*{C}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"


DEEPSEEK3 = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""


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
    """Counted, not trained (that draws lots): the frequent parts of the words and the logarithms of their shares."""
    counts = collections.Counter()
    for word in "".join("▁" + line.replace(" ", "▁") for line in CORPUS).replace("▁", " ▁").split(" "):
        counts.update(word[i:j] for i in range(len(word)) for j in range(i + 1, min(len(word), i + 7) + 1))
    kept = sorted(((n * len(part), part) for part, n in counts.items() if n > 2 or len(part) == 1), reverse=True)[:220]
    total = sum(n for n, _ in kept)
    m = {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0]] + [[part, round(math.log(n / total), 4)] for n, part in kept], "byte_fallback": byte_fallback}
    if byte_fallback:
        m["vocab"] += [["<0x%02X>" % b, 0.0] for b in range(256)]
    return m


def extended(model, *tokens):
    """With tokens that no merge makes."""
    assert not set(tokens) & set(model["vocab"])
    return {**model, "vocab": {**model["vocab"], **{t: len(model["vocab"]) + i for i, t in enumerate(tokens)}}}


def without_bytes(model, first):
    """Without the byte tokens from this one on, which get other names: a fallback that covers some characters only."""
    return {**model, "vocab": {("x" + t if t.startswith("<0x") and int(t[3:5], 16) >= first else t): i for t, i in model["vocab"].items()}}


FUSE = {"type": "Fuse"}
METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
BYTE_DECODER = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
FALLBACK_DECODER = {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]}
STRIP_DECODER = {"type": "Sequence", "decoders": FALLBACK_DECODER["decoders"] + [{"type": "Strip", "content": " ", "start": 1, "stop": 0}]}


def byte_level(prefix=False, regex=False):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": regex}


def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def decoder_sequence(*parts):
    return {"type": "Sequence", "decoders": list(parts)}


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
    yield "punctuation-default", "bytes", {}, {"pre_tokenizer": seq({"type": "Punctuation"}, byte_level())}
    yield "literal-long", "bytes", {}, {"pre_tokenizer": seq(split("the", "MergedWithNext", False, "String"), byte_level())}
    yield "empty-matches", "bytes", {}, {"pre_tokenizer": seq(split("x*", "Isolated"), byte_level())}
    yield "whitespace-chars", "chars", {}, {"pre_tokenizer": {"type": "Whitespace"}, "decoder": FUSE}
    yield "digits-metaspace", "fallback", {}, {"pre_tokenizer": seq({"type": "Digits", "individual_digits": True}, METASPACE), "decoder": METASPACE}
    yield "whitespace-metaspace", "unigram", {}, {"pre_tokenizer": seq({"type": "WhitespaceSplit"}, METASPACE), "decoder": METASPACE}
    yield "metaspace-underscore", "chars", {}, {"pre_tokenizer": {**METASPACE, "replacement": "_"}, "decoder": {**METASPACE, "replacement": "_"}}
    # behind ByteLevel: what follows sees the printable alphabet of bytes, where ² ³ ¹ ¼ ½ ¾ are bytes of other characters
    yield "falcon", "bytes", {}, {"pre_tokenizer": seq({"type": "Punctuation", "behavior": "Contiguous"}, byte_level(False, True), {"type": "Digits", "individual_digits": False}, split("[0-9][0-9][0-9]"))}
    yield "behind-bytes", "bytes", {}, {"pre_tokenizer": seq(byte_level(False, True), {"type": "Digits", "individual_digits": True}, {"type": "Punctuation"}, split("Ġ", "Removed", False, "String"))}
    yield "gemma", "fallback", {}, {"normalizer": PREPEND["normalizers"][1], "pre_tokenizer": split(" ", "MergedWithPrevious", False, "String"), "decoder": FALLBACK_DECODER}
    yield "bloom", "bytes", {}, {"pre_tokenizer": seq(split(" ?[^(\\s|[.,!?…。，、।۔،])]+"), byte_level())}
    yield "deepseek-llm", "bytes", {}, {"pre_tokenizer": seq(split("[\r\n]"), split("\\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓ]+"), split("\\s?[!-/:-~！-／：-～‘-‟　-。]+"), split("\\s+$"), split("[一-龥ࠀ-一가-퟿]+"), {"type": "Digits", "individual_digits": True}, byte_level())}
    yield "deepseek-v3", "bytes", {}, {"pre_tokenizer": seq(split("\\p{N}{1,3}"), split("[一-龥぀-ゟ゠-ヿ]+"), split(DEEPSEEK3), byte_level())}
    for form in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase"):
        yield f"normalizer-{form}", "bytes", {}, {"normalizer": {"type": form}, "pre_tokenizer": byte_level(False, True)}
    yield "normalizer-replace", "bytes", {}, {"normalizer": {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": "_"}, "pre_tokenizer": byte_level(False, True)}
    yield "normalizer-replace-literal", "bytes", {}, {"normalizer": {"type": "Replace", "pattern": {"String": "the"}, "content": "of the"}, "pre_tokenizer": byte_level(False, True)}
    yield "normalizer-prepend", "bytes", {}, {"normalizer": {"type": "Prepend", "prepend": "a b"}, "pre_tokenizer": byte_level(False, True)}
    yield "normalizer-nested", "bytes", {}, {"normalizer": {"type": "Sequence", "normalizers": [{"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Lowercase"}]}, {"type": "NFD"}]}, "pre_tokenizer": byte_level(False, True)}
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
    for name in ("bytes-merges-as-strings", "bytes-unmerged"):
        yield name, name, {}, {"pre_tokenizer": byte_level(False, True)}
    yield "bytes-ignore-merges", "bytes-unmerged", {"ignore_merges": True}, {"pre_tokenizer": byte_level(False, True)}
    for ignore in (False, True):
        yield f"fallback-ignore-merges-{ignore}", "fallback-unmerged", {"ignore_merges": ignore}, {"pre_tokenizer": METASPACE, "decoder": METASPACE}
        yield f"fallback-some-{ignore}", "fallback-some", {"fuse_unk": ignore}, {"normalizer": PREPEND, "pre_tokenizer": None, "decoder": STRIP_DECODER}
    # decoders
    for name, decoder in [("fuse", FUSE), ("bytes", {"type": "ByteFallback"}), ("replace", {"type": "Replace", "pattern": {"String": "▁"}, "content": "<>"}),
                          ("replace-twice", decoder_sequence({"type": "Replace", "pattern": {"String": "he"}, "content": "HE"}, FALLBACK_DECODER["decoders"][0], {"type": "ByteFallback"})),
                          ("nested", decoder_sequence(FALLBACK_DECODER, {"type": "Strip", "content": " ", "start": 1, "stop": 0})),
                          ("metaspace-first", {**METASPACE, "prepend_scheme": "first"}), ("metaspace-never", {**METASPACE, "prepend_scheme": "never"})]:
        yield f"decoder-{name}", "fallback", {}, {"pre_tokenizer": METASPACE, "decoder": decoder}
    yield "decoder-bytes-in-sequence", "bytes", {}, {"pre_tokenizer": byte_level(False, True), "decoder": decoder_sequence(BYTE_DECODER, FUSE)}
    # post-processors
    ends = [added("<s>", 0), added("</s>", 1), added("<x>", 2)]
    for name, post in [("bytelevel", byte_level()), ("sequence", {"type": "Sequence", "processors": [byte_level(), template([("<s>", 0)], [("</s>", 1)])]}),
                       ("several", template([("<s>", 0), ("<x>", 2), ("<x>", 2)], [("</s>", 1), ("<s>", 0)])),
                       ("roberta", {"type": "RobertaProcessing", "cls": ["<s>", 0], "sep": ["</s>", 1], "trim_offsets": True, "add_prefix_space": False}),
                       ("bert", {"type": "BertProcessing", "cls": ["<s>", 0], "sep": ["</s>", 1]})]:
        yield f"post-{name}", "bytes", {}, {"added_tokens": ends, "pre_tokenizer": byte_level(False, True), "post_processor": post}
    flags = [("plain", {}), ("lstrip", {"lstrip": True}), ("rstrip", {"rstrip": True}), ("both", {"lstrip": True, "rstrip": True}), ("single-word", {"single_word": True}),
             ("normalized", {"normalized": True, "special": False}), ("ordinary", {"special": False}), ("special-normalized", {"normalized": True}), ("single-word-both", {"single_word": True, "lstrip": True, "rstrip": True}),
             ("normalized-both", {"normalized": True, "single_word": True, "lstrip": True, "rstrip": True})]
    for name, flag in flags:
        tokens = [added("<s>", 0), added("</s>", 1)] + [added(text, 2 + i, **flag) for i, text in enumerate(("<sep>", "<m>", "word", "Hello", "<s>x", "sep", "  "))]
        yield f"added-{name}-bytes", "bytes", {}, {"added_tokens": tokens, "normalizer": {"type": "Lowercase"}, "pre_tokenizer": byte_level(False, True), "post_processor": template([("<s>", 0)], [("</s>", 1)])}
        yield f"added-{name}-chars", "fallback", {}, {"added_tokens": tokens, "normalizer": PREPEND, "pre_tokenizer": None, "decoder": STRIP_DECODER, "post_processor": template([("<s>", 0)], [])}
        yield f"added-{name}-first", "fallback", {}, {"added_tokens": tokens, "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}, "decoder": FALLBACK_DECODER}
    for model in ("unigram", "unigram-fallback"):
        metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
        yield model, model, {}, {"pre_tokenizer": metaspace, "decoder": metaspace if model == "unigram" else FALLBACK_DECODER}
        yield f"{model}-whole", model, {}, {"normalizer": PREPEND, "pre_tokenizer": None, "decoder": STRIP_DECODER}
        # as T5 and XLM-R have it
        yield f"{model}-precompiled", model, {}, {
            "added_tokens": [added("<s>", 0), added("</s>", 1)], "post_processor": template([("<s>", 0)], [("</s>", 1)]), "pre_tokenizer": seq({"type": "WhitespaceSplit"}, METASPACE),
            "normalizer": {"type": "Sequence", "normalizers": [{"type": "Precompiled", "precompiled_charsmap": CHARSMAP}, {"type": "Strip", "strip_left": False, "strip_right": True}, {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"}]},
            "decoder": METASPACE if model == "unigram" else FALLBACK_DECODER}


def number(whole, vocab):
    """Give the added tokens the ids that follow the vocabulary."""
    whole = json.loads(json.dumps(whole))
    ids = {}
    for i, token in enumerate(whole["added_tokens"]):
        token["id"] = ids[token["content"]] = len(vocab) + i - sum(t["content"] in vocab for t in whole["added_tokens"][:i])
    post = whole["post_processor"] or {}
    for processor in [post, *post.get("processors", [])]:
        for special in processor.get("special_tokens", {}).values():
            special["ids"] = [ids[special["id"]]]
        for end in ("cls", "sep"):
            if end in processor:
                processor[end][1] = ids[processor[end][0]]
    return whole


def shared_models():
    plain, fallback = byte_model(), char_model(True)
    return {
        "bytes": plain, "chars": char_model(False), "fallback": fallback, "unigram": unigram_model(False), "unigram-fallback": unigram_model(True),
        "bytes-merges-as-strings": {**plain, "merges": [" ".join(pair) for pair in plain["merges"]]},
        "bytes-unmerged": extended(plain, "thethethe", "ĠGRÃĸSSE", "x,", "...!!!???", "100"),
        "fallback-unmerged": extended(fallback, "▁thethethe", "hello▁world", "▁Hello▁WORLD", "▁...!!!???"),
        "fallback-some": without_bytes(fallback, 0xe0),
    }


def whole_tokenizers(shared):
    """(name, tokenizer.json) of each."""
    for name, model, changes, parts in tokenizers():
        yield name, assemble(shared[model], changes, parts)


def assemble(model, changes, parts):
    whole = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": BYTE_DECODER, **parts}
    return {**number(whole, model["vocab"]), "model": {**model, **changes}}


def decode_without_special(t, whole, ids):
    """skip_special_tokens, but for special tokens that the normalizer changes: the package forgets that those are special."""
    special = {token["id"] for token in whole["added_tokens"] if token["special"]}
    return t.decode([i for i in ids if i not in special], skip_special_tokens=False)


def main():
    shared = shared_models()
    out = []
    for name, model, changes, parts in tokenizers():
        whole = assemble(shared[model], changes, parts)
        parts = {key: whole[key] for key in parts}
        t = Tokenizer.from_str(json.dumps(whole))
        cases = []
        for text in TEXTS:
            ids = t.encode(text, add_special_tokens=False).ids
            case = {"text": text, "ids": ids, "decoded": t.decode(ids, skip_special_tokens=False)}
            special = t.encode(text, add_special_tokens=True).ids
            if special != ids:
                case["ids_special"] = special
            skipped = decode_without_special(t, whole, ids)
            if skipped != case["decoded"]:
                case["decoded_skip_special"] = skipped
            cases.append(case)
        # what differs from the defaults of the test only
        out.append({"name": name, "model": model, "changes": changes, "parts": parts, "cases": cases})
    json.dump({"models": shared, "tokenizers": out}, sys.stdout, ensure_ascii=False, separators=(",", ":"))
    print()


if __name__ == "__main__":
    main()
