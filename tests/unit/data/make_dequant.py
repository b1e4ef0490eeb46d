#!/usr/bin/env python3
"""Writes dequant.h: blocks of random bits of each GGUF type and the floats that the PyPI package `gguf` makes of them.

usage: make_dequant.py > dequant.h      (pip install gguf==0.19.0 numpy)
"""
from importlib.metadata import version

import gguf
import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType as T

# where the 16-bit floats of a block lie, so that they can be made finite: a NaN says nothing about the layout
HALVES = {T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0], T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208]}


def blocks(rng, t, n):
    size = GGML_QUANT_SIZES[t][1]
    data = rng.integers(0, 256, size=(n, size), dtype=np.uint8)
    for offset in HALVES[t]:
        data[:, offset : offset + 2] = rng.normal(0, 0.5, size=(n, 1)).astype("<f2").view(np.uint8)
    data[-1, HALVES[t][0] : HALVES[t][0] + 2] = np.frombuffer(b"\x23\x00", np.uint8)  # a subnormal scale
    return data


def array(ctype, name, values, fmt, per_line):
    rows = [", ".join(fmt % v for v in values[i : i + per_line]) for i in range(0, len(values), per_line)]
    print(f"static const {ctype} {name}[] = {{\n    " + ",\n    ".join(rows) + ",\n};")


def emit(t, data):
    floats = gguf.quants.dequantize(data.reshape(1, -1), t).astype(np.float32).reshape(-1)
    assert np.isfinite(floats).all()
    array("uint8_t", f"src_{t.name}", data.reshape(-1), "%d", 24)
    array("uint32_t", f"expect_{t.name}", floats.view(np.uint32), "0x%08x", 10)


def main():
    rng = np.random.default_rng(20240607)
    print(f"/* Made by make_dequant.py with gguf {version('gguf')}; do not edit. */")
    print("#include <stdint.h>\n")
    for t in HALVES:
        emit(t, blocks(rng, t, 2))
    edge = [0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x3C00, 0x7BFF, 0xFBFF]
    emit(T.F16, np.array(edge, "<u2").view(np.uint8))
    emit(T.BF16, np.array(edge, "<u2").view(np.uint8))


main()
