#include "quant/scheme_internal.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- methods of a few keys ---- */

/* Every Linear module but those named by these keys (the head is among them only where its tensors say so). */
static int set_fallback(struct quant_config *q, const struct quant_scheme *s, const cJSON *json, const char *const *keys,
                        struct error *err) {
    q->fallback = *s;
    q->has_fallback = q->lm_head = true;
    for (; *keys; keys++) {
        if (quant_add_patterns(q, &q->ignore, json, *keys, PATTERN_GLOB, true, err) < 0) {
            return -1;
        }
    }
    return 0;
}

static const char *const skip_keys[] = {"ignored_layers", "modules_to_not_convert", "ignore", "exclude_modules", NULL};

static const struct quant_scheme f8_scheme = {.layout = QUANT_F8, .bits = 8, .symmetric = true, .scale = "weight_scale"};
static const struct quant_scheme i8_scheme = {
    .layout = QUANT_I8, .bits = 8, .symmetric = true, .scale = "weight_scale", .activation = ACTIVATION_I8_TOKEN};

/* [128, 128] */
static int parse_block(const cJSON *json, struct quant_scheme *s, struct error *err) {
    const cJSON *a = cJSON_GetArrayItem(json, 0), *b = cJSON_GetArrayItem(json, 1);
    if (!cJSON_IsArray(json) || cJSON_GetArraySize(json) != 2 || !cJSON_IsNumber(a) || !cJSON_IsNumber(b) ||
        !(a->valuedouble >= 1 && a->valuedouble <= QUANT_MAX_BLOCK) ||
        !(b->valuedouble >= 1 && b->valuedouble <= QUANT_MAX_BLOCK)) {
        return error_set(err, ERROR_MODEL, "weight_block_size is not a list of two sizes from 1 to %d", QUANT_MAX_BLOCK);
    }
    s->block_n = (size_t)a->valuedouble;
    s->block_k = (size_t)b->valuedouble;
    return 0;
}

static int parse_fp8(const cJSON *json, struct quant_config *q, struct error *err) {
    struct quant_scheme s = f8_scheme;
    const char *format = "e4m3";
    const cJSON *block = quant_get(json, "weight_block_size");
    if (quant_get_string(json, "fmt", &format, err) < 0 || (block && parse_block(block, &s, err) < 0)) {
        return -1;
    }
    if (strcmp(format, "e4m3") != 0) {
        return error_set(err, ERROR_UNSUPPORTED, "fp8 weights of the format %s are not supported (e4m3 is)",
                         quant_shown(format).text);
    }
    if (block) {
        s.scale = "weight_scale_inv";
    }
    return set_fallback(q, &s, json, skip_keys, err);
}

static int parse_plain_fp8(const cJSON *json, struct quant_config *q, struct error *err) {
    return set_fallback(q, &f8_scheme, json, skip_keys, err);
}

static int parse_modelopt(const cJSON *json, struct quant_config *q, struct error *err) {
    const cJSON *inner = quant_get(json, "quantization"); /* hf_quant_config.json */
    const char *algorithm = "";
    json = inner ? inner : json;
    if (!cJSON_IsObject(json)) {
        return error_set(err, ERROR_MODEL, "quantization is not an object");
    }
    if (quant_get_string(json, "quant_algo", &algorithm, err) < 0) {
        return -1;
    }
    if (strcmp(algorithm, "FP8") != 0 && strcmp(algorithm, "FP8_PER_CHANNEL_PER_TOKEN") != 0) {
        return error_set(err, ERROR_UNSUPPORTED, "the ModelOpt algorithm %s is not supported (FP8 is)",
                         algorithm[0] ? quant_shown(algorithm).text : "that is not named");
    }
    snprintf(q->method, sizeof q->method, "modelopt %s", algorithm);
    return set_fallback(q, &f8_scheme, json, skip_keys, err);
}

static int parse_smooth_quant(const cJSON *json, struct quant_config *q, struct error *err) {
    const char *type = "int8";
    if (quant_get_string(json, "quant_dtype", &type, err) < 0) {
        return -1;
    }
    struct quant_scheme s = i8_scheme;
    if (strcmp(type, "float8_e4m3fn") == 0) {
        s = f8_scheme;
    } else if (strcmp(type, "int8") != 0) {
        return error_set(err, ERROR_UNSUPPORTED, "smooth_quant with the quant_dtype %s is not supported", quant_shown(type).text);
    }
    s.scale = "scale";
    return set_fallback(q, &s, json, skip_keys, err);
}

static int parse_w8a8_int8(const cJSON *json, struct quant_config *q, struct error *err) {
    return set_fallback(q, &i8_scheme, json, skip_keys, err);
}

static int parse_bitsandbytes(const cJSON *json, struct quant_config *q, struct error *err) {
    static const char *const keys[] = {"llm_int8_skip_modules", NULL};
    bool four = false, old_four = false, eight = false, old_eight = false;
    if (quant_get_bool(json, "load_in_4bit", &four, err) < 0 || quant_get_bool(json, "_load_in_4bit", &old_four, err) < 0 ||
        quant_get_bool(json, "load_in_8bit", &eight, err) < 0 ||
        quant_get_bool(json, "_load_in_8bit", &old_eight, err) < 0) {
        return -1;
    }
    if (four || old_four) {
        return error_set(err, ERROR_UNSUPPORTED, "bitsandbytes 4-bit weights (nf4, fp4) are not supported");
    }
    if (!eight && !old_eight) {
        return error_set(err, ERROR_MODEL, "bitsandbytes says neither load_in_8bit nor load_in_4bit");
    }
    /* its own product takes columns of outliers in 16 bits: floats are the nearest to that */
    struct quant_scheme s = i8_scheme;
    s.scale = "SCB";
    s.scale_divisor = 127;
    s.activation = ACTIVATION_FLOAT;
    return set_fallback(q, &s, json, keys, err);
}

/* ---- all methods ---- */

static const struct {
    const char *name; /* quant_method */
    int (*parse)(const cJSON *json, struct quant_config *q, struct error *err);
} methods[] = {
    {"compressed-tensors", quant_parse_compressed},
    {"sparseml", quant_parse_compressed}, /* what it was called in compression_config */
    {"gptq", quant_parse_gptq},
    {"awq", quant_parse_awq},
    {"fp8", parse_fp8},
    {"fbgemm_fp8", parse_plain_fp8},
    {"w8a8_fp8", parse_plain_fp8},
    {"modelopt", parse_modelopt},
    {"smooth_quant", parse_smooth_quant},
    {"w8a8_int8", parse_w8a8_int8},
    {"bitsandbytes", parse_bitsandbytes},
};

/* The files of older writers do not name their method. */
static const char *guess_method(const cJSON *json) {
    if (quant_get(json, "config_groups")) {
        return "compressed-tensors";
    }
    if (quant_get(json, "quant_algo") || quant_get(json, "quantization")) {
        return "modelopt";
    }
    if (quant_get(json, "w_bit") || quant_get(json, "q_group_size") || quant_get(json, "zero_point")) {
        return "awq";
    }
    if (quant_get(json, "load_in_8bit") || quant_get(json, "load_in_4bit")) {
        return "bitsandbytes";
    }
    return quant_get(json, "bits") ? "gptq" : NULL;
}

static int parse(const cJSON *json, struct quant_config *q, struct error *err) {
    const char *method = NULL;
    if (!cJSON_IsObject(json)) {
        return error_set(err, ERROR_MODEL, "it is not an object");
    }
    if (quant_get_string(json, "quant_method", &method, err) < 0) {
        return -1;
    }
    method = method ? method : guess_method(json);
    if (!method) {
        return error_set(err, ERROR_MODEL, "it does not say its quant_method");
    }
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++) {
        if (strcmp(method, methods[i].name) == 0) {
            snprintf(q->method, sizeof q->method, "%s", method);
            return methods[i].parse(json, q, err);
        }
    }
    char known[160] = "";
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++) {
        size_t len = strlen(known);
        snprintf(known + len, sizeof known - len, "%s%s", i ? ", " : "", methods[i].name);
    }
    return error_set(err, ERROR_UNSUPPORTED, "the quant_method %s is not supported (supported: %s)",
                     quant_shown(method).text, known);
}

int quant_config_parse(const cJSON *json, struct quant_config **out, struct error *err) {
    struct quant_config *q = calloc(1, sizeof *q);
    if (!q) {
        return error_memory(err);
    }
    if (json && parse(json, q, err) < 0) {
        quant_config_free(q);
        return error_prefix(err, "the quantisation of the model");
    }
    *out = q;
    return 0;
}

void quant_config_free(struct quant_config *q) {
    if (!q) {
        return;
    }
    for (size_t i = 0; i < q->n_rules; i++) {
        quant_list_free(&q->rules[i].targets);
    }
    free(q->rules);
    quant_list_free(&q->ignore);
    regex_run_free(&q->run);
    free(q);
}

/* ---- the scheme of a module ---- */

/* The first rule with a target of this kind; exact names come before regexes before classes, as their library has it. */
static int find_by_class(struct quant_config *q, const char *module, const char *class_name,
                         const struct quant_rule **out, struct error *err) {
    const struct {
        int kind;
        const char *name;
    } passes[] = {{PATTERN_NAME, module}, {PATTERN_REGEX, module}, {PATTERN_NAME, class_name}, {PATTERN_REGEX, class_name}};
    for (size_t p = 0; p < sizeof passes / sizeof passes[0]; p++) {
        for (size_t i = 0; i < q->n_rules; i++) {
            int found = quant_list_matches(q, &q->rules[i].targets, passes[p].kind, passes[p].name, err);
            if (found != 0) {
                *out = &q->rules[i];
                return found;
            }
        }
    }
    return 0;
}

static int find_in_order(struct quant_config *q, const char *module, const struct quant_rule **out, struct error *err) {
    for (size_t i = 0; i < q->n_rules; i++) {
        int found = quant_list_matches(q, &q->rules[i].targets, -1, module, err);
        if (found != 0) {
            *out = &q->rules[i];
            return found;
        }
    }
    return 0;
}

int quant_config_scheme(struct quant_config *q, const char *module, const char *class_name, struct quant_scheme *out,
                        struct error *err) {
    struct quant_scheme s = {.layout = QUANT_PLAIN};
    int ignored = quant_list_matches(q, &q->ignore, -1, module, err);
    if (ignored == 0 && q->by_class) {
        ignored = quant_list_matches(q, &q->ignore, -1, class_name, err);
    }
    if (ignored < 0) {
        return -1;
    }
    const struct quant_rule *rule = NULL;
    int found = ignored        ? 0
                : q->by_class ? find_by_class(q, module, class_name, &rule, err)
                               : find_in_order(q, module, &rule, err);
    if (found < 0) {
        return -1;
    }
    if (found) {
        s = rule->excluded ? s : rule->scheme;
    } else if (!ignored && q->has_fallback && strcmp(class_name, "Linear") == 0 &&
               (q->lm_head || strcmp(module, "lm_head") != 0)) {
        s = q->fallback;
    }
    *out = s;
    return 0;
}

/* ---- for people ---- */

static void describe_scheme(const struct quant_scheme *s, struct buf *out) {
    static const char *const inputs[] = {
        [ACTIVATION_FLOAT] = "",
        [ACTIVATION_I8_TOKEN] = ", inputs in 8 bits by token",
        [ACTIVATION_I8_TOKEN_ZERO] = ", inputs in 8 bits by token with zero points",
        [ACTIVATION_I8_STATIC] = ", inputs in 8 bits by a fixed scale",
    };
    buf_printf(out, "%u-bit %s", s->bits, s->layout == QUANT_F8 ? "floats" : "integers");
    if (s->block_n > 0) {
        buf_printf(out, " in blocks of %zu x %zu", s->block_n, s->block_k);
    } else if (s->group > 0) {
        buf_printf(out, " in groups of %zu", s->group);
    }
    buf_puts(out, s->symmetric ? "" : " with zero points");
    buf_puts(out, s->ordered ? ", grouped by importance" : "");
    buf_puts(out, inputs[s->activation]);
}

void quant_config_describe(const struct quant_config *q, struct buf *out) {
    if (q->method[0] == '\0') {
        return;
    }
    buf_puts(out, q->method);
    size_t shown = 0;
    for (size_t i = 0; i < q->n_rules; i++) {
        if (!q->rules[i].excluded && q->by_class) {
            buf_puts(out, shown++ ? "; " : ": ");
            describe_scheme(&q->rules[i].scheme, out);
        }
    }
    if (q->has_fallback) {
        buf_puts(out, ": ");
        describe_scheme(&q->fallback, out);
    }
}
