"""The same requests, one at a time to a plain server and all together to one that does all it can to hurry them, must get the same bytes.

What varies: order, company, prefix cache, KV memory so small that requests are preempted and blocks taken from the cache, forks of n
answers, threads, chunks of prompts, speculation, priorities, clients that leave, deadlines, streamed or whole. Requests are drawn at random from a seed,
for the demo model and, more of them, for a tiny model that the tests write.
By hand, at length: INFERD_DIFFERENTIAL=20 (times as many) INFERD_DIFFERENTIAL_SEED=7 python -m pytest tests/api/test_differential.py
"""

import json
import os
import random
import threading

import pytest
from conftest import MODEL, SLOW, Daemon
from faults import write_tiny_model

REQUESTS = {"demo": 10, "tiny": 400}
TIMES = float(os.environ.get("INFERD_DIFFERENTIAL", "1"))
SEED = int(os.environ.get("INFERD_DIFFERENTIAL_SEED", "1"))
CONTEXT = 192
VOCABULARY = 256  # the ids that both models have and that mean nothing special

SENTENCES = [
    "The sea was calm and the sun was high. ", "One two three four five six seven. ", "def add(a, b):\n    return a + b\n", "El perro come. ",
    "She said: \"no, no, no!\" and left. ", "1, 2, 3, 4, 5, 6, 7, 8, ", "Tokyo 東京 is big. ", "A A A A A A A A ",
]


class Requests:
    """Draws requests: prompts that share beginnings, of lengths about the borders of blocks, and a few options of each."""

    def __init__(self, seed, model):
        self.r, self.model = random.Random(seed), model
        # a tree of ids: a prompt is a walk in it, so that many begin alike and part in the middle of a block
        self.trunk = [[self.r.randrange(20, VOCABULARY) for _ in range(CONTEXT)] for _ in range(3)]

    def maybe(self, share, value):
        return value() if self.r.random() < share else None

    def ids(self):
        r = self.r
        block = r.choice([16, 32, 48, 64, 96, 112])
        ids = list(r.choice(self.trunk)[: max(1, block + r.choice([-1, 0, 0, 1, 5]))])
        if r.random() < 0.4:  # others' ids at the end, or the same once more: something to draft from
            ids = ids[: block // 2] + r.choice([ids[: block // 2], [r.randrange(20, VOCABULARY) for _ in range(r.randrange(1, 20))]])
        return ids

    def text(self):
        r = self.r
        return "".join(r.choice(SENTENCES) for _ in range(r.randrange(1, 3))) + r.choice(["", r.choice(SENTENCES)[: r.randrange(1, 12)]])

    def prompt(self):
        r = self.r
        kind = r.random()
        if kind < 0.1:
            return [self.ids() for _ in range(2)]
        if kind < 0.15:
            return [self.text(), self.text()]
        return self.ids() if kind < 0.65 else self.text()

    def sampling(self):
        r = self.r
        if r.random() < 0.4:
            return {"temperature": 0}
        some = {
            "top_k": lambda: r.choice([1, 5, 40]), "top_p": lambda: r.choice([0.1, 0.9]), "min_p": lambda: 0.1, "typical_p": lambda: 0.8,
            "top_n_sigma": lambda: 1.5, "xtc_probability": lambda: 0.7, "xtc_threshold": lambda: 0.05, "dynatemp_range": lambda: 0.5,
            "dry_multiplier": lambda: 1.0, "mirostat": lambda: r.choice([1, 2]), "repetition_penalty": lambda: 1.3, "repeat_last_n": lambda: 8,
            "presence_penalty": lambda: 0.7, "frequency_penalty": lambda: -0.3, "samplers": lambda: r.choice([["top_k"], "kypt", ["temperature", "min_p"]]),
        }
        return {"temperature": r.choice([0.5, 1, 2]), "seed": r.randrange(-(2**63), 2**63),
                **{k: v() for k, v in some.items() if r.random() < 0.15}}

    def body(self):
        r = self.r
        some = {
            "n": self.maybe(0.35, lambda: r.choice([2, 3])), "stop": self.maybe(0.25, lambda: r.sample([" the", ".", "\n", "e", " a", "three"], 2)),
            "include_stop_str_in_output": self.maybe(0.2, lambda: True), "min_tokens": self.maybe(0.15, lambda: 4),
            "ignore_eos": self.maybe(0.4, lambda: True), "logit_bias": self.maybe(0.1, lambda: {str(r.randrange(VOCABULARY)): r.choice([-100, 3])}),
            "bad_words": self.maybe(0.1, lambda: ["the", "sun was"]), "allowed_token_ids": self.maybe(0.05, lambda: list(range(VOCABULARY))),
            "stop_token_ids": self.maybe(0.1, lambda: [r.randrange(VOCABULARY) for _ in range(8)]),
            "repetition_detection": self.maybe(0.1, lambda: {"max_pattern_size": 4, "min_count": 2}),
            "skip_special_tokens": self.maybe(0.1, lambda: False), "prompt_logprobs": self.maybe(0.15, lambda: r.choice([0, 2])),
        }
        body = {"model": self.model, "max_tokens": r.randrange(1, 40), **self.sampling(), **{k: v for k, v in some.items() if v is not None}}
        if r.random() < 0.25:
            return "/v1/chat/completions", {
                **body, "messages": [{"role": "user", "content": self.text()}],
                **({"logprobs": True, "top_logprobs": r.randrange(4)} if r.random() < 0.4 else {}),
            }
        body["prompt"] = self.prompt()
        if r.random() < 0.4:
            body["logprobs"] = r.randrange(4)
        if r.random() < 0.25:
            body["echo"] = True
            if r.random() < 0.3:
                body["max_tokens"] = 0
                body.pop("min_tokens", None)
        return "/v1/completions", body


def gathered(events):
    """What the events of a stream say, in the shape of a whole answer's choices."""
    choices = {}
    for event in events:
        for e in event["choices"]:
            c = choices.setdefault(e["index"], {"text": "", "logprobs": None, "finish_reason": None, "stop_reason": None})
            c["text"] += e["text"] if "text" in e else e["delta"].get("content") or ""
            for name, values in (e["logprobs"] or {}).items():
                c["logprobs"] = c["logprobs"] or {}
                c["logprobs"][name] = (c["logprobs"].get(name) or []) + values if values is not None else None
            if e["finish_reason"]:
                c["finish_reason"], c["stop_reason"] = e["finish_reason"], e.get("stop_reason")
    return [choices[i] for i in sorted(choices)]


def whole(answer):
    return [
        {"text": c["text"] if "text" in c else c["message"]["content"], "logprobs": c["logprobs"],
         "finish_reason": c["finish_reason"], "stop_reason": c.get("stop_reason")}
        for c in answer["choices"]
    ]


def ask(daemon, path, body, stream=False):
    """Everything in the answer that must not depend on how it was made."""
    if stream and body.get("prompt_logprobs") is None:
        body = {**body, "stream": True, "stream_options": {"include_usage": True}}
    answer = daemon.post(path, body, timeout=300)
    if answer.status != 200:
        return {"status": answer.status, "error": answer.json()["error"]}
    if "stream" in body:
        lines = [line for line in answer.body.decode().split("\n") if line.startswith("data: ")]
        assert lines[-1] == "data: [DONE]", lines[-1]
        events = [json.loads(line[6:]) for line in lines[:-1]]
        choices, usage, prompt = gathered(events), events[-1]["usage"], None
    else:
        answer = answer.json()
        choices, usage = whole(answer), answer["usage"]
        prompt = [answer.get("prompt_logprobs"), [c.get("prompt_logprobs") for c in answer["choices"]]]
    usage = {k: usage[k] for k in ("prompt_tokens", "completion_tokens", "total_tokens")}
    return {"status": 200, "choices": choices, "usage": usage, "prompt": prompt}


def equal(got, expected):
    """A streamed answer has no logprobs of the prompt, and no empty list of logprobs."""
    def plain(a):
        choices = [{**c, "logprobs": {k: v for k, v in (c["logprobs"] or {}).items() if v} or None} for c in a.get("choices", [])]
        return {**a, "choices": choices, "prompt": a.get("prompt") if got.get("prompt") else None}

    return plain(got) == plain(expected)


def leave(daemon, path, body, after):
    """A client that goes after a few events."""
    body = {k: v for k, v in body.items() if k != "prompt_logprobs"}
    prompt = body.pop("prompt", None)
    stream = daemon.open_stream(prompt, path, **body)
    try:
        for _ in range(after):
            if not stream.start().readline():
                break
    finally:
        stream.close()


def storm(daemon, requests, expected, seed, clients, priorities):
    """All requests twice, in a random order, by so many clients; what differed."""
    r = random.Random(seed)
    jobs = list(range(len(requests))) * 2
    r.shuffle(jobs)
    plans = [(i, r.random() < 0.5, r.random() < 0.15, r.randrange(6), r.randrange(-3, 4)) for i in jobs]
    differ, lock = [], threading.Lock()

    def client():
        while True:
            with lock:
                if not plans or differ:
                    return
                i, stream, leaves, after, priority = plans.pop()
            path, body = requests[i]
            body = {**body, "priority": priority} if priorities else body
            try:
                if leaves and after == 5:  # out of time, wherever it is by then
                    body = {**body, "timeout": 0.001 * 2 ** (priority + 3), "stream": stream and "prompt_logprobs" not in body}
                    status = daemon.post(path, body, timeout=300).status
                    assert status in (200, 503) or status == expected[i]["status"], status
                    continue
                if leaves:
                    leave(daemon, path, body, after)
                    continue
                got = ask(daemon, path, body, stream)
                if not equal(got, expected[i]):
                    differ.append(f"request {i} {path} {json.dumps(body)}, stream {stream}:\n got {got}\n not {expected[i]}")
            except Exception as e:  # noqa: BLE001 - shown by the test's thread
                differ.append(f"request {i} {path} {json.dumps(body)}: {e!r}")

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for t in threads:
        t.start()
    for t in threads:
        t.join((120 + len(requests) * 5) * SLOW)
        assert not t.is_alive(), "a request did not end"
    return differ


PLAIN = {"prefix_cache": "false", "threads": 1, "max_batched_tokens": 512, "max_sequences": 4, "kv_tokens": 2048}
HURRIED = {
    "tiny KV": {"kv_tokens": 256, "threads": 2, "max_batched_tokens": 32, "max_sequences": 8},
    "speculation, priorities": {"kv_tokens": 256, "threads": 1, "max_batched_tokens": 64, "speculative_tokens": 5, "scheduling": "priority", "max_sequences": 6},
    "many at once": {"kv_tokens": 4096, "threads": 2, "max_batched_tokens": 512, "max_sequences": 16, "speculative_tokens": 16, "kv_block_size": 8},
}
HURRIED_BY = {"tiny KV": ["preemptions_total"], "speculation, priorities": ["preemptions_total", "accepted_tokens_total"], "many at once": ["accepted_tokens_total"]}


@pytest.fixture(scope="module", params=REQUESTS)
def expected(request, tmp_path_factory):
    """A model, requests, and what a server says that does nothing but one of them at a time."""
    folder = tmp_path_factory.mktemp("plain")
    model = MODEL if request.param == "demo" else write_tiny_model(folder / "tiny.gguf")
    d = Daemon(folder / "log", model=model, max_model_len=CONTEXT, **PLAIN)
    try:
        d.wait_ready()
        draw = Requests(SEED, d.model)
        requests = [draw.body() for _ in range(int(REQUESTS[request.param] * TIMES))]
        answers = [ask(d, path, body) for path, body in requests]
    finally:
        d.stop()
    assert sum(a["status"] == 200 for a in answers) > 0.7 * len(answers), answers
    return model, requests, answers


@pytest.mark.parametrize("kind", HURRIED)
def test_hurried_answers_are_the_plain_ones(start, expected, kind):
    model, requests, answers = expected
    d = start(model=model, max_model_len=CONTEXT, max_waiting=200, **HURRIED[kind])
    differ = storm(d, requests, answers, SEED, clients=8, priorities=HURRIED[kind].get("scheduling") == "priority")
    assert not differ, differ[0]
    d.wait_idle(20)
    d.check_identity()
    for gauge in ("kv_blocks_used", "waiting_prompt_tokens"):
        assert d.gauge(gauge) == 0, gauge
    # it did what it was to do, which so few requests as the demo model gets cannot promise
    for counter in ("prefix_cache_hits_total", *HURRIED_BY[kind]) if model != MODEL else ():
        assert d.gauge(counter) > 0, counter
