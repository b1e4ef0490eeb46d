/* Block types in AVX2 registers (see blocks.h): quants are put together as bytes, then widened, converted and scaled. */
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
    out->lo = _mm256_castsi256_ps(_mm256_loadu_si256((const __m256i_u *)block));
    out->hi = _mm256_castsi256_ps(_mm256_loadu_si256((const __m256i_u *)(block + 32)));
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

/* 16 unsigned, or signed, bytes as floats */
VEC_INLINE v16 avx2_u8(__m128i q) {
    return (v16){_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(q)),
                 _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_unpackhi_epi64(q, q)))};
}
VEC_INLINE v16 avx2_i8(__m128i q) {
    return (v16){_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(q)),
                 _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(q, q)))};
}
/* d * q, d * q + m, d * q - m */
VEC_INLINE v16 avx2_scale(v16 q, __m256 d) {
    return (v16){_mm256_mul_ps(d, q.lo), _mm256_mul_ps(d, q.hi)};
}
VEC_INLINE v16 avx2_scale_add(v16 q, __m256 d, __m256 m) {
    return (v16){_mm256_fmadd_ps(d, q.lo, m), _mm256_fmadd_ps(d, q.hi, m)};
}
VEC_INLINE v16 avx2_scale_sub(v16 q, __m256 d, __m256 m) {
    return (v16){_mm256_fmsub_ps(d, q.lo, m), _mm256_fmsub_ps(d, q.hi, m)};
}

/* Blocks of 32. */
struct avx2_scale {
    __m256 d, m;
};
#define q4_0_scales avx2_scale
#define q4_1_scales avx2_scale
#define q5_0_scales avx2_scale
#define q5_1_scales avx2_scale
#define q8_0_scales avx2_scale

VEC_INLINE void q4_0_open(const uint8_t *block, struct avx2_scale *s) {
    s->d = _mm256_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(load_u16(block))));
}
VEC_INLINE void q4_1_open(const uint8_t *block, struct avx2_scale *s) {
    __m256 dm = _mm256_cvtph_ps(_mm_set1_epi32((int)load_u32(block)));
    s->d = _mm256_moveldup_ps(dm);
    s->m = _mm256_movehdup_ps(dm);
}
#define q5_0_open q4_0_open
#define q5_1_open q4_1_open
#define q8_0_open q4_0_open

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
VEC_INLINE void q4_0_step(const uint8_t *block, const struct avx2_scale *s, unsigned i, v16 *out) {
    (void)i;
    __m128i low, high;
    avx2_nibbles(block + 2, &low, &high);
    out[0] = avx2_scale(avx2_i8(_mm_sub_epi8(low, _mm_set1_epi8(8))), s->d);
    out[1] = avx2_scale(avx2_i8(_mm_sub_epi8(high, _mm_set1_epi8(8))), s->d);
}
VEC_INLINE void q4_1_step(const uint8_t *block, const struct avx2_scale *s, unsigned i, v16 *out) {
    (void)i;
    __m128i low, high;
    avx2_nibbles(block + 4, &low, &high);
    out[0] = avx2_scale_add(avx2_u8(low), s->d, s->m);
    out[1] = avx2_scale_add(avx2_u8(high), s->d, s->m);
}
VEC_INLINE void q5_0_step(const uint8_t *block, const struct avx2_scale *s, unsigned i, v16 *out) {
    (void)i;
    __m128i low, high;
    avx2_nibbles(block + 6, &low, &high);
    uint32_t bits = load_u32(block + 2);
    low = _mm_sub_epi8(_mm_or_si128(low, avx2_fifth(bits)), _mm_set1_epi8(16));
    high = _mm_sub_epi8(_mm_or_si128(high, avx2_fifth(bits >> 16)), _mm_set1_epi8(16));
    out[0] = avx2_scale(avx2_i8(low), s->d);
    out[1] = avx2_scale(avx2_i8(high), s->d);
}
VEC_INLINE void q5_1_step(const uint8_t *block, const struct avx2_scale *s, unsigned i, v16 *out) {
    (void)i;
    __m128i low, high;
    avx2_nibbles(block + 8, &low, &high);
    uint32_t bits = load_u32(block + 4);
    out[0] = avx2_scale_add(avx2_u8(_mm_or_si128(low, avx2_fifth(bits))), s->d, s->m);
    out[1] = avx2_scale_add(avx2_u8(_mm_or_si128(high, avx2_fifth(bits >> 16))), s->d, s->m);
}
VEC_INLINE void q8_0_step(const uint8_t *block, const struct avx2_scale *s, unsigned i, v16 *out) {
    (void)i;
    out[0] = avx2_scale(avx2_i8(_mm_loadu_si128((const __m128i_u *)(block + 2))), s->d);
    out[1] = avx2_scale(avx2_i8(_mm_loadu_si128((const __m128i_u *)(block + 18))), s->d);
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
    __m128 dm = _mm_cvtph_ps(_mm_cvtsi32_si128((int)load_u32(block)));
    __m256 d = _mm256_broadcastss_ps(dm), dmin = _mm256_broadcastss_ps(_mm_movehdup_ps(dm));
    __m256i q = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)scales));
    __m256i t = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)minima));
    _mm256_storeu_ps(s->d, _mm256_mul_ps(d, _mm256_cvtepi32_ps(q)));
    _mm256_storeu_ps(s->m, _mm256_mul_ps(dmin, _mm256_cvtepi32_ps(t)));
}
#define q5_k_open q4_k_open

VEC_INLINE v16 avx2_k(__m128i q, const struct k_scales *s, unsigned sub) {
    return avx2_scale_sub(avx2_u8(q), _mm256_broadcast_ss(&s->d[sub]), _mm256_broadcast_ss(&s->m[sub]));
}
VEC_INLINE void q4_k_step(const uint8_t *block, const struct k_scales *s, unsigned i, v16 *out) {
    __m128i low[2], high[2];
    avx2_nibbles(block + 16 + 32 * i, &low[0], &high[0]);
    avx2_nibbles(block + 32 + 32 * i, &low[1], &high[1]);
    UNROLL for (unsigned j = 0; j < 2; j++) {
        out[j] = avx2_k(low[j], s, 2 * i);
        out[2 + j] = avx2_k(high[j], s, 2 * i + 1);
    }
}
VEC_INLINE void q5_k_step(const uint8_t *block, const struct k_scales *s, unsigned i, v16 *out) {
    const __m128i low_bit = _mm_set1_epi8((char)(1 << 2 * i)), high_bit = _mm_set1_epi8((char)(2 << 2 * i));
    const __m128i sixteen = _mm_set1_epi8(16);
    UNROLL for (unsigned j = 0; j < 2; j++) {
        __m128i low, high, fifth = _mm_loadu_si128((const __m128i_u *)(block + 16 + 16 * j));
        avx2_nibbles(block + 48 + 32 * i + 16 * j, &low, &high);
        __m128i low_set = _mm_cmpeq_epi8(_mm_and_si128(fifth, low_bit), low_bit);
        __m128i high_set = _mm_cmpeq_epi8(_mm_and_si128(fifth, high_bit), high_bit);
        out[j] = avx2_k(_mm_or_si128(low, _mm_and_si128(low_set, sixteen)), s, 2 * i);
        out[2 + j] = avx2_k(_mm_or_si128(high, _mm_and_si128(high_set, sixteen)), s, 2 * i + 1);
    }
}

struct q6_k_scales {
    float d[16]; /* of each 16 elements */
};
VEC_INLINE void q6_k_open(const uint8_t *block, struct q6_k_scales *s) {
    __m256 d = _mm256_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(load_u16(block + 208))));
    v16 q = avx2_i8(_mm_loadu_si128((const __m128i_u *)(block + 192)));
    v16_store(s->d, avx2_scale(q, d));
}
/* 16 quants of 6 bits, one a byte */
VEC_INLINE v16 avx2_q6(__m128i q, const float *d) {
    return avx2_scale(avx2_i8(_mm_sub_epi8(q, _mm_set1_epi8(32))), _mm256_broadcast_ss(d));
}
/* Half a block: low[64], high[32]; high[j] holds the upper two bits of elements j, j + 32, j + 64 and j + 96. */
VEC_INLINE void q6_k_step(const uint8_t *block, const struct q6_k_scales *s, unsigned i, v16 *out) {
    const uint8_t *low = block + 64 * i, *high = block + 128 + 32 * i;
    const __m128i pair = _mm_set1_epi8(0x30);
    const float *d = s->d + 8 * i;
    UNROLL for (unsigned j = 0; j < 2; j++) {
        __m128i a, b, c, e, h = _mm_loadu_si128((const __m128i_u *)(high + 16 * j));
        avx2_nibbles(low + 16 * j, &a, &c);
        avx2_nibbles(low + 32 + 16 * j, &b, &e);
        out[j] = avx2_q6(_mm_or_si128(a, _mm_and_si128(_mm_slli_epi16(h, 4), pair)), d + j);
        out[2 + j] = avx2_q6(_mm_or_si128(b, _mm_and_si128(_mm_slli_epi16(h, 2), pair)), d + 2 + j);
        out[4 + j] = avx2_q6(_mm_or_si128(c, _mm_and_si128(h, pair)), d + 4 + j);
        out[6 + j] = avx2_q6(_mm_or_si128(e, _mm_and_si128(_mm_srli_epi16(h, 2), pair)), d + 6 + j);
    }
}
