/*
 * Character classes that the pre-tokenizer patterns ask for, from utf8proc's tables (ASCII from a table of our own).
 * Strings here are well-formed UTF-8: the encoder replaces ill-formed parts before anything else looks at the text.
 */
#ifndef INFERD_TEXT_UNICODE_CLASS_H
#define INFERD_TEXT_UNICODE_CLASS_H

#include "base/utf8.h"

#include <inferd/buf.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum unicode_class {
    CLASS_LETTER = 1,  /* \p{L} */
    CLASS_NUMBER = 2,  /* \p{N} */
    CLASS_SPACE = 4,   /* \s: property White_Space */
    CLASS_MARK = 8,    /* \p{M} */
    CLASS_PUNCT = 16,  /* \p{P} */
    CLASS_SYMBOL = 32, /* \p{S} */
    CLASS_UPPER = 64,  /* \p{Lu} or \p{Lt} */
    CLASS_LOWER = 128, /* \p{Ll} */
};

extern const uint8_t unicode_class_ascii[128];

/* The bits of enum unicode_class of a code point. */
unsigned unicode_class_of(uint32_t code_point);

/*
 * \w of Rust's regexes: Alphabetic, marks, decimal digits, connecting punctuation, the joiners. (Alphabetic beyond the
 * letters and letter-like numbers: marks, and letters in circles and squares.)
 */
bool unicode_is_word(uint32_t code_point);

/* The code point at s, which begins a well-formed character. */
static inline uint32_t utf8_get(const char *s) {
    const unsigned char *u = (const unsigned char *)s;
    if (u[0] < 0x80) {
        return u[0];
    }
    if (u[0] < 0xe0) {
        return (uint32_t)(u[0] & 0x1f) << 6 | (u[1] & 0x3fu);
    }
    if (u[0] < 0xf0) {
        return (uint32_t)(u[0] & 0x0f) << 12 | (uint32_t)(u[1] & 0x3f) << 6 | (u[2] & 0x3fu);
    }
    return (uint32_t)(u[0] & 0x07) << 18 | (uint32_t)(u[1] & 0x3f) << 12 | (uint32_t)(u[2] & 0x3f) << 6 |
           (u[3] & 0x3fu);
}

/* The class and length of the character at s. */
static inline unsigned unicode_class_at(const char *s, size_t *len) {
    unsigned char c = (unsigned char)s[0];
    if (c < 0x80) {
        *len = 1;
        return unicode_class_ascii[c];
    }
    *len = utf8_length(s[0]);
    return unicode_class_of(utf8_get(s));
}

/* Append bytes with each maximal ill-formed part replaced by U+FFFD. */
void utf8_sanitize(const char *bytes, size_t len, struct buf *out);

#endif
