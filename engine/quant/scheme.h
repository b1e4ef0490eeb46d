/*
 * What a checkpoint says about how its matrices are quantised: quantization_config of config.json (older:
 * compression_config), quantize_config.json (GPTQ), hf_quant_config.json (ModelOpt), in one typed description. Schemes
 * that are not supported are refused by name. Nothing here looks at tensors: see quant/matrix.h.
 */
#ifndef INFERD_QUANT_SCHEME_H
#define INFERD_QUANT_SCHEME_H

#include <inferd/backend.h>
#include <inferd/buf.h>
#include <inferd/error.h>
#include <stdbool.h>
#include <stddef.h>

struct cJSON;

/* How a matrix W[n][k] of a module lies in the file. Tensors are named MODULE.weight and so on. */
enum quant_layout {
    QUANT_PLAIN,  /* weight [n][k] of floats (or of GGUF blocks) */
    QUANT_I8,     /* weight I8 [n][k]; a scale for each row, or one */
    QUANT_F8,     /* weight F8_E4M3 [n][k]; a scale for each row, or one, or for each block */
    QUANT_PACKED, /* weight_packed I32 [n][ceil(k / (32 / bits))]: value + 2^(bits - 1), the first in the low bits */
    QUANT_GPTQ,   /* qweight I32 [k * bits / 32][n], qzeros I32 [groups][n * bits / 32], scales [groups][n], g_idx [k] */
    QUANT_AWQ,    /* qweight I32 [k][n / 8], qzeros I32 [groups][n / 8], scales [groups][n]: nibbles in an order */
};

struct quant_scheme {
    enum quant_layout layout;
    unsigned bits;           /* 4 or 8; 0 for QUANT_PLAIN */
    size_t group;            /* elements of a row with one scale; 0: the whole row */
    size_t block_n, block_k; /* QUANT_F8 with a scale a block; else 0 */
    bool symmetric;          /* no zero points in the file, or they say nothing */
    bool zero_less_one;      /* QUANT_GPTQ: a stored zero point is one too small */
    bool ordered;            /* a g_idx tensor says which group an element of a row belongs to */
    const char *scale;       /* the scale's tensor behind "MODULE."; static */
    float scale_divisor;     /* the scale is what is stored divided by this; 1 but for bitsandbytes */
    enum activation_quant activation; /* QUANT_I8: how the input is to be quantised; else ACTIVATION_FLOAT */
};

struct quant_config;

/*
 * json: one of the objects above; NULL: nothing is quantised. ERROR_UNSUPPORTED for a scheme that is well-formed and not
 * supported, ERROR_MODEL for what makes no sense.
 */
int quant_config_parse(const struct cJSON *json, struct quant_config **out, struct error *err);
void quant_config_free(struct quant_config *q); /* NULL is fine */

/*
 * The scheme of a module such as "model.layers.0.mlp.up_proj" of the class "Linear" or "Embedding". Regexes of the file
 * may take REGEX_TIME_LIMIT_NS in all. One thread at a time.
 */
int quant_config_scheme(struct quant_config *q, const char *module, const char *class_name, struct quant_scheme *out,
                        struct error *err);

/* One line for people: "compressed-tensors: 8-bit integers, a scale a row, activations 8 bits by token"; "" if nothing
 * is quantised. */
void quant_config_describe(const struct quant_config *q, struct buf *out);

#endif
