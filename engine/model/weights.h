/*
 * A model's tensors on the device. Matrices stay in their file's type and, on the CPU, in its mapping, or are converted
 * one by one (model/convert.h); vectors (norms, biases) are converted to F32. Every tensor of the file must be known and have the shape that the config says: a
 * tensor nobody asked for could change the mathematics, so it is refused rather than ignored.
 */
#ifndef INFERD_WEIGHTS_H
#define INFERD_WEIGHTS_H

#include "model/config.h"
#include "model/convert.h"
#include "model/shard.h"

#include <inferd/backend.h>
#include <inferd/collective.h>

struct layer_weights {
    const float *attn_norm;       /* [n_embd] */
    struct weight q;              /* [n_heads * head_dim][n_embd] */
    struct weight k, v;           /* [n_kv_heads * head_dim][n_embd] */
    const float *q_bias;          /* [n_heads * head_dim] or NULL */
    const float *k_bias, *v_bias; /* [n_kv_heads * head_dim] or NULL */
    const float *q_norm, *k_norm; /* [head_dim] or NULL */
    struct weight o;              /* [n_embd][n_heads * head_dim] */
    const float *post_attn_norm;  /* [n_embd] or NULL */
    const float *ffn_norm;        /* [n_embd] */
    struct weight gate, up;       /* [n_ff][n_embd] */
    struct weight down;           /* [n_embd][n_ff] */
    const float *post_ffn_norm;   /* [n_embd] or NULL */
};

struct weights {
    const struct backend_ops *ops;
    struct backend *backend;
    struct weight embed;          /* [vocab_size][n_embd] */
    const float *output_norm;     /* [n_embd] */
    struct weight output;         /* [vocab_size][n_embd]; data NULL when the head is tied to embed */
    struct layer_weights *layers; /* [n_layers], owned */
    size_t n_layers;
    float *vectors;      /* device memory of all vectors, owned */
    float *rope_factors; /* [n_rot / 2] host memory, owned; NULL if the file has none */
    void **owned;        /* [n_owned] host memory of converted matrices, owned */
    size_t n_owned;
    size_t bytes; /* of all that is computed with: the file's tensors in use, and what was made of others */
};

/* Told behind each tensor: bytes of the file that are loaded, of all that will be. fn NULL = nobody is told. */
struct load_progress {
    void (*fn)(void *arg, uint64_t done, uint64_t all);
    void *arg;
};

/*
 * *c is the whole model's. `shard`: the part to load, of which alone the file's bytes are read; w->layers[shard->layers.n] are its
 * layers, what it has nothing of has data NULL and n 0. NULL: all of it. `host`: the ranks that have the other parts, for what they
 * must agree on (the scales of INT8 rows that are cut); all of them load at once, the same format. NULL: there are none.
 */
int weights_load(struct weights *w, const struct model_config *c, const struct model_file *file,
                 enum weights_format format, const struct shard *shard, struct collective *host, struct load_progress progress, const struct backend_ops *ops,
                 struct backend *backend, struct error *err);
void weights_unload(struct weights *w); /* NULL, a zeroed and a half-loaded one are fine */

/* ERROR_UNSUPPORTED for a tensor that the architecture does not have: what nobody asks for could change the mathematics. */
int weights_check_names(const struct model_config *c, const struct model_file *file, struct error *err);

/* The number format of the layers' matrices, for people: that of their up projection. Static. */
const char *weights_describe(const struct weights *w);

static inline const struct weight *weights_head(const struct weights *w) {
    return w->output.data ? &w->output : &w->embed;
}

#endif
