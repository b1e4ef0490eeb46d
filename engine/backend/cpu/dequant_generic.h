/* Block types in plain C (see blocks.h), in loops that compilers vectorise. */
#include "blocks.h"

struct no_scales {
    char unused;
};
#define f32_scales no_scales
#define f16_scales no_scales
#define bf16_scales no_scales

VEC_INLINE void f32_open(const uint8_t *block, struct no_scales *s) {
    (void)block, (void)s;
}
VEC_INLINE void f32_step(const uint8_t *block, const struct no_scales *s, unsigned i, v16 *out) {
    (void)s, (void)i;
    memcpy(out, block, sizeof *out);
}
VEC_INLINE void f16_open(const uint8_t *block, struct no_scales *s) {
    (void)block, (void)s;
}
VEC_INLINE void f16_step(const uint8_t *block, const struct no_scales *s, unsigned i, v16 *out) {
    (void)s, (void)i;
    *out = v16_load_f16(block);
}
VEC_INLINE void bf16_open(const uint8_t *block, struct no_scales *s) {
    (void)block, (void)s;
}
VEC_INLINE void bf16_step(const uint8_t *block, const struct no_scales *s, unsigned i, v16 *out) {
    (void)s, (void)i;
    *out = v16_load_bf16(block);
}

/* Blocks of 32. */
struct generic_scale {
    float d, m;
};
#define q4_0_scales generic_scale
#define q4_1_scales generic_scale
#define q5_0_scales generic_scale
#define q5_1_scales generic_scale
#define q8_0_scales generic_scale

VEC_INLINE void q4_0_open(const uint8_t *block, struct generic_scale *s) {
    s->d = f32_from_half(load_u16(block));
}
VEC_INLINE void q4_1_open(const uint8_t *block, struct generic_scale *s) {
    s->d = f32_from_half(load_u16(block));
    s->m = f32_from_half(load_u16(block + 2));
}
#define q5_0_open q4_0_open
#define q5_1_open q4_1_open
#define q8_0_open q4_0_open

VEC_INLINE void q4_0_step(const uint8_t *block, const struct generic_scale *s, unsigned i, v16 *out) {
    (void)i;
    float t[32];
    const uint8_t *q = block + 2;
    for (unsigned j = 0; j < 16; j++) {
        t[j] = s->d * (float)((q[j] & 15) - 8);
        t[j + 16] = s->d * (float)((q[j] >> 4) - 8);
    }
    memcpy(out, t, sizeof t);
}
VEC_INLINE void q4_1_step(const uint8_t *block, const struct generic_scale *s, unsigned i, v16 *out) {
    (void)i;
    float t[32];
    const uint8_t *q = block + 4;
    for (unsigned j = 0; j < 16; j++) {
        t[j] = s->d * (float)(q[j] & 15) + s->m;
        t[j + 16] = s->d * (float)(q[j] >> 4) + s->m;
    }
    memcpy(out, t, sizeof t);
}
VEC_INLINE void q5_0_step(const uint8_t *block, const struct generic_scale *s, unsigned i, v16 *out) {
    (void)i;
    float t[32];
    uint32_t high = load_u32(block + 2);
    const uint8_t *q = block + 6;
    for (unsigned j = 0; j < 16; j++) {
        t[j] = s->d * (float)((int)((q[j] & 15u) | (high >> j & 1) << 4) - 16);
        t[j + 16] = s->d * (float)((int)((q[j] >> 4) | (high >> (j + 16) & 1) << 4) - 16);
    }
    memcpy(out, t, sizeof t);
}
VEC_INLINE void q5_1_step(const uint8_t *block, const struct generic_scale *s, unsigned i, v16 *out) {
    (void)i;
    float t[32];
    uint32_t high = load_u32(block + 4);
    const uint8_t *q = block + 8;
    for (unsigned j = 0; j < 16; j++) {
        t[j] = s->d * (float)(int)((q[j] & 15u) | (high >> j & 1) << 4) + s->m;
        t[j + 16] = s->d * (float)(int)((uint32_t)(q[j] >> 4) | (high >> (j + 16) & 1) << 4) + s->m;
    }
    memcpy(out, t, sizeof t);
}
VEC_INLINE void q8_0_step(const uint8_t *block, const struct generic_scale *s, unsigned i, v16 *out) {
    (void)i;
    float t[32];
    const int8_t *q = (const int8_t *)block + 2;
    for (unsigned j = 0; j < 32; j++) {
        t[j] = s->d * (float)q[j];
    }
    memcpy(out, t, sizeof t);
}

/* Blocks of 256. */
struct k_scales {
    float d[8], m[8]; /* of each 32 elements: d * q - m */
};
#define q4_k_scales k_scales
#define q5_k_scales k_scales

VEC_INLINE void q4_k_open(const uint8_t *block, struct k_scales *s) {
    float d = f32_from_half(load_u16(block)), dmin = f32_from_half(load_u16(block + 2));
    uint64_t scales, minima;
    k_scales_unpack(block + 4, &scales, &minima);
    for (unsigned j = 0; j < 8; j++) {
        s->d[j] = d * (float)(int)(scales >> 8 * j & 63);
        s->m[j] = dmin * (float)(int)(minima >> 8 * j & 63);
    }
}
#define q5_k_open q4_k_open

VEC_INLINE void q4_k_step(const uint8_t *block, const struct k_scales *s, unsigned i, v16 *out) {
    float t[64];
    const uint8_t *q = block + 16 + 32 * i;
    for (unsigned j = 0; j < 32; j++) {
        t[j] = s->d[2 * i] * (float)(q[j] & 15) - s->m[2 * i];
        t[j + 32] = s->d[2 * i + 1] * (float)(q[j] >> 4) - s->m[2 * i + 1];
    }
    memcpy(out, t, sizeof t);
}
VEC_INLINE void q5_k_step(const uint8_t *block, const struct k_scales *s, unsigned i, v16 *out) {
    float t[64];
    const uint8_t *high = block + 16, *q = block + 48 + 32 * i;
    for (unsigned j = 0; j < 32; j++) {
        int a = (q[j] & 15) | (high[j] >> 2 * i & 1) << 4;
        int b = q[j] >> 4 | (high[j] >> (2 * i + 1) & 1) << 4;
        t[j] = s->d[2 * i] * (float)a - s->m[2 * i];
        t[j + 32] = s->d[2 * i + 1] * (float)b - s->m[2 * i + 1];
    }
    memcpy(out, t, sizeof t);
}

struct q6_k_scales {
    float d[16]; /* of each 16 elements */
};
VEC_INLINE void q6_k_open(const uint8_t *block, struct q6_k_scales *s) {
    float d = f32_from_half(load_u16(block + 208));
    for (unsigned j = 0; j < 16; j++) {
        s->d[j] = d * (float)(int8_t)block[192 + j];
    }
}
/* Half a block: low[64], high[32]; high[j] holds the upper two bits of elements j, j + 32, j + 64 and j + 96. */
VEC_INLINE void q6_k_step(const uint8_t *block, const struct q6_k_scales *s, unsigned i, v16 *out) {
    float t[128];
    const uint8_t *low = block + 64 * i, *high = block + 128 + 32 * i;
    const float *d = s->d + 8 * i;
    for (unsigned j = 0; j < 32; j++) {
        t[j] = d[j / 16] * (float)(((low[j] & 15) | (high[j] & 3) << 4) - 32);
        t[j + 32] = d[2 + j / 16] * (float)(((low[j + 32] & 15) | (high[j] >> 2 & 3) << 4) - 32);
        t[j + 64] = d[4 + j / 16] * (float)((low[j] >> 4 | (high[j] >> 4 & 3) << 4) - 32);
        t[j + 96] = d[6 + j / 16] * (float)((low[j + 32] >> 4 | (high[j] >> 6) << 4) - 32);
    }
    memcpy(out, t, sizeof t);
}
