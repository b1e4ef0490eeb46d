/*
 * What the products of each layer read when the model runs over calibration text: the model's own forward pass, a layer at a
 * time. The hidden states of all samples stay in memory, [n_tokens][n_embd] F32, and move on by a layer with each call.
 * One thread.
 */
#ifndef INFERD_QUANTIZE_CALIBRATE_H
#define INFERD_QUANTIZE_CALIBRATE_H

#include "model/decoder.h"
#include "quantize_layer.h"

#include <inferd/text.h>

struct calibration {
    const struct backend_ops *ops;
    struct backend *backend;
    struct architecture arch;
    struct model_config config; /* of one layer */
    struct tokens tokens;       /* all samples, one after the other */
    size_t *ends;               /* [n_samples] where each ends; owned */
    size_t n_samples, longest;
    float *hidden;      /* [n_tokens][n_embd], owned */
    bool want_hessians;
    /* Of the last layer that was looked at, by what the products read: */
    float *max[DECODER_INPUTS];      /* [features] largest absolute values, owned */
    double *hessian[DECODER_INPUTS]; /* [features][features] sums of x x^T, owned; with want_hessians */
    float *transposed, *products;    /* scratch of these sums */
};

struct calibration_options {
    const char *text_path;
    size_t samples, sample_tokens;
    bool hessians;
    size_t threads;
    const char *cpu_variant;
};

/* `target`: the model's numbers in Hugging Face's form. The samples are cut; nothing is computed yet. */
int calibration_open(struct calibration *c, const struct calibration_options *o, const struct text *text,
                     const struct model_config *target, struct error *err);
void calibration_close(struct calibration *c); /* a zeroed one is fine */

/* Hidden states = embeddings. */
int calibration_begin(struct calibration *c, struct model_source *source, struct error *err);

/* Through a layer; with `look`, max (and hessian) are those of this one. `stop` is asked between samples, NULL = never. */
int calibration_layer(struct calibration *c, const struct layer_floats *l, size_t layer, bool look,
                      bool (*stop)(void *arg), void *arg, struct error *err);

size_t calibration_features(const struct calibration *c, enum decoder_input input);

#endif
