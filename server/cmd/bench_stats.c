#include "cmd/bench.h"

#include <stdlib.h>
#include <string.h>

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct bench_spread bench_spread(double *values, size_t n) {
    qsort(values, n, sizeof *values, compare_doubles);
    return (struct bench_spread){(values[(n - 1) / 2] + values[n / 2]) / 2, values[0], values[n - 1]};
}

void bench_put_spread(struct buf *out, const char *name, struct bench_spread s) {
    buf_printf(out, "\"%s\": {\"median\": %.6g, \"min\": %.6g, \"max\": %.6g}", name, s.median, s.min, s.max);
}

static double over(double a, double b) {
    return b > 0 ? a / b : 0;
}

struct bench_ratio bench_ratio(struct bench_spread before, struct bench_spread after) {
    return (struct bench_ratio){.ratio = over(after.median, before.median),
                                .min = over(after.min, before.max),
                                .max = over(after.max, before.min),
                                .apart = after.min > before.max || after.max < before.min};
}

int bench_numbers(const char *name, const char *text, size_t min, size_t max, size_t *out, size_t cap, size_t *n,
                  struct error *err) {
    *n = 0;
    for (const char *p = text; *p;) {
        size_t digits = strspn(p, "0123456789");
        unsigned long long value = digits > 0 && digits < 16 ? strtoull(p, NULL, 10) : 0;
        char behind = p[digits];
        if (digits == 0 || digits >= 16 || value < min || value > max || (behind && behind != ',') || (behind && !p[digits + 1])) {
            return error_set_param(err, ERROR_INVALID, name, "%s wants numbers from %zu to %zu, parted by commas", name, min, max);
        }
        if (*n == cap) {
            return error_set_param(err, ERROR_INVALID, name, "%s takes at most %zu numbers", name, cap);
        }
        out[(*n)++] = (size_t)value;
        p += digits + (behind ? 1 : 0);
    }
    return 0;
}
