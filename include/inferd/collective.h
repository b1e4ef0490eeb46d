/*
 * What ranks do together: threads of one process, each with a shard of the model, or processes on several nodes, each with a
 * stage of it. Every rank of a group calls the same
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

#include <inferd/backend.h>
#include <inferd/error.h>
#include <stdbool.h>
#include <stddef.h>

#define COLLECTIVE_MAX_RANKS 64

/* A rank's membership of a group. Used by the thread of that rank alone, but for `abort`. */
struct collective;

struct collective_ops {
    /* Of threads with shared memory gather_columns, send and recv are NULL: whoever needs something reads it. Of processes (mpi)
     * all_reduce and gather_columns are: stages share no layer. */
    const char *name;   /* "threads", "mpi", "nccl" */
    bool shared_memory; /* the ranks are threads, operands host memory: behind a barrier each may read what others wrote */
    bool queued;        /* operands are device memory, and the call is queued on the backend's queue; else it is done at return */

    /* x[n] of every rank becomes the sum over the ranks, in place; F32, on a device F16 and BF16 too (each sum rounded once). */
    int (*all_reduce)(struct collective *c, void *x, enum dtype dtype, size_t n, struct error *err);
    /* all[size][bytes]: what every rank gave as mine[bytes], in the order of the ranks; mine may be its place in all. */
    int (*all_gather)(struct collective *c, const void *mine, size_t bytes, void *all, struct error *err);
    /* On every rank all[rows][size * bytes], each row the ranks' rows of mine[rows][bytes] side by side: they choose tokens alike. */
    int (*gather_columns)(struct collective *c, const void *mine, size_t rows, size_t bytes, void *all, struct error *err);
    /* x[bytes] of `root` comes to all. */
    int (*broadcast)(struct collective *c, void *x, size_t bytes, size_t root, struct error *err);
    int (*barrier)(struct collective *c, struct error *err);
    /* x[bytes] of one rank to another, which receives as much. A send may return before it was received: x is copied, or on
     * its way in the queue. */
    int (*send)(struct collective *c, const void *x, size_t bytes, size_t to, struct error *err);
    int (*recv)(struct collective *c, void *x, size_t bytes, size_t from, struct error *err);

    /* May be NULL. residual[rows][ldr] (activation_dtype, a part of a sum) is summed over the ranks and added to x, then as
     * backend_ops.add_rms_norm; residual itself is left undefined. */
    int (*all_reduce_add_rms_norm)(struct collective *c, void *y, size_t ldy, const struct rows_i8 *q, float *x, size_t ldx,
                                   void *residual, size_t ldr, const float *w, size_t rows, size_t dim, float eps,
                                   struct error *err);

    /* May be NULL. backend_ops.choose for rows without edits that look at no more than the k best of their logits, k <= CHOICE_BEST, 1 if
     * all are greedy, from logits that were not gathered: this rank has part[..][ld], the columns [first, first + columns), of which
     * those below vocab_size count. The same tokens as from gathered ones. */
#define CHOICE_BEST 64
    int (*choose_best)(struct collective *c, const float *part, size_t ld, size_t first, size_t columns, size_t vocab_size,
                       const struct choice_row *rows, size_t n, size_t k, struct error *err);

    /* Any thread: the group is broken, as by a rank that does not come. */
    void (*abort)(struct collective *c);
    /* The group goes with its last member. NULL is fine. */
    void (*close)(struct collective *c);
};

struct collective {
    const struct collective_ops *ops;
    size_t rank, size;
    size_t deadline_ms; /* how long a rank waits for the others, 0: not known */
};

/*
 * A group of CPU ranks that share memory: members[size]. deadline_ms: how long a rank waits for the others. A wait spins for a
 * little while, then sleeps.
 */
int collective_open_threads(size_t size, size_t deadline_ms, struct collective **members, struct error *err);

/*
 * A group of processes that MPI started, one member in each, host memory. It is in a module, inferd-mpi.so, looked for as
 * CUDA's is (backend.h), so that the daemon links no MPI. *rank and *size are told before anything is waited for.
 */
#define COLLECTIVE_MPI_ABI 1u
#define COLLECTIVE_MPI_SYMBOL "inferd_collective_mpi"
struct collective_mpi {
    uint32_t abi; /* COLLECTIVE_MPI_ABI */
    int (*open)(size_t deadline_ms, struct collective **out, struct error *err);
};
int collective_open_mpi(size_t deadline_ms, struct collective **out, struct error *err);

#endif
