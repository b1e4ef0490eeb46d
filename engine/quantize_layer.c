#include "quantize_layer.h"

#include "base/checked.h"
#include "base/parallel.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const size_t fields[LAYER_PARTS] = {
    [PART_ATTN_NORM] = offsetof(struct layer_weights, attn_norm),
    [PART_Q] = offsetof(struct layer_weights, q),
    [PART_K] = offsetof(struct layer_weights, k),
    [PART_V] = offsetof(struct layer_weights, v),
    [PART_Q_BIAS] = offsetof(struct layer_weights, q_bias),
    [PART_K_BIAS] = offsetof(struct layer_weights, k_bias),
    [PART_V_BIAS] = offsetof(struct layer_weights, v_bias),
    [PART_Q_NORM] = offsetof(struct layer_weights, q_norm),
    [PART_K_NORM] = offsetof(struct layer_weights, k_norm),
    [PART_O] = offsetof(struct layer_weights, o),
    [PART_POST_ATTN_NORM] = offsetof(struct layer_weights, post_attn_norm),
    [PART_FFN_NORM] = offsetof(struct layer_weights, ffn_norm),
    [PART_GATE] = offsetof(struct layer_weights, gate),
    [PART_UP] = offsetof(struct layer_weights, up),
    [PART_DOWN] = offsetof(struct layer_weights, down),
    [PART_POST_FFN_NORM] = offsetof(struct layer_weights, post_ffn_norm),
};

static const struct role *find_role(const struct role *roles, size_t n, size_t offset) {
    size_t i = 0;
    while (i + 1 < n && roles[i].offset != offset) {
        i++;
    }
    return &roles[i];
}

const struct role *layer_part_role(enum layer_part p) {
    return find_role(layer_roles, n_layer_roles, fields[p]);
}

const struct role *model_role(size_t offset) {
    return find_role(model_roles, n_model_roles, offset);
}

bool layer_part_is_matrix(enum layer_part p) {
    return role_is_matrix(layer_part_role(p));
}

/* ---- matrices ---- */

enum { RUN = 64 }; /* rows that one thread reads at a time */

struct reading {
    const struct matrix *m;
    size_t begin, end;
    float *out;
    atomic_bool not_finite, no_memory;
};

static void read_run(void *arg, size_t i) {
    struct reading *r = arg;
    size_t first = r->begin + i * RUN, n = r->end - first < RUN ? r->end - first : RUN, k = r->m->k;
    float *out = r->out + i * RUN * k;
    struct error ignored;
    if (matrix_read(r->m, first, n, out, &ignored) < 0) {
        atomic_store(&r->no_memory, true);
        return;
    }
    for (size_t j = 0; j < n * k; j++) {
        if (!isfinite(out[j])) {
            atomic_store(&r->not_finite, true);
        }
    }
}

int matrix_read_finite(const struct matrix *m, size_t begin, size_t end, size_t threads, float *out, struct error *err) {
    struct reading r = {.m = m, .begin = begin, .end = end, .out = out};
    parallel_for(threads, (end - begin + RUN - 1) / RUN, read_run, &r);
    if (atomic_load(&r.no_memory)) {
        return error_memory(err);
    }
    return atomic_load(&r.not_finite)
               ? error_set(err, ERROR_MODEL, "the tensor %s has an element that is not a finite number", m->data->name)
               : 0;
}

/* Whole pages within the tensor alone: its neighbours may be in use. */
void tensor_give_back(const struct tensor *t) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uintptr_t begin = ((uintptr_t)t->data + page - 1) / page * page, end = ((uintptr_t)t->data + t->size) / page * page;
    if (begin < end) {
        madvise((void *)begin, end - begin, MADV_DONTNEED);
    }
}

void matrix_give_back(const struct matrix *m) {
    const struct tensor *const tensors[] = {m->data, m->scales, m->zeros, m->g_idx};
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++) {
        if (tensors[i]) {
            tensor_give_back(tensors[i]);
        }
    }
}

/* ---- layers ---- */

/* GGUF lays the rows of a head as pairs (2i, 2i + 1) that rotate together; Hugging Face as halves (i, i + dim / 2). */
static int undo_interleaving(float *m, size_t n_heads, size_t dim, size_t cols, struct error *err) {
    float *head = malloc(dim * cols * sizeof *head);
    if (!head) {
        return error_memory(err);
    }
    for (size_t h = 0; h < n_heads; h++) {
        float *rows = m + h * dim * cols;
        for (size_t i = 0; i < dim / 2; i++) {
            memcpy(head + i * cols, rows + 2 * i * cols, cols * sizeof *head);
            memcpy(head + (i + dim / 2) * cols, rows + (2 * i + 1) * cols, cols * sizeof *head);
        }
        memcpy(rows, head, dim * cols * sizeof *head);
    }
    free(head);
    return 0;
}

static int read_part(struct model_source *s, size_t layer, size_t threads, enum layer_part p, struct layer_floats *l,
                     struct error *err) {
    const struct model_config *c = s->config;
    const struct role *r = layer_part_role(p);
    struct matrix m;
    const struct tensor *t = NULL;
    size_t rows = role_size(r->n, c), cols = role_size(r->k, c), bytes;
    if (!role_is_present(r, c)) {
        return 0;
    }
    if ((role_is_matrix(r) ? model_source_matrix(s, r, (int)layer, &m, err)
                           : model_source_vector(s, r, (int)layer, &t, err)) < 0 ||
        (role_is_matrix(r) && matrix_check(&m, err) < 0)) {
        return -1;
    }
    if (!checked_mul(rows, cols, &bytes) || !checked_mul(bytes, sizeof(float), &bytes) ||
        !(l->parts[p].data = malloc(bytes))) {
        return error_memory(err);
    }
    float *data = l->parts[p].data;
    l->parts[p].rows = rows;
    l->parts[p].cols = cols;
    if (t) {
        if (model_source_read_vector(s, r, t, data, err) < 0) {
            return -1;
        }
        tensor_give_back(t);
    } else {
        if (matrix_read_finite(&m, 0, rows, threads, data, err) < 0) {
            return -1;
        }
        matrix_give_back(&m);
    }
    bool query = p == PART_Q || p == PART_Q_BIAS, key = p == PART_K || p == PART_K_BIAS;
    if (c->rope_style == ROPE_INTERLEAVED && (query || key)) {
        return undo_interleaving(data, query ? c->n_heads : c->n_kv_heads, c->head_dim, cols, err);
    }
    return 0;
}

int layer_floats_read(struct model_source *source, size_t layer, size_t threads, struct layer_floats *out,
                      struct error *err) {
    struct layer_floats l = {0};
    for (int p = 0; p < LAYER_PARTS; p++) {
        if (read_part(source, layer, threads, (enum layer_part)p, &l, err) < 0) {
            layer_floats_free(&l);
            return error_prefix(err, "%s", model_file_path(source->file));
        }
    }
    *out = l;
    return 0;
}

void layer_floats_free(struct layer_floats *l) {
    for (int p = 0; p < LAYER_PARTS; p++) {
        free(l->parts[p].data);
    }
    *l = (struct layer_floats){0};
}
