/*
 * One layer of a model as floats, in the form that Hugging Face files have: heads rotated over halves, whatever a GGUF made of
 * the rows of q and k. Norms are as they act (with the 1 of Gemma's added).
 */
#ifndef INFERD_QUANTIZE_LAYER_H
#define INFERD_QUANTIZE_LAYER_H

#include "model/source.h"
#include "model/weights.h"

enum layer_part {
    PART_ATTN_NORM,
    PART_Q,
    PART_K,
    PART_V,
    PART_Q_BIAS,
    PART_K_BIAS,
    PART_V_BIAS,
    PART_Q_NORM,
    PART_K_NORM,
    PART_O,
    PART_POST_ATTN_NORM,
    PART_FFN_NORM,
    PART_GATE,
    PART_UP,
    PART_DOWN,
    PART_POST_FFN_NORM,
    LAYER_PARTS
};

struct layer_floats {
    struct {
        float *data;       /* [rows][cols], owned; NULL where this kind of model has none */
        size_t rows, cols; /* cols 1: a vector */
    } parts[LAYER_PARTS];
};

bool layer_part_is_matrix(enum layer_part p);
const struct role *layer_part_role(enum layer_part p);
const struct role *model_role(size_t offset); /* of a field of struct weights */

/* Each element finite. The pages of the file that were read are given back to the system. */
int layer_floats_read(struct model_source *source, size_t layer, size_t threads, struct layer_floats *out,
                      struct error *err);
void layer_floats_free(struct layer_floats *l); /* a zeroed one is fine */

/* Rows [begin, end) of a matrix, each element finite: out[end - begin][k]. */
int matrix_read_finite(const struct matrix *m, size_t begin, size_t end, size_t threads, float *out, struct error *err);
/* The system may drop the pages of a tensor: they are read from the file again if wanted. */
void tensor_give_back(const struct tensor *t);
void matrix_give_back(const struct matrix *m);

#endif
