/*
 * Weight-only: float rows by I8 weights. The order of a sum is the same for any number of rows: the products of k = j
 * mod 4 are four chains of fused multiply-adds in rising k, added as (0 + 1) + (2 + 3), then times the scale, plus the
 * bias.
 *
 * A byte becomes a float by moving it to the top of its 32 bits, which makes it 2^24 times as large, exactly; the sum
 * is made smaller again by as much.
 */
#include "linear_i8.h"

/* Rows of a block; panels side by side with one row. */
#if defined(VARIANT_AVX512)
enum { I8_FLOAT_ROWS = 5, I8_FLOAT_PANELS = 4 };
#else
enum { I8_FLOAT_ROWS = 1, I8_FLOAT_PANELS = 1 };
#endif

/* Byte j of each of 16 groups, times 2^24 */
VEC_INLINE v16 i8_byte(const int8_t *p, const unsigned j) {
#if defined(VARIANT_AVX512)
    const __m512i top = _mm512_set1_epi32((int)(0x00808080u | j << 24));
    const __m512i in_lane = _mm512_set4_epi32(0x0c000000, 0x08000000, 0x04000000, 0);
    return _mm512_cvtepi32_ps(_mm512_shuffle_epi8(_mm512_load_si512(p), _mm512_add_epi32(top, in_lane)));
#elif defined(VARIANT_AVX2)
    const __m256i top = _mm256_set1_epi32((int)(0x00808080u | j << 24));
    const __m256i in_lane =
                      _mm256_setr_epi32(0, 0x04000000, 0x08000000, 0x0c000000, 0, 0x04000000, 0x08000000, 0x0c000000),
                  order = _mm256_add_epi32(top, in_lane);
    const __m256i *from = (const __m256i *)p;
    return (v16){_mm256_cvtepi32_ps(_mm256_shuffle_epi8(_mm256_load_si256(from), order)),
                 _mm256_cvtepi32_ps(_mm256_shuffle_epi8(_mm256_load_si256(from + 1), order))};
#else
    float t[I8_PANEL];
    for (unsigned i = 0; i < I8_PANEL; i++) {
        t[i] = (float)p[4 * i + j] * 0x1p24f;
    }
    return v16_load(t);
#endif
}

/* out[r][c] = x[r] . panel w[c], 16 columns each, times 2^24: `rows` by `panels` (constants), k elements */
VEC_INLINE void i8_float_sums(const unsigned rows, const unsigned panels, const float *x, size_t ldx,
                              const int8_t *const *w, size_t k, v16 *out) {
    v16 acc[I8_FLOAT_ROWS * 4];
    UNROLL for (unsigned s = 0; s < rows * panels; s++) {
        UNROLL for (unsigned j = 0; j < 4; j++) {
            acc[4 * s + j] = v16_zero();
        }
    }
    size_t i = 0;
    for (; i + 4 <= k; i += 4) {
        UNROLL for (unsigned c = 0; c < panels; c++) {
            i8_prefetch(panels, w[c] + i * I8_PANEL);
            UNROLL for (unsigned j = 0; j < 4; j++) {
                v16 wv = i8_byte(w[c] + i * I8_PANEL, j);
                UNROLL for (unsigned r = 0; r < rows; r++) {
                    v16 *a = &acc[(r * panels + c) * 4 + j];
                    *a = v16_fma(v16_set1(x[r * ldx + i + j]), wv, *a);
                }
            }
        }
    }
    UNROLL for (unsigned j = 0; j < 3; j++) { /* k % 4 more */
        if (i + j < k) {
            UNROLL for (unsigned c = 0; c < panels; c++) {
                v16 wv = i8_byte(w[c] + i * I8_PANEL, j);
                UNROLL for (unsigned r = 0; r < rows; r++) {
                    v16 *a = &acc[(r * panels + c) * 4 + j];
                    *a = v16_fma(v16_set1(x[r * ldx + i + j]), wv, *a);
                }
            }
        }
    }
    UNROLL for (unsigned s = 0; s < rows * panels; s++) {
        out[s] = v16_add(v16_add(acc[4 * s], acc[4 * s + 1]), v16_add(acc[4 * s + 2], acc[4 * s + 3]));
    }
}

static void i8_float_block(size_t rows, const float *x, size_t ldx, const int8_t *const *w, size_t k, v16 *out) {
    switch (rows) {
#if defined(VARIANT_AVX512)
    case 2:
        i8_float_sums(2, 1, x, ldx, w, k, out);
        break;
    case 3:
        i8_float_sums(3, 1, x, ldx, w, k, out);
        break;
    case 4:
        i8_float_sums(4, 1, x, ldx, w, k, out);
        break;
    case 5:
        i8_float_sums(5, 1, x, ldx, w, k, out);
        break;
#endif
    default:
        i8_float_sums(1, I8_FLOAT_PANELS, x, ldx, w, k, out);
        break;
    }
}

static void i8_linear_float_tile(const struct i8_tile *t) {
    v16 sums[I8_FLOAT_ROWS + I8_FLOAT_PANELS];
    size_t blocks = (t->rows + I8_FLOAT_ROWS - 1) / I8_FLOAT_ROWS, streams = t->rows == 1 ? I8_FLOAT_PANELS : 1;
    size_t run = (t->panel1 - t->panel0 + streams - 1) / streams;
    for (size_t i = 0; i < run; i++) {
        const int8_t *w[I8_FLOAT_PANELS];
        for (size_t c = 0; c < I8_FLOAT_PANELS; c++) {
            w[c] = i8_panel(t->w, min_size(t->panel0 + c * run + i, t->panel1 - 1));
        }
        for (size_t b = 0; b < blocks; b++) { /* of even size */
            size_t m = t->rows * b / blocks, rows = t->rows * (b + 1) / blocks - m;
            i8_float_block(rows, t->x + m * t->ldx, t->ldx, w, t->w->k, sums);
            for (size_t r = 0; r < rows; r++) {
                for (size_t c = 0; c < streams && t->panel0 + c * run + i < t->panel1; c++) {
                    size_t panel = t->panel0 + c * run + i;
                    v16 y = v16_mul(v16_mul(sums[r * streams + c], v16_set1(0x1p-24f)),
                                    v16_load(t->w->scales + panel * I8_PANEL));
                    i8_store_columns(t, m + r, panel, y);
                }
            }
        }
    }
}
