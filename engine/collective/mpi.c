/*
 * Ranks that are processes, started by MPI: the module inferd-mpi.so. Each call is one MPI operation that does not block, looked at
 * until it is over or the deadline has passed: a peer that is gone is never waited for. Operations that the deadline leaves behind
 * still own their buffers, so the group is broken for good, and the process is expected to end. MPI's beginning and end have no such
 * form: a thread waits for them.
 */
#include <inferd/collective.h>
#include <inferd/errand.h>

#include <limits.h>
#include <mpi.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TAG 1
#ifndef PIECE                   /* tests have smaller ones */
#define PIECE ((size_t)1 << 30) /* bytes of one message: MPI counts in int */
#endif
#define END_MS 5000             /* between the first and the last node's goodbye */
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
    peer = peer < 0 && g->base.size == 2 ? 1 - (int)g->base.rank : peer;
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

static int barrier(struct collective *c, struct error *err) {
    struct group *g = group_of(c);
    MPI_Request request;
    START(g, MPI_Ibarrier(g->comm, &request), "barrier", err);
    return wait_for(g, &request, -1, "barrier", err);
}

static void abort_group(struct collective *c) {
    atomic_store(&group_of(c)->broken, true);
}

/* ---- what MPI does not do without blocking ---- */

static MPI_Comm own_comm; /* of the one group that a process has: written by `begin` */

static int begin(void *unused) {
    (void)unused;
    int level = MPI_THREAD_SINGLE, code = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level);
    code = code == MPI_SUCCESS && level < MPI_THREAD_SERIALIZED ? MPI_ERR_UNSUPPORTED_OPERATION : code;
    code = code == MPI_SUCCESS ? MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN) : code;
    code = code == MPI_SUCCESS ? MPI_Comm_dup(MPI_COMM_WORLD, &own_comm) : code;
    return code == MPI_SUCCESS ? MPI_Comm_set_errhandler(own_comm, MPI_ERRORS_RETURN) : code;
}

static int end(void *unused) {
    (void)unused;
    return MPI_Finalize();
}

/* A group that is whole says goodbye to MPI; where a peer is gone, MPI_Finalize would wait for it. */
static void close_group(struct collective *c) {
    int ignored;
    if (!c) {
        return;
    }
    if (!atomic_load(&group_of(c)->broken)) {
        errand_run(end, NULL, 0, END_MS, &ignored);
    }
    free(group_of(c));
}

static const struct collective_ops mpi_ops = {
    .name = "mpi",
    .all_gather = all_gather,
    .broadcast = broadcast,
    .barrier = barrier,
    .send = send_bytes,
    .recv = recv_bytes,
    .abort = abort_group,
    .close = close_group,
};

static int open_group(size_t deadline_ms, struct collective **out, struct error *err) {
    static atomic_bool begun; /* before MPI knows: another thread may ask at the same time */
    int code = MPI_SUCCESS, rank, size;
    if (atomic_exchange(&begun, true)) {
        return error_set(err, ERROR_DEVICE, "MPI was begun in this process before, which can be done only once");
    }
    struct group *g = calloc(1, sizeof *g);
    if (!g) {
        return error_memory(err);
    }
    if (!errand_run(begin, NULL, 0, deadline_ms, &code)) {
        free(g);
        return error_set(err, ERROR_DEVICE, "not all of the nodes that MPI started came within %.1f s", (double)deadline_ms / 1e3);
    }
    g->comm = own_comm;
    if (code != MPI_SUCCESS || MPI_Comm_rank(g->comm, &rank) != MPI_SUCCESS || MPI_Comm_size(g->comm, &size) != MPI_SUCCESS) {
        free(g);
        return error_set(err, ERROR_DEVICE, "MPI cannot be begun (is this process started by mpirun or srun?)");
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
