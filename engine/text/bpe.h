/*
 * Byte pair encoding (Sennrich et al. 2016; Gage 1994): the symbols of a word are merged pair by pair, the best
 * pair first and of equal pairs the leftmost, until no pair can be merged.
 *
 * Three families share it:
 *   - byte-level: a word's symbols are its bytes; pairs are ranked by a list of merges (GPT-2, Llama 3, Qwen);
 *   - characters with byte fallback, ranked by a list of merges (Llama 2 in tokenizer.json);
 *   - characters with byte fallback, a pair being worth the score of the token it makes (SentencePiece BPE in GGUF).
 */
#ifndef INFERD_TEXT_BPE_H
#define INFERD_TEXT_BPE_H

#include "text/adjacency.h"
#include "text/vocab.h"

#include <inferd/text.h>

enum bpe_kind { BPE_BYTE_LEVEL, BPE_CHARACTERS, BPE_SCORES };

/* (left, right) -> rank and product; open addressing, key 0 = free (keys are stored plus one). */
struct merge_slot {
    uint64_t key;
    uint32_t rank;
    int32_t product;
};

struct bpe {
    enum bpe_kind kind;
    const struct vocab *vocab; /* indexed; not owned */
    struct merge_slot *merges; /* [mask + 1], owned; NULL for BPE_SCORES */
    size_t mask;
    uint32_t *score_rank;  /* BPE_SCORES: [vocab->n], 0 = best score; owned */
    int32_t byte_ids[256]; /* the token of each byte (byte-level: its symbol; else its fallback), -1 none */
    int32_t unknown_id;    /* what stands for a character that nothing covers, -1: it is left out */
    bool fuse_unknown;     /* a run of such characters is one unknown token */
    bool keep_unknown;     /* byte-level: an uncovered byte still stands between its neighbours */
    bool ignore_merges;    /* a word that is a token is that token, whatever the merges say */
    /* What a token's own text encodes to: 0 not known yet, 1 the token itself, 2 something else. Filled while
     * encoding; relaxed, since whoever computes it gets the same answer. */
    _Atomic unsigned char *whole; /* [vocab->n], owned */
    struct adjacency adjacency;   /* where a long text may be cut; none for byte-level */
};

struct bpe_merge {
    int32_t left, right, product;
};

/* Take the ranks of merges[0..n) in order. Of equal pairs the first counts, or the last if last_wins. */
int bpe_set_merges(struct bpe *b, const struct bpe_merge *merges, size_t n, bool last_wins, struct error *err);
/* Take scores[vocab->n] of BPE_SCORES. */
int bpe_set_scores(struct bpe *b, const float *scores, struct error *err);
/* After the rest is set: allocate `whole`, find where texts may be cut. */
int bpe_finish(struct bpe *b, struct error *err);
void bpe_free(struct bpe *b);

/* Working memory of one encoding. */
struct bpe_symbol {
    int32_t id; /* -1: no token */
    uint32_t start, len;
    int32_t prev, next;
};
struct bpe_candidate {
    uint32_t rank, at, len; /* symbol `at` and its right neighbour, together len bytes */
    int32_t product;
};
struct bpe_scratch {
    struct bpe_symbol *symbols;
    size_t n_symbols, cap_symbols;
    struct bpe_candidate *heap;
    size_t n_heap, cap_heap;
    size_t steps; /* symbols and pairs looked at, for tests of growth */
};
void bpe_scratch_free(struct bpe_scratch *s);

/* Append the ids of text[0..len), well-formed UTF-8 of less than 1 GiB. O(n log n). */
int bpe_encode(const struct bpe *b, struct bpe_scratch *s, const char *text, size_t len, struct tokens *out,
               struct error *err);

#endif
