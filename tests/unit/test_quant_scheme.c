/* quant/scheme.h: what checkpoints say of how they are quantised. The samples have the keys of published files. */
#include <criterion/criterion.h>
#include <inferd/json.h>
#include <stdio.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "quant/scheme.h"
#include "quant/scheme_internal.h"

static struct error err;

static struct quant_config *parse(const char *json) {
    struct cJSON *tree = NULL;
    struct quant_config *q = NULL;
    cr_assert_eq(json_parse(json, strlen(json), NULL, &tree, &err), 0, "%s: %s", json, err.message);
    if (quant_config_parse(tree, &q, &err) < 0) {
        cr_assert_null(q);
    }
    cJSON_Delete(tree);
    return q;
}

static struct quant_config *accepted(const char *json) {
    struct quant_config *q = parse(json);
    cr_assert_not_null(q, "%s", err.message);
    return q;
}

static void refused(const char *json, enum error_code code, const char *words) {
    cr_expect_null(parse(json), "%s", json);
    cr_expect_eq(err.code, code, "%s: %s", json, err.message);
    cr_expect_not_null(strstr(err.message, words), "%s: %s", json, err.message);
}

static struct quant_scheme scheme(struct quant_config *q, const char *module, const char *class_name) {
    struct quant_scheme s = {0};
    cr_assert_eq(quant_config_scheme(q, module, class_name, &s, &err), 0, "%s", err.message);
    return s;
}

static struct quant_scheme linear(struct quant_config *q, const char *module) {
    return scheme(q, module, "Linear");
}

#define UP "model.layers.0.mlp.up_proj"

static void described(struct quant_config *q, const char *want) {
    struct buf b = BUF_INIT;
    quant_config_describe(q, &b);
    cr_expect_str_eq(b.data ? b.data : "", want);
    buf_free(&b);
}

/* The keys of a published *-quantized.w8a8. */
#define INT8_WEIGHTS                                                                                                   \
    "{\"actorder\":null,\"block_structure\":null,\"dynamic\":false,\"group_size\":null,\"num_bits\":8,\"observer\":"      \
    "\"minmax\",\"observer_kwargs\":{},\"strategy\":\"channel\",\"symmetric\":true,\"type\":\"int\"}"
#define INT8_TOKENS                                                                                                    \
    "{\"actorder\":null,\"block_structure\":null,\"dynamic\":true,\"group_size\":null,\"num_bits\":8,\"observer\":null,"  \
    "\"observer_kwargs\":{},\"strategy\":\"token\",\"symmetric\":true,\"type\":\"int\"}"
#define GROUP(weights, inputs, more)                                                                                   \
    "{\"weights\":" weights ",\"input_activations\":" inputs ",\"output_activations\":null," more                       \
    "\"targets\":[\"Linear\"]}"
#define CT(format, groups, more)                                                                                       \
    "{\"quant_method\":\"compressed-tensors\",\"format\":\"" format "\",\"quantization_status\":\"compressed\","         \
    "\"global_compression_ratio\":1.4,\"kv_cache_scheme\":null,\"ignore\":[\"lm_head\"]," more                          \
    "\"config_groups\":{\"group_0\":" groups "}}"

Test(quant_scheme, nothing_is_quantised_without_a_word) {
    struct quant_config *q = NULL;
    cr_assert_eq(quant_config_parse(NULL, &q, &err), 0);
    cr_expect_eq(linear(q, UP).layout, QUANT_PLAIN);
    described(q, "");
    quant_config_free(q);
    quant_config_free(NULL);
}

Test(quant_scheme, compressed_tensors_w8a8) {
    struct quant_config *q = accepted(CT("int-quantized", GROUP(INT8_WEIGHTS, INT8_TOKENS, ""), ""));
    struct quant_scheme s = linear(q, UP);
    cr_expect(s.layout == QUANT_I8 && s.bits == 8 && s.symmetric && s.group == 0 && s.activation == ACTIVATION_I8_TOKEN);
    cr_expect_str_eq(s.scale, "weight_scale");
    cr_expect_eq(linear(q, "lm_head").layout, QUANT_PLAIN);
    cr_expect_eq(scheme(q, "model.embed_tokens", "Embedding").layout, QUANT_PLAIN);
    described(q, "compressed-tensors int-quantized: 8-bit integers, inputs in 8 bits by token");
    quant_config_free(q);
}

Test(quant_scheme, activations) {
#define INPUTS(dynamic, strategy, symmetric)                                                                           \
    "{\"num_bits\":8,\"type\":\"int\",\"dynamic\":" dynamic ",\"strategy\":" strategy ",\"symmetric\":" symmetric "}"
    static const struct {
        const char *json;
        enum activation_quant want;
    } cases[] = {
        {CT("int-quantized", GROUP(INT8_WEIGHTS, "null", ""), ""), ACTIVATION_FLOAT},
        {CT("int-quantized", GROUP(INT8_WEIGHTS, INPUTS("true", "\"token\"", "false"), ""), ""), ACTIVATION_I8_TOKEN_ZERO},
        {CT("int-quantized", GROUP(INT8_WEIGHTS, INPUTS("true", "null", "true"), ""), ""), ACTIVATION_I8_TOKEN},
        {CT("naive-quantized", GROUP(INT8_WEIGHTS, INPUTS("false", "\"tensor\"", "true"), ""), ""), ACTIVATION_I8_STATIC},
        {CT("int-quantized", GROUP(INT8_WEIGHTS, INPUTS("false", "null", "false"), ""), ""), ACTIVATION_I8_STATIC},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct quant_config *q = accepted(cases[i].json);
        cr_expect_eq(linear(q, UP).activation, cases[i].want, "%zu", i);
        quant_config_free(q);
    }
}

#define WEIGHTS(bits, type, strategy, more)                                                                            \
    "{\"num_bits\":" bits ",\"type\":\"" type "\",\"strategy\":\"" strategy "\",\"symmetric\":true" more "}"

Test(quant_scheme, packed_and_floats) {
    struct quant_config *q =
        accepted(CT("pack-quantized", GROUP(WEIGHTS("4", "int", "group", ",\"group_size\":128,\"actorder\":\"group\""), "null", ""), ""));
    struct quant_scheme s = linear(q, UP);
    cr_expect(s.layout == QUANT_PACKED && s.bits == 4 && s.group == 128 && s.ordered && s.activation == ACTIVATION_FLOAT);
    described(q, "compressed-tensors pack-quantized: 4-bit integers in groups of 128, grouped by importance");
    quant_config_free(q);
    q = accepted(CT("pack-quantized", GROUP(WEIGHTS("8", "int", "channel", ",\"group_size\":-1,\"actorder\":\"weight\""), "null", ""), ""));
    s = linear(q, UP);
    cr_expect(s.layout == QUANT_PACKED && s.bits == 8 && s.group == 0 && !s.ordered);
    quant_config_free(q);
    q = accepted(CT("float-quantized", GROUP(WEIGHTS("8", "float", "block", ",\"block_structure\":[128,64]"), WEIGHTS("8", "float", "token", ",\"dynamic\":true"), ""), ""));
    s = linear(q, UP);
    cr_expect(s.layout == QUANT_F8 && s.block_n == 128 && s.block_k == 64 && s.activation == ACTIVATION_FLOAT);
    quant_config_free(q);
    q = accepted(CT("float-quantized", GROUP(WEIGHTS("8", "float", "block", ",\"block_structure\":\"16x32\""), "null", ""), ""));
    cr_expect(linear(q, UP).block_n == 16 && linear(q, UP).block_k == 32);
    quant_config_free(q);
}

/* Groups of their own format; exact names come before regexes, these before classes; ignored ones are not looked for. */
Test(quant_scheme, targets) {
    struct quant_config *q = accepted(
        "{\"quant_method\":\"compressed-tensors\",\"format\":\"mixed-precision\",\"quantization_status\":\"compressed\","
        "\"ignore\":[\"re:.*self_attn.*\",\"model.layers.3.mlp.up_proj\"],\"config_groups\":{"
        "\"a\":{\"targets\":[\"Linear\"],\"format\":\"int-quantized\",\"weights\":" INT8_WEIGHTS "},"
        "\"b\":{\"targets\":[\"re:.*down_proj$\",\"re:mlp\"],\"format\":\"pack-quantized\",\"weights\":"
        WEIGHTS("4", "int", "group", ",\"group_size\":32") "},"
        "\"c\":{\"targets\":[\"model.layers.0.mlp.down_proj\",\"Embedding\"],\"format\":\"pack-quantized\",\"weights\":"
        WEIGHTS("8", "int", "channel", "") "}}}");
    cr_expect_eq(linear(q, UP).layout, QUANT_I8); /* "re:mlp" must match at the beginning of a name */
    cr_expect_eq(linear(q, "model.layers.1.mlp.down_proj").bits, 4);
    cr_expect_eq(linear(q, "model.layers.0.mlp.down_proj").bits, 8);
    cr_expect_eq(linear(q, "model.layers.0.mlp.down_proj").layout, QUANT_PACKED);
    cr_expect_eq(linear(q, "model.layers.0.self_attn.q_proj").layout, QUANT_PLAIN);
    cr_expect_eq(linear(q, "model.layers.3.mlp.up_proj").layout, QUANT_PLAIN);
    cr_expect_eq(linear(q, "lm_head").layout, QUANT_I8);
    cr_expect_eq(scheme(q, "model.embed_tokens", "Embedding").layout, QUANT_PACKED);
    quant_config_free(q);
}

Test(quant_scheme, gptq) {
    /* with quant_method, and as quantize_config.json has it */
    struct quant_config *q = accepted("{\"bits\":4,\"group_size\":128,\"damp_percent\":0.01,\"desc_act\":true,\"static_groups\":"
                                      "false,\"sym\":true,\"true_sequential\":true,\"model_name_or_path\":null}");
    struct quant_scheme s = linear(q, UP);
    cr_expect(s.layout == QUANT_GPTQ && s.bits == 4 && s.group == 128 && s.ordered && s.symmetric && s.zero_less_one);
    cr_expect_eq(linear(q, "lm_head").layout, QUANT_PLAIN);
    described(q, "gptq: 4-bit integers in groups of 128, grouped by importance");
    quant_config_free(q);
    q = accepted("{\"quant_method\":\"gptq\",\"bits\":8,\"group_size\":-1,\"sym\":false,\"lm_head\":true,\"checkpoint_format\":"
                 "\"gptq_v2\",\"dynamic\":{\"-:model\\\\.layers\\\\.1\\\\..*\":{},\"+:.*down\":{\"bits\":4,\"group_size\":32},"
                 "\".*up\":{\"sym\":true}}}");
    s = linear(q, "lm_head");
    cr_expect(s.layout == QUANT_GPTQ && s.bits == 8 && s.group == 0 && !s.symmetric && !s.zero_less_one);
    cr_expect_eq(linear(q, "model.layers.1.mlp.down_proj").layout, QUANT_PLAIN);
    cr_expect(linear(q, "model.layers.2.mlp.down_proj").bits == 4 && linear(q, "model.layers.2.mlp.down_proj").group == 32);
    cr_expect(linear(q, UP).symmetric && linear(q, UP).bits == 8);
    quant_config_free(q);
}

Test(quant_scheme, awq) {
    static const char *const forms[] = {
        "{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":64,\"zero_point\":true,\"version\":\"gemm\","
        "\"modules_to_not_convert\":[\"self_attn\",\"mlp.gate\"]}",
        "{\"w_bit\":4,\"q_group_size\":64,\"zero_point\":true,\"version\":\"GEMM\",\"modules_to_not_convert\":[\"self_attn\",\"mlp.gate\"]}"};
    for (size_t i = 0; i < 2; i++) {
        struct quant_config *q = accepted(forms[i]);
        struct quant_scheme s = linear(q, UP);
        cr_expect(s.layout == QUANT_AWQ && s.bits == 4 && s.group == 64 && !s.symmetric);
        cr_expect_eq(linear(q, "model.layers.0.self_attn.q_proj").layout, QUANT_PLAIN);
        cr_expect_eq(linear(q, "model.layers.0.mlp.gate").layout, QUANT_PLAIN);
        cr_expect_eq(linear(q, "model.layers.0.mlp.gate_proj").layout, QUANT_AWQ); /* whole components */
        quant_config_free(q);
    }
}

Test(quant_scheme, other_methods) {
    static const struct {
        const char *json;
        enum quant_layout layout;
        const char *scale;
        enum activation_quant activation;
    } cases[] = {
        {"{\"quant_method\":\"fp8\",\"activation_scheme\":\"static\",\"ignored_layers\":[\"lm_head\"]}", QUANT_F8, "weight_scale",
         ACTIVATION_FLOAT},
        {"{\"quant_method\":\"fp8\",\"fmt\":\"e4m3\",\"activation_scheme\":\"dynamic\",\"weight_block_size\":[128,128],"
         "\"modules_to_not_convert\":[\"lm_head\"]}",
         QUANT_F8, "weight_scale_inv", ACTIVATION_FLOAT},
        {"{\"quant_method\":\"fbgemm_fp8\",\"activation_scale_ub\":1200.0,\"modules_to_not_convert\":[\"lm_head\"]}", QUANT_F8,
         "weight_scale", ACTIVATION_FLOAT},
        {"{\"producer\":{\"name\":\"modelopt\",\"version\":\"0.23\"},\"quantization\":{\"quant_algo\":\"FP8\","
         "\"kv_cache_quant_algo\":\"FP8\",\"exclude_modules\":[\"lm_head\"]}}",
         QUANT_F8, "weight_scale", ACTIVATION_FLOAT},
        {"{\"quant_method\":\"modelopt\",\"quant_algo\":\"FP8\",\"ignore\":[\"lm_*\"],\"producer\":{\"name\":\"modelopt\"}}", QUANT_F8,
         "weight_scale", ACTIVATION_FLOAT},
        {"{\"quant_method\":\"smooth_quant\",\"quant_dtype\":\"int8\",\"modules_to_not_convert\":[\"lm_head\"]}", QUANT_I8, "scale",
         ACTIVATION_I8_TOKEN},
        {"{\"quant_method\":\"smooth_quant\",\"quant_dtype\":\"float8_e4m3fn\",\"modules_to_not_convert\":[\"lm_head\"]}", QUANT_F8,
         "scale", ACTIVATION_FLOAT},
        {"{\"quant_method\":\"w8a8_int8\",\"ignore\":[\"lm_head\"]}", QUANT_I8, "weight_scale", ACTIVATION_I8_TOKEN},
        {"{\"quant_method\":\"bitsandbytes\",\"_load_in_8bit\":true,\"load_in_8bit\":true,\"load_in_4bit\":false,"
         "\"llm_int8_threshold\":6.0,\"llm_int8_skip_modules\":[\"lm_head\"]}",
         QUANT_I8, "SCB", ACTIVATION_FLOAT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct quant_config *q = accepted(cases[i].json);
        struct quant_scheme s = linear(q, UP);
        cr_expect(s.layout == cases[i].layout && s.activation == cases[i].activation && s.symmetric, "%s", cases[i].json);
        cr_expect_str_eq(s.scale, cases[i].scale);
        cr_expect_eq(linear(q, "lm_head").layout, QUANT_PLAIN, "%s", cases[i].json);
        cr_expect_eq(scheme(q, "model.embed_tokens", "Embedding").layout, QUANT_PLAIN);
        quant_config_free(q);
    }
}

Test(quant_scheme, globs) {
    struct quant_config *q = accepted("{\"quantization\":{\"quant_algo\":\"FP8\",\"exclude_modules\":[\"*.mlp.gate\","
                                      "\"model.layers.1.*\",\"*self_attn*v*\"]}}");
    cr_expect_eq(linear(q, UP).layout, QUANT_F8);
    cr_expect_eq(linear(q, "model.layers.1.mlp.up_proj").layout, QUANT_PLAIN);
    cr_expect_eq(linear(q, "model.layers.11.mlp.up_proj").layout, QUANT_F8);
    cr_expect_eq(linear(q, "model.layers.0.mlp.gate_proj").layout, QUANT_F8);
    cr_expect_eq(linear(q, "model.layers.0.self_attn.v_proj").layout, QUANT_PLAIN);
    cr_expect_eq(linear(q, "model.layers.0.self_attn.q_proj").layout, QUANT_F8);
    quant_config_free(q);
}

Test(quant_scheme, what_is_not_supported_is_refused_by_name) {
    static const struct {
        const char *json, *words;
    } cases[] = {
        {"{\"quant_method\":\"mxfp4\"}", "quant_method mxfp4"},
        {"{\"quant_method\":\"aq\\u001b[2Jlm\"}", "quant_method aq?[2Jlm"}, /* nothing for a terminal to obey */
        {"{\"quant_method\":\"bitsandbytes\",\"load_in_4bit\":true,\"bnb_4bit_quant_type\":\"nf4\"}", "nf4"},
        {"{\"quant_method\":\"gptq\",\"bits\":3,\"group_size\":128}", "3 bits"},
        {"{\"quant_method\":\"gptq\",\"bits\":4,\"checkpoint_format\":\"marlin\"}", "marlin"},
        {"{\"quant_method\":\"gptq\",\"bits\":4,\"is_marlin_format\":true}", "marlin"},
        {"{\"quant_method\":\"awq\",\"bits\":8}", "8 bits"},
        {"{\"quant_method\":\"awq\",\"bits\":4,\"version\":\"gemv_fast\"}", "gemv_fast"},
        {"{\"quant_method\":\"fp8\",\"fmt\":\"e5m2\"}", "e5m2"},
        {"{\"quant_method\":\"modelopt\",\"quant_algo\":\"NVFP4\"}", "NVFP4"},
        {"{\"quant_method\":\"smooth_quant\",\"quant_dtype\":\"int4\"}", "int4"},
        {CT("marlin-24", GROUP(WEIGHTS("4", "int", "group", ",\"group_size\":128"), "null", ""), ""), "marlin-24"},
        {CT("nvfp4-pack-quantized", GROUP(WEIGHTS("4", "float", "tensor_group", ",\"group_size\":16"), "null", ""), ""),
         "4-bit floats in the format nvfp4-pack-quantized"},
        {CT("int-quantized", GROUP(INT8_WEIGHTS, INT8_TOKENS, ""), "\"sparsity_config\":{\"format\":\"sparse-24-bitmask\"},"),
         "sparse-24-bitmask"},
        {CT("int-quantized", GROUP(INT8_WEIGHTS, INT8_TOKENS, ""), "\"transform_config\":{\"config_groups\":{}},"),
         "transform_config"},
        {CT("int-quantized", GROUP(INT8_WEIGHTS, WEIGHTS("4", "int", "token", ",\"dynamic\":true"), ""), ""), "4-bit activations"},
        {CT("int-quantized", GROUP(INT8_WEIGHTS, WEIGHTS("8", "int", "tensor", ",\"dynamic\":true"), ""), ""),
         "dynamic activations with the strategy \"tensor\""},
        {CT("int-quantized", GROUP(INT8_WEIGHTS, WEIGHTS("8", "int", "channel", ""), ""), ""), "static activations"},
        {CT("int-quantized", GROUP(INT8_WEIGHTS, WEIGHTS("8", "float", "token", ",\"dynamic\":true"), ""), ""), "8-bit float activations"},
        {CT("int-quantized", GROUP(INT8_WEIGHTS, WEIGHTS("8", "int", "token", ",\"dynamic\":\"local\""), ""), ""), "dynamic"},
        {CT("int-quantized", "{\"targets\":[\"Linear\"],\"weights\":" INT8_WEIGHTS ",\"output_activations\":{\"num_bits\":8}}", ""),
         "output_activations"},
        {CT("int-quantized", "{\"targets\":[\"Linear\"],\"weights\":null}", ""), "without weights"},
        {CT("int-quantized", GROUP(WEIGHTS("4", "int", "channel", ""), "null", ""), ""), "4-bit integers"},
        {CT("int-quantized", GROUP(WEIGHTS("8", "int", "group", ",\"group_size\":64"), "null", ""), ""), "strategy \"group\""},
        {CT("pack-quantized", GROUP(WEIGHTS("3", "int", "channel", ""), "null", ""), ""), "3-bit integers"},
        {CT("pack-quantized", GROUP(WEIGHTS("4", "int", "channel", ""), INT8_TOKENS, ""), ""), "packed weights"},
        {CT("pack-quantized", GROUP(WEIGHTS("4", "int", "group", ",\"group_size\":32,\"actorder\":\"magic\""), "null", ""), ""), "actorder \"magic\""},
        {CT("pack-quantized", GROUP(WEIGHTS("4", "complex", "group", ""), "null", ""), ""), "type \"complex\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        refused(cases[i].json, ERROR_UNSUPPORTED, cases[i].words);
    }
}

Test(quant_scheme, nonsense) {
    static const struct {
        const char *json, *words;
    } cases[] = {
        {"[]", "not an object"},
        {"{}", "quant_method"},
        {"{\"quant_method\":7}", "quant_method"},
        {"{\"quant_method\":\"gptq\"}", "no bits"},
        {"{\"quant_method\":\"gptq\",\"bits\":0}", "bits"},
        {"{\"quant_method\":\"gptq\",\"bits\":1e300}", "bits"},
        {"{\"quant_method\":\"gptq\",\"bits\":4.5}", "bits"},
        {"{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":0}", "group_size is 0"},
        {"{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":-2}", "group_size"},
        {"{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":2000000}", "group_size"},
        {"{\"quant_method\":\"gptq\",\"bits\":4,\"dynamic\":{\"+:(\":{}}}", "not valid"},
        {"{\"quant_method\":\"gptq\",\"bits\":4,\"dynamic\":{\"+:a\":{\"group_size\":0}}}", "group_size is 0"},
        {"{\"quant_method\":\"gptq\",\"bits\":4,\"dynamic\":{\"-:\":{}}}", "bytes"},
        {"{\"quant_method\":\"awq\",\"bits\":4,\"q_group_size\":0}", "q_group_size is 0"},
        {"{\"quant_method\":\"awq\",\"modules_to_not_convert\":\"lm_head\"}", "not a list"},
        {"{\"quant_method\":\"awq\",\"modules_to_not_convert\":[1]}", "not a list"},
        {"{\"quant_method\":\"fp8\",\"weight_block_size\":[128]}", "weight_block_size"},
        {"{\"quant_method\":\"fp8\",\"weight_block_size\":[0,128]}", "weight_block_size"},
        {"{\"quant_method\":\"fp8\",\"weight_block_size\":[1e9,128]}", "weight_block_size"},
        {"{\"quant_method\":\"modelopt\",\"quantization\":3}", "not an object"},
        {"{\"quant_method\":\"bitsandbytes\"}", "load_in_8bit"},
        {"{\"quant_method\":\"compressed-tensors\",\"config_groups\":{}}", "config_groups"},
        {"{\"quant_method\":\"compressed-tensors\",\"config_groups\":[1]}", "config_groups"},
        {CT("int-quantized", GROUP("[]", "null", ""), ""), "not an object"},
        {CT("int-quantized", GROUP(WEIGHTS("65", "int", "channel", ""), "null", ""), ""), "num_bits"},
        {CT("pack-quantized", GROUP(WEIGHTS("4", "int", "group", ""), "null", ""), ""), "group_size"},
        {CT("float-quantized", GROUP(WEIGHTS("8", "float", "block", ",\"block_structure\":[0,1]"), "null", ""), ""), "block_structure"},
        {CT("float-quantized", GROUP(WEIGHTS("8", "float", "block", ""), "null", ""), ""), "block_structure"},
        {CT("int-quantized", "{\"targets\":[\"re:(\"],\"weights\":" INT8_WEIGHTS "}", ""), "not valid"},
        {CT("int-quantized", "{\"targets\":\"Linear\",\"weights\":" INT8_WEIGHTS "}", ""), "not a list"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        refused(cases[i].json, ERROR_MODEL, cases[i].words);
    }
}

/* A regex that backtracks without end costs a bounded time, once for all modules. */
Test(quant_scheme, a_hostile_regex_ends) {
    struct quant_config *q = accepted("{\"quant_method\":\"compressed-tensors\",\"ignore\":[\"re:(a|aa)+[^a]\"],"
                                      "\"config_groups\":{\"g\":{\"targets\":[\"Linear\"],\"weights\":" INT8_WEIGHTS "}}}");
    struct quant_scheme s;
    char module[128];
    memset(module, 'a', sizeof module);
    module[127] = '\0';
    cr_expect(quant_config_scheme(q, module, "Linear", &s, &err) < 0);
    cr_expect_eq(err.code, ERROR_MODEL);
    cr_expect_not_null(strstr(err.message, "too long"), "%s", err.message);
    quant_config_free(q);
}

Test(quant_scheme, too_many_names) {
    struct buf b = BUF_INIT;
    buf_puts(&b, "{\"quant_method\":\"awq\",\"modules_to_not_convert\":[\"a\"");
    for (int i = 0; i < QUANT_MAX_PATTERNS; i++) {
        buf_puts(&b, ",\"a\"");
    }
    buf_puts(&b, "]}");
    refused(b.data, ERROR_MODEL, "names of modules");
    buf_reset(&b);
    buf_puts(&b, "{\"quant_method\":\"awq\",\"modules_to_not_convert\":[\"");
    for (int i = 0; i <= QUANT_MAX_PATTERN_LEN; i++) {
        buf_putc(&b, 'a');
    }
    buf_puts(&b, "\"]}");
    refused(b.data, ERROR_MODEL, "names of modules");
    buf_free(&b);
}
