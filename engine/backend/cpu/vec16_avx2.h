/* vec16 in two AVX2 registers (with FMA and F16C). Included by vec16.h. */
#include <immintrin.h>

typedef struct {
    __m256 lo, hi; /* elements 0..7, 8..15 */
} v16;

#define V16_EACH(expr_lo, expr_hi) ((v16){(expr_lo), (expr_hi)})

VEC_INLINE v16 v16_zero(void) {
    return V16_EACH(_mm256_setzero_ps(), _mm256_setzero_ps());
}
VEC_INLINE v16 v16_set1(float a) {
    return V16_EACH(_mm256_set1_ps(a), _mm256_set1_ps(a));
}
VEC_INLINE v16 v16_load(const float *p) {
    return V16_EACH(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8));
}
VEC_INLINE void v16_store(float *p, v16 a) {
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
}
/* The first n < 16 elements, zeros behind. */
VEC_INLINE v16 v16_load_n(const float *p, size_t n) {
    float t[16] = {0};
    memcpy(t, p, n * sizeof *p);
    return v16_load(t);
}
VEC_INLINE void v16_store_n(float *p, size_t n, v16 a) {
    float t[16];
    v16_store(t, a);
    memcpy(p, t, n * sizeof *p);
}
VEC_INLINE v16 v16_add(v16 a, v16 b) {
    return V16_EACH(_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi));
}
VEC_INLINE v16 v16_sub(v16 a, v16 b) {
    return V16_EACH(_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi));
}
VEC_INLINE v16 v16_mul(v16 a, v16 b) {
    return V16_EACH(_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi));
}
VEC_INLINE v16 v16_div(v16 a, v16 b) {
    return V16_EACH(_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi));
}
/* a * b + c */
VEC_INLINE v16 v16_fma(v16 a, v16 b, v16 c) {
    return V16_EACH(_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi));
}
VEC_INLINE v16 v16_max(v16 a, v16 b) {
    return V16_EACH(_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi));
}
VEC_INLINE v16 v16_min(v16 a, v16 b) {
    return V16_EACH(_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi));
}
/* a < b ? x : y */
VEC_INLINE v16 v16_select_lt(v16 a, v16 b, v16 x, v16 y) {
    return V16_EACH(_mm256_blendv_ps(y.lo, x.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
                    _mm256_blendv_ps(y.hi, x.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)));
}
VEC_INLINE v16 v16_round(v16 a) {
    return V16_EACH(_mm256_round_ps(a.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
                    _mm256_round_ps(a.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
/* 2^n is built as two factors, for 2^128 is no float while a * 2^128 may be one. */
VEC_INLINE __m256 avx2_scale2(__m256 a, __m256 n) {
    __m256i i = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(i, 1), rest = _mm256_sub_epi32(i, half);
    const __m256i bias = _mm256_set1_epi32(127);
    __m256 f = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
    __m256 g = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23));
    return _mm256_mul_ps(_mm256_mul_ps(a, f), g);
}
/* a * 2^n for integral n in [-126, 128] */
VEC_INLINE v16 v16_scale2(v16 a, v16 n) {
    return V16_EACH(avx2_scale2(a.lo, n.lo), avx2_scale2(a.hi, n.hi));
}
VEC_INLINE v16 v16_load_f16(const void *p) {
    const __m128i_u *h = p;
    return V16_EACH(_mm256_cvtph_ps(_mm_loadu_si128(h)), _mm256_cvtph_ps(_mm_loadu_si128(h + 1)));
}
VEC_INLINE v16 v16_load_f16_n(const void *p, size_t n) {
    uint16_t t[16] = {0};
    memcpy(t, p, n * sizeof *t);
    return v16_load_f16(t);
}
VEC_INLINE void v16_store_f16(void *p, v16 a) {
    __m128i_u *h = p;
    _mm_storeu_si128(h, _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    _mm_storeu_si128(h + 1, _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
VEC_INLINE __m256 avx2_load_bf16(const __m128i_u *p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(p)), 16));
}
VEC_INLINE v16 v16_load_bf16(const void *p) {
    const __m128i_u *h = p;
    return V16_EACH(avx2_load_bf16(h), avx2_load_bf16(h + 1));
}
VEC_INLINE v16 v16_load_bf16_n(const void *p, size_t n) {
    uint16_t t[16] = {0};
    memcpy(t, p, n * sizeof *t);
    return v16_load_bf16(t);
}
/* The upper half of each float, rounded to nearest even; a NaN stays one, quiet. */
VEC_INLINE __m256i avx2_round_bf16(__m256 a) {
    __m256i u = _mm256_castps_si256(a);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    __m256i r = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
    return _mm256_srli_epi32(_mm256_blendv_epi8(r, quiet, nan), 16);
}
VEC_INLINE void v16_store_bf16(void *p, v16 a) {
    __m256i packed = _mm256_packus_epi32(avx2_round_bf16(a.lo), avx2_round_bf16(a.hi));
    _mm256_storeu_si256((__m256i_u *)p, _mm256_permute4x64_epi64(packed, 0xd8));
}
VEC_INLINE float v16_sum(v16 a) {
    __m256 s = _mm256_add_ps(a.lo, a.hi);
    __m128 t = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    t = _mm_add_ps(t, _mm_movehl_ps(t, t));
    t = _mm_add_ss(t, _mm_movehdup_ps(t));
    return _mm_cvtss_f32(t);
}
/* The sums of four vectors, each by the tree of v16_sum. */
VEC_INLINE void v16_sum4(v16 a, v16 b, v16 c, v16 d, float out[4]) {
    __m256 sa = _mm256_add_ps(a.lo, a.hi), sb = _mm256_add_ps(b.lo, b.hi);
    __m256 sc = _mm256_add_ps(c.lo, c.hi), sd = _mm256_add_ps(d.lo, d.hi);
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
    __m256 s = _mm256_max_ps(a.lo, a.hi);
    __m128 t = _mm_max_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    t = _mm_max_ps(t, _mm_movehl_ps(t, t));
    t = _mm_max_ss(t, _mm_movehdup_ps(t));
    return _mm_cvtss_f32(t);
}
