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

/* Two neighbours of a row are stored at once. */
static __device__ __forceinline__ bool product_pairs(const struct product_part &p) {
    return !p.f32 && (((uintptr_t)p.y | p.ldy * sizeof(bf16)) & 3) == 0;
}
static __device__ __forceinline__ void product_store_two(const struct product_part &p, size_t m, uint32_t j, float y0,
                                                         float y1, bool pairs) {
    if (pairs && j + 1 < p.n) {
        *(uint32_t *)((bf16 *)p.y + m * p.ldy + j) = pack_bf16(y0, y1);
        return;
    }
    if (j < p.n) {
        product_store(p, m, j, y0);
    }
    if (j + 1 < p.n) {
        product_store(p, m, j + 1, y1);
    }
}

#endif
