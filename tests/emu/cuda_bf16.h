/* bfloat16 as CUDA names it: storage, conversions (to nearest even) and arithmetic that rounds each operation. */
#ifndef EMU_CUDA_BF16_H
#define EMU_CUDA_BF16_H

#include "cuda_fp16.h"

static inline float emu_bf16_to_f32(uint16_t h) {
    uint32_t bits = (uint32_t)h << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}
static inline uint16_t emu_f32_to_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return (uint16_t)0x7fffu; /* the canonical NaN of the hardware */
    }
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

struct __nv_bfloat16 {
    uint16_t bits;
    __nv_bfloat16() = default;
    __nv_bfloat16(float x) : bits(emu_f32_to_bf16(x)) {
    }
    explicit __nv_bfloat16(double x) : bits(emu_f32_to_bf16((float)x)) {
    }
    explicit __nv_bfloat16(int x) : bits(emu_f32_to_bf16((float)x)) {
    }
    operator float() const {
        return emu_bf16_to_f32(bits);
    }
};
typedef __nv_bfloat16 nv_bfloat16;
struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
    __nv_bfloat162() = default;
    __nv_bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) : x(a), y(b) {
    }
};
typedef __nv_bfloat162 nv_bfloat162;
EMU_SMALL_FLOAT_OPERATORS(__nv_bfloat16)

static inline float __bfloat162float(__nv_bfloat16 h) {
    return emu_bf16_to_f32(h.bits);
}
static inline __nv_bfloat16 __float2bfloat16_rn(float x) {
    return __nv_bfloat16(x);
}
static inline __nv_bfloat16 __float2bfloat16(float x) {
    return __nv_bfloat16(x);
}
static inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 h) {
    return h.bits;
}
static inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) {
    __nv_bfloat16 h;
    h.bits = bits;
    return h;
}
static inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
    return __nv_bfloat162(__nv_bfloat16(x), __nv_bfloat16(y));
}
static inline __nv_bfloat162 __float22bfloat162_rn(float2 v) {
    return __floats2bfloat162_rn(v.x, v.y);
}
static inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) {
    return __nv_bfloat162(x, y);
}
static inline float2 __bfloat1622float2(__nv_bfloat162 v) {
    return make_float2((float)v.x, (float)v.y);
}
static inline float __low2float(__nv_bfloat162 v) {
    return (float)v.x;
}
static inline float __high2float(__nv_bfloat162 v) {
    return (float)v.y;
}
static inline __nv_bfloat16 __low2bfloat16(__nv_bfloat162 v) {
    return v.x;
}
static inline __nv_bfloat16 __high2bfloat16(__nv_bfloat162 v) {
    return v.y;
}

#endif
