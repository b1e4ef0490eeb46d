/* The architecture table: what distinguishes the model families, one row each. All else is in the model's own numbers.
 */
#ifndef INFERD_ARCH_H
#define INFERD_ARCH_H

#include <inferd/backend.h>
#include <stdbool.h>
#include <stddef.h>

enum window_rule {
    WINDOW_NONE,    /* config.json names none */
    WINDOW_ALL,     /* every layer, if the file gives a window */
    WINDOW_UPPER,   /* layers from max_window_layers on, if use_sliding_window (Qwen) */
    WINDOW_PATTERN, /* five local layers, then a global one (Gemma 3); local layers have their own rope theta */
};

struct architecture {
    const char *name;          /* what users see */
    const char *gguf_name;     /* general.architecture, NULL = none of its own */
    const char *hf_class;      /* config.json "architectures"[0] */
    enum rope_style gguf_rope; /* Hugging Face files are always ROPE_HALVES */
    bool qkv_bias;             /* q, k and v have biases */
    bool qk_norm;              /* each head of q and k is normed before rope */
    bool post_norms;           /* attention and feed-forward outputs are normed before they are added */
    bool norm_plus_one;        /* Hugging Face files store norm weights less 1 (GGUF files have it added) */
    bool embed_scaled;         /* embeddings are multiplied by sqrt(n_embd) */
    bool tied_by_default;      /* what a config.json without tie_word_embeddings means */
    bool rope_factors;         /* GGUF files may carry rope_freqs.weight */
    enum window_rule window;
    enum activation activation;
};

const struct architecture *architecture_by_gguf(const char *name, size_t len); /* NULL if unknown */
const struct architecture *architecture_by_hf(const char *hf_class);
/* All names for a sentence: "llama, mistral, ..." */
void architecture_names(char *out, size_t size);

#endif
