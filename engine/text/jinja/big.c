#include "text/jinja/big.h"

#include <math.h>
#include <string.h>

static size_t trim(const uint32_t *a, size_t n) {
    while (n > 0 && a[n - 1] == 0) {
        n--;
    }
    return n;
}

int jj_mag_compare(const uint32_t *a, size_t an, const uint32_t *b, size_t bn) {
    if (an != bn) {
        return an < bn ? -1 : 1;
    }
    for (size_t i = an; i-- > 0;) {
        if (a[i] != b[i]) {
            return a[i] < b[i] ? -1 : 1;
        }
    }
    return 0;
}

size_t jj_mag_add(const uint32_t *a, size_t an, const uint32_t *b, size_t bn, uint32_t *out) {
    size_t n = an > bn ? an : bn;
    uint64_t carry = 0;
    for (size_t i = 0; i < n; i++) {
        carry += (uint64_t)(i < an ? a[i] : 0) + (i < bn ? b[i] : 0);
        out[i] = (uint32_t)carry;
        carry >>= 32;
    }
    if (carry) {
        out[n++] = (uint32_t)carry;
    }
    return n;
}

size_t jj_mag_sub(const uint32_t *a, size_t an, const uint32_t *b, size_t bn, uint32_t *out) {
    int64_t borrow = 0;
    for (size_t i = 0; i < an; i++) {
        int64_t d = (int64_t)a[i] - (i < bn ? b[i] : 0) + borrow;
        out[i] = (uint32_t)d;
        borrow = d < 0 ? -1 : 0;
    }
    return trim(out, an);
}

size_t jj_mag_mul(const uint32_t *a, size_t an, const uint32_t *b, size_t bn, uint32_t *out) {
    memset(out, 0, (an + bn) * sizeof *out);
    for (size_t i = 0; i < an; i++) {
        uint64_t carry = 0;
        for (size_t j = 0; j < bn; j++) {
            carry += (uint64_t)a[i] * b[j] + out[i + j];
            out[i + j] = (uint32_t)carry;
            carry >>= 32;
        }
        out[i + bn] = (uint32_t)carry;
    }
    return trim(out, an + bn);
}

size_t jj_mag_mul_small(uint32_t *a, size_t n, uint32_t factor, uint32_t add) {
    uint64_t carry = add;
    for (size_t i = 0; i < n; i++) {
        carry += (uint64_t)a[i] * factor;
        a[i] = (uint32_t)carry;
        carry >>= 32;
    }
    if (carry) {
        a[n++] = (uint32_t)carry;
    }
    return n;
}

uint32_t jj_mag_divide_small(uint32_t *a, size_t *n, uint32_t divisor) {
    uint64_t rest = 0;
    for (size_t i = *n; i-- > 0;) {
        rest = rest << 32 | a[i];
        a[i] = (uint32_t)(rest / divisor);
        rest %= divisor;
    }
    *n = trim(a, *n);
    return (uint32_t)rest;
}

/* out = a << shift (0..31), room for one digit more; all n + 1 digits are written. */
static void shift_left(const uint32_t *a, size_t n, unsigned shift, uint32_t *out) {
    uint32_t carry = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t w = (uint64_t)a[i] << shift;
        out[i] = (uint32_t)w | carry;
        carry = (uint32_t)(w >> 32);
    }
    out[n] = carry;
}

/* One digit of the quotient (algorithm D, steps D3 to D6): u[0..n] minus q times v, v shifted left by `shift`. */
static uint32_t quotient_digit(uint32_t *u, const uint32_t *v, size_t n, unsigned shift) {
#define V(i) ((uint32_t)((uint64_t)v[i] << shift) | (shift && (i) > 0 ? v[(i)-1] >> (32 - shift) : 0))
    uint64_t top = (uint64_t)u[n] << 32 | u[n - 1];
    uint64_t q = top / V(n - 1), rest = top % V(n - 1);
    while (q >> 32 || q * V(n - 2) > (rest << 32 | u[n - 2])) {
        q--;
        rest += V(n - 1);
        if (rest >> 32) {
            break;
        }
    }
    int64_t borrow = 0;
    uint64_t carry = 0;
    for (size_t i = 0; i < n; i++) {
        carry += q * V(i);
        int64_t d = (int64_t)u[i] - (int64_t)(uint32_t)carry + borrow;
        u[i] = (uint32_t)d;
        borrow = d < 0 ? -1 : 0;
        carry >>= 32;
    }
    int64_t d = (int64_t)u[n] - (int64_t)carry + borrow;
    u[n] = (uint32_t)d;
    if (d < 0) { /* one too many: add back */
        q--;
        uint64_t sum = 0;
        for (size_t i = 0; i < n; i++) {
            sum += (uint64_t)u[i] + V(i);
            u[i] = (uint32_t)sum;
            sum >>= 32;
        }
        u[n] += (uint32_t)sum;
    }
#undef V
    return (uint32_t)q;
}

void jj_mag_divide(const uint32_t *a, size_t an, const uint32_t *b, size_t bn, uint32_t *quotient, size_t *qn,
                   uint32_t *remainder, size_t *rn) {
    if (jj_mag_compare(a, an, b, bn) < 0) {
        *qn = 0;
        memcpy(remainder, a, an * sizeof *a);
        *rn = an;
        return;
    }
    if (bn == 1) {
        memcpy(quotient, a, an * sizeof *a);
        *qn = an;
        remainder[0] = jj_mag_divide_small(quotient, qn, b[0]);
        *rn = remainder[0] != 0;
        return;
    }
    unsigned shift = (unsigned)__builtin_clz(b[bn - 1]);
    shift_left(a, an, shift, remainder);
    for (size_t j = an - bn + 1; j-- > 0;) {
        quotient[j] = quotient_digit(remainder + j, b, bn, shift);
    }
    *qn = trim(quotient, an - bn + 1);
    for (size_t i = 0; i < bn; i++) { /* undo the shift */
        uint64_t w = (uint64_t)remainder[i + 1] << 32 | remainder[i];
        remainder[i] = (uint32_t)(w >> shift);
    }
    *rn = trim(remainder, bn);
}

double jj_mag_to_double(const uint32_t *a, size_t n) {
    if (n <= 2) {
        return (double)((uint64_t)(n > 1 ? a[1] : 0) << 32 | (n ? a[0] : 0));
    }
    if (n > 34) {
        return HUGE_VAL;
    }
    /* the top 64 bits, the lowest of them also standing for all below: more than 53 bits, so one rounding is right */
    unsigned shift = (unsigned)__builtin_clz(a[n - 1]);
    uint64_t top = (uint64_t)a[n - 1] << 32 | a[n - 2];
    uint64_t low = a[n - 3];
    bool rest = false;
    if (shift) {
        top = top << shift | low >> (32 - shift);
        rest = (uint32_t)(low << shift) != 0;
    } else {
        rest = low != 0;
    }
    for (size_t i = 0; i + 3 < n; i++) {
        rest = rest || a[i] != 0;
    }
    return ldexp((double)(top | rest), (int)(32 * (n - 2)) - (int)shift);
}

size_t jj_mag_from_double(double d, uint32_t *out) {
    int exponent;
    double fraction = frexp(d, &exponent); /* d = fraction * 2^exponent, fraction in [0.5, 1) */
    if (exponent <= 0) {
        return 0;
    }
    uint64_t bits = (uint64_t)ldexp(fraction, 53);
    int shift = exponent - 53;
    if (shift <= 0) {
        bits >>= -shift;
        shift = 0;
    }
    size_t digit = (size_t)shift / 32;
    unsigned low = (unsigned)shift % 32;
    memset(out, 0, (digit + 3) * sizeof *out);
    out[digit] = (uint32_t)(bits << low);
    out[digit + 1] = (uint32_t)(bits << low >> 32);
    out[digit + 2] = low ? (uint32_t)(bits >> (64 - low)) : 0;
    return trim(out, digit + 3);
}
