/*
 * What is counted, and the Prometheus page of it (text format 0.0.4). One row here declares, exports and
 * documents a number. Every series is there from the first scrape on, at 0. Loop thread only.
 *
 * Exact at any scrape: received = sum of finished + sum of rejected + running + waiting, in requests to the
 * generating endpoints. A request of several choices counts once, by the worst of their ends.
 */
#ifndef INFERD_METRICS_H
#define INFERD_METRICS_H

#include <inferd/buf.h>
#include <inferd/engine.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Rows of one name stand together. X(field, name, labels, help) */
#define METRICS_COUNTERS(X)                                                                                            \
    X(received, "inferd_requests_received_total", "", "Requests to the generating endpoints.")                        \
    X(finished_stop, "inferd_requests_finished_total", "reason=\"stop\"", "Requests that ran to an end, by reason.")  \
    X(finished_length, "inferd_requests_finished_total", "reason=\"length\"", "")                                     \
    X(finished_repetition, "inferd_requests_finished_total", "reason=\"repetition\"", "")                             \
    X(finished_cancelled, "inferd_requests_finished_total", "reason=\"cancelled\"", "")                               \
    X(finished_error, "inferd_requests_finished_total", "reason=\"error\"", "")                                       \
    X(finished_deadline, "inferd_requests_finished_total", "reason=\"deadline\"", "")                                 \
    X(cancelled, "inferd_requests_cancelled_total", "", "Requests whose client left before the end.")                 \
    X(rejected_invalid, "inferd_requests_rejected_total", "reason=\"invalid\"", "Requests refused before they ran.")   \
    X(rejected_unauthorized, "inferd_requests_rejected_total", "reason=\"unauthorized\"", "")                         \
    X(rejected_not_found, "inferd_requests_rejected_total", "reason=\"not_found\"", "")                               \
    X(rejected_too_large, "inferd_requests_rejected_total", "reason=\"too_large\"", "")                               \
    X(rejected_queue_full, "inferd_requests_rejected_total", "reason=\"queue_full\"", "")                             \
    X(rejected_rate_limit, "inferd_requests_rejected_total", "reason=\"rate_limit\"", "")                             \
    X(rejected_unavailable, "inferd_requests_rejected_total", "reason=\"unavailable\"", "")                           \
    X(rejected_deadline, "inferd_requests_rejected_total", "reason=\"deadline\"", "")                                 \
    X(rejected_error, "inferd_requests_rejected_total", "reason=\"error\"", "")                                       \
    X(deadline_queued, "inferd_deadline_expired_total", "phase=\"queued\"", "Requests that ran out of time, by where.") \
    X(deadline_running, "inferd_deadline_expired_total", "phase=\"running\"", "")                                     \
    X(stream_events, "inferd_stream_events_total", "", "Server-sent events queued.")                                  \
    X(log_lost, "inferd_log_lines_lost_total", "", "Lines of the log, or of the content log, that could not be written.") \
    X(slow_readers, "inferd_slow_readers_dropped_total", "", "Clients dropped because they did not read.")            \
    X(success_stop, "vllm:request_success_total", "finished_reason=\"stop\"", "Finished sequences, by reason.")       \
    X(success_length, "vllm:request_success_total", "finished_reason=\"length\"", "")                                 \
    X(success_abort, "vllm:request_success_total", "finished_reason=\"abort\"", "")                                   \
    X(success_error, "vllm:request_success_total", "finished_reason=\"error\"", "")                                   \
    X(success_repetition, "vllm:request_success_total", "finished_reason=\"repetition\"", "")

/* Read at the scrape. X(field, type, name, labels, help) */
#define METRICS_VALUES(X)                                                                                              \
    X(running, "gauge", "inferd_requests_running", "", "Requests that generate now.")                                 \
    X(waiting, "gauge", "inferd_requests_waiting", "", "Requests that were received and do not generate yet.")        \
    X(waiting_tokens, "gauge", "inferd_waiting_prompt_tokens", "", "Prompt tokens of requests that wait.")            \
    X(max_sequences, "gauge", "inferd_max_sequences", "", "Sequences that may run at once, in all engines.")          \
    X(max_waiting, "gauge", "inferd_max_waiting", "", "Sequences that may wait, as the setting says.")                \
    X(ready, "gauge", "inferd_ready", "", "1 when requests are accepted, 0 while loading or draining or stuck.")      \
    X(backend_cpu, "gauge", "inferd_backend_info", "backend=\"cpu\"", "1 for where it computes; null computes nothing.")    \
    X(backend_cuda, "gauge", "inferd_backend_info", "backend=\"cuda\"", "")                                               \
    X(backend_null, "gauge", "inferd_backend_info", "backend=\"null\"", "")                                               \
    X(kv_blocks, "gauge", "inferd_kv_blocks", "", "Blocks of KV memory.")                                             \
    X(kv_blocks_used, "gauge", "inferd_kv_blocks_used", "", "Blocks of KV memory that sequences hold.")               \
    X(kv_blocks_cached, "gauge", "inferd_kv_blocks_cached", "",                                                       \
      "Blocks that nobody holds and that a prompt may find again.")                                                   \
    X(cache_queries, "counter", "inferd_prefix_cache_queries_total", "", "Tokens looked up in the prefix cache.")     \
    X(cache_hits, "counter", "inferd_prefix_cache_hits_total", "", "Tokens found in the prefix cache.")               \
    X(prompt_tokens, "counter", "inferd_prompt_tokens_total", "", "Prompt tokens taken in.")                          \
    X(generation_tokens, "counter", "inferd_generation_tokens_total", "", "Tokens generated.")                        \
    X(cached_tokens, "counter", "inferd_prompt_tokens_cached_total", "", "Prompt tokens found in the prefix cache.")  \
    X(steps, "counter", "inferd_engine_steps_total", "", "Steps of the engine.")                                      \
    X(drafts, "counter", "inferd_drafts_total", "", "Guesses of the tokens to come.")                                 \
    X(drafted_tokens, "counter", "inferd_drafted_tokens_total", "", "Tokens in them.")                                \
    X(accepted_tokens, "counter", "inferd_accepted_tokens_total", "", "Drafted tokens that were right.")              \
    X(drafts, "counter", "vllm:spec_decode_num_drafts_total", "", "Guesses of the tokens to come.")                   \
    X(drafted_tokens, "counter", "vllm:spec_decode_num_draft_tokens_total", "", "Tokens in them.")                    \
    X(accepted_tokens, "counter", "vllm:spec_decode_num_accepted_tokens_total", "", "Drafted tokens that were right.")\
    X(preemptions, "counter", "inferd_preemptions_total", "", "Sequences set back to waiting for lack of KV memory.") \
    X(nonfinite_logits, "counter", "inferd_nonfinite_logits_total", "", "Sequences ended by NaN or infinite logits.") \
    X(seq_running, "gauge", "vllm:num_requests_running", "", "Sequences in the running batch.")                       \
    X(seq_waiting, "gauge", "vllm:num_requests_waiting", "", "Sequences that wait to run.")                           \
    X(seq_capacity, "gauge", "vllm:num_requests_waiting_by_reason", "reason=\"capacity\"",                            \
      "Sequences that wait: for room in the engine; being parsed and tokenised (deferred).")                          \
    X(seq_deferred, "gauge", "vllm:num_requests_waiting_by_reason", "reason=\"deferred\"", "")                        \
    X(kv_usage, "gauge", "vllm:kv_cache_usage_perc", "", "Share of KV memory in use, 0 to 1.")                        \
    X(one, "gauge", "vllm:engine_sleep_state", "sleep_state=\"awake\"", "Always awake.")                              \
    X(zero, "gauge", "vllm:engine_sleep_state", "sleep_state=\"weights_offloaded\"", "")                              \
    X(zero, "gauge", "vllm:engine_sleep_state", "sleep_state=\"discard_all\"", "")                                    \
    X(prompt_tokens, "counter", "vllm:prompt_tokens_total", "", "Prompt tokens taken in.")                            \
    X(cached_tokens, "counter", "vllm:prompt_tokens_cached_total", "", "Prompt tokens found in the prefix cache.")    \
    X(computed_tokens, "counter", "vllm:prompt_tokens_by_source_total", "source=\"local_compute\"", "By source.")     \
    X(cached_tokens, "counter", "vllm:prompt_tokens_by_source_total", "source=\"local_cache_hit\"", "")               \
    X(zero, "counter", "vllm:prompt_tokens_by_source_total", "source=\"external_kv_transfer\"", "")                   \
    X(generation_tokens, "counter", "vllm:generation_tokens_total", "", "Tokens generated.")                          \
    X(cache_queries, "counter", "vllm:prefix_cache_queries_total", "", "Tokens looked up in the prefix cache.")       \
    X(cache_hits, "counter", "vllm:prefix_cache_hits_total", "", "Tokens found in the prefix cache.")              \
    X(preemptions, "counter", "vllm:num_preemptions_total", "", "Sequences set back to waiting.")                     \
    X(nonfinite_logits, "counter", "vllm:corrupted_requests_total", "", "Sequences with NaN in their logits.")        \
    X(last_step_age, "gauge", "inferd_engine_last_step_age_seconds", "",                                              \
      "Since the engine ended a step or got something to do; 0 while it has nothing to do.")                          \
    X(start_time, "gauge", "process_start_time_seconds", "", "Start of the process, in Unix time.")                   \
    X(cpu_seconds, "counter", "process_cpu_seconds_total", "", "Processor time used.")                                \
    X(resident_bytes, "gauge", "process_resident_memory_bytes", "", "Resident memory.")                               \
    X(virtual_bytes, "gauge", "process_virtual_memory_bytes", "", "Virtual memory.")                                  \
    X(virtual_max_bytes, "gauge", "process_virtual_memory_max_bytes", "", "Most virtual memory allowed; 2^64: any.")  \
    X(open_fds, "gauge", "process_open_fds", "", "Open file descriptors.")                                            \
    X(max_fds, "gauge", "process_max_fds", "", "Most file descriptors that may be open.")                             \
    X(threads, "gauge", "process_threads", "", "Threads.")

/* Each is exported as inferd_NAME and vllm:NAME. X(field, buckets, name, help) */
#define METRICS_HISTOGRAMS(X)                                                                                          \
    X(ttft, BUCKETS_T, "time_to_first_token_seconds", "From the request to its first token.")                         \
    X(inter_token, BUCKETS_I, "inter_token_latency_seconds", "Between two tokens of a sequence.")                     \
    X(per_token, BUCKETS_I, "request_time_per_output_token_seconds", "Mean time of a sequence's tokens.")             \
    X(e2e, BUCKETS_E, "e2e_request_latency_seconds", "From the request to the end of its answer.")                    \
    X(queue_time, BUCKETS_E, "request_queue_time_seconds", "From admission to the first step.")                       \
    X(inference_time, BUCKETS_E, "request_inference_time_seconds", "From the first step to the last token.")          \
    X(prefill_time, BUCKETS_E, "request_prefill_time_seconds", "From the first step to the first token.")             \
    X(decode_time, BUCKETS_E, "request_decode_time_seconds", "From the first token to the last.")                     \
    X(request_prompt, BUCKETS_TOKENS, "request_prompt_tokens", "Prompt tokens of a sequence.")                        \
    X(request_generation, BUCKETS_TOKENS, "request_generation_tokens", "Generated tokens of a sequence.")             \
    X(request_max_generation, BUCKETS_TOKENS, "request_max_num_generation_tokens", "Most tokens a choice generated.") \
    X(request_max_tokens, BUCKETS_TOKENS, "request_params_max_tokens", "max_tokens of a request that has it.")        \
    X(request_computed, BUCKETS_TOKENS, "request_prefill_kv_computed_tokens", "Prompt tokens that were not cached.")  \
    X(request_n, BUCKETS_N, "request_params_n", "n of a request.")

/* Of the engine's steps. X(field of struct engine_stats, buckets, inferd_NAME, vllm:NAME or "", help) */
#define METRICS_STEP_HISTOGRAMS(X)                                                                                     \
    X(step_tokens, BUCKETS_STEP_TOKENS, "step_tokens", "iteration_tokens_total", "Tokens of a step.")                 \
    X(step_sequences, BUCKETS_STEP_SEQUENCES, "step_sequences", "", "Sequences that had a part in a step.")           \
    X(step_seconds, BUCKETS_STEP_SECONDS, "step_seconds", "", "Time of a step.")                                      \
    X(sampling_seconds, BUCKETS_STEP_SECONDS, "step_sampling_seconds", "",                                            \
      "Time of a step that went into sampling and telling tokens.")

#define METRICS_MAX_BUCKETS 24

struct histogram {
    uint64_t counts[METRICS_MAX_BUCKETS + 1]; /* of each bucket alone; the last: above all of them */
    double sum;
};

/* http_requests_total{handler,method,status}: one row for each route and method that it allows. */
#define METRICS_MAX_ENDPOINTS 32
#define METRICS_STATUS_CLASSES 3 /* 2xx, 4xx, 5xx */
struct endpoint_count {
    const char *handler, *method;
    uint64_t by_class[METRICS_STATUS_CLASSES];
    double request_bytes, response_bytes; /* sums */
    struct histogram seconds;
};

/* HTTP as Python servers count it: X(field of struct endpoint_count, name, help) */
#define METRICS_HTTP_SIZES(X)                                                                                          \
    X(request_bytes, "http_request_size_bytes", "Bytes of request bodies.")                                           \
    X(response_bytes, "http_response_size_bytes", "Bytes of the bodies of answers.")

struct metrics {
#define X(field, name, labels, help) uint64_t field;
    METRICS_COUNTERS(X)
#undef X
#define X(field, buckets, name, help) struct histogram field;
    METRICS_HISTOGRAMS(X)
#undef X
    uint64_t prompt_tokens, cached_tokens; /* of choices whose prompt was computed; cached: the part that was found */
    struct histogram http_seconds;         /* of all endpoints */
    struct endpoint_count endpoints[METRICS_MAX_ENDPOINTS];
    size_t n_endpoints;
};

enum metrics_buckets { BUCKETS_T, BUCKETS_I, BUCKETS_E, BUCKETS_TOKENS, BUCKETS_N,
                       BUCKETS_STEP_TOKENS, BUCKETS_STEP_SEQUENCES, BUCKETS_STEP_SECONDS, BUCKETS_HTTP, BUCKETS_HTTP_FINE };

#define metrics_observe(m, field, value) histogram_observe(&(m)->field, METRICS_BUCKETS_##field, (value))
#define X(field, buckets, name, help) METRICS_BUCKETS_##field = buckets,
enum { METRICS_HISTOGRAMS(X) };
#undef X
void histogram_observe(struct histogram *h, int buckets, double value);

/* The row of a route and method (both static); made on first use, so ask for all of them at start. */
size_t metrics_endpoint(struct metrics *m, const char *handler, const char *method);
struct answer_facts {
    int status;
    uint64_t request_bytes, response_bytes; /* of the bodies */
    double seconds;                         /* from the headers to the last byte */
};
void metrics_count_answer(struct metrics *m, size_t endpoint, const struct answer_facts *a);

/* Of the GPU, where one is watched (gpu_monitor.h); label gpu: CUDA's number of it. X(value, type, name, labels, help) */
#define METRICS_GPU(X)                                                                                                 \
    X(GPU_UP, "gauge", "inferd_gpu_up", "", "1 while the driver answers for the GPU.")                                \
    X(GPU_MEMORY_USED, "gauge", "inferd_gpu_memory_used_bytes", "", "Memory of the GPU in use, by all processes.")    \
    X(GPU_MEMORY_TOTAL, "gauge", "inferd_gpu_memory_total_bytes", "", "Memory of the GPU.")                           \
    X(GPU_TEMPERATURE, "gauge", "inferd_gpu_temperature_celsius", "", "Temperature of the GPU.")                      \
    X(GPU_POWER, "gauge", "inferd_gpu_power_watts", "", "Power that the GPU draws.")                                  \
    X(GPU_ENERGY, "counter", "inferd_gpu_energy_joules_total", "", "Energy used since the driver was loaded.")        \
    X(GPU_BUSY, "gauge", "inferd_gpu_busy_ratio", "", "Share of the time in which anything ran on the GPU, 0 to 1.")  \
    X(GPU_ECC_CORRECTED, "counter", "inferd_gpu_ecc_errors_total", "severity=\"corrected\"",                          \
      "Errors of the GPU's memory since the driver was loaded.")                                                      \
    X(GPU_ECC_UNCORRECTED, "counter", "inferd_gpu_ecc_errors_total", "severity=\"uncorrected\"", "")                  \
    X(GPU_XIDS, "counter", "inferd_gpu_xid_errors_total", "", "Xid errors that the driver reported since the start.") \
    X(GPU_LAST_XID, "gauge", "inferd_gpu_last_xid", "", "Number of the last Xid error, 0 before the first.")

/* inferd_gpu_throttled{reason}: X(bit of NVML's clocks event reasons, reason) */
#define METRICS_GPU_THROTTLE(X)                                                                                        \
    X(0x04, "sw_power_cap")                                                                                           \
    X(0x08, "hw_slowdown")                                                                                            \
    X(0x10, "sync_boost")                                                                                             \
    X(0x20, "sw_thermal")                                                                                             \
    X(0x40, "hw_thermal")                                                                                             \
    X(0x80, "hw_power_brake")

struct metrics_view {
    double running, waiting, ready; /* requests */
    double waiting_tokens;          /* of their prompts */
    double preparing;               /* choices that are being parsed and tokenised */
    struct engine_stats stats;       /* of all engines together */
    const struct engine_stats *each; /* [n_engines]; zeros while loading */
    size_t n_engines;
    const char *model; /* the served name */
    double last_step_age; /* s, see watchdog_silence */
    double max_sequences, max_waiting; /* settings */
    const char *backend; /* where the engine computes; "" while loading */
    /* vllm:cache_config_info; zeros while loading */
    size_t kv_block_size, kv_blocks, max_model_len;
    size_t memory_planned[ENGINE_MEMORY_KINDS], memory_used[ENGINE_MEMORY_KINDS]; /* bytes; zeros while loading */
    double load_seconds[ENGINE_LOAD_PHASES];                                      /* zeros while loading */
    const double *gpu; /* [GPU_VALUES], NULL where none is watched */
    size_t gpu_ordinal;
};

#define METRICS_CONTENT_TYPE "text/plain; version=0.0.4; charset=utf-8"
void metrics_write(const struct metrics *m, const struct metrics_view *view, struct buf *out);

#endif
