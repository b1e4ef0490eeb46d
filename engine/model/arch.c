#include "model/arch.h"

#include <stdio.h>
#include <string.h>

static const struct architecture table[] = {
    {
        .name = "llama", /* Llama 2, 3, 3.1; SmolLM2, TinyLlama; as GGUF also Mistral */
        .gguf_name = "llama",
        .hf_class = "LlamaForCausalLM",
        .gguf_rope = ROPE_INTERLEAVED,
        .rope_factors = true,
        .window = WINDOW_NONE,
        .activation = ACTIVATION_SILU,
    },
    {
        .name = "mistral",
        .hf_class = "MistralForCausalLM",
        .window = WINDOW_ALL,
        .activation = ACTIVATION_SILU,
    },
    {
        .name = "qwen2",
        .gguf_name = "qwen2",
        .hf_class = "Qwen2ForCausalLM",
        .gguf_rope = ROPE_HALVES,
        .qkv_bias = true,
        .window = WINDOW_UPPER,
        .activation = ACTIVATION_SILU,
    },
    {
        .name = "qwen3",
        .gguf_name = "qwen3",
        .hf_class = "Qwen3ForCausalLM",
        .gguf_rope = ROPE_HALVES,
        .qk_norm = true,
        .window = WINDOW_UPPER,
        .activation = ACTIVATION_SILU,
    },
    {
        .name = "gemma3",
        .gguf_name = "gemma3",
        .hf_class = "Gemma3ForCausalLM",
        .gguf_rope = ROPE_HALVES,
        .qk_norm = true,
        .post_norms = true,
        .norm_plus_one = true,
        .embed_scaled = true,
        .tied_by_default = true,
        .window = WINDOW_PATTERN,
        .activation = ACTIVATION_GELU_TANH,
    },
};
#define N_ARCHITECTURES (sizeof table / sizeof table[0])

const struct architecture *architecture_by_gguf(const char *name, size_t len) {
    for (size_t i = 0; i < N_ARCHITECTURES; i++) {
        const char *known = table[i].gguf_name;
        if (known && strlen(known) == len && memcmp(known, name, len) == 0) {
            return &table[i];
        }
    }
    return NULL;
}

const struct architecture *architecture_by_hf(const char *hf_class) {
    for (size_t i = 0; i < N_ARCHITECTURES; i++) {
        if (strcmp(table[i].hf_class, hf_class) == 0) {
            return &table[i];
        }
    }
    return NULL;
}

void architecture_names(char *out, size_t size) {
    size_t n = 0;
    out[0] = '\0';
    for (size_t i = 0; i < N_ARCHITECTURES && n < size; i++) {
        n += (size_t)snprintf(out + n, size - n, "%s%s", i ? ", " : "", table[i].name);
    }
}
