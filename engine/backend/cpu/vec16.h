/*
 * Sixteen floats, the unit that every kernel is written in. vec16_generic.h, vec16_avx2.h and vec16_avx512.h
 * implement the same functions; a kernel file defines one of VARIANT_* before it includes this one.
 *
 * Lane j of a dot product takes the elements k = j mod 16 in rising k, and v16_sum() folds the lanes in one fixed
 * tree: halves of 8, of 4, of 2, of 1. So a row's sum depends on nothing but the row.
 */
#ifndef CPU_VEC16_H
#define CPU_VEC16_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define VEC_INLINE static inline __attribute__((always_inline, unused))
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED
#endif
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED
#endif

/* Sums live in registers only once their loops are unrolled. A sanitizer checks every access, and would take minutes to
 * compile that. */
#if defined(SANITIZED) && defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(disable) vectorize(disable)")
#elif defined(SANITIZED)
#define UNROLL _Pragma("GCC unroll 1")
#elif defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

#if defined(VARIANT_AVX512)
#include "vec16_avx512.h"
#elif defined(VARIANT_AVX2)
#include "vec16_avx2.h"
#else
#include "vec16_generic.h"
#endif

/*
 * e^x, relative error below 2e-7, exactly 0 below -87.3 (so that -INFINITY gives 0) and exactly 1 at 0.
 * x = n ln 2 + r with |r| <= ln 2 / 2 (Cody & Waite 1980: ln 2 in two parts), e^r by its Taylor polynomial of degree 7.
 */
VEC_INLINE v16 v16_exp(v16 x) {
    const v16 lowest = v16_set1(-87.3f), highest = v16_set1(88.72f);
    v16 c = v16_min(highest, v16_max(lowest, x)); /* in this order a NaN stays one */
    v16 n = v16_round(v16_mul(c, v16_set1(1.44269504088896341f)));
    v16 r = v16_fma(n, v16_set1(-0.693359375f), c);
    r = v16_fma(n, v16_set1(2.12194440e-4f), r);
    v16 p = v16_set1(1.0f / 5040);
    p = v16_fma(p, r, v16_set1(1.0f / 720));
    p = v16_fma(p, r, v16_set1(1.0f / 120));
    p = v16_fma(p, r, v16_set1(1.0f / 24));
    p = v16_fma(p, r, v16_set1(1.0f / 6));
    p = v16_fma(p, r, v16_set1(0.5f));
    p = v16_fma(p, r, v16_set1(1.0f));
    p = v16_fma(p, r, v16_set1(1.0f));
    return v16_select_lt(x, lowest, v16_zero(), v16_scale2(p, n));
}

#endif
