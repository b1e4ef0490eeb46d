#include "quant/smooth.h"

#include "quant/half.h"

#include <math.h>

void smooth_column_max(const float *x, size_t ld, size_t rows, size_t cols, float *max) {
    for (size_t r = 0; r < rows; r++) {
        for (size_t j = 0; j < cols; j++) {
            float a = fabsf(x[r * ld + j]);
            max[j] = a > max[j] ? a : max[j];
        }
    }
}

void smooth_factors(const float *x_max, const float *w_max, size_t n, double alpha, float *s) {
    for (size_t j = 0; j < n; j++) {
        double factor = 1;
        if (x_max[j] > 0 && w_max[j] > 0) {
            factor = pow((double)x_max[j], alpha) / pow((double)w_max[j], 1 - alpha);
        }
        factor = factor > (double)SMOOTH_MAX_FACTOR ? (double)SMOOTH_MAX_FACTOR : factor;
        factor = factor < 1 / (double)SMOOTH_MAX_FACTOR ? 1 / (double)SMOOTH_MAX_FACTOR : factor;
        s[j] = (float)factor;
    }
}

void smooth_share_heads(const float *heads, size_t n_heads, size_t n_kv, size_t dim, float *out) {
    size_t group = n_heads / n_kv;
    for (size_t g = 0; g < n_kv; g++) {
        for (size_t i = 0; i < dim; i++) {
            float most = 0;
            for (size_t h = g * group; h < (g + 1) * group; h++) {
                most = heads[h * dim + i] > most ? heads[h * dim + i] : most;
            }
            out[g * dim + i] = most;
        }
    }
}

float smooth_round(float x, enum dtype stored) {
    switch (stored) {
    case DTYPE_F16:
        return float_from_half(half_from_float(x));
    case DTYPE_BF16:
        return float_from_bf16(bf16_from_float(x));
    default:
        return x;
    }
}

void smooth_norm(float *weight, size_t n, float offset, enum dtype stored, float *s) {
    for (size_t j = 0; j < n; j++) {
        float seen = smooth_round(weight[j] / s[j] - offset, stored) + offset;
        if (weight[j] == 0 || !(weight[j] / seen > 0) || !isfinite(weight[j] / seen)) {
            seen = smooth_round(weight[j] - offset, stored) + offset;
        }
        s[j] = weight[j] / seen > 0 && isfinite(weight[j] / seen) ? weight[j] / seen : 1.0f;
        weight[j] = seen;
    }
}

void smooth_columns(float *w, size_t rows, size_t cols, const float *s) {
    for (size_t r = 0; r < rows; r++) {
        for (size_t j = 0; j < cols; j++) {
            w[r * cols + j] *= s[j];
        }
    }
}

void smooth_rows(float *w, size_t rows, size_t cols, const float *s) {
    for (size_t r = 0; r < rows; r++) {
        for (size_t j = 0; j < cols; j++) {
            w[r * cols + j] /= s[r];
        }
    }
}
