#include "model/config_fields.h"

#include <inferd/json.h>

#include <cjson/cJSON.h>
#include <math.h>
#include <string.h>

/* The getters blame a client; here the file is to blame. */
static int blame_file(struct error *err) {
    err->code = ERROR_MODEL;
    err->param[0] = '\0';
    return -1;
}

static bool present(const cJSON *json, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, key);
    return item && !cJSON_IsNull(item);
}

static int get_size(const cJSON *json, const char *key, int64_t min, int64_t max, bool required, size_t *out,
                    struct error *err) {
    if (required && !present(json, key)) {
        return error_set(err, ERROR_MODEL, "there is no %s", key);
    }
    int64_t value = (int64_t)*out;
    if (json_get_int(json, key, min, max, &value, err) < 0) {
        return blame_file(err);
    }
    *out = (size_t)value;
    return 0;
}

static int get_real(const cJSON *json, const char *key, double min, double max, bool required, double *out,
                    struct error *err) {
    if (required && !present(json, key)) {
        return error_set(err, ERROR_MODEL, "there is no %s", key);
    }
    return json_get_double(json, key, min, max, out, err) < 0 ? blame_file(err) : 0;
}

static int get_flag(const cJSON *json, const char *key, bool *out, struct error *err) {
    return json_get_bool(json, key, out, err) < 0 ? blame_file(err) : 0;
}

static int find_architecture(const cJSON *json, const struct architecture **out, struct error *err) {
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(json, "architectures");
    const cJSON *first = cJSON_GetArrayItem(list, 0);
    if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) != 1 || !cJSON_IsString(first)) {
        return error_set(err, ERROR_MODEL, "\"architectures\" is not a list of one name");
    }
    const struct architecture *arch = architecture_by_hf(first->valuestring);
    if (!arch) {
        char shown[65] = "", known[128];
        for (size_t i = 0; first->valuestring[i] != '\0' && i < sizeof shown - 1; i++) {
            char c = first->valuestring[i];
            shown[i] = c > ' ' && c < 127 ? c : '?';
        }
        architecture_names(known, sizeof known);
        return error_set(err, ERROR_UNSUPPORTED, "the architecture \"%s\" is not supported (supported: %s)", shown,
                         known);
    }
    *out = arch;
    return 0;
}

/* Keys that change the mathematics in a way that is not implemented, with the one value that may stand there. */
static int refuse_unsupported(const cJSON *json, const struct architecture *arch, struct error *err) {
    static const char *const null_keys[] = {"attn_logit_softcapping", "final_logit_softcapping"};
    for (size_t i = 0; i < sizeof null_keys / sizeof null_keys[0]; i++) {
        if (present(json, null_keys[i])) {
            return error_set(err, ERROR_UNSUPPORTED, "%s is not supported", null_keys[i]);
        }
    }
    static const char *const experts[] = {"num_experts", "num_local_experts", "n_routed_experts"};
    for (size_t i = 0; i < sizeof experts / sizeof experts[0]; i++) {
        if (present(json, experts[i])) {
            return error_set(err, ERROR_UNSUPPORTED, "%s: mixture of experts is not supported", experts[i]);
        }
    }
    bool attention_bias = false, mlp_bias = false, bidirectional = false;
    if (get_flag(json, "attention_bias", &attention_bias, err) < 0 || get_flag(json, "mlp_bias", &mlp_bias, err) < 0 ||
        get_flag(json, "use_bidirectional_attention", &bidirectional, err) < 0) {
        return -1;
    }
    if (attention_bias || mlp_bias || bidirectional) {
        return error_set(err, ERROR_UNSUPPORTED, "%s is not supported",
                         attention_bias ? "attention_bias"
                         : mlp_bias     ? "mlp_bias"
                                        : "use_bidirectional_attention");
    }
    double partial = 1;
    if (get_real(json, "partial_rotary_factor", 0, 1, false, &partial, err) < 0) {
        return -1;
    }
    if (partial != 1) {
        return error_set(err, ERROR_UNSUPPORTED, "partial_rotary_factor is not supported");
    }
    const char *act = NULL;
    const char *key = present(json, "hidden_activation") ? "hidden_activation" : "hidden_act";
    const char *want = arch->activation == ACTIVATION_SILU ? "silu" : "gelu_pytorch_tanh";
    if (json_get_string(json, key, &act, err) < 0) {
        return blame_file(err);
    }
    if (act && strcmp(act, want) != 0) {
        return error_set(err, ERROR_UNSUPPORTED, "an activation other than %s is not supported for %s", want,
                         arch->name);
    }
    return 0;
}

/* One dictionary of rope_scaling or rope_parameters: {"rope_type": ..., "factor": ...}. */
static int read_rope_dict(const cJSON *json, size_t context, struct rope_config *r, struct error *err) {
    const char *type = "default";
    if (json_get_string(json, present(json, "rope_type") ? "rope_type" : "type", &type, err) < 0) {
        return blame_file(err);
    }
    if (get_real(json, "rope_theta", 1, 1e12, false, &r->theta, err) < 0) {
        return -1;
    }
    if (strcmp(type, "default") == 0) {
        return 0;
    }
    if (strcmp(type, "linear") == 0) {
        r->scaling = ROPE_SCALING_LINEAR;
    } else if (strcmp(type, "llama3") == 0) {
        r->scaling = ROPE_SCALING_LLAMA3;
    } else if (strcmp(type, "yarn") == 0) {
        r->scaling = ROPE_SCALING_YARN;
    } else {
        return error_set(err, ERROR_UNSUPPORTED,
                         "the rope scaling type is not supported (default, linear, llama3 and yarn are)");
    }
    bool truncate = true;
    double partial = 1, mscale = 0, mscale_all_dim = 0;
    r->original_context = (double)context;
    r->beta_fast = 32;
    r->beta_slow = 1;
    if (get_real(json, "factor", 1, 1e4, true, &r->factor, err) < 0 ||
        get_real(json, "original_max_position_embeddings", 1, 1e9, false, &r->original_context, err) < 0 ||
        get_real(json, "low_freq_factor", 1e-3, 1e6, r->scaling == ROPE_SCALING_LLAMA3, &r->low_freq_factor, err) < 0 ||
        get_real(json, "high_freq_factor", 1e-3, 1e6, r->scaling == ROPE_SCALING_LLAMA3, &r->high_freq_factor, err) <
            0 ||
        get_real(json, "beta_fast", 1e-3, 1e6, false, &r->beta_fast, err) < 0 ||
        get_real(json, "beta_slow", 1e-3, 1e6, false, &r->beta_slow, err) < 0 ||
        get_real(json, "attention_factor", 1e-3, 100, false, &r->attention_factor, err) < 0 ||
        get_real(json, "mscale", 0, 100, false, &mscale, err) < 0 ||
        get_real(json, "mscale_all_dim", 0, 100, false, &mscale_all_dim, err) < 0 ||
        get_real(json, "partial_rotary_factor", 0, 1, false, &partial, err) < 0 ||
        get_flag(json, "truncate", &truncate, err) < 0) {
        return -1;
    }
    if (mscale != 0 || mscale_all_dim != 0 || !truncate || partial != 1) {
        return error_set(err, ERROR_UNSUPPORTED, "rope scaling with %s is not supported",
                         !truncate      ? "truncate = false"
                         : partial != 1 ? "partial_rotary_factor"
                                        : "mscale");
    }
    return 0;
}

static int read_rope(const cJSON *json, struct model_config *c, struct error *err) {
    if (get_real(json, "rope_local_base_freq", 1, 1e12, false, &c->rope_local.theta, err) < 0) {
        return -1;
    }
    static const char *const keys[] = {"rope_scaling", "rope_parameters"}; /* older and newer name */
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        const cJSON *dict = cJSON_GetObjectItemCaseSensitive(json, keys[i]);
        if (!dict || cJSON_IsNull(dict)) {
            continue;
        }
        if (!cJSON_IsObject(dict)) {
            return error_set(err, ERROR_MODEL, "%s is not an object", keys[i]);
        }
        /* Gemma 3 in the newer form has a dictionary for each kind of layer. */
        const cJSON *full = cJSON_GetObjectItemCaseSensitive(dict, "full_attention");
        const cJSON *local = cJSON_GetObjectItemCaseSensitive(dict, "sliding_attention");
        if (!full && !local) {
            full = dict;
        }
        if ((full && read_rope_dict(full, c->context_length, &c->rope, err) < 0) ||
            (local && read_rope_dict(local, c->context_length, &c->rope_local, err) < 0)) {
            return error_prefix(err, "%s", keys[i]);
        }
    }
    return 0;
}

static int read_layer_types(const cJSON *types, struct model_config *c, struct error *err) {
    if (!cJSON_IsArray(types) || cJSON_GetArraySize(types) != (int)c->n_layers) {
        return error_set(err, ERROR_MODEL, "layer_types is not a list of num_hidden_layers names");
    }
    size_t l = 0;
    const cJSON *type;
    cJSON_ArrayForEach(type, types) {
        if (!cJSON_IsString(type) ||
            (strcmp(type->valuestring, "sliding_attention") != 0 && strcmp(type->valuestring, "full_attention") != 0)) {
            return error_set(err, ERROR_UNSUPPORTED,
                             "layer_types has a kind that is neither full_attention nor sliding_attention");
        }
        c->sliding[l++] = strcmp(type->valuestring, "sliding_attention") == 0;
    }
    return 0;
}

static int read_windows(const cJSON *json, struct model_config *c, struct error *err) {
    bool use = false;
    size_t first = c->n_layers, pattern = 6;
    const cJSON *types = cJSON_GetObjectItemCaseSensitive(json, "layer_types");
    if (get_flag(json, "use_sliding_window", &use, err) < 0 ||
        get_size(json, "max_window_layers", 0, 1 << 20, false, &first, err) < 0 ||
        get_size(json, present(json, "sliding_window_pattern") ? "sliding_window_pattern" : "_sliding_window_pattern",
                 1, MODEL_MAX_LAYERS, false, &pattern, err) < 0) {
        return -1;
    }
    switch (c->arch->window) {
    case WINDOW_NONE:
        return 0;
    case WINDOW_ALL:
        first = c->window > 0 ? 0 : c->n_layers;
        break;
    case WINDOW_UPPER:
        c->window = use ? c->window : 0;
        first = c->window > 0 ? first : c->n_layers;
        break;
    case WINDOW_PATTERN:
        model_config_pattern(c, pattern);
        return types && !cJSON_IsNull(types) ? read_layer_types(types, c, err) : 0;
    }
    for (size_t l = first; l < c->n_layers; l++) {
        c->sliding[l] = true;
    }
    return c->arch->window == WINDOW_UPPER && types && !cJSON_IsNull(types) ? read_layer_types(types, c, err) : 0;
}

int model_config_from_json(const struct cJSON *json, struct model_config *out, struct error *err) {
    const struct architecture *arch = NULL;
    if (!cJSON_IsObject(json)) {
        return error_set(err, ERROR_MODEL, "it is not a JSON object");
    }
    if (find_architecture(json, &arch, err) < 0 || refuse_unsupported(json, arch, err) < 0) {
        return -1;
    }
    struct model_config c;
    model_config_defaults(&c, arch, false);
    for (size_t i = 0; i < model_n_int_fields; i++) {
        const struct model_int_field *f = &model_int_fields[i];
        if (get_size(json, f->hf, f->min, f->max, f->required, (size_t *)(void *)((char *)&c + f->offset), err) < 0) {
            return -1;
        }
    }
    for (size_t i = 0; i < model_n_real_fields; i++) {
        const struct model_real_field *f = &model_real_fields[i];
        if (get_real(json, f->hf, f->min, f->max, f->required, (double *)(void *)((char *)&c + f->offset), err) < 0) {
            return -1;
        }
    }
    c.tied_head = arch->tied_by_default;
    double pre_attention = 0;
    if (get_size(json, "vocab_size", 1, 1 << 22, true, &c.vocab_size, err) < 0 ||
        get_flag(json, "tie_word_embeddings", &c.tied_head, err) < 0 || read_rope(json, &c, err) < 0 ||
        read_windows(json, &c, err) < 0) {
        return -1;
    }
    if (arch->window == WINDOW_PATTERN) { /* Gemma 3 */
        if (get_real(json, "query_pre_attn_scalar", 1e-3, 1e6, true, &pre_attention, err) < 0) {
            return -1;
        }
        c.attention_scale = 1 / sqrt(pre_attention);
    }
    if (model_config_check(&c, err) < 0) {
        return -1;
    }
    *out = c;
    return 0;
}
