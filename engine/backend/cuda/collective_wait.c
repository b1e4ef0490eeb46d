/* Waiting for a device that waits for others. */
#include "collective.h"
#include "peer_group.h"

#include <sched.h>
#include <time.h>

#define SPIN_NS 200000u   /* a step's end is near: no other thread is let in */
#define YIELD_NS 5000000u /* behind it, sleeps */
#define SLEEP_NS 50000
#define LOOKS 32 /* looks at the stream for each one at NCCL */

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void rest(uint64_t waited) {
    if (waited > YIELD_NS) {
        nanosleep(&(struct timespec){0, SLEEP_NS}, NULL);
    } else if (waited > SPIN_NS) {
        sched_yield();
    }
}

/* The stream is not done, and will not be: what waits in it for others ends. */
static void give_up(struct cuda_group *g, const struct error *why) {
    if (g->peer && *g->peer->stop == 0) {
        cuda_peer_stop(&g->peer->view, g->team, g->peer->stop);
    }
    if (g->comm) {
        g->nccl->ncclCommAbort(g->comm);
        g->comm = NULL;
    }
    if (g->b->lost.code == ERROR_NONE) {
        g->b->lost = *why;
    }
}

void cuda_group_break(struct cuda_group *g, const struct error *why) {
    struct cuda_team *t = g->team;
    if (atomic_exchange(&t->claimed, true)) {
        return;
    }
    if (why) {
        t->why = *why;
    }
    atomic_store(&t->broken, why ? (uint32_t)g->base.rank + 1 : (uint32_t)t->size + 1);
}

int cuda_group_alive(struct cuda_group *g, struct error *err) {
    struct cuda_team *t = g->team;
    uint32_t who = atomic_load(&t->broken);
    if (who == 0) {
        return 0;
    }
    if (g->b->lost.code != ERROR_NONE) { /* the reason of its own */
        *err = g->b->lost;
    } else if (who > t->size) {
        error_set(err, ERROR_DEVICE, "the ranks were told to stop");
    } else {
        *err = t->why;
        error_prefix(err, "rank %u", who - 1);
    }
    give_up(g, err);
    return -1;
}

/* The rank that has queued the fewest. */
static void say_late(const struct cuda_group *g, const char *what, struct error *err) {
    const struct cuda_team *t = g->team;
    size_t last = g->base.rank;
    double seconds = (double)g->deadline_ns / 1e9;
    for (size_t i = 0; i < t->size && g->host->ops->shared_memory; i++) {
        last = atomic_load(&t->ranks[i].queued) < atomic_load(&t->ranks[last].queued) ? i : last;
    }
    if (last != g->base.rank) {
        error_set(err, ERROR_DEVICE, "rank %zu of %zu did not come within %.1f s", last, g->base.size, seconds);
    } else {
        error_set(err, ERROR_DEVICE, "CUDA device %d: %s did not end within %.1f s: a device or a link of the %zu ranks stands still",
                  g->b->ordinal, what, seconds, g->base.size);
    }
}

static int look_at_nccl(struct cuda_group *g, const char *what, struct error *err) {
    ncclResult_t rc = ncclSuccess, asked = g->comm ? g->nccl->ncclCommGetAsyncError(g->comm, &rc) : ncclSuccess;
    rc = asked != ncclSuccess ? asked : rc;
    if (rc == ncclSuccess || rc == ncclInProgress) {
        return 0;
    }
    const char *more = g->nccl->ncclGetLastError(g->comm);
    return error_set(err, ERROR_DEVICE, "CUDA device %d: %s: NCCL reports: %s%s%.200s", g->b->ordinal, what,
                     g->nccl->ncclGetErrorString(rc), more && *more ? ": " : "", more ? more : "");
}

int cuda_group_wait(struct cuda_group *g, cudaEvent_t event, const char *what, struct error *err) {
    struct backend *b = g->b;
    uint64_t began = now_ns();
    for (unsigned i = 0;; i++) {
        cudaError_t rc = event ? cudaEventQuery(event) : cudaStreamQuery(b->stream);
        if (rc == cudaSuccess) {
            return 0;
        }
        if (rc != cudaErrorNotReady) {
            cuda_check(b, rc, what, err);
            cuda_group_break(g, err);
            give_up(g, err);
            return -1;
        }
        TRY(cuda_group_alive(g, err));
        if (i % LOOKS != 0) {
            continue;
        }
        uint64_t waited = now_ns() - began;
        int late = waited > g->deadline_ns ? -1 : 0;
        if (late < 0) {
            say_late(g, what, err);
        }
        if (late < 0 || look_at_nccl(g, what, err) < 0) {
            cuda_group_break(g, err);
            give_up(g, err);
            return -1;
        }
        rest(waited);
    }
}

void cuda_group_settle(struct cuda_group *g) {
    struct error ignored;
    cuda_group_alive(g, &ignored);
}
