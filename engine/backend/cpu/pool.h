/*
 * Worker threads that share one loop at a time. The caller takes part. Idle workers spin for some tens of microseconds,
 * since the next operation of a forward pass follows at once, then sleep: an idle pool uses no CPU.
 */
#ifndef CPU_POOL_H
#define CPU_POOL_H

#include <inferd/error.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pool;

/* `threads` >= 1 counts the caller: threads - 1 are started. cpus[threads]: where each is to stay, if the system
 * allows; NULL: anywhere. The caller is not bound, it is not the pool's: where the workers stay, cpus[0] is left for
 * it. NULL on failure. */
struct pool *pool_create(size_t threads, const uint16_t *cpus, struct error *err);
void pool_free(struct pool *p); /* NULL is fine; no run may be in progress */

/* Call fn(arg, i, worker) once for each i < n, in any order, on any worker < threads; returns when all are done. What
 * the caller wrote before is seen by fn, what fn wrote is seen by the caller after. One caller at a time; fn must not
 * call pool_run. */
void pool_run(struct pool *p, size_t n, void (*fn)(void *arg, size_t i, size_t worker), void *arg);

/* How long threads did what, since the pool was made, counted while it measures; neither during a run. */
struct pool_times {
    uint64_t workers_ns;       /* in fn, all workers but the caller together */
    uint64_t caller_waited_ns; /* for the others' last calls of fn */
};
void pool_measure(struct pool *p, bool on);
void pool_times(const struct pool *p, struct pool_times *out);

#endif
