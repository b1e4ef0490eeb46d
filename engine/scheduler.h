/*
 * Who computes what in the next step. Two queues in order of arrival: waiting (no KV) and running (holds KV).
 *
 * Policy
 *  - First one token for every running sequence that decodes, then prompt chunks of running sequences, then new
 *    ones from the head of waiting: rows <= max_batched_tokens, sequences <= max_sequences.
 *  - Last, drafts of sequences that decode (speculation.h), from what is left of the rows and of free blocks: they
 *    delay nobody and never preempt.
 *  - A sequence is admitted when the blocks of all its tokens, and of one more, are free, and takes them at once; so
 * only a decode that crosses into a new block can meet an empty pool.
 *  - Then the running sequence that arrived last is preempted: its blocks go back and it waits at the head, to be
 *    computed again. The oldest is never the victim while another runs, and one alone always fits (max_model_len <=
 *    tokens in the pool, checked at open), so the oldest always advances: no livelock.
 * Victims are the latest, and work is handed out from the oldest on, so a victim was never scheduled in the same step.
 */
#ifndef INFERD_SCHEDULER_H
#define INFERD_SCHEDULER_H

#include "kv_cache.h"
#include "sequence.h"

struct scheduler {
    struct kv_cache *kv;
    size_t max_sequences, max_batched_tokens;
    struct list waiting, running;
    size_t n_waiting, n_running;
    struct sequence **scheduled; /* [n_scheduled], room for max_sequences: the step's sequences in row order */
    size_t n_scheduled;
    size_t rows; /* sum of their n_scheduled */
    uint64_t preemptions;
    uint64_t queried_tokens, cached_tokens; /* prompt tokens looked up in the prefix cache; found there */
};

/* Drafts are made only while the step's rows stay below this: beyond, arithmetic and not memory is what a step waits
 * for, and a guess takes from others' time. */
#define SCHEDULER_DRAFT_ROWS 16

/* Needs max_batched_tokens >= max_sequences: every decode fits in a step. */
int scheduler_init(struct scheduler *s, struct kv_cache *kv, size_t max_sequences, size_t max_batched_tokens,
                   struct error *err);
void scheduler_destroy(struct scheduler *s); /* the queues must be empty */

void scheduler_add(struct scheduler *s, struct sequence *seq);    /* a new one, behind all others */
void scheduler_schedule(struct scheduler *s);                     /* fills scheduled, n_scheduled, rows */
void scheduler_computed(struct scheduler *s);                     /* the step was run: n_computed of all advance */
void scheduler_distrust(struct scheduler *s, const struct sequence *seq); /* its KV is wrong: nobody shall find it */
void scheduler_remove(struct scheduler *s, struct sequence *seq); /* take it out of its queue, release its blocks */

#endif
