/*
 * The GGUF block types, as they lie in the file (little endian, no alignment promised). q is a quant, d and m are F16:
 *
 *   Q4_0  32 elements   d, nibbles[16]                      d * (q - 8)
 *   Q4_1  32            d, m, nibbles[16]                   d * q + m
 *   Q5_0  32            d, high[4], nibbles[16]             d * (q - 16)
 *   Q5_1  32            d, m, high[4], nibbles[16]          d * q + m
 *   Q8_0  32            d, q[32]                            d * q
 *   Q4_K  256           d, dmin, scales[12], nibbles[128]   (d * s) * q - (dmin * t)    s, t: 6 bits, per 32 elements
 *   Q5_K  256           d, dmin, scales[12], high[32], nibbles[128]        the same
 *   Q6_K  256           low[128], high[64], scales[16], d   (d * s) * (q - 32)          s: 8 bits, per 16 elements
 *
 * In blocks of 32 the low nibbles are elements 0..15 and the high ones 16..31. In Q4_K and Q5_K bytes 32i..32i+31
 * hold elements 64i..64i+31 (low) and 64i+32..64i+63 (high). All arithmetic is in F32; products of d with s and q are
 * exact, so that every element has one rounding and the same value however it is computed.
 *
 * A kernel takes a row in pieces of at most LINEAR_CHUNK elements, in two steps that dequant_<variant>.h defines for
 * every T below. Scales come first, all of a piece at once: converting them one by one would cost as much as the
 * quants.
 *
 *   T_open(p, n_blocks, scales)
 *   T_step(block, at, scales, i, out)    elements i * T_STEP .. of the block that begins at element `at`, T_STEP / 16
 *                                        vectors
 */
#ifndef CPU_BLOCKS_H
#define CPU_BLOCKS_H

#include "cpu.h"
#include "half.h"

enum {
    f32_BLOCK = 16,
    f32_BYTES = 64,
    f32_STEP = 16,
    f16_BLOCK = 16,
    f16_BYTES = 32,
    f16_STEP = 16,
    bf16_BLOCK = 16,
    bf16_BYTES = 32,
    bf16_STEP = 16,
    q4_0_BLOCK = 32,
    q4_0_BYTES = 18,
    q4_0_STEP = 32,
    q4_1_BLOCK = 32,
    q4_1_BYTES = 20,
    q4_1_STEP = 32,
    q5_0_BLOCK = 32,
    q5_0_BYTES = 22,
    q5_0_STEP = 32,
    q5_1_BLOCK = 32,
    q5_1_BYTES = 24,
    q5_1_STEP = 32,
    q8_0_BLOCK = 32,
    q8_0_BYTES = 34,
    q8_0_STEP = 32,
    q4_k_BLOCK = 256,
    q4_k_BYTES = 144,
    q4_k_STEP = 64,
    q5_k_BLOCK = 256,
    q5_k_BYTES = 176,
    q5_k_STEP = 64,
    q6_k_BLOCK = 256,
    q6_k_BYTES = 210,
    q6_k_STEP = 128,
};

/*
 * Of a piece of a row: value = d * q + m, with d = pair[i][0] and m = pair[i][1] of each 32 elements, in Q6_K of
 * each 16. Where a type has no m, pair[i][1] is anything.
 */
struct scales {
    _Alignas(64) float pair[LINEAR_CHUNK / 16][2];
};

static inline uint16_t load_u16(const uint8_t *p) {
    uint16_t u;
    memcpy(&u, p, sizeof u);
    return u;
}

static inline uint32_t load_u32(const uint8_t *p) {
    uint32_t u;
    memcpy(&u, p, sizeof u);
    return u;
}

/* The eight 6-bit scales and eight 6-bit minima of a Q4_K or Q5_K block, a byte each in element order. */
static inline void k_scales_unpack(const uint8_t *p, uint64_t *scales, uint64_t *minima) {
    uint32_t a = load_u32(p), b = load_u32(p + 4), c = load_u32(p + 8);
    uint32_t scales_high = (c & 0x0f0f0f0fu) | (a >> 2 & 0x30303030u);
    uint32_t minima_high = (c >> 4 & 0x0f0f0f0fu) | (b >> 2 & 0x30303030u);
    *scales = (a & 0x3f3f3f3fu) | (uint64_t)scales_high << 32;
    *minima = (b & 0x3f3f3f3fu) | (uint64_t)minima_high << 32;
}

#endif
