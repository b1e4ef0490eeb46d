/*
 * The arithmetic of sampling, one header for host and device, so that equal logits give equal choices on both.
 *
 *  - Only operations that IEEE 754 defines to the bit: +, -, *, /, fma, comparisons, conversions.
 *  - Probabilities are whole numbers of 2^-40 of the best token's: integer sums do not depend on their order.
 *    A token more than 40 bits (27.7 nats) below the best one has none, as it would have in a float sum.
 */
#ifndef INFERD_SAMPLER_MATH_H
#define INFERD_SAMPLER_MATH_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define SAMPLER_LOG2E 1.44269504f
#define SAMPLER_WEIGHT_ONE 1099511627776.0f /* 2^40 */

#ifndef SAMPLER_FMA
#define SAMPLER_FMA(a, b, c) __builtin_fmaf((a), (b), (c))
#endif
#ifndef SAMPLER_INLINE
#define SAMPLER_INLINE static inline __attribute__((always_inline))
#endif

/*
 * x <= 0, but not below -126. By its bits (-126 is 0xC2FC0000): a comparison of floats keeps compilers from using
 * vectors.
 */
SAMPLER_INLINE float sampler_clamp(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits = bits < 0xC2FC0000u ? bits : 0xC2FC0000u;
    float y;
    memcpy(&y, &bits, sizeof y);
    return y;
}

/*
 * 2^x for x <= 0; below -126 it stays 2^-126, whose weight is 0. x = n + f with f in [-1/2, 1/2]; 2^f by its Taylor
 * series (coefficients ln(2)^k / k!, remainder below 2^-27) and 2^n put into the exponent.
 */
SAMPLER_INLINE float sampler_exp2(float x) {
    uint32_t bits;
    float y = sampler_clamp(x), scale;
    float n = (y + 12582912.0f) - 12582912.0f; /* 1.5 * 2^23: round to nearest whole */
    float f = y - n;
    float p = 1.52527339e-5f;
    p = SAMPLER_FMA(p, f, 1.54035304e-4f);
    p = SAMPLER_FMA(p, f, 1.33335581e-3f);
    p = SAMPLER_FMA(p, f, 9.61812911e-3f);
    p = SAMPLER_FMA(p, f, 5.55041087e-2f);
    p = SAMPLER_FMA(p, f, 2.40226507e-1f);
    p = SAMPLER_FMA(p, f, 6.93147181e-1f);
    p = SAMPLER_FMA(p, f, 1.0f);
    bits = (uint32_t)((int32_t)n + 127) << 23;
    memcpy(&scale, &bits, sizeof scale);
    return p * scale;
}

SAMPLER_INLINE uint64_t sampler_weight(float relative_probability) {
    return (uint64_t)(int64_t)(relative_probability * SAMPLER_WEIGHT_ONE);
}

/*
 * log2 of a normal x > 0: x = m * 2^n with m in [sqrt(1/2), sqrt(2)), and log2(m) = 2 / ln(2) * atanh((m - 1) / (m +
 * 1)) by its series; the remainder is below 2^-52.
 */
SAMPLER_INLINE double sampler_log2(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    int n = (int)(bits >> 52) - 1023;
    bits = (bits & 0xfffffffffffffu) | (uint64_t)1023 << 52;
    double m;
    memcpy(&m, &bits, sizeof m);
    if (m >= 1.4142135623730951) {
        m = m * 0.5;
        n++;
    }
    double t = (m - 1) / (m + 1), t2 = t * t, sum = 0;
    for (int k = 21; k >= 1; k -= 2) {
        sum = sum * t2 + 1.0 / k;
    }
    return n + sum * t * 2.8853900817779268;
}

/* 2^x for |x| <= 1000, by the Taylor series of its fraction. */
SAMPLER_INLINE double sampler_exp2_double(double x) {
    double n = (x + 6755399441055744.0) - 6755399441055744.0; /* 1.5 * 2^52: round to nearest whole */
    double y = (x - n) * 0.69314718055994531, sum = 1;
    for (int k = 14; k >= 1; k--) {
        sum = 1 + sum * (y / k);
    }
    uint64_t bits = (uint64_t)((int64_t)n + 1023) << 52;
    double scale;
    memcpy(&scale, &bits, sizeof scale);
    return sum * scale;
}

/* base^exponent for base >= 1, no more than 1e30. */
SAMPLER_INLINE double sampler_power(double base, uint32_t exponent) {
    double result = 1;
    for (; exponent > 0; exponent >>= 1) {
        if (exponent & 1) {
            result = result * base;
        }
        base = base * base;
        base = base < 1e30 ? base : 1e30;
        result = result < 1e30 ? result : 1e30;
    }
    return result;
}

/* A float's order as an unsigned number: a < b exactly when key(a) < key(b), for all but NaN; -0 and +0 are equal. */
SAMPLER_INLINE uint32_t sampler_key(float x) {
    float canonical = x + 0.0f;
    uint32_t bits;
    memcpy(&bits, &canonical, sizeof bits);
    return bits ^ ((uint32_t)((int32_t)bits >> 31) | 0x80000000u);
}

/* The float that has this key (+0 for both zeros). */
SAMPLER_INLINE float sampler_float_of_key(uint32_t key) {
    uint32_t bits = key & 0x80000000u ? key & 0x7fffffffu : ~key;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/*
 * Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC'11): a bijection of the
 * 128-bit counter for each 64-bit key.
 */
SAMPLER_INLINE void sampler_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3], k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xD2511F53u * c0, b = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)b;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* What a random number is for: each use has a stream of its own. */
enum { SAMPLER_STREAM_CHOICE, SAMPLER_STREAM_XTC };

/* The random 64 bits of a choice: the key is the seed, the counter (position, choice, stream). */
SAMPLER_INLINE uint64_t sampler_random(uint64_t seed, uint64_t position, uint32_t choice, uint32_t stream) {
    const uint32_t counter[4] = {(uint32_t)position, (uint32_t)(position >> 32), choice, stream};
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t r[4];
    sampler_philox(counter, key, r);
    return (uint64_t)r[1] << 32 | r[0];
}

/* random * total / 2^64, rounded down: uniform in [0, total). */
SAMPLER_INLINE uint64_t sampler_scale_random(uint64_t random, uint64_t total) {
    return (uint64_t)((unsigned __int128)random * total >> 64);
}

#endif
