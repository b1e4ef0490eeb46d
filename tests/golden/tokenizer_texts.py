"""Generated texts for compare_tokenizers.py: a seeded generator of each category, and one that mixes them."""
import unicodedata

WORDS = """the of and to a in that is was he for it with as his on be at by I this had not are but from or have an they which one you
were her all she there would their we him been has when who will more no if out so said what up its about into than them can only
other new some could time these two may then do first any my now such like our over man me even most made after also did many before
must through back years where much your way well down should because each just those people how too little state good very make
world still own see men work long get here between both life being under never day same another know while last might us great old
year off come since against go came right used take three""".split()
SCRIPTS = """привет мир как дела κόσμε γειά σου नमस्ते दुनिया สวัสดีชาวโลก こんにちは世界 안녕하세요 세계 你好,世界。 مرحبا بالعالم שלום עולם
Dữ liệu Größe façade naïve São Łódź İstanbul ǅ ﬁ ﬀ ① ² Ⅷ ½ ٣٤٥ 四五六 ᏣᎳᎩ ᐊᒻ 𐌰𐌱 𝔘𝔫𝔦 ꙮ ΑΣ ὈΔΥΣΣΕΎΣ ქართული հայերեն አማርኛ ខ្មែរ
မြန်မာ བོད་ தமிழ் తెలుగు ಕನ್ನಡ മലയാളം සිංහල বাংলা ਪੰਜਾਬੀ ગુજરાતી ລາວ ᠮᠣᠩᠭᠣᠯ ﷺ ﬃ Ǆ ŉ ẞ ａｂｃ１２ ㍿ ﾊﾝｶｸ 각 가각""".split()
SPACES = [" ", "  ", "    ", "\n", "\n\n\n", "\t", "\r\n", "\r", "\u00a0", "\u1680", "\u2028", "\u2029", "\u3000", "\x0b", "\x0c", "\x85", "\u2003",
          "\u200b", "\ufeff", "\u202f"]
EMOJI = ["👩‍👩‍👧‍👦", "👍🏽", "🏳️‍🌈", "😀", "🇩🇪", "❤️", "1️⃣", "👩🏾‍🚀", "🧑‍🤝‍🧑", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "🇺🇳🇪", "☠︎", "‍", "️", "🏻"]
SIGNS = ["'s", "'S", "'t", "'ll", "'RE", "'ve", "'m", "'d", "'ſ", "'K", "’s", ".", ",", ";", "::", "!?", "...", "--", "_", "/", "\\", "(", ")",
         "[]", "{}", "<|", "|>", "</", "@", "#", "$", "%", "^", "&", "*", "~", "`", '"', "+", "=", "«", "»", "—", "…", "，", "。", "¿", "€"]
CODE = ["def f(x):\n    return x ** 2\n", "for (size_t i = 0; i < n; i++) {\n\t\ta[i] += b[i]->next;\n\t}\n", "if (!p) return -1;\r\n", "\t\t\t", "        ",
        "#include <stdio.h>\n", "SELECT * FROM t WHERE a='x' AND b<>3;", "<div class=\"a\">&nbsp;</div>", "{\"key\": [1, 2.5e-3, null]}\n", "0xDEADbeef",
        "std::vector<int>", "x=>{y}", "$PATH/*.c", "// TODO: fix\n", "/* c */", "https://example.org/a?b=c&d=%20#e", "camelCaseName", "SNAKE_CASE_NAME",
        "a.b.c()", "!=", "<<=", "\\n\\t\\u0041", "```python\n", "|---|---|\n", "$$\\frac{a}{b}$$"]
RUNS = ["a", " ", "\n", "\t", "0", "=", "-", ".", "A", "é", "中", "한", "ा", "\u0301", "😀", "\u200d", "ab", " a", "\r\n", "<", "_", "▁", "'", "\u00a0", "ſ"]
LOOKALIKES = ["<s>", "</s>", "<unk>", "<pad>", "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|eot_id|>", "<think>", "</think>", "<0x0A>", "<0xFF>",
              "[INST]", "[/INST]", "<start_of_turn>", "▁", "▁▁", "Ġ", "Ċ", "<|user|>", "<|", "|>", "<s", "s>", "<<s>>"]


class Texts:
    """r: a random.Random; specials: the tokenizer's own added tokens; left_out: code points that never occur."""

    def __init__(self, r, specials, left_out):
        self.r, self.specials, self.left_out = r, specials or ["<s>"], left_out
        self.categories = {name: getattr(self, name) for name in (
            "words", "scripts", "marks", "emoji", "runs", "random", "special", "lookalike", "code", "digits", "spaces", "signs", "mixed")}

    def text(self, category):
        """The left-out ones are dropped here: parts of emoji and scripts could hold one."""
        text = self.categories[category]()
        return "".join(c for c in text if ord(c) not in self.left_out) if self.left_out else text

    def many(self, kind, most, between=("", " ", " ")):
        r = self.r
        return "".join(kind() + r.choice(between) for _ in range(r.randrange(1, most)))

    def code_point(self):
        r = self.r
        while True:
            c = r.choice([r.randrange(0, 0x250), r.randrange(0x250, 0x3000), r.randrange(0x3000, 0x10000), r.randrange(0x10000, 0x32000),
                          r.randrange(0xe0000, 0x110000)])
            if c not in self.left_out and unicodedata.category(chr(c)) not in ("Cn", "Cs"):
                return chr(c)

    def word(self):
        r, word = self.r, self.r.choice(WORDS)
        return r.choice([word, word, word, word.capitalize(), word.upper(), word + r.choice(WORDS), word + r.choice(SIGNS)])

    def words(self):
        return self.many(self.word, 30, (" ", " ", " ", "  ", ", ", ". ", "\n"))

    def scripts(self):
        return self.many(lambda: self.r.choice(SCRIPTS), 12, ("", " ", " ", "-", "\u3000"))

    def mark(self):
        r = self.r
        marks = [r.randrange(0x300, 0x370), r.randrange(0x300, 0x316), r.randrange(0x591, 0x5be), r.randrange(0x64b, 0x660), 0x93c, 0x94d, 0x9be, 0x3099, 0x20dd,
                 r.randrange(0x1161, 0x1176), r.randrange(0x11a8, 0x11c3)]
        base = r.choice("abceiouxyzAEéñ한ᄀक가かア 1.") if r.random() < 0.8 else self.code_point()
        text = base + "".join(chr(r.choice(marks)) for _ in range(r.randrange(1, 5)))
        return r.choice([text, text, unicodedata.normalize("NFC", text), unicodedata.normalize("NFD", text)])

    def marks(self):
        return self.many(self.mark, 10, ("", "", " ", "\n"))

    def emoji(self):
        return self.many(lambda: self.r.choice(EMOJI) * self.r.randrange(1, 3), 8, ("", "", " ", "\u200d", "a"))

    def runs(self):
        r = self.r
        unit = r.choice(RUNS) if r.random() < 0.7 else self.code_point()
        return self.many(lambda: unit * int(r.choice([9, 70, 70, 300, 300, 2000]) * r.random() + 1), 3, ("", " ", "x", "\n"))

    def random(self):
        return "".join(self.code_point() for _ in range(self.r.randrange(1, 40)))

    def around(self, text):
        r = self.r
        return r.choice(["", "", " ", "  ", "\n", "a", "é", "_", "."]) + text + r.choice(["", "", " ", " \n", "\t", "a", "1", "é", "_", "."])

    def special(self):
        r = self.r
        return self.many(lambda: self.around(r.choice(self.specials)), 6, ("", "", " ", "word"))

    def lookalike(self):
        """A special token with something wrong, or another model's."""
        r, token = self.r, self.r.choice(self.specials + LOOKALIKES)
        at = r.randrange(len(token) + 1)
        token = r.choice([token, token[:at], token[at:], token[:at] + " " + token[at:], token[:at] + token[at + 1:], token.upper(), token.lower(),
                          token + token[at:], token[:at] + token, token[:at] + "\u200b" + token[at:]])
        return self.around(token) + (self.special() if r.random() < 0.3 else "")

    def code(self):
        return self.many(lambda: self.r.choice(CODE), 8, ("", "", " ", "\n", "\n    "))

    def digit(self):
        r = self.r
        number = str(r.randrange(10 ** r.randrange(1, 25)))
        return r.choice([number, number, f"{r.random()}", f"{int(number):,}", f"-{number}", f"{number}%", "٣٤٥٦"[:r.randrange(1, 5)], "１２３", "²³", "Ⅷ½", "1e-9"])

    def digits(self):
        return self.many(self.digit, 10, ("", " ", "\n", ".", "a"))

    def spaces(self):
        r = self.r
        return self.many(lambda: r.choice(SPACES) * r.randrange(1, 6), 8, ("", "", "a", ".", "中", "1", r.choice(WORDS)))

    def signs(self):
        return self.many(lambda: self.r.choice(SIGNS) * self.r.choice([1, 1, 1, 2, 3, 20]), 12, ("", "", " ", "a", "I", "\n"))

    def mixed(self):
        r = self.r
        kinds = [self.word, lambda: r.choice(SCRIPTS), self.mark, lambda: r.choice(EMOJI), self.code_point, lambda: r.choice(self.specials),
                 lambda: r.choice(CODE), self.digit, lambda: r.choice(SPACES), lambda: r.choice(SIGNS), lambda: r.choice(RUNS) * r.randrange(1, 50), self.lookalike]
        return self.many(lambda: r.choice(kinds)(), 16, ("", "", " ", " "))

    def broken(self):
        """Bytes that are not UTF-8."""
        while True:
            data = self.damaged()
            if all(ord(c) not in self.left_out and unicodedata.category(c) != "Cn" for c in data.decode(errors="replace")):
                return data

    def damaged(self):
        """A text with bytes changed, dropped, put in or cut off."""
        r, data = self.r, bytearray(self.text("mixed").encode())
        for _ in range(r.randrange(1, 6)):
            at = r.randrange(len(data) + 1)
            change = r.randrange(4)
            if change == 0:
                data[at:at] = r.choice([b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe4\xbd", b"\xf0\x9f\x98", b"\x80", b"\xc3", b"\xf8\x88"])
            elif change == 1 and at < len(data):
                data[at] = r.randrange(256)
            elif change == 2:
                del data[at:at + r.randrange(1, 3)]
            else:
                data[at:at] = bytes(r.randrange(256) for _ in range(r.randrange(1, 4)))
        return bytes(data)
