#include "model/roles.h"

#include "model/weights.h"

#include <stdio.h>
#include <string.h>

#define MODEL_ROLE(field) offsetof(struct weights, field)
#define LAYER_ROLE(field) offsetof(struct layer_weights, field)

const struct role model_roles[] = {
    {"token_embd.weight", "model.embed_tokens.weight", NULL, MODEL_ROLE(embed), ROLE_DIM_VOCAB, ROLE_DIM_EMBD,
     ROLE_ALWAYS, false},
    {"output_norm.weight", "model.norm.weight", NULL, MODEL_ROLE(output_norm), ROLE_DIM_EMBD, ROLE_DIM_NONE,
     ROLE_ALWAYS, true},
    {"output.weight", "lm_head.weight", NULL, MODEL_ROLE(output), ROLE_DIM_VOCAB, ROLE_DIM_EMBD, ROLE_IF_UNTIED, false},
};
const size_t n_model_roles = sizeof model_roles / sizeof model_roles[0];

const struct role layer_roles[] = {
    {"attn_norm.weight", "input_layernorm.weight", NULL, LAYER_ROLE(attn_norm), ROLE_DIM_EMBD, ROLE_DIM_NONE,
     ROLE_ALWAYS, true},
    {"attn_q.weight", "self_attn.q_proj.weight", NULL, LAYER_ROLE(q), ROLE_DIM_Q, ROLE_DIM_EMBD, ROLE_ALWAYS, false},
    {"attn_k.weight", "self_attn.k_proj.weight", NULL, LAYER_ROLE(k), ROLE_DIM_KV, ROLE_DIM_EMBD, ROLE_ALWAYS, false},
    {"attn_v.weight", "self_attn.v_proj.weight", NULL, LAYER_ROLE(v), ROLE_DIM_KV, ROLE_DIM_EMBD, ROLE_ALWAYS, false},
    {"attn_q.bias", "self_attn.q_proj.bias", NULL, LAYER_ROLE(q_bias), ROLE_DIM_Q, ROLE_DIM_NONE, ROLE_IF_QKV_BIAS,
     false},
    {"attn_k.bias", "self_attn.k_proj.bias", NULL, LAYER_ROLE(k_bias), ROLE_DIM_KV, ROLE_DIM_NONE, ROLE_IF_QKV_BIAS,
     false},
    {"attn_v.bias", "self_attn.v_proj.bias", NULL, LAYER_ROLE(v_bias), ROLE_DIM_KV, ROLE_DIM_NONE, ROLE_IF_QKV_BIAS,
     false},
    {"attn_q_norm.weight", "self_attn.q_norm.weight", NULL, LAYER_ROLE(q_norm), ROLE_DIM_HEAD, ROLE_DIM_NONE,
     ROLE_IF_QK_NORM, true},
    {"attn_k_norm.weight", "self_attn.k_norm.weight", NULL, LAYER_ROLE(k_norm), ROLE_DIM_HEAD, ROLE_DIM_NONE,
     ROLE_IF_QK_NORM, true},
    {"attn_output.weight", "self_attn.o_proj.weight", NULL, LAYER_ROLE(o), ROLE_DIM_EMBD, ROLE_DIM_Q, ROLE_ALWAYS,
     false},
    {"post_attention_norm.weight", "post_attention_layernorm.weight", NULL, LAYER_ROLE(post_attn_norm), ROLE_DIM_EMBD,
     ROLE_DIM_NONE, ROLE_IF_POST_NORMS, true},
    {"ffn_norm.weight", "post_attention_layernorm.weight", "pre_feedforward_layernorm.weight", LAYER_ROLE(ffn_norm),
     ROLE_DIM_EMBD, ROLE_DIM_NONE, ROLE_ALWAYS, true},
    {"ffn_gate.weight", "mlp.gate_proj.weight", NULL, LAYER_ROLE(gate), ROLE_DIM_FF, ROLE_DIM_EMBD, ROLE_ALWAYS, false},
    {"ffn_up.weight", "mlp.up_proj.weight", NULL, LAYER_ROLE(up), ROLE_DIM_FF, ROLE_DIM_EMBD, ROLE_ALWAYS, false},
    {"ffn_down.weight", "mlp.down_proj.weight", NULL, LAYER_ROLE(down), ROLE_DIM_EMBD, ROLE_DIM_FF, ROLE_ALWAYS, false},
    {"post_ffw_norm.weight", "post_feedforward_layernorm.weight", NULL, LAYER_ROLE(post_ffn_norm), ROLE_DIM_EMBD,
     ROLE_DIM_NONE, ROLE_IF_POST_NORMS, true},
};
const size_t n_layer_roles = sizeof layer_roles / sizeof layer_roles[0];

bool role_is_present(const struct role *r, const struct model_config *c) {
    switch (r->presence) {
    case ROLE_ALWAYS:
        return true;
    case ROLE_IF_QKV_BIAS:
        return c->arch->qkv_bias;
    case ROLE_IF_QK_NORM:
        return c->arch->qk_norm;
    case ROLE_IF_POST_NORMS:
        return c->arch->post_norms;
    case ROLE_IF_UNTIED:
        return !c->tied_head;
    }
    return false;
}

size_t role_size(enum role_dimension d, const struct model_config *c) {
    switch (d) {
    case ROLE_DIM_NONE:
        return 1;
    case ROLE_DIM_VOCAB:
        return c->vocab_size;
    case ROLE_DIM_EMBD:
        return c->n_embd;
    case ROLE_DIM_Q:
        return model_config_q_dim(c);
    case ROLE_DIM_KV:
        return model_config_kv_dim(c);
    case ROLE_DIM_HEAD:
        return c->head_dim;
    case ROLE_DIM_FF:
        return c->n_ff;
    }
    return 0;
}

static size_t n_parameters(const struct role *roles, size_t n, const struct model_config *c) {
    size_t sum = 0;
    for (size_t i = 0; i < n; i++) {
        sum += role_is_present(&roles[i], c) ? role_size(roles[i].n, c) * role_size(roles[i].k, c) : 0;
    }
    return sum;
}

size_t roles_n_parameters(const struct model_config *c) {
    return n_parameters(model_roles, n_model_roles, c) + c->n_layers * n_parameters(layer_roles, n_layer_roles, c);
}

void role_name(const struct role *r, const struct model_config *c, bool gguf, int layer, char name[TENSOR_NAME_MAX]) {
    const char *hf = r->hf_post_norms && c->arch->post_norms ? r->hf_post_norms : r->hf;
    if (layer < 0) {
        snprintf(name, TENSOR_NAME_MAX, "%s", gguf ? r->gguf : hf);
    } else if (gguf) {
        snprintf(name, TENSOR_NAME_MAX, "blk.%d.%s", layer, r->gguf);
    } else {
        snprintf(name, TENSOR_NAME_MAX, "model.layers.%d.%s", layer, hf);
    }
}

void role_module(const struct role *r, const struct model_config *c, int layer, char name[TENSOR_NAME_MAX]) {
    role_name(r, c, false, layer, name);
    size_t len = strlen(name), suffix = strlen(".weight");
    if (len > suffix && strcmp(name + len - suffix, ".weight") == 0) {
        name[len - suffix] = '\0';
    }
}

const char *role_class(const struct role *r) {
    return strcmp(r->hf, "model.embed_tokens.weight") == 0 ? "Embedding" : "Linear";
}
