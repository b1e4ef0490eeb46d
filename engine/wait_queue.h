/*
 * Who of the waiting is next.
 *
 * Order within a tenant. Each sequence has a `rank`, fixed when it arrives; lower goes first, then earlier arrival:
 *
 *     fcfs         rank = 0
 *     priority     rank = priority                                    without ageing
 *                  rank = arrival time + priority * ageing            with
 *
 * A sequence that has waited w has the effective priority `priority - w / ageing`. Which of two is lower does not change while
 * both wait, since both age alike; multiplying by ageing and adding the present gives the rank above. So an order made
 * once stays right, no clock is read later, and a clock that stands still or leaps cannot reorder who already waits.
 *
 * Shares of tenants: the virtual token counter (Sheng et al. 2023, "Fairness in Serving Large Language Models"). A
 * tenant's counter rises with the work done for it; the tenant with the lowest counter among those that wait is next. A
 * tenant that begins to wait is lifted to the lowest counter of those that wait already (or, if none does, to that of the
 * tenant that stopped waiting last), so that nobody saves up idle time. Only work is counted: a prompt token that
 * is computed costs WAIT_COST_PROMPT, one that the prefix cache has nothing, a generated one WAIT_COST_GENERATED;
 * tokens that are computed again after a preemption cost nothing.
 *
 * A preempted sequence was admitted once already, and its client is in the middle of an answer: it goes before all who
 * never ran; with priorities, before those that do not rank before it.
 *
 * Tenants of unlike weight: the work of a tenant with cost c counts c times, so that its share is 1/c of another's.
 *
 * WAIT_MAX_TENANTS tenants are told apart at a time. One that has neither waiting nor running sequences may be
 * forgotten when a new one needs its place, longest idle first; if none is idle, further ones share one place.
 *
 * Insert O(1), next O(tenants that wait), remove O(log n) amortised; nothing allocates after init. Engine thread.
 */
#ifndef INFERD_WAIT_QUEUE_H
#define INFERD_WAIT_QUEUE_H

#include "sequence.h"

#define WAIT_MAX_TENANTS 1024
#define WAIT_COST_PROMPT 1u
#define WAIT_COST_GENERATED 2u

enum scheduling { SCHEDULING_FCFS, SCHEDULING_PRIORITY };

struct tenant {
    uint64_t id;
    uint64_t served;      /* the virtual token counter */
    uint64_t cost;        /* by which its work is multiplied there, as its newest request says */
    size_t n_sequences;   /* waiting and running */
    struct heap waiting;  /* by sequence_before */
    struct list node;     /* in `backlogged` while waiting is not empty, else in `idle` while n_sequences is 0 */
    bool known;           /* has an id, and is in a bucket */
    struct tenant *next;  /* of the same bucket */
};

struct wait_queue {
    enum scheduling scheduling;
    uint64_t ageing_ns; /* of waiting that are worth one level of priority; 0 = never */
    size_t n;           /* sequences that wait here */
    struct heap preempted;
    struct list backlogged; /* tenants that wait */
    struct list idle;       /* tenants without sequences, longest first; the unused ones in front */
    struct tenant *last;    /* who stopped waiting last, NULL = nobody yet, or forgotten: */
    uint64_t last_served;   /* then its counter */
    struct tenant *tenants; /* [WAIT_MAX_TENANTS + 1], the last one is everybody else's */
    struct tenant **buckets; /* [WAIT_MAX_TENANTS] */
};

int wait_queue_init(struct wait_queue *q, enum scheduling scheduling, uint64_t ageing_ns, struct error *err);
void wait_queue_destroy(struct wait_queue *q); /* NULL and a zeroed one are fine */

/* A sequence comes to the engine: it gets its rank and its tenant. And leaves it. */
void wait_queue_enter(struct wait_queue *q, struct sequence *s);
void wait_queue_leave(struct wait_queue *q, struct sequence *s);

void wait_queue_push(struct wait_queue *q, struct sequence *s);
void wait_queue_remove(struct wait_queue *q, struct sequence *s);
struct sequence *wait_queue_next(const struct wait_queue *q); /* NULL when nobody waits */

/* Work was done, or is about to be, for a sequence. */
void wait_queue_charge(struct wait_queue *q, const struct sequence *s, uint64_t cost);

#endif
