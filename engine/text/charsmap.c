#include "text/charsmap.h"

#include "base/utf8.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct charsmap {
    uint32_t *units; /* [n_units], owned */
    size_t n_units;
    char *texts; /* [texts_len], NUL-terminated replacements one after another, owned */
    size_t texts_len;
};

/* ---- reading ---- */

static int base64_value(char c) {
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = c ? strchr(letters, c) : NULL;
    return at ? (int)(at - letters) : -1;
}

static int decode_base64(const char *s, size_t len, struct buf *out, struct error *err) {
    uint32_t bits = 0;
    unsigned n_bits = 0;
    while (len > 0 && s[len - 1] == '=') {
        len--;
    }
    for (size_t i = 0; i < len; i++) {
        int value = base64_value(s[i]);
        if (value < 0) {
            return error_set(err, ERROR_MODEL, "the character map is not base64 at character %zu", i);
        }
        bits = bits << 6 | (uint32_t)value;
        n_bits += 6;
        if (n_bits >= 8) {
            n_bits -= 8;
            buf_putc(out, (char)(bits >> n_bits));
        }
    }
    return out->failed ? error_memory(err) : 0;
}

static uint32_t little_endian(const char *p) {
    const unsigned char *u = (const unsigned char *)p;
    return u[0] | (uint32_t)u[1] << 8 | (uint32_t)u[2] << 16 | (uint32_t)u[3] << 24;
}

/* Bytes of the trie, the trie, the texts. */
static int parse(struct charsmap *m, const struct buf *raw, struct error *err) {
    size_t trie = raw->len >= 4 ? little_endian(raw->data) : 0;
    if (raw->len < 4 || trie == 0 || trie % 4 != 0 || trie > raw->len - 4) {
        return error_set(err, ERROR_MODEL, "the character map's trie does not fit into its %zu bytes", raw->len);
    }
    m->n_units = trie / 4;
    m->texts_len = raw->len - 4 - trie;
    m->units = malloc(trie);
    m->texts = malloc(m->texts_len + 1);
    if (!m->units || !m->texts) {
        return error_memory(err);
    }
    for (size_t i = 0; i < m->n_units; i++) {
        m->units[i] = little_endian(raw->data + 4 + 4 * i);
    }
    memcpy(m->texts, raw->data + 4 + trie, m->texts_len);
    m->texts[m->texts_len] = '\0';
    return utf8_is_valid(m->texts, m->texts_len)
               ? 0
               : error_set(err, ERROR_MODEL, "the character map's texts are not UTF-8");
}

int charsmap_new(const char *base64, size_t len, struct charsmap **out, struct error *err) {
    struct buf raw = BUF_INIT;
    struct charsmap *m = calloc(1, sizeof *m);
    int rc = m ? decode_base64(base64, len, &raw, err) : error_memory(err);
    if (rc == 0) {
        rc = parse(m, &raw, err);
    }
    buf_free(&raw);
    if (rc < 0) {
        charsmap_free(m);
        return -1;
    }
    *out = m;
    return 0;
}

void charsmap_free(struct charsmap *m) {
    if (m) {
        free(m->units);
        free(m->texts);
        free(m);
    }
}

/* ---- looking up: the fields of a unit are those of darts-clone ---- */

static size_t offset_of(uint32_t unit) {
    return (size_t)(unit >> 10) << ((unit & (1u << 9)) >> 6);
}

static uint32_t label_of(uint32_t unit) {
    return unit & (1u << 31 | 0xff);
}

static bool has_leaf(uint32_t unit) {
    return unit >> 8 & 1;
}

const char *charsmap_find(const struct charsmap *m, const char *text, size_t len, size_t *replacement_len) {
    size_t at = offset_of(m->units[0]);
    for (size_t i = 0; i < len && text[i] != '\0'; i++) {
        unsigned char c = (unsigned char)text[i];
        at ^= c;
        if (at >= m->n_units || label_of(m->units[at]) != c) {
            return NULL;
        }
        uint32_t unit = m->units[at];
        at ^= offset_of(unit);
        if (has_leaf(unit)) {
            size_t start = at < m->n_units ? m->units[at] & 0x7fffffffu : m->texts_len;
            /* Into the middle of a character: a file that was made up. */
            if (start >= m->texts_len || ((unsigned char)m->texts[start] & 0xc0) == 0x80) {
                return NULL;
            }
            *replacement_len = strlen(m->texts + start);
            return m->texts + start;
        }
    }
    return NULL;
}
