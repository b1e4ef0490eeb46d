/*
 * Rows of activations as integers, and weights as panels: the two inputs of linear_i8.h.
 *
 * A quotient x / s is the correctly rounded one in every variant, so all of them get the same integers. Vectors
 * reach it without dividing: with inv = 1 / s rounded correctly and q = x * inv, fma(fma(-q, s, x), inv, q) is x / s
 * rounded correctly (Markstein 1990) while nothing of it is subnormal. Scales near there are divided by.
 */
#include "tile.h"
#include "weight_i8.h"

#include <math.h>

/*
 * What a kernel multiplies with: with VNNI the unsigned byte q + 128 (vpdpbusd takes unsigned by signed), whose sums
 * are too large by (128 + z) times the column's sum; else q - z as 16 bits, for which nothing is to be put right.
 */
#if defined(VARIANT_VNNI)
typedef uint8_t i8_q;
#else
typedef int16_t i8_q;
#endif

/* 16 integers in floats to i8_q */
VEC_INLINE void i8_put(i8_q *p, v16 a) {
#if defined(VARIANT_VNNI)
    _mm_storeu_si128((__m128i_u *)p, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a)));
#elif defined(VARIANT_AVX512)
    _mm256_storeu_si256((__m256i_u *)p, _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(a)));
#elif defined(VARIANT_AVX2)
    __m256i packed = _mm256_packs_epi32(_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi));
    _mm256_storeu_si256((__m256i_u *)p, _mm256_permute4x64_epi64(packed, 0xd8));
#else
    float t[16];
    v16_store(t, a);
    for (unsigned i = 0; i < 16; i++) {
        p[i] = (i8_q)t[i];
    }
#endif
}

struct i8_range {
    float low, high;
    bool finite; /* every element is */
};

static struct i8_range i8_range(const float *x, size_t n) {
    v16 low = v16_zero(), high = v16_zero(), not_finite = v16_zero();
    const v16 zero = v16_zero();
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        v16 v = v16_load(x + i);
        low = v16_min(v, low), high = v16_max(v, high);
        not_finite = v16_add(not_finite, v16_mul(v, zero)); /* 0, or NaN from there on */
    }
    if (i < n) {
        v16 v = v16_load_n(x + i, n - i);
        low = v16_min(v, low), high = v16_max(v, high);
        not_finite = v16_add(not_finite, v16_mul(v, zero));
    }
    return (struct i8_range){-v16_hmax(v16_sub(zero, low)), v16_hmax(high), !isnan(v16_sum(not_finite))};
}

struct i8_rule {
    v16 scale, inverse;
    v16 furthest;  /* quotients beyond saturate anyway, and would overflow */
    v16 zero;      /* z */
    v16 low, high; /* where q saturates */
    v16 shift;     /* from q to i8_q */
    bool divide;
};

VEC_INLINE v16 i8_integers(const struct i8_rule *rule, v16 x) {
    v16 quotient;
    x = v16_max(v16_sub(v16_zero(), rule->furthest), v16_min(rule->furthest, x));
#if !defined(VARIANT_GENERIC)
    if (!rule->divide) {
        v16 minus_scale = v16_sub(v16_zero(), rule->scale);
        quotient = v16_mul(x, rule->inverse);
        quotient = v16_fma(v16_fma(quotient, minus_scale, x), rule->inverse, quotient);
    } else
#endif
    {
        quotient = v16_div(x, rule->scale);
    }
    v16 q = v16_add(v16_round(quotient), rule->zero);
    return v16_add(v16_max(rule->low, v16_min(rule->high, q)), rule->shift);
}

/*
 * q[k], *scale and *offset (what to take off a sum, times the column's sum) for one row x[k]. If it has a NaN or an
 * infinity, its scale is NaN, and so is all of its product.
 */
static void i8_quantise(const float *x, size_t k, const struct weight *w, void *out, float *scale, int32_t *offset) {
    struct i8_range range = i8_range(x, k);
    float s = w->input_scale, z = (float)w->input_zero_point, low = -128;
    if (w->activation == ACTIVATION_I8_TOKEN) {
        float absmax = range.high > -range.low ? range.high : -range.low;
        s = absmax / 127, z = 0, low = -127;
    } else if (w->activation == ACTIVATION_I8_TOKEN_ZERO) {
        s = isfinite(range.high - range.low) ? (range.high - range.low) / 255 : range.high / 255 - range.low / 255;
    }
    if (!(s > 0) || !range.finite) { /* nothing but zeros, or less than a 127th of the least float */
        s = 1;
    }
    if (w->activation == ACTIVATION_I8_TOKEN_ZERO) {
        float t[16];
        v16_store(t, v16_round(v16_div(v16_set1(range.low), v16_set1(s))));
        z = range.finite ? -128 - t[0] : 0;
        z = z < -128 ? -128 : z > 127 ? 127 : z;
    }
    *scale = range.finite ? s : NAN;
#if defined(VARIANT_VNNI)
    *offset = 128 + (int32_t)z;
    float shift = 128;
#else
    *offset = 0;
    float shift = -z;
#endif
    i8_q *q = out;
    if (!range.finite) {
        memset(q, 0, k * sizeof *q);
        return;
    }
    const float least = 0x1p-60f;
    const struct i8_rule rule = {v16_set1(s),   v16_set1(1 / s), v16_set1(s * 512), v16_set1(z),
                                 v16_set1(low), v16_set1(127),   v16_set1(shift),   s < least};
    size_t i = 0;
    for (; i + 16 <= k; i += 16) {
        i8_put(q + i, i8_integers(&rule, v16_load(x + i)));
    }
    if (i < k) {
        i8_q rest[16];
        i8_put(rest, i8_integers(&rule, v16_load_n(x + i, k - i)));
        memcpy(q + i, rest, (k - i) * sizeof *q);
    }
}

/* One panel of `rows` <= 16 rows w[k], row_bytes apart, and the sums of its rows (weight_i8.h). */
static void i8_pack(const int8_t *w, size_t row_bytes, size_t rows, size_t k, size_t groups, int8_t *panel,
                    int32_t *sums) {
    for (size_t r = 0; r < I8_PANEL; r++) {
        int32_t sum = 0;
        if (r < rows) {
            for (size_t i = 0; i < k; i++) {
                sum += w[r * row_bytes + i];
            }
        }
        sums[r] = sum;
    }
    if (rows < I8_PANEL || k % 4 != 0) {
        memset(panel, 0, groups * (I8_PANEL * 4));
    } else {
        memset(panel + k * I8_PANEL, 0, groups * (I8_PANEL * 4) - k * I8_PANEL);
    }
    for (size_t g = 0; g < k / 16 * 4; g += 4) { /* 16 k of each row */
        for (size_t r = 0; r < rows; r++) {
            const int8_t *from = w + r * row_bytes + 4 * g;
            int8_t *to = panel + (g * I8_PANEL + r) * 4;
            UNROLL for (unsigned i = 0; i < 4; i++) {
                memcpy(to + i * (I8_PANEL * 4), from + 4 * i, 4);
            }
        }
    }
    for (size_t i = k / 16 * 16; i < k; i++) {
        for (size_t r = 0; r < rows; r++) {
            panel[(i / 4 * I8_PANEL + r) * 4 + i % 4] = w[r * row_bytes + i];
        }
    }
}
