/*
 * quantization_config of compressed-tensors (llm-compressor):
 *   {"quant_method": "compressed-tensors", "format": F, "ignore": [NAME...],
 *    "config_groups": {G: {"targets": [NAME...], "weights": ARGS, "input_activations": ARGS or null,
 *                          "output_activations": null, "format": F or null}}}
 *   ARGS: {"num_bits", "type": "int" or "float", "symmetric", "strategy", "group_size", "dynamic", "actorder", ...}
 */
#include "quant/scheme_internal.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

struct args {
    int64_t bits;
    bool is_float, symmetric, dynamic, group_order;
    const char *strategy; /* "tensor", "channel", "group", "block", "token"; of the file */
    int64_t group_size;   /* -1: the row; 0: none given */
    const cJSON *block;
};

static int parse_order(const cJSON *json, bool *group_order, struct error *err) {
    const cJSON *item = quant_get(json, "actorder");
    if (!item || cJSON_IsFalse(item)) {
        return 0;
    }
    /* "weight" and "static" end in groups of neighbours; "group" and "dynamic" (also true, an older form) do not */
    const char *name = cJSON_IsString(item) ? item->valuestring : cJSON_IsTrue(item) ? "group" : "";
    if (strcmp(name, "group") == 0 || strcmp(name, "dynamic") == 0) {
        *group_order = true;
    } else if (strcmp(name, "weight") != 0 && strcmp(name, "static") != 0) {
        return error_set(err, ERROR_UNSUPPORTED, "the actorder \"%s\" is not supported", quant_shown(name).text);
    }
    return 0;
}

static int parse_args(const cJSON *json, struct args *out, struct error *err) {
    struct args a = {.bits = 8, .symmetric = true};
    const char *type = "int";
    const cJSON *dynamic = quant_get(json, "dynamic");
    if (!cJSON_IsObject(json)) {
        return error_set(err, ERROR_MODEL, "it is not an object");
    }
    if (quant_get_int(json, "num_bits", 1, QUANT_MAX_BITS, &a.bits, err) < 0 ||
        quant_get_string(json, "type", &type, err) < 0 || quant_get_bool(json, "symmetric", &a.symmetric, err) < 0 ||
        quant_get_string(json, "strategy", &a.strategy, err) < 0 ||
        quant_get_int(json, "group_size", -1, QUANT_MAX_GROUP, &a.group_size, err) < 0 ||
        parse_order(json, &a.group_order, err) < 0) {
        return -1;
    }
    a.is_float = strcmp(type, "float") == 0;
    if (!a.is_float && strcmp(type, "int") != 0) {
        return error_set(err, ERROR_UNSUPPORTED, "the type \"%s\" is not supported", quant_shown(type).text);
    }
    if (dynamic && !cJSON_IsBool(dynamic)) { /* "local" */
        return error_set(err, ERROR_UNSUPPORTED, "a value of dynamic other than true and false is not supported");
    }
    a.dynamic = cJSON_IsTrue(dynamic);
    a.block = quant_get(json, "block_structure");
    if (!a.strategy) {
        a.strategy = a.group_size > 0 ? "group" : a.group_size < 0 ? "channel" : a.dynamic ? "token" : "tensor";
    }
    *out = a;
    return 0;
}

/* [128, 128], or in older files the string "128x128" */
static int parse_block(const cJSON *json, struct quant_scheme *s, struct error *err) {
    int64_t n = 0, k = 0;
    if (cJSON_IsString(json)) {
        unsigned a = 0, b = 0;
        char end;
        if (sscanf(json->valuestring, "%5ux%5u%c", &a, &b, &end) == 2) {
            n = a;
            k = b;
        }
    } else if (cJSON_IsArray(json) && cJSON_GetArraySize(json) == 2) {
        const cJSON *a = json->child, *b = a->next;
        bool sizes = cJSON_IsNumber(a) && cJSON_IsNumber(b) && a->valuedouble >= 1 && a->valuedouble <= QUANT_MAX_BLOCK &&
                     b->valuedouble >= 1 && b->valuedouble <= QUANT_MAX_BLOCK;
        n = sizes ? (int64_t)a->valuedouble : 0;
        k = sizes ? (int64_t)b->valuedouble : 0;
    }
    if (n < 1 || k < 1 || n > QUANT_MAX_BLOCK || k > QUANT_MAX_BLOCK) {
        return error_set(err, ERROR_MODEL, "block_structure is not two sizes from 1 to %d", QUANT_MAX_BLOCK);
    }
    s->block_n = (size_t)n;
    s->block_k = (size_t)k;
    return 0;
}

/* The layout that a format means for weights of these arguments. */
static int choose_layout(const struct args *a, const char *format, struct quant_scheme *s, struct error *err) {
    bool bytes = strcmp(format, "int-quantized") == 0 || strcmp(format, "naive-quantized") == 0;
    if (a->is_float && a->bits == 8 && (strcmp(format, "float-quantized") == 0 || strcmp(format, "naive-quantized") == 0)) {
        s->layout = QUANT_F8;
    } else if (!a->is_float && a->bits == 8 && bytes) {
        s->layout = QUANT_I8;
    } else if (!a->is_float && (a->bits == 4 || a->bits == 8) && strcmp(format, "pack-quantized") == 0) {
        s->layout = QUANT_PACKED;
    } else {
        return error_set(err, ERROR_UNSUPPORTED, "%d-bit %s in the format %s are not supported", (int)a->bits,
                         a->is_float ? "floats" : "integers", quant_shown(format).text);
    }
    s->bits = (unsigned)a->bits;
    s->scale = "weight_scale";
    s->symmetric = a->symmetric;
    return 0;
}

static int parse_weights(const cJSON *json, const char *format, struct quant_scheme *s, struct error *err) {
    struct args a;
    if (parse_args(json, &a, err) < 0 || choose_layout(&a, format, s, err) < 0) {
        return -1;
    }
    if (a.dynamic) {
        return error_set(err, ERROR_UNSUPPORTED, "weights whose scales are made at run time are not supported");
    }
    bool group = strcmp(a.strategy, "group") == 0, block = strcmp(a.strategy, "block") == 0;
    if (group && s->layout == QUANT_PACKED) {
        if (a.group_size < 1) {
            return error_set(err, ERROR_MODEL, "the strategy is \"group\", but group_size is not 1 or more");
        }
        s->group = (size_t)a.group_size;
        s->ordered = a.group_order;
        return 0;
    }
    if (block && s->layout == QUANT_F8) {
        return parse_block(a.block, s, err);
    }
    if (strcmp(a.strategy, "channel") != 0 && strcmp(a.strategy, "tensor") != 0) {
        return error_set(err, ERROR_UNSUPPORTED, "the strategy \"%s\" for weights in the format %s is not supported",
                         quant_shown(a.strategy).text, quant_shown(format).text);
    }
    return 0;
}

static int parse_inputs(const cJSON *json, struct quant_scheme *s, struct error *err) {
    struct args a;
    if (parse_args(json, &a, err) < 0) {
        return -1;
    }
    if (a.bits != 8) {
        return error_set(err, ERROR_UNSUPPORTED, "%d-bit activations are not supported", (int)a.bits);
    }
    if (s->layout == QUANT_F8) { /* the weights become 16-bit floats, and their input needs no quantising */
        return 0;
    }
    if (s->layout == QUANT_PACKED) {
        return error_set(err, ERROR_UNSUPPORTED, "activations of 8 bits with packed weights are not supported");
    }
    if (a.is_float) {
        return error_set(err, ERROR_UNSUPPORTED, "8-bit float activations with integer weights are not supported");
    }
    bool token = strcmp(a.strategy, "token") == 0, tensor = strcmp(a.strategy, "tensor") == 0;
    if (a.dynamic && token) {
        s->activation = a.symmetric ? ACTIVATION_I8_TOKEN : ACTIVATION_I8_TOKEN_ZERO;
    } else if (!a.dynamic && tensor) {
        s->activation = ACTIVATION_I8_STATIC;
    } else {
        return error_set(err, ERROR_UNSUPPORTED, "%s activations with the strategy \"%s\" are not supported",
                         a.dynamic ? "dynamic" : "static", quant_shown(a.strategy).text);
    }
    return 0;
}

static int parse_group(const cJSON *json, const char *format, struct quant_config *q, struct error *err) {
    struct quant_rule *rule;
    struct quant_scheme s = {0};
    const cJSON *weights = quant_get(json, "weights"), *inputs = quant_get(json, "input_activations");
    if (!cJSON_IsObject(json)) {
        return error_set(err, ERROR_UNSUPPORTED, "a group that is not an object is not supported");
    }
    if (quant_get_string(json, "format", &format, err) < 0) {
        return -1;
    }
    if (quant_get(json, "output_activations")) {
        return error_set(err, ERROR_UNSUPPORTED, "output_activations are not supported");
    }
    if (!weights) {
        return error_set(err, ERROR_UNSUPPORTED, "a group without weights is not supported");
    }
    if (parse_weights(weights, format, &s, err) < 0) {
        return error_prefix(err, "weights");
    }
    if (inputs && parse_inputs(inputs, &s, err) < 0) {
        return error_prefix(err, "input_activations");
    }
    if (quant_add_rule(q, &rule, err) < 0) {
        return -1;
    }
    rule->scheme = s;
    return quant_add_patterns(q, &rule->targets, json, "targets", PATTERN_NAME, true, err);
}

static int refuse_unsupported(const cJSON *json, struct error *err) {
    const cJSON *sparsity = quant_get(json, "sparsity_config");
    const char *format = "dense";
    if (sparsity && quant_get_string(sparsity, "format", &format, err) < 0) {
        return -1;
    }
    if (strcmp(format, "dense") != 0) {
        return error_set(err, ERROR_UNSUPPORTED, "the sparsity format %s is not supported", quant_shown(format).text);
    }
    const cJSON *transform = quant_get(json, "transform_config");
    if (transform && transform->child) {
        return error_set(err, ERROR_UNSUPPORTED, "transform_config is not supported");
    }
    return 0;
}

int quant_parse_compressed(const cJSON *json, struct quant_config *q, struct error *err) {
    const char *format = "int-quantized", *status = "compressed";
    const cJSON *groups = quant_get(json, "config_groups"), *group;
    if (refuse_unsupported(json, err) < 0 || quant_get_string(json, "format", &format, err) < 0 ||
        quant_get_string(json, "quantization_status", &status, err) < 0) {
        return -1;
    }
    if (!cJSON_IsObject(groups) || !groups->child) {
        return error_set(err, ERROR_MODEL, "config_groups is not an object with groups");
    }
    if (strcmp(status, "compressed") != 0 && strcmp(status, "frozen") != 0) {
        return error_set(err, ERROR_UNSUPPORTED, "the quantization_status %s is not supported", quant_shown(status).text);
    }
    snprintf(q->method, sizeof q->method, "compressed-tensors %s", quant_shown(format).text);
    q->by_class = true;
    if (quant_add_patterns(q, &q->ignore, json, "ignore", PATTERN_NAME, true, err) < 0) {
        return -1;
    }
    cJSON_ArrayForEach(group, groups) {
        if (parse_group(group, format, q, err) < 0) {
            return error_prefix(err, "config_groups %s", quant_shown(group->string).text);
        }
    }
    return 0;
}
