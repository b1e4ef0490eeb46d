/*
 * Who computes what in the next step. Waiting sequences hold no KV (wait_queue.h says who is next); running ones hold the
 * blocks of all their tokens, and are kept in order of rank: lower priority first where priorities count, then arrival.
 *
 * Policy
 *  - First one token for every running sequence that decodes, then prompt chunks of running sequences, best rank first,
 *    then new ones: rows <= max_batched_tokens, sequences <= max_sequences. So a decode is in every step, and a long
 *    prompt holds up the others by no more than what fits in one.
 *  - Last, drafts of sequences that decode (speculation.h), from what is left of the rows and of free blocks: they
 *    delay nobody and never preempt.
 *  - A sequence is admitted when the blocks of all its tokens, and of one more, are free or found in the prefix cache, and
 *    takes them at once; so only a decode that crosses into a new block can meet an empty pool. Nobody overtakes the
 *    next one, however small it is, or a large one would wait for ever.
 *  - Meets a decode an empty pool, the running sequence of the worst rank is preempted: its blocks go back and it waits, to
 *    be computed again, generated tokens included; what the prefix cache still has of it then is found.
 *  - A waiting sequence never pushes out a running one, however high its priority: throwing away work that others wait for
 *    helps it by one step at best. Priorities say who is admitted next and who stays when memory runs out.
 *
 * No livelock. The best-ranked running sequence is never the victim while another runs, and one alone always fits
 * (max_model_len <= tokens in the pool, checked at open); so in every step it advances, until it ends or a better-ranked
 * one is admitted. Ranks are a total order that never changes, so among finitely many sequences that comes to an
 * end. With priorities but without ageing, a stream of better ones can starve a worse one; ageing bounds that.
 * Victims are the worst, and work is handed out from the best on, so a victim was never scheduled in the same step.
 *
 * Forks. A sequence with a parent is HELD until the parent's prompt is computed. Then it becomes RUNNING with the parent's
 * blocks, all shared, and its first token comes from the same row of logits. Who writes next into the last, partly
 * filled block, parent or child, while it is shared, gets a copy of its own (copy on write; the last user needs none).
 * Is there no place or memory just then, or did the child come later, it waits like any other; if the parent still runs when
 * its turn comes, it shares the blocks all the same, and computes the prompt's last token once more, for its logits. Is
 * the parent preempted or gone, the child goes on by itself, and finds the full blocks of its prompt in the prefix cache.
 */
#ifndef INFERD_SCHEDULER_H
#define INFERD_SCHEDULER_H

#include "wait_queue.h"

struct scheduler_config {
    size_t max_sequences, max_batched_tokens;
    enum scheduling scheduling;
    uint64_t ageing_ns;
};

struct scheduler {
    struct kv_cache *kv;
    size_t max_sequences, max_batched_tokens;
    struct wait_queue waiting;
    struct list running; /* by sequence_before */
    size_t n_waiting, n_running; /* waiting: held ones too */
    struct sequence **scheduled; /* [n_scheduled], room for max_sequences: the step's sequences in row order */
    size_t n_scheduled;
    size_t rows; /* sum of their n_scheduled */
    int32_t *copy_from, *copy_to; /* [n_copies], room for max_sequences: blocks to copy before the step, in order */
    size_t n_copies;
    size_t n_forked; /* since the step was scheduled: each may want a block soon */
    uint64_t preemptions, forks;
    struct step_cost step_cost; /* what drafts cost; the engine adds what it measures */
    uint64_t queried_tokens, cached_tokens; /* prompt tokens looked up in the prefix cache; found there */
};

/* Drafts do not bring a step above so many rows. */
#define SCHEDULER_DRAFT_ROWS 64

/* Needs max_batched_tokens >= max_sequences: every decode fits in a step. */
int scheduler_init(struct scheduler *s, struct kv_cache *kv, const struct scheduler_config *config, struct error *err);
void scheduler_destroy(struct scheduler *s); /* nothing may wait or run */

/* A new sequence. `parent` (NULL = none) is one that was added before and not removed; it is used if it can be. */
void scheduler_add(struct scheduler *s, struct sequence *seq, struct sequence *parent);
/* Whether the next step would admit somebody who waits, all else being equal. */
bool scheduler_could_admit(const struct scheduler *s);
void scheduler_schedule(struct scheduler *s); /* fills scheduled, n_scheduled, rows, copies */
void scheduler_computed(struct scheduler *s); /* the step was run: n_computed of all advance, full blocks are published */
/* The next child of a sequence whose prompt was computed in this step, RUNNING now; NULL when there is none (any more).
 * To be called before the parent gets its first token or goes. */
struct sequence *scheduler_fork(struct scheduler *s, struct sequence *parent);
void scheduler_distrust(struct scheduler *s, const struct sequence *seq); /* its KV is wrong: nobody shall find it */
void scheduler_remove(struct scheduler *s, struct sequence *seq); /* take it out of everything, release its blocks */
/* Any sequence that waits or runs, NULL if there is none. */
struct sequence *scheduler_any(const struct scheduler *s);

#endif
