/*
 * Rotary position embedding (Su et al. 2021, eq. 34) and the store of K and V, apart and fused.
 *
 * A pair (a, b) becomes (a c - b s, a s + b c), c and s the cosine and sine of position * inv_freq, times mscale; the
 * result is rounded to BF16. What is stored is that BF16 value, so the fused form stores the same bits as rope followed
 * by kv_store. I8: scale = absmax / 127 rounded to F16, q = x times its reciprocal, to nearest even: the CPU backend's
 * integers for equal rows; a row that has no such scale gets NaN and zeros, or where the scale rounds to 0, zeros.
 *
 * A warp takes one head of one row; the block's warps share the angles of their row.
 */
#include "kv_memory.cuh"

#include <math.h>

#define ROPE_WARPS 8
#define ROPE_MAX_PAIRS 512 /* a head of 1024 */

struct rope_shared {
    float cosines[ROPE_MAX_PAIRS];
    RED_ZONE(16)
    float sines[ROPE_MAX_PAIRS];
};

struct rope_rule {
    const float *inv_freq;
    uint32_t pairs; /* n_rot / 2 */
    float mscale;
    bool halves;
};

/*
 * Sine and cosine of `angle`, in turns of a quarter: what is left of it, at most an eighth of a turn, goes into
 * Taylor's series, whose first missing terms are below 2e-9 (sine, relative) and 3e-8 (cosine). The product position *
 * inv_freq is exact in a double below 2^29, so positions far out are as good as near ones; no 32-bit reduction could do
 * that.
 */
static __device__ __forceinline__ void rope_angle(double angle, float *cosine, float *sine) {
    const double quarters = angle * 0.63661977236758134308; /* 2 / pi */
    const double whole = rint(quarters);
    const float x = (float)((quarters - whole) * 1.57079632679489661923), xx = x * x;
    const int turn = (int)((long long)whole & 3);
    const float s = x * (1.0f + xx * (-1.0f / 6 + xx * (1.0f / 120 + xx * (-1.0f / 5040 + xx * (1.0f / 362880)))));
    const float c = 1.0f + xx * (-0.5f + xx * (1.0f / 24 + xx * (-1.0f / 720 + xx * (1.0f / 40320))));
    const float cos_turned = turn & 1 ? s : c, sin_turned = turn & 1 ? c : s;
    *cosine = turn == 1 || turn == 2 ? -cos_turned : cos_turned;
    *sine = turn >= 2 ? -sin_turned : sin_turned;
}

static __device__ __forceinline__ void fill_angles(rope_shared &s, const rope_rule &rule, int32_t position) {
    for (uint32_t i = threadIdx.x; i < rule.pairs; i += blockDim.x) {
        float c, sine;
        rope_angle((double)position * (double)rule.inv_freq[i], &c, &sine);
        s.cosines[i] = mul_f32(c, rule.mscale);
        s.sines[i] = mul_f32(sine, rule.mscale);
    }
}

/* One head, by a warp, in place. */
static __device__ __forceinline__ void rotate_head(bf16 *x, const rope_shared &s, const rope_rule &rule) {
    for (uint32_t i = threadIdx.x % WARP; i < rule.pairs; i += WARP) {
        const uint32_t first = rule.halves ? i : 2 * i, second = rule.halves ? i + rule.pairs : 2 * i + 1;
        const float a = to_f32(x[first]), b = to_f32(x[second]), c = s.cosines[i], sine = s.sines[i];
        x[first] = from_f32<bf16>(mul_f32(a, c) - mul_f32(b, sine));
        x[second] = from_f32<bf16>(mul_f32(a, sine) + mul_f32(b, c));
    }
}

/* One head's K or V of a token, by a warp: x[head_dim] to `row`, or row and scale. */
static __device__ __forceinline__ void store_head(const kv_memory &kv, enum dtype dtype, size_t block, size_t token,
                                                  const bf16 *x) {
    const uint32_t lane = threadIdx.x % WARP;
    uint8_t *row = kv_row(kv, block, token);
    if (dtype == DTYPE_BF16) {
        for (uint32_t i = lane; i < kv.head_dim; i += WARP) {
            ((bf16 *)row)[i] = x[i];
        }
        return;
    }
    if (dtype == DTYPE_F16) {
        for (uint32_t i = lane; i < kv.head_dim; i += WARP) {
            ((f16 *)row)[i] = from_f32<f16>(to_f32(x[i]));
        }
        return;
    }
    uint32_t absmax = 0;
    for (uint32_t i = lane; i < kv.head_dim; i += WARP) {
        uint32_t magnitude = bits_of(to_f32(x[i])) & 0x7fffffffu;
        absmax = magnitude > absmax ? magnitude : absmax;
    }
#pragma unroll
    for (int mask = WARP / 2; mask > 0; mask /= 2) {
        uint32_t other = warp_shfl_xor(absmax, mask);
        absmax = other > absmax ? other : absmax;
    }
    f16 half = from_f32<f16>(f32_of(absmax) / 127.0f);
    const float scale = to_f32(half), infinity = f32_of(0x7f800000u);
    const bool usable = scale > 0.0f && scale < infinity;
    const float by = usable ? 1.0f / scale : 0.0f;
    for (uint32_t i = lane; i < kv.head_dim; i += WARP) {
        float q = usable ? rintf(mul_f32(to_f32(x[i]), by)) : 0.0f;
        ((int8_t *)row)[i] = (int8_t)fmaxf(-127.0f, fminf(127.0f, q));
    }
    if (lane == 0) {
        *kv_scale(kv, block, token) = scale < infinity ? half : from_f32<f16>(f32_of(0x7fc00000u));
    }
}

static __device__ __forceinline__ void store_slot(const kv_memory &kv, enum dtype dtype, int32_t slot, uint32_t head,
                                                  bool is_v, const bf16 *x) {
    const uint32_t offset = (uint32_t)slot & ((1u << kv.block_shift) - 1);
    store_head(kv, dtype, (uint32_t)slot >> kv.block_shift, kv_token(kv, head, is_v, offset), x);
}

/* grid: x = rows, y = heads / ROPE_WARPS */
static __global__ void __launch_bounds__(ROPE_WARPS *WARP)
    rope(bf16 *x, size_t ldx, uint32_t heads, uint32_t head_dim, const int32_t *positions, rope_rule rule) {
    SHARED(rope_shared, shared);
    const uint32_t head = blockIdx.y * ROPE_WARPS + threadIdx.x / WARP;
    fill_angles(shared, rule, positions[blockIdx.x]);
    block_sync();
    if (head < heads) {
        rotate_head(x + blockIdx.x * ldx + (size_t)head * head_dim, shared, rule);
    }
}

/* grid: x = rows, y = 2 n_kv_heads / ROPE_WARPS */
static __global__ void __launch_bounds__(ROPE_WARPS *WARP)
    kv_store(kv_memory kv, enum dtype dtype, const bf16 *k, size_t ldk, const bf16 *v, size_t ldv,
             const int32_t *slot_mapping) {
    const size_t r = blockIdx.x;
    const uint32_t head = blockIdx.y * ROPE_WARPS + threadIdx.x / WARP;
    const int32_t slot = slot_mapping[r];
    if (slot < 0 || head >= 2 * kv.n_kv_heads) { /* whole warps */
        return;
    }
    const bool is_v = head >= kv.n_kv_heads;
    const uint32_t of = is_v ? head - kv.n_kv_heads : head;
    store_slot(kv, dtype, slot, of, is_v, (is_v ? v + r * ldv : k + r * ldk) + (size_t)of * kv.head_dim);
}

/* grid: x = rows, y = (n_heads + 2 n_kv_heads) / ROPE_WARPS */
static __global__ void __launch_bounds__(ROPE_WARPS *WARP)
    rope_kv_store(bf16 *qkv, size_t ld, uint32_t n_heads, const int32_t *positions, const int32_t *slot_mapping,
                  rope_rule rule, kv_memory kv, enum dtype dtype) {
    SHARED(rope_shared, shared);
    const uint32_t head = blockIdx.y * ROPE_WARPS + threadIdx.x / WARP, rotated = n_heads + kv.n_kv_heads;
    const int32_t slot = slot_mapping[blockIdx.x];
    fill_angles(shared, rule, positions[blockIdx.x]);
    block_sync();
    if (head >= rotated + kv.n_kv_heads) { /* whole warps */
        return;
    }
    bf16 *x = qkv + blockIdx.x * ld + (size_t)head * kv.head_dim;
    if (head < rotated) {
        rotate_head(x, shared, rule);
    }
    if (head >= n_heads && slot >= 0) {
        warp_sync(); /* a lane stores what another has rotated */
        const bool is_v = head >= rotated;
        store_slot(kv, dtype, slot, head - (is_v ? rotated : n_heads), is_v, x);
    }
}

/* Block to[i] = block from[i] for i in order: a thread does the same unit of all of them. */
template <typename T>
static __global__ void kv_copy(T *data, size_t block_units, const int32_t *from, const int32_t *to, size_t n) {
    const size_t unit = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (size_t i = 0; i < n && unit < block_units; i++) {
        data[(size_t)to[i] * block_units + unit] = data[(size_t)from[i] * block_units + unit];
    }
}

static bool rule_of(const struct rope_table *table, size_t head_dim, rope_rule *out) {
    *out = {table->inv_freq, (uint32_t)(table->n_rot / 2), table->mscale, table->style == ROPE_HALVES};
    return table->n_rot % 2 == 0 && table->n_rot <= head_dim && out->pairs <= ROPE_MAX_PAIRS;
}

static dim3 grid_of(size_t rows, size_t heads) {
    return dim3((unsigned)rows, (unsigned)((heads + ROPE_WARPS - 1) / ROPE_WARPS));
}

static unsigned threads_of(size_t heads) {
    return (unsigned)(heads < ROPE_WARPS ? heads : ROPE_WARPS) * WARP;
}

extern "C" cudaError_t cuda_rope(void *x, size_t ldx, size_t heads, size_t head_dim, const int32_t *positions,
                                 size_t rows, const struct rope_table *table, cudaStream_t stream) {
    rope_rule rule;
    if (!rule_of(table, head_dim, &rule)) {
        return cudaErrorInvalidValue;
    }
    if (rows == 0 || heads == 0 || rule.pairs == 0) {
        return cudaSuccess;
    }
    return LAUNCH(rope, grid_of(rows, heads), threads_of(heads), sizeof(rope_shared), stream, (bf16 *)x, ldx,
                  (uint32_t)heads, (uint32_t)head_dim, positions, rule);
}

extern "C" cudaError_t cuda_kv_store(const struct kv_layer *kv, const void *k, size_t ldk, const void *v, size_t ldv,
                                     const int32_t *slot_mapping, size_t rows, cudaStream_t stream) {
    kv_memory memory;
    if (!kv_memory_of(kv, &memory)) {
        return cudaErrorInvalidValue;
    }
    if (rows == 0) {
        return cudaSuccess;
    }
    return LAUNCH(kv_store, grid_of(rows, 2 * kv->n_kv_heads), threads_of(2 * kv->n_kv_heads), 0, stream, memory,
                  kv->dtype, (const bf16 *)k, ldk, (const bf16 *)v, ldv, slot_mapping);
}

extern "C" cudaError_t cuda_rope_kv_store(void *qkv, size_t ld, size_t n_heads, size_t n_kv_heads, size_t head_dim,
                                          const int32_t *positions, const int32_t *slot_mapping, size_t rows,
                                          const struct rope_table *table, const struct kv_layer *kv,
                                          cudaStream_t stream) {
    rope_rule rule;
    kv_memory memory;
    if (!rule_of(table, head_dim, &rule) || !kv_memory_of(kv, &memory) || kv->n_kv_heads != n_kv_heads ||
        kv->head_dim != head_dim) {
        return cudaErrorInvalidValue;
    }
    if (rows == 0) {
        return cudaSuccess;
    }
    size_t heads = n_heads + 2 * n_kv_heads;
    return LAUNCH(rope_kv_store, grid_of(rows, heads), threads_of(heads), sizeof(rope_shared), stream, (bf16 *)qkv, ld,
                  (uint32_t)n_heads, positions, slot_mapping, rule, memory, kv->dtype);
}

template <typename T>
static cudaError_t copy_blocks(const kv_memory &kv, const int32_t *from, const int32_t *to, size_t n,
                               cudaStream_t stream) {
    const unsigned threads = 256;
    size_t units = kv.block_bytes / sizeof(T);
    return LAUNCH((kv_copy<T>), (unsigned)((units + threads - 1) / threads), threads, 0, stream, (T *)kv.data, units,
                  from, to, n);
}

extern "C" cudaError_t cuda_kv_copy(const struct kv_layer *kv, const int32_t *from, const int32_t *to, size_t n,
                                    cudaStream_t stream) {
    kv_memory memory;
    if (!kv_memory_of(kv, &memory)) {
        return cudaErrorInvalidValue;
    }
    if (n == 0) {
        return cudaSuccess;
    }
    if (((uintptr_t)memory.data | memory.block_bytes) % sizeof(uint4) == 0) {
        return copy_blocks<uint4>(memory, from, to, n, stream);
    }
    return copy_blocks<uint16_t>(memory, from, to, n, stream);
}
