#include "admission.h"

#include "config.h"

#include <math.h>

#define DRAIN_FORGET 0.1 /* the weight of the newest departure */

void admission_init(struct admission *a, const struct config *c) {
    *a = (struct admission){0};
    pthread_mutex_init(&a->lock, NULL);
    admission_set_limits(a, c);
}

void admission_set_limits(struct admission *a, const struct config *c) {
    pthread_mutex_lock(&a->lock);
    a->max_held = config_seats(c) + c->max_waiting;
    a->max_waiting_tokens = c->max_waiting_tokens;
    a->fallback = c->retry_after;
    a->most = c->retry_after_max;
    pthread_mutex_unlock(&a->lock);
}

void admission_destroy(struct admission *a) {
    pthread_mutex_destroy(&a->lock);
}

/* ---- the rates ----------------------------------------------------------------------------------------------- */

/* Let time pass up to now: it counts when somebody waited through it. Before every change of a count. */
static void advance(struct admission *a, uint64_t now_ns) {
    if (now_ns <= a->clock_ns) {
        return;
    }
    double dt = a->waiting > 0 ? (double)(now_ns - a->clock_ns) / 1e9 : 0;
    a->choices.since += dt;
    a->tokens.since += dt;
    a->clock_ns = now_ns;
}

static void departed(struct drain *d, size_t amount) {
    d->time += DRAIN_FORGET * (d->since - d->time);
    d->amount += DRAIN_FORGET * ((double)amount - d->amount);
    d->weight += DRAIN_FORGET * (1 - d->weight);
    d->since = 0;
}

/* s a unit takes; 0 = not known. Nothing having left for longer than usual counts as if the usual amount left now. */
static double pace(const struct drain *d) {
    if (d->amount <= 0) {
        return 0;
    }
    double time = d->time / d->weight, amount = d->amount / d->weight;
    return (d->since > time ? time + DRAIN_FORGET * (d->since - time) : time) / amount;
}

size_t admission_retry_after(struct admission *a, uint64_t now_ns) {
    pthread_mutex_lock(&a->lock);
    advance(a, now_ns);
    double choices = (double)a->waiting * pace(&a->choices), tokens = (double)a->waiting_tokens * pace(&a->tokens);
    bool known = a->waiting > 0 && a->choices.amount > 0;
    size_t fallback = a->fallback, most = a->most;
    pthread_mutex_unlock(&a->lock);
    double seconds = ceil(choices > tokens ? choices : tokens);
    if (!known && seconds < (double)fallback) {
        return fallback;
    }
    return seconds < 1 ? 1 : seconds < (double)most ? (size_t)seconds : most;
}

/* ---- the bounds ---------------------------------------------------------------------------------------------- */

int admission_claim(struct admission *a, struct ticket *t, size_t choices, size_t tokens, uint64_t now_ns,
                    struct error *err) {
    int rc = 0;
    pthread_mutex_lock(&a->lock);
    advance(a, now_ns);
    size_t held = a->held - t->choices, others = a->waiting_tokens - t->tokens;
    size_t most = a->max_waiting_tokens, least = tokens ? tokens : 1; /* no prompt is empty */
    if (choices > a->max_held || held > a->max_held - choices) {
        rc = error_set(err, ERROR_QUEUE_FULL, "too many requests are waiting; try again later");
    } else if (most && others > 0 && (least > most || others > most - least)) {
        rc = error_set(err, ERROR_QUEUE_FULL, "too many prompt tokens are waiting; try again later");
    } else {
        a->held = held + choices;
        a->waiting = a->waiting - t->waiting + choices;
        a->waiting_tokens = others + tokens;
        *t = (struct ticket){choices, choices, tokens};
    }
    pthread_mutex_unlock(&a->lock);
    return rc;
}

/* Take from the ticket and the counts alike; no more than the ticket has. */
static void give_back(struct admission *a, struct ticket *t, struct ticket part) {
    part.tokens = part.tokens < t->tokens ? part.tokens : t->tokens;
    a->held -= part.choices;
    a->waiting -= part.waiting;
    a->waiting_tokens -= part.tokens;
    t->choices -= part.choices;
    t->waiting -= part.waiting;
    t->tokens -= part.tokens;
}

void admission_started(struct admission *a, struct ticket *t, size_t tokens, uint64_t now_ns) {
    pthread_mutex_lock(&a->lock);
    advance(a, now_ns);
    departed(&a->tokens, tokens);
    give_back(a, t, (struct ticket){.waiting = 1, .tokens = tokens});
    pthread_mutex_unlock(&a->lock);
}

void admission_ended(struct admission *a, struct ticket *t, bool started, size_t tokens, uint64_t now_ns) {
    pthread_mutex_lock(&a->lock);
    advance(a, now_ns);
    if (a->waiting > !started) { /* others do: the queue moves by one */
        departed(&a->choices, 1);
    }
    give_back(a, t, (struct ticket){1, !started, started ? 0 : tokens});
    pthread_mutex_unlock(&a->lock);
}

void admission_release(struct admission *a, struct ticket *t, uint64_t now_ns) {
    pthread_mutex_lock(&a->lock);
    advance(a, now_ns);
    give_back(a, t, *t);
    pthread_mutex_unlock(&a->lock);
}

static size_t read(struct admission *a, const size_t *count) {
    pthread_mutex_lock(&a->lock);
    size_t n = *count;
    pthread_mutex_unlock(&a->lock);
    return n;
}

size_t admission_held(struct admission *a) {
    return read(a, &a->held);
}

size_t admission_waiting_tokens(struct admission *a) {
    return read(a, &a->waiting_tokens);
}
