/* What a load is made of: a seeded list of requests, the same for every server. */
#ifndef INFERD_BENCH_TRACE_H
#define INFERD_BENCH_TRACE_H

#include <inferd/error.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bench_random {
    uint64_t state; /* not 0 */
};
uint64_t bench_draw(struct bench_random *r);
double bench_draw_unit(struct bench_random *r); /* [0, 1) */

/* "64", or "32-128": any number between with equal chance. */
struct bench_range {
    size_t min, max;
};
int bench_range(const char *name, const char *text, size_t least, size_t most, struct bench_range *out, struct error *err);
size_t bench_draw_range(struct bench_random *r, struct bench_range range);
/* Seconds to the next arrival of a Poisson process of `rate` a second: -ln(1 - u) / rate. */
double bench_draw_gap(struct bench_random *r, double rate);

/* http://HOST[:PORT][/PATH]; the parts lie in the arrays, path without a slash at its end. */
struct bench_url {
    char host[256], port[8], path[512];
};
int bench_url(const char *text, struct bench_url *out, struct error *err);
/* Of a URL that is known to begin with this scheme. */
int bench_url_of(const char *text, const char *scheme, const char *default_port, struct bench_url *out, struct error *err);

#endif
