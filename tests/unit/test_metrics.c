#include "gpu_monitor.h"
#include "http.h"
#include "metrics.h"
#include "version.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *page(const struct metrics *m, const struct metrics_view *v) {
    struct buf out = BUF_INIT;
    metrics_write(m, v, &out);
    return buf_steal(&out);
}

static const struct metrics_view view = {
    .model = "m",
    .backend = "null",
    .kv_block_size = 16,
    .kv_blocks = 10,
    .max_model_len = 80,
    .preparing = 4,
    .waiting_tokens = 17,
    .memory_planned = {[ENGINE_MEMORY_KV] = 700, [ENGINE_MEMORY_MARGIN] = 30},
    .memory_used = {[ENGINE_MEMORY_WEIGHTS] = 500},
    .stats = {
        .kv_blocks = 10, .kv_blocks_used = 5, .kv_blocks_cached = 3, .running = 2, .waiting = 3,
        .prefix_cache_queries = 70, .cached_tokens = 50,
        .step_sequences = {.counts = {[1] = 1, [2] = 3}, .sum = 11},
        .step_tokens = {.counts = {1, 2, [3] = 4, [13] = 8}, .sum = 99}}};

static bool has_line(const char *text, const char *line) {
    char wanted[1024];
    snprintf(wanted, sizeof wanted, "\n%s\n", line);
    return strstr(text, wanted) != NULL;
}

Test(metrics, every_series_is_there_at_zero) {
    struct metrics m = {0};
    struct metrics_view v = {.model = "m", .backend = ""};
    metrics_endpoint(&m, "/v1/completions", "POST");
    char *text = page(&m, &v);
#define X(field, name, labels, help) cr_assert(strstr(text, "\n" name), "%s", name);
    METRICS_COUNTERS(X)
#undef X
#define X(field, type, name, labels, help) cr_assert(strstr(text, "\n" name), "%s", name);
    METRICS_VALUES(X)
#undef X
#define X(field, buckets, name, help)                                                                                  \
    cr_assert(has_line(text, "inferd_" name "_count 0"), "%s", name);                                                  \
    cr_assert(has_line(text, "vllm:" name "_count{model_name=\"m\",engine=\"0\"} 0"), "%s", name);                     \
    cr_assert(strstr(text, "\nvllm:" name "_bucket{model_name=\"m\",engine=\"0\",le=\"+Inf\"} 0\n"), "%s", name);
    METRICS_HISTOGRAMS(X)
#undef X
    cr_assert(has_line(text, "vllm:request_success_total{model_name=\"m\",engine=\"0\",finished_reason=\"abort\"} 0"));
    cr_assert(has_line(text, "http_requests_total{handler=\"/v1/completions\",method=\"POST\",status=\"5xx\"} 0"));
    free(text);
}

Test(metrics, of_a_gpu) {
    struct metrics m = {0};
    struct metrics_view v = view;
    double gpu[GPU_VALUES] = {[GPU_UP] = 1, [GPU_TEMPERATURE] = NAN, [GPU_ECC_CORRECTED] = 7, [GPU_THROTTLE] = 0x45};
    char *text = page(&m, &v);
    cr_assert(!strstr(text, "inferd_gpu_"));
    free(text);
    v.gpu = gpu;
    v.gpu_ordinal = 3;
    text = page(&m, &v);
    cr_assert(has_line(text, "inferd_gpu_up{gpu=\"3\"} 1"));
    cr_assert(has_line(text, "inferd_gpu_temperature_celsius{gpu=\"3\"} NaN"));
    cr_assert(has_line(text, "inferd_gpu_ecc_errors_total{gpu=\"3\",severity=\"corrected\"} 7"));
    cr_assert(has_line(text, "inferd_gpu_throttled{gpu=\"3\",reason=\"sw_power_cap\"} 1"));
    cr_assert(has_line(text, "inferd_gpu_throttled{gpu=\"3\",reason=\"hw_slowdown\"} 0"));
    cr_assert(has_line(text, "inferd_gpu_throttled{gpu=\"3\",reason=\"hw_thermal\"} 1"));
    free(text);
}

Test(metrics, what_runs_and_how_it_started) {
    struct metrics m = {0};
    struct metrics_view v = view;
    v.load_seconds[ENGINE_LOAD_WEIGHTS] = 2.5;
    v.last_step_age = 0.25;
    char *text = page(&m, &v), wanted[512];
    cr_assert(has_line(text, "inferd_model_load_seconds{phase=\"weights\"} 2.5"));
    cr_assert(has_line(text, "inferd_model_load_seconds{phase=\"text\"} 0"));
    cr_assert(has_line(text, "inferd_engine_last_step_age_seconds 0.25"));
    cr_assert(has_line(text, "inferd_step_sequences_bucket{le=\"2.0\"} 1"));
    cr_assert(has_line(text, "inferd_step_sequences_bucket{le=\"4.0\"} 4"));
    cr_assert(has_line(text, "inferd_step_sequences_sum 11"));
    snprintf(wanted, sizeof wanted,
             "inferd_build_info{version=\"%s\",build_id=\"%s\",compiler=\"%s\",libmicrohttpd=\"%s\"} 1", version_number(),
             version_build_id(), version_compiler(), http_library_version());
    cr_assert(has_line(text, wanted), "%s", wanted);
    free(text);
}

/* HELP and TYPE once for each family, before its samples, and samples of a family together. */
Test(metrics, families_are_whole) {
    struct metrics m = {0};
    char *text = page(&m, &view), *line = strtok(text, "\n"), family[128] = "";
    static char seen[256][128];
    size_t n = 0;
    for (; line; line = strtok(NULL, "\n")) {
        char name[128];
        if (sscanf(line, "# HELP %127s", name) == 1) {
            for (size_t i = 0; i < n; i++) {
                cr_assert_str_neq(seen[i], name, "twice");
            }
            snprintf(seen[n++], sizeof seen[0], "%s", name);
            snprintf(family, sizeof family, "%s", name);
        } else if (sscanf(line, "# TYPE %127s", name) == 1) {
            cr_assert_str_eq(name, family);
        } else {
            cr_assert_eq(strncmp(line, family, strlen(family)), 0, "%s is not of %s", line, family);
            const char *rest = line + strlen(family);
            cr_assert(*rest == ' ' || *rest == '{' || strncmp(rest, "_bucket{", 8) == 0 ||
                          strncmp(rest, "_sum", 4) == 0 || strncmp(rest, "_count", 6) == 0,
                      "%s is not of %s", line, family);
        }
    }
    cr_assert_gt(n, 60);
    free(text);
}

Test(metrics, values) {
    struct metrics m = {.received = 7, .finished_stop = 3, .prompt_tokens = 100, .cached_tokens = 40};
    size_t row = metrics_endpoint(&m, "/x", "GET");
    static const int statuses[] = {200, 404, 503, 500};
    for (int i = 0; i < 4; i++) {
        metrics_count_answer(&m, row, &(struct answer_facts){statuses[i], 100, 7, 0.5 * i});
    }
    cr_assert_eq(metrics_endpoint(&m, "/x", "GET"), row);
    char *text = page(&m, &view);
    cr_assert(has_line(text, "inferd_requests_received_total 7"));
    cr_assert(has_line(text, "inferd_requests_finished_total{reason=\"stop\"} 3"));
    cr_assert(has_line(text, "vllm:kv_cache_usage_perc{model_name=\"m\",engine=\"0\"} 0.5"));
    cr_assert(has_line(text, "vllm:num_requests_running{model_name=\"m\",engine=\"0\"} 2"));
    /* waiting = capacity + deferred */
    cr_assert(has_line(text, "vllm:num_requests_waiting{model_name=\"m\",engine=\"0\"} 7"));
    cr_assert(has_line(
        text, "vllm:num_requests_waiting_by_reason{model_name=\"m\",engine=\"0\",reason=\"capacity\"} 3"));
    cr_assert(has_line(
        text, "vllm:num_requests_waiting_by_reason{model_name=\"m\",engine=\"0\",reason=\"deferred\"} 4"));
    cr_assert(has_line(text, "inferd_waiting_prompt_tokens 17"));
    cr_assert(has_line(text, "inferd_kv_blocks_cached 3"));
    cr_assert(has_line(text, "vllm:prefix_cache_queries_total{model_name=\"m\",engine=\"0\"} 70"));
    cr_assert(has_line(text, "vllm:prefix_cache_hits_total{model_name=\"m\",engine=\"0\"} 50"));
    cr_assert(has_line(text, "vllm:prompt_tokens_cached_total{model_name=\"m\",engine=\"0\"} 40"));
    cr_assert(has_line(
        text, "vllm:prompt_tokens_by_source_total{model_name=\"m\",engine=\"0\",source=\"local_compute\"} 60"));
    cr_assert(has_line(text,
                       "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"10\",kv_cache_size_tokens=\"160\","
                       "kv_cache_max_concurrency=\"2.00\",engine=\"0\"} 1"));
    cr_assert(has_line(text, "http_requests_total{handler=\"/x\",method=\"GET\",status=\"5xx\"} 2"));
    cr_assert(has_line(text, "http_request_size_bytes_sum{handler=\"/x\",method=\"GET\"} 400"));
    cr_assert(has_line(text, "http_response_size_bytes_count{handler=\"/x\",method=\"GET\"} 4"));
    cr_assert(has_line(text, "http_request_duration_seconds_bucket{handler=\"/x\",method=\"GET\",le=\"0.5\"} 2"));
    cr_assert(has_line(text, "http_request_duration_seconds_sum{handler=\"/x\",method=\"GET\"} 3"));
    cr_assert(has_line(text, "http_request_duration_highr_seconds_bucket{le=\"1.0\"} 3"));
    cr_assert(has_line(text, "http_request_duration_highr_seconds_count 4"));
    free(text);
}

Test(metrics, histograms) {
    struct metrics m = {0};
    metrics_observe(&m, ttft, 0.001); /* a bound belongs to its bucket */
    metrics_observe(&m, ttft, 0.0011);
    metrics_observe(&m, ttft, 0.3);
    metrics_observe(&m, ttft, 1e9);
    char *text = page(&m, &view);
    cr_assert(has_line(text, "inferd_time_to_first_token_seconds_bucket{le=\"0.001\"} 1"));
    cr_assert(has_line(text, "inferd_time_to_first_token_seconds_bucket{le=\"0.005\"} 2"));
    cr_assert(has_line(text, "inferd_time_to_first_token_seconds_bucket{le=\"0.25\"} 2"));
    cr_assert(has_line(text, "inferd_time_to_first_token_seconds_bucket{le=\"0.5\"} 3"));
    cr_assert(has_line(text, "inferd_time_to_first_token_seconds_bucket{le=\"1.0\"} 3"));
    cr_assert(has_line(text, "inferd_time_to_first_token_seconds_bucket{le=\"2560.0\"} 3"));
    cr_assert(has_line(text, "inferd_time_to_first_token_seconds_bucket{le=\"+Inf\"} 4"));
    cr_assert(has_line(text, "inferd_time_to_first_token_seconds_count 4"));
    free(text);
}

Test(metrics, the_null_backend_is_told) {
    struct metrics m = {0};
    struct metrics_view v = view;
    char *text = page(&m, &v);
    cr_assert(has_line(text, "inferd_backend_info{backend=\"null\"} 1"));
    cr_assert(has_line(text, "inferd_backend_info{backend=\"cpu\"} 0"));
    cr_assert(has_line(text, "inferd_backend_info{backend=\"cuda\"} 0"));
    cr_assert(has_line(text, "inferd_memory_planned_bytes{kind=\"kv\"} 700"));
    cr_assert(has_line(text, "inferd_memory_planned_bytes{kind=\"margin\"} 30"));
    cr_assert(has_line(text, "inferd_memory_used_bytes{kind=\"weights\"} 500"));
    free(text);
    v.backend = "cpu";
    text = page(&m, &v);
    cr_assert(has_line(text, "inferd_backend_info{backend=\"null\"} 0"));
    cr_assert(has_line(text, "inferd_backend_info{backend=\"cpu\"} 1"));
    free(text);
}

/* The engine's own: counted there, told here under both names. */
Test(metrics, histograms_of_steps) {
    struct metrics m = {0};
    char *text = page(&m, &view);
    cr_assert(has_line(text, "vllm:iteration_tokens_total_bucket{model_name=\"m\",engine=\"0\",le=\"1.0\"} 1"));
    cr_assert(has_line(text, "vllm:iteration_tokens_total_bucket{model_name=\"m\",engine=\"0\",le=\"8.0\"} 3"));
    cr_assert(has_line(text, "vllm:iteration_tokens_total_bucket{model_name=\"m\",engine=\"0\",le=\"32.0\"} 7"));
    cr_assert(has_line(text, "vllm:iteration_tokens_total_bucket{model_name=\"m\",engine=\"0\",le=\"16384.0\"} 7"));
    cr_assert(has_line(text, "vllm:iteration_tokens_total_bucket{model_name=\"m\",engine=\"0\",le=\"+Inf\"} 15"));
    cr_assert(has_line(text, "inferd_step_tokens_sum 99"));
    cr_assert(has_line(text, "inferd_step_seconds_count 0"));
    free(text);
}

Test(metrics, label_values_are_escaped) {
    struct metrics m = {0};
    struct metrics_view v = view;
    v.model = "a\"b\\c\nd";
    char *text = page(&m, &v);
    cr_assert(has_line(text, "vllm:num_requests_running{model_name=\"a\\\"b\\\\c\\nd\",engine=\"0\"} 2"));
    free(text);
}
