#!/usr/bin/env python3
"""Record SmoothQuant and W8A8 weights of the tiny models of make_tiny.py, computed in torch: make_tiny_int8.py OUT.json, for test_tiny_int8.c.

Independent of the engine: the activations' maxima are seen by hooks on `transformers` modules, folding and rounding follow Xiao et al. (2023)
and the layout's description (reference arithmetic in double precision). Made with transformers 5.24.0, torch 2.15.0.
"""

import base64
import json
import sys

import numpy
import torch
import transformers
from make_tiny import MODELS, N_IDS, attention, values

NAMES = ["llama", "qwen2", "qwen3", "gemma3"]
ALPHA = 0.8


def stored(x):
    """What is not quantised is kept in BF16, the type of these models' first matrix."""
    return torch.from_numpy(x.astype(numpy.float32)).bfloat16().double().numpy()


def factors(x_max, w_max):
    s = x_max**ALPHA / w_max ** (1 - ALPHA)
    s[(x_max == 0) | (w_max == 0)] = 1
    return s


def behind_norm(norm, add, x_max, matrices):
    s = factors(x_max, numpy.max([abs(m).max(0) for m in matrices], axis=0))
    kept = stored((norm + add) / s - add)
    exact = (norm + add) / (kept + add)
    return kept, [m * exact for m in matrices]


def rounded(w):
    scale = stored((abs(w).max(1) / 127).astype(numpy.float32))
    return scale, numpy.clip(numpy.rint(w / scale[:, None]), -127, 127)


def quantize(layer, inputs, config, add):
    get = lambda m: m.weight.detach().double().numpy()
    q, k, v, o = (get(getattr(layer.self_attn, n + "_proj")) for n in "qkvo")
    gate, up, down = (get(getattr(layer.mlp, n + "_proj")) for n in ("gate", "up", "down"))
    ffn_norm = getattr(layer, "pre_feedforward_layernorm", layer.post_attention_layernorm)
    out = {}
    out["attn_norm"], (q, k, v) = behind_norm(get(layer.input_layernorm), add, inputs["q_proj"], [q, k, v])
    dim = o.shape[1] // config.num_attention_heads
    groups = config.num_attention_heads // config.num_key_value_heads
    share = lambda m: m.reshape(-1, groups, dim).max(1).reshape(-1)
    s = factors(share(inputs["o_proj"]), share(abs(o).max(0)))
    v = v / s[:, None]
    if layer.self_attn.v_proj.bias is not None:
        out["v_bias"] = stored(layer.self_attn.v_proj.bias.detach().double().numpy() / s)
    o = o * numpy.repeat(s.reshape(-1, 1, dim), groups, axis=1).reshape(-1)
    out["ffn_norm"], (gate, up) = behind_norm(get(ffn_norm), add, inputs["gate_proj"], [gate, up])
    s = factors(inputs["down_proj"], abs(down).max(0))
    up, down = up / s[:, None], down * s
    return out, dict(q_proj=q, k_proj=k, v_proj=v, o_proj=o, gate_proj=gate, up_proj=up, down_proj=down)


def watch(model):
    """Largest absolute values of the inputs of the products, by layer and product."""
    seen = [{} for _ in model.model.layers]
    for i, layer in enumerate(model.model.layers):
        for name, module in [*layer.self_attn.named_children(), *layer.mlp.named_children()]:
            if name in ("q_proj", "o_proj", "gate_proj", "down_proj"):
                module.register_forward_pre_hook(
                    lambda _, x, i=i, name=name: seen[i].update({name: x[0].abs().reshape(-1, x[0].shape[-1]).amax(0).double().numpy()}))
    return seen


def main(path):
    transformers.AttentionInterface.register("kv16", attention)
    transformers.AttentionMaskInterface.register("kv16", transformers.masking_utils.eager_mask)
    cases = []
    for name, cls, numbers in (m for m in MODELS if m[0] in NAMES):
        config = getattr(transformers, cls).config_class(**json.loads(json.dumps(numbers)), attn_implementation="kv16")
        model = getattr(transformers, cls)(config).eval()
        add = 1.0 if "Gemma" in cls else 0.0
        with torch.no_grad():
            for k, (key, tensor) in enumerate(model.named_parameters(), start=1):
                norm = "norm" in key
                exponent = -9 if norm else -6 if tensor.dim() == 1 or "embed" in key else -8
                tensor.copy_(torch.from_numpy(values(k, tensor.numel(), exponent)).reshape(tensor.shape) + (1.0 if norm and not add else 0.0))
            seen = watch(model)
            model(torch.tensor([[int(v) % 64 for v in values(0, N_IDS, 0)]]))
        layers = []
        for layer, inputs in zip(model.model.layers, seen):
            vectors, matrices = quantize(layer, inputs, config, add)
            entry = {n: [float(f"{x:.7g}") for x in v] for n, v in vectors.items()}
            for n, w in matrices.items():
                scale, q = rounded(w)
                entry[n] = {"scale": [float(f"{x:.7g}") for x in scale], "q": base64.b64encode(q.astype(numpy.int8).tobytes()).decode()}
            layers.append(entry)
        cases.append({"name": name, "layers": [layers[0], layers[-1]]})
    with open(path, "w") as f:
        json.dump(cases, f, separators=(",", ":"))
        f.write("\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
