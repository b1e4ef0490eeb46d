"""Two servers under one trace: inferd and llama.cpp's own, same file, threads and machine, taking turns in one run.

    python tests/bench/compare_servers.py --model "$(./bootstrap model)" --llama-server .../llama-server --threads 2

The trace (trace_64.csv: 128 requests, prompt and output lengths log-normal, drawn once with seed 64) is played by 64
streams: each takes the next request when its last one has ended. Prompts are token ids, new random ones for every run, so
no prefix is cached; temperature 0, the end id ignored, so both do the same work: output_tokens tokens for each request.

  output tokens/s   tokens of all answers / time from the first request to the last token
  ttft              from sending a request to its first token, 50th and 99th percentile over the requests
  inter-token       between two events of one answer, likewise over all of them
"""

import argparse
import csv
import datetime
import json
import os
import platform
import random
import selectors
import socket
import statistics
import subprocess
import time
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    def __init__(self, name, command, ready_path):
        self.name = name
        self.port = free_port()
        self.process = subprocess.Popen(
            [part.replace("PORT", str(self.port)) for part in command],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={k: v for k, v in os.environ.items() if not k.startswith(("INFERD", "LLAMA"))},
        )
        while not self.answers(ready_path):
            if self.process.poll() is not None:
                raise SystemExit(f"{name} ended with {self.process.returncode}")
            time.sleep(0.1)
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/v1/models") as answer:
            self.model = json.load(answer)["data"][0]["id"]

    def answers(self, path):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    def close(self):
        self.process.terminate()
        self.process.wait(60)


class Stream:
    """One request on a connection of its own: when it was sent, and when each of its tokens came."""

    def __init__(self, server, ids, n_output):
        body = json.dumps({
            "model": server.model, "prompt": ids, "max_tokens": n_output, "temperature": 0, "stream": True,
            "ignore_eos": True, "cache_prompt": False,
        }).encode()
        head = (
            "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        self.expected = n_output
        self.socket = socket.create_connection(("127.0.0.1", server.port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sent = time.perf_counter()
        self.socket.sendall(head.encode() + body)
        self.times = []
        self.rest = b""
        self.head = b""

    def read(self):
        """False when the answer has ended."""
        data = self.socket.recv(1 << 16)
        now = time.perf_counter()
        if len(self.head) < 64:
            self.head += data[:64]
        lines = (self.rest + data).split(b"\n")
        self.rest = lines.pop()
        # A line that carries text of the answer: inferd's and llama.cpp's events have the same shape.
        self.times += [now for line in lines if b'data: {' in line and b'"text":""' not in line and b'"text":' in line]
        return bool(data)


def play(server, requests, n_streams, seed):
    rng = random.Random(seed)
    waiting = [([rng.randrange(1000, 40000) for _ in range(p)], o) for p, o in requests][::-1]
    selector, done = selectors.DefaultSelector(), []

    def begin():
        if waiting:
            stream = Stream(server, *waiting.pop())
            selector.register(stream.socket, selectors.EVENT_READ, stream)

    began = time.perf_counter()
    for _ in range(n_streams):
        begin()
    while selector.get_map():
        for key, _ in selector.select():
            stream = key.data
            if not stream.read():
                selector.unregister(stream.socket)
                stream.socket.close()
                if b" 200 " not in stream.head or not stream.times:
                    raise SystemExit(f"{server.name} answered: {stream.head!r}")
                done.append(stream)
                begin()
    end = max(s.times[-1] for s in done)
    gaps = [b - a for s in done for a, b in zip(s.times, s.times[1:])]
    first = [s.times[0] - s.sent for s in done]
    tokens = sum(o for _, o in requests)
    return {
        "output tokens/s": tokens / (end - began),
        "ttft p50, s": statistics.median(first),
        "ttft p99, s": statistics.quantiles(first, n=100)[98],
        "inter-token p50, s": statistics.median(gaps),
        "inter-token p99, s": statistics.quantiles(gaps, n=100)[98],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--inferd", default="build/inferd")
    parser.add_argument("--llama-server", required=True)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--limit", type=int, help="only the first so many requests")
    options = parser.parse_args()

    with open(os.path.join(HERE, "trace_64.csv"), encoding="ascii") as f:
        requests = [(int(r["prompt_tokens"]), int(r["output_tokens"])) for r in csv.DictReader(f)][: options.limit]
    most = max(p + o for p, o in requests) + 1
    cells = options.streams * most
    commands = {
        "inferd": [
            options.inferd, "serve", "--model=" + options.model, "--host=127.0.0.1", "--port=PORT",
            f"--threads={options.threads}", f"--max-sequences={options.streams}", f"--max-model-len={most}",
            f"--kv-tokens={cells}", "--log-level=error",
        ],
        "llama.cpp": [
            options.llama_server, "-m", options.model, "--host", "127.0.0.1", "--port", "PORT", "-t",
            str(options.threads), "-tb", str(options.threads), "-np", str(options.streams), "-c", str(cells), "--no-webui",
        ],
    }
    results = {name: [] for name in commands}
    for run in range(options.repeat):
        for name, command in commands.items():
            server = Server(name, command, "/readyz" if name == "inferd" else "/health")
            try:
                play(server, requests[:4], 4, seed=-1 - run)  # both are warm
                results[name].append(play(server, requests, options.streams, seed=run))
            finally:
                server.close()
            print(f"run {run + 1} {name}: " + ", ".join(f"{k} {v:.3f}" for k, v in results[name][-1].items()), flush=True)

    print(f"\n{datetime.date.today()}, {platform.platform()}, {os.path.basename(options.model)}, "
          f"{options.threads} threads, {options.streams} streams, {len(requests)} requests, median of {options.repeat} (min-max)\n")
    print("| what | inferd | llama.cpp | ratio |\n|---|---|---|---|")
    for what in results["inferd"][0]:
        values = {name: [r[what] for r in results[name]] for name in results}
        digits = 1 if "tokens/s" in what else 3
        cell = {n: f"{statistics.median(v):.{digits}f} ({min(v):.{digits}f}-{max(v):.{digits}f})" for n, v in values.items()}
        ratio = statistics.median(values["inferd"]) / statistics.median(values["llama.cpp"])
        print(f"| {what} | {cell['inferd']} | {cell['llama.cpp']} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
