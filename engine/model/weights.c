#include "model/weights.h"

#include "model/source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A role's tensor or tensors, found and checked. */
struct entry {
    const struct role *role;
    int layer;                   /* < 0: the model's */
    struct matrix matrix;        /* of a matrix, the part of it that is loaded */
    const struct tensor *vector; /* of a vector */
    struct range rows;           /* of a vector, what is loaded of it */
};

/* What every function below works on. */
struct load {
    struct weights *w;
    struct model_source source;
    enum weights_format format;
    const struct shard *shard;
    struct collective *host;
    struct load_progress progress;
    size_t threads;
    struct entry *entries; /* [n_entries], owned */
    size_t n_entries, n_matrices;
    bool *known; /* [tensors of the file], owned */
};

/* ---- finding ---- */

static void mark(struct load *l, const struct tensor *t) {
    if (t) {
        l->known[t - model_file_tensor(l->source.file, 0)] = true;
    }
}

static int find_roles(struct load *l, const struct role *roles, size_t n_roles, int layer, struct error *err) {
    for (size_t i = 0; i < n_roles; i++) {
        if (!role_is_present(&roles[i], l->source.config)) {
            continue;
        }
        struct entry *e = &l->entries[l->n_entries];
        struct range columns;
        *e = (struct entry){.role = &roles[i], .layer = layer};
        bool ours = shard_tensor(l->shard, l->source.config, &roles[i], layer, &e->rows, &columns);
        if (!role_is_matrix(&roles[i])) {
            if (model_source_vector(&l->source, &roles[i], layer, &e->vector, err) < 0) {
                return -1;
            }
            mark(l, e->vector);
        } else {
            if (model_source_matrix(&l->source, &roles[i], layer, &e->matrix, err) < 0) {
                return -1;
            }
            mark(l, e->matrix.data);
            mark(l, e->matrix.scales);
            mark(l, e->matrix.zeros);
            matrix_cut(&e->matrix, e->rows.first, e->rows.n, columns.first, columns.n);
            if (ours && matrix_check(&e->matrix, err) < 0) {
                return -1;
            }
            l->n_matrices += ours;
        }
        l->n_entries += ours;
    }
    return 0;
}

static int find_all(struct load *l, struct error *err) {
    size_t n_layers = l->source.config->n_layers, n_tensors = model_file_n_tensors(l->source.file);
    l->entries = calloc(n_model_roles + n_layers * n_layer_roles, sizeof *l->entries);
    l->known = calloc(n_tensors ? n_tensors : 1, sizeof *l->known);
    if (!l->entries || !l->known) {
        return error_memory(err);
    }
    if (find_roles(l, model_roles, n_model_roles, -1, err) < 0) {
        return -1;
    }
    for (size_t i = 0; i < n_layers; i++) {
        if (find_roles(l, layer_roles, n_layer_roles, (int)i, err) < 0) {
            return -1;
        }
    }
    return 0;
}

static bool ends_with(const char *s, const char *suffix) {
    size_t len = strlen(s), n = strlen(suffix);
    return len > n && strcmp(s + len - n, suffix) == 0;
}

/* What belongs to a quantised matrix and says nothing that is needed: the parts that matrix_open looked at and found to
 * say nothing (or copied), and scales of activations and KV caches in formats that are not computed in. */
static bool is_quantisation(const char *name) {
    static const char *const suffixes[] = {
        ".weight_shape", ".weight_zero_point", ".weight_g_idx", ".g_idx",           ".weight_format",
        ".input_scale",  ".input_zero_point",  ".k_scale",      ".v_scale",         ".q_scale",
        ".kv_scale",     ".output_scale",      ".prob_scale",   ".k_zero_point",    ".v_zero_point",
        ".prob_output_scale",                  ".q_zero_point", ".input_scale_ub",  ".output_zero_point",
    };
    for (size_t i = 0; i < sizeof suffixes / sizeof suffixes[0]; i++) {
        if (ends_with(name, suffixes[i])) {
            return true;
        }
    }
    return false;
}

static bool is_all_zero(const struct tensor *t) {
    const unsigned char *p = t->data;
    size_t i = 0;
    while (i < t->size && p[i] == 0) {
        i++;
    }
    return i == t->size;
}

/* Tensors that are known not to matter. */
static bool is_redundant(const struct load *l, const struct tensor *t) {
    const struct model_config *c = l->source.config;
    if (c->from_gguf) {
        return c->arch->rope_factors && strcmp(t->name, "rope_freqs.weight") == 0; /* read by load_rope_factors */
    }
    if (ends_with(t->name, "rotary_emb.inv_freq")) {
        return true; /* a function of the configuration, saved by old writers */
    }
    if (c->tied_head && strcmp(t->name, "lm_head.weight") == 0) {
        return true; /* a second copy of the embedding */
    }
    if (!model_file_quantization(l->source.file)) {
        return false;
    }
    return is_quantisation(t->name) || (ends_with(t->name, ".bias") && is_all_zero(t)); /* GPTQ writers add such */
}

static int refuse_unknown_tensors(const struct load *l, struct error *err) {
    for (size_t i = 0; i < model_file_n_tensors(l->source.file); i++) {
        const struct tensor *t = model_file_tensor(l->source.file, i);
        if (!l->known[i] && !is_redundant(l, t)) {
            return error_set(err, ERROR_UNSUPPORTED,
                             "the tensor %.100s is not part of a %s model as it is supported here", t->name,
                             l->source.config->arch->name);
        }
    }
    return 0;
}

static void close_load(struct load *l) {
    model_source_close(&l->source);
    free(l->entries);
    free(l->known);
}

/* ---- loading ---- */

/* The pages are not needed any more, unless other ranks have a part of them. */
static void release(const struct load *l, const struct tensor *t) {
    if (!l->host) {
        model_file_release(l->source.file, t->data, t->size);
    }
}

static int load_matrix(const struct load *l, const struct entry *e, struct weight *out, struct error *err) {
    struct converted c;
    struct weights *w = l->w;
    const struct tensor *t = e->matrix.data;
    if (matrix_convert(&e->matrix, l->source.file, l->format, l->threads, l->host, &c, err) < 0) {
        return -1;
    }
    if (e->role->n == ROLE_DIM_VOCAB && l->shard->n_ranks > 1) {
        c.w.is_shard = true;
        c.w.first_row = e->rows.first;
    }
    if (c.w.n == 0) { /* a rank behind the vocabulary's end */
        free(c.data);
        free(c.scales);
        *out = c.w;
        out->data = out->scales = NULL;
        return 0;
    }
    const void *given = c.w.data;
    int rc = w->ops->weight_load(w->backend, &c.w, err);
    free(c.scales);
    if (rc < 0 || c.w.dtype == DTYPE_I8 || c.w.data != given) { /* the backend keeps its own */
        free(c.data);
        release(l, t);
    } else if (c.data) {
        w->owned[w->n_owned++] = c.data;
    } else if (c.w.packed) {
        release(l, t); /* what is still read of it comes back by itself */
    }
    if (rc < 0) {
        return error_prefix(err, "%s", t->name);
    }
    c.w.scales = NULL;
    *out = c.w;
    w->bytes += c.size;
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

static int load_vector(const struct load *l, const struct entry *e, struct vectors *v, const float **out,
                       struct error *err) {
    size_t n = e->rows.n, whole = e->vector->shape[0];
    float *to = v->host + v->used;
    if (model_source_read_vector(&l->source, e->role, e->vector, to, err) < 0) {
        return -1;
    }
    memmove(to, to + e->rows.first, n * sizeof *to);
    *out = l->w->vectors + v->used;
    v->used += padded(whole);
    l->w->bytes += e->vector->size / whole * n;
    return 0;
}

static uint64_t file_size(const struct entry *e) {
    const struct matrix *m = &e->matrix;
    return e->vector ? e->vector->size / e->vector->shape[0] * e->rows.n
                     : (uint64_t)((double)m->data->size * (double)m->n / (double)m->whole_n * (double)m->k / (double)m->whole_k);
}

static int load_entries(const struct load *l, struct vectors *v, struct error *err) {
    uint64_t done = 0, all = 0;
    for (size_t i = 0; i < l->n_entries; i++) {
        all += file_size(&l->entries[i]);
    }
    for (size_t i = 0; i < l->n_entries; i++) {
        const struct entry *e = &l->entries[i];
        char *base = e->layer < 0 ? (char *)l->w : (char *)&l->w->layers[(size_t)e->layer - l->shard->layers.first], *field = base + e->role->offset;
        int rc = e->vector ? load_vector(l, e, v, (const float **)(void *)field, err)
                           : load_matrix(l, e, (struct weight *)(void *)field, err);
        if (rc < 0) {
            return -1;
        }
        done += file_size(e);
        if (l->progress.fn) {
            l->progress.fn(l->progress.arg, done, all);
        }
    }
    return 0;
}

static size_t vectors_size(const struct load *l) {
    size_t total = 0;
    for (size_t i = 0; i < l->n_entries; i++) {
        total += l->entries[i].vector ? padded(l->entries[i].vector->shape[0]) : 0;
    }
    return total;
}

static int load_rope_factors(const struct load *l, struct error *err) {
    const struct tensor *t = model_file_find(l->source.file, "rope_freqs.weight");
    size_t n = l->source.config->n_rot / 2;
    if (!t || !l->source.config->from_gguf) {
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
    if (model_source_read_plain_vector(t, l->w->rope_factors, err) < 0) {
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
    size_t bytes = vectors_size(l) * sizeof(float);
    w->layers = calloc(l->shard->layers.n, sizeof *w->layers);
    w->owned = calloc(l->n_matrices, sizeof *w->owned);
    v.host = calloc(1, bytes);
    if (!w->layers || !w->owned || !v.host) {
        free(v.host);
        return error_memory(err);
    }
    w->n_layers = l->shard->layers.n;
    int rc = w->ops->alloc(w->backend, bytes, (void **)&w->vectors, err);
    if (rc == 0) {
        rc = load_entries(l, &v, err);
    }
    if (rc == 0) {
        rc = w->ops->upload(w->backend, w->vectors, v.host, bytes, err);
    }
    free(v.host);
    return rc;
}

int weights_load(struct weights *w, const struct model_config *c, const struct model_file *file,
                 enum weights_format format, const struct shard *shard, struct collective *host,
                 struct load_progress progress, const struct backend_ops *ops, struct backend *backend,
                 struct error *err) {
    struct weights made = {.ops = ops, .backend = backend};
    struct shard whole;
    struct load l = {.w = &made, .format = format, .shard = shard ? shard : &whole, .host = host, .progress = progress};
    struct backend_info info;
    shard_whole(c, &whole);
    ops->info(backend, &info);
    l.threads = info.threads;
    if (model_source_open(&l.source, file, c, err) < 0) {
        return -1;
    }
    int rc = find_all(&l, err) < 0 || refuse_unknown_tensors(&l, err) < 0 || load_rope_factors(&l, err) < 0 ||
                     load_all(&l, err) < 0
                 ? error_prefix(err, "%s", model_file_path(file))
                 : 0;
    close_load(&l);
    if (rc < 0) {
        weights_unload(&made);
        return -1;
    }
    *w = made;
    return 0;
}

void weights_unload(struct weights *w) {
    if (!w || !w->ops) {
        return;
    }
    for (size_t i = 0; i < w->n_layers; i++) {
        for (size_t r = 0; r < n_layer_roles; r++) {
            struct weight *m = (struct weight *)(void *)((char *)&w->layers[i] + layer_roles[r].offset);
            if (role_is_matrix(&layer_roles[r]) && m->data) {
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
    for (size_t i = 0; i < w->n_owned; i++) {
        free(w->owned[i]);
    }
    free(w->owned);
    free(w->layers);
    free(w->rope_factors);
    *w = (struct weights){0};
}

int weights_check_names(const struct model_config *c, const struct model_file *file, struct error *err) {
    struct shard whole;
    struct load l = {.shard = &whole};
    shard_whole(c, &whole);
    if (model_source_open(&l.source, file, c, err) < 0) {
        return -1;
    }
    int rc = find_all(&l, err) < 0 || refuse_unknown_tensors(&l, err) < 0 ? error_prefix(err, "%s", model_file_path(file)) : 0;
    close_load(&l);
    return rc;
}

const char *weights_describe(const struct weights *w) {
    const struct weight *up = &w->layers[0].up;
    return up->dtype == DTYPE_I8 && up->activation != ACTIVATION_FLOAT ? "I8 (W8A8)" : dtype_info(up->dtype)->name;
}
