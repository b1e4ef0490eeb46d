/*
 * The tile unit in software (backend/cpu/amx_emulated.h), which the variant "amx-emulated" runs on, against scalar code
 * written from the formulas of Intel's reference; so what the kernels are tested with is itself tested.
 */
#include "ops.h"

#if defined(__x86_64__)
#include <math.h>

/* kernels_amx_emulated.c: c += a b by the unit, whole tiles. `bytes`: 's' signed, 'u' unsigned a, 'f' pairs of BF16 */
void amx_emulated_product(char kind, const void *a, const void *b, void *c);

enum { ROWS = 16, COLS = 16, DEPTH = 16 };

static int32_t byte_product(char kind, uint8_t a, uint8_t b) {
    int x = kind == 's' && a >= 128 ? a - 256 : a, y = b >= 128 ? b - 256 : b;
    return x * y;
}

static void test_bytes(struct random *r, char kind) {
    uint8_t a[ROWS][DEPTH * 4], b[DEPTH][COLS * 4];
    int32_t c[ROWS][COLS], want[ROWS][COLS];
    for (size_t i = 0; i < sizeof a; i++) {
        ((uint8_t *)a)[i] = (uint8_t)random_u64(r);
        ((uint8_t *)b)[i] = (uint8_t)random_u64(r);
    }
    memset(a[3], 0x80, sizeof a[3]);
    b[2][1] = 0x80;
    for (size_t m = 0; m < ROWS; m++) {
        for (size_t n = 0; n < COLS; n++) {
            c[m][n] = (int32_t)random_u64(r) / 2;
            int64_t sum = c[m][n];
            for (size_t k = 0; k < DEPTH * 4; k++) {
                sum += byte_product(kind, a[m][k], b[k / 4][4 * n + k % 4]);
            }
            want[m][n] = (int32_t)sum;
        }
    }
    amx_emulated_product(kind, a, b, c);
    CHECK(memcmp(c, want, sizeof c) == 0, "tiles of bytes (%c) are multiplied wrongly", kind);
}

static float flushed(float f) {
    return fabsf(f) < 0x1p-126f ? copysignf(0, f) : f;
}

static float bf16(uint16_t h) {
    return flushed((float)reference_bf16(h));
}

/* One step of the unit: fused, rounded to nearest even, subnormals to zero */
static float step(float a, float b, float sum) {
    return flushed(fmaf(a, b, sum));
}

static void test_bf16(struct random *r, double size) {
    uint16_t a[ROWS][DEPTH * 2], b[DEPTH][COLS * 2];
    float c[ROWS][COLS], want[ROWS][COLS];
    for (size_t i = 0; i < ROWS * DEPTH * 2; i++) {
        ((uint16_t *)a)[i] = reference_to_bf16(random_unit(r) * size);
        ((uint16_t *)b)[i] = reference_to_bf16(random_unit(r) * size);
    }
    a[1][3] = 0x0001, a[2][4] = 0x8040; /* subnormal */
    for (size_t m = 0; m < ROWS; m++) {
        for (size_t n = 0; n < COLS; n++) {
            c[m][n] = m == 5 ? 0x1p-130f : (float)(random_unit(r) * size * size);
            float even = 0, odd = 0;
            for (size_t k = 0; k < DEPTH; k++) {
                even = step(bf16(a[m][2 * k]), bf16(b[k][2 * n]), even);
                odd = step(bf16(a[m][2 * k + 1]), bf16(b[k][2 * n + 1]), odd);
            }
            want[m][n] = flushed(flushed(c[m][n]) + flushed(even + odd));
        }
    }
    amx_emulated_product('f', a, b, c);
    for (size_t m = 0; m < ROWS; m++) {
        CHECK(same_bits(c[m], want[m], COLS), "row %zu of tiles of BF16 of size %g is multiplied wrongly", m, size);
    }
}

void test_amx(void) {
    struct random r = {3};
    for (int i = 0; i < 20; i++) {
        test_bytes(&r, 's');
        test_bytes(&r, 'u');
        test_bf16(&r, 1);
        test_bf16(&r, 0x1p-62); /* products near the least normal float, and below */
        test_bf16(&r, 0x1p-64);
    }
}
#else
void test_amx(void) {
}
#endif
