#include "data/dequant.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "quant/dequant.h"
#include "quant/half.h"

/* Expected bits come from another implementation: see data/make_dequant.py. */
#define CASE(T)                                                                                                        \
    { DTYPE_##T, src_##T, sizeof src_##T, expect_##T, sizeof expect_##T / 4 }

Test(dequant, agrees_with_gguf_py) {
    const struct {
        enum dtype t;
        const uint8_t *src;
        size_t bytes;
        const uint32_t *expect;
        size_t n;
    } cases[] = {CASE(Q4_0), CASE(Q4_1), CASE(Q5_0), CASE(Q5_1), CASE(Q8_0),
                 CASE(Q4_K), CASE(Q5_K), CASE(Q6_K), CASE(F16),  CASE(BF16)};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        float out[512];
        size_t bytes = 0;
        cr_assert(dtype_row_bytes(cases[c].t, cases[c].n, &bytes) && bytes == cases[c].bytes);
        cr_assert_eq(dequantize_row(cases[c].t, cases[c].src, out, cases[c].n), 0);
        for (size_t i = 0; i < cases[c].n; i++) {
            float expect;
            memcpy(&expect, &cases[c].expect[i], 4);
            cr_expect(out[i] == expect, "%s element %zu: %.9g, expected %.9g", dtype_info(cases[c].t)->name, i,
                      (double)out[i], (double)expect);
        }
    }
}

Test(dequant, plain_floats_at_any_alignment) {
    float values[3] = {1.5f, -0.0f, 3e38f}, out[3];
    unsigned char bytes[13];
    memcpy(bytes + 1, values, 12);
    cr_assert_eq(dequantize_row(DTYPE_F32, bytes + 1, out, 3), 0);
    cr_expect_eq(memcmp(out, values, 12), 0);
}

Test(dequant, refuses) {
    float out[1] = {7};
    cr_expect_eq(dequantize_row(DTYPE_I8, "x", out, 1), -1);
    cr_expect_eq(dequantize_row(DTYPE_I32, "xxxx", out, 1), -1);
    cr_expect_eq(dequantize_row(DTYPE_COUNT, "xxxx", out, 1), -1);
    cr_expect_eq(dequantize_row(DTYPE_Q4_0, "xxxx", out, 31), -1);
    cr_expect_eq(dequantize_row(DTYPE_Q6_K, "xxxx", out, 32), -1);
    cr_expect_eq(out[0], 7);
}

Test(dequant, half_special_values) {
    cr_expect_eq(float_from_half(0x7c00), INFINITY);
    cr_expect_eq(float_from_half(0xfc00), -INFINITY);
    cr_expect(isnan(float_from_half(0x7e01)));
    cr_expect(signbit(float_from_half(0x8000)) && float_from_half(0x8000) == 0);
    cr_expect_eq(float_from_half(0x3555), 0.333251953125f);
    cr_expect_eq(float_from_half(0x0001), 0x1p-24f);
}
