/* vec16 in one AVX-512 register (F, BW, DQ, VL). Included by vec16.h. */
#include <immintrin.h>

typedef __m512 v16;

VEC_INLINE v16 v16_zero(void) {
    return _mm512_setzero_ps();
}
VEC_INLINE v16 v16_set1(float a) {
    return _mm512_set1_ps(a);
}
VEC_INLINE v16 v16_load(const float *p) {
    return _mm512_loadu_ps(p);
}
VEC_INLINE void v16_store(float *p, v16 a) {
    _mm512_storeu_ps(p, a);
}
/* The first n < 16 elements, zeros behind. */
VEC_INLINE __mmask16 v16_mask(size_t n) {
    return (__mmask16)((1u << n) - 1);
}
VEC_INLINE v16 v16_load_n(const float *p, size_t n) {
    return _mm512_maskz_loadu_ps(v16_mask(n), p);
}
VEC_INLINE void v16_store_n(float *p, size_t n, v16 a) {
    _mm512_mask_storeu_ps(p, v16_mask(n), a);
}
VEC_INLINE v16 v16_add(v16 a, v16 b) {
    return _mm512_add_ps(a, b);
}
VEC_INLINE v16 v16_sub(v16 a, v16 b) {
    return _mm512_sub_ps(a, b);
}
VEC_INLINE v16 v16_mul(v16 a, v16 b) {
    return _mm512_mul_ps(a, b);
}
VEC_INLINE v16 v16_div(v16 a, v16 b) {
    return _mm512_div_ps(a, b);
}
/* a * b + c */
VEC_INLINE v16 v16_fma(v16 a, v16 b, v16 c) {
    return _mm512_fmadd_ps(a, b, c);
}
VEC_INLINE v16 v16_max(v16 a, v16 b) {
    return _mm512_max_ps(a, b);
}
VEC_INLINE v16 v16_min(v16 a, v16 b) {
    return _mm512_min_ps(a, b);
}
/* a < b ? x : y */
VEC_INLINE v16 v16_select_lt(v16 a, v16 b, v16 x, v16 y) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x);
}
VEC_INLINE v16 v16_round(v16 a) {
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
/* a * 2^n for integral n in [-126, 128] */
VEC_INLINE v16 v16_scale2(v16 a, v16 n) {
    return _mm512_scalef_ps(a, n);
}
VEC_INLINE v16 v16_load_f16(const void *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i_u *)p));
}
VEC_INLINE v16 v16_load_f16_n(const void *p, size_t n) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(v16_mask(n), p));
}
VEC_INLINE void v16_store_f16(void *p, v16 a) {
    _mm256_storeu_si256((__m256i_u *)p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
VEC_INLINE v16 v16_load_bf16(const void *p) {
    __m512i u = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i_u *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(u, 16));
}
VEC_INLINE v16 v16_load_bf16_n(const void *p, size_t n) {
    __m512i u = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(v16_mask(n), p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(u, 16));
}
VEC_INLINE void v16_store_bf16(void *p, v16 a) {
    __m512i u = _mm512_castps_si512(a);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i r = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __mmask16 nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
    r = _mm512_mask_or_epi32(r, nan, u, _mm512_set1_epi32(0x400000)); /* a NaN stays one, quiet */
    _mm256_storeu_si256((__m256i_u *)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(r, 16)));
}
VEC_INLINE __m256 avx512_fold(__m512 a) {
    return _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
}
VEC_INLINE float v16_sum(v16 a) {
    __m256 s = avx512_fold(a);
    __m128 t = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    t = _mm_add_ps(t, _mm_movehl_ps(t, t));
    t = _mm_add_ss(t, _mm_movehdup_ps(t));
    return _mm_cvtss_f32(t);
}
/* The sums of four vectors, each by the tree of v16_sum. */
VEC_INLINE void v16_sum4(v16 a, v16 b, v16 c, v16 d, float out[4]) {
    __m256 sa = avx512_fold(a), sb = avx512_fold(b), sc = avx512_fold(c), sd = avx512_fold(d);
    __m256 ac = _mm256_add_ps(_mm256_permute2f128_ps(sa, sc, 0x20), _mm256_permute2f128_ps(sa, sc, 0x31));
    __m256 bd = _mm256_add_ps(_mm256_permute2f128_ps(sb, sd, 0x20), _mm256_permute2f128_ps(sb, sd, 0x31));
    /* ac = [a0 a1 a2 a3 | c0 c1 c2 c3] */
    __m256 s = _mm256_add_ps(_mm256_shuffle_ps(ac, bd, 0x44), _mm256_shuffle_ps(ac, bd, 0xee));
    /* s = [a0 a1 b0 b1 | c0 c1 d0 d1] */
    s = _mm256_add_ps(s, _mm256_permute_ps(s, 0xb1));
    __m128 lo = _mm256_castps256_ps128(s), hi = _mm256_extractf128_ps(s, 1);
    _mm_storeu_ps(out, _mm_shuffle_ps(lo, hi, 0x88));
}
VEC_INLINE float v16_hmax(v16 a) {
    return _mm512_reduce_max_ps(a);
}
/* Towards the sums of sixteen vectors, each by the tree of v16_sum: from four vectors their four lanes each, in
 * quarters; then from four of those all sums, element 4c + g of vector c of group g. */
VEC_INLINE __m512 avx512_fold4(__m512 a, __m512 b, __m512 c, __m512 d) {
    __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
    __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));
    return _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
}
VEC_INLINE __m512 avx512_low2(__m512 a, __m512 b) {
    return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
}
VEC_INLINE __m512 avx512_high2(__m512 a, __m512 b) {
    return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
}
VEC_INLINE v16 avx512_sums(const v16 quarters[4]) {
    __m512 s = _mm512_add_ps(avx512_low2(quarters[0], quarters[1]), avx512_high2(quarters[0], quarters[1]));
    __m512 t = _mm512_add_ps(avx512_low2(quarters[2], quarters[3]), avx512_high2(quarters[2], quarters[3]));
    return _mm512_add_ps(_mm512_shuffle_ps(s, t, 0x88), _mm512_shuffle_ps(s, t, 0xdd));
}
