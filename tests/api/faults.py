"""The switches of the fault hooks (tests/fault/fault.h), and daemons on a tiny model that have them."""

import json
import math
import mmap
import os
import random
import struct
import subprocess

from conftest import INFERD, ROOT

BUILD = os.path.dirname(INFERD)
WRITE_TINY_MODEL = os.path.join(BUILD, "tests", "engine", "write_tiny_model")
FIELDS = ["magic", "stall", "stalled", "nan_row", "nan_seed", "nan_struck", "alloc_n", "alloc_more", "alloc_calls",
          "alloc_struck", "clock_offset_s", "crash", "rank_stall", "rank_fail"]
MAGIC = 0x746C756166
EVER = 2**62


def has_hooks(program=INFERD):
    try:
        with open(program, "rb") as f:
            return b"FAULT_FILE" in f.read()
    except OSError:
        return False


class Faults:
    """`faults.stall = 1` sets a switch of the running program, `faults.stalled` reads one."""

    def __init__(self, path):
        object.__setattr__(self, "path", str(path))
        with open(path, "wb") as f:
            f.write(bytes(4096))
        with open(path, "r+b") as f:
            object.__setattr__(self, "page", mmap.mmap(f.fileno(), 4096))

    def __getattr__(self, name):
        return struct.unpack_from("=q", self.page, 8 * FIELDS.index(name))[0]

    def __setattr__(self, name, value):
        struct.pack_into("=q", self.page, 8 * FIELDS.index(name), value)

    def fail_memory(self, n, more=0):
        """From now on the n-th call for memory fails, and as many behind it."""
        self.alloc_struck = 0
        self.alloc_more = more
        self.alloc_n = n

    def memory_is_back(self):
        """How many calls failed."""
        self.alloc_n = self.alloc_more = 0
        return self.alloc_struck

    @property
    def environment(self):
        return {"FAULT_FILE": self.path}


def write_tiny_model(path):
    subprocess.run([WRITE_TINY_MODEL, str(path)], check=True)
    return str(path)


def write_folder_model(folder):
    """The same as a folder: safetensors in two files, config.json, tokenizer.json and what lies beside it."""
    folder.mkdir()
    with open(os.path.join(ROOT, "tests", "unit", "data", "tokenizer_cases.json"), encoding="utf-8") as f:
        cases = json.load(f)
    entry = next(t for t in cases["tokenizers"] if t["name"] == "split-llama3")
    vocabulary = {**cases["models"][entry["model"]], **entry["changes"]}
    rows = len(vocabulary["vocab"]) + 8
    decoder = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    documents = {
        "config.json": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "intermediate_size": 48,
                        "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": rows,
                        "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "hidden_act": "silu", "rope_theta": 10000.0,
                        "tie_word_embeddings": False},
        "tokenizer.json": {"model": vocabulary, "decoder": decoder, **entry["parts"]},
        "tokenizer_config.json": {"chat_template": "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"},
        "generation_config.json": {"eos_token_id": [1, 2]},
    }
    for name, content in documents.items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    layer = "model.layers.0."
    shapes = {"model.embed_tokens.weight": [rows, 32], "lm_head.weight": [rows, 32], "model.norm.weight": [32],
              layer + "input_layernorm.weight": [32], layer + "post_attention_layernorm.weight": [32],
              layer + "self_attn.q_proj.weight": [32, 32], layer + "self_attn.k_proj.weight": [16, 32],
              layer + "self_attn.v_proj.weight": [16, 32], layer + "self_attn.o_proj.weight": [32, 32],
              layer + "mlp.gate_proj.weight": [48, 32], layer + "mlp.up_proj.weight": [48, 32], layer + "mlp.down_proj.weight": [32, 48]}
    rng, parts = random.Random(1), [{}, {}]
    for i, name in enumerate(shapes):
        parts[i % 2][name] = shapes[name]
    places = {}
    for i, part in enumerate(parts):
        header, data = {}, b""
        for name, shape in part.items():
            n = math.prod(shape)
            values = struct.pack(f"<{n}f", *(rng.uniform(-0.3, 0.3) if len(shape) > 1 else 1 for _ in range(n)))
            header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
            data += values
            places[name] = f"model-{i + 1}.safetensors"
        head = json.dumps(header).encode()
        head += b" " * (-len(head) % 8)
        (folder / f"model-{i + 1}.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + data)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return str(folder)


def check_nothing_is_held(d, seconds=5):
    d.wait_idle(seconds)
    d.check_identity()
    assert d.gauge("kv_blocks_used") == 0
