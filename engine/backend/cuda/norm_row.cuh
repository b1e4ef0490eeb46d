/* The second half of add_rms_norm, for whoever brings the residual: norm.cu's own kernel, and the sum of ranks (peer.cu). */
#ifndef INFERD_CUDA_NORM_ROW_CUH
#define INFERD_CUDA_NORM_ROW_CUH

#include "row.cuh"

static __device__ __forceinline__ float sum_of_squares(float sum, const float (&v)[ROW_VECTOR]) {
#pragma unroll
    for (int j = 0; j < ROW_VECTOR; j++) {
        sum = fma_f32(v[j], v[j], sum);
    }
    return sum;
}

static __device__ __forceinline__ float norm_factor(float squares, size_t dim, float eps) {
    return 1.0f / sqrtf(squares / (float)dim + eps);
}

static __device__ __forceinline__ void normed(float (&v)[ROW_VECTOR], float factor, const float *w, size_t i,
                                              size_t dim, bool w_wide) {
    float weight[ROW_VECTOR];
    row_load(weight, w, i, dim, w_wide);
#pragma unroll
    for (int j = 0; j < ROW_VECTOR; j++) {
        v[j] = mul_f32(mul_f32(v[j], factor), weight[j]);
    }
}

struct add_norm_wide {
    bool x, residual, y, w;
};

/* Row r of a block. One of y and q is NULL. more.add(v, i): what joins the stream is added to v, false: nothing does. Each thread
 * reads again what it wrote itself. */
template <typename MORE>
static __device__ __forceinline__ void
    add_norm_row(const MORE &more, size_t r, row_shared &shared, bf16 *y, size_t ldy, int8_t *q, size_t ldq, float *scales,
                 float *x, size_t ldx, const float *w, size_t dim, float eps, const add_norm_wide &wide) {
    const size_t step = (size_t)blockDim.x * ROW_VECTOR, begin = threadIdx.x * ROW_VECTOR;
    x += r * ldx;
    float v[ROW_VECTOR], squares = 0.0f;
    for (size_t i = begin; i < dim; i += step) {
        row_load(v, x, i, dim, wide.x);
        if (more.add(v, i)) {
            row_store(x, v, i, dim, wide.x);
        }
        squares = sum_of_squares(squares, v);
    }
    const float factor = norm_factor(block_sum(squares, shared), dim, eps);
    if (!q) {
        for (size_t i = begin; i < dim; i += step) {
            row_load(v, x, i, dim, wide.x);
            normed(v, factor, w, i, dim, wide.w);
            row_store(y + r * ldy, v, i, dim, wide.y);
        }
        return;
    }
    row_range range = {0, 0};
    for (size_t i = begin; i < dim; i += step) {
        row_load(v, x, i, dim, wide.x);
        normed(v, factor, w, i, dim, wide.w);
        row_range_take(range, v);
    }
    const row_rule rule = row_rule_token(row_range_join(range, shared));
    for (size_t i = begin; i < ldq; i += step) {
        row_load(v, x, i, dim, wide.x);
        normed(v, factor, w, i, dim, wide.w);
        row_store_i8(q + r * ldq, v, i, dim, rule);
    }
    if (threadIdx.x == 0) {
        scales[r] = row_scale(rule);
    }
}

#endif
