/*
 * linear_block.h's product on the tile unit, equal to the bit: the sums of a block are exact integers there as well,
 * and the floats behind them take the same steps.
 *
 * A block of 32 fills half a tile along k (16 rows of x by 32 bytes, 8 quadruples of k by 16 outputs), for the next
 * one has other scales; of Q6_K a quarter. It takes two products, with the h and the l of x: 32 cycles of the unit for
 * 8192 multiplications, beside some 70 instructions that take the sums out, scale and add them. Plain AVX-512 VNNI needs
 * 256 for the products alone. (BF16 tiles would sum over all of k and need no scaling, but round weights and
 * activations to 8 bits: an error that this type of weights was spared.)
 *
 * Weights of 16 outputs are unpacked once into a panel in the cache, as signed bytes, for all rows of the task.
 */
#include "amx.h"

enum {
    AMX_ROWS = 16,
    AMX_BLOCKS = (int)(LINEAR_PANEL * LINEAR_CHUNK * sizeof(float) / sizeof(struct block_panel)) / 8 * 8, /* of a panel */
};

/* Tiles 0 and 1: sums; 2 and 3: h and l of x; 4: weights. */
_Alignas(64) static const struct amx_config amx_blocks_of_32 = {
    .palette = 1, .row_bytes = {64, 64, 32, 32, 64}, .rows = {16, 16, 16, 16, 8}};
_Alignas(64) static const struct amx_config amx_blocks_of_16 = {
    .palette = 1, .row_bytes = {64, 64, 16, 16, 64}, .rows = {16, 16, 16, 16, 4}};

typedef void block_unpack_fn(const uint8_t *halves, const uint8_t *dwords, size_t n_blocks, struct block_panel *out);

static const struct block_amx {
    block_unpack_fn *unpack;
    bool min, split;
} block_amx[DTYPE_COUNT] = {
    [DTYPE_Q4_0] = {.unpack = block_unpack_q4_0},
    [DTYPE_Q4_1] = {.unpack = block_unpack_q4_1, .min = true},
    [DTYPE_Q5_0] = {.unpack = block_unpack_q5_0},
    [DTYPE_Q5_1] = {.unpack = block_unpack_q5_1, .min = true},
    [DTYPE_Q8_0] = {.unpack = block_unpack_q8_0},
    [DTYPE_Q4_K] = {.unpack = block_unpack_q4_k, .min = true},
    [DTYPE_Q5_K] = {.unpack = block_unpack_q5_k, .min = true},
    [DTYPE_Q6_K] = {.unpack = block_unpack_q6_k, .split = true},
};

/* y[AMX_ROWS] += the products of n blocks of 16 rows: x is the first block's h, meta its scales, of the first row. */
VEC_INLINE void block_amx_tile(const bool min, const bool split, const struct block_panel *w, size_t n,
                               const uint8_t *x, const uint8_t *meta, size_t stride, bf *y) {
    const unsigned parts = split ? 2 : 1;
    _Alignas(64) int32_t high[AMX_ROWS][16], low[AMX_ROWS][16];
    for (size_t b = 0; b < n; b++, w++, x += 2 * QUANT_BLOCK, meta += sizeof(struct quant_meta)) {
        for (unsigned p = 0; p < parts; p++) {
            amx_zero(0);
            amx_zero(1);
            amx_load(4, w->quants[4 * p], 64);
            amx_load(2, x + 16 * p, stride);
            amx_dpbssd(0, 2, 4);
            amx_load(3, x + QUANT_BLOCK + 16 * p, stride);
            amx_dpbssd(1, 3, 4);
            amx_store(0, high, 64);
            amx_store(1, low, 64);
            const bf d = bf_load(w->d[p]), m = bf_load(w->d[1]);
            UNROLL for (unsigned r = 0; r < AMX_ROWS; r++) {
                struct quant_meta q;
                memcpy(&q, meta + r * stride, sizeof q);
                bq sum = bq_add(bq_left7(bq_load((const uint8_t *)high[r])), bq_load((const uint8_t *)low[r]));
                y[r] = bf_fma(bf_from(sum), bf_mul(d, bf_set1(q.scale)), y[r]);
                if (min) {
                    y[r] = bf_fma(m, bf_set1(q.sum), y[r]);
                }
            }
        }
    }
}

/* The rows of x from m on, with blocks [b, b + n) of the 16 outputs from column c on, whose panel is w. */
static void block_amx_rows(const struct linear_tile *t, size_t m, size_t c, const struct block_panel *w, size_t b,
                           size_t n) {
    const struct block_amx *type = &block_amx[t->w->dtype];
    const uint8_t *x = t->quants + m * t->quants_stride + b * 2 * QUANT_BLOCK;
    const uint8_t *meta = t->quants + m * t->quants_stride + 2 * t->w->k + b * sizeof(struct quant_meta);
    float *out = t->y + m * t->ldy + c;
    bool last = (b + n) * QUANT_BLOCK == t->w->k;
    bf y[AMX_ROWS];
    UNROLL for (unsigned r = 0; r < AMX_ROWS; r++) {
        y[r] = b == 0 ? bf_zero() : bf_load(out + r * t->ldy);
    }
    if (type->split) {
        block_amx_tile(false, true, w, n, x, meta, t->quants_stride, y);
    } else if (type->min) {
        block_amx_tile(true, false, w, n, x, meta, t->quants_stride, y);
    } else {
        block_amx_tile(false, false, w, n, x, meta, t->quants_stride, y);
    }
    UNROLL for (unsigned r = 0; r < AMX_ROWS; r++) {
        bf_store(out + r * t->ldy, last && t->bias ? bf_add(y[r], bf_load(t->bias + c)) : y[r]);
    }
}

static void linear_block_amx(const struct linear_tile *t) {
    const struct weight *w = t->w;
    struct block_layout l;
    struct block_panel *panel = (struct block_panel *)(void *)t->scratch;
    size_t cols = (t->n1 - t->n0) / BLOCK_GROUP * BLOCK_GROUP, rows = t->rows / AMX_ROWS * AMX_ROWS;
    size_t sub = dtype_info(w->dtype)->block / QUANT_BLOCK, blocks = w->k / QUANT_BLOCK;
    size_t bytes = block_group_bytes(w->dtype, w->k);
    if (rows == 0 || cols == 0) {
        linear_block(t);
        return;
    }
    block_layout(w->dtype, &l);
    amx_begin(block_amx[w->dtype].split ? &amx_blocks_of_16 : &amx_blocks_of_32);
    for (size_t n = t->n0; n < t->n0 + cols; n += BLOCK_GROUP) {
        const uint8_t *halves = (const uint8_t *)w->packed + n / BLOCK_GROUP * bytes;
        const uint8_t *dwords = halves + bytes - blocks / sub * l.dwords * BLOCK_GROUP * 4;
        for (size_t b = 0; b < blocks; b += AMX_BLOCKS) {
            size_t some = min_size(AMX_BLOCKS, blocks - b), at = b / sub;
            block_amx[w->dtype].unpack(halves + at * l.halves * BLOCK_GROUP * 2, dwords + at * l.dwords * BLOCK_GROUP * 4,
                                       some / sub, panel);
            for (size_t m = 0; m < rows; m += AMX_ROWS) {
                block_amx_rows(t, m, n, panel, b, some);
            }
        }
    }
    amx_end();
    struct linear_tile rest = *t; /* columns that fill no group, rows that fill no tile */
    rest.rows = rows;
    rest.n0 += cols;
    linear_block(&rest);
    rest = *t;
    rest.quants += rows * t->quants_stride;
    rest.y += rows * t->ldy;
    rest.rows -= rows;
    linear_block(&rest);
}
