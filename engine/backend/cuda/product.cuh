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

/* Of floats: the sum, of I8 times the scale of its column, plus the bias. */
static __device__ __forceinline__ float product_float(const struct product_part &p, size_t j, float sum, bool scaled) {
    float y = scaled ? mul_f32(sum, p.scales[j]) : sum;
    return p.bias ? add_f32(y, p.bias[j]) : y;
}

/* Whether rows `bytes` apart lie at multiples of 16 bytes. */
static inline bool is_wide(const void *p, size_t bytes) {
    return (((uintptr_t)p | bytes) & 15) == 0;
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
template <int V, int MASK, typename T> static __device__ __forceinline__ void warp_sums_from(T *v) {
    if constexpr (MASK >= 1 && V >= 2) {
        bool upper = (threadIdx.x & MASK) != 0;
        UNROLL for (int i = 0; i < V / 2; i++) {
            T low = v[i], high = v[i + V / 2]; /* values: a choice of places would put v into memory */
            v[i] = sum_of(upper ? high : low, warp_shfl_xor(upper ? low : high, MASK));
        }
        warp_sums_from<V / 2, MASK / 2>(v);
    } else if constexpr (MASK >= 1) {
        v[0] = sum_of(v[0], warp_shfl_xor(v[0], MASK));
        warp_sums_from<1, MASK / 2>(v);
    }
}
template <int V, typename T> static __device__ __forceinline__ T warp_sums(T (&v)[V]) {
    static_assert(V <= WARP && (V & (V - 1)) == 0, "");
    warp_sums_from<V, WARP / 2>(v);
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

/*
 * Fragments of 32 bytes of k, for a warp's rows of x and columns of W: of bytes for mma.m16n8k32, of 16-bit elements
 * for mma.m16n8k16, which lie alike. k counts such runs of 32 bytes in a tile.
 */
template <int WARP_ROWS, int WARP_COLUMNS, int ROW_BYTES> struct mma_fragments {
    static constexpr int M = WARP_ROWS / 16, N = WARP_COLUMNS / 8;
    static_assert(N % 2 == 0, "columns are loaded 16 at a time");
    uint32_t x[M][4], w[N][2];

    __device__ __forceinline__ void load(const unsigned char *x_tile, const unsigned char *w_tile, uint32_t warp_m,
                                         uint32_t warp_n, unsigned k) {
        unsigned lane = threadIdx.x % WARP;
        unsigned row = warp_m + lane % 16, piece = (lane / 16) ^ swizzle<ROW_BYTES>(row);
        UNROLL for (int i = 0; i < M; i++) { /* rows 0..7, 8..15 by bytes 0..15, then by bytes 16..31 */
            load_matrix_x4(x[i], x_tile + (row + 16 * (unsigned)i) * ROW_BYTES + ((2 * k) ^ piece) * 16);
        }
        row = warp_n + lane % 8 + lane / 16 * 8, piece = (lane / 8 % 2) ^ swizzle<ROW_BYTES>(row);
        UNROLL for (int j = 0; j < N; j += 2) { /* columns 0..7 by both halves, then 8..15 */
            uint32_t r[4];
            load_matrix_x4(r, w_tile + (row + 8 * (unsigned)j) * ROW_BYTES + ((2 * k) ^ piece) * 16);
            w[j][0] = r[0], w[j][1] = r[1], w[j + 1][0] = r[2], w[j + 1][1] = r[3];
        }
    }
};

/* Bytes of a row of y that may be stored at once, by how the rows lie: of BF16 16, 4 or 2, of F32 8 or 4. */
static __device__ __forceinline__ uint32_t product_width(const struct product_part &p) {
    uintptr_t places = (uintptr_t)p.y | p.ldy * (p.f32 ? sizeof(float) : sizeof(bf16));
    return p.f32 ? ((places & 7) == 0 ? 8 : 4) : (places & 15) == 0 ? 16 : (places & 3) == 0 ? 4 : 2;
}

/* Lane t of four has v[i] of what lane i had as v[t]. */
static __device__ __forceinline__ void transpose_four(uint32_t (&v)[4]) {
    bool odd = threadIdx.x & 1, upper = (threadIdx.x & 2) != 0;
    UNROLL for (int i = 0; i < 4; i += 2) {
        uint32_t got = warp_shfl_xor(odd ? v[i] : v[i + 1], 1);
        v[i] = odd ? got : v[i], v[i + 1] = odd ? v[i + 1] : got;
    }
    UNROLL for (int i = 0; i < 2; i++) {
        uint32_t got = warp_shfl_xor(upper ? v[i] : v[i + 2], 2);
        v[i] = upper ? got : v[i], v[i + 2] = upper ? v[i + 2] : got;
    }
}

/*
 * G fragments side by side, from column j on, of a row of y: a lane has two neighbours of each (columns lane % 4 * 2),
 * as mma leaves them. Four lanes that share a row exchange them, so that each stores 16 bytes, where y allows it.
 * Called by all lanes; exists: whether there is the lane's row m.
 */
template <int G>
static __device__ __forceinline__ void product_store_fragments(const struct product_part &p, size_t m, bool exists,
                                                               uint32_t j, const float (&y)[G][2], uint32_t width) {
    uint32_t t = threadIdx.x % 4;
    if (G == 4 && width == 16 && j + 32 <= p.n) {
        uint32_t v[4];
        UNROLL for (int g = 0; g < 4; g++) {
            v[g] = pack_bf16(y[g % G][0], y[g % G][1]);
        }
        transpose_four(v);
        if (exists) {
            store_16((bf16 *)p.y + m * p.ldy + j + 8 * t, uint4{v[0], v[1], v[2], v[3]});
        }
        return;
    }
    UNROLL for (int g = 0; g < G; g++) {
        uint32_t column = j + (uint32_t)(8 * g) + 2 * t;
        if (exists && column + 1 < p.n && p.f32 && width == 8) {
            *(float2 *)((float *)p.y + m * p.ldy + column) = float2{y[g][0], y[g][1]};
        } else if (exists && column + 1 < p.n && !p.f32 && width >= 4) {
            *(uint32_t *)((bf16 *)p.y + m * p.ldy + column) = pack_bf16(y[g][0], y[g][1]);
        } else {
            UNROLL for (uint32_t e = 0; e < 2; e++) {
                if (exists && column + e < p.n) {
                    product_store(p, m, column + e, y[g][e]);
                }
            }
        }
    }
}

#endif
