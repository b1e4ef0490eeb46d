#include "gguf_build.h"
#include "model/config.h"

#include <cjson/cJSON.h>
#include <criterion/criterion.h>
#include <inferd/json.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

/* ---- config.json ---- */

#define LLAMA                                                                                                          \
    "\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":64,\"num_hidden_layers\":3,\"num_attention_heads\":4,"   \
    "\"num_key_value_heads\":2,\"intermediate_size\":96,\"vocab_size\":300,\"max_position_embeddings\":2048,"          \
    "\"rms_norm_eps\":1e-5,\"rope_theta\":500000.0,\"hidden_act\":\"silu\""

static int from_json(const char *text, struct model_config *c, struct error *err) {
    cJSON *json;
    cr_assert_eq(json_parse(text, strlen(text), NULL, &json, err), 0, "the test's own JSON: %s", text);
    *err = (struct error){0};
    int rc = model_config_from_json(json, c, err);
    cJSON_Delete(json);
    return rc;
}

static void refused(const char *text, enum error_code code, const char *says) {
    struct model_config c;
    struct error err;
    cr_assert_eq(from_json(text, &c, &err), -1, "accepted: %s", text);
    cr_assert_eq(err.code, code, "%s: %s", text, err.message);
    cr_assert(strstr(err.message, says), "\"%s\" does not mention \"%s\"", err.message, says);
}

Test(model_config, llama_from_json) {
    struct model_config c;
    struct error err;
    cr_assert_eq(from_json("{" LLAMA "}", &c, &err), 0, "%s", err.message);
    cr_assert_str_eq(c.arch->name, "llama");
    cr_assert_eq(c.n_layers, 3);
    cr_assert_eq(c.n_embd, 64);
    cr_assert_eq(c.n_heads, 4);
    cr_assert_eq(c.n_kv_heads, 2);
    cr_assert_eq(c.head_dim, 16);
    cr_assert_eq(c.n_rot, 16);
    cr_assert_eq(c.n_ff, 96);
    cr_assert_eq(c.vocab_size, 300);
    cr_assert_eq(c.context_length, 2048);
    cr_assert_eq(c.rope_style, ROPE_HALVES);
    cr_assert_float_eq(c.attention_scale, 0.25, 1e-12);
    cr_assert_eq(c.rope.theta, 500000.0);
    cr_assert_not(c.tied_head);
    cr_assert_eq(c.window, 0);
}

Test(model_config, defaults_that_a_json_may_leave_out) {
    struct model_config c;
    struct error err;
    cr_assert_eq(
        from_json(
            "{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":64,\"num_hidden_layers\":1,"
            "\"num_attention_heads\":4,\"num_key_value_heads\":null,\"intermediate_size\":96,\"vocab_size\":300,"
            "\"max_position_embeddings\":2048,\"rms_norm_eps\":1e-5,\"tie_word_embeddings\":true,\"head_dim\":32}",
            &c, &err),
        0);
    cr_assert_eq(c.n_kv_heads, 4);
    cr_assert_eq(c.head_dim, 32, "stated, not 64 / 4");
    cr_assert_eq(c.rope.theta, 10000);
    cr_assert(c.tied_head);
}

Test(model_config, windows) {
    struct model_config c;
    struct error err;
#define SHAPE                                                                                                          \
    "\"hidden_size\":64,\"num_hidden_layers\":7,\"num_attention_heads\":4,\"num_key_value_heads\":2,"                  \
    "\"intermediate_size\":96,\"vocab_size\":300,\"max_position_embeddings\":2048,\"rms_norm_eps\":1e-5"
    cr_assert_eq(from_json("{\"architectures\":[\"MistralForCausalLM\"]," SHAPE ",\"sliding_window\":64}", &c, &err),
                 0);
    cr_assert(c.window == 64 && c.sliding[0] && c.sliding[6]);
    cr_assert_eq(from_json("{\"architectures\":[\"MistralForCausalLM\"]," SHAPE ",\"sliding_window\":null}", &c, &err),
                 0);
    cr_assert(c.window == 0 && !c.sliding[0]);
    cr_assert_eq(from_json("{\"architectures\":[\"LlamaForCausalLM\"]," SHAPE ",\"sliding_window\":64}", &c, &err), 0);
    cr_assert_eq(c.window, 0);
    cr_assert_eq(from_json("{\"architectures\":[\"Qwen2ForCausalLM\"]," SHAPE
                           ",\"sliding_window\":64,\"use_sliding_window\":false,"
                           "\"max_window_layers\":2}",
                           &c, &err),
                 0);
    cr_assert_eq(c.window, 0);
    cr_assert_eq(from_json("{\"architectures\":[\"Qwen2ForCausalLM\"]," SHAPE
                           ",\"sliding_window\":64,\"use_sliding_window\":true,"
                           "\"max_window_layers\":2}",
                           &c, &err),
                 0);
    cr_assert(c.window == 64 && !c.sliding[1] && c.sliding[2]);
    cr_assert_eq(
        from_json("{\"architectures\":[\"Gemma3ForCausalLM\"]," SHAPE
                  ",\"sliding_window\":64,\"query_pre_attn_scalar\":256,"
                  "\"rope_theta\":1e6,\"rope_local_base_freq\":2e4,\"hidden_activation\":\"gelu_pytorch_tanh\"}",
                  &c, &err),
        0);
    cr_assert(c.sliding[0] && c.sliding[4] && !c.sliding[5] && c.sliding[6]);
    cr_assert(c.rope.theta == 1e6 && c.rope_local.theta == 2e4 && c.tied_head);
    cr_assert_float_eq(c.attention_scale, 1.0 / 16, 1e-12);
    cr_assert_eq(
        from_json(
            "{\"architectures\":[\"Gemma3ForCausalLM\"]," SHAPE ",\"sliding_window\":64,\"query_pre_attn_scalar\":256,"
            "\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"linear\",\"factor\":8.0,\"rope_theta\":1e6},"
            "\"sliding_attention\":{\"rope_type\":\"default\",\"rope_theta\":30000}},"
            "\"layer_types\":[\"full_attention\",\"sliding_attention\",\"full_attention\",\"full_attention\","
            "\"full_attention\",\"full_attention\",\"full_attention\"]}",
            &c, &err),
        0, "%s", err.message);
    cr_assert(!c.sliding[0] && c.sliding[1] && !c.sliding[2]);
    cr_assert(c.rope.scaling == ROPE_SCALING_LINEAR && c.rope.factor == 8 && c.rope.theta == 1e6);
    cr_assert(c.rope_local.scaling == ROPE_SCALING_NONE && c.rope_local.theta == 30000);
}

Test(model_config, what_is_not_supported_is_refused_by_name) {
    refused("{\"architectures\":[\"PhiForCausalLM\"]}", ERROR_UNSUPPORTED, "PhiForCausalLM");
    refused("{\"architectures\":[\"MixtralForCausalLM\"]}", ERROR_UNSUPPORTED, "MixtralForCausalLM");
    refused("{" LLAMA ",\"num_local_experts\":8}", ERROR_UNSUPPORTED, "mixture of experts");
    refused("{" LLAMA ",\"attention_bias\":true}", ERROR_UNSUPPORTED, "attention_bias");
    refused("{" LLAMA ",\"mlp_bias\":true}", ERROR_UNSUPPORTED, "mlp_bias");
    refused("{" LLAMA ",\"partial_rotary_factor\":0.5}", ERROR_UNSUPPORTED, "partial_rotary_factor");
    refused("{" LLAMA ",\"final_logit_softcapping\":30.0}", ERROR_UNSUPPORTED, "final_logit_softcapping");
    refused("{" LLAMA ",\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2.0}}", ERROR_UNSUPPORTED, "rope scaling");
    refused("{" LLAMA ",\"rope_scaling\":{\"rope_type\":\"longrope\",\"factor\":2.0}}", ERROR_UNSUPPORTED,
            "rope scaling");
    refused("{" LLAMA ",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":2.0,\"mscale\":1.0}}", ERROR_UNSUPPORTED,
            "mscale");
    refused("{\"architectures\":[\"Gemma3ForCausalLM\"]," SHAPE ",\"query_pre_attn_scalar\":256,\"sliding_window\":64,"
            "\"hidden_activation\":\"relu\"}",
            ERROR_UNSUPPORTED, "activation");
}

Test(model_config, numbers_out_of_range_are_refused) {
    static const char *const shapes[][2] = {
        {"\"hidden_size\":0", "hidden_size"},
        {"\"hidden_size\":-64", "hidden_size"},
        {"\"hidden_size\":1e300", "hidden_size"},
        {"\"hidden_size\":64.5", "hidden_size"},
        {"\"hidden_size\":\"64\"", "hidden_size"},
        {"\"num_hidden_layers\":100000", "num_hidden_layers"},
        {"\"num_attention_heads\":0", "num_attention_heads"},
        {"\"num_key_value_heads\":3", "key-value heads"},
        {"\"num_key_value_heads\":8", "key-value heads"},
        {"\"head_dim\":15", "head"},
        {"\"head_dim\":99999", "head_dim"},
        {"\"vocab_size\":99999999", "vocab_size"},
        {"\"rms_norm_eps\":0", "rms_norm_eps"},
        {"\"rms_norm_eps\":-1", "rms_norm_eps"},
        {"\"rope_theta\":0.5", "rope_theta"},
        {"\"max_position_embeddings\":0", "max_position_embeddings"},
        {"\"rope_scaling\":[]", "rope_scaling"},
        {"\"rope_scaling\":{\"rope_type\":\"linear\"}", "factor"},
        {"\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":0}", "factor"},
        {"\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,\"high_freq_factor\":1,"
         "\"original_max_position_embeddings\":8192}",
         "low_freq_factor"},
        {"\"architectures\":[]", "architectures"},
        {"\"architectures\":[7]", "architectures"},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        /* replace the member of LLAMA, or add it */
        struct model_config c;
        struct error err;
        char text[2048];
        cJSON *json, *change;
        snprintf(text, sizeof text, "{%s}", shapes[i][0]);
        cr_assert_not_null(change = cJSON_Parse(text), "%s", text);
        cr_assert_not_null(json = cJSON_Parse("{" LLAMA "}"));
        cJSON *item = cJSON_DetachItemFromArray(change, 0);
        char name[64];
        snprintf(name, sizeof name, "%s", item->string);
        cJSON_DeleteItemFromObjectCaseSensitive(json, name);
        cJSON_AddItemToObject(json, name, item);
        memset(&c, 0x5a, sizeof c);
        cr_assert_eq(model_config_from_json(json, &c, &err), -1, "accepted: %s", shapes[i][0]);
        cr_assert_eq(err.code, ERROR_MODEL, "%s: %s", shapes[i][0], err.message);
        cr_assert(strstr(err.message, shapes[i][1]), "\"%s\" does not mention %s", err.message, shapes[i][1]);
        cr_assert_eq(((unsigned char *)&c)[0], 0x5a, "the result is untouched on failure");
        cJSON_Delete(json);
        cJSON_Delete(change);
    }
}

Test(model_config, missing_numbers_are_named) {
    static const char *const required[] = {"hidden_size",       "num_hidden_layers", "num_attention_heads",
                                           "intermediate_size", "vocab_size",        "max_position_embeddings",
                                           "rms_norm_eps",      "architectures"};
    for (size_t i = 0; i < sizeof required / sizeof required[0]; i++) {
        struct model_config c;
        struct error err;
        cJSON *json = cJSON_Parse("{" LLAMA "}");
        cJSON_DeleteItemFromObjectCaseSensitive(json, required[i]);
        cr_assert_eq(model_config_from_json(json, &c, &err), -1, "%s is required", required[i]);
        cr_assert_eq(err.code, ERROR_MODEL);
        cr_assert(strstr(err.message, required[i]), "%s", err.message);
        cJSON_Delete(json);
    }
}

/* ---- rope: frequencies that transformers 5.24 computes for the same numbers, pairs 0 1 7 13 14 15 16 20 25 31 of 32
 * ---- */

Test(model_config, rope_frequencies_of_another_implementation) {
    static const size_t pairs[] = {0, 1, 7, 13, 14, 15, 16, 20, 25, 31};
    static const struct {
        struct rope_config rope;
        double mscale, inv_freq[10];
    } known[] = {
        {{.theta = 500000,
          .scaling = ROPE_SCALING_LLAMA3,
          .factor = 8,
          .low_freq_factor = 1,
          .high_freq_factor = 4,
          .original_context = 8192},
         1,
         {1.0, 0.663601279258728, 0.05666961893439293, 0.00483942124992609, 0.0032114461064338684,
          0.0013718936825171113, 0.0005248460220173001, 3.428102354519069e-05, 4.411534519022098e-06,
          3.76732259610435e-07}},
        {{.theta = 1e6,
          .scaling = ROPE_SCALING_YARN,
          .factor = 4,
          .original_context = 32768,
          .beta_fast = 32,
          .beta_slow = 1},
         1.138629436111989,
         {1.0, 0.6493816375732422, 0.04869675263762474, 0.0030431177001446486, 0.0017785303061828017,
          0.001026617712341249, 0.0005833333707414567, 4.4456985051510856e-05, 5.133812464919174e-06,
          3.8498163235090033e-07}},
        {{.theta = 1e4, .scaling = ROPE_SCALING_LINEAR, .factor = 2.5},
         1,
         {0.4000000059604645, 0.2999576926231384, 0.0533408597111702, 0.00948549434542656, 0.007113117724657059,
          0.005334085784852505, 0.003999999724328518, 0.0012649111449718475, 0.00029995766817592084,
          5.3340860176831484e-05}},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        float inv_freq[32], mscale;
        rope_frequencies(&known[i].rope, 64, NULL, inv_freq, &mscale);
        cr_assert_float_eq(mscale, known[i].mscale, 1e-6);
        for (size_t j = 0; j < 10; j++) {
            double want = known[i].inv_freq[j];
            cr_assert_lt(fabs((double)inv_freq[pairs[j]] - want), 1e-6 * want, "case %zu pair %zu: %g", i, pairs[j],
                         (double)inv_freq[pairs[j]]);
        }
    }
    float factors[32], plain[32], divided[32], mscale;
    for (size_t i = 0; i < 32; i++) {
        factors[i] = 1 + (float)i;
    }
    struct rope_config none = {.theta = 1e4};
    rope_frequencies(&none, 64, NULL, plain, &mscale);
    rope_frequencies(&none, 64, factors, divided, &mscale);
    for (size_t i = 0; i < 32; i++) {
        cr_assert_float_eq(divided[i] * factors[i], plain[i], 1e-6f * plain[i]);
    }
}

/* ---- GGUF metadata ---- */

struct key {
    const char *name;
    char type; /* u: u32, f: f32, s: string, b: bool, n: an array of two u32 */
    double number;
    const char *string;
};

static const struct key llama_keys[] = {
    {"general.architecture", 's', 0, "llama"},       {"llama.block_count", 'u', 3, NULL},
    {"llama.context_length", 'u', 2048, NULL},       {"llama.embedding_length", 'u', 64, NULL},
    {"llama.feed_forward_length", 'u', 96, NULL},    {"llama.attention.head_count", 'u', 4, NULL},
    {"llama.attention.head_count_kv", 'u', 2, NULL}, {"llama.attention.layer_norm_rms_epsilon", 'f', 1e-5, NULL},
    {"llama.rope.freq_base", 'f', 500000, NULL},
};
#define N_LLAMA_KEYS (sizeof llama_keys / sizeof llama_keys[0])

static void put_key(struct buf *b, const struct key *k) {
    switch (k->type) {
    case 'u':
        gguf_key_u32(b, k->name, (uint32_t)(int64_t)k->number);
        break;
    case 'f':
        gguf_key(b, k->name, 6);
        put_f32(b, (float)k->number);
        break;
    case 's':
        gguf_key_string(b, k->name, k->string);
        break;
    case 'b':
        gguf_key(b, k->name, 7);
        buf_putc(b, k->number != 0);
        break;
    default:
        gguf_key_array(b, k->name, 4, 2);
        put_u32(b, 2);
        put_u32(b, 3);
    }
}

/* A GGUF with the keys, `change` replacing or joining them, and an embedding of [300][64]. */
static int from_gguf(const struct key *keys, size_t n, const struct key *changes, size_t n_changes,
                     struct model_config *c, struct error *err) {
    struct buf body = BUF_INIT, file = BUF_INIT;
    size_t count = 0;
    for (size_t i = 0; i < n; i++) {
        bool changed = false;
        for (size_t j = 0; j < n_changes; j++) {
            changed |= strcmp(keys[i].name, changes[j].name) == 0;
        }
        if (!changed) {
            put_key(&body, &keys[i]);
            count++;
        }
    }
    for (size_t j = 0; j < n_changes; j++) {
        if (changes[j].type != '-') {
            put_key(&body, &changes[j]);
            count++;
        }
    }
    const uint64_t dims[] = {64, 300};
    gguf_head(&file, 3, 1, count);
    buf_append(&file, body.data, body.len);
    gguf_tensor(&file, "token_embd.weight", 2, dims, 0, 0);
    gguf_pad(&file, 32);
    put_zeros(&file, 64 * 300 * 4);
    char folder[] = "/tmp/inferd-test-XXXXXX", path[64];
    cr_assert_not_null(mkdtemp(folder));
    cr_assert(write_file(folder, "m.gguf", file.data, file.len));
    snprintf(path, sizeof path, "%s/m.gguf", folder);
    struct model_file *f;
    cr_assert_eq(model_file_open(path, &f, err), 0, "%s", err->message);
    *err = (struct error){0};
    int rc = model_config_from_gguf(f, c, err);
    model_file_close(f);
    unlink(path);
    rmdir(folder);
    buf_free(&body);
    buf_free(&file);
    return rc;
}

Test(model_config, llama_from_gguf) {
    struct model_config c;
    struct error err;
    cr_assert_eq(from_gguf(llama_keys, N_LLAMA_KEYS, NULL, 0, &c, &err), 0, "%s", err.message);
    cr_assert_str_eq(c.arch->name, "llama");
    cr_assert(c.n_layers == 3 && c.n_embd == 64 && c.n_heads == 4 && c.n_kv_heads == 2 && c.n_ff == 96 &&
              c.vocab_size == 300);
    cr_assert(c.context_length == 2048 && c.head_dim == 16 && c.n_rot == 16);
    cr_assert_eq(c.rope_style, ROPE_INTERLEAVED);
    cr_assert(c.tied_head, "there is no output.weight");
    cr_assert_float_eq(c.norm_eps, 1e-5, 1e-12);
    cr_assert_eq(c.rope.theta, 500000);

    const struct key yarn[] = {{"llama.rope.scaling.type", 's', 0, "yarn"},
                               {"llama.rope.scaling.factor", 'f', 4, NULL},
                               {"llama.rope.scaling.original_context_length", 'u', 512, NULL}};
    cr_assert_eq(from_gguf(llama_keys, N_LLAMA_KEYS, yarn, 3, &c, &err), 0, "%s", err.message);
    cr_assert(c.rope.scaling == ROPE_SCALING_YARN && c.rope.factor == 4 && c.rope.original_context == 512);
    cr_assert(c.rope.beta_fast == 32 && c.rope.beta_slow == 1);
    const struct key window = {"llama.attention.sliding_window", 'u', 128, NULL};
    cr_assert_eq(from_gguf(llama_keys, N_LLAMA_KEYS, &window, 1, &c, &err), 0);
    cr_assert(c.window == 128 && c.sliding[0] && c.sliding[2]);
}

Test(model_config, gemma3_from_gguf) {
    const struct key keys[] = {
        {"general.architecture", 's', 0, "gemma3"},
        {"gemma3.block_count", 'u', 7, NULL},
        {"gemma3.context_length", 'u', 2048, NULL},
        {"gemma3.embedding_length", 'u', 64, NULL},
        {"gemma3.feed_forward_length", 'u', 96, NULL},
        {"gemma3.attention.head_count", 'u', 4, NULL},
        {"gemma3.attention.head_count_kv", 'u', 1, NULL},
        {"gemma3.attention.key_length", 'u', 256, NULL},
        {"gemma3.attention.value_length", 'u', 256, NULL},
        {"gemma3.attention.sliding_window", 'u', 512, NULL},
        {"gemma3.attention.layer_norm_rms_epsilon", 'f', 1e-6, NULL},
    };
    struct model_config c;
    struct error err;
    cr_assert_eq(from_gguf(keys, 11, NULL, 0, &c, &err), 0, "%s", err.message);
    cr_assert(c.head_dim == 256 && c.n_rot == 256 && c.rope_style == ROPE_HALVES);
    cr_assert_float_eq(c.attention_scale, 1.0 / 16, 1e-12);
    cr_assert(c.window == 512 && c.sliding[4] && !c.sliding[5] && c.sliding[6]);
    cr_assert(c.rope.theta == 1e6 && c.rope_local.theta == 1e4);
}

Test(model_config, gguf_numbers_and_kinds_that_are_refused) {
    static const struct {
        struct key change;
        enum error_code code;
        const char *says;
    } cases[] = {
        {{"general.architecture", 's', 0, "mamba"}, ERROR_UNSUPPORTED, "mamba"},
        {{"general.architecture", 's', 0, "llama4"}, ERROR_UNSUPPORTED, "llama4"},
        {{"general.architecture", 's', 0, "a\033[31mb"}, ERROR_UNSUPPORTED, "a?[31mb"},
        {{"general.architecture", '-', 0, NULL}, ERROR_MODEL, "general.architecture"},
        {{"llama.block_count", 'u', 0, NULL}, ERROR_MODEL, "llama.block_count"},
        {{"llama.block_count", 'u', 4294967295.0, NULL}, ERROR_MODEL, "llama.block_count"},
        {{"llama.block_count", '-', 0, NULL}, ERROR_MODEL, "llama.block_count"},
        {{"llama.block_count", 's', 0, "3"}, ERROR_UNSUPPORTED, "llama.block_count"},
        {{"llama.attention.head_count", 'n', 0, NULL}, ERROR_UNSUPPORTED, "llama.attention.head_count"},
        {{"llama.attention.head_count", 'u', 5, NULL}, ERROR_MODEL, "heads"},
        {{"llama.attention.head_count_kv", 'u', 3, NULL}, ERROR_MODEL, "key-value heads"},
        {{"llama.attention.value_length", 'u', 8, NULL}, ERROR_UNSUPPORTED, "values"},
        {{"llama.attention.layer_norm_rms_epsilon", 'f', NAN, NULL}, ERROR_MODEL, "epsilon"},
        {{"llama.rope.freq_base", 'f', -1, NULL}, ERROR_MODEL, "freq_base"},
        {{"llama.rope.dimension_count", 'u', 17, NULL}, ERROR_MODEL, "rotated"},
        {{"llama.rope.dimension_count", 'u', 18, NULL}, ERROR_MODEL, "rotated"},
        {{"llama.rope.scaling.type", 's', 0, "longrope"}, ERROR_UNSUPPORTED, "rope scaling"},
        {{"llama.rope.scaling.type", 's', 0, "linear"}, ERROR_MODEL, "scaling.factor"},
        {{"llama.expert_count", 'u', 8, NULL}, ERROR_UNSUPPORTED, "mixture of experts"},
        {{"llama.final_logit_softcapping", 'f', 30, NULL}, ERROR_UNSUPPORTED, "softcapping"},
        {{"llama.attention.causal", 'b', 0, NULL}, ERROR_UNSUPPORTED, "causal"},
        {{"llama.attention.sliding_window_pattern", 'u', 6, NULL}, ERROR_UNSUPPORTED, "sliding_window_pattern"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct model_config c;
        struct error err;
        cr_assert_eq(from_gguf(llama_keys, N_LLAMA_KEYS, &cases[i].change, 1, &c, &err), -1, "accepted: case %zu", i);
        cr_assert_eq(err.code, cases[i].code, "case %zu: %s", i, err.message);
        cr_assert(strstr(err.message, cases[i].says), "case %zu: \"%s\" does not mention \"%s\"", i, err.message,
                  cases[i].says);
    }
}
