/*
 * The keys in force: who a request is by, what it may do, and how much of its limits is left. Loop thread.
 *
 * A key lives as long as it is in the ring or a request holds it; so after the keys were read again, what runs keeps its
 * key, and a key of the same name goes on with its counts and what it has used.
 *
 * Limits. requests_per_minute counts what was let in: a request that a limit refused costs nothing. tokens_per_minute
 * counts as the answer's usage does, a prompt once whatever n is and what all choices generate: the prompt is taken when
 * its tokens are counted (and given back if it was never computed), generated tokens as they come, so that an aborted
 * request costs what it has used. max_concurrent counts generating requests from their headers to their end.
 */
#ifndef INFERD_KEY_RING_H
#define INFERD_KEY_RING_H

#include "keys.h"
#include "token_bucket.h"

#include <inferd/buf.h>
#include <inferd/error.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct exchange;

enum key_rejection { KEY_REJECTED_SCOPE, KEY_REJECTED_REQUESTS, KEY_REJECTED_TOKENS, KEY_REJECTED_CONCURRENT, KEY_REJECTIONS };

struct key {
    struct key_spec spec;
    struct token_bucket requests, tokens;
    size_t active; /* requests that count for max_concurrent */
    size_t refs;   /* the ring's, and each request's */
    uint64_t n_requests, prompt_tokens, generation_tokens, rejected[KEY_REJECTIONS];
};

struct key_ring {
    struct key **list; /* [n], owned; n == 0: no key is needed */
    size_t n;
};

/*
 * What the ring becomes with these keys: made first, so that nothing can fail when it takes effect. A change that does
 * not come to it is freed by key_change_free.
 */
struct key_change {
    struct key **list; /* [n]: keys of the ring that stay, and new ones */
    struct key_spec *specs;
    size_t n;
};
int key_change_make(const struct key_ring *ring, const struct keys *keys, struct key_change *out, struct error *err);
void key_change_apply(struct key_ring *ring, struct key_change *change, uint64_t now_ns); /* empties it */
void key_change_free(struct key_change *change);                                          /* zeroed is fine */
void key_ring_free(struct key_ring *ring);                                                /* zeroed is fine */

/* The key in an Authorization header (NULL if absent); NULL if it is none of ours. All are compared, whichever fits. */
struct key *key_ring_find(const struct key_ring *ring, const char *authorization);

/* Of every function below: key may be NULL, where there are no keys. */
struct key *key_hold(struct key *k);
void key_release(struct key *k);
const char *key_name(const struct key *k); /* "" if NULL; lives while the key is held */

/* Its priority, as the cost of its work in the engine's shares: four times for each class below. */
uint32_t key_cost(const struct key *k);

/* Is it over one of its limits, now that a request has come? *seconds = when to come again, 0 = not known. False: one
 * request was taken of its requests_per_minute. */
bool key_over_limit(struct key *k, bool generating, uint64_t now_ns, enum key_rejection *why, double *seconds);
/* Take the tokens of a prompt. False: there are fewer; *seconds = until then. */
bool key_take_prompt(struct key *k, size_t tokens, uint64_t now_ns, double *seconds);

/* x-ratelimit-*, for the limits that the key has. Before the answer. */
void key_add_headers(struct key *k, struct exchange *x, uint64_t now_ns);
/* A time as the OpenAI service writes it: "17ms", "8.64s", "6m0s". */
void key_print_duration(double seconds, char out[32]);

/* Counters by the key's name. */
void key_ring_metrics(const struct key_ring *ring, struct buf *out);

#endif
