/*
 * Ranks that are threads and see each other's memory. A call is: publish (operation, address, size), meet, work on what the
 * others published, meet. In all_reduce each rank sums its slice over all ranks, in their order, and writes the sum to all of
 * them: every element has one author, and nobody reads what another writes between the two meetings.
 */
#include <inferd/collective.h>

#include <inferd/clock.h>

#include <linux/futex.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SPINS 2000
#define LINE 64   /* bytes that no two ranks share */
#define SLICE 16 /* floats; slices begin at multiples of it */

enum operation { OP_ALL_REDUCE, OP_ALL_GATHER, OP_BROADCAST, OP_BARRIER };

struct call {
    enum operation op;
    size_t size, root;
    void *data;
};

struct member {
    struct collective base;
    struct group *group;
    struct call call; /* published before a meeting, read by others behind it */
    _Alignas(LINE) _Atomic uint32_t arrived; /* meetings that this rank came to */
};

#define UNBROKEN UINT32_MAX

struct group {
    size_t size;
    uint64_t deadline_ns;
    _Atomic uint32_t waiting;  /* ranks that came to this meeting */
    _Atomic uint32_t meeting;  /* meetings that are over: what sleepers wait for */
    _Atomic uint32_t broken;   /* UNBROKEN, or the rank that broke it; `size`: abort */
    _Atomic uint32_t mismatch; /* it did by another call than the others' */
    _Atomic uint32_t members;  /* not closed yet */
    struct member *all[COLLECTIVE_MAX_RANKS];
};

static struct member *member_of(struct collective *c) {
    return (struct member *)(void *)c;
}

static void futex_wait(_Atomic uint32_t *word, uint32_t expected, uint64_t ns) {
    const struct timespec t = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, &t, NULL, 0);
}

static void futex_wake_all(_Atomic uint32_t *word) {
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

static void break_group(struct group *g, uint32_t rank, bool mismatch) {
    uint32_t whole = UNBROKEN;
    if (mismatch) {
        atomic_store(&g->mismatch, 1);
    }
    atomic_compare_exchange_strong(&g->broken, &whole, rank); /* the first reason counts */
    atomic_fetch_add(&g->meeting, 1);
    futex_wake_all(&g->meeting);
}

static int say_broken(const struct group *g, struct error *err) {
    uint32_t rank = atomic_load(&g->broken);
    if (rank == g->size) {
        return error_set(err, ERROR_DEVICE, "the ranks were told to stop");
    }
    if (atomic_load(&g->mismatch)) {
        return error_set(err, ERROR_INTERNAL, "rank %u of %zu does something else than the others", rank, g->size);
    }
    return error_set(err, ERROR_DEVICE, "rank %u of %zu did not come within %.1f s", rank, g->size, (double)g->deadline_ns / 1e9);
}

/* The first rank that came to fewer meetings than `m`. */
static uint32_t who_is_missing(const struct group *g, const struct member *m) {
    uint32_t mine = atomic_load(&m->arrived);
    for (uint32_t i = 0; i < g->size; i++) {
        if ((int32_t)(atomic_load(&g->all[i]->arrived) - mine) < 0) {
            return i;
        }
    }
    return (uint32_t)m->base.rank; /* all came at the last moment: whoever waited no longer is to blame */
}

static int meet(struct member *m, struct error *err) {
    struct group *g = m->group;
    uint32_t now = atomic_load(&g->meeting);
    if (atomic_load(&g->broken) != UNBROKEN) {
        return say_broken(g, err);
    }
    atomic_fetch_add(&m->arrived, 1);
    if (atomic_fetch_add(&g->waiting, 1) + 1 == g->size) {
        atomic_store(&g->waiting, 0);
        atomic_fetch_add(&g->meeting, 1);
        futex_wake_all(&g->meeting);
    }
    for (int i = 0; i < SPINS && atomic_load(&g->meeting) == now; i++) {
        __builtin_ia32_pause();
    }
    uint64_t begin = clock_now_ns();
    while (atomic_load(&g->meeting) == now) {
        uint64_t waited = clock_now_ns() - begin;
        if (waited >= g->deadline_ns) {
            break_group(g, who_is_missing(g, m), false);
            break;
        }
        futex_wait(&g->meeting, now, g->deadline_ns - waited);
    }
    return atomic_load(&g->broken) == UNBROKEN ? 0 : say_broken(g, err);
}

/* Publish and meet; the others' calls must be the same. */
static int begin(struct member *m, struct call call, struct error *err) {
    struct group *g = m->group;
    m->call = call;
    if (meet(m, err) < 0) {
        return -1;
    }
    const struct call *first = &g->all[0]->call;
    for (uint32_t i = 1; i < g->size; i++) {
        const struct call *c = &g->all[i]->call;
        if (c->op != first->op || c->size != first->size || c->root != first->root) { /* all see it, and none goes on */
            break_group(g, i, true);
            return say_broken(g, err);
        }
    }
    return 0;
}

static int all_reduce(struct collective *c, void *x, enum dtype dtype, size_t n, struct error *err) {
    struct member *m = member_of(c);
    const struct group *g = m->group;
    if (dtype != DTYPE_F32) {
        return error_set(err, ERROR_INTERNAL, "ranks on the CPU sum F32");
    }
    if (begin(m, (struct call){OP_ALL_REDUCE, n, 0, x}, err) < 0) {
        return -1;
    }
    size_t lines = n / SLICE + (n % SLICE != 0), each = lines / g->size + (lines % g->size != 0);
    size_t from = c->rank * each * SLICE, to = from + each * SLICE;
    from = from < n ? from : n;
    to = to < n ? to : n;
    for (size_t at = from; at < to; at += SLICE) {
        float sum[SLICE];
        size_t count = to - at < SLICE ? to - at : SLICE;
        memcpy(sum, (const float *)g->all[0]->call.data + at, count * sizeof *sum);
        for (size_t r = 1; r < g->size; r++) {
            const float *theirs = (const float *)g->all[r]->call.data + at;
            for (size_t i = 0; i < count; i++) {
                sum[i] += theirs[i];
            }
        }
        for (size_t r = 0; r < g->size; r++) {
            memcpy((float *)g->all[r]->call.data + at, sum, count * sizeof *sum);
        }
    }
    return meet(m, err);
}

static int all_gather(struct collective *c, const void *mine, size_t bytes, void *all, struct error *err) {
    struct member *m = member_of(c);
    const struct group *g = m->group;
    void *own = (char *)all + c->rank * bytes;
    if (mine != own && bytes > 0) {
        memmove(own, mine, bytes);
    }
    if (begin(m, (struct call){OP_ALL_GATHER, bytes, 0, own}, err) < 0) {
        return -1;
    }
    for (size_t r = 0; r < g->size; r++) {
        if (r != c->rank && bytes > 0) {
            memcpy((char *)all + r * bytes, g->all[r]->call.data, bytes);
        }
    }
    return meet(m, err);
}

static int broadcast(struct collective *c, void *x, size_t bytes, size_t root, struct error *err) {
    struct member *m = member_of(c);
    const struct group *g = m->group;
    if (root >= g->size) {
        return error_set(err, ERROR_INTERNAL, "there is no rank %zu among %zu", root, g->size);
    }
    if (begin(m, (struct call){OP_BROADCAST, bytes, root, x}, err) < 0) {
        return -1;
    }
    if (c->rank != root && bytes > 0) {
        memcpy(x, g->all[root]->call.data, bytes);
    }
    return meet(m, err);
}

static int barrier(struct collective *c, struct error *err) {
    /* twice: nobody may publish its next call while another still looks at this one */
    return begin(member_of(c), (struct call){OP_BARRIER, 0, 0, NULL}, err) < 0 ? -1 : meet(member_of(c), err);
}

static void abort_group(struct collective *c) {
    struct group *g = member_of(c)->group;
    break_group(g, (uint32_t)g->size, false);
}

static void close_member(struct collective *c) {
    if (!c) {
        return;
    }
    struct group *g = member_of(c)->group;
    if (atomic_fetch_sub(&g->members, 1) == 1) { /* members look at one another until the last is gone */
        for (size_t i = 0; i < g->size; i++) {
            free(g->all[i]);
        }
        free(g);
    }
}

static const struct collective_ops threads_ops = {
    .name = "threads",
    .shared_memory = true,
    .all_reduce = all_reduce,
    .all_gather = all_gather,
    .broadcast = broadcast,
    .barrier = barrier,
    .abort = abort_group,
    .close = close_member,
};

int collective_open_threads(size_t size, size_t deadline_ms, struct collective **members, struct error *err) {
    if (size < 1 || size > COLLECTIVE_MAX_RANKS) {
        return error_set(err, ERROR_INVALID, "a group has 1 to %d ranks, not %zu", COLLECTIVE_MAX_RANKS, size);
    }
    struct group *g = calloc(1, sizeof *g);
    bool whole = g != NULL;
    for (size_t i = 0; i < size && whole; i++) {
        struct member *m = aligned_alloc(LINE, (sizeof *m + LINE - 1) / LINE * LINE);
        whole = m != NULL;
        if (m) {
            *m = (struct member){.base = {&threads_ops, i, size, deadline_ms}, .group = g};
            g->all[i] = m;
        }
    }
    if (!whole) {
        for (size_t i = 0; g && i < size; i++) {
            free(g->all[i]);
        }
        free(g);
        return error_memory(err);
    }
    g->size = size;
    g->deadline_ns = (uint64_t)deadline_ms * 1000000;
    atomic_store(&g->broken, UNBROKEN);
    atomic_store(&g->members, (uint32_t)size);
    for (size_t i = 0; i < size; i++) {
        members[i] = &g->all[i]->base;
    }
    return 0;
}
