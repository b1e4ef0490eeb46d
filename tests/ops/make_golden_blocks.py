"""Write golden_blocks.h: a random block of each GGUF type and its elements by the gguf package (pip install gguf).

    python tests/ops/make_golden_blocks.py > tests/ops/golden_blocks.h
"""

import numpy
from gguf import GGMLQuantizationType as Type
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize

TYPES = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"]
SCALES = {"Q4_1": [0, 2], "Q5_1": [0, 2], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}  # where a block's F16 lie

rng = numpy.random.default_rng(20261130)
print("/* Made by make_golden_blocks.py with the gguf package: a block of each type, and its elements. */\n/* clang-format off */")
print("static const struct golden_block {\n    enum dtype dtype;\n    uint8_t block[210];\n    float elements[256];\n} golden_blocks[] = {")
for name in TYPES:
    elements, size = GGML_QUANT_SIZES[Type[name]]
    block = rng.integers(0, 256, size, dtype=numpy.uint8)
    for at in SCALES.get(name, [0]):
        block[at : at + 2] = numpy.array([rng.normal() * 0.05], dtype=numpy.float16).view(numpy.uint8)
    values = dequantize(block[None, :], Type[name])[0]
    assert values.dtype == numpy.float32 and len(values) == elements
    print(f"    {{DTYPE_{name},")
    print("     {" + ", ".join(map(str, block)) + "},")
    print("     {" + ", ".join(f"{v:.9g}" + ("" if "." in f"{v:.9g}" or "e" in f"{v:.9g}" else ".0") + "f" for v in values) + "}},")
print("};")
