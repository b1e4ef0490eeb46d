/*
 * The engine as its users see it (serve, chat, bench): open a model, submit requests, poll events, cancel.
 * Names neither tensors nor HTTP. One thread of its own runs schedule, run, sample, deliver.
 *
 * Threads: submit, cancel, poll and stats may be called from any one thread at a time besides the engine's own
 * (the server: the loop thread; submit and cancel also from others). Events of one request come in order, and the
 * last one is terminal (DONE or ERROR); nothing comes after it. A request whose submit failed has no events.
 */
#ifndef INFERD_ENGINE_H
#define INFERD_ENGINE_H

#include <inferd/error.h>
#include <inferd/text.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct engine;

struct engine_config {
    const char *model;          /* path */
    const char *chat_template;  /* for text_choose_chat_template; NULL = the model's own */
    const char *device;         /* "auto", "cpu", "cuda", "cuda:N", "null" */
    const char *cpu_variant;    /* NULL = best */
    const char *weights;        /* "auto": as the file has them; "int8": W8A8, "int8-weight-only", "bf16": made at load */
    const char *kv_dtype;       /* "f16", "bf16", "int8" */
    size_t threads;             /* 0 = all the process may use */
    size_t max_model_len;       /* 0 = the model's own, cut down to what KV memory holds */
    size_t max_sequences;       /* sequences in one step */
    size_t max_batched_tokens;  /* tokens in one step */
    size_t max_waiting;         /* queued requests; beyond: ERROR_QUEUE_FULL */
    size_t max_waiting_tokens;  /* prompt tokens of queued requests; beyond: ERROR_QUEUE_FULL; 0 = no bound */
    const char *scheduling;     /* "fcfs": in order of arrival; "priority": lower priority first, then arrival */
    double priority_ageing;     /* s of waiting that are worth one level of priority, 0 = never */
    bool prefix_cache;          /* blocks of computed tokens are kept and found again */
    size_t speculative_tokens;  /* most tokens drafted in a step for a request that does not say; 0 = off */
    const char *cuda_module;    /* the file; NULL = beside the executable or where it was installed */
    const char *cache_folder;   /* where a device may keep what it measured, NULL = nowhere */
    bool batch_invariant;       /* on a GPU: the same bits whatever else is in a step (a CPU's always are) */
    bool cuda_graphs;           /* decode steps are recorded at open and launched as a whole */
    uint64_t null_step_ns;      /* device "null" alone: how long a step takes */
    size_t kv_block_size;       /* tokens in a KV block, a power of two 8..256 */
    double memory_utilization;  /* share of the device's memory that may be used, (0, 1] */
    size_t kv_tokens;           /* 0 = from memory_utilization (and no more than max_sequences * max_model_len); else exactly */
    /* While engine_open runs, on another thread: `done` of `all` bytes of weights are loaded; done == all once they are, and
     * again at each step of what follows. NULL = nobody wants to know. */
    void (*on_progress)(void *arg, uint64_t done, uint64_t all);
    void *progress_arg; /* valid while engine_open runs */
    size_t tensor_parallel;   /* ranks that share each layer, threads of this process; 0 = 1. CUDA: devices N, N + 1, .. */
    size_t pipeline_parallel; /* stages that share the layers, a process each; 0 = 1. Not the first: engine_follow */
    size_t replica, n_replicas; /* which engine of this process it is, 0 of 0 = the only one: they share the processors out */
    double rank_timeout;      /* s that ranks wait for one of them before all is lost (ERROR_DEVICE); 0 = 30 */
};
void engine_config_default(struct engine_config *c);

/* What memory is for. MARGIN: what is left free. */
enum engine_memory {
    ENGINE_MEMORY_WEIGHTS,
    ENGINE_MEMORY_WORKSPACE, /* activations, logits, the arrays of a step */
    ENGINE_MEMORY_GRAPHS,
    ENGINE_MEMORY_CONTEXT, /* of a device: the driver's, libraries', other processes' */
    ENGINE_MEMORY_KV,
    ENGINE_MEMORY_MARGIN,
    ENGINE_MEMORY_KINDS
};

/* What engine_open does, in this order. */
enum engine_load_phase {
    ENGINE_LOAD_TEXT,   /* tokenizer and chat template */
    ENGINE_LOAD_DEVICE, /* the model's headers, and the device that will compute */
    ENGINE_LOAD_WEIGHTS,
    ENGINE_LOAD_MEMORY,    /* workspace, KV, the arrays of a step */
    ENGINE_LOAD_WARM_UP,   /* what a device runs once: choice of algorithms, graphs */
    ENGINE_LOAD_SELF_TEST, /* the first step */
    ENGINE_LOAD_PHASES
};

struct engine_rank;

struct engine_info {
    const char *architecture; /* "llama", "qwen2", ... */
    const char *model_name;   /* from the file's metadata, or its file name */
    const char *backend;      /* "cpu" */
    const char *device;       /* for people */
    const char *device_why;   /* device "auto": what was chosen and why, a sentence without its end; else "" */
    const char *variant;      /* "avx512" */
    size_t threads;
    size_t n_layers, n_parameters;
    const char *weights; /* number format of the layers' matrices: "BF16", "Q4_1", "I8", "I8 (W8A8)"; static */
    size_t vocab_size;
    size_t max_model_len;
    size_t kv_blocks, kv_block_size;
    size_t weight_bytes, kv_bytes, workspace_bytes;
    size_t memory_planned[ENGINE_MEMORY_KINDS]; /* bytes: as computed before they were taken, and as they are */
    size_t memory_used[ENGINE_MEMORY_KINDS];
    double load_seconds[ENGINE_LOAD_PHASES];
    size_t tensor_parallel, pipeline_parallel;
    size_t n_ranks;                  /* of this process */
    const struct engine_rank *ranks; /* [n_ranks], lives as long as the engine */
};

/* A rank as it started. */
struct engine_rank {
    char device[128], links[256]; /* for people; links: how it reaches its peers, "" if it has none */
    size_t threads, weight_bytes, kv_blocks; /* kv_blocks: what its own memory holds; the smallest number rules */
};

/* Load the model, take all memory, run one self-test token, start the thread. Blocks (seconds). */
int engine_open(const struct engine_config *config, struct engine **out, struct error *err);
/* Cancels what runs, waits for the thread, frees all. NULL is fine. Events not polled are lost. */
void engine_close(struct engine *e);

/*
 * Of a pipeline (pipeline_parallel > 1) one process calls engine_open, the leader; the others call engine_follow, which loads the
 * process's stage of the model, calls started(arg), and returns 0 when the leader has said goodbye, or ERROR_DEVICE when it or another
 * node is lost. engine_node: which of the processes that were started together this one is, as the environment has it; 0 = the leader.
 * ERROR_INVALID if they are not pipeline_parallel: to be asked before anything that only the leader does, such as listening, and before
 * there are threads, since it completes the environment for NCCL.
 */
int engine_follow(const struct engine_config *config, void (*started)(void *arg), void *arg, struct error *err);
int engine_node(size_t pipeline_parallel, size_t *node, struct error *err);

const struct text *engine_text(const struct engine *e);
void engine_get_info(const struct engine *e, struct engine_info *out);

#define ENGINE_MAX_SEQUENCES 65535 /* computed together: as many blocks as the grid of a CUDA kernel has in y and z */
#define ENGINE_MAX_STOP 16        /* stop strings of a request */
#define ENGINE_MAX_STOP_LEN 256   /* bytes of one */
#define ENGINE_MAX_STOP_IDS 64
#define ENGINE_MAX_LOGIT_BIAS 1024
#define ENGINE_MAX_TOP_LOGPROBS 20
#define ENGINE_MAX_SPECULATIVE 16 /* tokens drafted for a sequence in a step */
#define ENGINE_MAX_BAD_WORDS 256    /* token sequences: each of 128 words with and without a leading space */
#define ENGINE_MAX_BAD_WORD_IDS 64  /* tokens of one */
#define ENGINE_MAX_DRY_BREAKERS 32
#define ENGINE_MAX_DRY_BREAKER_LEN 64 /* bytes of one */
#define ENGINE_MAX_PATTERN 1024       /* tokens in a pattern of repetition detection, and how often it may come */

struct logit_bias {
    int32_t id;
    float bias;
};

struct meta_stop { /* a stop string, or another text of a request */
    const char *bytes;
    size_t len;
};

struct token_sequence {
    const int32_t *ids;
    size_t n; /* >= 1 */
};

/* The steps from logits to a choice that may be put in another order, or left out. */
enum sampler_stage {
    SAMPLER_PENALTIES,
    SAMPLER_DRY,
    SAMPLER_TOP_N_SIGMA,
    SAMPLER_TOP_K,
    SAMPLER_TYPICAL_P,
    SAMPLER_TOP_P,
    SAMPLER_MIN_P,
    SAMPLER_XTC,
    SAMPLER_TEMPERATURE,
    SAMPLER_STAGES /* how many there are */
};

struct sampler_order {
    uint8_t n;
    uint8_t stages[SAMPLER_STAGES]; /* [n] enum sampler_stage, none twice */
};

/*
 * From names like "penalties;dry;temperature;min_p;top_k;typ_p;top_p;xtc" (';' or ',' between them, spaces ignored; the
 * names are llama.cpp's). ERROR_INVALID, param "samplers", for a name that is unknown or comes twice.
 */
int engine_sampler_order(const char *names, size_t len, struct sampler_order *out, struct error *err);

/*
 * Defaults (engine_sampling_default): everything neutral, the order of ENGINE_SAMPLER_ORDER. The formulas and their
 * sources stand in engine/sampler.h.
 */
#define ENGINE_SAMPLER_ORDER "penalties;dry;temperature;top_n_sigma;min_p;top_k;typ_p;top_p;xtc"
struct sampling {
    float temperature; /* [0, 2]; below 1e-5 greedy */
    float top_p;       /* (0, 1] */
    int32_t top_k;     /* 0 or -1 = off */
    float min_p;       /* [0, 1] */
    float presence_penalty, frequency_penalty; /* [-2, 2], over generated tokens (OpenAI) */
    float repetition_penalty;                  /* > 0, over prompt and generated tokens (Keskar et al. 2019) */
    int32_t repeat_last_n;  /* how many of the last tokens these three look at; -1 = all, 0 = none */
    float typical_p;        /* (0, 1], 1 = off */
    float top_n_sigma;      /* [0, 100], 0 = off */
    float xtc_probability;  /* [0, 1], 0 = off */
    float xtc_threshold;    /* [0, 1], above 0.5 = off */
    float dynatemp_range;   /* [0, 2], 0 = off: temperature between t - range and t + range, by the entropy */
    float dynatemp_exponent; /* [0, 100] */
    float dry_multiplier;   /* [0, 100], 0 = off */
    float dry_base;         /* [1, 100] */
    int32_t dry_allowed_length; /* [1, 2^20] */
    int32_t dry_penalty_last_n; /* -1 = all, 0 = off */
    const struct meta_stop *dry_breakers; /* [n_dry_breakers] texts that no repetition reaches across, none empty */
    size_t n_dry_breakers;
    int32_t mirostat;       /* 0 = off, 1, 2: in place of top_n_sigma, top_k, typ_p, top_p, min_p and xtc */
    float mirostat_tau;     /* [0, 100] bits of surprise that are aimed at */
    float mirostat_eta;     /* [0, 1] learning rate */
    int32_t min_keep;       /* [0, 2^20]: typ_p, top_p, min_p and xtc leave at least so many tokens; 0 = 1 */
    struct sampler_order order;
    const struct token_sequence *bad_words; /* [n_bad_words] sequences that the answer must not contain */
    size_t n_bad_words;
    const int32_t *allowed_ids; /* [n_allowed_ids] no other token may come; NULL = all may */
    size_t n_allowed_ids;
    bool has_seed;
    uint64_t seed;
    uint32_t choice; /* which of n: enters the generator's key, so choices of one seed differ */
    const struct logit_bias *logit_bias;
    size_t n_logit_bias;
    int32_t n_logprobs; /* -1 = none; 0..20: the chosen token's logprob and this many top ones */
};
void engine_sampling_default(struct sampling *s);

struct engine_request {
    uint64_t id; /* the caller's, unique among live requests */
    const int32_t *prompt; /* [n_prompt], ids in [0, vocab_size), n_prompt >= 1 */
    size_t n_prompt;
    size_t max_tokens; /* 0 = up to the context */
    size_t min_tokens; /* end ids are masked before */
    struct sampling sampling;
    const struct meta_stop *stop; /* [n_stop] stop strings, none empty */
    size_t n_stop;
    const int32_t *stop_ids; /* [n_stop_ids] beside the model's end ids */
    size_t n_stop_ids;
    bool include_stop; /* the stop string stays in the text */
    bool ignore_eos;
    bool skip_special; /* special tokens are left out of the text */

    int32_t priority;        /* lower first; counts when scheduling is "priority" */
    uint64_t tenant;         /* whose request it is (an API key): tenants get fair shares; 0 = nobody's */
    uint32_t tenant_cost;    /* its share is the smaller the larger this is: work counts so many times; 0 = once */
    uint8_t cache_salt[32];  /* prefix-cache blocks are shared among equal salts only */
    uint64_t parent;         /* id of a live request with the same prompt and salt, submitted before, whose KV of the
                                prompt this one shares; 0 = none. A parent that is gone or another does no harm. */
    int32_t speculative_tokens; /* most tokens drafted in a step; 0 = off, -1 = the engine's setting */
    int32_t n_prompt_logprobs;  /* -1 = none; 0..20: logprobs of the prompt's tokens, and this many top ones */
    /* The answer ends (FINISH_REPETITION) when its last min_count * size tokens are min_count times the same `size`
     * tokens, for a size in min_size..max_size; max_size 0 = never. min_count >= 2. */
    uint32_t repetition_max_size, repetition_min_size, repetition_min_count;
    bool score_only;            /* nothing is generated: the prompt's logprobs, then DONE; max_tokens is ignored */
};
/* All zero but for what has another neutral value (sampling, speculative_tokens and n_prompt_logprobs -1). */
void engine_request_default(struct engine_request *r);

/*
 * Queue a request (everything is copied). ERROR_INVALID (err->param set) for values out of range,
 * ERROR_CONTEXT_LENGTH when prompt + 1 (or + max_tokens) passes max_model_len, ERROR_QUEUE_FULL, ERROR_UNAVAILABLE when draining.
 */
int engine_submit(struct engine *e, const struct engine_request *r, struct error *err);

/* Ask that a request end: it marks; the step boundary frees and sends DONE/CANCELLED. Unknown ids do nothing. */
void engine_cancel(struct engine *e, uint64_t id);

enum finish_reason { FINISH_STOP, FINISH_LENGTH, FINISH_CANCELLED, FINISH_ERROR, FINISH_REPETITION };

/* PROMPT: one token of the prompt with its logprob, in order, before the first TOKEN (n_prompt_logprobs >= 0); the
 * first one has no logprob (nothing comes before it): NaN. */
enum engine_event_kind {
    ENGINE_EVENT_STARTED,
    ENGINE_EVENT_PROMPT,
    ENGINE_EVENT_TOKEN,
    ENGINE_EVENT_DONE,
    ENGINE_EVENT_ERROR,
};

struct token_logprob {
    int32_t id;
    float logprob;
};

#define ENGINE_EVENT_TEXT 1536 /* >= DETOKENIZER_MAX_OUT + ENGINE_MAX_STOP_LEN */

struct engine_event {
    uint64_t id;
    enum engine_event_kind kind;
    /* TOKEN: one generated token. `text` is what may be shown now: whole characters, nothing that may still
     * become a stop string; may be empty. DONE: text is what was held back (no stop string: cut there).
     * The token of an end id or stop id is counted in completion_tokens but has no TOKEN event, unless include_stop. */
    int32_t token;    /* -1 when the event has no token */
    float logprob;    /* of `token`, natural log, from the unmodified logits after softmax */
    uint32_t rank;    /* PROMPT: of `token`, 1 = the likeliest; 0 where there is no logprob */
    uint16_t n_top, text_len;
    struct token_logprob top[ENGINE_MAX_TOP_LOGPROBS]; /* [n_top], best first */
    char text[ENGINE_EVENT_TEXT]; /* UTF-8, not NUL-terminated */
    /* DONE */
    enum finish_reason finish;
    int32_t stop_index; /* which stop string ended it, -1 otherwise */
    int32_t stop_token; /* which stop id ended it (not the model's own end ids), -1 otherwise */
    uint32_t prompt_tokens, completion_tokens, cached_tokens;
    /* ERROR */
    struct error error;
};

/* Called on the engine thread whenever events wait (coalesced): must only wake the poller. */
void engine_set_notify(struct engine *e, void (*notify)(void *arg), void *arg);
/* Take at most one event; false if none waits. Never blocks. */
bool engine_poll(struct engine *e, struct engine_event *out);
/* How many engine_poll will surely give now: what is left of the batch that it gives from. */
size_t engine_pending(const struct engine *e);
/* The ids of the next events among these, at most n; returns how many. */
size_t engine_peek(const struct engine *e, uint64_t *ids, size_t n);
/* Wait up to timeout_ms for an event (for programs without a loop). */
bool engine_wait(struct engine *e, struct engine_event *out, int timeout_ms);

/* Refuse new requests from now on. Running ones go on. */
void engine_drain(struct engine *e);

/* Upper bounds of the buckets of histograms over steps; what is above all of them is counted in one more. */
#define ENGINE_STEP_TOKENS_BOUNDS 1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384
#define ENGINE_STEP_SEQUENCES_BOUNDS 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024
#define ENGINE_STEP_SECONDS_BOUNDS                                                                                     \
    .0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10
#define ENGINE_STEP_BUCKETS 18
struct engine_histogram {
    uint64_t counts[ENGINE_STEP_BUCKETS]; /* of each bucket alone */
    double sum;
};

struct engine_stats {
    uint64_t running, waiting;          /* gauges; running = sequences that hold KV or are scheduled */
    uint64_t kv_blocks_used, kv_blocks; /* gauges */
    uint64_t kv_blocks_cached;                                /* gauge: unreferenced, but their tokens can be found again */
    uint64_t waiting_tokens;                                  /* gauge: prompt tokens of queued requests */
    uint64_t prompt_tokens, generation_tokens;                /* counters */
    uint64_t prefix_cache_queries, cached_tokens;             /* prompt tokens looked up; of these found in the cache */
    uint64_t drafts, drafted_tokens, accepted_tokens;         /* speculation: drafts made; tokens in them; kept */
    uint64_t accepted_at[ENGINE_MAX_SPECULATIVE];             /* of these, by their place in the draft */
    uint64_t steps, preemptions;
    uint64_t steps_ahead; /* of these, queued on the device before the tokens of the step before were known */
    uint64_t forks; /* children that began with the KV of their parent */
    uint64_t nonfinite_logits;
    uint64_t last_step_ns; /* clock_now_ns of the last finished step */
    bool idle;             /* nothing to do */
    struct engine_histogram step_tokens;      /* tokens computed in a step */
    struct engine_histogram step_sequences;   /* sequences that had a part in it */
    struct engine_histogram step_seconds;     /* s a step took */
    struct engine_histogram sampling_seconds; /* s of it spent on sampling and telling the tokens */
};
/* Why nothing can be computed any more (ERROR_DEVICE): every request ended with this error, and new ones do; NULL while all
 * is well. The program should end and be started again. Any thread. */
const struct error *engine_lost(const struct engine *e);
void engine_get_stats(const struct engine *e, struct engine_stats *out); /* any thread */

/* `inferd inspect`: describe the file(s) of a model without loading weights. */
int engine_inspect(const char *path, bool json, struct buf *out, struct error *err);

#endif
