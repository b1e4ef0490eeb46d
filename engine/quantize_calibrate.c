#include "quantize_calibrate.h"

#include "base/checked.h"
#include "base/file_map.h"
#include "quant/smooth.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 64, LEAST_TOKENS = 16 };

/* ---- samples ---- */

static int push(struct calibration *c, const int32_t *ids, size_t n, struct error *err) {
    for (size_t i = 0; i < n; i++) {
        if (tokens_push(&c->tokens, ids[i], err) < 0) {
            return -1;
        }
    }
    return 0;
}

/* Windows of `length` tokens, evenly spread, each with the BOS that the model would put first. */
static int cut(struct calibration *c, const struct calibration_options *o, const struct text *text,
               const struct tokens *all, struct error *err) {
    int32_t bos = text_adds_bos(text) ? text_bos_id(text) : -1;
    size_t own = o->sample_tokens - (bos >= 0 ? 1 : 0);
    size_t n = all->n / own < o->samples ? all->n / own : o->samples;
    n = n == 0 ? 1 : n;
    own = own < all->n ? own : all->n;
    c->ends = calloc(n, sizeof *c->ends);
    if (!c->ends) {
        return error_memory(err);
    }
    for (size_t i = 0; i < n; i++) {
        size_t begin = n == 1 ? 0 : (size_t)((double)(all->n - own) * (double)i / (double)(n - 1));
        if ((bos >= 0 && push(c, &bos, 1, err) < 0) || push(c, all->ids + begin, own, err) < 0) {
            return -1;
        }
        c->ends[i] = c->tokens.n;
    }
    c->n_samples = n;
    c->longest = own + (bos >= 0 ? 1 : 0);
    return 0;
}

static int read_samples(struct calibration *c, const struct calibration_options *o, const struct text *text,
                        struct error *err) {
    struct file_map map;
    struct tokens all = {0};
    if (file_map_open(o->text_path, &map, err) < 0) {
        err->code = ERROR_IO;
        return -1;
    }
    int rc = text_encode(text, map.data ? (const char *)map.data : "", map.size, 0, &all, err);
    file_map_close(&map);
    if (rc == 0 && all.n < LEAST_TOKENS) {
        rc = error_set(err, ERROR_INVALID, "the calibration text has %zu tokens, and it takes %d at least", all.n,
                       (int)LEAST_TOKENS);
    }
    for (size_t i = 0; rc == 0 && i < all.n; i++) {
        if ((size_t)all.ids[i] >= c->config.vocab_size) {
            rc = error_set(err, ERROR_MODEL, "the tokenizer knows ids that the model has no embedding for");
        }
    }
    rc = rc == 0 ? cut(c, o, text, &all, err) : rc;
    tokens_free(&all);
    return rc;
}

/* ---- memory ---- */

size_t calibration_features(const struct calibration *c, enum decoder_input input) {
    switch (input) {
    case DECODER_INPUT_O:
        return model_config_q_dim(&c->config);
    case DECODER_INPUT_DOWN:
        return c->config.n_ff;
    default:
        return c->config.n_embd;
    }
}

static int take_memory(struct calibration *c, struct error *err) {
    size_t bytes, most = 0;
    for (int i = 0; i < DECODER_INPUTS; i++) {
        size_t k = calibration_features(c, (enum decoder_input)i);
        most = k > most ? k : most;
        c->max[i] = calloc(k, sizeof **c->max);
        if (!c->max[i]) {
            return error_memory(err);
        }
        if (c->want_hessians && !(checked_mul(k * sizeof **c->hessian, k, &bytes) && (c->hessian[i] = malloc(bytes)))) {
            return error_memory(err);
        }
    }
    if (!checked_mul(c->tokens.n, c->config.n_embd * sizeof *c->hidden, &bytes) || !(c->hidden = malloc(bytes))) {
        return error_memory(err);
    }
    if (c->want_hessians) {
        c->transposed = malloc(most * c->longest * sizeof *c->transposed);
        c->products = malloc(most * c->longest * sizeof *c->products);
        return c->transposed && c->products ? 0 : error_memory(err);
    }
    return 0;
}

int calibration_open(struct calibration *c, const struct calibration_options *o, const struct text *text,
                     const struct model_config *target, struct error *err) {
    struct calibration made = {.arch = *target->arch, .config = *target, .want_hessians = o->hessians};
    struct backend_config backend = {.threads = o->threads, .variant = o->cpu_variant};
    made.arch.embed_scaled = false; /* the hidden states are a one-layer model's embeddings, and scaled already */
    made.config.n_layers = 1;
    made.config.tied_head = true;
    if (read_samples(&made, o, text, err) < 0 || take_memory(&made, err) < 0 ||
        backend_find("cpu", NULL, &made.ops, err) < 0) {
        calibration_close(&made);
        return -1;
    }
    backend.max_rows = made.longest;
    if (made.ops->open(&backend, &made.backend, err) < 0) {
        calibration_close(&made);
        return -1;
    }
    *c = made;
    return 0;
}

void calibration_close(struct calibration *c) {
    if (c->ops) {
        c->ops->close(c->backend);
    }
    for (int i = 0; i < DECODER_INPUTS; i++) {
        free(c->max[i]);
        free(c->hessian[i]);
    }
    free(c->hidden);
    free(c->transposed);
    free(c->products);
    free(c->ends);
    tokens_free(&c->tokens);
    *c = (struct calibration){0};
}

int calibration_begin(struct calibration *c, struct model_source *source, struct error *err) {
    struct matrix embed;
    size_t E = c->config.n_embd;
    float scale = source->config->arch->embed_scaled ? sqrtf((float)E) : 1.0f;
    if (model_source_matrix(source, model_role(offsetof(struct weights, embed)), -1, &embed, err) < 0 ||
        matrix_check(&embed, err) < 0) {
        return -1;
    }
    for (size_t i = 0; i < c->tokens.n; i++) {
        size_t id = (size_t)c->tokens.ids[i];
        float *row = c->hidden + i * E;
        if (matrix_read_finite(&embed, id, id + 1, 1, row, err) < 0) {
            return -1;
        }
        for (size_t j = 0; j < E; j++) {
            row[j] *= scale;
        }
    }
    matrix_give_back(&embed);
    return 0;
}

/* ---- what the products read ---- */

/* H += X^T X as a product of the backend's own: X^T times itself, a band of rows at a time. */
static int add_hessian(struct calibration *c, enum decoder_input input, const float *x, size_t ld, size_t rows,
                       struct error *err) {
    size_t k = calibration_features(c, input);
    for (size_t r = 0; r < rows; r++) {
        for (size_t j = 0; j < k; j++) {
            c->transposed[j * rows + r] = x[r * ld + j];
        }
    }
    struct weight w = {
        .dtype = DTYPE_F32, .n = k, .k = rows, .row_bytes = rows * sizeof(float), .data = c->transposed};
    if (c->ops->weight_load(c->backend, &w, err) < 0) {
        return -1;
    }
    const struct linear_part part = {&w, NULL, c->products, k};
    int rc = 0;
    for (size_t begin = 0; rc == 0 && begin < k; begin += c->longest) {
        size_t n = k - begin < c->longest ? k - begin : c->longest;
        rc = c->ops->linear(c->backend, c->transposed + begin * rows, rows, n, &part, 1, err);
        double *h = c->hessian[input] + begin * k;
        for (size_t i = 0; rc == 0 && i < n * k; i++) {
            h[i] += (double)c->products[i];
        }
    }
    c->ops->weight_unload(c->backend, &w);
    return rc;
}

static int see(void *arg, enum decoder_input input, const void *x, size_t ld, size_t rows, size_t n, struct error *err) {
    struct calibration *c = arg;
    if (c->ops->sync(c->backend, err) < 0) {
        return -1;
    }
    smooth_column_max(x, ld, rows, n, c->max[input]);
    return c->want_hessians ? add_hessian(c, input, x, ld, rows, err) : 0;
}

/* ---- a layer ---- */

/* The layer, and the hidden states for its embedding table. Everything stays where it is: the CPU computes in place. */
static int load(struct calibration *c, const struct layer_floats *l, struct weights *w, struct error *err) {
    *w = (struct weights){.ops = c->ops, .backend = c->backend, .n_layers = 1};
    w->layers = calloc(1, sizeof *w->layers);
    if (!w->layers) {
        return error_memory(err);
    }
    for (int p = 0; p < LAYER_PARTS; p++) {
        char *field = (char *)w->layers + layer_part_role((enum layer_part)p)->offset;
        if (!layer_part_is_matrix((enum layer_part)p)) {
            *(const float **)(void *)field = l->parts[p].data;
            continue;
        }
        struct weight m = {.dtype = DTYPE_F32,
                           .n = l->parts[p].rows,
                           .k = l->parts[p].cols,
                           .row_bytes = l->parts[p].cols * sizeof(float),
                           .data = l->parts[p].data};
        if (c->ops->weight_load(c->backend, &m, err) < 0) {
            return -1;
        }
        *(struct weight *)(void *)field = m;
    }
    size_t E = c->config.n_embd;
    struct weight hidden = {
        .dtype = DTYPE_F32, .n = c->tokens.n, .k = E, .row_bytes = E * sizeof(float), .data = c->hidden};
    if (c->ops->weight_load(c->backend, &hidden, err) < 0) {
        return -1;
    }
    w->embed = hidden;
    return 0;
}

struct step {
    int32_t *numbers; /* one array for all below */
    struct decoder_batch batch;
};

static int open_step(struct step *s, size_t rows, struct error *err) {
    size_t blocks = (rows + BLOCK - 1) / BLOCK;
    s->numbers = calloc(4 * rows + blocks + 3, sizeof *s->numbers);
    if (!s->numbers) {
        return error_memory(err);
    }
    int32_t *at = s->numbers;
    s->batch = (struct decoder_batch){.n_sequences = 1,
                                      .token_ids = at,
                                      .positions = at + rows,
                                      .slot_mapping = at + rows, /* position i is slot i */
                                      .logit_rows = at + 2 * rows,
                                      .block_tables = at + 3 * rows,
                                      .max_blocks = blocks,
                                      .cu_seqlens = at + 3 * rows + blocks,
                                      .context_lens = at + 3 * rows + blocks + 2};
    for (size_t i = 0; i < blocks; i++) {
        s->batch.block_tables[i] = (int32_t)i;
    }
    return 0;
}

static int run_sample(struct calibration *c, struct decoder *d, struct step *s, size_t begin, size_t end,
                      struct error *err) {
    struct decoder_batch *b = &s->batch;
    size_t E = c->config.n_embd, rows = end - begin;
    b->rows = b->n_logits = rows;
    for (size_t i = 0; i < rows; i++) {
        b->token_ids[i] = (int32_t)(begin + i);
        b->positions[i] = b->logit_rows[i] = (int32_t)i;
    }
    b->cu_seqlens[1] = b->context_lens[0] = (int32_t)rows;
    if (decoder_forward(d, b, err) < 0) {
        return -1;
    }
    /* the norm behind the last layer has added that layer's output to x */
    return c->ops->download(c->backend, c->hidden + begin * E, d->x, rows * E * sizeof(float), err);
}

/* The decoder's last norm, in front of a head that nobody wants, needs some weight: that of the layer's first does. */
static int run_samples(struct calibration *c, struct decoder *d, struct step *s, bool (*stop)(void *arg), void *arg,
                       struct error *err) {
    size_t begin = 0;
    for (size_t i = 0; i < c->n_samples; i++) {
        if (stop && stop(arg)) {
            return error_set(err, ERROR_UNAVAILABLE, "stopped");
        }
        if (run_sample(c, d, s, begin, c->ends[i], err) < 0) {
            return -1;
        }
        begin = c->ends[i];
    }
    return 0;
}

static int check_finite(const struct calibration *c, size_t layer, struct error *err) {
    for (size_t i = 0; i < c->tokens.n * c->config.n_embd; i++) {
        if (!isfinite(c->hidden[i])) {
            return error_set(err, ERROR_MODEL, "layer %zu computes values that are not finite numbers", layer);
        }
    }
    return 0;
}

int calibration_layer(struct calibration *c, const struct layer_floats *l, size_t layer, bool look,
                      bool (*stop)(void *arg), void *arg, struct error *err) {
    struct weights w;
    struct decoder d = {0};
    struct step s = {0};
    struct model_config config = c->config;
    const struct decoder_limits limits = {.max_rows = c->longest,
                                          .max_logits = 1,
                                          .kv_blocks = (c->longest + BLOCK - 1) / BLOCK,
                                          .kv_block_size = BLOCK,
                                          .kv_dtype = DTYPE_F16};
    config.arch = &c->arch;
    config.sliding[0] = c->config.sliding[layer];
    config.vocab_size = c->tokens.n;
    for (int i = 0; look && i < DECODER_INPUTS; i++) {
        size_t k = calibration_features(c, (enum decoder_input)i);
        memset(c->max[i], 0, k * sizeof **c->max);
        if (c->hessian[i]) {
            memset(c->hessian[i], 0, k * k * sizeof **c->hessian);
        }
    }
    int rc = load(c, l, &w, err);
    if (rc < 0) {
        weights_unload(&w);
        return -1;
    }
    w.output_norm = l->parts[PART_ATTN_NORM].data;
    rc = decoder_open(&d, &config, &w, &limits, NULL, err);
    rc = rc == 0 ? open_step(&s, c->longest, err) : rc;
    if (rc == 0) {
        d.observer = (struct decoder_observer){look ? see : NULL, c};
        rc = run_samples(c, &d, &s, stop, arg, err);
    }
    rc = rc == 0 ? check_finite(c, layer, err) : rc;
    free(s.numbers);
    decoder_close(&d);
    return rc;
}
