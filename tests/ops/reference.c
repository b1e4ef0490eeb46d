#include "reference.h"

#include <math.h>
#include <stdlib.h>

static double binary_float(unsigned bits, int exponent_bits, int fraction_bits) {
    int bias = (1 << (exponent_bits - 1)) - 1, top = (1 << exponent_bits) - 1;
    int exponent = (int)(bits >> fraction_bits) & top;
    double fraction = (double)(bits & ((1u << fraction_bits) - 1)) / (double)(1u << fraction_bits);
    double sign = bits >> (exponent_bits + fraction_bits) & 1 ? -1 : 1;
    if (exponent == top) {
        return fraction == 0 ? sign * (double)INFINITY : (double)NAN;
    }
    return exponent == 0 ? sign * ldexp(fraction, 1 - bias) : sign * ldexp(1 + fraction, exponent - bias);
}

double reference_f16(uint16_t h) {
    return binary_float(h, 5, 10);
}

double reference_bf16(uint16_t h) {
    return binary_float(h, 8, 7);
}

/* Bits of the nearest value, found by search: the codes of positive values are in order. */
static uint16_t nearest(double x, double (*value)(uint16_t), uint16_t infinity, double overflow) {
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    double a = fabs(x);
    if (isnan(x)) {
        return (uint16_t)(infinity | 1);
    }
    if (a >= overflow) {
        return (uint16_t)(sign | infinity);
    }
    uint16_t low = 0, high = infinity; /* value(low) <= a < value(high) */
    while (high - low > 1) {
        uint16_t middle = (uint16_t)((low + high) / 2);
        if (value(middle) <= a) {
            low = middle;
        } else {
            high = middle;
        }
    }
    if (high == infinity) {
        return (uint16_t)(sign | low); /* beyond the largest, but not up to the point where it rounds to infinity */
    }
    double below = a - value(low), above = value(high) - a;
    bool up = above < below || (above == below && low % 2 == 1);
    return (uint16_t)(sign | (up ? high : low));
}

uint16_t reference_to_f16(double x) {
    return nearest(x, reference_f16, 0x7c00, 65520);
}

uint16_t reference_to_bf16(double x) {
    return nearest(x, reference_bf16, 0x7f80, ldexp(511.0 / 256, 127));
}

static uint16_t u16(const uint8_t *p) {
    return (uint16_t)(p[0] | p[1] << 8);
}

static double f32(const uint8_t *p) {
    uint32_t bits = (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
    union {
        uint32_t u;
        float f;
    } u = {bits};
    return (double)u.f;
}

/* Element i of a block of 32 with `header` bytes before its nibbles: first all low ones, then all high ones. */
static unsigned nibble32(const uint8_t *block, unsigned header, unsigned i) {
    uint8_t byte = block[header + i % 16];
    return i < 16 ? byte & 15u : byte >> 4;
}

static double element32(enum dtype dtype, const uint8_t *b, unsigned i) {
    double d = reference_f16(u16(b));
    switch (dtype) {
    case DTYPE_Q4_0:
        return d * ((double)nibble32(b, 2, i) - 8);
    case DTYPE_Q4_1:
        return d * nibble32(b, 4, i) + reference_f16(u16(b + 2));
    case DTYPE_Q5_0:
        return d * ((double)(nibble32(b, 6, i) + 16u * ((unsigned)b[2 + i / 8] >> i % 8 & 1u)) - 16);
    case DTYPE_Q5_1:
        return d * (nibble32(b, 8, i) + 16u * ((unsigned)b[4 + i / 8] >> i % 8 & 1u)) + reference_f16(u16(b + 2));
    default: /* Q8_0 */
        return d * (b[2 + i] < 128 ? b[2 + i] : b[2 + i] - 256);
    }
}

/* The 6-bit scale and minimum of sub-block s (of 8): the first four lie whole in bytes 0-3 and 4-7, the others are the
 * nibbles of bytes 8-11 with their upper two bits on top of the first four. */
static void k_scale(const uint8_t *p, unsigned s, unsigned *scale, unsigned *minimum) {
    if (s < 4) {
        *scale = p[s] % 64;
        *minimum = p[s + 4] % 64;
    } else {
        *scale = p[s + 4] % 16u + p[s - 4] / 64u * 16u;
        *minimum = p[s + 4] / 16u + p[s] / 64u * 16u;
    }
}

static double element256(enum dtype dtype, const uint8_t *b, unsigned i) {
    if (dtype == DTYPE_Q6_K) {
        unsigned half = i / 128, quarter = i % 128 / 32, j = i % 32;
        uint8_t low = b[64 * half + j + (quarter % 2 == 1 ? 32 : 0)];
        unsigned nibble = quarter < 2 ? low % 16 : low / 16;
        unsigned high = (unsigned)b[128 + 32 * half + j] >> 2 * quarter & 3u;
        double scale = (double)(int8_t)b[192 + i / 16];
        return reference_f16(u16(b + 208)) * scale * ((double)(nibble + 16 * high) - 32);
    }
    unsigned scale, minimum, pair = i / 64, j = i % 32, upper = i % 64 / 32;
    k_scale(b + 4, i / 32, &scale, &minimum);
    uint8_t byte = b[(dtype == DTYPE_Q4_K ? 16 : 48) + 32 * pair + j];
    unsigned q = upper ? byte / 16 : byte % 16;
    if (dtype == DTYPE_Q5_K) {
        q += 16 * ((unsigned)b[16 + j] >> i / 32 & 1u);
    }
    return reference_f16(u16(b)) * scale * q - reference_f16(u16(b + 2)) * minimum;
}

void reference_dequantise(enum dtype dtype, const uint8_t *row, size_t n, double *out) {
    const struct dtype_info *info = dtype_info(dtype);
    for (size_t i = 0; i < n; i++) {
        const uint8_t *block = row + i / info->block * info->bytes;
        unsigned j = (unsigned)(i % info->block);
        if (dtype == DTYPE_F32) {
            out[i] = f32(block);
        } else if (dtype == DTYPE_F16) {
            out[i] = reference_f16(u16(block));
        } else if (dtype == DTYPE_BF16) {
            out[i] = reference_bf16(u16(block));
        } else {
            out[i] = info->block == 32 ? element32(dtype, block, j) : element256(dtype, block, j);
        }
    }
}

void reference_linear(const double *x, size_t rows, size_t k, const double *w, size_t n, const float *bias, double *y,
                      double *scale) {
    for (size_t r = 0; r < rows; r++) {
        for (size_t j = 0; j < n; j++) {
            double sum = bias ? (double)bias[j] : 0, size = fabs(sum);
            for (size_t i = 0; i < k; i++) {
                double product = x[r * k + i] * w[j * k + i];
                sum += product;
                size += fabs(product);
            }
            y[r * n + j] = sum;
            scale[r * n + j] = size;
        }
    }
}

void reference_rms_norm(const double *x, const float *w, size_t dim, double eps, double *y) {
    double squares = 0;
    for (size_t i = 0; i < dim; i++) {
        squares += x[i] * x[i];
    }
    for (size_t i = 0; i < dim; i++) {
        y[i] = x[i] / sqrt(squares / (double)dim + eps) * (double)w[i];
    }
}

double reference_silu(double x) {
    return x / (1 + exp(-x));
}

double reference_gelu_tanh(double x) {
    /* 1 + tanh(u) = 2 / (1 + e^-2u) */
    double u = sqrt(2 / acos(-1.0)) * (x + 0.044715 * x * x * x);
    return x / (1 + exp(-2 * u));
}

void reference_rope(double *x, size_t n_rot, enum rope_style style, const float *inv_freq, double mscale,
                    int32_t position) {
    for (size_t i = 0; i < n_rot / 2; i++) {
        size_t a = style == ROPE_HALVES ? i : 2 * i, b = style == ROPE_HALVES ? i + n_rot / 2 : 2 * i + 1;
        double angle = (double)inv_freq[i] * position, c = mscale * cos(angle), s = mscale * sin(angle);
        double xa = x[a], xb = x[b];
        x[a] = xa * c - xb * s;
        x[b] = xb * c + xa * s;
    }
}

void reference_attention(const double *q, const double *k, const double *v, size_t dim, size_t begin, size_t end,
                         double scale, double *out) {
    double *p = malloc((end - begin) * sizeof *p), top = (double)-INFINITY, sum = 0;
    if (!p) {
        abort();
    }
    for (size_t j = begin; j < end; j++) {
        double dot = 0;
        for (size_t d = 0; d < dim; d++) {
            dot += q[d] * k[j * dim + d];
        }
        p[j - begin] = dot * scale;
        top = fmax(top, dot * scale);
    }
    for (size_t j = begin; j < end; j++) {
        p[j - begin] = exp(p[j - begin] - top);
        sum += p[j - begin];
    }
    for (size_t d = 0; d < dim; d++) {
        out[d] = 0;
        for (size_t j = begin; j < end; j++) {
            out[d] += p[j - begin] / sum * v[j * dim + d];
        }
    }
    free(p);
}
