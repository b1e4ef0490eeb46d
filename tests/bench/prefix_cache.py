"""What the prefix cache saves: 100 requests, one after the other, with one shared prefix and a tail of their own.

    python tests/bench/prefix_cache.py --model "$(./bootstrap model)" --threads 2

Time to first token of the first request (nothing cached), and of the others; then the same with --prefix-cache=false.
"""

import argparse
import http.client
import json
import os
import random
import socket
import statistics
import subprocess
import time


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Inferd:
    def __init__(self, options, *flags):
        self.port = free_port()
        self.process = subprocess.Popen(
            [options.inferd, "serve", "--model=" + options.model, "--host=127.0.0.1", f"--port={self.port}",
             f"--threads={options.threads}", "--log-level=error", *flags],
            env={k: v for k, v in os.environ.items() if not k.startswith("INFERD")},
        )
        while True:
            if self.process.poll() is not None:
                raise SystemExit(f"inferd ended with {self.process.returncode}")
            try:
                if self.call("GET", "/readyz").status == 200:
                    break
            except OSError:
                pass
            time.sleep(0.05)
        self.model = json.loads(self.call("GET", "/v1/models").read())["data"][0]["id"]

    def call(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        headers = {"Content-Type": "application/json"} if body else {}
        connection.request(method, path, json.dumps(body) if body else None, headers)
        return connection.getresponse()

    def first_token(self, ids):
        """Seconds to the first token, and how many tokens of the prompt were cached."""
        began = time.perf_counter()
        answer = self.call("POST", "/v1/completions", {
            "model": self.model, "prompt": ids, "max_tokens": 1, "temperature": 0, "stream": True, "ignore_eos": True,
            "stream_options": {"include_usage": True},
        })
        assert answer.status == 200, answer.read()
        took, cached = None, None
        for line in answer:
            if line.startswith(b"data: {"):
                event = json.loads(line[6:])
                took = took or time.perf_counter() - began
                if event.get("usage"):
                    cached = event["usage"]["prompt_tokens_details"]["cached_tokens"]
        return took, cached

    def close(self):
        self.process.terminate()
        self.process.wait(60)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--inferd", default="build/inferd")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--prefix", type=int, default=2000)
    parser.add_argument("--tail", type=int, default=24)
    parser.add_argument("--requests", type=int, default=100)
    options = parser.parse_args()

    rng = random.Random(7)
    prefix = [rng.randrange(1000, 40000) for _ in range(options.prefix)]
    prompts = [prefix + [rng.randrange(1000, 40000) for _ in range(options.tail)] for _ in range(options.requests)]
    other = [rng.randrange(1000, 40000) for _ in range(64)]

    print(f"prefix {options.prefix} tokens, tail {options.tail}, {options.requests} requests, {options.threads} threads")
    print("| prefix cache | first, ms | others: median, ms | min-max | cached tokens | first / median |")
    print("|---|---|---|---|---|---|")
    for flag, some in (("true", len(prompts)), ("false", min(5, len(prompts)))):
        server = Inferd(options, f"--prefix-cache={flag}")
        try:
            server.first_token(other)  # warm
            times = [server.first_token(ids) for ids in prompts[:some]]
        finally:
            server.close()
        first, others = times[0][0], [t for t, _ in times[1:]]
        cached = {c for _, c in times[1:]}
        print(f"| {flag} | {first * 1e3:.0f} | {statistics.median(others) * 1e3:.1f} | {min(others) * 1e3:.1f}-"
              f"{max(others) * 1e3:.1f} | {', '.join(map(str, sorted(cached)))} | {first / statistics.median(others):.1f} |",
              flush=True)


if __name__ == "__main__":
    main()
