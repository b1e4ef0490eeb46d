/*
 * linear of 8-bit integers: y[m][n] = (sum over k of q W, exact in 32 bits) * (s[m] scales[n]) + bias[n]. Every variant
 * and every number of rows gives the same bits, since only the last two roundings are of floats and those are here.
 *
 * A kernel sums some rows by some panels of 16 columns in registers, going through k once. The panels come as streams
 * side by side, each through its own run of panels: with few rows memory takes the time, and it is fastest at long
 * streams. With many rows the panels of a task lie in the caches.
 */
#include "quantise_i8.h"

#if defined(VARIANT_AMX)
#include "amx.h"
#endif

/* STREAM_ROWS rows by STREAMS panels, or BLOCK_ROWS by BLOCK_PANELS: as many sums as there are registers for. */
#if defined(VARIANT_VNNI)
enum { I8_STREAMS = 4, I8_STREAM_ROWS = 6, I8_BLOCK_PANELS = 2, I8_BLOCK_ROWS = 12 };
#elif defined(VARIANT_AVX512)
enum { I8_STREAMS = 4, I8_STREAM_ROWS = 3, I8_BLOCK_PANELS = 2, I8_BLOCK_ROWS = 6 };
#elif defined(VARIANT_AVX2)
enum { I8_STREAMS = 2, I8_STREAM_ROWS = 1, I8_BLOCK_PANELS = 1, I8_BLOCK_ROWS = 3 };
#else
enum { I8_STREAMS = 1, I8_STREAM_ROWS = 1, I8_BLOCK_PANELS = 1, I8_BLOCK_ROWS = 1 };
#endif
enum { I8_MOST_SUMS = I8_BLOCK_ROWS * I8_BLOCK_PANELS + I8_STREAM_ROWS * I8_STREAMS };

/* Four streams are what the hardware reads ahead best by itself; fewer gain from being told. */
VEC_INLINE void i8_prefetch(const unsigned panels, const int8_t *p) {
    enum { AHEAD = 2048 };
    if (panels < 4) {
        __builtin_prefetch(p + AHEAD);
    }
}

/* out[r][c] = x[r] . panel w[c], 16 columns each: `rows` by `panels` (constants). Loops are nested, for gcc unrolls to
 * 16 and only what is unrolled lives in registers. */
#if defined(VARIANT_VNNI)
VEC_INLINE void i8_sums(const unsigned rows, const unsigned panels, const i8_q *x, size_t ldx, const int8_t *const *w,
                        size_t groups, int32_t (*out)[I8_PANEL]) {
    __m512i acc[I8_MOST_SUMS];
    UNROLL for (unsigned r = 0; r < rows; r++) {
        UNROLL for (unsigned c = 0; c < panels; c++) {
            acc[r * panels + c] = _mm512_setzero_si512();
        }
    }
    for (size_t g = 0; g < groups; g++) {
        __m512i wv[I8_STREAMS];
        UNROLL for (unsigned c = 0; c < panels; c++) {
            wv[c] = _mm512_load_si512(w[c] + 64 * g);
            i8_prefetch(panels, w[c] + 64 * g);
        }
        UNROLL for (unsigned r = 0; r < rows; r++) {
            int four;
            memcpy(&four, x + r * ldx + 4 * g, sizeof four);
            __m512i xv = _mm512_set1_epi32(four);
            UNROLL for (unsigned c = 0; c < panels; c++) {
                acc[r * panels + c] = _mm512_dpbusd_epi32(acc[r * panels + c], xv, wv[c]);
            }
        }
    }
    UNROLL for (unsigned r = 0; r < rows; r++) {
        UNROLL for (unsigned c = 0; c < panels; c++) {
            _mm512_store_si512(out[r * panels + c], acc[r * panels + c]);
        }
    }
}
#elif defined(VARIANT_AVX512)
/* Bytes are widened to 16 bits; a lane has the sum of two of a column's four products, the next lane the others. */
VEC_INLINE void i8_sums(const unsigned rows, const unsigned panels, const i8_q *x, size_t ldx, const int8_t *const *w,
                        size_t groups, int32_t (*out)[I8_PANEL]) {
    __m512i low[I8_MOST_SUMS], high[I8_MOST_SUMS]; /* of columns 0..7, 8..15 */
    UNROLL for (unsigned i = 0; i < rows * panels; i++) {
        low[i] = high[i] = _mm512_setzero_si512();
    }
    for (size_t g = 0; g < groups; g++) {
        UNROLL for (unsigned c = 0; c < panels; c++) {
            const __m256i *p = (const __m256i *)(w[c] + 64 * g);
            i8_prefetch(panels, w[c] + 64 * g);
            __m512i wl = _mm512_cvtepi8_epi16(_mm256_load_si256(p)),
                    wh = _mm512_cvtepi8_epi16(_mm256_load_si256(p + 1));
            UNROLL for (unsigned r = 0; r < rows; r++) {
                long long four;
                memcpy(&four, x + r * ldx + 4 * g, sizeof four);
                __m512i xv = _mm512_set1_epi64(four);
                unsigned i = r * panels + c;
                low[i] = _mm512_add_epi32(low[i], _mm512_madd_epi16(xv, wl));
                high[i] = _mm512_add_epi32(high[i], _mm512_madd_epi16(xv, wh));
            }
        }
    }
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    UNROLL for (unsigned i = 0; i < rows * panels; i++) {
        _mm512_store_si512(out[i], _mm512_add_epi32(_mm512_permutex2var_epi32(low[i], even, high[i]),
                                                    _mm512_permutex2var_epi32(low[i], odd, high[i])));
    }
}
#elif defined(VARIANT_AVX2)
/* The same with four columns a register. */
VEC_INLINE void i8_sums(const unsigned rows, const unsigned panels, const i8_q *x, size_t ldx, const int8_t *const *w,
                        size_t groups, int32_t (*out)[I8_PANEL]) {
    __m256i acc[I8_MOST_SUMS][4];
    UNROLL for (unsigned i = 0; i < rows * panels; i++) {
        UNROLL for (unsigned j = 0; j < 4; j++) {
            acc[i][j] = _mm256_setzero_si256();
        }
    }
    for (size_t g = 0; g < groups; g++) {
        UNROLL for (unsigned c = 0; c < panels; c++) {
            i8_prefetch(panels, w[c] + 64 * g);
            UNROLL for (unsigned j = 0; j < 4; j++) {
                __m256i wv = _mm256_cvtepi8_epi16(_mm_load_si128((const __m128i *)(w[c] + 64 * g) + j));
                UNROLL for (unsigned r = 0; r < rows; r++) {
                    long long four;
                    memcpy(&four, x + r * ldx + 4 * g, sizeof four);
                    __m256i xv = _mm256_set1_epi64x(four), *a = &acc[r * panels + c][j];
                    *a = _mm256_add_epi32(*a, _mm256_madd_epi16(xv, wv));
                }
            }
        }
    }
    UNROLL for (unsigned i = 0; i < rows * panels; i++) {
        UNROLL for (unsigned j = 0; j < 4; j += 2) { /* hadd: columns 0 1 4 5 | 2 3 6 7 */
            __m256i sums = _mm256_permute4x64_epi64(_mm256_hadd_epi32(acc[i][j], acc[i][j + 1]), 0xd8);
            _mm256_store_si256((__m256i *)(out[i] + 4 * j), sums);
        }
    }
}
#else
VEC_INLINE void i8_sums(const unsigned rows, const unsigned panels, const i8_q *x, size_t ldx, const int8_t *const *w,
                        size_t groups, int32_t (*out)[I8_PANEL]) {
    (void)rows, (void)panels, (void)ldx; /* one of each */
    int32_t sums[I8_PANEL][4] = {{0}};
    for (size_t g = 0; g < groups; g++) {
        for (unsigned i = 0; i < I8_PANEL; i++) {
            for (unsigned j = 0; j < 4; j++) {
                sums[i][j] += x[4 * g + j] * w[0][64 * g + 4 * i + j];
            }
        }
    }
    for (unsigned i = 0; i < I8_PANEL; i++) {
        out[0][i] = sums[i][0] + sums[i][1] + sums[i][2] + sums[i][3];
    }
}
#endif

static void i8_block(size_t rows, const i8_q *x, size_t ldx, const int8_t *const *w, size_t groups,
                     int32_t (*out)[I8_PANEL]) {
#define CASE(R)                                                                                                        \
    case R:                                                                                                            \
        i8_sums(R, I8_BLOCK_PANELS, x, ldx, w, groups, out);                                                           \
        break;
    switch (rows) {
#if defined(VARIANT_AVX2) || defined(VARIANT_AVX512)
        CASE(2)
        CASE(3)
#endif
#if defined(VARIANT_AVX512)
        CASE(4)
        CASE(5)
        CASE(6)
#endif
#if defined(VARIANT_VNNI)
        CASE(7)
        CASE(8)
        CASE(9)
        CASE(10)
        CASE(11)
        CASE(12)
#endif
    default:
        i8_sums(1, I8_BLOCK_PANELS, x, ldx, w, groups, out);
        break;
    }
#undef CASE
}

static void i8_streams(size_t rows, const i8_q *x, size_t ldx, const int8_t *const *w, size_t groups,
                       int32_t (*out)[I8_PANEL]) {
#define CASE(R)                                                                                                        \
    case R:                                                                                                            \
        i8_sums(R, I8_STREAMS, x, ldx, w, groups, out);                                                                \
        break;
    switch (rows) {
#if defined(VARIANT_AVX512)
        CASE(2)
        CASE(3)
#endif
#if defined(VARIANT_VNNI)
        CASE(4)
        CASE(5)
        CASE(6)
#endif
    default:
        i8_sums(1, I8_STREAMS, x, ldx, w, groups, out);
        break;
    }
#undef CASE
}

/* sums[16] - offset * column_sums[16], modulo 2^32, as floats */
VEC_INLINE v16 i8_to_floats(const int32_t *sums, int32_t offset, const int32_t *column_sums) {
#if defined(VARIANT_AVX512)
    __m512i off = _mm512_mullo_epi32(_mm512_set1_epi32(offset), _mm512_loadu_si512(column_sums));
    return _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_loadu_si512(sums), off));
#elif defined(VARIANT_AVX2) /* nothing is to be taken off (quantise_i8.h) */
    (void)offset, (void)column_sums;
    return (v16){_mm256_cvtepi32_ps(_mm256_loadu_si256((const __m256i_u *)sums)),
                 _mm256_cvtepi32_ps(_mm256_loadu_si256((const __m256i_u *)(sums + 8)))};
#else
    (void)offset, (void)column_sums;
    float t[I8_PANEL];
    for (unsigned i = 0; i < I8_PANEL; i++) {
        t[i] = (float)sums[i];
    }
    return v16_load(t);
#endif
}

VEC_INLINE void i8_store_columns(const struct i8_tile *t, size_t m, size_t panel, v16 y) {
    size_t n = panel * I8_PANEL, cols = min_size(I8_PANEL, t->w->n - n);
    float *to = t->y + m * t->ldy + n;
    if (cols == I8_PANEL) {
        v16_store(to, t->bias ? v16_add(y, v16_load(t->bias + n)) : y);
    } else {
        v16_store_n(to, cols, t->bias ? v16_add(y, v16_load_n(t->bias + n, cols)) : y);
    }
}

VEC_INLINE void i8_store(const struct i8_tile *t, size_t m, size_t panel, const int32_t *sums) {
    size_t n = panel * I8_PANEL;
    v16 scale = v16_mul(v16_set1(t->scales[m]), v16_load(t->w->scales + n));
    i8_store_columns(t, m, panel, v16_mul(i8_to_floats(sums, t->offsets[m], t->w->sums + n), scale));
}

#if defined(VARIANT_AMX)
/*
 * Up to 16 rows: one tile of x by four panels. More: two tiles of x by two panels, so that every tile loaded is used
 * twice. Rows beyond the last are whatever lies there (the buffer has whole tiles); their sums are not stored.
 */
enum { I8_AMX_FROM = 5, I8_AMX_ROWS = 16 };

/* Tiles 0 to 3: sums, 4: x, 5 to 7 and again 5: w */
static void i8_amx_one(const i8_q *x, size_t ldx, const int8_t *const *w, size_t groups, int32_t *out) {
    amx_zero(0);
    amx_zero(1);
    amx_zero(2);
    amx_zero(3);
    for (size_t g = 0; g < groups; g += 16) {
        amx_load(4, x + 4 * g, ldx);
        amx_load(5, w[0] + 64 * g, 64);
        amx_dpbusd(0, 4, 5);
        amx_load(6, w[1] + 64 * g, 64);
        amx_dpbusd(1, 4, 6);
        amx_load(7, w[2] + 64 * g, 64);
        amx_dpbusd(2, 4, 7);
        amx_load(5, w[3] + 64 * g, 64);
        amx_dpbusd(3, 4, 5);
    }
    amx_store(0, out, 256);
    amx_store(1, out + 16, 256);
    amx_store(2, out + 32, 256);
    amx_store(3, out + 48, 256);
}

/* Tiles 0 to 3: sums, 4 and 5: x, 6 and 7: w */
static void i8_amx_two(const i8_q *x, size_t ldx, const int8_t *const *w, size_t groups, int32_t *out) {
    amx_zero(0);
    amx_zero(1);
    amx_zero(2);
    amx_zero(3);
    for (size_t g = 0; g < groups; g += 16) {
        amx_load(6, w[0] + 64 * g, 64);
        amx_load(4, x + 4 * g, ldx);
        amx_load(7, w[1] + 64 * g, 64);
        amx_dpbusd(0, 4, 6);
        amx_load(5, x + I8_AMX_ROWS * ldx + 4 * g, ldx);
        amx_dpbusd(1, 4, 7);
        amx_dpbusd(2, 5, 6);
        amx_dpbusd(3, 5, 7);
    }
    amx_store(0, out, 128);
    amx_store(1, out + 16, 128);
    amx_store(2, out + I8_AMX_ROWS * 32, 128);
    amx_store(3, out + I8_AMX_ROWS * 32 + 16, 128);
}

static void i8_linear_amx(const struct i8_tile *t) {
    _Alignas(64) int32_t sums[I8_AMX_ROWS * 64];
    const i8_q *x = t->q;
    size_t panels = t->panel1 - t->panel0, streams = t->rows <= I8_AMX_ROWS ? 4 : 2;
    size_t run = (panels + streams - 1) / streams, step = streams == 4 ? I8_AMX_ROWS : 2 * I8_AMX_ROWS;
    amx_begin(&amx_whole_tiles);
    for (size_t i = 0; i < run; i++) {
        const int8_t *w[4];
        for (size_t c = 0; c < streams; c++) {
            w[c] = i8_panel(t->w, min_size(t->panel0 + c * run + i, t->panel1 - 1));
        }
        for (size_t m = 0; m < t->rows; m += step) {
            if (streams == 4) {
                i8_amx_one(x, t->ldq, w, t->w->groups, sums);
            } else {
                i8_amx_two(x + m * t->ldq, t->ldq, w, t->w->groups, sums);
            }
            for (size_t r = 0; r < min_size(step, t->rows - m); r++) {
                for (size_t c = 0; c < streams && t->panel0 + c * run + i < t->panel1; c++) {
                    i8_store(t, m + r, t->panel0 + c * run + i, sums + (r * streams + c) * I8_PANEL);
                }
            }
        }
    }
    amx_end();
}
#endif

static void i8_linear_tile(const struct i8_tile *t) {
#if defined(VARIANT_AMX)
    if (t->rows >= I8_AMX_FROM) {
        i8_linear_amx(t);
        return;
    }
#endif
    _Alignas(64) int32_t sums[I8_MOST_SUMS][I8_PANEL];
    const i8_q *x = t->q;
    bool few = t->rows <= I8_STREAM_ROWS;
    size_t block = few ? I8_STREAM_ROWS : I8_BLOCK_ROWS, streams = few ? I8_STREAMS : I8_BLOCK_PANELS;
    size_t blocks = (t->rows + block - 1) / block, run = (t->panel1 - t->panel0 + streams - 1) / streams;
    for (size_t i = 0; i < run; i++) {
        const int8_t *w[I8_STREAMS];
        for (size_t c = 0; c < streams; c++) { /* behind the last panel it stands in; its sums are not stored */
            w[c] = i8_panel(t->w, min_size(t->panel0 + c * run + i, t->panel1 - 1));
        }
        for (size_t b = 0; b < blocks; b++) { /* of even size */
            size_t m = t->rows * b / blocks, rows = t->rows * (b + 1) / blocks - m;
            (few ? i8_streams : i8_block)(rows, x + m * t->ldq, t->ldq, w, t->w->groups, sums);
            for (size_t r = 0; r < rows; r++) {
                for (size_t c = 0; c < streams && t->panel0 + c * run + i < t->panel1; c++) {
                    i8_store(t, m + r, t->panel0 + c * run + i, sums[r * streams + c]);
                }
            }
        }
    }
}
