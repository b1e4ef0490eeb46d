#include "ranks.h"

#include "base/signal_stack.h"

#include <inferd/clock.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define SPINS 4000 /* how often a rank looks for the next task before it sleeps: a step has several */

struct rank_thread {
    struct ranks *ranks;
    size_t rank;
    pthread_t thread;
    bool started;
};

struct ranks {
    size_t n;
    size_t timeout_ms;
    struct collective *group;
    bool lost;
    struct error why_lost;

    rank_fn *fn; /* the task, written before `task` is raised */
    void *arg;
    _Atomic uint32_t task;      /* its number */
    _Atomic uint32_t remaining; /* ranks that are still at it, without rank 0 */
    _Atomic bool stop;
    _Atomic uint32_t failed; /* 1 + the first rank to fail in this task */
    struct error error;      /* its reason */
    _Atomic bool told;       /* it is whole */

    pthread_mutex_t mutex; /* of the sleeping alone: tasks are handed over by the counters */
    pthread_cond_t begun, ended;
    struct rank_thread threads[]; /* [n], the first unused */
};

/* The first to fail is remembered, and the others do not wait for it. */
static void fail(struct ranks *r, size_t rank, const struct error *why) {
    uint32_t none = 0;
    if (atomic_compare_exchange_strong(&r->failed, &none, (uint32_t)rank + 1)) {
        r->error = *why;
        if (rank > 0 && (why->code == ERROR_DEVICE || why->code == ERROR_MEMORY)) {
            error_prefix(&r->error, "rank %zu", rank);
        }
        atomic_store(&r->told, true);
        if (r->group) {
            r->group->ops->abort(r->group);
        }
    }
}

static void wake(struct ranks *r, pthread_cond_t *cond) {
    pthread_mutex_lock(&r->mutex); /* who is about to sleep has looked with it held */
    pthread_cond_broadcast(cond);
    pthread_mutex_unlock(&r->mutex);
}

static bool wait_for_task(struct ranks *r, uint32_t seen) {
    for (int i = 0; i < SPINS && atomic_load(&r->task) == seen; i++) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }
    if (atomic_load(&r->task) == seen) {
        pthread_mutex_lock(&r->mutex);
        while (atomic_load(&r->task) == seen) {
            pthread_cond_wait(&r->begun, &r->mutex);
        }
        pthread_mutex_unlock(&r->mutex);
    }
    return !atomic_load(&r->stop);
}

static void *run_thread(void *arg) {
    struct rank_thread *t = arg;
    struct ranks *r = t->ranks;
    char name[16];
    snprintf(name, sizeof name, "rank %zu", t->rank);
    pthread_setname_np(pthread_self(), name);
    signal_stack_use();
    for (uint32_t seen = 0; wait_for_task(r, seen); seen++) {
        struct error err;
        if (r->fn(r->arg, t->rank, &err) < 0) {
            fail(r, t->rank, &err);
        }
        if (atomic_fetch_sub(&r->remaining, 1) == 1) {
            wake(r, &r->ended);
        }
    }
    return NULL;
}

int ranks_open(size_t n, size_t timeout_ms, struct ranks **out, struct error *err) {
    if (n < 1 || n > COLLECTIVE_MAX_RANKS) {
        return error_set(err, ERROR_INVALID, "a process has 1 to %d ranks, not %zu", COLLECTIVE_MAX_RANKS, n);
    }
    struct ranks *r = calloc(1, sizeof *r + n * sizeof r->threads[0]);
    pthread_condattr_t attributes;
    if (!r) {
        return error_memory(err);
    }
    r->n = n;
    r->timeout_ms = timeout_ms;
    pthread_mutex_init(&r->mutex, NULL);
    pthread_cond_init(&r->begun, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&r->ended, &attributes);
    pthread_condattr_destroy(&attributes);
    for (size_t i = 1; i < n; i++) {
        struct rank_thread *t = &r->threads[i];
        t->ranks = r;
        t->rank = i;
        t->started = pthread_create(&t->thread, NULL, run_thread, t) == 0;
        if (!t->started) {
            ranks_close(r);
            return error_set(err, ERROR_MEMORY, "no thread for rank %zu", i);
        }
    }
    *out = r;
    return 0;
}

void ranks_set_group(struct ranks *r, struct collective *group) {
    r->group = group;
}

/* False: not all came in time. */
static bool wait_for_all(struct ranks *r, bool timed) {
    for (int i = 0; i < SPINS && atomic_load(&r->remaining) > 0; i++) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)(r->timeout_ms / 1000);
    until.tv_nsec += (long)(r->timeout_ms % 1000) * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    int rc = 0;
    pthread_mutex_lock(&r->mutex);
    while (atomic_load(&r->remaining) > 0 && rc == 0) {
        rc = timed ? pthread_cond_timedwait(&r->ended, &r->mutex, &until) : pthread_cond_wait(&r->ended, &r->mutex);
    }
    pthread_mutex_unlock(&r->mutex);
    return atomic_load(&r->remaining) == 0;
}

int ranks_run(struct ranks *r, rank_fn *fn, void *arg, bool timed, struct error *err) {
    struct error own;
    if (r->lost) {
        *err = r->why_lost;
        return -1;
    }
    if (r->n == 1) {
        return fn(arg, 0, err);
    }
    r->fn = fn;
    r->arg = arg;
    atomic_store(&r->failed, 0);
    atomic_store(&r->told, false);
    atomic_store(&r->remaining, (uint32_t)r->n - 1);
    atomic_fetch_add(&r->task, 1);
    wake(r, &r->begun);
    if (fn(arg, 0, &own) < 0) {
        fail(r, 0, &own);
    }
    bool failed = atomic_load(&r->failed) > 0;
    if (!wait_for_all(r, timed || failed)) {
        r->lost = true;
        if (atomic_load(&r->told)) {
            r->why_lost = r->error;
        } else {
            error_set(&r->why_lost, ERROR_DEVICE, "%u of %zu ranks did not come back within %.1f s",
                      atomic_load(&r->remaining), r->n, (double)r->timeout_ms / 1e3);
        }
        r->why_lost.code = ERROR_DEVICE;
        if (r->group) {
            r->group->ops->abort(r->group);
        }
        *err = r->why_lost;
        return -1;
    }
    if (atomic_load(&r->failed) > 0) {
        *err = r->error;
        return -1;
    }
    return 0;
}

bool ranks_lost(const struct ranks *r) {
    return r->lost;
}

void ranks_close(struct ranks *r) {
    if (!r) {
        return;
    }
    atomic_store(&r->stop, true);
    atomic_fetch_add(&r->task, 1);
    wake(r, &r->begun);
    for (size_t i = 1; i < r->n; i++) {
        if (r->threads[i].started && !r->lost) {
            pthread_join(r->threads[i].thread, NULL);
        } else if (r->threads[i].started) {
            pthread_detach(r->threads[i].thread);
        }
    }
    if (!r->lost) { /* else they still look at it */
        pthread_cond_destroy(&r->begun);
        pthread_cond_destroy(&r->ended);
        pthread_mutex_destroy(&r->mutex);
        free(r);
    }
}
