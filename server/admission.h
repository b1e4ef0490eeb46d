/*
 * Who is let in. Bounds on the choices that are held and on the prompt tokens that wait, and the measured rate at which
 * they leave, which says when to come again.
 *
 * A ticket is what one request holds: its choices until each has ended in the engine, and the prompt tokens of those
 * that have not started. It is taken when the body is in (one choice, no tokens known), grows when the body is parsed
 * (n counts n; tokens as far as the length tells), and again when they are counted. So a burst cannot pile up behind
 * the workers. The engine's own bounds count less at any time: it forgets a sequence before its last event is read
 * here. Any thread: workers claim, too.
 */
#ifndef INFERD_ADMISSION_H
#define INFERD_ADMISSION_H

#include <inferd/error.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct config;

/*
 * The mean time one unit takes to leave, over the units that left while others waited: weights fall by DRAIN_FORGET
 * with each departure. Only time in which somebody waits passes, so that a quiet server does not look slow.
 */
struct drain {
    double time, amount, weight; /* sums over departures, each weighted: s, units, and the weights themselves */
    double since;                /* s that somebody has waited since the last departure */
};

struct admission {
    pthread_mutex_t lock; /* guards what follows */
    size_t max_held;           /* choices: those that run and those that may wait */
    size_t max_waiting_tokens; /* 0 = no bound */
    size_t fallback, most;     /* s: Retry-After when nothing was measured, and the longest */
    size_t held;          /* choices: in preparation, waiting, running */
    size_t waiting;       /* those of them that have not started */
    size_t waiting_tokens;
    uint64_t clock_ns;    /* up to when `since` was counted */
    struct drain choices; /* that ended */
    struct drain tokens;  /* of prompts that started */
};

struct ticket {
    size_t choices; /* held */
    size_t waiting; /* of these, not started */
    size_t tokens;  /* of the waiting */
};

void admission_init(struct admission *a, const struct config *c);
/* Other bounds, for who comes from now on. */
void admission_set_limits(struct admission *a, const struct config *c);
void admission_destroy(struct admission *a);

/*
 * Raise the ticket to so many choices, none of them started, with so many prompt tokens together. ERROR_QUEUE_FULL, and
 * the ticket as it was. Where nobody else's tokens wait, any number of them is let in: it would never be otherwise.
 */
int admission_claim(struct admission *a, struct ticket *t, size_t choices, size_t tokens, uint64_t now_ns,
                    struct error *err);
/* One choice, of a prompt of so many tokens, runs. */
void admission_started(struct admission *a, struct ticket *t, size_t tokens, uint64_t now_ns);
/* One choice has ended. A choice that never started gives its tokens back. */
void admission_ended(struct admission *a, struct ticket *t, bool started, size_t tokens, uint64_t now_ns);
/* Drop what is left of it: it was refused before the engine had it. */
void admission_release(struct admission *a, struct ticket *t, uint64_t now_ns);

/* Choices that are held; prompt tokens that wait, as far as they are known. */
size_t admission_held(struct admission *a);
size_t admission_waiting_tokens(struct admission *a);

/* Whole seconds after which as much as waits now will have left, by the measured rates. */
size_t admission_retry_after(struct admission *a, uint64_t now_ns);

#endif
