/*
 * Block types in AVX-512 registers (see blocks.h). A quant of 4 bits picks its value from a table of 16 floats, made
 * once a scale: one permutation instead of a mask, a conversion and a multiply-add for each 16 elements. The
 * permutation looks at the low 4 bits of each lane only, so the low nibbles need no masking.
 */
#include "blocks.h"

struct no_scales {
    char unused;
};
#define f32_scales no_scales
#define f16_scales no_scales
#define bf16_scales no_scales

VEC_INLINE void f32_open(const uint8_t *block, struct no_scales *s) {
    (void)block, (void)s;
}
VEC_INLINE void f32_step(const uint8_t *block, const struct no_scales *s, unsigned i, v16 *out) {
    (void)s, (void)i;
    *out = _mm512_loadu_ps(block);
}
VEC_INLINE void f16_open(const uint8_t *block, struct no_scales *s) {
    (void)block, (void)s;
}
VEC_INLINE void f16_step(const uint8_t *block, const struct no_scales *s, unsigned i, v16 *out) {
    (void)s, (void)i;
    *out = v16_load_f16(block);
}
VEC_INLINE void bf16_open(const uint8_t *block, struct no_scales *s) {
    (void)block, (void)s;
}
VEC_INLINE void bf16_step(const uint8_t *block, const struct no_scales *s, unsigned i, v16 *out) {
    (void)s, (void)i;
    *out = v16_load_bf16(block);
}

VEC_INLINE __m512 avx512_iota(float first) {
    return _mm512_add_ps(_mm512_set1_ps(first),
                         _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
}
/* 16 bytes, one a lane */
VEC_INLINE __m512i avx512_bytes(const uint8_t *p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i_u *)p));
}
/* an F16 in every lane */
VEC_INLINE __m512 avx512_half(const uint8_t *p) {
    return _mm512_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(load_u16(p))));
}
/* two adjacent F16: d in every lane, m in every lane */
VEC_INLINE void avx512_half2(const uint8_t *p, __m512 *d, __m512 *m) {
    __m512 dm = _mm512_cvtph_ps(_mm256_set1_epi32((int)load_u32(p)));
    *d = _mm512_moveldup_ps(dm);
    *m = _mm512_movehdup_ps(dm);
}

/* Blocks of 32. */
struct avx512_table {
    __m512 low, high; /* the values of quants 0..15 and, where there are 5 bits, 16..31 */
};
#define q4_0_scales avx512_table
#define q4_1_scales avx512_table
#define q5_0_scales avx512_table
#define q5_1_scales avx512_table
#define q8_0_scales avx512_table

VEC_INLINE void q4_0_open(const uint8_t *block, struct avx512_table *s) {
    s->low = _mm512_mul_ps(avx512_half(block), avx512_iota(-8));
}
VEC_INLINE void q4_1_open(const uint8_t *block, struct avx512_table *s) {
    __m512 d, m;
    avx512_half2(block, &d, &m);
    s->low = _mm512_fmadd_ps(d, avx512_iota(0), m);
}
VEC_INLINE void q5_0_open(const uint8_t *block, struct avx512_table *s) {
    __m512 d = avx512_half(block);
    s->low = _mm512_mul_ps(d, avx512_iota(-16));
    s->high = _mm512_mul_ps(d, avx512_iota(0));
}
VEC_INLINE void q5_1_open(const uint8_t *block, struct avx512_table *s) {
    __m512 d, m;
    avx512_half2(block, &d, &m);
    s->low = _mm512_fmadd_ps(d, avx512_iota(0), m);
    s->high = _mm512_fmadd_ps(d, avx512_iota(16), m);
}
VEC_INLINE void q8_0_open(const uint8_t *block, struct avx512_table *s) {
    s->low = avx512_half(block);
}

VEC_INLINE void avx512_nibbles(const uint8_t *p, __m512 table, v16 *out) {
    __m512i q = avx512_bytes(p);
    out[0] = _mm512_permutexvar_ps(q, table);
    out[1] = _mm512_permutexvar_ps(_mm512_srli_epi32(q, 4), table);
}
/* `high` has the fifth bit of element j at bit j. */
VEC_INLINE void avx512_nibbles5(const uint8_t *p, uint32_t high, const struct avx512_table *s, v16 *out) {
    __m512i q = avx512_bytes(p), r = _mm512_srli_epi32(q, 4);
    out[0] = _mm512_mask_permutexvar_ps(_mm512_permutexvar_ps(q, s->low), (__mmask16)high, q, s->high);
    out[1] = _mm512_mask_permutexvar_ps(_mm512_permutexvar_ps(r, s->low), (__mmask16)(high >> 16), r, s->high);
}
VEC_INLINE void q4_0_step(const uint8_t *block, const struct avx512_table *s, unsigned i, v16 *out) {
    (void)i;
    avx512_nibbles(block + 2, s->low, out);
}
VEC_INLINE void q4_1_step(const uint8_t *block, const struct avx512_table *s, unsigned i, v16 *out) {
    (void)i;
    avx512_nibbles(block + 4, s->low, out);
}
VEC_INLINE void q5_0_step(const uint8_t *block, const struct avx512_table *s, unsigned i, v16 *out) {
    (void)i;
    avx512_nibbles5(block + 6, load_u32(block + 2), s, out);
}
VEC_INLINE void q5_1_step(const uint8_t *block, const struct avx512_table *s, unsigned i, v16 *out) {
    (void)i;
    avx512_nibbles5(block + 8, load_u32(block + 4), s, out);
}
VEC_INLINE void q8_0_step(const uint8_t *block, const struct avx512_table *s, unsigned i, v16 *out) {
    (void)i;
    __m512i a = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i_u *)(block + 2)));
    __m512i b = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i_u *)(block + 18)));
    out[0] = _mm512_mul_ps(s->low, _mm512_cvtepi32_ps(a));
    out[1] = _mm512_mul_ps(s->low, _mm512_cvtepi32_ps(b));
}

/* Blocks of 256. */
struct k_scales {
    float d[8], m[8]; /* of each 32 elements: d * q - m */
};
#define q4_k_scales k_scales
#define q5_k_scales k_scales

VEC_INLINE void q4_k_open(const uint8_t *block, struct k_scales *s) {
    uint64_t scales, minima;
    k_scales_unpack(block + 4, &scales, &minima);
    __m512i q = _mm512_cvtepu8_epi32(_mm_set_epi64x((long long)minima, (long long)scales));
    /* d in the lower half, dmin in the upper */
    __m128 dm = _mm_cvtph_ps(_mm_cvtsi32_si128((int)load_u32(block)));
    const __m512i halves = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    __m512 scale = _mm512_permutexvar_ps(halves, _mm512_castps128_ps512(dm));
    _mm512_storeu_ps(s, _mm512_mul_ps(scale, _mm512_cvtepi32_ps(q)));
}
#define q5_k_open q4_k_open

VEC_INLINE __m512 avx512_k_table(const struct k_scales *s, unsigned sub, float first) {
    return _mm512_fmsub_ps(_mm512_set1_ps(s->d[sub]), avx512_iota(first), _mm512_set1_ps(s->m[sub]));
}
VEC_INLINE void q4_k_step(const uint8_t *block, const struct k_scales *s, unsigned i, v16 *out) {
    __m512i a = avx512_bytes(block + 16 + 32 * i), b = avx512_bytes(block + 32 + 32 * i);
    __m512 low = avx512_k_table(s, 2 * i, 0), high = avx512_k_table(s, 2 * i + 1, 0);
    out[0] = _mm512_permutexvar_ps(a, low);
    out[1] = _mm512_permutexvar_ps(b, low);
    out[2] = _mm512_permutexvar_ps(_mm512_srli_epi32(a, 4), high);
    out[3] = _mm512_permutexvar_ps(_mm512_srli_epi32(b, 4), high);
}
VEC_INLINE void q5_k_step(const uint8_t *block, const struct k_scales *s, unsigned i, v16 *out) {
    const uint8_t *q = block + 48 + 32 * i;
    __m256i fifth = _mm256_loadu_si256((const __m256i_u *)(block + 16));
    uint32_t low_bits = _mm256_test_epi8_mask(fifth, _mm256_set1_epi8((char)(1 << 2 * i)));
    uint32_t high_bits = _mm256_test_epi8_mask(fifth, _mm256_set1_epi8((char)(2 << 2 * i)));
    struct avx512_table low = {avx512_k_table(s, 2 * i, 0), avx512_k_table(s, 2 * i, 16)};
    struct avx512_table high = {avx512_k_table(s, 2 * i + 1, 0), avx512_k_table(s, 2 * i + 1, 16)};
    __m512i a = avx512_bytes(q), b = avx512_bytes(q + 16);
    __m512i c = _mm512_srli_epi32(a, 4), d = _mm512_srli_epi32(b, 4);
    out[0] = _mm512_mask_permutexvar_ps(_mm512_permutexvar_ps(a, low.low), (__mmask16)low_bits, a, low.high);
    out[1] = _mm512_mask_permutexvar_ps(_mm512_permutexvar_ps(b, low.low), (__mmask16)(low_bits >> 16), b, low.high);
    out[2] = _mm512_mask_permutexvar_ps(_mm512_permutexvar_ps(c, high.low), (__mmask16)high_bits, c, high.high);
    out[3] = _mm512_mask_permutexvar_ps(_mm512_permutexvar_ps(d, high.low), (__mmask16)(high_bits >> 16), d, high.high);
}

struct q6_k_scales {
    float d[16]; /* of each 16 elements */
};
VEC_INLINE void q6_k_open(const uint8_t *block, struct q6_k_scales *s) {
    __m512i q = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i_u *)(block + 192)));
    _mm512_storeu_ps(s, _mm512_mul_ps(avx512_half(block + 208), _mm512_cvtepi32_ps(q)));
}
/* 16 quants of 6 bits, one a byte */
VEC_INLINE v16 avx512_q6(__m128i q, float d) {
    __m512i centred = _mm512_cvtepi8_epi32(_mm_sub_epi8(q, _mm_set1_epi8(32)));
    return _mm512_mul_ps(_mm512_set1_ps(d), _mm512_cvtepi32_ps(centred));
}
/* Half a block: low[64], high[32]; high[j] holds the upper two bits of elements j, j + 32, j + 64 and j + 96. */
VEC_INLINE void q6_k_step(const uint8_t *block, const struct q6_k_scales *s, unsigned i, v16 *out) {
    const uint8_t *low = block + 64 * i, *high = block + 128 + 32 * i;
    const __m256i nibble = _mm256_set1_epi8(0x0f), pair = _mm256_set1_epi8(0x30);
    __m256i a = _mm256_loadu_si256((const __m256i_u *)low), b = _mm256_loadu_si256((const __m256i_u *)(low + 32));
    __m256i h = _mm256_loadu_si256((const __m256i_u *)high);
    __m256i q[4] = {
        _mm256_or_si256(_mm256_and_si256(a, nibble), _mm256_and_si256(_mm256_slli_epi16(h, 4), pair)),
        _mm256_or_si256(_mm256_and_si256(b, nibble), _mm256_and_si256(_mm256_slli_epi16(h, 2), pair)),
        _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(a, 4), nibble), _mm256_and_si256(h, pair)),
        _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(b, 4), nibble),
                        _mm256_and_si256(_mm256_srli_epi16(h, 2), pair)),
    };
    UNROLL for (unsigned j = 0; j < 4; j++) {
        out[2 * j] = avx512_q6(_mm256_castsi256_si128(q[j]), s->d[8 * i + 2 * j]);
        out[2 * j + 1] = avx512_q6(_mm256_extracti128_si256(q[j], 1), s->d[8 * i + 2 * j + 1]);
    }
}
