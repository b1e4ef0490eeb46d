"""SIGHUP: settings, keys and certificates are read again, all or nothing, with the model in memory."""

import os
import signal
import socket
import subprocess
import time

import pytest
from conftest import FAKE, SANITIZED, SLOW, wait_for, write_keys
from test_keys import bearer, body, complete, counted
from test_service import Manager, manager  # noqa: F401 (a fixture)


class Settings:
    """A settings file and its keys, and the daemon's reload of both."""

    def __init__(self, folder):
        self.path = folder / "inferd.conf"
        self.keys = folder / "keys"
        self.d = None
        self.values = {}

    def write(self, **values):
        self.values.update(values)
        self.path.write_text("".join(f"{k} = {v}\n" for k, v in self.values.items() if v is not None))
        return str(self.path)

    def hang_up(self):
        """SIGHUP, and what the log says of it."""
        before = self.d.log_text()
        self.d.signal(signal.SIGHUP)
        wait_for(lambda: self.outcomes(self.d.log_text()[len(before):]), 10, "the log says what came of it")
        return self.outcomes(self.d.log_text()[len(before):])[0]

    @staticmethod
    def outcomes(text):
        return [line for line in text.splitlines() if "read again" in line or "nothing was reloaded" in line]

    def reload(self, **values):
        self.write(**values)
        line = self.hang_up()
        assert "settings read again" in line, line
        return line

    def refuse(self, words, **values):
        before = self.values.copy()
        self.write(**values)
        line = self.hang_up()
        assert "nothing was reloaded" in line and words in line, line
        self.values = before
        self.write()


@pytest.fixture
def settings(fake, tmp_path):
    s = Settings(tmp_path)

    def serve(environment=None, flags=None, ready=True, **values):
        s.d = fake(ready=ready, environment=environment, config=s.write(**values), **(flags or {}))
        return s.d

    s.serve = serve
    return s


# --- keys


def test_keys_under_running_streams(settings):
    d = settings.serve(api_keys_file=write_keys(settings.keys, {"old": ("o", {}), "stays": ("s", {"max_concurrent": 5})}), max_model_len=100000)
    streams = {}
    for key in ("o", "s"):
        d.key = key
        streams[key] = d.open_stream("@delay=10 @loop", max_tokens=60)
        next(streams[key].events())
    write_keys(settings.keys, {"new": ("n", {}), "stays": ("s2", {"max_concurrent": 1})})
    line = settings.reload()
    assert "with 2 keys" in line and "no setting has changed" in line
    for key, status in (("o", 401), ("s", 401), ("n", 200), ("s2", 200)):
        assert d.get("/v1/models", headers=bearer(key)).status == status, key
    # what runs goes on, whole, and under its name
    d.key = "n"
    before = counted(d, "generation_tokens_total", key="stays")
    answer = complete(d, "s2")
    assert answer.status == 429, "the stream that began under another limit counts for the new one"
    for key, stream in streams.items():
        assert stream.text() and stream.done, key
    assert counted(d, "generation_tokens_total", key="stays") > before
    assert counted(d, "generation_tokens_total", key="stays") >= 60
    assert complete(d, "s2").status == 200
    assert not any(("key", "old") in ls for _, ls in d.metrics())
    d.wait_idle()
    d.check_identity()


def test_what_was_used_stays_used(settings):
    d = settings.serve(api_keys_file=write_keys(settings.keys, ["a"], requests_per_minute=10))
    for _ in range(5):
        assert complete(d, "a").status == 200
    write_keys(settings.keys, ["a"], requests_per_minute=7)
    settings.reload()
    answer = complete(d, "a")
    assert answer.headers["x-ratelimit-limit-requests"] == "7" and answer.headers["x-ratelimit-remaining-requests"] in ("1", "2")


def test_the_first_keys_and_the_last(settings):
    d = settings.serve()
    stream = d.open_stream("@delay=10 @loop", max_tokens=40)
    next(stream.events())
    settings.reload(api_keys_file=write_keys(settings.keys, ["a"]))
    assert d.get("/v1/models").status == 401 and complete(d, "a").status == 200
    settings.reload(api_keys_file=None)
    assert d.get("/v1/models").status == 200
    assert stream.text() and stream.done


def test_a_public_address_never_stays_without_keys(settings):
    d = settings.serve(api_keys_file=write_keys(settings.keys, ["a"]), flags={"host": None}, host="0.0.0.0")
    settings.refuse("anybody could use 0.0.0.0", api_keys_file=None)
    # the new file would do, after a restart; what is in force until then would not
    settings.refuse("anybody could use 0.0.0.0", api_keys_file=None, host="127.0.0.1")
    assert d.get("/v1/models").status == 401 and complete(d, "a").status == 200


def test_nor_does_one_that_was_handed_over(settings):
    """The file says nothing of its address."""
    with socket.create_server(("0.0.0.0", 0)) as handed:
        d = settings.serve(api_keys_file=write_keys(settings.keys, ["a"]), ready=False, flags={"inherit": [handed]})
        d.port = handed.getsockname()[1]
        d.wait_ready()
        settings.refuse("anybody could use 0.0.0.0", api_keys_file=None)
        assert d.get("/v1/models").status == 401 and complete(d, "a").status == 200
        settings.reload(api_keys_file=None, insecure="true")
        settings.refuse("anybody could use 0.0.0.0", insecure=None)
        assert d.get("/v1/models").status == 200


# --- all or nothing


def test_bad_files_change_nothing(settings, tmp_path):
    good = write_keys(settings.keys, ["a"])
    d = settings.serve(api_keys_file=good, served_model_name="one", max_n=2, queue_timeout=50)

    def unchanged():
        assert complete(d, "a", model="one", n=2).status == 200
        assert complete(d, "b", model="one").status == 401
        assert complete(d, "a", model="two").status == 404 and complete(d, "a", model="one", n=3).status == 400

    other = write_keys(tmp_path / "other", ["b"])
    change = {"served_model_name": "two", "max_n": 5, "api_keys_file": other}
    settings.refuse("max_tokens_limit must be an integer", max_tokens_limit="many", **change)
    unchanged()
    settings.refuse("inferd.conf:5: there is no setting nonsense", nonsense=1, **change)
    settings.refuse("max_batched_tokens (1) must be at least max_sequences", max_batched_tokens=1, **change)
    settings.refuse("tls_key", tls_certificate=str(tmp_path / "none.pem"), **change)
    settings.refuse("samplers", samplers="top_k nonsense", **change)
    settings.refuse("the same name stands there twice", **{**change, "served_model_name": "two, two"})
    settings.refuse(f"{tmp_path / 'missing'}: No such file", **{**change, "api_keys_file": str(tmp_path / "missing")})
    unchanged()
    settings.keys.write_text("[a]\nsha256 = 12\n")
    settings.refuse(f"{settings.keys}:1: sha256 must be 64", served_model_name="two", max_n=5)
    unchanged()
    settings.path.unlink()
    assert "inferd.conf: No such file" in settings.hang_up()
    unchanged()
    # and then a good one
    write_keys(settings.keys, ["a"])
    settings.reload(**change)
    assert complete(d, "b", model="two", n=5).status == 200 and complete(d, "a").status == 401


def test_flags_and_environment_go_before_the_file(settings):
    d = settings.serve(environment={"INFERD_MAX_N": "3"}, flags={"served_model_name": "flag"}, strict_requests="true")
    line = settings.reload(max_n=5, served_model_name="file", strict_requests="false")
    assert "changed: strict_requests" in line and "max_n" not in line and "served_model_name" not in line
    assert d.post("/v1/completions", body("hi", n=4, model="flag")).status == 400
    assert d.post("/v1/completions", body("hi", n=3, model="flag", zzz=1)).status == 200


def test_what_needs_a_restart_is_named(settings):
    d = settings.serve(max_sequences=8, max_n=2)
    line = settings.reload(max_sequences=16, kv_dtype="int8", port=1, max_n=3)
    assert "changed: max_n" in line
    assert line.split("as before until a restart: ")[1].split(", ") == ["kv_dtype", "max_sequences"], line  # port is a flag here
    assert d.post("/v1/completions", body("hi", n=3)).status == 200
    # said again as long as it is so
    assert "until a restart: kv_dtype, max_sequences" in settings.reload()
    assert "restart" not in settings.reload(max_sequences=8, kv_dtype="f16")


# --- what each setting does when it changes


def test_names(settings):
    d = settings.serve(served_model_name="one, uno ,eins")
    assert [m["id"] for m in d.get("/v1/models").json()["data"]] == ["one", "uno", "eins"]
    assert {m["root"] for m in d.get("/v1/models").json()["data"]} == {"one"}
    for name in ("one", "uno", "eins"):
        assert d.get("/v1/models/" + name).json()["id"] == name
        assert d.post("/v1/completions", body("hi", model=name)).json()["model"] == name
        assert d.post("/tokenize", {"model": name, "prompt": "x"}).status == 200
    assert d.get("/v1/models/two").status == 404
    assert 'model_name="one"' in d.get("/metrics").body.decode()
    stream = d.open_stream("@delay=10 @loop", max_tokens=40)
    events = stream.events()
    next(events)
    settings.reload(served_model_name="zwei,two")
    assert [m["id"] for m in d.get("/v1/models").json()["data"]] == ["zwei", "two"]
    assert d.post("/v1/completions", body("hi", model="two")).json()["model"] == "two"
    assert d.post("/v1/completions", body("hi", model="one")).status == 404
    assert {e["model"] for e in events} == {"one"} and stream.done


def test_max_tokens_limit(settings):
    d = settings.serve(max_tokens_limit=5)

    def generated(path="/v1/completions", **fields):
        content = {"prompt": "@loop"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "@loop"}]}
        answer = d.post(path, {"model": "fake", **content, **fields})
        assert answer.status == 200, answer.body
        choice = answer.json()["choices"][0]
        assert choice["finish_reason"] == "length"
        return answer.json()["usage"]["completion_tokens"]

    for fields in ({}, {"max_tokens": 100}, {"max_tokens": 5}):
        assert generated(**fields) == 5
        assert generated("/v1/chat/completions", **fields) == 5
    assert generated("/v1/chat/completions", max_completion_tokens=50) == 5
    assert generated(max_tokens=3) == 3
    answer = d.post("/v1/completions", body("hi", min_tokens=6, max_tokens=7))
    assert answer.status == 400 and answer.error()["param"] == "min_tokens"
    running = d.open_stream("@delay=20 @loop", max_tokens=50)
    next(running.events())
    settings.reload(max_tokens_limit=9)
    assert generated(max_tokens=100) == 9
    assert len(running.text()) == 4 and running.done  # began under the old one, and its first token was taken
    settings.reload(max_tokens_limit=None)
    assert generated(max_tokens=100) == 100


def test_limits_of_the_queue(settings):
    d = settings.serve(max_sequences=1, max_waiting=1, max_model_len=100000, retry_after=3)
    busy = d.open_stream("@stall")
    wait_for(lambda: d.gauge("requests_running") == 1, 5, "it runs")
    waiting = [d.open_stream("@say 1")]
    wait_for(lambda: d.gauge("requests_waiting") == 1, 5, "one waits")
    assert d.post("/v1/completions", body("x")).status == 429
    settings.reload(max_waiting=3, queue_timeout="0.3")
    waiting += [d.open_stream("@say 2") for _ in range(2)]
    assert [s.start().status for s in waiting[1:]] == [503, 503]  # their queue_timeout
    waiting[0].socket.setblocking(False)
    with pytest.raises(BlockingIOError):  # the first one's has none
        waiting[0].socket.recv(1)
    waiting[0].socket.settimeout(30 * SLOW)
    settings.reload(max_waiting=0)  # fewer than wait
    assert d.post("/v1/completions", body("x")).status == 429
    busy.close()
    assert waiting[0].text() == "1"
    for s in waiting:
        s.close()
    d.wait_idle()
    assert d.post("/v1/completions", body("x")).status == 200
    d.check_identity()


def test_other_limits(settings):
    d = settings.serve(max_body_size=4096)
    long = body("y" * 5000)
    assert d.post("/v1/completions", long).status == 413
    settings.reload(max_body_size=100000, strict_requests="true", cors_origins="https://a.example", max_n=1)
    answer = d.post("/v1/completions", {**body("y" * 3900), "request_id": "x" * 30, "n": 1}, headers={"Origin": "https://a.example"})
    assert answer.status == 200 and answer.headers["access-control-allow-origin"] == "https://a.example"
    assert d.post("/v1/completions", long).status == 400  # the context's bound now, no longer the body's
    assert d.post("/v1/completions", body("x", zzz=1)).status == 400 and d.post("/v1/completions", body("x", n=2)).status == 400


def test_log_level(settings):
    d = settings.serve(log_level="error")
    assert d.log_text() == ""
    settings.write(log_level="info")
    d.signal(signal.SIGHUP)
    wait_for(lambda: "changed: log_level" in d.log_text(), 5, "the new level is in force when it is told")
    settings.write(log_level="error")
    before = d.log_text()
    d.signal(signal.SIGHUP)
    time.sleep(0.3)
    assert d.log_text() == before


# --- in every phase


def test_while_loading(settings, manager):  # noqa: F811
    d = settings.serve(environment={"FAKE_LOAD_MS": str(int(1500 * SLOW)), "NOTIFY_SOCKET": manager.path}, ready=False, served_model_name="one")
    wait_for(lambda: "loading" in d.log_text(), 10, "it loads")
    settings.reload(served_model_name="two", api_keys_file=write_keys(settings.keys, ["a"]))
    assert d.get("/readyz").status == 503 and d.get("/v1/models").status == 401
    assert not manager.all("RELOADING") and not manager.all("READY"), "it is not ready yet"
    d.wait_ready()
    assert complete(d, "a", model="two").status == 200
    manager.wait("READY")


def test_the_manager_hears_of_it(settings, manager):  # noqa: F811
    d = settings.serve(environment={"NOTIFY_SOCKET": manager.path})
    manager.wait("READY")
    settings.reload(max_n=3)
    wait_for(lambda: len(manager.all("READY")) == 2, 5, "ready again")
    names = [n for _, m in manager.read() for n in m if n in ("READY", "RELOADING", "MONOTONIC_USEC")]
    assert names.index("RELOADING") > names.index("READY") and "MONOTONIC_USEC" in names and names[-1] == "READY"
    settings.refuse("max_n", max_n=0)
    wait_for(lambda: len(manager.all("READY")) == 3, 5, "ready again, though nothing changed")
    assert d.get("/readyz").status == 200


def test_while_draining(settings):
    d = settings.serve(api_keys_file=write_keys(settings.keys, ["a"]))
    d.key = "a"
    stream = d.open_stream("@delay=20 @loop", max_tokens=40)
    next(stream.events())
    d.signal(signal.SIGTERM)
    wait_for(lambda: d.get("/readyz").status == 503, 5, "it drains")
    write_keys(settings.keys, ["b"])
    assert "shutting down" in settings.hang_up()
    assert d.get("/v1/models", headers=bearer("a")).status == 200
    assert stream.text() and stream.done
    assert d.wait_exit(5) == 0


@pytest.mark.parametrize("end", [signal.SIGTERM, None])
def test_a_rain_of_signals_from_start_to_end(settings, end):
    """Wherever it is, SIGHUP ends nothing: the exit code is that of a drain."""
    d = settings.serve(environment={"FAKE_LOAD_MS": "200"}, ready=False, api_keys_file=write_keys(settings.keys, ["a"]))
    wait_for(lambda: hangup_blocked(d.pid), 5, "the command has begun")
    for i in range(60):
        d.signal(signal.SIGHUP)
        if i == 30:
            d.wait_ready()
        if i == 45 and end:
            d.signal(end)
        if i > 45 and not d.running():
            break
        time.sleep(0.005)
    if end:
        assert d.wait_exit(10) == 0
    else:
        assert complete(d, "a").status == 200


def hangup_blocked(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as f:
        fields = dict(line.split(":", 1) for line in f)
    return int(fields["SigBlk"], 16) & 1 << signal.SIGHUP - 1


def test_reloads_under_load_leave_nothing_behind(settings):
    d = settings.serve(api_keys_file=write_keys(settings.keys, ["a", "b"]), max_waiting=64)

    def round_of_reloads(n):
        for i in range(n):
            streams = []
            for key in ("a", "b"):
                d.key = key
                streams.append(d.open_stream("@delay=1 @loop", max_tokens=20))
            write_keys(settings.keys, ["a", "b", f"c{i}"], requests_per_minute=1000000)
            settings.reload(served_model_name=f"fake,n{i}", max_n=2 + i % 5)
            streams[i % 2].close()
            assert streams[1 - i % 2].text()
            streams[1 - i % 2].close()
        d.key = "a"
        d.wait_idle()

    round_of_reloads(10)
    before, files = d.resident_bytes(), len(os.listdir(f"/proc/{d.pid}/fd"))
    round_of_reloads(30)
    assert SANITIZED or d.resident_bytes() - before < 2 << 20
    assert len(os.listdir(f"/proc/{d.pid}/fd")) <= files + 1
    d.check_identity()


# --- without serving


def test_check_config(settings, tmp_path):
    model = tmp_path / "model.gguf"
    model.touch()

    def check(**values):
        settings.values = {}
        config = settings.write(model=model, api_keys_file=write_keys(settings.keys, ["a"]), **values)
        return subprocess.run([FAKE, "serve", "--config", config, "--check-config"], capture_output=True, text=True, timeout=30 * SLOW, check=False)

    done = check(served_model_name="a,b", max_tokens_limit=100)
    assert (done.returncode, done.stdout) == (0, "The settings are good.\n")
    for values, words in (({"served_model_name": "a,,b"}, "served_model_name"), ({"max_tokens_limit": -1}, "max_tokens_limit"),
                          ({"api_key": "two words"}, "api_key")):
        failed = check(**values)
        assert failed.returncode == 78 and words in failed.stderr and len(failed.stderr.splitlines()) == 1 and not failed.stdout


def test_help_says_which_settings_are_reloaded():
    shown = subprocess.run([FAKE, "serve", "--help"], capture_output=True, text=True, check=False).stdout
    options = {o.split()[0]: " ".join(o.split()) for o in shown.split("\n  --")[1:]}
    assert "(reload)" in options["max-n"] and "(reload)" in options["served-model-name"] and "(reload)" not in options["port"]
