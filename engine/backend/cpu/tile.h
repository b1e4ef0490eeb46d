/*
 * The register tile that both linear and attention run on: TILE_ROWS x TILE_COLS dot products at once. Its size keeps
 * every sum in a register (32 of 16 floats with AVX-512, 8 pairs with AVX2, 4 quadruples with SSE2) and reads each
 * operand for several of them.
 */
#ifndef CPU_TILE_H
#define CPU_TILE_H

#include "cpu.h"
#include "vec16.h"

#if defined(VARIANT_AVX512)
#define TILE_ROWS 6
#define TILE_COLS 4
#elif defined(VARIANT_AVX2)
#define TILE_ROWS 3
#define TILE_COLS 2
#else
#define TILE_ROWS 1
#define TILE_COLS 2
#endif

static inline size_t min_size(size_t a, size_t b) {
    return a < b ? a : b;
}

static inline size_t max_size(size_t a, size_t b) {
    return a > b ? a : b;
}

/* out[i] = the sum of a[i]'s lanes, n <= 24 (a constant) */
VEC_INLINE void sum_all(v16 *a, const unsigned n, float *out) {
    UNROLL for (unsigned i = 0; i < n / 4 * 4; i += 4) {
        v16_sum4(a[i], a[i + 1], a[i + 2], a[i + 3], out + i);
    }
    UNROLL for (unsigned i = n / 4 * 4; i < n; i++) {
        out[i] = v16_sum(a[i]);
    }
}

/* part[r][c] = sum over n elements of x[r] * w[c]; w's rows are zero padded to a multiple of 16. */
VEC_INLINE void tile(const unsigned rows, const float *x, size_t ldx, const float *w, size_t ldw, size_t n,
                     float *part) {
    v16 acc[TILE_ROWS * TILE_COLS];
    UNROLL for (unsigned i = 0; i < rows * TILE_COLS; i++) {
        acc[i] = v16_zero();
    }
    size_t k = 0;
    for (; k + 16 <= n; k += 16) {
        v16 wv[TILE_COLS];
        UNROLL for (unsigned c = 0; c < TILE_COLS; c++) {
            wv[c] = v16_load(w + c * ldw + k);
        }
        UNROLL for (unsigned r = 0; r < rows; r++) {
            v16 xv = v16_load(x + r * ldx + k);
            UNROLL for (unsigned c = 0; c < TILE_COLS; c++) {
                acc[r * TILE_COLS + c] = v16_fma(xv, wv[c], acc[r * TILE_COLS + c]);
            }
        }
    }
    if (k < n) {
        UNROLL for (unsigned r = 0; r < rows; r++) {
            v16 xv = v16_load_n(x + r * ldx + k, n - k);
            UNROLL for (unsigned c = 0; c < TILE_COLS; c++) {
                acc[r * TILE_COLS + c] = v16_fma(xv, v16_load(w + c * ldw + k), acc[r * TILE_COLS + c]);
            }
        }
    }
    sum_all(acc, rows * TILE_COLS, part);
}

static void tile_rows(size_t rows, const float *x, size_t ldx, const float *w, size_t ldw, size_t n, float *part) {
    switch (rows) {
#if TILE_ROWS > 1
    case 2:
        tile(2, x, ldx, w, ldw, n, part);
        break;
    case 3:
        tile(3, x, ldx, w, ldw, n, part);
        break;
#endif
#if TILE_ROWS > 3
    case 4:
        tile(4, x, ldx, w, ldw, n, part);
        break;
    case 5:
        tile(5, x, ldx, w, ldw, n, part);
        break;
    case 6:
        tile(6, x, ldx, w, ldw, n, part);
        break;
#endif
    default:
        tile(1, x, ldx, w, ldw, n, part);
        break;
    }
}

#endif
