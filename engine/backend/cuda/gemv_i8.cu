/*
 * W8A8 for few rows: y[m][j] = s_token[m] s_channel[j] (sum over k of q[m][k] W[j][k]) (+ bias), the sum exact in 32
 * bits by dp4a. What takes the time is reading W once.
 *
 * A warp takes four columns: its lanes read 16 bytes each side by side, of several pieces at once, and multiply them
 * with the same bytes of every row of x, which come from the L1 cache. The partial sums of all rows and columns are
 * added over the lanes together (warp_sums), over the warps that share k in shared memory. The parts (q, k, v or gate,
 * up) are one grid: blocks from first_block on belong to a part.
 */
#include "geometry.h"
#include "product.cuh"

struct gemv_i8_args {
    struct product_part parts[3];
    uint32_t first_block[3]; /* of each part; of those there are not: behind the last */
    const int8_t *x;         /* [rows][ldx] */
    size_t ldx;
    const float *scales;        /* [rows] */
    const int32_t *zero_points; /* [rows] or NULL */
    uint32_t rows, pieces;      /* 16 bytes of k */
    uint32_t split;
};

struct gemv_i8_shared {
    int32_t sums[GEMV_WARPS][CUDA_GEMV_ROWS * GEMV_COLUMNS];
};

/* U pieces of all columns are under way at once. */
template <int ROWS, int U>
static __device__ __forceinline__ void gemv_i8_pieces(int (&sums)[ROWS * GEMV_COLUMNS], const int8_t *const (&x)[ROWS],
                                                      const unsigned char *const (&w)[GEMV_COLUMNS], size_t at,
                                                      size_t stride) {
    uint4 wv[U][GEMV_COLUMNS];
    UNROLL for (int u = 0; u < U; u++) {
        UNROLL for (int c = 0; c < GEMV_COLUMNS; c++) {
            wv[u][c] = load_16(w[c] + at + (size_t)u * stride);
        }
    }
    UNROLL for (int u = 0; u < U; u++) {
        UNROLL for (int r = 0; r < ROWS; r++) {
            uint4 xv = load_16(x[r] + at + (size_t)u * stride);
            UNROLL for (int c = 0; c < GEMV_COLUMNS; c++) {
                int s = sums[r * GEMV_COLUMNS + c];
                s = dot_i8(xv.x, wv[u][c].x, s);
                s = dot_i8(xv.y, wv[u][c].y, s);
                s = dot_i8(xv.z, wv[u][c].z, s);
                sums[r * GEMV_COLUMNS + c] = dot_i8(xv.w, wv[u][c].w, s);
            }
        }
    }
}

template <int ROWS>
static __global__ void __launch_bounds__(GEMV_WARPS *WARP, ROWS <= 4 ? 4 : 3)
    gemv_i8_kernel(const struct gemv_i8_args args) {
    SHARED(struct gemv_i8_shared, shared);
    constexpr int V = ROWS * GEMV_COLUMNS, U = ROWS <= 2 ? 4 : 2;
    struct product_part part = args.parts[0];
    uint32_t block = blockIdx.x;
    UNROLL for (int i = 1; i < 3; i++) {
        if (blockIdx.x >= args.first_block[i]) {
            part = args.parts[i];
            block = blockIdx.x - args.first_block[i];
        }
    }
    uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, groups = GEMV_WARPS / args.split;
    size_t column = ((size_t)block * groups + warp / args.split) * GEMV_COLUMNS;
    const unsigned char *w[GEMV_COLUMNS]; /* beyond the last column or row it stands in; its sums are not stored */
    UNROLL for (int c = 0; c < GEMV_COLUMNS; c++) {
        size_t j = column + (size_t)c < part.n ? column + (size_t)c : part.n - 1;
        w[c] = part.w + j * part.row_bytes;
    }
    const int8_t *x[ROWS];
    UNROLL for (int r = 0; r < ROWS; r++) {
        x[r] = args.x + ((uint32_t)r < args.rows ? (uint32_t)r : args.rows - 1) * args.ldx;
    }
    int sums[V] = {};
    uint32_t stride = args.split * WARP, piece = warp % args.split * WARP + lane;
    for (; piece + (U - 1) * stride < args.pieces; piece += U * stride) {
        gemv_i8_pieces<ROWS, U>(sums, x, w, (size_t)piece * 16, (size_t)stride * 16);
    }
    for (; piece < args.pieces; piece += stride) {
        gemv_i8_pieces<ROWS, 1>(sums, x, w, (size_t)piece * 16, 0);
    }
    int sum = warp_sums<V>(sums);
    if (lane % (WARP / V) == 0) {
        shared.sums[warp][lane / (WARP / V)] = sum;
    }
    block_sync();
    if (threadIdx.x < groups * V) {
        uint32_t group = threadIdx.x / V, v = threadIdx.x % V, r = v / GEMV_COLUMNS;
        size_t j = ((size_t)block * groups + group) * GEMV_COLUMNS + v % GEMV_COLUMNS;
        sum = 0;
        for (uint32_t s = 0; s < args.split; s++) {
            sum = sum_of(sum, shared.sums[group * args.split + s][v]);
        }
        if (r < args.rows && j < part.n) {
            int32_t zero_point = args.zero_points ? args.zero_points[r] : part.zero_point;
            product_store(part, r, j, product_i8(part, j, sum, zero_point, args.scales[r]));
        }
    }
}

extern "C" cudaError_t cuda_gemv_i8(const struct cuda_device *device, const struct rows_i8 *x,
                                    const int32_t *zero_points, size_t rows, const struct cuda_part *parts,
                                    size_t n_parts, cudaStream_t stream) {
    (void)device;
    if (rows == 0 || n_parts == 0) {
        return cudaSuccess;
    }
    if (rows > CUDA_GEMV_ROWS || n_parts > 3) {
        return cudaErrorInvalidValue;
    }
    struct gemv_i8_args args = {};
    args.x = x->q;
    args.ldx = x->ld;
    args.scales = x->scales;
    args.zero_points = zero_points;
    args.rows = (uint32_t)rows;
    args.pieces = (uint32_t)(parts[0].w->k_padded / 16);
    args.split = gemv_i8_split(ceil_div(args.pieces, WARP));
    size_t blocks = 0;
    for (size_t i = 0; i < 3; i++) {
        args.first_block[i] = (uint32_t)blocks;
        if (i < n_parts) {
            args.parts[i] = product_part_of(&parts[i]);
            blocks += gemv_blocks(parts[i].w->n, args.split);
        }
    }
    if (blocks > INT32_MAX) {
        return cudaErrorInvalidConfiguration;
    }
    dim3 grid((unsigned)blocks), block(GEMV_WARPS * WARP);
    const size_t shared = sizeof(struct gemv_i8_shared);
    if (rows == 1) {
        return LAUNCH(gemv_i8_kernel<1>, grid, block, shared, stream, args);
    }
    if (rows == 2) {
        return LAUNCH(gemv_i8_kernel<2>, grid, block, shared, stream, args);
    }
    if (rows <= 4) {
        return LAUNCH(gemv_i8_kernel<4>, grid, block, shared, stream, args);
    }
    return LAUNCH(gemv_i8_kernel<8>, grid, block, shared, stream, args);
}
