#include "metrics.h"

#include "gpu_monitor.h"
#include "http.h"
#include "process_stats.h"
#include "version.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

struct bounds {
    size_t n;
    double le[METRICS_MAX_BUCKETS];
};

static const struct bounds bounds[] = {
    [BUCKETS_T] = {22, {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                        1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560}},
    [BUCKETS_I] = {19, {.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}},
    [BUCKETS_E] = {21, {.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680}},
    [BUCKETS_TOKENS] = {19, {1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6}},
    [BUCKETS_N] = {5, {1, 2, 5, 10, 20}},
    [BUCKETS_STEP_TOKENS] = {13, {ENGINE_STEP_TOKENS_BOUNDS}},
    [BUCKETS_STEP_SEQUENCES] = {11, {ENGINE_STEP_SEQUENCES_BOUNDS}},
    [BUCKETS_STEP_SECONDS] = {16, {ENGINE_STEP_SECONDS_BOUNDS}},
    [BUCKETS_HTTP] = {3, {.1, .5, 1}},
    [BUCKETS_HTTP_FINE] = {21, {.01, .025, .05, .075, .1,  .25, .5,  .75, 1,  1.5, 2,
                                2.5, 3,    3.5, 4,    4.5, 5,   7.5, 10,  30, 60}},
};

void histogram_observe(struct histogram *h, int buckets, double value) {
    const struct bounds *b = &bounds[buckets];
    size_t i = 0;
    while (i < b->n && value > b->le[i]) {
        i++;
    }
    h->counts[i]++;
    h->sum += value;
}

size_t metrics_endpoint(struct metrics *m, const char *handler, const char *method) {
    for (size_t i = 0; i < m->n_endpoints; i++) {
        if (strcmp(m->endpoints[i].handler, handler) == 0 && strcmp(m->endpoints[i].method, method) == 0) {
            return i;
        }
    }
    if (m->n_endpoints == METRICS_MAX_ENDPOINTS) {
        return METRICS_MAX_ENDPOINTS - 1;
    }
    m->endpoints[m->n_endpoints] = (struct endpoint_count){.handler = handler, .method = method};
    return m->n_endpoints++;
}

void metrics_count_answer(struct metrics *m, size_t endpoint, const struct answer_facts *a) {
    struct endpoint_count *e = &m->endpoints[endpoint];
    e->by_class[a->status >= 500 ? 2 : a->status >= 400 ? 1 : 0]++;
    e->request_bytes += (double)a->request_bytes;
    e->response_bytes += (double)a->response_bytes;
    histogram_observe(&e->seconds, BUCKETS_HTTP, a->seconds);
    histogram_observe(&m->http_seconds, BUCKETS_HTTP_FINE, a->seconds);
}

/* ---- the page ------------------------------------------------------------------------------------------------ */

struct page {
    struct buf *out;
    const char *family; /* the name whose HELP and TYPE were written last */
    struct buf common;  /* the labels of every vllm:* series */
};

static void head(struct page *p, const char *prefix, const char *name, const char *type, const char *help) {
    if (p->family && strcmp(p->family, name) == 0) {
        return;
    }
    p->family = name;
    buf_printf(p->out, "# HELP %s%s %s\n# TYPE %s%s %s\n", prefix, name, help, prefix, name, type);
}

/* {common,labels,extra} without those that are empty */
static void labels(struct page *p, bool with_common, const char *own, const char *extra) {
    const char *parts[] = {with_common ? p->common.data : "", own, extra};
    char open = '{';
    for (size_t i = 0; i < 3; i++) {
        if (parts[i] && parts[i][0]) {
            buf_putc(p->out, open);
            buf_puts(p->out, parts[i]);
            open = ',';
        }
    }
    if (open == ',') {
        buf_putc(p->out, '}');
    }
}

static void number(struct buf *out, double v) {
    if (isnan(v)) {
        buf_puts(out, "NaN");
        return;
    }
    buf_printf(out, v == floor(v) && fabs(v) < 1e15 ? "%.0f" : "%.17g", v);
}

static bool is_vllm(const char *name) {
    return strncmp(name, "vllm:", 5) == 0;
}

static void value(struct page *p, const char *type, const char *name, const char *own, const char *help, double v) {
    head(p, "", name, type, help);
    buf_puts(p->out, name);
    labels(p, is_vllm(name), own, "");
    buf_putc(p->out, ' ');
    number(p->out, v);
    buf_putc(p->out, '\n');
}

/* Further ones of a family follow with help NULL. */
static void histogram(struct page *p, const char *prefix, const char *name, const char *own, const char *help,
                      const struct histogram *h, int buckets) {
    const struct bounds *b = &bounds[buckets];
    uint64_t below = 0;
    if (help) {
        p->family = NULL;
        head(p, prefix, name, "histogram", help);
    }
    for (size_t i = 0; i <= b->n; i++) {
        char le[40] = "le=\"+Inf\"";
        if (i < b->n) {
            snprintf(le, sizeof le, b->le[i] == floor(b->le[i]) ? "le=\"%.1f\"" : "le=\"%.10g\"", b->le[i]);
        }
        below += h->counts[i];
        buf_printf(p->out, "%s%s_bucket", prefix, name);
        labels(p, is_vllm(prefix), own, le);
        buf_printf(p->out, " %llu\n", (unsigned long long)below);
    }
    buf_printf(p->out, "%s%s_sum", prefix, name);
    labels(p, is_vllm(prefix), own, "");
    buf_putc(p->out, ' ');
    number(p->out, h->sum);
    buf_printf(p->out, "\n%s%s_count", prefix, name);
    labels(p, is_vllm(prefix), own, "");
    buf_printf(p->out, " %llu\n", (unsigned long long)below);
}

static void label_value(struct buf *out, const char *s) {
    for (; *s; s++) {
        if (*s == '\\' || *s == '"') {
            buf_putc(out, '\\');
        }
        if (*s == '\n') {
            buf_puts(out, "\\n");
        } else {
            buf_putc(out, *s);
        }
    }
}

/* The routes by name and method; the classes of one after another. */
static void answers(struct page *p, const struct metrics *m) {
    static const char *const classes[METRICS_STATUS_CLASSES] = {"2xx", "4xx", "5xx"};
    for (size_t i = 0; i < m->n_endpoints; i++) {
        for (size_t c = 0; c < METRICS_STATUS_CLASSES; c++) {
            char own[160];
            snprintf(own, sizeof own, "handler=\"%s\",method=\"%s\",status=\"%s\"", m->endpoints[i].handler,
                     m->endpoints[i].method, classes[c]);
            value(p, "counter", "http_requests_total", own, "Answers by route, method and class of status.",
                  (double)m->endpoints[i].by_class[c]);
        }
    }
    for (size_t i = 0; i < m->n_endpoints; i++) {
        char own[160];
        snprintf(own, sizeof own, "handler=\"%s\",method=\"%s\"", m->endpoints[i].handler, m->endpoints[i].method);
        histogram(p, "", "http_request_duration_seconds", own,
                  i == 0 ? "From the headers of a request to the end of its answer, by route." : NULL,
                  &m->endpoints[i].seconds, BUCKETS_HTTP);
    }
    histogram(p, "", "http_request_duration_highr_seconds", "",
              "From the headers of a request to the end of its answer, of all routes.", &m->http_seconds,
              BUCKETS_HTTP_FINE);
}

/* Sum and count, by route. */
static void sizes(struct page *p, const struct metrics *m, const char *name, const char *help, size_t offset) {
    p->family = NULL;
    head(p, "", name, "summary", help);
    for (size_t i = 0; i < m->n_endpoints; i++) {
        const struct endpoint_count *e = &m->endpoints[i];
        uint64_t n = 0;
        for (size_t c = 0; c < METRICS_STATUS_CLASSES; c++) {
            n += e->by_class[c];
        }
        buf_printf(p->out, "%s_sum{handler=\"%s\",method=\"%s\"} %.0f\n", name, e->handler, e->method,
                   *(const double *)(const void *)((const char *)e + offset));
        buf_printf(p->out, "%s_count{handler=\"%s\",method=\"%s\"} %llu\n", name, e->handler, e->method,
                   (unsigned long long)n);
    }
}

struct values {
    double zero, one, max_sequences, max_waiting, backend_cpu, backend_cuda, backend_null, running, waiting, waiting_tokens, ready, kv_blocks, kv_blocks_used,
        kv_usage, kv_blocks_cached, prompt_tokens, generation_tokens, cached_tokens, computed_tokens, cache_queries,
        cache_hits, seq_capacity, seq_deferred, drafts, drafted_tokens, accepted_tokens, steps, preemptions,
        nonfinite_logits, seq_running, seq_waiting, last_step_age, start_time, cpu_seconds, resident_bytes, virtual_bytes,
        virtual_max_bytes, open_fds, max_fds, threads;
};

static struct values read_values(const struct metrics *m, const struct metrics_view *v) {
    const struct engine_stats *s = &v->stats;
    struct process_stats p;
    process_stats_read(&p);
    return (struct values){
        .one = 1,
        .running = v->running,
        .waiting = v->waiting,
        .waiting_tokens = v->waiting_tokens,
        .ready = v->ready,
        .max_sequences = v->max_sequences,
        .max_waiting = v->max_waiting,
        .backend_cpu = strcmp(v->backend, "cpu") == 0,
        .backend_cuda = strcmp(v->backend, "cuda") == 0,
        .backend_null = strcmp(v->backend, "null") == 0,
        .kv_blocks = (double)s->kv_blocks,
        .kv_blocks_used = (double)s->kv_blocks_used,
        .kv_usage = s->kv_blocks ? (double)s->kv_blocks_used / (double)s->kv_blocks : 0,
        .kv_blocks_cached = (double)s->kv_blocks_cached,
        .prompt_tokens = (double)m->prompt_tokens,
        .generation_tokens = (double)s->generation_tokens,
        .cached_tokens = (double)m->cached_tokens,
        .computed_tokens = (double)(m->prompt_tokens - m->cached_tokens),
        .cache_queries = (double)s->prefix_cache_queries,
        .cache_hits = (double)s->cached_tokens,
        .drafts = (double)s->drafts,
        .drafted_tokens = (double)s->drafted_tokens,
        .accepted_tokens = (double)s->accepted_tokens,
        .steps = (double)s->steps,
        .preemptions = (double)s->preemptions,
        .nonfinite_logits = (double)s->nonfinite_logits,
        .seq_running = (double)s->running,
        .seq_waiting = (double)s->waiting + v->preparing,
        .seq_capacity = (double)s->waiting,
        .seq_deferred = v->preparing,
        .last_step_age = v->last_step_age,
        .start_time = p.start_time,
        .cpu_seconds = p.cpu_seconds,
        .resident_bytes = p.resident_bytes,
        .virtual_bytes = p.virtual_bytes,
        .virtual_max_bytes = p.virtual_max_bytes,
        .open_fds = p.open_fds,
        .max_fds = p.max_fds,
        .threads = p.threads,
    };
}

/* Of the drafted tokens that were kept, how many stood at each place of their draft. */
static void accepted_by_position(struct page *p, const char *name, const struct engine_stats *s) {
    for (size_t i = 0; i < ENGINE_MAX_SPECULATIVE; i++) {
        char own[32];
        snprintf(own, sizeof own, "position=\"%zu\"", i);
        value(p, "counter", name, own, "Drafted tokens that were right, by their place in the draft.",
              (double)s->accepted_at[i]);
    }
}

/* Each of the replicas. */
static void engines(struct page *p, const struct metrics_view *v) {
    static const struct {
        const char *type, *name, *help;
        size_t offset;
    } series[] = {
#define OF(field) offsetof(struct engine_stats, field)
        {"gauge", "inferd_replica_sequences_running", "Sequences that an engine computes.", OF(running)},
        {"gauge", "inferd_replica_sequences_waiting", "Sequences that wait for an engine.", OF(waiting)},
        {"gauge", "inferd_replica_waiting_prompt_tokens", "Prompt tokens of these.", OF(waiting_tokens)},
        {"gauge", "inferd_replica_kv_blocks", "KV blocks of an engine.", OF(kv_blocks)},
        {"gauge", "inferd_replica_kv_blocks_used", "Of these, in use.", OF(kv_blocks_used)},
        {"counter", "inferd_replica_generation_tokens_total", "Tokens that an engine made.", OF(generation_tokens)},
        {"counter", "inferd_replica_prefix_cache_queries_total", "Prompt tokens that an engine looked for in its prefix cache.", OF(prefix_cache_queries)},
        {"counter", "inferd_replica_prefix_cache_hits_total", "Of these, found.", OF(cached_tokens)},
        {"counter", "inferd_replica_preemptions_total", "Sequences that an engine set back for want of KV.", OF(preemptions)},
        {"counter", "inferd_replica_steps_total", "Steps that an engine computed.", OF(steps)},
#undef OF
    };
    for (size_t i = 0; i < sizeof series / sizeof series[0]; i++) {
        for (size_t e = 0; e < v->n_engines; e++) {
            char own[32];
            uint64_t x;
            memcpy(&x, (const char *)&v->each[e] + series[i].offset, sizeof x);
            snprintf(own, sizeof own, "engine=\"%zu\"", e);
            value(p, series[i].type, series[i].name, own, series[i].help, (double)x);
        }
    }
}

/* What memory is for, one sample each. */
static void memory(struct page *p, const char *name, const char *help, const size_t bytes[ENGINE_MEMORY_KINDS]) {
    static const char *const kinds[ENGINE_MEMORY_KINDS] = {
        [ENGINE_MEMORY_WEIGHTS] = "weights", [ENGINE_MEMORY_WORKSPACE] = "workspace", [ENGINE_MEMORY_GRAPHS] = "graphs",
        [ENGINE_MEMORY_CONTEXT] = "context", [ENGINE_MEMORY_KV] = "kv",               [ENGINE_MEMORY_MARGIN] = "margin",
    };
    for (size_t i = 0; i < ENGINE_MEMORY_KINDS; i++) {
        char own[32];
        snprintf(own, sizeof own, "kind=\"%s\"", kinds[i]);
        value(p, "gauge", name, own, help, (double)bytes[i]);
    }
}

static void gpu(struct page *p, const double values[GPU_VALUES], size_t ordinal) {
    char own[96];
#define X(field, type, name, extra, help)                                                                              \
    snprintf(own, sizeof own, "gpu=\"%zu\"%s%s", ordinal, extra[0] ? "," : "", extra);                                 \
    value(p, type, name, own, help, values[field]);
    METRICS_GPU(X)
#undef X
#define X(bit, reason)                                                                                                 \
    snprintf(own, sizeof own, "gpu=\"%zu\",reason=\"%s\"", ordinal, reason);                                           \
    value(p, "gauge", "inferd_gpu_throttled", own, "1 while the GPU's clocks are held down, by reason.",              \
          ((unsigned)values[GPU_THROTTLE] & (bit)) != 0);
    METRICS_GPU_THROTTLE(X)
#undef X
}

static void load_seconds(struct page *p, const double seconds[ENGINE_LOAD_PHASES]) {
    static const char *const phases[ENGINE_LOAD_PHASES] = {
        [ENGINE_LOAD_TEXT] = "text",     [ENGINE_LOAD_DEVICE] = "device",   [ENGINE_LOAD_WEIGHTS] = "weights",
        [ENGINE_LOAD_MEMORY] = "memory", [ENGINE_LOAD_WARM_UP] = "warm_up", [ENGINE_LOAD_SELF_TEST] = "self_test",
    };
    for (size_t i = 0; i < ENGINE_LOAD_PHASES; i++) {
        char own[32];
        snprintf(own, sizeof own, "phase=\"%s\"", phases[i]);
        value(p, "gauge", "inferd_model_load_seconds", own, "How long each part of the start took.", seconds[i]);
    }
}

/* What runs: the same labels as long as the process lives. */
static void build_info(struct page *p) {
    head(p, "", "inferd_build_info", "gauge", "What runs; its value is 1.");
    buf_printf(p->out, "inferd_build_info{version=\"%s\",build_id=\"%s\",compiler=\"", version_number(), version_build_id());
    label_value(p->out, version_compiler());
    buf_puts(p->out, "\",libmicrohttpd=\"");
    label_value(p->out, http_library_version());
    buf_puts(p->out, "\"} 1\n");
}

static void cache_config(struct page *p, const struct metrics_view *v) {
    char own[256];
    size_t tokens = v->kv_blocks * v->kv_block_size;
    snprintf(own, sizeof own,
             "block_size=\"%zu\",num_gpu_blocks=\"%zu\",kv_cache_size_tokens=\"%zu\",kv_cache_max_concurrency=\"%.2f\","
             "engine=\"0\"",
             v->kv_block_size, v->kv_blocks, tokens,
             v->max_model_len ? (double)tokens / (double)v->max_model_len : 0.0);
    head(p, "", "vllm:cache_config_info", "gauge", "Shape of KV memory.");
    buf_printf(p->out, "vllm:cache_config_info{%s} 1\n", own);
}

static void step_histogram(struct page *p, const char *name, const char *vllm_name, const char *help,
                           const struct engine_histogram *h, int buckets) {
    struct histogram copy = {.sum = h->sum};
    memcpy(copy.counts, h->counts, sizeof h->counts);
    histogram(p, "inferd_", name, "", help, &copy, buckets);
    if (vllm_name[0]) {
        histogram(p, "vllm:", vllm_name, "", help, &copy, buckets);
    }
}

void metrics_write(const struct metrics *m, const struct metrics_view *view, struct buf *out) {
    struct page p = {.out = out};
    struct values v = read_values(m, view);
    buf_puts(&p.common, "model_name=\"");
    label_value(&p.common, view->model);
    buf_puts(&p.common, "\",engine=\"0\"");
#define X(field, name, own, help) value(&p, "counter", name, own, help, (double)m->field);
    METRICS_COUNTERS(X)
#undef X
#define X(field, type, name, own, help) value(&p, type, name, own, help, v.field);
    METRICS_VALUES(X)
#undef X
    engines(&p, view);
    accepted_by_position(&p, "inferd_accepted_tokens_per_position_total", &view->stats);
    accepted_by_position(&p, "vllm:spec_decode_num_accepted_tokens_per_pos_total", &view->stats);
    memory(&p, "inferd_memory_planned_bytes", "Memory of the device as planned at the start, by what it is for.",
           view->memory_planned);
    memory(&p, "inferd_memory_used_bytes", "The same as it was taken; context: with what others have taken.",
           view->memory_used);
    load_seconds(&p, view->load_seconds);
    build_info(&p);
    if (view->gpu) {
        gpu(&p, view->gpu, view->gpu_ordinal);
    }
    cache_config(&p, view);
#define X(field, buckets, name, help)                                                                                  \
    histogram(&p, "inferd_", name, "", help, &m->field, buckets);                                                      \
    histogram(&p, "vllm:", name, "", help, &m->field, buckets);
    METRICS_HISTOGRAMS(X)
#undef X
#define X(field, buckets, name, vllm_name, help) step_histogram(&p, name, vllm_name, help, &view->stats.field, buckets);
    METRICS_STEP_HISTOGRAMS(X)
#undef X
    p.family = NULL;
#define X(field, name, help) sizes(&p, m, name, help, offsetof(struct endpoint_count, field));
    METRICS_HTTP_SIZES(X)
#undef X
    answers(&p, m);
    out->failed = out->failed || p.common.failed;
    buf_free(&p.common);
}
