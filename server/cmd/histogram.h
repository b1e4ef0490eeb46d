/*
 * Times in nanoseconds, counted in buckets of at most 1.6 % width (64 to each power of two): percentiles of any number
 * of samples in fixed memory.
 */
#ifndef INFERD_HISTOGRAM_H
#define INFERD_HISTOGRAM_H

#include <stdint.h>

#define HISTOGRAM_BUCKETS (64 * 60)

struct times {
    uint64_t n, sum, max;
    uint64_t counts[HISTOGRAM_BUCKETS];
};

static inline unsigned times_bucket(uint64_t ns) {
    if (ns < 64) {
        return (unsigned)ns;
    }
    unsigned shift = 57u - (unsigned)__builtin_clzll(ns); /* leaves 7 bits, the first of them set */
    return (shift + 1) * 64 + ((unsigned)(ns >> shift) - 64);
}

static inline void times_add(struct times *t, uint64_t ns) {
    t->n++;
    t->sum += ns;
    t->max = ns > t->max ? ns : t->max;
    t->counts[times_bucket(ns)]++;
}

/* The lower edge of the bucket that holds the share q of all samples, in seconds; 0 when there are none. */
static inline double times_at(const struct times *t, double q) {
    uint64_t rank = (uint64_t)(q * (double)t->n), below = 0;
    for (unsigned i = 0; i < HISTOGRAM_BUCKETS; i++) {
        below += t->counts[i];
        if (below > rank) {
            return i < 64 ? (double)i / 1e9 : (double)((uint64_t)(64 + i % 64) << (i / 64 - 1)) / 1e9;
        }
    }
    return (double)t->max / 1e9;
}

#endif
