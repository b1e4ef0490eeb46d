/*
 * vec16 in plain C: four of the compiler's vectors of 4, which it maps to whatever the machine has (SSE2, NEON).
 * Fused multiply-add only where the machine has it: emulating it would be a hundred times slower.
 * Included by vec16.h.
 */
#include "half.h"

#include <math.h>

typedef float f4 __attribute__((vector_size(16)));
typedef int32_t i4 __attribute__((vector_size(16)));
typedef uint32_t u4 __attribute__((vector_size(16)));
typedef uint16_t h4 __attribute__((vector_size(8)));

typedef struct {
    f4 q[4]; /* elements 4i .. 4i+3 */
} v16;

#define V16_FOR UNROLL for (unsigned i = 0; i < 4; i++)

VEC_INLINE v16 v16_set1(float a) {
    v16 r;
    V16_FOR {
        r.q[i] = (f4){a, a, a, a};
    }
    return r;
}
VEC_INLINE v16 v16_zero(void) {
    return v16_set1(0);
}
VEC_INLINE v16 v16_load(const float *p) {
    v16 r;
    memcpy(&r, p, sizeof r);
    return r;
}
VEC_INLINE void v16_store(float *p, v16 a) {
    memcpy(p, &a, sizeof a);
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
    V16_FOR {
        a.q[i] += b.q[i];
    }
    return a;
}
VEC_INLINE v16 v16_sub(v16 a, v16 b) {
    V16_FOR {
        a.q[i] -= b.q[i];
    }
    return a;
}
VEC_INLINE v16 v16_mul(v16 a, v16 b) {
    V16_FOR {
        a.q[i] *= b.q[i];
    }
    return a;
}
VEC_INLINE v16 v16_div(v16 a, v16 b) {
    V16_FOR {
        a.q[i] /= b.q[i];
    }
    return a;
}
/* a * b + c */
VEC_INLINE v16 v16_fma(v16 a, v16 b, v16 c) {
#ifdef __FP_FAST_FMAF
    v16 r;
    for (unsigned i = 0; i < 16; i++) {
        r.q[i / 4][i % 4] = __builtin_fmaf(a.q[i / 4][i % 4], b.q[i / 4][i % 4], c.q[i / 4][i % 4]);
    }
    return r;
#else
    return v16_add(v16_mul(a, b), c);
#endif
}
VEC_INLINE f4 generic_select(i4 mask, f4 x, f4 y) {
    return (f4)(((i4)x & mask) | ((i4)y & ~mask));
}
VEC_INLINE v16 v16_max(v16 a, v16 b) {
    V16_FOR {
        a.q[i] = generic_select(a.q[i] > b.q[i], a.q[i], b.q[i]);
    }
    return a;
}
VEC_INLINE v16 v16_min(v16 a, v16 b) {
    V16_FOR {
        a.q[i] = generic_select(a.q[i] < b.q[i], a.q[i], b.q[i]);
    }
    return a;
}
/* a < b ? x : y */
VEC_INLINE v16 v16_select_lt(v16 a, v16 b, v16 x, v16 y) {
    V16_FOR {
        x.q[i] = generic_select(a.q[i] < b.q[i], x.q[i], y.q[i]);
    }
    return x;
}
/* Nearest even, for |a| < 2^22: adding 1.5 * 2^23 leaves no fraction bits. */
VEC_INLINE v16 v16_round(v16 a) {
    const v16 big = v16_set1(12582912.0f);
    return v16_sub(v16_add(a, big), big);
}
/* a * 2^n for integral n in [-126, 128]; 2^n is built as two factors, for 2^128 is no float. */
VEC_INLINE v16 v16_scale2(v16 a, v16 n) {
    V16_FOR {
        i4 e = __builtin_convertvector(n.q[i], i4), half = e >> 1, rest = e - half;
        a.q[i] = a.q[i] * (f4)((half + 127) << 23) * (f4)((rest + 127) << 23);
    }
    return a;
}
/* Exponent and fraction are moved to their places and rescaled by 2^112, which makes subnormals right as well. */
VEC_INLINE v16 v16_load_f16(const void *p) {
    v16 r;
    V16_FOR {
        h4 h;
        memcpy(&h, (const char *)p + 8 * i, sizeof h);
        u4 u = __builtin_convertvector(h, u4);
        u4 magnitude = (u & 0x7fff) << 13;
        u4 infinite = (u4)(magnitude >= 0x0f800000u) & 0x7f800000u;
        const f4 rescale = {0x1p112f, 0x1p112f, 0x1p112f, 0x1p112f};
        f4 f = (f4)magnitude * rescale;
        r.q[i] = (f4)((u4)f | infinite | (u & 0x8000) << 16);
    }
    return r;
}
VEC_INLINE v16 v16_load_f16_n(const void *p, size_t n) {
    uint16_t t[16] = {0};
    memcpy(t, p, n * sizeof *t);
    return v16_load_f16(t);
}
VEC_INLINE void v16_store_f16(void *p, v16 a) {
    uint16_t t[16];
    for (unsigned i = 0; i < 16; i++) {
        t[i] = half_from_f32(a.q[i / 4][i % 4]);
    }
    memcpy(p, t, sizeof t);
}
VEC_INLINE v16 v16_load_bf16(const void *p) {
    v16 r;
    V16_FOR {
        h4 h;
        memcpy(&h, (const char *)p + 8 * i, sizeof h);
        r.q[i] = (f4)(__builtin_convertvector(h, u4) << 16);
    }
    return r;
}
VEC_INLINE v16 v16_load_bf16_n(const void *p, size_t n) {
    uint16_t t[16] = {0};
    memcpy(t, p, n * sizeof *t);
    return v16_load_bf16(t);
}
VEC_INLINE void v16_store_bf16(void *p, v16 a) {
    uint16_t t[16];
    for (unsigned i = 0; i < 16; i++) {
        t[i] = bf16_from_f32(a.q[i / 4][i % 4]);
    }
    memcpy(p, t, sizeof t);
}
VEC_INLINE float v16_sum(v16 a) {
    f4 s = (a.q[0] + a.q[2]) + (a.q[1] + a.q[3]);
    return (s[0] + s[2]) + (s[1] + s[3]);
}
/* The sums of four vectors, each by the tree of v16_sum. */
VEC_INLINE void v16_sum4(v16 a, v16 b, v16 c, v16 d, float out[4]) {
    out[0] = v16_sum(a);
    out[1] = v16_sum(b);
    out[2] = v16_sum(c);
    out[3] = v16_sum(d);
}
VEC_INLINE float v16_hmax(v16 a) {
    v16 t = a;
    t.q[0] = generic_select(a.q[0] > a.q[2], a.q[0], a.q[2]);
    t.q[1] = generic_select(a.q[1] > a.q[3], a.q[1], a.q[3]);
    f4 s = generic_select(t.q[0] > t.q[1], t.q[0], t.q[1]);
    float x = s[0] > s[2] ? s[0] : s[2], y = s[1] > s[3] ? s[1] : s[3];
    return x > y ? x : y;
}
