/* SmoothQuant and GPTQ against numpy (make_quantize_cases.py), and what folding must not change. */
#include "quant/gptq.h"
#include "quant/int8.h"
#include "quant/smooth.h"

#include "data/quantize_cases.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static float w[CASE_N * CASE_K], x[CASE_T * CASE_K];

static void load_case(void) {
    for (size_t i = 0; i < CASE_N * CASE_K; i++) {
        w[i] = (float)case_w[i] / 256;
    }
    for (size_t i = 0; i < CASE_T * CASE_K; i++) {
        x[i] = (float)case_x[i] / 256;
    }
}

Test(quantize_math, factors, .init = load_case) {
    float x_max[CASE_K] = {0}, w_max[CASE_K] = {0}, s[CASE_K];
    smooth_column_max(x, CASE_K, CASE_T, CASE_K, x_max);
    smooth_column_max(w, CASE_K, CASE_N, CASE_K, w_max);
    smooth_factors(x_max, w_max, CASE_K, 0.8, s);
    for (size_t j = 0; j < CASE_K; j++) {
        cr_expect_float_eq(s[j], case_factors[j], 1e-6 * case_factors[j], "channel %zu", j);
    }
}

Test(quantize_math, factors_are_bounded) {
    float x_max[] = {1e30f, 1e-30f, 0, 1, 1}, w_max[] = {1e-30f, 1e30f, 1, 0, 1}, s[5];
    smooth_factors(x_max, w_max, 5, 0.5, s);
    cr_expect_eq(s[0], SMOOTH_MAX_FACTOR);
    cr_expect_float_eq(s[1], 1 / SMOOTH_MAX_FACTOR, 1e-10);
    cr_expect(s[2] == 1 && s[3] == 1 && s[4] == 1);
}

Test(quantize_math, heads_share) {
    /* 4 query heads of 2 features on 2 key-value heads */
    const float heads[] = {1, 2, 3, 1, 5, 6, 4, 7};
    float shared[4], in_place[8];
    smooth_share_heads(heads, 4, 2, 2, shared);
    cr_expect_arr_eq(shared, ((const float[]){3, 2, 5, 7}), sizeof shared);
    memcpy(in_place, heads, sizeof heads);
    smooth_share_heads(in_place, 4, 2, 2, in_place);
    cr_expect_arr_eq(in_place, shared, sizeof shared);
}

/* Whatever the rounding of the norm: what it is divided by, the columns are multiplied by. */
Test(quantize_math, a_rounded_norm_is_made_up_for) {
    const enum dtype types[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
    for (size_t t = 0; t < 3; t++) {
        for (int offset = 0; offset <= 1; offset++) {
            float weight[] = {0.3f, 1.7f, 0, -0.9f, 0.01f, 1}, s[] = {0.31f, 7.7f, 3, 2.2f, 9.9f, 1e4f};
            const float old[] = {0.3f, 1.7f, 0, -0.9f, 0.01f, 1}, wanted[] = {0.31f, 7.7f, 3, 2.2f, 9.9f, 1e4f};
            smooth_norm(weight, 6, (float)offset, types[t], s);
            for (size_t j = 0; j < 6; j++) {
                float stored = weight[j] - (float)offset;
                cr_expect_eq(stored, smooth_round(stored, types[t]), "a reader sees the same");
                cr_expect(s[j] > 0 && isfinite(s[j]));
                if (old[j] != 0) {
                    cr_expect_float_eq(weight[j] * s[j], old[j], 1e-6f + 1e-6f * fabsf(old[j]), "%d %zu", offset, j);
                }
                if (offset == 0 && old[j] != 0) {
                    cr_expect_float_eq(s[j], wanted[j], 0.01f * wanted[j]);
                }
            }
        }
    }
}

Test(quantize_math, rows_and_columns) {
    float m[] = {1, 2, 3, 4, 5, 6};
    smooth_columns(m, 2, 3, (const float[]){1, 10, 100});
    cr_expect_arr_eq(m, ((const float[]){1, 20, 300, 4, 50, 600}), sizeof m);
    smooth_rows(m, 2, 3, (const float[]){2, 4});
    cr_expect_arr_eq(m, ((const float[]){0.5f, 10, 150, 1, 12.5f, 150}), sizeof m);
}

static double loss(const int8_t *q, const float *scales) {
    double sum = 0;
    for (size_t t = 0; t < CASE_T; t++) {
        for (size_t r = 0; r < CASE_N; r++) {
            double y = 0;
            for (size_t j = 0; j < CASE_K; j++) {
                y += (double)x[t * CASE_K + j] *
                     ((double)w[r * CASE_K + j] - (double)scales[r] * (double)q[r * CASE_K + j]);
            }
            sum += y * y;
        }
    }
    return sum;
}

static double *hessian(void) {
    double *h = calloc(CASE_K * CASE_K, sizeof *h);
    for (size_t t = 0; t < CASE_T; t++) {
        for (size_t i = 0; i < CASE_K; i++) {
            for (size_t j = 0; j < CASE_K; j++) {
                h[i * CASE_K + j] += (double)x[t * CASE_K + i] * (double)x[t * CASE_K + j];
            }
        }
    }
    return h;
}

/* The same integers, but for ties that float and double see differently; and the same loss. For any number of threads. */
Test(quantize_math, gptq, .init = load_case) {
    static float u[CASE_K * CASE_K];
    static int8_t q[CASE_N * CASE_K], again[CASE_N * CASE_K];
    float scales[CASE_N];
    struct error err;
    double *h = hessian();
    for (size_t r = 0; r < CASE_N; r++) {
        scales[r] = int8_scale_absmax(w + r * CASE_K, CASE_K);
    }
    cr_assert_eq(gptq_prepare(h, CASE_K, 0.01, 1, u, &err), 0);
    cr_assert_eq(gptq_quantize(w, CASE_N, CASE_K, u, scales, 1, q, &err), 0);
    size_t different = 0;
    for (size_t i = 0; i < CASE_N * CASE_K; i++) {
        different += q[i] != case_gptq[i];
    }
    cr_expect_leq(different, CASE_N * CASE_K / 200, "%zu integers differ", different);
    cr_expect_float_eq(loss(q, scales), case_loss_gptq, 0.01 * case_loss_gptq);
    for (size_t r = 0; r < CASE_N; r++) {
        int8_quantize(w + r * CASE_K, CASE_K, scales[r], again + r * CASE_K);
    }
    cr_expect_float_eq(loss(again, scales), case_loss_plain, 1e-4 * case_loss_plain);
    free(h);
    h = hessian();
    cr_assert_eq(gptq_prepare(h, CASE_K, 0.01, 3, u, &err), 0);
    cr_assert_eq(gptq_quantize(w, CASE_N, CASE_K, u, scales, 3, again, &err), 0);
    cr_expect_arr_eq(q, again, sizeof q);
    free(h);
}

/* Without correlations there is nothing to make up for. */
Test(quantize_math, gptq_of_silence_is_rounding, .init = load_case) {
    static double h[CASE_K * CASE_K];
    static float u[CASE_K * CASE_K];
    static int8_t q[CASE_N * CASE_K], plain[CASE_N * CASE_K];
    float scales[CASE_N];
    struct error err;
    for (size_t r = 0; r < CASE_N; r++) {
        scales[r] = int8_scale_mse(w + r * CASE_K, CASE_K);
        int8_quantize(w + r * CASE_K, CASE_K, scales[r], plain + r * CASE_K);
    }
    cr_assert_eq(gptq_prepare(h, CASE_K, 0.01, 2, u, &err), 0);
    cr_assert_eq(gptq_quantize(w, CASE_N, CASE_K, u, scales, 2, q, &err), 0);
    cr_expect_arr_eq(q, plain, sizeof q);
}

Test(quantize_math, a_matrix_that_is_not_positive_definite) {
    double h[] = {1, 5, 5, 1};
    float u[4];
    struct error err;
    cr_assert_eq(gptq_prepare(h, 2, 0.01, 1, u, &err), -1);
    cr_expect_eq(err.code, ERROR_MODEL);
    h[0] = NAN;
    cr_assert_eq(gptq_prepare(h, 2, 0.01, 1, u, &err), -1);
}
