/*
 * Ranks that are processes, started by MPI: the module inferd-mpi.so. Each call is one MPI operation that does not block, looked at
 * until it is over or the deadline has passed: a peer that is gone is never waited for. Operations that the deadline leaves behind
 * still own their buffers, so the group is broken for good, and the process is expected to end.
 */
#include <inferd/collective.h>

#include <limits.h>
#include <mpi.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TAG 1
#define PIECE ((size_t)1 << 30) /* bytes of one message: MPI counts in int */
#define SPIN_NS 100000          /* how long a wait does not sleep */
#define NAP_NS 50000            /* between looks behind that; */
#define LONG_NS 1000000000      /* from here on of */
#define LONG_NAP_NS 1000000     /* so long */

struct group {
    struct collective base;
    MPI_Comm comm;
    atomic_bool broken;
};

static struct group *group_of(struct collective *c) {
    return (struct group *)(void *)c;
}

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static int say(struct group *g, int code, const char *what, struct error *err) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int len = 0;
    atomic_store(&g->broken, true);
    MPI_Error_string(code, text, &len);
    return error_set(err, ERROR_DEVICE, "MPI: %s failed: %.200s", what, text);
}

static int say_broken(struct error *err) {
    return error_set(err, ERROR_DEVICE, "the nodes were told to stop, or one is lost");
}

/* peer < 0: any of them. */
static int wait_for(struct group *g, MPI_Request *request, int peer, const char *what, struct error *err) {
    uint64_t begin = now_ns(), deadline = (uint64_t)g->base.deadline_ms * 1000000;
    for (int done = 0;;) {
        int code = MPI_Test(request, &done, MPI_STATUS_IGNORE);
        if (code != MPI_SUCCESS) {
            return say(g, code, what, err);
        }
        if (done) {
            return 0;
        }
        uint64_t waited = now_ns() - begin;
        if (atomic_load(&g->broken)) {
            return say_broken(err);
        }
        if (waited >= deadline) {
            atomic_store(&g->broken, true);
            return peer >= 0 ? error_set(err, ERROR_DEVICE, "node %d of %zu did not come within %.1f s", peer, g->base.size,
                                         (double)deadline / 1e9)
                             : error_set(err, ERROR_DEVICE, "not all of %zu nodes came within %.1f s", g->base.size,
                                         (double)deadline / 1e9);
        }
        if (waited > SPIN_NS) {
            nanosleep(&(struct timespec){0, waited > LONG_NS ? LONG_NAP_NS : NAP_NS}, NULL);
        }
    }
}

#define START(group, call, what, err)                                                                                  \
    do {                                                                                                               \
        int code_ = atomic_load(&(group)->broken) ? -1 : (call);                                                       \
        if (atomic_load(&(group)->broken)) {                                                                           \
            return say_broken(err);                                                                                    \
        }                                                                                                              \
        if (code_ != MPI_SUCCESS) {                                                                                    \
            return say(group, code_, what, err);                                                                       \
        }                                                                                                              \
    } while (0)

static int send_bytes(struct collective *c, const void *x, size_t bytes, size_t to, struct error *err) {
    struct group *g = group_of(c);
    for (size_t at = 0; at < bytes || bytes == 0; at += PIECE) {
        size_t n = bytes - at < PIECE ? bytes - at : PIECE;
        MPI_Request request;
        START(g, MPI_Isend((const char *)x + at, (int)n, MPI_BYTE, (int)to, TAG, g->comm, &request), "send", err);
        if (wait_for(g, &request, (int)to, "send", err) < 0) {
            return -1;
        }
        if (bytes == 0) {
            break;
        }
    }
    return 0;
}

static int recv_bytes(struct collective *c, void *x, size_t bytes, size_t from, struct error *err) {
    struct group *g = group_of(c);
    for (size_t at = 0; at < bytes || bytes == 0; at += PIECE) {
        size_t n = bytes - at < PIECE ? bytes - at : PIECE;
        MPI_Request request;
        START(g, MPI_Irecv((char *)x + at, (int)n, MPI_BYTE, (int)from, TAG, g->comm, &request), "receive", err);
        if (wait_for(g, &request, (int)from, "receive", err) < 0) {
            return -1;
        }
        if (bytes == 0) {
            break;
        }
    }
    return 0;
}

static int broadcast(struct collective *c, void *x, size_t bytes, size_t root, struct error *err) {
    struct group *g = group_of(c);
    for (size_t at = 0; at < bytes; at += PIECE) {
        size_t n = bytes - at < PIECE ? bytes - at : PIECE;
        MPI_Request request;
        START(g, MPI_Ibcast((char *)x + at, (int)n, MPI_BYTE, (int)root, g->comm, &request), "broadcast", err);
        if (wait_for(g, &request, c->rank == root ? -1 : (int)root, "broadcast", err) < 0) {
            return -1;
        }
    }
    return 0;
}

static int all_gather(struct collective *c, const void *mine, size_t bytes, void *all, struct error *err) {
    struct group *g = group_of(c);
    void *own = (char *)all + c->rank * bytes;
    MPI_Request request;
    if (bytes > PIECE) {
        return error_set(err, ERROR_INTERNAL, "%zu bytes of each node are too many to gather", bytes);
    }
    if (bytes == 0) {
        return 0;
    }
    if (mine != own) {
        memmove(own, mine, bytes);
    }
    START(g, MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, all, (int)bytes, MPI_BYTE, g->comm, &request), "gather", err);
    return wait_for(g, &request, -1, "gather", err);
}

/* As gathered and added in the order of the ranks: the same bits on each. */
static int all_reduce(struct collective *c, void *x, enum dtype dtype, size_t n, struct error *err) {
    if (dtype != DTYPE_F32) {
        return error_set(err, ERROR_INTERNAL, "nodes sum F32");
    }
    if (n > PIECE / sizeof(float) || n > SIZE_MAX / sizeof(float) / c->size) {
        return error_set(err, ERROR_INTERNAL, "%zu numbers are too many to sum", n);
    }
    float *all = malloc(n * sizeof *all * c->size + 1);
    if (!all) {
        return error_memory(err);
    }
    int rc = all_gather(c, x, n * sizeof *all, all, err);
    for (size_t i = 0; rc == 0 && i < n; i++) {
        float sum = all[i];
        for (size_t r = 1; r < c->size; r++) {
            sum += all[r * n + i];
        }
        ((float *)x)[i] = sum;
    }
    free(all); /* of a broken group MPI may still write here: it has ended its use of the process then, too */
    return rc;
}

static int gather_columns(struct collective *c, const void *mine, size_t rows, size_t bytes, void *all, struct error *err) {
    for (size_t r = 0; r < rows; r++) {
        if (all_gather(c, (const char *)mine + r * bytes, bytes, (char *)all + r * bytes * c->size, err) < 0) {
            return -1;
        }
    }
    return 0;
}

static int barrier(struct collective *c, struct error *err) {
    struct group *g = group_of(c);
    MPI_Request request;
    START(g, MPI_Ibarrier(g->comm, &request), "barrier", err);
    return wait_for(g, &request, -1, "barrier", err);
}

static void abort_group(struct collective *c) {
    atomic_store(&group_of(c)->broken, true);
}

/* A group that is whole says goodbye to MPI; where a peer is gone, MPI_Finalize would wait for it. */
static void close_group(struct collective *c) {
    if (!c) {
        return;
    }
    struct group *g = group_of(c);
    if (!atomic_load(&g->broken)) {
        MPI_Comm_free(&g->comm);
        MPI_Finalize();
    }
    free(g);
}

static const struct collective_ops mpi_ops = {
    .name = "mpi",
    .all_reduce = all_reduce,
    .all_gather = all_gather,
    .gather_columns = gather_columns,
    .broadcast = broadcast,
    .barrier = barrier,
    .send = send_bytes,
    .recv = recv_bytes,
    .abort = abort_group,
    .close = close_group,
};

static int open_group(size_t deadline_ms, struct collective **out, struct error *err) {
    int have = 0, over = 0, rank, size;
    MPI_Initialized(&have);
    MPI_Finalized(&over);
    if (over) {
        return error_set(err, ERROR_DEVICE, "MPI was used and ended in this process: it can be begun only once");
    }
    if (!have && MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &have) != MPI_SUCCESS) {
        return error_set(err, ERROR_DEVICE, "MPI cannot be begun (is this process started by mpirun or srun?)");
    }
    struct group *g = calloc(1, sizeof *g);
    if (!g) {
        return error_memory(err);
    }
    if (MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN) != MPI_SUCCESS ||
        MPI_Comm_dup(MPI_COMM_WORLD, &g->comm) != MPI_SUCCESS ||
        MPI_Comm_set_errhandler(g->comm, MPI_ERRORS_RETURN) != MPI_SUCCESS || MPI_Comm_rank(g->comm, &rank) != MPI_SUCCESS ||
        MPI_Comm_size(g->comm, &size) != MPI_SUCCESS) {
        free(g);
        return error_set(err, ERROR_DEVICE, "MPI has no group of processes for this one");
    }
    g->base = (struct collective){&mpi_ops, (size_t)rank, (size_t)size, deadline_ms};
    *out = &g->base;
    return 0;
}

const struct collective_mpi *inferd_collective_mpi(void);
__attribute__((visibility("default"))) const struct collective_mpi *inferd_collective_mpi(void) {
    static const struct collective_mpi table = {COLLECTIVE_MPI_ABI, open_group};
    return &table;
}
