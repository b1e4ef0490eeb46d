/* `inferd bench --url URL`: a server under a seeded load, ours or any that speaks the OpenAI API. */
#include "cmd/bench.h"
#include "cmd/bench_client.h"
#include "version.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_IDS = 1 << 24, MOST_PROMPT = 1 << 20 };

/* What a run tells, each with a spread over the repeats. */
enum metric { TOKENS, GOODPUT, TTFT_P50, TTFT_P90, TTFT_P99, ITL_P50, ITL_P90, ITL_P99, ITL_MAX, E2E_P50, E2E_P90, E2E_P99, METRICS };
static const char *const metric_names[METRICS] = {"tokens_per_second", "goodput", "ttft_p50", "ttft_p90", "ttft_p99", "itl_p50",
                                                  "itl_p90",           "itl_p99", "itl_max",  "e2e_p50",  "e2e_p90",  "e2e_p99"};

static void take_metrics(const struct bench_counts *c, double out[METRICS]) {
    const struct {
        const struct times *of;
        enum metric first;
    } times[] = {{&c->ttft, TTFT_P50}, {&c->itl, ITL_P50}, {&c->e2e, E2E_P50}};
    out[TOKENS] = c->seconds > 0 ? (double)c->tokens / c->seconds : 0;
    out[GOODPUT] = c->seconds > 0 ? (double)c->good / c->seconds : 0;
    out[ITL_MAX] = (double)c->itl.max * 1e-9;
    for (size_t i = 0; i < sizeof times / sizeof times[0]; i++) {
        out[times[i].first] = times_at(times[i].of, 0.5);
        out[times[i].first + 1] = times_at(times[i].of, 0.9);
        out[times[i].first + 2] = times_at(times[i].of, 0.99);
    }
}

static void add_counts(struct bench_counts *sum, const struct bench_counts *c) {
    sum->started += c->started;
    sum->finished += c->finished;
    sum->good += c->good;
    sum->connect_errors += c->connect_errors;
    sum->refused_busy += c->refused_busy;
    sum->refused += c->refused;
    sum->failed_5xx += c->failed_5xx;
    sum->broken += c->broken;
    sum->timed_out += c->timed_out;
    sum->tokens += c->tokens;
    sum->events += c->events;
    sum->late += c->late;
    if (!sum->first_error[0]) {
        memcpy(sum->first_error, c->first_error, sizeof sum->first_error);
    }
}

static uint64_t errors(const struct bench_counts *c) {
    return c->connect_errors + c->refused_busy + c->refused + c->failed_5xx + c->broken + c->timed_out;
}

static void name_load(const struct bench_load *l, char *out, size_t size) {
    char how[64];
    if (l->rate > 0) {
        snprintf(how, sizeof how, "%g requests/s", l->rate);
    } else {
        snprintf(how, sizeof how, "%zu stream%s", l->streams, l->streams == 1 ? "" : "s");
    }
    snprintf(out, size, "served %zu-%zu in, %zu-%zu out, %s", l->prompt_tokens.min, l->prompt_tokens.max, l->output_tokens.min,
             l->output_tokens.max, how);
}

static void put_json(struct buf *out, const struct bench_options *o, const struct bench_load *l, struct bench_spread spread[METRICS],
                     const struct bench_counts *sum) {
    char name[160];
    name_load(l, name, sizeof name);
    buf_printf(out, "{\"inferd_bench\": 1, \"version\": \"%s\", \"what\": \"server\", \"url\": ", version_number());
    buf_json_string(out, o->url, strlen(o->url));
    buf_puts(out, ", \"model\": ");
    buf_json_string(out, l->model, strlen(l->model));
    buf_printf(out, ", \"seed\": %zu, \"repeat\": %zu, \"ttft_limit\": %g, \"itl_limit\": %g,\n \"rows\": [\n  {\"name\": \"%s\"", o->seed,
               o->repeat, l->ttft_limit, l->itl_limit, name);
    for (size_t i = 0; i < METRICS; i++) {
        buf_puts(out, ", ");
        bench_put_spread(out, metric_names[i], spread[i]);
    }
    buf_printf(out,
               ", \"started\": %llu, \"finished\": %llu, \"good\": %llu, \"tokens\": %llu, \"events\": %llu, \"late\": %llu, "
               "\"errors\": {\"connect\": %llu, \"busy\": %llu, \"refused\": %llu, \"server\": %llu, \"broken\": %llu, \"timeout\": %llu}, "
               "\"first_error\": ",
               (unsigned long long)sum->started, (unsigned long long)sum->finished, (unsigned long long)sum->good,
               (unsigned long long)sum->tokens, (unsigned long long)sum->events, (unsigned long long)sum->late,
               (unsigned long long)sum->connect_errors, (unsigned long long)sum->refused_busy, (unsigned long long)sum->refused,
               (unsigned long long)sum->failed_5xx, (unsigned long long)sum->broken, (unsigned long long)sum->timed_out);
    buf_json_string(out, sum->first_error, strlen(sum->first_error));
    buf_puts(out, "}\n ]}\n");
}

static void put_times(struct buf *out, const char *name, const struct bench_spread *s) {
    static const char *const which[] = {"p50", "p90", "p99"};
    buf_printf(out, "%-16s", name);
    for (size_t i = 0; i < 3; i++) {
        buf_printf(out, "  %s %.2f (%.2f-%.2f)", which[i], s[i].median * 1e3, s[i].min * 1e3, s[i].max * 1e3);
    }
    buf_puts(out, " ms\n");
}

static void put_table(struct buf *out, const struct bench_options *o, const struct bench_load *l, struct bench_spread spread[METRICS],
                      const struct bench_counts *sum) {
    char name[160];
    name_load(l, name, sizeof name);
    buf_printf(out, "%s, seed %zu, %zu run%s: median (min-max) of the runs\n", name, o->seed, o->repeat, o->repeat == 1 ? "" : "s");
    buf_printf(out, "output           %.1f tokens/s (%.1f-%.1f), %llu of %llu requests ended well\n", spread[TOKENS].median, spread[TOKENS].min,
               spread[TOKENS].max, (unsigned long long)sum->finished, (unsigned long long)sum->started);
    put_times(out, "first token", &spread[TTFT_P50]);
    put_times(out, "between tokens", &spread[ITL_P50]);
    buf_printf(out, "                  longest %.2f ms\n", spread[ITL_MAX].max * 1e3);
    put_times(out, "whole answer", &spread[E2E_P50]);
    buf_printf(out, "goodput          %.3f requests/s (%.3f-%.3f)", spread[GOODPUT].median, spread[GOODPUT].min, spread[GOODPUT].max);
    if (l->ttft_limit > 0 || l->itl_limit > 0) {
        buf_printf(out, " with the first token within %g s and a mean between tokens of %g s (0: any)", l->ttft_limit, l->itl_limit);
    }
    buf_puts(out, "\n");
    if (sum->late > 0) {
        buf_printf(out, "late             %llu requests found no free stream when they were due (--streams)\n", (unsigned long long)sum->late);
    }
    if (errors(sum) > 0) {
        buf_printf(out, "ERRORS           %llu connect, %llu busy (429, 503), %llu other 4xx, %llu 5xx, %llu broken, %llu given up\n",
                   (unsigned long long)sum->connect_errors, (unsigned long long)sum->refused_busy, (unsigned long long)sum->refused,
                   (unsigned long long)sum->failed_5xx, (unsigned long long)sum->broken, (unsigned long long)sum->timed_out);
        if (sum->first_error[0]) {
            buf_printf(out, "                 the server: %s\n", sum->first_error);
        }
    }
}

static int fill_load(const struct bench_options *o, struct bench_load *l, char *model, size_t model_size, struct error *err) {
    *l = (struct bench_load){.key = o->key,
                             .model = o->served_model,
                             .seed = o->seed,
                             .streams = o->streams,
                             .rate = o->rate,
                             .requests = o->requests,
                             .warmup = o->warmup,
                             .duration = o->duration,
                             .request_limit = o->request_limit,
                             .ttft_limit = o->ttft_limit,
                             .itl_limit = o->itl_limit};
    if (bench_url(o->url, &l->url, err) < 0 || bench_range("prompt_tokens", o->prompt_tokens, 1, MOST_PROMPT, &l->prompt_tokens, err) < 0 ||
        bench_range("output_tokens", o->output_tokens, 1, MOST_PROMPT, &l->output_tokens, err) < 0 ||
        bench_range("prompt_ids", o->prompt_ids, 0, MOST_IDS, &l->prompt_ids, err) < 0) {
        return -1;
    }
    for (const char *p = o->key; *p; p++) {
        if (*p <= ' ' || *p > '~') {
            return error_set_param(err, ERROR_INVALID, "key", "a key has no spaces or control characters");
        }
    }
    if (l->rate > 0 && l->streams == 1) {
        l->streams = 256; /* Poisson: as many as may be under way */
    }
    if (!l->model[0]) {
        if (bench_first_model(&l->url, o->key, model, model_size, err) < 0) {
            return -1;
        }
        l->model = model;
    }
    return 0;
}

int bench_server(const struct bench_options *o, struct error *err) {
    struct bench_load l;
    char model[512];
    if (fill_load(o, &l, model, sizeof model, err) < 0) {
        return -1;
    }
    double *values = calloc(METRICS * o->repeat, sizeof *values);
    struct bench_counts *run = malloc(2 * sizeof *run), *sum = run ? run + 1 : NULL; /* histograms: too large for a stack */
    struct buf out = BUF_INIT;
    int rc = values && run ? 0 : error_memory(err);
    if (rc == 0) {
        *sum = (struct bench_counts){0};
    }
    for (size_t i = 0; i < o->repeat && rc == 0; i++) {
        double metrics[METRICS];
        if (isatty(STDERR_FILENO)) {
            fprintf(stderr, "\rrun %zu of %zu\x1b[K", i + 1, o->repeat);
        }
        l.seed = o->seed + i;
        rc = bench_load_run(&l, run, err);
        if (rc == 0) {
            add_counts(sum, run);
            take_metrics(run, metrics);
            for (size_t m = 0; m < METRICS; m++) {
                values[m * o->repeat + i] = metrics[m];
            }
        }
    }
    if (isatty(STDERR_FILENO)) {
        fputs("\r\x1b[K", stderr);
    }
    if (rc == 0) {
        struct bench_spread spread[METRICS];
        for (size_t m = 0; m < METRICS; m++) {
            spread[m] = bench_spread(values + m * o->repeat, o->repeat);
        }
        (o->json ? put_json : put_table)(&out, o, &l, spread, sum);
        rc = out.failed ? error_memory(err) : 0;
        if (rc == 0) {
            fputs(out.data, stdout);
        }
        if (rc == 0 && sum->finished == 0) {
            rc = error_set(err, ERROR_IO, "no request ended well");
        }
    }
    buf_free(&out);
    free(values);
    free(run);
    return rc;
}
