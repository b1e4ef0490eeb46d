#include "quant/dequant.h"

#include "quant/half.h"

static float half_at(const uint8_t *p) {
    return float_from_half((uint16_t)(p[0] | p[1] << 8));
}

static void f32(const uint8_t *src, float *dst) {
    memcpy(dst, src, sizeof *dst);
}

static void f16(const uint8_t *src, float *dst) {
    *dst = half_at(src);
}

static void bf16(const uint8_t *src, float *dst) {
    *dst = float_from_bf16((uint16_t)(src[0] | src[1] << 8));
}

/* ---- blocks of 32: element j is in the low nibble of byte j, element j + 16 in its high nibble ---- */

/* half d, u8 q[16]:  x = d * (q - 8) */
static void q4_0(const uint8_t *src, float *dst) {
    float d = half_at(src);
    const uint8_t *q = src + 2;
    for (int j = 0; j < 16; j++) {
        dst[j] = d * (float)((q[j] & 15) - 8);
        dst[j + 16] = d * (float)((q[j] >> 4) - 8);
    }
}

/* half d, half m, u8 q[16]:  x = d * q + m */
static void q4_1(const uint8_t *src, float *dst) {
    float d = half_at(src), m = half_at(src + 2);
    const uint8_t *q = src + 4;
    for (int j = 0; j < 16; j++) {
        dst[j] = d * (float)(q[j] & 15) + m;
        dst[j + 16] = d * (float)(q[j] >> 4) + m;
    }
}

/* The fifth bit of element j is bit j of a little-endian u32. */
static int fifth_bit(const uint8_t *high, int j) {
    return (high[j / 8] >> (j % 8) & 1) << 4;
}

/* half d, u8 high[4], u8 q[16]:  x = d * (q - 16) */
static void q5_0(const uint8_t *src, float *dst) {
    float d = half_at(src);
    const uint8_t *high = src + 2, *q = src + 6;
    for (int j = 0; j < 16; j++) {
        dst[j] = d * (float)(((q[j] & 15) | fifth_bit(high, j)) - 16);
        dst[j + 16] = d * (float)(((q[j] >> 4) | fifth_bit(high, j + 16)) - 16);
    }
}

/* half d, half m, u8 high[4], u8 q[16]:  x = d * q + m */
static void q5_1(const uint8_t *src, float *dst) {
    float d = half_at(src), m = half_at(src + 2);
    const uint8_t *high = src + 4, *q = src + 8;
    for (int j = 0; j < 16; j++) {
        dst[j] = d * (float)((q[j] & 15) | fifth_bit(high, j)) + m;
        dst[j + 16] = d * (float)((q[j] >> 4) | fifth_bit(high, j + 16)) + m;
    }
}

/* half d, i8 q[32]:  x = d * q */
static void q8_0(const uint8_t *src, float *dst) {
    float d = half_at(src);
    for (int j = 0; j < 32; j++) {
        dst[j] = d * (float)(int8_t)src[2 + j];
    }
}

/* ---- super-blocks of 256 ---- */

/* Sub-block j of 8 has a scale and a minimum of 6 bits, packed in 12 bytes: of the first four the low 6 bits of bytes
 * j and j + 4, of the others the nibbles of byte j + 4 with the top bits of bytes j - 4 and j. */
static void scale_and_min(const uint8_t *packed, int j, float *scale, float *min) {
    if (j < 4) {
        *scale = (float)(packed[j] & 63);
        *min = (float)(packed[j + 4] & 63);
    } else {
        *scale = (float)((packed[j + 4] & 15) | packed[j - 4] >> 6 << 4);
        *min = (float)(packed[j + 4] >> 4 | packed[j] >> 6 << 4);
    }
}

/* half d, half dmin, u8 packed[12], u8 q[128]; sub-blocks 2i and 2i + 1 are the low and the high nibbles of bytes
 * 32i..32i + 31:  x = (d * scale) * q - dmin * min */
static void q4_k(const uint8_t *src, float *dst) {
    float d = half_at(src), dmin = half_at(src + 2);
    const uint8_t *packed = src + 4, *q = src + 16;
    for (int j = 0; j < 8; j++) {
        float scale, min;
        scale_and_min(packed, j, &scale, &min);
        for (int i = 0; i < 32; i++) {
            uint8_t byte = q[j / 2 * 32 + i];
            dst[32 * j + i] = d * scale * (float)(j % 2 ? byte >> 4 : byte & 15) - dmin * min;
        }
    }
}

/* The same with u8 high[32] before q: the fifth bit of element i of sub-block j is bit j of high[i]. */
static void q5_k(const uint8_t *src, float *dst) {
    float d = half_at(src), dmin = half_at(src + 2);
    const uint8_t *packed = src + 4, *high = src + 16, *q = src + 48;
    for (int j = 0; j < 8; j++) {
        float scale, min;
        scale_and_min(packed, j, &scale, &min);
        for (int i = 0; i < 32; i++) {
            uint8_t byte = q[j / 2 * 32 + i];
            int v = (j % 2 ? byte >> 4 : byte & 15) | (high[i] >> j & 1) << 4;
            dst[32 * j + i] = d * scale * (float)v - dmin * min;
        }
    }
}

/* u8 low[128], u8 high[64], i8 scale[16], half d. Each half of 128 elements is four runs of 32: run r has the low (r <
 * 2) or high nibbles of low[32 * (r % 2) ...] and bits 2r, 2r + 1 of high[0..32):  x = (d * scale) * (q - 32) */
static void q6_k(const uint8_t *src, float *dst) {
    float d = half_at(src + 208);
    for (int e = 0; e < 256; e++) {
        int half = e / 128, run = e % 128 / 32, i = e % 32;
        uint8_t low = src[64 * half + 32 * (run % 2) + i], high = src[128 + 32 * half + i];
        int v = ((run < 2 ? low & 15 : low >> 4) | (high >> (2 * run) & 3) << 4) - 32;
        int scale = (int8_t)src[192 + e / 16];
        dst[e] = d * (float)scale * (float)v;
    }
}

int dequantize_row(enum dtype t, const void *src, float *dst, size_t n) {
    static void (*const block[DTYPE_COUNT])(const uint8_t *src, float *dst) = {
        [DTYPE_F32] = f32,   [DTYPE_F16] = f16,   [DTYPE_BF16] = bf16, [DTYPE_Q4_0] = q4_0,
        [DTYPE_Q4_1] = q4_1, [DTYPE_Q5_0] = q5_0, [DTYPE_Q5_1] = q5_1, [DTYPE_Q8_0] = q8_0,
        [DTYPE_Q4_K] = q4_k, [DTYPE_Q5_K] = q5_k, [DTYPE_Q6_K] = q6_k,
    };
    const struct dtype_info *info = dtype_info(t);
    if ((unsigned)t >= DTYPE_COUNT || !block[t] || n % info->block != 0) {
        return -1;
    }
    const uint8_t *p = src;
    for (size_t i = 0; i < n; i += info->block, p += info->bytes) {
        block[t](p, dst + i);
    }
    return 0;
}
