"""Prefill and decode speed of inferd beside llama.cpp: same file, threads and machine, one run, taking turns.

    CC=clang CXX=clang++ pip install llama-cpp-python
    python tests/bench/compare_llama_cpp.py --model "$(./bootstrap model)" --threads 2

inferd is measured as its users meet it: through the HTTP server, one streaming request a stream. llama.cpp is measured
in this process through its own batch interface (llama_decode with one sequence a stream, greedy sampler), which is
the faster way to use it. Prompts are random token ids, new ones for every measurement, so no prefix is ever cached.

  prefill   N prompts of --prompt tokens are handed over at once, one token of each is awaited:  N * prompt / time
  decode    N streams go on for --generate tokens after --context tokens; the clock runs from the moment when every
            stream has its first token to the moment when the last one ends:  tokens made meanwhile / time
"""

import argparse
import datetime
import http.client
import json
import os
import platform
import random
import selectors
import socket
import statistics
import subprocess
import time


EVENT = b'\ndata: {"id"'  # as long as what ends a stream: DONE below is found wherever the bytes are cut
DONE = b"data: [DONE]"


class Inferd:
    name = "inferd"

    def __init__(self, options):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        most = max(options.streams)
        flags = {
            "model": options.model, "host": "127.0.0.1", "port": self.port, "threads": options.threads,
            "max-sequences": most, "max-model-len": options.length, "kv-tokens": most * options.length,
            "log-level": "error",
        }
        env = {k: v for k, v in os.environ.items() if not k.startswith("INFERD")}
        self.process = subprocess.Popen([options.inferd, "serve", *[f"--{k}={v}" for k, v in flags.items()]], env=env)
        while not self.ready():
            if self.process.poll() is not None:
                raise SystemExit(f"inferd ended with {self.process.returncode}")
            time.sleep(0.05)
        self.model = json.loads(self.get("/v1/models")[1])["data"][0]["id"]
        self.version = json.loads(self.get("/version")[1]).get("version")

    def get(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()

    def ready(self):
        try:
            return self.get("/readyz")[0] == 200
        except OSError:
            return False

    def close(self):
        self.process.terminate()
        self.process.wait(60)

    def run(self, prompts, generate):
        """Stream all at once; for each stream the times at which its events came."""
        selector = selectors.DefaultSelector()
        streams = []
        requests = [self.request_bytes(ids, generate) for ids in prompts]
        began = time.perf_counter()
        for request in requests:
            s = socket.create_connection(("127.0.0.1", self.port))
            s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            s.sendall(request)
            stream = {"socket": s, "times": [], "tail": None}
            streams.append(stream)
            selector.register(s, selectors.EVENT_READ, stream)
        left = len(streams)
        while left:
            for key, _ in selector.select():
                stream = key.data
                data = stream["socket"].recv(1 << 16)
                now = time.perf_counter() - began
                if not data:
                    raise SystemExit("inferd closed a stream")
                if stream["tail"] is None and not data.startswith(b"HTTP/1.1 200"):
                    raise SystemExit(f"inferd refused: {data[:500]!r}")
                # cheap on purpose: the client shares the processors with the server
                data = (stream["tail"] or b"") + data
                stream["times"] += [now] * data.count(EVENT)
                stream["tail"] = data[-(len(EVENT) - 1) :]
                if DONE in data:
                    selector.unregister(stream["socket"])
                    stream["socket"].close()
                    left -= 1
        return [s["times"] for s in streams]

    def request_bytes(self, ids, generate):
        body = json.dumps({
            "model": self.model, "prompt": ids, "max_tokens": generate, "temperature": 0, "ignore_eos": True, "stream": True,
        }).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + body

    def prefill(self, prompts):
        times = self.run(prompts, 1)
        return sum(map(len, prompts)) / max(t[0] for t in times)

    def decode(self, prompts, generate):
        times = self.run(prompts, generate)
        start = max(t[0] for t in times)
        end = max(t[-1] for t in times)
        # an event that held back half a character makes no difference to the sum: every stream makes `generate` tokens
        before = sum(sum(1 for x in t if x <= start) for t in times)
        return (len(prompts) * generate - before) / (end - start)


class LlamaCpp:
    name = "llama.cpp"

    def __init__(self, options):
        import llama_cpp
        from llama_cpp import llama_cpp as api

        self.api = api
        self.version = "llama-cpp-python " + llama_cpp.__version__
        self.log = api.llama_log_callback(lambda *_: None)  # kept: ctypes does not
        api.llama_log_set(self.log, None)
        api.llama_backend_init()
        parameters = api.llama_model_default_params()
        parameters.n_gpu_layers = 0
        self.model = api.llama_model_load_from_file(os.fsencode(options.model), parameters)
        if not self.model:
            raise SystemExit("llama.cpp could not load the model")
        self.options = options
        self.contexts = {}

    def context(self, n):
        """One for each number of streams: its KV memory is split by that number."""
        if n not in self.contexts:
            api = self.api
            parameters = api.llama_context_default_params()
            parameters.n_ctx = n * self.options.length
            parameters.n_seq_max = n
            parameters.n_batch = 2048
            parameters.n_threads = parameters.n_threads_batch = self.options.threads
            context = api.llama_init_from_model(self.model, parameters)
            if not context:
                raise SystemExit("llama.cpp could not make a context")
            self.contexts[n] = (context, api.llama_batch_init(2048, 0, 1), api.llama_sampler_init_greedy())
        return self.contexts[n]

    def decode_rows(self, context, batch, rows):
        """rows: (token, position, sequence, wants logits)"""
        for i, (token, position, sequence, logits) in enumerate(rows):
            batch.token[i] = token
            batch.pos[i] = position
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = sequence
            batch.logits[i] = logits
        batch.n_tokens = len(rows)
        if self.api.llama_decode(context, batch) != 0:
            raise SystemExit("llama_decode failed")

    def start(self, prompts):
        """Prefill all; the first token of each."""
        context, batch, sampler = self.context(len(prompts))
        self.api.llama_memory_clear(self.api.llama_get_memory(context), False)
        rows = [(t, p, s, p == len(ids) - 1) for s, ids in enumerate(prompts) for p, t in enumerate(ids)]
        tokens = {}
        for begin in range(0, len(rows), 2048):
            part = rows[begin : begin + 2048]
            self.decode_rows(context, batch, part)
            for i, (_, _, sequence, logits) in enumerate(part):
                if logits:
                    tokens[sequence] = self.api.llama_sampler_sample(sampler, context, i)
        return [tokens[s] for s in range(len(prompts))]

    def prefill(self, prompts):
        self.context(len(prompts))
        began = time.perf_counter()
        self.start(prompts)
        return sum(map(len, prompts)) / (time.perf_counter() - began)

    def decode(self, prompts, generate):
        context, batch, sampler = self.context(len(prompts))
        tokens = self.start(prompts)
        began = time.perf_counter()
        for step in range(generate - 1):
            self.decode_rows(context, batch, [(t, len(ids) + step, s, True) for s, (t, ids) in enumerate(zip(tokens, prompts))])
            tokens = [self.api.llama_sampler_sample(sampler, context, s) for s in range(len(prompts))]
        return len(prompts) * (generate - 1) / (time.perf_counter() - began)

    def close(self):
        pass


def processor():
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        for line in f:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
    parser.add_argument("--inferd", default=os.path.join(root, "build", "inferd"))
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--prompt", type=int, default=256, help="tokens of a prompt when prefill is measured")
    parser.add_argument("--context", type=int, default=128, help="tokens of a prompt when decode is measured")
    parser.add_argument("--generate", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--only", choices=["inferd", "llama.cpp"], help="leave the other one out")
    options = parser.parse_args()
    options.length = max(options.prompt + 8, options.context + options.generate + 8)

    engines = [make(options) for make in (Inferd, LlamaCpp) if options.only in (None, make.name)]
    rng = random.Random(7)

    def prompts(n, length):
        return [[rng.randrange(1000, 20000) for _ in range(length)] for _ in range(n)]

    results = {}
    try:
        for engine in engines:  # warm up
            engine.decode(prompts(1, options.context), 8)
        for repeat in range(options.repeat):
            for n in options.streams:
                for engine in engines if repeat % 2 == 0 else engines[::-1]:
                    measured = engine.prefill(prompts(n, options.prompt))
                    results.setdefault(("prefill", n), {}).setdefault(engine.name, []).append(measured)
                    measured = engine.decode(prompts(n, options.context), options.generate)
                    results.setdefault(("decode", n), {}).setdefault(engine.name, []).append(measured)
    finally:
        for engine in engines:
            engine.close()

    def cell(values):
        return f"{statistics.median(values):.1f} ({min(values):.1f}-{max(values):.1f})"

    print(f"{datetime.date.today()}, {processor()}, {options.threads} threads, {os.path.basename(options.model)}")
    print(", ".join(f"{e.name} {e.version}" for e in engines) + f"; tokens/s, median of {options.repeat} (min-max)")
    print("\n| what | streams | " + " | ".join(e.name for e in engines) + (" | ratio |" if len(engines) == 2 else " |"))
    print("|---" * (2 + len(engines) + (len(engines) == 2)) + "|")
    for what in ("prefill", "decode"):
        for n in options.streams:
            row = results[what, n]
            cells = [cell(row[e.name]) for e in engines]
            if len(engines) == 2:
                medians = [statistics.median(row[e.name]) for e in engines]
                cells.append(f"{medians[0] / medians[1]:.2f}")
            print(f"| {what} | {n} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
