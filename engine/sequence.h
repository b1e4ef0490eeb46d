/*
 * A sequence: one request on its way through the engine.
 *
 * Life. sequence_new checks and copies a request on the submitting thread; after the mailbox handed it over, the
 * engine thread alone touches it, except the mailbox's own links and `cancelled` (mailbox lock).
 *
 *     HELD --parent's prompt is computed: fork--+
 *       |                                       v
 *       +--> WAITING --schedule--------------> RUNNING --end id, stop string, length, cancel, error--> FINISHED, freed
 *               ^                                 |
 *               +------------ preempt ------------+     blocks released, n_computed = 0: computed again, generated
 *                                                       tokens included
 *
 * Tokens. tokens[0..n_prompt) is the prompt, tokens[n_prompt..n_tokens) was generated. tokens[0..n_computed) have their
 * K and V in the cache. A step computes the next n_scheduled tokens; when that reaches n_tokens, the step's last row
 * gives the logits of the next token. So prefilling and decoding are one thing: a decode has one token left to compute.
 *
 * Drafts. A step may compute n_draft more rows behind tokens[n_tokens - 1]: tokens[n_tokens..n_tokens + n_draft) are then
 * guesses (speculation.h), and the step's rows from the last token on give the logits after each of them. They are
 * tokens only when sampling has come to the same; the KV of the others is computed over.
 */
#ifndef INFERD_SEQUENCE_H
#define INFERD_SEQUENCE_H

#include "base/heap.h"
#include "kv_cache.h"
#include "sampler_state.h"
#include "speculation.h"
#include "stop_matcher.h"

#include <inferd/engine.h>
#include <inferd/list.h>

enum sequence_state { SEQUENCE_WAITING, SEQUENCE_HELD, SEQUENCE_RUNNING, SEQUENCE_FINISHED };

/* What every step touches stands first, so that a step over many sequences asks memory for few lines of each. */
struct sequence {
    struct list node; /* in the mailbox's inbox, then in the scheduler's running, or its parent's children */
    uint64_t id;
    enum sequence_state state;
    bool started;   /* STARTED was sent */
    bool admitted;  /* it ran already */
    bool preempted; /* it ran already, and lost its blocks since: also when it runs again */

    int32_t *tokens; /* [max_total], owned */
    size_t n_prompt, n_tokens, max_total;
    size_t n_computed, n_scheduled; /* n_scheduled includes n_draft */
    size_t n_draft;
    int32_t *blocks; /* [n_blocks], room for max_total tokens, owned */
    size_t n_blocks;

    /* Prefix cache. keys[0] is the root of the chain, keys[i + 1] the key of block i; made when first needed, kept when
     * the sequence is preempted (its tokens stay). NULL: it takes no part. */
    struct kv_key *keys; /* [1 + n_keys], room for all full blocks of max_total, owned */
    size_t n_keys;       /* blocks whose key is known */
    size_t n_published;  /* leading blocks that are in the table, or were found there */
    size_t n_cached;     /* prompt tokens that were found, not computed, when it ran for the first time */
    bool may_hit;        /* false: each prompt position must be computed here (its logits are asked for) */

    bool score_only;           /* nothing is sampled: max_total = n_prompt */
    bool total_is_context;     /* max_total comes from max_model_len, not from max_tokens */
    int32_t n_prompt_logprobs; /* -1 = the prompt's logprobs are not asked for */
    size_t n_prompt_told;      /* tokens of the prompt that were told; also after preemption each only once */

    size_t n_charged;      /* tokens that its tenant has been charged for, prompt included */
    struct tenant *tenant; /* while the scheduler has it */

    uint64_t *allowed;            /* a bit for each id of the vocabulary, owned; NULL = all */
    struct sampler_state sampler; /* for the next token */
    uint64_t seed;                /* the request's, or a random one */
    size_t min_tokens;
    int32_t *end_ids; /* [n_end_ids], owned: the model's own first (none with ignore_eos), then the request's */
    size_t n_model_end_ids, n_end_ids;
    uint32_t repetition_max_size, repetition_min_size, repetition_min_count;
    bool include_stop;
    struct detokenizer detokenizer;
    struct speculation speculation;
    struct sampling sampling; /* what its pointers point to is owned, but allowed_ids: see `allowed` */
    struct stop_matcher stops;

    /* Whose turn it is (wait_queue.h). */
    uint64_t arrival;    /* order of submission */
    uint64_t arrival_ns; /* when, on a clock that never goes back */
    struct heap_node wait_node;
    uint64_t tenant_id;
    uint32_t tenant_cost; /* 0 = 1 */
    int32_t priority;
    double rank;

    /* A child (scheduler.h: forks) and those who wait for this one's prompt. */
    uint64_t parent_id;      /* 0 = none */
    struct sequence *parent; /* while it did not run yet, and the parent has or will have the prompt's KV */
    struct list children;    /* those who have this one as parent, by node */

    struct sequence *next_live; /* chain in the mailbox's table of live ids */
    struct list cancel_node;    /* in the mailbox's list of cancelled ones, until the engine takes them */
    bool cancelled;             /* mailbox lock */
    uint8_t cache_salt[32];
};

/* What a request is checked against. */
struct sequence_limits {
    const struct text *text;
    size_t vocab_size; /* ids below it exist in text and model */
    size_t max_model_len;
    size_t kv_block_size;
    bool prefix_cache;
    size_t speculative_tokens; /* for requests that do not say */
};

/* Check and copy. ERROR_INVALID with param, or ERROR_CONTEXT_LENGTH. */
int sequence_new(const struct engine_request *r, const struct sequence_limits *limits, struct sequence **out,
                 struct error *err);
void sequence_free(struct sequence *s); /* NULL is fine; its blocks must have been released */

/* Does the answer end with a pattern that came as often as repetition detection asks? */
bool sequence_repeats(const struct sequence *s);
/* Ask for what a step touches of s itself, ahead of its turn. */
static inline void sequence_prefetch(const struct sequence *s) {
    for (size_t at = 0; at < offsetof(struct sequence, stops.held); at += 64) {
        __builtin_prefetch((const char *)s + at, 1);
    }
}

/* A strict total order of all sequences of an engine: who goes first, and who is preempted last. */
static inline bool sequence_before(const struct sequence *a, const struct sequence *b) {
    return a->rank != b->rank ? a->rank < b->rank : a->arrival < b->arrival;
}

static inline size_t sequence_n_generated(const struct sequence *s) {
    return s->n_tokens - s->n_prompt;
}

/* Are the logits after the token at `position`, computed in this step, needed: to sample from, or to tell the next
 * one's logprob? */
static inline bool sequence_wants_logits(const struct sequence *s, size_t position) {
    size_t next = position + 1;
    if (next >= s->n_tokens) {
        return !s->score_only;
    }
    return s->n_prompt_logprobs >= 0 && next >= s->n_prompt_told && next < s->n_prompt;
}

#endif
