/*
 * Integers beyond int64: sign and magnitude in 32-bit digits, least significant first, no leading zero digit. The
 * functions work on magnitudes in buffers of the caller (Knuth, The Art of Computer Programming 2, section 4.3.1).
 */
#ifndef INFERD_JINJA_BIG_H
#define INFERD_JINJA_BIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct big {
    bool negative;
    size_t n;
    const uint32_t *limbs; /* [n] */
};

int jj_mag_compare(const uint32_t *a, size_t an, const uint32_t *b, size_t bn);
/* Sum into out[max(an, bn) + 1]; the length. out may be a or b. */
size_t jj_mag_add(const uint32_t *a, size_t an, const uint32_t *b, size_t bn, uint32_t *out);
/* a - b, a >= b, into out[an]; out may be a or b. */
size_t jj_mag_sub(const uint32_t *a, size_t an, const uint32_t *b, size_t bn, uint32_t *out);
/* a * b into out[an + bn], which is neither a nor b. */
size_t jj_mag_mul(const uint32_t *a, size_t an, const uint32_t *b, size_t bn, uint32_t *out);
/* a / b and a % b, bn >= 1: quotient[an - bn + 1] (or [1] when an < bn), remainder[an + 1], distinct from a and b. */
void jj_mag_divide(const uint32_t *a, size_t an, const uint32_t *b, size_t bn, uint32_t *quotient, size_t *qn,
                   uint32_t *remainder, size_t *rn);
/* a = a * factor + add in place, room for one digit more; the length. */
size_t jj_mag_mul_small(uint32_t *a, size_t n, uint32_t factor, uint32_t add);
/* a = a / divisor in place; *n its length; the remainder. */
uint32_t jj_mag_divide_small(uint32_t *a, size_t *n, uint32_t divisor);
/* The nearest double, ties to even; infinite when too large. */
double jj_mag_to_double(const uint32_t *a, size_t n);
/* The integer part of a finite d >= 0 into out[32]; the length. */
size_t jj_mag_from_double(double d, uint32_t *out);

#endif
