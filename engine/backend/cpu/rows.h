/* The operations that go through rows element by element, compiled once a variant. */
#include "dot16.h"
#include "half.h"

#include <math.h>

/* For vectors of 16 and the rest of n % 16: BODY uses LOAD(p) and STORE(p, v), where p has index i. */
#define FOR_EACH_16(n, BODY)                                                                                           \
    do {                                                                                                               \
        size_t i = 0;                                                                                                  \
        for (; i + 16 <= (n); i += 16) {                                                                               \
            BODY(v16_load, v16_store)                                                                                  \
        }                                                                                                              \
        if (i < (n)) {                                                                                                 \
            const size_t rest = (n)-i;                                                                                 \
            BODY(LOAD_REST, STORE_REST)                                                                                \
        }                                                                                                              \
    } while (0)
#define LOAD_REST(p) v16_load_n(p, rest)
#define STORE_REST(p, v) v16_store_n(p, rest, v)

static void scale_row_by(float *y, size_t n, float scale) {
#define BODY(LOAD, STORE) STORE(y + i, v16_mul(LOAD(y + i), v16_set1(scale)));
    FOR_EACH_16(n, BODY);
#undef BODY
}

static void add_row(float *x, const float *y, size_t n) {
#define BODY(LOAD, STORE) STORE(x + i, v16_add(LOAD(x + i), LOAD(y + i)));
    FOR_EACH_16(n, BODY);
#undef BODY
}

static void rms_norm_row(float *y, const float *x, const float *w, size_t n, float eps) {
    v16 squares = v16_zero();
#define BODY(LOAD, STORE) squares = v16_fma(LOAD(x + i), LOAD(x + i), squares);
    FOR_EACH_16(n, BODY);
#undef BODY
    const v16 scale = v16_set1(1.0f / sqrtf(v16_sum(squares) / (float)n + eps));
#define BODY(LOAD, STORE) STORE(y + i, v16_mul(v16_mul(LOAD(x + i), scale), LOAD(w + i)));
    FOR_EACH_16(n, BODY);
#undef BODY
}

/* x * sigmoid(x) * up */
static void silu_mul_row(float *y, const float *gate, const float *up, size_t n) {
    const v16 one = v16_set1(1), zero = v16_zero();
#define BODY(LOAD, STORE)                                                                                              \
    v16 g = LOAD(gate + i);                                                                                            \
    v16 act = v16_div(g, v16_add(one, v16_exp(v16_sub(zero, g))));                                                     \
    STORE(y + i, v16_mul(act, LOAD(up + i)));
    FOR_EACH_16(n, BODY);
#undef BODY
}

/* gelu(x) = x/2 (1 + tanh u) = x / (1 + e^-2u), u = sqrt(2/pi) (x + 0.044715 x^3): this form does not cancel. */
static void gelu_mul_row(float *y, const float *gate, const float *up, size_t n) {
    const v16 one = v16_set1(1), a = v16_set1(-1.5957691216057308f), b = v16_set1(-1.5957691216057308f * 0.044715f);
#define BODY(LOAD, STORE)                                                                                              \
    v16 g = LOAD(gate + i);                                                                                            \
    v16 minus_2u = v16_mul(g, v16_fma(v16_mul(g, g), b, a));                                                           \
    v16 act = v16_div(g, v16_add(one, v16_exp(minus_2u)));                                                             \
    STORE(y + i, v16_mul(act, LOAD(up + i)));
    FOR_EACH_16(n, BODY);
#undef BODY
}

/* Rotate pairs (i, i + n/2), or (2i, 2i + 1), of one head: (a, b) -> (a c - b s, a s + b c). */
static void rope_halves(float *x, const float *cosines, const float *sines, size_t half) {
    float *z = x + half;
#define BODY(LOAD, STORE)                                                                                              \
    v16 a = LOAD(x + i), b = LOAD(z + i), c = LOAD(cosines + i), s = LOAD(sines + i);                                  \
    STORE(x + i, v16_sub(v16_mul(a, c), v16_mul(b, s)));                                                               \
    STORE(z + i, v16_add(v16_mul(a, s), v16_mul(b, c)));
    FOR_EACH_16(half, BODY);
#undef BODY
}

static void rope_interleaved(float *x, const float *cosines, const float *sines, size_t half) {
    for (size_t i = 0; i < half; i++) {
        float a = x[2 * i], b = x[2 * i + 1];
        x[2 * i] = a * cosines[i] - b * sines[i];
        x[2 * i + 1] = a * sines[i] + b * cosines[i];
    }
}

static void to_half(enum dtype dtype, uint16_t *y, const float *x, size_t n) {
    size_t i = 0;
    uint16_t rest[16];
    if (dtype == DTYPE_F16) {
        for (; i + 16 <= n; i += 16) {
            v16_store_f16(y + i, v16_load(x + i));
        }
        v16_store_f16(rest, v16_load_n(x + i, n - i));
    } else {
        for (; i + 16 <= n; i += 16) {
            v16_store_bf16(y + i, v16_load(x + i));
        }
        v16_store_bf16(rest, v16_load_n(x + i, n - i));
    }
    memcpy(y + i, rest, (n - i) * sizeof *y);
}

/* q = x / scale to nearest even, scale = absmax / 127 rounded to F16 and returned so. Elements all so small that it
 * rounds to 0 become 0; where one is infinite or NaN, or too large for an F16 scale, the scale is none either. */
static uint16_t to_i8(uint8_t *q, const float *x, size_t n) {
    uint16_t half = half_from_f32(magnitude_row(x, n) / 127);
    float scale = f32_from_half(half), by = scale > 0 && isfinite(scale) ? 1 / scale : 0;
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        v16_store_i8(q + i, by > 0 ? quantised(v16_load(x + i), by, 127) : v16_zero());
    }
    uint8_t rest[16];
    v16_store_i8(rest, by > 0 ? quantised(v16_load_n(x + i, n - i), by, 127) : v16_zero());
    memcpy(q + i, rest, n - i);
    return isfinite(scale) ? half : 0x7e00; /* a NaN: infinity times 0 would be one only by chance */
}

#undef FOR_EACH_16
#undef LOAD_REST
#undef STORE_REST
