#include "collective.h"
#include "peer_group.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORKSPACE_BYTES ((size_t)4 << 20)      /* at least */
#define MOST_WORKSPACE_BYTES ((size_t)64 << 20) /* larger calls go in parts */
#define TOKEN_BYTES 256u                       /* of a barrier, behind the workspace's own bytes */
#define ONE_SHOT_BYTES ((size_t)64 << 10)      /* of an ordered sum: up to here every rank sums everything */
#define DEFAULT_DEADLINE_NS 30000000000u

static struct cuda_group *group_of(struct collective *c) {
    return (struct cuda_group *)(void *)c;
}

/* ---- calls of NCCL ------------------------------------------------------------------------------------------- */

static int check(struct cuda_group *g, ncclResult_t rc, const char *what, struct error *err) {
    if (rc == ncclSuccess) {
        return 0;
    }
    struct backend *b = g->b;
    const char *more = g->comm ? g->nccl->ncclGetLastError(g->comm) : NULL;
    error_set(err, ERROR_DEVICE, "CUDA device %d: %s over NCCL failed: %s%s%.200s", b->ordinal, what,
              g->nccl->ncclGetErrorString(rc), more && *more ? ": " : "", more ? more : "");
    if (b->lost.code == ERROR_NONE) { /* the ranks are no longer where the others are */
        b->lost = *err;
    }
    cuda_group_break(g, err);
    return -1;
}

/* During start-up: no rank allocates while another's collective waits for it. */
static int meet(struct cuda_group *g, struct error *err) {
    bool guarded = !g->b->ready && !g->b->capturing && g->host->ops->shared_memory;
    return guarded ? g->host->ops->barrier(g->host, err) : 0;
}

int cuda_group_enter(struct cuda_group *g, struct error *err) {
    TRY(cuda_alive(g->b, err));
    TRY(cuda_group_alive(g, err));
    TRY(meet(g, err));
    atomic_fetch_add(&g->team->ranks[g->base.rank].queued, 1);
    return 0;
}

int cuda_group_leave(struct cuda_group *g, struct error *err) {
    return meet(g, err);
}

/* enter; the call; leave. */
#define CALL(g, what, call)                                                                                            \
    do {                                                                                                               \
        TRY(cuda_group_enter(g, err));                                                                                 \
        TRY(check(g, (g)->nccl->call, what, err));                                                                     \
        TRY(cuda_group_leave(g, err));                                                                                 \
    } while (0)

static bool nccl_type(enum dtype t, ncclDataType_t *out) {
    *out = t == DTYPE_F32 ? ncclFloat32 : t == DTYPE_F16 ? ncclFloat16 : ncclBfloat16;
    return t == DTYPE_F32 || t == DTYPE_F16 || t == DTYPE_BF16;
}

/* ---- sums ---------------------------------------------------------------------------------------------------- */

/* Everything of everybody comes here, and is summed in the order of the ranks. */
static int sum_all(struct cuda_group *g, void *x, enum dtype dtype, ncclDataType_t type, size_t n, struct error *err) {
    void *parts = g->workspace.data;
    CALL(g, "a sum", ncclAllGather(x, parts, n, type, g->comm, g->b->stream));
    return cuda_check(g->b, cuda_sum_parts(x, parts, n, NULL, g->base.size, 0, dtype, n, g->b->stream), "a sum", err);
}

/* Slice i of x[n] is summed by rank i. */
struct slices {
    size_t each, n;
};
static size_t first_of(const struct slices *s, size_t i) {
    return i * s->each < s->n ? i * s->each : s->n;
}
static size_t length_of(const struct slices *s, size_t i) {
    return first_of(s, i + 1) - first_of(s, i);
}

/* One group of sends and receives, in which each rank gives slice give(peer) of x to each peer, and takes in turn. */
static ncclResult_t exchange(struct cuda_group *g, char *x, size_t element, ncclDataType_t type, const struct slices *s,
                             bool back) {
    const struct nccl_api *nccl = g->nccl;
    size_t me = g->base.rank;
    ncclResult_t rc = nccl->ncclGroupStart();
    for (size_t r = 0; r < g->base.size && rc == ncclSuccess; r++) {
        size_t give = back ? me : r, take = back ? r : me;
        char *to = back ? x + first_of(s, take) * element : (char *)g->workspace.data + r * s->each * element;
        if (r != me && length_of(s, give) > 0) {
            rc = nccl->ncclSend(x + first_of(s, give) * element, length_of(s, give), type, (int)r, g->comm, g->b->stream);
        }
        if (r != me && length_of(s, take) > 0 && rc == ncclSuccess) {
            rc = nccl->ncclRecv(to, length_of(s, take), type, (int)r, g->comm, g->b->stream);
        }
    }
    ncclResult_t end = nccl->ncclGroupEnd();
    return rc == ncclSuccess ? end : rc;
}

/* The parts of its slice come to each rank, which sums them in their order; the sums go to all. */
static int sum_slices(struct cuda_group *g, void *x, enum dtype dtype, ncclDataType_t type, size_t n, struct error *err) {
    struct backend *b = g->b;
    size_t element = dtype_info(dtype)->bytes, me = g->base.rank, line = 16 / element;
    size_t each = n / g->base.size + (n % g->base.size != 0);
    const struct slices s = {(each + line - 1) / line * line, n};
    void *mine = (char *)x + first_of(&s, me) * element;
    TRY(cuda_group_enter(g, err));
    TRY(check(g, exchange(g, x, element, type, &s, false), "a sum", err));
    TRY(cuda_group_leave(g, err));
    TRY(cuda_check(b, cuda_sum_parts(mine, g->workspace.data, s.each, mine, g->base.size, me, dtype, length_of(&s, me), b->stream),
                   "a sum", err));
    TRY(cuda_group_enter(g, err));
    TRY(check(g, exchange(g, x, element, type, &s, true), "a sum", err));
    return cuda_group_leave(g, err);
}

/* In the order of the ranks whatever n is: NCCL's own order depends on where in the message an element lies. */
static int sum_in_order(struct cuda_group *g, char *x, enum dtype dtype, ncclDataType_t type, size_t n, struct error *err) {
    size_t element = dtype_info(dtype)->bytes;
    size_t most = (g->workspace.bytes - TOKEN_BYTES) / element - 16 * g->base.size; /* slices are rounded up */
    while (n > 0) {
        size_t some = n < most ? n : most;
        bool one = some * element <= ONE_SHOT_BYTES && some * g->base.size <= most;
        TRY(one ? sum_all(g, x, dtype, type, some, err) : sum_slices(g, x, dtype, type, some, err));
        x += some * element;
        n -= some;
    }
    return 0;
}

/* Of two ranks, either order gives the same bits. */
static bool sums_in_order(const struct cuda_group *g) {
    return g->b->batch_invariant && g->base.size > 2;
}

static int all_reduce(struct collective *c, void *x, enum dtype dtype, size_t n, struct error *err) {
    struct cuda_group *g = group_of(c);
    ncclDataType_t type;
    if (!nccl_type(dtype, &type)) {
        return error_set(err, ERROR_INTERNAL, "ranks on CUDA sum F32, F16 and BF16");
    }
    if (n == 0) {
        return 0;
    }
    if (cuda_peer_takes(g->peer, n * dtype_info(dtype)->bytes)) {
        bool two = n * dtype_info(dtype)->bytes > g->peer->one_shot;
        TRY(cuda_group_enter(g, err));
        TRY(cuda_check(g->b, (cudaError_t)cuda_peer_sum(&g->peer->view, g->team, x, dtype, n, two, g->b->stream), "a sum", err));
        return cuda_group_leave(g, err);
    }
    if (sums_in_order(g)) {
        return sum_in_order(g, x, dtype, type, n, err);
    }
    CALL(g, "a sum", ncclAllReduce(x, x, n, type, ncclSum, g->comm, g->b->stream));
    return 0;
}

/* ---- the others ---------------------------------------------------------------------------------------------- */

static int all_gather(struct collective *c, const void *mine, size_t bytes, void *all, struct error *err) {
    struct cuda_group *g = group_of(c);
    if (bytes > 0) {
        CALL(g, "a gather", ncclAllGather(mine, all, bytes, ncclInt8, g->comm, g->b->stream));
    }
    return 0;
}

static int gather_columns(struct collective *c, const void *mine, size_t rows, size_t bytes, void *all, struct error *err) {
    struct cuda_group *g = group_of(c);
    size_t row, most = 0;
    if (rows == 0 || bytes == 0) {
        return 0;
    }
    if (!__builtin_mul_overflow(bytes, c->size, &row)) {
        most = (g->workspace.bytes - TOKEN_BYTES) / row;
    }
    if (most == 0) {
        return error_set(err, ERROR_INTERNAL, "columns of %zu bytes were not reserved", bytes);
    }
    for (size_t at = 0; at < rows; at += most) {
        size_t n = rows - at < most ? rows - at : most;
        CALL(g, "a gather",
             ncclAllGather((const char *)mine + at * bytes, g->workspace.data, n * bytes, ncclInt8, g->comm, g->b->stream));
        TRY(cuda_check(g->b, cuda_join_columns((char *)all + at * row, g->workspace.data, n, bytes, c->size, g->b->stream),
                       "a gather", err));
    }
    return 0;
}

/* The k best of each rank's part in place of a row, some rows at a time; c->chooser has the choices. */
static int choose_candidates(struct cuda_group *g, const float *part, size_t ld, size_t first, size_t columns, size_t n, size_t k,
                             struct error *err) {
    struct backend *b = g->b;
    const struct cuda_choice *choices = b->chooser.input.data;
    int32_t *tokens = b->chooser.tokens.data;
    size_t size = g->base.size, bytes = size * k * sizeof(struct cuda_candidate); /* of a row; its columns take as much */
    size_t most = (g->workspace.bytes - TOKEN_BYTES) / (2 * bytes);
    most = most < CUDA_CHOICE_ROWS ? most : CUDA_CHOICE_ROWS;
    if (most == 0) {
        return error_set(err, ERROR_INTERNAL, "a choice among %zu logits of each rank was not reserved", k);
    }
    for (size_t i = 0; i < n; i += most) {
        size_t some = n - i < most ? n - i : most;
        struct cuda_candidate *parts = g->workspace.data, *mine = parts + g->base.rank * some * k;
        TRY(cuda_check(b, cuda_top_of_part(part, ld, first, columns, choices + i, some, k, mine, b->stream), "choosing tokens", err));
        CALL(g, "a choice", ncclAllGather(mine, parts, some * k * sizeof *mine, ncclInt8, g->comm, b->stream));
        TRY(cuda_check(b, cuda_choose_candidates(parts, size, k, choices + i, some, tokens + i, parts + some * size * k, b->stream),
                       "choosing tokens", err));
    }
    return 0;
}

static int choose_best(struct collective *c, const float *part, size_t ld, size_t first, size_t columns, size_t vocab_size,
                       const struct choice_row *rows, size_t n, size_t k, struct error *err) {
    struct cuda_group *g = group_of(c);
    struct backend *b = g->b;
    uint64_t *finds = g->workspace.data, *mine = finds + c->rank * n;
    if (n > (g->workspace.bytes - TOKEN_BYTES) / sizeof *finds / c->size) {
        return error_set(err, ERROR_INTERNAL, "a choice of %zu tokens was not reserved", n);
    }
    columns = first >= vocab_size ? 0 : columns < vocab_size - first ? columns : vocab_size - first;
    TRY(cuda_choose_begin(b, vocab_size, rows, n, err));
    if (k > 1) {
        TRY(choose_candidates(g, part, ld, first, columns, n, k, err));
        return cuda_choose_end(b, n, err);
    }
    TRY(cuda_check(b, cuda_best_of_part(part, ld, first, columns, b->chooser.input.data, n, mine, b->stream), "choosing tokens", err));
    CALL(g, "a choice", ncclAllGather(mine, finds, n * sizeof *finds, ncclInt8, g->comm, b->stream));
    TRY(cuda_check(b, cuda_best_of_ranks(finds, c->size, n, b->chooser.tokens.data, b->stream), "choosing tokens", err));
    return cuda_choose_end(b, n, err);
}

static int broadcast(struct collective *c, void *x, size_t bytes, size_t root, struct error *err) {
    struct cuda_group *g = group_of(c);
    if (root >= c->size) {
        return error_set(err, ERROR_INTERNAL, "there is no rank %zu among %zu", root, c->size);
    }
    if (bytes > 0) {
        CALL(g, "a broadcast", ncclBroadcast(x, x, bytes, ncclInt8, (int)root, g->comm, g->b->stream));
    }
    return 0;
}

static int barrier(struct collective *c, struct error *err) {
    struct cuda_group *g = group_of(c);
    float *token = (float *)(void *)((char *)g->workspace.data + g->workspace.bytes - TOKEN_BYTES);
    CALL(g, "a barrier", ncclAllReduce(token, token, 1, ncclFloat32, ncclSum, g->comm, g->b->stream));
    return 0;
}

/* Of two ranks alone: the others are not met. */
static int send(struct collective *c, const void *x, size_t bytes, size_t to, struct error *err) {
    struct cuda_group *g = group_of(c);
    TRY(cuda_alive(g->b, err));
    TRY(cuda_group_alive(g, err));
    return bytes == 0 ? 0
                      : check(g, g->nccl->ncclSend(x, bytes, ncclInt8, (int)to, g->comm, g->b->stream), "a send", err);
}

static int recv(struct collective *c, void *x, size_t bytes, size_t from, struct error *err) {
    struct cuda_group *g = group_of(c);
    TRY(cuda_alive(g->b, err));
    TRY(cuda_group_alive(g, err));
    return bytes == 0 ? 0
                      : check(g, g->nccl->ncclRecv(x, bytes, ncclInt8, (int)from, g->comm, g->b->stream), "a receive", err);
}

/* ---- life ---------------------------------------------------------------------------------------------------- */

static void abort_group(struct collective *c) {
    struct cuda_group *g = group_of(c);
    cuda_group_break(g, NULL);
    g->host->ops->abort(g->host);
}

static void leave_team(struct cuda_team *t) {
    if (t && atomic_fetch_sub(&t->members, 1) == 1) {
        free(t);
    }
}

static void close_group(struct collective *c) {
    struct error ignored;
    if (!c) {
        return;
    }
    struct cuda_group *g = group_of(c);
    cuda_use(g->b);
    if (g->comm && cuda_group_wait(g, NULL, "closing a group", &ignored) == 0) {
        if (g->peer) { /* another rank may still read what is freed here */
            (void)g->host->ops->barrier(g->host, &ignored);
        }
        g->nccl->ncclCommDestroy(g->comm);
    } else if (g->comm) {
        g->nccl->ncclCommAbort(g->comm);
    }
    g->b->group = NULL;
    cuda_peer_close(g->peer);
    cudaFree(g->workspace.data);
    leave_team(g->team);
    free(g);
}

#define GROUP_OPS                                                                                                      \
    .queued = true,                                                                                                    \
    .all_reduce = all_reduce,                                                                                          \
    .all_gather = all_gather,                                                                                          \
    .gather_columns = gather_columns,                                                                                  \
    .choose_best = choose_best,                                                                                    \
    .broadcast = broadcast,                                                                                            \
    .barrier = barrier,                                                                                                \
    .send = send,                                                                                                      \
    .recv = recv,                                                                                                      \
    .abort = abort_group,                                                                                              \
    .close = close_group,

static const struct collective_ops group_ops = {.name = "nccl", GROUP_OPS};

/* The sum and the norm in one: of few rows, through peer memory; of more, one behind the other, to the same bits. */
static int all_reduce_add_rms_norm(struct collective *c, void *y, size_t ldy, const struct rows_i8 *q, float *x, size_t ldx,
                                   void *residual, size_t ldr, const float *w, size_t rows, size_t dim, float eps,
                                   struct error *err) {
    struct cuda_group *g = group_of(c);
    size_t bytes = rows * dim * dtype_info(DTYPE_BF16)->bytes;
    if (rows == 0) {
        return 0;
    }
    if (bytes <= g->peer->one_shot && (ldr == dim || rows == 1)) {
        TRY(cuda_group_enter(g, err));
        TRY(cuda_check(g->b, (cudaError_t)cuda_peer_sum_norm(&g->peer->view, g->team, y, ldy, q, x, ldx, residual, ldr, w, rows, dim, eps, g->b->stream), "a sum", err));
        return cuda_group_leave(g, err);
    }
    if (ldr != dim && rows > 1) {
        return error_set(err, ERROR_INTERNAL, "rows that are summed lie one behind the other");
    }
    TRY(all_reduce(c, residual, DTYPE_BF16, rows * dim, err));
    return cuda_op_add_rms_norm(g->b, y, ldy, q, x, ldx, residual, ldr, w, rows, dim, eps, err);
}

/* Where peer memory serves. */
static const struct collective_ops peer_ops = {.name = "nccl, peer memory", .all_reduce_add_rms_norm = all_reduce_add_rms_norm, GROUP_OPS};

/* The first rank makes what all of a process share. */
static int join_team(struct cuda_group *g, struct error *err) {
    struct collective *host = g->host;
    bool shared = host->ops->shared_memory;
    struct cuda_team *team = NULL;
    if (host->rank == 0 || !shared) {
        team = aligned_alloc(64, sizeof *team);
    }
    if (team) {
        memset(team, 0, sizeof *team);
        team->size = host->size;
        atomic_store(&team->members, shared ? (uint32_t)host->size : 1);
    }
    if (shared && host->ops->broadcast(host, &team, sizeof team, 0, err) < 0) {
        if (host->rank == 0) {
            free(team); /* nobody has it: no rank leaves a broadcast before all came to it */
        }
        return -1;
    }
    if (!team) {
        return error_memory(err);
    }
    g->team = team;
    team->ranks[host->rank].backend = g->b;
    return 0;
}

static int open_communicator(struct cuda_group *g, struct error *err) {
    struct collective *host = g->host;
    ncclUniqueId id = {{0}};
    if (host->rank == 0) {
        TRY(check(g, g->nccl->ncclGetUniqueId(&id), "a group", err));
    }
    TRY(host->ops->broadcast(host, &id, sizeof id, 0, err)); /* who comes here is about to come to the next call */
    return check(g, g->nccl->ncclCommInitRank(&g->comm, (int)host->size, id, (int)host->rank), "a group", err);
}

/* NCCL connects ranks and takes its memory when a way of doing things is first used: now, before memory is counted. */
static int use_all(struct cuda_group *g, struct error *err) {
    struct backend *b = g->b;
    size_t n = g->base.size, most = (g->workspace.bytes - TOKEN_BYTES) / n / 256 * 256;
    char *all = g->workspace.data;
    for (size_t bytes = 1024; bytes <= most; bytes *= 4) {
        if (!sums_in_order(g)) {
            CALL(g, "a sum", ncclAllReduce(all, all, bytes / sizeof(float), ncclFloat32, ncclSum, g->comm, b->stream));
            CALL(g, "a sum", ncclAllReduce(all, all, bytes / 2, ncclBfloat16, ncclSum, g->comm, b->stream));
        }
        TRY(all_gather(&g->base, all + g->base.rank * bytes, bytes, all, err));
        TRY(broadcast(&g->base, all, bytes, 0, err));
    }
    const struct slices s = {most / sizeof(float) / n / 2, most / sizeof(float) / 2};
    TRY(cuda_group_enter(g, err));
    TRY(check(g, exchange(g, all + most, sizeof(float), ncclFloat32, &s, true), "an exchange", err));
    TRY(cuda_group_leave(g, err));
    TRY(barrier(&g->base, err));
    return cuda_wait(b, NULL, "the first use of a group", err);
}

static int open_all(struct cuda_group *g, char what[BACKEND_LINKS], struct error *err) {
    struct backend *b = g->b;
    int version = 0;
    TRY(nccl_load(&g->nccl, err));
    TRY(join_team(g, err));
    TRY(check(g, g->nccl->ncclGetVersion(&version), "a group", err));
    TRY(cuda_grow(b, &g->workspace, WORKSPACE_BYTES + TOKEN_BYTES, "the workspace of ranks", err));
    TRY(cuda_check(b, cudaMemsetAsync(g->workspace.data, 0, g->workspace.bytes, b->stream), "clearing memory", err));
    TRY(open_communicator(g, err));
    b->group = g;
    TRY(use_all(g, err));
    char why[96], links[96] = "";
    TRY(cuda_peer_open(g, &g->peer, why, err));
    if (g->host->ops->shared_memory) {
        cuda_describe_links(g, links, sizeof links);
    }
    if (g->peer) {
        g->base.ops = &peer_ops;
        snprintf(what, BACKEND_LINKS, "%speer memory up to %zu KiB, NCCL %d.%d.%d", links, PEER_BYTES >> 10, version / 10000,
                 version / 100 % 100, version % 100);
    } else {
        snprintf(what, BACKEND_LINKS, "%sNCCL %d.%d.%d (no peer memory: %s)", links, version / 10000, version / 100 % 100,
                 version % 100, why);
    }
    return 0;
}

int cuda_collective_open(struct backend *b, struct collective *host, struct collective **out, char what[BACKEND_LINKS],
                         struct error *err) {
    TRY(cuda_alive(b, err));
    struct cuda_group *g = calloc(1, sizeof *g);
    if (!g) {
        return error_memory(err);
    }
    g->base = (struct collective){&group_ops, host->rank, host->size, host->deadline_ms};
    g->b = b;
    g->host = host;
    g->deadline_ns = host->deadline_ms > 0 ? host->deadline_ms * 1000000 : DEFAULT_DEADLINE_NS;
    if (open_all(g, what, err) < 0) {
        if (g->team) {
            cuda_group_break(g, err);
        }
        close_group(&g->base);
        return -1;
    }
    if (cuda_memory_overhead(b, err) < 0) {
        close_group(&g->base);
        return -1;
    }
    *out = &g->base;
    return 0;
}

int cuda_group_reserve(struct cuda_group *g, const struct backend_shapes *s, struct error *err) {
    size_t columns = s->vocab_size / g->base.size + 1, bytes;
    if (__builtin_mul_overflow(columns * g->base.size, sizeof(float), &bytes)) {
        return error_memory(err);
    }
    size_t one = bytes;
    if (__builtin_mul_overflow(bytes, s->max_logits, &bytes) || bytes > MOST_WORKSPACE_BYTES) {
        bytes = one > MOST_WORKSPACE_BYTES ? one : MOST_WORKSPACE_BYTES;
    }
    return cuda_grow(g->b, &g->workspace, bytes + TOKEN_BYTES, "the workspace of ranks", err);
}
