/* A model is brought into memory: in turns what one rank decides for all, and what all ranks do at once. */
#include "runner.h"

#include "base/checked.h"
#include "model/decoder_graph.h"

#include <inferd/clock.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_TIMEOUT 30.0 /* s */

/* What the ranks open from. */
struct opening {
    struct runner *r;
    const struct engine_config *config;
    const char *device;
    enum dtype kv_dtype;
    enum weights_format format;
    size_t max_logits, available, ff_unit;
};

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

/* FNV-1a (Fowler, Noll, Vo), for nodes that compare what they have. */
#define HASH_BEGIN 0xcbf29ce484222325
static uint64_t hash_bytes(uint64_t hash, const void *data, size_t n) {
    for (size_t i = 0; i < n; i++) {
        hash = (hash ^ ((const unsigned char *)data)[i]) * 0x100000001b3;
    }
    return hash;
}

/* ---- device and weights ---- */

/* Threads of rank `i` of all replicas' n_ranks: what was asked for is that of all. */
static size_t threads_of(const struct engine_config *c, size_t n_ranks, size_t i) {
    size_t n = c->threads / n_ranks + (i < c->threads % n_ranks);
    return c->threads == 0 ? 0 : n > 0 ? n : 1;
}

static int open_device(void *arg, size_t i, struct error *err) {
    struct opening *o = arg;
    const struct engine_config *c = o->config;
    struct rank *rank = &o->r->ranks[i];
    size_t n = o->r->n_ranks, all = n * (c->n_replicas > 1 ? c->n_replicas : 1), at = c->replica * n + i;
    char why[BACKEND_WHY];
    if (rank->backend) { /* the first rank is ahead of the others */
        return 0;
    }
    const struct backend_config backend = {
        .threads = threads_of(c, all, at),
        .max_rows = o->r->max_rows,
        .variant = c->cpu_variant,
        .step_ns = c->null_step_ns,
        .rank = at,
        .n_ranks = all > 1 ? all : 0,
        .batch_invariant = c->batch_invariant,
        .cache_folder = c->cache_folder,
    };
    if (backend_open(o->device, c->cuda_module, &backend, &rank->ops, &rank->backend, i == 0 ? o->r->device_why : why,
                     err) < 0) {
        return -1;
    }
    rank->ops->info(rank->backend, &rank->info);
    return 0;
}

static int open_group(void *arg, size_t i, struct error *err) {
    struct opening *o = arg;
    struct rank *rank = &o->r->ranks[i];
    if (!rank->ops->collective_open) {
        rank->group = rank->host;
        snprintf(rank->links, sizeof rank->links, "shared memory");
        return 0;
    }
    if (rank->ops->collective_open(rank->backend, rank->host, &rank->group, rank->links, err) < 0) {
        return -1;
    }
    rank->ops->info(rank->backend, &rank->info); /* the group takes of its memory */
    return 0;
}

/* The first rank finds out what "auto" is; the others take the same. */
static int open_devices(struct opening *o, struct error *err) {
    struct runner *r = o->r;
    o->device = o->config->device ? o->config->device : "auto";
    if (open_device(o, 0, err) < 0) {
        return -1;
    }
    r->ops = r->ranks[0].ops;
    r->backend = r->ranks[0].backend;
    r->backend_info = r->ranks[0].info;
    if (strcmp(o->device, "auto") == 0) {
        o->device = r->ops->name;
    }
    const uint64_t kind[] = {hash_bytes(HASH_BEGIN, r->ops->name, strlen(r->ops->name))};
    if (r->nodes.group && nodes_must_agree(&r->nodes, kind, 1, "device", err) < 0) { /* they choose tokens in different places */
        return -1;
    }
    if (r->n_ranks > 1 && (ranks_run(r->threads, open_device, o, false, err) < 0 ||
                           ranks_run(r->threads, open_group, o, false, err) < 0)) {
        return -1;
    }
    if (r->n_ranks > 1) {
        ranks_set_group(r->threads, r->ranks[0].group); /* who ends it ends `host` too */
    }
    for (size_t i = 0; i < r->n_ranks; i++) {
        r->n_threads += r->ranks[i].info.threads;
    }
    return 0;
}

static int load_rank(void *arg, size_t i, struct error *err) {
    struct opening *o = arg;
    struct runner *r = o->r;
    struct rank *rank = &r->ranks[i];
    bool alone = r->n_ranks == 1 && !r->nodes.group;
    const struct load_progress progress = {i == 0 ? o->config->on_progress : NULL, o->config->progress_arg};
    return weights_load(&rank->weights, &r->model, r->file, o->format, alone ? NULL : &rank->shard, rank->host, progress,
                        rank->ops, rank->backend, err);
}

static int cut_model(struct opening *o, struct error *err) {
    struct runner *r = o->r;
    size_t n_stages = r->nodes.group ? r->nodes.n_stages : 1;
    for (size_t i = 0; i < r->n_ranks; i++) {
        struct rank *rank = &r->ranks[i];
        if (shard_make(&r->model, i, r->n_ranks, r->nodes.stage, n_stages, o->ff_unit, &rank->shard, err) < 0) {
            return error_prefix(err, "%s", model_file_path(r->file));
        }
        shard_config(&r->model, &rank->shard, &rank->config);
    }
    return 0;
}

/* ---- memory ---- */

/* Bytes of the device that were taken since the last look, `otherwise` where it does not tell. */
static int taken_since(struct rank *rank, size_t otherwise, size_t *out, struct error *err) {
    size_t now;
    *out = otherwise;
    if (!rank->ops->memory_used) {
        return 0;
    }
    if (rank->ops->memory_used(rank->backend, &now, err) < 0) {
        return -1;
    }
    *out = now > rank->taken ? now - rank->taken : 0;
    rank->taken = now;
    return 0;
}

/* What the rank needs beside KV, before the device has reserved memory. */
static int describe_rank(void *arg, size_t i, struct error *err) {
    struct opening *o = arg;
    const struct engine_config *c = o->config;
    struct rank *rank = &o->r->ranks[i];
    const struct backend_info *b = &rank->info;
    struct plan_input *in = &rank->memory;
    bool shared = rank->group && rank->group->ops->shared_memory;
    size_t columns = decoder_logit_columns(o->r->model.vocab_size, i, o->r->n_ranks, shared);
    *in = (struct plan_input){
        .total = b->own_memory ? b->memory_total : o->available,
        .utilization = c->memory_utilization,
        .context_bytes = b->memory_overhead,
        .block_size = c->kv_block_size,
        .context_length = o->r->model.context_length,
        .max_model_len = c->max_model_len,
        .max_sequences = c->max_sequences,
        .kv_tokens = c->kv_tokens,
        .fill = b->memory_is_ours,
    };
    if (!decoder_kv_token_bytes(&rank->config, o->kv_dtype, &in->token_bytes) ||
        !decoder_workspace_bytes(&rank->config, rank->ops, b->activation_dtype, o->r->max_rows, o->max_logits, columns,
                                 &in->workspace_bytes)) {
        return error_set(err, ERROR_DOES_NOT_FIT, "the model's memory is larger than the address space");
    }
    if (c->cuda_graphs && rank->ops->graph_begin) {
        size_t most = c->max_sequences < o->max_logits ? c->max_sequences : o->max_logits;
        in->graph_bytes = plan_graph_bytes(decoder_graph_count(most), rank->config.n_layers);
    }
    rank->taken = b->memory_overhead;
    if (taken_since(rank, rank->weights.bytes, &rank->used_weights, err) < 0) {
        return -1;
    }
    in->weight_bytes = rank->used_weights > rank->weights.bytes ? rank->used_weights : rank->weights.bytes;
    return 0;
}

/* Between the weights and KV, which gets what is left: what the device needs for its largest step. */
static int reserve_rank(void *arg, size_t i, struct error *err) {
    struct opening *o = arg;
    const struct runner *r = o->r;
    struct rank *rank = &o->r->ranks[i];
    const struct backend_shapes shapes = {.max_rows = r->max_rows,
                                          .max_sequences = r->max_sequences,
                                          .max_blocks = r->batch.max_blocks,
                                          .max_context = r->kv.max_model_len,
                                          .n_heads = rank->config.n_heads,
                                          .n_kv_heads = rank->config.n_kv_heads,
                                          .head_dim = rank->config.head_dim,
                                          .max_logits = o->max_logits,
                                          .vocab_size = rank->config.vocab_size};
    if ((rank->ops->reserve && rank->ops->reserve(rank->backend, &shapes, err) < 0) ||
        taken_since(rank, 0, &rank->reserved, err) < 0) {
        return -1;
    }
    rank->memory.workspace_bytes += rank->reserved;
    return 0;
}

/* Ranks in one memory: their needs are added up. */
static int plan_together(struct runner *r, struct plan *out, struct error *err) {
    struct plan_input all = r->ranks[0].memory;
    for (size_t i = 1; i < r->n_ranks; i++) {
        const struct plan_input *in = &r->ranks[i].memory;
        if (!checked_add(all.context_bytes, in->context_bytes, &all.context_bytes) ||
            !checked_add(all.weight_bytes, in->weight_bytes, &all.weight_bytes) ||
            !checked_add(all.workspace_bytes, in->workspace_bytes, &all.workspace_bytes) ||
            !checked_add(all.token_bytes, in->token_bytes, &all.token_bytes)) {
            return error_set(err, ERROR_DOES_NOT_FIT, "the model's memory is larger than the address space");
        }
    }
    if (plan_make(&all, out, err) < 0) {
        return -1;
    }
    for (size_t i = 0; i < r->n_ranks; i++) {
        r->reports[i].kv_blocks = out->n_blocks;
    }
    return 0;
}

/* Ranks with memories of their own: the one that has place for the fewest blocks rules. */
static int plan_apart(struct runner *r, struct plan *out, struct error *err) {
    struct plan least = {.n_blocks = SIZE_MAX, .max_model_len = SIZE_MAX}, one;
    size_t block = r->ranks[0].memory.block_size;
    for (size_t i = 0; i < r->n_ranks; i++) {
        if (plan_make(&r->ranks[i].memory, &one, err) < 0) {
            return r->n_ranks > 1 ? error_prefix(err, "rank %zu", i) : -1;
        }
        r->reports[i].kv_blocks = one.n_blocks;
        least.n_blocks = one.n_blocks < least.n_blocks ? one.n_blocks : least.n_blocks;
        least.max_model_len = one.max_model_len < least.max_model_len ? one.max_model_len : least.max_model_len;
    }
    for (size_t i = 0; i < r->n_ranks; i++) {
        struct plan_input in = r->ranks[i].memory;
        in.kv_tokens = least.n_blocks * block;
        in.max_model_len = least.max_model_len;
        if (plan_make(&in, &one, err) < 0) {
            return -1;
        }
        for (size_t k = 0; k < ENGINE_MEMORY_KINDS; k++) {
            least.bytes[k] += one.bytes[k];
        }
    }
    *out = least;
    return 0;
}

static int plan_here(struct runner *r, struct plan *out, struct error *err) {
    return r->ranks[0].info.own_memory ? plan_apart(r, out, err) : plan_together(r, out, err);
}

/* The node with place for the fewest blocks rules over all, too. */
static int plan_ranks(struct runner *r, struct plan *out, struct error *err) {
    size_t n_blocks, length;
    if (plan_here(r, out, err) < 0) {
        return -1;
    }
    if (!r->nodes.group) {
        return 0;
    }
    n_blocks = out->n_blocks;
    length = out->max_model_len;
    if (nodes_least(&r->nodes, &n_blocks, err) < 0 || nodes_least(&r->nodes, &length, err) < 0) {
        return -1;
    }
    for (size_t i = 0; i < r->n_ranks; i++) {
        struct plan_input *in = &r->ranks[i].memory;
        size_t blocks = r->reports[i].kv_blocks;
        in->kv_tokens = n_blocks * in->block_size;
        in->max_model_len = length;
        r->ranks[i].own_blocks = r->ranks[i].own_blocks ? r->ranks[i].own_blocks : blocks;
    }
    if (plan_here(r, out, err) < 0) {
        return -1;
    }
    for (size_t i = 0; i < r->n_ranks; i++) {
        r->reports[i].kv_blocks = r->ranks[i].own_blocks;
    }
    return 0;
}

static int open_decoder(void *arg, size_t i, struct error *err) {
    struct opening *o = arg;
    struct runner *r = o->r;
    struct rank *rank = &r->ranks[i];
    const struct decoder_limits limits = {.max_rows = r->max_rows,
                                          .max_logits = o->max_logits,
                                          .kv_blocks = r->kv.n_blocks,
                                          .kv_block_size = o->config->kv_block_size,
                                          .kv_dtype = o->kv_dtype,
                                          .max_context = r->kv.max_model_len};
    struct decoder_ranks parts = {.group = rank->group, .shard = &rank->shard, .stages = i == 0 ? r->nodes.group : NULL};
    size_t kv = rank->memory.token_bytes * r->kv.n_blocks * limits.kv_block_size, now;
    if (rank->decoder.ops) { /* the first rank is ahead of the others, who may write into its logits */
        return 0;
    }
    if (i > 0 && rank->group->ops->shared_memory) {
        parts.logits = r->ranks[0].decoder.logits;
    }
    if (decoder_open(&rank->decoder, &rank->config, &rank->weights, &limits, &parts, err) < 0 ||
        taken_since(rank, rank->memory.workspace_bytes + kv - rank->reserved, &now, err) < 0) {
        return -1;
    }
    if ((i > 0 || r->nodes.group) && rank->ops->choose) {
        rank->tokens = calloc(o->max_logits, sizeof *rank->tokens);
        if (!rank->tokens) {
            return error_memory(err);
        }
    }
    now += rank->reserved;
    rank->used_workspace = now > kv ? now - kv : 0;
    return 0;
}

static int open_memory(struct opening *o, struct error *err) {
    struct runner *r = o->r;
    struct plan first;
    if (ranks_run(r->threads, describe_rank, o, true, err) < 0 || plan_ranks(r, &first, err) < 0) {
        return -1;
    }
    r->kv = first; /* for its lengths alone */
    size_t block = o->config->kv_block_size, longest = (first.max_model_len + block - 1) / block;
    r->batch.max_blocks = longest < first.n_blocks ? longest : first.n_blocks;
    if (ranks_run(r->threads, reserve_rank, o, false, err) < 0 || plan_ranks(r, &r->kv, err) < 0 ||
        open_decoder(o, 0, err) < 0 || ranks_run(r->threads, open_decoder, o, false, err) < 0) {
        return -1;
    }
    r->decoder = &r->ranks[0].decoder;
    memcpy(r->memory_used, r->kv.bytes, sizeof r->memory_used);
    r->memory_used[ENGINE_MEMORY_MARGIN] = r->memory_used[ENGINE_MEMORY_WEIGHTS] = r->memory_used[ENGINE_MEMORY_WORKSPACE] = 0;
    for (size_t i = 0; i < r->n_ranks; i++) {
        const struct rank *rank = &r->ranks[i];
        r->memory_used[ENGINE_MEMORY_WEIGHTS] += rank->used_weights;
        r->memory_used[ENGINE_MEMORY_WORKSPACE] += rank->used_workspace;
        r->kv_token_bytes += rank->memory.token_bytes;
        r->weight_bytes += rank->decoder.weights.bytes;
        r->workspace_bytes += rank->decoder.workspace_bytes;
    }
    return 0;
}

/* Each array of the step at its largest; max_blocks is set. */
static int open_batch(const struct runner *r, struct rank *rank, struct decoder_batch *b, struct error *err) {
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
        if (rank->ops->host_alloc(rank->backend, arrays[i].n * sizeof(int32_t), (void **)arrays[i].array, err) < 0) {
            return -1;
        }
    }
    return 0;
}

static void close_batch(struct rank *rank, struct decoder_batch *b) {
    int32_t *arrays[] = {b->token_ids,    b->positions,  b->slot_mapping, b->cu_seqlens, b->context_lens,
                         b->block_tables, b->logit_rows, b->copy_from,    b->copy_to};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) {
        if (arrays[i]) {
            rank->ops->host_free(rank->backend, arrays[i]);
        }
    }
}

/* Everything that the device remembers of a step is run once. Each rank fills arrays of its own: all are at it. */
static int warm_up(void *arg, size_t i, struct error *err) {
    struct opening *o = arg;
    const struct runner *r = o->r;
    struct rank *rank = &o->r->ranks[i];
    struct decoder_batch own = {.max_blocks = r->batch.max_blocks};
    size_t bytes;
    if (!rank->ops->ready) {
        return 0;
    }
    if (taken_since(rank, 0, &bytes, err) < 0) {
        return -1;
    }
    int rc = i > 0 ? open_batch(r, rank, &own, err) : 0;
    rc = rc == 0 ? decoder_warm_up(&rank->decoder, i > 0 ? &own : &r->batch, r->max_sequences, o->config->cuda_graphs, err)
                 : rc;
    if (i > 0) {
        close_batch(rank, &own);
    }
    return rc < 0 ? -1 : taken_since(rank, 0, &rank->used_graphs, err);
}

static int open_host_logits(struct runner *r, struct error *err) {
    size_t row = r->decoder->logits_ld * sizeof(float);
    bool looks = !r->nodes.group || r->nodes.stage == 0 || r->nodes.stage + 1 == r->nodes.n_stages;
    return looks && r->backend_info.own_memory && !r->ops->sample
               ? r->ops->host_alloc(r->backend, r->decoder->limits.max_logits * row, (void **)&r->host_logits, err)
               : 0;
}

/* ---- all of it ---- */

/* One more part of what follows the weights is done. */
static void tell_progress(const struct runner *r, const struct engine_config *config) {
    if (config->on_progress) {
        config->on_progress(config->progress_arg, r->weight_bytes, r->weight_bytes);
    }
}

static void report(struct runner *r) {
    for (size_t i = 0; i < r->n_ranks; i++) {
        struct engine_rank *e = &r->reports[i];
        const struct rank *rank = &r->ranks[i];
        snprintf(e->device, sizeof e->device, "%s", rank->info.device);
        snprintf(e->links, sizeof e->links, "%s", rank->links);
        e->threads = rank->info.threads;
        e->weight_bytes = rank->decoder.weights.bytes;
    }
    r->n_parameters = roles_n_parameters(&r->model);
}

static size_t timeout_ms(const struct engine_config *config) {
    return (size_t)((config->rank_timeout > 0 ? config->rank_timeout : DEFAULT_TIMEOUT) * 1e3) + 1;
}

static int open_threads(struct runner *r, const struct engine_config *config, struct error *err) {
    size_t n = r->n_ranks, timeout = timeout_ms(config);
    struct collective *hosts[COLLECTIVE_MAX_RANKS];
    r->ranks = calloc(n, sizeof *r->ranks);
    r->reports = calloc(n, sizeof *r->reports);
    if (!r->ranks || !r->reports) {
        return error_memory(err);
    }
    if (ranks_open(n, timeout, &r->threads, err) < 0 ||
        (n > 1 && collective_open_threads(n, timeout, hosts, err) < 0)) {
        return -1;
    }
    for (size_t i = 0; n > 1 && i < n; i++) {
        r->ranks[i].host = hosts[i];
    }
    ranks_set_group(r->threads, r->ranks[0].host);
    return 0;
}

/* Replicas share the memory of the machine; on GPUs each has its own. */
static int memory_share(const struct engine_config *c, size_t *out, struct error *err) {
    if (memory_available(out, err) < 0) {
        return -1;
    }
    *out /= c->n_replicas > 1 ? c->n_replicas : 1;
    return 0;
}

/* Of the model file: its tensors and their types, and the last norm, which training changes. */
static uint64_t fingerprint(const struct model_file *f) {
    uint64_t hash = HASH_BEGIN;
    for (size_t i = 0; i < model_file_n_tensors(f); i++) {
        const struct tensor *t = model_file_tensor(f, i);
        bool norm = strcmp(t->name, "output_norm.weight") == 0 || strcmp(t->name, "model.norm.weight") == 0;
        const struct {
            const void *data;
            size_t n;
        } parts[] = {{t->name, strlen(t->name)}, {t->type, strlen(t->type)}, {t->data, norm ? t->size : 0}};
        for (size_t k = 0; k < sizeof parts / sizeof parts[0]; k++) {
            hash = hash_bytes(hash, parts[k].data, parts[k].n);
        }
    }
    return hash;
}

/* Of a pipeline: all processes have to have been started for the same. */
static int agree(struct runner *r, const struct opening *o, struct error *err) {
    const struct model_config *m = &r->model;
    const struct engine_config *c = o->config;
    if (!r->nodes.group) {
        return 0;
    }
    const uint64_t model[] = {m->n_layers, m->n_embd, m->n_heads, m->n_kv_heads, m->head_dim, m->n_ff, m->vocab_size,
                              fingerprint(r->file)};
    const uint64_t settings[] = {r->max_rows, r->max_sequences, c->kv_block_size, (uint64_t)o->kv_dtype, (uint64_t)o->format,
                                 o->max_logits, c->max_model_len, c->kv_tokens, timeout_ms(c), c->cuda_graphs, BACKEND_ABI};
    return nodes_must_agree(&r->nodes, model, sizeof model / sizeof model[0], "model", err) < 0 ||
                   nodes_must_agree(&r->nodes, settings, sizeof settings / sizeof settings[0], "setting of the engine", err) < 0
               ? -1
               : 0;
}

static int open_all(struct runner *r, const struct engine_config *config, size_t max_logits, size_t available,
                    struct error *err) {
    struct opening o = {.r = r, .config = config, .max_logits = max_logits, .available = available};
    uint64_t since = clock_now_ns();
    if (find_kv_dtype(config->kv_dtype, &o.kv_dtype, err) < 0 ||
        weights_format_parse(config->weights, &o.format, err) < 0 ||
        (available == 0 && memory_share(config, &o.available, err) < 0) ||
        model_file_open(config->model, &r->file, err) < 0 || model_config_load(r->file, &r->model, err) < 0 ||
        agree(r, &o, err) < 0 || (r->n_ranks > 1 && shard_ff_unit(r->file, &r->model, o.format, &o.ff_unit, err) < 0) ||
        open_threads(r, config, err) < 0 || cut_model(&o, err) < 0 || open_devices(&o, err) < 0) {
        return -1;
    }
    r->load_seconds[ENGINE_LOAD_DEVICE] = clock_lap(&since);
    if (ranks_run(r->threads, load_rank, &o, false, err) < 0) {
        return -1;
    }
    r->load_seconds[ENGINE_LOAD_WEIGHTS] = clock_lap(&since);
    if (open_memory(&o, err) < 0) {
        return -1;
    }
    tell_progress(r, config);
    if (open_batch(r, &r->ranks[0], &r->batch, err) < 0 || open_host_logits(r, err) < 0) {
        return -1;
    }
    r->load_seconds[ENGINE_LOAD_MEMORY] = clock_lap(&since);
    if (ranks_run(r->threads, warm_up, &o, false, err) < 0) {
        return -1;
    }
    for (size_t i = 0; i < r->n_ranks; i++) {
        r->memory_used[ENGINE_MEMORY_GRAPHS] = (i > 0 ? r->memory_used[ENGINE_MEMORY_GRAPHS] : 0) + r->ranks[i].used_graphs;
    }
    r->load_seconds[ENGINE_LOAD_WARM_UP] = clock_lap(&since);
    report(r);
    size_t edits = r->ops->choose ? r->ops->choice_edits : 0;
    if (r->nodes.group && (nodes_reserve(&r->nodes, r->max_rows, r->max_sequences, r->batch.max_blocks, edits, err) < 0 ||
                           nodes_ready(&r->nodes, timeout_ms(config), err) < 0)) {
        return -1;
    }
    tell_progress(r, config);
    return 0;
}

static int open_with(struct runner *r, const struct engine_config *config, size_t max_logits, size_t available, struct nodes *nodes,
                     struct error *err) {
    struct runner made = {.max_rows = config->max_batched_tokens,
                          .max_sequences = config->max_sequences,
                          .n_ranks = config->tensor_parallel > 0 ? config->tensor_parallel : 1,
                          .nodes = *nodes};
    *nodes = (struct nodes){0};
    if (max_logits == 0) {
        max_logits = config->max_sequences > RUNNER_LOGITS ? config->max_sequences : RUNNER_LOGITS;
        max_logits = max_logits < made.max_rows ? max_logits : made.max_rows;
    }
    if (open_all(&made, config, max_logits, available, err) < 0) {
        nodes_give_up(&made.nodes, err);
        runner_close(&made);
        return -1;
    }
    *r = made;
    return 0;
}

int runner_open_stage(struct runner *r, const struct engine_config *config, struct nodes *nodes, struct error *err) {
    return open_with(r, config, 0, 0, nodes, err);
}

int runner_open(struct runner *r, const struct engine_config *config, size_t max_logits, struct error *err) {
    return runner_open_within(r, config, max_logits, 0, err);
}

int runner_open_within(struct runner *r, const struct engine_config *config, size_t max_logits, size_t available,
                       struct error *err) {
    struct nodes none = {0};
    if (config->pipeline_parallel > 1) { /* it would be one stage, taken for the model */
        return error_set_param(err, ERROR_INVALID, "pipeline_parallel", "pipeline_parallel is for serving alone");
    }
    return open_with(r, config, max_logits, available, &none, err);
}

static int close_rank(void *arg, size_t i, struct error *err) {
    struct runner *r = arg;
    struct rank *rank = &r->ranks[i];
    (void)err;
    if (!rank->backend) {
        return 0;
    }
    if (i == 0) {
        close_batch(rank, &r->batch);
        if (r->host_logits) {
            rank->ops->host_free(rank->backend, r->host_logits);
        }
    }
    free(rank->tokens);
    decoder_close(&rank->decoder);
    weights_unload(&rank->weights);
    if (rank->group && rank->group != rank->host) {
        rank->group->ops->close(rank->group);
    }
    rank->ops->close(rank->backend);
    return 0;
}

void runner_close(struct runner *r) {
    struct error ignored;
    if (!r) {
        return;
    }
    if (r->nodes.group && r->nodes.stage == 0 && r->nodes.loaded) { /* who is lost, or was never there, is not waited for long */
        r->nodes.group->deadline_ms = r->nodes.group->deadline_ms < 2000 ? r->nodes.group->deadline_ms : 2000;
        (void)(nodes_tell(&r->nodes, NODE_BYE, NULL, 0, 0, 0, &ignored) < 0 ||
               r->nodes.group->ops->barrier(r->nodes.group, &ignored) < 0);
    }
    if (r->threads && ranks_lost(r->threads)) { /* one is still at work in all this: it is left as it is, and the process ends */
        ranks_close(r->threads);
        *r = (struct runner){0};
        return;
    }
    if (r->threads) {
        ranks_set_group(r->threads, NULL);
        ranks_run(r->threads, close_rank, r, false, &ignored);
        ranks_close(r->threads);
    }
    for (size_t i = 0; r->ranks && i < r->n_ranks; i++) {
        if (r->ranks[i].host) {
            r->ranks[i].host->ops->close(r->ranks[i].host);
        }
    }
    nodes_close(&r->nodes);
    free(r->ranks);
    free(r->reports);
    model_file_close(r->file); /* last: weights may lie in its mapping */
    *r = (struct runner){0};
}
