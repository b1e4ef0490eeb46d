/*
 * Prefill and decode as the engine runs them, without requests: the runner's steps and the sampler, over streams that all have
 * the same length.
 */
#include <inferd/bench.h>

#include "bench_model.h"
#include "runner.h"
#include "sampler.h"

#include <inferd/clock.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define KEEP_FREE 0.85 /* of the available memory, the share that a shape may take */

struct bench {
    struct runner runner;
    struct sampler sampler;
    struct sampling greedy;
    size_t chunk, block_size;
    size_t n_layers;        /* of the model as it is meant */
    size_t measured;        /* of the model in memory */
    size_t blocks_a_stream; /* of the case that runs */
    int32_t *tokens;        /* [max_sequences] the last of each stream */
    struct choice_row *choices; /* [max_sequences] of a device that chooses by itself */
    int32_t *kept;          /* [max_sequences] tokens of each stream in KV, in this case */
    uint64_t random;
    uint64_t sampling_ns;
};

static size_t round_up(size_t n, size_t to) {
    return (n + to - 1) / to * to;
}

/* ---- opening ------------------------------------------------------------------------------------------------- */

static size_t case_length(const struct bench_case *c) {
    return c->context + (c->kind == BENCH_DECODE ? c->steps : 0);
}

/* What the cases need of the engine. */
static int plan_cases(const struct bench_config *config, struct engine_config *c, struct error *err) {
    size_t streams = 1, length = 1, tokens = 1;
    for (size_t i = 0; i < config->n_cases; i++) {
        const struct bench_case *x = &config->cases[i];
        size_t n = case_length(x), kv;
        if (x->streams == 0 || x->context == 0 || (x->kind == BENCH_DECODE && x->steps == 0) || x->streams > ENGINE_MAX_SEQUENCES ||
            n > (size_t)1 << 24) {
            return error_set(err, ERROR_INVALID, "streams, contexts and steps must be 1 at least, and no more than a machine holds");
        }
        kv = x->streams * round_up(n, c->kv_block_size);
        streams = x->streams > streams ? x->streams : streams;
        length = n > length ? n : length;
        tokens = kv > tokens ? kv : tokens;
    }
    c->max_sequences = streams;
    c->max_batched_tokens = config->chunk > streams ? config->chunk : streams;
    c->max_model_len = length;
    c->kv_tokens = tokens;
    return 0;
}

/* Bytes that a shape of n layers takes here, its weights as they are made and as they are computed from. */
static double shape_need(const struct bench_shape *s, const struct engine_config *c, enum dtype dtype, size_t n) {
    size_t layer, rest;
    if (!bench_shape_bytes(s, dtype, &layer, &rest)) {
        return 1e30;
    }
    double kv_bytes = (double)n * 4.0 * (double)(s->n_kv_heads * s->head_dim) * (double)c->kv_tokens;
    double rows = 4.0 * (double)c->max_batched_tokens * (double)(5 * s->n_embd + 2 * s->n_ff + 3 * s->n_heads * s->head_dim) +
                  4.0 * (double)c->max_sequences * (double)s->vocab_size;
    double made = strncmp(c->weights, "int8", 4) == 0 ? 1.5 : dtype == DTYPE_F32 || dtype == DTYPE_F16 || dtype == DTYPE_BF16 ? 1.0 : 2.0;
    return ((double)n * (double)layer + (double)rest) * made + kv_bytes + rows;
}

/* The shape into memory, as many layers as have place. `available` counts what it takes itself. */
static int make_shape(struct bench *b, const struct bench_config *config, struct engine_config *c, size_t available, int *fd,
                      char path[BENCH_MODEL_PATH], struct error *err) {
    const struct bench_shape *s;
    enum dtype dtype;
    if (bench_shape_find(config->shape, &s, &dtype, err) < 0) {
        return -1;
    }
    size_t n = s->n_layers, layer, rest;
    if (!bench_shape_bytes(s, dtype, &layer, &rest)) {
        return error_set_param(err, ERROR_INVALID, "shape", "the rows of %s are no whole number of blocks of type %s (%zu)", s->name,
                               dtype_info(dtype)->name, dtype_info(dtype)->block);
    }
    while (n > 0 && shape_need(s, c, dtype, n) > KEEP_FREE * (double)available) {
        n--;
    }
    if (n == 0) {
        return error_set(err, ERROR_DOES_NOT_FIT, "not even one layer of %s has place in %zu MiB of memory", s->name, available >> 20);
    }
    b->n_layers = s->n_layers;
    b->measured = n;
    return bench_model_make(s, n, dtype, c->max_model_len, fd, path, err);
}

static int open_all(struct bench *b, const struct bench_config *config, struct error *err) {
    struct engine_config c = config->engine;
    char path[BENCH_MODEL_PATH];
    size_t available;
    int fd = -1;
    if (plan_cases(config, &c, err) < 0 || memory_available(&available, err) < 0) {
        return -1;
    }
    c.weights = c.weights ? c.weights : "auto";
    if (config->shape) {
        if (make_shape(b, config, &c, available, &fd, path, err) < 0) {
            return -1;
        }
        c.model = path;
        c.cuda_graphs &= b->measured == b->n_layers; /* what is recorded does not hear of fewer layers */
    }
    int rc = runner_open_within(&b->runner, &c, 0, available, err);
    if (fd >= 0) {
        close(fd);
    }
    if (rc < 0) {
        return -1;
    }
    struct runner *r = &b->runner;
    if (!config->shape) {
        b->n_layers = b->measured = r->decoder->config.n_layers;
    }
    b->chunk = config->chunk < r->max_rows ? config->chunk : r->max_rows;
    b->block_size = c.kv_block_size;
    b->tokens = calloc(r->max_sequences, sizeof *b->tokens);
    b->kept = calloc(r->max_sequences, sizeof *b->kept);
    b->choices = calloc(r->max_sequences, sizeof *b->choices);
    if (!b->tokens || !b->kept || !b->choices) {
        return error_memory(err);
    }
    for (size_t i = 0; i < r->max_sequences; i++) {
        b->choices[i] = (struct choice_row){.logits_row = i, .repetition_penalty = 1, .greedy = true, .min_keep = 1};
    }
    return sampler_init(&b->sampler, r->decoder->config.vocab_size, r->kv.max_model_len, err);
}

int bench_open(const struct bench_config *config, struct bench **out, struct error *err) {
    struct bench *b = calloc(1, sizeof *b);
    if (!b) {
        return error_memory(err);
    }
    b->random = 1;
    engine_sampling_default(&b->greedy);
    b->greedy.temperature = 0;
    b->greedy.n_logprobs = -1;
    if (open_all(b, config, err) < 0) {
        bench_close(b);
        return -1;
    }
    *out = b;
    return 0;
}

void bench_close(struct bench *b) {
    if (b) {
        sampler_destroy(&b->sampler);
        runner_close(&b->runner);
        free(b->tokens);
        free(b->kept);
        free(b->choices);
        free(b);
    }
}

/* ---- what there is to do ------------------------------------------------------------------------------------- */

static size_t bytes_of(const struct weight *w) {
    return w->n * w->row_bytes + (w->dtype == DTYPE_I8 ? w->n * sizeof(float) : 0);
}

struct layer_size {
    double bytes, elements; /* of its matrices */
};

static struct layer_size layer_size(const struct bench *b, size_t layer) {
    struct layer_size s = {0};
    for (size_t r = 0; r < b->runner.n_ranks; r++) {
        const struct layer_weights *w = &b->runner.ranks[r].decoder.weights.layers[layer];
        const struct weight *matrices[] = {&w->q, &w->k, &w->v, &w->o, &w->gate, &w->up, &w->down};
        for (size_t i = 0; i < sizeof matrices / sizeof matrices[0]; i++) {
            s.bytes += (double)bytes_of(matrices[i]);
            s.elements += (double)matrices[i]->n * (double)matrices[i]->k;
        }
    }
    return s;
}

/* Sums over the layers as they are meant: those in memory, drawn on. */
static struct layer_size all_layers(const struct bench *b) {
    struct layer_size sum = {0};
    for (size_t i = 0; i < b->measured; i++) {
        struct layer_size s = layer_size(b, i);
        sum.bytes += s.bytes;
        sum.elements += s.elements;
    }
    double times = (double)b->n_layers / (double)b->measured;
    return (struct layer_size){sum.bytes * times, sum.elements * times};
}

static double kv_token_bytes(const struct bench *b) {
    return (double)b->runner.kv_token_bytes * (double)b->n_layers / (double)b->measured;
}

/* Of all ranks. */
static double head_bytes(const struct bench *b) {
    double sum = 0;
    for (size_t i = 0; i < b->runner.n_ranks; i++) {
        sum += (double)bytes_of(weights_head(&b->runner.ranks[i].decoder.weights));
    }
    return sum;
}

static double embedding_bytes(const struct bench *b) {
    double sum = 0;
    for (size_t i = 0; i < b->runner.n_ranks; i++) {
        sum += (double)bytes_of(&b->runner.ranks[i].decoder.weights.embed);
    }
    return sum;
}

/* Count a step: `rows` rows, of which `logits` go through the head; a row at position p sees p + 1 keys. */
static void count_step(const struct bench *b, struct bench_result *out) {
    const struct model_config *c = &b->runner.model;
    const struct decoder_batch *s = &b->runner.batch;
    const struct weight *embed = &b->runner.decoder->weights.embed;
    struct layer_size layers = all_layers(b);
    double seen = 0, kept = 0;
    for (size_t i = 0; i < s->rows; i++) {
        seen += (double)s->positions[i] + 1;
    }
    for (size_t i = 0; i < s->n_sequences; i++) {
        kept += (double)s->context_lens[i];
    }
    out->bytes += layers.bytes + (double)embed->row_bytes * (double)s->rows + kept * kv_token_bytes(b) +
                  (s->n_logits > 0 ? head_bytes(b) : 0);
    out->operations += 2 * layers.elements * (double)s->rows + 2 * (double)c->vocab_size * (double)c->n_embd * (double)s->n_logits +
                       4 * seen * (double)model_config_q_dim(c) * (double)b->n_layers;
}

void bench_get_info(const struct bench *b, struct bench_info *out) {
    const struct runner *r = &b->runner;
    const struct decoder *d = r->decoder;
    struct layer_size all = all_layers(b);
    const struct weight *first = &d->weights.layers[0].gate;
    bool tied = r->model.tied_head;
    double tables = (double)d->config.vocab_size * (double)d->config.n_embd * (tied ? 1 : 2);
    *out = (struct bench_info){
        .architecture = d->config.arch->name,
        .backend = r->backend_info.name,
        .variant = r->backend_info.variant,
        .device = r->backend_info.device,
        .threads = r->n_threads,
        .n_layers = b->n_layers,
        .n_layers_measured = b->measured,
        .n_parameters = (size_t)(all.elements + tables),
        .weight_bytes = (size_t)(all.bytes + embedding_bytes(b) + (tied ? 0 : head_bytes(b))),
        .kv_token_bytes = (size_t)kv_token_bytes(b),
        .vocab_size = d->config.vocab_size,
        .weight_dtype = first->dtype,
        .int8_activations = first->dtype == DTYPE_I8 && first->activation != ACTIVATION_FLOAT,
    };
}

int bench_measure(struct bench *b, struct backend_limits *out, struct error *err) {
    if (!b->runner.ops->measure) {
        *out = (struct backend_limits){0};
        return 0;
    }
    return b->runner.ops->measure(b->runner.backend, out, err);
}

/* ---- steps --------------------------------------------------------------------------------------------------- */

/* xorshift64* (Vigna 2016) */
static int32_t any_token(struct bench *b) {
    b->random ^= b->random >> 12;
    b->random ^= b->random << 25;
    b->random ^= b->random >> 27;
    return (int32_t)((b->random * 0x2545f4914f6cdd1du >> 32) % b->runner.decoder->config.vocab_size);
}

static void batch_begin(struct bench *b) {
    struct decoder_batch *s = &b->runner.batch;
    s->rows = s->n_sequences = s->n_logits = s->n_copies = 0;
    s->cu_seqlens[0] = 0;
}

/* n more rows of a stream, behind what KV has of it; logits of the last one if asked for. */
static void batch_add(struct bench *b, size_t stream, size_t n, const int32_t *tokens, bool logits) {
    struct decoder_batch *s = &b->runner.batch;
    size_t first_block = stream * b->blocks_a_stream;
    int32_t *table = s->block_tables + s->n_sequences * s->max_blocks;
    for (size_t i = 0; i < n; i++) {
        int32_t position = b->kept[stream]++;
        s->token_ids[s->rows] = tokens ? tokens[i] : any_token(b);
        s->positions[s->rows] = position;
        s->slot_mapping[s->rows] = (int32_t)(first_block * b->block_size) + position;
        s->rows++;
    }
    for (size_t i = 0; i * b->block_size < (size_t)b->kept[stream]; i++) {
        table[i] = (int32_t)(first_block + i);
    }
    s->context_lens[s->n_sequences++] = b->kept[stream];
    s->cu_seqlens[s->n_sequences] = (int32_t)s->rows;
    if (logits) {
        s->logit_rows[s->n_logits++] = (int32_t)s->rows - 1;
    }
}

/* Queue the batch and the choice of its tokens; `fed`: it takes its own from the choice before. */
static int batch_queue(struct bench *b, bool fed, struct bench_result *result, struct error *err) {
    struct runner *r = &b->runner;
    size_t vocab = r->decoder->config.vocab_size;
    if (result) {
        count_step(b, result);
    }
    return runner_start(r, &r->batch, fed, err) < 0
               ? -1
               : runner_choose(r, vocab, b->choices, r->batch.n_logits, err);
}

/* The tokens of the oldest choice that was not taken. */
static int batch_take(struct bench *b, int32_t *out, size_t n, struct error *err) {
    if (runner_chosen(&b->runner, out, n, err) < 0) {
        return -1;
    }
    for (size_t i = 0; i < n; i++) {
        if (out[i] < 0) {
            return error_set(err, ERROR_MODEL, "the model computes values that are not finite numbers");
        }
    }
    return 0;
}

/* Run the batch; out[i] = the token behind its i-th row of logits. */
static int batch_run(struct bench *b, int32_t *out, struct bench_result *result, struct error *err) {
    struct runner *r = &b->runner;
    if (r->ops->choose) {
        return batch_queue(b, false, result, err) < 0 ? -1 : batch_take(b, out, r->batch.n_logits, err);
    }
    if (result) {
        count_step(b, result);
    }
    if (runner_run(r, err) < 0) {
        return -1;
    }
    uint64_t start = clock_now_ns();
    for (size_t i = 0; i < r->batch.n_logits; i++) {
        const float *logits;
        struct sample sample = {0};
        if (r->ops->sample) {
            const struct sample_row row = {.logits_row = i, .greedy = true, .n_candidates = r->decoder->config.vocab_size};
            if (r->ops->sample(r->backend, &row, 1, &out[i], err) < 0) {
                return -1;
            }
            continue;
        }
        if (runner_get_logits(r, i, &logits, err) < 0) {
            return -1;
        }
        const struct sample_input in = {.logits = logits, .sampling = &b->greedy, .tokens = out, .n_prompt = 0, .n_tokens = 0};
        if (sampler_sample(&b->sampler, &in, &sample) != SAMPLE_OK) {
            return error_set(err, ERROR_MODEL, "the model computes values that are not finite numbers");
        }
        out[i] = sample.token;
    }
    b->sampling_ns += clock_now_ns() - start;
    return 0;
}

/* The prompts of all streams, `chunk` rows a step, one stream after the other as the scheduler would. */
static int prefill(struct bench *b, size_t streams, size_t context, struct bench_result *result, struct error *err) {
    memset(b->kept, 0, streams * sizeof *b->kept);
    for (size_t stream = 0, done = 0; stream < streams;) {
        size_t first = stream;
        batch_begin(b);
        while (stream < streams && b->runner.batch.rows < b->chunk) {
            size_t room = b->chunk - b->runner.batch.rows, left = context - done, n = left < room ? left : room;
            batch_add(b, stream, n, NULL, n == left);
            done += n;
            if (n == left) {
                stream++;
                done = 0;
            }
        }
        if (batch_run(b, b->tokens + first, result, err) < 0) {
            return -1;
        }
    }
    return 0;
}

/* KV of all streams is that of the first: what it says makes no difference to the time. */
static int copy_streams(struct bench *b, size_t streams, size_t context, struct error *err) {
    size_t blocks = round_up(context, b->block_size) / b->block_size;
    for (size_t stream = 1; stream < streams; stream++) {
        b->kept[stream] = b->kept[0];
        b->tokens[stream] = any_token(b);
        for (size_t i = 0; i < blocks; i++) {
            int32_t from = (int32_t)i, to = (int32_t)(stream * b->blocks_a_stream + i);
            if (runner_copy_block(&b->runner, from, to, err) < 0) {
                return -1;
            }
        }
    }
    return 0;
}

/* A step ahead, as the engine does where the device chooses: the next one is queued before the tokens are there. */
static int decode_ahead(struct bench *b, const struct bench_case *c, struct bench_result *result, struct error *err) {
    for (size_t step = 0; step < c->steps; step++) {
        batch_begin(b);
        for (size_t s = 0; s < c->streams; s++) {
            int32_t fed = -1 - (int32_t)s;
            batch_add(b, s, 1, step > 0 ? &fed : &b->tokens[s], true);
        }
        if (batch_queue(b, step > 0, result, err) < 0 || (step > 0 && batch_take(b, b->tokens, c->streams, err) < 0)) {
            return -1;
        }
    }
    return batch_take(b, b->tokens, c->streams, err);
}

static int decode(struct bench *b, const struct bench_case *c, struct bench_result *result, struct error *err) {
    if (b->runner.ops->choose) {
        return decode_ahead(b, c, result, err);
    }
    for (size_t step = 0; step < c->steps; step++) {
        batch_begin(b);
        for (size_t s = 0; s < c->streams; s++) {
            batch_add(b, s, 1, &b->tokens[s], true);
        }
        if (batch_run(b, b->tokens, result, err) < 0) {
            return -1;
        }
    }
    return 0;
}

/* Once, with as many layers as the decoder has just now: the seconds of it, and of the choice of tokens. */
static int time_case(struct bench *b, const struct bench_case *c, double *took, double *sampling, struct bench_result *result,
                     struct backend_profile *profile, struct error *err) {
    struct runner *r = &b->runner;
    b->blocks_a_stream = round_up(case_length(c), b->block_size) / b->block_size;
    if (c->kind == BENCH_DECODE && (prefill(b, 1, c->context, NULL, err) < 0 || copy_streams(b, c->streams, c->context, err) < 0)) {
        return -1;
    }
    if (runner_sync(r, err) < 0) {
        return -1;
    }
    if (profile && r->ops->profile(r->backend, true, NULL, err) < 0) {
        return -1;
    }
    b->sampling_ns = 0;
    uint64_t start = clock_now_ns();
    int rc = c->kind == BENCH_DECODE ? decode(b, c, result, err) : prefill(b, c->streams, c->context, result, err);
    *took = (double)(clock_now_ns() - start) * 1e-9;
    *sampling = (double)b->sampling_ns * 1e-9;
    struct error ignored;
    if (profile && r->ops->profile(r->backend, false, profile, rc < 0 ? &ignored : err) < 0) {
        return -1;
    }
    return rc;
}

static void set_layers(struct bench *b, size_t n) {
    for (size_t i = 0; i < b->runner.n_ranks; i++) {
        b->runner.ranks[i].decoder.config.n_layers = n;
    }
}

int bench_run(struct bench *b, const struct bench_case *c, bool profile, struct bench_result *out, struct error *err) {
    struct bench_result made = {.tokens = c->streams * (c->kind == BENCH_DECODE ? c->steps : c->context),
                                .threads = b->runner.n_threads};
    double took, sampling, fewer = 0, ignored;
    made.has_profile = profile && b->runner.ops->profile;
    if (time_case(b, c, &took, &sampling, &made, made.has_profile ? &made.profile : NULL, err) < 0) {
        return -1;
    }
    made.seconds = made.measured_seconds = took;
    made.sampling_seconds = sampling;
    if (b->measured < b->n_layers) { /* what is fixed and what a layer takes, from two numbers of layers */
        size_t half = b->measured / 2;
        set_layers(b, half);
        int rc = half > 0 ? time_case(b, c, &fewer, &ignored, NULL, NULL, err) : 0;
        set_layers(b, b->measured);
        if (rc < 0) {
            return -1;
        }
        double a_layer = half > 0 ? (took - fewer) / (double)(b->measured - half) : took / (double)b->measured;
        made.seconds = took + (a_layer > 0 ? a_layer : 0) * (double)(b->n_layers - b->measured);
    }
    *out = made;
    return 0;
}
