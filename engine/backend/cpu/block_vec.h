/*
 * Vectors that the kernels of linear_block.h are written in: BV_COLS outputs side by side, a dword each, in one
 * AVX2 or AVX-512 register. Compiled by what the variant's instruction set flags offer.
 *
 * Dot products are of unsigned bytes (weights) by signed ones (activations, |x| <= 64), four to a dword. With VNNI a
 * sum is 32 bits wide at once. Without, pairs are added in 16 bits: they hold 8 products of pairs of 5-bit weights
 * (8 * 2 * 31 * 64 = 31744), 4 of 6-bit weights (32256), one of 8-bit weights (32640), and bq_wide() widens them.
 */
#ifndef CPU_BLOCK_VEC_H
#define CPU_BLOCK_VEC_H

#include "vec16.h"

#include <immintrin.h>

#if defined(__AVX512BW__)
#define BV_COLS 16
typedef __m512i bq;
typedef __m512 bf;

VEC_INLINE bq bq_load(const uint8_t *p) {
    return _mm512_load_si512(p);
}
VEC_INLINE bq bq_zero(void) {
    return _mm512_setzero_si512();
}
VEC_INLINE bq bq_set1(int32_t x) {
    return _mm512_set1_epi32(x);
}
VEC_INLINE bq bq_and(bq a, bq b) {
    return _mm512_and_si512(a, b);
}
VEC_INLINE bq bq_or(bq a, bq b) {
    return _mm512_or_si512(a, b);
}
VEC_INLINE bq bq_add(bq a, bq b) {
    return _mm512_add_epi32(a, b);
}
/* Dwords shifted by n, which need not be a literal. */
VEC_INLINE bq bq_right(bq a, unsigned n) {
    return _mm512_srlv_epi32(a, _mm512_set1_epi32((int)n));
}
VEC_INLINE bq bq_left(bq a, unsigned n) {
    return _mm512_sllv_epi32(a, _mm512_set1_epi32((int)n));
}
/* The low byte of each dword, signed. */
VEC_INLINE bq bq_low_byte_signed(bq a) {
    return _mm512_srai_epi32(_mm512_slli_epi32(a, 24), 24);
}
VEC_INLINE bq bq_left7(bq a) {
    return _mm512_slli_epi32(a, 7);
}
VEC_INLINE bf bf_half(const uint8_t *p) {
    return _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)p));
}
VEC_INLINE bf bf_zero(void) {
    return _mm512_setzero_ps();
}
VEC_INLINE bf bf_set1(float x) {
    return _mm512_set1_ps(x);
}
VEC_INLINE bf bf_from(bq a) {
    return _mm512_cvtepi32_ps(a);
}
VEC_INLINE bf bf_mul(bf a, bf b) {
    return _mm512_mul_ps(a, b);
}
VEC_INLINE bf bf_add(bf a, bf b) {
    return _mm512_add_ps(a, b);
}
VEC_INLINE bf bf_fma(bf a, bf b, bf c) {
    return _mm512_fmadd_ps(a, b, c);
}
VEC_INLINE bf bf_load(const float *p) {
    return _mm512_loadu_ps(p);
}
VEC_INLINE void bf_store(float *p, bf a) {
    _mm512_storeu_ps(p, a);
}
#if !defined(__AVX512VNNI__)
VEC_INLINE bq bq_madd_bytes(bq w, bq x) {
    return _mm512_maddubs_epi16(w, x);
}
VEC_INLINE bq bq_add_pairs(bq a, bq b) {
    return _mm512_add_epi16(a, b);
}
VEC_INLINE bq bq_wide(bq a) {
    return _mm512_madd_epi16(a, _mm512_set1_epi16(1));
}
#endif

#else
#define BV_COLS 8
typedef __m256i bq;
typedef __m256 bf;

VEC_INLINE bq bq_load(const uint8_t *p) {
    return _mm256_load_si256((const __m256i *)p);
}
VEC_INLINE bq bq_zero(void) {
    return _mm256_setzero_si256();
}
VEC_INLINE bq bq_set1(int32_t x) {
    return _mm256_set1_epi32(x);
}
VEC_INLINE bq bq_and(bq a, bq b) {
    return _mm256_and_si256(a, b);
}
VEC_INLINE bq bq_or(bq a, bq b) {
    return _mm256_or_si256(a, b);
}
VEC_INLINE bq bq_add(bq a, bq b) {
    return _mm256_add_epi32(a, b);
}
VEC_INLINE bq bq_right(bq a, unsigned n) {
    return _mm256_srlv_epi32(a, _mm256_set1_epi32((int)n));
}
VEC_INLINE bq bq_left(bq a, unsigned n) {
    return _mm256_sllv_epi32(a, _mm256_set1_epi32((int)n));
}
VEC_INLINE bq bq_low_byte_signed(bq a) {
    return _mm256_srai_epi32(_mm256_slli_epi32(a, 24), 24);
}
VEC_INLINE bq bq_left7(bq a) {
    return _mm256_slli_epi32(a, 7);
}
VEC_INLINE bf bf_half(const uint8_t *p) {
    return _mm256_cvtph_ps(_mm_load_si128((const __m128i *)p));
}
VEC_INLINE bf bf_zero(void) {
    return _mm256_setzero_ps();
}
VEC_INLINE bf bf_set1(float x) {
    return _mm256_set1_ps(x);
}
VEC_INLINE bf bf_from(bq a) {
    return _mm256_cvtepi32_ps(a);
}
VEC_INLINE bf bf_mul(bf a, bf b) {
    return _mm256_mul_ps(a, b);
}
VEC_INLINE bf bf_add(bf a, bf b) {
    return _mm256_add_ps(a, b);
}
VEC_INLINE bf bf_fma(bf a, bf b, bf c) {
    return _mm256_fmadd_ps(a, b, c);
}
VEC_INLINE bf bf_load(const float *p) {
    return _mm256_loadu_ps(p);
}
VEC_INLINE void bf_store(float *p, bf a) {
    _mm256_storeu_ps(p, a);
}
VEC_INLINE bq bq_madd_bytes(bq w, bq x) {
    return _mm256_maddubs_epi16(w, x);
}
VEC_INLINE bq bq_add_pairs(bq a, bq b) {
    return _mm256_add_epi16(a, b);
}
VEC_INLINE bq bq_wide(bq a) {
    return _mm256_madd_epi16(a, _mm256_set1_epi16(1));
}
#endif

/* acc + products of w's bytes with the four at x, in every dword. `wide`: weights of 8 bits. bq_sum() ends a sum. */
VEC_INLINE bq bq_dot(const bool wide, bq acc, bq w, const int8_t *x) {
    int32_t four;
    memcpy(&four, x, sizeof four);
#if defined(__AVX512VNNI__)
    (void)wide;
    return _mm512_dpbusd_epi32(acc, w, bq_set1(four));
#else
    bq pairs = bq_madd_bytes(w, bq_set1(four));
    return wide ? bq_add(acc, bq_wide(pairs)) : bq_add_pairs(acc, pairs);
#endif
}
VEC_INLINE bq bq_sum(const bool wide, bq acc) {
#if defined(__AVX512VNNI__)
    (void)wide;
    return acc;
#else
    return wide ? acc : bq_wide(acc);
#endif
}

#endif
