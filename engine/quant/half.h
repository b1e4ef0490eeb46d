/* 8- and 16-bit floats to 32 bits, exactly, and 32 bits to 16, without asking anything of the processor. */
#ifndef INFERD_HALF_H
#define INFERD_HALF_H

#include <stdint.h>
#include <string.h>

/* IEEE 754 binary16: sign, 5 bits of exponent (bias 15), 10 of mantissa. */
static inline float float_from_half(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 0x1f, mantissa = h & 0x3ff, bits;
    if (exponent == 0) { /* zero or subnormal: mantissa * 2^-24, which a float holds exactly */
        float v = (float)mantissa * 0x1p-24f;
        memcpy(&bits, &v, sizeof bits);
        bits |= sign;
    } else if (exponent == 31) { /* infinity or NaN */
        bits = sign | 0x7f800000 | mantissa << 13;
    } else {
        bits = sign | (exponent + 127 - 15) << 23 | mantissa << 13;
    }
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

/* bfloat16: the upper half of a float. */
static inline float float_from_bf16(uint16_t h) {
    uint32_t bits = (uint32_t)h << 16;
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

/* OCP 8-bit floating point, E4M3: sign, 4 bits of exponent (bias 7), 3 of mantissa; no infinities, all ones are NaN. */
static inline float float_from_e4m3(uint8_t b) {
    uint32_t sign = (uint32_t)(b & 0x80) << 24, exponent = b >> 3 & 15, mantissa = b & 7, bits;
    if (exponent == 0) {
        float v = (float)mantissa * 0x1p-9f;
        memcpy(&bits, &v, sizeof bits);
        bits |= sign;
    } else if (exponent == 15 && mantissa == 7) {
        bits = sign | 0x7fc00000;
    } else {
        bits = sign | (exponent + 127 - 7) << 23 | mantissa << 20;
    }
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

/* E8M0, a scale: 2^(b - 127); 255 is NaN. */
static inline float float_from_e8m0(uint8_t b) {
    uint32_t bits = b == 255 ? 0x7fc00000 : b == 0 ? 0x00400000 : (uint32_t)b << 23;
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

/* To nearest even; what is too large becomes infinite. */
static inline uint16_t half_from_float(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    bits &= 0x7fffffff;
    if (bits > 0x7f800000) {
        return sign | 0x7e00;
    }
    if (bits >= 0x477ff000) { /* 65520, the middle between the largest and what would follow */
        return sign | 0x7c00;
    }
    if (bits < 0x38800000) { /* below 2^-14 a half counts in units of 2^-24, as a float of this size does in its last bits */
        float v;
        memcpy(&v, &bits, sizeof v);
        v += 0.5f;
        memcpy(&bits, &v, sizeof bits);
        return (uint16_t)(sign | (bits - 0x3f000000));
    }
    bits += 0xfff + (bits >> 13 & 1);
    return (uint16_t)(sign | ((bits >> 13) - ((127 - 15) << 10)));
}

/* To nearest even; what is too large becomes infinite. */
static inline uint16_t bf16_from_float(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7fffffff) > 0x7f800000) {
        return (uint16_t)(bits >> 16 | 0x40);
    }
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

#endif
