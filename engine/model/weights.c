#include "model/weights.h"

#include "quant/half.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* When a role's tensor exists. */
enum presence { ALWAYS, IF_QKV_BIAS, IF_QK_NORM, IF_POST_NORMS, IF_UNTIED };

enum dimension { DIM_NONE, DIM_VOCAB, DIM_EMBD, DIM_Q, DIM_KV, DIM_HEAD, DIM_FF };

struct role {
    const char *gguf;          /* behind "blk.N." for a layer's */
    const char *hf;            /* behind "model.layers.N." for a layer's */
    const char *hf_post_norms; /* the Hugging Face name in models with post-norms, if another */
    size_t offset;             /* of a struct weight, or of a const float * */
    enum dimension n, k;       /* [n][k], or [n] for vectors */
    enum presence presence;
    bool norm; /* Gemma's Hugging Face files hold it less 1 */
};

#define MODEL_ROLE(field) offsetof(struct weights, field)
#define LAYER_ROLE(field) offsetof(struct layer_weights, field)

static const struct role model_roles[] = {
    {"token_embd.weight", "model.embed_tokens.weight", NULL, MODEL_ROLE(embed), DIM_VOCAB, DIM_EMBD, ALWAYS, false},
    {"output_norm.weight", "model.norm.weight", NULL, MODEL_ROLE(output_norm), DIM_EMBD, DIM_NONE, ALWAYS, true},
    {"output.weight", "lm_head.weight", NULL, MODEL_ROLE(output), DIM_VOCAB, DIM_EMBD, IF_UNTIED, false},
};

static const struct role layer_roles[] = {
    {"attn_norm.weight", "input_layernorm.weight", NULL, LAYER_ROLE(attn_norm), DIM_EMBD, DIM_NONE, ALWAYS, true},
    {"attn_q.weight", "self_attn.q_proj.weight", NULL, LAYER_ROLE(q), DIM_Q, DIM_EMBD, ALWAYS, false},
    {"attn_k.weight", "self_attn.k_proj.weight", NULL, LAYER_ROLE(k), DIM_KV, DIM_EMBD, ALWAYS, false},
    {"attn_v.weight", "self_attn.v_proj.weight", NULL, LAYER_ROLE(v), DIM_KV, DIM_EMBD, ALWAYS, false},
    {"attn_q.bias", "self_attn.q_proj.bias", NULL, LAYER_ROLE(q_bias), DIM_Q, DIM_NONE, IF_QKV_BIAS, false},
    {"attn_k.bias", "self_attn.k_proj.bias", NULL, LAYER_ROLE(k_bias), DIM_KV, DIM_NONE, IF_QKV_BIAS, false},
    {"attn_v.bias", "self_attn.v_proj.bias", NULL, LAYER_ROLE(v_bias), DIM_KV, DIM_NONE, IF_QKV_BIAS, false},
    {"attn_q_norm.weight", "self_attn.q_norm.weight", NULL, LAYER_ROLE(q_norm), DIM_HEAD, DIM_NONE, IF_QK_NORM, true},
    {"attn_k_norm.weight", "self_attn.k_norm.weight", NULL, LAYER_ROLE(k_norm), DIM_HEAD, DIM_NONE, IF_QK_NORM, true},
    {"attn_output.weight", "self_attn.o_proj.weight", NULL, LAYER_ROLE(o), DIM_EMBD, DIM_Q, ALWAYS, false},
    {"post_attention_norm.weight", "post_attention_layernorm.weight", NULL, LAYER_ROLE(post_attn_norm), DIM_EMBD,
     DIM_NONE, IF_POST_NORMS, true},
    {"ffn_norm.weight", "post_attention_layernorm.weight", "pre_feedforward_layernorm.weight", LAYER_ROLE(ffn_norm),
     DIM_EMBD, DIM_NONE, ALWAYS, true},
    {"ffn_gate.weight", "mlp.gate_proj.weight", NULL, LAYER_ROLE(gate), DIM_FF, DIM_EMBD, ALWAYS, false},
    {"ffn_up.weight", "mlp.up_proj.weight", NULL, LAYER_ROLE(up), DIM_FF, DIM_EMBD, ALWAYS, false},
    {"ffn_down.weight", "mlp.down_proj.weight", NULL, LAYER_ROLE(down), DIM_EMBD, DIM_FF, ALWAYS, false},
    {"post_ffw_norm.weight", "post_feedforward_layernorm.weight", NULL, LAYER_ROLE(post_ffn_norm), DIM_EMBD, DIM_NONE,
     IF_POST_NORMS, true},
};
#define N_MODEL_ROLES (sizeof model_roles / sizeof model_roles[0])
#define N_LAYER_ROLES (sizeof layer_roles / sizeof layer_roles[0])

/* What every function below works on. */
struct load {
    struct weights *w;
    const struct model_config *c;
    const struct model_file *file;
};

static bool is_present(const struct role *r, const struct model_config *c) {
    switch (r->presence) {
    case ALWAYS:
        return true;
    case IF_QKV_BIAS:
        return c->arch->qkv_bias;
    case IF_QK_NORM:
        return c->arch->qk_norm;
    case IF_POST_NORMS:
        return c->arch->post_norms;
    case IF_UNTIED:
        return !c->tied_head;
    }
    return false;
}

static size_t size_of(enum dimension d, const struct model_config *c) {
    switch (d) {
    case DIM_NONE:
        return 1;
    case DIM_VOCAB:
        return c->vocab_size;
    case DIM_EMBD:
        return c->n_embd;
    case DIM_Q:
        return model_config_q_dim(c);
    case DIM_KV:
        return model_config_kv_dim(c);
    case DIM_HEAD:
        return c->head_dim;
    case DIM_FF:
        return c->n_ff;
    }
    return 0;
}

/* `layer` < 0: a tensor of the model, not of a layer. */
static void role_name(const struct role *r, const struct model_config *c, int layer, char name[TENSOR_NAME_MAX]) {
    const char *hf = r->hf_post_norms && c->arch->post_norms ? r->hf_post_norms : r->hf;
    if (layer < 0) {
        snprintf(name, TENSOR_NAME_MAX, "%s", c->from_gguf ? r->gguf : hf);
    } else if (c->from_gguf) {
        snprintf(name, TENSOR_NAME_MAX, "blk.%d.%s", layer, r->gguf);
    } else {
        snprintf(name, TENSOR_NAME_MAX, "model.layers.%d.%s", layer, hf);
    }
}

/* Find the tensor of a role and check its shape. */
static int find(const struct load *l, const struct role *r, int layer, const struct tensor **out, struct error *err) {
    char name[TENSOR_NAME_MAX];
    role_name(r, l->c, layer, name);
    const struct tensor *t = model_file_find(l->file, name);
    size_t n = size_of(r->n, l->c), k = size_of(r->k, l->c);
    if (!t) {
        return error_set(err, ERROR_MODEL, "the tensor %s is missing", name);
    }
    if (r->k == DIM_NONE ? t->n_dims != 1 || t->shape[0] != n
                         : t->n_dims != 2 || t->shape[0] != n || t->shape[1] != k) {
        return error_set(err, ERROR_MODEL, "the tensor %s has not the shape [%zu][%zu] that the configuration asks for",
                         name, n, k);
    }
    *out = t;
    return 0;
}

static int load_matrix(const struct load *l, const struct role *r, int layer, struct weight *out, struct error *err) {
    const struct tensor *t;
    if (find(l, r, layer, &t, err) < 0) {
        return -1;
    }
    struct weight w = {.dtype = t->dtype, .n = t->shape[0], .k = t->shape[1], .data = t->data};
    if (t->dtype == DTYPE_I8 || t->dtype == DTYPE_I32 || !dtype_row_bytes(t->dtype, w.k, &w.row_bytes)) {
        return error_set(err, ERROR_UNSUPPORTED, "the tensor %s has the type %s, which is not supported for weights",
                         t->name, t->type);
    }
    if (l->w->ops->weight_load(l->w->backend, &w, err) < 0) {
        return error_prefix(err, "%s", t->name);
    }
    *out = w;
    l->w->bytes += t->size;
    l->w->n_parameters += w.n * w.k;
    return 0;
}

static float element(const struct tensor *t, size_t i) {
    uint16_t half;
    float x;
    if (t->dtype == DTYPE_F32) {
        memcpy(&x, (const char *)t->data + i * 4, sizeof x);
        return x;
    }
    memcpy(&half, (const char *)t->data + i * 2, sizeof half);
    return t->dtype == DTYPE_F16 ? float_from_half(half) : float_from_bf16(half);
}

static int read_vector(const struct tensor *t, float add, float *out, struct error *err) {
    if (t->dtype != DTYPE_F32 && t->dtype != DTYPE_F16 && t->dtype != DTYPE_BF16) {
        return error_set(err, ERROR_UNSUPPORTED, "the tensor %s has the type %s, which is not supported for vectors",
                         t->name, t->type);
    }
    for (size_t i = 0; i < t->shape[0]; i++) {
        out[i] = element(t, i) + add;
        if (!isfinite(out[i])) {
            return error_set(err, ERROR_MODEL, "the tensor %s has an element that is not a finite number", t->name);
        }
    }
    return 0;
}

/* Each vector begins at a multiple of 16 floats (64 bytes). */
static size_t padded(size_t n) {
    return (n + 15) / 16 * 16;
}

/* Where vectors go: `host` is staging for the device memory w->vectors, filled up to `used`. */
struct vectors {
    float *host;
    size_t used;
};

static int load_vector(const struct load *l, const struct role *r, int layer, struct vectors *v, const float **out,
                       struct error *err) {
    const struct tensor *t;
    if (find(l, r, layer, &t, err) < 0 ||
        read_vector(t, r->norm && l->c->arch->norm_plus_one && !l->c->from_gguf ? 1.0f : 0.0f, v->host + v->used, err) <
            0) {
        return -1;
    }
    *out = l->w->vectors + v->used;
    v->used += padded(t->shape[0]);
    l->w->bytes += t->size;
    l->w->n_parameters += t->shape[0];
    return 0;
}

static int load_roles(const struct load *l, const struct role *roles, size_t n_roles, int layer, void *base,
                      struct vectors *v, struct error *err) {
    for (size_t i = 0; i < n_roles; i++) {
        if (!is_present(&roles[i], l->c)) {
            continue;
        }
        char *field = (char *)base + roles[i].offset;
        int rc = roles[i].k == DIM_NONE ? load_vector(l, &roles[i], layer, v, (const float **)(void *)field, err)
                                        : load_matrix(l, &roles[i], layer, (struct weight *)(void *)field, err);
        if (rc < 0) {
            return -1;
        }
    }
    return 0;
}

static size_t vectors_size(const struct model_config *c) {
    size_t total = 0;
    for (size_t i = 0; i < N_MODEL_ROLES; i++) {
        total += model_roles[i].k == DIM_NONE ? padded(size_of(model_roles[i].n, c)) : 0;
    }
    for (size_t i = 0; i < N_LAYER_ROLES; i++) {
        if (layer_roles[i].k == DIM_NONE && is_present(&layer_roles[i], c)) {
            total += c->n_layers * padded(size_of(layer_roles[i].n, c));
        }
    }
    return total;
}

static bool name_in_roles(const char *name, const struct role *roles, size_t n_roles, int layer,
                          const struct model_config *c) {
    for (size_t i = 0; i < n_roles; i++) {
        char known[TENSOR_NAME_MAX];
        role_name(&roles[i], c, layer, known);
        if (is_present(&roles[i], c) && strcmp(name, known) == 0) {
            return true;
        }
    }
    return false;
}

/* Tensors that are known not to matter. */
static bool is_redundant(const char *name, const struct model_config *c) {
    if (c->from_gguf) {
        return c->arch->rope_factors && strcmp(name, "rope_freqs.weight") == 0; /* read by load_rope_factors */
    }
    size_t len = strlen(name), suffix = strlen("rotary_emb.inv_freq");
    if (len > suffix && strcmp(name + len - suffix, "rotary_emb.inv_freq") == 0) {
        return true; /* a function of the configuration, saved by old writers */
    }
    return c->tied_head && strcmp(name, "lm_head.weight") == 0; /* a second copy of the embedding */
}

static int refuse_unknown_tensors(const struct load *l, struct error *err) {
    for (size_t i = 0; i < model_file_n_tensors(l->file); i++) {
        const char *name = model_file_tensor(l->file, i)->name;
        int layer = -1, end = 0;
        bool in_layer =
            sscanf(name, l->c->from_gguf ? "blk.%5d.%n" : "model.layers.%5d.%n", &layer, &end) == 1 && end > 0;
        bool known = in_layer ? layer >= 0 && (size_t)layer < l->c->n_layers &&
                                    name_in_roles(name, layer_roles, N_LAYER_ROLES, layer, l->c)
                              : name_in_roles(name, model_roles, N_MODEL_ROLES, -1, l->c);
        if (!known && !is_redundant(name, l->c)) {
            return error_set(err, ERROR_UNSUPPORTED,
                             "the tensor %.100s is not part of a %s model as it is supported here", name,
                             l->c->arch->name);
        }
    }
    return 0;
}

static int load_rope_factors(const struct load *l, struct error *err) {
    const struct tensor *t = model_file_find(l->file, "rope_freqs.weight");
    size_t n = l->c->n_rot / 2;
    if (!t || !l->c->from_gguf) {
        return 0;
    }
    if (t->n_dims != 1 || t->shape[0] != n) {
        return error_set(err, ERROR_MODEL,
                         "the tensor rope_freqs.weight has not the %zu elements of half the rotated features", n);
    }
    l->w->rope_factors = calloc(n, sizeof *l->w->rope_factors);
    if (!l->w->rope_factors) {
        return error_memory(err);
    }
    if (read_vector(t, 0, l->w->rope_factors, err) < 0) {
        return -1;
    }
    for (size_t i = 0; i < n; i++) {
        if (!(l->w->rope_factors[i] >= 1e-3f && l->w->rope_factors[i] <= 1e6f)) {
            return error_set(err, ERROR_MODEL, "the tensor rope_freqs.weight has an element out of range");
        }
    }
    return 0;
}

static int load_all(const struct load *l, struct error *err) {
    struct weights *w = l->w;
    struct vectors v = {0};
    size_t bytes = vectors_size(l->c) * sizeof(float);
    w->layers = calloc(l->c->n_layers, sizeof *w->layers);
    v.host = calloc(1, bytes);
    if (!w->layers || !v.host) {
        free(v.host);
        return error_memory(err);
    }
    w->n_layers = l->c->n_layers;
    int rc = w->ops->alloc(w->backend, bytes, (void **)&w->vectors, err);
    if (rc == 0) {
        rc = load_roles(l, model_roles, N_MODEL_ROLES, -1, w, &v, err);
    }
    for (size_t i = 0; i < w->n_layers && rc == 0; i++) {
        rc = load_roles(l, layer_roles, N_LAYER_ROLES, (int)i, &w->layers[i], &v, err);
    }
    if (rc == 0) {
        rc = w->ops->upload(w->backend, w->vectors, v.host, bytes, err);
    }
    free(v.host);
    return rc;
}

int weights_load(struct weights *w, const struct model_config *c, const struct model_file *file,
                 const struct backend_ops *ops, struct backend *backend, struct error *err) {
    struct weights made = {.ops = ops, .backend = backend};
    struct load l = {&made, c, file};
    if (refuse_unknown_tensors(&l, err) < 0 || load_rope_factors(&l, err) < 0 || load_all(&l, err) < 0) {
        weights_unload(&made);
        return error_prefix(err, "%s", model_file_path(file));
    }
    *w = made;
    return 0;
}

void weights_unload(struct weights *w) {
    if (!w || !w->ops) {
        return;
    }
    for (size_t i = 0; i < w->n_layers; i++) {
        for (size_t r = 0; r < N_LAYER_ROLES; r++) {
            struct weight *m = (struct weight *)(void *)((char *)&w->layers[i] + layer_roles[r].offset);
            if (layer_roles[r].k != DIM_NONE && m->data) {
                w->ops->weight_unload(w->backend, m);
            }
        }
    }
    if (w->embed.data) {
        w->ops->weight_unload(w->backend, &w->embed);
    }
    if (w->output.data) {
        w->ops->weight_unload(w->backend, &w->output);
    }
    if (w->vectors) {
        w->ops->free(w->backend, w->vectors);
    }
    free(w->layers);
    free(w->rope_factors);
    *w = (struct weights){0};
}

static const struct role *role_of(int layer, size_t field) {
    const struct role *roles = layer < 0 ? model_roles : layer_roles;
    size_t n = layer < 0 ? N_MODEL_ROLES : N_LAYER_ROLES, i = 0;
    while (i + 1 < n && roles[i].offset != field) {
        i++;
    }
    return &roles[i];
}

int weights_find(const struct model_config *c, const struct model_file *file, int layer, size_t field,
                 const struct tensor **out, struct error *err) {
    const struct load l = {NULL, c, file};
    const struct role *r = role_of(layer, field);
    if (!is_present(r, c)) {
        *out = NULL;
        return 0;
    }
    return find(&l, r, layer, out, err) < 0 ? error_prefix(err, "%s", model_file_path(file)) : 0;
}

const char *weights_hf_name(const struct model_config *c, int layer, size_t field, char name[TENSOR_NAME_MAX]) {
    struct model_config hf = *c;
    const struct role *r = role_of(layer, field);
    hf.from_gguf = false;
    if (!is_present(r, c)) {
        return NULL;
    }
    role_name(r, &hf, layer, name);
    return name;
}

bool weights_is_norm(int layer, size_t field) {
    return role_of(layer, field)->norm;
}

int weights_check_names(const struct model_config *c, const struct model_file *file, struct error *err) {
    const struct load l = {NULL, c, file};
    return refuse_unknown_tensors(&l, err) < 0 ? error_prefix(err, "%s", model_file_path(file)) : 0;
}

int weights_read_vector(const struct tensor *t, float *out, struct error *err) {
    return read_vector(t, 0, out, err);
}
