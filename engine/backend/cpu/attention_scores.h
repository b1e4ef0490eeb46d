/*
 * s[q][j] = q . k[j], sixteen keys by up to TILE_ROWS queries at a time.
 *
 * F32, F16, BF16: in the lanes and by the tree of v16_sum (vec16.h). I8: keys are integers as they are; the query is
 * made of integers of 16 bits, so that the product is exact, whatever its order, and hardly less precise than with
 * floats: s = q_scale * k_scale * sum q16 * k.
 */
#include "attention_work.h"

#include <math.h>

/* Keys taken together, KEY(g, c) the c-th of group g. */
#if defined(VARIANT_AVX512)
#define SCORE_COLS 4
#define KEY(g, c) ((g) + 4 * (c)) /* as avx512_sums wants them */
#else
#define SCORE_COLS TILE_COLS
#define KEY(g, c) ((g)*SCORE_COLS + (c))
#endif

VEC_INLINE void scores_float(const enum dtype type, const unsigned rows, const struct attention_work *w, size_t q,
                             size_t j, const size_t n) {
    const float *x = w->q + q * w->padded;
    float *s = w->s + q * ATTENTION_KEYS + j;
#if defined(VARIANT_AVX512)
    v16 quarters[TILE_ROWS][4];
#endif
    for (unsigned g = 0; g < 16 / SCORE_COLS; g++) {
        v16 acc[TILE_ROWS * SCORE_COLS];
        const uint8_t *k[SCORE_COLS];
        UNROLL for (unsigned c = 0; c < SCORE_COLS; c++) {
            k[c] = w->k_rows[j + KEY(g, c)];
        }
        UNROLL for (unsigned i = 0; i < rows * SCORE_COLS; i++) {
            acc[i] = v16_zero();
        }
        for (size_t d = 0; d < n; d += 16) {
            v16 kv[SCORE_COLS];
            UNROLL for (unsigned c = 0; c < SCORE_COLS; c++) {
                kv[c] = load_elements(type, k[c], d);
            }
            UNROLL for (unsigned r = 0; r < rows; r++) {
                v16 xv = v16_load(x + r * w->padded + d);
                UNROLL for (unsigned c = 0; c < SCORE_COLS; c++) {
                    acc[r * SCORE_COLS + c] = v16_fma(xv, kv[c], acc[r * SCORE_COLS + c]);
                }
            }
        }
#if defined(VARIANT_AVX512)
        UNROLL for (unsigned r = 0; r < rows; r++) {
            quarters[r][g] = avx512_fold4(acc[4 * r], acc[4 * r + 1], acc[4 * r + 2], acc[4 * r + 3]);
        }
    }
    UNROLL for (unsigned r = 0; r < rows; r++) {
        v16_store(s + r * ATTENTION_KEYS, avx512_sums(quarters[r]));
    }
#else
        float sums[TILE_ROWS * SCORE_COLS];
        sum_all(acc, rows * SCORE_COLS, sums);
        UNROLL for (unsigned r = 0; r < rows; r++) {
            memcpy(s + r * ATTENTION_KEYS + g * SCORE_COLS, sums + r * SCORE_COLS, SCORE_COLS * sizeof *s);
        }
    }
#endif
}

VEC_INLINE void scores_i8(const unsigned rows, const struct attention_work *w, size_t q, size_t j) {
    const int16_t *x = w->q16 + q * w->padded;
    float *s = w->s + q * ATTENTION_KEYS + j;
#if defined(VARIANT_AVX512)
    __m512i quarters[TILE_ROWS][4];
#endif
    for (unsigned g = 0; g < 4; g++) {
        isum acc[TILE_ROWS * 4];
        const uint8_t *k[4];
        UNROLL for (unsigned c = 0; c < 4; c++) {
#if defined(VARIANT_AVX512)
            k[c] = w->k_rows[j + KEY(g, c)];
#else
            k[c] = w->k_rows[j + 4 * g + c];
#endif
        }
        UNROLL for (unsigned i = 0; i < rows * 4; i++) {
            acc[i] = isum_zero();
        }
        for (size_t d = 0; d < w->padded; d += 32) {
            UNROLL for (unsigned c = 0; c < 4; c++) {
                i16x32 kv = i16_load_i8(k[c] + d);
                UNROLL for (unsigned r = 0; r < rows; r++) {
                    acc[r * 4 + c] = isum_add(acc[r * 4 + c], i16_load(x + r * w->padded + d), kv);
                }
            }
        }
        UNROLL for (unsigned r = 0; r < rows; r++) {
#if defined(VARIANT_AVX512)
            quarters[r][g] = isum_fold4(acc[4 * r], acc[4 * r + 1], acc[4 * r + 2], acc[4 * r + 3]);
#else
            isum_total4(acc[4 * r], acc[4 * r + 1], acc[4 * r + 2], acc[4 * r + 3], s + r * ATTENTION_KEYS + 4 * g);
#endif
        }
    }
    v16 scales = v16_load(w->k_scales + j);
    UNROLL for (unsigned r = 0; r < rows; r++) {
#if defined(VARIANT_AVX512)
        v16 sums = isum_totals(quarters[r]);
#else
        v16 sums = v16_load(s + r * ATTENTION_KEYS);
#endif
        v16_store(s + r * ATTENTION_KEYS, v16_mul(v16_mul(sums, scales), v16_set1(w->q_scale[q + r])));
    }
}

/* Rows of 64 and of 128 elements, the usual ones, without a loop around their length. */
#define SCORES_OF(type, r)                                                                                             \
    if (w->padded == 64) {                                                                                             \
        scores_float(type, r, w, q, j, 64);                                                                            \
    } else if (w->padded == 128) {                                                                                     \
        scores_float(type, r, w, q, j, 128);                                                                           \
    } else {                                                                                                           \
        scores_float(type, r, w, q, j, w->padded);                                                                     \
    }
#define SCORES_F32(r) SCORES_OF(DTYPE_F32, r)
#define SCORES_F16(r) SCORES_OF(DTYPE_F16, r)
#define SCORES_BF16(r) SCORES_OF(DTYPE_BF16, r)
#define SCORES_I8(r) scores_i8(r, w, q, j)

static void scores_of_f32(const struct attention_work *w, size_t rows, size_t q, size_t j) {
    WITH_ROWS(rows, SCORES_F32)
}
static void scores_of_f16(const struct attention_work *w, size_t rows, size_t q, size_t j) {
    WITH_ROWS(rows, SCORES_F16)
}
static void scores_of_bf16(const struct attention_work *w, size_t rows, size_t q, size_t j) {
    WITH_ROWS(rows, SCORES_BF16)
}
static void scores_of_i8(const struct attention_work *w, size_t rows, size_t q, size_t j) {
    WITH_ROWS(rows, SCORES_I8)
}

/* Of the keys [begin, end) of the tile; in the same sixteens other keys may get any score. */
static void scores(struct attention_work *w, size_t begin, size_t end) {
    static void (*const by_type[DTYPE_COUNT])(const struct attention_work *w, size_t rows, size_t q,
                                              size_t j) = {[DTYPE_F32] = scores_of_f32,
                                                           [DTYPE_F16] = scores_of_f16,
                                                           [DTYPE_BF16] = scores_of_bf16,
                                                           [DTYPE_I8] = scores_of_i8};
    for (size_t j = begin / 16 * 16; j < end; j += 16) {
        fetch_ahead(w, j + 16 < end ? 16 : ATTENTION_KEYS);
        for (size_t q = 0; q < w->queries; q += TILE_ROWS) {
            by_type[w->k_type](w, min_size(TILE_ROWS, w->queries - q), q, j);
        }
    }
}
