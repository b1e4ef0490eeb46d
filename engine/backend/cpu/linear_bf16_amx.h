/*
 * y = x W^T (+ bias) of BF16 weights on the tile unit.
 *
 * A row of x keeps 16 bits: x = hi + lo, both BF16 to nearest even, which leaves at most 2^-16 of it; the products of both go into one
 * sum. With hi alone it would take half the time, and an activation would lose as much as 2^-8.
 *
 * Weights are tiles as they lie in the file (16 outputs by 32 k, a row of the matrix from one to the next): nothing is packed or
 * unpacked, and one row of x reads each weight once. x is the other operand, its rows side by side, put so once a call (bf16_pack):
 * [k / 32][hi, lo][16 pairs of k][16 rows], zeros where there is no row or no k. A sum walks k in tiles of 32, hi before lo,
 * whatever else is computed: the same bits alone and in company.
 */
#include "amx.h"

enum { BF16_K = 32, BF16_SIDE = 16, BF16_TILE = BF16_K * BF16_SIDE * 2 /* bytes */ };

/* v[i][j] becomes v[j][i]. */
VEC_INLINE void transpose_16(__m512i v[16]) {
    __m512i t[16];
    UNROLL for (unsigned i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
    }
    UNROLL for (unsigned i = 0; i < 16; i += 4) {
        v[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        v[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        v[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        v[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    /* v[4 g + c], lane l: column 4 l + c of rows 4 g .. 4 g + 3 */
    UNROLL for (unsigned c = 0; c < 4; c++) {
        t[c] = _mm512_shuffle_i32x4(v[c], v[4 + c], 0x88);
        t[4 + c] = _mm512_shuffle_i32x4(v[c], v[4 + c], 0xdd);
        t[8 + c] = _mm512_shuffle_i32x4(v[8 + c], v[12 + c], 0x88);
        t[12 + c] = _mm512_shuffle_i32x4(v[8 + c], v[12 + c], 0xdd);
    }
    UNROLL for (unsigned c = 0; c < 4; c++) {
        v[c] = _mm512_shuffle_i32x4(t[c], t[8 + c], 0x88);
        v[8 + c] = _mm512_shuffle_i32x4(t[c], t[8 + c], 0xdd);
        v[4 + c] = _mm512_shuffle_i32x4(t[4 + c], t[12 + c], 0x88);
        v[12 + c] = _mm512_shuffle_i32x4(t[4 + c], t[12 + c], 0xdd);
    }
}

/* To nearest even, in the upper half of each lane; a NaN stays one. */
VEC_INLINE __m512i bf16_round(__m512 x) {
    __m512i u = _mm512_castps_si512(x), odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i r = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    r = _mm512_mask_or_epi32(r, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), u, _mm512_set1_epi32(0x400000));
    return _mm512_and_si512(r, _mm512_set1_epi32(-65536));
}

/* 32 elements in order from 16 lanes each, in whose upper halves they are. */
VEC_INLINE __m512i bf16_join(__m512i first, __m512i second) {
    __m256i a = _mm512_cvtepi32_epi16(_mm512_srli_epi32(first, 16)), b = _mm512_cvtepi32_epi16(_mm512_srli_epi32(second, 16));
    return _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
}

/* What is left of x; of what is not finite hi has all. */
VEC_INLINE __m512i bf16_rest(__m512 x, __m512i hi) {
    __m512 h = _mm512_castsi512_ps(hi), rest = _mm512_sub_ps(x, h);
    return bf16_round(_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(_mm512_abs_ps(h), _mm512_set1_ps(INFINITY), _CMP_LT_OQ), rest));
}

static void bf16_pack(const float *x, size_t ldx, size_t rows, size_t k, uint8_t *out) {
    for (size_t c = 0; c < k; c += BF16_K, out += 2 * BF16_TILE) {
        __m512i hi[BF16_SIDE], lo[BF16_SIDE];
        size_t n0 = min_size(16, k - c), n1 = min_size(BF16_K, k - c) - n0;
        for (size_t r = 0; r < BF16_SIDE; r++) {
            hi[r] = lo[r] = _mm512_setzero_si512();
            if (r < rows) {
                __m512 a = v16_load_n(x + r * ldx + c, n0), b = n1 > 0 ? v16_load_n(x + r * ldx + c + 16, n1) : v16_zero();
                __m512i ah = bf16_round(a), bh = bf16_round(b);
                hi[r] = bf16_join(ah, bh);
                lo[r] = bf16_join(bf16_rest(a, ah), bf16_rest(b, bh));
            }
        }
        transpose_16(hi);
        transpose_16(lo);
        for (size_t p = 0; p < BF16_SIDE; p++) {
            _mm512_store_si512(out + 64 * p, hi[p]);
            _mm512_store_si512(out + BF16_TILE + 64 * p, lo[p]);
        }
    }
}

/* 16 outputs from n on: the tiles of whole ones where they lie; `edge` has what is no whole one, zeros behind. */
struct bf16_outputs {
    const uint8_t *at;
    size_t stride, rows;
};

VEC_INLINE struct bf16_outputs bf16_outputs_of(const struct weight *w, size_t n) {
    return (struct bf16_outputs){(const uint8_t *)w->data + n * w->row_bytes, w->row_bytes, min_size(BF16_SIDE, w->n - n)};
}

/* The tile of k elements [c, c + 32) into register `tile` (a literal). */
#define BF16_LOAD(tile, o, c, left, edge)                                                                              \
    do {                                                                                                               \
        if ((o).rows == BF16_SIDE && (left) >= BF16_K) {                                                               \
            amx_load(tile, (o).at + 2 * (c), (o).stride);                                                              \
        } else {                                                                                                       \
            bf16_fill_edge(&(o), c, left, edge);                                                                       \
            amx_load(tile, edge, 64);                                                                                  \
        }                                                                                                              \
    } while (0)

static void bf16_fill_edge(const struct bf16_outputs *o, size_t c, size_t left, uint8_t edge[BF16_SIDE][64]) {
    memset(edge, 0, BF16_TILE);
    for (size_t r = 0; r < o->rows; r++) {
        memcpy(edge[r], o->at + r * o->stride + 2 * c, 2 * min_size(BF16_K, left));
    }
}

/* sums[i][j]: outputs n + 16 i by rows m + 16 j, the first `two_n`, `two_m` (constants) of each. */
VEC_INLINE void bf16_sums(const struct linear_tile *t, size_t n, const uint8_t *x, const bool two_n, const bool two_m,
                          float sums[2][2][BF16_SIDE][16]) {
    _Alignas(64) uint8_t edge[BF16_SIDE][64];
    const struct weight *w = t->w;
    const struct bf16_outputs first = bf16_outputs_of(w, n), second = bf16_outputs_of(w, two_n ? n + BF16_SIDE : n);
    amx_zero(0);
    amx_zero(1);
    amx_zero(2);
    amx_zero(3);
    for (size_t c = 0; c < w->k; c += BF16_K) {
        size_t left = w->k - c;
        BF16_LOAD(4, first, c, left, edge);
        if (two_n) {
            BF16_LOAD(5, second, c, left, edge);
        }
        for (size_t part = 0; part < 2; part++, x += BF16_TILE) {
            amx_load(6, x, 64);
            amx_dpbf16ps(0, 4, 6);
            if (two_n) {
                amx_dpbf16ps(2, 5, 6);
            }
            if (two_m) {
                amx_load(7, x + t->quants_stride, 64);
                amx_dpbf16ps(1, 4, 7);
                if (two_n) {
                    amx_dpbf16ps(3, 5, 7);
                }
            }
        }
    }
    amx_store(0, sums[0][0], 64);
    amx_store(1, sums[0][1], 64);
    amx_store(2, sums[1][0], 64);
    amx_store(3, sums[1][1], 64);
}

/* sums[output][row] to y[row][output]. */
static void bf16_store(const struct linear_tile *t, size_t n, size_t m, float sums[BF16_SIDE][16]) {
    __m512i v[BF16_SIDE];
    size_t columns = min_size(BF16_SIDE, t->n1 - n), rows = min_size(BF16_SIDE, t->rows - m);
    __m512 bias = t->bias ? v16_load_n(t->bias + n, columns) : v16_zero();
    for (size_t i = 0; i < BF16_SIDE; i++) {
        v[i] = _mm512_load_si512(sums[i]);
    }
    transpose_16(v);
    for (size_t r = 0; r < rows; r++) {
        __m512 sum = _mm512_castsi512_ps(v[r]);
        v16_store_n(t->y + (m + r) * t->ldy + n, columns, t->bias ? v16_add(sum, bias) : sum);
    }
}

static void linear_bf16_amx(const struct linear_tile *t) {
    _Alignas(64) float sums[2][2][BF16_SIDE][16];
    amx_begin(&amx_whole_tiles);
    for (size_t n = t->n0; n < t->n1; n += 2 * BF16_SIDE) {
        bool two_n = n + BF16_SIDE < t->n1;
        for (size_t m = 0; m < t->rows; m += 2 * BF16_SIDE) {
            const uint8_t *x = t->quants + m / BF16_SIDE * t->quants_stride;
            bool two_m = m + BF16_SIDE < t->rows;
            if (two_n && two_m) {
                bf16_sums(t, n, x, true, true, sums);
            } else if (two_n) {
                bf16_sums(t, n, x, true, false, sums);
            } else if (two_m) {
                bf16_sums(t, n, x, false, true, sums);
            } else {
                bf16_sums(t, n, x, false, false, sums);
            }
            for (size_t i = 0; i <= (size_t)two_n; i++) {
                for (size_t j = 0; j <= (size_t)two_m; j++) {
                    bf16_store(t, n + i * BF16_SIDE, m + j * BF16_SIDE, sums[i][j]);
                }
            }
        }
    }
    amx_end();
}
