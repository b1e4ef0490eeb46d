/* The operations that go row by row: embed, rms_norm, silu_mul, gather_rows, kv_store; and kv_copy. */
#include "block_pack.h"
#include "cpu.h"
#include "weight_i8.h"

#include <string.h>

struct embed_job {
    const struct cpu_kernels *kernels;
    float *y;
    size_t ldy;
    const struct weight *table;
    const int32_t *token_ids;
    float scale;
};

static void embed_packed(const struct cpu_kernels *kernels, const struct weight *t, size_t row, float *y) {
    size_t block = dtype_info(t->dtype)->block;
    for (size_t i = 0; i < t->k / block; i++) {
        uint8_t bytes[BLOCK_BYTES_MAX];
        block_unpack(t, row, i, bytes);
        kernels->dequantise(t->dtype, bytes, block, y + i * block);
    }
}

static void embed_rows(const void *arg, size_t begin, size_t end) {
    const struct embed_job *j = arg;
    const struct weight *t = j->table;
    for (size_t r = begin; r < end; r++) {
        float *y = j->y + r * j->ldy;
        size_t row = (size_t)j->token_ids[r] - t->first_row; /* below first_row: far beyond n */
        if (row >= t->n) {
            memset(y, 0, t->k * sizeof *y); /* of another rank's shard */
            continue;
        }
        if (t->dtype == DTYPE_I8) {
            i8_weight_row(t->packed, row, y);
        } else if (t->packed) {
            embed_packed(j->kernels, t, row, y);
        } else {
            j->kernels->dequantise(t->dtype, (const char *)t->data + row * t->row_bytes, t->k, y);
        }
        if (j->scale != 1.0f) {
            j->kernels->scale_row(y, t->k, j->scale);
        }
    }
}

int cpu_embed(struct backend *b, void *y, size_t ldy, const struct weight *table, const int32_t *token_ids, size_t rows,
              float scale, struct error *err) {
    if (check_rows(b, "embed", rows, err) < 0) {
        return -1;
    }
    for (size_t r = 0; r < rows; r++) {
        if (token_ids[r] < 0 || (!table->is_shard && (size_t)token_ids[r] >= table->n)) {
            return error_set(err, ERROR_INVALID, "token id %d is not in the vocabulary of %zu", (int)token_ids[r],
                             table->n);
        }
    }
    struct embed_job job = {b->kernels, y, ldy, table, token_ids, scale};
    for_rows(b, rows, table->k, embed_rows, &job);
    return 0;
}

struct rms_norm_job {
    const struct cpu_kernels *kernels;
    float *y;
    size_t ldy;
    float *x;
    size_t ldx;
    const float *residual; /* or NULL */
    size_t ldr;
    const float *w;
    size_t groups, dim;
    float eps;
};

static void rms_norm_rows(const void *arg, size_t begin, size_t end) {
    const struct rms_norm_job *j = arg;
    for (size_t r = begin; r < end; r++) {
        float *x = j->x + r * j->ldx;
        if (j->residual) {
            j->kernels->add_row(x, j->residual + r * j->ldr, j->dim);
        }
        for (size_t g = 0; g < j->groups; g++) {
            j->kernels->rms_norm_row(j->y + r * j->ldy + g * j->dim, x + g * j->dim, j->w, j->dim, j->eps);
        }
    }
}

int cpu_rms_norm(struct backend *b, void *y, size_t ldy, void *x, size_t ldx, const void *residual, size_t ldr,
                 const float *w, size_t rows, size_t groups, size_t dim, float eps, struct error *err) {
    if (check_rows(b, "rms_norm", rows, err) < 0) {
        return -1;
    }
    if (residual && groups != 1) {
        return error_set(err, ERROR_INTERNAL, "rms_norm adds a residual to whole rows only");
    }
    struct rms_norm_job job = {b->kernels, y, ldy, x, ldx, residual, ldr, w, groups, dim, eps};
    for_rows(b, rows, 2 * groups * dim, rms_norm_rows, &job);
    return 0;
}

struct silu_mul_job {
    void (*row)(float *y, const float *gate, const float *up, size_t n);
    float *y;
    size_t ldy;
    const float *gate;
    size_t ldg;
    const float *up;
    size_t ldu, dim;
};

static void silu_mul_rows(const void *arg, size_t begin, size_t end) {
    const struct silu_mul_job *j = arg;
    for (size_t r = begin; r < end; r++) {
        j->row(j->y + r * j->ldy, j->gate + r * j->ldg, j->up + r * j->ldu, j->dim);
    }
}

int cpu_silu_mul(struct backend *b, void *y, size_t ldy, const void *gate, size_t ldg, const void *up, size_t ldu,
                 size_t rows, size_t dim, enum activation activation, struct error *err) {
    if (check_rows(b, "silu_mul", rows, err) < 0) {
        return -1;
    }
    struct silu_mul_job job = {NULL, y, ldy, gate, ldg, up, ldu, dim};
    job.row = activation == ACTIVATION_SILU ? b->kernels->silu_mul_row : b->kernels->gelu_mul_row;
    for_rows(b, rows, 4 * dim, silu_mul_rows, &job);
    return 0;
}

int cpu_gather_rows(struct backend *b, enum dtype dtype, void *y, size_t ldy, const void *x, size_t ldx,
                    const int32_t *index, size_t n, size_t dim, struct error *err) {
    if (check_rows(b, "gather_rows", n, err) < 0) {
        return -1;
    }
    if (dtype != DTYPE_F32) {
        return error_set(err, ERROR_INTERNAL, "gather_rows: activations of the CPU backend are F32, not %s",
                         dtype_info(dtype)->name);
    }
    for (size_t i = 0; i < n; i++) {
        if (index[i] < 0 || (size_t)index[i] >= b->max_rows) {
            return error_set(err, ERROR_INTERNAL, "gather_rows: row %d is not one of %zu", (int)index[i], b->max_rows);
        }
    }
    for (size_t i = 0; i < n; i++) {
        memcpy((float *)y + i * ldy, (const float *)x + (size_t)index[i] * ldx, dim * sizeof(float));
    }
    return 0;
}

struct kv_store_job {
    const struct cpu_kernels *kernels;
    const struct kv_layer *kv;
    const float *k;
    size_t ldk;
    const float *v;
    size_t ldv;
    const int32_t *slot_mapping;
};

int check_kv_dtype(const struct kv_layer *kv, struct error *err) {
    if (kv->dtype != DTYPE_F16 && kv->dtype != DTYPE_BF16 && kv->dtype != DTYPE_I8) {
        return error_set(err, ERROR_UNSUPPORTED, "the CPU backend keeps K and V in F16, BF16 or I8, not in %s",
                         dtype_info(kv->dtype)->name);
    }
    return 0;
}

/* One token's K or V, all heads: x[n_kv_heads * head_dim] to the rows at `to`; I8 scales to `scales`. A head's tokens
 * lie together in both. */
static void store_token(const struct kv_store_job *j, uint8_t *to, uint8_t *scales, const float *x) {
    const struct kv_layer *kv = j->kv;
    size_t head = kv->block_size * kv->head_dim * dtype_info(kv->dtype)->bytes;
    for (size_t h = 0; h < kv->n_kv_heads; h++) {
        if (kv->dtype == DTYPE_I8) {
            uint16_t scale = j->kernels->to_i8(to + h * head, x + h * kv->head_dim, kv->head_dim);
            memcpy(scales + h * kv->block_size * sizeof scale, &scale, sizeof scale);
        } else {
            j->kernels->to_half(kv->dtype, (uint16_t *)(void *)(to + h * head), x + h * kv->head_dim, kv->head_dim);
        }
    }
}

static void kv_store_rows(const void *arg, size_t begin, size_t end) {
    const struct kv_store_job *j = arg;
    const struct kv_layer *kv = j->kv;
    size_t block_bytes = kv_layer_bytes(kv->dtype, 1, kv->block_size, kv->n_kv_heads, kv->head_dim);
    size_t tokens = kv->n_kv_heads * kv->block_size, row = kv->head_dim * dtype_info(kv->dtype)->bytes;
    for (size_t r = begin; r < end; r++) {
        size_t slot = (size_t)j->slot_mapping[r], offset = slot % kv->block_size;
        uint8_t *block = (uint8_t *)kv->data + slot / kv->block_size * block_bytes;
        uint8_t *k = block + offset * row, *scales = block + 2 * tokens * row + offset * sizeof(uint16_t);
        store_token(j, k, scales, j->k + r * j->ldk);
        store_token(j, k + tokens * row, scales + tokens * sizeof(uint16_t), j->v + r * j->ldv);
    }
}

int cpu_kv_store(struct backend *b, struct kv_layer *kv, const void *k, size_t ldk, const void *v, size_t ldv,
                 const int32_t *slot_mapping, size_t rows, struct error *err) {
    if (check_rows(b, "kv_store", rows, err) < 0) {
        return -1;
    }
    if (check_kv_dtype(kv, err) < 0) {
        return -1;
    }
    for (size_t r = 0; r < rows; r++) {
        if (slot_mapping[r] < 0 || (size_t)slot_mapping[r] >= kv->n_blocks * kv->block_size) {
            return error_set(err, ERROR_INTERNAL, "kv_store: slot %d is not one of %zu", (int)slot_mapping[r],
                             kv->n_blocks * kv->block_size);
        }
    }
    struct kv_store_job job = {b->kernels, kv, k, ldk, v, ldv, slot_mapping};
    for_rows(b, rows, 2 * kv->n_kv_heads * kv->head_dim, kv_store_rows, &job);
    return 0;
}

int cpu_kv_copy(struct backend *b, struct kv_layer *kv, const int32_t *from, const int32_t *to, size_t n,
                struct error *err) {
    size_t bytes = kv_layer_bytes(kv->dtype, 1, kv->block_size, kv->n_kv_heads, kv->head_dim);
    (void)b;
    for (size_t i = 0; i < n; i++) {
        if (from[i] < 0 || (size_t)from[i] >= kv->n_blocks || to[i] < 0 || (size_t)to[i] >= kv->n_blocks) {
            return error_set(err, ERROR_INTERNAL, "kv_copy: block %d to block %d of %zu", (int)from[i], (int)to[i],
                             kv->n_blocks);
        }
    }
    for (size_t i = 0; i < n; i++) {
        if (from[i] != to[i]) {
            memcpy((char *)kv->data + (size_t)to[i] * bytes, (const char *)kv->data + (size_t)from[i] * bytes, bytes);
        }
    }
    return 0;
}
