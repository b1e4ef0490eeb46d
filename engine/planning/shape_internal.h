/* Between the files that make a struct shape. */
#ifndef INFERD_PLANNING_SHAPE_INTERNAL_H
#define INFERD_PLANNING_SHAPE_INTERNAL_H

#include "planning/shape.h"

struct cJSON;

/* The numbers of a config.json or a catalogue's entry, each within the table's bounds. ERROR_MODEL. *dtype: that of its
 * tensors, BF16 when it does not say. */
int shape_from_json(const struct cJSON *json, struct shape *s, enum dtype *dtype, struct error *err);
int shape_from_gguf(const struct model_file *file, struct shape *s, struct error *err);

/* The tensors that follow from the numbers, all matrices and vectors of `dtype`. */
int shape_derive_tensors(const struct shape *s, enum dtype dtype, struct shape_tensor **out, size_t *n,
                         struct error *err);
/* Those of a file. */
int shape_file_tensors(const struct shape *s, const struct model_file *file, struct shape_tensor **out, size_t *n,
                       struct error *err);

/* Those of a quantised checkpoint as the engine loads them. The file's configuration is that of s->config. */
int shape_quantized_tensors(struct shape *s, const struct model_file *file, struct shape_tensor **out, size_t *n,
                            struct error *err);

/* The entry of the built-in models, owned by the catalogue; NULL: no such name. ERROR_INTERNAL: it is damaged. */
int catalogue_model(const char *name, const struct cJSON **out, struct error *err);

#endif
