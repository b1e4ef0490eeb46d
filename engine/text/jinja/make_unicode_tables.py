#!/usr/bin/env python3
"""Writes unicode_tables.h: what Python's str methods know of Unicode and utf8proc's character records do not.

    python3 make_unicode_tables.py > unicode_tables.h
"""
import unicodedata

CHARACTERS = [chr(c) for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]


def ranges(characters):
    out = []
    for c in map(ord, characters):
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def table(name, comment, characters):
    print(f"\n/* {comment} */\nstatic const struct code_point_range {name}[] = {{")
    line = "   "
    for a, b in ranges(characters):
        item = f" {{0x{a:x}, 0x{b:x}}},"
        if len(line) + len(item) > 118:
            print(line)
            line = "   "
        line += item
    print(line + "\n};")


def three(s):
    return "{" + ", ".join(f"0x{ord(c):x}" for c in s) + "}"


print(f"/* Written by make_unicode_tables.py (Unicode {unicodedata.unidata_version}). */")
print("#ifndef INFERD_JINJA_UNICODE_TABLES_H\n#define INFERD_JINJA_UNICODE_TABLES_H\n\n#include <stdint.h>\n")
print("struct code_point_range {\n    uint32_t first, last;\n};\n")
print("/* Characters with an upper case of more than one character, and their title case; 0 = no more. */")
print("struct special_case {\n    uint16_t from, upper[3], title[3];\n};")
print("static const struct special_case special_cases[] = {")
for c in CHARACTERS:
    if len(c.upper()) > 1:
        print(f"    {{0x{ord(c):x}, {three(c.upper())}, {three(c.title())}}},")
print("};")
category = unicodedata.category
table("digits_not_decimal", "str.isdigit but not category Nd", [c for c in CHARACTERS if c.isdigit() and not c.isdecimal()])
table("numeric_letters", "str.isnumeric but not category N*", [c for c in CHARACTERS if c.isnumeric() and category(c)[0] != "N"])
table("other_lowercase", "str.islower but not category Ll", [c for c in CHARACTERS if c.islower() and category(c) != "Ll"])
table("other_uppercase", "str.isupper but not category Lu", [c for c in CHARACTERS if c.isupper() and category(c) != "Lu"])
print("\n#endif")
