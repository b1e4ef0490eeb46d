#include "peer_group.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PROBE_BYTES 4096u
#define PROBE_SUM 10000u /* floats: no whole lines, and shares of all ranks in two shots */

/* The same in all ranks: false if it is false in one. */
static int agree(struct cuda_group *g, bool *x, struct error *err) {
    bool all[COLLECTIVE_MAX_RANKS];
    TRY(g->host->ops->all_gather(g->host, x, sizeof *x, all, err));
    for (size_t i = 0; i < g->base.size; i++) {
        *x = *x && all[i];
    }
    return 0;
}

static bool may_access(const struct cuda_group *g) {
    int me = g->b->ordinal;
    for (size_t i = 0; i < g->base.size; i++) {
        int peer = g->team->ranks[i].backend->ordinal, can = 0;
        if (peer == me) {
            continue;
        }
        if (cudaDeviceCanAccessPeer(&can, me, peer) != cudaSuccess || !can) {
            return false;
        }
        cudaError_t rc = cudaDeviceEnablePeerAccess(peer, 0);
        if (rc != cudaSuccess && rc != cudaErrorPeerAccessAlreadyEnabled) {
            (void)cudaGetLastError();
            return false;
        }
        (void)cudaGetLastError();
    }
    return true;
}

static int take_memory(struct cuda_group *g, struct cuda_peer *p, struct error *err) {
    struct backend *b = g->b;
    void *memory;
    TRY(cuda_check(b, cudaMalloc(&memory, sizeof *p->memory), "memory that ranks share", err));
    p->memory = memory;
    TRY(cuda_check(b, cudaMemsetAsync(memory, 0, sizeof *p->memory, b->stream), "clearing memory", err));
    void *stop;
    TRY(cuda_check(b, cudaHostAlloc(&stop, sizeof *p->stop, cudaHostAllocMapped), "memory that ranks share", err));
    p->stop = stop;
    *p->stop = 0;
    void *seen;
    TRY(cuda_check(b, cudaHostGetDevicePointer(&seen, stop, 0), "memory that ranks share", err));
    p->view.stop = seen;
    return cuda_wait(b, NULL, "clearing memory", err);
}

/* What each rank laid down, as another copies it. */
static int copies_are_right(struct cuda_group *g, struct cuda_peer *p, bool *right, struct error *err) {
    struct backend *b = g->b;
    unsigned char *mine = calloc(2, PROBE_BYTES), *theirs = mine ? mine + PROBE_BYTES : NULL;
    if (!mine) {
        return error_memory(err);
    }
    int rc = 0;
    memset(mine, 0x5a + (int)g->base.rank, PROBE_BYTES);
    rc = cuda_check(b, cudaMemcpyAsync(p->memory->parts[0], mine, PROBE_BYTES, cudaMemcpyHostToDevice, b->stream), "a probe", err);
    rc = rc == 0 ? cuda_wait(b, NULL, "a probe", err) : rc;
    rc = rc == 0 ? g->host->ops->barrier(g->host, err) : rc;
    for (size_t i = 0; i < g->base.size && rc == 0; i++) {
        int peer = g->team->ranks[i].backend->ordinal;
        memset(theirs, 0, PROBE_BYTES);
        rc = cuda_check(b, cudaMemcpyPeerAsync(p->memory->sums[0], b->ordinal, p->view.ranks[i]->parts[0], peer, PROBE_BYTES, b->stream), "a probe", err);
        rc = rc == 0 ? cuda_check(b, cudaMemcpyAsync(theirs, p->memory->sums[0], PROBE_BYTES, cudaMemcpyDeviceToHost, b->stream), "a probe", err) : rc;
        rc = rc == 0 ? cuda_wait(b, NULL, "a probe", err) : rc;
        for (size_t j = 0; j < PROBE_BYTES && rc == 0; j++) {
            *right = *right && theirs[j] == 0x5a + i;
        }
    }
    free(mine);
    return rc == 0 ? g->host->ops->barrier(g->host, err) : rc; /* nobody writes there before all have looked */
}

/* A sum that is known beforehand, in one shot or in two. */
static int sums_are_right(struct cuda_group *g, struct cuda_peer *p, int two, bool *right, struct error *err) {
    struct backend *b = g->b;
    float *x = calloc(PROBE_SUM, sizeof *x), want = 0;
    if (!x) {
        return error_memory(err);
    }
    for (size_t i = 0; i < PROBE_SUM; i++) {
        x[i] = (float)(g->base.rank + 1) * (float)(i % 257);
    }
    int rc = cuda_check(b, cudaMemcpyAsync(g->workspace.data, x, PROBE_SUM * sizeof *x, cudaMemcpyHostToDevice, b->stream), "a probe", err);
    rc = rc == 0 ? cuda_group_enter(g, err) : rc;
    rc = rc == 0 ? cuda_check(b, (cudaError_t)cuda_peer_sum(&p->view, g->team, g->workspace.data, DTYPE_F32, PROBE_SUM, two, b->stream), "a probe", err) : rc;
    rc = rc == 0 ? cuda_group_leave(g, err) : rc;
    rc = rc == 0 ? cuda_check(b, cudaMemcpyAsync(x, g->workspace.data, PROBE_SUM * sizeof *x, cudaMemcpyDeviceToHost, b->stream), "a probe", err) : rc;
    rc = rc == 0 ? cuda_wait(b, NULL, "a probe", err) : rc;
    for (size_t i = 0; i < PROBE_SUM && rc == 0; i++) {
        want = (float)(g->base.size * (g->base.size + 1) / 2) * (float)(i % 257);
        *right = *right && x[i] == want;
    }
    free(x);
    return rc;
}

static int open_all(struct cuda_group *g, struct cuda_peer *p, char why[96], struct error *err) {
    bool can = may_access(g), right = true;
    void *all[COLLECTIVE_MAX_RANKS];
    TRY(agree(g, &can, err));
    if (!can) {
        snprintf(why, 96, "the devices do not see one another's memory");
        return 1;
    }
    TRY(take_memory(g, p, err));
    void *mine = p->memory;
    TRY(g->host->ops->all_gather(g->host, &mine, sizeof mine, all, err));
    p->view.rank = (uint32_t)g->base.rank;
    p->view.size = (uint32_t)g->base.size;
    for (size_t i = 0; i < g->base.size; i++) {
        p->view.ranks[i] = all[i];
    }
    p->one_shot = g->base.size > 4 ? PEER_ONE_SHOT / 2 : PEER_ONE_SHOT;
    if (g->base.rank == 0) {
        cuda_peer_begin(g->team);
    }
    TRY(g->host->ops->barrier(g->host, err));
    TRY(copies_are_right(g, p, &right, err));
    TRY(agree(g, &right, err));
    for (int two = 0; two < 2 && right; two++) {
        TRY(sums_are_right(g, p, two, &right, err));
        TRY(agree(g, &right, err));
    }
    if (!right) {
        snprintf(why, 96, "peer memory does not deliver what was written");
    }
    return right ? 0 : 1;
}

int cuda_peer_open(struct cuda_group *g, struct cuda_peer **out, char why[96], struct error *err) {
    *out = NULL;
    why[0] = '\0';
    if (g->base.size > PEER_MOST || g->base.size < 2 || !g->host->ops->shared_memory) {
        snprintf(why, 96, "%zu ranks", g->base.size);
        return 0;
    }
    struct cuda_peer *p = calloc(1, sizeof *p);
    if (!p) {
        return error_memory(err);
    }
    int rc = open_all(g, p, why, err);
    if (rc != 0) {
        cuda_peer_close(p);
        return rc < 0 ? -1 : 0;
    }
    *out = p;
    return 0;
}

void cuda_peer_close(struct cuda_peer *p) {
    if (!p) {
        return;
    }
    cudaFree(p->memory);
    cudaFreeHost(p->stop);
    free(p);
}
