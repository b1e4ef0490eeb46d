/*
 * What the product kernels share: how a sum becomes y, sums over a warp, the layout of a tile in shared memory.
 *
 * The last steps of an 8-bit product, one rounding each, in the order of the CPU backend (cpu/linear_i8.h):
 *
 *   y = (float)(sum - zero_point * row_sum) * (s_token * s_channel) + bias        the integers modulo 2^32
 *
 * then BF16 to nearest even where y_dtype says so. No bias: nothing is added.
 */
#ifndef INFERD_CUDA_PRODUCT_CUH
#define INFERD_CUDA_PRODUCT_CUH

#include "device.cuh"
#include "launch.h"

#ifdef INFERD_EMU
#define UNROLL
#define UNROLL_2
#else
#define UNROLL _Pragma("unroll")
#define UNROLL_2 _Pragma("unroll 2")
#endif

/* A cuda_part and its weight, as kernels take them. */
struct product_part {
    const unsigned char *w; /* [n] rows of row_bytes (of I8: k_padded) */
    size_t row_bytes;
    const float *scales; /* [n], I8 alone */
    const float *bias;   /* [n] or NULL */
    const int32_t *row_sums;
    void *y;
    size_t ldy;
    uint32_t n;
    int32_t zero_point; /* of rows that bring none of their own */
    bool f32;           /* y is F32, else BF16 */
};

static inline struct product_part product_part_of(const struct cuda_part *part) {
    const struct cuda_weight *w = part->w;
    struct product_part p = {};
    p.w = (const unsigned char *)w->data;
    p.row_bytes = w->dtype == DTYPE_I8 ? w->k_padded : w->row_bytes;
    p.scales = w->scales;
    p.bias = part->bias;
    p.row_sums = w->row_sums;
    p.y = part->y;
    p.ldy = part->ldy;
    p.n = (uint32_t)w->n;
    p.zero_point = w->activation == ACTIVATION_I8_STATIC ? w->input_zero_point : 0;
    p.f32 = part->y_dtype == DTYPE_F32;
    return p;
}

static __device__ __forceinline__ void product_store(const struct product_part &p, size_t m, size_t j, float y) {
    if (p.f32) {
        ((float *)p.y)[m * p.ldy + j] = y;
    } else {
        ((bf16 *)p.y)[m * p.ldy + j] = from_f32<bf16>(y);
    }
}

static __device__ __forceinline__ float product_i8(int32_t sum, int32_t zero_point, int32_t row_sum, float s_token,
                                                   float s_channel, bool has_bias, float bias) {
    sum = (int32_t)((uint32_t)sum - (uint32_t)zero_point * (uint32_t)row_sum);
    float y = mul_f32((float)sum, mul_f32(s_token, s_channel));
    return has_bias ? add_f32(y, bias) : y;
}
static __device__ __forceinline__ float product_i8(const struct product_part &p, size_t j, int32_t sum,
                                                   int32_t zero_point, float s_token) {
    return product_i8(sum, zero_point, p.row_sums ? p.row_sums[j] : 0, s_token, p.scales[j], p.bias != NULL,
                      p.bias ? p.bias[j] : 0);
}

static __device__ __forceinline__ int sum_of(int a, int b) {
    return (int)((unsigned)a + (unsigned)b);
}
static __device__ __forceinline__ float sum_of(float a, float b) {
    return add_f32(a, b);
}

/*
 * The sums over all lanes of V values (V a power of two up to 32): lane l is left with that of value l / (32 / V). Each
 * step halves what a lane holds. A sum is taken over lanes at distance 16, 8, 4, 2, 1 in this order whatever V is, and
 * a + b = b + a, so the bits do not depend on V.
 */
template <int V, typename T> static __device__ __forceinline__ T warp_sums(T (&v)[V]) {
    int lane = (int)(threadIdx.x % WARP), mask = WARP / 2;
    UNROLL for (int half = V / 2; half >= 1; half /= 2) {
        bool upper = (lane & mask) != 0;
        UNROLL for (int i = 0; i < half; i++) {
            T send = upper ? v[i] : v[i + half], keep = upper ? v[i + half] : v[i];
            v[i] = sum_of(keep, warp_shfl_xor(send, mask));
        }
        mask /= 2;
    }
    for (; mask >= 1; mask /= 2) {
        v[0] = sum_of(v[0], warp_shfl_xor(v[0], mask));
    }
    return v[0];
}

/*
 * A tile in shared memory has rows of ROW_BYTES (64 or 128), in pieces of 16 bytes. Piece c of row r lies at place
 * c ^ swizzle(r), so that the same piece of eight rows, which is what load_matrix reads at once, lies in eight
 * different sixteenths of all banks.
 */
template <int ROW_BYTES> static __device__ __forceinline__ unsigned swizzle(unsigned row) {
    return ROW_BYTES == 128 ? row & 7 : row >> 1 & 3;
}

#endif
