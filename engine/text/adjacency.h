/*
 * Which two characters ever stand side by side inside a token. Between two that never do, no merge can reach
 * across, so a text without word splitting (SentencePiece) may be cut there and its parts encoded one by one with
 * the same result.
 */
#ifndef INFERD_TEXT_ADJACENCY_H
#define INFERD_TEXT_ADJACENCY_H

#include "text/vocab.h"

struct adjacency {
    uint64_t *slots; /* [mask + 1] pairs (left << 32 | right) + 1, owned; NULL = nothing may be cut */
    size_t mask, n;
    uint64_t ascii[128][2]; /* bit right of row left */
};

/* From the keys of the ordinary tokens. */
int adjacency_build(struct adjacency *a, const struct vocab *v, struct error *err);
void adjacency_free(struct adjacency *a);

/* The length of the first part of text[0..len): up to the first place where it may be cut, or len. */
size_t adjacency_part(const struct adjacency *a, const char *text, size_t len);

#endif
