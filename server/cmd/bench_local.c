/* `inferd bench MODEL` and `inferd bench --shape NAME`: a grid of cases, each beside what the machine can do at most. */
#include "cmd/bench.h"
#include "version.h"

#include <inferd/bench.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_NUMBERS = 32, MOST_CASES = 2 * MOST_NUMBERS * MOST_NUMBERS, MOST_TOKENS = 1 << 20, MOST_STREAMS = 4096 };

struct measured {
    char name[80];
    struct bench_case what;
    struct bench_spread tokens, bytes, operations; /* a second */
    double sampling;                               /* share of the time */
    bool has_profile;
    struct bench_result profiled;
};

struct grid {
    struct bench_case *cases; /* [n], owned */
    size_t n;
    struct bench_info info;
    const char *weights; /* as asked for */
    struct backend_limits limits;
};

static const char *const op_names[BACKEND_OP_COUNT] = {"embed",    "rms_norm",  "linear",   "rope",
                                                       "kv_store", "attention", "silu_mul", "gather_rows"};

static int plan_cases(const struct bench_options *o, struct grid *g, struct error *err) {
    size_t prompts[MOST_NUMBERS], prompt_streams[MOST_NUMBERS], streams[MOST_NUMBERS], contexts[MOST_NUMBERS];
    size_t n_prompts, n_prompt_streams, n_streams, n_contexts;
    if (bench_numbers("prefill", o->prefill, 1, MOST_TOKENS, prompts, MOST_NUMBERS, &n_prompts, err) < 0 ||
        bench_numbers("prefill_streams", o->prefill_streams, 1, MOST_STREAMS, prompt_streams, MOST_NUMBERS, &n_prompt_streams, err) < 0 ||
        bench_numbers("decode_streams", o->decode_streams, 1, MOST_STREAMS, streams, MOST_NUMBERS, &n_streams, err) < 0 ||
        bench_numbers("context", o->context, 1, MOST_TOKENS, contexts, MOST_NUMBERS, &n_contexts, err) < 0) {
        return -1;
    }
    g->cases = calloc(MOST_CASES, sizeof *g->cases);
    if (!g->cases) {
        return error_memory(err);
    }
    for (size_t i = 0; i < n_prompts; i++) {
        for (size_t s = 0; s < n_prompt_streams; s++) {
            g->cases[g->n++] = (struct bench_case){BENCH_PREFILL, prompt_streams[s], prompts[i], 0};
        }
    }
    for (size_t c = 0; c < n_contexts; c++) {
        for (size_t s = 0; s < n_streams; s++) {
            g->cases[g->n++] = (struct bench_case){BENCH_DECODE, streams[s], contexts[c], o->generate};
        }
    }
    return g->n > 0 ? 0 : error_set(err, ERROR_INVALID, "neither --prefill nor --decode-streams with --context names a case");
}

static void name_case(const struct bench_case *c, char *out, size_t size) {
    if (c->kind == BENCH_PREFILL) {
        snprintf(out, size, "prefill %zu, %zu stream%s", c->context, c->streams, c->streams == 1 ? "" : "s");
    } else {
        snprintf(out, size, "decode %zu..%zu, %zu stream%s", c->context, c->context + c->steps, c->streams,
                 c->streams == 1 ? "" : "s");
    }
}

/* The peak that the weights' arithmetic may reach, and its name. Block formats are integers with factors. */
static double peak_of(const struct grid *g, const char **name) {
    enum dtype t = g->info.weight_dtype;
    bool floats = t == DTYPE_F32 || t == DTYPE_F16 || t == DTYPE_BF16 || (t == DTYPE_I8 && !g->info.int8_activations);
    bool bf16 = floats && t != DTYPE_F32 && g->limits.bf16_ops_per_s > g->limits.f32_ops_per_s;
    *name = !floats && g->limits.i8_ops_per_s > 0 ? "int8" : bf16 ? "bf16" : "f32";
    return !floats && g->limits.i8_ops_per_s > 0 ? g->limits.i8_ops_per_s
           : bf16                                ? g->limits.bf16_ops_per_s
                                                 : g->limits.f32_ops_per_s;
}

static double share(double value, double limit) {
    return limit > 0 ? value / limit : 0;
}

static int measure_case(struct bench *b, const struct bench_options *o, const struct bench_case *c, struct measured *out,
                        struct error *err) {
    double *values = calloc(4 * o->repeat, sizeof *values);
    double *tokens = values, *bytes = values + o->repeat, *operations = bytes + o->repeat, *sampling = operations + o->repeat;
    struct bench_result r;
    int rc = values ? bench_run(b, c, false, &r, err) : error_memory(err); /* warms up */
    for (size_t i = 0; i < o->repeat && rc == 0; i++) {
        rc = bench_run(b, c, false, &r, err);
        if (rc == 0) {
            tokens[i] = (double)r.tokens / r.seconds;
            bytes[i] = r.bytes / r.seconds;
            operations[i] = r.operations / r.seconds;
            sampling[i] = r.sampling_seconds / r.seconds;
        }
    }
    if (rc == 0) {
        out->what = *c;
        out->tokens = bench_spread(tokens, o->repeat);
        out->bytes = bench_spread(bytes, o->repeat);
        out->operations = bench_spread(operations, o->repeat);
        out->sampling = bench_spread(sampling, o->repeat).median;
        name_case(c, out->name, sizeof out->name);
        if (o->profile) {
            rc = bench_run(b, c, true, &out->profiled, err);
            out->has_profile = rc == 0 && out->profiled.has_profile;
        }
    }
    free(values);
    return rc;
}

/* ---- a table ------------------------------------------------------------------------------------------------- */

static void table_head(const struct bench_options *o, const struct config *c, const struct grid *g) {
    const struct bench_info *i = &g->info;
    const struct backend_limits *l = &g->limits;
    printf("model     %s, %s, %zu layers, %.1f M parameters, weights %s%s %.1f MiB, KV %s\n", o->shape[0] ? o->shape : c->model,
           i->architecture, i->n_layers, (double)i->n_parameters / 1e6, dtype_info(i->weight_dtype)->name,
           i->int8_activations ? " (W8A8)" : "", (double)i->weight_bytes / 1048576, c->kv_dtype);
    if (i->n_layers_measured < i->n_layers) {
        printf("SCALED    %zu of the %zu layers fit into memory: times of these, drawn on to all\n", i->n_layers_measured, i->n_layers);
    }
    printf("machine   %s, %s %s, %zu thread%s\n", i->device, i->backend, i->variant, i->threads, i->threads == 1 ? "" : "s");
    printf("limits    read %.1f GB/s; INT8 %.2f, BF16 %.2f, F32 %.2f T operations/s (0: none)\n\n", l->read_bytes_per_s / 1e9,
           l->i8_ops_per_s / 1e12, l->bf16_ops_per_s / 1e12, l->f32_ops_per_s / 1e12);
    printf("%-28s %10s %21s %9s %6s %9s %6s %7s\n", "case", "tokens/s", "(min-max)", "GB/s", "read", "Gop/s", "peak", "sample");
    fflush(stdout);
}

static void table_row(const struct grid *g, const struct measured *m) {
    const char *peak_name;
    double peak = peak_of(g, &peak_name);
    char range[48];
    snprintf(range, sizeof range, "(%.1f-%.1f)", m->tokens.min, m->tokens.max);
    printf("%-28s %10.1f %21s %9.2f %5.1f%% %9.1f %5.1f%% %6.1f%%\n", m->name, m->tokens.median, range, m->bytes.median / 1e9,
           100 * share(m->bytes.median, g->limits.read_bytes_per_s), m->operations.median / 1e9,
           100 * share(m->operations.median, peak), 100 * m->sampling);
}

/* Shares of the time of all threads: an operation's own work, what its threads stood idle in it, choosing tokens, the rest. */
struct shares {
    double op[BACKEND_OP_COUNT], idle[BACKEND_OP_COUNT];
    double idle_sum, sampling, other;
};

static void find_shares(const struct bench_result *r, struct shares *out) {
    *out = (struct shares){.sampling = r->sampling_seconds / r->measured_seconds, .other = 1};
    for (size_t i = 0; i < BACKEND_OP_COUNT; i++) {
        double wall = (double)r->profile.ops[i].ns * 1e-9 / r->measured_seconds;
        out->idle[i] = (double)r->profile.ops[i].idle_ns * 1e-9 / (double)r->threads / r->measured_seconds;
        out->op[i] = wall;
        out->idle_sum += out->idle[i];
        out->other -= wall;
    }
    out->other -= out->sampling;
}

static void table_profile(const struct measured *m) {
    struct shares s;
    find_shares(&m->profiled, &s);
    for (size_t i = 0; i < BACKEND_OP_COUNT; i++) {
        const uint64_t calls = m->profiled.profile.ops[i].calls;
        if (calls > 0) {
            printf("    %-12s %5.1f %% of the time, %4.1f %% idle in it, %8llu calls of %.1f us\n", op_names[i], 100 * s.op[i],
                   100 * s.idle[i], (unsigned long long)calls, (double)m->profiled.profile.ops[i].ns / (double)calls / 1e3);
        }
    }
    printf("    %-12s %5.1f %%\n    %-12s %5.1f %%\n    %-12s %5.1f %% of all threads' time in these\n", "sampling", 100 * s.sampling,
           "other", 100 * s.other, "idle", 100 * s.idle_sum);
}

/* ---- JSON ---------------------------------------------------------------------------------------------------- */

static void json_head(struct buf *out, const struct bench_options *o, const struct config *c, const struct grid *g) {
    const struct bench_info *i = &g->info;
    const char *name = o->shape[0] ? o->shape : c->model;
    buf_printf(out, "{\"inferd_bench\": 1, \"version\": \"%s\", \"what\": \"model\", \"model\": ", version_number());
    buf_json_string(out, name, strlen(name));
    buf_puts(out, ", \"device\": ");
    buf_json_string(out, i->device, strlen(i->device));
    buf_printf(out,
               ", \"random_weights\": %s, \"architecture\": \"%s\", \"layers\": %zu, \"layers_measured\": %zu, \"scaled\": %s, "
               "\"parameters\": %zu, \"weights\": \"%s\", \"weight_type\": \"%s\", \"int8_activations\": %s, \"weight_bytes\": %zu, "
               "\"kv_dtype\": \"%s\", \"kv_token_bytes\": %zu, \"backend\": \"%s\", \"variant\": \"%s\", \"threads\": %zu, "
               "\"repeat\": %zu,\n \"limits\": {\"read_bytes_per_s\": %.6g, \"int8_ops_per_s\": %.6g, \"bf16_ops_per_s\": %.6g, "
               "\"f32_ops_per_s\": %.6g},\n \"rows\": [",
               o->shape[0] ? "true" : "false", i->architecture, i->n_layers, i->n_layers_measured,
               i->n_layers_measured < i->n_layers ? "true" : "false", i->n_parameters, g->weights,
               dtype_info(i->weight_dtype)->name, i->int8_activations ? "true" : "false", i->weight_bytes, c->kv_dtype,
               i->kv_token_bytes, i->backend, i->variant, i->threads, o->repeat, g->limits.read_bytes_per_s, g->limits.i8_ops_per_s,
               g->limits.bf16_ops_per_s, g->limits.f32_ops_per_s);
}

static void json_profile(struct buf *out, const struct measured *m) {
    struct shares s;
    find_shares(&m->profiled, &s);
    buf_puts(out, ", \"profile\": {\"ops\": {");
    for (size_t i = 0; i < BACKEND_OP_COUNT; i++) {
        buf_printf(out, "%s\"%s\": {\"calls\": %llu, \"seconds\": %.6g, \"share\": %.5f, \"idle_share\": %.5f}", i ? ", " : "", op_names[i],
                   (unsigned long long)m->profiled.profile.ops[i].calls, (double)m->profiled.profile.ops[i].ns * 1e-9, s.op[i], s.idle[i]);
    }
    buf_printf(out, "}, \"sampling_share\": %.5f, \"other_share\": %.5f, \"idle_share\": %.5f}", s.sampling, s.other, s.idle_sum);
}

static void json_row(struct buf *out, const struct grid *g, const struct measured *m, bool first) {
    const char *peak_name;
    double peak = peak_of(g, &peak_name);
    buf_printf(out, "%s\n  {\"name\": \"%s\", \"kind\": \"%s\", \"streams\": %zu, \"context\": %zu, \"generate\": %zu, ", first ? "" : ",",
               m->name, m->what.kind == BENCH_PREFILL ? "prefill" : "decode", m->what.streams, m->what.context, m->what.steps);
    bench_put_spread(out, "tokens_per_second", m->tokens);
    buf_puts(out, ", ");
    bench_put_spread(out, "bytes_per_second", m->bytes);
    buf_puts(out, ", ");
    bench_put_spread(out, "operations_per_second", m->operations);
    buf_printf(out, ", \"read_share\": %.5f, \"peak\": \"%s\", \"peak_share\": %.5f, \"sampling_share\": %.5f",
               share(m->bytes.median, g->limits.read_bytes_per_s), peak_name, share(m->operations.median, peak), m->sampling);
    if (m->has_profile) {
        json_profile(out, m);
    }
    buf_puts(out, "}");
}

/* ---- all of it ----------------------------------------------------------------------------------------------- */

static int run_grid(struct bench *b, const struct bench_options *o, const struct config *c, struct grid *g, struct buf *json,
                    struct error *err) {
    bench_get_info(b, &g->info);
    if (o->limits && bench_measure(b, &g->limits, err) < 0) {
        return -1;
    }
    if (o->json) {
        json_head(json, o, c, g);
    } else {
        table_head(o, c, g);
    }
    for (size_t i = 0; i < g->n; i++) {
        struct measured m = {0};
        if (isatty(STDERR_FILENO)) {
            name_case(&g->cases[i], m.name, sizeof m.name);
            fprintf(stderr, "\r%zu of %zu: %s\x1b[K", i + 1, g->n, m.name);
        }
        int rc = measure_case(b, o, &g->cases[i], &m, err);
        if (isatty(STDERR_FILENO)) {
            fputs("\r\x1b[K", stderr);
        }
        if (rc < 0) {
            return -1;
        }
        if (o->json) {
            json_row(json, g, &m, i == 0);
            continue;
        }
        table_row(g, &m);
        if (m.has_profile) {
            table_profile(&m);
        } else if (o->profile) {
            puts("    this device has no profile of its operations");
        }
        fflush(stdout);
    }
    return 0;
}

int bench_local(const struct bench_options *o, const struct config *c, struct error *err) {
    struct grid g = {0};
    struct bench *b = NULL;
    struct buf json = BUF_INIT;
    struct bench_config config = {.shape = o->shape[0] ? o->shape : NULL, .chunk = o->chunk};
    int rc = plan_cases(o, &g, err);
    rc = rc == 0 && !config.shape ? config_check_model(c, err) : rc;
    if (rc == 0) {
        config_engine(c, &config.engine);
        g.weights = config.engine.weights;
        config.cases = g.cases;
        config.n_cases = g.n;
        rc = bench_open(&config, &b, err);
        if (rc < 0 && !config.shape) {
            config_engine_refused(err);
        }
    }
    rc = rc == 0 ? run_grid(b, o, c, &g, &json, err) : rc;
    if (rc == 0 && o->json) {
        buf_puts(&json, "\n ]}\n");
        rc = json.failed ? error_memory(err) : 0;
        if (rc == 0) {
            fputs(json.data, stdout);
        }
    }
    buf_free(&json);
    bench_close(b);
    free(g.cases);
    return rc;
}
