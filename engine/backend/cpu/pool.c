#include "pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    SPIN_NS = 50 * 1000,         /* how long a worker waits awake for the next loop */
    CALLER_SPIN_NS = 200 * 1000, /* how long the caller waits awake for the last chunk: it is under way */
};

/*
 * A loop is published in `ticket`: the number of the loop in the upper half, how many of its chunks are not yet
 * taken in the lower. A worker takes a chunk by lowering the ticket with compare-and-swap. Success proves that the
 * loop was not over, and it cannot end before that chunk is done, so fn, arg and n stay valid meanwhile; a worker
 * that comes late finds no chunk and touches nothing. So nobody waits for a worker that is asleep.
 */
struct pool {
    _Alignas(64) _Atomic uint64_t ticket;
    _Alignas(64) _Atomic uint32_t done; /* chunks of this loop that are done; the caller sleeps on it */
    _Atomic uint32_t caller_asleep;
    _Alignas(64) _Atomic uint32_t wakeups; /* workers sleep on it */
    _Atomic uint32_t sleepers;
    _Atomic bool stop;

    void (*fn)(void *arg, size_t i, size_t worker);
    void *arg;
    uint32_t n;
    bool measured;

    uint64_t caller_waited_ns;
    size_t n_workers; /* without the caller */
    struct worker {
        _Alignas(64) struct pool *pool;
        size_t index;
        pthread_t thread;
        uint64_t worked_ns; /* the worker's; the caller reads it between runs */
    } workers[];
};

static void futex_wait(_Atomic uint32_t *word, uint32_t expected) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, int n) {
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

static void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static uint64_t now_ns(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static uint32_t chunks_left(uint64_t ticket) {
    return (uint32_t)ticket;
}

/* Take chunks of the published loop until none is left. */
static void work(struct pool *p, size_t worker) {
    uint32_t mine = 0, n = 0;
    uint64_t start = 0;
    uint64_t ticket = atomic_load_explicit(&p->ticket, memory_order_acquire);
    while (chunks_left(ticket) > 0) {
        if (!atomic_compare_exchange_weak_explicit(&p->ticket, &ticket, ticket - 1, memory_order_acq_rel,
                                                   memory_order_acquire)) {
            continue;
        }
        n = p->n;
        if (mine == 0 && worker > 0 && p->measured) {
            start = now_ns();
        }
        p->fn(p->arg, n - chunks_left(ticket), worker);
        mine++;
        ticket = atomic_load_explicit(&p->ticket, memory_order_acquire);
    }
    if (mine > 0) {
        if (start > 0) {
            p->workers[worker - 1].worked_ns += now_ns() - start;
        }
        /* From here on the loop may be over: only atomics of the pool may be touched. */
        uint32_t before = atomic_fetch_add(&p->done, mine);
        if (before + mine == n && atomic_load(&p->caller_asleep)) {
            futex_wake(&p->done, 1);
        }
    }
}

/* Wait until there is a chunk to take or the pool stops; false when it stops. */
static bool wait_for_work(struct pool *p) {
    uint64_t until = now_ns() + SPIN_NS;
    for (;;) {
        for (int i = 0; i < 32; i++) {
            if (chunks_left(atomic_load_explicit(&p->ticket, memory_order_acquire)) > 0) {
                return true;
            }
            relax();
        }
        if (now_ns() >= until) {
            break;
        }
    }
    for (;;) {
        uint32_t seen = atomic_load(&p->wakeups);
        atomic_fetch_add(&p->sleepers, 1);
        /* Announced as asleep first, looked for work after: the caller does the two in the other order, so one of us
         * sees it. */
        bool stop = atomic_load(&p->stop), idle = chunks_left(atomic_load(&p->ticket)) == 0;
        if (!stop && idle) {
            futex_wait(&p->wakeups, seen);
        }
        atomic_fetch_sub(&p->sleepers, 1);
        if (atomic_load(&p->stop)) {
            return false;
        }
        if (chunks_left(atomic_load(&p->ticket)) > 0) {
            return true;
        }
    }
}

static void *worker_main(void *arg) {
    struct worker *w = arg;
    while (wait_for_work(w->pool)) {
        work(w->pool, w->index);
    }
    return NULL;
}

static void wait_for_others(struct pool *p, uint32_t n) {
    uint64_t until = now_ns() + CALLER_SPIN_NS;
    do {
        for (int i = 0; i < 32; i++) {
            if (atomic_load_explicit(&p->done, memory_order_acquire) == n) {
                return;
            }
            relax();
        }
    } while (now_ns() < until);
    atomic_store(&p->caller_asleep, 1);
    for (uint32_t done = atomic_load(&p->done); done != n; done = atomic_load(&p->done)) {
        futex_wait(&p->done, done);
    }
    atomic_store(&p->caller_asleep, 0);
}

static void run_some(struct pool *p, uint32_t n, void (*fn)(void *arg, size_t i, size_t worker), void *arg) {
    p->fn = fn;
    p->arg = arg;
    p->n = n;
    atomic_store_explicit(&p->done, 0, memory_order_relaxed);
    uint64_t loop = (atomic_load_explicit(&p->ticket, memory_order_relaxed) >> 32) + 1;
    atomic_store(&p->ticket, loop << 32 | n);
    if (atomic_load(&p->sleepers) > 0) {
        atomic_fetch_add(&p->wakeups, 1);
        futex_wake(&p->wakeups, (int)(n - 1));
    }
    work(p, 0);
    uint64_t start = p->measured ? now_ns() : 0;
    wait_for_others(p, n);
    p->caller_waited_ns += p->measured ? now_ns() - start : 0;
}

void pool_run(struct pool *p, size_t n, void (*fn)(void *arg, size_t i, size_t worker), void *arg) {
    if (n <= 1 || p->n_workers == 0) {
        for (size_t i = 0; i < n; i++) {
            fn(arg, i, 0);
        }
        return;
    }
    run_some(p, (uint32_t)n, fn, arg);
}

void pool_measure(struct pool *p, bool on) {
    p->measured = on;
}

void pool_times(const struct pool *p, struct pool_times *out) {
    *out = (struct pool_times){.caller_waited_ns = p->caller_waited_ns};
    for (size_t i = 0; i < p->n_workers; i++) {
        out->workers_ns += p->workers[i].worked_ns;
    }
}

void pool_free(struct pool *p) {
    if (!p) {
        return;
    }
    atomic_store(&p->stop, true);
    atomic_fetch_add(&p->wakeups, 1);
    futex_wake(&p->wakeups, INT32_MAX);
    for (size_t i = 0; i < p->n_workers; i++) {
        pthread_join(p->workers[i].thread, NULL);
    }
    free(p);
}

/* What the system refuses is only slower. */
static void bind_thread(pthread_t thread, uint16_t cpu) {
    cpu_set_t set;
    if (cpu < CPU_SETSIZE) {
        CPU_ZERO(&set);
        CPU_SET(cpu, &set);
        pthread_setaffinity_np(thread, sizeof set, &set);
    }
}

struct pool *pool_create(size_t threads, const uint16_t *cpus, struct error *err) {
    size_t n_workers = threads - 1, bytes = sizeof(struct pool) + n_workers * sizeof(struct worker);
    struct pool *p = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!p) {
        error_memory(err);
        return NULL;
    }
    memset(p, 0, sizeof *p);
    for (size_t i = 0; i < n_workers; i++) {
        struct worker *w = &p->workers[i];
        *w = (struct worker){.pool = p, .index = i + 1};
        int rc = pthread_create(&w->thread, NULL, worker_main, w);
        if (rc != 0) {
            error_set(err, ERROR_IO, "cannot start worker thread %zu of %zu: %s", i + 1, n_workers, strerror(rc));
            pool_free(p);
            return NULL;
        }
        char name[32];
        snprintf(name, sizeof name, "cpu-%zu", i + 1);
        pthread_setname_np(w->thread, name);
        if (cpus) {
            bind_thread(w->thread, cpus[i + 1]);
        }
        p->n_workers = i + 1;
    }
    return p;
}
