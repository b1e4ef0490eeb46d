#include "quantize_config.h"

#include "model/source.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- numbers ---- */

/* Llama 3.1 and its successors: the factors that a converter computes from these; only `factor` differs among them. */
static int recover_llama3(const float *factors, struct model_config *c, struct error *err) {
    size_t half = c->n_rot / 2;
    float plain[512], scaled[512], mscale, most = 1;
    for (size_t i = 0; i < half; i++) {
        most = factors[i] > most ? factors[i] : most;
    }
    struct rope_config r = {.theta = c->rope.theta,
                            .scaling = ROPE_SCALING_LLAMA3,
                            .factor = (double)most,
                            .low_freq_factor = 1,
                            .high_freq_factor = 4,
                            .original_context = 8192};
    rope_frequencies(&c->rope, c->n_rot, factors, plain, &mscale);
    rope_frequencies(&r, c->n_rot, NULL, scaled, &mscale);
    for (size_t i = 0; i < half; i++) {
        if (!(fabsf(plain[i] - scaled[i]) <= 1e-4f * scaled[i])) {
            return error_set(err, ERROR_UNSUPPORTED,
                             "the rope factors of this model (rope_freqs.weight) are not those of Llama 3.1's formula, and "
                             "config.json has no other way to say them");
        }
    }
    c->rope = r;
    return 0;
}

static int take_rope_factors(const struct model_file *file, struct model_config *c, struct error *err) {
    const struct tensor *t = c->from_gguf ? model_file_find(file, "rope_freqs.weight") : NULL;
    float factors[512];
    if (!t) {
        return 0;
    }
    if (t->n_dims != 1 || t->shape[0] != c->n_rot / 2 || t->shape[0] > 512) {
        return error_set(err, ERROR_MODEL, "the tensor rope_freqs.weight has not the %zu elements of half the rotated features",
                         c->n_rot / 2);
    }
    if (c->rope.scaling != ROPE_SCALING_NONE) {
        return error_set(err, ERROR_UNSUPPORTED, "rope_freqs.weight together with another rope scaling is not supported");
    }
    if (model_source_read_plain_vector(t, factors, err) < 0) {
        return -1;
    }
    for (size_t i = 0; i < t->shape[0]; i++) {
        if (!(factors[i] >= 1e-3f && factors[i] <= 1e6f)) {
            return error_set(err, ERROR_MODEL, "the tensor rope_freqs.weight has an element out of range");
        }
    }
    return recover_llama3(factors, c, err);
}

int quantize_target_config(const struct model_config *source, const struct model_file *file, struct model_config *out,
                           struct error *err) {
    struct model_config c = *source;
    if (c.from_gguf && c.n_rot != c.head_dim) {
        return error_set(err, ERROR_UNSUPPORTED, "a rotation of %zu of %zu features of a head cannot be written", c.n_rot,
                         c.head_dim);
    }
    if (take_rope_factors(file, &c, err) < 0) {
        return -1;
    }
    c.rope_style = ROPE_HALVES;
    if (c.arch->window == WINDOW_NONE && c.window > 0) { /* a Mistral in a GGUF, where it is called llama */
        c.arch = architecture_by_hf("MistralForCausalLM");
    }
    *out = c;
    return 0;
}

/* ---- JSON ---- */

static bool add_rope_scaling(cJSON *o, const struct rope_config *r) {
    if (r->scaling == ROPE_SCALING_NONE) {
        return true;
    }
    static const char *const types[] = {
        [ROPE_SCALING_LINEAR] = "linear", [ROPE_SCALING_LLAMA3] = "llama3", [ROPE_SCALING_YARN] = "yarn"};
    cJSON *s = cJSON_AddObjectToObject(o, "rope_scaling");
    bool ok = cJSON_AddStringToObject(s, "rope_type", types[r->scaling]) && cJSON_AddNumberToObject(s, "factor", r->factor);
    if (r->scaling != ROPE_SCALING_LINEAR) {
        ok = ok && cJSON_AddNumberToObject(s, "original_max_position_embeddings", r->original_context);
    }
    if (r->scaling == ROPE_SCALING_LLAMA3) {
        ok = ok && cJSON_AddNumberToObject(s, "low_freq_factor", r->low_freq_factor) &&
             cJSON_AddNumberToObject(s, "high_freq_factor", r->high_freq_factor);
    }
    if (r->scaling == ROPE_SCALING_YARN) {
        ok = ok && cJSON_AddNumberToObject(s, "beta_fast", r->beta_fast) &&
             cJSON_AddNumberToObject(s, "beta_slow", r->beta_slow) &&
             (r->attention_factor == 0 || cJSON_AddNumberToObject(s, "attention_factor", r->attention_factor));
    }
    return ok;
}

static bool add_windows(cJSON *o, const struct model_config *c) {
    if (c->arch->window == WINDOW_NONE) {
        return true;
    }
    if (c->arch->window == WINDOW_UPPER && c->window == 0) {
        return cJSON_AddBoolToObject(o, "use_sliding_window", false);
    }
    if (c->arch->window == WINDOW_UPPER && (!cJSON_AddBoolToObject(o, "use_sliding_window", true) ||
                                            !cJSON_AddNumberToObject(o, "max_window_layers", 0))) {
        return false;
    }
    if (!(c->window > 0 ? cJSON_AddNumberToObject(o, "sliding_window", (double)c->window)
                        : cJSON_AddNullToObject(o, "sliding_window"))) {
        return false;
    }
    if (c->arch->window == WINDOW_ALL) {
        return true;
    }
    cJSON *types = cJSON_AddArrayToObject(o, "layer_types");
    for (size_t l = 0; types && l < c->n_layers; l++) {
        cJSON_AddItemToArray(types, cJSON_CreateString(c->sliding[l] ? "sliding_attention" : "full_attention"));
    }
    return types && (c->arch->window != WINDOW_PATTERN ||
                     (cJSON_AddNumberToObject(o, "rope_local_base_freq", c->rope_local.theta) &&
                      cJSON_AddNumberToObject(o, "query_pre_attn_scalar", 1 / (c->attention_scale * c->attention_scale))));
}

static const char *dtype_word(enum dtype stored) {
    return stored == DTYPE_F32 ? "float32" : stored == DTYPE_F16 ? "float16" : "bfloat16";
}

static bool add_ids(cJSON *o, const struct text *t) {
    size_t n;
    const int32_t *eos = text_eos_ids(t, &n);
    bool ok = text_bos_id(t) < 0 || cJSON_AddNumberToObject(o, "bos_token_id", text_bos_id(t));
    if (n == 1) {
        return ok && cJSON_AddNumberToObject(o, "eos_token_id", eos[0]);
    }
    cJSON *list = n > 0 ? cJSON_CreateIntArray(eos, (int)n) : NULL;
    return ok && (n == 0 || (list && cJSON_AddItemToObject(o, "eos_token_id", list)));
}

/* The shortest decimal that a GGUF's float is: 1e-05, not 9.99999974737875e-06. */
static double shortest(double x) {
    for (int digits = 1; digits < 9; digits++) {
        char text[32];
        snprintf(text, sizeof text, "%.*g", digits, x);
        double y = strtod(text, NULL);
        if ((float)y == (float)x) {
            return y;
        }
    }
    return x;
}

static bool add_numbers(cJSON *o, const struct model_config *c) {
    const struct {
        const char *key;
        size_t value;
    } numbers[] = {
        {"hidden_size", c->n_embd},
        {"intermediate_size", c->n_ff},
        {"num_hidden_layers", c->n_layers},
        {"num_attention_heads", c->n_heads},
        {"num_key_value_heads", c->n_kv_heads},
        {"head_dim", c->head_dim},
        {"vocab_size", c->vocab_size},
        {"max_position_embeddings", c->context_length},
    };
    bool ok = true;
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        ok = ok && cJSON_AddNumberToObject(o, numbers[i].key, (double)numbers[i].value);
    }
    bool silu = c->arch->activation == ACTIVATION_SILU;
    return ok && cJSON_AddNumberToObject(o, "rms_norm_eps", shortest(c->norm_eps)) &&
           cJSON_AddNumberToObject(o, "rope_theta", c->rope.theta) &&
           cJSON_AddStringToObject(o, silu ? "hidden_act" : "hidden_activation", silu ? "silu" : "gelu_pytorch_tanh") &&
           cJSON_AddBoolToObject(o, "tie_word_embeddings", c->tied_head) && cJSON_AddBoolToObject(o, "attention_bias", false);
}

/* From the numbers alone; NULL when there is no memory. */
static cJSON *make(const struct model_config *c, enum dtype stored, const struct text *text) {
    cJSON *o = cJSON_CreateObject(), *list = cJSON_AddArrayToObject(o, "architectures");
    bool gemma = c->arch->window == WINDOW_PATTERN;
    bool ok = list && cJSON_AddItemToArray(list, cJSON_CreateString(c->arch->hf_class)) &&
              cJSON_AddStringToObject(o, "model_type", gemma ? "gemma3_text" : c->arch->name) && add_numbers(o, c) &&
              add_rope_scaling(o, &c->rope) && add_windows(o, c) && add_ids(o, text) &&
              cJSON_AddStringToObject(o, "torch_dtype", dtype_word(stored));
    if (!ok) {
        cJSON_Delete(o);
        return NULL;
    }
    return o;
}

/* What compressed-tensors calls W8A8: weights with a scale an output channel, activations quantised as they come, a scale a token. */
static const char scheme[] =
    "{\"quant_method\":\"compressed-tensors\",\"format\":\"int-quantized\",\"quantization_status\":\"compressed\","
    "\"global_compression_ratio\":null,\"kv_cache_scheme\":null,\"ignore\":[\"lm_head\"],"
    "\"config_groups\":{\"group_0\":{\"targets\":[\"Linear\"],"
    "\"weights\":{\"num_bits\":8,\"type\":\"int\",\"symmetric\":true,\"strategy\":\"channel\",\"group_size\":null,"
    "\"block_structure\":null,\"dynamic\":false,\"actorder\":null,\"observer\":\"minmax\",\"observer_kwargs\":{}},"
    "\"input_activations\":{\"num_bits\":8,\"type\":\"int\",\"symmetric\":true,\"strategy\":\"token\",\"group_size\":null,"
    "\"block_structure\":null,\"dynamic\":true,\"actorder\":null,\"observer\":null,\"observer_kwargs\":{}},"
    "\"output_activations\":null}}}";

int quantize_config_json(const struct model_config *target, const struct model_file *file, enum dtype stored,
                         const struct text *text, struct buf *out, struct error *err) {
    const cJSON *own = model_file_config(file);
    cJSON *o = own ? cJSON_Duplicate(own, true) : make(target, stored, text), *quantization = cJSON_Parse(scheme);
    if (!o || !quantization) {
        cJSON_Delete(o);
        cJSON_Delete(quantization);
        return error_memory(err);
    }
    cJSON_DeleteItemFromObjectCaseSensitive(o, "compression_config"); /* of a source that was quantised already */
    cJSON_DeleteItemFromObjectCaseSensitive(o, "quantization_config");
    cJSON_AddItemToObject(o, "quantization_config", quantization);
    char *text_of = cJSON_Print(o);
    cJSON_Delete(o);
    if (!text_of) {
        return error_memory(err);
    }
    buf_puts(out, text_of);
    buf_putc(out, '\n');
    free(text_of);
    return out->failed ? error_memory(err) : 0;
}
