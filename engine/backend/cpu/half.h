/* F16 (IEEE 754 binary16) and BF16 one at a time, in integer arithmetic; rounding to nearest even. */
#ifndef CPU_HALF_H
#define CPU_HALF_H

#include <stdint.h>
#include <string.h>

static inline float f32_from_bits(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline uint32_t f32_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

/* Exponent and fraction are moved to their places and rescaled by 2^112, which makes subnormals right as well. */
static inline float f32_from_half(uint16_t h) {
    uint32_t magnitude = (uint32_t)(h & 0x7fff) << 13;
    uint32_t u = f32_bits(f32_from_bits(magnitude) * 0x1p112f);
    if (magnitude >= 0x0f800000u) {
        u |= 0x7f800000u; /* infinity or NaN */
    }
    return f32_from_bits(u | (uint32_t)(h & 0x8000) << 16);
}

static inline uint16_t half_from_f32(float f) {
    uint32_t u = f32_bits(f), magnitude = u & 0x7fffffffu;
    uint32_t sign = u >> 16 & 0x8000u;
    if (magnitude > 0x7f800000u) {
        return (uint16_t)(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu)); /* a NaN stays one, quiet */
    }
    if (magnitude >= 0x477ff000u) {
        return (uint16_t)(sign | 0x7c00u); /* 65520 and above round to infinity */
    }
    if (magnitude < 0x38800000u) {
        /* Subnormal in F16: adding 0.5 leaves the fraction, rounded by the FPU, in the lowest bits. */
        uint32_t r = f32_bits(f32_from_bits(magnitude) + 0.5f) - f32_bits(0.5f);
        return (uint16_t)(sign | r);
    }
    uint32_t r = magnitude + 0xfffu + (magnitude >> 13 & 1u) - 0x38000000u;
    return (uint16_t)(sign | r >> 13);
}

static inline float f32_from_bf16(uint16_t h) {
    return f32_from_bits((uint32_t)h << 16);
}

static inline uint16_t bf16_from_f32(float f) {
    uint32_t u = f32_bits(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) {
        return (uint16_t)(u >> 16 | 0x40u);
    }
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

#endif
