#!/usr/bin/env python3
"""Record what `transformers` computes in F32 for tiny random models of every architecture: make_tiny.py OUT.json, for test_tiny.c.

No weights are stored: element i of the k-th tensor is a hash of (k, i), a whole number of -128..127 times a power of two, which
F32, F16 and BF16 all hold exactly. Made with transformers 5.24.0, torch 2.15.0.
"""

import json
import sys

import numpy
import torch
import transformers

N_IDS = 90
POSITIONS = [0, 1, 7, 20, 33, 64, 89]

SHAPE = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, vocab_size=64,
             max_position_embeddings=128, rms_norm_eps=1e-5, tie_word_embeddings=False)

MODELS = [
    ("llama", "LlamaForCausalLM", dict(SHAPE, hidden_act="silu", rope_theta=10000.0)),
    ("llama with head_dim and tied head", "LlamaForCausalLM",
     dict(SHAPE, hidden_act="silu", rope_theta=500.0, head_dim=12, tie_word_embeddings=True, num_key_value_heads=4)),
    ("llama, llama3 scaling", "LlamaForCausalLM",
     dict(SHAPE, hidden_act="silu", rope_theta=500.0,
          rope_scaling=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                            original_max_position_embeddings=32))),
    ("llama, linear scaling", "LlamaForCausalLM",
     dict(SHAPE, hidden_act="silu", rope_theta=10000.0, rope_scaling=dict(rope_type="linear", factor=2.5))),
    ("llama, yarn scaling", "LlamaForCausalLM",
     dict(SHAPE, hidden_act="silu", rope_theta=500.0, head_dim=16,
          rope_scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32, beta_fast=8.0))),
    ("mistral", "MistralForCausalLM", dict(SHAPE, hidden_act="silu", rope_theta=10000.0, sliding_window=13)),
    ("qwen2", "Qwen2ForCausalLM", dict(SHAPE, hidden_act="silu", rope_theta=10000.0, use_sliding_window=False)),
    ("qwen2 with a window", "Qwen2ForCausalLM",
     dict(SHAPE, hidden_act="silu", rope_theta=10000.0, use_sliding_window=True, sliding_window=13, max_window_layers=1)),
    ("qwen3", "Qwen3ForCausalLM", dict(SHAPE, hidden_act="silu", rope_theta=10000.0, head_dim=16)),
    ("gemma3", "Gemma3ForCausalLM",
     dict(SHAPE, hidden_activation="gelu_pytorch_tanh", rope_theta=1e6, rope_local_base_freq=100.0, head_dim=16,
          query_pre_attn_scalar=24, sliding_window=13, tie_word_embeddings=True,
          layer_types=["sliding_attention", "full_attention", "sliding_attention"],
          rope_scaling=dict(rope_type="linear", factor=4.0))),
]


def values(k, n, exponent):
    """splitmix64 of (k << 32) + i; the top byte as a signed number, times 2^exponent."""
    z = (numpy.uint64(k << 32) + numpy.arange(n, dtype=numpy.uint64)) * numpy.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    z = z ^ (z >> numpy.uint64(31))
    return (z >> numpy.uint64(56)).astype(numpy.uint8).astype(numpy.int8).astype(numpy.float32) * numpy.float32(2.0**exponent)


def attention(module, query, key, value, attention_mask, scaling, **rest):
    """Eager attention on K and V rounded to F16, as the engine's KV cache holds them."""
    groups = query.shape[1] // key.shape[1]
    key, value = (t.half().float().repeat_interleave(groups, dim=1) for t in (key, value))
    scores = query @ key.transpose(2, 3) * scaling + attention_mask[:, :, :, :key.shape[2]]
    return (scores.softmax(dim=-1) @ value).transpose(1, 2).contiguous(), None


def main(out):
    transformers.AttentionInterface.register("kv16", attention)
    transformers.AttentionMaskInterface.register("kv16", transformers.masking_utils.eager_mask)
    cases = []
    for name, cls, numbers in MODELS:
        config_class = getattr(transformers, cls).config_class
        model = getattr(transformers, cls)(config_class(**json.loads(json.dumps(numbers)), attn_implementation="kv16"))
        model.eval()
        tensors = []
        with torch.no_grad():
            for k, (key, tensor) in enumerate(model.named_parameters(), start=1):
                # norms lie around 1, or around 0 where the architecture adds the 1 itself
                norm = "norm" in key
                add = 1.0 if norm and "Gemma" not in cls else 0.0
                exponent = -9 if norm else -6 if tensor.dim() == 1 or "embed" in key else -8
                tensors.append([key, list(tensor.shape), exponent, add])
                tensor.copy_(torch.from_numpy(values(k, tensor.numel(), exponent)).reshape(tensor.shape) + add)
            ids = [int(v) % 64 for v in values(0, N_IDS, 0)]
            logits = model(torch.tensor([ids])).logits[0]
        cases.append({"name": name, "config": {"architectures": [cls], **numbers}, "tensors": tensors, "ids": ids,
                      "positions": [{"at": p, "logits": [float(f"{v:.6g}") for v in logits[p].tolist()]} for p in POSITIONS]})
        print(name, "largest logit", float(logits.abs().max()), "spread", float(logits.std()), file=sys.stderr)
    with open(out, "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases) + "\n]\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
