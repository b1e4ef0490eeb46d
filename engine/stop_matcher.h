/*
 * Stop strings over a stream of bytes that arrives in arbitrary pieces. The result does not depend on where the
 * pieces are cut: bytes are taken one by one, the first stop string to be complete ends the text, and of several
 * complete at the same byte the longest (the one that begins first) counts. Text that may still become a stop string is
 * held back.
 *
 * Each string has a Knuth-Morris-Pratt automaton, so a byte costs O(1) amortised for each string.
 */
#ifndef INFERD_STOP_MATCHER_H
#define INFERD_STOP_MATCHER_H

#include <inferd/engine.h>

struct stop_pattern {
    char bytes[ENGINE_MAX_STOP_LEN];
    size_t len;
    uint16_t border[ENGINE_MAX_STOP_LEN]; /* [i]: longest proper border of bytes[0..i] */
    size_t matched;                       /* the text so far ends in bytes[0..matched), matched < len */
};

struct stop_matcher {
    struct stop_pattern *patterns; /* [n], owned */
    size_t n;
    bool include; /* the stop string stays in the text */
    size_t n_held; /* = the largest `matched` */
    char held[ENGINE_MAX_STOP_LEN];
};

/* Copies the strings: 1..ENGINE_MAX_STOP_LEN bytes each (the caller checked), n may be 0. */
int stop_matcher_init(struct stop_matcher *m, const struct meta_stop *stop, size_t n, bool include, struct error *err);
void stop_matcher_destroy(struct stop_matcher *m); /* NULL and a zeroed one are fine */

/*
 * Feed bytes[0..len); writes what may be shown to out (room for n_held + len, that is less than
 * ENGINE_MAX_STOP_LEN + len) and returns its length. *match becomes the index of the stop string that ended the
 * text, or -1; after a match nothing may be fed any more. `bytes` must not overlap `out`.
 */
size_t stop_matcher_push(struct stop_matcher *m, const char *bytes, size_t len, char *out, int32_t *match);

/* The text ends without a stop string: what is held back comes out (at most ENGINE_MAX_STOP_LEN - 1 bytes). */
size_t stop_matcher_finish(struct stop_matcher *m, char *out);

#endif
