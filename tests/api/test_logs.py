"""The log: one line an event, an access line a request; no content, no keys, no control bytes; nothing waits for it."""

import hashlib
import json
import os
import re
import socket
import subprocess
import threading
import time

import pytest
from conftest import INFERD, Daemon, wait_for
from faults import write_tiny_model

KEY = "sk-a-secret-key"
PROMPT = "a secret of the client"
NUMBERS = {"status", "prompt_tokens", "completion_tokens", "cached_tokens", "queue_ms", "prefill_ms", "decode_ms", "ttft_ms", "total_ms",
           "bytes_received", "bytes_sent"}


@pytest.fixture
def tiny(tmp_path, start):
    def start_one(**settings):
        d = start(model=write_tiny_model(tmp_path / "tiny.gguf"), served_model_name="small", **settings)
        d._model = "small"
        return d

    return start_one


def lines(d):
    """The log as JSON, one object a line; only the daemon's own."""
    return [json.loads(line) for line in d.log_text().splitlines()]


def access_lines(d, n=1, seconds=5):
    """The access lines, when there are n of them."""
    wait_for(lambda: len([e for e in lines(d) if e["message"] == "request"]) >= n, seconds, f"{n} access lines")
    found = [e for e in lines(d) if e["message"] == "request"]
    assert len(found) == n, found
    return found


def test_an_access_line_says_who_what_and_how_long(tiny):
    d = tiny(log_format="json")
    answer = d.post("/v1/completions", {"model": "small", "prompt": PROMPT, "max_tokens": 7, "ignore_eos": True, "n": 2},
                    headers={"X-Request-Id": "mine-1"})
    assert answer.status == 200
    line, = access_lines(d)
    assert line["level"] == "info" and re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"])
    usage = answer.json()["usage"]
    expected = {"request_id": "mine-1", "method": "POST", "route": "/v1/completions", "status": 200, "finish": "length",
                "response_id": answer.json()["id"], "model": "small", "prompt_tokens": usage["prompt_tokens"], "completion_tokens": 14,
                "cached_tokens": usage["prompt_tokens_details"]["cached_tokens"], "bytes_sent": len(answer.body)}
    assert {k: line[k] for k in expected} == expected
    assert "key" not in line and line["client"].startswith("127.0.0.1:")
    assert set(line) == {"time", "level", "message", "client", *expected, *NUMBERS}
    for name in NUMBERS:
        assert isinstance(line[name], (int, float)) and line[name] >= 0, name
    parts = line["queue_ms"] + line["prefill_ms"] + line["decode_ms"]
    assert 0 < line["ttft_ms"] < line["total_ms"] and parts < line["total_ms"] + 0.01
    # asked again, the prompt is found
    d.complete(PROMPT * 10, max_tokens=1)
    d.complete(PROMPT * 10, max_tokens=1)
    assert access_lines(d, 3)[2]["cached_tokens"] > 0


def test_every_ending_has_its_line(tiny, fake):
    d = fake(log_format="json")
    body = {"model": d.model, "max_tokens": 1000}
    d.post("/v1/completions", {**body, "prompt": "@error=2"})
    d.post("/v1/completions", {**body, "prompt": "@stall", "timeout": 0.2})
    d.post("/v1/completions", {**body, "prompt": 5.5})
    d.post("/v1/completions", {**body, "model": "other", "prompt": "x"})
    d.post("/v1/completions", {**body, "prompt": "x", "max_tokens": 1})
    stream = d.open_stream("@delay=10 @loop", max_tokens=1000)
    next(stream.events())
    stream.close()
    d.get("/nothing/of/ours"), d.request("DELETE", "/v1/models"), d.post("/tokenize", {"prompt": "x"})
    with d.connect() as s:  # leaves while it waits
        data = json.dumps({**body, "prompt": "@stall"}).encode()
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
        wait_for(lambda: d.gauge("requests_running") + d.gauge("requests_waiting") == 1, 5, "it is there")
    found = access_lines(d, 11)
    assert found[0]["route"] == "/v1/models"
    endings = sorted((e["status"], e.get("finish", ""), e["route"]) for e in found[1:])
    generating = "/v1/completions"
    assert endings == sorted([
        (500, "error", generating), (503, "deadline", generating), (400, "rejected", generating), (404, "rejected", generating),
        (200, "length", generating), (200, "cancelled", generating), (499, "cancelled", generating),
        (404, "", "other"), (405, "", "other"), (200, "", "/tokenize")])
    cancelled = next(e for e in found if e["status"] == 200 and e.get("finish") == "cancelled")
    assert cancelled["completion_tokens"] > 0 and cancelled["bytes_sent"] > 0


def test_requests_that_the_end_cuts_off_have_lines_too(fake):
    d = fake(log_format="json", drain_timeout=60)
    stream = d.open_stream("@delay=10 @loop", max_tokens=1000)
    waiting = d.open_stream("@stall", max_tokens=5)
    events = stream.events()
    for _ in range(3):
        next(events)
    d.signal()
    wait_for(lambda: "draining" in d.log_text(), 5, "it drains")
    d.signal()
    d.wait_exit()
    found = {e["response_id"]: e for e in access_lines(d, 3) if "response_id" in e}
    assert sorted((e["status"], e["finish"]) for e in found.values()) == [(200, "error"), (503, "error")]
    assert next(e for e in found.values() if e["status"] == 200)["completion_tokens"] >= 3
    waiting.close()


def test_whose_request_it_was(fake, tmp_path):
    """The key's name, on every route; nothing for who has none."""
    keys = tmp_path / "keys"
    keys.write_text("".join(f"[{name}]\nsha256 = {hashlib.sha256(key.encode()).hexdigest()}\nscopes = {scopes}\n"
                            for name, key, scopes in (("alice", "key-of-alice", "infer"), ("bob", "key-of-bob", "metrics"))))
    keys.chmod(0o600)
    d = fake(ready=False, log_format="json", api_keys_file=keys)
    d.wait_ready()
    d._model = "fake"
    for key, body in (("key-of-alice", {"prompt": "x", "model": "fake", "max_tokens": 1}), ("key-of-bob", {}), ("nobody's", {})):
        d.key = key
        d.post("/v1/completions", body), d.get("/v1/models"), d.get("/not/there")
    found = access_lines(d, 9)
    assert sorted((e.get("key", ""), e["status"]) for e in found) == sorted(
        [("alice", 200), ("alice", 200), ("alice", 404), ("bob", 403), ("bob", 403), ("bob", 404), ("", 401), ("", 401), ("", 401)])
    assert "key-of" not in d.log_text()


def test_probes_and_scrapes_are_no_news(tiny):
    d = tiny(log_format="json")
    for path in ("/livez", "/readyz", "/health", "/metrics", "/version"):
        assert d.get(path).status == 200
    d.post("/tokenize", {"prompt": "x"})
    assert access_lines(d)[0]["route"] == "/tokenize"
    d = tiny(log_format="json", log_level="debug")
    d.get("/livez")
    wait_for(lambda: any(e.get("route") == "/livez" and e["level"] == "debug" for e in lines(d)), 5, "debug has them")
    d = tiny(log_format="json", log_level="warn")
    d.complete(PROMPT, max_tokens=2)
    d.stop()
    assert not [e for e in lines(d) if e["message"] == "request"]


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_no_content_no_keys_no_control_bytes(tiny, log_format):
    """Whatever is sent, at the most talkative level: each line is a line, and nothing of what was said is in it."""
    d = tiny(log_format=log_format, log_level="debug", api_key=KEY)
    d.key = KEY
    secrets = [PROMPT, KEY, "x-injected", "wrong-key", "hidden-path", "hidden-query"]
    answers = [d.complete(PROMPT, max_tokens=20, ignore_eos=True),
               d.chat(PROMPT, max_tokens=5),
               d.post("/v1/completions", b'{"prompt": "%s", "model": 5}' % PROMPT.encode()),
               d.post("/v1/completions", {"model": PROMPT, "prompt": PROMPT}),
               d.post("/v1/completions", {"model": "small", "prompt": PROMPT, PROMPT: 1, "stop": {}}),
               d.get("/hidden-path?key=hidden-query"),
               d.get("/v1/models", headers={"Authorization": "Bearer wrong-key"}),
               d.get("/v1/models", headers={"X-Request-Id": 'a"b=c\\level=error'}),
               d.post("/tokenize", {"prompt": PROMPT})]
    assert [a.status for a in answers[:1]] == [200]
    text = answers[0].json()["choices"][0]["text"]
    for head in (b"X-Request-Id: a\x1b[31m\r\n", b"X-Request-Id: a\xff\xfe\r\n", b"X-Request-Id: " + b"y" * 200 + b"\r\n",
                 b"Authorization: Bearer \x01\x02wrong-key\r\n", b"Authorization: Bearer " + KEY.encode() + b"\r\n"):
        with d.connect() as s:
            s.sendall(b"GET /v1/models/%0a%1b[31mhidden-path HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + head + b"\r\n")
            while s.recv(4096):
                pass
    d.stop()
    with open(d.log, "rb") as f:
        log = f.read()
    for line in log.split(b"\n"):
        assert all(c >= 32 and c != 127 for c in line), line
        line.decode()  # UTF-8
        if log_format == "json" and line:
            assert json.loads(line)["level"] in ("debug", "info", "warn", "error")
        elif line:
            assert line.startswith(b"inferd: ")
    for secret in [*secrets, text]:
        assert secret.encode() not in log, secret
    assert log.count(b"route") >= len(answers) + 5
    if log_format == "text":
        assert b'request_id="a\\"b=c\\\\level=error"' in log


def start_with_stderr(tmp_path, stderr, **settings):
    d = Daemon.__new__(Daemon)
    d.log, d.key, d._model, d.streams = str(tmp_path / "log"), None, "small", []
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        d.port = s.getsockname()[1]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("INFERD")}
    flags = [f"--{k.replace('_', '-')}={v}" for k, v in settings.items()]
    d.process = subprocess.Popen([INFERD, "serve", write_tiny_model(tmp_path / "tiny.gguf"), f"--port={d.port}", "--served-model-name=small",
                                  "--kv-tokens=16384", *flags], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr, env=environment)
    open(d.log, "w").close()
    return d


def lost(d):
    return d.gauge("log_lines_lost_total")


@pytest.mark.parametrize("what", ["a full disk", "a closed pipe", "a full pipe"])
def test_a_log_that_cannot_be_written_stops_nothing(tmp_path, what):
    read, write = os.pipe()
    stderr = os.open("/dev/full", os.O_WRONLY) if what == "a full disk" else write
    d = start_with_stderr(tmp_path, stderr)
    try:
        os.close(write)
        if what == "a closed pipe":
            os.close(read)
        d.wait_ready()
        n = 400 if what == "a full pipe" else 5  # of 64 KiB and more
        before = lost(d)
        began = time.monotonic()
        for _ in range(n):
            assert d.post("/tokenize", {"prompt": "x"}, headers={"X-Request-Id": "y" * 128}).status == 200
        assert time.monotonic() - began < 20
        assert lost(d) - before > 0 if what == "a full pipe" else lost(d) - before == n
        assert d.complete("hi", max_tokens=3).status == 200
        if what == "a full pipe":  # somebody reads again: whole lines, and how many are missing
            text = os.read(read, 1 << 20).decode()
            assert text.endswith("\n") and all(line.startswith("inferd: ") for line in text.splitlines())
            d.post("/tokenize", {"prompt": "x"})
            wait_for(lambda: lost(d) > 0, 5, "")
            text = os.read(read, 1 << 20).decode()
            assert f"could not be written lines={lost(d):.0f}\n" in text
        d.signal()
        assert d.wait_exit() == 0
    finally:
        d.process.kill()
        d.process.wait()


JOURNAL = "/run/systemd/journal/socket"


@pytest.mark.skipif(os.geteuid() != 0 or os.path.exists(JOURNAL), reason="the journal's place cannot be taken here")
def test_the_journal_gets_entries_with_fields(tmp_path):
    """What systemd does: standard error is a stream that JOURNAL_STREAM names, and the socket is there."""
    made = not os.path.isdir(os.path.dirname(JOURNAL))
    os.makedirs(os.path.dirname(JOURNAL), exist_ok=True)
    journal = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    journal.bind(JOURNAL)
    ours, theirs = socket.socketpair()
    st = os.fstat(theirs.fileno())
    os.environ["JOURNAL_STREAM"] = f"{st.st_dev}:{st.st_ino}"
    entries, d = [], None

    def collect():
        while True:
            data = journal.recv(1 << 16)
            if not data:  # shut down, below
                return
            fields = [line.split(b"=", 1) for line in data.rstrip(b"\n").split(b"\n")]
            entries.append({k.decode(): v.decode() for k, v in fields})

    thread = threading.Thread(target=collect)
    thread.start()
    try:
        d = start_with_stderr(tmp_path, theirs.fileno())
        d.wait_ready()
        answer = d.post("/v1/completions", {"model": "small", "prompt": PROMPT, "max_tokens": 3}, headers={"X-Request-Id": "mine"})
        wait_for(lambda: any(e["MESSAGE"].startswith("request ") for e in entries), 5, "the access line")
        entry = next(e for e in entries if e["MESSAGE"].startswith("request "))
        assert entry["PRIORITY"] == "6" and entry["SYSLOG_IDENTIFIER"] == "inferd" and entry["REQUEST_ID"] == "mine"
        assert entry["MODEL"] == "small" and entry["STATUS"] == "200" and entry["RESPONSE_ID"] == answer.json()["id"]
        assert float(entry["TTFT_MS"]) > 0 and entry["PROMPT_TOKENS"] == str(answer.json()["usage"]["prompt_tokens"])
        assert "request_id=mine" in entry["MESSAGE"]
        assert any("serving small" in e["MESSAGE"] for e in entries)
        # the journal is gone: its stream gets the lines, with priorities
        os.unlink(JOURNAL)
        assert d.post("/tokenize", {"prompt": "x"}).status == 200
        ours.settimeout(5)
        assert ours.recv(4096).startswith(b"<6>request request_id=")
        ours.close()  # that, too
        assert d.post("/tokenize", {"prompt": "x"}).status == 200
        wait_for(lambda: lost(d) == 1, 5, "it is counted")
        d.signal()
        assert d.wait_exit() == 0
    finally:
        del os.environ["JOURNAL_STREAM"]
        if d:
            d.process.kill()
            d.process.wait()
        if os.path.exists(JOURNAL):
            os.unlink(JOURNAL)
        journal.shutdown(socket.SHUT_RDWR)
        thread.join(5)
        if made:
            os.removedirs(os.path.dirname(JOURNAL))


def test_why_a_start_failed_is_a_line_of_the_log_too(tmp_path):
    model = tmp_path / "broken.gguf"
    model.write_bytes(b"GGUF" + b"\xff" * 100)
    done = subprocess.run([INFERD, "serve", str(model), "--port=0", "--log-format=json"], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 78
    last = [json.loads(line) for line in done.stderr.splitlines()][-1]
    assert last["level"] == "error" and "broken.gguf" in last["message"]
