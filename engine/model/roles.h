/*
 * The tensors that a model is made of, one row each: what they are called in GGUF and in Hugging Face files, their
 * shapes, and when they exist. weights.c loads by this table, and whoever rewrites a model walks it.
 */
#ifndef INFERD_ROLES_H
#define INFERD_ROLES_H

#include "model/config.h"

#include <inferd/backend.h>

/* When a role's tensor exists. */
enum role_presence { ROLE_ALWAYS, ROLE_IF_QKV_BIAS, ROLE_IF_QK_NORM, ROLE_IF_POST_NORMS, ROLE_IF_UNTIED };

enum role_dimension {
    ROLE_DIM_NONE,
    ROLE_DIM_VOCAB,
    ROLE_DIM_EMBD,
    ROLE_DIM_Q,
    ROLE_DIM_KV,
    ROLE_DIM_HEAD,
    ROLE_DIM_FF,
};

struct role {
    const char *gguf;          /* behind "blk.N." for a layer's */
    const char *hf;            /* behind "model.layers.N." for a layer's */
    const char *hf_post_norms; /* the Hugging Face name in models with post-norms, if another */
    size_t offset;             /* in struct weights or struct layer_weights, of a struct weight or a const float * */
    enum role_dimension n, k;  /* a matrix [n][k]; a vector [n] when k is ROLE_DIM_NONE */
    enum role_presence presence;
    bool norm; /* Gemma's Hugging Face files hold it less 1 */
};

extern const struct role model_roles[]; /* embedding, last norm, head */
extern const size_t n_model_roles;
extern const struct role layer_roles[]; /* of each layer */
extern const size_t n_layer_roles;

static inline bool role_is_matrix(const struct role *r) {
    return r->k != ROLE_DIM_NONE;
}

bool role_is_present(const struct role *r, const struct model_config *c);
size_t role_size(enum role_dimension d, const struct model_config *c); /* 1 for ROLE_DIM_NONE */

/* Elements of all tensors of the model. */
size_t roles_n_parameters(const struct model_config *c);

/* The tensor's name; `layer` < 0: one of model_roles. */
void role_name(const struct role *r, const struct model_config *c, bool gguf, int layer, char name[TENSOR_NAME_MAX]);

/* What quantization_config calls the matrix: its Hugging Face name without ".weight". */
void role_module(const struct role *r, const struct model_config *c, int layer, char name[TENSOR_NAME_MAX]);
const char *role_class(const struct role *r); /* "Linear" or "Embedding" */

#endif
