/*
 * y[i] = act(gate[i]) * up[i], act(x) = x / (1 + e^-u): SiLU with u = x, GELU's tanh form with u = 2 sqrt(2/pi) (x +
 * 0.044715 x^3), since x/2 (1 + tanh(u/2)) is that. Computed in F32; out as BF16, or quantised from F32 as
 * ACTIVATION_I8_TOKEN, for which a row is computed twice: its largest first.
 */
#include "row.cuh"

#define LOG2_E 1.4426950408889634f
#define GELU_A 1.5957691216057308f /* 2 sqrt(2/pi) */
#define GELU_B (1.5957691216057308f * 0.044715f)

static __device__ __forceinline__ float activated(float x, bool gelu) {
    float u = gelu ? mul_f32(x, fma_f32(mul_f32(x, x), GELU_B, GELU_A)) : x;
    return x / (1.0f + exp2_fast(mul_f32(u, -LOG2_E)));
}

struct silu_input {
    const bf16 *gate, *up;
    size_t ldg, ldu, dim;
    bool gate_wide, up_wide, gelu;
};

static __device__ __forceinline__ void silu_load(float (&v)[ROW_VECTOR], const silu_input &in, size_t row, size_t i) {
    float up[ROW_VECTOR];
    row_load(v, in.gate + row * in.ldg, i, in.dim, in.gate_wide);
    row_load(up, in.up + row * in.ldu, i, in.dim, in.up_wide);
#pragma unroll
    for (int j = 0; j < ROW_VECTOR; j++) {
        v[j] = mul_f32(activated(v[j], in.gelu), up[j]);
    }
}

/* grid: x = vectors of a row, y = rows; y may be gate */
static __global__ void __launch_bounds__(ROW_MAX_THREADS)
    silu_mul(bf16 *y, size_t ldy, silu_input in, size_t rows, bool y_wide) {
    const size_t i = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * ROW_VECTOR;
    for (size_t r = blockIdx.y; r < rows && i < in.dim; r += gridDim.y) {
        float v[ROW_VECTOR];
        silu_load(v, in, r, i);
        row_store(y + r * ldy, v, i, in.dim, y_wide);
    }
}

static __global__ void __launch_bounds__(ROW_MOST_THREADS)
    silu_mul_i8(int8_t *q, size_t ldq, float *scales, silu_input in) {
    SHARED(row_shared, shared);
    const size_t r = blockIdx.x, step = (size_t)blockDim.x * ROW_VECTOR, begin = threadIdx.x * ROW_VECTOR;
    float v[ROW_VECTOR];
    row_range range = {0, 0};
    for (size_t i = begin; i < in.dim; i += step) {
        silu_load(v, in, r, i);
        row_range_take(range, v);
    }
    const row_rule rule = row_rule_token(row_range_join(range, shared));
    for (size_t i = begin; i < ldq; i += step) {
        silu_load(v, in, r, i);
        row_store_i8(q + r * ldq, v, i, in.dim, rule);
    }
    if (threadIdx.x == 0) {
        scales[r] = row_scale(rule);
    }
}

extern "C" cudaError_t cuda_silu_mul(void *y, size_t ldy, const struct rows_i8 *q, const void *gate, size_t ldg,
                                     const void *up, size_t ldu, size_t rows, size_t dim, enum activation activation,
                                     cudaStream_t stream) {
    if (rows == 0 || dim == 0) {
        return cudaSuccess;
    }
    silu_input in = {(const bf16 *)gate,
                     (const bf16 *)up,
                     ldg,
                     ldu,
                     dim,
                     row_is_wide(gate, ldg, sizeof(bf16)),
                     row_is_wide(up, ldu, sizeof(bf16)),
                     activation == ACTIVATION_GELU_TANH};
    if (q) {
        return LAUNCH(silu_mul_i8, (unsigned)rows, row_threads_any_order(q->ld, rows), sizeof(row_shared), stream, q->q, q->ld,
                      q->scales, in);
    }
    unsigned threads = row_threads(dim);
    dim3 grid((unsigned)((dim + (size_t)threads * ROW_VECTOR - 1) / ((size_t)threads * ROW_VECTOR)),
              (unsigned)(rows < 65535 ? rows : 65535));
    return LAUNCH(silu_mul, grid, threads, 0, stream, (bf16 *)y, ldy, in, rows, row_is_wide(y, ldy, sizeof(bf16)));
}
