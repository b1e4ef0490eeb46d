#!/usr/bin/env python3
"""Writes model_files.h: small model files made by the PyPI packages `gguf` and `safetensors`.

usage: make_model_files.py > model_files.h      (pip install gguf==0.19.0 safetensors==0.8.0 numpy)
"""
import os
import tempfile
from importlib.metadata import version

import gguf
import numpy as np
from safetensors.numpy import save


def emit(name, data):
    rows = [",".join(str(v) for v in data[i : i + 32]) for i in range(0, len(data), 32)]
    print(f"static const unsigned char {name}[] = {{\n    " + ",\n    ".join(rows) + ",\n};")


def write_gguf(folder, split):
    path = os.path.join(folder, "m.gguf")
    w = gguf.GGUFWriter(path, "llama", split_max_tensors=1 if split else 0)
    w.add_name("Tiny")
    w.add_context_length(64)
    w.add_rope_freq_base(10000.5)
    w.add_int8("t.int8", -5)
    w.add_uint16("t.uint16", 65535)
    w.add_int64("t.int64", -(2**63))
    w.add_uint64("t.uint64", 2**64 - 1)
    w.add_float64("t.float64", 0.1)
    w.add_bool("t.bool", True)
    w.add_array("t.ints", [1, -2, 3])
    w.add_array("t.floats", [0.5, -1.25])
    w.add_token_list(["<s>", "a", "\u00e9"])
    w.add_tensor("a.weight", np.arange(6, dtype=np.float32).reshape(2, 3))
    w.add_tensor("b.weight", gguf.quants.quantize(np.linspace(-1, 1, 64, dtype=np.float32).reshape(2, 32), gguf.GGMLQuantizationType.Q8_0),
                 raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return [open(os.path.join(folder, name), "rb").read() for name in sorted(os.listdir(folder))]


def main():
    print(f"/* Made by make_model_files.py with gguf {version('gguf')} and safetensors {version('safetensors')}; do not edit. */")
    with tempfile.TemporaryDirectory() as folder:
        (one,) = write_gguf(folder, False)
        emit("gguf_py", one)
    with tempfile.TemporaryDirectory() as folder:
        first, second = write_gguf(folder, True)
        emit("gguf_py_split_1", first)
        emit("gguf_py_split_2", second)
    tensors = {
        "a.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b.weight": np.arange(4, dtype=np.float16).reshape(1, 2, 2),
        "c": np.array(7, dtype=np.int64),
        "d": np.arange(-2, 2, dtype=np.int8),
    }
    emit("safetensors_py", save(tensors, metadata={"format": "np"}))


main()
