"""A daemon under random traffic: clients that leave, requests that are wrong, every option; and what is left afterwards.

    python tests/soak/soak.py --model MODEL --seconds 1800                        the soak: 20 % leave, 5 % are malformed
    python tests/soak/soak.py --model MODEL --requests 10000 --aborts 1           everybody leaves
    python tests/soak/soak.py --model MODEL --device null ...                     on the null device

Wrong is: a 5xx that nobody asked for, a right request refused, a wrong one taken, an answer cut or without its end, one of the
control requests answered otherwise than at the start, a request, KV block or descriptor left over, a metrics page whose
sums do not hold, a process that died or wrote a sanitizer's report. With --max-growth also memory that grows.
"""

import argparse
import collections
import json
import os
import random
import socket
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "api")]

from conftest import INFERD, MODEL, SLOW, Daemon, wait_for  # noqa: E402
from faults import Faults  # noqa: E402
from traffic import CHAT, COMPLETIONS, leave, malformed, post, valid  # noqa: E402

CONTROLS = [
    (CHAT, {"messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 12, "temperature": 0}),
    (CHAT, {"messages": [{"role": "user", "content": "Tell me a story"}], "max_tokens": 20, "temperature": 1, "seed": 5, "n": 2,
            "logprobs": True, "top_logprobs": 2}),
    (COMPLETIONS, {"prompt": "Once upon a time", "max_tokens": 20, "temperature": 0, "stop": ["\n"], "logprobs": 1}),
    (COMPLETIONS, {"prompt": ["The", "A " * 100], "max_tokens": 8, "temperature": 1.2, "seed": 9, "ignore_eos": True}),
    (COMPLETIONS, {"prompt": "the of and a to in is you that", "max_tokens": 24, "temperature": 0, "speculative_tokens": 4}),
]


class Wrong(Exception):
    pass


class Failed(Wrong):
    """What a client can see to be no whole answer: right only if faults are caused (--faults)."""


def read_answer(s):
    """(status, head, body) of an answer that ends with its connection; status 0: there was none."""
    data = b""
    try:
        while part := s.recv(65536):
            data += part
    except ConnectionResetError:
        pass
    if not data:
        return 0, b"", b""
    head, _, body = data.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" in head.lower():
        whole = b""
        while True:
            size, _, rest = body.partition(b"\r\n")
            n = int(size or b"0", 16)
            if n == 0:
                if size == b"":
                    raise Failed(f"the answer is cut: {data[-200:]!r}")
                break
            whole += rest[:n]
            body = rest[n + 2 :]
        body = whole
    return int(head.split(b" ", 2)[1]), head, body


def texts_of_stream(body):
    """{index: text}; None where it ended with an error."""
    events = body.decode().split("\n\n")
    if events[-1] != "" or not events[:-1]:
        raise Failed(f"the stream does not end with an event: {body[-200:]!r}")
    events = [e for e in events[:-1] if not e.startswith(":")]
    texts, finished = collections.defaultdict(str), set()
    for event in events:
        if event == "data: [DONE]":
            continue
        event = json.loads(event.removeprefix("data: "))
        if "error" in event:
            return None
        for c in event["choices"]:
            texts[c["index"]] += c["text"] if "text" in c else c["delta"].get("content") or ""
            if c["finish_reason"]:
                finished.add(c["index"])
    if events[-1] != "data: [DONE]" or finished != set(texts):
        raise Wrong(f"the stream ends without [DONE] or a finish_reason: {body[-300:]!r}")
    return texts


class Soak:
    def __init__(self, options):
        self.options = options
        self.folder = tempfile.TemporaryDirectory()
        settings = dict(s.split("=", 1) for s in options.setting)
        settings = {"max_model_len": 2048, "kv_tokens": 8192, "max_sequences": 16, "max_waiting": 64, "log_level": "warn",
                    "scheduling": "priority", "priority_ageing": 5, "header_timeout": 3, "body_timeout": 3, **settings}
        if options.device:
            settings["device"] = options.device
        environment = dict(e.split("=", 1) for e in options.environment)
        if options.faults:
            self.faults = Faults(os.path.join(self.folder.name, "faults"))
            environment |= self.faults.environment
        self.daemon = Daemon(os.path.join(self.folder.name, "log"), program=options.inferd, model=options.model,
                             environment=environment, **settings).wait_ready(120)
        self.counts = collections.Counter()
        self.wrong = []
        self.lock = threading.Lock()
        self.left = options.requests or sys.maxsize
        self.end = time.monotonic() + (options.seconds or 10**9)
        self.memory = []  # bytes, once a second
        self.expected = []
        self.over = False

    def count(self, what):
        with self.lock:
            self.counts[what] += 1

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.daemon.pid}/fd"))

    # --- one request

    def ask(self, data):
        with self.daemon.connect(60) as s:
            try:
                s.sendall(data)
            except (BrokenPipeError, ConnectionResetError):
                pass  # a refusal may come before everything was sent
            status, head, body = read_answer(s)
        if status == 0 or status == 500:
            raise Failed(f"{status} {body[:300]!r} for {data[:2000]!r}")
        return status, head, body

    def control(self, i, stream):
        path, body = CONTROLS[i]
        status, _, answer = self.ask(post(path, {"model": self.daemon.model, "stream": stream, **body}))
        if status == 429:
            return None
        if status != 200:
            raise Wrong(f"control {i}: {status} {answer[:300]!r}")
        if stream:
            texts = texts_of_stream(answer)
            if texts is None:
                raise Failed(f"control {i}: {answer[-300:]!r}")
            return [texts[j] for j in sorted(texts)]
        return [c["text"] if "text" in c else c["message"]["content"] for c in json.loads(answer)["choices"]]

    def check_control(self, rng):
        i = rng.randrange(len(CONTROLS))
        got = self.control(i, rng.random() < 0.5)
        self.count("control" if got else "429")
        if got and got != self.expected[i]:
            raise Wrong(f"control {i}: {got} in place of {self.expected[i]}")

    def check_valid(self, rng):
        path, body = valid(rng, self.daemon.model)
        status, _, answer = self.ask(post(path, body))
        self.count(str(status))
        late = "timeout" in body
        if status == 429 or (status == 503 and late):
            return
        if status != 200:
            raise Wrong(f"{status} {answer[:300]!r} for {json.dumps(body)[:2000]}")
        if body.get("stream"):
            if texts_of_stream(answer) is None and not late:
                raise Failed(f"an error event {answer[-300:]!r} for {json.dumps(body)[:2000]}")
            return
        answer = json.loads(answer)
        prompts = len(body["prompt"]) if isinstance(body.get("prompt"), list) and isinstance(body["prompt"][0], str) else 1
        if [c["index"] for c in answer["choices"]] != list(range(prompts * body.get("n", 1))):
            raise Wrong(f"choices {answer['choices']} for {json.dumps(body)[:2000]}")

    def check_malformed(self, rng):
        data, right = malformed(rng, self.daemon.model)
        try:
            status, _, answer = self.ask(data)
        except Failed:
            if 0 not in right:
                raise
            status, answer = 0, b""
        self.count(f"malformed {status}")
        if status not in right and status != 429:
            raise Wrong(f"{status} {answer[:300]!r} for {data[:500]!r}")

    def abort(self, rng):
        path, body = valid(rng, self.daemon.model)
        with self.daemon.connect(60) as s:
            try:
                leave(rng, s, post(path, body), self.options.patience)
            except (ConnectionError, socket.timeout):
                pass
        self.count("aborted")

    def one(self, rng):
        kind = rng.random()
        if kind < self.options.aborts:
            self.abort(rng)
        elif kind < self.options.aborts + self.options.malformed:
            self.check_malformed(rng)
        elif rng.random() < 0.15:
            self.check_control(rng)
        else:
            self.check_valid(rng)

    # --- all of it

    def client(self, number):
        rng = random.Random(self.options.seed * 1000 + number)
        while time.monotonic() < self.end and len(self.wrong) < 20 and self.daemon.running():
            with self.lock:
                if self.left == 0:
                    return
                self.left -= 1
            try:
                self.one(rng)
            except Failed as e:
                self.count("failed")
                if not self.options.faults:
                    with self.lock:
                        self.wrong.append(str(e))
            except Exception as e:  # whatever it is, it is not as it should be
                with self.lock:
                    self.wrong.append(f"{type(e).__name__}: {e}")

    def cause_faults(self):
        """Now memory fails once or some times, now a row of logits has a NaN, now a step takes long."""
        rng = random.Random(self.options.seed)
        while time.monotonic() < self.end and self.daemon.running() and not self.over:
            kind = rng.random()
            if kind < 0.8:
                self.faults.fail_memory(rng.randint(1, 100), rng.choice([0, 0, 0, 2, 10]))
            elif kind < 0.98:
                self.faults.nan_row = rng.randint(1, 50)
            else:
                self.faults.stall = 1
                time.sleep(0.1)
                self.faults.stall = 0
            time.sleep(rng.uniform(0, 0.05))
        self.faults.memory_is_back()
        self.faults.nan_row = 0

    def watch(self, threads):
        """Sample memory, and look at the page of metrics and the probes while they run."""
        while any(t.is_alive() for t in threads):
            time.sleep(1)
            if not self.daemon.running():
                return
            self.memory.append(self.daemon.resident_bytes())
            try:
                before = time.monotonic()
                live, ready = self.daemon.get("/livez").status, self.daemon.get("/readyz").status
                self.slowest_probe = max(self.slowest_probe, time.monotonic() - before)
                if (live, ready) != (200, 200) and not self.options.faults:  # else memory failed for them
                    self.wrong.append(f"livez {live}, readyz {ready}")
                self.daemon.check_identity()
            except (OSError, AssertionError) as e:
                if not self.options.faults:
                    self.wrong.append(f"while it runs: {type(e).__name__} {e}")

    def growth(self):
        """Bytes by which memory grew between the third and the last quarter of the time: their medians."""
        quarter = len(self.memory) // 4
        third, last = (sorted(self.memory[i * quarter : (i + 1) * quarter]) for i in (2, 3))
        return last[quarter // 2] - third[quarter // 2] if quarter else 0

    def settle(self):
        """Afterwards nothing is left."""
        d = self.daemon
        try:
            d.wait_idle(20)
            d.check_identity()
            if d.gauge("kv_blocks_used") != 0:
                self.wrong.append(f"{d.gauge('kv_blocks_used')} KV blocks are held by nobody")
            for i, expected in enumerate(self.expected):
                if self.control(i, False) != expected:
                    self.wrong.append(f"control {i} is answered otherwise at the end")
            wait_for(lambda: self.descriptors() <= self.descriptors_at_start, 10,
                     f"descriptors are back from {self.descriptors()} to {self.descriptors_at_start}")
            d.stop()
        except (AssertionError, OSError, Wrong) as e:
            self.wrong.append(f"afterwards: {e}")
        if d.running():
            d.process.kill()
            d.process.wait()

    def run(self):
        d, o = self.daemon, self.options
        self.slowest_probe = 0.0
        began = time.monotonic()
        try:
            self.expected = [self.control(i, False) for i in range(len(CONTROLS))]
            time.sleep(0.3)
            self.descriptors_at_start = self.descriptors()
            threads = [threading.Thread(target=self.client, args=(i,), daemon=True) for i in range(o.clients)]
            causer = threading.Thread(target=self.cause_faults, daemon=True)
            for t in threads + [causer] * o.faults:
                t.start()
            self.watch(threads)
            self.over = True
            if o.faults:
                causer.join()
            if not d.running():
                self.wrong.append(f"the daemon ended with {d.process.returncode}")
        except Exception as e:
            self.wrong.append(f"{type(e).__name__}: {e}")
        lasted = time.monotonic() - began
        self.settle()
        growth = self.growth()
        if o.max_growth is not None and growth > o.max_growth * 2**20:
            self.wrong.append(f"memory grew by {growth / 2**20:.1f} MiB")
        report = {
            "seconds": round(lasted, 1), "counts": dict(sorted(self.counts.items())),
            "requests": sum(self.counts.values()), "slowest_two_probes_s": round(self.slowest_probe, 3),
            "memory_MiB": [round(m / 2**20, 1) for m in self.memory[:: max(1, len(self.memory) // 10)]],
            "memory_growth_MiB": round(growth / 2**20, 2), "wrong": self.wrong[:20],
        }
        self.folder.cleanup()
        return report


def parse(arguments):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--inferd", default=INFERD)
    p.add_argument("--model", default=MODEL)
    p.add_argument("--device", default=None, help="null, cpu")
    p.add_argument("--setting", action="append", default=[], metavar="NAME=VALUE", help="of the daemon; may be repeated")
    p.add_argument("--environment", action="append", default=[], metavar="NAME=VALUE", help="likewise")
    p.add_argument("--requests", type=int, default=0, help="how many (0: as many as fit in --seconds)")
    p.add_argument("--seconds", type=float, default=0)
    p.add_argument("--clients", type=int, default=24, help="at a time")
    p.add_argument("--aborts", type=float, default=0.2, help="share of the requests that are left")
    p.add_argument("--malformed", type=float, default=0.05, help="share of those that are wrong")
    p.add_argument("--faults", action="store_true", help="cause faults meanwhile, with a build that has the hooks")
    p.add_argument("--patience", type=float, default=0.1, help="seconds that one who leaves may wait before")
    p.add_argument("--max-growth", type=float, default=None, metavar="MIB",
                   help="memory may grow by so much between the third and the last quarter of the time")
    p.add_argument("--seed", type=int, default=1)
    options = p.parse_args(arguments)
    if not options.requests and not options.seconds:
        p.error("--requests or --seconds")
    return options


if __name__ == "__main__":
    result = Soak(parse(None)).run()
    print(json.dumps(result, indent=1, ensure_ascii=False))
    sys.exit(bool(result["wrong"]))
