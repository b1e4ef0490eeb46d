/*
 * Float rows by weights of any type, for few rows: y[m][j] = sum over k of x[m][k] W[j][k] (+ bias), x BF16, sums in
 * F32. What takes the time is reading W once; it is decoded in registers (block_decode.cuh), exactly.
 *
 * A warp takes four columns, each lane the share of 8 elements that is its own of every 256 (of every 1024 where four
 * warps share the columns), the next one under way while this one is multiplied. In blocks a share is summed as
 * integers by x, then multiplied with the scale: sum += scale * (q . x) + min * (sum of x). The order of a sum depends
 * on k alone: over the shares of a lane, over lanes as warp_sums has it, over warps in order. I8 then has its scale.
 */
#include "product.cuh"

#include "block_decode.cuh"
#include "geometry.h"

struct gemv_float_args {
    struct product_part parts[3];
    uint32_t first_block[3]; /* as in gemv_i8.cu */
    const bf16 *x;           /* [rows][ldx] */
    size_t ldx;
    uint32_t rows, k, groups;
    uint32_t split;
    bool wide_w; /* of BF16: rows lie at multiples of 16 bytes */
};

struct gemv_float_shared {
    float sums[GEMV_WARPS][CUDA_GEMV_ROWS * GEMV_COLUMNS];
};

template <dtype T> struct gemv_share {
    float q[SHARE], scale[2], min[2];

    /* sum + (this share) . x */
    __device__ __forceinline__ float add(const float (&x)[SHARE], float sum_x0, float sum_x1, float sum) const {
        typedef decoder<T> D;
        if (D::SCALES == 0) {
            UNROLL for (int i = 0; i < SHARE; i++) {
                sum = fma_f32(q[i], x[i], sum);
            }
            return sum;
        }
        float dot[2] = {0, 0};
        UNROLL for (int i = 0; i < SHARE; i++) {
            float &d = dot[D::SCALES == 2 && i >= PIECE];
            d = fma_f32(q[i], x[i], d);
        }
        sum = fma_f32(scale[0], dot[0], sum);
        sum = D::MIN ? fma_f32(min[0], sum_x0, sum) : sum;
        if (D::SCALES == 2) {
            sum = fma_f32(scale[1], dot[1], sum);
            sum = D::MIN ? fma_f32(min[1], sum_x1, sum) : sum;
        }
        return sum;
    }
};

template <dtype T, int ROWS, bool WIDE>
static __global__ void __launch_bounds__(GEMV_WARPS *WARP, ROWS == 1 ? 4 : 3)
    gemv_float_kernel(const struct gemv_float_args args) {
    SHARED(struct gemv_float_shared, shared);
    typedef decoder<T> D;
    constexpr int V = ROWS * GEMV_COLUMNS;
    struct product_part part = args.parts[0];
    uint32_t block = blockIdx.x;
    UNROLL for (int i = 1; i < 3; i++) {
        if (blockIdx.x >= args.first_block[i]) {
            part = args.parts[i];
            block = blockIdx.x - args.first_block[i];
        }
    }
    uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, teams = GEMV_WARPS / args.split;
    size_t column = ((size_t)block * teams + warp / args.split) * GEMV_COLUMNS;
    decode_row w[GEMV_COLUMNS]; /* beyond the last column or row it stands in; its sums are not stored */
    UNROLL for (int c = 0; c < GEMV_COLUMNS; c++) {
        size_t j = column + (size_t)c < part.n ? column + (size_t)c : part.n - 1;
        w[c] = decode_row{part.w + j * part.row_bytes, args.k, WIDE && args.wide_w};
    }
    const bf16 *x[ROWS];
    UNROLL for (int r = 0; r < ROWS; r++) {
        x[r] = args.x + ((uint32_t)r < args.rows ? (uint32_t)r : args.rows - 1) * args.ldx;
    }

    float sums[V] = {};
    const uint32_t step = WARP / SHARES * args.split;
    const unsigned t = lane % SHARES;
    uint32_t group = warp % args.split * (WARP / SHARES) + lane / SHARES;
    typename D::raw raw[GEMV_COLUMNS] = {};
    if (has_share<T>(w[0], group, t)) {
        UNROLL for (int c = 0; c < GEMV_COLUMNS; c++) {
            raw[c] = D::load(w[c], group, t);
        }
    }
    for (; has_share<T>(w[0], group, t); group += step) {
        struct gemv_share<T> share[GEMV_COLUMNS];
        typename D::raw next[GEMV_COLUMNS] = {};
        if (has_share<T>(w[0], group + step, t)) {
            UNROLL for (int c = 0; c < GEMV_COLUMNS; c++) {
                next[c] = D::load(w[c], group + step, t);
            }
        }
        UNROLL for (int c = 0; c < GEMV_COLUMNS; c++) {
            D::decode(raw[c], group, t, share[c].q, share[c].scale, share[c].min);
            raw[c] = next[c];
        }
        UNROLL for (int r = 0; r < ROWS; r++) {
            float v[SHARE], sum_x0 = 0, sum_x1 = 0;
            load_x<T, WIDE>(x[r], args.k, group, t, v);
            if (D::MIN) {
                sum_x0 = add_f32(add_f32(v[0], v[1]), add_f32(v[2], v[3]));
                sum_x1 = add_f32(add_f32(v[4], v[5]), add_f32(v[6], v[7]));
                sum_x0 = D::SCALES == 1 ? add_f32(sum_x0, sum_x1) : sum_x0;
            }
            UNROLL for (int c = 0; c < GEMV_COLUMNS; c++) {
                sums[r * GEMV_COLUMNS + c] = share[c].add(v, sum_x0, sum_x1, sums[r * GEMV_COLUMNS + c]);
            }
        }
    }
    float sum = warp_sums<V>(sums);
    if (lane % (WARP / V) == 0) {
        shared.sums[warp][lane / (WARP / V)] = sum;
    }
    block_sync();
    if (threadIdx.x < teams * V) {
        uint32_t team = threadIdx.x / V, v = threadIdx.x % V, r = v / GEMV_COLUMNS;
        size_t j = ((size_t)block * teams + team) * GEMV_COLUMNS + v % GEMV_COLUMNS;
        sum = shared.sums[team * args.split][v];
        for (uint32_t s = 1; s < args.split; s++) {
            sum = add_f32(sum, shared.sums[team * args.split + s][v]);
        }
        if (r < args.rows && j < part.n) {
            product_store(part, r, j, product_float(part, j, sum, T == DTYPE_I8));
        }
    }
}

/* Rows of x that cannot be read 16 bytes at a time are taken one by one: no model has them, and the order is the same.
 */
template <dtype T>
static cudaError_t gemv_float_odd(struct gemv_float_args args, dim3 grid, dim3 block, size_t shared,
                                  cudaStream_t stream) {
    cudaError_t rc = cudaSuccess;
    for (uint32_t rows = args.rows; rc == cudaSuccess && rows > 0; rows--) {
        args.rows = 1;
        rc = LAUNCH((gemv_float_kernel<T, 1, false>), grid, block, shared, stream, args);
        args.x += args.ldx;
        for (struct product_part &part : args.parts) {
            part.y = (char *)part.y + part.ldy * (part.f32 ? sizeof(float) : sizeof(bf16));
        }
    }
    return rc;
}

template <dtype T>
static cudaError_t gemv_float_launch(const struct gemv_float_args &args, size_t blocks, cudaStream_t stream) {
    dim3 grid((unsigned)blocks), block(GEMV_WARPS * WARP);
    const size_t shared = sizeof(struct gemv_float_shared);
    if (!is_wide(args.x, args.ldx * sizeof(bf16)) || args.k % SHARE != 0) {
        return gemv_float_odd<T>(args, grid, block, shared, stream);
    }
    if (args.rows == 1) {
        return LAUNCH((gemv_float_kernel<T, 1, true>), grid, block, shared, stream, args);
    }
    if (args.rows == 2) {
        return LAUNCH((gemv_float_kernel<T, 2, true>), grid, block, shared, stream, args);
    }
    if (args.rows <= 4) {
        return LAUNCH((gemv_float_kernel<T, 4, true>), grid, block, shared, stream, args);
    }
    return LAUNCH((gemv_float_kernel<T, 8, true>), grid, block, shared, stream, args);
}

static cudaError_t gemv_float_type(enum dtype dtype, const struct gemv_float_args &args, size_t blocks,
                                   cudaStream_t stream) {
    switch (dtype) {
    case DTYPE_I8:
        return gemv_float_launch<DTYPE_I8>(args, blocks, stream);
    case DTYPE_BF16:
        return gemv_float_launch<DTYPE_BF16>(args, blocks, stream);
    case DTYPE_Q4_0:
        return gemv_float_launch<DTYPE_Q4_0>(args, blocks, stream);
    case DTYPE_Q4_1:
        return gemv_float_launch<DTYPE_Q4_1>(args, blocks, stream);
    case DTYPE_Q5_0:
        return gemv_float_launch<DTYPE_Q5_0>(args, blocks, stream);
    case DTYPE_Q5_1:
        return gemv_float_launch<DTYPE_Q5_1>(args, blocks, stream);
    case DTYPE_Q8_0:
        return gemv_float_launch<DTYPE_Q8_0>(args, blocks, stream);
    case DTYPE_Q4_K:
        return gemv_float_launch<DTYPE_Q4_K>(args, blocks, stream);
    case DTYPE_Q5_K:
        return gemv_float_launch<DTYPE_Q5_K>(args, blocks, stream);
    case DTYPE_Q6_K:
        return gemv_float_launch<DTYPE_Q6_K>(args, blocks, stream);
    default:
        return cudaErrorInvalidValue;
    }
}

/* The parts from the first on that have one type share a launch. */
extern "C" cudaError_t cuda_gemv_float(const struct cuda_device *device, const void *x, size_t ldx, size_t rows,
                                       const struct cuda_part *parts, size_t n_parts, cudaStream_t stream) {
    (void)device;
    cudaError_t rc = rows > CUDA_GEMV_ROWS ? cudaErrorInvalidValue : cudaSuccess;
    for (size_t i = 0; rc == cudaSuccess && rows > 0 && i < n_parts;) {
        const struct cuda_weight *w = parts[i].w;
        struct gemv_float_args args = {};
        args.x = (const bf16 *)x;
        args.ldx = ldx;
        args.rows = (uint32_t)rows;
        args.k = (uint32_t)w->k;
        args.split = gemv_split(ceil_div(w->k, (size_t)WARP * SHARE));
        args.wide_w = true;
        size_t blocks = 0, n = 0;
        for (; n < 3; n++) { /* none */
            args.first_block[n] = UINT32_MAX;
        }
        for (n = 0; n < 3 && i < n_parts && parts[i].w->dtype == w->dtype; n++, i++) {
            args.parts[n] = product_part_of(&parts[i]);
            args.first_block[n] = (uint32_t)blocks;
            args.wide_w = args.wide_w && is_wide(args.parts[n].w, args.parts[n].row_bytes);
            blocks += gemv_blocks(parts[i].w->n, args.split);
        }
        rc = blocks > INT32_MAX ? cudaErrorInvalidConfiguration : gemv_float_type(w->dtype, args, blocks, stream);
    }
    return rc;
}
