/* Operations on rows: checks, then the launchers of launch.h. */
#include "cuda.h"

static const struct cuda_weight *loaded(const struct weight *w) {
    return &((const struct cuda_loaded *)w->packed)->w;
}

int cuda_op_embed(struct backend *b, void *y, size_t ldy, const struct weight *table, const int32_t *token_ids, size_t rows,
                  float scale, struct error *err) {
    TRY(cuda_alive(b, err));
    cudaError_t code = cudaSuccess;
    if (table->n > 0) {
        code = cuda_embed(y, ldy, loaded(table), token_ids, (int32_t)table->first_row, rows, scale, b->stream);
    }
    for (size_t r = 0; table->n == 0 && r < rows && code == cudaSuccess; r++) { /* a rank behind the vocabulary's end */
        code = cudaMemsetAsync((float *)y + r * ldy, 0, table->k * sizeof(float), b->stream);
    }
    return cuda_check(b, code, "embedding", err);
}

int cuda_op_rms_norm(struct backend *b, void *y, size_t ldy, void *x, size_t ldx, const void *residual, size_t ldr,
                     const float *w, size_t rows, size_t groups, size_t dim, float eps, struct error *err) {
    (void)ldr;
    TRY(cuda_alive(b, err));
    if (residual) {
        return error_set(err, ERROR_INTERNAL, "on CUDA a residual is added by add_rms_norm alone");
    }
    return cuda_check(b, cuda_rms_norm(y, ldy, x, ldx, w, rows, groups, dim, eps, b->stream), "a norm", err);
}

int cuda_op_add_rms_norm(struct backend *b, void *y, size_t ldy, const struct rows_i8 *q, float *x, size_t ldx,
                         const void *residual, size_t ldr, const float *w, size_t rows, size_t dim, float eps,
                         struct error *err) {
    TRY(cuda_alive(b, err));
    return cuda_check(b, cuda_add_rms_norm(y, ldy, q, x, ldx, residual, ldr, w, rows, dim, eps, b->stream), "a norm", err);
}

int cuda_op_silu_mul(struct backend *b, void *y, size_t ldy, const void *gate, size_t ldg, const void *up, size_t ldu,
                     size_t rows, size_t dim, enum activation activation, struct error *err) {
    TRY(cuda_alive(b, err));
    return cuda_check(b, cuda_silu_mul(y, ldy, NULL, gate, ldg, up, ldu, rows, dim, activation, b->stream), "the activation",
                      err);
}

int cuda_op_silu_mul_i8(struct backend *b, const struct rows_i8 *q, const void *gate, size_t ldg, const void *up, size_t ldu,
                        size_t rows, size_t dim, enum activation activation, struct error *err) {
    TRY(cuda_alive(b, err));
    return cuda_check(b, cuda_silu_mul(NULL, 0, q, gate, ldg, up, ldu, rows, dim, activation, b->stream), "the activation",
                      err);
}

int cuda_op_gather_rows(struct backend *b, enum dtype dtype, void *y, size_t ldy, const void *x, size_t ldx,
                        const int32_t *index, size_t n, size_t dim, struct error *err) {
    TRY(cuda_alive(b, err));
    return cuda_check(b, cuda_gather_rows(dtype, y, ldy, x, ldx, index, n, dim, b->stream), "gathering rows", err);
}
