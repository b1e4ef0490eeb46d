/*
 * What ranks do together: threads of one process, each with a shard of the model. Every rank of a group calls the same
 * operation with the same size, each from its own thread; the call returns when the rank's part is done. Sums are taken
 * in the order of the ranks, so all of them have the same bits, run for run.
 *
 * A rank that does not come within the deadline, comes with another size, or calls another operation breaks the group: the
 * call fails on every rank with a sentence that names it (ERROR_DEVICE, or ERROR_INTERNAL for the latter two), and so does each call
 * after it. Nothing is left waiting. A rank that is late may still be at work in the buffers of a call that failed for others: they
 * must live until every rank's thread has returned.
 */
#ifndef INFERD_COLLECTIVE_H
#define INFERD_COLLECTIVE_H

#include <inferd/error.h>
#include <stddef.h>

#define COLLECTIVE_MAX_RANKS 64

/* A rank's membership of a group. Used by the thread of that rank alone, but for `abort`. */
struct collective;

struct collective_ops {
    const char *name; /* "threads" */
    /* x[n] of every rank becomes the sum over the ranks, in place. */
    int (*all_reduce)(struct collective *c, float *x, size_t n, struct error *err);
    /* all[size][bytes]: what every rank gave as mine[bytes], in the order of the ranks; mine may be its place in all. */
    int (*all_gather)(struct collective *c, const void *mine, size_t bytes, void *all, struct error *err);
    /* x[bytes] of `root` comes to all. */
    int (*broadcast)(struct collective *c, void *x, size_t bytes, size_t root, struct error *err);
    int (*barrier)(struct collective *c, struct error *err);
    /* Any thread: the group is broken, as by a rank that does not come. */
    void (*abort)(struct collective *c);
    /* The group goes with its last member. NULL is fine. */
    void (*close)(struct collective *c);
};

struct collective {
    const struct collective_ops *ops;
    size_t rank, size;
};

/*
 * A group of CPU ranks that share memory: members[size]. deadline_ms: how long a rank waits for the others. A wait spins for a
 * little while, then sleeps.
 */
int collective_open_threads(size_t size, size_t deadline_ms, struct collective **members, struct error *err);

#endif
