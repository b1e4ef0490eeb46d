/*
 * Processes on several nodes, over NCCL and without MPI: a member in each, on one of its devices, for operands in memory of the host. They
 * go through a piece of memory of the device, on a stream of their own; each call is done when it returns, and waits no longer than the
 * group's deadline. Where the processes meet the environment says (NCCL_COMM_ID): NCCL's own bootstrap carries its id.
 */
#include "collective.h"

#include <inferd/errand.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifndef NODES_PIECE             /* tests have smaller ones */
#define NODES_PIECE ((size_t)1 << 20) /* bytes that go at once */
#endif
#define SPIN_NS 100000   /* how long a wait does not sleep */
#define NAP_NS 50000     /* between looks behind that; */
#define LONG_NS 1000000000 /* from here on of */
#define LONG_NAP_NS 1000000 /* so long */
#define LOOKS 16         /* looks at the stream for each one at NCCL */
#define AGAIN_NS 500000000 /* between attempts to meet */
#define END_MS 5000      /* between the first and the last node's goodbye */
#define PLACE_BYTES 300  /* of NCCL_COMM_ID: a name has 253 */

struct group {
    struct collective base;
    const struct nccl_api *nccl;
    int ordinal;
    ncclComm_t comm; /* NULL: not open, or aborted */
    cudaStream_t stream;
    char *host, *device; /* [NODES_PIECE] each, the former pinned */
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

/* ---- failures ---- */

static int say_broken(struct error *err) {
    return error_set(err, ERROR_DEVICE, "the nodes were told to stop, or one is lost");
}

/* For good: what is stuck in the stream ends. */
static void give_up(struct group *g) {
    atomic_store(&g->broken, true);
    if (g->comm) {
        g->nccl->ncclCommAbort(g->comm);
        g->comm = NULL;
    }
}

static int cuda_failed(struct group *g, cudaError_t rc, const char *what, struct error *err) {
    error_set(err, ERROR_DEVICE, "CUDA device %d: %s between nodes failed: %s", g->ordinal, what, cudaGetErrorString(rc));
    give_up(g);
    return -1;
}

static int nccl_failed(struct group *g, ncclResult_t rc, const char *what, struct error *err) {
    const char *more = g->comm ? g->nccl->ncclGetLastError(g->comm) : NULL;
    error_set(err, ERROR_DEVICE, "%s between nodes: NCCL reports: %s%s%.200s", what, g->nccl->ncclGetErrorString(rc), more && *more ? ": " : "",
              more ? more : "");
    give_up(g);
    return -1;
}

static int late(struct group *g, int peer, struct error *err) {
    double seconds = (double)g->base.deadline_ms / 1e3;
    if (peer >= 0) {
        error_set(err, ERROR_DEVICE, "node %d of %zu did not come within %.1f s", peer, g->base.size, seconds);
    } else {
        error_set(err, ERROR_DEVICE, "not all of %zu nodes came within %.1f s", g->base.size, seconds);
    }
    give_up(g);
    return -1;
}

/* Until the stream is done. peer: who is waited for, below 0 any of them. */
static int wait_for(struct group *g, int peer, const char *what, struct error *err) {
    uint64_t begin = now_ns();
    peer = peer < 0 && g->base.size == 2 ? 1 - (int)g->base.rank : peer;
    for (unsigned i = 0;; i++) {
        cudaError_t rc = cudaStreamQuery(g->stream);
        if (rc == cudaSuccess) {
            return 0;
        }
        if (rc != cudaErrorNotReady) {
            return cuda_failed(g, rc, what, err);
        }
        if (atomic_load(&g->broken)) {
            give_up(g);
            return say_broken(err);
        }
        uint64_t waited = now_ns() - begin;
        ncclResult_t reported = ncclSuccess, asked = i % LOOKS == 0 ? g->nccl->ncclCommGetAsyncError(g->comm, &reported) : ncclSuccess;
        reported = asked != ncclSuccess ? asked : reported;
        if (reported != ncclSuccess && reported != ncclInProgress) {
            return nccl_failed(g, reported, what, err);
        }
        if (waited >= (uint64_t)g->base.deadline_ms * 1000000) {
            return late(g, peer, err);
        }
        if (waited > SPIN_NS) {
            nanosleep(&(struct timespec){0, waited > LONG_NS ? LONG_NAP_NS : NAP_NS}, NULL);
        }
    }
}

/* ---- operations ---- */

static int enter(struct group *g, struct error *err) {
    cudaSetDevice(g->ordinal);
    if (atomic_load(&g->broken)) {
        give_up(g);
        return say_broken(err);
    }
    return 0;
}

#define CUDA(call, what)                                                                                               \
    do {                                                                                                               \
        cudaError_t rc_ = (call);                                                                                      \
        if (rc_ != cudaSuccess) {                                                                                      \
            return cuda_failed(g, rc_, what, err);                                                                     \
        }                                                                                                              \
    } while (0)
#define NCCL(call, what)                                                                                               \
    do {                                                                                                               \
        ncclResult_t rc_ = g->nccl->call;                                                                              \
        if (rc_ != ncclSuccess) {                                                                                      \
            return nccl_failed(g, rc_, what, err);                                                                     \
        }                                                                                                              \
    } while (0)

static int give(struct group *g, const void *x, size_t at, size_t n, const char *what, struct error *err) {
    memcpy(g->host + at, x, n);
    CUDA(cudaMemcpyAsync(g->device + at, g->host + at, n, cudaMemcpyHostToDevice, g->stream), what);
    return 0;
}

static int take(struct group *g, size_t n, const char *what, struct error *err) {
    CUDA(cudaMemcpyAsync(g->host, g->device, n, cudaMemcpyDeviceToHost, g->stream), what);
    return 0;
}

static size_t piece_of(size_t left, size_t most) {
    return left < most ? left : most;
}

static int send_bytes(struct collective *c, const void *x, size_t bytes, size_t to, struct error *err) {
    struct group *g = group_of(c);
    TRY(enter(g, err));
    for (size_t at = 0, n; at < bytes; at += n) {
        n = piece_of(bytes - at, NODES_PIECE);
        TRY(give(g, (const char *)x + at, 0, n, "a send", err));
        NCCL(ncclSend(g->device, n, ncclInt8, (int)to, g->comm, g->stream), "a send");
        TRY(wait_for(g, (int)to, "a send", err));
    }
    return 0;
}

static int recv_bytes(struct collective *c, void *x, size_t bytes, size_t from, struct error *err) {
    struct group *g = group_of(c);
    TRY(enter(g, err));
    for (size_t at = 0, n; at < bytes; at += n) {
        n = piece_of(bytes - at, NODES_PIECE);
        NCCL(ncclRecv(g->device, n, ncclInt8, (int)from, g->comm, g->stream), "a receive");
        TRY(take(g, n, "a receive", err));
        TRY(wait_for(g, (int)from, "a receive", err));
        memcpy((char *)x + at, g->host, n);
    }
    return 0;
}

static int broadcast(struct collective *c, void *x, size_t bytes, size_t root, struct error *err) {
    struct group *g = group_of(c);
    bool gives = c->rank == root;
    TRY(enter(g, err));
    for (size_t at = 0, n; at < bytes; at += n) {
        n = piece_of(bytes - at, NODES_PIECE);
        TRY(gives ? give(g, (char *)x + at, 0, n, "a broadcast", err) : 0);
        NCCL(ncclBroadcast(g->device, g->device, n, ncclInt8, (int)root, g->comm, g->stream), "a broadcast");
        TRY(gives ? 0 : take(g, n, "a broadcast", err));
        TRY(wait_for(g, gives ? -1 : (int)root, "a broadcast", err));
        if (!gives) {
            memcpy((char *)x + at, g->host, n);
        }
    }
    return 0;
}

static int all_gather(struct collective *c, const void *mine, size_t bytes, void *all, struct error *err) {
    struct group *g = group_of(c);
    size_t most = NODES_PIECE / c->size;
    TRY(enter(g, err));
    for (size_t at = 0, n; at < bytes; at += n) { /* mine may lie in its place in all: it is read before that is written */
        n = piece_of(bytes - at, most);
        TRY(give(g, (const char *)mine + at, c->rank * n, n, "a gather", err));
        NCCL(ncclAllGather(g->device + c->rank * n, g->device, n, ncclInt8, g->comm, g->stream), "a gather");
        TRY(take(g, c->size * n, "a gather", err));
        TRY(wait_for(g, -1, "a gather", err));
        for (size_t i = 0; i < c->size; i++) {
            memcpy((char *)all + i * bytes + at, g->host + i * n, n);
        }
    }
    return 0;
}

static int barrier(struct collective *c, struct error *err) {
    char mine = 0, all[COLLECTIVE_MAX_RANKS];
    return all_gather(c, &mine, 1, all, err);
}

static void abort_group(struct collective *c) {
    atomic_store(&group_of(c)->broken, true); /* who waits sees it, and ends what waits in the stream */
}

/* ---- life ---- */

/* What blocks in NCCL without a limit; with copies of all that it uses, for who is left behind in it. */
struct call {
    const struct nccl_api *nccl;
    int ordinal, rank, size;
    uint64_t until_ns;
    ncclUniqueId id;
    ncclComm_t comm;
    const char *failed;
};

/* NCCL looks for the leader by its name at once, and not for long: it may have neither name nor address yet, or another than before. */
static int join_all(void *x) {
    struct call *c = x;
    ncclResult_t rc;
    cudaSetDevice(c->ordinal);
    for (;;) {
        c->failed = "ncclGetUniqueId";
        rc = c->nccl->ncclGetUniqueId(&c->id);
        if (rc == ncclSuccess) {
            c->failed = "ncclCommInitRank";
            rc = c->nccl->ncclCommInitRank(&c->comm, c->size, c->id, c->rank);
        }
        if (rc == ncclSuccess || now_ns() + AGAIN_NS > c->until_ns) {
            return (int)rc;
        }
        nanosleep(&(struct timespec){0, AGAIN_NS}, NULL);
    }
}

static int leave_all(void *x) {
    struct call *c = x;
    cudaSetDevice(c->ordinal);
    return (int)c->nccl->ncclCommDestroy(c->comm);
}

static void close_group(struct collective *c) {
    int ignored;
    if (!c) {
        return;
    }
    struct group *g = group_of(c);
    cudaSetDevice(g->ordinal);
    if (g->comm && !atomic_load(&g->broken)) {
        struct call goodbye = {.nccl = g->nccl, .ordinal = g->ordinal, .comm = g->comm};
        g->comm = NULL;
        errand_run(leave_all, &goodbye, sizeof goodbye, END_MS, &ignored);
    }
    give_up(g);
    if (g->stream) {
        cudaStreamDestroy(g->stream);
    }
    cudaFree(g->device);
    cudaFreeHost(g->host);
    free(g);
}

static const struct collective_ops nodes_ops = {
    .name = "nccl",
    .all_gather = all_gather,
    .broadcast = broadcast,
    .barrier = barrier,
    .send = send_bytes,
    .recv = recv_bytes,
    .abort = abort_group,
    .close = close_group,
};

static int take_memory(struct group *g, struct error *err) {
    void *host, *device;
    CUDA(cudaSetDevice(g->ordinal), "a group");
    CUDA(cudaStreamCreateWithFlags(&g->stream, cudaStreamNonBlocking), "a group");
    CUDA(cudaMalloc(&device, NODES_PIECE), "a group");
    g->device = device;
    CUDA(cudaHostAlloc(&host, NODES_PIECE, cudaHostAllocDefault), "a group");
    g->host = host;
    return 0;
}

/*
 * NCCL chooses the interface of its bootstrap in its first call of a process, and keeps what became of that. With NCCL_COMM_ID set it takes
 * none but one in the subnet of that address: pods have often no subnet in common, and the leader may have no address yet. Without, it
 * chooses as for ranks (NCCL_SOCKET_IFNAME is heard). A thread and a socket that waits for nobody are left of the id that it makes.
 */
static int choose_interface(struct group *g, const char *place, struct error *err) {
    ncclUniqueId unused;
    unsetenv("NCCL_COMM_ID");
    ncclResult_t rc = g->nccl->ncclGetUniqueId(&unused);
    if (setenv("NCCL_COMM_ID", place, 1) != 0) {
        return error_memory(err);
    }
    return rc == ncclSuccess ? 0 : nccl_failed(g, rc, "the choice of an interface", err);
}

static int join(struct group *g, struct error *err) {
    struct call hello = {.nccl = g->nccl, .ordinal = g->ordinal, .rank = (int)g->base.rank, .size = (int)g->base.size,
                         .until_ns = now_ns() + (uint64_t)g->base.deadline_ms * 1000000};
    int rc = 0;
    char where[PLACE_BYTES]; /* of its own: the variable changes meanwhile */
    const char *set = getenv("NCCL_COMM_ID");
    if (!set || !*set || strlen(set) >= sizeof where) {
        return error_set_param(err, ERROR_INVALID, "pipeline_parallel",
                               "nodes without MPI meet where NCCL_COMM_ID=HOST:PORT says, on the leader, and it is %s",
                               set && *set ? "too long" : "not set");
    }
    memcpy(where, set, strlen(set) + 1);
    TRY(choose_interface(g, where, err));
    if (!errand_run(join_all, &hello, sizeof hello, g->base.deadline_ms, &rc)) {
        return error_set(err, ERROR_DEVICE, "not all of %zu nodes came to %s (NCCL_COMM_ID) within %.1f s", g->base.size, where,
                         (double)g->base.deadline_ms / 1e3);
    }
    if (rc != 0) {
        return error_set(err, ERROR_DEVICE, "the nodes cannot meet at %s (NCCL_COMM_ID): %s: %s", where, hello.failed,
                         g->nccl->ncclGetErrorString((ncclResult_t)rc));
    }
    g->comm = hello.comm;
    unsetenv("NCCL_COMM_ID"); /* the ranks within this process are a group of their own, and would all meet there, too */
    return 0;
}

int cuda_nodes_open(size_t ordinal, size_t rank, size_t size, size_t deadline_ms, struct collective **out, struct error *err) {
    int n;
    struct group *g = calloc(1, sizeof *g);
    if (!g) {
        return error_memory(err);
    }
    g->base = (struct collective){&nodes_ops, rank, size, deadline_ms};
    g->ordinal = (int)ordinal;
    if (cuda_count_devices(&n, err) < 0 || nccl_load(&g->nccl, err) < 0 ||
        take_memory(g, err) < 0 || join(g, err) < 0) {
        close_group(&g->base);
        return -1;
    }
    *out = &g->base;
    return 0;
}
