"""The table of measures of the CPU backend: every row beside llama.cpp's own tools, on one machine in one run.

    python tests/bench/measures.py --llama .../llama.cpp/build/bin --folder /var/tmp/shapes \
        --smollm "$(./bootstrap model)" --gemma "$(./bootstrap model gemma)" --threads 2 --repeat 5

--llama is the folder with llama-bench, llama-batched-bench and llama-server; --llama-avx512 and --llama-avx2 are folders of builds
without AMX, and with AVX2 alone (GGML_NATIVE=OFF), for the rows that switch these off: they are left out without. The random
models (make_shape_gguf.py, needs numpy and gguf) are written into --folder unless they are there.

Peer and inferd take turns, repeat by repeat; each figure is the median (min-max) of the repeats. The peer is measured with flash
attention on and off, and the better one counts. Prefill is 512 tokens of one prompt; decode is measured as llama-batched-bench
does it: so many streams of so long a context, then so many tokens of each. The floor and the goal of each row are printed beside
its ratio; times and memory want a small ratio, the others a great one. --only PATTERN measures the rows whose names match.
"""

import argparse
import datetime
import fnmatch
import json
import os
import platform
import statistics
import subprocess
import sys
import time
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)


def output(command):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("INFERD", "LLAMA"))}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {(done.stderr or done.stdout).strip()[-400:]}")
    return done.stdout


class Server:
    """A server of either kind: the seconds until it is ready, and its resident bytes then."""

    def __init__(self, command, ready_path, port):
        self.port = port
        began = time.perf_counter()
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while not self.answers(ready_path):
            if self.process.poll() is not None:
                raise RuntimeError(f"{command[0]} ended with {self.process.returncode}")
            time.sleep(0.002)
        self.ready_seconds = time.perf_counter() - began
        time.sleep(0.5)
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as f:
            self.resident = next(int(line.split()[1]) * 1024 for line in f if line.startswith("VmRSS"))

    def answers(self, path):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    def close(self):
        self.process.terminate()
        self.process.wait(60)


class Measures:
    def __init__(self, options):
        self.o = options
        self.rows = []
        self.port = options.port

    # --- models

    def model(self, shape, kind):
        path = os.path.join(self.o.folder, f"{shape}-{kind}.gguf")
        if not os.path.exists(path):
            from make_shape_gguf import write

            print(f"writing {path}", file=sys.stderr)
            write(shape, kind, path + ".partial")
            os.rename(path + ".partial", path)
        return path

    # --- one figure of each side; `fa` 0 or 1

    def peer_prefill(self, llama, model, fa):
        rows = json.loads(output([f"{llama}/llama-bench", "-m", model, "-p", "512", "-n", "0", "-t", str(self.o.threads), "-r", "1", "-fa",
                                  str(fa), "-ngl", "0", "-o", "json"]))
        return rows[0]["avg_ts"]

    def peer_decode(self, llama, model, fa, streams, context, generate):
        text = output([f"{llama}/llama-batched-bench", "-m", model, "-c", str(streams * (context + generate)), "-b", "2048", "-ub", "512", "-npp",
                       str(context), "-ntg", str(generate), "-npl", str(streams), "-t", str(self.o.threads), "-ngl", "0", "-fa",
                       "on" if fa else "off", "--output-format", "jsonl"])
        return next(json.loads(line)["speed_tg"] for line in text.splitlines() if line.startswith("{"))

    def ours(self, what, *more):
        report = json.loads(output([self.o.inferd, "bench", *what, "--threads", str(self.o.threads), "--repeat", "1", "--no-limits", "--json",
                                    *more]))
        return report["rows"][0]["tokens_per_second"]["median"]

    def ours_prefill(self, what):
        return self.ours(what, "--prefill=512", "--decode-streams=")

    def ours_decode(self, what, streams, context, generate):
        return self.ours(what, "--prefill=", f"--decode-streams={streams}", f"--context={context}", f"--generate={generate}")

    # --- rows

    def wanted(self, name):
        return any(fnmatch.fnmatch(name, pattern) for pattern in self.o.only)

    def add(self, name, unit, peer, ours, floor, goal, less_is_better=False):
        """peer: figures by variant of the peer. The better median counts."""
        best = (min if less_is_better else max)(peer, key=lambda k: statistics.median(peer[k]))
        ratio = statistics.median(ours) / statistics.median(peer[best])
        met = "" if floor is None else ("yes" if (ratio <= floor if less_is_better else ratio >= floor) else "NO")
        reached = "" if goal is None else ("yes" if (ratio <= goal if less_is_better else ratio >= goal) else "no")
        row = {"name": name, "unit": unit, "peer": peer, "peer_best": best, "inferd": ours, "ratio": ratio, "floor": floor, "floor_met": met,
               "goal": goal, "goal_met": reached}
        self.rows.append(row)
        print(self.line(row), flush=True)

    @staticmethod
    def cell(values, digits):
        return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}-{max(values):.{digits}f})"

    def line(self, row):
        digits = 1 if statistics.median(row["inferd"]) >= 10 else 3
        others = "; ".join(f"{k} {self.cell(v, digits)}" for k, v in row["peer"].items())
        limit = "x" if row["floor"] is not None else ""
        return (f"| {row['name']} | {row['unit']} | {others} | {self.cell(row['inferd'], digits)} | **{row['ratio']:.2f}x** ({row['peer_best']}) | "
                f"{row['floor'] if row['floor'] is not None else '-'}{limit} {row['floor_met']} | "
                f"{row['goal'] if row['goal'] is not None else '-'}{limit} {row['goal_met']} |")

    def compare(self, name, peer, ours, floor, goal):
        """peer(fa) and ours() in turns."""
        if not self.wanted(name):
            return
        theirs, mine = {"fa on": [], "fa off": []}, []
        try:
            for repeat in range(self.o.repeat):
                turns = [lambda: theirs["fa on"].append(peer(1)), lambda: theirs["fa off"].append(peer(0)), lambda: mine.append(ours())]
                for turn in turns if repeat % 2 == 0 else turns[::-1]:
                    turn()
            self.add(name, "tok/s", theirs, mine, floor, goal)
        except RuntimeError as error:
            print(f"| {name} | not measured: {error} |", flush=True)

    def speed(self, name, llama, model, what, floors, decode):
        """Rows "NAME, prefill 512" and "NAME, decode N": floors = {what: (floor, goal)}, what "prefill" or a number of streams."""
        context, generate = decode
        for case, (floor, goal) in floors.items():
            if case == "prefill":
                self.compare(f"{name}, prefill 512", lambda fa: self.peer_prefill(llama, model(), fa), lambda: self.ours_prefill(what), floor, goal)
            else:
                self.compare(f"{name}, decode {case}", lambda fa, n=case: self.peer_decode(llama, model(), fa, n, context, generate),
                             lambda n=case: self.ours_decode(what, n, context, generate), floor, goal)

    def all_speeds(self):
        o = self.o
        int8 = [f"--weights={o.weights}", f"--kv-dtype={o.kv_dtype}"]
        self.speed("tiny INT8", o.llama, lambda: self.model("tiny", "Q8_0"), ["--shape=tiny", *int8],
                   {"prefill": (3.5, 5.5), 1: (1.15, 1.35), 8: (2, 2.5), 32: (3, 5)}, (64, 24))
        self.speed("smol INT8", o.llama, lambda: self.model("smol", "Q8_0"), ["--shape=smol", *int8],
                   {"prefill": (2.5, 5), 1: (1.5, 2), 8: (4, 6), 32: (5, 8), 64: (6, 9)}, (128, 128))
        if o.smollm:
            self.speed("SmolLM2 Q4_1 file", o.llama, lambda: o.smollm, [o.smollm], {"prefill": (2, 3.5), 1: (1, 1.4), 32: (4, 7)}, (128, 64))
        if o.gemma:
            self.speed("Gemma 3 Q4_K_M file", o.llama, lambda: o.gemma, [o.gemma], {"prefill": (2, 3.5), 1: (1, 1.4)}, (128, 64))
        self.speed("tiny BF16", o.llama, lambda: self.model("tiny", "BF16"), ["--shape=tiny"], {"prefill": (5, 10), 1: (1.4, 1.7)}, (64, 24))
        for name, llama, variant, prefill, decode in (("AVX-512 VNNI", o.llama_avx512, "vnni", (1.5, 2.5), (1, None)),
                                                      ("AVX2", o.llama_avx2, "avx2", (1, 1.3), (1, None))):
            if llama:
                for shape, size in (("tiny", (64, 24)), ("smol", (128, 128))):
                    self.speed(f"{shape} INT8, {name}", llama, lambda shape=shape: self.model(shape, "Q8_0"),
                               [f"--shape={shape}", *int8, f"--cpu-variant={variant}"], {"prefill": prefill, 1: decode, 8: decode, 32: decode}, size)

    # --- servers

    def start_ours(self, model, sequences, length=512):
        self.port += 1
        return Server([self.o.inferd, "serve", model, f"--weights={self.o.weights}", f"--kv-dtype={self.o.kv_dtype}", f"--threads={self.o.threads}",
                       f"--port={self.port}", f"--max-sequences={sequences}", f"--max-model-len={length}", f"--kv-tokens={sequences * length}",
                       "--log-level=error"], "/readyz", self.port)

    def start_peer(self, model, fa, sequences, length=256):
        self.port += 1
        return Server([f"{self.o.llama}/llama-server", "-m", model, "-np", str(sequences), "-c", str(sequences * length), "-t", str(self.o.threads),
                       "-cb", "-fa", "on" if fa else "off", "--port", str(self.port), "-ngl", "0"], "/health", self.port)

    def load(self, server, streams):
        seconds = {1: 6, 8: 10, 32: 16}[streams] * self.o.served_time
        report = json.loads(output([self.o.inferd, "bench", f"--url=http://127.0.0.1:{server.port}", f"--streams={streams}", "--prompt-tokens=64",
                                    "--output-tokens=64", f"--warmup={seconds / 4:g}s", f"--duration={seconds:g}s", "--repeat=1", "--json"]))
        row = report["rows"][0]
        if sum(row["errors"].values()):
            raise RuntimeError(f"requests failed: {row['errors']} {row['first_error']}")
        return row

    def served(self):
        floors = {1: (1.5, 2), 8: (4, 6), 32: (5, 7)}
        for streams, (floor, goal) in floors.items():
            name = f"served smol INT8, 64 in 64 out, {streams} streams"
            if not self.wanted(name):
                continue
            sides = {"fa on": [], "fa off": [], "inferd": []}
            for _ in range(self.o.repeat):
                for side, rows in sides.items():
                    server = (self.start_ours(self.model("smol", "BF16"), 32) if side == "inferd"
                              else self.start_peer(self.model("smol", "Q8_0"), side == "fa on", 32))
                    try:
                        rows.append(self.load(server, streams))
                    finally:
                        server.close()

            def figures(metric, times=1):
                values = {side: [row[metric]["median"] * times for row in rows] for side, rows in sides.items()}
                return values, values.pop("inferd")

            self.add(name, "tok/s", *figures("tokens_per_second"), floor, goal)
            self.add(name + ", TTFT p50", "ms", *figures("ttft_p50", 1e3), 0.5, 0.25, less_is_better=True)
            itl, ours = figures("itl_p99", 1e3)
            self.add(name + ", ITL p99" + (" (goal: at most 40 ms)" if streams == 32 else ""), "ms", itl, ours, None, None, less_is_better=True)
            longest, ours = figures("itl_max", 1e3)
            self.add(name + ", longest stall" + (" (goal: at most 100 ms)" if streams == 32 else ""), "ms", longest, ours, None, None, less_is_better=True)

    def starts(self):
        for shape, floor, goal in (("smol", 100, 60), ("tiny", 700, 250)):
            name = f"start to ready, {shape} (floor {floor} ms, goal {goal} ms)"
            if self.wanted(name) or (shape == "smol" and self.wanted("resident memory idle, smol, 8 sequences")):
                ready, resident = {"llama-server": []}, {"llama-server": []}
                mine, my_resident = [], []
                for _ in range(self.o.repeat):
                    for side in ("peer", "inferd"):
                        server = self.start_peer(self.model(shape, "Q8_0"), True, 8) if side == "peer" else self.start_ours(self.model(shape, "BF16"), 8, 256)
                        server.close()
                        (mine if side == "inferd" else ready["llama-server"]).append(server.ready_seconds * 1e3)
                        (my_resident if side == "inferd" else resident["llama-server"]).append(server.resident / 1e6)
                self.add(name, "ms", ready, mine, None, None, less_is_better=True)
                if shape == "smol":
                    self.add("resident memory idle, smol, 8 sequences", "MB", resident, my_resident, 0.8, 0.5, less_is_better=True)

    def profile(self):
        """The shares that must be visible in the model, at 32 streams and 192 tokens of context."""
        if self.wanted("shares"):
            report = json.loads(output([self.o.inferd, "bench", "--shape=smol", f"--weights={self.o.weights}", f"--kv-dtype={self.o.kv_dtype}", "--prefill=512",
                                        "--decode-streams=1,32", "--context=192", "--generate=16", "--profile", "--repeat=1", "--json",
                                        f"--threads={self.o.threads}"]))
            print("\n| smol INT8 | attention (at most 40 % at 32) | idle (at most 10 %) | sampling (at most 5 %) | read | peak |\n|---|---|---|---|---|---|")
            for row in report["rows"]:
                p = row["profile"]
                print(f"| {row['name']} | {100 * p['ops']['attention']['share']:.1f} % | {100 * p['idle_share']:.1f} % | "
                      f"{100 * p['sampling_share']:.1f} % | {100 * row['read_share']:.1f} % | {100 * row['peak_share']:.1f} % of {row['peak']} |")
            self.rows.append({"name": "shares", "report": report})


def processor():
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        names = [line.split(":", 1)[1].strip() for line in f if line.startswith("model name")]
    return f"{len(names)} x {names[0]}" if names else platform.machine()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--inferd", default=os.path.join(HERE, "..", "..", "build", "inferd"))
    parser.add_argument("--llama", required=True)
    parser.add_argument("--llama-avx512")
    parser.add_argument("--llama-avx2")
    parser.add_argument("--folder", required=True, help="where the random models lie, or are written")
    parser.add_argument("--smollm", help="SmolLM2-135M's Q4_1 file")
    parser.add_argument("--gemma", help="Gemma 3 270M's Q4_K_M file")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--kv-dtype", default="int8")
    parser.add_argument("--weights", default="int8", help="of inferd in the INT8 rows: another one only to try the script")
    parser.add_argument("--served-time", type=float, default=1, help="times 6, 10 and 16 seconds of load at 1, 8 and 32 streams")
    parser.add_argument("--only", nargs="+", default=["*"], help="patterns of row names")
    parser.add_argument("--port", type=int, default=18080)
    parser.add_argument("--json", help="write all figures here")
    o = parser.parse_args()
    m = Measures(o)
    print(f"{datetime.date.today()}, {processor()}, {o.threads} threads, load average {os.getloadavg()[0]:.1f}; median (min-max) of {o.repeat}; "
          f"{output([o.inferd, 'version']).splitlines()[0]}; KV {o.kv_dtype}\n")
    print("| work | unit | llama.cpp | inferd | ratio to the better | floor | goal |\n|---|---|---|---|---|---|---|")
    m.all_speeds()
    m.served()
    m.starts()
    m.profile()
    if o.json:
        with open(o.json, "w", encoding="utf-8") as f:
            json.dump(m.rows, f, indent=1)


if __name__ == "__main__":
    main()
