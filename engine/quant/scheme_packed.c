/* GPTQ and AWQ: quantization_config, quantize_config.json. */
#include "quant/scheme_internal.h"

#include <cjson/cJSON.h>
#include <string.h>

/* group_size of both: -1 is the whole row. */
static int parse_group_size(const cJSON *json, const char *key, int64_t *out, struct error *err) {
    if (quant_get_int(json, key, -1, QUANT_MAX_GROUP, out, err) < 0) {
        return -1;
    }
    return *out != 0 ? 0 : error_set(err, ERROR_MODEL, "%s is 0", key);
}

/* ---- GPTQ ---- */

/* The keys that a rule of "dynamic" may set anew. */
static int parse_gptq_scheme(const cJSON *json, struct quant_scheme *s, struct error *err) {
    int64_t bits = s->bits, group = s->group > 0 ? (int64_t)s->group : -1;
    bool desc_act = s->ordered;
    if (quant_get_int(json, "bits", 1, QUANT_MAX_BITS, &bits, err) < 0 ||
        parse_group_size(json, "group_size", &group, err) < 0 || quant_get_bool(json, "desc_act", &desc_act, err) < 0 ||
        quant_get_bool(json, "sym", &s->symmetric, err) < 0) {
        return -1;
    }
    if (bits != 4 && bits != 8) {
        return error_set(err, ERROR_UNSUPPORTED, "GPTQ weights of %d bits are not supported (4 and 8 are)", (int)bits);
    }
    s->bits = (unsigned)bits;
    s->group = group > 0 ? (size_t)group : 0;
    s->ordered = desc_act;
    return 0;
}

/* {"-:REGEX": {}, "+:REGEX": {"bits": 8}}: which modules are not quantised, or otherwise; the first match counts. */
static int parse_dynamic(const cJSON *json, struct quant_config *q, struct error *err) {
    const cJSON *dynamic = quant_get(json, "dynamic"), *item;
    if (dynamic && !cJSON_IsObject(dynamic)) {
        return error_set(err, ERROR_MODEL, "dynamic is not an object");
    }
    cJSON_ArrayForEach(item, dynamic) {
        struct quant_rule *rule;
        const char *pattern = item->string;
        if (quant_add_rule(q, &rule, err) < 0) {
            return -1;
        }
        rule->scheme = q->fallback;
        rule->excluded = strncmp(pattern, "-:", 2) == 0;
        pattern += rule->excluded || strncmp(pattern, "+:", 2) == 0 ? 2 : 0;
        if ((!rule->excluded && parse_gptq_scheme(item, &rule->scheme, err) < 0) ||
            quant_add_pattern(q, &rule->targets, pattern, PATTERN_REGEX, err) < 0) {
            return error_prefix(err, "dynamic");
        }
    }
    return 0;
}

int quant_parse_gptq(const cJSON *json, struct quant_config *q, struct error *err) {
    const char *format = "gptq", *pack_type = "int32";
    bool marlin = false;
    struct quant_scheme s = {.layout = QUANT_GPTQ, .symmetric = true, .scale = "scales"};
    if (!quant_get(json, "bits")) {
        return error_set(err, ERROR_MODEL, "there is no bits");
    }
    if (parse_gptq_scheme(json, &s, err) < 0 || quant_get_string(json, "checkpoint_format", &format, err) < 0 ||
        quant_get_string(json, "pack_dtype", &pack_type, err) < 0 ||
        quant_get_bool(json, "is_marlin_format", &marlin, err) < 0 || quant_get_bool(json, "lm_head", &q->lm_head, err) < 0) {
        return -1;
    }
    format = marlin ? "marlin" : format;
    if ((strcmp(format, "gptq") != 0 && strcmp(format, "gptq_v2") != 0) || strcmp(pack_type, "int32") != 0) {
        return error_set(err, ERROR_UNSUPPORTED, "the GPTQ checkpoint_format %s, packed in %s, is not supported",
                         quant_shown(format).text, quant_shown(pack_type).text);
    }
    s.zero_less_one = strcmp(format, "gptq") == 0;
    q->fallback = s;
    q->has_fallback = true;
    return parse_dynamic(json, q, err);
}

/* ---- AWQ ---- */

int quant_parse_awq(const cJSON *json, struct quant_config *q, struct error *err) {
    const char *version = "gemm";
    int64_t bits = 4, group = 128;
    if (quant_get_int(json, "bits", 1, QUANT_MAX_BITS, &bits, err) < 0 ||
        quant_get_int(json, "w_bit", 1, QUANT_MAX_BITS, &bits, err) < 0 ||
        parse_group_size(json, "group_size", &group, err) < 0 || parse_group_size(json, "q_group_size", &group, err) < 0 ||
        quant_get_string(json, "version", &version, err) < 0) {
        return -1;
    }
    if (bits != 4) {
        return error_set(err, ERROR_UNSUPPORTED, "AWQ weights of %d bits are not supported (4 are)", (int)bits);
    }
    if (strcmp(version, "gemm") != 0 && strcmp(version, "GEMM") != 0) {
        return error_set(err, ERROR_UNSUPPORTED, "the AWQ version %s is not supported (gemm is)", quant_shown(version).text);
    }
    q->fallback = (struct quant_scheme){
        .layout = QUANT_AWQ, .bits = 4, .group = group > 0 ? (size_t)group : 0, .scale = "scales"};
    q->has_fallback = q->lm_head = true;
    return quant_add_patterns(q, &q->ignore, json, "modules_to_not_convert", PATTERN_PART, false, err);
}
