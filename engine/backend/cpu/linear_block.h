/*
 * y = x W^T (+ bias) for GGUF blocks, multiplied from their own bits in integers.
 *
 * Activations become integers of 14 bits, a scale for each 32 of them: x = s * (128 h + l), |h| <= 64, -64 <= l < 64.
 * (Eight bits would take half the time, but move the next token's distribution 500 times as far from the exact one,
 * KL divergence 3e-3 on SmolLM2-135M, and change greedy choices.) Two dot products of bytes, with h and with l, give
 * the exact product of a block; what is added to weights to make them unsigned is taken off by the sum of the block's
 * activations, exactly as well. So for each output
 *
 *   y = 0;  for each block b of 32 in rising k:  y = fma(float(sum of w x), d_b * s_b, y)
 *                                                y = fma(m_b, s_b * sum of x, y)            where the type has an m
 *
 * (in Q6_K two halves of 16, with a d each). No sum depends on rows, threads, tasks, or the variant: AVX2, AVX-512,
 * VNNI and AMX give equal bytes.
 *
 * Weights are packed at load (block_pack.h). A tile is up to BLOCK_ROWS rows of x by the outputs of a vector; weights
 * are unpacked in registers for each tile, which costs 12 instructions beside 16 products a row.
 */
#include "block_pack.h"
#include "block_vec.h"
#include "blocks.h"
#include "tile.h"

#include "block_quant.h"

#if BV_COLS == 16
#define BLOCK_ROWS 6
#else
#define BLOCK_ROWS 3
#endif

enum { BLOCK_PREFETCH = 8192 }; /* bytes of weights asked for ahead of their use */

/* The quants of vector u (elements 4u .. 4u + 3 of every output) of sub-block s, and its scales; p: the block's
 * dwords, h: its halves, both from the tile's first column on. */
VEC_INLINE bq block_dword(const uint8_t *p, size_t i) {
    return bq_load(p + i * 4 * BLOCK_GROUP);
}
VEC_INLINE bf block_half(const uint8_t *h, size_t i) {
    return bf_half(h + i * 2 * BLOCK_GROUP);
}
VEC_INLINE bq block_nibble(bq a, unsigned shift) {
    return bq_and(__builtin_constant_p(shift) && shift == 0 ? a : bq_right(a, shift), bq_set1(0x0f0f0f0f));
}
/* 16 in each byte of which bit n, a constant or not, is set */
VEC_INLINE bq block_fifth(bq a, const unsigned n) {
    return bq_and(n > 4 ? bq_right(a, n - 4) : bq_left(a, 4 - n), bq_set1(0x10101010));
}
VEC_INLINE bq block_fifth_at(bq a, unsigned n) {
    return bq_left(bq_and(bq_right(a, n), bq_set1(0x01010101)), 4);
}

VEC_INLINE bq q4_quants(const uint8_t *p, unsigned s, unsigned u) {
    (void)s;
    return block_nibble(block_dword(p, u % 4), u / 4 * 4);
}
VEC_INLINE bq q5_quants(const uint8_t *p, unsigned s, unsigned u) {
    (void)s;
    return bq_or(block_nibble(block_dword(p, 1 + u % 4), u / 4 * 4), block_fifth(block_dword(p, 0), u));
}
VEC_INLINE bq q8_quants(const uint8_t *p, unsigned s, unsigned u) {
    (void)s;
    return block_dword(p, u);
}
VEC_INLINE bq q4_k_quants(const uint8_t *p, unsigned s, unsigned u) {
    return block_nibble(block_dword(p, 3 + s / 2 * 8 + u), s % 2 * 4);
}
VEC_INLINE bq q5_k_quants(const uint8_t *p, unsigned s, unsigned u) {
    return bq_or(block_nibble(block_dword(p, 11 + s / 2 * 8 + u), s % 2 * 4), block_fifth_at(block_dword(p, 3 + u), s));
}
VEC_INLINE bq q6_k_quants(const uint8_t *p, unsigned s, unsigned u) {
    bq low = block_nibble(block_dword(p, s / 4 * 16 + s % 2 * 8 + u), s % 4 / 2 * 4);
    bq high = bq_and(bq_right(block_dword(p, 32 + s / 4 * 8 + u), s % 4 * 2), bq_set1(0x03030303));
    return bq_or(low, bq_left(high, 4));
}

VEC_INLINE void one_scale(const uint8_t *p, const uint8_t *h, unsigned s, bf *d) {
    (void)p, (void)s;
    d[0] = block_half(h, 0);
}
VEC_INLINE void two_scales(const uint8_t *p, const uint8_t *h, unsigned s, bf *d) {
    (void)p, (void)s;
    d[0] = block_half(h, 0);
    d[1] = block_half(h, 1);
}
/* As k_scales_unpack(): sub-blocks 0 to 3 have six bits in one place, the others in two. */
VEC_INLINE void k_scales(const uint8_t *p, const uint8_t *h, unsigned s, bf *d) {
    bq a = block_dword(p, 0), b = block_dword(p, 1), scale, minimum;
    const bq six = bq_set1(0x3f), four = bq_set1(0x0f), upper = bq_set1(0x30);
    if (s < 4) {
        scale = bq_and(bq_right(a, 8 * s), six);
        minimum = bq_and(bq_right(b, 8 * s), six);
    } else {
        bq c = block_dword(p, 2);
        unsigned at = 8 * (s - 4);
        scale = bq_or(bq_and(bq_right(c, at), four), bq_and(bq_right(a, at + 2), upper));
        minimum = bq_or(bq_and(bq_right(c, at + 4), four), bq_and(bq_right(b, at + 2), upper));
    }
    d[0] = bf_mul(block_half(h, 0), bf_from(scale));
    d[1] = bf_mul(block_half(h, 1), bf_mul(bf_from(minimum), bf_set1(-1)));
}
VEC_INLINE void q6_k_scales(const uint8_t *p, const uint8_t *h, unsigned s, bf *d) {
    bq four = block_dword(p, 48 + s / 2);
    bf all = block_half(h, 0);
    d[0] = bf_mul(all, bf_from(bq_low_byte_signed(bq_right(four, s % 2 * 16))));
    d[1] = bf_mul(all, bf_from(bq_low_byte_signed(bq_right(four, s % 2 * 16 + 8))));
}

/* What the kernel needs to know of a type, constants all. */
struct block_traits {
    unsigned halves, dwords; /* as in struct block_layout */
    unsigned sub;            /* sub-blocks of 32 in a block */
    int32_t offset;          /* what was added to its weights */
    bool min;                /* d[1] is the m of 32 elements */
    bool split;              /* d[0] and d[1] scale 16 elements each */
    bool wide;               /* quants of 8 bits */
};

#if defined(VARIANT_AMX)
/* Sixteen outputs' 32 elements of k, unpacked (linear_block_amx.h). */
struct block_panel {
    _Alignas(64) int8_t quants[8][64]; /* [k / 4][output][4 of k] */
    float d[2][BLOCK_GROUP];
};
#endif

#define T q4_0
#define T_QUANTS q4_quants
#define T_SCALES one_scale
#define T_TRAITS {.halves = 1, .dwords = 4, .sub = 1, .offset = 8}
#include "linear_block_type.h"
#define T q4_1
#define T_QUANTS q4_quants
#define T_SCALES two_scales
#define T_TRAITS {.halves = 2, .dwords = 4, .sub = 1, .min = true}
#include "linear_block_type.h"
#define T q5_0
#define T_QUANTS q5_quants
#define T_SCALES one_scale
#define T_TRAITS {.halves = 1, .dwords = 5, .sub = 1, .offset = 16}
#include "linear_block_type.h"
#define T q5_1
#define T_QUANTS q5_quants
#define T_SCALES two_scales
#define T_TRAITS {.halves = 2, .dwords = 5, .sub = 1, .min = true}
#include "linear_block_type.h"
#define T q8_0
#define T_QUANTS q8_quants
#define T_SCALES one_scale
#define T_TRAITS {.halves = 1, .dwords = 8, .sub = 1, .offset = 128, .wide = true}
#include "linear_block_type.h"
#define T q4_k
#define T_QUANTS q4_k_quants
#define T_SCALES k_scales
#define T_TRAITS {.halves = 2, .dwords = 35, .sub = 8, .min = true}
#include "linear_block_type.h"
#define T q5_k
#define T_QUANTS q5_k_quants
#define T_SCALES k_scales
#define T_TRAITS {.halves = 2, .dwords = 43, .sub = 8, .min = true}
#include "linear_block_type.h"
#define T q6_k
#define T_QUANTS q6_k_quants
#define T_SCALES q6_k_scales
#define T_TRAITS {.halves = 1, .dwords = 52, .sub = 8, .offset = 32, .split = true}
#include "linear_block_type.h"

typedef void block_tile_fn(size_t rows, const uint8_t *halves, const uint8_t *dwords, size_t n_blocks, const uint8_t *x,
                           size_t stride, bool first, float *y);

static block_tile_fn *const block_tiles[DTYPE_COUNT] = {
    [DTYPE_Q4_0] = block_tile_q4_0, [DTYPE_Q4_1] = block_tile_q4_1, [DTYPE_Q5_0] = block_tile_q5_0,
    [DTYPE_Q5_1] = block_tile_q5_1, [DTYPE_Q8_0] = block_tile_q8_0, [DTYPE_Q4_K] = block_tile_q4_k,
    [DTYPE_Q5_K] = block_tile_q5_k, [DTYPE_Q6_K] = block_tile_q6_k,
};

/* y[rows][BV_COLS], as many columns as there are */
static void block_store(const struct linear_tile *t, size_t m, size_t rows, size_t n, const float *y) {
    size_t cols = n < t->n1 ? min_size(BV_COLS, t->n1 - n) : 0;
    for (size_t r = 0; r < rows; r++, y += BV_COLS) {
        float *out = t->y + (m + r) * t->ldy + n;
        if (cols == BV_COLS) {
            bf sum = bf_load(y);
            bf_store(out, t->bias ? bf_add(sum, bf_load(t->bias + n)) : sum);
            continue;
        }
        for (size_t c = 0; c < cols; c++) {
            out[c] = t->bias ? y[c] + t->bias[n + c] : y[c];
        }
    }
}

static void linear_block(const struct linear_tile *t) {
    const struct weight *w = t->w;
    struct block_layout l;
    size_t block = dtype_info(w->dtype)->block, n_blocks = w->k / block, bytes = block_group_bytes(w->dtype, w->k);
    size_t tiles = (t->rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
    block_layout(w->dtype, &l);
    for (size_t n = t->n0; n < t->n1; n += BV_COLS) {
        const uint8_t *halves = (const uint8_t *)w->packed + n / BLOCK_GROUP * bytes;
        const uint8_t *dwords = halves + bytes - n_blocks * l.dwords * BLOCK_GROUP * 4;
        for (size_t i = 0, m = 0; i < tiles; i++) { /* even tiles */
            float y[BLOCK_ROWS * BV_COLS];
            size_t rows = (t->rows - m) / (tiles - i);
            block_tiles[w->dtype](rows, halves + n % BLOCK_GROUP * 2, dwords + n % BLOCK_GROUP * 4, n_blocks,
                                  t->quants + m * t->quants_stride, t->quants_stride, i == 0, y);
            block_store(t, m, rows, n, y);
            m += rows;
        }
    }
}
