"""The include borders of ARCHITECTURE.md, checked: `borders.py [ROOT]` prints each include that crosses one.

    server -> include/inferd <- engine        engine: engine.c -> scheduler, runner, sampler -> batch -> sequence -> kv_cache
                                              runner -> model -> model_file, quant, backend.h; text -> base
                                              backend/* -> a few headers of include/inferd, so a module builds by itself
"""

import os
import re
import subprocess
import sys

# What may lie at the top of the repository.
TOP_LEVEL = {
    "meson.build", "meson_options.txt", "README.md", "ARCHITECTURE.md", "BENCHMARKS.md", "LICENSE", "SECURITY.md", "bootstrap",
    ".ci", ".clang-format", ".dockerignore", ".gitignore",
    "include", "engine", "server", "conf", "systemd", "docker", "tests",
}

# Headers that cross a border.
PUBLIC = {"engine", "quantize", "text", "backend", "collective", "metrics", "error", "log", "buf", "list", "clock", "json", "eval", "bench", "plan", "sampler_math", "errand"}

# Folder -> the folders whose headers it may include besides its own (longest folder name wins).
FOLDERS = {
    "include/inferd": {"include/inferd"},
    "server": {"include/inferd"},
    "engine": {"include/inferd", "engine/base", "engine/model", "engine/model_file", "engine/quant", "engine/collective"},
    "engine/base": {"include/inferd"},
    "engine/text": {"include/inferd", "engine/base"},
    "engine/model_file": {"include/inferd", "engine/base"},
    "engine/quant": {"include/inferd", "engine/base", "engine/model_file"},
    "engine/collective": {"include/inferd", "engine/base"},
    "engine/model": {"include/inferd", "engine/base", "engine/model_file", "engine/quant"},
    "engine/planning": {"include/inferd", "engine", "engine/base", "engine/model", "engine/model_file", "engine/quant"},
    "engine/backend": {"include/inferd"},
    "engine/backend/cpu": {"include/inferd"},
    "engine/backend/cuda": {"include/inferd"},
    "engine/backend/null": {"include/inferd"},
}

# A file with a wider view than its folder: here the text code, which knows no files, meets their readers.
FILES = {"engine/text_open.c": {"engine/text"}, "engine/text_open.h": {"engine/text"}, "engine/text_export.c": {"engine/text"}}

# The few public headers that a folder is held to.
PUBLIC_OF = {
    "engine/backend": {"backend", "collective", "errand", "error", "log", "sampler_math"},
    "engine/text": {"text", "buf", "error", "list", "json", "clock", "backend"},
}

# The files right in engine/: each may include only those before it. Stems of one group do not see one another.
ENGINE_ORDER = [{"nodes", "ranks", "kv_cache", "stop_matcher", "event_ring", "step_stats", "memory", "plan", "ordinary_tokens", "speculation", "dry",
                 "sampler_state", "sampling", "text_open"},
                {"sequence", "sampler_passes"}, {"batch", "mailbox", "wait_queue", "sampler_types"}, {"sampler_logits", "sampler_select"},
                {"sampler_choose"}, {"sampler", "sampler_device", "scheduler", "runner"}, {"choices"}, {"ahead"}, {"text_export", "quantize_layer", "quantize_config", "quantize_folder"},
                {"quantize_calibrate", "bench_model", "rule_sampler"}, {"eval", "bench", "quantize"}, {"engine"}]

# Includes of what lies with the tests: the kernels' header has a twin on the emulator.
OF_TESTS = {("engine/backend/cuda/device.cuh", "device.h")}

# A library's header -> the files or folders that may include it.
LIBRARIES = [
    (r"microhttpd\.h", ["server/http.c"]),
    (r"uv\.h", ["server/loop", "server/http"]),
    (r"(cuda|cublas|nccl|nvml|nvrtc|cooperative_groups|mma\.h).*", ["engine/backend/cuda/"]),
    (r"(cjson/)?cJSON\.h", ["engine/base/", "engine/model_file/", "engine/model/", "engine/text/", "engine/quant/", "engine/text_open.c", "engine/quantize_config.c", "engine/planning/", "server/"]),
    (r"onig.*\.h", ["engine/base/regex.c", "server/version.c"]),
    (r"utf8proc\.h", ["engine/text/", "server/version.c"]),
    (r"ini\.h", ["server/"]),
    (r"gnutls/.*", ["server/", "engine/base/sha256.c"]),
    (r"mpi\.h", ["engine/collective/mpi.c"]),
    (r"(histedit|editline/.*)\.h", ["server/cmd/line_editor.c"]),
]

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
SOURCE = (".c", ".h", ".cu", ".cuh")


def folder_rule(folder, table):
    """The entry of the nearest folder above that has one."""
    while folder and folder not in table:
        folder = os.path.dirname(folder)
    return folder


def resolve(root, path, quoted, name):
    """The file of ours that an include names, relative to root; None for one of the system's."""
    places = [os.path.dirname(path)] if quoted else []
    places += ["engine"] if path.startswith("engine/") else []
    places += ["server", "engine"] if path.startswith("server/") else []
    for place in places + ["include"]:
        candidate = os.path.normpath(os.path.join(place, name))
        if os.path.isfile(os.path.join(root, candidate)):
            return candidate
    return None


def rank(path):
    stem = os.path.splitext(os.path.basename(path))[0]
    for i, group in enumerate(ENGINE_ORDER):
        if stem in group or any(stem.startswith(s + "_") for s in group):
            return i
    return None


def check_ours(path, target):
    """Why path must not include target, or None."""
    here, there = os.path.dirname(path), os.path.dirname(target)
    if there == "include/inferd":
        stem = os.path.splitext(os.path.basename(target))[0]
        rule = folder_rule(here, PUBLIC_OF)
        if rule and stem not in PUBLIC_OF[rule]:
            return f"{rule} is held to inferd/{{{','.join(sorted(PUBLIC_OF[rule]))}}}.h"
    home = folder_rule(here, FOLDERS)
    if here == there == "engine":
        a, b = rank(path), rank(target)
        if a is None or b is None:
            return "a file in engine/ that has no place in ENGINE_ORDER"
        same = os.path.splitext(os.path.basename(path))[0].startswith(os.path.splitext(os.path.basename(target))[0])
        return None if b < a or same else "engine/ is read in the order " + " < ".join("/".join(sorted(g)) for g in ENGINE_ORDER)
    if folder_rule(there, FOLDERS) == home:
        return None
    # engine/backend/registry.c knows the backends below it; nobody else looks down
    if home == "engine/backend" and there.startswith("engine/backend/"):
        return None
    if folder_rule(there, FOLDERS) in FOLDERS[home] | FILES.get(path, set()):
        return None
    return f"{home} may include {', '.join(sorted(FOLDERS[home]))} and itself"


def check_library(path, name):
    for pattern, allowed in LIBRARIES:
        if re.fullmatch(pattern, name) and not any(path.startswith(a) for a in allowed):
            return f"<{name}> belongs to {', '.join(allowed)}"
    return None


def violations(root):
    """Sentences, one for each include that crosses a border and each stray file at the top."""
    found = []
    for top in ("include", "engine", "server"):
        for folder, _, files in os.walk(os.path.join(root, top)):
            for name in sorted(files):
                if not name.endswith(SOURCE):
                    continue
                path = os.path.relpath(os.path.join(folder, name), root)
                with open(os.path.join(root, path), encoding="utf-8") as f:
                    text = f.read()
                for match in INCLUDE.finditer(text):
                    if (path, match[2]) in OF_TESTS:
                        continue
                    target = resolve(root, path, match[1] == '"', match[2])
                    why = check_ours(path, target) if target else check_library(path, match[2])
                    if not target and match[1] == '"':
                        why = why or "no such file in the tree"
                    if why:
                        line = text.count("\n", 0, match.start(2)) + 1
                        found.append(f"{path}:{line}: includes {match[2]}: {why}")
    public = os.path.join(root, "include/inferd")
    for name in sorted(os.listdir(public)) if os.path.isdir(public) else []:
        if os.path.splitext(name)[0] not in PUBLIC:
            found.append(f"include/inferd/{name}: not one of the headers that cross a border")
    found += [f"{name}: not one of the files and folders at the top" for name in stray(root)]
    return found


def stray(root):
    """Names at the top that have no place there (tracked ones, where git can tell)."""
    try:
        git = ["git", "-C", root]
        top = subprocess.run([*git, "rev-parse", "--show-toplevel"], capture_output=True, text=True, check=True).stdout.strip()
        listed = subprocess.run([*git, "ls-files"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        top = listed = ""
    if top and os.path.realpath(top) == os.path.realpath(root):
        names = {line.split("/")[0] for line in listed.splitlines()}
    else:
        names = {n for n in os.listdir(root) if not re.fullmatch(r"build|build-.*|\.git", n)}
    return sorted(names - TOP_LEVEL)


if __name__ == "__main__":
    crossed = violations(sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), "..", ".."))
    print("\n".join(crossed) or "no border is crossed")
    sys.exit(1 if crossed else 0)
