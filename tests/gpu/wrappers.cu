/*
 * What device.cuh says its wrappers do, against scalar definitions written from the PTX ISA: on a GPU this pins what the
 * emulator takes for granted (the layout of fragments, most of all). Values are chosen so that every sum is exact.
 *
 * The same program runs on the emulator. Exit code 0: all as defined; 1: not; 77: no device.
 */
#include "device.cuh"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LANES = 32, WORDS = 16 };

static size_t checks, failures;

static void check(bool ok, const char *format, ...) {
    checks++;
    if (!ok && failures++ < 20) {
        va_list ap;
        va_start(ap, format);
        vprintf(format, ap);
        va_end(ap);
        putchar('\n');
    }
}

static void need(cudaError_t rc, const char *what) {
    if (rc != cudaSuccess) {
        printf("%s: %s\n", what, cudaGetErrorString(rc));
        exit(1);
    }
}

static uint32_t next_random() { /* splitmix64 (Steele, Lea & Flood 2014) */
    static uint64_t state = 1;
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ z >> 31) >> 32);
}

/* ---- a warp on 32 rows of words ---- */

struct lane {
    uint32_t w[WORDS];
};

typedef cudaError_t launch(lane *out, const lane *in);

static void run(launch *kernel, lane *out, const lane *in, const char *name) {
    lane *device;
    size_t bytes = LANES * sizeof *out;
    need(cudaMalloc((void **)&device, 2 * bytes), "cudaMalloc");
    need(cudaMemcpy(device, in, bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
    need(cudaMemset(device + LANES, 0, bytes), "cudaMemset");
    need(kernel(device + LANES, device), name);
    need(cudaDeviceSynchronize(), name);
    need(cudaMemcpy(out, device + LANES, bytes, cudaMemcpyDeviceToHost), name);
    need(cudaFree(device), "cudaFree");
}

/* ---- mma: a in words 0..3, b in 4..5, d in 6..9 ---- */

enum type { I8, F16, BF16 };

template <int TYPE> static __global__ void mma_kernel(lane *out, const lane *in) {
    const lane &me = in[threadIdx.x];
    uint32_t a[4], b[2];
    for (int i = 0; i < 4; i++) {
        a[i] = me.w[i];
    }
    for (int i = 0; i < 2; i++) {
        b[i] = me.w[4 + i];
    }
    if (TYPE == I8) {
        int d[4];
        for (int i = 0; i < 4; i++) {
            d[i] = (int)me.w[6 + i];
        }
        mma_i8(d, a, b);
        for (int i = 0; i < 4; i++) {
            out[threadIdx.x].w[i] = (uint32_t)d[i];
        }
    } else {
        float d[4];
        for (int i = 0; i < 4; i++) {
            d[i] = f32_of(me.w[6 + i]);
        }
        if (TYPE == F16) {
            mma_f16(d, a, b);
        } else {
            mma_bf16(d, a, b);
        }
        for (int i = 0; i < 4; i++) {
            out[threadIdx.x].w[i] = bits_of(d[i]);
        }
    }
}
template <int TYPE> static cudaError_t mma_launch(lane *out, const lane *in) {
    return LAUNCH((mma_kernel<TYPE>), 1, LANES, 0, 0, out, in);
}

static uint32_t small_number(int type, int v) { /* -8..8: exact in each type */
    if (type == I8) {
        return (uint8_t)v;
    }
    float f = (float)v;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    if (type == BF16) {
        return bits >> 16;
    }
    return v == 0 ? 0 : (bits >> 16 & 0x8000) | ((bits >> 23 & 0xff) - 112) << 10 | (bits >> 13 & 0x3ff);
}

/* PTX ISA, "Matrix Fragments": of a lane (group = lane / 4, t = lane % 4), word i of a holds row group + 8 (i % 2) and the
 * columns from `per` t + (i / 2) k / 2 on, word i of b the same of column group; d[i]: row group + 8 (i / 2), column 2 t + i % 2. */
template <int TYPE> static void test_mma(const char *name) {
    static int a[16][32], b[32][8], d[16][8];
    const int k = TYPE == I8 ? 32 : 16, per = TYPE == I8 ? 4 : 2, bits = 32 / per;
    static lane in[LANES], out[LANES];
    for (int round = 0; round < 8; round++) {
        memset(in, 0, sizeof in);
        for (int i = 0; i < 16; i++) {
            for (int j = 0; j < k; j++) {
                a[i][j] = (int)(next_random() % 17) - 8;
            }
            for (int j = 0; j < 8; j++) {
                d[i][j] = (int)(next_random() % 2001) - 1000;
            }
        }
        for (int i = 0; i < k; i++) {
            for (int j = 0; j < 8; j++) {
                b[i][j] = TYPE == I8 && round == 0 ? -128 : (int)(next_random() % 17) - 8;
            }
        }
        for (int l = 0; l < LANES; l++) {
            int group = l / 4, t = l % 4;
            for (int i = 0; i < 4; i++) {
                for (int e = 0; e < per; e++) {
                    in[l].w[i] |= small_number(TYPE, a[group + 8 * (i % 2)][per * t + e + i / 2 * k / 2]) << bits * e;
                }
                int sum = d[group + 8 * (i / 2)][2 * t + i % 2];
                float f = (float)sum;
                memcpy(&in[l].w[6 + i], TYPE == I8 ? (void *)&sum : (void *)&f, 4);
            }
            for (int i = 0; i < 2; i++) {
                for (int e = 0; e < per; e++) {
                    in[l].w[4 + i] |= small_number(TYPE, b[per * t + e + i * k / 2][group]) << bits * e;
                }
            }
        }
        run(mma_launch<TYPE>, out, in, name);
        for (int l = 0; l < LANES; l++) {
            for (int i = 0; i < 4; i++) {
                int row = l / 4 + 8 * (i / 2), column = 2 * (l % 4) + i % 2, want = d[row][column];
                for (int j = 0; j < k; j++) {
                    want += a[row][j] * b[j][column];
                }
                float got;
                memcpy(&got, &out[l].w[i], sizeof got);
                check(TYPE == I8 ? (int)out[l].w[i] == want : got == (float)want, "%s: lane %d, d[%d] is not row %d, column %d", name,
                      l, i, row, column);
            }
        }
    }
}

/* ---- ldmatrix: the input's 512 bytes (4 words a lane) are four 8x8 matrices of 16 bits, a row of 16 bytes a lane ---- */

struct matrices {
    uint32_t rows[LANES][4];
};

template <int TRANSPOSED> static __global__ void ldmatrix_kernel(lane *out, const lane *in) {
    SHARED(matrices, s);
    for (int i = 0; i < 4; i++) {
        s.rows[threadIdx.x][i] = in[threadIdx.x].w[i];
    }
    block_sync();
    uint32_t four[4], two[2];
    if (TRANSPOSED) {
        load_matrix_x4_transposed(four, s.rows[threadIdx.x]);
        load_matrix_x2_transposed(two, s.rows[threadIdx.x % 16]);
    } else {
        load_matrix_x4(four, s.rows[threadIdx.x]);
        load_matrix_x2(two, s.rows[threadIdx.x % 16]);
    }
    for (int i = 0; i < 4; i++) {
        out[threadIdx.x].w[i] = four[i];
    }
    for (int i = 0; i < 2; i++) {
        out[threadIdx.x].w[4 + i] = two[i];
    }
}
template <int TRANSPOSED> static cudaError_t ldmatrix_launch(lane *out, const lane *in) {
    return LAUNCH((ldmatrix_kernel<TRANSPOSED>), 1, LANES, sizeof(matrices), 0, out, in);
}

template <int TRANSPOSED> static void test_ldmatrix(const char *name) {
    static lane in[LANES], out[LANES];
    for (int l = 0; l < LANES; l++) {
        for (int i = 0; i < 4; i++) {
            in[l].w[i] = next_random();
        }
    }
    run(ldmatrix_launch<TRANSPOSED>, out, in, name);
    for (int l = 0; l < LANES; l++) {
        for (int i = 0; i < 6; i++) {
            uint32_t want = 0;
            for (int e = 0; e < 2; e++) { /* elements 2 t and 2 t + 1 of row group, or, transposed, of column group */
                int row = TRANSPOSED ? 2 * (l % 4) + e : l / 4, column = TRANSPOSED ? l / 4 : 2 * (l % 4) + e;
                want |= (in[i % 4 * 8 + row].w[column / 2] >> 16 * (column % 2) & 0xffff) << 16 * e;
            }
            check(out[l].w[i] == want, "%s: lane %d, word %d is not the one of its row and column", name, l, i);
        }
    }
}

/* ---- the others: each lane by itself, or by what its neighbours have ---- */

struct staged {
    uint4 v[LANES];
};

static __global__ void warp_kernel(lane *out, const lane *in) {
    SHARED(staged, s);
    const lane &me = in[threadIdx.x];
    lane &y = out[threadIdx.x];
    int l = (int)threadIdx.x;
    y.w[0] = warp_shfl(me.w[0], 31 - l);
    y.w[1] = warp_shfl_xor(me.w[0], 5);
    y.w[2] = warp_shfl_down(me.w[0], 3);
    y.w[3] = warp_shfl_up(me.w[0], 3);
    y.w[4] = warp_ballot(me.w[0] & 1);
    y.w[5] = (uint32_t)dot_i8(me.w[1], me.w[2], (int)me.w[3]);
    y.w[6] = byte_permute(me.w[1], me.w[2], me.w[3]);
    y.w[7] = pack_bf16(f32_of(me.w[4]), f32_of(me.w[5]));
    y.w[8] = pack_f16(f32_of(me.w[4]), f32_of(me.w[5]));
    y.w[9] = bits_of(fma_f32(f32_of(me.w[4]), f32_of(me.w[5]), f32_of(me.w[6])));
    y.w[10] = bits_of(add_f32(mul_f32(f32_of(me.w[4]), f32_of(me.w[5])), f32_of(me.w[6])));
    async_copy_16(&s.v[l], in[31 - l].w, l % 3 != 0);
    async_commit();
    async_wait<0>();
    block_sync();
    y.w[11] = s.v[31 - l].x;
    y.w[12] = s.v[31 - l].w;
    y.w[13] = load_16(in[l].w + 4).z;
    y.w[14] = bits_of(exp2_fast(f32_of(me.w[7])));
}
static cudaError_t warp_launch(lane *out, const lane *in) {
    return LAUNCH(warp_kernel, 1, LANES, sizeof(staged), 0, out, in);
}

static float float_of(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}
static uint32_t word_of(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}
/* To nearest even with `mantissa` bits left; the value is normal in that type. */
static double rounded(double x, int mantissa) {
    int e;
    double m = frexp(x, &e);
    return ldexp(nearbyint(ldexp(m, mantissa)), e - mantissa);
}

static void test_warp() {
    static lane in[LANES], out[LANES];
    for (int round = 0; round < 16; round++) {
        for (int l = 0; l < LANES; l++) {
            for (int i = 0; i < WORDS; i++) {
                in[l].w[i] = next_random();
            }
            in[l].w[3] &= 0x7777; /* selectors; without the bit that spreads a sign */
            in[l].w[4] = word_of(ldexpf((float)(int32_t)next_random(), -28));
            in[l].w[5] = word_of(ldexpf((float)(int32_t)next_random(), -27));
            in[l].w[6] = word_of((float)(int)(next_random() % 601 - 300) / (l % 2 ? 2.0f : 1.0f));
            in[l].w[7] = word_of(ldexpf((float)(int32_t)next_random(), -26));
        }
        run(warp_launch, out, in, "warp operations");
        uint32_t ballot = 0;
        for (int l = 0; l < LANES; l++) {
            ballot |= (in[l].w[0] & 1) << l;
        }
        for (int l = 0; l < LANES; l++) {
            const uint32_t *x = in[l].w, *y = out[l].w;
            check(y[0] == in[31 - l].w[0], "shfl, lane %d", l);
            check(y[1] == in[l ^ 5].w[0], "shfl_xor, lane %d", l);
            check(y[2] == in[l + 3 < LANES ? l + 3 : l].w[0], "shfl_down, lane %d", l);
            check(y[3] == in[l >= 3 ? l - 3 : l].w[0], "shfl_up, lane %d", l);
            check(y[4] == ballot, "ballot, lane %d", l);
            int dot = (int)x[3];
            uint32_t permuted = 0;
            for (int i = 0; i < 4; i++) {
                dot += (int)(int8_t)(x[1] >> 8 * i) * (int8_t)(x[2] >> 8 * i);
                uint32_t from = x[3] >> 4 * i & 7;
                permuted |= ((from < 4 ? x[1] >> 8 * from : x[2] >> 8 * (from - 4)) & 0xff) << 8 * i;
            }
            check((int)y[5] == dot, "dp4a, lane %d", l);
            check(y[6] == permuted, "byte permute, lane %d", l);
            double a = (double)float_of(x[4]), b = (double)float_of(x[5]);
            float c = float_of(x[6]);
            check(float_of(y[7] << 16) == (float)rounded(a, 8) && float_of(y[7] & 0xffff0000u) == (float)rounded(b, 8),
                  "two numbers of BF16, lane %d", l);
            for (int i = 0; i < 2; i++) {
                double v = i ? b : a;
                uint32_t h = y[8] >> 16 * i & 0xffff;
                double got = ldexp((double)((h & 0x3ff) | (h & 0x7c00 ? 0x400u : 0u)), (int)(h >> 10 & 31) - 25 + !(h & 0x7c00));
                check(fabs(v) < 0x1p-14 || (h & 0x8000 ? -got : got) == rounded(v, 11), "two numbers of F16, lane %d", l);
            }
            check(float_of(y[9]) == fmaf((float)a, (float)b, c), "fma, lane %d", l);
            volatile float product = (float)a * (float)b;
            check(float_of(y[10]) == product + c, "multiply, then add, lane %d", l);
            int writer = 31 - l, source = 31 - writer;
            check(y[11] == (writer % 3 ? in[source].w[0] : 0) && y[12] == (writer % 3 ? in[source].w[3] : 0), "cp.async, lane %d", l);
            check(y[13] == x[6], "16 bytes at once, lane %d", l);
            double e = exp2((double)float_of(x[7]));
            check(fabs((double)float_of(y[14]) - e) <= e * 0x1p-21 || e < 0x1p-125, "exp2, lane %d", l);
        }
    }
}

int main() {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        printf("no CUDA device\n");
        return 77;
    }
    test_mma<I8>("mma of bytes");
    test_mma<F16>("mma of F16");
    test_mma<BF16>("mma of BF16");
    test_ldmatrix<0>("ldmatrix");
    test_ldmatrix<1>("ldmatrix, transposed");
    test_warp();
    printf("%zu checks, %zu failed\n", checks, failures);
    return failures > 0;
}
