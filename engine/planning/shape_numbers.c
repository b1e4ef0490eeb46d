#include "planning/shape_internal.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* What a model may say. The bounds keep every product of the planner within 64 bits or let it be seen. */
struct number {
    const char *keys[4]; /* of config.json, the usual name first */
    const char *gguf;    /* behind "ARCH." */
    size_t offset;
    double min, max;
    bool required;
};
#define AT(field) offsetof(struct shape, field)
static const struct number numbers[] = {
    {{"num_hidden_layers", "n_layer", "n_layers"}, "block_count", AT(n_layers), 1, 4096, true},
    {{"hidden_size", "n_embd", "d_model"}, "embedding_length", AT(n_embd), 1, 1 << 20, true},
    {{"num_attention_heads", "n_head", "n_heads"}, "attention.head_count", AT(n_heads), 1, 65536, true},
    {{"num_key_value_heads"}, "attention.head_count_kv", AT(n_kv_heads), 1, 65536, false},
    {{"head_dim"}, "attention.key_length", AT(head_dim), 1, 65536, false},
    {{"intermediate_size", "n_inner", "ffn_dim"}, "feed_forward_length", AT(n_ff), 1, 1 << 24, false},
    {{"vocab_size"}, "vocab_size", AT(vocab_size), 1, 1 << 24, false},
    {{"max_position_embeddings", "n_positions", "max_sequence_length"}, "context_length", AT(context_length), 1, 1 << 30, false},
    {{"num_local_experts", "num_experts", "n_routed_experts"}, "expert_count", AT(n_experts), 0, 4096, false},
    {{"num_experts_per_tok", "num_experts_per_token"}, "expert_used_count", AT(n_experts_used), 0, 4096, false},
    {{"moe_intermediate_size"}, "expert_feed_forward_length", AT(n_ff_expert), 0, 1 << 24, false},
    {{"shared_expert_intermediate_size"}, "expert_shared_feed_forward_length", AT(n_ff_shared), 0, 1 << 24, false},
    {{"sliding_window"}, "attention.sliding_window", AT(window), 0, 1 << 30, false},
};
#define N_NUMBERS (sizeof numbers / sizeof numbers[0])

static size_t *field_of(struct shape *s, const struct number *n) {
    return (size_t *)(void *)((char *)s + n->offset);
}

static int take(struct shape *s, const struct number *n, const char *key, double value, struct error *err) {
    if (!(value >= n->min && value <= n->max) || value != floor(value)) {
        return error_set(err, ERROR_MODEL, "%s is %g; it must be a whole number from %.0f to %.0f", key, value, n->min,
                         n->max);
    }
    *field_of(s, n) = (size_t)value;
    return 0;
}

/* What follows when it is not said, and whether it goes together. */
static int complete(struct shape *s, struct error *err) {
    s->n_kv_heads = s->n_kv_heads ? s->n_kv_heads : s->n_heads;
    s->n_ff = s->n_ff ? s->n_ff : 4 * s->n_embd;
    s->n_ff_expert = s->n_ff_expert ? s->n_ff_expert : s->n_ff;
    if (s->head_dim == 0) {
        s->head_dim = s->n_embd / s->n_heads;
    }
    if (s->head_dim == 0 || s->n_kv_heads > s->n_heads || s->n_heads % s->n_kv_heads != 0) {
        return error_set(err, ERROR_MODEL, "%zu query heads, %zu heads of keys and %zu features of a head do not go together",
                         s->n_heads, s->n_kv_heads, s->head_dim);
    }
    if (s->n_experts_used > s->n_experts) {
        return error_set(err, ERROR_MODEL, "%zu of %zu experts cannot be used", s->n_experts_used, s->n_experts);
    }
    s->n_experts_used = s->n_experts > 0 && s->n_experts_used == 0 ? 1 : s->n_experts_used;
    return 0;
}

static enum dtype dtype_by_torch(const char *name) {
    return strstr(name, "float32") ? DTYPE_F32 : strstr(name, "bfloat16") ? DTYPE_BF16 : DTYPE_F16;
}

static bool is_true(const cJSON *json, const char *key) {
    return cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(json, key));
}

/* Of the text model, else of the whole. */
static const cJSON *of_either(const cJSON *text, const cJSON *whole, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(text, key);
    return item ? item : cJSON_GetObjectItemCaseSensitive(whole, key);
}

int shape_from_json(const struct cJSON *json, struct shape *s, enum dtype *dtype, struct error *err) {
    const cJSON *whole = json, *text = cJSON_GetObjectItemCaseSensitive(json, "text_config");
    s->sees = cJSON_IsObject(cJSON_GetObjectItemCaseSensitive(json, "vision_config"));
    if (cJSON_IsObject(text) && !cJSON_GetObjectItemCaseSensitive(json, "hidden_size")) {
        json = text; /* of a model that sees, too */
    }
    for (size_t i = 0; i < N_NUMBERS; i++) {
        const cJSON *item = NULL;
        const char *key = numbers[i].keys[0];
        for (size_t k = 0; k < 4 && numbers[i].keys[k] && !item; k++) {
            item = cJSON_GetObjectItemCaseSensitive(json, numbers[i].keys[k]);
            item = cJSON_IsNull(item) ? NULL : item;
            key = item ? numbers[i].keys[k] : key;
        }
        if (!item && numbers[i].required) {
            return error_set(err, ERROR_MODEL, "there is no %s", key);
        }
        if (item && !cJSON_IsNumber(item)) {
            return error_set(err, ERROR_MODEL, "%s is not a number", key);
        }
        if (item && take(s, &numbers[i], key, item->valuedouble, err) < 0) {
            return -1;
        }
    }
    if (s->vocab_size == 0) {
        return error_set(err, ERROR_MODEL, "there is no vocab_size");
    }
    const cJSON *list = of_either(json, whole, "architectures");
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(json, "model_type"), *first = cJSON_GetArrayItem(list, 0);
    const char *name = cJSON_IsString(first) ? first->valuestring : cJSON_IsString(type) ? type->valuestring : "unknown";
    const struct architecture *arch = architecture_by_hf(name);
    snprintf(s->architecture, sizeof s->architecture, "%s", arch ? arch->name : name);
    s->tied = arch ? arch->tied_by_default : false;
    const cJSON *tied = of_either(json, whole, "tie_word_embeddings");
    s->tied = tied ? cJSON_IsTrue(tied) : s->tied;
    s->gated = !cJSON_GetObjectItemCaseSensitive(json, "n_embd"); /* GPT-2 and its kin have two matrices there */
    s->tied = s->gated || tied ? s->tied : true;
    s->qkv_bias = arch ? arch->qkv_bias : is_true(json, "attention_bias") || !s->gated;
    s->qk_norm = arch && arch->qk_norm;
    s->post_norms = arch && arch->post_norms;
    const cJSON *torch = of_either(json, whole, "torch_dtype");
    torch = torch ? torch : of_either(json, whole, "dtype");
    *dtype = cJSON_IsString(torch) ? dtype_by_torch(torch->valuestring) : DTYPE_BF16;
    return complete(s, err);
}

int shape_from_gguf(const struct model_file *file, struct shape *s, struct error *err) {
    struct meta_string arch;
    char prefix[64];
    if (!model_file_get_string(file, "general.architecture", &arch) || arch.len == 0 || arch.len >= sizeof prefix) {
        return error_set(err, ERROR_MODEL, "the metadata has no general.architecture");
    }
    snprintf(prefix, sizeof prefix, "%.*s", (int)arch.len, arch.data);
    snprintf(s->architecture, sizeof s->architecture, "%s", prefix);
    for (size_t i = 0; i < N_NUMBERS; i++) {
        char key[128];
        double value;
        int64_t whole;
        snprintf(key, sizeof key, "%s.%s", prefix, numbers[i].gguf);
        bool have = model_file_get_int(file, key, &whole) || model_file_array_int(file, key, 0, &whole); /* of each layer: the first */
        value = have ? (double)whole : 0;
        if (!have && numbers[i].required) {
            return error_set(err, ERROR_MODEL, "the metadata has no %s", key);
        }
        if (have && take(s, &numbers[i], key, value, err) < 0) {
            return -1;
        }
    }
    const struct tensor *embed = model_file_find(file, "token_embd.weight");
    if (embed && embed->n_dims == 2) {
        s->vocab_size = embed->shape[0];
    }
    if (s->vocab_size == 0 || s->vocab_size > 1 << 24) {
        return error_set(err, ERROR_MODEL, "the vocabulary's size is not known");
    }
    const struct architecture *known = architecture_by_gguf(prefix, strlen(prefix));
    s->tied = model_file_find(file, "output.weight") == NULL;
    s->gated = true;
    s->qkv_bias = known && known->qkv_bias;
    s->qk_norm = known && known->qk_norm;
    s->post_norms = known && known->post_norms;
    return complete(s, err);
}
