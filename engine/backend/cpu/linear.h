/*
 * y = x W^T (+ bias): the kernel behind `linear`, compiled once a variant.
 *
 * The order of a sum. The k elements are cut into chunks of LINEAR_CHUNK; a chunk's product is sixteen lanes of fused
 * multiply-adds in rising k, folded by v16_sum's tree; the chunks are added in order, then the bias. Every path below
 * keeps this order, and an element's value is the same in all of them (blocks.h), so their results are equal to the
 * bit.
 *
 * Few rows: weights are unpacked in registers and used at once (`direct`): each is read once, from memory, and that
 * is what takes the time. More rows: a panel of weight rows is unpacked once into a buffer that the L2 cache holds,
 * and tiles of TILE_ROWS x TILE_COLS sums in registers run over it: then arithmetic takes the time.
 */
#include "tile.h"

/*
 * FEW_ROWS: rows up to which weights are unpacked in registers, again for each group of DIRECT_ROWS; from there on
 * unpacking them once into memory is cheaper. ONE_COLS and DIRECT_COLS: weight rows side by side with one row of x and
 * with more: as many sums as there are registers for.
 */
#if defined(VARIANT_AVX512)
#include "dequant_avx512.h"
#define FEW_ROWS 12
#define DIRECT_ROWS 4
#define DIRECT_COLS 4
#define ONE_COLS 4
#elif defined(VARIANT_AVX2)
#include "dequant_avx2.h"
#define FEW_ROWS 6
#define DIRECT_ROWS 3
#define DIRECT_COLS 2
#define ONE_COLS 4
#else
#include "dequant_generic.h"
#define FEW_ROWS 0
#endif

VEC_INLINE v16 f32_tail(const uint8_t *p, size_t n) {
    float t[16] = {0};
    memcpy(t, p, n * sizeof *t);
    return v16_load(t);
}

#if FEW_ROWS > 0
enum { DIRECT_SUMS = DIRECT_ROWS * DIRECT_COLS > ONE_COLS ? DIRECT_ROWS *DIRECT_COLS : ONE_COLS };
#endif

/* Bytes ahead of what is read: as many as arrive in the time of a memory access. */
#ifndef PREFETCH_AHEAD
#define PREFETCH_AHEAD 1024
#endif

#define T f32
#define T_TAIL f32_tail
#include "linear_type.h"
#define T f16
#define T_TAIL v16_load_f16_n
#include "linear_type.h"
#define T bf16
#define T_TAIL v16_load_bf16_n
#include "linear_type.h"
#define T q4_0
#include "linear_type.h"
#define T q4_1
#include "linear_type.h"
#define T q5_0
#include "linear_type.h"
#define T q5_1
#include "linear_type.h"
#define T q8_0
#include "linear_type.h"
#define T q4_k
#include "linear_type.h"
#define T q5_k
#include "linear_type.h"
#define T q6_k
#include "linear_type.h"

#if FEW_ROWS > 0
#define DIRECT(T) .direct = direct_##T,
#else
#define DIRECT(T)
#endif
#define TYPE(T)                                                                                                        \
    { .block = T##_BLOCK, .bytes = T##_BYTES, .unpack = unpack_##T, DIRECT(T) }

static const struct linear_type {
    size_t block, bytes; /* offsets of a chunk come from these: LINEAR_CHUNK is a multiple of every block */
    void (*unpack)(const uint8_t *p, size_t n, float *out);
#if FEW_ROWS > 0
    void (*direct)(size_t rows, size_t cols, const uint8_t *const *w, size_t n, const float *x, size_t ldx,
                   float *part);
#endif
} linear_types[DTYPE_COUNT] = {
    [DTYPE_F32] = TYPE(f32),   [DTYPE_F16] = TYPE(f16),   [DTYPE_BF16] = TYPE(bf16), [DTYPE_Q4_0] = TYPE(q4_0),
    [DTYPE_Q4_1] = TYPE(q4_1), [DTYPE_Q5_0] = TYPE(q5_0), [DTYPE_Q5_1] = TYPE(q5_1), [DTYPE_Q8_0] = TYPE(q8_0),
    [DTYPE_Q4_K] = TYPE(q4_k), [DTYPE_Q5_K] = TYPE(q5_k), [DTYPE_Q6_K] = TYPE(q6_k),
};

static void dequantise(enum dtype dtype, const void *row, size_t n, float *out) {
    const struct linear_type *type = &linear_types[dtype];
    for (size_t k = 0; k < n; k += LINEAR_CHUNK) {
        const uint8_t *p = (const uint8_t *)row + k / type->block * type->bytes;
        size_t len = min_size(LINEAR_CHUNK, n - k), whole = len / 16 * 16;
        type->unpack(p, whole, out + k);
        if (whole < len) { /* F32, F16 or BF16, for blocks are multiples of 16 */
            float rest[16];
            type->unpack(p + whole / type->block * type->bytes, len - whole, rest);
            memcpy(out + k + whole, rest, (len - whole) * sizeof *out);
        }
    }
}

#if FEW_ROWS > 0
/* total[r][c] = x[r] . w[c] for `rows` <= DIRECT_ROWS rows and `cols` weight rows, all of k. */
static void direct_sums(const struct linear_tile *t, size_t m, size_t rows, const uint8_t *const *w, size_t cols,
                        float *total) {
    const struct linear_type *type = &linear_types[t->w->dtype];
    for (size_t k = 0; k < t->w->k; k += LINEAR_CHUNK) {
        const uint8_t *p[ONE_COLS];
        float part[DIRECT_SUMS];
        for (size_t c = 0; c < cols; c++) {
            p[c] = w[c] + k / type->block * type->bytes;
        }
        type->direct(rows, cols, p, min_size(LINEAR_CHUNK, t->w->k - k), t->x + m * t->ldx + k, t->ldx, part);
        for (size_t j = 0; j < rows * cols; j++) {
            total[j] = k == 0 ? part[j] : total[j] + part[j];
        }
    }
}

/*
 * Weight rows are taken as `cols` streams side by side, each through its own run of rows: hardware prefetches a long
 * stream. Rows of x go in even groups over the same weight rows, which are in the cache from the second group on.
 */
static void linear_direct(const struct linear_tile *t) {
    const struct weight *w = t->w;
    size_t groups = (t->rows + DIRECT_ROWS - 1) / DIRECT_ROWS, group = (t->rows + groups - 1) / groups;
    size_t cols = group == 1 ? ONE_COLS : DIRECT_COLS, run = (t->n1 - t->n0 + cols - 1) / cols;
    for (size_t i = 0; i < run; i++) {
        const uint8_t *rows[ONE_COLS];
        for (size_t c = 0; c < cols; c++) {
            /* Beyond the end the last row stands in; its sums are not stored. */
            rows[c] = (const uint8_t *)w->data + min_size(t->n0 + c * run + i, t->n1 - 1) * w->row_bytes;
        }
        for (size_t m = 0; m < t->rows; m += group) {
            float total[DIRECT_SUMS] = {0};
            size_t n_rows = min_size(group, t->rows - m);
            direct_sums(t, m, n_rows, rows, cols, total);
            for (size_t c = 0; c < cols; c++) {
                size_t n = t->n0 + c * run + i;
                for (size_t r = 0; r < n_rows && n < t->n1; r++) {
                    float sum = total[r * cols + c];
                    t->y[(m + r) * t->ldy + n] = t->bias ? sum + t->bias[n] : sum;
                }
            }
        }
    }
}
#endif

/* y[r][c] = the sum so far (+ part, + bias if this is the last piece of k), `rows` x `cols` of a tile */
VEC_INLINE void store_tile(const struct linear_tile *t, size_t m, size_t n, size_t rows, size_t cols, const float *part,
                           bool first, bool last) {
    for (size_t r = 0; r < rows; r++) {
        float *y = t->y + (m + r) * t->ldy + n;
        for (size_t c = 0; c < cols; c++) {
            float sum = first ? part[r * TILE_COLS + c] : y[c] + part[r * TILE_COLS + c];
            y[c] = last && t->bias ? sum + t->bias[n + c] : sum;
        }
    }
}

static void linear_panel(const struct linear_tile *t, size_t n, size_t cols) {
    const struct weight *w = t->w;
    const struct linear_type *type = &linear_types[w->dtype];
    for (size_t k = 0; k < w->k; k += LINEAR_CHUNK) {
        size_t len = min_size(LINEAR_CHUNK, w->k - k);
        bool first = k == 0, last = k + len == w->k;
        for (size_t c = 0; c < cols; c++) {
            const uint8_t *row = (const uint8_t *)w->data + (n + c) * w->row_bytes;
            type->unpack(row + k / type->block * type->bytes, len, t->scratch + c * LINEAR_CHUNK);
        }
        for (size_t m = 0; m < t->rows; m += TILE_ROWS) {
            size_t rows = min_size(TILE_ROWS, t->rows - m);
            for (size_t c = 0; c < cols; c += TILE_COLS) {
                float part[TILE_ROWS * TILE_COLS];
                tile_rows(rows, t->x + m * t->ldx + k, t->ldx, t->scratch + c * LINEAR_CHUNK, LINEAR_CHUNK, len, part);
                if (cols - c >= TILE_COLS) {
                    store_tile(t, m, n + c, rows, TILE_COLS, part, first, last);
                } else {
                    store_tile(t, m, n + c, rows, cols - c, part, first, last);
                }
            }
        }
    }
}

static void linear(const struct linear_tile *t) {
#if FEW_ROWS > 0
    if (t->rows <= FEW_ROWS) {
        linear_direct(t);
        return;
    }
#endif
    for (size_t n = t->n0; n < t->n1; n += LINEAR_PANEL) {
        linear_panel(t, n, min_size(LINEAR_PANEL, t->n1 - n));
    }
}
