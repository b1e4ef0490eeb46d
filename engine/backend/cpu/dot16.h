/*
 * Dot products of 16-bit integers, exact in 32 bits: so their sums need no order. Thirty-two products are added to
 * eight or sixteen partial sums at once; what the registers hold is the variant's own business.
 */
#ifndef CPU_DOT16_H
#define CPU_DOT16_H

#include "vec16.h"

#if defined(VARIANT_AVX512)

typedef __m512i i16x32;
typedef __m512i isum; /* partial sums */

VEC_INLINE i16x32 i16_load(const int16_t *p) {
    return _mm512_loadu_si512(p);
}
VEC_INLINE i16x32 i16_load_i8(const uint8_t *p) {
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i_u *)(const void *)p));
}
VEC_INLINE isum isum_zero(void) {
    return _mm512_setzero_si512();
}
VEC_INLINE isum isum_add(isum s, i16x32 a, i16x32 b) {
#if defined(__AVX512VNNI__)
    return _mm512_dpwssd_epi32(s, a, b);
#else
    return _mm512_add_epi32(s, _mm512_madd_epi16(a, b));
#endif
}
/* As avx512_fold4 and avx512_sums do. */
VEC_INLINE __m512i isum_fold4(isum a, isum b, isum c, isum d) {
    __m512i ab = _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x44), _mm512_shuffle_i32x4(a, b, 0xee));
    __m512i cd = _mm512_add_epi32(_mm512_shuffle_i32x4(c, d, 0x44), _mm512_shuffle_i32x4(c, d, 0xee));
    return _mm512_add_epi32(_mm512_shuffle_i32x4(ab, cd, 0x88), _mm512_shuffle_i32x4(ab, cd, 0xdd));
}
VEC_INLINE v16 isum_totals(const __m512i quarters[4]) {
    __m512i s = _mm512_add_epi32(_mm512_unpacklo_epi64(quarters[0], quarters[1]),
                                 _mm512_unpackhi_epi64(quarters[0], quarters[1]));
    __m512i t = _mm512_add_epi32(_mm512_unpacklo_epi64(quarters[2], quarters[3]),
                                 _mm512_unpackhi_epi64(quarters[2], quarters[3]));
    __m512 even = _mm512_shuffle_ps(_mm512_castsi512_ps(s), _mm512_castsi512_ps(t), 0x88);
    __m512 odd = _mm512_shuffle_ps(_mm512_castsi512_ps(s), _mm512_castsi512_ps(t), 0xdd);
    return _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_castps_si512(even), _mm512_castps_si512(odd)));
}
/* The elements i8[16] at p as floats. */
VEC_INLINE v16 v16_load_i8(const uint8_t *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i_u *)(const void *)p)));
}
/* Integral values within the type's range. */
VEC_INLINE void v16_store_i8(void *p, v16 a) {
    _mm_storeu_si128((__m128i_u *)p, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a)));
}
VEC_INLINE void v16_store_i16(void *p, v16 a) {
    _mm256_storeu_si256((__m256i_u *)p, _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(a)));
}
VEC_INLINE v16 v16_abs(v16 a) {
    return _mm512_abs_ps(a);
}

#elif defined(VARIANT_AVX2)

typedef struct {
    __m256i lo, hi;
} i16x32;
typedef __m256i isum;

VEC_INLINE i16x32 i16_load(const int16_t *p) {
    const __m256i_u *v = (const void *)p;
    return (i16x32){_mm256_loadu_si256(v), _mm256_loadu_si256(v + 1)};
}
VEC_INLINE i16x32 i16_load_i8(const uint8_t *p) {
    const __m128i_u *v = (const void *)p;
    return (i16x32){_mm256_cvtepi8_epi16(_mm_loadu_si128(v)), _mm256_cvtepi8_epi16(_mm_loadu_si128(v + 1))};
}
VEC_INLINE isum isum_zero(void) {
    return _mm256_setzero_si256();
}
VEC_INLINE isum isum_add(isum s, i16x32 a, i16x32 b) {
    s = _mm256_add_epi32(s, _mm256_madd_epi16(a.lo, b.lo));
    return _mm256_add_epi32(s, _mm256_madd_epi16(a.hi, b.hi));
}
VEC_INLINE void isum_total4(isum a, isum b, isum c, isum d, float out[4]) {
    __m256i s = _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d));
    __m128i t = _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
    _mm_storeu_ps(out, _mm_cvtepi32_ps(t));
}
VEC_INLINE v16 v16_load_i8(const uint8_t *p) {
    __m128i v = _mm_loadu_si128((const __m128i_u *)(const void *)p);
    return V16_EACH(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(v)),
                    _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(v, v))));
}
VEC_INLINE __m256i avx2_to_i16(v16 a) {
    __m256i packed = _mm256_packs_epi32(_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi));
    return _mm256_permute4x64_epi64(packed, 0xd8);
}
VEC_INLINE void v16_store_i16(void *p, v16 a) {
    _mm256_storeu_si256((__m256i_u *)p, avx2_to_i16(a));
}
VEC_INLINE void v16_store_i8(void *p, v16 a) {
    __m256i i = avx2_to_i16(a);
    _mm_storeu_si128((__m128i_u *)p, _mm_packs_epi16(_mm256_castsi256_si128(i), _mm256_extracti128_si256(i, 1)));
}
VEC_INLINE v16 v16_abs(v16 a) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return V16_EACH(_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi));
}

#else

typedef struct {
    int16_t i[32];
} i16x32;
typedef int32_t isum;

VEC_INLINE i16x32 i16_load(const int16_t *p) {
    i16x32 r;
    memcpy(&r, p, sizeof r);
    return r;
}
VEC_INLINE i16x32 i16_load_i8(const uint8_t *p) {
    i16x32 r;
    for (unsigned i = 0; i < 32; i++) {
        r.i[i] = (int8_t)p[i];
    }
    return r;
}
VEC_INLINE isum isum_zero(void) {
    return 0;
}
VEC_INLINE isum isum_add(isum s, i16x32 a, i16x32 b) {
    for (unsigned i = 0; i < 32; i++) {
        s += (int32_t)a.i[i] * b.i[i];
    }
    return s;
}
VEC_INLINE void isum_total4(isum a, isum b, isum c, isum d, float out[4]) {
    const int32_t sums[] = {a, b, c, d};
    for (unsigned i = 0; i < 4; i++) {
        out[i] = (float)sums[i];
    }
}
VEC_INLINE v16 v16_load_i8(const uint8_t *p) {
    float t[16];
    for (unsigned i = 0; i < 16; i++) {
        t[i] = (float)(int8_t)p[i];
    }
    return v16_load(t);
}
VEC_INLINE void v16_store_i16(void *p, v16 a) {
    float t[16];
    int16_t r[16];
    v16_store(t, a);
    for (unsigned i = 0; i < 16; i++) {
        r[i] = (int16_t)t[i];
    }
    memcpy(p, r, sizeof r);
}
VEC_INLINE void v16_store_i8(void *p, v16 a) {
    float t[16];
    int8_t r[16];
    v16_store(t, a);
    for (unsigned i = 0; i < 16; i++) {
        r[i] = (int8_t)t[i];
    }
    memcpy(p, r, sizeof r);
}
VEC_INLINE v16 v16_abs(v16 a) {
    return v16_max(a, v16_sub(v16_zero(), a));
}

#endif

/* The largest magnitude of x[n]; NaN if an element is infinite or NaN. */
VEC_INLINE float magnitude_row(const float *x, size_t n) {
    v16 top = v16_zero(), odd = v16_zero();
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        v16 v = v16_load(x + i);
        top = v16_max(top, v16_abs(v));
        odd = v16_fma(v, v16_zero(), odd); /* 0 unless the element is no finite number: then NaN */
    }
    if (i < n) {
        v16 v = v16_load_n(x + i, n - i);
        top = v16_max(top, v16_abs(v));
        odd = v16_fma(v, v16_zero(), odd);
    }
    float bad = v16_sum(odd);
    return bad == 0 ? v16_hmax(top) : bad;
}

/* x * by to nearest even, within +-limit */
VEC_INLINE v16 quantised(v16 x, float by, float limit) {
    v16 q = v16_round(v16_mul(x, v16_set1(by)));
    return v16_max(v16_set1(-limit), v16_min(v16_set1(limit), q));
}

#endif
