#include "model/config_fields.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* A reader of "ARCH.key". */
struct gguf {
    const struct model_file *file;
    const char *arch;
    char key[128]; /* the full name of the last key asked for */
};

static const char *full_key(struct gguf *g, const char *key) {
    snprintf(g->key, sizeof g->key, "%s.%s", g->arch, key);
    return g->key;
}

/* An absent key leaves *out as it is. */
static int get_int(struct gguf *g, const char *key, int64_t min, int64_t max, bool required, int64_t *out,
                   struct error *err) {
    if (!model_file_has(g->file, full_key(g, key))) {
        return required ? error_set(err, ERROR_MODEL, "the metadata has no %s", g->key) : 0;
    }
    int64_t value;
    if (!model_file_get_int(g->file, g->key, &value)) {
        return error_set(err, ERROR_UNSUPPORTED, "%s is not one whole number", g->key);
    }
    if (value < min || value > max) {
        return error_set(err, ERROR_MODEL, "%s is %lld, outside %lld to %lld", g->key, (long long)value, (long long)min,
                         (long long)max);
    }
    *out = value;
    return 0;
}

static int get_size(struct gguf *g, const char *key, int64_t min, int64_t max, bool required, size_t *out,
                    struct error *err) {
    int64_t value = (int64_t)*out;
    if (get_int(g, key, min, max, required, &value, err) < 0) {
        return -1;
    }
    *out = (size_t)value;
    return 0;
}

static int get_real(struct gguf *g, const char *key, double min, double max, bool required, double *out,
                    struct error *err) {
    if (!model_file_has(g->file, full_key(g, key))) {
        return required ? error_set(err, ERROR_MODEL, "the metadata has no %s", g->key) : 0;
    }
    double value;
    if (!model_file_get_double(g->file, g->key, &value)) {
        int64_t whole;
        if (!model_file_get_int(g->file, g->key, &whole)) {
            return error_set(err, ERROR_UNSUPPORTED, "%s is not one number", g->key);
        }
        value = (double)whole;
    }
    if (!(value >= min && value <= max)) {
        return error_set(err, ERROR_MODEL, "%s is %g, outside %g to %g", g->key, value, min, max);
    }
    *out = value;
    return 0;
}

/* Keys that change the mathematics in a way that is not implemented: refused unless they have their neutral value. */
static int refuse_unsupported(struct gguf *g, struct error *err) {
    static const struct {
        const char *key;
        double neutral;
    } keys[] = {
        {"expert_count", 0},
        {"attention.clamp_kqv", 0},
        {"attention.max_alibi_bias", 0},
        {"attn_logit_softcapping", 0},
        {"final_logit_softcapping", 0},
        {"logit_scale", 1},
        {"residual_scale", 1},
        {"embedding_scale", 1},
        {"attention.temperature_scale", 0},
        {"rope.scaling.yarn_log_multiplier", 0},
    };
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        double value = keys[i].neutral;
        if (get_real(g, keys[i].key, -1e300, 1e300, false, &value, err) < 0) {
            return -1;
        }
        if (value != keys[i].neutral) {
            return error_set(err, ERROR_UNSUPPORTED, "%s = %g is not supported%s", g->key, value,
                             i == 0 ? " (mixture of experts)" : "");
        }
    }
    static const char *const flags[] = {"attention.causal", "use_parallel_residual"};
    static const bool neutral[] = {true, false};
    for (size_t i = 0; i < 2; i++) {
        bool flag;
        if (model_file_get_bool(g->file, full_key(g, flags[i]), &flag) && flag != neutral[i]) {
            return error_set(err, ERROR_UNSUPPORTED, "%s = %s is not supported", g->key, flag ? "true" : "false");
        }
    }
    return 0;
}

static bool is_string(struct meta_string s, const char *text) {
    return s.len == strlen(text) && memcmp(s.data, text, s.len) == 0;
}

static int read_rope(struct gguf *g, struct model_config *c, struct error *err) {
    struct rope_config *r = &c->rope;
    struct meta_string type = {"none", 4};
    double scale_linear = 1; /* the older key: a factor alone */
    if (get_real(g, "rope.scale_linear", 1e-4, 1e4, false, &scale_linear, err) < 0) {
        return -1;
    }
    if (scale_linear != 1) {
        *r = (struct rope_config){.theta = r->theta, .scaling = ROPE_SCALING_LINEAR, .factor = scale_linear};
    }
    if (model_file_has(g->file, full_key(g, "rope.scaling.type")) && !model_file_get_string(g->file, g->key, &type)) {
        return error_set(err, ERROR_MODEL, "%s is not a string", g->key);
    }
    if (is_string(type, "none")) {
        return 0;
    }
    if (is_string(type, "linear")) {
        r->scaling = ROPE_SCALING_LINEAR;
    } else if (is_string(type, "yarn")) {
        r->scaling = ROPE_SCALING_YARN;
    } else {
        return error_set(err, ERROR_UNSUPPORTED, "the rope scaling type is not supported (none, linear and yarn are)");
    }
    r->original_context = (double)c->context_length;
    r->beta_fast = 32;
    r->beta_slow = 1;
    double attention_factor = 1, extrapolation = 1;
    if (get_real(g, "rope.scaling.factor", 1e-4, 1e4, true, &r->factor, err) < 0 ||
        get_real(g, "rope.scaling.original_context_length", 1, 1e9, false, &r->original_context, err) < 0 ||
        get_real(g, "rope.scaling.attn_factor", 1e-3, 100, false, &attention_factor, err) < 0 ||
        get_real(g, "rope.scaling.yarn_ext_factor", -1e3, 1e3, false, &extrapolation, err) < 0 ||
        get_real(g, "rope.scaling.yarn_attn_factor", 1e-3, 100, false, &attention_factor, err) < 0 ||
        get_real(g, "rope.scaling.yarn_beta_fast", 1e-3, 1e6, false, &r->beta_fast, err) < 0 ||
        get_real(g, "rope.scaling.yarn_beta_slow", 1e-3, 1e6, false, &r->beta_slow, err) < 0) {
        return -1;
    }
    if (r->scaling == ROPE_SCALING_YARN && extrapolation != 1 && extrapolation != -1) { /* -1: "as the type says" */
        return error_set(err, ERROR_UNSUPPORTED, "a yarn_ext_factor other than 1 is not supported");
    }
    if (r->scaling == ROPE_SCALING_LINEAR && attention_factor != 1) {
        return error_set(err, ERROR_UNSUPPORTED, "rope.scaling.attn_factor is not supported with linear scaling");
    }
    if (r->scaling == ROPE_SCALING_YARN && attention_factor != 1) {
        /* GGUF's factor multiplies the automatic one, ours replaces it. */
        r->attention_factor = attention_factor * (0.1 * log(r->factor > 1 ? r->factor : 1) + 1);
    }
    return 0;
}

static int read_windows(struct gguf *g, struct model_config *c, struct error *err) {
    if (c->arch->window == WINDOW_PATTERN) {
        int64_t pattern = 6;
        if (get_int(g, "attention.sliding_window_pattern", 1, MODEL_MAX_LAYERS, false, &pattern, err) < 0 ||
            get_real(g, "rope.freq_base_swa", 1, 1e12, false, &c->rope_local.theta, err) < 0) {
            return -1;
        }
        model_config_pattern(c, (size_t)pattern);
        return 0;
    }
    if (model_file_has(g->file, full_key(g, "attention.sliding_window_pattern"))) {
        return error_set(err, ERROR_UNSUPPORTED, "%s is not supported for this architecture", g->key);
    }
    /* Files of the other architectures name a window only if every layer has it (Mistral). */
    for (size_t l = 0; l < c->n_layers; l++) {
        c->sliding[l] = c->window > 0;
    }
    return 0;
}

static int read_vocabulary(const struct model_file *file, struct model_config *c, struct error *err) {
    const struct tensor *embed = model_file_find(file, "token_embd.weight");
    if (!embed || embed->n_dims != 2) {
        return error_set(err, ERROR_MODEL, "there is no matrix token_embd.weight");
    }
    c->vocab_size = embed->shape[0];
    c->tied_head = model_file_find(file, "output.weight") == NULL;
    return 0;
}

int model_config_from_gguf(const struct model_file *file, struct model_config *out, struct error *err) {
    struct meta_string name;
    if (!model_file_get_string(file, "general.architecture", &name)) {
        return error_set(err, ERROR_MODEL, "the metadata has no general.architecture");
    }
    const struct architecture *arch = architecture_by_gguf(name.data, name.len);
    if (!arch) {
        char shown[33] = "", known[128];
        for (size_t i = 0; i < name.len && i < sizeof shown - 1; i++) {
            char ch = name.data[i];
            shown[i] = ch > ' ' && ch < 127 ? ch : '?';
        }
        architecture_names(known, sizeof known);
        return error_set(err, ERROR_UNSUPPORTED, "the architecture \"%s\" is not supported (supported: %s)", shown,
                         known);
    }
    struct model_config c;
    model_config_defaults(&c, arch, true);
    struct gguf g = {.file = file, .arch = arch->gguf_name};
    for (size_t i = 0; i < model_n_int_fields; i++) {
        const struct model_int_field *f = &model_int_fields[i];
        if (get_size(&g, f->gguf, f->min, f->max, f->required, (size_t *)(void *)((char *)&c + f->offset), err) < 0) {
            return -1;
        }
    }
    for (size_t i = 0; i < model_n_real_fields; i++) {
        const struct model_real_field *f = &model_real_fields[i];
        if (get_real(&g, f->gguf, f->min, f->max, f->required, (double *)(void *)((char *)&c + f->offset), err) < 0) {
            return -1;
        }
    }
    size_t value_length = 0;
    if (get_size(&g, "rope.dimension_count", 2, 1024, false, &c.n_rot, err) < 0 ||
        get_size(&g, "attention.value_length", 1, 1024, false, &value_length, err) < 0 ||
        get_real(&g, "attention.scale", 1e-6, 1e3, false, &c.attention_scale, err) < 0) {
        return -1;
    }
    if (refuse_unsupported(&g, err) < 0 || read_vocabulary(file, &c, err) < 0 || read_rope(&g, &c, err) < 0 ||
        read_windows(&g, &c, err) < 0) {
        return -1;
    }
    if (arch->window == WINDOW_PATTERN && c.n_layers == 62 && c.attention_scale == 0) {
        /* Gemma 3 27B scales by its n_embd / n_heads, not by head_dim; the file does not say so. */
        c.attention_scale = 1 / sqrt((double)c.n_embd / (double)c.n_heads);
    }
    if (model_config_check(&c, err) < 0) {
        return -1;
    }
    if (value_length != 0 && value_length != c.head_dim) {
        return error_set(err, ERROR_UNSUPPORTED,
                         "keys of %zu and values of %zu features are not supported: they must be equal", c.head_dim,
                         value_length);
    }
    *out = c;
    return 0;
}
