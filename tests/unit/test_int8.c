#include <criterion/criterion.h>
#include <math.h>

#include "quant/int8.h"

Test(int8, absmax_takes_the_whole_range) {
    const float x[] = {0.5f, -2.54f, 1.26f, 0};
    float scale = int8_scale_absmax(x, 4);
    cr_assert_float_eq(scale, 0.02f, 1e-7);
    int8_t q[4];
    int8_quantize(x, 4, scale, q);
    const int8_t expect[] = {25, -127, 63, 0};
    cr_assert_arr_eq(q, expect, 4);
}

Test(int8, ties_go_to_even_and_ends_saturate) {
    const float x[] = {0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f, 127.5f, 1e30f, -1e30f};
    int8_t q[9];
    int8_quantize(x, 9, 1.0f, q);
    const int8_t expect[] = {0, 2, 2, 0, -2, -2, 127, 127, -127};
    cr_assert_arr_eq(q, expect, 9);
}

Test(int8, a_row_of_zeros_divides_by_one) {
    const float x[] = {0, -0.0f, 0};
    cr_assert_eq(int8_scale_absmax(x, 3), 1.0f);
    cr_assert_eq(int8_scale_mse(x, 3), 1.0f);
    cr_assert_eq(int8_scale_absmax(x, 0), 1.0f);
    const float tiny[] = {1e-45f};
    int8_t q;
    int8_quantize(tiny, 1, int8_scale_absmax(tiny, 1), &q);
    cr_assert_eq(q, 0);
}

static double squared_error(const float *x, size_t n, float scale) {
    int8_t q[4096];
    double sum = 0;
    int8_quantize(x, n, scale, q);
    for (size_t i = 0; i < n; i++) {
        sum += pow((double)x[i] - (double)scale * q[i], 2);
    }
    return sum;
}

/* Many small values and one far out: the error is least where the far one is clipped. */
Test(int8, mse_clips_where_it_pays) {
    static float x[4096];
    for (int i = 0; i < 4096; i++) {
        x[i] = 2 * (float)fmod(i * 0.6180339887, 1) - 1;
    }
    x[7] = 1.02f;
    float whole = int8_scale_absmax(x, 4096), best = int8_scale_mse(x, 4096);
    cr_assert_lt(best, whole);
    cr_assert_geq(best, 0.5f * whole);
    cr_assert_lt(squared_error(x, 4096, best), squared_error(x, 4096, whole));
}
