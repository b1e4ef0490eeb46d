/*
 * The operations as the table offers them: each is timed while profiling is on. Off, that is one branch a call.
 *
 * What is idle: of threads * (the time from call to return), all but the rank thread's own work (which is everything
 * it does there except to wait for the last chunk) and the time that each worker was inside chunks.
 */
#include "cpu.h"

#include <time.h>

struct mark {
    uint64_t start;
    struct pool_times pool;
};

static uint64_t now_ns(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static struct mark begin(const struct backend *b) {
    struct mark m = {0};
    if (b->profiling) {
        pool_times(b->pool, &m.pool);
        m.start = now_ns();
    }
    return m;
}

static int end(struct backend *b, enum backend_op op, struct mark m, int rc) {
    if (b->profiling) {
        struct pool_times t;
        uint64_t ns = now_ns() - m.start;
        pool_times(b->pool, &t);
        uint64_t others = (uint64_t)(b->threads - 1) * ns, working = t.workers_ns - m.pool.workers_ns;
        b->profile.ops[op].calls++;
        b->profile.ops[op].ns += ns;
        b->profile.ops[op].idle_ns +=
            (working < others ? others - working : 0) + t.caller_waited_ns - m.pool.caller_waited_ns;
    }
    return rc;
}

int cpu_profile(struct backend *b, bool on, struct backend_profile *out, struct error *err) {
    (void)err;
    if (out) {
        *out = b->profile;
    }
    if (on) {
        b->profile = (struct backend_profile){0};
    }
    b->profiling = on;
    pool_measure(b->pool, on);
    return 0;
}

#define PROFILED(op, call)                                                                                             \
    do {                                                                                                               \
        struct mark m_ = begin(b);                                                                                     \
        return end(b, (op), m_, (call));                                                                               \
    } while (0)

int profiled_embed(struct backend *b, void *y, size_t ldy, const struct weight *table, const int32_t *token_ids,
                   size_t rows, float scale, struct error *err) {
    PROFILED(BACKEND_OP_EMBED, cpu_embed(b, y, ldy, table, token_ids, rows, scale, err));
}

int profiled_rms_norm(struct backend *b, void *y, size_t ldy, void *x, size_t ldx, const void *residual, size_t ldr,
                      const float *w, size_t rows, size_t groups, size_t dim, float eps, struct error *err) {
    PROFILED(BACKEND_OP_RMS_NORM, cpu_rms_norm(b, y, ldy, x, ldx, residual, ldr, w, rows, groups, dim, eps, err));
}

int profiled_linear(struct backend *b, const void *x, size_t ldx, size_t rows, const struct linear_part *parts,
                    size_t n_parts, struct error *err) {
    PROFILED(BACKEND_OP_LINEAR, cpu_linear(b, x, ldx, rows, parts, n_parts, err));
}

int profiled_rope(struct backend *b, void *x, size_t ldx, size_t heads, size_t head_dim, const int32_t *positions,
                  size_t rows, const struct rope_table *table, struct error *err) {
    PROFILED(BACKEND_OP_ROPE, cpu_rope(b, x, ldx, heads, head_dim, positions, rows, table, err));
}

int profiled_kv_store(struct backend *b, struct kv_layer *kv, const void *k, size_t ldk, const void *v, size_t ldv,
                      const int32_t *slot_mapping, size_t rows, struct error *err) {
    PROFILED(BACKEND_OP_KV_STORE, cpu_kv_store(b, kv, k, ldk, v, ldv, slot_mapping, rows, err));
}

int profiled_attention(struct backend *b, const struct attention_args *args, struct error *err) {
    PROFILED(BACKEND_OP_ATTENTION, cpu_attention(b, args, err));
}

int profiled_silu_mul(struct backend *b, void *y, size_t ldy, const void *gate, size_t ldg, const void *up, size_t ldu,
                      size_t rows, size_t dim, enum activation activation, struct error *err) {
    PROFILED(BACKEND_OP_SILU_MUL, cpu_silu_mul(b, y, ldy, gate, ldg, up, ldu, rows, dim, activation, err));
}

int profiled_gather_rows(struct backend *b, enum dtype dtype, void *y, size_t ldy, const void *x, size_t ldx,
                         const int32_t *index, size_t n, size_t dim, struct error *err) {
    PROFILED(BACKEND_OP_GATHER_ROWS, cpu_gather_rows(b, dtype, y, ldy, x, ldx, index, n, dim, err));
}
