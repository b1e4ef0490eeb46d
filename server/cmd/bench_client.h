/*
 * The clients of a load: requests over HTTP/1.1, streaming, all in one poll set of non-blocking sockets, a connection each. Given
 * the times at which requests are to begin, it tells of each when its first and last event came.
 */
#ifndef INFERD_BENCH_CLIENT_H
#define INFERD_BENCH_CLIENT_H

#include "cmd/bench_trace.h"
#include "cmd/histogram.h"

struct bench_load {
    struct bench_url url;
    const char *key;   /* "" = none */
    const char *model; /* for requests */
    struct bench_range prompt_tokens, output_tokens, prompt_ids;
    uint64_t seed;
    size_t streams;  /* closed loop: so many at a time; Poisson: at most so many */
    double rate;     /* of arrivals a second; 0 = closed loop */
    size_t requests; /* end after so many; 0: go by time */
    double warmup, duration; /* s; what begins while warming up, or comes after the end, does not count */
    double request_limit;    /* s after which a request is given up */
    double ttft_limit, itl_limit; /* s that a good request keeps; 0 = none */
};

struct bench_counts {
    uint64_t started, finished, good; /* of those that count */
    uint64_t connect_errors, refused_busy, refused, failed_5xx, broken, timed_out; /* of all */
    uint64_t tokens;      /* that came while it counted */
    uint64_t events;      /* with text, likewise */
    uint64_t late;        /* Poisson: arrivals that found no free stream and so came later */
    double seconds;       /* counted */
    struct times ttft, itl, e2e;
    char first_error[256]; /* of the server's own words, printable; "" if there was none */
};

/* The first id of GET /v1/models. ERROR_IO with what went wrong. */
int bench_first_model(const struct bench_url *url, const char *key, char *out, size_t size, struct error *err);
/* ERROR_IO when the host is not known or there are no descriptors; failures of single requests are counted. */
int bench_load_run(const struct bench_load *load, struct bench_counts *out, struct error *err);

#endif
