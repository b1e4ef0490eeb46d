/*
 * Block types in AVX-512 registers (see blocks.h). A quant of 4 bits picks its value from a table of 16 floats, made
 * once a scale: one permutation instead of a mask, a conversion and a multiply-add for each 16 elements. The
 * permutation looks at the low 4 bits of each lane only, so the low nibbles need no masking.
 */
#include "blocks.h"

VEC_INLINE void no_open(const uint8_t *p, size_t n_blocks, struct scales *s) {
    (void)p, (void)n_blocks, (void)s;
}
#define f32_open no_open
#define f16_open no_open
#define bf16_open no_open

VEC_INLINE void f32_step(const uint8_t *block, size_t at, const struct scales *s, unsigned i, v16 *out) {
    (void)at, (void)s, (void)i;
    *out = _mm512_loadu_ps(block);
}
VEC_INLINE void f16_step(const uint8_t *block, size_t at, const struct scales *s, unsigned i, v16 *out) {
    (void)at, (void)s, (void)i;
    *out = v16_load_f16(block);
}
VEC_INLINE void bf16_step(const uint8_t *block, size_t at, const struct scales *s, unsigned i, v16 *out) {
    (void)at, (void)s, (void)i;
    *out = v16_load_bf16(block);
}

VEC_INLINE __m512 avx512_iota(void) {
    return _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}
/* 16 bytes, one a lane */
VEC_INLINE __m512i avx512_bytes(const uint8_t *p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i_u *)p));
}

/* Blocks of 32: the F16 that each begins with, one or two. */
VEC_INLINE void avx512_open(const uint8_t *p, size_t bytes, size_t n_blocks, struct scales *s) {
    for (size_t b = 0; b < n_blocks; b++) {
        _mm_storel_pi((__m64 *)s->pair[b], _mm_cvtph_ps(_mm_loadl_epi64((const __m128i_u *)(p + b * bytes))));
    }
}
VEC_INLINE void q4_0_open(const uint8_t *p, size_t n_blocks, struct scales *s) {
    avx512_open(p, q4_0_BYTES, n_blocks, s);
}
VEC_INLINE void q4_1_open(const uint8_t *p, size_t n_blocks, struct scales *s) {
    avx512_open(p, q4_1_BYTES, n_blocks, s);
}
VEC_INLINE void q5_0_open(const uint8_t *p, size_t n_blocks, struct scales *s) {
    avx512_open(p, q5_0_BYTES, n_blocks, s);
}
VEC_INLINE void q5_1_open(const uint8_t *p, size_t n_blocks, struct scales *s) {
    avx512_open(p, q5_1_BYTES, n_blocks, s);
}
VEC_INLINE void q8_0_open(const uint8_t *p, size_t n_blocks, struct scales *s) {
    avx512_open(p, q8_0_BYTES, n_blocks, s);
}

/* The values of quants 0..15: d * q + m, or d * (q - 8) */
VEC_INLINE __m512 avx512_table(const struct scales *s, size_t scale) {
    return _mm512_fmadd_ps(_mm512_set1_ps(s->pair[scale][0]), avx512_iota(), _mm512_set1_ps(s->pair[scale][1]));
}
VEC_INLINE __m512 avx512_table_centred(const struct scales *s, size_t scale) {
    return _mm512_mul_ps(_mm512_set1_ps(s->pair[scale][0]), _mm512_sub_ps(avx512_iota(), _mm512_set1_ps(8)));
}
VEC_INLINE void avx512_nibbles(const uint8_t *p, __m512 table, v16 *out) {
    __m512i q = avx512_bytes(p);
    out[0] = _mm512_permutexvar_ps(q, table);
    out[1] = _mm512_permutexvar_ps(_mm512_srli_epi32(q, 4), table);
}
VEC_INLINE void q4_0_step(const uint8_t *block, size_t at, const struct scales *s, unsigned i, v16 *out) {
    (void)i;
    avx512_nibbles(block + 2, avx512_table_centred(s, at / 32), out);
}
VEC_INLINE void q4_1_step(const uint8_t *block, size_t at, const struct scales *s, unsigned i, v16 *out) {
    (void)i;
    avx512_nibbles(block + 4, avx512_table(s, at / 32), out);
}

/* Five bits would take two tables and two permutations each: they are converted. `high` has the fifth bit of element j
 * at bit j. */
VEC_INLINE __m512 avx512_q5(__m512i low, uint32_t high) {
    return _mm512_cvtepi32_ps(_mm512_mask_or_epi32(low, (__mmask16)high, low, _mm512_set1_epi32(16)));
}
VEC_INLINE __m512i avx512_low_nibbles(__m512i q) {
    return _mm512_and_si512(q, _mm512_set1_epi32(15));
}
VEC_INLINE void q5_0_step(const uint8_t *block, size_t at, const struct scales *s, unsigned i, v16 *out) {
    (void)i;
    uint32_t high = load_u32(block + 2);
    __m512i q = avx512_bytes(block + 6);
    const __m512 d = _mm512_set1_ps(s->pair[at / 32][0]), sixteen = _mm512_set1_ps(16);
    out[0] = _mm512_mul_ps(d, _mm512_sub_ps(avx512_q5(avx512_low_nibbles(q), high), sixteen));
    out[1] = _mm512_mul_ps(d, _mm512_sub_ps(avx512_q5(_mm512_srli_epi32(q, 4), high >> 16), sixteen));
}
VEC_INLINE void q5_1_step(const uint8_t *block, size_t at, const struct scales *s, unsigned i, v16 *out) {
    (void)i;
    uint32_t high = load_u32(block + 4);
    __m512i q = avx512_bytes(block + 8);
    const __m512 d = _mm512_set1_ps(s->pair[at / 32][0]), m = _mm512_set1_ps(s->pair[at / 32][1]);
    out[0] = _mm512_fmadd_ps(d, avx512_q5(avx512_low_nibbles(q), high), m);
    out[1] = _mm512_fmadd_ps(d, avx512_q5(_mm512_srli_epi32(q, 4), high >> 16), m);
}
VEC_INLINE void q8_0_step(const uint8_t *block, size_t at, const struct scales *s, unsigned i, v16 *out) {
    (void)i;
    const __m512 d = _mm512_set1_ps(s->pair[at / 32][0]);
    __m512i a = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i_u *)(block + 2)));
    __m512i b = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i_u *)(block + 18)));
    out[0] = _mm512_mul_ps(d, _mm512_cvtepi32_ps(a));
    out[1] = _mm512_mul_ps(d, _mm512_cvtepi32_ps(b));
}

/* Blocks of 256. */
VEC_INLINE void avx512_k_open(const uint8_t *p, size_t bytes, size_t n_blocks, struct scales *s) {
    for (size_t b = 0; b < n_blocks; b++, p += bytes) {
        uint64_t scales, minima;
        k_scales_unpack(p + 4, &scales, &minima);
        __m128i pairs = _mm_unpacklo_epi8(_mm_cvtsi64_si128((long long)scales), _mm_cvtsi64_si128((long long)minima));
        __m128 dm = _mm_cvtph_ps(_mm_cvtsi32_si128((int)(load_u32(p) ^ 0x80000000u))); /* d, -dmin */
        __m512 scale = _mm512_castpd_ps(_mm512_broadcastsd_pd(_mm_castps_pd(dm)));
        _mm512_store_ps(s->pair[8 * b], _mm512_mul_ps(scale, _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(pairs))));
    }
}
VEC_INLINE void q4_k_open(const uint8_t *p, size_t n_blocks, struct scales *s) {
    avx512_k_open(p, q4_k_BYTES, n_blocks, s);
}
VEC_INLINE void q5_k_open(const uint8_t *p, size_t n_blocks, struct scales *s) {
    avx512_k_open(p, q5_k_BYTES, n_blocks, s);
}
VEC_INLINE void q4_k_step(const uint8_t *block, size_t at, const struct scales *s, unsigned i, v16 *out) {
    __m512i a = avx512_bytes(block + 16 + 32 * i), b = avx512_bytes(block + 32 + 32 * i);
    __m512 low = avx512_table(s, at / 32 + 2 * i), high = avx512_table(s, at / 32 + 2 * i + 1);
    out[0] = _mm512_permutexvar_ps(a, low);
    out[1] = _mm512_permutexvar_ps(b, low);
    out[2] = _mm512_permutexvar_ps(_mm512_srli_epi32(a, 4), high);
    out[3] = _mm512_permutexvar_ps(_mm512_srli_epi32(b, 4), high);
}
VEC_INLINE void q5_k_step(const uint8_t *block, size_t at, const struct scales *s, unsigned i, v16 *out) {
    const uint8_t *q = block + 48 + 32 * i;
    __m256i fifth = _mm256_loadu_si256((const __m256i_u *)(block + 16));
    uint32_t low = _mm256_test_epi8_mask(fifth, _mm256_set1_epi8((char)(1 << 2 * i)));
    uint32_t high = _mm256_test_epi8_mask(fifth, _mm256_set1_epi8((char)(2 << 2 * i)));
    const float(*pair)[2] = &s->pair[at / 32 + 2 * i];
    const __m512 d0 = _mm512_set1_ps(pair[0][0]), m0 = _mm512_set1_ps(pair[0][1]);
    const __m512 d1 = _mm512_set1_ps(pair[1][0]), m1 = _mm512_set1_ps(pair[1][1]);
    __m512i a = avx512_bytes(q), b = avx512_bytes(q + 16);
    out[0] = _mm512_fmadd_ps(d0, avx512_q5(avx512_low_nibbles(a), low), m0);
    out[1] = _mm512_fmadd_ps(d0, avx512_q5(avx512_low_nibbles(b), low >> 16), m0);
    out[2] = _mm512_fmadd_ps(d1, avx512_q5(_mm512_srli_epi32(a, 4), high), m1);
    out[3] = _mm512_fmadd_ps(d1, avx512_q5(_mm512_srli_epi32(b, 4), high >> 16), m1);
}

/* d * (q - 32) is taken as d * q - 32 d: the products are exact, so the one rounding is the same. */
VEC_INLINE void q6_k_open(const uint8_t *p, size_t n_blocks, struct scales *s) {
    for (size_t b = 0; b < n_blocks; b++, p += q6_k_BYTES) {
        __m512i q = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i_u *)(p + 192)));
        __m512 d = _mm512_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(load_u16(p + 208))));
        d = _mm512_mul_ps(d, _mm512_cvtepi32_ps(q));
        __m512 m = _mm512_mul_ps(d, _mm512_set1_ps(-32));
        const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
        const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
        _mm512_store_ps(s->pair[16 * b], _mm512_permutex2var_ps(d, first, m));
        _mm512_store_ps(s->pair[16 * b + 8], _mm512_permutex2var_ps(d, second, m));
    }
}
/* 16 quants of 6 bits, one a byte */
VEC_INLINE v16 avx512_q6(__m128i q, const struct scales *s, size_t scale) {
    return _mm512_fmadd_ps(_mm512_set1_ps(s->pair[scale][0]), _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(q)),
                           _mm512_set1_ps(s->pair[scale][1]));
}
/* Half a block: low[64], high[32]; high[j] holds the upper two bits of elements j, j + 32, j + 64 and j + 96. */
VEC_INLINE void q6_k_step(const uint8_t *block, size_t at, const struct scales *s, unsigned i, v16 *out) {
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
        out[2 * j] = avx512_q6(_mm256_castsi256_si128(q[j]), s, at / 16 + 8 * i + 2 * j);
        out[2 * j + 1] = avx512_q6(_mm256_extracti128_si256(q[j], 1), s, at / 16 + 8 * i + 2 * j + 1);
    }
}
