#include "planning/shape_internal.h"

#include "base/checked.h"
#include "model/source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A list that grows. */
struct list_of_tensors {
    struct shape_tensor *items; /* [n], owned */
    size_t n, capacity;
    bool failed; /* no memory, or a size beyond the address space */
};

static void add(struct list_of_tensors *l, struct shape_tensor t) {
    if (l->n == l->capacity && !l->failed) {
        size_t capacity = l->capacity ? 2 * l->capacity : 256;
        struct shape_tensor *items = realloc(l->items, capacity * sizeof *items);
        l->failed = items == NULL;
        l->items = items ? items : l->items;
        l->capacity = items ? capacity : l->capacity;
    }
    if (!l->failed) {
        l->items[l->n++] = t;
    }
}

static int finish(struct list_of_tensors *l, struct shape_tensor **out, size_t *n, struct error *err) {
    if (l->failed) {
        free(l->items);
        return error_set(err, ERROR_MODEL, "the model is larger than the address space, or there is no memory for its list");
    }
    *out = l->items;
    *n = l->n;
    return 0;
}

/* ---- from the numbers ---- */

static void derive(struct list_of_tensors *l, enum shape_cut cut, int layer, size_t count, size_t n, size_t k,
                   enum dtype dtype) {
    size_t row, all;
    struct shape_tensor t = {.cut = cut, .layer = layer, .count = count, .n = n, .k = k, .dtype = dtype, .is_vector = k == 1};
    if (count == 0 || n == 0 || k == 0) {
        return;
    }
    if (!dtype_row_bytes(dtype, k, &row) || !checked_mul(row, n, &t.bytes) || !checked_mul(t.bytes, count, &all)) {
        l->failed = true;
        return;
    }
    add(l, t);
}

/* Gate and up. */
static void derive_pair(struct list_of_tensors *l, int layer, size_t count, size_t n_ff, size_t k, enum dtype type) {
    size_t before = l->n;
    derive(l, CUT_ROWS, layer, count, 2 * n_ff, k, type);
    if (l->n > before) {
        l->items[before].is_pair = true;
        l->items[before].is_ff = true;
    }
}

static void derive_down(struct list_of_tensors *l, int layer, size_t n, size_t n_ff, enum dtype type) {
    size_t before = l->n;
    derive(l, CUT_COLUMNS, layer, 1, n, n_ff, type);
    if (l->n > before) {
        l->items[before].is_ff = true;
    }
}

static void derive_feed_forward(struct list_of_tensors *l, const struct shape *s, int layer, enum dtype type) {
    size_t d = s->n_embd;
    if (s->n_experts == 0) {
        if (s->gated) {
            derive_pair(l, layer, 1, s->n_ff, d, type);
        } else {
            derive(l, CUT_ROWS, layer, 1, s->n_ff, d, type);
        }
        derive_down(l, layer, d, s->n_ff, type);
        return;
    }
    derive(l, CUT_NONE, layer, 1, s->n_experts, d, type); /* the router */
    size_t first = l->n;
    derive_pair(l, layer, s->n_experts, s->n_ff_expert, d, type);
    derive(l, CUT_COLUMNS, layer, s->n_experts, d, s->n_ff_expert, type);
    for (size_t i = first; i < l->n; i++) {
        l->items[i].is_expert = true;
    }
    derive_pair(l, layer, 1, s->n_ff_shared, d, type);
    derive(l, CUT_COLUMNS, layer, 1, d, s->n_ff_shared, type);
}

static void derive_layer(struct list_of_tensors *l, const struct shape *s, int layer, enum dtype type) {
    size_t d = s->n_embd, q = s->n_heads * s->head_dim, kv = s->n_kv_heads * s->head_dim;
    derive(l, CUT_NONE, layer, s->post_norms ? 4 : 2, d, 1, type);
    derive(l, CUT_ROWS, layer, 1, q, d, type);
    derive(l, CUT_KV_ROWS, layer, 2, kv, d, type);
    derive(l, CUT_COLUMNS, layer, 1, d, q, type);
    if (s->qkv_bias) {
        derive(l, CUT_ROWS, layer, 1, q, 1, type);
        derive(l, CUT_KV_ROWS, layer, 2, kv, 1, type);
    }
    if (s->qk_norm) {
        derive(l, CUT_NONE, layer, 2, s->head_dim, 1, type);
    }
    derive_feed_forward(l, s, layer, type);
    if (!s->gated) { /* GPT-2: biases of the norms, the output and both feed-forward matrices */
        derive(l, CUT_NONE, layer, 4, d, 1, type);
        derive(l, CUT_ROWS, layer, 1, s->n_ff, 1, type);
    }
}

int shape_derive_tensors(const struct shape *s, enum dtype dtype, struct shape_tensor **out, size_t *n,
                         struct error *err) {
    struct list_of_tensors l = {0};
    derive(&l, CUT_VOCAB, SHAPE_FIRST, 1, s->vocab_size, s->n_embd, dtype);
    if (!s->gated) {
        derive(&l, CUT_NONE, SHAPE_FIRST, 1, s->context_length, s->n_embd, dtype); /* learnt positions */
    }
    for (size_t i = 0; i < s->n_layers; i++) {
        derive_layer(&l, s, (int)i, dtype);
    }
    derive(&l, CUT_NONE, SHAPE_LAST, s->gated ? 1 : 2, s->n_embd, 1, dtype);
    if (!s->tied) {
        derive(&l, CUT_VOCAB, SHAPE_LAST, 1, s->vocab_size, s->n_embd, dtype);
    }
    return finish(&l, out, n, err);
}

/* ---- from a file ---- */

/* The number behind "layers." or "blk.", SHAPE_LAST for the head and the last norm, else SHAPE_FIRST. */
static int layer_of(const char *name) {
    static const char *const marks[] = {"blk.", "layers.", ".h."};
    for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++) {
        const char *p = strstr(name, marks[i]);
        size_t digits = p ? strspn(p + strlen(marks[i]), "0123456789") : 0;
        if (digits > 0 && digits < 6) {
            return atoi(p + strlen(marks[i]));
        }
    }
    return strncmp(name, "output", 6) == 0 || strstr(name, "lm_head") || strstr(name, "norm") || strstr(name, "ln_f")
               ? SHAPE_LAST
               : SHAPE_FIRST;
}

static bool has_any(const char *name, const char *const *words) {
    for (; *words; words++) {
        if (strstr(name, *words)) {
            return true;
        }
    }
    return false;
}

/* By the names that Hugging Face files and GGUF use. */
static enum shape_cut cut_of(const char *name, bool is_vector) {
    static const char *const none[] = {"norm", "router", "ffn_gate_inp", "mlp.gate.", "block_sparse_moe.gate.", NULL};
    static const char *const vocab[] = {"token_embd", "embed_tokens", "lm_head", "output.weight", NULL};
    static const char *const kv_rows[] = {"attn_k.", "attn_v.", "k_proj", "v_proj", NULL};
    static const char *const columns[] = {"o_proj", "attn_output", "down_proj", "ffn_down", "w2.", NULL};
    static const char *const rows[] = {"q_proj", "attn_q", "qkv", "gate", "up", "w1.", "w3.", NULL};
    if (has_any(name, none)) {
        return CUT_NONE;
    }
    bool in_layer = layer_of(name) >= 0;
    if (!in_layer && has_any(name, vocab)) {
        return CUT_VOCAB;
    }
    if (has_any(name, kv_rows)) {
        return CUT_KV_ROWS;
    }
    if (in_layer && has_any(name, columns)) {
        return is_vector ? CUT_NONE : CUT_COLUMNS; /* a bias is added once */
    }
    return in_layer && has_any(name, rows) ? CUT_ROWS : CUT_NONE;
}

int shape_file_tensors(const struct shape *s, const struct model_file *file, struct shape_tensor **out, size_t *n,
                       struct error *err) {
    static const char *const feed_forward[] = {"ffn_", "mlp.", NULL};
    struct list_of_tensors l = {0};
    for (size_t i = 0; i < model_file_n_tensors(file); i++) {
        const struct tensor *t = model_file_tensor(file, i);
        if (strcmp(t->name, "rope_freqs.weight") == 0 || strstr(t->name, "inv_freq") ||
            (s->tied && strcmp(t->name, "lm_head.weight") == 0)) {
            continue; /* not loaded as weights */
        }
        size_t count = t->n_dims > 2 ? t->shape[0] : 1, d = t->n_dims > 2 ? 1 : 0;
        struct shape_tensor out_tensor = {.layer = layer_of(t->name),
                                          .count = count ? count : 1,
                                          .n = t->shape[d],
                                          .k = t->n_dims > 1 ? t->shape[t->n_dims - 1] : 1,
                                          .dtype = t->dtype,
                                          .is_vector = t->n_dims == 1,
                                          .is_expert = strstr(t->name, "exps") || strstr(t->name, "experts.")};
        out_tensor.bytes = t->size / out_tensor.count;
        out_tensor.cut = cut_of(t->name, out_tensor.is_vector);
        out_tensor.is_ff = !out_tensor.is_expert && (out_tensor.cut == CUT_ROWS || out_tensor.cut == CUT_COLUMNS) && has_any(t->name, feed_forward);
        if (out_tensor.layer >= (int)s->n_layers) {
            return free(l.items), error_set(err, ERROR_MODEL, "the tensor %.100s belongs to none of the %zu layers", t->name, s->n_layers);
        }
        add(&l, out_tensor);
    }
    return finish(&l, out, n, err);
}

/* ---- from a quantised checkpoint ---- */

/* By what a dimension of a role is shared. */
static enum shape_cut cut_of_role(const struct role *r) {
    bool is_output = r->n == ROLE_DIM_EMBD || r->n == ROLE_DIM_HEAD; /* norms, and what comes back to the stream */
    return r->n == ROLE_DIM_VOCAB                    ? CUT_VOCAB
           : r->n == ROLE_DIM_KV                     ? CUT_KV_ROWS
           : !is_output                              ? CUT_ROWS
           : role_is_matrix(r)                       ? CUT_COLUMNS
                                                     : CUT_NONE;
}

static int add_role(struct list_of_tensors *l, struct model_source *source, const struct role *r, int layer, int shape_layer,
                    struct error *err) {
    struct shape_tensor made = {.cut = cut_of_role(r), .layer = shape_layer, .count = 1, .k = 1, .is_vector = !role_is_matrix(r),
                                .is_ff = r->n == ROLE_DIM_FF || r->k == ROLE_DIM_FF};
    if (made.is_vector) {
        const struct tensor *t;
        if (model_source_vector(source, r, layer, &t, err) < 0) {
            return -1;
        }
        made.n = t->shape[0];
        made.dtype = t->dtype;
        made.bytes = t->size;
    } else {
        struct matrix m;
        if (model_source_matrix(source, r, layer, &m, err) < 0 || matrix_check(&m, err) < 0) {
            return -1;
        }
        made.n = m.n;
        made.k = m.k;
        made.bytes = m.size;
        made.converted = true;
        for (int f = 0; f < N_WEIGHTS_FORMATS; f++) {
            if (matrix_converted_type(&m, (enum weights_format)f, &made.made[f], err) < 0) {
                return -1;
            }
        }
        made.dtype = made.made[WEIGHTS_AUTO];
    }
    add(l, made);
    return 0;
}

static int add_roles(struct list_of_tensors *l, struct model_source *source, const struct role *roles, size_t n, int layer,
                     struct error *err) {
    for (size_t i = 0; i < n; i++) {
        bool first = layer < 0 && i == 0; /* the embedding */
        if (role_is_present(&roles[i], source->config) &&
            add_role(l, source, &roles[i], layer, layer >= 0 ? layer : first ? SHAPE_FIRST : SHAPE_LAST, err) < 0) {
            return -1;
        }
    }
    return 0;
}

int shape_quantized_tensors(struct shape *s, const struct model_file *file, struct shape_tensor **out, size_t *n,
                            struct error *err) {
    struct list_of_tensors l = {0};
    struct model_source source;
    if (model_source_open(&source, file, &s->config, err) < 0) {
        return -1;
    }
    int rc = add_roles(&l, &source, model_roles, n_model_roles, -1, err);
    for (size_t i = 0; rc == 0 && i < s->config.n_layers; i++) {
        rc = add_roles(&l, &source, layer_roles, n_layer_roles, (int)i, err);
    }
    model_source_close(&source);
    for (size_t i = 0; i < l.n; i++) {
        const struct shape_tensor *t = &l.items[i];
        s->widened = s->widened || (t->converted && t->dtype == DTYPE_BF16 && t->bytes < 2 * t->n * t->k);
    }
    if (rc < 0) {
        free(l.items);
        return -1;
    }
    return finish(&l, out, n, err);
}
