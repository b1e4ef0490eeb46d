#include "tiny_model.h"

#include "../unit/gguf_build.h"

#include <math.h>
#include <stdlib.h>

enum { F32 = 0, Q4_0 = 2, Q8_0 = 8 }; /* the format's numbers */

enum { LAYERS = 3, EMBD = 64, HEADS = 4, KV_HEADS = 2, HEAD_DIM = 32, FF = 96, TOKENS = 259, ROWS = 260 };

struct writer {
    struct buf keys, tensors, data;
    uint64_t n_keys, n_tensors, random;
    const struct tiny_model *model;
};

static uint32_t next_random(struct writer *w) { /* xorshift64* */
    w->random ^= w->random >> 12;
    w->random ^= w->random << 25;
    w->random ^= w->random >> 27;
    return (uint32_t)(w->random * 0x2545F4914F6CDD1Du >> 32);
}

static float uniform(struct writer *w, float scale) {
    return ((float)(next_random(w) >> 8) / 8388608.0f - 1.0f) * scale;
}

static void begin_tensor(struct writer *w, const char *name, uint64_t n, uint64_t k, uint32_t type) {
    const bool swapped = w->model->swapped && strcmp(name, w->model->swapped) == 0;
    const uint64_t dims[] = {swapped ? n : k, swapped ? k : n};
    gguf_pad(&w->data, 32);
    if (w->model->missing && strcmp(name, w->model->missing) == 0) {
        return;
    }
    gguf_tensor(&w->tensors, name, n == 0 ? 1 : 2, dims, type, w->data.len);
    w->n_tensors++;
}

static void put_vector(struct writer *w, const char *name, uint64_t k, float around, float spread) {
    begin_tensor(w, name, 0, k, F32);
    bool broken = w->model->not_finite && strcmp(name, w->model->not_finite) == 0;
    for (uint64_t i = 0; i < k; i++) {
        put_f32(&w->data, broken && i == 0 ? NAN : around + uniform(w, spread));
    }
}

/* Block types are made of random bits with a fixed scale: as good as any quantised random matrix. */
static void put_matrix(struct writer *w, const char *name, uint64_t n, uint64_t k, uint32_t type) {
    begin_tensor(w, name, n, k, type);
    for (uint64_t i = 0; i < n * k; i++) {
        if (type == F32) {
            put_f32(&w->data, uniform(w, 0.2f));
        } else if (i % 32 == 0) {
            put_le(&w->data, type == Q8_0 ? 0x1800 : 0x2800, 2); /* binary16 2^-9, 2^-5 */
        }
        if (type == Q8_0 || (type == Q4_0 && i % 2 == 0)) {
            put_le(&w->data, next_random(w) & 255, 1);
        }
    }
}

static int rows_of(const struct tiny_model *m) {
    return m->rows > 0 ? (int)m->rows : ROWS;
}

static void put_embedding(struct writer *w, const char *name, float scale, int huge_row, int nan_row) {
    int rows = rows_of(w->model);
    begin_tensor(w, name, rows, EMBD, F32);
    for (int row = 0; row < rows; row++) {
        for (int i = 0; i < EMBD; i++) {
            float x = uniform(w, scale);
            put_f32(&w->data, row == nan_row ? NAN : row == huge_row ? 100 * x : x);
        }
    }
}

static void key_u32(struct writer *w, const char *arch, const char *key, uint32_t v) {
    char name[96];
    snprintf(name, sizeof name, "%s.%s", arch, key);
    gguf_key_u32(&w->keys, name, v);
    w->n_keys++;
}

static void key_f32(struct writer *w, const char *arch, const char *key, float v) {
    char name[96];
    snprintf(name, sizeof name, "%s.%s", arch, key);
    gguf_key(&w->keys, name, 6);
    put_f32(&w->keys, v);
    w->n_keys++;
}

static void key_string(struct writer *w, const char *name, const char *v) {
    gguf_key_string(&w->keys, name, v);
    w->n_keys++;
}

/* The character that stands for a byte in a byte-level vocabulary (GPT-2): printable ones for themselves, the others
 * from U+0100 on in order. */
static void put_byte_token(struct buf *b, int byte) {
    int shifted = 0;
    char utf8[3] = "";
    for (int i = 0; i < byte; i++) {
        shifted += !((i >= 33 && i <= 126) || (i >= 161 && i <= 172) || i >= 174);
    }
    bool itself = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    int code_point = itself ? byte : 256 + shifted;
    if (code_point < 128) {
        utf8[0] = (char)code_point;
    } else {
        utf8[0] = (char)(0xc0 | code_point >> 6);
        utf8[1] = (char)(0x80 | (code_point & 63));
    }
    put_string(b, utf8);
}

static void put_vocabulary(struct writer *w) {
    static const char *const specials[] = {"<|bos|>", "<|eos|>", "ab"};
    key_string(w, "tokenizer.ggml.model", "gpt2");
    key_string(w, "tokenizer.ggml.pre", "gpt-2");
    gguf_key_array(&w->keys, "tokenizer.ggml.tokens", 8, TOKENS);
    for (int i = 0; i < TOKENS; i++) {
        if (i < 256) {
            put_byte_token(&w->keys, i);
        } else {
            put_string(&w->keys, specials[i - 256]);
        }
    }
    gguf_key_array(&w->keys, "tokenizer.ggml.token_type", 5, TOKENS);
    for (int i = 0; i < TOKENS; i++) {
        put_u32(&w->keys, i == TINY_BOS || i == TINY_EOS ? 3 : 1);
    }
    gguf_key_array(&w->keys, "tokenizer.ggml.merges", 8, 1);
    put_string(&w->keys, "a b");
    gguf_key_u32(&w->keys, "tokenizer.ggml.bos_token_id", TINY_BOS);
    gguf_key_u32(&w->keys, "tokenizer.ggml.eos_token_id", TINY_EOS);
    w->n_keys += 5;
}

static void put_layer(struct writer *w, const char *arch, int layer) {
    bool bias = strcmp(arch, "qwen2") == 0, gemma = strcmp(arch, "gemma3") == 0,
         qk_norm = gemma || strcmp(arch, "qwen3") == 0;
    char name[64];
#define NAME(part) (snprintf(name, sizeof name, "blk.%d.%s", layer, part), name)
    put_vector(w, NAME("attn_norm.weight"), EMBD, 1, 0.2f);
    put_matrix(w, NAME("attn_q.weight"), HEADS * HEAD_DIM, EMBD, Q8_0);
    put_matrix(w, NAME("attn_k.weight"), KV_HEADS * HEAD_DIM, EMBD, Q8_0);
    put_matrix(w, NAME("attn_v.weight"), KV_HEADS * HEAD_DIM, EMBD, Q4_0);
    put_matrix(w, NAME("attn_output.weight"), EMBD, HEADS * HEAD_DIM, Q4_0);
    if (bias) {
        put_vector(w, NAME("attn_q.bias"), HEADS * HEAD_DIM, 0, 0.3f);
        put_vector(w, NAME("attn_k.bias"), KV_HEADS * HEAD_DIM, 0, 0.3f);
        put_vector(w, NAME("attn_v.bias"), KV_HEADS * HEAD_DIM, 0, 0.3f);
    }
    if (qk_norm) {
        put_vector(w, NAME("attn_q_norm.weight"), HEAD_DIM, 1, 0.2f);
        put_vector(w, NAME("attn_k_norm.weight"), HEAD_DIM, 1, 0.2f);
    }
    if (gemma) {
        put_vector(w, NAME("post_attention_norm.weight"), EMBD, 1, 0.2f);
        put_vector(w, NAME("post_ffw_norm.weight"), EMBD, 1, 0.2f);
    }
    put_vector(w, NAME("ffn_norm.weight"), EMBD, 1, 0.2f);
    put_matrix(w, NAME("ffn_gate.weight"), FF, EMBD, Q4_0);
    put_matrix(w, NAME("ffn_up.weight"), FF, EMBD, Q8_0);
    put_matrix(w, NAME("ffn_down.weight"), EMBD, FF, F32);
#undef NAME
}

static void put_model(struct writer *w, const struct tiny_model *m) {
    const char *arch = m->architecture;
    const uint32_t layers = m->layers ? m->layers : LAYERS;
    key_string(w, "general.architecture", arch);
    key_string(w, "general.name", "tiny");
    key_u32(w, arch, "block_count", layers);
    key_u32(w, arch, "context_length", m->context_length);
    key_u32(w, arch, "embedding_length", EMBD);
    key_u32(w, arch, "feed_forward_length", FF);
    key_u32(w, arch, "attention.head_count", HEADS);
    key_u32(w, arch, "attention.head_count_kv", KV_HEADS);
    key_u32(w, arch, "attention.key_length", HEAD_DIM);
    key_u32(w, arch, "attention.value_length", HEAD_DIM);
    key_f32(w, arch, "attention.layer_norm_rms_epsilon", 1e-5f);
    key_f32(w, arch, "rope.freq_base", 10000);
    if (strcmp(arch, "gemma3") == 0) {
        key_u32(w, arch, "attention.sliding_window", 20);
        key_u32(w, arch, "attention.sliding_window_pattern", layers);
    }
    put_vocabulary(w);
    if (m->chat_template) {
        key_string(w, "tokenizer.chat_template", m->chat_template);
    }
    put_embedding(w, "token_embd.weight", 0.5f, -1, m->nan_token);
    put_embedding(w, "output.weight", 0.5f, rows_of(m) - 1, -1); /* a row behind the vocabulary that would always win */
    put_vector(w, "output_norm.weight", EMBD, 1, 0.2f);
    for (uint32_t layer = 0; layer < layers; layer++) {
        put_layer(w, arch, (int)layer);
    }
    if (m->extra) {
        put_vector(w, m->extra, 64, 1, 0.2f);
    }
}

bool tiny_model_write(const char *path, const struct tiny_model *model) {
    struct writer w = {.random = model->seed * 2 + 1, .model = model};
    struct buf file = BUF_INIT;
    put_model(&w, model);
    gguf_head(&file, 3, w.n_tensors, w.n_keys);
    buf_append(&file, w.keys.data, w.keys.len);
    buf_append(&file, w.tensors.data, w.tensors.len);
    gguf_pad(&file, 32);
    buf_append(&file, w.data.data, w.data.len);
    bool ok = !file.failed && !w.data.failed && write_file(path[0] == '/' ? "" : ".", path, file.data, file.len);
    if (!ok) {
        fprintf(stderr, "%s cannot be written\n", path);
    }
    buf_free(&w.keys);
    buf_free(&w.tensors);
    buf_free(&w.data);
    buf_free(&file);
    return ok;
}
