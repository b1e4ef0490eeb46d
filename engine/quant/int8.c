#include "quant/int8.h"

#include <string.h>

/* Of finite floats without their signs the larger one is the larger integer, whose maximum compilers vectorise. */
float int8_absmax(const float *x, size_t n) {
    int32_t most = 0;
    for (size_t i = 0; i < n; i++) {
        int32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        bits &= 0x7fffffff;
        most = bits > most ? bits : most;
    }
    float v;
    memcpy(&v, &most, sizeof v);
    return v;
}

float int8_scale_absmax(const float *x, size_t n) {
    float scale = int8_absmax(x, n) / 127.0f;
    return scale > 0 ? scale : 1.0f; /* also where a subnormal maximum underflows */
}

/* Floats from 2^23 to 2^24 are the integers: adding 1.5 * 2^23 rounds to the nearest, even in the middle. */
static float round_to_i8(float x, float scale) {
    float q = x / scale;
    q = q < -127.0f ? -127.0f : q > 127.0f ? 127.0f : q;
    return (q + 0x1.8p23f) - 0x1.8p23f;
}

static double squared_error(const float *x, size_t n, float scale) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        double d = (double)x[i] - (double)scale * (double)round_to_i8(x[i], scale);
        sum += d * d;
    }
    return sum;
}

float int8_scale_mse(const float *x, size_t n) {
    float whole = int8_scale_absmax(x, n), best = whole;
    double least = squared_error(x, n, whole);
    for (int i = 1; i < INT8_CLIP_STEPS; i++) {
        float scale = whole * (1.0f - 0.5f * (float)i / (float)INT8_CLIP_STEPS);
        double error = squared_error(x, n, scale);
        if (error < least) {
            least = error;
            best = scale;
        }
    }
    return best;
}

void int8_quantize(const float *x, size_t n, float scale, int8_t *q) {
    for (size_t i = 0; i < n; i++) {
        q[i] = (int8_t)round_to_i8(x[i], scale);
    }
}
