/*
 * The unigram language model (Kudo 2018): a text is cut into the tokens whose scores (log-probabilities) have the
 * largest sum, found by Viterbi's algorithm over its bytes.
 */
#ifndef INFERD_TEXT_UNIGRAM_H
#define INFERD_TEXT_UNIGRAM_H

#include "text/trie.h"
#include "text/vocab.h"

#include <inferd/text.h>

struct unigram {
    struct trie trie; /* the ordinary tokens; value: id + 1 */
    double *scores;   /* [n], owned */
    size_t n;
    double unknown_score;  /* of a character that no token covers */
    int32_t unknown_id;    /* -1: such a text is refused */
    int32_t byte_ids[256]; /* byte fallback, -1 = none */
};

/* Take the scores (owned from now on) and index the ordinary tokens of v, whose ids are below n. */
int unigram_build(struct unigram *u, const struct vocab *v, double *scores, size_t n, struct error *err);
void unigram_free(struct unigram *u);

struct unigram_node {
    double score;   /* of the best path that ends here */
    uint32_t start; /* where its last token begins; UINT32_MAX: no path yet */
    int32_t id;
};
struct unigram_scratch {
    struct unigram_node *nodes;
    size_t cap;
    size_t steps; /* bytes of tokens tried, for tests of growth */
};

/* Append the ids of text[0..len), well-formed UTF-8 of less than 1 GiB. O(len * longest token). */
int unigram_encode(const struct unigram *u, struct unigram_scratch *s, const char *text, size_t len, struct tokens *out,
                   struct error *err);

#endif
