"""Memory that fails at the n-th call, for each n: over a start, over requests of every kind, over the small commands.

What comes of it is the right answer or a clean error: a 5xx or 429 (or, once a stream has begun, an error event or a cut
that the client sees), an exit code with a sentence. Never a crash, a leak, a lost KV block or a wrong answer.
INFERD_TEST_FAULTS=N tries only every N-th n (CI), 1 all of them.
"""

import http.client
import json
import os
import re
import signal
import subprocess
import time

import pytest
from conftest import INFERD, SLOW, Daemon, sanitizer_report, wait_for, write_keys
from faults import EVER, Faults, check_nothing_is_held, has_hooks, write_folder_model, write_tiny_model

if not has_hooks():
    pytest.skip("built without -Dfault_hooks=true", allow_module_level=True)
STRIDE = int(os.environ.get("INFERD_TEST_FAULTS", "1"))
FOLDER_STRIDE = 1 if STRIDE == 1 else 5 * STRIDE  # a start from a folder asks for memory thousands of times

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
MESSAGES = [{"role": "system", "content": "be brief"}, {"role": "user", "content": [{"type": "text", "text": "hä? " * 30}]}]
REQUESTS = {
    "chat": (CHAT, {"messages": MESSAGES, "max_tokens": 6}),
    "chat stream": (CHAT, {"messages": MESSAGES, "max_tokens": 6, "stream": True, "stream_options": {"include_usage": True}}),
    "chat logprobs": (CHAT, {"messages": MESSAGES, "max_tokens": 4, "logprobs": True, "top_logprobs": 5, "n": 2, "seed": 3,
                             "temperature": 1, "stop": ["zq", "é"]}),
    "chat stream logprobs": (CHAT, {"messages": MESSAGES, "max_tokens": 4, "logprobs": True, "top_logprobs": 2, "stream": True,
                                    "n": 2, "seed": 3, "temperature": 1}),
    "completions": (COMPLETIONS, {"prompt": ["one", "two" * 200], "max_tokens": 5, "echo": True, "logit_bias": {"65": 2}}),
    "completions logprobs": (COMPLETIONS, {"prompt": [70, 71, 72], "max_tokens": 5, "logprobs": 3, "stop": ["qqq", "zzz"],
                                           "stop_token_ids": [1, 2], "n": 2, "seed": 1, "temperature": 0.7}),
    "completions stream": (COMPLETIONS, {"prompt": "x" * 1000, "max_tokens": 40, "stream": True, "ignore_eos": True}),
    "scored": (COMPLETIONS, {"prompt": "a b c", "max_tokens": 0, "echo": True, "logprobs": 2}),
    "prompt logprobs": (CHAT, {"messages": MESSAGES, "max_tokens": 3, "prompt_logprobs": 2}),
    "many fields": (COMPLETIONS, {
        "prompt": "a b c a b c", "max_tokens": 5, "bad_words": ["x", "yz"], "allowed_token_ids": list(range(40, 120)),
        "samplers": ["dry", "temperature", "xtc", "top_k"], "dry_multiplier": 1, "dry_sequence_breakers": ["a", "\n"], "xtc_probability": 1,
        "mirostat": 0, "repetition_detection": {"max_pattern_size": 3, "min_count": 3}, "cache_salt": "s", "timeout": 50, "request_id": "r",
        "speculative_tokens": 4, "logit_bias": {"50": 1, "51": -1}, "user": "u", "metadata": {"a": "b"}, "stream": True}),
    "tokenize": ("/tokenize", {"prompt": "hello" * 300}),
    "tokenize chat": ("/tokenize", {"messages": MESSAGES}),
    "detokenize": ("/detokenize", {"tokens": list(range(33, 120))}),
    "models": ("/v1/models", None),
    "metrics": ("/metrics", None),
    "refused": (CHAT, {"messages": MESSAGES, "max_tokens": -1}),
    "not JSON": (CHAT, b'{"messages": [{"role": "us'),
    "no such path": ("/v1/none", {}),
}


class Outcome:
    """status, and whole: what the client can rely on, None when it was told or can see that there was a failure"""

    def __init__(self, d, path, body):
        self.status, self.whole, self.problem = 0, None, None
        data = body if body is None or isinstance(body, bytes) else json.dumps({"model": d.model, "temperature": 0, **body}).encode()
        connection = http.client.HTTPConnection("127.0.0.1", d.port, timeout=5 * SLOW)
        try:
            connection.request("GET" if body is None else "POST", path, data, {"Content-Type": "application/json"})
            response = connection.getresponse()
            self.status = response.status
            text = response.read()
        except (http.client.HTTPException, OSError) as e:
            self.problem = e
            return
        finally:
            connection.close()
        if path == "/metrics":
            self.whole = {"lines": text.count(b"\n") > 100} if self.status == 200 else None
            self.error = None if self.whole else json.loads(text)["error"]
        elif b"data: " in text[:6]:
            self.whole = self.of_stream(text.decode())
        elif self.status != 200:
            self.error = json.loads(text)["error"] if text else None
            self.whole = self.error if self.status < 500 and self.status != 429 else None
        else:
            self.whole = {k: v for k, v in json.loads(text).items() if k not in ("id", "created")}
        if self.whole and "usage" in self.whole:
            self.whole["usage"].pop("prompt_tokens_details")  # the prefix cache has it or not

    def of_stream(self, text):
        events = [e for e in text.split("\n\n") if e and not e.startswith(":")]
        done = events[-1] == "data: [DONE]"
        whole = {}
        for event in events[: -1 if done else None]:
            event = json.loads(event.removeprefix("data: "))
            if "error" in event:
                assert not done and event["error"]["message"]
                return None
            for c in event["choices"]:
                text, tokens, finish = whole.get(c["index"], ("", [], None))
                text += c["text"] if "text" in c else c["delta"].get("content") or ""
                logprobs = c["logprobs"] or {}
                tokens = tokens + [t["token"] for t in logprobs.get("content", [])] + logprobs.get("tokens", [])
                whole[c["index"]] = (text, tokens, c["finish_reason"] or finish)
            if event.get("usage"):
                whole["usage"] = event["usage"]
        assert done, "a stream ended without an error and without [DONE]"
        return whole


def clean(outcome, expected, only_one):
    """Is this fine after memory failed?"""
    if outcome.whole is not None:
        return outcome.whole == expected
    if isinstance(outcome.problem, TimeoutError):
        return False
    if outcome.problem is not None:  # the connection was cut in the middle of the answer; before it only if nothing is left
        return outcome.status == 200 or not only_one
    if outcome.status == 200:
        return True  # a stream that said so
    if outcome.error is None:
        return not only_one and outcome.status == 500  # no memory even for the sentence
    return outcome.status in (429, 500, 503) and outcome.error["message"]


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    folder = tmp_path_factory.mktemp("memory")
    faults = Faults(folder / "faults")
    d = Daemon(folder / "log", environment=faults.environment, model=write_tiny_model(folder / "tiny.gguf"), kv_tokens=16384,
               log_level="error").wait_ready()
    d.model
    yield d, faults
    d.stop()


@pytest.mark.parametrize("more", [0, 3, EVER], ids=["one", "four", "all"])
@pytest.mark.parametrize("kind", REQUESTS)
def test_requests(broken, kind, more):
    d, faults = broken
    faults.memory_is_back()
    path, body = REQUESTS[kind]
    expected = Outcome(d, path, body).whole
    assert expected is not None
    failed, n = 0, 1
    while True:
        faults.fail_memory(n, more)
        outcome = Outcome(d, path, body)
        struck = faults.memory_is_back()
        assert d.running(), f"n = {n}: the daemon died:\n{d.log_text()[-6000:]}"
        assert clean(outcome, expected, more == 0), f"n = {n}: {vars(outcome)}, expected {expected}"
        failed += outcome.whole is None
        check_nothing_is_held(d)
        if struck == 0:
            break
        n += STRIDE
    assert Outcome(d, path, body).whole == expected
    assert n > 1 and failed > 0 or STRIDE > 1




def test_a_connection_that_has_no_memory_has_its_deadline_still(tmp_path):
    faults = Faults(tmp_path / "faults")
    d = Daemon(tmp_path / "log", environment=faults.environment, model=write_tiny_model(tmp_path / "tiny.gguf"), kv_tokens=4096,
               header_timeout=1).wait_ready()
    time.sleep(0.3)  # the connection of the probe is closed
    before, sockets = len(os.listdir(f"/proc/{d.pid}/fd")), []
    for i in range(10):
        faults.fail_memory(1)
        sockets.append(d.connect())
        sockets[-1].sendall(b"POST /v1/comp")  # the head is never whole
        wait_for(lambda: faults.alloc_struck, 5, "it was accepted")
        if i % 2:
            sockets[-1].close()
    faults.memory_is_back()
    wait_for(lambda: len(os.listdir(f"/proc/{d.pid}/fd")) == before, 10, "they are closed")
    d.stop()


@pytest.mark.parametrize("form", ["gguf", "folder"])
def test_start(tmp_path, form):
    """A daemon that cannot have memory says so and ends; or serves, as well as ever."""
    config = settings_files(tmp_path, form)[1]
    faults = Faults(tmp_path / "faults")
    n, served = 1, 0
    while True:
        faults.fail_memory(n)
        log = tmp_path / "log"
        log.write_bytes(b"")
        d = Daemon(log, environment=faults.environment, model=None, config=config)
        d.key = "key-19"
        end = None

        def ready():
            if not d.running():
                return True
            try:
                return d.get("/readyz").status == 200
            except (OSError, http.client.HTTPException):
                return False

        wait_for(ready, 20, f"n = {n}: it serves or ends", every=0.01)
        struck = faults.memory_is_back()
        if d.running():
            served += 1
            assert d.get("/v1/models").status == 200
            assert d.complete("hi", max_tokens=3).status == 200
            check_nothing_is_held(d)
            d.signal(signal.SIGTERM)
        end = d.wait_exit(20)
        text = d.log_text()
        assert not sanitizer_report(text), f"n = {n}:\n{text[-6000:]}"
        assert end in (0, 1, 78), f"n = {n}: {end}\n{text}"
        assert end == 0 or lacked_memory(text), f"n = {n}:\n{text}"
        if struck == 0:
            break
        n += FOLDER_STRIDE if form == "folder" else STRIDE
    assert n > 50
    assert served >= 1


def test_reload(tmp_path):
    """All or nothing, wherever memory fails; and the keys that are in force are whole."""
    config = settings_files(tmp_path, "gguf")[1]
    keys, before = tmp_path / "keys", open(config, encoding="utf-8").read()
    faults = Faults(tmp_path / "faults")
    d = Daemon(tmp_path / "log", environment=faults.environment, model=None, config=config).wait_ready()
    current, n, failed = "key-19", 1, 0
    while True:
        following = f"new-{n}"
        write_keys(keys, [f"key-{i}" for i in range(10)] + [following])
        with open(config, "w", encoding="utf-8") as f:
            f.write(before + f"served_model_name = m, m{n}\nmax_n = {1 + n % 100}\n")
        seen = len(d.log_text())
        faults.fail_memory(n)
        d.signal(signal.SIGHUP)
        wait_for(lambda at=seen: re.search("read again|nothing was reloaded", d.log_text()[at:]), 10, f"n = {n}: it says what came of it")
        struck = faults.memory_is_back()
        said = d.log_text()[seen:]
        assert ("read again" in said) != ("nothing was reloaded" in said)
        refused = "nothing was reloaded" in said
        assert not refused or lacked_memory(said), said
        failed += refused
        for key, status in ((following, 401 if refused else 200), (current, 200 if refused or current == following else 401), ("key-0", 200)):
            d.key = key
            answer = d.get("/v1/models")
            assert answer.status == status, (n, key, said)
        assert [m["id"] for m in answer.json()["data"]][-1:] == ([f"m{n}"] if not refused else [answer.json()["data"][-1]["id"]])
        current = current if refused else following
        if struck == 0:
            break
        n += STRIDE
    assert n > 50 and (failed > 10 or STRIDE > 1)
    d.stop()


LINES = "".join(json.dumps({"text": f"line {i} hällo"}) + "\n" for i in range(3))
COMMANDS = {
    "text": ["tokenize", "--model", "MODEL", "hello world, hällo"],
    "chat": ["tokenize", "--model", "MODEL", "--chat", "-"],
    "decode": ["tokenize", "--model", "MODEL", "--decode", "65 66 67"],
    "lines": ["tokenize", "--model", "MODEL", "--jsonl"],
    "folder": ["tokenize", "--model", "FOLDER", "hello world, hällo"],
    "inspect": ["inspect", "MODEL"],
    "inspect folder": ["inspect", "FOLDER"],
    "inspect JSON": ["inspect", "--json", "MODEL"],
    "check": ["serve", "--check-config", "--config", "CONFIG"],
    "print": ["serve", "--print-config", "--config", "CONFIG"],
}


def settings_files(folder, form):
    """A settings file and one of keys, with the model that they name."""
    model = write_tiny_model(folder / "tiny.gguf") if form == "gguf" else write_folder_model(folder / "tiny")
    keys = folder / "keys"
    write_keys(keys, [f"key-{i}" for i in range(20)])
    config = folder / "inferd.conf"
    config.write_text(f"model = {model}\napi_keys_file = {keys}\nkv_tokens = 4096\nmax_model_len = 256\n")
    return model, str(config)


def lacked_memory(text):
    # the last: /proc/meminfo could not be opened, whatever the reason
    return any(s in text for s in ("out of memory", "Cannot allocate memory", "thread", "how much memory is available"))


@pytest.mark.parametrize("name", COMMANDS)
def test_commands(tmp_path, name):
    model, config = settings_files(tmp_path, "gguf")
    folder = write_folder_model(tmp_path / "tiny") if "FOLDER" in COMMANDS[name] else None
    faults = Faults(tmp_path / "faults")
    env = {k: v for k, v in os.environ.items() if not k.startswith("INFERD")} | faults.environment
    command = [INFERD, *({"MODEL": model, "CONFIG": config, "FOLDER": folder}.get(a, a) for a in COMMANDS[name])]

    def run():
        return subprocess.run(command, capture_output=True, text=True, timeout=30 * SLOW, check=False, env=env,
                              input=json.dumps(MESSAGES) if name == "chat" else LINES)

    expected = run()
    assert expected.returncode == 0, expected.stderr
    n = 1
    while True:
        faults.fail_memory(n)
        ended = run()
        struck = faults.memory_is_back()
        assert not sanitizer_report(ended.stderr), f"n = {n}:\n{ended.stderr[-6000:]}"
        if ended.returncode == 0:
            assert ended.stdout == expected.stdout, f"n = {n}: {ended.stdout} {ended.stderr}"
        else:
            assert ended.returncode in (1, 78) and lacked_memory(ended.stderr + ended.stdout), f"n = {n}: {ended.returncode} {ended.stderr}"
        if struck == 0:
            break
        n += FOLDER_STRIDE if folder else STRIDE
    assert n > 5
