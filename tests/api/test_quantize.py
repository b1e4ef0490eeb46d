"""`inferd quantize` as a user meets it: the files that it writes, its answers, interruptions, refusals."""

import json
import os
import resource
import signal
import struct
import subprocess
import time

import pytest
from conftest import INFERD, SLOW
from safetensors import deserialize

WRITE_TINY = os.path.join(os.path.dirname(INFERD), "tests", "engine", "write_tiny_model")
LAYERS, EMBD, Q, KV, FF, ROWS = 3, 64, 128, 64, 96, 260


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("quantize")
    path = folder / "tiny.gguf"
    subprocess.run([WRITE_TINY, path], check=True)
    (folder / "text").write_text("the quick brown fox jumps over the lazy dog, again and again. " * 80)
    return path


def quantize(*arguments, **more):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("INFERD")}
    return subprocess.run([INFERD, "quantize", *map(str, arguments)], capture_output=True, text=True, env=environment,
                          timeout=120 * SLOW, **more)


def refused(done, code, *words):
    assert done.returncode == code, (done.returncode, done.stderr)
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("inferd: "), done.stderr
    for word in words:
        assert word in lines[0], lines[0]


def tensors(folder):
    """Each by name, as the library of the format reads it: dtype, shape, bytes."""
    found = {}
    for name in sorted(os.listdir(folder)):
        if name.endswith(".safetensors"):
            with open(os.path.join(folder, name), "rb") as f:
                found.update(deserialize(f.read()))
    return found


def expected_shapes():
    shapes = {"model.embed_tokens.weight": ("BF16", [ROWS, EMBD]), "model.norm.weight": ("BF16", [EMBD]),
              "lm_head.weight": ("BF16", [ROWS, EMBD])}
    linear = {"self_attn.q_proj": (Q, EMBD), "self_attn.k_proj": (KV, EMBD), "self_attn.v_proj": (KV, EMBD), "self_attn.o_proj": (EMBD, Q),
              "mlp.gate_proj": (FF, EMBD), "mlp.up_proj": (FF, EMBD), "mlp.down_proj": (EMBD, FF)}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        shapes[prefix + "input_layernorm.weight"] = shapes[prefix + "post_attention_layernorm.weight"] = ("BF16", [EMBD])
        for name, (n, k) in linear.items():
            shapes[prefix + name + ".weight"] = ("I8", [n, k])
            shapes[prefix + name + ".weight_scale"] = ("BF16", [n, 1])
    return shapes


def test_the_files(model, tmp_path):
    out = tmp_path / "out"
    done = quantize(model, out, "--calibration", model.parent / "text", "--samples", 2, "--sample-tokens", 64, "--json")
    assert done.returncode == 0 and done.stderr == "", done.stderr
    answer = json.loads(done.stdout)
    assert answer["layers"] == LAYERS and answer["resumed_layers"] == 0 and answer["files"] == 1 and answer["calibration_tokens"] == 128
    assert 0 < answer["weight_error"] < 0.03
    assert sorted(os.listdir(tmp_path)) == ["out"]
    assert sorted(os.listdir(out)) == ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]

    found = tensors(out)
    shapes = {name: (t["dtype"], list(t["shape"])) for name, t in found.items()}
    assert shapes == expected_shapes()
    assert answer["bytes"] == sum(len(t["data"]) for t in found.values())
    for name, t in found.items():
        if name.endswith("_proj.weight"):  # each row uses the whole range, and never -128
            n, k = t["shape"]
            rows = struct.unpack(f"{n * k}b", t["data"])
            assert min(rows) >= -127
            assert all(max(map(abs, rows[i * k:(i + 1) * k])) >= 126 for i in range(n)), name

    config = json.loads((out / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"] and config["model_type"] == "llama"
    assert (config["hidden_size"], config["num_hidden_layers"], config["head_dim"], config["vocab_size"]) == (EMBD, LAYERS, 32, ROWS)
    assert config["rms_norm_eps"] == 1e-5 and config["rope_theta"] > 0
    quantization = config["quantization_config"]
    assert quantization["quant_method"] == "compressed-tensors" and quantization["format"] == "int-quantized"
    assert quantization["ignore"] == ["lm_head"] and quantization["kv_cache_scheme"] is None
    group = quantization["config_groups"]["group_0"]
    assert group["targets"] == ["Linear"] and group["output_activations"] is None
    weights, inputs = group["weights"], group["input_activations"]
    assert (weights["num_bits"], weights["type"], weights["symmetric"], weights["strategy"], weights["dynamic"]) == (8, "int", True, "channel", False)
    assert (inputs["num_bits"], inputs["type"], inputs["symmetric"], inputs["strategy"], inputs["dynamic"]) == (8, "int", True, "token", True)
    tokenizer = json.loads((out / "tokenizer_config.json").read_text())
    assert "add_generation_prompt" in tokenizer["chat_template"]


def test_the_tokenizer_is_the_same(model, tmp_path):
    out = tmp_path / "out"
    assert quantize(model, out, "--alpha", 0).returncode == 0
    texts = ["Hello ab\n", "naïve 今天 \U0001f469", "<|bos|>ab<|eos|>", "  \t "]
    ids = []
    for path in (model, out):
        done = subprocess.run([INFERD, "tokenize", "-m", path, "--jsonl"], input="".join(json.dumps({"text": t}) + "\n" for t in texts),
                              capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        ids.append(done.stdout)
    assert ids[0] == ids[1]


def test_a_terminated_run_goes_on(model, tmp_path):
    out, whole = tmp_path / "out", tmp_path / "whole"
    # enough text that there is time for a signal
    arguments = ["--calibration", model.parent / "text", "--samples", "64", "--sample-tokens", "64", "--gptq"]
    assert quantize(model, whole, *arguments).returncode == 0
    for delay in (0.02, 0.1, 0.3):
        process = subprocess.Popen([INFERD, "quantize", model, out, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        time.sleep(delay * SLOW)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60 * SLOW)
        if process.returncode == 0:
            break
        assert process.returncode in (1, -signal.SIGINT) and not out.exists()
        if process.returncode == 1:
            assert "goes on" in err
    done = quantize(model, out, *arguments)
    assert done.returncode == 0 or out.exists()
    for name in os.listdir(whole):
        assert (out / name).read_bytes() == (whole / name).read_bytes(), name


def test_a_disk_that_is_full(model, tmp_path):
    out = tmp_path / "out"
    full = quantize(model, out, "--alpha", 0, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536)))
    refused(full, 1, "model.safetensors", "File too large")
    assert not out.exists()
    assert quantize(model, out, "--alpha", 0).returncode == 0


def test_refusals(model, tmp_path):
    text = model.parent / "text"
    out = tmp_path / "out"
    refused(quantize(model), 2, "two names")
    refused(quantize(model, out), 2, "--calibration FILE", "--alpha 0")
    refused(quantize(model, out, "--alpha", 0, "--gptq"), 2, "GPTQ needs calibration text")
    refused(quantize(model, out, "--alpha", 1.5), 2, "--alpha")
    refused(quantize(model, out, "--clip", "best"), 2, "--clip")
    refused(quantize(model, out, "--calibration", tmp_path / "nowhere"), 1, "nowhere")
    refused(quantize(tmp_path / "none.gguf", out, "--alpha", 0), 78, "none.gguf")
    (tmp_path / "bad.gguf").write_bytes(model.read_bytes()[:5000])
    refused(quantize(tmp_path / "bad.gguf", out, "--alpha", 0), 78, "bad.gguf")
    refused(quantize(model, "/proc/out", "--alpha", 0), 1, "/proc/out")
    out.mkdir()
    (out / "notes").write_text("mine")
    refused(quantize(model, out, "--alpha", 0), 2, "exists")
    refused(quantize(model, out, "--alpha", 0, "--force"), 2, "not a model folder")
    assert (out / "notes").read_text() == "mine"
    refused(quantize(model, model.parent, "--alpha", 0, "--force"), 2, "the model itself")
    assert text.exists() and sorted(os.listdir(tmp_path)) == ["bad.gguf", "out"]
