/*
 * Float rows by weights of any type, for many rows: y[m][j] = sum over k of x[m][k] W[j][k] (+ bias), x BF16, by
 * mma.m16n8k16 of BF16 with sums in F32.
 *
 * W is decoded (block_decode.cuh) into a tile of BF16 in shared memory. I8 and BF16 are exact there, and I8's scale is
 * applied to the sum; an element of a block, scale * q + min, is rounded to 8 bits once, a relative error of 1/512 at
 * most and of 1e-3 in the sum, as much as rounding y to BF16 costs. (gemv_float.cu has no such rounding.)
 *
 * A block computes a tile of y; with few rows a narrow one, whose two warps that multiply have two more to decode for
 * them. k is taken 64 elements at a time: while the warps multiply one tile, the bytes of W of
 * the next ones are on their way to registers and x of the next two to shared memory. A sum goes through k in rising
 * order, 16 at a time, in every tile shape, and is never split: it has the same bits in any company.
 */
#include "product.cuh"

#include "block_decode.cuh"
#include "geometry.h"

struct gemm_float_args {
    struct product_part part;
    const bf16 *x; /* [rows][ldx] */
    size_t ldx;
    uint32_t rows, k, groups; /* of 64 elements of k */
    uint32_t tiles_m, tiles_n;
    bool wide_x, wide_w; /* rows lie at multiples of 16 bytes (of x: k may end anywhere) */
};

enum { GEMM_FLOAT_BYTES = GROUP * 2 }; /* a row of a tile */

/* HELPERS: warps that load and decode and do not multiply. */
template <int ROWS_, int COLUMNS_, int WARP_ROWS_, int WARP_COLUMNS_, int BLOCKS_, int AHEAD_, int HELPERS_ = 0>
struct gemm_float_config {
    static constexpr int ROWS = ROWS_, COLUMNS = COLUMNS_, WARP_ROWS = WARP_ROWS_, WARP_COLUMNS = WARP_COLUMNS_;
    static constexpr int WARPS_N = COLUMNS / WARP_COLUMNS, WARPS = ROWS / WARP_ROWS * WARPS_N;
    static constexpr int THREADS = (WARPS + HELPERS_) * WARP;
    static constexpr int BLOCKS = BLOCKS_, STAGES = 3, AHEAD = AHEAD_; /* groups of W in registers */
    struct x_tile {
        alignas(128) unsigned char bytes[ROWS * GEMM_FLOAT_BYTES];
        RED_ZONE(16)
    };
    struct w_tile {
        alignas(128) unsigned char bytes[COLUMNS * GEMM_FLOAT_BYTES];
        RED_ZONE(16)
    };
    struct shared {
        x_tile x[STAGES];
        w_tile w[2];
    };
};

/* 8 elements of a row of x to shared memory; zeros behind k and where there is no row. */
static __device__ __forceinline__ void gemm_float_copy_x(unsigned char *to, const bf16 *row, uint32_t at, uint32_t k,
                                                         bool wide, bool valid) {
    valid = valid && at < k;
    if (!valid || (wide && at + SHARE <= k)) {
        async_copy_16(to, wide ? row + (valid ? at : 0) : (const bf16 *)((uintptr_t)row & ~(uintptr_t)15), valid);
        return;
    }
    for (uint32_t i = 0; i < SHARE; i++) {
        ((bf16 *)to)[i] = at + i < k ? row[at + i] : from_f32<bf16>(0);
    }
}

/* A thread's share of the copies of x: piece threadIdx.x % 8 of every STRIDE-th row. */
template <class C> struct gemm_float_x {
    static constexpr int STRIDE = C::THREADS / SHARES, COUNT = C::ROWS / STRIDE;
    static_assert(C::ROWS % STRIDE == 0, "");
    const bf16 *from[COUNT];
    uint32_t valid; /* a bit for each row there is */

    __device__ __forceinline__ void open(const struct gemm_float_args &args, uint32_t first) {
        valid = 0;
        UNROLL for (int i = 0; i < COUNT; i++) {
            uint32_t row = first + threadIdx.x / SHARES + (uint32_t)(i * STRIDE);
            valid |= (row < args.rows ? 1u : 0u) << i;
            from[i] = args.x + (row < args.rows ? row : args.rows - 1) * args.ldx;
        }
    }
    __device__ __forceinline__ void copy(unsigned char *to, const struct gemm_float_args &args, uint32_t group) const {
        uint32_t piece = threadIdx.x % SHARES, at = group * GROUP + piece * SHARE;
        UNROLL for (int i = 0; i < COUNT; i++) {
            uint32_t row = threadIdx.x / SHARES + (uint32_t)(i * STRIDE);
            gemm_float_copy_x(to + row * GEMM_FLOAT_BYTES + (piece ^ swizzle<GEMM_FLOAT_BYTES>(row)) * 16, from[i], at,
                              args.k, args.wide_x, valid >> i & 1);
        }
    }
};

/* A thread's share of W: share threadIdx.x % 8 of every STRIDE-th column. */
template <class C, dtype T> struct gemm_float_w {
    typedef decoder<T> D;
    static constexpr int STRIDE = C::THREADS / SHARES, COUNT = C::COLUMNS / STRIDE;
    static_assert(C::COLUMNS % STRIDE == 0, "");
    typedef typename D::raw raws[COUNT];
    decode_row from[COUNT];

    __device__ __forceinline__ void open(const struct gemm_float_args &args, uint32_t first) {
        UNROLL for (int i = 0; i < COUNT; i++) {
            uint32_t j = first + threadIdx.x / SHARES + (uint32_t)(i * STRIDE);
            from[i] = decode_row{args.part.w + (j < args.part.n ? j : args.part.n - 1) * args.part.row_bytes, args.k,
                                 args.wide_w};
        }
    }
    /* Columns behind the last are as the last; their sums are not stored. */
    __device__ __forceinline__ void load(raws &raw, uint32_t group) const {
        unsigned t = threadIdx.x % SHARES;
        bool has = has_share<T>(from[0], group, t);
        UNROLL for (int i = 0; i < COUNT; i++) {
            raw[i] = has ? D::load(from[i], group, t) : typename D::raw{};
        }
    }
    __device__ __forceinline__ void store(const raws &raw, unsigned char *tile, uint32_t group) const {
        unsigned t = threadIdx.x % SHARES;
        UNROLL for (int i = 0; i < COUNT; i++) {
            float q[SHARE], scale[2], min[2];
            D::decode(raw[i], group, t, q, scale, min);
            uint32_t v[SHARE / 2];
            UNROLL for (int e = 0; e < SHARE; e++) {
                int s = D::SCALES == 2 ? e / PIECE : 0;
                q[e] = D::SCALES == 0 ? q[e] : D::MIN ? fma_f32(scale[s], q[e], min[s]) : mul_f32(scale[s], q[e]);
            }
            UNROLL for (int e = 0; e < SHARE / 2; e++) {
                v[e] = pack_bf16(q[2 * e], q[2 * e + 1]);
            }
            uint32_t row = threadIdx.x / SHARES + (uint32_t)(i * STRIDE), s = swizzle<GEMM_FLOAT_BYTES>(row);
            unsigned char *to = tile + row * GEMM_FLOAT_BYTES;
            if (D::NEIGHBOURS) {
                *(uint4 *)(to + (t ^ s) * 16) = uint4{v[0], v[1], v[2], v[3]};
            } else {
                UNROLL for (unsigned p = 0; p < 2; p++) {
                    uint32_t e = D::piece(t, p);
                    *(uint2 *)(to + ((e / SHARE) ^ s) * 16 + e % SHARE * 2) = uint2{v[2 * p], v[2 * p + 1]};
                }
            }
        }
    }
};

template <class C, dtype T>
static __global__ void __launch_bounds__(C::THREADS, C::BLOCKS) gemm_float_kernel(const struct gemm_float_args args) {
    SHARED(typename C::shared, shared);
    typedef mma_fragments<C::WARP_ROWS, C::WARP_COLUMNS, GEMM_FLOAT_BYTES> fragments;
    struct tile_at tile = tile_of(blockIdx.x, args.tiles_m, args.tiles_n);
    const uint32_t first_m = tile.m * C::ROWS, first_n = tile.n * C::COLUMNS;
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const uint32_t warp_m = warp / C::WARPS_N * C::WARP_ROWS, warp_n = warp % C::WARPS_N * C::WARP_COLUMNS;

    struct gemm_float_x<C> x;
    struct gemm_float_w<C, T> w;
    x.open(args, first_m);
    w.open(args, first_n);
    UNROLL for (uint32_t s = 0; s < C::STAGES - 1; s++) {
        if (s < args.groups) {
            x.copy(shared.x[s].bytes, args, s);
        }
        async_commit();
    }
    constexpr int AHEAD = C::AHEAD > 2 && sizeof(typename decoder<T>::raw) > 20 ? 2 : C::AHEAD;
    typename gemm_float_w<C, T>::raws raw[AHEAD]; /* of group g: raw[g % AHEAD], while it is under way */
    UNROLL for (int a = 0; a < AHEAD; a++) {
        w.load(raw[a], (uint32_t)a);
    }
    w.store(raw[0], shared.w[0].bytes, 0);
    w.load(raw[0], AHEAD);

    float sums[fragments::M][fragments::N][4] = {};
    uint32_t slot = 0, free_slot = C::STAGES - 1;
    for (uint32_t first = 0; first < args.groups; first += AHEAD) {
        UNROLL for (uint32_t a = 0; a < AHEAD; a++) {
            const uint32_t g = first + a;
            if (g < args.groups) {
                async_wait<C::STAGES - 2>();
                block_sync(); /* the tiles of g are there, and nobody reads those of g - 1 any more */
                if (g + C::STAGES - 1 < args.groups) {
                    x.copy(shared.x[free_slot].bytes, args, g + C::STAGES - 1);
                }
                async_commit();
                UNROLL for (unsigned k = 0; k < GEMM_FLOAT_BYTES / 32; k++) {
                    if (warp >= C::WARPS) {
                        break;
                    }
                    fragments f;
                    f.load(shared.x[slot].bytes, shared.w[g % 2].bytes, warp_m, warp_n, k);
                    UNROLL for (int i = 0; i < fragments::M; i++) {
                        UNROLL for (int j = 0; j < fragments::N; j++) {
                            mma_bf16(sums[i][j], f.x[i], f.w[j]);
                        }
                    }
                }
                w.store(raw[(a + 1) % AHEAD], shared.w[(g + 1) % 2].bytes, g + 1);
                w.load(raw[(a + 1) % AHEAD], g + 1 + AHEAD);
                slot = slot + 1 == C::STAGES ? 0 : slot + 1;
                free_slot = free_slot + 1 == C::STAGES ? 0 : free_slot + 1;
            }
        }
    }
    async_wait<0>();
    if (warp >= C::WARPS) {
        return;
    }

    constexpr int G = fragments::N % 4 == 0 ? 4 : 2; /* fragments that are stored together */
    const struct product_part &p = args.part;
    const uint32_t m = first_m + warp_m + lane / 4, width = product_width(p);
    UNROLL for (uint32_t f = 0; f < fragments::N; f += G) {
        const uint32_t column = first_n + warp_n + 8 * f;
        float scale[G][2], bias[G][2];
        UNROLL for (uint32_t i = 0; i < 2 * G; i++) {
            uint32_t j = column + i / 2 * 8 + lane % 4 * 2 + i % 2;
            scale[i / 2][i % 2] = T == DTYPE_I8 && j < p.n ? p.scales[j] : 1;
            bias[i / 2][i % 2] = p.bias && j < p.n ? p.bias[j] : 0;
        }
        UNROLL for (uint32_t i = 0; i < 2 * fragments::M; i++) {
            float y[G][2];
            UNROLL for (uint32_t g = 0; g < G; g++) {
                UNROLL for (uint32_t e = 0; e < 2; e++) {
                    y[g][e] = sums[i / 2][f + g][i % 2 * 2 + e];
                    y[g][e] = T == DTYPE_I8 ? mul_f32(y[g][e], scale[g][e]) : y[g][e];
                    y[g][e] = p.bias ? add_f32(y[g][e], bias[g][e]) : y[g][e];
                }
            }
            product_store_fragments<G>(p, m + 8 * i, m + 8 * i < args.rows, column, y, width);
        }
    }
}

/*                       rows cols  warp  blocks ahead helpers */
typedef gemm_float_config<16, 32, 16, 16, 4, 3, 2> gemm_float_16x32;
typedef gemm_float_config<16, 64, 16, 16, 3, 3> gemm_float_16x64;
typedef gemm_float_config<64, 64, 32, 32, 3, 1> gemm_float_64x64;
typedef gemm_float_config<128, 128, 64, 32, 1, 1> gemm_float_128x128;

template <class C, dtype T> static cudaError_t gemm_float_launch(struct gemm_float_args args, cudaStream_t stream) {
    const size_t shared = sizeof(typename C::shared), tiles_m = ceil_div(args.rows, C::ROWS),
                 tiles_n = ceil_div(args.part.n, C::COLUMNS);
    if (tiles_m * tiles_n > INT32_MAX / TILE_GROUP) {
        return cudaErrorInvalidConfiguration;
    }
    args.tiles_m = (uint32_t)tiles_m;
    args.tiles_n = (uint32_t)tiles_n;
    return LAUNCH((gemm_float_kernel<C, T>), dim3((unsigned)(tiles_m * tiles_n)), dim3(C::THREADS), shared, stream, args);
}

template <dtype T>
static cudaError_t gemm_float_type(const struct gemm_float_args &args, int sm_count, cudaStream_t stream) {
    switch (gemm_float_tile(args.rows, args.part.n, sm_count)) {
    case GEMM_FLOAT_16X32:
        return gemm_float_launch<gemm_float_16x32, T>(args, stream);
    case GEMM_FLOAT_16X64:
        return gemm_float_launch<gemm_float_16x64, T>(args, stream);
    case GEMM_FLOAT_64X64:
        return gemm_float_launch<gemm_float_64x64, T>(args, stream);
    default:
        return gemm_float_launch<gemm_float_128x128, T>(args, stream);
    }
}

template <class C, dtype... T> static cudaError_t gemm_float_allow(size_t most) {
    cudaError_t rc = cudaSuccess;
    ((rc = rc == cudaSuccess ? allow_shared(gemm_float_kernel<C, T>, sizeof(typename C::shared), most) : rc), ...);
    return rc;
}

template <dtype... T> static cudaError_t gemm_float_allow_all(size_t most) {
    cudaError_t rc = gemm_float_allow<gemm_float_16x32, T...>(most);
    rc = rc == cudaSuccess ? gemm_float_allow<gemm_float_16x64, T...>(most) : rc;
    rc = rc == cudaSuccess ? gemm_float_allow<gemm_float_64x64, T...>(most) : rc;
    return rc == cudaSuccess ? gemm_float_allow<gemm_float_128x128, T...>(most) : rc;
}

extern "C" cudaError_t cuda_prepare_gemm_float(const struct cuda_device *device) {
    return gemm_float_allow_all<DTYPE_I8, DTYPE_BF16, DTYPE_Q4_0, DTYPE_Q4_1, DTYPE_Q5_0, DTYPE_Q5_1, DTYPE_Q8_0,
                                DTYPE_Q4_K, DTYPE_Q5_K, DTYPE_Q6_K>(device->shared_optin);
}

extern "C" cudaError_t cuda_gemm_float(const struct cuda_device *device, const void *x, size_t ldx, size_t rows,
                                       const struct cuda_part *part, cudaStream_t stream) {
    const struct cuda_weight *w = part->w;
    if (rows == 0) {
        return cudaSuccess;
    }
    if (rows > INT32_MAX || w->k > INT32_MAX / 2) {
        return cudaErrorInvalidConfiguration;
    }
    struct gemm_float_args args = {};
    args.part = product_part_of(part);
    args.x = (const bf16 *)x;
    args.ldx = ldx;
    args.rows = (uint32_t)rows;
    args.k = (uint32_t)w->k;
    args.groups = (uint32_t)ceil_div(w->k, GROUP);
    args.wide_x = is_wide(x, ldx * sizeof(bf16));
    args.wide_w = is_wide(w->data, args.part.row_bytes) && w->k % SHARE == 0;
    switch (w->dtype) {
    case DTYPE_I8:
        return gemm_float_type<DTYPE_I8>(args, device->sm_count, stream);
    case DTYPE_BF16:
        return gemm_float_type<DTYPE_BF16>(args, device->sm_count, stream);
    case DTYPE_Q4_0:
        return gemm_float_type<DTYPE_Q4_0>(args, device->sm_count, stream);
    case DTYPE_Q4_1:
        return gemm_float_type<DTYPE_Q4_1>(args, device->sm_count, stream);
    case DTYPE_Q5_0:
        return gemm_float_type<DTYPE_Q5_0>(args, device->sm_count, stream);
    case DTYPE_Q5_1:
        return gemm_float_type<DTYPE_Q5_1>(args, device->sm_count, stream);
    case DTYPE_Q8_0:
        return gemm_float_type<DTYPE_Q8_0>(args, device->sm_count, stream);
    case DTYPE_Q4_K:
        return gemm_float_type<DTYPE_Q4_K>(args, device->sm_count, stream);
    case DTYPE_Q5_K:
        return gemm_float_type<DTYPE_Q5_K>(args, device->sm_count, stream);
    case DTYPE_Q6_K:
        return gemm_float_type<DTYPE_Q6_K>(args, device->sm_count, stream);
    default:
        return cudaErrorInvalidValue;
    }
}
