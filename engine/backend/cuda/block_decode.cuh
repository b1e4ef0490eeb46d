/*
 * Weights that float products decode on the way: I8 (weight-only), BF16 and the GGUF block types, whose bytes are
 * described in cpu/blocks.h. A row is taken in groups of 64 elements, and a group in 8 shares of 8 elements, each two
 * pieces of 4 neighbours: what one thread loads and decodes at a time. The shares are cut so that a nibble and its
 * neighbours need few loads: threads side by side read bytes side by side. Four groups are a super-block of 256.
 *
 *   decoder<T>::piece(t, p)        first element, in its group, of piece p (0, 1) of share t
 *   decoder<T>::load(...)          the bytes of a share, by loads as wide as the type's alignment allows: blocks of 18,
 * 22, 34 and 210 bytes lie at any even address; rows begin at multiples of row_bytes decoder<T>::decode(...) element i
 * = scale[s] * q[i] + min[s], s = 0, of two SCALES that of its piece; q exact
 *
 * A byte becomes a float by standing in the lowest place of 2^23, less 2^23 (and what its type takes off): an integer
 * conversion would be four times as slow.
 */
#ifndef INFERD_CUDA_BLOCK_DECODE_CUH
#define INFERD_CUDA_BLOCK_DECODE_CUH

#include "product.cuh"
#include <inferd/backend.h>
#include <string.h>

enum { GROUP = 64, SHARES = 8, SHARE = 8, PIECE = 4 };

static __device__ __forceinline__ float float_of_bits(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}
static __device__ __forceinline__ float float_of_half(uint32_t bits) {
    f16 h;
    uint16_t u = (uint16_t)bits;
    memcpy(&h, &u, sizeof h);
    return to_f32(h);
}
/* Two BF16 of a register. */
static __device__ __forceinline__ void floats_of_bf16(uint32_t two, float &low, float &high) {
    low = float_of_bits(two << 16);
    high = float_of_bits(two & 0xffff0000u);
}
/* Byte i of four, unsigned, less `off`. */
template <int OFF> static __device__ __forceinline__ float float_of_byte(uint32_t four, unsigned i) {
    return add_f32(float_of_bits(byte_permute(four, 0x4b000000u, 0x7440u | i)), -(float)(8388608 + OFF));
}
template <int OFF> static __device__ __forceinline__ void floats_of_bytes(uint32_t four, float *q) {
    UNROLL for (unsigned i = 0; i < PIECE; i++) {
        q[i] = float_of_byte<OFF>(four, i);
    }
}
static __device__ __forceinline__ uint32_t load_2(const unsigned char *p) {
    return *(const uint16_t *)p;
}
static __device__ __forceinline__ uint32_t load_2x2(const unsigned char *p) {
    return load_2(p) | load_2(p + 2) << 16;
}
static __device__ __forceinline__ uint32_t load_4(const unsigned char *p) {
    return *(const uint32_t *)p;
}
/* Bits 0..3 to bit 4 of each byte. */
static __device__ __forceinline__ uint32_t fifth_bits(uint32_t bits) {
    return ((bits & 15u) * 0x00204081u & 0x01010101u) << 4;
}

/* What a row is, for all types. */
struct decode_row {
    const unsigned char *p;
    uint32_t k;
    bool wide; /* BF16: rows lie at multiples of 16 bytes, and k is one of 8 */
};

template <dtype T> struct decoder;

/* ---- plain ---- */

template <> struct decoder<DTYPE_I8> {
    static constexpr int SCALES = 0; /* of a share; none: one of the row, applied by who sums */
    static constexpr bool MIN = false, NEIGHBOURS = true;
    struct raw {
        uint2 q;
    };
    static __device__ __forceinline__ unsigned piece(unsigned t, unsigned p) {
        return SHARE * t + PIECE * p;
    }
    static __device__ __forceinline__ raw load(const decode_row &row, uint32_t group, unsigned t) {
        return raw{*(const uint2 *)(row.p + group * GROUP + SHARE * t)}; /* zeros behind k, up to ROWS_I8_PAD */
    }
    static __device__ __forceinline__ void decode(const raw &r, uint32_t, unsigned, float (&q)[SHARE], float (&)[2],
                                                  float (&)[2]) {
        floats_of_bytes<128>(r.q.x ^ 0x80808080u, q);
        floats_of_bytes<128>(r.q.y ^ 0x80808080u, q + PIECE);
    }
};

template <> struct decoder<DTYPE_BF16> {
    static constexpr int SCALES = 0;
    static constexpr bool MIN = false, NEIGHBOURS = true;
    struct raw {
        uint4 q;
    };
    static __device__ __forceinline__ unsigned piece(unsigned t, unsigned p) {
        return SHARE * t + PIECE * p;
    }
    static __device__ __forceinline__ raw load(const decode_row &row, uint32_t group, unsigned t) {
        uint32_t at = group * GROUP + SHARE * t;
        const unsigned char *p = row.p + (size_t)at * 2;
        if (row.wide) {
            return raw{load_16(p)};
        }
        uint32_t v[SHARE / 2] = {};
        UNROLL for (unsigned i = 0; i < SHARE; i++) {
            if (at + i < row.k) {
                v[i / 2] |= load_2(p + 2 * i) << 16 * (i % 2);
            }
        }
        return raw{uint4{v[0], v[1], v[2], v[3]}};
    }
    static __device__ __forceinline__ void decode(const raw &r, uint32_t, unsigned, float (&q)[SHARE], float (&)[2],
                                                  float (&)[2]) {
        floats_of_bf16(r.q.x, q[0], q[1]);
        floats_of_bf16(r.q.y, q[2], q[3]);
        floats_of_bf16(r.q.z, q[4], q[5]);
        floats_of_bf16(r.q.w, q[6], q[7]);
    }
};

/* ---- blocks of 32: share t is a quarter of block t / 4 ---- */

/* Nibbles: a quarter is 4 bytes, 4 elements of the first half and 4 of the second. HALVES: d, and m if it is there. */
template <int BYTES, bool HAS_MIN, bool FIVE> struct decode_nibbles {
    static constexpr int SCALES = 1;
    static constexpr bool MIN = HAS_MIN, NEIGHBOURS = false;
    static constexpr int OFF = HAS_MIN ? 0 : FIVE ? 16 : 8;
    struct raw {
        uint32_t dm, high, q; /* high: bits 0..3 of the first piece, 16..19 of the second */
    };
    static __device__ __forceinline__ unsigned piece(unsigned t, unsigned p) {
        return t / 4 * 32 + t % 4 * PIECE + 16 * p;
    }
    static __device__ __forceinline__ raw load(const decode_row &row, uint32_t group, unsigned t) {
        const unsigned char *block = row.p + (size_t)(group * 2 + t / 4) * BYTES, *q = block + BYTES - 16 + 4 * (t % 4);
        raw r = {};
        if (HAS_MIN) { /* blocks of 20 and 24 bytes */
            r.dm = load_4(block);
            r.high = FIVE ? load_4(block + 4) : 0;
            r.q = load_4(q);
        } else {
            r.dm = load_2(block);
            r.high = FIVE ? load_2x2(block + 2) : 0;
            r.q = load_2x2(q);
        }
        return r;
    }
    static __device__ __forceinline__ void decode(const raw &r, uint32_t, unsigned t, float (&q)[SHARE],
                                                  float (&scale)[2], float (&min)[2]) {
        uint32_t low = r.q & 0x0f0f0f0fu, high = r.q >> 4 & 0x0f0f0f0fu;
        if (FIVE) {
            low |= fifth_bits(r.high >> 4 * (t % 4));
            high |= fifth_bits(r.high >> (16 + 4 * (t % 4)));
        }
        floats_of_bytes<OFF>(low, q);
        floats_of_bytes<OFF>(high, q + PIECE);
        scale[0] = float_of_half(r.dm);
        min[0] = HAS_MIN ? float_of_half(r.dm >> 16) : 0;
    }
};
template <> struct decoder<DTYPE_Q4_0> : decode_nibbles<18, false, false> {};
template <> struct decoder<DTYPE_Q4_1> : decode_nibbles<20, true, false> {};
template <> struct decoder<DTYPE_Q5_0> : decode_nibbles<22, false, true> {};
template <> struct decoder<DTYPE_Q5_1> : decode_nibbles<24, true, true> {};

template <> struct decoder<DTYPE_Q8_0> {
    static constexpr int SCALES = 1;
    static constexpr bool MIN = false, NEIGHBOURS = true;
    struct raw {
        uint32_t d, q[2];
    };
    static __device__ __forceinline__ unsigned piece(unsigned t, unsigned p) {
        return SHARE * t + PIECE * p;
    }
    static __device__ __forceinline__ raw load(const decode_row &row, uint32_t group, unsigned t) {
        const unsigned char *block = row.p + (size_t)(group * 2 + t / 4) * 34, *q = block + 2 + SHARE * (t % 4);
        return raw{load_2(block), {load_2x2(q), load_2x2(q + 4)}};
    }
    static __device__ __forceinline__ void decode(const raw &r, uint32_t, unsigned, float (&q)[SHARE],
                                                  float (&scale)[2], float (&)[2]) {
        floats_of_bytes<128>(r.q[0] ^ 0x80808080u, q);
        floats_of_bytes<128>(r.q[1] ^ 0x80808080u, q + PIECE);
        scale[0] = float_of_half(r.d);
    }
};

/* ---- super-blocks: share t of group j has elements 64j + 4t.. and 64j + 32 + 4t.. ---- */

/* Q4_K, Q5_K: 16 bytes of d, dmin, scales; then Q5_K's fifth bits, a bit of each of 32 bytes for every 32 elements. */
template <int BYTES, bool FIVE> struct decode_k {
    static constexpr int SCALES = 2;
    static constexpr bool MIN = true, NEIGHBOURS = false;
    struct raw {
        uint4 head;
        uint32_t high, q;
    };
    static __device__ __forceinline__ unsigned piece(unsigned t, unsigned p) {
        return PIECE * t + 32 * p;
    }
    static __device__ __forceinline__ raw load(const decode_row &row, uint32_t group, unsigned t) {
        const unsigned char *block = row.p + (size_t)(group / 4) * BYTES;
        return raw{load_16(block), FIVE ? load_4(block + 16 + 4 * t) : 0,
                   load_4(block + BYTES - 128 + 32 * (group % 4) + 4 * t)};
    }
    static __device__ __forceinline__ void decode(const raw &r, uint32_t group, unsigned, float (&q)[SHARE],
                                                  float (&scale)[2], float (&min)[2]) {
        uint32_t j = group % 4, low = r.q & 0x0f0f0f0fu, high = r.q >> 4 & 0x0f0f0f0fu;
        if (FIVE) {
            low |= (r.high >> 2 * j & 0x01010101u) << 4;
            high |= (r.high >> (2 * j + 1) & 0x01010101u) << 4;
        }
        floats_of_bytes<0>(low, q);
        floats_of_bytes<0>(high, q + PIECE);
        /* the 6-bit scales and minima of 32 elements each: the first four whole, the others in two places */
        uint32_t a = r.head.y, b = r.head.z, c = r.head.w;
        uint32_t s = j < 2 ? a & 0x3f3f3f3fu : (c & 0x0f0f0f0fu) | (a >> 2 & 0x30303030u);
        uint32_t m = j < 2 ? b & 0x3f3f3f3fu : (c >> 4 & 0x0f0f0f0fu) | (b >> 2 & 0x30303030u);
        float d = float_of_half(r.head.x), dmin = -float_of_half(r.head.x >> 16);
        UNROLL for (unsigned i = 0; i < 2; i++) {
            scale[i] = mul_f32(d, float_of_byte<0>(s, j % 2 * 2 + i));
            min[i] = mul_f32(dmin, float_of_byte<0>(m, j % 2 * 2 + i));
        }
    }
};
template <> struct decoder<DTYPE_Q4_K> : decode_k<144, false> {};
template <> struct decoder<DTYPE_Q5_K> : decode_k<176, true> {};

/* low[128], high[64], scales[16], d. Half a block is two groups: of low[64] the first takes the low nibbles and the
 * second the high ones, of high[32] 32 elements each take two bits. */
template <> struct decoder<DTYPE_Q6_K> {
    static constexpr int SCALES = 2;
    static constexpr bool MIN = false, NEIGHBOURS = false;
    struct raw {
        uint32_t low[2], high, d;
        int8_t scale[2];
    };
    static __device__ __forceinline__ unsigned piece(unsigned t, unsigned p) {
        return PIECE * t + 32 * p;
    }
    static __device__ __forceinline__ raw load(const decode_row &row, uint32_t group, unsigned t) {
        const unsigned char *block = row.p + (size_t)(group / 4) * 210, *low = block + group % 4 / 2 * 64 + 4 * t;
        const unsigned char *scale = block + 192 + group % 4 * 4 + t / 4;
        return raw{{load_2x2(low), load_2x2(low + 32)},
                   load_2x2(block + 128 + group % 4 / 2 * 32 + 4 * t),
                   load_2(block + 208),
                   {(int8_t)scale[0], (int8_t)scale[2]}};
    }
    static __device__ __forceinline__ void decode(const raw &r, uint32_t group, unsigned, float (&q)[SHARE],
                                                  float (&scale)[2], float (&)[2]) {
        float d = float_of_half(r.d);
        uint32_t shift = group % 2 * 4;
        UNROLL for (unsigned i = 0; i < 2; i++) {
            uint32_t bytes = (r.low[i] >> shift & 0x0f0f0f0fu) | (r.high >> (shift + 2 * i) & 0x03030303u) << 4;
            floats_of_bytes<32>(bytes, q + PIECE * i);
            scale[i] = mul_f32(d, (float)r.scale[i]);
        }
    }
};

/* Whether share t of a group has elements at all: k is a multiple of a type's block, or W has zeros behind it. */
template <dtype T> static __device__ __forceinline__ bool has_share(const decode_row &row, uint32_t group, unsigned t) {
    return group * GROUP + decoder<T>::piece(t, 0) < row.k;
}

/* The elements of a row of x (BF16) that meet a share. WIDE: rows lie at multiples of 16 bytes and k is one of 8. */
template <dtype T, bool WIDE>
static __device__ __forceinline__ void load_x(const bf16 *row, uint32_t k, uint32_t group, unsigned t,
                                              float (&x)[SHARE]) {
    uint32_t first = group * GROUP + decoder<T>::piece(t, 0), second = group * GROUP + decoder<T>::piece(t, 1);
    if (WIDE) {
        uint2 v[2];
        if (decoder<T>::NEIGHBOURS) {
            uint4 both = load_16(row + first);
            v[0] = uint2{both.x, both.y}, v[1] = uint2{both.z, both.w};
        } else {
            v[0] = *(const uint2 *)(row + first), v[1] = *(const uint2 *)(row + second);
        }
        UNROLL for (int i = 0; i < 2; i++) {
            floats_of_bf16(v[i].x, x[4 * i], x[4 * i + 1]);
            floats_of_bf16(v[i].y, x[4 * i + 2], x[4 * i + 3]);
        }
    } else {
        UNROLL for (uint32_t i = 0; i < SHARE; i++) {
            uint32_t at = (i < PIECE ? first : second) + i % PIECE;
            x[i] = at < k ? to_f32(row[at]) : 0;
        }
    }
}

#endif
