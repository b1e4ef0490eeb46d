/*
 * A model's numbers, from GGUF metadata or a Hugging Face config.json, each bounded by a table and checked against the
 * others. What is not supported is refused by name (ERROR_UNSUPPORTED); what makes no sense is ERROR_MODEL.
 */
#ifndef INFERD_MODEL_CONFIG_H
#define INFERD_MODEL_CONFIG_H

#include "model/arch.h"
#include "model/rope.h"
#include "model_file/model_file.h"

#define MODEL_MAX_LAYERS 512

struct model_config {
    const struct architecture *arch;
    bool from_gguf;
    enum rope_style rope_style;
    size_t n_layers, n_embd, n_heads, n_kv_heads, head_dim, n_ff;
    size_t vocab_size;     /* rows of the embedding */
    size_t context_length; /* positions the model was made for */
    size_t n_rot;          /* rotated features of a head */
    double norm_eps;
    double attention_scale;              /* what q k^T is multiplied by */
    bool tied_head;                      /* the output head is the embedding */
    size_t window;                       /* keys that a layer with a sliding window sees, 0 = no layer has one */
    bool sliding[MODEL_MAX_LAYERS];      /* which layers those are */
    struct rope_config rope, rope_local; /* local: for sliding layers of WINDOW_PATTERN */
};

int model_config_load(const struct model_file *file, struct model_config *out, struct error *err);

/* The two readers alone, for tests: of a GGUF's metadata, and of a config.json. */
int model_config_from_gguf(const struct model_file *file, struct model_config *out, struct error *err);
int model_config_from_json(const struct cJSON *json, struct model_config *out, struct error *err);

static inline size_t model_config_q_dim(const struct model_config *c) {
    return c->n_heads * c->head_dim;
}

static inline size_t model_config_kv_dim(const struct model_config *c) {
    return c->n_kv_heads * c->head_dim;
}

#endif
