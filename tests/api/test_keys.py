"""Named keys: what each may do, its limits and the headers that tell of them, its counters."""

import hashlib
import json
import os
import re
import subprocess
import time

import pytest
from conftest import FAKE, INFERD, ROOT, SLOW, wait_for, write_keys
from test_limits import ask_as, order_of_answers

ALL = "infer metrics admin"


def body(prompt, **fields):
    return {"model": "fake", "prompt": prompt, **fields}


def bearer(key):
    return {"Authorization": "Bearer " + key}


def complete(d, key, prompt="@say hi", **fields):
    return d.post("/v1/completions", body(prompt, **fields), headers=bearer(key))


def counted(d, name, **labels):
    return sum(v for (n, ls), v in d.metrics().items() if n == "inferd_key_" + name and labels.items() <= dict(ls).items())


def check_limited(answer, seconds, words):
    error = answer.error()
    assert (answer.status, error["type"], error["code"]) == (429, "rate_limit_error", "rate_limit_exceeded")
    assert error["param"] is None and words in error["message"]
    if seconds is not None:
        assert 1 <= int(answer.headers["retry-after"]) <= seconds
    return answer


def seconds_of(text):
    """A duration as the OpenAI service writes it."""
    match = re.fullmatch(r"(?:(\d+)m)?(?:(\d+(?:\.\d{1,3})?)s)?(?:(\d+)ms)?", text)
    assert text and match, text
    return int(match[1] or 0) * 60 + float(match[2] or 0) + int(match[3] or 0) / 1000


# --- what a key is for


def routes():
    """The whole table, as the source has it: path, method, scopes; a row that does not look as they do is an error."""
    with open(os.path.join(ROOT, "server", "route.c"), encoding="utf-8") as f:
        table = re.search(r"struct route routes\[\] = \{\n(.*?)\n\};", f.read(), re.DOTALL)[1]
    rows = []
    for line in table.splitlines():
        match = re.match(r'    \{"([^"]+)", HTTP_([A-Z]+), ([A-Z_| ]+), ([A-Z_| ]+|0), ', line)
        assert match, line
        scopes = {s.strip().removeprefix("KEY_").lower() for s in match[4].split("|")} - {"0"}
        is_open = "ROUTE_OPEN" in match[3]
        assert is_open == (not scopes), line
        rows.append((match[1] + ("x" if "ROUTE_PREFIX" in match[3] else ""), match[2], scopes))
    assert len(rows) >= 11
    return rows


def test_vllm_18892_key_does_not_guard_all_routes(fake, tmp_path):
    """faults.md F, vllm#18892: every route wants a key with its scope, but for the three probes."""
    names = {"infer": "k1", "metrics": "k2", "admin": "k3"}
    d = fake(api_keys_file=write_keys(tmp_path / "keys", {n: (k, {"scopes": n}) for n, k in names.items()}))
    open_ones = set()
    for path, method, scopes in routes():
        data = b"{}" if method == "POST" else None
        if not scopes:
            open_ones.add(path)
            assert d.request(method, path).status == 200, path
            continue
        for headers in ({}, bearer("k4"), bearer("")):
            answer = d.request(method, path, body=data, headers=headers)
            assert (answer.status, answer.error()["code"]) == (401, "invalid_api_key"), path
        for name, key in names.items():
            answer = d.request(method, path, body=data, headers=bearer(key))
            if name in scopes:
                assert answer.status not in (401, 403), (path, name)
            else:
                error = answer.error()
                assert (answer.status, error["type"], error["code"]) == (403, "permission_error", None), (path, name)
    assert open_ones == {"/livez", "/readyz", "/health"}
    # a path that is none is not told apart without a key
    assert d.get("/nowhere").status == 401 and d.get("/nowhere", headers=bearer("k2")).status == 404


def test_a_request_without_its_scope_is_counted(fake, tmp_path):
    d = fake(api_keys_file=write_keys(tmp_path / "keys", {"scraper": ("s", {"scopes": "metrics"}), "app": ("a", {"scopes": "infer"})}))
    d.key = "s"
    assert complete(d, "s").status == 403
    assert complete(d, "a").status == 200
    assert counted(d, "rejected_total", key="scraper", reason="scope") == 1
    assert counted(d, "requests_total", key="scraper") == 0 and counted(d, "requests_total", key="app") == 1
    d.check_identity()


# --- requests a minute


def test_requests_per_minute(fake, tmp_path):
    d = fake(api_keys_file=write_keys(tmp_path / "keys", {"a": ("a", {"requests_per_minute": 4}), "b": ("b", {})}))
    d.key = "b"
    before = time.monotonic()
    for left in (3, 2):
        answer = complete(d, "a")
        assert answer.status == 200
        assert answer.headers["x-ratelimit-limit-requests"] == "4"
        assert answer.headers["x-ratelimit-remaining-requests"] == str(left)
        assert 15 * (4 - left) - (time.monotonic() - before) <= seconds_of(answer.headers["x-ratelimit-reset-requests"]) <= 15 * (4 - left)
        assert "x-ratelimit-limit-tokens" not in answer.headers
    # a stream, an error of the client, and a route that generates nothing count and tell, too
    stream = d.post("/v1/completions", body("@say hi", stream=True), headers=bearer("a"))
    assert stream.status == 200 and stream.headers["x-ratelimit-remaining-requests"] == "1"
    answer = d.post("/tokenize", {"model": "fake", "prompt": "hi"}, headers=bearer("a"))
    assert answer.status == 200 and answer.headers["x-ratelimit-remaining-requests"] == "0"
    for _ in range(3):
        answer = check_limited(complete(d, "a"), 15, "requests")
        assert answer.headers["x-ratelimit-remaining-requests"] == "0" and answer.headers["x-ratelimit-limit-requests"] == "4"
    check_limited(d.post("/detokenize", {"tokens": [1]}, headers=bearer("a")), 15, "requests")
    # lists are no work; another key has its own
    assert d.get("/v1/models", headers=bearer("a")).status == 200
    answer = complete(d, "b")
    assert answer.status == 200 and not [h for h in answer.headers if h.startswith("x-ratelimit")]
    assert counted(d, "requests_total", key="a") == 4
    assert counted(d, "rejected_total", key="a", reason="requests_per_minute") == 4
    assert counted(d, "rejected_total", key="a") == 4
    assert sum(v for (n, ls), v in d.metrics().items() if n == "inferd_requests_rejected_total" and ("reason", "rate_limit") in ls) == 3
    d.check_identity()


def test_requests_come_back(fake, tmp_path):
    d = fake(api_keys_file=write_keys(tmp_path / "keys", {"a": ("a", {"requests_per_minute": 60})}))
    while complete(d, "a").status == 200:
        pass
    answer = complete(d, "a")
    if answer.status != 200:  # else one came back meanwhile
        assert answer.headers["retry-after"] == "1"
    wait_for(lambda: complete(d, "a").status == 200, 3, "one comes back in a second")


def test_a_refused_request_costs_nothing_and_a_wrong_one_costs_one(fake, tmp_path):
    d = fake(api_keys_file=write_keys(tmp_path / "keys", {"a": ("a", {"requests_per_minute": 3})}))
    answer = d.post("/v1/completions", body("hi", n=0), headers=bearer("a"))
    assert answer.status == 400 and answer.headers["x-ratelimit-remaining-requests"] == "2"
    answer = d.request("POST", "/v1/completions", body=b"x", headers={**bearer("a"), "Content-Type": "text/plain"})
    assert answer.status == 400
    answer = d.get("/v1/completions", headers=bearer("a"))
    assert answer.status == 405
    assert complete(d, "a").headers["x-ratelimit-remaining-requests"] == "1"


# --- tokens a minute


def used(answer):
    return answer.json()["usage"]["total_tokens"]


def test_tokens_per_minute_are_those_of_usage(fake, tmp_path):
    limit = 1000000
    d = fake(api_keys_file=write_keys(tmp_path / "keys", {"a": ("a", {"tokens_per_minute": limit})}))
    d.key = "a"
    total = prompts = 0
    for fields in ({}, {"n": 4}, {"prompt": ["@say one", "@say two of them"], "n": 2}, {"max_tokens": 1}):
        prompt = fields.pop("prompt", "@say hello there")
        answer = complete(d, "a", prompt, **fields)
        assert answer.status == 200
        total += used(answer)
        prompts += answer.json()["usage"]["prompt_tokens"]
        assert answer.headers["x-ratelimit-limit-tokens"] == str(limit)
        # what comes back meanwhile is what hides the rest: 17 tokens a millisecond
        assert limit - total <= int(answer.headers["x-ratelimit-remaining-tokens"]) <= limit
        assert "x-ratelimit-limit-requests" not in answer.headers
        assert counted(d, "prompt_tokens_total", key="a") == prompts
        assert counted(d, "prompt_tokens_total", key="a") + counted(d, "generation_tokens_total", key="a") == total
    assert counted(d, "rejected_total") == 0
    d.check_identity()


def test_tokens_per_minute(fake, tmp_path):
    d = fake(max_model_len=100000, api_keys_file=write_keys(tmp_path / "keys", {"a": ("a", {"tokens_per_minute": 60}), "b": ("b", {})}))
    d.key = "b"
    answer = complete(d, "a", "@loop", max_tokens=200)  # what it generates is only known afterwards: a debt
    assert answer.status == 200 and used(answer) > 200 and answer.headers["x-ratelimit-remaining-tokens"] == "0"
    debt = used(answer) - 60
    answer = check_limited(complete(d, "a"), debt + 1, "tokens")
    assert int(answer.headers["retry-after"]) >= debt - 5 * SLOW
    assert debt - 5 * SLOW <= seconds_of(answer.headers["x-ratelimit-reset-tokens"]) - 60 <= debt
    # a route that generates nothing is not meant
    assert d.post("/tokenize", {"model": "fake", "prompt": "hi"}, headers=bearer("a")).status == 200
    assert counted(d, "rejected_total", key="a", reason="tokens_per_minute") == 1


def test_a_prompt_that_does_not_fit(fake, tmp_path):
    d = fake(max_model_len=100000, api_keys_file=write_keys(tmp_path / "keys", {"a": ("a", {"tokens_per_minute": 600}), "b": ("b", {})}))
    d.key = "b"
    # never: not to be tried again
    answer = complete(d, "a", "x" * 700)
    assert answer.status == 400 and answer.error()["param"] == "prompt" and "600" in answer.error()["message"]
    answer = d.post("/v1/chat/completions", {"model": "fake", "messages": [{"role": "user", "content": "x" * 700}]}, headers=bearer("a"))
    assert answer.status == 400 and answer.error()["param"] == "messages"
    # not now
    assert complete(d, "a", "@say " + "x" * 380, max_tokens=1).status == 200
    answer = check_limited(complete(d, "a", "y" * 400), 30, "tokens")
    left = int(answer.headers["x-ratelimit-remaining-tokens"])
    assert 200 <= left < 400 + 100 * SLOW  # the refused prompt took nothing
    assert complete(d, "a", "@say hi", max_tokens=1).status == 200
    d.check_identity()


def test_an_aborted_request_costs_what_it_used(fake, tmp_path):
    d = fake(max_sequences=1, api_keys_file=write_keys(tmp_path / "keys", {"a": ("a", {"tokens_per_minute": 6000, "max_concurrent": 3}), "b": ("b", {})}))
    d.key = "a"
    running = d.open_stream("@delay=20 @loop", max_tokens=1000, n=1)
    events = running.events()
    for _ in range(4):
        next(events)
    # two wait behind it, with prompts that are never computed
    waiting = [d.open_stream("@say " + "z" * 1000) for _ in range(2)]
    d.key = "b"
    wait_for(lambda: d.gauge("requests_waiting") == 2, 5, "they wait")
    for stream in waiting + [running]:
        stream.close()
    d.wait_idle()
    prompt, generated = counted(d, "prompt_tokens_total", key="a"), counted(d, "generation_tokens_total", key="a")
    assert prompt == len("@delay=20 @loop") + 1 or prompt == len("@delay=20 @loop")
    assert 4 <= generated < 1000
    answer = complete(d, "a", "@say hi", max_tokens=1)
    assert answer.status == 200
    left = int(answer.headers["x-ratelimit-remaining-tokens"])
    assert left >= 6000 - prompt - generated - used(answer)  # the 2,000 of the prompts were given back
    # and none of them counts as running any more
    streams = []
    d.key = "a"
    for _ in range(3):
        streams.append(d.open_stream("@stall"))
    d.key = "b"
    wait_for(lambda: d.gauge("requests_running") + d.gauge("requests_waiting") == 3, 5, "three are let in again")
    for s in streams:
        s.close()
    d.wait_idle()
    d.check_identity()


# --- requests at a time


def test_max_concurrent(fake, tmp_path):
    d = fake(max_model_len=100000, api_keys_file=write_keys(tmp_path / "keys", {"a": ("a", {"max_concurrent": 2}), "b": ("b", {})}))
    d.key = "a"
    streams = [d.open_stream("@delay=5 @loop", max_tokens=10000) for _ in range(2)]
    for stream in streams:
        next(stream.events())
    check_limited(complete(d, "a"), 60, "at a time")
    assert complete(d, "b").status == 200
    assert d.post("/tokenize", {"model": "fake", "prompt": "hi"}, headers=bearer("a")).status == 200
    assert counted(d, "rejected_total", key="a", reason="max_concurrent") == 1
    streams[0].close()
    wait_for(lambda: complete(d, "a").status == 200, 5, "one has left")
    for _ in range(50):  # whoever has the whole answer may ask again at once
        assert complete(d, "a").status == 200
        stream = d.open_stream("@say done")
        assert stream.text() == "done" and stream.done
        stream.close()
    # refused, wrong, failed ones leave, too
    for prompt, fields in (("hi", {"n": 0}), ("@error=1 @say x", {}), ("@say x", {"timeout": 0.001})):
        for _ in range(4):
            complete(d, "a", prompt, **fields)
            assert complete(d, "a").status == 200
    streams[1].close()
    d.wait_idle()
    d.check_identity()


# --- shares, prompts that others have


def test_priority_is_a_share(start, tmp_path):
    keys = write_keys(tmp_path / "keys", {"low": ("l", {"priority": "low"}), "high": ("h", {"priority": "high"}), "busy": ("b", {})})
    d = start(device="null", null_step_time="50ms", max_sequences=1, api_keys_file=keys)
    d.key = "b"
    order = order_of_answers(d, [("l", {}, {})] * 4 + [("h", {}, {})] * 4)
    # one of each is as good as the other to begin with; then one of low has cost as much as 16 of high
    assert order == [0, 4, 5, 6, 7, 1, 2, 3]


def test_keys_with_one_salt_share_prompts(start, tmp_path):
    keys = write_keys(tmp_path / "keys", {"a": ("a", {"cache_salt": "team"}), "b": ("b", {"cache_salt": "team"}), "c": ("c", {})})
    d = start(device="null", api_keys_file=keys, max_sequences=4)
    d.key = "a"
    prompt = "The sea is wide and deep. " * 100
    assert ask_as(d, "a", prompt) == 0
    assert ask_as(d, "b", prompt) > 400
    assert ask_as(d, "c", prompt) == 0
    d.key = "a"


# --- where keys come from


def test_every_series_is_there_from_the_first_scrape(fake, tmp_path):
    d = fake(api_keys_file=write_keys(tmp_path / "keys", ["a", "b.c@d-e_f"]), environment={"INFERD_API_KEY": "third"})
    d.key = "third"
    series = {(n, ls): v for (n, ls), v in d.metrics().items() if n.startswith("inferd_key_")}
    assert len(series) == 3 * (3 + 4) and not any(series.values())
    assert {dict(ls)["key"] for _, ls in series} == {"a", "b.c@d-e_f", "api_key"}


def test_credentials_of_the_service_manager(fake, tmp_path):
    credentials = tmp_path / "credentials"
    credentials.mkdir()
    write_keys(credentials / "api_keys", ["a"], mode=0o400)
    d = fake(environment={"CREDENTIALS_DIRECTORY": str(credentials)})
    assert d.get("/v1/models").status == 401 and d.get("/v1/models", headers=bearer("a")).status == 200
    # a setting goes before it; without the file there is nothing
    d = fake(environment={"CREDENTIALS_DIRECTORY": str(credentials)}, api_keys_file=write_keys(tmp_path / "keys", ["b"]))
    assert d.get("/v1/models", headers=bearer("a")).status == 401 and d.get("/v1/models", headers=bearer("b")).status == 200
    d = fake(environment={"CREDENTIALS_DIRECTORY": str(tmp_path)})
    assert d.get("/v1/models").status == 200


def test_a_file_that_others_read_or_write(fake, tmp_path):
    keys = write_keys(tmp_path / "keys", ["a"], mode=0o644)
    d = fake(api_keys_file=keys)
    assert "others can read this file (mode 0644)" in d.log_text()
    d.stop()
    os.chmod(keys, 0o620)
    run = subprocess.run([FAKE, "serve", "--model", __file__, "--api-keys-file", keys], capture_output=True, text=True, timeout=30 * SLOW, check=False)
    assert run.returncode == 78 and "others can write this file (mode 0620)" in run.stderr and len(run.stderr.splitlines()) == 1


def key_command(*arguments, **more):
    return subprocess.run([INFERD, "key", *arguments], capture_output=True, text=True, timeout=30 * SLOW, check=False, **more)


def test_key_command(fake, tmp_path):
    keys = tmp_path / "keys"
    made = key_command("alice", "--requests-per-minute", "60", "--scopes", "infer,metrics", "--priority=low", "--cache-salt", "x")
    assert made.returncode == 0
    key = made.stderr.split()[-1]
    assert re.fullmatch(r"sk-[A-Za-z0-9_-]{43}", key) and key not in made.stdout
    assert made.stdout == (f"[alice]\nsha256 = {hashlib.sha256(key.encode()).hexdigest()}\nscopes = infer,metrics\n"
                           "requests_per_minute = 60\npriority = low\ncache_salt = x\n")
    old = key_command("bob", "--stdin", input="an-old-key\n")
    assert old.returncode == 0 and not old.stderr
    other = json.loads(key_command("carol", "--json").stdout)
    assert other["key"] != key and other["name"] == "carol"
    keys.write_text(made.stdout + old.stdout + other["lines"])
    keys.chmod(0o600)
    d = fake(api_keys_file=keys)
    for k in (key, "an-old-key", other["key"]):
        assert complete(d, k).status == 200
    assert d.get("/metrics", headers=bearer(key)).status == 200
    for wrong in (["a b"], [""], ["a", "--scopes", "root"], ["a", "--requests-per-minute", "-1"], ["a", "--cache-salt", "a ;b"], ["a", "--priority", "x"],
                  ["a", "--sha256", "x"], []):
        failed = key_command(*wrong)
        assert failed.returncode == 2 and not failed.stdout and len(failed.stderr.splitlines()) == 1, wrong
    for bad in ("", "\n", "a b", "k" * 257):
        assert key_command("a", "--stdin", input=bad).returncode == 2, bad


def test_the_example_is_a_keys_file(tmp_path):
    """With its section uncommented; the values it shows are the defaults."""
    with open(os.path.join(ROOT, "conf", "api_keys.example"), encoding="utf-8") as f:
        text = f.read()
    lines = [re.sub(r"^#(\[alice\]|\w+ =.*)$", r"\1", line) for line in text.splitlines()]
    values = dict(line.split(" =") for line in lines if re.match(r"\w+ =", line))
    shown = key_command("--help").stdout
    assert set(values) == {"sha256"} | {n.replace("-", "_") for n in re.findall(r"--([a-z-]+)", shown.split("\nKey:")[1])}
    assert values["scopes"].strip() == "infer" and values["priority"].strip() == "normal"
    keys = tmp_path / "keys"
    assert "sha256 = 64 hexadecimal digits" in lines
    keys.write_text("\n".join(lines).replace("sha256 = 64 hexadecimal digits", "sha256 = " + "a" * 64))
    keys.chmod(0o600)
    model = tmp_path / "m.gguf"
    model.touch()
    run = subprocess.run([FAKE, "serve", "--check-config", "--model", model, "--api-keys-file", keys], capture_output=True, text=True, timeout=30 * SLOW, check=False)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("text, words", [("", "there is no key in it"), ("sk-plain\n", ":1: the line stands before the first [NAME]"),
                                         ("[a]\nsha256 = " + "a" * 64 + "\nmax_concurrent = many\n", ":3: max_concurrent must be an integer")])
def test_a_bad_file_ends_the_start(tmp_path, text, words):
    keys = tmp_path / "keys"
    keys.write_text(text)
    keys.chmod(0o600)
    model = tmp_path / "m.gguf"
    model.touch()
    for more in ([], ["--check-config"]):
        run = subprocess.run([FAKE, "serve", "--model", model, "--api-keys-file", keys, *more], capture_output=True, text=True, timeout=30 * SLOW, check=False)
        assert run.returncode == 78 and run.stderr.startswith("inferd: ") and len(run.stderr.splitlines()) == 1
        assert str(keys) in run.stderr and words in run.stderr, run.stderr
