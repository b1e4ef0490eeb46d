#include "model/decoder.h"

#include "base/checked.h"

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
static bool carve(struct decoder *d, const struct model_config *c, enum dtype activation, size_t max_rows,
                  size_t max_logits, char *base, size_t *bytes) {
    size_t q = model_config_q_dim(c), kv = model_config_kv_dim(c), e = element_bytes(activation);
    const struct {
        void **field;
        size_t rows, features, element;
    } parts[] = {
        {&d->x, max_rows, c->n_embd, e},
        {&d->h, max_rows, c->n_embd, e},
        {&d->delta, max_rows, c->n_embd, e},
        {&d->qkv, max_rows, q + 2 * kv, e},
        {&d->attn, max_rows, q, e},
        {&d->gate_up, max_rows, 2 * c->n_ff, e},
        {&d->x_last, max_rows, c->n_embd, e},
        {&d->attn_last, max_rows, q, e},
        {&d->logits, max_logits, c->vocab_size, sizeof(float)},
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

bool decoder_workspace_bytes(const struct model_config *c, enum dtype activation, size_t max_rows, size_t max_logits,
                             size_t *bytes) {
    struct decoder none;
    return carve(&none, c, activation, max_rows, max_logits, NULL, bytes);
}

static int open_rope(struct decoder *d, struct error *err) {
    const struct model_config *c = &d->config;
    size_t half = c->n_rot / 2;
    d->inv_freq = calloc(2 * half, sizeof *d->inv_freq);
    if (!d->inv_freq) {
        return error_memory(err);
    }
    d->rope = (struct rope_table){.inv_freq = d->inv_freq, .n_rot = c->n_rot, .style = c->rope_style};
    rope_frequencies(&c->rope, c->n_rot, d->weights.rope_factors, d->inv_freq, &d->rope.mscale);
    d->rope_local = (struct rope_table){.inv_freq = d->inv_freq + half, .n_rot = c->n_rot, .style = c->rope_style};
    rope_frequencies(&c->rope_local, c->n_rot, NULL, d->inv_freq + half, &d->rope_local.mscale);
    return 0;
}

static int open_workspace(struct decoder *d, struct error *err) {
    struct backend_info info;
    d->ops->info(d->backend, &info);
    enum dtype activation = info.activation_dtype;
    if (!decoder_workspace_bytes(&d->config, activation, d->limits.max_rows, d->limits.max_logits,
                                 &d->workspace_bytes)) {
        return error_set(err, ERROR_DOES_NOT_FIT, "the workspace for %zu rows is larger than the address space",
                         d->limits.max_rows);
    }
    if (d->ops->alloc(d->backend, d->workspace_bytes, &d->workspace, err) < 0) {
        return error_prefix(err, "workspace of %zu bytes", d->workspace_bytes);
    }
    size_t bytes;
    carve(d, &d->config, activation, d->limits.max_rows, d->limits.max_logits, d->workspace, &bytes);
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

int decoder_open(struct decoder *d, const struct model_config *config, struct weights *weights,
                 const struct decoder_limits *limits, struct error *err) {
    struct decoder made = {
        .ops = weights->ops, .backend = weights->backend, .config = *config, .weights = *weights, .limits = *limits};
    *weights = (struct weights){0};
    if (open_rope(&made, err) < 0 || open_workspace(&made, err) < 0 || open_kv(&made, err) < 0) {
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
    for (size_t i = 0; d->kv && i < d->config.n_layers; i++) {
        if (d->kv[i].data) {
            d->ops->free(d->backend, d->kv[i].data);
        }
    }
    if (d->workspace) {
        d->ops->free(d->backend, d->workspace);
    }
    free(d->kv);
    free(d->inv_freq);
    weights_unload(&d->weights);
    *d = (struct decoder){0};
}

/* Column `features` of a row-major activation matrix. */
static void *column(const struct decoder *d, void *matrix, size_t features) {
    struct backend_info info;
    d->ops->info(d->backend, &info);
    return (char *)matrix + features * element_bytes(info.activation_dtype);
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

/* attn[rows] = attention of the rows in h, KV stored on the way. */
static int attention_block(struct decoder *d, const struct decoder_batch *b, size_t layer, struct error *err) {
    const struct backend_ops *op = d->ops;
    struct backend *be = d->backend;
    const struct model_config *c = &d->config;
    const struct layer_weights *w = &d->weights.layers[layer];
    size_t E = c->n_embd, D = c->head_dim, Q = model_config_q_dim(c), KV = model_config_kv_dim(c), ld = Q + 2 * KV;
    bool sliding = c->sliding[layer];
    float eps = (float)c->norm_eps;
    void *q = d->qkv, *k = column(d, d->qkv, Q), *v = column(d, d->qkv, Q + KV);

    const struct linear_part parts[] = {
        {&w->q, w->q_bias, q, ld}, {&w->k, w->k_bias, k, ld}, {&w->v, w->v_bias, v, ld}};
    TRY(op->linear(be, d->h, E, b->rows, parts, 3, err));
    if (w->q_norm) {
        TRY(op->rms_norm(be, q, ld, q, ld, NULL, 0, w->q_norm, b->rows, c->n_heads, D, eps, err));
        TRY(op->rms_norm(be, k, ld, k, ld, NULL, 0, w->k_norm, b->rows, c->n_kv_heads, D, eps, err));
    }
    /* q and k lie side by side: one rotation of all their heads */
    const struct rope_table *rope = sliding && c->arch->window == WINDOW_PATTERN ? &d->rope_local : &d->rope;
    TRY(op->rope(be, q, ld, c->n_heads + c->n_kv_heads, D, b->positions, b->rows, rope, err));
    TRY(op->kv_store(be, &d->kv[layer], k, ld, v, ld, b->slot_mapping, b->rows, err));
    const struct attention_args args = {
        .q = q,
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
        .n_heads = c->n_heads,
        .n_kv_heads = c->n_kv_heads,
        .head_dim = D,
        .scale = (float)c->attention_scale,
        .window = sliding ? c->window : 0,
    };
    return op->attention(be, &args, err);
}

int decoder_forward(struct decoder *d, const struct decoder_batch *b, struct error *err) {
    const struct backend_ops *op = d->ops;
    struct backend *be = d->backend;
    const struct model_config *c = &d->config;
    size_t E = c->n_embd, Q = model_config_q_dim(c), F = c->n_ff, rows = b->rows;
    float eps = (float)c->norm_eps;
    float embed_scale = c->arch->embed_scaled ? sqrtf((float)E) : 1.0f;
    void *x = d->x, *attn = d->attn, *gate = d->gate_up, *up = column(d, d->gate_up, F);
    const void *residual = NULL; /* what the last block computed and nobody has added to x yet */

    for (size_t l = 0; b->n_copies > 0 && l < c->n_layers; l++) {
        TRY(op->kv_copy(be, &d->kv[l], b->copy_from, b->copy_to, b->n_copies, err));
    }
    TRY(op->embed(be, x, E, &d->weights.embed, b->token_ids, rows, embed_scale, err));

    for (size_t l = 0; l < c->n_layers; l++) {
        const struct layer_weights *w = &d->weights.layers[l];
        const struct linear_part attn_out = {&w->o, NULL, d->delta, E};
        const struct linear_part gate_up[] = {{&w->gate, NULL, gate, 2 * F}, {&w->up, NULL, up, 2 * F}};
        const struct linear_part down = {&w->down, NULL, d->delta, E};

        TRY(op->rms_norm(be, d->h, E, x, E, residual, E, w->attn_norm, rows, 1, E, eps, err));
        TRY(observe(d, DECODER_INPUT_QKV, d->h, E, rows, E, err));
        TRY(attention_block(d, b, l, err));
        if (l + 1 == c->n_layers && b->n_logits < rows) {
            /* Behind the last attention, only rows whose logits are asked for matter. */
            if (b->n_logits == 0) {
                return op->sync(be, err);
            }
            TRY(op->gather_rows(be, d->x_last, E, x, E, b->logit_rows, b->n_logits, E, err));
            TRY(op->gather_rows(be, d->attn_last, Q, attn, Q, b->logit_rows, b->n_logits, Q, err));
            x = d->x_last;
            attn = d->attn_last;
            rows = b->n_logits;
        }
        TRY(observe(d, DECODER_INPUT_O, attn, Q, rows, Q, err));
        TRY(op->linear(be, attn, Q, rows, &attn_out, 1, err));
        if (w->post_attn_norm) {
            TRY(op->rms_norm(be, d->delta, E, d->delta, E, NULL, 0, w->post_attn_norm, rows, 1, E, eps, err));
        }
        TRY(op->rms_norm(be, d->h, E, x, E, d->delta, E, w->ffn_norm, rows, 1, E, eps, err));
        TRY(observe(d, DECODER_INPUT_GATE_UP, d->h, E, rows, E, err));
        TRY(op->linear(be, d->h, E, rows, gate_up, 2, err));
        TRY(op->silu_mul(be, gate, 2 * F, gate, 2 * F, up, 2 * F, rows, F, c->arch->activation, err));
        TRY(observe(d, DECODER_INPUT_DOWN, gate, 2 * F, rows, F, err));
        TRY(op->linear(be, gate, 2 * F, rows, &down, 1, err));
        if (w->post_ffn_norm) {
            TRY(op->rms_norm(be, d->delta, E, d->delta, E, NULL, 0, w->post_ffn_norm, rows, 1, E, eps, err));
        }
        residual = d->delta;
    }

    TRY(op->rms_norm(be, d->h, E, x, E, residual, E, d->weights.output_norm, rows, 1, E, eps, err));
    return decoder_logits(d, 0, rows < d->limits.max_logits ? rows : d->limits.max_logits, err);
}

int decoder_logits(struct decoder *d, size_t first, size_t n, struct error *err) {
    const struct linear_part head = {weights_head(&d->weights), NULL, d->logits, d->config.vocab_size};
    size_t E = d->config.n_embd;
    TRY(d->ops->linear(d->backend, column(d, d->h, first * E), E, n, &head, 1, err));
    return d->ops->sync(d->backend, err);
}
