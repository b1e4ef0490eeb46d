/*
 * Rows as they are, or as integers.
 *
 * quantise: q[r][i] = x[r][i] / s[r] to nearest even (+ z[r]), as backend.h's enum activation_quant says for each kind;
 * the integers, scales and zero points are the CPU backend's for equal rows, bit by bit. gather: y[i] = x[index[i]].
 * convert: element by element between F32, F16 and BF16, to nearest even.
 */
#include "row.cuh"

/* s, z by the row's range; the arithmetic of ACTIVATION_I8_TOKEN is row_rule_token's. */
static __device__ __forceinline__ row_rule rule_token_zero(row_range range) {
    bool finite = row_range_finite(range);
    float high = f32_of(range.high), low = -f32_of(range.low), span = high - low;
    float scale = span < f32_of(0x7f800000u) ? span / 255.0f : high / 255.0f - low / 255.0f;
    scale = finite && scale > 0.0f ? scale : 1.0f;
    float zero = finite ? -128.0f - rintf(low / scale) : 0.0f;
    return row_rule_make(scale, fmaxf(-128.0f, fminf(127.0f, zero)), -128.0f, finite);
}

static __global__ void __launch_bounds__(ROW_MOST_THREADS)
    quantise_rows(int8_t *q, size_t ldq, float *scales, int32_t *zero_points, const bf16 *x, size_t ldx, size_t k,
                  bool wide, enum activation_quant kind, float scale, int32_t zero_point) {
    SHARED(row_shared, shared);
    const size_t r = blockIdx.x, step = (size_t)blockDim.x * ROW_VECTOR, begin = threadIdx.x * ROW_VECTOR;
    x += r * ldx;
    q += r * ldq;
    row_range range = {0, 0};
    float v[ROW_VECTOR];
    for (size_t i = begin; i < k; i += step) {
        row_load(v, x, i, k, wide);
        row_range_take(range, v);
    }
    range = row_range_join(range, shared);
    row_rule rule;
    if (kind == ACTIVATION_I8_TOKEN) {
        rule = row_rule_token(range);
    } else if (kind == ACTIVATION_I8_TOKEN_ZERO) {
        rule = rule_token_zero(range);
    } else {
        rule = row_rule_make(scale, (float)zero_point, -128.0f, row_range_finite(range));
    }
    for (size_t i = begin; i < ldq; i += step) {
        row_load(v, x, i, k, wide);
        row_store_i8(q, v, i, k, rule);
    }
    if (threadIdx.x == 0) {
        scales[r] = row_scale(rule);
        if (zero_points) {
            zero_points[r] = (int32_t)rule.zero;
        }
    }
}

extern "C" cudaError_t cuda_quantise_rows(const struct rows_i8 *q, int32_t *zero_points, const void *x, size_t ldx,
                                          size_t rows, size_t k, enum activation_quant kind, float scale,
                                          int32_t zero_point, cudaStream_t stream) {
    if (rows == 0) {
        return cudaSuccess;
    }
    return LAUNCH(quantise_rows, (unsigned)rows, row_threads_any_order(q->ld, rows), sizeof(row_shared), stream, q->q, q->ld, q->scales,
                  zero_points, (const bf16 *)x, ldx, k, row_is_wide(x, ldx, sizeof(bf16)), kind, scale, zero_point);
}

/* Rows of n units of T each; a unit is as much as addresses and strides allow. */
template <typename T>
static __global__ void gather_rows(T *y, size_t ldy, const T *x, size_t ldx, const int32_t *index, size_t n) {
    const T *from = x + (size_t)index[blockIdx.x] * ldx;
    T *to = y + blockIdx.x * ldy;
    for (size_t i = threadIdx.x; i < n; i += blockDim.x) {
        to[i] = from[i];
    }
}

template <typename T>
static cudaError_t gather(void *y, size_t y_bytes, const void *x, size_t x_bytes, const int32_t *index, size_t n,
                          size_t bytes, cudaStream_t stream) {
    size_t units = bytes / sizeof(T), threads = (units + WARP - 1) / WARP * WARP;
    return LAUNCH((gather_rows<T>), (unsigned)n, (unsigned)(threads < ROW_MAX_THREADS ? threads : ROW_MAX_THREADS), 0,
                  stream, (T *)y, y_bytes / sizeof(T), (const T *)x, x_bytes / sizeof(T), index, units);
}

extern "C" cudaError_t cuda_gather_rows(enum dtype dtype, void *y, size_t ldy, const void *x, size_t ldx,
                                        const int32_t *index, size_t n, size_t dim, cudaStream_t stream) {
    if (n == 0 || dim == 0) {
        return cudaSuccess;
    }
    size_t e = dtype == DTYPE_F32 ? sizeof(float) : sizeof(bf16);
    uintptr_t all = (uintptr_t)y | (uintptr_t)x | ldy * e | ldx * e | dim * e;
    if (all % sizeof(uint4) == 0) {
        return gather<uint4>(y, ldy * e, x, ldx * e, index, n, dim * e, stream);
    }
    if (all % sizeof(uint32_t) == 0) {
        return gather<uint32_t>(y, ldy * e, x, ldx * e, index, n, dim * e, stream);
    }
    return gather<uint16_t>(y, ldy * e, x, ldx * e, index, n, dim * e, stream);
}

template <typename TO, typename FROM> static __global__ void convert(TO *y, const FROM *x, size_t n) {
    size_t step = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
        y[i] = from_f32<TO>(to_f32(x[i]));
    }
}

template <typename TO, typename FROM>
static cudaError_t convert_all(void *y, const void *x, size_t n, cudaStream_t stream) {
    const size_t most = 4096; /* blocks: some waves on any device */
    size_t blocks = (n + ROW_MAX_THREADS - 1) / ROW_MAX_THREADS;
    return LAUNCH((convert<TO, FROM>), (unsigned)(blocks < most ? blocks : most), ROW_MAX_THREADS, 0, stream, (TO *)y,
                  (const FROM *)x, n);
}

template <typename FROM>
static cudaError_t convert_from(void *y, enum dtype to, const void *x, size_t n, cudaStream_t stream) {
    switch (to) {
    case DTYPE_F32:
        return convert_all<float, FROM>(y, x, n, stream);
    case DTYPE_F16:
        return convert_all<f16, FROM>(y, x, n, stream);
    case DTYPE_BF16:
        return convert_all<bf16, FROM>(y, x, n, stream);
    default:
        return cudaErrorInvalidValue;
    }
}

extern "C" cudaError_t cuda_convert(void *y, enum dtype to, const void *x, enum dtype from, size_t n,
                                    cudaStream_t stream) {
    if (n == 0) {
        return cudaSuccess;
    }
    switch (from) {
    case DTYPE_F32:
        return convert_from<float>(y, to, x, n, stream);
    case DTYPE_F16:
        return convert_from<f16>(y, to, x, n, stream);
    case DTYPE_BF16:
        return convert_from<bf16>(y, to, x, n, stream);
    default:
        return cudaErrorInvalidValue;
    }
}
