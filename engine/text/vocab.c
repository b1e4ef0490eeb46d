#include "text/vocab.h"

#include "base/utf8.h"
#include "text/unicode_class.h"

#include <stdlib.h>
#include <string.h>

void vocab_free(struct vocab *v) {
    free(v->tokens);
    buf_free(&v->bytes);
    free(v->ordinary.slots);
    *v = (struct vocab){0};
}

int vocab_grow(struct vocab *v, size_t n, struct error *err) {
    if (n > VOCAB_MAX_TOKENS) {
        return error_set(err, ERROR_MODEL, "the vocabulary has %zu ids, more than the %u supported", n,
                         VOCAB_MAX_TOKENS);
    }
    if (n > v->cap) {
        size_t cap = v->cap * 2 > n ? v->cap * 2 : n;
        struct token *tokens = realloc(v->tokens, cap * sizeof *tokens);
        if (!tokens) {
            return error_memory(err);
        }
        v->tokens = tokens;
        v->cap = cap;
    }
    if (n > v->n) {
        memset(v->tokens + v->n, 0, (n - v->n) * sizeof *v->tokens);
        v->n = n;
    }
    return 0;
}

static bool add_text(struct vocab *v, struct span text, uint32_t *at) {
    if (v->bytes.len > UINT32_MAX - text.len - 1) {
        return false;
    }
    *at = (uint32_t)v->bytes.len;
    buf_reserve(&v->bytes, 1); /* data is never NULL, even for empty texts */
    buf_append(&v->bytes, text.data, text.len);
    return !v->bytes.failed;
}

/* The most bytes that a piece can become when it is decoded: each broken part is U+FFFD. */
static size_t decoded_length(struct span piece) {
    size_t length = 0;
    for (size_t i = 0; i < piece.len && length <= VOCAB_MAX_TOKEN_BYTES;) {
        bool valid;
        size_t n = utf8_sequence(piece.data + i, piece.len - i, &valid);
        length += valid ? n : 3 * n; /* cut otherwise, each of the n bytes may be a part of its own */
        i += n;
    }
    return length;
}

int vocab_set(struct vocab *v, uint32_t id, struct span key, struct span piece, unsigned flags, struct error *err) {
    if (key.len > VOCAB_MAX_TOKEN_BYTES || decoded_length(piece) > VOCAB_MAX_TOKEN_BYTES) {
        return error_set(err, ERROR_MODEL, "token %u is longer than %u bytes", id, VOCAB_MAX_TOKEN_BYTES);
    }
    if (vocab_grow(v, (size_t)id + 1, err) < 0) {
        return -1;
    }
    struct token t = {
        .key_len = (uint32_t)key.len, .piece_len = (uint32_t)piece.len, .flags = (uint8_t)(flags | TOKEN_PRESENT)};
    if (!add_text(v, key, &t.key)) {
        return error_memory(err);
    }
    bool same = piece.len == key.len && memcmp(piece.data, key.data, key.len) == 0;
    t.piece = t.key;
    if (!same && !add_text(v, piece, &t.piece)) {
        return error_memory(err);
    }
    v->tokens[id] = t;
    return 0;
}

/* 8 bytes a round, multiply and fold: enough for a table that is fixed once the model is open. */
uint64_t hash_bytes(const char *bytes, size_t len) {
    uint64_t h = len * 0x9e3779b97f4a7c15u;
    while (len > 0) {
        uint64_t word = 0;
        size_t n = len < 8 ? len : 8;
        memcpy(&word, bytes, n);
        __uint128_t product = (__uint128_t)(h ^ word) * 0xa0761d6478bd642fu;
        h = (uint64_t)product ^ (uint64_t)(product >> 64);
        h += 0xe7037ed1a0b428dbu;
        bytes += n;
        len -= n;
    }
    return h ^ h >> 32;
}

int vocab_index_build(struct vocab *v, struct error *err) {
    size_t n = 0;
    v->longest_key = 0;
    for (size_t id = 0; id < v->n; id++) {
        if (v->tokens[id].flags & TOKEN_ORDINARY) {
            n++;
            v->longest_key = v->tokens[id].key_len > v->longest_key ? v->tokens[id].key_len : v->longest_key;
        }
    }
    size_t cap = 16;
    while (cap < n * 2) {
        cap *= 2;
    }
    uint32_t *slots = calloc(cap, sizeof *slots);
    if (!slots) {
        return error_memory(err);
    }
    free(v->ordinary.slots);
    v->ordinary = (struct vocab_index){slots, cap - 1};
    for (size_t id = 0; id < v->n; id++) {
        if (!(v->tokens[id].flags & TOKEN_ORDINARY)) {
            continue;
        }
        struct span key = vocab_key(v, (uint32_t)id);
        size_t i = hash_bytes(key.data, key.len) & v->ordinary.mask;
        bool taken = false;
        for (; slots[i] != 0 && !taken; i = (i + 1) & v->ordinary.mask) {
            struct span other = vocab_key(v, slots[i] - 1);
            taken = other.len == key.len && memcmp(other.data, key.data, key.len) == 0;
        }
        if (!taken) {
            slots[i] = (uint32_t)id + 1;
        }
    }
    return 0;
}

int32_t vocab_find(const struct vocab *v, const char *key, size_t len) {
    if (len > v->longest_key || !v->ordinary.slots) {
        return -1;
    }
    for (size_t i = hash_bytes(key, len) & v->ordinary.mask; v->ordinary.slots[i] != 0;
         i = (i + 1) & v->ordinary.mask) {
        uint32_t id = v->ordinary.slots[i] - 1;
        if (v->tokens[id].key_len == len && memcmp(v->bytes.data + v->tokens[id].key, key, len) == 0) {
            return (int32_t)id;
        }
    }
    return -1;
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    if (c >= 'A' && c <= 'F') {
        return c - 'A' + 10;
    }
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

int byte_token_value(struct span text) {
    if (text.len != 6 || memcmp(text.data, "<0x", 3) != 0 || text.data[5] != '>') {
        return -1;
    }
    int high = hex_digit(text.data[3]), low = hex_digit(text.data[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

static bool is_printable_latin1(uint32_t c) {
    return (c >= 0x21 && c <= 0x7e) || (c >= 0xa1 && c <= 0xac) || (c >= 0xae && c <= 0xff);
}

/* The bytes that are not printable, in order: 0..0x20, 0x7f..0xa0, 0xad. */
uint32_t byte_level_char(unsigned char byte) {
    if (is_printable_latin1(byte)) {
        return byte;
    }
    return byte <= 0x20 ? 0x100u + byte : byte == 0xad ? 0x143u : 0x121u + (byte - 0x7fu);
}

int byte_level_byte(uint32_t cp) {
    if (is_printable_latin1(cp)) {
        return (int)cp;
    }
    if (cp >= 0x100 && cp <= 0x120) {
        return (int)(cp - 0x100);
    }
    if (cp >= 0x121 && cp <= 0x142) {
        return (int)(cp - 0x121 + 0x7f);
    }
    return cp == 0x143 ? 0xad : -1;
}

bool byte_level_decode(struct span text, struct buf *out) {
    size_t before = out->len;
    for (size_t i = 0; i < text.len;) {
        uint32_t cp;
        bool valid;
        i += utf8_decode(text.data + i, text.len - i, &cp, &valid);
        int byte = valid ? byte_level_byte(cp) : -1;
        if (byte < 0) {
            out->len = before;
            return false;
        }
        buf_putc(out, (char)byte);
    }
    return true;
}

int span_index_build(struct span_index *x, const struct span *spans, size_t n, struct error *err) {
    size_t cap = 16;
    while (cap < n * 2) {
        cap *= 2;
    }
    *x = (struct span_index){spans, calloc(cap, sizeof *x->slots), cap - 1};
    if (!x->slots) {
        return error_memory(err);
    }
    for (size_t id = 0; id < n; id++) {
        if (spans[id].data && span_index_find(x, spans[id].data, spans[id].len) < 0) {
            size_t i = hash_bytes(spans[id].data, spans[id].len) & x->mask;
            while (x->slots[i]) {
                i = (i + 1) & x->mask;
            }
            x->slots[i] = (uint32_t)id + 1;
        }
    }
    return 0;
}

int32_t span_index_find(const struct span_index *x, const char *text, size_t len) {
    for (size_t i = hash_bytes(text, len) & x->mask; x->slots[i]; i = (i + 1) & x->mask) {
        const struct span *s = &x->spans[x->slots[i] - 1];
        if (s->len == len && memcmp(s->data, text, len) == 0) {
            return (int32_t)(x->slots[i] - 1);
        }
    }
    return -1;
}
