/*
 * A model's tensors as they lie in its file, by role: a matrix to read rows of floats from whatever its format, a vector
 * as the forward pass uses it. What weights.c loads from, and what a rewriter of models reads.
 */
#ifndef INFERD_MODEL_SOURCE_H
#define INFERD_MODEL_SOURCE_H

#include "model/roles.h"
#include "quant/matrix.h"

struct model_source {
    const struct model_file *file; /* these two must outlive it */
    const struct model_config *config;
    struct quant_config *quant; /* owned */
};

int model_source_open(struct model_source *s, const struct model_file *file, const struct model_config *config,
                      struct error *err);
void model_source_close(struct model_source *s); /* a zeroed one is fine */

/* `layer` < 0: of model_roles. The role must be present and a matrix. */
int model_source_matrix(struct model_source *s, const struct role *r, int layer, struct matrix *out, struct error *err);

/* The tensor of a vector, its shape and type checked. */
int model_source_vector(const struct model_source *s, const struct role *r, int layer, const struct tensor **out,
                        struct error *err);
/* out[shape[0]] = its elements, finite, with the 1 of Gemma's norms added. */
int model_source_read_vector(const struct model_source *s, const struct role *r, const struct tensor *t, float *out,
                             struct error *err);
/* The same of a tensor that has no role. */
int model_source_read_plain_vector(const struct tensor *t, float *out, struct error *err);

#endif
