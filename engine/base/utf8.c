#include "base/utf8.h"

/* Bytes that a lead byte asks for, 0 if it cannot lead; and the range of the second byte (table 3-7). */
static size_t lead(unsigned char c, unsigned char *low, unsigned char *high) {
    *low = 0x80;
    *high = 0xbf;
    if (c < 0x80) {
        return 1;
    }
    if (c >= 0xc2 && c <= 0xdf) {
        return 2;
    }
    if (c >= 0xe0 && c <= 0xef) {
        *low = c == 0xe0 ? 0xa0 : 0x80;
        *high = c == 0xed ? 0x9f : 0xbf;
        return 3;
    }
    if (c >= 0xf0 && c <= 0xf4) {
        *low = c == 0xf0 ? 0x90 : 0x80;
        *high = c == 0xf4 ? 0x8f : 0xbf;
        return 4;
    }
    return 0;
}

/* How many of the bytes fit, and how many the character needs (0: no character begins here). */
static size_t match(const char *s, size_t len, size_t *need) {
    unsigned char low, high;
    *need = lead((unsigned char)s[0], &low, &high);
    if (*need <= 1) {
        return 1;
    }
    size_t n = 1;
    while (n < *need && n < len) {
        unsigned char c = (unsigned char)s[n];
        if (c < (n == 1 ? low : 0x80) || c > (n == 1 ? high : 0xbf)) {
            break;
        }
        n++;
    }
    return n;
}

size_t utf8_sequence(const char *s, size_t len, bool *valid) {
    size_t need, n = match(s, len, &need);
    *valid = need != 0 && n == need;
    return n;
}

size_t utf8_decode(const char *s, size_t len, uint32_t *code_point, bool *valid) {
    static const unsigned char mask[5] = {0, 0x7f, 0x1f, 0x0f, 0x07};
    size_t n = utf8_sequence(s, len, valid);
    if (!*valid) {
        *code_point = 0xfffd;
        return n;
    }
    uint32_t cp = (unsigned char)s[0] & mask[n];
    for (size_t i = 1; i < n; i++) {
        cp = cp << 6 | ((unsigned char)s[i] & 0x3f);
    }
    *code_point = cp;
    return n;
}

bool utf8_is_prefix(const char *s, size_t len) {
    if (len == 0) {
        return false;
    }
    size_t need, n = match(s, len, &need);
    return n == len && need > n;
}

size_t utf8_encode(uint32_t cp, char out[4]) {
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xc0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3f));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xe0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3f));
        out[2] = (char)(0x80 | (cp & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3f));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3f));
    out[3] = (char)(0x80 | (cp & 0x3f));
    return 4;
}

bool utf8_is_valid(const char *s, size_t len) {
    for (size_t i = 0; i < len;) {
        bool valid;
        i += utf8_sequence(s + i, len - i, &valid);
        if (!valid) {
            return false;
        }
    }
    return true;
}
