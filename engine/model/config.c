#include "model/config.h"

#include "model/config_fields.h"

#include <math.h>
#include <string.h>

const struct model_int_field model_int_fields[] = {
    {"block_count", "num_hidden_layers", offsetof(struct model_config, n_layers), 1, MODEL_MAX_LAYERS, true},
    {"embedding_length", "hidden_size", offsetof(struct model_config, n_embd), 1, 1 << 17, true},
    {"attention.head_count", "num_attention_heads", offsetof(struct model_config, n_heads), 1, 1024, true},
    {"attention.head_count_kv", "num_key_value_heads", offsetof(struct model_config, n_kv_heads), 1, 1024, false},
    {"attention.key_length", "head_dim", offsetof(struct model_config, head_dim), 2, 1024, false},
    {"feed_forward_length", "intermediate_size", offsetof(struct model_config, n_ff), 1, 1 << 20, true},
    {"context_length", "max_position_embeddings", offsetof(struct model_config, context_length), 1, 1 << 27, true},
    {"attention.sliding_window", "sliding_window", offsetof(struct model_config, window), 0, 1 << 27, false},
};
const size_t model_n_int_fields = sizeof model_int_fields / sizeof model_int_fields[0];

const struct model_real_field model_real_fields[] = {
    {"attention.layer_norm_rms_epsilon", "rms_norm_eps", offsetof(struct model_config, norm_eps), 1e-12, 0.1, true},
    {"rope.freq_base", "rope_theta", offsetof(struct model_config, rope.theta), 1, 1e12, false},
};
const size_t model_n_real_fields = sizeof model_real_fields / sizeof model_real_fields[0];

void model_config_defaults(struct model_config *c, const struct architecture *arch, bool from_gguf) {
    *c = (struct model_config){.arch = arch, .from_gguf = from_gguf};
    c->rope_style = from_gguf ? arch->gguf_rope : ROPE_HALVES;
    /* theta where neither format has to state it: the original 10000 (Su et al. 2021), Gemma 3's own */
    c->rope.theta = arch->window == WINDOW_PATTERN ? 1e6 : 1e4;
    c->rope_local.theta = 1e4;
}

/* Gemma 3: layers 0-4 local, 5 global, and so on. */
void model_config_pattern(struct model_config *c, size_t pattern) {
    for (size_t l = 0; l < c->n_layers; l++) {
        c->sliding[l] = (l + 1) % pattern != 0;
    }
}

static int check_rope(const char *which, const struct rope_config *r, struct error *err) {
    if (r->scaling == ROPE_SCALING_NONE) {
        return 0;
    }
    if (!(r->factor >= 1 && r->factor <= 1e4)) {
        return error_set(err, ERROR_MODEL, "the %s scaling factor must be between 1 and 10000", which);
    }
    bool needs_context = r->scaling == ROPE_SCALING_LLAMA3 || r->scaling == ROPE_SCALING_YARN;
    if (needs_context && !(r->original_context >= 1 && r->original_context <= 1e9)) {
        return error_set(err, ERROR_MODEL, "the %s scaling has no usable original context length", which);
    }
    if (r->scaling == ROPE_SCALING_LLAMA3 &&
        !(r->low_freq_factor > 0 && r->high_freq_factor > r->low_freq_factor && r->high_freq_factor <= 1e6)) {
        return error_set(err, ERROR_MODEL, "the %s scaling needs 0 < low_freq_factor < high_freq_factor", which);
    }
    if (r->scaling == ROPE_SCALING_YARN) {
        if (!(r->beta_slow > 0 && r->beta_fast >= r->beta_slow && r->beta_fast <= 1e6)) {
            return error_set(err, ERROR_MODEL, "the %s scaling needs 0 < beta_slow <= beta_fast", which);
        }
        if (!(r->attention_factor >= 0 && r->attention_factor <= 100) || !(r->theta > 1)) {
            return error_set(err, ERROR_MODEL, "the %s scaling has an attention factor or theta out of range", which);
        }
    }
    return 0;
}

int model_config_check(struct model_config *c, struct error *err) {
    if (c->n_kv_heads == 0) {
        c->n_kv_heads = c->n_heads;
    }
    if (c->head_dim == 0) {
        if (c->n_embd % c->n_heads != 0) {
            return error_set(err, ERROR_MODEL, "%zu features do not divide into %zu heads", c->n_embd, c->n_heads);
        }
        c->head_dim = c->n_embd / c->n_heads;
    }
    if (c->head_dim < 2 || c->head_dim > 1024 || c->head_dim % 2 != 0) {
        return error_set(err, ERROR_MODEL, "a head of %zu features is not supported (even, 2 to 1024)", c->head_dim);
    }
    if (c->n_heads % c->n_kv_heads != 0) {
        return error_set(err, ERROR_MODEL, "%zu heads do not divide among %zu key-value heads", c->n_heads,
                         c->n_kv_heads);
    }
    if (c->n_rot == 0) {
        c->n_rot = c->head_dim;
    }
    if (c->n_rot % 2 != 0 || c->n_rot > c->head_dim) {
        return error_set(err, ERROR_MODEL, "%zu rotated features do not fit a head of %zu", c->n_rot, c->head_dim);
    }
    if (c->vocab_size == 0 || c->vocab_size > 1 << 22) {
        return error_set(err, ERROR_MODEL, "a vocabulary of %zu tokens is out of range", c->vocab_size);
    }
    if (c->attention_scale == 0) {
        c->attention_scale = 1 / sqrt((double)c->head_dim);
    }
    if (!(c->attention_scale > 1e-6 && c->attention_scale < 1e3)) {
        return error_set(err, ERROR_MODEL, "the attention scale is out of range");
    }
    bool any = false;
    for (size_t l = 0; l < c->n_layers; l++) {
        any |= c->sliding[l];
    }
    if (any && c->window == 0) {
        return error_set(err, ERROR_MODEL, "layers have a sliding window, but its size is not given");
    }
    if (!any) {
        c->window = 0;
    }
    if (check_rope("rope", &c->rope, err) < 0) {
        return -1;
    }
    return check_rope("local rope", &c->rope_local, err);
}

int model_config_load(const struct model_file *file, struct model_config *out, struct error *err) {
    if (model_file_format(file) == MODEL_FORMAT_GGUF) {
        if (model_config_from_gguf(file, out, err) < 0) {
            return error_prefix(err, "%s", model_file_path(file));
        }
        return 0;
    }
    const struct cJSON *json = model_file_config(file);
    if (!json) {
        return error_set(err, ERROR_MODEL, "%s: there is no config.json beside the weights", model_file_path(file));
    }
    if (model_config_from_json(json, out, err) < 0) {
        return error_prefix(err, "%s: config.json", model_file_path(file));
    }
    return 0;
}
