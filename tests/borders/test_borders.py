"""The real tree crosses no border, and the check would notice if it did."""

import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from borders import violations

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")

# A small tree in good order: path -> its includes.
CLEAN = {
    "include/inferd/error.h": [],
    "include/inferd/engine.h": ["<inferd/error.h>"],
    "include/inferd/text.h": ["<inferd/error.h>"],
    "include/inferd/backend.h": ["<inferd/error.h>"],
    "engine/base/checked.h": ["<stddef.h>"],
    "engine/model_file/model_file.h": ['"base/checked.h"'],
    "engine/text/bpe.h": [],
    "engine/text_open.c": ['"text/bpe.h"', '"model_file/model_file.h"'],
    "engine/text/bpe.c": ['"base/checked.h"', "<inferd/text.h>"],
    "engine/base/regex.c": ["<oniguruma.h>"],
    "engine/model/decoder.h": ["<inferd/backend.h>", '"model_file/model_file.h"'],
    "engine/backend/registry.c": ["<inferd/backend.h>"],
    "engine/backend/cpu/cpu.h": ["<immintrin.h>"],
    "engine/backend/cpu/linear.c": ['"cpu.h"', "<inferd/backend.h>"],
    "engine/backend/cuda/linear.cu": ["<cuda_runtime.h>", "<inferd/backend.h>"],
    "engine/kv_cache.h": ['"base/checked.h"'],
    "engine/sequence.h": ['"kv_cache.h"'],
    "engine/batch.h": ['"sequence.h"'],
    "engine/scheduler.h": ['"batch.h"'],
    "engine/runner.c": ['"batch.h"', '"model/decoder.h"'],
    "engine/engine.c": ['"scheduler.h"', "<inferd/engine.h>"],
    "server/http.h": [],
    "server/http.c": ['"http.h"', "<microhttpd.h>", "<uv.h>", "<inferd/engine.h>"],
    "server/cmd/serve.c": ['"http.h"', "<ini.h>"],
}

# A file that crosses a border, and what the sentence about it must say.
CROSSING = [
    ("server/api.c", '"model/decoder.h"', "server may include"),
    ("server/api.c", '"scheduler.h"', "server may include"),
    ("server/api.c", '"../engine/base/checked.h"', "server may include"),
    ("server/api.c", "<microhttpd.h>", "belongs to"),
    ("server/http.h", "<microhttpd.h>", "belongs to"),
    ("server/api.c", "<uv.h>", "belongs to"),
    ("server/api.c", '"nowhere.h"', "no such file"),
    ("engine/engine.c", '"../server/http.h"', "engine may include"),
    ("engine/base/x.c", '"model_file/model_file.h"', "engine/base may include"),
    ("engine/text/x.c", '"model_file/model_file.h"', "engine/text may include"),
    ("engine/engine.c", '"text/bpe.h"', "engine may include"),
    ("engine/text/x.c", '"model/decoder.h"', "engine/text may include"),
    ("engine/text/x.c", "<oniguruma.h>", "belongs to"),
    ("engine/text/x.c", "<inferd/engine.h>", "engine/text is held to"),
    ("engine/model_file/x.c", '"model/decoder.h"', "engine/model_file may include"),
    ("engine/model/x.c", '"batch.h"', "engine/model may include"),
    ("engine/model/x.c", '"backend/cpu/cpu.h"', "engine/model may include"),
    ("engine/model/x.c", "<cuda_runtime.h>", "belongs to"),
    ("engine/backend/cpu/x.c", '"base/checked.h"', "engine/backend/cpu may include"),
    ("engine/backend/cpu/x.c", "<inferd/engine.h>", "engine/backend is held to"),
    ("engine/backend/cpu/x.c", "<cjson/cJSON.h>", "belongs to"),
    ("engine/backend/cuda/x.c", '"../cpu/cpu.h"', "engine/backend/cuda may include"),
    ("engine/kv_cache.c", '"scheduler.h"', "read in the order"),
    ("engine/scheduler.c", '"runner.h"', "read in the order"),
    ("engine/misc.c", '"batch.h"', "no place in ENGINE_ORDER"),
    ("include/inferd/text.h", '"../../engine/base/checked.h"', "include/inferd may include"),
    ("include/inferd/decoder.h", "<stddef.h>", "not one of the headers"),
    ("src/main.c", "<stddef.h>", "not one of the files"),
]


def write(root, path, includes):
    full = os.path.join(root, path)
    os.makedirs(os.path.dirname(full), exist_ok=True)
    with open(full, "w", encoding="utf-8") as f:
        f.writelines(f"#include {name}\n" for name in includes)


class Borders(unittest.TestCase):
    def test_the_tree(self):
        self.assertEqual(violations(ROOT), [])

    def test_a_clean_tree_passes(self):
        with tempfile.TemporaryDirectory() as root:
            for path, includes in CLEAN.items():
                write(root, path, includes)
            self.assertEqual(violations(root), [])

    def test_each_crossing_is_found(self):
        for path, include, why in CROSSING:
            with self.subTest(path=path, include=include), tempfile.TemporaryDirectory() as root:
                for clean, includes in CLEAN.items():
                    write(root, clean, includes)
                write(root, "engine/runner.h", [])
                write(root, path, [include])
                found = violations(root)
                self.assertEqual(len(found), 1, found)
                self.assertIn(why, found[0])


if __name__ == "__main__":
    unittest.main()
