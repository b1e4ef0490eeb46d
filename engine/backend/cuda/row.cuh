/*
 * Rows of activations: a block takes one row, a thread vectors of eight elements, and sums are joined over the block in
 * one order that depends on the row's length alone.
 *
 * A row whose address and stride allow it (`wide`, decided by the launcher) is read and written 16 bytes at a time; any
 * other, and what is left behind the last whole vector, element by element: the same elements meet the same thread in
 * the same order, so that the bits are the same too.
 */
#ifndef INFERD_CUDA_ROW_CUH
#define INFERD_CUDA_ROW_CUH

#include "device.cuh"
#include "launch.h"

#include <math.h>

#define ROW_VECTOR 8
#define ROW_MAX_THREADS 256
/* Of kernels that look for nothing but the largest of a row, whose order does not matter. */
#define ROW_MOST_THREADS 1024
#define ROW_MAX_WARPS (ROW_MOST_THREADS / WARP)

/* The threads that share a row of n elements: whole warps, no more than have a vector each. */
static inline unsigned row_threads_up_to(size_t n, size_t most) {
    size_t vectors = (n + ROW_VECTOR - 1) / ROW_VECTOR, threads = (vectors + WARP - 1) / WARP * WARP;
    return (unsigned)(threads < WARP ? WARP : threads > most ? most : threads);
}
static inline unsigned row_threads(size_t n) {
    return row_threads_up_to(n, ROW_MAX_THREADS);
}

/* The same where the order does not matter. Few rows, as of decode, leave multiprocessors idle, so what they keep busy
 * should be as much as can be; with many, small blocks share a multiprocessor better. */
static inline unsigned row_threads_any_order(size_t n, size_t rows) {
    return row_threads_up_to(n, rows <= 64 ? ROW_MOST_THREADS : ROW_MAX_THREADS);
}

/* Whether rows of elements of `size` bytes, `ld` apart, all begin at a multiple of 16 bytes. */
static inline bool row_is_wide(const void *p, size_t ld, size_t size) {
    return (uintptr_t)p % 16 == 0 && ld * size % 16 == 0;
}

/* v = x[i .. i + 8), zeros from n on. Plain loads: other threads of the block may write the row's other elements. */
static __device__ __forceinline__ void row_load(float (&v)[ROW_VECTOR], const bf16 *x, size_t i, size_t n, bool wide) {
    if (wide && i + ROW_VECTOR <= n) {
        uint4 bits = *(const uint4 *)(x + i);
        const uint32_t pairs[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            v[2 * j] = f32_of(pairs[j] << 16);
            v[2 * j + 1] = f32_of(pairs[j] & 0xffff0000u);
        }
    } else {
#pragma unroll
        for (int j = 0; j < ROW_VECTOR; j++) {
            v[j] = i + j < n ? to_f32(x[i + j]) : 0.0f;
        }
    }
}

static __device__ __forceinline__ void row_load(float (&v)[ROW_VECTOR], const float *x, size_t i, size_t n, bool wide) {
    if (wide && i + ROW_VECTOR <= n) {
        float4 low = *(const float4 *)(x + i), high = *(const float4 *)(x + i + 4);
        v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w;
        v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
    } else {
#pragma unroll
        for (int j = 0; j < ROW_VECTOR; j++) {
            v[j] = i + j < n ? x[i + j] : 0.0f;
        }
    }
}

static __device__ __forceinline__ void row_store(bf16 *y, const float (&v)[ROW_VECTOR], size_t i, size_t n, bool wide) {
    if (wide && i + ROW_VECTOR <= n) {
        uint4 bits = {pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7])};
        store_16(y + i, bits);
    } else {
#pragma unroll
        for (int j = 0; j < ROW_VECTOR; j++) {
            if (i + j < n) {
                y[i + j] = from_f32<bf16>(v[j]);
            }
        }
    }
}

static __device__ __forceinline__ void row_store(float *y, const float (&v)[ROW_VECTOR], size_t i, size_t n,
                                                 bool wide) {
    if (wide && i + ROW_VECTOR <= n) {
        store_16(y + i, {bits_of(v[0]), bits_of(v[1]), bits_of(v[2]), bits_of(v[3])});
        store_16(y + i + 4, {bits_of(v[4]), bits_of(v[5]), bits_of(v[6]), bits_of(v[7])});
    } else {
#pragma unroll
        for (int j = 0; j < ROW_VECTOR; j++) {
            if (i + j < n) {
                y[i + j] = v[j];
            }
        }
    }
}

/* What the warps of a block tell each other. */
struct row_shared {
    float sums[ROW_MAX_WARPS];
    RED_ZONE(16)
    uint32_t maxima[2][ROW_MAX_WARPS];
};

static __device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
    for (int mask = WARP / 2; mask > 0; mask /= 2) {
        v = add_f32(v, warp_shfl_xor(v, mask));
    }
    return v;
}

static __device__ __forceinline__ uint32_t warp_max(uint32_t v) {
#pragma unroll
    for (int mask = WARP / 2; mask > 0; mask /= 2) {
        uint32_t other = warp_shfl_xor(v, mask);
        v = v > other ? v : other;
    }
    return v;
}

/* The sum of everybody's v, for everybody. Once a kernel. */
static __device__ __forceinline__ float block_sum(float v, row_shared &s) {
    v = warp_sum(v);
    if (threadIdx.x % WARP == 0) {
        s.sums[threadIdx.x / WARP] = v;
    }
    block_sync();
    float sum = s.sums[0];
    for (unsigned i = 1; i < blockDim.x / WARP; i++) {
        sum = add_f32(sum, s.sums[i]);
    }
    return sum;
}

/*
 * Rows as integers (backend.h, enum activation_quant), the same as the CPU's for equal inputs: magnitudes are compared
 * as bits, by which every NaN is larger than infinity; a row with one of them has scale NaN and nothing but zeros.
 */
struct row_range {
    uint32_t high, low; /* bits of the largest max(x, 0) and max(-x, 0) */
};

static __device__ __forceinline__ void row_range_take(row_range &range, const float (&v)[ROW_VECTOR]) {
#pragma unroll
    for (int j = 0; j < ROW_VECTOR; j++) {
        uint32_t magnitude = bits_of(v[j]) & 0x7fffffffu;
        if (v[j] < 0.0f) {
            range.low = magnitude > range.low ? magnitude : range.low;
        } else {
            range.high = magnitude > range.high ? magnitude : range.high;
        }
    }
}

/* Of the whole block. Once a kernel. */
static __device__ __forceinline__ row_range row_range_join(row_range range, row_shared &s) {
    range.high = warp_max(range.high);
    range.low = warp_max(range.low);
    if (threadIdx.x % WARP == 0) {
        s.maxima[0][threadIdx.x / WARP] = range.high;
        s.maxima[1][threadIdx.x / WARP] = range.low;
    }
    block_sync();
    for (unsigned i = 0; i < blockDim.x / WARP; i++) {
        range.high = s.maxima[0][i] > range.high ? s.maxima[0][i] : range.high;
        range.low = s.maxima[1][i] > range.low ? s.maxima[1][i] : range.low;
    }
    return range;
}

static __device__ __forceinline__ bool row_range_finite(row_range range) {
    return range.high < 0x7f800000u && range.low < 0x7f800000u;
}

struct row_rule {
    float scale, inverse, furthest; /* quotients beyond `furthest` saturate anyway, and would overflow */
    float zero, low, high;
    bool divide, finite;
};

static __device__ __forceinline__ row_rule row_rule_make(float scale, float zero, float low, bool finite) {
    row_rule rule;
    rule.scale = scale;
    rule.inverse = 1.0f / scale;
    rule.furthest = mul_f32(scale, 512.0f);
    rule.zero = zero;
    rule.low = low;
    rule.high = 127.0f;
    rule.divide = scale < 0x1p-60f;
    rule.finite = finite;
    return rule;
}

/* ACTIVATION_I8_TOKEN */
static __device__ __forceinline__ row_rule row_rule_token(row_range range) {
    uint32_t absmax = range.high > range.low ? range.high : range.low;
    bool finite = row_range_finite(range);
    float scale = f32_of(absmax) / 127.0f;
    return row_rule_make(finite && scale > 0.0f ? scale : 1.0f, 0.0f, -127.0f, finite);
}

/* x / s correctly rounded (Markstein 1990: one step of correction, while nothing is subnormal), then to nearest even,
 * moved by the zero point and saturated. */
static __device__ __forceinline__ int row_integer(const row_rule &rule, float x) {
    x = fmaxf(-rule.furthest, fminf(rule.furthest, x));
    float quotient;
    if (rule.divide) {
        quotient = x / rule.scale;
    } else {
        quotient = mul_f32(x, rule.inverse);
        quotient = fma_f32(fma_f32(-quotient, rule.scale, x), rule.inverse, quotient);
    }
    float q = add_f32(rintf(quotient), rule.zero);
    return (int)fmaxf(rule.low, fminf(rule.high, q));
}

/* q[i .. i + 8) of a row of k elements: zeros from k on. q has room for whole vectors and is 8-byte aligned. */
static __device__ __forceinline__ void row_store_i8(int8_t *q, const float (&v)[ROW_VECTOR], size_t i, size_t k,
                                                    const row_rule &rule) {
    uint32_t words[2] = {0, 0};
#pragma unroll
    for (int j = 0; j < ROW_VECTOR; j++) {
        int value = rule.finite && i + j < k ? row_integer(rule, v[j]) : 0;
        words[j / 4] |= ((uint32_t)value & 0xffu) << j % 4 * 8;
    }
    *(uint2 *)(q + i) = {words[0], words[1]};
}

static __device__ __forceinline__ float row_scale(const row_rule &rule) {
    return rule.finite ? rule.scale : f32_of(0x7fc00000u);
}

#endif
