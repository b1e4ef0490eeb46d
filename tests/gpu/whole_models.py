"""Whole models on a GPU beside the CPU, through the daemon: the same tokens, but where the CPU itself could hardly choose."""

import json
import os
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

PROMPTS = ["The capital of France is", "Once upon a time", "def add(a, b):", "1, 2, 3, 4,", "the of and a to in is you that"]
NEAR = 0.2  # difference of log-probabilities that 16-bit activations and another order of sums may turn round


class Server:
    """A daemon with settings; answers are those of /v1/completions, greedy, with the two best of each token."""

    def __init__(self, run, model, **settings):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        settings = {"model": model, "host": "127.0.0.1", "port": self.port, "max_model_len": 256, "max_sequences": 8, "kv_tokens": 2048, **settings}
        flags = [f"--{k.replace('_', '-')}={v}" if v is not True else f"--{k.replace('_', '-')}" for k, v in settings.items()]
        self.log = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen([run.inferd, "serve", *flags], stdout=self.log, stderr=self.log, env=run.environment)

    def __enter__(self):
        end = time.monotonic() + 240
        while time.monotonic() < end:
            assert self.process.poll() is None, f"inferd ended: {self.log_text()}"
            try:
                self.get("/readyz")
                return self
            except (urllib.error.URLError, OSError):
                time.sleep(0.05)
        raise AssertionError("inferd is not ready")

    def __exit__(self, *_):
        self.process.terminate()
        try:
            code = self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        assert code == 0, f"inferd ended with {code}: {self.log_text()}"

    def log_text(self):
        self.log.seek(0)
        return self.log.read().decode(errors="replace")[-1500:]

    def get(self, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=240) as answer:
            text = answer.read()
        return json.loads(text) if body is not None or path.startswith("/v1") else text

    def answers(self, prompts, tokens):
        model = self.get("/v1/models")["data"][0]["id"]
        body = {"model": model, "prompt": prompts, "max_tokens": tokens, "temperature": 0, "logprobs": 5, "ignore_eos": True}
        return [choice["logprobs"] for choice in self.get("/v1/completions", body)["choices"]]


def models(run):
    """The tiny model of the tests, and the demo model where there is one (not on the emulator)."""
    found = [run.tiny_model()]
    demo = os.environ.get("INFERD_TEST_MODEL", os.path.expanduser("~/.cache/inferd/models/SmolLM2-135M-Instruct.Q4_1.gguf"))
    return found + ([demo] if os.path.isfile(demo) and not run.emulated else [])


def settings_of(run):
    eight = {"weights": "int8", "kv_dtype": "int8"}
    return [{**eight, "max_sequences": 2, "kv_tokens": 512}] if run.emulated else [{}, eight, {"weights": "bf16"}]


KNOWN = {}  # answers already got: what is compared twice is computed once


def ask(run, model, tokens, prompts, **settings):
    key = (model, tokens, *sorted(settings.items()))
    if key not in KNOWN:
        with Server(run, model, **settings) as server:
            KNOWN[key] = server.answers(prompts, tokens)
    return KNOWN[key]


def differ_at(cpu, gpu):
    """Where two answers part, or None; and by how much the CPU prefers its own token there."""
    for i, (a, b) in enumerate(zip(cpu["tokens"], gpu["tokens"], strict=True)):
        if a != b:
            best = cpu["top_logprobs"][i]
            return i, best[a] - best[b] if b in best else float("inf")
    return None, 0.0


def compare_devices(run):
    tokens, together, parted = (6 if run.emulated else 48), 0, 0
    prompts = PROMPTS[:2] if run.emulated else PROMPTS
    for model in models(run):
        for settings in settings_of(run):
            cpu = ask(run, model, tokens, prompts, device="cpu", **settings)
            gpu = ask(run, model, tokens, prompts, device="cuda", cuda_module=run.module, **settings)
            for prompt, a, b in zip(prompts, cpu, gpu, strict=True):
                at, by = differ_at(a, b)
                assert by < NEAR, f"{os.path.basename(model)} {settings} {prompt!r}: token {at} is {b['tokens'][at]!r}, {by:.3f} less likely on the CPU"
                together += at is None
                parted += at is not None
    return f"{together} answers of {tokens} tokens are the same, {parted} part where the CPU's choice is by less than {NEAR}"


def compare_graphs(run):
    tokens, n = (6 if run.emulated else 48), 0
    prompts = PROMPTS[:2] if run.emulated else PROMPTS
    for model in models(run):
        for settings in settings_of(run):
            found = [ask(run, model, tokens, prompts, device="cuda", cuda_module=run.module, **settings, **graphs)
                     for graphs in ({}, {"no_cuda_graphs": True})]
            assert found[0] == found[1], f"{os.path.basename(model)} {settings}: graphs change an answer"
            n += len(prompts)
    return f"{n} answers of {tokens} tokens, log-probabilities and all"
