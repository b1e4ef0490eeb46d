"""`inferd plan` as users run it, and beside what the daemon takes and says."""

import json
import os
import re
import subprocess
import xml.etree.ElementTree as ET

import pytest

from conftest import INFERD
from faults import BUILD, write_tiny_model


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("plan") / "tiny.gguf")


def plan(*args, code=0):
    p = subprocess.run([INFERD, "plan", *map(str, args)], capture_output=True, text=True, timeout=60)
    assert p.returncode == code, (args, p.returncode, p.stdout[-500:], p.stderr)
    return p


def plan_json(*args, code=0):
    return json.loads(plan(*args, "--json", code=code).stdout)


def planned(daemon):
    page = daemon.get("/metrics").body.decode()
    return {k: float(v) for k, v in re.findall(r'^inferd_memory_planned_bytes\{[^}]*kind="(\w+)"[^}]*\} (\S+)$', page, re.M)}


@pytest.mark.parametrize("flags", [
    ["--ctx", "256", "--batch", "4"],
    ["--ctx", "200", "--batch", "3", "--kv", "int8", "--weights", "int8"],
    ["--ctx", "128", "--batch", "2", "--kv-block-size", "32", "--weights", "bf16", "--max-batched-tokens", "64"],
])
def test_as_the_daemon_takes(start, tiny_model, flags):
    """Within one in a hundred of what the CPU backend is asked for, part by part."""
    answer = plan_json(tiny_model, "--gpu", "cpu", *flags)
    rank = answer["ranks"][0]
    batch, ctx = int(flags[flags.index("--batch") + 1]), int(flags[flags.index("--ctx") + 1])
    block = int(flags[flags.index("--kv-block-size") + 1]) if "--kv-block-size" in flags else 16
    tokens = batch * -(-ctx // block) * block
    real = planned(start(model=tiny_model, device="cpu", max_model_len=None, kv_tokens=tokens, arguments=flags).wait_ready())
    for kind, key in (("weights", "weights_bytes"), ("workspace", "workspace_bytes"), ("kv", "kv_bytes")):
        assert abs(rank[key] - real[kind]) <= 0.01 * real[kind], (kind, rank, real)
    assert rank["total_bytes"] == sum(rank[k] for k in ("weights_bytes", "workspace_bytes", "kv_bytes"))


def test_without_numbers_as_the_daemon_chooses(start, tiny_model):
    answer = plan_json(tiny_model, "--gpu", "cpu")
    real = planned(start(model=tiny_model, device="cpu", max_model_len=None, kv_tokens=None).wait_ready())
    assert abs(answer["ranks"][0]["kv_bytes"] - real["kv"]) <= 0.01 * real["kv"]


def test_keys_of_the_json():
    a = plan_json("llama-2-70b", "--gpu", "a100-40gx4", "--ctx", 4096, "--batch", 32, code=3)
    assert {"fits", "ranks", "parameters", "kv_bytes_per_token", "max_tokens", "max_sequences", "max_context", "binding", "valid_tp",
            "estimate", "warnings", "remedies"} <= set(a)
    assert set(a["ranks"][0]) >= {"weights_bytes", "kv_bytes", "workspace_bytes", "graph_bytes", "communication_bytes", "context_bytes",
                                  "margin_bytes", "total_bytes", "usable_bytes"}
    assert a["fits"] is False and len(a["ranks"]) == 4 and a["valid_tp"] == [1, 2, 4, 8, 16, 32, 64]
    assert a["remedies"][0]["fits"] and a["shortage_bytes"] > 0
    again = plan_json("llama-2-70b", "--gpu", "a100-40gx4", "--ctx", 4096, "--batch", 32, *a["remedies"][0]["flags"].split())
    assert again["fits"] and again["ranks"][0]["total_bytes"] == a["remedies"][0]["total_bytes"]


@pytest.mark.parametrize("args, code, words", [
    (["llama-3-8b", "--gpu", "a100-80g"], 0, "It fits."),
    (["llama-3-70b", "--gpu", "a100-80g"], 3, "It does NOT fit."),
    (["llama-3-70b", "--gpu", "nothing"], 2, "no card"),
    (["llama-3-70b", "--gpu", "a100-80g", "--ctx", 1 << 31, "--batch", 1 << 31], 2, "must be an integer from 0 to"),
    (["llama-3-70b", "--tp", 0.5], 2, "--tp"),
    (["no-such-model", "--gpu", "cpu"], 78, "neither a file nor the name"),
    (["--gpu", "cpu"], 2, "no model is named"),
    (["mixtral-8x7b", "--gpu", "a100-80gx2"], 0, "a mixture of 8 experts"),
    (["mixtral-8x7b", "--gpu", "a100-80gx2"], 0, "cannot run this model yet"),
    (["llama-3-8b", "--gpu", "t4x4"], 0, "does not run on this card"),
    (["llama-3-8b", "--gpu", "a100-80gx16", "--ctx", 4096], 0, "each is kept 2 times"),
    (["gemma-3-1b", "--gpu", "l4"], 0, "sliding window of 512"),
    (["smollm2-135m", "--gpu", "l4"], 0, "tied"),
])
def test_codes_and_words(args, code, words):
    p = plan(*args, code=code)
    assert words in p.stdout + p.stderr


def test_bad_files(tmp_path):
    for name, content in (("config.json", b"{"), ("config.json", b"[" * 100000), ("a.gguf", b"GGUF"), ("model.safetensors", b"\0" * 7)):
        path = tmp_path / name
        path.write_bytes(content)
        assert str(path) in plan(path, "--gpu", "cpu", code=78).stderr


def test_folder_with_a_bare_config(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 128, "vocab_size": 1000, "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "torch_dtype": "float32"}))
    a = plan_json(tmp_path, "--gpu", "l4")
    parameters = 2 * 1000 * 64 + 64 + 2 * (64 * 64 * 2 + 32 * 64 * 2 + 3 * 128 * 64 + 2 * 64)
    assert a["parameters"] == parameters and a["file_bytes"] == 4 * parameters
    assert a["kv_bytes_per_token"] == 2 * 2 * 2 * 16 * 2


def test_prices_and_recommendation(tmp_path):
    prices = tmp_path / "prices.json"
    prices.write_text('{"l4": {"hour": 0.7, "buy": 2500}, "a100-80g": {"hour": 1.9}}')
    a = plan_json("llama-3-8b", "--gpu", "a100-80g", "--ctx", 8192, "--batch", 16, "--prices", prices)
    low, high = a["estimate"]["price_per_million_tokens"]
    rate_low, rate_high = a["estimate"]["tokens_per_second"]
    assert abs(low - 1.9 / 3600 / rate_high * 1e6) < 1e-3 * low and abs(high - 1.9 / 3600 / rate_low * 1e6) < 1e-3 * high
    options = plan_json("--recommend", "--model", "llama-3-8b", "--ctx", 8192, "--batch", 8, "--prices", prices, "--months", 24)["options"]
    assert [o["gpu"] for o in options[:2]] == ["l4", "a100-80g"] or options[0]["price_hour"] <= options[1]["price_hour"]
    assert all(o["price_hour"] > 0 for o in options[:2]) and options[0]["reason"]
    fast = plan_json("--recommend", "--model", "llama-3-8b", "--ctx", 8192, "--batch", 8, "--latency", 15)["options"]
    assert fast and all(o["token_seconds"][1] <= 0.015 for o in fast) and "l4" not in {o["gpu"] for o in fast if o["gpus"] == 1}
    plan("--recommend", "--model", "llama-3.1-405b", "--max-gpus", 1, code=3)
    prices.write_text('{"l4": {"hour": "cheap"}}')
    assert "prices.json" in plan("llama-3-8b", "--gpu", "l4", "--prices", prices, code=78).stderr
    prices.write_text('{"l4": 1.9}')
    assert "an object of hour and buy" in plan("llama-3-8b", "--gpu", "l4", "--prices", prices, code=78).stderr
    prices.write_text('{"l5": {"hour": 1}}')
    assert "l5" in plan("llama-3-8b", "--gpu", "l4", "--prices", prices, code=78).stderr


def test_training():
    a = plan_json("llama-2-7b", "--train", "full", "--gpu", "a100-80g", code=3)
    assert a["advice_only"] and a["weights_bytes"] + a["gradients_bytes"] + a["optimizer_bytes"] == 16 * 6738415616
    b = plan_json("llama-2-7b", "--train", "full", "--zero", 3, "--checkpointing", "--gpu", "a100-80gx8")
    assert b["fits"] and b["total_bytes"] < a["total_bytes"] / 4
    lora = plan_json("llama-2-7b", "--train", "lora", "--gpu", "a100-80g")
    qlora = plan_json("llama-2-7b", "--train", "qlora", "--gpu", "a100-80g")
    assert lora["trained_parameters"] == 39976960 and qlora["weights_bytes"] < 0.35 * lora["weights_bytes"]
    assert "does not train" in plan("llama-2-7b", "--train", "lora", "--gpu", "a100-80g").stdout


def test_chart(tmp_path):
    svg = tmp_path / "plan.svg"
    plan("llama-2-70b", "--gpu", "a100-80gx4", "--batch", 8, "--chart", svg)
    root = ET.parse(svg).getroot()
    rects = root.findall("{http://www.w3.org/2000/svg}rect")
    words = [t.text for t in root.findall("{http://www.w3.org/2000/svg}text")]
    assert {"rank 0", "rank 3"} <= set(words) and any("71.2 GiB" in w for w in words)
    colors = [r.get("fill") for r in rects]
    assert "#9fd39f" in colors and "#e6a3a3" in colors
    plan("llama-2-70b", "--gpu", "a100-80gx4", "--chart", tmp_path / "no" / "x.svg", code=1)


LLAMA = {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
         "intermediate_size": 128, "vocab_size": 1000, "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "torch_dtype": "float16"}


def config(tmp_path, name="config.json", **more):
    path = tmp_path / name
    path.write_text(json.dumps({**LLAMA, **more}))
    return path


@pytest.mark.parametrize("positions", [100, 1 << 30])
def test_chart_of_any_context(tmp_path, positions):
    svg = tmp_path / "plan.svg"
    plan(config(tmp_path, max_position_embeddings=positions), "--gpu", "l4", "--ctx", 64, "--chart", svg)
    assert "#9fd39f" in svg.read_text()


def test_hostile_names_come_out_whole(tmp_path):
    """What a file says is printed: no escape sequence for the terminal, and JSON and XML that can be read."""
    svg = tmp_path / "plan.svg"
    folder = tmp_path / ("a]]>&<\"" + "\u00e9" * 70)
    folder.mkdir()
    config(folder, architectures=["\u001b[31m\u009b" + "\u00e9" * 40])
    a = plan_json(folder, "--gpu", "l4", "--chart", svg)
    ET.parse(svg)
    assert a["model"].startswith("a]]>") and "\ufffd" not in a["architecture"]
    out = plan(folder, "--gpu", "l4").stdout
    assert "\u001b" not in out and "\u009b" not in out


def test_a_pipe_is_no_config(tmp_path):
    os.mkfifo(tmp_path / "config.json")
    assert "cannot be read" in plan(tmp_path / "config.json", "--gpu", "l4", code=78).stderr


@pytest.mark.parametrize("card, context, kv", [("a100-40g", 256, "f16"), ("l4", 64, "int8"), ("rtx-3080", 256, "f16")])
def test_the_most_sequences_fit_and_no_more(card, context, kv):
    flags = ["qwen2.5-0.5b", "--gpu", card, "--ctx", context, "--kv", kv]
    most = plan_json(*flags)["max_sequences"]
    assert plan_json(*flags, "--batch", most)["max_sequences"] == most
    plan(*flags, "--batch", most + 1, code=3)


@pytest.mark.parametrize("cards, flags", [("rtx-a6000x6", ["--tp 4", "--tp 2 --pp 3"]), ("rtx-a6000x12", ["--tp 4 --replicas 3"])])
def test_ranks_that_cannot_share_are_grouped_anew(cards, flags):
    a = plan_json("llama-3.1-70b", "--gpu", cards, code=3)
    assert a["binding"] == "tensor_parallel"
    assert set(flags) <= {r["flags"] for r in a["remedies"] if r["fits"]}
    plan("llama-3.1-70b", "--gpu", cards, *flags[-1].split())


def test_absurd_training_is_refused():
    p = plan("llama-3.1-405b", "--gpu", "a100-80g", "--train", "full", "--batch", 65536, "--ctx", 16777216, code=2)
    assert "no machine" in p.stderr


def test_what_does_not_go_together_is_refused(tmp_path):
    for flags in (["--recommend", "--gpu", "l4"], ["--recommend", "--train", "lora"], ["--recommend", "--chart", tmp_path / "x.svg"],
                  ["--gpu", "l4", "--train", "lora", "--chart", tmp_path / "x.svg"]):
        assert "does not go together" in plan("llama-3-8b", *flags, code=2).stderr


def test_the_cheapest_over_a_project(tmp_path):
    """A card that costs more an hour, but may be bought."""
    prices = tmp_path / "prices.json"
    prices.write_text('{"l4": {"hour": 1}, "a100-80g": {"hour": 2, "buy": 100}, "h200": {"buy": 200}}')
    flags = ["--recommend", "--model", "llama-3-8b", "--ctx", 4096, "--prices", prices]
    assert [o["gpu"] for o in plan_json(*flags)["options"][:2]] == ["l4", "a100-80g"]
    assert [o["gpu"] for o in plan_json(*flags, "--months", 12)["options"][:3]] == ["a100-80g", "h200", "l4"]
    assert "? / 200" in plan(*flags, "--months", 12).stdout


def test_parts_that_are_not_counted_are_told(tmp_path):
    text = {k: v for k, v in LLAMA.items() if k not in ("architectures", "torch_dtype")}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"architectures": ["LlavaForConditionalGeneration"], "torch_dtype": "float32", "tie_word_embeddings": True,
                                "text_config": text, "vision_config": {"hidden_size": 1024}}))
    a = plan_json(path, "--gpu", "l4")
    assert any("images" in w for w in a["warnings"]) and a["file_bytes"] == 4 * a["parameters"]
    assert a["architecture"] == "LlavaForConditionalGeneration" and any("(tied)" in w for w in a["warnings"])
    a = plan_json(config(tmp_path, architectures=["StrangeForCausalLM"], sliding_window=128), "--gpu", "l4")
    assert any("sliding window of 128" in w for w in a["warnings"])
    a = plan_json(config(tmp_path, intermediate_size=131), "--gpu", "l4x2")
    assert any("131 features" in w for w in a["warnings"])


def test_lists_as_json():
    gpus = plan_json("--gpus")["gpus"]
    assert {"t4", "a100-80g"} <= {g["name"] for g in gpus} and all(g["memory_bytes"] > 1 << 30 for g in gpus)
    assert "llama-3-8b" in plan_json("--models")["models"]


def test_lists():
    assert "a100-80g" in plan("--gpus").stdout and "data sheets" in plan("--gpus").stdout
    names = plan("--models").stdout.split()
    assert {"llama-2-7b", "llama-3.1-405b", "mixtral-8x7b", "qwen3-8b", "gemma-3-270m", "smollm2-135m", "tinyllama-1.1b"} <= set(names)
    for name in names:
        assert plan_json(name, "--gpu", "b200x8", "--tp", 1, code=3 if "405b" in name else 0)["parameters"] > 1e8


def test_the_daemon_refuses_with_the_table(tiny_model):
    p = subprocess.run([INFERD, "serve", tiny_model, "--port", "0", "--device", "cpu", "--memory-utilization", "0.01", "--ctx", "256",
                        "--kv-tokens", "1000000000"], capture_output=True, text=True, timeout=60)
    assert p.returncode == 3
    assert "does not fit" in p.stderr and "workspace" in p.stderr and "What would help" in p.stderr


@pytest.mark.skipif(not os.path.exists(os.path.join(BUILD, "tests", "emu", "inferd-cuda.so")), reason="the emulated CUDA module is not built")
def test_the_gpu_that_is_here(tiny_model):
    """Its memory is what the driver says, here the emulator's."""
    module = os.path.join(BUILD, "tests", "emu", "inferd-cuda.so")
    p = subprocess.run([INFERD, "plan", tiny_model, "--gpu", "local", "--cuda-module", module, "--json"], capture_output=True, text=True,
                       timeout=60, env={**os.environ, "INFERD_EMU": "fast,memory=2G"})
    assert p.returncode == 0, p.stderr
    rank = json.loads(p.stdout)["ranks"][0]
    assert rank["usable_bytes"] == int(0.9 * (2 << 30)) and rank["context_bytes"] > 0 and rank["graph_bytes"] > 0


def test_no_gpu_is_here(tiny_model, tmp_path):
    p = subprocess.run([INFERD, "plan", tiny_model, "--gpu", "local", "--cuda-module", str(tmp_path / "none.so")], capture_output=True, text=True)
    assert p.returncode == 4 and "none.so" in p.stderr
