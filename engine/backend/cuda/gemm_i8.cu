/*
 * W8A8 for many rows: y[m][j] = s_token[m] s_channel[j] (sum over k of q[m][k] W[j][k]) (+ bias), the sum exact in 32
 * bits by mma.m16n8k32: neither the tile nor the split of k changes a bit.
 *
 * A block computes a tile of y. k is taken in steps; the bytes of the next STAGES - 1 steps of x and W are on their way
 * to shared memory (asynchronous copies of 16 bytes, zeros beyond the edges) while the warps multiply this one's.
 * Pieces are stored swizzled (product.cuh), so that load_matrix meets no bank conflict. A warp holds two k-steps of
 * fragments, one being loaded while the other is multiplied.
 *
 * With fewer tiles than multiprocessors k is split over several blocks; each writes its sums to the workspace, and a
 * second kernel adds them and applies the scales. Which tile and how many splits: geometry.h.
 */
#include "geometry.h"
#include "product.cuh"

struct gemm_i8_args {
    struct product_part part;
    const int8_t *x; /* [rows][ldx] */
    size_t ldx;
    const float *scales;        /* [rows] */
    const int32_t *zero_points; /* [rows] or NULL */
    int32_t *partial;           /* [splits][rows][n], NULL if k is not split */
    uint32_t rows, k_padded;
    uint32_t tiles_m, tiles_n;
    uint32_t steps, steps_per_split;
};

/* ROWS x COLUMNS outputs by BYTES of k a step; each warp has WARP_ROWS x WARP_COLUMNS of them. */
template <int ROWS_, int COLUMNS_, int BYTES_, int WARP_ROWS_, int WARP_COLUMNS_, int STAGES_, int BLOCKS_>
struct gemm_i8_config {
    static constexpr int ROWS = ROWS_, COLUMNS = COLUMNS_, BYTES = BYTES_, STAGES = STAGES_;
    static constexpr int WARP_ROWS = WARP_ROWS_, WARP_COLUMNS = WARP_COLUMNS_;
    static constexpr int WARPS_N = COLUMNS / WARP_COLUMNS;
    static constexpr int THREADS = ROWS / WARP_ROWS * WARPS_N * WARP;
    static constexpr int BLOCKS = BLOCKS_; /* on a multiprocessor of sm_80, by shared memory */
    struct stage {
        alignas(128) unsigned char x[ROWS * BYTES];
        RED_ZONE(16)
        alignas(128) unsigned char w[COLUMNS * BYTES];
        RED_ZONE(16)
    };
    struct shared {
        stage stages[STAGES];
    };
};

/* A thread's share of the copies of one operand: piece `threadIdx.x % PIECES` of every STRIDE-th row. */
template <int TILE_ROWS, int BYTES, int THREADS> struct gemm_i8_copy {
    static constexpr int PIECES = BYTES / 16, STRIDE = THREADS / PIECES, COUNT = TILE_ROWS / STRIDE;
    static_assert(TILE_ROWS % STRIDE == 0, "");
    const int8_t *from; /* the first of its rows; where there is none, the tile's first */
    size_t apart;       /* bytes from one of its rows to the next */
    uint32_t at, valid; /* byte of k in a step; a bit for each row there is */

    __device__ __forceinline__ void open(const int8_t *base, size_t ld, uint32_t first, uint32_t rows) {
        at = threadIdx.x % PIECES * 16;
        valid = 0;
        apart = (size_t)STRIDE * ld;
        UNROLL for (int i = 0; i < COUNT; i++) {
            uint32_t row = first + threadIdx.x / PIECES + (uint32_t)(i * STRIDE);
            valid |= (row < rows ? 1u : 0u) << i;
        }
        from = base + (first + (valid ? threadIdx.x / PIECES : 0)) * ld;
    }
    __device__ __forceinline__ void step(unsigned char *to, uint32_t k, uint32_t k_padded) const {
        uint32_t offset = k + at;
        bool inside = offset < k_padded;
        UNROLL for (int i = 0; i < COUNT; i++) {
            uint32_t row = threadIdx.x / PIECES + (uint32_t)(i * STRIDE);
            bool is = inside && (valid >> i & 1);
            async_copy_16(to + row * BYTES + ((threadIdx.x % PIECES) ^ swizzle<BYTES>(row)) * 16,
                          from + (is ? offset + (size_t)i * apart : 0), is);
        }
    }
};

/* Columns j and j + 1 of the result: what they have in common with all rows. */
struct gemm_i8_columns {
    float scale[2], bias[2];
    int32_t row_sum[2];

    __device__ __forceinline__ void open(const struct product_part &p, uint32_t j) {
        UNROLL for (uint32_t i = 0; i < 2; i++) {
            bool is = j + i < p.n;
            scale[i] = is ? p.scales[j + i] : 0;
            bias[i] = is && p.bias ? p.bias[j + i] : 0;
            row_sum[i] = is && p.row_sums ? p.row_sums[j + i] : 0;
        }
    }
};

/* The sums of a warp, in fragments, from row m and column j on. */
template <class F>
static __device__ __forceinline__ void gemm_i8_partial(const struct gemm_i8_args &args, uint32_t m, uint32_t j,
                                                       const int (&sums)[F::M][F::N][4]) {
    const uint32_t lane = threadIdx.x % WARP, n = args.part.n;
    UNROLL for (uint32_t i = 0; i < 2 * F::M; i++) {
        uint32_t row = m + lane / 4 + 8 * i;
        int32_t *to = args.partial + ((size_t)blockIdx.y * args.rows + row) * n;
        UNROLL for (uint32_t f = 0; f < F::N; f++) {
            UNROLL for (uint32_t e = 0; e < 2; e++) {
                uint32_t column = j + 8 * f + lane % 4 * 2 + e;
                if (row < args.rows && column < n) {
                    to[column] = sums[i / 2][f][i % 2 * 2 + e];
                }
            }
        }
    }
}

template <class F>
static __device__ __forceinline__ void gemm_i8_result(const struct gemm_i8_args &args, uint32_t m, uint32_t j,
                                                      const int (&sums)[F::M][F::N][4]) {
    constexpr int G = F::N % 4 == 0 ? 4 : 2; /* fragments that are stored together */
    const struct product_part &p = args.part;
    const uint32_t lane = threadIdx.x % WARP, width = product_width(p);
    float s_token[2 * F::M];
    int32_t zero_point[2 * F::M];
    m += lane / 4;
    UNROLL for (uint32_t i = 0; i < 2 * F::M; i++) {
        bool is = m + 8 * i < args.rows;
        s_token[i] = is ? args.scales[m + 8 * i] : 0;
        zero_point[i] = is && args.zero_points ? args.zero_points[m + 8 * i] : p.zero_point;
    }
    UNROLL for (uint32_t f = 0; f < F::N; f += G) {
        struct gemm_i8_columns columns[G];
        UNROLL for (uint32_t g = 0; g < G; g++) {
            columns[g].open(p, j + 8 * (f + g) + lane % 4 * 2);
        }
        UNROLL for (uint32_t i = 0; i < 2 * F::M; i++) {
            float y[G][2];
            UNROLL for (uint32_t g = 0; g < G; g++) {
                UNROLL for (uint32_t e = 0; e < 2; e++) {
                    y[g][e] = product_i8(sums[i / 2][f + g][i % 2 * 2 + e], zero_point[i], columns[g].row_sum[e],
                                         s_token[i], columns[g].scale[e], p.bias != NULL, columns[g].bias[e]);
                }
            }
            product_store_fragments<G>(p, m + 8 * i, m + 8 * i < args.rows, j + 8 * f, y, width);
        }
    }
}

template <class C>
static __global__ void __launch_bounds__(C::THREADS, C::BLOCKS) gemm_i8_kernel(const struct gemm_i8_args args) {
    SHARED(typename C::shared, shared);
    typedef mma_fragments<C::WARP_ROWS, C::WARP_COLUMNS, C::BYTES> fragments;
    struct tile_at tile = tile_of(blockIdx.x, args.tiles_m, args.tiles_n);
    const uint32_t first_m = tile.m * C::ROWS, first_n = tile.n * C::COLUMNS, n = args.part.n;
    const uint32_t begin = blockIdx.y * args.steps_per_split;
    const uint32_t steps = begin + args.steps_per_split < args.steps ? args.steps_per_split : args.steps - begin;
    const uint32_t warp = threadIdx.x / WARP;
    const uint32_t warp_m = warp / C::WARPS_N * C::WARP_ROWS, warp_n = warp % C::WARPS_N * C::WARP_COLUMNS;

    gemm_i8_copy<C::ROWS, C::BYTES, C::THREADS> copy_x;
    gemm_i8_copy<C::COLUMNS, C::BYTES, C::THREADS> copy_w;
    copy_x.open(args.x, args.ldx, first_m, args.rows);
    copy_w.open((const int8_t *)args.part.w, args.part.row_bytes, first_n, n);
    UNROLL for (uint32_t s = 0; s < C::STAGES - 1; s++) {
        if (s < steps) {
            copy_x.step(shared.stages[s].x, (begin + s) * C::BYTES, args.k_padded);
            copy_w.step(shared.stages[s].w, (begin + s) * C::BYTES, args.k_padded);
        }
        async_commit();
    }

    /* f[k % 2] is multiplied while the next is loaded, across steps too: the barrier lies before the last run of k. */
    constexpr unsigned RUNS = C::BYTES / 32;
    static_assert(RUNS % 2 == 0, "");
    int sums[fragments::M][fragments::N][4] = {};
    fragments f[2];
    uint32_t slot = 0, free_slot = C::STAGES - 1;
    async_wait<C::STAGES - 2>();
    block_sync();
    f[0].load(shared.stages[0].x, shared.stages[0].w, warp_m, warp_n, 0);
    for (uint32_t s = 0; s < steps; s++) {
        UNROLL for (unsigned k = 0; k < RUNS; k++) {
            if (k == 0) { /* over the step before this, which nobody reads any more */
                if (s + C::STAGES - 1 < steps) {
                    uint32_t at = (begin + s + C::STAGES - 1) * C::BYTES;
                    copy_x.step(shared.stages[free_slot].x, at, args.k_padded);
                    copy_w.step(shared.stages[free_slot].w, at, args.k_padded);
                }
                async_commit();
                free_slot = free_slot + 1 == C::STAGES ? 0 : free_slot + 1;
            }
            if (k + 1 == RUNS) {
                async_wait<C::STAGES - 2>();
                block_sync(); /* the next step is there, and everybody has loaded what there is of this one */
                slot = slot + 1 == C::STAGES ? 0 : slot + 1;
            }
            if (k + 1 < RUNS || s + 1 < steps) {
                const typename C::stage &stage = shared.stages[slot];
                f[(k + 1) % 2].load(stage.x, stage.w, warp_m, warp_n, (k + 1) % RUNS);
            }
            UNROLL for (int i = 0; i < fragments::M; i++) {
                UNROLL for (int j = 0; j < fragments::N; j++) {
                    mma_i8(sums[i][j], f[k % 2].x[i], f[k % 2].w[j]);
                }
            }
        }
    }
    async_wait<0>();

    if (args.partial) {
        gemm_i8_partial<fragments>(args, first_m + warp_m, first_n + warp_n, sums);
    } else {
        gemm_i8_result<fragments>(args, first_m + warp_m, first_n + warp_n, sums);
    }
}

enum { GEMM_I8_REDUCE_THREADS = 256 };

/* y of the partial sums: a thread has a column of row blockIdx.y. */
static __global__ void __launch_bounds__(GEMM_I8_REDUCE_THREADS)
    gemm_i8_reduce(const struct gemm_i8_args args, uint32_t splits) {
    uint32_t j = blockIdx.x * GEMM_I8_REDUCE_THREADS + threadIdx.x, m = blockIdx.y;
    if (j < args.part.n) {
        const int32_t *from = args.partial + (size_t)m * args.part.n + j;
        int sum = 0;
        UNROLL for (uint32_t s = 0; s < GEMM_I8_MAX_SPLITS; s++) {
            if (s < splits) {
                sum = sum_of(sum, from[(size_t)s * args.rows * args.part.n]);
            }
        }
        int32_t zero_point = args.zero_points ? args.zero_points[m] : args.part.zero_point;
        product_store(args.part, m, j, product_i8(args.part, j, sum, zero_point, args.scales[m]));
    }
}

template <class C>
static cudaError_t gemm_i8_launch(const struct gemm_i8_args &args, unsigned splits, cudaStream_t stream) {
    return LAUNCH(gemm_i8_kernel<C>, dim3(args.tiles_m * args.tiles_n, splits), dim3(C::THREADS),
                  sizeof(typename C::shared), stream, args);
}

/*                       rows cols bytes  warp    stages blocks */
typedef gemm_i8_config<16, 64, 128, 16, 16, 5, 3> gemm_i8_16x64;
typedef gemm_i8_config<32, 64, 128, 16, 32, 5, 2> gemm_i8_32x64;
typedef gemm_i8_config<64, 64, 128, 32, 32, 5, 2> gemm_i8_64x64;
typedef gemm_i8_config<64, 128, 128, 32, 64, 3, 2> gemm_i8_64x128;
typedef gemm_i8_config<128, 128, 64, 64, 64, 5, 2> gemm_i8_128x128;

template <class... C> static cudaError_t gemm_i8_allow(size_t most) {
    cudaError_t rc = cudaSuccess;
    ((rc = rc == cudaSuccess ? allow_shared(gemm_i8_kernel<C>, sizeof(typename C::shared), most) : rc), ...);
    return rc;
}

extern "C" cudaError_t cuda_prepare_gemm_i8(const struct cuda_device *device) {
    return gemm_i8_allow<gemm_i8_16x64, gemm_i8_32x64, gemm_i8_64x64, gemm_i8_64x128, gemm_i8_128x128>(
        device->shared_optin);
}

extern "C" size_t cuda_gemm_i8_workspace(const struct cuda_device *device, size_t max_rows, size_t n, size_t k) {
    size_t k_padded = ceil_div(k, ROWS_I8_PAD) * ROWS_I8_PAD, most = 0;
    for (size_t rows = 1;; rows = rows < 16 ? 16 : rows + 16 < max_rows ? rows + 16 : max_rows) {
        size_t m = rows < max_rows ? rows : max_rows;
        struct gemm_i8_plan plan = gemm_i8_plan_of(device->sm_count, m, n, k_padded);
        size_t bytes = gemm_i8_partial_bytes(&plan, m, n);
        most = bytes > most ? bytes : most;
        if (rows >= max_rows || (plan.tile == GEMM_I8_128X128 && plan.splits == 1)) {
            return most; /* from here on there are only more tiles */
        }
    }
}

extern "C" cudaError_t cuda_gemm_i8(const struct cuda_device *device, const struct rows_i8 *x,
                                    const int32_t *zero_points, size_t rows, const struct cuda_part *part,
                                    void *workspace, size_t workspace_bytes, cudaStream_t stream) {
    const struct cuda_weight *w = part->w;
    if (rows == 0) {
        return cudaSuccess;
    }
    struct gemm_i8_plan plan = gemm_i8_plan_of(device->sm_count, rows, w->n, w->k_padded);
    if (gemm_i8_partial_bytes(&plan, rows, w->n) > workspace_bytes) {
        plan.splits = 1;
        plan.steps_per_split = plan.steps;
    }
    if (rows > INT32_MAX || w->k_padded > INT32_MAX / 2 || plan.tiles_m * plan.tiles_n > INT32_MAX / TILE_GROUP) {
        return cudaErrorInvalidConfiguration;
    }
    struct gemm_i8_args args = {};
    args.part = product_part_of(part);
    args.x = x->q;
    args.ldx = x->ld;
    args.scales = x->scales;
    args.zero_points = zero_points;
    args.partial = plan.splits > 1 ? (int32_t *)workspace : NULL;
    args.rows = (uint32_t)rows;
    args.k_padded = (uint32_t)w->k_padded;
    args.tiles_m = (uint32_t)plan.tiles_m;
    args.tiles_n = (uint32_t)plan.tiles_n;
    args.steps = plan.steps;
    args.steps_per_split = plan.steps_per_split;
    cudaError_t rc = cudaErrorInvalidValue;
    switch (plan.tile) {
    case GEMM_I8_16X64:
        rc = gemm_i8_launch<gemm_i8_16x64>(args, plan.splits, stream);
        break;
    case GEMM_I8_32X64:
        rc = gemm_i8_launch<gemm_i8_32x64>(args, plan.splits, stream);
        break;
    case GEMM_I8_64X64:
        rc = gemm_i8_launch<gemm_i8_64x64>(args, plan.splits, stream);
        break;
    case GEMM_I8_64X128:
        rc = gemm_i8_launch<gemm_i8_64x128>(args, plan.splits, stream);
        break;
    case GEMM_I8_128X128:
        rc = gemm_i8_launch<gemm_i8_128x128>(args, plan.splits, stream);
        break;
    default:
        break;
    }
    if (rc == cudaSuccess && plan.splits > 1) {
        dim3 grid((unsigned)ceil_div(w->n, GEMM_I8_REDUCE_THREADS), (unsigned)rows);
        rc = LAUNCH(gemm_i8_reduce, grid, dim3(GEMM_I8_REDUCE_THREADS), 0, stream, args, plan.splits);
    }
    return rc;
}
