/* 16-bit floats to 32 bits, exactly, without asking anything of the processor. */
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

#endif
