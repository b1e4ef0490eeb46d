#include "runner.h"

#include "model/decoder_graph.h"

#include <inferd/clock.h>
#include <math.h>
#include <string.h>

static int find_kv_dtype(const char *name, enum dtype *out, struct error *err) {
    if (!name || strcmp(name, "f16") == 0) {
        *out = DTYPE_F16;
    } else if (strcmp(name, "bf16") == 0) {
        *out = DTYPE_BF16;
    } else if (strcmp(name, "int8") == 0) {
        *out = DTYPE_I8;
    } else {
        return error_set_param(err, ERROR_INVALID, "kv_dtype", "kv_dtype must be f16, bf16 or int8, not %s", name);
    }
    return 0;
}

/* Each array of the step at its largest; max_blocks is set. */
static int open_batch(struct runner *r, struct error *err) {
    struct decoder_batch *b = &r->batch;
    const struct {
        int32_t **array;
        size_t n;
    } arrays[] = {
        {&b->token_ids, r->max_rows},         {&b->positions, r->max_rows},
        {&b->slot_mapping, r->max_rows},      {&b->cu_seqlens, r->max_sequences + 1},
        {&b->context_lens, r->max_sequences}, {&b->block_tables, r->max_sequences * b->max_blocks},
        {&b->logit_rows, r->max_rows},        {&b->copy_from, r->max_sequences},
        {&b->copy_to, r->max_sequences},
    };
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) {
        if (r->ops->host_alloc(r->backend, arrays[i].n * sizeof(int32_t), (void **)arrays[i].array, err) < 0) {
            return -1;
        }
    }
    return 0;
}

static void close_batch(struct runner *r) {
    int32_t *arrays[] = {r->batch.token_ids,  r->batch.positions,    r->batch.slot_mapping,
                         r->batch.cu_seqlens, r->batch.context_lens, r->batch.block_tables,
                         r->batch.logit_rows, r->batch.copy_from,    r->batch.copy_to};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) {
        if (arrays[i]) {
            r->ops->host_free(r->backend, arrays[i]);
        }
    }
}

/* What does not change between the plan before the device has reserved memory, and the one after. */
static int describe_plan(struct runner *r, const struct engine_config *config, const struct model_config *model,
                         size_t available, size_t max_logits, enum dtype kv_dtype, struct plan_input *out,
                         struct error *err) {
    const struct backend_info *b = &r->backend_info;
    *out = (struct plan_input){
        .total = b->own_memory ? b->memory_total : available,
        .utilization = config->memory_utilization,
        .context_bytes = b->memory_overhead,
        .block_size = config->kv_block_size,
        .context_length = model->context_length,
        .max_model_len = config->max_model_len,
        .max_sequences = config->max_sequences,
        .kv_tokens = config->kv_tokens,
        .fill = b->memory_is_ours,
    };
    if (!decoder_kv_token_bytes(model, kv_dtype, &r->kv_token_bytes) ||
        !decoder_workspace_bytes(model, r->ops, b->activation_dtype, r->max_rows, max_logits, &out->workspace_bytes)) {
        return error_set(err, ERROR_DOES_NOT_FIT, "the model's memory is larger than the address space");
    }
    out->token_bytes = r->kv_token_bytes;
    if (config->cuda_graphs && r->ops->graph_begin) {
        size_t most = config->max_sequences < max_logits ? config->max_sequences : max_logits;
        out->graph_bytes = plan_graph_bytes(decoder_graph_count(most), model->n_layers);
    }
    return 0;
}

/* Bytes of the device that were taken since `before`, which becomes what is taken now; `otherwise` without such
 * numbers. */
static int taken_since(struct runner *r, size_t *before, size_t otherwise, size_t *out, struct error *err) {
    size_t now;
    *out = otherwise;
    if (!r->ops->memory_used) {
        return 0;
    }
    if (r->ops->memory_used(r->backend, &now, err) < 0) {
        return -1;
    }
    *out = now > *before ? now - *before : 0;
    *before = now;
    return 0;
}

/* Between the weights and KV, which gets what is left: what the device needs for its largest step. *planned is told. */
static int reserve(struct runner *r, const struct model_config *model, struct plan_input *in, size_t max_logits,
                   size_t *taken, struct error *err) {
    struct plan first;
    size_t bytes;
    if (plan_make(in, &first, err) < 0) {
        return -1;
    }
    size_t longest = (first.max_model_len + in->block_size - 1) / in->block_size;
    r->batch.max_blocks = longest < first.n_blocks ? longest : first.n_blocks;
    const struct backend_shapes shapes = {.max_rows = r->max_rows,
                                          .max_sequences = r->max_sequences,
                                          .max_blocks = r->batch.max_blocks,
                                          .max_context = first.max_model_len,
                                          .n_heads = model->n_heads,
                                          .n_kv_heads = model->n_kv_heads,
                                          .head_dim = model->head_dim,
                                          .max_logits = max_logits,
                                          .vocab_size = model->vocab_size};
    if (r->ops->reserve && r->ops->reserve(r->backend, &shapes, err) < 0) {
        return -1;
    }
    if (taken_since(r, taken, 0, &bytes, err) < 0) {
        return -1;
    }
    in->workspace_bytes += bytes;
    return 0;
}

static int open_model(struct runner *r, const struct engine_config *config, const struct model_config *model,
                      struct weights *weights, size_t available, size_t max_logits, enum dtype kv_dtype,
                      struct error *err) {
    struct plan_input in;
    size_t taken = r->backend_info.memory_overhead, used, now;
    if (describe_plan(r, config, model, available, max_logits, kv_dtype, &in, err) < 0 ||
        taken_since(r, &taken, weights->bytes, &used, err) < 0) {
        return -1;
    }
    in.weight_bytes = used > weights->bytes ? used : weights->bytes;
    size_t reserved = in.workspace_bytes;
    if (reserve(r, model, &in, max_logits, &taken, err) < 0 || plan_make(&in, &r->kv, err) < 0) {
        return -1;
    }
    reserved = in.workspace_bytes - reserved;
    memcpy(r->memory_used, r->kv.bytes, sizeof r->memory_used);
    r->memory_used[ENGINE_MEMORY_MARGIN] = 0;
    const struct decoder_limits limits = {.max_rows = r->max_rows,
                                          .max_logits = max_logits,
                                          .kv_blocks = r->kv.n_blocks,
                                          .kv_block_size = config->kv_block_size,
                                          .kv_dtype = kv_dtype,
                                          .max_context = r->kv.max_model_len};
    if (decoder_open(&r->decoder, model, weights, &limits, err) < 0 ||
        taken_since(r, &taken, r->kv.bytes[ENGINE_MEMORY_WORKSPACE] + r->kv.bytes[ENGINE_MEMORY_KV] - reserved, &now,
                    err) < 0) {
        return -1;
    }
    r->memory_used[ENGINE_MEMORY_WEIGHTS] = used;
    now += reserved;
    r->memory_used[ENGINE_MEMORY_WORKSPACE] =
        now > r->kv.bytes[ENGINE_MEMORY_KV] ? now - r->kv.bytes[ENGINE_MEMORY_KV] : 0;
    return 0;
}

/* Everything that the device remembers of a step was run once. */
static int warm_up(struct runner *r, const struct engine_config *config, struct error *err) {
    size_t taken = 0, bytes;
    if (taken_since(r, &taken, 0, &bytes, err) < 0 ||
        decoder_warm_up(&r->decoder, &r->batch, r->max_sequences, config->cuda_graphs, err) < 0) {
        return -1;
    }
    return taken_since(r, &taken, 0, &r->memory_used[ENGINE_MEMORY_GRAPHS], err);
}

static int open_host_logits(struct runner *r, struct error *err) {
    size_t row = r->decoder.config.vocab_size * sizeof(float);
    return r->backend_info.own_memory && !r->ops->sample
               ? r->ops->host_alloc(r->backend, r->decoder.limits.max_logits * row, (void **)&r->host_logits, err)
               : 0;
}

/* One more part of what follows the weights is done. */
static void tell_progress(const struct runner *r, const struct engine_config *config) {
    if (config->on_progress) {
        config->on_progress(config->progress_arg, r->decoder.weights.bytes, r->decoder.weights.bytes);
    }
}

static int open_all(struct runner *r, const struct engine_config *config, size_t max_logits, size_t available,
                    struct error *err) {
    struct model_config model;
    struct weights weights = {0};
    uint64_t since = clock_now_ns();
    enum dtype kv_dtype = DTYPE_F16;
    enum weights_format format = WEIGHTS_AUTO;
    if (find_kv_dtype(config->kv_dtype, &kv_dtype, err) < 0 ||
        weights_format_parse(config->weights, &format, err) < 0 ||
        (available == 0 && memory_available(&available, err) < 0) ||
        model_file_open(config->model, &r->file, err) < 0 || model_config_load(r->file, &model, err) < 0) {
        return -1;
    }
    const struct backend_config backend = {
        .threads = config->threads,
        .max_rows = r->max_rows,
        .variant = config->cpu_variant,
        .step_ns = config->null_step_ns,
        .batch_invariant = config->batch_invariant,
        .cache_folder = config->cache_folder,
    };
    if (backend_open(config->device ? config->device : "auto", config->cuda_module, &backend, &r->ops, &r->backend,
                     r->device_why, err) < 0) {
        return -1;
    }
    r->ops->info(r->backend, &r->backend_info);
    r->load_seconds[ENGINE_LOAD_DEVICE] = clock_lap(&since);
    const struct load_progress progress = {config->on_progress, config->progress_arg};
    if (weights_load(&weights, &model, r->file, format, NULL, NULL, progress, r->ops, r->backend, err) < 0) {
        return -1;
    }
    r->load_seconds[ENGINE_LOAD_WEIGHTS] = clock_lap(&since);
    if (open_model(r, config, &model, &weights, available, max_logits, kv_dtype, err) < 0) {
        weights_unload(&weights);
        return -1;
    }
    tell_progress(r, config);
    if (open_batch(r, err) < 0 || open_host_logits(r, err) < 0) {
        return -1;
    }
    r->load_seconds[ENGINE_LOAD_MEMORY] = clock_lap(&since);
    if (warm_up(r, config, err) < 0) {
        return -1;
    }
    r->load_seconds[ENGINE_LOAD_WARM_UP] = clock_lap(&since);
    tell_progress(r, config);
    return 0;
}

int runner_open(struct runner *r, const struct engine_config *config, size_t max_logits, struct error *err) {
    return runner_open_within(r, config, max_logits, 0, err);
}

int runner_open_within(struct runner *r, const struct engine_config *config, size_t max_logits, size_t available,
                       struct error *err) {
    struct runner made = {.max_rows = config->max_batched_tokens, .max_sequences = config->max_sequences};
    if (max_logits == 0) {
        max_logits = config->max_sequences > RUNNER_LOGITS ? config->max_sequences : RUNNER_LOGITS;
        max_logits = max_logits < made.max_rows ? max_logits : made.max_rows;
    }
    if (open_all(&made, config, max_logits, available, err) < 0) {
        runner_close(&made);
        return -1;
    }
    *r = made;
    return 0;
}

void runner_close(struct runner *r) {
    if (!r) {
        return;
    }
    if (r->backend) {
        close_batch(r);
        if (r->host_logits) {
            r->ops->host_free(r->backend, r->host_logits);
        }
        decoder_close(&r->decoder);
        r->ops->close(r->backend);
    }
    model_file_close(r->file); /* last: weights may lie in its mapping */
    *r = (struct runner){0};
}

/* n rows of the logits in memory from `first` on, from the device to where the host reads them. */
static int fetch_logits(struct runner *r, size_t first, size_t n, struct error *err) {
    size_t row = r->decoder.config.vocab_size;
    return r->host_logits && n > 0
               ? r->ops->download(r->backend, r->host_logits + first * row,
                                  (const float *)r->decoder.logits + first * row, n * row * sizeof(float), err)
               : 0;
}

int runner_run(struct runner *r, struct error *err) {
    size_t most = r->decoder.limits.max_logits, n = r->batch.n_logits;
    n = n < most ? n : most;
    r->logits_first = r->logits_end = 0;
    if (decoder_forward(&r->decoder, &r->batch, err) < 0 || (!r->ops->choose && fetch_logits(r, 0, n, err) < 0)) {
        return -1;
    }
    r->logits_end = n;
    return 0;
}

int runner_start(struct runner *r, const struct decoder_batch *batch, bool fed, struct error *err) {
    r->logits_first = r->logits_end = 0;
    return decoder_start(&r->decoder, batch, fed, err);
}

int runner_get_logits(struct runner *r, size_t i, const float **out, struct error *err) {
    if (i < r->logits_first || i >= r->logits_end) {
        size_t most = r->decoder.limits.max_logits, n = r->batch.n_logits - i;
        n = n < most ? n : most;
        r->logits_first = r->logits_end = i;
        if (decoder_logits(&r->decoder, i, n, err) < 0 || (!r->ops->choose && fetch_logits(r, 0, n, err) < 0)) {
            return -1;
        }
        r->logits_end = i + n;
    }
    size_t row = i - r->logits_first;
    if (r->ops->choose && fetch_logits(r, row, 1, err) < 0) { /* most are never asked for */
        return -1;
    }
    *out = (r->host_logits ? r->host_logits : (const float *)r->decoder.logits) + row * r->decoder.config.vocab_size;
    return 0;
}

void runner_fill_plain(struct runner *r, const int32_t *tokens, size_t begin, size_t end) {
    struct decoder_batch *b = &r->batch;
    size_t block_size = r->decoder.limits.kv_block_size;
    b->rows = b->n_logits = end - begin;
    b->n_sequences = 1;
    for (size_t i = 0; i < b->rows; i++) {
        b->token_ids[i] = tokens[begin + i];
        b->positions[i] = b->slot_mapping[i] = (int32_t)(begin + i);
        b->logit_rows[i] = (int32_t)i;
    }
    for (size_t i = 0; i * block_size < end; i++) {
        b->block_tables[i] = (int32_t)i;
    }
    b->cu_seqlens[0] = 0;
    b->cu_seqlens[1] = (int32_t)b->rows;
    b->context_lens[0] = (int32_t)end;
}

int runner_self_test(struct runner *r, struct error *err) {
    static const int32_t token = 0;
    if (r->ops->ready) {
        decoder_fill(&r->decoder, &r->batch, r->max_rows, r->max_sequences, true);
    } else {
        runner_fill_plain(r, &token, 0, 1);
    }
    if (runner_run(r, err) < 0) {
        return error_prefix(err, "self-test");
    }
    if (r->ops->sample) { /* the logits are the device's */
        const struct sample_row row = {
            .last_token = token, .greedy = true, .n_candidates = r->decoder.config.vocab_size};
        int32_t chosen;
        return r->ops->sample(r->backend, &row, 1, &chosen, err) < 0 ? error_prefix(err, "self-test") : 0;
    }
    for (size_t i = 0; i < r->logits_end; i++) {
        const float *logits;
        if (runner_get_logits(r, i, &logits, err) < 0) {
            return error_prefix(err, "self-test");
        }
        for (size_t j = 0; j < r->decoder.config.vocab_size; j++) {
            if (!isfinite(logits[j])) {
                return error_set(err, ERROR_MODEL,
                                 "%s: self-test: the model computes values that are not finite numbers",
                                 model_file_path(r->file));
            }
        }
    }
    return 0;
}

int runner_evaluate(struct runner *r, const int32_t *tokens, size_t n, size_t chunk, runner_sink *sink, void *arg,
                    struct error *err) {
    if (chunk == 0 || chunk > r->max_rows || n > r->kv.max_model_len) {
        return error_set(err, ERROR_INVALID, "evaluate: a prompt of %zu tokens in chunks of %zu is out of range", n,
                         chunk);
    }
    for (size_t begin = 0; begin < n; begin += chunk) {
        size_t end = begin + chunk < n ? begin + chunk : n;
        runner_fill_plain(r, tokens, begin, end);
        if (runner_run(r, err) < 0) {
            return -1;
        }
        for (size_t i = begin; i < end; i++) {
            const float *logits;
            if (runner_get_logits(r, i - begin, &logits, err) < 0) {
                return -1;
            }
            sink(arg, i, logits);
        }
    }
    return 0;
}
