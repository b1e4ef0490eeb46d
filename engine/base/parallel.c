#include "base/parallel.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

enum { MAX_THREADS = 256 };

struct loop {
    void (*fn)(void *arg, size_t i);
    void *arg;
    size_t n;
    atomic_size_t next;
};

static void *run(void *p) {
    struct loop *loop = p;
    for (size_t i; (i = atomic_fetch_add(&loop->next, 1)) < loop->n;) {
        loop->fn(loop->arg, i);
    }
    return NULL;
}

static size_t usable_threads(void) {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? (size_t)CPU_COUNT(&set) : 1;
}

void parallel_for(size_t threads, size_t n, void (*fn)(void *arg, size_t i), void *arg) {
    struct loop loop = {.fn = fn, .arg = arg, .n = n};
    pthread_t others[MAX_THREADS];
    size_t started = 0;
    threads = threads == 0 ? usable_threads() : threads;
    threads = threads < n ? threads : n;
    while (started + 1 < threads && started < MAX_THREADS && pthread_create(&others[started], NULL, run, &loop) == 0) {
        started++;
    }
    run(&loop);
    for (size_t i = 0; i < started; i++) {
        pthread_join(others[i], NULL);
    }
}
