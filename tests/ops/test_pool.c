/* The CPU backend's worker pool by itself: every task runs once, and what is idle is told as idle; and its profile. */
#include "ops.h"

#include "backend/cpu/pool.h"

#include <sched.h>
#include <stdatomic.h>
#include <time.h>

enum { POOL_TASKS = 1000 };

struct tally {
    _Atomic unsigned runs[POOL_TASKS];
    _Atomic unsigned strangers; /* calls by a worker that does not exist */
    size_t threads;
    size_t slow; /* the task that sleeps */
};

static void pause_ms(long ms) {
    struct timespec ts = {0, ms * 1000000};
    nanosleep(&ts, NULL);
}

static uint64_t now_ns(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void count(void *arg, size_t i, size_t worker) {
    struct tally *t = arg;
    atomic_fetch_add(&t->runs[i], 1);
    atomic_fetch_add(&t->strangers, worker >= t->threads);
    if (i == t->slow) {
        pause_ms(5);
    }
}

static void test_each_once(size_t threads) {
    static const size_t counts[] = {0, 1, 2, 3, 64, POOL_TASKS};
    struct pool *p = pool_create(threads, NULL, &err);
    CHECK(p != NULL, "pool of %zu: %s", threads, err.message);
    for (size_t i = 0; p && i < sizeof counts / sizeof *counts; i++) {
        for (int round = 0; round < 20; round++) {
            struct tally t = {.threads = threads, .slow = round == 7 ? counts[i] / 2 : SIZE_MAX};
            pool_run(p, counts[i], count, &t);
            bool once = true;
            for (size_t j = 0; j < POOL_TASKS; j++) {
                once = once && t.runs[j] == (j < counts[i]);
            }
            CHECK(once && t.strangers == 0, "%zu tasks on %zu threads", counts[i], threads);
        }
    }
    pool_free(p);
}

struct meeting {
    _Atomic unsigned here;
};

/* Two tasks begin together, on two threads therefore; then one of them sleeps. */
static void meet(void *arg, size_t i, size_t worker) {
    struct meeting *m = arg;
    (void)worker;
    atomic_fetch_add(&m->here, 1);
    while (atomic_load(&m->here) < 2) {
        pause_ms(0);
    }
    if (i == 1) {
        pause_ms(20);
    }
}

/* While one sleeps in its task the other has none: that much of the two threads' time is idle, whoever it is. */
static void test_waiting(void) {
    struct pool *p = pool_create(2, NULL, &err);
    struct pool_times before, after;
    struct tally t = {.threads = 2, .slow = 1};
    struct meeting m = {0};
    pool_run(p, 2, count, &t);
    pool_times(p, &before);
    CHECK(before.workers_ns == 0 && before.caller_waited_ns == 0, "times are taken before anybody asked");
    pool_measure(p, true);
    uint64_t start = now_ns();
    pool_run(p, 2, meet, &m);
    uint64_t took = now_ns() - start;
    pool_times(p, &after);
    CHECK(after.workers_ns <= took && after.caller_waited_ns <= took, "more time than there was");
    CHECK(took - after.workers_ns + after.caller_waited_ns >= 10000000, "%.1f ms, waited %.1f, worked %.1f",
          1e-6 * (double)took, 1e-6 * (double)after.caller_waited_ns, 1e-6 * (double)after.workers_ns);
    pool_measure(p, false);
    pool_run(p, 2, count, &t);
    pool_times(p, &before);
    CHECK(before.workers_ns == after.workers_ns && before.caller_waited_ns == after.caller_waited_ns,
          "times are taken after nobody asks");
    pool_free(p);
}

struct whereabouts {
    struct meeting m;
    int cpu; /* of the worker that is not the caller */
};

static void where(void *arg, size_t i, size_t worker) {
    struct whereabouts *w = arg;
    meet(&w->m, i, worker);
    if (worker == 1) {
        w->cpu = sched_getcpu();
    }
}

/* A worker stays where it was told to; a CPU that this process may not use, or that is none, is no error. */
static void test_bound(void) {
    cpu_set_t set;
    uint16_t cpus[2] = {0, 0};
    struct whereabouts w = {.cpu = -1};
    CHECK(sched_getaffinity(0, sizeof set, &set) == 0, "no affinity");
    while (!CPU_ISSET(cpus[1], &set)) {
        cpus[1]++;
    }
    struct pool *p = pool_create(2, cpus, &err);
    pool_run(p, 2, where, &w);
    CHECK(w.cpu == cpus[1], "bound to CPU %d, found on %d", (int)cpus[1], w.cpu);
    pool_free(p);
    cpus[1] = 1023;
    w = (struct whereabouts){.cpu = -1};
    p = pool_create(2, cpus, &err);
    pool_run(p, 2, where, &w);
    CHECK(w.cpu >= 0, "no worker");
    pool_free(p);
}

/* Sums of a profile against the clock around it, with work that all share and with work that one alone can do. */
static void test_profile(const struct fixture *f, size_t threads) {
    enum { CALLS = 30, ROWS = 16, DIM = 512 };
    struct backend *b = f->b[threads - 1];
    float *x = xmalloc(ROWS * DIM * sizeof *x), *y = xmalloc(ROWS * DIM * sizeof *y);
    float *table = xmalloc((size_t)DIM * DIM * sizeof *table);
    struct weight wide = {.dtype = DTYPE_F32, .n = DIM, .k = DIM, .row_bytes = DIM * sizeof *table, .data = table};
    struct linear_part part = {&wide, NULL, y, DIM};
    struct backend_profile p, again;
    OK(f->ops->profile(b, true, NULL, &err));
    uint64_t start = now_ns();
    for (int i = 0; i < CALLS; i++) {
        OK(f->ops->linear(b, x, DIM, ROWS, &part, 1, &err));
        OK(f->ops->rms_norm(b, y, DIM, x, DIM, NULL, 0, table, 1, 1, DIM, 1e-5f, &err)); /* one row: nothing to share */
    }
    uint64_t wall = now_ns() - start;
    OK(f->ops->profile(b, false, &p, &err));
    uint64_t sum = 0;
    for (size_t op = 0; op < BACKEND_OP_COUNT; op++) {
        bool used = op == BACKEND_OP_LINEAR || op == BACKEND_OP_RMS_NORM;
        sum += p.ops[op].ns;
        CHECK(p.ops[op].calls == (used ? CALLS : 0) && (p.ops[op].ns > 0) == used,
              "profile of operation %zu: %llu calls", op, (unsigned long long)p.ops[op].calls);
        CHECK(p.ops[op].idle_ns <= threads * p.ops[op].ns, "operation %zu idles longer than it takes", op);
    }
    CHECK(sum <= wall, "operations take %.2f ms of %.2f", 1e-6 * (double)sum, 1e-6 * (double)wall);
    CHECK(p.ops[BACKEND_OP_RMS_NORM].idle_ns == (threads - 1) * p.ops[BACKEND_OP_RMS_NORM].ns,
          "what one thread does alone leaves the others idle");
    CHECK(threads == 1 || p.ops[BACKEND_OP_LINEAR].idle_ns > 0, "no thread ever waits");
    OK(f->ops->linear(b, x, DIM, ROWS, &part, 1, &err));
    OK(f->ops->profile(b, true, &again, &err));
    CHECK(memcmp(&p, &again, sizeof p) == 0, "what runs while profiling is off is counted");
    OK(f->ops->profile(b, false, &again, &err));
    CHECK(again.ops[BACKEND_OP_LINEAR].calls == 0, "profiling does not begin from zero");
    free(x), free(y), free(table);
}

void test_pool(const struct fixture *f) {
    for (size_t threads = 1; threads <= MAX_TEST_THREADS; threads++) {
        test_each_once(threads);
        test_profile(f, threads);
    }
    test_waiting();
    test_bound();
}
