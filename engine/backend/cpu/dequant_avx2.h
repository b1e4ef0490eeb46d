/* Block types in AVX2 registers (see blocks.h): quants are put together as bytes, then widened, converted and scaled.
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
    out->lo = _mm256_castsi256_ps(_mm256_loadu_si256((const __m256i_u *)block));
    out->hi = _mm256_castsi256_ps(_mm256_loadu_si256((const __m256i_u *)(block + 32)));
}
VEC_INLINE void f16_step(const uint8_t *block, size_t at, const struct scales *s, unsigned i, v16 *out) {
    (void)at, (void)s, (void)i;
    *out = v16_load_f16(block);
}
VEC_INLINE void bf16_step(const uint8_t *block, size_t at, const struct scales *s, unsigned i, v16 *out) {
    (void)at, (void)s, (void)i;
    *out = v16_load_bf16(block);
}

/* 16 unsigned, or signed, bytes as floats */
VEC_INLINE v16 avx2_u8(__m128i q) {
    return (v16){_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(q)),
                 _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_unpackhi_epi64(q, q)))};
}
VEC_INLINE v16 avx2_i8(__m128i q) {
    return (v16){_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(q)),
                 _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(q, q)))};
}
/* d * q, d * q + m */
VEC_INLINE v16 avx2_scale(v16 q, const float *pair) {
    const __m256 d = _mm256_broadcast_ss(pair);
    return (v16){_mm256_mul_ps(d, q.lo), _mm256_mul_ps(d, q.hi)};
}
VEC_INLINE v16 avx2_scale_add(v16 q, const float *pair) {
    const __m256 d = _mm256_broadcast_ss(pair), m = _mm256_broadcast_ss(pair + 1);
    return (v16){_mm256_fmadd_ps(d, q.lo, m), _mm256_fmadd_ps(d, q.hi, m)};
}

/* Blocks of 32: the F16 that each begins with, one or two. */
VEC_INLINE void avx2_open(const uint8_t *p, size_t bytes, size_t n_blocks, struct scales *s) {
    for (size_t b = 0; b < n_blocks; b++) {
        _mm_storel_pi((__m64 *)s->pair[b], _mm_cvtph_ps(_mm_loadl_epi64((const __m128i_u *)(p + b * bytes))));
    }
}
VEC_INLINE void q4_0_open(const uint8_t *p, size_t n_blocks, struct scales *s) {
    avx2_open(p, q4_0_BYTES, n_blocks, s);
}
VEC_INLINE void q4_1_open(const uint8_t *p, size_t n_blocks, struct scales *s) {
    avx2_open(p, q4_1_BYTES, n_blocks, s);
}
VEC_INLINE void q5_0_open(const uint8_t *p, size_t n_blocks, struct scales *s) {
    avx2_open(p, q5_0_BYTES, n_blocks, s);
}
VEC_INLINE void q5_1_open(const uint8_t *p, size_t n_blocks, struct scales *s) {
    avx2_open(p, q5_1_BYTES, n_blocks, s);
}
VEC_INLINE void q8_0_open(const uint8_t *p, size_t n_blocks, struct scales *s) {
    avx2_open(p, q8_0_BYTES, n_blocks, s);
}

VEC_INLINE void avx2_nibbles(const uint8_t *p, __m128i *low, __m128i *high) {
    const __m128i mask = _mm_set1_epi8(0x0f);
    __m128i q = _mm_loadu_si128((const __m128i_u *)p);
    *low = _mm_and_si128(q, mask);
    *high = _mm_and_si128(_mm_srli_epi16(q, 4), mask);
}
/* 16 in byte j where bit j of `bits` is set */
VEC_INLINE __m128i avx2_fifth(uint32_t bits) {
    const __m128i spread = _mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    const __m128i bit = _mm_set1_epi64x((long long)0x8040201008040201ull);
    __m128i b = _mm_and_si128(_mm_shuffle_epi8(_mm_cvtsi32_si128((int)bits), spread), bit);
    return _mm_and_si128(_mm_cmpeq_epi8(b, bit), _mm_set1_epi8(16));
}
VEC_INLINE void q4_0_step(const uint8_t *block, size_t at, const struct scales *s, unsigned i, v16 *out) {
    (void)i;
    const float *pair = s->pair[at / 32];
    __m128i low, high;
    avx2_nibbles(block + 2, &low, &high);
    out[0] = avx2_scale(avx2_i8(_mm_sub_epi8(low, _mm_set1_epi8(8))), pair);
    out[1] = avx2_scale(avx2_i8(_mm_sub_epi8(high, _mm_set1_epi8(8))), pair);
}
VEC_INLINE void q4_1_step(const uint8_t *block, size_t at, const struct scales *s, unsigned i, v16 *out) {
    (void)i;
    const float *pair = s->pair[at / 32];
    __m128i low, high;
    avx2_nibbles(block + 4, &low, &high);
    out[0] = avx2_scale_add(avx2_u8(low), pair);
    out[1] = avx2_scale_add(avx2_u8(high), pair);
}
VEC_INLINE void q5_0_step(const uint8_t *block, size_t at, const struct scales *s, unsigned i, v16 *out) {
    (void)i;
    const float *pair = s->pair[at / 32];
    __m128i low, high;
    avx2_nibbles(block + 6, &low, &high);
    uint32_t bits = load_u32(block + 2);
    low = _mm_sub_epi8(_mm_or_si128(low, avx2_fifth(bits)), _mm_set1_epi8(16));
    high = _mm_sub_epi8(_mm_or_si128(high, avx2_fifth(bits >> 16)), _mm_set1_epi8(16));
    out[0] = avx2_scale(avx2_i8(low), pair);
    out[1] = avx2_scale(avx2_i8(high), pair);
}
VEC_INLINE void q5_1_step(const uint8_t *block, size_t at, const struct scales *s, unsigned i, v16 *out) {
    (void)i;
    const float *pair = s->pair[at / 32];
    __m128i low, high;
    avx2_nibbles(block + 8, &low, &high);
    uint32_t bits = load_u32(block + 4);
    out[0] = avx2_scale_add(avx2_u8(_mm_or_si128(low, avx2_fifth(bits))), pair);
    out[1] = avx2_scale_add(avx2_u8(_mm_or_si128(high, avx2_fifth(bits >> 16))), pair);
}
VEC_INLINE void q8_0_step(const uint8_t *block, size_t at, const struct scales *s, unsigned i, v16 *out) {
    (void)i;
    const float *pair = s->pair[at / 32];
    out[0] = avx2_scale(avx2_i8(_mm_loadu_si128((const __m128i_u *)(block + 2))), pair);
    out[1] = avx2_scale(avx2_i8(_mm_loadu_si128((const __m128i_u *)(block + 18))), pair);
}

/* Blocks of 256. */
VEC_INLINE void avx2_k_open(const uint8_t *p, size_t bytes, size_t n_blocks, struct scales *s) {
    for (size_t b = 0; b < n_blocks; b++, p += bytes) {
        uint64_t scales, minima;
        k_scales_unpack(p + 4, &scales, &minima);
        __m128 dm = _mm_cvtph_ps(_mm_cvtsi32_si128((int)(load_u32(p) ^ 0x80000000u))); /* d, -dmin */
        __m256 scale = _mm256_castpd_ps(_mm256_broadcastsd_pd(_mm_castps_pd(dm)));
        v16 q = avx2_u8(_mm_unpacklo_epi8(_mm_cvtsi64_si128((long long)scales), _mm_cvtsi64_si128((long long)minima)));
        v16_store(s->pair[8 * b], v16_mul((v16){scale, scale}, q));
    }
}
VEC_INLINE void q4_k_open(const uint8_t *p, size_t n_blocks, struct scales *s) {
    avx2_k_open(p, q4_k_BYTES, n_blocks, s);
}
VEC_INLINE void q5_k_open(const uint8_t *p, size_t n_blocks, struct scales *s) {
    avx2_k_open(p, q5_k_BYTES, n_blocks, s);
}
VEC_INLINE v16 avx2_k(__m128i q, const struct scales *s, size_t scale) {
    return avx2_scale_add(avx2_u8(q), s->pair[scale]);
}
VEC_INLINE void q4_k_step(const uint8_t *block, size_t at, const struct scales *s, unsigned i, v16 *out) {
    __m128i low[2], high[2];
    avx2_nibbles(block + 16 + 32 * i, &low[0], &high[0]);
    avx2_nibbles(block + 32 + 32 * i, &low[1], &high[1]);
    UNROLL for (unsigned j = 0; j < 2; j++) {
        out[j] = avx2_k(low[j], s, at / 32 + 2 * i);
        out[2 + j] = avx2_k(high[j], s, at / 32 + 2 * i + 1);
    }
}
VEC_INLINE void q5_k_step(const uint8_t *block, size_t at, const struct scales *s, unsigned i, v16 *out) {
    const __m128i low_bit = _mm_set1_epi8((char)(1 << 2 * i)), high_bit = _mm_set1_epi8((char)(2 << 2 * i));
    const __m128i sixteen = _mm_set1_epi8(16);
    UNROLL for (unsigned j = 0; j < 2; j++) {
        __m128i low, high, fifth = _mm_loadu_si128((const __m128i_u *)(block + 16 + 16 * j));
        avx2_nibbles(block + 48 + 32 * i + 16 * j, &low, &high);
        __m128i low_set = _mm_cmpeq_epi8(_mm_and_si128(fifth, low_bit), low_bit);
        __m128i high_set = _mm_cmpeq_epi8(_mm_and_si128(fifth, high_bit), high_bit);
        out[j] = avx2_k(_mm_or_si128(low, _mm_and_si128(low_set, sixteen)), s, at / 32 + 2 * i);
        out[2 + j] = avx2_k(_mm_or_si128(high, _mm_and_si128(high_set, sixteen)), s, at / 32 + 2 * i + 1);
    }
}

/* d * (q - 32) is taken as d * q - 32 d: the products are exact, so the one rounding is the same. */
VEC_INLINE void q6_k_open(const uint8_t *p, size_t n_blocks, struct scales *s) {
    for (size_t b = 0; b < n_blocks; b++, p += q6_k_BYTES) {
        float d = _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(load_u16(p + 208))));
        v16 q = v16_mul(avx2_i8(_mm_loadu_si128((const __m128i_u *)(p + 192))), v16_set1(d));
        v16 m = v16_mul(q, v16_set1(-32));
        /* unpacking works within halves of 4: pairs 0 1 | 4 5 and 2 3 | 6 7 */
        __m256 a = _mm256_unpacklo_ps(q.lo, m.lo), c = _mm256_unpackhi_ps(q.lo, m.lo);
        __m256 e = _mm256_unpacklo_ps(q.hi, m.hi), g = _mm256_unpackhi_ps(q.hi, m.hi);
        _mm256_store_ps(s->pair[16 * b], _mm256_permute2f128_ps(a, c, 0x20));
        _mm256_store_ps(s->pair[16 * b + 4], _mm256_permute2f128_ps(a, c, 0x31));
        _mm256_store_ps(s->pair[16 * b + 8], _mm256_permute2f128_ps(e, g, 0x20));
        _mm256_store_ps(s->pair[16 * b + 12], _mm256_permute2f128_ps(e, g, 0x31));
    }
}
/* Half a block: low[64], high[32]; high[j] holds the upper two bits of elements j, j + 32, j + 64 and j + 96. */
VEC_INLINE void q6_k_step(const uint8_t *block, size_t at, const struct scales *s, unsigned i, v16 *out) {
    const uint8_t *low = block + 64 * i, *high = block + 128 + 32 * i;
    const __m128i pair = _mm_set1_epi8(0x30);
    const size_t scale = at / 16 + 8 * i;
    UNROLL for (unsigned j = 0; j < 2; j++) {
        __m128i a, b, c, e, h = _mm_loadu_si128((const __m128i_u *)(high + 16 * j));
        avx2_nibbles(low + 16 * j, &a, &c);
        avx2_nibbles(low + 32 + 16 * j, &b, &e);
        out[j] = avx2_k(_mm_or_si128(a, _mm_and_si128(_mm_slli_epi16(h, 4), pair)), s, scale + j);
        out[2 + j] = avx2_k(_mm_or_si128(b, _mm_and_si128(_mm_slli_epi16(h, 2), pair)), s, scale + 2 + j);
        out[4 + j] = avx2_k(_mm_or_si128(c, _mm_and_si128(h, pair)), s, scale + 4 + j);
        out[6 + j] = avx2_k(_mm_or_si128(e, _mm_and_si128(_mm_srli_epi16(h, 2), pair)), s, scale + 6 + j);
    }
}
