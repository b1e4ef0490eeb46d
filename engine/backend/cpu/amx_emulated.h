/* The tile unit in software: one a thread. Included by amx.h. */
#include <immintrin.h>
#include <stdlib.h>
#include <string.h>

struct amx_unit {
    struct amx_config config; /* palette 0: no tiles */
    _Alignas(64) uint8_t tile[8][16][64];
};
static _Thread_local struct amx_unit amx_unit;

/* The hardware raises #UD or #GP. */
static inline void amx_require(int ok) {
    if (!ok) {
        abort();
    }
}

static inline void amx_begin(const struct amx_config *config) {
    struct amx_unit *u = &amx_unit;
    amx_require((uintptr_t)config % 64 == 0 && config->palette == 1 && config->start_row == 0);
    for (int i = 0; i < 14; i++) {
        amx_require(config->reserved[i] == 0);
    }
    for (int t = 0; t < 16; t++) {
        unsigned rows = config->rows[t], bytes = config->row_bytes[t];
        amx_require(t < 8 ? rows <= 16 && bytes <= 64 && (rows == 0) == (bytes == 0) : rows == 0 && bytes == 0);
    }
    u->config = *config;
    memset(u->tile, 0, sizeof u->tile);
}

static inline void amx_end(void) {
    memset(&amx_unit, 0xa5, sizeof amx_unit); /* nobody may count on what was there */
    amx_unit.config.palette = 0;
}

static inline struct amx_unit *amx_configured(int t) {
    struct amx_unit *u = &amx_unit;
    amx_require(u->config.palette == 1 && u->config.rows[t] > 0);
    return u;
}

static inline void amx_zero(int t) {
    struct amx_unit *u = amx_configured(t);
    memset(u->tile[t], 0, sizeof u->tile[t]);
}

static inline void amx_load(int t, const void *base, size_t stride) {
    struct amx_unit *u = amx_configured(t);
    memset(u->tile[t], 0, sizeof u->tile[t]);
    for (size_t r = 0; r < u->config.rows[t]; r++) {
        memcpy(u->tile[t][r], (const uint8_t *)base + r * stride, u->config.row_bytes[t]);
    }
}

static inline void amx_store(int t, void *base, size_t stride) {
    struct amx_unit *u = amx_configured(t);
    for (size_t r = 0; r < u->config.rows[t]; r++) {
        memcpy((uint8_t *)base + r * stride, u->tile[t][r], u->config.row_bytes[t]);
    }
}

/* c is m x n, a is m x k, b is k x n, of four bytes each */
static inline struct amx_unit *amx_product(int c, int a, int b) {
    struct amx_unit *u = amx_configured(c);
    amx_configured(a), amx_configured(b);
    amx_require(c != a && c != b && a != b);
    const struct amx_config *g = &u->config;
    amx_require(g->row_bytes[c] % 4 == 0 && g->row_bytes[a] % 4 == 0 && g->row_bytes[b] % 4 == 0);
    amx_require(g->rows[c] == g->rows[a] && g->row_bytes[c] == g->row_bytes[b] && g->row_bytes[a] / 4 == g->rows[b]);
    return u;
}

/* Bytes `lane` of 16 groups of four, sign extended. */
static inline __m512i amx_bytes(__m512i groups, unsigned lane) {
    return _mm512_srai_epi32(_mm512_sll_epi32(groups, _mm_cvtsi32_si128((int)(24 - 8 * lane))), 24);
}

static inline void amx_dp_bytes(int c, int a, int b, int a_signed) {
    struct amx_unit *u = amx_product(c, a, b);
    for (size_t m = 0; m < u->config.rows[c]; m++) {
        __m512i sum = _mm512_load_si512(u->tile[c][m]);
        for (size_t k = 0; k < u->config.rows[b]; k++) {
            __m512i row = _mm512_load_si512(u->tile[b][k]);
            for (unsigned j = 0; j < 4; j++) {
                int byte = u->tile[a][m][4 * k + j];
                __m512i x = _mm512_set1_epi32(a_signed && byte >= 128 ? byte - 256 : byte);
                sum = _mm512_add_epi32(sum, _mm512_mullo_epi32(x, amx_bytes(row, j)));
            }
        }
        _mm512_store_si512(u->tile[c][m], sum); /* columns beyond row_bytes of b are zeros, and stay so */
    }
}

static inline void amx_dpbssd(int c, int a, int b) {
    amx_dp_bytes(c, a, b, 1);
}

static inline void amx_dpbusd(int c, int a, int b) {
    amx_dp_bytes(c, a, b, 0);
}

/* The lower and the upper BF16 of 16 pairs, as floats. */
static inline __m512 amx_even(__m512i pairs) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
}
static inline __m512 amx_odd(__m512i pairs) {
    return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(-65536)));
}

/* Sums of even and of odd elements in rising k, each step fused; their sum is added to c. */
static inline void amx_dpbf16ps(int c, int a, int b) {
    enum { DAZ_FTZ_NEAREST_MASKED = 0x9fc0 };
    struct amx_unit *u = amx_product(c, a, b);
    unsigned before = _mm_getcsr();
    _mm_setcsr(DAZ_FTZ_NEAREST_MASKED);
    /* All operands come from memory after this point and all results are there before the next. */
    __asm__ volatile("" ::"r"(u) : "memory");
    for (size_t m = 0; m < u->config.rows[c]; m++) {
        __m512 even = _mm512_setzero_ps(), odd = _mm512_setzero_ps();
        for (size_t k = 0; k < u->config.rows[b]; k++) {
            int pair;
            memcpy(&pair, &u->tile[a][m][4 * k], sizeof pair);
            __m512i x = _mm512_set1_epi32(pair), y = _mm512_load_si512(u->tile[b][k]);
            even = _mm512_fmadd_ps(amx_even(x), amx_even(y), even);
            odd = _mm512_fmadd_ps(amx_odd(x), amx_odd(y), odd);
        }
        __m512 sum = _mm512_add_ps(_mm512_load_ps(u->tile[c][m]), _mm512_add_ps(even, odd));
        __mmask16 columns = (__mmask16)((1u << u->config.row_bytes[c] / 4) - 1);
        _mm512_store_ps(u->tile[c][m], _mm512_maskz_mov_ps(columns, sum));
    }
    __asm__ volatile("" ::"r"(u) : "memory");
    _mm_setcsr(before);
}
