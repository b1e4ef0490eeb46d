/* o[q] += sum over keys j of p[q][j] * v[j], key by key in rising order, up to TILE_ROWS queries at a time. */
#include "attention_work.h"

/* `rows` queries by `cols` * 16 columns from d on (constants), keys [begin, end) of the tile */
VEC_INLINE void values_block(const enum dtype type, const unsigned rows, const unsigned cols,
                             const struct attention_work *w, size_t q, size_t d, size_t begin, size_t end) {
    const float *p = w->s + q * ATTENTION_KEYS;
    float *o = w->o + q * w->padded + d;
    v16 acc[TILE_ROWS * TILE_COLS];
    UNROLL for (unsigned r = 0; r < rows; r++) {
        UNROLL for (unsigned c = 0; c < cols; c++) {
            acc[r * cols + c] = v16_load(o + r * w->padded + 16 * c);
        }
    }
    for (size_t j = begin; j < end; j++) {
        v16 vv[TILE_COLS];
        UNROLL for (unsigned c = 0; c < cols; c++) {
            vv[c] = load_elements(type, w->v_rows[j], d + 16 * c);
        }
        UNROLL for (unsigned r = 0; r < rows; r++) {
            v16 pv = v16_set1(p[r * ATTENTION_KEYS + j]);
            UNROLL for (unsigned c = 0; c < cols; c++) {
                acc[r * cols + c] = v16_fma(pv, vv[c], acc[r * cols + c]);
            }
        }
    }
    UNROLL for (unsigned r = 0; r < rows; r++) {
        UNROLL for (unsigned c = 0; c < cols; c++) {
            v16_store(o + r * w->padded + 16 * c, acc[r * cols + c]);
        }
    }
}

VEC_INLINE void values_type(const enum dtype type, const unsigned rows, const struct attention_work *w, size_t q,
                            size_t begin, size_t end) {
    size_t d = 0, n = (w->dim + 15) / 16 * 16;
    for (; d + 16 * TILE_COLS <= n; d += 16 * TILE_COLS) {
        values_block(type, rows, TILE_COLS, w, q, d, begin, end);
    }
    for (; d < n; d += 16) {
        values_block(type, rows, 1, w, q, d, begin, end);
    }
}

#define VALUES_F32(r) values_type(DTYPE_F32, r, w, q, begin, end)
#define VALUES_F16(r) values_type(DTYPE_F16, r, w, q, begin, end)
#define VALUES_BF16(r) values_type(DTYPE_BF16, r, w, q, begin, end)
#define VALUES_I8(r) values_type(DTYPE_I8, r, w, q, begin, end)

static void values_rows(const struct attention_work *w, size_t q, size_t rows, size_t begin, size_t end) {
    switch (w->v_type) {
    case DTYPE_F16:
        WITH_ROWS(rows, VALUES_F16)
        break;
    case DTYPE_BF16:
        WITH_ROWS(rows, VALUES_BF16)
        break;
    case DTYPE_I8:
        WITH_ROWS(rows, VALUES_I8)
        break;
    default:
        WITH_ROWS(rows, VALUES_F32)
        break;
    }
}

/* The keys that all of some queries see are taken together, those before and behind one query at a time: no query ever
 * touches a key that it does not see, and each takes its keys in rising order. */
static void values(const struct attention_work *w) {
    for (size_t q = 0; q < w->queries; q += TILE_ROWS) {
        size_t rows = min_size(TILE_ROWS, w->queries - q);
        size_t begin = 0, end = ATTENTION_KEYS;
        for (size_t r = 0; r < rows; r++) {
            begin = max_size(begin, w->begin[q + r]);
            end = min_size(end, w->end[q + r]);
        }
        if (begin >= end) {
            for (size_t r = 0; r < rows; r++) {
                values_rows(w, q + r, 1, w->begin[q + r], w->end[q + r]);
            }
            continue;
        }
        for (size_t r = 0; r < rows; r++) {
            if (w->begin[q + r] < begin) {
                values_rows(w, q + r, 1, w->begin[q + r], begin);
            }
        }
        values_rows(w, q, rows, begin, end);
        for (size_t r = 0; r < rows; r++) {
            if (w->end[q + r] > end) {
                values_rows(w, q + r, 1, end, w->end[q + r]);
            }
        }
    }
}
