/* `inferd plan`'s question answered: ranks, limits, what rules, and what would help. Speed is in estimate.c. */
#include "planning/ask.h"

#include "base/checked.h"
#include "model/decoder.h"
#include "model/decoder_graph.h"
#include "model/shard.h"
#include "runner.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Allowances for what only a device can tell; on a start the engine takes what is measured instead. */
#define CONTEXT_BYTES ((size_t)512 << 20)       /* a CUDA context and its libraries: 0.4 to 0.6 GiB */
#define COMMUNICATION_BYTES ((size_t)320 << 20) /* communicators of a rank that has peers: 0.2 to 0.4 GiB */
#define CUDA_SCRATCH_BYTES ((size_t)64 << 20)   /* workspaces of products, attention and choices together */
#define DEFAULT_ROWS 512
#define DEFAULT_BLOCK 16
#define DEFAULT_UTILIZATION 0.9
#define MOST_STAGES 16 /* that are proposed */
#define MOST_TOKENS ((size_t)1 << 40) /* of KV, asked: beyond is no machine */

static size_t most(size_t a, size_t b) {
    return a > b ? a : b;
}

static size_t least(size_t a, size_t b) {
    return a < b ? a : b;
}

static size_t parts(size_t n, size_t of) {
    return n / of + (n % of != 0);
}

static void warn(struct plan_answer *a, const char *fmt, ...) {
    if (a->n_warnings < PLAN_MAX_WARNINGS) {
        va_list args;
        va_start(args, fmt);
        vsnprintf(a->warnings[a->n_warnings++], sizeof a->warnings[0], fmt, args);
        va_end(args);
    }
}

bool ask_is_cpu(const struct plan_gpu *g) {
    return strcmp(g->name, "cpu") == 0;
}

bool ask_valid_tp(const struct shape *s, size_t tp) {
    return shard_is_valid_tp(s->n_heads, s->n_kv_heads, tp);
}

/* ---- what is asked ---- */

static int complain(struct error *err, const char *param, const char *range) {
    return error_set_param(err, ERROR_INVALID, param, "%s must be %s", param, range);
}

static enum dtype kv_type(const char *name) {
    return !name || strcmp(name, "f16") == 0 ? DTYPE_F16 : strcmp(name, "bf16") == 0 ? DTYPE_BF16 : DTYPE_I8;
}

/* Defaults put in, and the bounds that the settings' table does not hold already. */
static int complete(struct ask *k, const struct plan_question *q, struct error *err) {
    k->q = *q;
    struct plan_question *c = &k->q;
    if (weights_format_parse(q->weights, &k->format, err) < 0) {
        return -1;
    }
    if (q->kv_dtype && strcmp(q->kv_dtype, "f16") != 0 && strcmp(q->kv_dtype, "bf16") != 0 && strcmp(q->kv_dtype, "int8") != 0) {
        return complain(err, "kv_dtype", "f16, bf16 or int8");
    }
    k->kv = kv_type(q->kv_dtype);
    c->pipeline_parallel = q->pipeline_parallel ? q->pipeline_parallel : 1;
    c->replicas = q->replicas ? q->replicas : 1;
    size_t besides = c->pipeline_parallel <= PLAN_MAX_RANKS && c->replicas <= PLAN_MAX_RANKS ? c->pipeline_parallel * c->replicas : SIZE_MAX;
    if (besides > PLAN_MAX_RANKS) {
        return complain(err, "pipeline_parallel", "at most 1024, together with replicas and tensor_parallel");
    }
    c->tensor_parallel = q->tensor_parallel ? q->tensor_parallel : most(1, q->n_gpus / besides);
    if (c->tensor_parallel > PLAN_MAX_TP || c->tensor_parallel * besides > PLAN_MAX_RANKS) {
        return complain(err, "tensor_parallel", "at most 256, and at most 1024 together with pipeline_parallel and replicas");
    }
    c->max_batched_tokens = q->max_batched_tokens ? q->max_batched_tokens : DEFAULT_ROWS;
    c->kv_block_size = q->kv_block_size ? q->kv_block_size : DEFAULT_BLOCK;
    c->memory_utilization = q->memory_utilization > 0 ? q->memory_utilization : DEFAULT_UTILIZATION;
    if (!(c->memory_utilization <= 1)) {
        return complain(err, "memory_utilization", "between 0 and 1");
    }
    if (c->max_batched_tokens > 65536 || c->max_sequences > 65536 || c->max_model_len > 16777216 || c->kv_block_size > 256) {
        return complain(err, "max_sequences", "at most 65536, max_model_len at most 16777216, max_batched_tokens at most 65536 and kv_block_size at most 256");
    }
    return 0;
}

/* ---- a rank ---- */

/* Layers of stage `i`: as even as they can be, the first stages have one more. */
static size_t layers_of(const struct ask *k, size_t stage) {
    size_t n = k->shape.n_layers, pp = k->q.pipeline_parallel;
    return n / pp + (stage < n % pp);
}

static size_t first_layer(const struct ask *k, size_t stage) {
    size_t n = k->shape.n_layers, pp = k->q.pipeline_parallel;
    return stage * (n / pp) + least(stage, n % pp);
}

static bool in_stage(const struct ask *k, const struct shape_tensor *t, size_t stage) {
    size_t first = first_layer(k, stage), last = k->q.pipeline_parallel - 1;
    if (t->layer == SHAPE_FIRST) { /* a tied head is at the end, too */
        return stage == 0 || (stage == last && k->shape.tied && t->cut == CUT_VOCAB);
    }
    if (t->layer == SHAPE_LAST) {
        return stage == last;
    }
    return (size_t)t->layer >= first && (size_t)t->layer < first + layers_of(k, stage);
}

static int too_large(struct error *err) {
    return error_set(err, ERROR_MODEL, "the model is larger than the address space");
}

static int weights_of(const struct ask *k, size_t stage, size_t *out, struct error *err) {
    size_t n, bytes, sum = 0, pad = ask_is_cpu(&k->q.gpu) ? 1 : 64;
    const struct shape_tensor *t = shape_tensors(&k->shape, k->format, &n);
    for (size_t i = 0; i < n; i++) {
        if (in_stage(k, &t[i], stage) &&
            (!shape_tensor_bytes(&k->shape, &t[i], k->format, k->q.tensor_parallel, pad, &bytes) || !checked_add(sum, bytes, &sum))) {
            return too_large(err);
        }
    }
    *out = sum;
    return 0;
}

static size_t kv_heads_of(const struct ask *k) {
    return parts(k->shape.n_kv_heads, least(k->q.tensor_parallel, k->shape.n_kv_heads));
}

/* Never called: only whether a backend has the operation counts. */
static int no_operation(struct backend *b, const struct rows_i8 *x, size_t rows, const struct linear_part *p, size_t n,
                        struct error *err) {
    (void)b, (void)x, (void)rows, (void)p, (void)n;
    return error_set(err, ERROR_INTERNAL, "a plan computes nothing");
}

static int workspace_of(const struct ask *k, size_t sequences, size_t *out, struct error *err) {
    static const struct backend_ops on_cpu, on_gpu = {.linear_i8 = no_operation};
    const struct shape *s = &k->shape;
    size_t tp = k->q.tensor_parallel, rows = k->q.max_batched_tokens, logits = least(most(sequences, RUNNER_LOGITS), rows);
    bool cpu = ask_is_cpu(&k->q.gpu);
    struct model_config rank = {.n_embd = s->n_embd,
                                .head_dim = s->head_dim,
                                .n_heads = parts(s->n_heads, tp),
                                .n_kv_heads = kv_heads_of(k),
                                .vocab_size = s->vocab_size};
    rank.n_ff = s->n_experts ? parts(s->n_ff_expert * s->n_experts_used + s->n_ff_shared, tp) : shape_ff_share(s, k->format, tp);
    if (!decoder_workspace_bytes(&rank, cpu ? &on_cpu : &on_gpu, cpu ? DTYPE_F32 : DTYPE_BF16, rows, logits,
                                 decoder_logit_columns(s->vocab_size, 0, tp, cpu), out) ||
        !checked_add(*out, cpu ? 0 : CUDA_SCRATCH_BYTES, out)) {
        return too_large(err);
    }
    return 0;
}

/* What a rank of the stage needs beside KV, as the engine describes it to plan.h. r->weights 0: not counted yet. */
static int describe(const struct ask *k, size_t stage, size_t sequences, struct plan_input *in, struct plan_rank *r,
                    struct error *err) {
    const struct plan_question *q = &k->q;
    bool cpu = ask_is_cpu(&q->gpu), peers = q->tensor_parallel * q->pipeline_parallel > 1;
    if ((r->weights == 0 && weights_of(k, stage, &r->weights, err) < 0) || workspace_of(k, sequences, &r->workspace, err) < 0) {
        return -1;
    }
    size_t layers = layers_of(k, stage), block = kv_layer_bytes(k->kv, 1, q->kv_block_size, kv_heads_of(k), k->shape.head_dim);
    size_t logits = least(most(sequences, RUNNER_LOGITS), q->max_batched_tokens);
    r->graphs = cpu ? 0 : plan_graph_bytes(decoder_graph_count(least(sequences, logits)), layers);
    r->communication = cpu || !peers ? 0 : COMMUNICATION_BYTES;
    r->context = cpu ? 0 : CONTEXT_BYTES;
    if (q->overhead > 0) {
        r->workspace = q->overhead;
        r->graphs = r->communication = r->context = 0;
    }
    *in = (struct plan_input){.total = q->gpu.memory,
                              .utilization = q->memory_utilization,
                              .context_bytes = r->context + r->communication,
                              .weight_bytes = r->weights,
                              .workspace_bytes = r->workspace,
                              .graph_bytes = r->graphs,
                              .block_size = q->kv_block_size,
                              .context_length = k->shape.context_length ? k->shape.context_length : SIZE_MAX,
                              .max_sequences = sequences,
                              .fill = !cpu};
    if (block > SIZE_MAX / (layers ? layers : 1)) {
        return too_large(err);
    }
    in->token_bytes = most(1, block * layers / q->kv_block_size);
    r->usable = (size_t)((double)q->gpu.memory * q->memory_utilization);
    return 0;
}

/* ---- the whole ---- */

static int fill_ranks(const struct ask *k, size_t tokens, struct plan_answer *a, struct error *err) {
    size_t tp = k->q.tensor_parallel, pp = k->q.pipeline_parallel;
    a->n_ranks = tp * pp;
    a->max_tokens = SIZE_MAX;
    a->fullest = 0;
    a->kv_bytes_per_token = a->shortage = 0;
    for (size_t stage = 0; stage < pp; stage++) {
        struct plan_input in;
        struct plan_rank r = {0};
        if (describe(k, stage, a->asked_sequences, &in, &r, err) < 0) {
            return -1;
        }
        size_t fixed = 0;
        if (!checked_mul(in.token_bytes, tokens, &r.kv) || !checked_add(r.weights, r.workspace, &fixed) ||
            !checked_add(fixed, r.graphs + r.communication + r.context, &fixed) || !checked_add(fixed, r.kv, &r.total)) {
            return too_large(err);
        }
        r.margin = r.usable > r.total ? r.usable - r.total : 0;
        a->max_tokens = least(a->max_tokens, plan_affordable_tokens(&in));
        a->shortage = most(a->shortage, r.total > r.usable ? r.total - r.usable : 0);
        a->kv_bytes_per_token += in.token_bytes * tp;
        for (size_t i = 0; i < tp; i++) {
            a->ranks[stage * tp + i] = r;
        }
        if (r.total > a->ranks[a->fullest].total) {
            a->fullest = stage * tp;
        }
    }
    return 0;
}

/* Of KV, in the room of every stage when `sequences` are computed together; the weights of *a are known. */
static int tokens_beside(const struct ask *k, const struct plan_answer *a, size_t sequences, size_t *out, struct error *err) {
    size_t tokens = SIZE_MAX;
    for (size_t stage = 0; stage < k->q.pipeline_parallel; stage++) {
        struct plan_input in;
        struct plan_rank r = {.weights = a->ranks[stage * k->q.tensor_parallel].weights};
        if (describe(k, stage, sequences, &in, &r, err) < 0) {
            return -1;
        }
        tokens = least(tokens, plan_affordable_tokens(&in));
    }
    *out = tokens;
    return 0;
}

/* The most sequences of `each` tokens that fit, with the workspace and the graphs that so many need: more of them leave no
 * more room, and beyond max_batched_tokens no less. */
static int most_sequences(const struct ask *k, const struct plan_answer *a, size_t each, size_t *out, struct error *err) {
    size_t fits, high, tokens;
    if (tokens_beside(k, a, 1, &tokens, err) < 0) {
        return -1;
    }
    high = tokens / each;
    if (high > 1 && tokens_beside(k, a, high, &tokens, err) < 0) {
        return -1;
    }
    fits = least(high, tokens / each);
    high = fits >= k->q.max_batched_tokens ? fits : high;
    while (fits < high) {
        size_t n = high - (high - fits) / 2;
        if (tokens_beside(k, a, n, &tokens, err) < 0) {
            return -1;
        }
        if (n <= tokens / each) {
            fits = n;
        } else {
            high = n - 1;
        }
    }
    *out = fits;
    return 0;
}

/* KV tokens that a length and a number of sequences take: whole blocks each. */
static int tokens_for(const struct ask *k, size_t sequences, size_t length, size_t *out, struct error *err) {
    size_t b = k->q.kv_block_size;
    if (!checked_mul(parts(length, b) * b, sequences, out) || *out > MOST_TOKENS) {
        return error_set_param(err, ERROR_INVALID, "max_sequences", "%zu sequences of %zu tokens are more than any machine has place for", sequences, length);
    }
    return 0;
}

/* What the engine itself would choose on this processor when nobody says how much. */
static int choose_as_engine(const struct ask *k, struct plan_answer *a, size_t *tokens, struct error *err) {
    struct plan_input in;
    struct plan_rank r = {0};
    struct plan chosen;
    struct error none;
    if (describe(k, 0, a->asked_sequences, &in, &r, err) < 0) {
        return -1;
    }
    in.max_model_len = k->q.max_model_len;
    if (plan_make(&in, &chosen, &none) == 0) {
        *tokens = chosen.n_blocks * in.block_size;
        a->asked_context = least(a->asked_context, chosen.max_model_len);
        if (*tokens / a->asked_sequences < a->asked_context) {
            warn(a, "unasked, KV is at most a quarter of the memory: %zu tokens for all sequences together", *tokens);
        }
    } else {
        a->asked_sequences = 1; /* the least that it starts with */
    }
    return 0;
}

static int fit(const struct ask *k, struct plan_answer *a, struct error *err) {
    const struct plan_question *q = &k->q;
    size_t own = k->shape.context_length ? k->shape.context_length : 4096, tokens;
    bool free_length = q->max_model_len == 0;
    a->asked_sequences = q->max_sequences ? q->max_sequences : 1;
    a->asked_context = free_length ? own : q->max_model_len;
    if (tokens_for(k, a->asked_sequences, a->asked_context, &tokens, err) < 0) {
        return -1;
    }
    if (q->kv_tokens > 0) {
        if (tokens_for(k, 1, q->kv_tokens, &tokens, err) < 0) {
            return -1;
        }
        a->asked_context = free_length ? least(own, tokens) : q->max_model_len;
        free_length = false;
    } else if (q->max_sequences == 0 && ask_is_cpu(&q->gpu)) {
        a->asked_sequences = k->engine_sequences;
        if (choose_as_engine(k, a, &tokens, err) < 0) {
            return -1;
        }
    }
    if (fill_ranks(k, tokens, a, err) < 0) {
        return -1;
    }
    size_t each = a->max_tokens / a->asked_sequences / q->kv_block_size * q->kv_block_size;
    if (free_length && a->shortage > 0 && each > 0) { /* as the daemon does: cut down to what there is place for */
        warn(a, "the model's %zu tokens have no place; a context of %zu has", a->asked_context, least(each, own));
        a->asked_context = least(each, own);
        if (tokens_for(k, a->asked_sequences, a->asked_context, &tokens, err) < 0 || fill_ranks(k, tokens, a, err) < 0) {
            return -1;
        }
        each = a->max_tokens / a->asked_sequences / q->kv_block_size * q->kv_block_size;
    }
    size_t one = parts(a->asked_context, q->kv_block_size) * q->kv_block_size;
    if (most_sequences(k, a, one, &a->max_sequences, err) < 0) {
        return -1;
    }
    a->max_context = least(each, own);
    a->fits = a->shortage == 0 && a->max_tokens > 0 && tokens >= one;
    return 0;
}

static void find_valid_tp(const struct shape *s, struct plan_answer *a) {
    for (size_t tp = 1; tp <= s->n_heads && tp <= PLAN_MAX_TP; tp++) {
        if (ask_valid_tp(s, tp)) {
            a->valid_tp[a->n_valid_tp++] = tp;
        }
    }
}

static const char *what_rules(const struct ask *k, const struct plan_answer *a) {
    const struct plan_rank *r = &a->ranks[a->fullest];
    if (!ask_valid_tp(&k->shape, k->q.tensor_parallel)) {
        return "tensor_parallel";
    }
    if (k->q.pipeline_parallel > k->shape.n_layers || (k->q.n_gpus > 0 && a->n_ranks * k->q.replicas > k->q.n_gpus)) {
        return "gpus";
    }
    if (r->weights > r->usable) {
        return "weights";
    }
    if (r->total - r->kv > r->usable) {
        return r->weights > r->total - r->kv - r->weights ? "weights" : "workspace";
    }
    return a->fits && k->shape.context_length && a->max_context == k->shape.context_length && a->max_sequences > a->asked_sequences ? "context" : "kv";
}

static void give_warnings(const struct ask *k, struct plan_answer *a) {
    const struct shape *s = &k->shape;
    const struct plan_question *q = &k->q;
    if (!s->runs) {
        warn(a, "inferd cannot run this model yet: %.150s", s->why_not);
    }
    if (q->gpu.why_not[0]) {
        warn(a, "inferd does not run on this card: %.120s", q->gpu.why_not);
    }
    if (s->context_length && a->asked_context > s->context_length) {
        warn(a, "a context of %zu is beyond the %zu positions that the model was made for: without a RoPE scaling of its own it is refused",
             a->asked_context, s->context_length);
    }
    if (s->tied) {
        warn(a, "the head is the embedding (tied): they are counted once%s", q->pipeline_parallel > 1 ? " in the first and once in the last stage" : "");
    }
    if (s->window && s->n_sliding) {
        warn(a, "%zu of %zu layers see a sliding window of %zu tokens; their KV is kept for the whole context all the same", s->n_sliding, s->n_layers, s->window);
    }
    if (s->n_experts) {
        warn(a, "a mixture of %zu experts: all of them are counted, though a token uses %zu", s->n_experts, s->n_experts_used);
    }
    if (s->widened && k->format == WEIGHTS_AUTO) {
        warn(a, "there is no kernel for the way this checkpoint is quantised: its matrices become BF16 and take more than its %.2f GiB", (double)a->file_bytes / 1073741824.0);
    }
    if (s->sees) {
        warn(a, "only the language model is counted: what looks at images takes memory beside it");
    }
    if (s->n_types > 1 && k->format == WEIGHTS_AUTO) {
        warn(a, "tensors of %zu types: each is counted with its own", s->n_types);
    }
    if (q->tensor_parallel > s->n_kv_heads && ask_valid_tp(s, q->tensor_parallel)) {
        warn(a, "%zu heads of keys and values for %zu ranks: each is kept %zu times, and KV takes %zu bytes a token in place of %zu", s->n_kv_heads,
             q->tensor_parallel, q->tensor_parallel / s->n_kv_heads, a->kv_bytes_per_token, a->kv_bytes_per_token / q->tensor_parallel * s->n_kv_heads);
    }
    if (s->n_kv_heads == s->n_heads && s->n_heads > 1) {
        warn(a, "no grouped-query attention: every one of the %zu heads keeps keys and values", s->n_heads);
    }
    size_t ff = s->n_experts ? s->n_ff_expert : s->n_ff;
    if (ff % q->tensor_parallel != 0) {
        warn(a, "the feed-forward's %zu features are no multiple of %zu: ranks share them unevenly, and the largest part is counted", ff, q->tensor_parallel);
    }
    if (s->vocab_size % q->tensor_parallel != 0) {
        warn(a, "the vocabulary of %zu is padded to %zu for %zu ranks", s->vocab_size, parts(s->vocab_size, q->tensor_parallel) * q->tensor_parallel, q->tensor_parallel);
    }
    if (!ask_valid_tp(s, q->tensor_parallel)) {
        warn(a, "%zu ranks cannot share %zu query heads and %zu heads of keys and values", q->tensor_parallel, s->n_heads, s->n_kv_heads);
    }
    if (q->n_gpus > a->n_ranks * q->replicas) {
        warn(a, "%zu of %zu cards would stand idle", q->n_gpus - a->n_ranks * q->replicas, q->n_gpus);
    }
}

static int count_parameters(const struct ask *k, struct plan_answer *a, struct error *err) {
    size_t n;
    const struct shape_tensor *t = k->shape.plain ? k->shape.plain : k->shape.tensors;
    n = k->shape.plain ? k->shape.n_plain : k->shape.n_tensors;
    for (size_t i = 0; i < n; i++) {
        size_t each = t[i].n * t[i].k, used = t[i].count, all;
        if (!checked_mul(each, t[i].count, &all) || !checked_add(a->parameters, all, &a->parameters)) {
            return too_large(err);
        }
        if (t[i].is_expert) {
            used = t[i].count > 1 ? least(used, k->shape.n_experts_used) : 1;
        }
        a->active_parameters += each * used;
    }
    for (size_t i = 0; i < k->shape.n_tensors; i++) {
        size_t all;
        if (!checked_mul(k->shape.tensors[i].bytes, k->shape.tensors[i].count, &all) || !checked_add(a->file_bytes, all, &a->file_bytes)) {
            return too_large(err);
        }
    }
    return 0;
}

static int answer(struct ask *k, struct plan_answer *a, struct error *err) {
    const struct shape *s = &k->shape;
    snprintf(a->model, sizeof a->model, "%s", s->name);
    snprintf(a->architecture, sizeof a->architecture, "%s", s->architecture);
    a->n_layers = s->n_layers;
    a->n_heads = s->n_heads;
    a->n_kv_heads = s->n_kv_heads;
    a->head_dim = s->head_dim;
    a->context_length = s->context_length;
    a->tensor_parallel = k->q.tensor_parallel;
    a->pipeline_parallel = k->q.pipeline_parallel;
    a->replicas = k->q.replicas;
    if (fit(k, a, err) < 0 || count_parameters(k, a, err) < 0) {
        return -1;
    }
    find_valid_tp(s, a);
    a->binding = what_rules(k, a);
    if (strcmp(a->binding, "tensor_parallel") == 0 || strcmp(a->binding, "gpus") == 0) {
        a->fits = false;
    }
    give_warnings(k, a);
    return estimate(k, a, err);
}

/* ---- remedies: the same question with one thing changed ---- */

static bool valid_here(const struct ask *k) {
    return ask_valid_tp(&k->shape, k->q.tensor_parallel);
}

/* True if it was added and is enough. Where ranks cannot share the heads, only what is enough counts. */
static bool remedy(const struct ask *k, const struct plan_question *changed, const char *what, const char *flags,
                   struct plan_answer *a) {
    bool enough = false;
    struct ask other = {.shape = k->shape, .engine_sequences = k->engine_sequences};
    struct plan_answer *b = calloc(1, sizeof *b);
    struct error err;
    if (b && a->n_remedies < PLAN_MAX_REMEDIES && complete(&other, changed, &err) == 0 && answer(&other, b, &err) == 0 &&
        (valid_here(k) ? b->ranks[b->fullest].total < a->ranks[a->fullest].total : b->fits)) {
        enough = b->fits;
        struct plan_remedy *r = &a->remedies[a->n_remedies++];
        *r = (struct plan_remedy){.fits = b->fits,
                                  .max_tokens = b->max_tokens,
                                  .max_sequences = b->max_sequences,
                                  .total = b->ranks[b->fullest].total};
        snprintf(r->what, sizeof r->what, "%s", what);
        snprintf(r->flags, sizeof r->flags, "%s", flags);
    }
    free(b);
    return enough;
}

/* The cards that there are, grouped so that the heads can be shared: the most ranks that fit, with cards idle, and all of
 * them as replicas or else as stages. */
static void regroup(const struct ask *k, struct plan_answer *a) {
    char what[96], flags[96];
    struct plan_question c = k->q;
    size_t cards = k->q.n_gpus ? k->q.n_gpus : a->n_ranks * k->q.replicas;
    c.n_gpus = cards;
    bool alone = false, all = false;
    for (size_t i = a->n_valid_tp; i-- > 0 && !(alone && all);) {
        size_t tp = a->valid_tp[i];
        c.tensor_parallel = tp;
        c.pipeline_parallel = c.replicas = 1;
        if (tp < cards && cards % tp == 0 && !all) {
            c.replicas = cards / tp;
            snprintf(what, sizeof what, "%zu rank%s, %zu replicas", tp, tp == 1 ? "" : "s", c.replicas);
            snprintf(flags, sizeof flags, "--tp %zu --replicas %zu", tp, c.replicas);
            all = remedy(k, &c, what, flags, a);
            c.replicas = 1;
            c.pipeline_parallel = cards / tp;
            if (!all && c.pipeline_parallel <= MOST_STAGES) {
                snprintf(what, sizeof what, "%zu rank%s in each of %zu stages", tp, tp == 1 ? "" : "s", c.pipeline_parallel);
                snprintf(flags, sizeof flags, "--tp %zu --pp %zu", tp, c.pipeline_parallel);
                all = remedy(k, &c, what, flags, a);
            }
            c.pipeline_parallel = 1;
        }
        if (tp <= cards && !alone) {
            snprintf(what, sizeof what, "%zu rank%s, %zu card%s idle", tp, tp == 1 ? "" : "s", cards - tp, cards - tp == 1 ? "" : "s");
            snprintf(flags, sizeof flags, "--tp %zu", tp);
            alone = remedy(k, &c, what, flags, a);
        }
    }
}

/* Those that are enough come first; within each kind, what costs least comes first. */
static void rank_remedies(struct plan_answer *a) {
    struct plan_remedy sorted[PLAN_MAX_REMEDIES];
    size_t n = 0;
    for (int fits = 1; fits >= 0; fits--) {
        for (size_t i = 0; i < a->n_remedies; i++) {
            if (a->remedies[i].fits == fits) {
                sorted[n++] = a->remedies[i];
            }
        }
    }
    memcpy(a->remedies, sorted, n * sizeof *sorted);
}

static void find_remedies(const struct ask *k, struct plan_answer *a) {
    char what[96], flags[96];
    struct plan_question c = k->q;
    bool int8 = k->format == WEIGHTS_INT8 || k->format == WEIGHTS_INT8_WEIGHT_ONLY;
    bool valid = valid_here(k); /* else nothing but other ranks helps */
    if (valid && k->kv != DTYPE_I8) {
        c.kv_dtype = "int8";
        remedy(k, &c, "INT8 KV", "--kv int8", a);
    }
    if (valid && !int8) {
        c = k->q;
        c.weights = "int8";
        remedy(k, &c, "INT8 weights", "--weights int8", a);
        c.kv_dtype = "int8";
        remedy(k, &c, "INT8 weights and KV", "--weights int8 --kv int8", a);
    }
    if (valid && a->max_sequences > 0 && a->max_sequences < a->asked_sequences) {
        c = k->q;
        c.max_sequences = a->max_sequences;
        snprintf(what, sizeof what, "%zu sequence%s", c.max_sequences, c.max_sequences == 1 ? "" : "s");
        snprintf(flags, sizeof flags, "--batch %zu", c.max_sequences);
        remedy(k, &c, what, flags, a);
    }
    if (valid && a->max_context > 0 && a->max_context < a->asked_context) {
        c = k->q;
        c.max_model_len = a->max_context;
        snprintf(what, sizeof what, "a context of %zu tokens", c.max_model_len);
        snprintf(flags, sizeof flags, "--ctx %zu", c.max_model_len);
        remedy(k, &c, what, flags, a);
    }
    if (!valid && !ask_is_cpu(&k->q.gpu)) {
        regroup(k, a);
    }
    size_t before = a->n_remedies;
    for (size_t i = 0; i < a->n_valid_tp && !ask_is_cpu(&k->q.gpu) && a->n_remedies < PLAN_MAX_REMEDIES; i++) {
        c = k->q;
        c.tensor_parallel = a->valid_tp[i];
        c.n_gpus = 0;
        if (c.tensor_parallel <= k->q.tensor_parallel || c.tensor_parallel > 64) {
            continue;
        }
        snprintf(what, sizeof what, "%zu ranks", c.tensor_parallel);
        snprintf(flags, sizeof flags, "--gpu %sx%zu --tp %zu", k->q.gpu.name, c.tensor_parallel * k->q.pipeline_parallel * k->q.replicas, c.tensor_parallel);
        remedy(k, &c, what, flags, a);
        if (a->n_remedies > before && a->remedies[a->n_remedies - 1].fits) {
            break;
        }
        a->n_remedies = before; /* the fewest that are enough alone */
    }
    rank_remedies(a);
}

int ask_open(struct ask *k, const struct plan_question *q, struct error *err) {
    struct ask made = {.engine_sequences = 32};
    if (complete(&made, q, err) < 0 || shape_open(q->model, &made.shape, err) < 0) {
        return -1;
    }
    *k = made;
    return 0;
}

int ask_again(struct ask *k, const struct plan_question *q, struct plan_answer *out, struct error *err) {
    struct ask other = {.shape = k->shape, .engine_sequences = k->engine_sequences};
    struct plan_answer *a = calloc(1, sizeof *a);
    if (!a) {
        return error_memory(err);
    }
    int rc = complete(&other, q, err);
    rc = rc == 0 ? answer(&other, a, err) : rc;
    if (rc == 0) {
        *out = *a;
    }
    free(a);
    return rc;
}

void ask_close(struct ask *k) {
    shape_close(&k->shape);
}

int plan_ask(const struct plan_question *q, struct plan_answer *out, struct error *err) {
    struct ask k;
    struct plan_answer *a = calloc(1, sizeof *a);
    if (!a) {
        return error_memory(err);
    }
    if (ask_open(&k, q, err) < 0) {
        free(a);
        return -1;
    }
    int rc = answer(&k, a, err);
    if (rc == 0) {
        if (!a->fits) {
            find_remedies(&k, a);
        }
        *out = *a;
    }
    ask_close(&k);
    free(a);
    return rc;
}
