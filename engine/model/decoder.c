#include "model/decoder.h"

#include "base/checked.h"
#include "model/decoder_graph.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ALIGN 64u

static size_t element_bytes(enum dtype t) {
    return dtype_info(t)->bytes; /* of activation types: a block is one element */
}

bool decoder_kv_token_bytes(const struct model_config *c, enum dtype kv_dtype, size_t *bytes) {
    return checked_mul(kv_layer_bytes(kv_dtype, 1, 1, c->n_kv_heads, c->head_dim), c->n_layers, bytes);
}

/*
 * The workspace is one allocation, carved in this order. With base NULL it only counts. False on overflow.
 */
static bool carve(struct decoder *d, const struct model_config *c, const struct backend_ops *ops, enum dtype activation,
                  size_t max_rows, size_t max_logits, size_t logit_columns, char *base, size_t *bytes) {
    size_t q = model_config_q_dim(c), kv = model_config_kv_dim(c), e = element_bytes(activation);
    size_t i8_rows = ops->linear_i8 ? max_rows : 0;
    d->h_i8.ld = (c->n_embd + ROWS_I8_PAD - 1) / ROWS_I8_PAD * ROWS_I8_PAD;
    d->ff_i8.ld = (c->n_ff + ROWS_I8_PAD - 1) / ROWS_I8_PAD * ROWS_I8_PAD;
    const struct {
        void **field;
        size_t rows, features, element;
    } parts[] = {
        {(void **)&d->x, max_rows, c->n_embd, sizeof(float)},
        {&d->h, max_rows, c->n_embd, e},
        {&d->delta, max_rows, c->n_embd, e},
        {&d->qkv, max_rows, q + 2 * kv, e},
        {&d->attn, max_rows, q, e},
        {&d->gate_up, max_rows, 2 * c->n_ff, e},
        {(void **)&d->x_last, max_rows, c->n_embd, sizeof(float)},
        {&d->attn_last, max_rows, q, e},
        {(void **)&d->logits, max_logits, logit_columns, sizeof(float)},
        {(void **)&d->h_i8.q, i8_rows, d->h_i8.ld, sizeof(int8_t)},
        {(void **)&d->h_i8.scales, i8_rows, 1, sizeof(float)},
        {(void **)&d->ff_i8.q, i8_rows, d->ff_i8.ld, sizeof(int8_t)},
        {(void **)&d->ff_i8.scales, i8_rows, 1, sizeof(float)},
    };
    size_t at = 0;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        size_t size;
        if (!checked_mul(parts[i].rows, parts[i].features, &size) || !checked_mul(size, parts[i].element, &size) ||
            !checked_add(size, ALIGN - 1, &size)) {
            return false;
        }
        if (base) {
            *parts[i].field = base + at;
        }
        if (!checked_add(at, size / ALIGN * ALIGN, &at)) {
            return false;
        }
    }
    *bytes = at;
    return true;
}

bool decoder_workspace_bytes(const struct model_config *c, const struct backend_ops *ops, enum dtype activation,
                             size_t max_rows, size_t max_logits, size_t logit_columns, size_t *bytes) {
    struct decoder none;
    return carve(&none, c, ops, activation, max_rows, max_logits, logit_columns, NULL, bytes);
}

/* A rank's own logits that are gathered. */
static size_t part_columns(size_t vocab_size, size_t n_ranks, bool shared_memory) {
    return shared_memory || n_ranks == 1 ? 0 : vocab_size / n_ranks + (vocab_size % n_ranks != 0);
}

size_t decoder_logit_columns(size_t vocab_size, size_t rank, size_t n_ranks, bool shared_memory) {
    size_t part = part_columns(vocab_size, n_ranks, shared_memory);
    return part > 0 ? part * (n_ranks + 1) : shared_memory && rank > 0 ? 0 : vocab_size;
}

static int open_rope(struct decoder *d, struct error *err) {
    const struct model_config *c = &d->config;
    size_t half = c->n_rot / 2;
    float *host = calloc(2 * half, sizeof *host);
    if (!host) {
        return error_memory(err);
    }
    d->rope = (struct rope_table){.n_rot = c->n_rot, .style = c->rope_style};
    rope_frequencies(&c->rope, c->n_rot, d->weights.rope_factors, host, &d->rope.mscale);
    d->rope_local = (struct rope_table){.n_rot = c->n_rot, .style = c->rope_style};
    rope_frequencies(&c->rope_local, c->n_rot, NULL, host + half, &d->rope_local.mscale);
    int rc = d->ops->alloc(d->backend, 2 * half * sizeof *host, (void **)&d->inv_freq, err);
    if (rc == 0) {
        d->rope.inv_freq = d->inv_freq;
        d->rope_local.inv_freq = d->inv_freq + half;
        rc = d->ops->upload(d->backend, d->inv_freq, host, 2 * half * sizeof *host, err);
    }
    free(host);
    return rc;
}

static int open_workspace(struct decoder *d, float *shared_logits, struct error *err) {
    struct backend_info info;
    bool shared = d->group && d->group->ops->shared_memory;
    size_t vocab = d->config.vocab_size, rank = d->shard.rank, n_ranks = d->shard.n_ranks;
    size_t part = part_columns(vocab, n_ranks, shared), columns = decoder_logit_columns(vocab, rank, n_ranks, shared);
    d->ops->info(d->backend, &info);
    enum dtype activation = d->activation = info.activation_dtype;
    if (!decoder_workspace_bytes(&d->config, d->ops, activation, d->limits.max_rows, d->limits.max_logits,
                                 columns, &d->workspace_bytes)) {
        return error_set(err, ERROR_DOES_NOT_FIT, "the workspace for %zu rows is larger than the address space",
                         d->limits.max_rows);
    }
    if (d->ops->alloc(d->backend, d->workspace_bytes, &d->workspace, err) < 0) {
        return error_prefix(err, "workspace of %zu bytes", d->workspace_bytes);
    }
    size_t bytes;
    carve(d, &d->config, d->ops, activation, d->limits.max_rows, d->limits.max_logits, columns, d->workspace, &bytes);
    d->logits_ld = part > 0 ? columns - part : vocab;
    d->part = part > 0 ? d->logits + d->limits.max_logits * d->logits_ld : NULL;
    d->logits = shared_logits ? shared_logits : d->logits;
    return 0;
}

static int open_kv(struct decoder *d, struct error *err) {
    const struct model_config *c = &d->config;
    const struct decoder_limits *l = &d->limits;
    d->kv = calloc(c->n_layers, sizeof *d->kv);
    if (!d->kv) {
        return error_memory(err);
    }
    size_t bytes = kv_layer_bytes(l->kv_dtype, l->kv_blocks, l->kv_block_size, c->n_kv_heads, c->head_dim);
    for (size_t i = 0; i < c->n_layers; i++) {
        d->kv[i] = (struct kv_layer){.dtype = l->kv_dtype,
                                     .n_blocks = l->kv_blocks,
                                     .block_size = l->kv_block_size,
                                     .n_kv_heads = c->n_kv_heads,
                                     .head_dim = c->head_dim};
        if (d->ops->alloc(d->backend, bytes, &d->kv[i].data, err) < 0) {
            return error_prefix(err, "KV memory of layer %zu, %zu bytes", i, bytes);
        }
    }
    return 0;
}

/* What other stages compute goes through memory of the host. */
static int open_stream(struct decoder *d, struct error *err) {
    struct backend_info info;
    size_t bytes;
    d->ops->info(d->backend, &info);
    if (!d->stages || !info.own_memory) {
        return 0;
    }
    return !checked_mul(d->limits.max_rows, d->config.n_embd, &bytes) || !checked_mul(bytes, sizeof(float), &bytes)
               ? error_memory(err)
               : d->ops->host_alloc(d->backend, bytes, (void **)&d->stream, err);
}

int decoder_open(struct decoder *d, const struct model_config *config, struct weights *weights,
                 const struct decoder_limits *limits, const struct decoder_ranks *ranks, struct error *err) {
    struct decoder made = {
        .ops = weights->ops, .backend = weights->backend, .config = *config, .weights = *weights, .limits = *limits};
    *weights = (struct weights){0};
    if (ranks) {
        made.group = ranks->group;
        made.stages = ranks->stages;
        made.shard = *ranks->shard;
    } else {
        shard_whole(config, &made.shard);
    }
    if (open_rope(&made, err) < 0 || open_workspace(&made, ranks ? ranks->logits : NULL, err) < 0 || open_stream(&made, err) < 0 ||
        open_kv(&made, err) < 0) {
        decoder_close(&made);
        return -1;
    }
    *d = made;
    return 0;
}

void decoder_close(struct decoder *d) {
    if (!d || !d->ops) {
        return;
    }
    decoder_graphs_close(d);
    for (size_t i = 0; d->kv && i < d->config.n_layers; i++) {
        if (d->kv[i].data) {
            d->ops->free(d->backend, d->kv[i].data);
        }
    }
    if (d->workspace) {
        d->ops->free(d->backend, d->workspace);
    }
    if (d->inv_freq) {
        d->ops->free(d->backend, d->inv_freq);
    }
    if (d->stream) {
        d->ops->host_free(d->backend, d->stream);
    }
    free(d->kv);
    weights_unload(&d->weights);
    *d = (struct decoder){0};
}

/* Column `features` of a row-major activation matrix. */
static void *column(const struct decoder *d, void *matrix, size_t features) {
    return (char *)matrix + features * element_bytes(d->activation);
}

/* Every operation may fail; the first failure ends the pass. */
#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        if ((call) < 0) {                                                                                              \
            return -1;                                                                                                 \
        }                                                                                                              \
    } while (0)

static int observe(struct decoder *d, enum decoder_input input, const void *x, size_t ld, size_t rows, size_t n,
                   struct error *err) {
    return d->observer.see ? d->observer.see(d->observer.arg, input, x, ld, rows, n, err) : 0;
}

/* Rows on their way into a product: floats, or quantised where the backend can write them so and every weight takes it.
 */
struct input {
    void *x;
    size_t ld;
    const struct rows_i8 *q; /* NULL: x counts */
};

static bool takes_i8(const struct weight *w) {
    return w->dtype == DTYPE_I8 && w->activation == ACTIVATION_I8_TOKEN;
}

static struct input input_for(const struct decoder *d, void *x, size_t ld, const struct rows_i8 *q,
                              const struct linear_part *parts, size_t n_parts) {
    bool quantised = d->ops->linear_i8 && !d->observer.see;
    for (size_t i = 0; i < n_parts; i++) {
        quantised &= takes_i8(parts[i].w);
    }
    return (struct input){x, ld, quantised ? q : NULL};
}

static int linear(struct decoder *d, struct input in, size_t rows, const struct linear_part *parts, size_t n_parts,
                  struct error *err) {
    return in.q ? d->ops->linear_i8(d->backend, in.q, rows, parts, n_parts, err)
                : d->ops->linear(d->backend, in.x, in.ld, rows, parts, n_parts, err);
}

/* What each rank has a part of becomes the sum of the parts. */
static int all_reduce(struct decoder *d, void *x, enum dtype dtype, size_t n, struct error *err) {
    return d->group ? d->group->ops->all_reduce(d->group, x, dtype, n, err) : 0;
}

/* x += residual; out = rms_norm(x) * w */
static int norm_stream(struct decoder *d, struct input out, float *x, const void *residual, const float *w, size_t rows,
                       struct error *err) {
    size_t E = d->config.n_embd;
    float eps = (float)d->config.norm_eps;
    return d->ops->add_rms_norm
               ? d->ops->add_rms_norm(d->backend, out.x, out.ld, out.q, x, E, residual, E, w, rows, E, eps, err)
               : d->ops->rms_norm(d->backend, out.x, out.ld, x, E, residual, E, w, rows, 1, E, eps, err);
}

/* The norm of a block's result, in place, where the architecture has one. */
static int norm_delta(struct decoder *d, const float *w, size_t rows, struct error *err) {
    size_t E = d->config.n_embd;
    float eps = (float)d->config.norm_eps;
    return w ? d->ops->rms_norm(d->backend, d->delta, E, d->delta, E, NULL, 0, w, rows, 1, E, eps, err) : 0;
}

/* A block's result is in delta, this rank's part of it: x += its sum over the ranks, normed by `post` where the architecture has
 * such a norm; out = rms_norm(x) * w. */
static int join_stream(struct decoder *d, struct input out, float *x, const float *post, const float *w, size_t rows,
                       struct error *err) {
    size_t E = d->config.n_embd;
    if (d->group && !post && d->group->ops->all_reduce_add_rms_norm) {
        return d->group->ops->all_reduce_add_rms_norm(d->group, out.x, out.ld, out.q, x, E, d->delta, E, w, rows, E,
                                                      (float)d->config.norm_eps, err);
    }
    TRY(all_reduce(d, d->delta, d->activation, rows * E, err));
    TRY(norm_delta(d, post, rows, err));
    return norm_stream(d, out, x, d->delta, w, rows, err);
}

/* Rotate q and k, which lie side by side, all their heads at once; store k and v. */
static int rope_and_store(struct decoder *d, const struct decoder_batch *b, size_t layer, struct error *err) {
    const struct backend_ops *op = d->ops;
    struct backend *be = d->backend;
    const struct model_config *c = &d->config;
    size_t D = c->head_dim, Q = model_config_q_dim(c), KV = model_config_kv_dim(c), ld = Q + 2 * KV;
    void *q = d->qkv, *k = column(d, d->qkv, Q), *v = column(d, d->qkv, Q + KV);
    const struct rope_table *rope = c->sliding[layer] && c->arch->window == WINDOW_PATTERN ? &d->rope_local : &d->rope;
    if (op->rope_kv_store) {
        return op->rope_kv_store(be, q, ld, c->n_heads, c->n_kv_heads, D, b->positions, b->slot_mapping, b->rows, rope,
                                 &d->kv[layer], err);
    }
    TRY(op->rope(be, q, ld, c->n_heads + c->n_kv_heads, D, b->positions, b->rows, rope, err));
    return op->kv_store(be, &d->kv[layer], k, ld, v, ld, b->slot_mapping, b->rows, err);
}

/* attn[rows] = attention of the rows `in`, which norm_stream wrote; KV stored on the way. */
static int attention_block(struct decoder *d, const struct decoder_batch *b, size_t layer, const struct input *in,
                           const struct linear_part qkv[3], struct error *err) {
    const struct backend_ops *op = d->ops;
    struct backend *be = d->backend;
    const struct model_config *c = &d->config;
    const struct layer_weights *w = &d->weights.layers[layer];
    size_t D = c->head_dim, Q = model_config_q_dim(c), KV = model_config_kv_dim(c), ld = Q + 2 * KV;
    float eps = (float)c->norm_eps;

    TRY(linear(d, *in, b->rows, qkv, 3, err));
    if (w->q_norm) {
        void *q = qkv[0].y, *k = qkv[1].y;
        TRY(op->rms_norm(be, q, ld, q, ld, NULL, 0, w->q_norm, b->rows, c->n_heads, D, eps, err));
        TRY(op->rms_norm(be, k, ld, k, ld, NULL, 0, w->k_norm, b->rows, c->n_kv_heads, D, eps, err));
    }
    TRY(rope_and_store(d, b, layer, err));
    const struct attention_args args = {
        .q = d->qkv,
        .ldq = ld,
        .out = d->attn,
        .ldo = Q,
        .kv = &d->kv[layer],
        .block_tables = b->block_tables,
        .max_blocks = b->max_blocks,
        .cu_seqlens = b->cu_seqlens,
        .context_lens = b->context_lens,
        .n_sequences = b->n_sequences,
        .rows = b->rows,
        .max_query = b->max_query,
        .max_context = b->max_context,
        .n_heads = c->n_heads,
        .n_kv_heads = c->n_kv_heads,
        .head_dim = D,
        .scale = (float)c->attention_scale,
        .window = c->sliding[layer] ? c->window : 0,
    };
    return op->attention(be, &args, err);
}

static bool is_last_stage(const struct decoder *d) {
    return d->shard.stage + 1 == d->shard.n_stages;
}

/* What the stage before computed comes to rank 0, before the pass; and goes to the next one behind it. */
static int receive_stream(struct decoder *d, size_t rows, struct error *err) {
    size_t bytes = rows * d->config.n_embd * sizeof(float);
    if (!d->stages || d->shard.stage == 0) {
        return 0;
    }
    TRY(d->stages->ops->recv(d->stages, d->stream ? d->stream : d->x, bytes, d->shard.stage - 1, err));
    return d->stream ? d->ops->upload(d->backend, d->x, d->stream, bytes, err) : 0;
}

static int send_stream(struct decoder *d, size_t rows, struct error *err) {
    size_t bytes = rows * d->config.n_embd * sizeof(float);
    if (!d->stages || is_last_stage(d)) {
        return 0;
    }
    TRY(d->stream ? d->ops->download(d->backend, d->stream, d->x, bytes, err) : 0);
    return d->stages->ops->send(d->stages, d->stream ? d->stream : d->x, bytes, d->shard.stage + 1, err);
}

/* The stream at the beginning of this stage: of the tokens, or what rank 0 has received. */
static int begin_stream(struct decoder *d, const struct decoder_batch *b, struct error *err) {
    const struct model_config *c = &d->config;
    size_t E = c->n_embd;
    if (d->shard.stage > 0) {
        return d->group ? d->group->ops->broadcast(d->group, d->x, b->rows * E * sizeof(float), 0, err) : 0;
    }
    TRY(d->ops->embed(d->backend, d->x, E, &d->weights.embed, b->token_ids, b->rows,
                      c->arch->embed_scaled ? sqrtf((float)E) : 1.0f, err));
    return all_reduce(d, d->x, DTYPE_F32, b->rows * E, err); /* one rank has the token, the others zeros */
}

/* The stream at the end of a stage that others follow. What is still in delta is added to it by a norm whose result nobody reads. */
static int end_stream(struct decoder *d, size_t rows, const float *post, struct error *err) {
    const struct layer_weights *last = &d->weights.layers[d->config.n_layers - 1];
    return join_stream(d, (struct input){d->h, d->config.n_embd, NULL}, d->x, post, last->ffn_norm, rows, err);
}

/* The pass itself, b's arrays where the operations read them; the head's input for all logit_rows is left in h. */
static int forward_layers(struct decoder *d, const struct decoder_batch *b, struct error *err) {
    const struct backend_ops *op = d->ops;
    struct backend *be = d->backend;
    const struct model_config *c = &d->config;
    size_t E = c->n_embd, Q = model_config_q_dim(c), KV = model_config_kv_dim(c), F = c->n_ff, rows = b->rows;
    size_t ld = Q + 2 * KV;
    enum dtype t = d->activation;
    float *x = d->x;
    void *attn = d->attn, *gate = d->gate_up, *up = column(d, d->gate_up, F);
    const float *post = NULL; /* of the layer before: what it computed is in delta, and nobody has added it to x yet */

    TRY(begin_stream(d, b, err));

    for (size_t l = 0; l < c->n_layers; l++) {
        const struct layer_weights *w = &d->weights.layers[l];
        const struct linear_part qkv[] = {{&w->q, w->q_bias, d->qkv, ld, t},
                                          {&w->k, w->k_bias, column(d, d->qkv, Q), ld, t},
                                          {&w->v, w->v_bias, column(d, d->qkv, Q + KV), ld, t}};
        const struct linear_part attn_out = {&w->o, NULL, d->delta, E, t};
        const struct linear_part gate_up[] = {{&w->gate, NULL, gate, 2 * F, t}, {&w->up, NULL, up, 2 * F, t}};
        const struct linear_part down = {&w->down, NULL, d->delta, E, t};
        const struct input attn_in = input_for(d, d->h, E, &d->h_i8, qkv, 3);
        const struct input ff_in = input_for(d, d->h, E, &d->h_i8, gate_up, 2);
        const struct input down_in = input_for(d, gate, 2 * F, &d->ff_i8, &down, 1);

        TRY(l == 0 ? norm_stream(d, attn_in, x, NULL, w->attn_norm, rows, err)
                   : join_stream(d, attn_in, x, post, w->attn_norm, rows, err));
        TRY(observe(d, DECODER_INPUT_QKV, d->h, E, rows, E, err));
        TRY(attention_block(d, b, l, &attn_in, qkv, err));
        if (l + 1 == c->n_layers && is_last_stage(d) && b->n_logits < rows) {
            /* Behind the last attention, only rows whose logits are asked for matter. */
            if (b->n_logits == 0) {
                return 0;
            }
            TRY(op->gather_rows(be, DTYPE_F32, d->x_last, E, x, E, b->logit_rows, b->n_logits, E, err));
            TRY(op->gather_rows(be, t, d->attn_last, Q, attn, Q, b->logit_rows, b->n_logits, Q, err));
            x = d->x_last;
            attn = d->attn_last;
            rows = b->n_logits;
        }
        TRY(observe(d, DECODER_INPUT_O, attn, Q, rows, Q, err));
        TRY(op->linear(be, attn, Q, rows, &attn_out, 1, err));
        TRY(join_stream(d, ff_in, x, w->post_attn_norm, w->ffn_norm, rows, err));
        TRY(observe(d, DECODER_INPUT_GATE_UP, d->h, E, rows, E, err));
        TRY(linear(d, ff_in, rows, gate_up, 2, err));
        if (down_in.q) {
            TRY(op->silu_mul_i8(be, down_in.q, gate, 2 * F, up, 2 * F, rows, F, c->arch->activation, err));
        } else {
            TRY(op->silu_mul(be, gate, 2 * F, gate, 2 * F, up, 2 * F, rows, F, c->arch->activation, err));
        }
        TRY(observe(d, DECODER_INPUT_DOWN, gate, 2 * F, rows, F, err));
        TRY(linear(d, down_in, rows, &down, 1, err));
        post = w->post_ffn_norm;
    }
    if (!is_last_stage(d)) {
        return end_stream(d, rows, post, err);
    }
    return join_stream(d, (struct input){d->h, E, NULL}, x, post, d->weights.output_norm, rows, err);
}

/* logits[n] = the head's product of h[first..first + n): each rank has its rows of the vocabulary. */
static int head(struct decoder *d, size_t first, size_t n, struct error *err) {
    const struct weight *w = weights_head(&d->weights);
    size_t E = d->config.n_embd, padded = d->shard.vocab_padded;
    const struct linear_part part = {w, NULL, d->part ? d->part : d->logits + d->shard.vocab.first,
                                     d->part ? padded : d->logits_ld, DTYPE_F32};
    if (n == 0 || !is_last_stage(d) || w->n == 0) {
        return 0;
    }
    return d->ops->linear(d->backend, column(d, d->h, first * E), E, n, &part, 1, err);
}

/* The head has computed n rows. */
static void remember_part(struct decoder *d, size_t n) {
    d->n_part = is_last_stage(d) ? n : 0;
    d->gathered = d->part == NULL;
}

int decoder_gather(struct decoder *d, struct error *err) {
    if (d->gathered || d->n_part == 0) {
        return 0;
    }
    TRY(d->group->ops->gather_columns(d->group, d->part, d->n_part, d->shard.vocab_padded * sizeof(float), d->logits, err));
    d->gathered = true;
    return 0;
}

/* How many of its best logits a row looks at: 1 if it is greedy, 0 for more than a few. What comes before a top_k takes from the end, and
 * a top_p would have to know how much there is. */
static size_t best_of_row(const struct choice_row *row) {
    size_t k = row->top_k > row->min_keep ? row->top_k : row->min_keep;
    if (row->n_edits > 0 || row->greedy) {
        return row->n_edits == 0;
    }
    for (size_t i = 0; i < row->n_stages && row->stages[i] != CHOICE_TOP_P; i++) {
        if (row->stages[i] == CHOICE_TOP_K) {
            return k > CHOICE_BEST ? 0 : k > 2 ? k : 2;
        }
    }
    return 0;
}

static size_t best_of_rows(const struct choice_row *rows, size_t n) {
    size_t most = 0;
    for (size_t i = 0; i < n; i++) {
        size_t k = best_of_row(&rows[i]);
        if (k == 0) {
            return 0;
        }
        most = k > most ? k : most;
    }
    return most;
}

int decoder_choose(struct decoder *d, size_t vocab_size, const struct choice_row *rows, size_t n, struct error *err) {
    size_t best = !d->gathered && d->group->ops->choose_best ? best_of_rows(rows, n) : 0;
    if (best > 0) {
        return d->group->ops->choose_best(d->group, d->part, d->shard.vocab_padded, d->shard.vocab.first, d->shard.vocab.n,
                                          vocab_size, rows, n, best, err);
    }
    TRY(decoder_gather(d, err));
    return d->ops->choose(d->backend, d->logits, d->logits_ld, vocab_size, rows, n, err);
}

/* What a launch is sized by. */
static void largest(struct decoder_batch *b) {
    b->max_query = b->max_context = 0;
    for (size_t i = 0; i < b->n_sequences; i++) {
        size_t query = (size_t)(b->cu_seqlens[i + 1] - b->cu_seqlens[i]), context = (size_t)b->context_lens[i];
        b->max_query = query > b->max_query ? query : b->max_query;
        b->max_context = context > b->max_context ? context : b->max_context;
    }
}

int decoder_place(struct decoder *d, struct decoder_batch *b, struct error *err) {
    size_t block_size = d->limits.kv_block_size;
    largest(b);
    if (!d->ops->step_begin) {
        return 0;
    }
    const struct step_arrays host = {.token_ids = b->token_ids,
                                     .positions = b->positions,
                                     .slot_mapping = b->slot_mapping,
                                     .cu_seqlens = b->cu_seqlens,
                                     .context_lens = b->context_lens,
                                     .block_tables = b->block_tables,
                                     .logit_rows = b->logit_rows,
                                     .rows = b->rows,
                                     .n_sequences = b->n_sequences,
                                     .max_blocks = b->max_blocks,
                                     .n_logits = b->n_logits,
                                     .used_blocks = (b->max_context + block_size - 1) / block_size};
    struct step_arrays at;
    TRY(d->ops->step_begin(d->backend, &host, &at, err));
    b->token_ids = at.token_ids;
    b->positions = at.positions;
    b->slot_mapping = at.slot_mapping;
    b->cu_seqlens = at.cu_seqlens;
    b->context_lens = at.context_lens;
    b->block_tables = at.block_tables;
    b->logit_rows = at.logit_rows;
    return 0;
}

/* Rows of logits that lie in memory behind the pass. */
static size_t logits_of(const struct decoder *d, const struct decoder_batch *b) {
    return b->n_logits < d->limits.max_logits ? b->n_logits : d->limits.max_logits;
}

int decoder_queue(struct decoder *d, const struct decoder_batch *b, struct error *err) {
    TRY(forward_layers(d, b, err));
    remember_part(d, logits_of(d, b));
    return head(d, 0, logits_of(d, b), err);
}

void decoder_pad(const struct decoder *d, struct decoder_batch *b) {
    const struct decoder_graph *graph = decoder_graph_for(d, b);
    if (graph) {
        decoder_graph_pad(b, graph->rows);
    }
}

int decoder_start_padded(struct decoder *d, const struct decoder_batch *batch, bool fed, struct error *err) {
    struct decoder_batch b = *batch;
    const struct decoder_graph *graph = decoder_graph_for(d, &b);
    for (size_t l = 0; b.n_copies > 0 && l < d->config.n_layers; l++) {
        TRY(d->ops->kv_copy(d->backend, &d->kv[l], b.copy_from, b.copy_to, b.n_copies, err));
    }
    TRY(decoder_place(d, &b, err));
    TRY(fed ? d->ops->feed(d->backend, b.token_ids, b.rows, err) : 0);
    TRY(receive_stream(d, b.rows, err));
    if (graph) {
        remember_part(d, logits_of(d, &b));
        TRY(d->ops->graph_launch(d->backend, graph->recorded, err));
    } else {
        TRY(decoder_queue(d, &b, err));
    }
    return send_stream(d, b.rows, err);
}

int decoder_start(struct decoder *d, const struct decoder_batch *batch, bool fed, struct error *err) {
    struct decoder_batch b = *batch;
    decoder_pad(d, &b);
    return decoder_start_padded(d, &b, fed, err);
}

int decoder_forward(struct decoder *d, const struct decoder_batch *batch, struct error *err) {
    TRY(decoder_start(d, batch, false, err));
    TRY(decoder_gather(d, err));
    return d->ops->sync(d->backend, err);
}

int decoder_logits(struct decoder *d, size_t first, size_t n, struct error *err) {
    TRY(head(d, first, n, err));
    remember_part(d, n);
    TRY(decoder_gather(d, err));
    return d->ops->sync(d->backend, err);
}
