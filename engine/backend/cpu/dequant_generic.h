/* Block types in plain C (see blocks.h), in loops that compilers vectorise. */
#include "blocks.h"

VEC_INLINE void no_open(const uint8_t *p, size_t n_blocks, struct scales *s) {
    (void)p, (void)n_blocks, (void)s;
}
#define f32_open no_open
#define f16_open no_open
#define bf16_open no_open

VEC_INLINE void f32_step(const uint8_t *block, size_t at, const struct scales *s, unsigned i, v16 *out) {
    (void)at, (void)s, (void)i;
    memcpy(out, block, sizeof *out);
}
VEC_INLINE void f16_step(const uint8_t *block, size_t at, const struct scales *s, unsigned i, v16 *out) {
    (void)at, (void)s, (void)i;
    *out = v16_load_f16(block);
}
VEC_INLINE void bf16_step(const uint8_t *block, size_t at, const struct scales *s, unsigned i, v16 *out) {
    (void)at, (void)s, (void)i;
    *out = v16_load_bf16(block);
}

/* Blocks of 32. */
VEC_INLINE void generic_open(const uint8_t *p, size_t bytes, bool has_m, size_t n_blocks, struct scales *s) {
    for (size_t b = 0; b < n_blocks; b++) {
        s->pair[b][0] = f32_from_half(load_u16(p + b * bytes));
        if (has_m) {
            s->pair[b][1] = f32_from_half(load_u16(p + b * bytes + 2));
        }
    }
}
VEC_INLINE void q4_0_open(const uint8_t *p, size_t n_blocks, struct scales *s) {
    generic_open(p, q4_0_BYTES, false, n_blocks, s);
}
VEC_INLINE void q4_1_open(const uint8_t *p, size_t n_blocks, struct scales *s) {
    generic_open(p, q4_1_BYTES, true, n_blocks, s);
}
VEC_INLINE void q5_0_open(const uint8_t *p, size_t n_blocks, struct scales *s) {
    generic_open(p, q5_0_BYTES, false, n_blocks, s);
}
VEC_INLINE void q5_1_open(const uint8_t *p, size_t n_blocks, struct scales *s) {
    generic_open(p, q5_1_BYTES, true, n_blocks, s);
}
VEC_INLINE void q8_0_open(const uint8_t *p, size_t n_blocks, struct scales *s) {
    generic_open(p, q8_0_BYTES, false, n_blocks, s);
}
VEC_INLINE void q4_0_step(const uint8_t *block, size_t at, const struct scales *s, unsigned i, v16 *out) {
    (void)i;
    float t[32], d = s->pair[at / 32][0];
    const uint8_t *q = block + 2;
    for (unsigned j = 0; j < 16; j++) {
        t[j] = d * (float)((q[j] & 15) - 8);
        t[j + 16] = d * (float)((q[j] >> 4) - 8);
    }
    memcpy(out, t, sizeof t);
}
VEC_INLINE void q4_1_step(const uint8_t *block, size_t at, const struct scales *s, unsigned i, v16 *out) {
    (void)i;
    float t[32], d = s->pair[at / 32][0], m = s->pair[at / 32][1];
    const uint8_t *q = block + 4;
    for (unsigned j = 0; j < 16; j++) {
        t[j] = d * (float)(q[j] & 15) + m;
        t[j + 16] = d * (float)(q[j] >> 4) + m;
    }
    memcpy(out, t, sizeof t);
}
VEC_INLINE void q5_0_step(const uint8_t *block, size_t at, const struct scales *s, unsigned i, v16 *out) {
    (void)i;
    float t[32], d = s->pair[at / 32][0];
    uint32_t high = load_u32(block + 2);
    const uint8_t *q = block + 6;
    for (unsigned j = 0; j < 16; j++) {
        t[j] = d * (float)((int)((q[j] & 15u) | (high >> j & 1) << 4) - 16);
        t[j + 16] = d * (float)((int)((uint32_t)(q[j] >> 4) | (high >> (j + 16) & 1) << 4) - 16);
    }
    memcpy(out, t, sizeof t);
}
VEC_INLINE void q5_1_step(const uint8_t *block, size_t at, const struct scales *s, unsigned i, v16 *out) {
    (void)i;
    float t[32], d = s->pair[at / 32][0], m = s->pair[at / 32][1];
    uint32_t high = load_u32(block + 4);
    const uint8_t *q = block + 8;
    for (unsigned j = 0; j < 16; j++) {
        t[j] = d * (float)(int)((q[j] & 15u) | (high >> j & 1) << 4) + m;
        t[j + 16] = d * (float)(int)((uint32_t)(q[j] >> 4) | (high >> (j + 16) & 1) << 4) + m;
    }
    memcpy(out, t, sizeof t);
}
VEC_INLINE void q8_0_step(const uint8_t *block, size_t at, const struct scales *s, unsigned i, v16 *out) {
    (void)i;
    float t[32], d = s->pair[at / 32][0];
    const int8_t *q = (const int8_t *)block + 2;
    for (unsigned j = 0; j < 32; j++) {
        t[j] = d * (float)q[j];
    }
    memcpy(out, t, sizeof t);
}

/* Blocks of 256. */
VEC_INLINE void generic_k_open(const uint8_t *p, size_t bytes, size_t n_blocks, struct scales *s) {
    for (size_t b = 0; b < n_blocks; b++, p += bytes) {
        float d = f32_from_half(load_u16(p)), dmin = f32_from_half(load_u16(p + 2));
        uint64_t scales, minima;
        k_scales_unpack(p + 4, &scales, &minima);
        for (unsigned j = 0; j < 8; j++) {
            s->pair[8 * b + j][0] = d * (float)(int)(scales >> 8 * j & 63);
            s->pair[8 * b + j][1] = -dmin * (float)(int)(minima >> 8 * j & 63);
        }
    }
}
VEC_INLINE void q4_k_open(const uint8_t *p, size_t n_blocks, struct scales *s) {
    generic_k_open(p, q4_k_BYTES, n_blocks, s);
}
VEC_INLINE void q5_k_open(const uint8_t *p, size_t n_blocks, struct scales *s) {
    generic_k_open(p, q5_k_BYTES, n_blocks, s);
}
VEC_INLINE void q4_k_step(const uint8_t *block, size_t at, const struct scales *s, unsigned i, v16 *out) {
    float t[64];
    const float(*pair)[2] = &s->pair[at / 32 + 2 * i];
    const uint8_t *q = block + 16 + 32 * i;
    for (unsigned j = 0; j < 32; j++) {
        t[j] = pair[0][0] * (float)(q[j] & 15) + pair[0][1];
        t[j + 32] = pair[1][0] * (float)(q[j] >> 4) + pair[1][1];
    }
    memcpy(out, t, sizeof t);
}
VEC_INLINE void q5_k_step(const uint8_t *block, size_t at, const struct scales *s, unsigned i, v16 *out) {
    float t[64];
    const float(*pair)[2] = &s->pair[at / 32 + 2 * i];
    const uint8_t *high = block + 16, *q = block + 48 + 32 * i;
    for (unsigned j = 0; j < 32; j++) {
        int a = (q[j] & 15) | (high[j] >> 2 * i & 1) << 4;
        int b = q[j] >> 4 | (high[j] >> (2 * i + 1) & 1) << 4;
        t[j] = pair[0][0] * (float)a + pair[0][1];
        t[j + 32] = pair[1][0] * (float)b + pair[1][1];
    }
    memcpy(out, t, sizeof t);
}
VEC_INLINE void q6_k_open(const uint8_t *p, size_t n_blocks, struct scales *s) {
    for (size_t b = 0; b < n_blocks; b++, p += q6_k_BYTES) {
        float d = f32_from_half(load_u16(p + 208));
        for (unsigned j = 0; j < 16; j++) {
            s->pair[16 * b + j][0] = d * (float)(int8_t)p[192 + j];
        }
    }
}
/* Half a block: low[64], high[32]; high[j] holds the upper two bits of elements j, j + 32, j + 64 and j + 96. */
VEC_INLINE void q6_k_step(const uint8_t *block, size_t at, const struct scales *s, unsigned i, v16 *out) {
    float t[128];
    const uint8_t *low = block + 64 * i, *high = block + 128 + 32 * i;
    const float(*pair)[2] = &s->pair[at / 16 + 8 * i];
    for (unsigned j = 0; j < 32; j++) {
        t[j] = pair[j / 16][0] * (float)(((low[j] & 15) | (high[j] & 3) << 4) - 32);
        t[j + 32] = pair[2 + j / 16][0] * (float)(((low[j + 32] & 15) | (high[j] >> 2 & 3) << 4) - 32);
        t[j + 64] = pair[4 + j / 16][0] * (float)((low[j] >> 4 | (high[j] >> 4 & 3) << 4) - 32);
        t[j + 96] = pair[6 + j / 16][0] * (float)((low[j + 32] >> 4 | (high[j] >> 6) << 4) - 32);
    }
    memcpy(out, t, sizeof t);
}
