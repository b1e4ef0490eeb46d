"""What speculation (speculative_tokens) brings: the same requests with and without it, by turns, against one daemon.

    python tests/bench/speculation.py --model "$(./bootstrap model)" --threads 2

Three kinds of work: `copy` asks for a text of the prompt again, `edit` for one with a change, `chat` are ordinary
questions. Every request is greedy, and its text must be the same both ways. Speed is tokens made over time from the first
token of the first stream to the end of the last, all streams together; the median of --rounds rounds, since other work
on the machine moves single ones. CPU ms a token is processor time of the daemon: with --threads 1 no thread waits for
another, so it tells the cost also where other programs run. Kept is the share of drafted tokens that were right, and
tokens a step what a stream gained in each step of the engine.
"""

import argparse
import datetime
import http.client
import json
import os
import platform
import re
import socket
import statistics
import subprocess
import threading
import time

PASSAGE = (
    "The harbour of Saint Malo was built by privateers, who feared the English less than the tide. Twice a day the sea draws "
    "back by twelve metres and leaves the boats on the sand; twice a day it returns faster than a man can walk. The ramparts, "
    "two kilometres long, were finished in 1742 by the engineer Siméon Garangeau, a pupil of Vauban. In August 1944 the town "
    "burned for a week, and of eight hundred and sixty-five buildings one hundred and eighty-two were left standing."
)
CODE = '''def mean(values):
    """The arithmetic mean of a list of numbers."""
    if not values:
        raise ValueError("mean of an empty list")
    total = 0.0
    for value in values:
        total += value
    return total / len(values)


def variance(values):
    """The population variance of a list of numbers."""
    if not values:
        raise ValueError("variance of an empty list")
    centre = mean(values)
    total = 0.0
    for value in values:
        total += (value - centre) ** 2
    return total / len(values)
'''
KINDS = {
    "copy": [f"Repeat this text word by word:\n\n{PASSAGE}", f"Write this program again, exactly as it is:\n\n{CODE}"],
    "edit": [
        f"Write this program again, with every docstring in capital letters:\n\n{CODE}",
        f"Write this text again and replace the English by the Dutch:\n\n{PASSAGE}",
    ],
    "chat": [
        "Why is the sky blue?",
        "Write a short letter to a friend about a walk in the mountains.",
        "Explain how a sailing boat can go against the wind.",
        "What should I cook for six people on a rainy evening?",
    ],
}


class Daemon:
    def __init__(self, options):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        flags = {"model": options.model, "host": "127.0.0.1", "port": self.port, "threads": options.threads,
                 "max-model-len": 2048, "kv-tokens": 2048 * max(options.streams), "max-sequences": max(options.streams),
                 "log-level": "error"}
        env = {k: v for k, v in os.environ.items() if not k.startswith("INFERD")}
        self.process = subprocess.Popen([options.inferd, "serve", *[f"--{k}={v}" for k, v in flags.items()]], env=env)
        while not self.ready():
            if self.process.poll() is not None:
                raise SystemExit(f"inferd ended with {self.process.returncode}")
            time.sleep(0.05)
        self.model = json.loads(self.get("/v1/models"))["data"][0]["id"]

    def ready(self):
        try:
            self.get("/readyz")
            return True
        except (OSError, ValueError):
            return False

    def get(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", path)
        response = connection.getresponse()
        if response.status != 200:
            raise ValueError(response.status)
        return response.read()

    def counters(self):
        names = {"steps": "engine_steps", "drafts": "drafts", "drafted": "drafted_tokens", "kept": "accepted_tokens"}
        page = self.get("/metrics").decode()
        return {k: float(re.search(rf"^inferd_{v}_total (\S+)", page, re.M).group(1)) for k, v in names.items()}

    def cpu_seconds(self):
        with open(f"/proc/{self.process.pid}/stat", encoding="ascii") as f:
            fields = f.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def ask(self, prompt, speculative, tokens):
        """The text, how many tokens it has, and when the first and the last of them came."""
        body = {"model": self.model, "messages": [{"role": "user", "content": prompt}], "temperature": 0, "stream": True,
                "max_tokens": tokens, "speculative_tokens": speculative, "stream_options": {"include_usage": True}}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        assert response.status == 200, response.read()
        text, first, usage = "", None, None
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            usage = event.get("usage") or usage
            if event["choices"] and event["choices"][0]["delta"].get("content"):
                first = first or time.perf_counter()
                text += event["choices"][0]["delta"]["content"]
        return text, usage["completion_tokens"], first, time.perf_counter()


def measure(daemon, prompts, streams, speculative, tokens):
    """Each prompt on `streams` streams at once, one prompt after the other."""
    for prompt in prompts:
        daemon.ask(prompt, 0, 1)  # all prompts lie in the prefix cache: what is measured is decoding
    texts, made, seconds, before, cpu = [], 0, 0.0, daemon.counters(), daemon.cpu_seconds()
    for prompt in prompts:
        answers = [None] * streams

        def run(i):
            answers[i] = daemon.ask(prompt, speculative, tokens)

        threads = [threading.Thread(target=run, args=(i,)) for i in range(streams)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        texts += [a[0] for a in answers]
        made += sum(a[1] for a in answers) - streams  # the first of each comes with the prompt
        seconds += max(a[3] for a in answers) - min(a[2] for a in answers)
    after, cpu = daemon.counters(), daemon.cpu_seconds() - cpu
    return texts, made / seconds, made, cpu / made * 1e3, {k: after[k] - before[k] for k in after}


def processor():
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        return next((line.split(":")[1].strip() for line in f if line.startswith("model name")), platform.machine())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--inferd", default="build/inferd")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--speculative", type=int, nargs="+", default=[4, 16])
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    daemon = Daemon(options)
    try:
        print(f"{os.path.basename(options.model)}, {options.threads or 'all'} threads of {processor()}, {datetime.date.today()}\n")
        print("| work | streams | speculative_tokens | tokens/s | times as fast | CPU ms a token | drafted | kept | tokens a step |")
        print("|---|---|---|---|---|---|---|---|---|")
        for kind, prompts in KINDS.items():
            for streams in options.streams:
                expected, speeds, costs, last = None, {}, {}, {}
                for _ in range(options.rounds):
                    for n in (0, *options.speculative):
                        texts, speed, made, cost, counters = measure(daemon, prompts, streams, n, options.tokens)
                        expected = expected or texts
                        assert texts == expected, "speculation changed a text"
                        speeds.setdefault(n, []).append(speed)
                        costs.setdefault(n, []).append(cost)
                        last[n] = made, counters
                base = statistics.median(speeds[0])
                for n, values in speeds.items():
                    speed, (made, c) = statistics.median(values), last[n]
                    share = f"{c['kept'] / c['drafted']:.0%}" if c["drafted"] else ""
                    print(f"| {kind} | {streams} | {n or 'off'} | {speed:.1f} | {speed / base:.2f} "
                          f"| {statistics.median(costs[n]):.1f} | {c['drafted']:.0f} | {share} "
                          f"| {made / streams / c['steps']:.2f} |", flush=True)
    finally:
        daemon.process.terminate()
        daemon.process.wait()


if __name__ == "__main__":
    main()
