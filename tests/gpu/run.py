"""The steps behind run.sh: run.py [--emulated] BUILD [--quick] [--out FILE]

Each step is "ok", "failed" or "skipped", with seconds and a word of why. Speeds are set beside the roofline: the time that
the bytes or the operations alone would take at the device's published figures, whichever is longer, over the time taken.
"""

import argparse
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import time

from whole_models import compare_devices, compare_graphs

HERE = os.path.dirname(os.path.abspath(__file__))

CARDS = os.path.join(HERE, "..", "..", "conf", "gpus.json")


def card_of(device):
    """The card's published figures (dense; of conf/gpus.json): by the driver's name for it, and by its memory. None: not known."""
    name, gib = device.get("device", ""), device.get("memory", 0) / 2**30
    with open(CARDS, encoding="utf-8") as f:
        cards = [c for c in json.load(f) if re.search(rf"\b{re.escape(c['driver_name'])}\b", name) and abs(c["memory_gib"] - gib) < gib / 20]
    cards.sort(key=lambda c: (c["link"] == "pcie") != ("PCI" in name.upper()))
    return cards[0] if cards else None


class Run:
    def __init__(self, arguments):
        self.build = os.path.abspath(arguments.build)
        self.emulated = arguments.emulated
        self.quick = arguments.quick or arguments.emulated
        self.steps, self.rows, self.device = [], [], {}
        self.module = os.path.join(self.build, "tests/emu" if self.emulated else "engine/backend/cuda", "inferd-cuda.so")
        self.inferd = os.path.join(self.build, "inferd")
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("INFERD")}
        if self.emulated:
            self.environment["INFERD_EMU"] = "fast"
        self.programs = os.path.join(self.build, "tests/gpu", "emulated_" if self.emulated else "gpu_")
        self.began = time.monotonic()

    def step(self, name, work):
        """work() returns what to say; raises Skip, or anything else if it failed."""
        start = time.monotonic()
        try:
            result, why = "ok", work() or ""
        except Skip as skip:
            result, why = "skipped", str(skip)
        except (AssertionError, OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
            result, why = "failed", f"{type(error).__name__}: {error}"
        self.steps.append({"name": name, "result": result, "seconds": round(time.monotonic() - start, 1), "why": why})
        print(f"{result:8} {name} ({self.steps[-1]['seconds']} s){': ' + why if why else ''}", flush=True)

    def program(self, path, *arguments, seconds=300, wrapper=()):
        """Run one; its standard output. Exit code 77 skips, another than 0 fails."""
        if not os.access(path, os.X_OK):
            raise Skip(f"{os.path.relpath(path, self.build)} is not built")
        run = subprocess.run([*wrapper, path, *arguments], capture_output=True, text=True, timeout=seconds, env=self.environment, check=False)
        if run.returncode == 77:
            raise Skip((run.stdout + run.stderr).strip()[-300:])
        assert run.returncode == 0, f"exit code {run.returncode}: {(run.stdout + run.stderr).strip()[-1500:]}"
        return run.stdout

    def gpu_programs(self):
        return sorted(p for p in glob.glob(self.programs + "*") if os.path.isfile(p) and os.access(p, os.X_OK))

    # --- steps

    def correctness(self):
        programs = [p for p in self.gpu_programs() if p != self.programs + "speed"]
        for path in programs:
            def one(path=path):
                last = self.program(path).strip().splitlines()
                return last[-1] if last else ""
            self.step(os.path.basename(path), one)
        sanitizer = shutil.which("compute-sanitizer")
        for path in programs:
            def checked(path=path):
                if self.emulated or sanitizer is None:
                    raise Skip("the emulator checks by itself" if self.emulated else "compute-sanitizer is not found")
                self.program(path, wrapper=[sanitizer, "--tool", "memcheck", "--error-exitcode", "1", "--leak-check", "full"])
            self.step("compute-sanitizer " + os.path.basename(path), checked)
        for name, compare in (("whole models: the CPU's tokens", compare_devices), ("whole models: graphs on and off", compare_graphs)):
            def models(compare=compare):
                if not os.path.isfile(self.module):
                    raise Skip(f"{os.path.relpath(self.module, self.build)} is not built")
                return compare(self)
            self.step(name, models)

    def kernels(self):
        small = ["--small"] if self.emulated else []
        for line in self.program(self.programs + "speed", *small).splitlines():
            row = json.loads(line)
            if "device" in row:
                self.device = row
            else:
                self.rows.append(self.with_share(row))
        return f"{len(self.rows)} rows"

    def bench(self, label, model, *arguments):
        if not os.path.isfile(self.module):
            raise Skip(f"{os.path.relpath(self.module, self.build)} is not built")
        out = json.loads(self.program(self.inferd, "bench", *model, "--device", "cuda", "--cuda-module", self.module, "--json", "--no-limits",
                                      *arguments))
        peak = "bf16" if not out["int8_activations"] else "i8"
        for row in out["rows"]:
            rate = row["tokens_per_second"]["median"]
            self.rows.append(self.with_share({
                "what": row["kind"], "shape": label, "rows": row["streams"], "context": row["context"], "tokens_per_second": rate,
                "seconds": None if self.emulated else 1.0, "bytes": row["bytes_per_second"]["median"], "peak": peak,
                "operations": row["operations_per_second"]["median"]}))
        return f"{len(out['rows'])} rows"

    def whole(self):
        if self.emulated:
            tiny = self.tiny_model()
            self.step("bench on a tiny model", lambda: self.bench("tiny", [tiny], "--prefill", "9", "--decode-streams", "1,3", "--context", "16",
                                                                   "--generate", "2", "--repeat", "1", "--kv-tokens", "512"))
            return
        for shape in ("llama-8b",) if self.quick else ("llama-7b", "llama-8b"):
            for weights in ("int8", "bf16"):
                kv = ["--kv", "int8"] if weights == "int8" else []
                self.step(f"bench {shape} {weights}", lambda shape=shape, weights=weights, kv=kv: self.bench(
                    f"{shape} {weights}", ["--shape", shape + ":bf16"], "--weights", weights, *kv, "--repeat", "3", "--generate", "32",
                    "--prefill", "2048" if self.quick else "512,2048,8192", "--chunk", "8192", "--context", "128",
                    "--decode-streams", "1,32" if self.quick else "1,8,32,128,256"))

    def torch(self):
        if self.emulated:
            raise Skip("there is no GPU")
        run = subprocess.run([sys.executable, os.path.join(HERE, "torch_shapes.py")], capture_output=True, text=True, timeout=240, check=False)
        if run.returncode == 77:
            raise Skip(run.stdout.strip()[-200:])
        assert run.returncode == 0, run.stderr[-800:]
        for line in run.stdout.splitlines():
            self.rows.append(self.with_share(json.loads(line)))
        return ""

    # --- results

    def tiny_model(self):
        path = os.path.join(self.build, "gpu-tiny.gguf")
        self.program(os.path.join(self.build, "tests/engine/write_tiny_model"), path)
        return path

    def with_share(self, row):
        """Adds "roofline": the share of the published limit that binds; None where there is none."""
        row["roofline"] = None
        card = card_of(self.device)
        if card and row.get("seconds"):
            eight = row.get("peak") == "i8" or row["what"].endswith("_i8")
            peak = card["int8_tops"] if eight else card["bf16_tflops"]
            least = max(row["bytes"] / (card["bandwidth_gbs"] * 1e9), row["operations"] / (peak * 1e12))
            row["roofline"] = least / row["seconds"]
        return row

    def table(self):
        lines = [f"device: {self.device.get('device', 'unknown')}" + (" (emulated: nothing here is a speed)" if self.emulated else "")]
        lines.append(f"{'what':18} {'shape':28} {'rows':>5} {'context':>7} {'tokens/s':>10} {'µs':>10} {'GB/s':>8} {'TOP/s':>8} {'roofline':>8}")
        for r in self.rows:
            seconds = r.get("seconds")
            rates = (f"{r['bytes'] / seconds / 1e9:8.0f} {r['operations'] / seconds / 1e12:8.1f}" if seconds else f"{'':8} {'':8}")
            tokens = r.get("tokens_per_second")
            lines.append(f"{r['what']:18} {r['shape']:28} {r['rows']:5} {r.get('context', ''):>7} "
                         f"{'' if tokens is None or self.emulated else format(tokens, '.1f'):>10} "
                         f"{'' if tokens is not None or not seconds else format(seconds * 1e6, '.1f'):>10} {rates} "
                         f"{'' if r['roofline'] is None else format(r['roofline'], '.0%'):>8}".rstrip())
        return "\n".join(lines)

    def everything(self, out):
        self.correctness()
        self.step("kernels, timed", self.kernels)
        self.whole()
        self.step("PyTorch on the same shapes", self.torch)
        seconds = time.monotonic() - self.began
        print("\n" + self.table())
        counts = {r: sum(s["result"] == r for s in self.steps) for r in ("ok", "failed", "skipped")}
        print(f"\n{counts['ok']} ok, {counts['failed']} failed, {counts['skipped']} skipped, {seconds:.0f} s")
        if out:
            with open(out, "w", encoding="utf-8") as f:
                json.dump({"emulated": self.emulated, "device": self.device, "seconds": seconds, "steps": self.steps, "rows": self.rows}, f, indent=1)
            print(f"written: {out}")
        return 1 if counts["failed"] else 0


class Skip(Exception):
    pass


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--emulated", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", default=None)
    parser.add_argument("build")
    given = parser.parse_args()
    sys.exit(Run(given).everything(given.out or os.path.join(given.build, "gpu.json")))
