/*
 * y[i] = x[i] / sqrt(mean_i x[i]^2 + eps) * w[i] (Zhang & Sennrich 2019), summed in F32.
 *
 * rms_norm: rows of `groups` BF16 vectors side by side, each normed by itself; a short vector (a head's) is one warp's,
 * a long one a block's. add_rms_norm: the residual stream x (F32) first takes the last block's result, x += residual
 * (BF16); what is normed goes out as BF16, or quantised from F32 as ACTIVATION_I8_TOKEN.
 */
#include "norm_row.cuh"

#define NORM_WARP_DIM 512 /* longest vector of a warp */
#define NORM_WARPS 8      /* of a block */

struct norm_wide {
    bool x, y, w;
};

static __global__ void __launch_bounds__(NORM_WARPS *WARP)
    rms_norm_short(bf16 *y, size_t ldy, const bf16 *x, size_t ldx, const float *w, size_t vectors, size_t groups,
                   size_t dim, float eps, norm_wide wide) {
    const size_t vector = (size_t)blockIdx.x * NORM_WARPS + threadIdx.x / WARP;
    const size_t lane = threadIdx.x % WARP, step = WARP * ROW_VECTOR;
    if (vector >= vectors) { /* whole warps */
        return;
    }
    x += vector / groups * ldx + vector % groups * dim;
    y += vector / groups * ldy + vector % groups * dim;
    float v[ROW_VECTOR], squares = 0.0f;
    for (size_t i = lane * ROW_VECTOR; i < dim; i += step) {
        row_load(v, x, i, dim, wide.x);
        squares = sum_of_squares(squares, v);
    }
    const float factor = norm_factor(warp_sum(squares), dim, eps);
    for (size_t i = lane * ROW_VECTOR; i < dim; i += step) {
        row_load(v, x, i, dim, wide.x);
        normed(v, factor, w, i, dim, wide.w);
        row_store(y, v, i, dim, wide.y);
    }
}

static __global__ void __launch_bounds__(ROW_MAX_THREADS)
    rms_norm_long(bf16 *y, size_t ldy, const bf16 *x, size_t ldx, const float *w, size_t groups, size_t dim, float eps,
                  norm_wide wide) {
    SHARED(row_shared, shared);
    const size_t vector = blockIdx.x, step = (size_t)blockDim.x * ROW_VECTOR;
    x += vector / groups * ldx + vector % groups * dim;
    y += vector / groups * ldy + vector % groups * dim;
    float v[ROW_VECTOR], squares = 0.0f;
    for (size_t i = threadIdx.x * ROW_VECTOR; i < dim; i += step) {
        row_load(v, x, i, dim, wide.x);
        squares = sum_of_squares(squares, v);
    }
    const float factor = norm_factor(block_sum(squares, shared), dim, eps);
    for (size_t i = threadIdx.x * ROW_VECTOR; i < dim; i += step) {
        row_load(v, x, i, dim, wide.x);
        normed(v, factor, w, i, dim, wide.w);
        row_store(y, v, i, dim, wide.y);
    }
}

extern "C" cudaError_t cuda_rms_norm(void *y, size_t ldy, const void *x, size_t ldx, const float *w, size_t rows,
                                     size_t groups, size_t dim, float eps, cudaStream_t stream) {
    size_t vectors = rows * groups;
    if (vectors == 0) {
        return cudaSuccess;
    }
    bool whole = groups == 1 || dim % ROW_VECTOR == 0;
    norm_wide wide = {whole && row_is_wide(x, ldx, sizeof(bf16)), whole && row_is_wide(y, ldy, sizeof(bf16)),
                      row_is_wide(w, 0, sizeof(float))};
    if (dim <= NORM_WARP_DIM) {
        unsigned blocks = (unsigned)((vectors + NORM_WARPS - 1) / NORM_WARPS);
        return LAUNCH(rms_norm_short, blocks, NORM_WARPS * WARP, 0, stream, (bf16 *)y, ldy, (const bf16 *)x, ldx, w,
                      vectors, groups, dim, eps, wide);
    }
    return LAUNCH(rms_norm_long, (unsigned)vectors, row_threads(dim), sizeof(row_shared), stream, (bf16 *)y, ldy,
                  (const bf16 *)x, ldx, w, groups, dim, eps, wide);
}

/* The residual in memory, or none. */
struct residual_row {
    const bf16 *p;
    size_t dim;
    bool wide;
    __device__ __forceinline__ bool add(float (&v)[ROW_VECTOR], size_t i) const {
        if (!p) {
            return false;
        }
        float more[ROW_VECTOR];
        row_load(more, p, i, dim, wide);
#pragma unroll
        for (int j = 0; j < ROW_VECTOR; j++) {
            v[j] = add_f32(v[j], more[j]);
        }
        return true;
    }
};

/* One of y and q is NULL, and residual may be. */
static __global__ void __launch_bounds__(ROW_MAX_THREADS)
    add_rms_norm(bf16 *y, size_t ldy, int8_t *q, size_t ldq, float *scales, float *x, size_t ldx, const bf16 *residual,
                 size_t ldr, const float *w, size_t dim, float eps, add_norm_wide wide) {
    SHARED(row_shared, shared);
    const residual_row more = {residual ? residual + blockIdx.x * ldr : NULL, dim, wide.residual};
    add_norm_row(more, blockIdx.x, shared, y, ldy, q, ldq, scales, x, ldx, w, dim, eps, wide);
}

extern "C" cudaError_t cuda_add_rms_norm(void *y, size_t ldy, const struct rows_i8 *q, float *x, size_t ldx,
                                         const void *residual, size_t ldr, const float *w, size_t rows, size_t dim,
                                         float eps, cudaStream_t stream) {
    if (rows == 0) {
        return cudaSuccess;
    }
    add_norm_wide wide = {row_is_wide(x, ldx, sizeof(float)), row_is_wide(residual, ldr, sizeof(bf16)),
                          row_is_wide(y, ldy, sizeof(bf16)), row_is_wide(w, 0, sizeof(float))};
    return LAUNCH(add_rms_norm, (unsigned)rows, row_threads(dim), sizeof(row_shared), stream, q ? NULL : (bf16 *)y, ldy,
                  q ? q->q : NULL, q ? q->ld : 0, q ? q->scales : NULL, x, ldx, (const bf16 *)residual, ldr, w, dim,
                  eps, wide);
}
