/* UTF-8 as Unicode 15 chapter 3.9 has it (table 3-7: well-formed sequences; maximal ill-formed parts). */
#ifndef INFERD_UTF8_H
#define INFERD_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * The length of the sequence at s[0..len), len >= 1. *valid says whether it is a whole well-formed character; if
 * not, the length is that of the maximal ill-formed part, to be replaced by one U+FFFD.
 */
size_t utf8_sequence(const char *s, size_t len, bool *valid);

/* The same with the code point (U+FFFD when not valid). */
size_t utf8_decode(const char *s, size_t len, uint32_t *code_point, bool *valid);

/* Could s[0..len) be the beginning of a longer well-formed character (and is not whole)? */
bool utf8_is_prefix(const char *s, size_t len);

/* Writes 1..4 bytes; code_point must be a scalar value. */
size_t utf8_encode(uint32_t code_point, char out[4]);

bool utf8_is_valid(const char *s, size_t len);

/* The length of the well-formed character that begins with this byte. */
static inline size_t utf8_length(char lead) {
    unsigned char c = (unsigned char)lead;
    return c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
}

#endif
