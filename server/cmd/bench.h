/* The three things that `inferd bench` does, and what they share. */
#ifndef INFERD_CMD_BENCH_H
#define INFERD_CMD_BENCH_H

#include "cmd/cmd.h"

struct bench_options {
    char *shape, *prefill, *decode_streams, *prefill_streams, *context;
    size_t generate, repeat, chunk;
    bool profile, limits;
    /* a server */
    char *url, *key, *served_model, *prompt_tokens, *output_tokens, *prompt_ids;
    size_t streams, requests, seed;
    double rate, warmup, duration, request_limit, ttft_limit, itl_limit;
    char *compare;
    bool json;
};

/* Measure a model or a shape in this process. */
int bench_local(const struct bench_options *o, const struct config *c, struct error *err);
/* Load a server. */
int bench_server(const struct bench_options *o, struct error *err);
/* Two files that --json wrote. */
int bench_compare(const char *before, const char *after, bool json, struct error *err);

/* Numbers parted by commas, each in [min, max], at most `cap`. ERROR_INVALID with param `name`. */
int bench_numbers(const char *name, const char *text, size_t min, size_t max, size_t *out, size_t cap, size_t *n,
                  struct error *err);

struct bench_spread {
    double median, min, max;
};
/* Of n >= 1 values, which are sorted. Of an even number the median lies between the two in the middle. */
struct bench_spread bench_spread(double *values, size_t n);
/* `"name": {"median": ..., "min": ..., "max": ...}` */
void bench_put_spread(struct buf *out, const char *name, struct bench_spread s);

/* after / before, and what the extremes allow; `apart`: their ranges do not overlap. */
struct bench_ratio {
    double ratio, min, max;
    bool apart;
};
struct bench_ratio bench_ratio(struct bench_spread before, struct bench_spread after);

#endif
