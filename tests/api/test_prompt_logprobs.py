"""Log-probabilities of the prompt: `echo` with `logprobs`, `prompt_logprobs`, and scoring without generation."""

import json
import os

import pytest

from conftest import MODEL, ROOT

PROMPT = "The quick brown fox jumps over the lazy dog. Ünïcödé 🍕"


def complete(daemon, prompt=PROMPT, **fields):
    answer = daemon.complete(prompt, **fields)
    assert answer.status == 200, answer.body
    return answer.json()


def lists(choice):
    p = choice["logprobs"]
    assert set(p) == {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
    assert len({len(v) for v in p.values()}) == 1
    return p


def test_echo_with_logprobs(daemon):
    plain = complete(daemon, max_tokens=6, logprobs=2)["choices"][0]
    answer = complete(daemon, max_tokens=6, logprobs=2, echo=True)
    choice = answer["choices"][0]
    p, n = lists(choice), answer["usage"]["prompt_tokens"]
    assert choice["text"] == PROMPT + plain["text"] and answer["usage"]["completion_tokens"] == 6
    assert p["token_logprobs"][0] is None and p["top_logprobs"][0] is None
    assert all(v <= 0 for v in p["token_logprobs"][1:])
    assert all(t in top and len(top) in (2, 3) for t, top in list(zip(p["tokens"], p["top_logprobs"]))[1:])
    # the prompt's tokens lie where they say, and the generated ones are those of a request without echo, further back
    assert p["text_offset"][0] == 0 and p["text_offset"] == sorted(p["text_offset"])
    for token, offset in zip(p["tokens"], p["text_offset"]):
        if not token.startswith("bytes:"):
            assert choice["text"][offset:].startswith(token), (token, offset)
    assert p["tokens"][n:] == plain["logprobs"]["tokens"]
    assert p["token_logprobs"][n:] == plain["logprobs"]["token_logprobs"]
    assert p["text_offset"][n:] == [len(PROMPT) + o for o in plain["logprobs"]["text_offset"]]


def test_scoring_alone(daemon):
    """max_tokens 0 scores what another request generated, and finds the same numbers."""
    ids = daemon.post("/tokenize", {"prompt": "Once upon a time"}).json()["tokens"]
    generated = complete(daemon, ids, max_tokens=12, logprobs=3)["choices"][0]
    text = complete(daemon, ids, max_tokens=12, echo=True)["choices"][0]["text"]
    more = daemon.post("/tokenize", {"prompt": text}).json()["tokens"]
    assert more[: len(ids)] == ids and len(more) == len(ids) + 12
    answer = complete(daemon, more, max_tokens=0, echo=True, logprobs=3)
    choice = answer["choices"][0]
    assert choice["text"] == text and choice["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 0 and answer["usage"]["prompt_tokens"] == len(more)
    p = lists(choice)
    assert len(p["tokens"]) == len(more) and "".join(p["tokens"]) == text
    assert p["token_logprobs"][len(ids) :] == generated["logprobs"]["token_logprobs"]
    assert p["top_logprobs"][len(ids) :] == generated["logprobs"]["top_logprobs"]
    # without logprobs it is an echo
    choice = complete(daemon, more, max_tokens=0, echo=True)["choices"][0]
    assert choice["text"] == text and choice["logprobs"] is None


@pytest.mark.parametrize("max_tokens", [0, 5])
def test_echo_in_a_stream(daemon, max_tokens):
    fields = {"max_tokens": max_tokens, "echo": True, "logprobs": 2, "n": 2}
    plain = complete(daemon, **fields)["choices"]
    text, logprobs = ["", ""], [{"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []} for _ in range(2)]
    body = {"model": daemon.model, "prompt": PROMPT, "temperature": 0, "stream": True, **fields}
    for event in daemon.post("/v1/completions", body).body.decode().split("\n\n"):
        if event and event != "data: [DONE]":
            choice = json.loads(event.removeprefix("data: "))["choices"][0]
            text[choice["index"]] += choice["text"]
            for key, values in (choice["logprobs"] or {}).items():
                logprobs[choice["index"]][key] += values
    for i in range(2):
        assert text[i] == plain[i]["text"] and logprobs[i] == plain[i]["logprobs"]


def test_a_stop_string_at_once(daemon):
    """Nothing of the generated text is shown; all of the prompt's tokens are."""
    prompt = "The capital of France is"
    first = complete(daemon, prompt, max_tokens=1)["choices"][0]["text"]
    answer = complete(daemon, prompt, max_tokens=8, echo=True, logprobs=0, stop=first[:1])
    choice = answer["choices"][0]
    assert choice["text"] == prompt and choice["finish_reason"] == "stop"
    assert len(lists(choice)["tokens"]) == answer["usage"]["prompt_tokens"]


def test_special_tokens_of_the_prompt(daemon):
    """Those that the echo shows have their place in it, those that it leaves out take no room."""
    text = "<|im_start|>user\nHi<|im_end|>\n"
    p = lists(complete(daemon, text, max_tokens=0, echo=True, logprobs=0)["choices"][0])
    assert "".join(p["tokens"]) == text and p["text_offset"][-1] == len(text) - 1
    ids = daemon.post("/tokenize", {"prompt": text}).json()["tokens"]
    choice = complete(daemon, ids, max_tokens=0, echo=True, logprobs=0)["choices"][0]
    p = lists(choice)
    assert choice["text"] == "user\nHi\n" and "".join(p["tokens"]) == text
    assert [p["text_offset"][p["tokens"].index(t)] for t in ("<|im_start|>", "user", "<|im_end|>")] == [0, 0, 7]


def check_prompt_logprobs(values, n_tokens, top):
    assert len(values) == n_tokens and values[0] is None
    for position in values[1:]:
        assert top <= len(position) <= top + 1
        entries = list(position.values())
        assert all(set(e) == {"logprob", "rank", "decoded_token"} and e["logprob"] <= 0 for e in entries)
        own = entries[0]
        assert sorted(e["rank"] for e in entries if e is not own or e["rank"] <= top) == list(range(1, top + 1))
        by_rank = sorted(entries, key=lambda e: e["rank"])
        assert [e["logprob"] for e in by_rank] == sorted((e["logprob"] for e in entries), reverse=True)


@pytest.mark.parametrize("top", [0, 1, 20])
def test_prompt_logprobs(daemon, top):
    answer = complete(daemon, [PROMPT, "Hello there"], max_tokens=3, prompt_logprobs=top, n=2)
    ids = [daemon.post("/tokenize", {"prompt": p}).json()["tokens"] for p in (PROMPT, "Hello there")]
    for i, choice in enumerate(answer["choices"]):
        check_prompt_logprobs(choice["prompt_logprobs"], len(ids[i // 2]), top)
        assert [int(next(iter(p))) for p in choice["prompt_logprobs"][1:]] == ids[i // 2][1:]
        assert choice["prompt_logprobs"] == answer["choices"][i // 2 * 2]["prompt_logprobs"]
        assert choice["logprobs"] is None
    messages = [{"role": "user", "content": "Hi"}]
    body = {"model": daemon.model, "messages": messages, "max_tokens": 3, "prompt_logprobs": top, "temperature": 0, "n": 2}
    chat = daemon.post("/v1/chat/completions", body).json()
    check_prompt_logprobs(chat["prompt_logprobs"], chat["usage"]["prompt_tokens"], top)
    plain = daemon.post("/v1/chat/completions", {**body, "prompt_logprobs": None}).json()
    assert "prompt_logprobs" not in plain and plain["choices"] == chat["choices"]


def test_against_another_implementation(daemon):
    """tests/golden/smollm2.json: what `transformers` computed in F32, see make_golden.py."""
    with open(os.path.join(ROOT, "tests", "golden", "smollm2.json"), encoding="utf-8") as f:
        golden = json.load(f)
    if os.path.getsize(MODEL) != golden["size"]:
        pytest.skip("not the recorded model")
    compared = 0
    for case in golden["cases"][:8]:
        got = complete(daemon, case["ids"], max_tokens=1, prompt_logprobs=20)["choices"][0]["prompt_logprobs"]
        for expected in case["positions"]:
            logprobs = dict(zip(expected["ids"], expected["logprobs"]))
            if expected["at"] + 1 < len(got):
                for token, entry in got[expected["at"] + 1].items():
                    if int(token) in logprobs:
                        assert entry["logprob"] == pytest.approx(logprobs[int(token)], abs=0.05)
                        compared += 1
    assert compared > 8 * 19 * 3


def test_bounds(daemon):
    def refused(param, **fields):
        answer = daemon.complete(fields.pop("prompt", "x"), **fields)
        assert answer.status == 400 and answer.error()["param"] == param, answer.body

    refused("max_tokens", max_tokens=0)
    refused("prompt_logprobs", prompt_logprobs=1, stream=True)
    # more numbers in one answer than it may have: 400, although each prompt alone would do
    ids = [1] * 1000
    refused("prompt_logprobs", prompt=[ids] * 13, max_tokens=1, prompt_logprobs=20)
    refused("logprobs", prompt=[ids] * 7, n=2, max_tokens=0, echo=True, logprobs=20)
    # the context: a prompt that fills it can be scored, but has no room for a token
    full = [1 + i % 1000 for i in range(2048)]
    refused("prompt", prompt=full, max_tokens=1)
    refused("prompt", prompt=full + [1], max_tokens=0, echo=True)


def test_a_full_context_takes_no_more_memory(start):
    """All logits of this prompt at once would be 100 MB."""
    daemon = start(max_sequences=4, max_model_len=512)
    full = [1 + i * 7 % 1000 for i in range(512)]
    complete(daemon, full[:150], max_tokens=4, logprobs=5)
    before = daemon.resident_bytes()
    choice = complete(daemon, full, max_tokens=0, echo=True, logprobs=5)["choices"][0]
    assert len(lists(choice)["tokens"]) == 512
    grown = daemon.resident_bytes() - before
    assert grown < 40e6, f"{grown / 1e6:.0f} MB more"  # KV of the longer prompt, and the answer
