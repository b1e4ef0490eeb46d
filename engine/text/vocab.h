/*
 * A vocabulary: for each id what it decodes to and the key by which the encoder finds it. Ids may have holes (a
 * tokenizer.json may skip some). Built once by one thread, immutable afterwards.
 */
#ifndef INFERD_TEXT_VOCAB_H
#define INFERD_TEXT_VOCAB_H

#include <inferd/buf.h>
#include <inferd/error.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define VOCAB_MAX_TOKENS (1u << 24) /* ids: far above any model */
#define VOCAB_MAX_TOKEN_BYTES                                                                                          \
    1000u /* one token's text, also with its broken bytes as U+FFFD: DETOKENIZER_MAX_OUT                               \
             holds that and what was held before */

struct span {
    const char *data;
    size_t len;
};

enum token_flags {
    TOKEN_SPECIAL = 1,  /* recognised in trusted text only; left out by skip_special */
    TOKEN_BYTE = 2,     /* byte fallback <0xXX>: its piece is that byte */
    TOKEN_ORDINARY = 4, /* the model (merges, scores) may produce it from plain text */
    TOKEN_PRESENT = 8,  /* the id is in use */
};

struct token {
    uint32_t key, key_len;     /* in bytes.data: how the encoder spells it */
    uint32_t piece, piece_len; /* in bytes.data: what it decodes to */
    uint8_t flags;
};

/* Text -> id by open addressing; slot = id + 1, 0 = free. */
struct vocab_index {
    uint32_t *slots; /* [mask + 1], owned */
    size_t mask;
};

struct vocab {
    struct token *tokens; /* [n], owned */
    size_t n, cap;
    struct buf bytes;            /* all texts */
    struct vocab_index ordinary; /* the keys of TOKEN_ORDINARY tokens */
    size_t longest_key;          /* of the ordinary ones, bytes */
};

void vocab_free(struct vocab *v);

/* Make room for ids below n (new ones are holes). */
int vocab_grow(struct vocab *v, size_t n, struct error *err);

/* Define an id. Key and piece are copied; piece.data may equal key.data, then they share. */
int vocab_set(struct vocab *v, uint32_t id, struct span key, struct span piece, unsigned flags, struct error *err);

/* Build the index over the ordinary tokens; of two with the same key the first id wins. */
int vocab_index_build(struct vocab *v, struct error *err);

/* The id of an ordinary token, -1 if none. */
int32_t vocab_find(const struct vocab *v, const char *key, size_t len);

static inline struct span vocab_key(const struct vocab *v, uint32_t id) {
    return (struct span){v->bytes.data + v->tokens[id].key, v->tokens[id].key_len};
}
static inline struct span vocab_piece(const struct vocab *v, uint32_t id) {
    return (struct span){v->bytes.data + v->tokens[id].piece, v->tokens[id].piece_len};
}

/* A passing index of texts (spans borrowed; data NULL = a hole), used while a vocabulary is built. */
struct span_index {
    const struct span *spans;
    uint32_t *slots; /* [mask + 1] position + 1, owned */
    size_t mask;
};
int span_index_build(struct span_index *x, const struct span *spans, size_t n, struct error *err);
int32_t span_index_find(const struct span_index *x, const char *text, size_t len); /* the first, -1 if none */

uint64_t hash_bytes(const char *bytes, size_t len);

static inline bool span_is(struct span s, const char *text) {
    size_t i = 0;
    for (; i < s.len; i++) {
        if (text[i] == '\0' || s.data[i] != text[i]) {
            return false;
        }
    }
    return text[i] == '\0';
}

/* "<0xAB>" -> 0xAB, -1 if not of that form. */
int byte_token_value(struct span text);

/*
 * The printable alphabet of byte-level BPE (Radford et al. 2019): each byte is spelt as one character, the
 * printable ones of Latin-1 as themselves, the others as U+0100 + n in order.
 */
uint32_t byte_level_char(unsigned char byte);
int byte_level_byte(uint32_t code_point); /* -1 if it stands for none */

/* The bytes that a text in that alphabet stands for; false (and *out as it was) if a character stands for none. */
bool byte_level_decode(struct span text, struct buf *out);

#endif
