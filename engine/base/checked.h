/* Arithmetic on sizes that cannot wrap: false when it would, and then *out is untouched. */
#ifndef INFERD_CHECKED_H
#define INFERD_CHECKED_H

#include <stdbool.h>
#include <stddef.h>

static inline bool checked_add(size_t a, size_t b, size_t *out) {
    size_t r;
    if (__builtin_add_overflow(a, b, &r)) {
        return false;
    }
    *out = r;
    return true;
}

static inline bool checked_mul(size_t a, size_t b, size_t *out) {
    size_t r;
    if (__builtin_mul_overflow(a, b, &r)) {
        return false;
    }
    *out = r;
    return true;
}

#endif
