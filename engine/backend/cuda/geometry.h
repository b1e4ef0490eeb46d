/*
 * Launch geometry of the products: which tile, how many blocks, how k is shared out. Plain C++, so that tests see it.
 * Nothing here changes a bit of a result of 8-bit products; of float products only what depends on n and k alone does.
 */
#ifndef INFERD_CUDA_GEOMETRY_H
#define INFERD_CUDA_GEOMETRY_H

#include <stddef.h>
#include <stdint.h>

static inline size_t ceil_div(size_t a, size_t b) {
    return (a + b - 1) / b;
}

/* ---- GEMV: a block of 4 warps; `split` warps share 4 columns, each takes every split-th piece of k ---- */

enum { GEMV_WARPS = 4, GEMV_COLUMNS = 4 };

/* Few steps of k: each warp has columns of its own. Many: all four work on the same, so that a small n fills the
 * device. */
static inline unsigned gemv_split(size_t steps) {
    return steps >= 8 ? 4 : steps >= 4 ? 2 : 1;
}
/* Of bytes, whose sums are exact: a warp has at least the four steps that are under way at once, with one row or two. */
static inline unsigned gemv_i8_split(size_t steps) {
    return steps >= 16 ? 4 : steps >= 8 ? 2 : 1;
}
static inline size_t gemv_blocks(size_t n, unsigned split) {
    return ceil_div(n, GEMV_COLUMNS * (GEMV_WARPS / split));
}

/* ---- GEMM of bytes ---- */

enum gemm_i8_tile { GEMM_I8_16X64, GEMM_I8_32X64, GEMM_I8_64X64, GEMM_I8_64X128, GEMM_I8_128X128, GEMM_I8_TILES };

struct gemm_i8_shape {
    unsigned rows, columns, bytes; /* of k in one step */
};
static inline struct gemm_i8_shape gemm_i8_shape_of(enum gemm_i8_tile tile) {
    static const struct gemm_i8_shape shapes[] = {
        {16, 64, 128}, {32, 64, 128}, {64, 64, 128}, {64, 128, 128}, {128, 128, 64}};
    return shapes[tile];
}

struct gemm_i8_plan {
    enum gemm_i8_tile tile;
    size_t tiles_m, tiles_n;
    unsigned splits; /* of k; with more than one, partial sums [splits][rows][n] go through the workspace */
    unsigned steps, steps_per_split;
};

/*
 * Splits: with fewer tiles than multiprocessors some would stand idle. Time is taken as the steps of a split, longer as
 * soon as blocks share multiprocessors, plus what a block costs besides (its pipeline fills, its sums go out), plus the
 * second pass over the partial sums. The least wins, fewer splits if equal. (A model: not measured.)
 */
enum { GEMM_I8_MAX_SPLITS = 8, GEMM_I8_BLOCK_COST = 4, GEMM_I8_PASS_COST = 4 };

static inline unsigned gemm_i8_splits(int sm_count, size_t tiles, unsigned steps) {
    unsigned best = 1;
    size_t sms = sm_count > 0 ? (size_t)sm_count : 1, least = SIZE_MAX;
    if (tiles >= sms) {
        return 1;
    }
    for (unsigned s = 1; s <= GEMM_I8_MAX_SPLITS && s <= steps; s++) {
        unsigned per = (unsigned)ceil_div(steps, s);
        if (ceil_div(steps, per) != s) {
            continue; /* some would have nothing */
        }
        size_t blocks = tiles * s, pass = s > 1 ? GEMM_I8_PASS_COST + s : 0;
        size_t cost = per * (blocks > sms ? blocks : sms) + sms * (GEMM_I8_BLOCK_COST + pass);
        if (cost < least) {
            least = cost;
            best = s;
        }
    }
    return best;
}

static inline struct gemm_i8_plan gemm_i8_plan_of(int sm_count, size_t rows, size_t n, size_t k_padded) {
    struct gemm_i8_plan p;
    p.tile = rows <= 16    ? GEMM_I8_16X64
             : rows <= 32  ? GEMM_I8_32X64
             : rows <= 64  ? (n <= 4096 ? GEMM_I8_64X64 : GEMM_I8_64X128)
             : rows <= 128 ? (n < 8192 ? GEMM_I8_64X128 : GEMM_I8_128X128)
                           : GEMM_I8_128X128;
    struct gemm_i8_shape shape = gemm_i8_shape_of(p.tile);
    p.tiles_m = ceil_div(rows, shape.rows);
    p.tiles_n = ceil_div(n, shape.columns);
    p.steps = (unsigned)ceil_div(k_padded, shape.bytes);
    p.splits = gemm_i8_splits(sm_count, p.tiles_m * p.tiles_n, p.steps);
    p.steps_per_split = (unsigned)ceil_div(p.steps, p.splits);
    return p;
}

static inline size_t gemm_i8_partial_bytes(const struct gemm_i8_plan *p, size_t rows, size_t n) {
    return p->splits > 1 ? p->splits * rows * n * sizeof(int32_t) : 0;
}

/* ---- GEMM of floats ---- */

enum gemm_float_tile { GEMM_FLOAT_16X32, GEMM_FLOAT_16X64, GEMM_FLOAT_64X64, GEMM_FLOAT_128X128 };

static inline enum gemm_float_tile gemm_float_tile(size_t rows, size_t n, int sm_count) {
    if (rows <= 16) { /* the narrow one where blocks would be few, since each reads the rows of x again */
        return ceil_div(n, 64) < 2 * (size_t)sm_count ? GEMM_FLOAT_16X32 : GEMM_FLOAT_16X64;
    }
    return rows <= 64 || ceil_div(rows, 128) * ceil_div(n, 128) < (size_t)sm_count ? GEMM_FLOAT_64X64
                                                                                   : GEMM_FLOAT_128X128;
}

/*
 * The order in which blocks take tiles: down a group of up to 16 rows of tiles before going right, so that what runs at
 * the same time shares as much of x and W in the L2 cache as it can.
 */
struct tile_at {
    uint32_t m, n;
};
enum { TILE_GROUP = 16 };
#ifdef __CUDACC__
__host__ __device__
#endif
    static inline struct tile_at
    tile_of(uint32_t index, uint32_t tiles_m, uint32_t tiles_n) {
    uint32_t group = index / (TILE_GROUP * tiles_n), first = group * TILE_GROUP, in = index - first * tiles_n;
    uint32_t height = tiles_m - first;
    if (height > TILE_GROUP) {
        height = TILE_GROUP;
    }
    struct tile_at t = {first + in % height, in / height};
    return t;
}

#endif
