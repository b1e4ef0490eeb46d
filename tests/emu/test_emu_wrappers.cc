/* Every wrapper against a scalar definition, written anew from the PTX ISA. */
#include "test_emu.h"

#include <float.h>
#include <math.h>
#include <string.h>
#include <vector>

/* ---- fragments of mma, as the PTX ISA tells them: element i of a lane's registers ---- */

struct element {
    unsigned row, column;
};
/* m16n8k32, 8 bits: a of 16, b of 8 elements */
static element fragment_a8(unsigned lane, unsigned i) {
    unsigned group = lane >> 2, in_group = lane % 4;
    bool upper = i < 4 || (i >= 8 && i < 12);
    return {upper ? group : group + 8, in_group * 4 + (i & 3) + (i < 8 ? 0u : 16u)};
}
static element fragment_b8(unsigned lane, unsigned i) {
    return {(lane % 4) * 4 + (i & 3) + (i < 4 ? 0u : 16u), lane >> 2};
}
/* m16n8k16, 16 bits: a of 8, b of 4 elements */
static element fragment_a16(unsigned lane, unsigned i) {
    unsigned group = lane >> 2, in_group = lane % 4;
    bool upper = i < 2 || (i >= 4 && i < 6);
    return {upper ? group : group + 8, in_group * 2 + (i & 1) + (i < 4 ? 0u : 8u)};
}
static element fragment_b16(unsigned lane, unsigned i) {
    return {(lane % 4) * 2 + (i & 1) + (i < 2 ? 0u : 8u), lane >> 2};
}
static element fragment_d(unsigned lane, unsigned i) {
    return {(lane >> 2) + (i < 2 ? 0u : 8u), (lane % 4) * 2 + (i & 1)};
}

static __global__ void mma_i8_kernel(int (*d)[4], const uint32_t (*a)[4], const uint32_t (*b)[2]) {
    mma_i8(d[threadIdx.x], a[threadIdx.x], b[threadIdx.x]);
}
static __global__ void mma_f16_kernel(float (*d)[4], const uint32_t (*a)[4], const uint32_t (*b)[2]) {
    mma_f16(d[threadIdx.x], a[threadIdx.x], b[threadIdx.x]);
}
static __global__ void mma_bf16_kernel(float (*d)[4], const uint32_t (*a)[4], const uint32_t (*b)[2]) {
    mma_bf16(d[threadIdx.x], a[threadIdx.x], b[threadIdx.x]);
}

static void test_mma_i8(random_bits &random) {
    signed char a[16][32], b[32][8];
    int d[16][8], want[16][8], d_lanes[32][4];
    uint32_t a_lanes[32][4], b_lanes[32][2];
    for (int round = 0; round < 20; round++) {
        for (auto &row : a) {
            for (signed char &v : row) {
                v = round == 0 ? (signed char)-128 : (signed char)random.next();
            }
        }
        for (auto &row : b) {
            for (signed char &v : row) {
                v = round == 0 ? (signed char)-128 : (signed char)random.next();
            }
        }
        for (int i = 0; i < 16; i++) {
            for (int j = 0; j < 8; j++) {
                want[i][j] = d[i][j] = (int)random.next() >> (round & 1 ? 0 : 12);
                for (int k = 0; k < 32; k++) {
                    want[i][j] = (int)((unsigned)want[i][j] + (unsigned)(a[i][k] * b[k][j]));
                }
            }
        }
        for (unsigned lane = 0; lane < 32; lane++) {
            memset(a_lanes[lane], 0, 16);
            memset(b_lanes[lane], 0, 8);
            for (unsigned i = 0; i < 16; i++) {
                element e = fragment_a8(lane, i);
                a_lanes[lane][i / 4] |= (uint32_t)(uint8_t)a[e.row][e.column] << 8 * (i % 4);
            }
            for (unsigned i = 0; i < 8; i++) {
                element e = fragment_b8(lane, i);
                b_lanes[lane][i / 4] |= (uint32_t)(uint8_t)b[e.row][e.column] << 8 * (i % 4);
            }
            for (unsigned i = 0; i < 4; i++) {
                element e = fragment_d(lane, i);
                d_lanes[lane][i] = d[e.row][e.column];
            }
        }
        CHECK(LAUNCH(mma_i8_kernel, 1, 32, 0, 0, d_lanes, a_lanes, b_lanes) == cudaSuccess, "%s", emu_last_fault());
        for (unsigned lane = 0; lane < 32; lane++) {
            for (unsigned i = 0; i < 4; i++) {
                element e = fragment_d(lane, i);
                CHECK(d_lanes[lane][i] == want[e.row][e.column], "d[%u][%u]: %d instead of %d", e.row, e.column,
                      d_lanes[lane][i], want[e.row][e.column]);
            }
        }
    }
}

/* Values of few bits, so that every order of adding gives the same sum. */
static void test_mma_16(random_bits &random, bool brain) {
    float a[16][16], b[16][8], want[16][8], d_lanes[32][4];
    uint32_t a_lanes[32][4], b_lanes[32][2];
    auto bits = [brain](float v) -> uint32_t {
        return brain ? __bfloat16_as_ushort(__float2bfloat16_rn(v)) : __half_as_ushort(__float2half_rn(v));
    };
    for (int round = 0; round < 20; round++) {
        for (auto &row : a) {
            for (float &v : row) {
                v = (float)((int)(random.next() % 255) - 127) / 16;
            }
        }
        for (auto &row : b) {
            for (float &v : row) {
                v = (float)((int)(random.next() % 255) - 127) / 64;
            }
        }
        for (unsigned lane = 0; lane < 32; lane++) {
            memset(a_lanes[lane], 0, 16);
            memset(b_lanes[lane], 0, 8);
            for (unsigned i = 0; i < 8; i++) {
                element e = fragment_a16(lane, i);
                a_lanes[lane][i / 2] |= bits(a[e.row][e.column]) << 16 * (i % 2);
            }
            for (unsigned i = 0; i < 4; i++) {
                element e = fragment_b16(lane, i);
                b_lanes[lane][i / 2] |= bits(b[e.row][e.column]) << 16 * (i % 2);
                d_lanes[lane][i] = 0.25f * (float)(int)(random.next() % 1000);
                element at = fragment_d(lane, i);
                want[at.row][at.column] = d_lanes[lane][i];
            }
        }
        for (int i = 0; i < 16; i++) {
            for (int j = 0; j < 8; j++) {
                for (int k = 0; k < 16; k++) {
                    want[i][j] += a[i][k] * b[k][j];
                }
            }
        }
        cudaError_t error = brain ? LAUNCH(mma_bf16_kernel, 1, 32, 0, 0, d_lanes, a_lanes, b_lanes)
                                  : LAUNCH(mma_f16_kernel, 1, 32, 0, 0, d_lanes, a_lanes, b_lanes);
        CHECK(error == cudaSuccess, "%s", emu_last_fault());
        for (unsigned lane = 0; lane < 32; lane++) {
            for (unsigned i = 0; i < 4; i++) {
                element e = fragment_d(lane, i);
                CHECK(d_lanes[lane][i] == want[e.row][e.column], "d[%u][%u]: %g instead of %g", e.row, e.column,
                      (double)d_lanes[lane][i], (double)want[e.row][e.column]);
            }
        }
    }
}

/* ---- ldmatrix ---- */

struct matrix_shared {
    alignas(16) uint16_t m[4][8][8];
};
static __global__ void ldmatrix_kernel(const matrix_shared *from, uint32_t (*x4)[4], uint32_t (*x2)[2],
                                       uint32_t (*x4t)[4], uint32_t (*x2t)[2]) {
    SHARED(matrix_shared, s);
    unsigned lane = threadIdx.x;
    for (unsigned i = lane; i < 256; i += 32) {
        s.m[i / 64][i / 8 % 8][i % 8] = from->m[i / 64][i / 8 % 8][i % 8];
    }
    warp_sync();
    load_matrix_x4(x4[lane], s.m[lane / 8][lane % 8]);
    load_matrix_x4_transposed(x4t[lane], s.m[lane / 8][lane % 8]);
    const void *row = lane < 16 ? (const void *)s.m[lane / 8][lane % 8] : from; /* lanes from 16 on do not count */
    load_matrix_x2(x2[lane], row);
    load_matrix_x2_transposed(x2t[lane], row);
}

static void test_ldmatrix(random_bits &random) {
    matrix_shared from;
    for (auto &m : from.m) {
        for (auto &row : m) {
            for (uint16_t &v : row) {
                v = (uint16_t)random.next();
            }
        }
    }
    uint32_t x4[32][4], x2[32][2], x4t[32][4], x2t[32][2];
    cudaError_t error = LAUNCH(ldmatrix_kernel, 1, 32, sizeof(matrix_shared), 0, &from, x4, x2, x4t, x2t);
    CHECK(error == cudaSuccess, "%s", emu_last_fault());
    for (unsigned lane = 0; lane < 32; lane++) {
        for (unsigned i = 0; i < 4; i++) {
            /* lane 4 r + c holds elements 2c, 2c + 1 of row r; transposed: of column r */
            unsigned r = lane / 4, c = lane % 4 * 2;
            uint32_t want = from.m[i][r][c] | (uint32_t)from.m[i][r][c + 1] << 16;
            uint32_t transposed = from.m[i][c][r] | (uint32_t)from.m[i][c + 1][r] << 16;
            CHECK(x4[lane][i] == want, "x4: lane %u, matrix %u", lane, i);
            CHECK(x4t[lane][i] == transposed, "x4 transposed: lane %u, matrix %u", lane, i);
            if (i < 2) {
                CHECK(x2[lane][i] == want, "x2: lane %u, matrix %u", lane, i);
                CHECK(x2t[lane][i] == transposed, "x2 transposed: lane %u, matrix %u", lane, i);
            }
        }
    }
}

/* ---- a product as kernels do it: cp.async, ldmatrix, mma ---- */

enum { M = 32, N = 16, K = 128 };
struct product_shared {
    alignas(16) signed char a[2][M][64 + 16], b[2][N][64 + 16]; /* two stages of k, rows padded */
};
/* d = a b^T; one warp for each 16 x 8 of d; every thread copies. */
static __global__ void product_kernel(int *d, const signed char *a, const signed char *b) {
    SHARED(product_shared, s);
    unsigned warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    unsigned row = warp % 2 * 16, column = warp / 2 * 8;
    for (unsigned stage = 0; stage < 2; stage++) {
        for (unsigned i = threadIdx.x; i < (M + N) * 4; i += blockDim.x) {
            unsigned r = i / 4, k = i % 4 * 16;
            if (r < M) {
                async_copy_16(&s.a[stage][r][k], a + r * K + stage * 64 + k, true);
            } else {
                async_copy_16(&s.b[stage][r - M][k], b + (r - M) * K + stage * 64 + k, true);
            }
        }
        async_commit();
    }
    int sum[4] = {};
    for (unsigned stage = 0; stage < 2; stage++) {
        if (stage == 0) {
            async_wait<1>();
        } else {
            async_wait<0>();
        }
        block_sync();
        for (unsigned k = 0; k < 64; k += 32) {
            uint32_t af[4], bf[2];
            load_matrix_x4(af, &s.a[stage][row + lane % 16][k + lane / 16 * 16]);
            load_matrix_x2(bf, &s.b[stage][column + lane % 8][k + lane / 8 % 2 * 16]);
            mma_i8(sum, af, bf);
        }
    }
    for (unsigned i = 0; i < 4; i++) {
        element e = fragment_d(lane, i);
        d[(row + e.row) * N + column + e.column] = sum[i];
    }
}

static void test_product(random_bits &random) {
    alignas(16) static signed char a[M * K], b[N * K];
    for (signed char &v : a) {
        v = (signed char)random.next();
    }
    for (signed char &v : b) {
        v = (signed char)random.next();
    }
    for (uint64_t seed = 0; seed < 5; seed++) {
        emu_set_order_seed(seed);
        std::vector<int> d(M * N, -1);
        cudaError_t error = LAUNCH(product_kernel, 1, 128, sizeof(product_shared), 0, d.data(), a, b);
        CHECK(error == cudaSuccess, "%s", emu_last_fault());
        for (int i = 0; i < M; i++) {
            for (int j = 0; j < N; j++) {
                int want = 0;
                for (int k = 0; k < K; k++) {
                    want += a[i * K + k] * b[j * K + k];
                }
                CHECK(d[(size_t)(i * N + j)] == want, "seed %d: d[%d][%d] %d, not %d", (int)seed, i, j,
                      d[(size_t)(i * N + j)], want);
            }
        }
    }
    emu_set_order_seed(1);
}

/* ---- asynchronous copies land at the wait, group by group, not before ---- */

struct copy_shared {
    uint4 piece[3];
};
static __global__ void copy_kernel(const uint4 *from, uint4 *seen) {
    SHARED(copy_shared, s);
    async_copy_16(&s.piece[0], &from[0], true);
    async_commit();
    async_copy_16(&s.piece[1], &from[1], false);
    async_commit();
    async_copy_16(&s.piece[2], &from[2], true);
    auto see = [&](int at) {
        for (int i = 0; i < 3; i++) {
            seen[3 * at + i] = s.piece[i];
        }
    };
    see(0);
    async_wait<1>();
    see(1);
    async_wait<0>();
    see(2);
    async_commit();
    async_wait<0>();
    see(3);
}

static void test_async_copy() {
    alignas(16) uint4 from[3] = {{1, 2, 3, 4}, {5, 6, 7, 8}, {9, 10, 11, 12}}, seen[12];
    cudaError_t error = LAUNCH(copy_kernel, 1, 1, sizeof(copy_shared), 0, from, seen);
    CHECK(error == cudaSuccess, "%s", emu_last_fault());
    const unsigned nothing = 0x7fff7fffu;
    const unsigned want[12] = {nothing, nothing, nothing, 1, nothing, nothing, 1, 0, nothing, 1, 0, 9};
    for (int i = 0; i < 12; i++) {
        CHECK(seen[i].x == want[i], "piece %d after %d steps: %x, not %x", i % 3, i / 3, seen[i].x, want[i]);
    }
}

/* ---- shuffles, votes ---- */

static __global__ void shuffle_kernel(uint32_t *out, const uint32_t *v, const uint32_t *from) {
    unsigned lane = threadIdx.x;
    uint32_t *mine = out + 16 * lane;
    mine[0] = warp_shfl(v[lane], (int)from[lane]);
    mine[1] = warp_shfl_xor(v[lane], 13);
    mine[2] = warp_shfl_down(v[lane], 7);
    mine[3] = warp_shfl_up(v[lane], 9);
    mine[4] = warp_ballot(v[lane] & 1);
    uint64_t wide = (uint64_t)v[lane] << 32 | lane;
    uint64_t got = warp_shfl_xor(wide, 31);
    mine[5] = (uint32_t)(got >> 32);
    mine[6] = (uint32_t)got;
    mine[7] = (uint32_t)warp_shfl((float)lane, 5);
    mine[8] = (uint32_t)warp_shfl((double)lane, 6);
    mine[9] = warp_ballot(lane == 3);
    mine[10] = warp_ballot(true);
    /* one after another without anything between: lanes that are ahead must not disturb others */
    uint32_t x = v[lane];
    for (int i = 0; i < 8; i++) {
        x = x * 3 + warp_shfl(x, (int)((lane + (unsigned)i) % 32));
    }
    mine[11] = x;
}

static void test_shuffles(random_bits &random) {
    for (uint64_t seed = 0; seed < 5; seed++) {
        emu_set_order_seed(seed);
        uint32_t v[32], from[32], out[32 * 16], odd = 0, x[32], y[32];
        for (unsigned lane = 0; lane < 32; lane++) {
            x[lane] = v[lane] = random.next();
            from[lane] = random.next() % 32;
            odd |= (v[lane] & 1) << lane;
        }
        for (unsigned i = 0; i < 8; i++) {
            memcpy(y, x, sizeof x);
            for (unsigned lane = 0; lane < 32; lane++) {
                x[lane] = y[lane] * 3 + y[(lane + i) % 32];
            }
        }
        CHECK(LAUNCH(shuffle_kernel, 1, 32, 0, 0, out, v, from) == cudaSuccess, "%s", emu_last_fault());
        for (unsigned lane = 0; lane < 32; lane++) {
            const uint32_t *mine = out + 16 * lane;
            const uint32_t want[12] = {v[from[lane]],
                                       v[lane ^ 13],
                                       lane + 7 < 32 ? v[lane + 7] : v[lane],
                                       lane >= 9 ? v[lane - 9] : v[lane],
                                       odd,
                                       v[lane ^ 31],
                                       lane ^ 31,
                                       5,
                                       6,
                                       8,
                                       0xffffffffu,
                                       x[lane]};
            for (int i = 0; i < 12; i++) {
                CHECK(mine[i] == want[i], "seed %d, lane %u, value %d: %x, not %x", (int)seed, lane, i, mine[i],
                      want[i]);
            }
        }
    }
    emu_set_order_seed(1);
}

/* ---- integers ---- */

static void test_integers(random_bits &random) {
    for (int i = 0; i < 2000; i++) {
        uint32_t a = random.next(), b = random.next(), selector = random.next();
        int c = i == 0 ? 0x7fffffff : (int)random.next(), sum = c;
        if (i == 1) {
            a = b = 0x80808080u;
        }
        signed char ab[4], bb[4];
        unsigned char both[8], picked[4];
        memcpy(ab, &a, 4);
        memcpy(bb, &b, 4);
        memcpy(both, &a, 4);
        memcpy(both + 4, &b, 4);
        for (int k = 0; k < 4; k++) {
            sum = (int)((unsigned)sum + (unsigned)(ab[k] * bb[k]));
            unsigned s = selector >> 4 * k & 15;
            picked[k] = s >= 8 ? (both[s - 8] >= 128 ? 255 : 0) : both[s];
        }
        uint32_t want;
        memcpy(&want, picked, 4);
        CHECK(dot_i8(a, b, c) == sum, "dot_i8(%x, %x, %d)", a, b, c);
        CHECK(byte_permute(a, b, selector) == want, "byte_permute(%x, %x, %x)", a, b, selector);
        CHECK(__umulhi(a, b) == (uint32_t)((uint64_t)a * b >> 32), "__umulhi(%x, %x)", a, b);
        unsigned shift = selector % 32;
        CHECK(__funnelshift_r(a, b, shift) == (shift == 0 ? a : a >> shift | b << (32 - shift)), "funnel shift");
        CHECK(__funnelshift_l(a, b, shift) == (shift == 0 ? b : b << shift | a >> (32 - shift)), "funnel shift");
    }
    CHECK(__popc(0xf0f0u) == 8 && __clz(1) == 31 && __clz(0) == 32 && __ffs(8) == 4 && __brev(1) == 0x80000000u,
          "bits");
    CHECK(min(-3, 2) == -3 && max(3u, 2u) == 3u && min(1.0f, NAN) == 1.0f && max(-INFINITY, 2.0f) == 2.0f, "min, max");
}

/* ---- numbers ---- */

/* The value of 16 bits, by the definition of its format. */
static double value_of(unsigned bits, int exponent_bits, int fraction_bits) {
    int bias = (1 << (exponent_bits - 1)) - 1, exponent = (int)(bits >> fraction_bits) & ((1 << exponent_bits) - 1);
    unsigned fraction = bits & ((1u << fraction_bits) - 1);
    double v;
    if (exponent == (1 << exponent_bits) - 1) {
        v = fraction != 0 ? (double)NAN : (double)INFINITY;
    } else if (exponent == 0) {
        v = ldexp(fraction, 1 - bias - fraction_bits);
    } else {
        v = ldexp(fraction + (1u << fraction_bits), exponent - bias - fraction_bits);
    }
    return bits & 0x8000u ? -v : v;
}

/* All values there and back; and between each two neighbours the middle (to even) and what lies beside it. */
static void test_16_bit(int exponent_bits, int fraction_bits, float (*to_f32)(uint16_t), uint16_t (*from_f32)(float)) {
    for (unsigned bits = 0; bits < 65536; bits++) {
        double v = value_of(bits, exponent_bits, fraction_bits);
        float f = to_f32((uint16_t)bits);
        CHECK(v != v ? f != f : (double)f == v && signbit(f) == (bits >> 15 != 0), "%x is %g, not %g", bits, (double)f,
              v);
        CHECK(v != v ? from_f32(f) == 0x7fff : from_f32(f) == bits, "%x comes back as %x", bits, from_f32(f));
        double next = value_of(bits + 1, exponent_bits, fraction_bits);
        if ((bits & 0x7fffu) == 0x7fffu || v != v || isinf(v) || next != next) {
            continue;
        }
        if (isinf(next)) { /* as if the exponents went on */
            next = v + v - value_of(bits - 1, exponent_bits, fraction_bits);
        }
        float middle = (float)((v + next) / 2); /* exact */
        float towards = nextafterf(middle, (float)v), away = nextafterf(middle, (float)next);
        CHECK(from_f32(middle) == (bits & 1 ? bits + 1 : bits), "%x: the middle goes to %x", bits, from_f32(middle));
        CHECK(from_f32(towards) == bits && from_f32(away) == bits + 1, "%x: beside the middle", bits);
    }
}

static void test_numbers(random_bits &random) {
    test_16_bit(5, 10, emu_f16_to_f32, emu_f32_to_f16);
    test_16_bit(8, 7, emu_bf16_to_f32, emu_f32_to_bf16);
    CHECK(pack_bf16(1.0f, -2.0f) == 0xc0003f80u && pack_f16(1.0f, -2.0f) == 0xc0003c00u, "pack");
    for (int i = 0; i < 10000; i++) {
        uint16_t a = (uint16_t)random.next(), b = (uint16_t)random.next();
        if (i % 2) {
            b = (uint16_t)((a & 0xfc00u) | (b & 0x83ffu)); /* of like size */
        }
        double x = value_of(a, 5, 10), y = value_of(b, 5, 10);
        /* the nearest F16, from doubles: these sums and products are exact in a double */
        auto nearest = [](double v) {
            float f = (float)v;
            if ((double)f != v && isfinite(f)) { /* to odd, so that the second rounding is the only one that counts */
                uint32_t bits;
                memcpy(&bits, &f, 4);
                if ((bits & 1u) == 0) {
                    f = nextafterf(f, v > (double)f ? INFINITY : -INFINITY);
                }
            }
            return emu_f32_to_f16(f);
        };
        uint32_t pair_a = (uint32_t)a << 16 | 0x3c00u, pair_b = (uint32_t)b << 16 | 0x3c00u;
        CHECK(sub_f16x2(pair_a, pair_b) == ((uint32_t)nearest(x - y) << 16), "%x - %x", a, b);
        CHECK(mul_f16x2(pair_a, pair_b) == ((uint32_t)nearest(x * y) << 16 | 0x3c00u), "%x * %x", a, b);
    }
    CHECK(fma_f32(1.0f + FLT_EPSILON, 1.0f - FLT_EPSILON, -1.0f) == -FLT_EPSILON * FLT_EPSILON, "fma rounds twice");
    volatile float one = 1.0f + FLT_EPSILON;
    CHECK(add_f32(mul_f32(one, one), -1.0f) == 2 * FLT_EPSILON, "a product was fused");
    for (int i = 0; i < 2000; i++) {
        float x = (float)((int)(random.next() % 600000) - 300000) / 1000;
        double y = exp2((double)x);
        float got = exp2_fast(x);
        CHECK(y > (double)FLT_MAX   ? isinf(got)
              : y < (double)FLT_MIN ? got == 0.0f
                                    : fabs((double)got / y - 1) < 3e-7,
              "exp2_fast(%g) = %g", (double)x, (double)got);
    }
    CHECK(exp2_fast(-INFINITY) == 0.0f && isinf(exp2_fast(INFINITY)) && exp2_fast(NAN) != exp2_fast(NAN), "exp2_fast");
    CHECK(__float2int_rn(2.5f) == 2 && __float2int_rz(-2.5f) == -2 && __float2int_rn(1e20f) == 0x7fffffff &&
              __float2int_rn(-1e20f) == -0x7fffffff - 1 && __float2int_rn(NAN) == 0 && __float2uint_rn(-1.0f) == 0 &&
              __float2uint_rn(1e20f) == 0xffffffffu,
          "conversions to integers");
    CHECK(__float_as_uint(1.0f) == 0x3f800000u && __uint_as_float(0x40000000u) == 2.0f && __int_as_float(0) == 0.0f,
          "bits");
}

/* ---- atomics ---- */

static __global__ void atomics_kernel(int *i, unsigned *u, float *f, unsigned long long *l) {
    atomicAdd(&i[0], (int)threadIdx.x - 10);
    atomicMax(&i[1], (int)threadIdx.x - 10);
    atomicMin(&i[2], (int)threadIdx.x - 10);
    atomicAdd(&u[0], 1u);
    atomicMax(&u[1], threadIdx.x * 7 % 64);
    atomicInc(&u[2], 9);
    atomicOr(&u[3], 1u << threadIdx.x % 32);
    atomicAdd(&f[0], 0.5f);
    atomicAdd(&l[0], 1ULL << 33);
    if (atomicCAS(&u[4], 0u, 5u) == 0) {
        atomicAdd(&u[5], 1u);
    }
}

static void test_atomics() {
    int i[3] = {0, -100, 100};
    unsigned u[6] = {};
    float f[1] = {};
    unsigned long long l[1] = {};
    CHECK(LAUNCH(atomics_kernel, 2, 64, 0, 0, i, u, f, l) == cudaSuccess, "%s", emu_last_fault());
    CHECK(i[0] == 2 * (64 * 63 / 2 - 640) && i[1] == 53 && i[2] == -10, "atomics of integers: %d %d %d", i[0], i[1],
          i[2]);
    CHECK(u[0] == 128 && u[1] == 63 && u[2] == 8 && u[3] == 0xffffffffu, "atomics: %u %u %u %x", u[0], u[1], u[2],
          u[3]);
    CHECK(u[4] == 5 && u[5] == 1 && f[0] == 64.0f && l[0] == 128ULL << 33, "atomics: %u %u %g", u[4], u[5],
          (double)f[0]);
}

void test_wrappers() {
    random_bits random = {1};
    test_mma_i8(random);
    test_mma_16(random, false);
    test_mma_16(random, true);
    test_ldmatrix(random);
    test_product(random);
    test_async_copy();
    test_shuffles(random);
    test_integers(random);
    test_numbers(random);
    test_atomics();
}
