#!/usr/bin/env python3
"""Record what independent implementations compute for tiny quantised checkpoints of every layout: make_quantized.py OUT.json, for
test_quantized.c.

No tensors are stored: a stored tensor (packed words, scales ...) is made of a hash of (tensor, index), here and in the test. Here the
compressed-tensors package unpacks its own layouts, a few lines of numpy by their public definitions those of GPTQ, AWQ and the others, and
transformers computes the logits in F32 with the dequantised weights and, where the scheme quantises them, quantised activations.
Made with transformers 5.24.0, torch 2.15.0, compressed-tensors 0.20.1.
"""

import json
import sys

import numpy
import torch
import transformers
from compressed_tensors.compressors import unpack_from_int32

N_IDS = 30
POSITIONS = [0, 5, 17, 29]
K, FF, V, KV, LAYERS = 64, 96, 64, 32, 2

CONFIG = dict(architectures=["LlamaForCausalLM"], hidden_size=K, intermediate_size=FF, num_hidden_layers=LAYERS, num_attention_heads=4,
              num_key_value_heads=2, vocab_size=V, max_position_embeddings=128, rms_norm_eps=1e-5, tie_word_embeddings=False,
              hidden_act="silu", rope_theta=10000.0)
LINEARS = [("self_attn.q_proj", K, K), ("self_attn.k_proj", KV, K), ("self_attn.v_proj", KV, K), ("self_attn.o_proj", K, K),
           ("mlp.gate_proj", FF, K), ("mlp.up_proj", FF, K), ("mlp.down_proj", K, FF)]


def hashed(tensor, n):
    """splitmix64 of (tensor << 32) + i."""
    z = (numpy.uint64(tensor << 32) + numpy.arange(n, dtype=numpy.uint64)) * numpy.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    return z ^ (z >> numpy.uint64(31))


# What test_quantized.c knows to make of a hash h, given an exponent e:
#   "float"  the top byte as a signed number, times 2^e, plus `add`
#   "scale"  (top 6 bits + 32) * 2^e: positive, and its products with small integers are exact in 16 bits
#   "bytes"  the top byte (I8), or the top half (I32)
#   "e4m3"   the top byte without the highest bit of the exponent: no NaN, below 2
#   a list   the elements themselves
class Case:
    def __init__(self, name, quantization, **more):
        self.name, self.quantization = name, quantization
        self.more = more
        self.tensors, self.weights = [], {}

    def put(self, name, dtype, shape, kind, e=0, add=0.0):
        """A stored tensor; returns its elements."""
        self.tensors.append([name, dtype, list(shape), kind, e, add])
        n = int(numpy.prod(shape)) if shape else 1
        if isinstance(kind, list):
            return numpy.array(kind).reshape(shape)
        h = hashed(len(self.tensors), n)
        top = (h >> numpy.uint64(56)).astype(numpy.uint8)
        if kind == "float":
            v = top.astype(numpy.int8).astype(numpy.float32) * numpy.float32(2.0**e) + numpy.float32(add)
        elif kind == "scale":
            v = ((top >> 2).astype(numpy.float32) + 32) * numpy.float32(2.0**e)
        elif kind == "e4m3":
            v = torch.from_numpy(top & 0xBF).view(torch.float8_e4m3fn).float().numpy()
        elif dtype == "I8":
            v = top.astype(numpy.int8)
        else:
            v = (h >> numpy.uint64(32)).astype(numpy.uint32).astype(numpy.int32)
        return v.reshape(shape)


def words(a):
    return a.astype(numpy.int64) & 0xFFFFFFFF


# ---- layouts: each stores a module's tensors and returns its weights [n][k] and how its input is quantised ----


def plain(case, p, n, k, dtype="BF16", e=-8):
    return case.put(p + ".weight", dtype, [n, k], "float", e), None


def ct_int8(case, p, n, k, scale="BF16", shape=None, zeros=None, static=False, activation="token"):
    q = case.put(p + ".weight", "I8", [n, k], "bytes").astype(numpy.float32)
    s = case.put(p + ".weight_scale", scale, [n, 1] if shape is None else [n] if shape == "n" else [1], "scale", -14)
    z = 0
    if zeros == "zero":
        case.put(p + ".weight_zero_point", "I8", [n, 1], [0] * n)
    elif zeros:
        z = case.put(p + ".weight_zero_point", "I8", [n, 1], "bytes").astype(numpy.float32)
    how = (activation, None, None)
    if static:
        a = case.put(p + ".input_scale", "F32", [1], "scale", -10)
        zero = 0
        if static == "asymmetric":
            zero = int(case.put(p + ".input_zero_point", "I8", [1], [-9])[0])
        how = ("static", float(a[0]), zero)
    return s.reshape(-1, 1) * (q - z), how if activation else None


def ct_packed(case, p, n, k, bits=4, group=32, symmetric=True, order=False, scale="BF16"):
    per, groups = 32 // bits, 1 if group < 0 else k // group
    w = case.put(p + ".weight_packed", "I32", [n, -(-k // per)], "bytes")
    s = case.put(p + ".weight_scale", scale, [n, groups], "scale", -10 if bits == 4 else -14)
    case.put(p + ".weight_shape", "I64", [2], [n, k])
    z = numpy.zeros((n, groups))
    if not symmetric:
        packed = case.put(p + ".weight_zero_point", "I32", [n // per, groups], "bytes")
        z = unpack_from_int32(torch.from_numpy(packed), bits, torch.Size([n, groups]), packed_dim=0).numpy()
    g = numpy.arange(k) // (k if group < 0 else group)
    if order:
        g = numpy.array([(i * 7 + 3) % groups for i in range(k)])
        case.put(p + ".weight_g_idx", "I32", [k], g.tolist())
    q = unpack_from_int32(torch.from_numpy(w), bits, torch.Size([n, k])).numpy().astype(numpy.float32)
    return (s[:, g] * (q - z[:, g])).astype(numpy.float32), None


def gptq(case, p, n, k, bits=4, group=32, sym=True, order=False, v2=False, bias=False):
    per, mask = 32 // bits, (1 << bits) - 1
    groups = 1 if group < 0 else k // group
    w = words(case.put(p + ".qweight", "I32", [k // per, n], "bytes"))
    middle = (1 << (bits - 1)) - (0 if v2 else 1)
    word = sum(middle << (bits * i) for i in range(per))
    constant = [word - (1 << 32) if word >= 1 << 31 else word] * (groups * n // per)
    z = words(case.put(p + ".qzeros", "I32", [groups, n // per], constant if sym else "bytes"))
    s = case.put(p + ".scales", "F16", [groups, n], "scale", -10 if bits == 4 else -14)
    g = numpy.arange(k) // (k if group < 0 else group)
    if order:
        g = numpy.array([(i * 5 + 1) % groups for i in range(k)])
    case.put(p + ".g_idx", "I32", [k], g.tolist())
    if bias:
        case.put(p + ".bias", "F16", [n], [0] * n)
    shifts = numpy.arange(per) * bits
    q = (w[:, None, :] >> shifts[None, :, None] & mask).reshape(k, n)
    zero = (z[:, :, None] >> shifts[None, None, :] & mask).reshape(groups, n)
    zero = zero if v2 else (zero + 1) & mask
    return (s[g] * (q - zero[g]).astype(numpy.float32)).T.copy(), None


def awq(case, p, n, k, group=32):
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    w = words(case.put(p + ".qweight", "I32", [k, n // 8], "bytes"))
    z = words(case.put(p + ".qzeros", "I32", [k // group, n // 8], "bytes"))
    s = case.put(p + ".scales", "F16", [k // group, n], "scale", -10)

    def unpack(a):
        out = numpy.zeros((a.shape[0], n), dtype=numpy.int64)
        for i, column in enumerate(order):
            out[:, column::8] = a >> (4 * i) & 15
        return out
    g = numpy.arange(k) // group
    return (s[g] * (unpack(w) - unpack(z)[g]).astype(numpy.float32)).T.copy(), None


def fp8(case, p, n, k, scale="F32", shape=(), block=None, name="weight_scale", static=False):
    w = case.put(p + ".weight", "F8_E4M3", [n, k], "e4m3")
    if static:
        case.put(p + ".input_scale", "F32", [1], "scale", -8)
    if block:
        s = case.put(p + ".weight_scale_inv", scale, [-(-n // block[0]), -(-k // block[1])], "scale", -7)
        s = numpy.repeat(numpy.repeat(s, block[0], 0)[:n], block[1], 1)[:, :k]
    else:
        s = case.put(p + "." + name, scale, [n, 1] if shape == "n" else list(shape), "scale", -7)
    return w * s, None


def smooth_quant(case, p, n, k):
    q = case.put(p + ".weight", "I8", [n, k], "bytes").astype(numpy.float32)
    return q * case.put(p + ".scale", "F32", [n, 1], "scale", -14), ("token", None, None)


def bitsandbytes(case, p, n, k):
    q = case.put(p + ".weight", "I8", [n, k], "bytes").astype(numpy.float32)
    scb = case.put(p + ".SCB", "F32", [n], "scale", -7)
    case.put(p + ".weight_format", "U8", [], [0])
    return q * (scb[:, None] / numpy.float32(127)), None


# ---- configurations ----

INT8 = dict(num_bits=8, type="int", symmetric=True, strategy="channel", group_size=None, dynamic=False, actorder=None, observer="minmax",
            block_structure=None, observer_kwargs={})
TOKEN = dict(INT8, strategy="token", dynamic=True, observer=None)


def ct(format, weights, inputs=None, ignore=("lm_head",), **more):
    group = dict(targets=["Linear"], weights=weights, input_activations=inputs, output_activations=None)
    return dict(quant_method="compressed-tensors", format=format, quantization_status="compressed", kv_cache_scheme=None,
                ignore=list(ignore), global_compression_ratio=1.5, config_groups=dict(group_0=group), **more)


GPTQ = dict(quant_method="gptq", bits=4, group_size=32, desc_act=False, sym=True, lm_head=False, damp_percent=0.01, true_sequential=True,
            model_file_base_name="model")
PACK4 = dict(INT8, num_bits=4, strategy="group", group_size=32)
ROUND = dict(round=True, dtype="BF16")
FLOAT, TOKEN_ROW, TOKEN_ZERO, STATIC = range(4)


def cases():
    """(case, layout of the matrices of layers, layout of the head)"""
    yield Case("compressed-tensors W8A8", ct("int-quantized", INT8, TOKEN), dtype="I8", activation=TOKEN_ROW), ct_int8, plain
    yield (Case("W8A8, one scale a matrix, static asymmetric activations, head too",
                ct("int-quantized", dict(INT8, strategy="tensor"), dict(INT8, strategy="tensor", symmetric=False), ignore=[]), dtype="I8",
                activation=STATIC),
           lambda c, *a: ct_int8(c, *a, scale="F32", shape="1", static="asymmetric"),
           lambda c, *a: ct_int8(c, *a, scale="F32", shape="1", static="asymmetric"))
    yield (Case("W8A8, static symmetric activations",
                ct("int-quantized", INT8, dict(INT8, strategy="tensor"), ignore=["re:.*lm_head"]), dtype="I8", activation=STATIC),
           lambda c, *a: ct_int8(c, *a, scale="F16", static="symmetric"), plain)
    yield (Case("W8A8, activations with zero points, scales of a KV cache, zeros as zero points",
                ct("int-quantized", INT8, dict(TOKEN, symmetric=False)), dtype="I8", activation=TOKEN_ZERO, kv_scales=True),
           lambda c, *a: ct_int8(c, *a, scale="F16", shape="n", zeros="zero", activation="token_zero"), plain)
    yield (Case("INT8 with zero points", ct("int-quantized", dict(INT8, symmetric=False), TOKEN), **ROUND),
           lambda c, *a: ct_int8(c, *a, zeros=True, activation=None), plain)
    yield (Case("compression_config, weight-only", dict(ct("int-quantized", INT8), key="compression_config"), dtype="I8"),
           lambda c, *a: ct_int8(c, *a, activation=None), plain)
    yield Case("pack-quantized W4A16", ct("pack-quantized", PACK4), dtype="Q4_0"), ct_packed, plain
    yield (Case("pack-quantized W4A16 with zero points", ct("pack-quantized", dict(PACK4, symmetric=False)), dtype="Q4_1"),
           lambda c, *a: ct_packed(c, *a, symmetric=False), plain)
    yield (Case("pack-quantized W4A16, groups by importance", ct("pack-quantized", dict(PACK4, actorder="group")), **ROUND),
           lambda c, *a: ct_packed(c, *a, order=True, scale="F32"), plain)
    yield (Case("pack-quantized W8A16", ct("pack-quantized", INT8), dtype="I8"), lambda c, *a: ct_packed(c, *a, bits=8, group=-1), plain)
    yield (Case("pack-quantized W8A16 in groups", ct("pack-quantized", dict(PACK4, num_bits=8)), dtype="Q8_0"),
           lambda c, *a: ct_packed(c, *a, bits=8), plain)
    yield Case("GPTQ", GPTQ, dtype="Q4_0"), gptq, plain
    yield (Case("GPTQ asymmetric, in quantize_config.json",
                {k: v for k, v in dict(GPTQ, sym=False, file="quantize_config.json").items() if k != "quant_method"}, dtype="Q4_1"),
           lambda c, *a: gptq(c, *a, sym=False, bias=True), plain)
    yield (Case("GPTQ v2 with desc_act, dynamic rules, the head too",
                dict(GPTQ, desc_act=True, sym=False, checkpoint_format="gptq_v2", lm_head=True,
                     dynamic={"-:.*down_proj": {}, "+:lm_head": {"bits": 8}}), **ROUND),
           lambda c, p, n, k: plain(c, p, n, k, "F16") if "down" in p else gptq(c, p, n, k, sym=False, order=True, v2=True),
           lambda c, *a: gptq(c, *a, bits=8, sym=False, order=True, v2=True))
    yield (Case("GPTQ of 8 bits", dict(GPTQ, bits=8, group_size=-1), dtype="I8"), lambda c, *a: gptq(c, *a, bits=8, group=-1), plain)
    yield (Case("GPTQ of 8 bits in groups", dict(GPTQ, bits=8), dtype="Q8_0"), lambda c, *a: gptq(c, *a, bits=8), plain)
    yield (Case("AWQ", dict(quant_method="awq", bits=4, group_size=32, zero_point=True, version="gemm",
                            modules_to_not_convert=["mlp.down_proj"]), dtype="Q4_1"),
           lambda c, p, n, k: plain(c, p, n, k, "F16") if "down" in p else awq(c, p, n, k), plain)
    yield (Case("FP8", dict(quant_method="fp8", activation_scheme="static", ignored_layers=["lm_head"]), **ROUND),
           lambda c, *a: fp8(c, *a, shape=(1,), static=True), plain)
    yield (Case("FP8 in blocks", dict(quant_method="fp8", activation_scheme="dynamic", fmt="e4m3", weight_block_size=[48, 40]), **ROUND),
           lambda c, *a: fp8(c, *a, block=(48, 40)), plain)
    yield (Case("compressed-tensors FP8", ct("float-quantized", dict(INT8, type="float"), dict(TOKEN, type="float")), **ROUND),
           lambda c, *a: fp8(c, *a, scale="BF16", shape="n"), plain)
    yield (Case("ModelOpt FP8, in hf_quant_config.json",
                dict(producer=dict(name="modelopt", version="0.1"), file="hf_quant_config.json",
                     quantization=dict(quant_algo="FP8", kv_cache_quant_algo="FP8", exclude_modules=["lm_head", "*down_p*"])),
                kv_scales=True, **ROUND),
           lambda c, p, n, k: plain(c, p, n, k) if "down" in p else fp8(c, p, n, k, static=True), plain)
    yield (Case("SmoothQuant of LMDeploy", dict(quant_method="smooth_quant", quant_dtype="int8", modules_to_not_convert=["lm_head"]),
                dtype="I8", activation=TOKEN_ROW), smooth_quant, plain)
    yield (Case("w8a8_int8 of SGLang", dict(quant_method="w8a8_int8"), dtype="I8", activation=TOKEN_ROW),
           lambda c, *a: ct_int8(c, *a, scale="F32"), plain)
    yield (Case("bitsandbytes of 8 bits", dict(quant_method="bitsandbytes", load_in_8bit=True, load_in_4bit=False,
                                               llm_int8_skip_modules=None), dtype="I8"), bitsandbytes, plain)
    # made at load
    f32 = lambda c, *a: plain(c, *a, dtype="F32")  # noqa: E731
    yield Case("weights = int8", None, weights="int8", dtype="I8", activation=TOKEN_ROW, head="int8"), f32, f32
    yield Case("weights = int8-weight-only", None, weights="int8-weight-only", dtype="Q8_0", head="int8-weight-only"), f32, f32
    yield (Case("weights = bf16 of F16", None, weights="bf16", **ROUND), lambda c, *a: plain(c, *a, dtype="F16"), f32)
    yield (Case("weights = int8 of W8A8", ct("int-quantized", INT8, TOKEN), weights="int8", dtype="I8", activation=TOKEN_ROW,
                head="int8"), ct_int8, plain)
    yield (Case("weights = int8-weight-only of W8A8", ct("int-quantized", INT8, TOKEN), weights="int8-weight-only", dtype="I8",
                head="int8-weight-only"), lambda c, *a: (ct_int8(c, *a)[0], None), plain)
    yield (Case("weights = bf16 of W8A8", ct("int-quantized", INT8, TOKEN), weights="bf16", **ROUND),
           lambda c, *a: (ct_int8(c, *a)[0], None), plain)
    yield (Case("weights = int8 of GPTQ", GPTQ, weights="int8", dtype="I8", activation=TOKEN_ROW, head="int8"), gptq, plain)


# ---- computing ----


def quantise_rows(w):
    """absmax / 127, to nearest even."""
    s = numpy.abs(w).max(axis=1, keepdims=True) / numpy.float32(127)
    return s * numpy.rint(w / s)


def quantise_blocks(w):
    """Q8_0: the same for each 32 elements, by a scale of F16; a subnormal one is rounded up."""
    blocks = w.reshape(-1, 32)
    s = numpy.abs(blocks).max(axis=1, keepdims=True) / numpy.float32(127)
    half = s.astype(numpy.float16)
    half = numpy.where((s < 2.0**-14) & (half.astype(numpy.float32) < s), numpy.nextafter(half, numpy.float16(numpy.inf)), half).astype(numpy.float32)
    return (half * numpy.rint(blocks / half)).reshape(w.shape)


def quantise(w, setting):
    """A matrix of floats as the setting `weights` makes it, and its activations."""
    return (quantise_rows(w), ("token", None, None)) if setting == "int8" else (quantise_blocks(w), None)


class Quantised(torch.nn.Module):
    """A linear layer whose input is rounded to 8 bits: exact sums, in double."""

    def __init__(self, weight, how):
        super().__init__()
        self.weight, (self.how, self.scale, self.zero) = torch.from_numpy(weight), how

    def forward(self, x):
        x = x.float()
        z = torch.zeros(())
        if self.how == "static":
            s, z = torch.tensor(self.scale), torch.tensor(float(self.zero))
        elif self.how == "token":
            s = x.abs().amax(-1, keepdim=True) / 127
            s = torch.where(s == 0, torch.ones(()), s)
        else:
            low, high = x.amin(-1, keepdim=True).clamp(max=0), x.amax(-1, keepdim=True).clamp(min=0)
            s = (high - low) / 255
            s = torch.where(s == 0, torch.ones(()), s)
            z = (-128 - (low / s).round()).clamp(-128, 127)
        q = ((x / s).round() + z).clamp(-128, 127) - z
        return ((q.double() * s.double()) @ self.weight.double().T).float()


def attention(module, query, key, value, attention_mask, scaling, **rest):
    """Eager attention on K and V rounded to F16, as the engine's KV cache holds them."""
    groups = query.shape[1] // key.shape[1]
    key, value = (t.half().float().repeat_interleave(groups, dim=1) for t in (key, value))
    scores = query @ key.transpose(2, 3) * scaling + attention_mask[:, :, :, :key.shape[2]]
    return (scores.softmax(dim=-1) @ value).transpose(1, 2).contiguous(), None


def round_bf16(w):
    return torch.from_numpy(numpy.ascontiguousarray(w)).bfloat16().float().numpy()


def make_at_load(case, w, how):
    """What the setting does to a matrix whose weights are w."""
    setting = case.more.get("weights", "auto")
    if setting.startswith("int8") and not case.name.endswith("W8A8"):
        return quantise(w, setting)
    return w, how


def build(case, layout, head):
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**CONFIG, attn_implementation="kv16")).eval()
    params = dict(model.named_parameters())
    rounded = round_bf16 if case.more.get("round") else lambda w: w
    with torch.no_grad():
        for name, shape, e, add in [("model.embed_tokens.weight", [V, K], -6, 0.0), ("model.norm.weight", [K], -9, 1.0)] + [
                (f"model.layers.{i}.{n}.weight", [K], -9, 1.0) for i in range(LAYERS) for n in ("input_layernorm", "post_attention_layernorm")]:
            v = case.put(name, "F32", shape, "float", e, add)
            if "embed" in name and case.more.get("weights", "").startswith("int8"):
                v = quantise(v, case.more["weights"])[0]
            params[name].copy_(torch.from_numpy(v))
        modules = [("lm_head", V, K)] + [(f"model.layers.{i}.{n}", a, b) for i in range(LAYERS) for n, a, b in LINEARS]
        for name, n, k in modules:
            w, how = (head if name == "lm_head" else layout)(case, name, n, k)
            if name == "lm_head" and case.more.get("head"):
                w, how = quantise(w, case.more["head"])
            elif name != "lm_head":
                w, how = make_at_load(case, w, how)
            w = rounded(w).astype(numpy.float32)
            if how:
                parent, _, leaf = name.rpartition(".")
                setattr(model.get_submodule(parent), leaf, Quantised(w, how))
            else:
                params[name + ".weight"].copy_(torch.from_numpy(w))
        if case.more.get("kv_scales"):
            for i in range(LAYERS):
                case.put(f"model.layers.{i}.self_attn.k_scale", "F32", [1], "scale", -6)
                case.put(f"model.layers.{i}.self_attn.v_scale", "F32", [], "scale", -6)
    return model


def main(out):
    transformers.AttentionInterface.register("kv16", attention)
    transformers.AttentionMaskInterface.register("kv16", transformers.masking_utils.eager_mask)
    ids = [int(v) for v in hashed(0, N_IDS) >> numpy.uint64(58)]
    records = []
    for case, layout, head in cases():
        model = build(case, layout, head)
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0]
        quantization, files = case.quantization and dict(case.quantization), {}
        config = dict(CONFIG)
        if quantization:
            key, file = quantization.pop("key", "quantization_config"), quantization.pop("file", None)
            if file:
                files[file] = quantization
            else:
                config[key] = quantization
        more = {k: case.more[k] for k in ("weights", "dtype", "activation") if k in case.more}
        records.append(dict(name=case.name, config=config, files=files, **more, tensors=case.tensors, ids=ids, positions=[
            {"at": p, "logits": [float(f"{v:.6g}") for v in logits[p].tolist()]} for p in POSITIONS]))
        print(case.name, "largest logit", float(logits.abs().max()), "spread", float(logits.std()), file=sys.stderr)
    with open(out, "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(r, separators=(",", ":")) for r in records) + "\n]\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
