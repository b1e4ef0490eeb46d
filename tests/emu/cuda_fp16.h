/* IEEE binary16 as CUDA names it: storage, conversions (to nearest even) and arithmetic that rounds each operation. */
#ifndef EMU_CUDA_FP16_H
#define EMU_CUDA_FP16_H

#include "vector_types.h"

#include <stdint.h>
#include <string.h>

static inline float emu_f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, magnitude = h & 0x7fffu, bits;
    float f;
    if (magnitude >= 0x7c00u) {
        bits = 0x7f800000u | (magnitude & 0x3ffu) << 13;
    } else {
        bits = magnitude << 13; /* scaled by 2^-112, subnormals included; the product is exact */
        memcpy(&f, &bits, sizeof f);
        f *= 0x1p112f;
        memcpy(&bits, &f, sizeof bits);
    }
    bits |= sign;
    memcpy(&f, &bits, sizeof f);
    return f;
}
static inline uint16_t emu_f32_to_f16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint32_t sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
        return (uint16_t)0x7fffu; /* the canonical NaN of the hardware */
    }
    if (magnitude >= 0x477ff000u) { /* 65520 and above round to infinity */
        return (uint16_t)(sign | 0x7c00u);
    }
    if (magnitude < 0x38800000u) { /* below 2^-14: adding 0.5 aligns the subnormal's last bit with that of a float */
        float f, half = 0.5f;
        memcpy(&f, &magnitude, sizeof f);
        f += half;
        uint32_t sum;
        memcpy(&sum, &f, sizeof sum);
        return (uint16_t)(sign | (sum - 0x3f000000u));
    }
    uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
    return (uint16_t)(sign | ((rounded - 0x38000000u) >> 13));
}

struct __half {
    uint16_t bits;
    __half() = default;
    __half(float x) : bits(emu_f32_to_f16(x)) {
    }
    explicit __half(double x) : bits(emu_f32_to_f16((float)x)) {
    }
    explicit __half(int x) : bits(emu_f32_to_f16((float)x)) {
    }
    operator float() const {
        return emu_f16_to_f32(bits);
    }
};
typedef __half half;
struct alignas(4) __half2 {
    __half x, y;
    __half2() = default;
    __half2(__half a, __half b) : x(a), y(b) {
    }
};
typedef __half2 half2;

#define EMU_SMALL_FLOAT_OPERATORS(T)                                                                                   \
    static inline T operator+(T a, T b) {                                                                              \
        return T((float)a + (float)b);                                                                                 \
    }                                                                                                                  \
    static inline T operator-(T a, T b) {                                                                              \
        return T((float)a - (float)b);                                                                                 \
    }                                                                                                                  \
    static inline T operator*(T a, T b) {                                                                              \
        return T((float)a * (float)b);                                                                                 \
    }                                                                                                                  \
    static inline T operator/(T a, T b) {                                                                              \
        return T((float)a / (float)b);                                                                                 \
    }                                                                                                                  \
    static inline T operator-(T a) {                                                                                   \
        a.bits = (uint16_t)(a.bits ^ 0x8000u);                                                                         \
        return a;                                                                                                      \
    }                                                                                                                  \
    static inline T &operator+=(T &a, T b) {                                                                           \
        return a = a + b;                                                                                              \
    }                                                                                                                  \
    static inline T &operator*=(T &a, T b) {                                                                           \
        return a = a * b;                                                                                              \
    }                                                                                                                  \
    static inline bool operator<(T a, T b) {                                                                           \
        return (float)a < (float)b;                                                                                    \
    }                                                                                                                  \
    static inline bool operator>(T a, T b) {                                                                           \
        return (float)a > (float)b;                                                                                    \
    }                                                                                                                  \
    static inline bool operator==(T a, T b) {                                                                          \
        return (float)a == (float)b;                                                                                   \
    }                                                                                                                  \
    static inline T __hadd(T a, T b) {                                                                                 \
        return a + b;                                                                                                  \
    }                                                                                                                  \
    static inline T __hsub(T a, T b) {                                                                                 \
        return a - b;                                                                                                  \
    }                                                                                                                  \
    static inline T __hmul(T a, T b) {                                                                                 \
        return a * b;                                                                                                  \
    }
EMU_SMALL_FLOAT_OPERATORS(__half)

static inline float __half2float(__half h) {
    return emu_f16_to_f32(h.bits);
}
static inline __half __float2half_rn(float x) {
    return __half(x);
}
static inline __half __float2half(float x) {
    return __half(x);
}
static inline unsigned short __half_as_ushort(__half h) {
    return h.bits;
}
static inline __half __ushort_as_half(unsigned short bits) {
    __half h;
    h.bits = bits;
    return h;
}
static inline __half2 __floats2half2_rn(float x, float y) {
    return __half2(__half(x), __half(y));
}
static inline __half2 __float22half2_rn(float2 v) {
    return __floats2half2_rn(v.x, v.y);
}
static inline __half2 __halves2half2(__half x, __half y) {
    return __half2(x, y);
}
static inline float2 __half22float2(__half2 v) {
    return make_float2((float)v.x, (float)v.y);
}
static inline float __low2float(__half2 v) {
    return (float)v.x;
}
static inline float __high2float(__half2 v) {
    return (float)v.y;
}
static inline __half __low2half(__half2 v) {
    return v.x;
}
static inline __half __high2half(__half2 v) {
    return v.y;
}

#endif
