"""A real daemon on a free port for the tests of this folder.

INFERD is the program (default build/inferd), INFERD_TEST_MODEL the demo model (`./bootstrap model` prints its path).
`daemon` is one that most tests share; `start(max_waiting=4, ...)` makes another with settings of its own.
"""

import hashlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass

import pytest

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
INFERD = os.environ.get("INFERD", os.path.join(ROOT, "build", "inferd"))
MODEL = os.environ.get("INFERD_TEST_MODEL", "")
# The server on an engine that computes nothing; tests/unit/fake_engine.h says what prompts can order.
FAKE = os.path.join(os.path.dirname(INFERD), "tests", "unit", "fake_inferd")

# How much longer everything may take: a busy machine, the sanitizers' builds.
SLOW = float(os.environ.get("INFERD_TEST_SLOW", "1"))

# A build with sanitizers: what mostly computes with the demo model is left out, where other tests take the same ways, and so is
# what looks at files more than at the program.
SANITIZED = os.environ.get("INFERD_TEST_SANITIZED") == "1"
COMPUTE = (
    "test_service.py::test_load_percentage", "test_sampling.py::", "test_speculation.py::", "test_differential.py::test_hurried_answers_are_the_plain_ones[demo",
    "test_streams.py::test_32_streams", "test_streams.py::test_sampled_streams", "test_streams.py::test_closing_half",
    "test_cli.py::test_cases_made_by_others", "test_cli.py::test_chat_chooses_as_it_is_told",
    "test_prompt_logprobs.py::test_a_full_context_takes_no_more_memory", "test_bad_input.py::test_the_context_boundary",
    "test_openai_client.py::test_seed", "test_openai_client.py::test_without_a_seed", "test_openai_client.py::test_penalties",
    "test_deployment.py::",
)


def pytest_collection_modifyitems(config, items):
    if SANITIZED:
        left_out = [item for item in items if any(name in item.nodeid for name in COMPUTE)]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    if not os.path.isfile(MODEL):
        for item in items:
            item.add_marker(pytest.mark.skip(reason="INFERD_TEST_MODEL does not name the demo model"))


def pytest_report_header():
    return f"inferd: {INFERD}, model: {MODEL}"


@dataclass
class Answer:
    status: int
    headers: dict  # names in lower case
    body: bytes

    def json(self):
        return json.loads(self.body)

    def error(self):
        """The error object of a refusal, with the shape that every one has."""
        error = self.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}, error
        assert isinstance(error["message"], str) and error["message"]
        assert isinstance(error["type"], str)
        assert error["param"] is None or isinstance(error["param"], str)
        assert error["code"] is None or isinstance(error["code"], str)
        return error


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_for(what, seconds, why, every=0.02):
    """Poll until what() is true; its value."""
    end = time.monotonic() + seconds * SLOW
    while True:
        value = what()
        if value:
            return value
        assert time.monotonic() < end, f"not within {seconds * SLOW:g} s: {why}"
        time.sleep(every)


def sanitizer_report(text):
    """What the sanitizers' builds write of a fault (that of undefined behaviour does not end the process)."""
    return any(mark in text for mark in ("Sanitizer", "runtime error:", "Assertion"))


HAND_OVER = """
import os, sys
fds = [os.dup(int(fd)) for fd in sys.argv[1].split(",")]
fds = [os.dup2(fd, 100 + i) for i, fd in enumerate(fds)]
for i, fd in enumerate(fds):
    os.dup2(fd, 3 + i)
os.environ.setdefault("LISTEN_PID", str(os.getpid()))
os.environ.setdefault("LISTEN_FDS", str(len(fds)))
os.closerange(3 + len(fds), 256)
os.execv(sys.argv[2], sys.argv[2:])
"""


def write_keys(path, keys, mode=0o600, **lines):
    """A keys file: name -> the key, or (the key, {line: value}); `lines` are every key's, which may do all."""
    sections = []
    for name, key in (keys if isinstance(keys, dict) else {k: k for k in keys}).items():
        key, own = key if isinstance(key, tuple) else (key, {})
        values = {"scopes": "infer metrics admin", "sha256": hashlib.sha256(key.encode()).hexdigest(), **lines, **own}
        sections.append(f"[{name}]\n" + "".join(f"{k} = {v}\n" for k, v in values.items()))
    path.write_text("\n".join(sections))
    path.chmod(mode)
    return str(path)


class Daemon:
    def __init__(self, log, environment=None, arguments=(), program=INFERD, inherit=(), **settings):
        self.port = free_port()
        self.log = log
        settings = {"model": MODEL, "host": "127.0.0.1", "port": self.port, **settings}
        flags = [
            "--" + name.replace("_", "-") + ("" if value is True else f"={value}")
            for name, value in settings.items()
            if value is not None
        ]
        # settings of whoever runs the tests must not reach the daemon
        env = {k: v for k, v in os.environ.items() if not k.startswith("INFERD")}
        env.update(environment or {})
        command, fds = [program, "serve", *flags, *arguments], [s.fileno() for s in inherit]
        if inherit:  # as systemd does for a socket unit: the tests' sockets as descriptors from 3 on
            command = [sys.executable, "-c", HAND_OVER, ",".join(map(str, fds)), *command]
        with open(log, "ab") as out:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env, pass_fds=fds)
        self._model = None
        self.key = None
        self.streams = []  # all that were opened: `stop` closes what a failed test left

    # --- life

    @property
    def pid(self):
        return self.process.pid

    def running(self):
        return self.process.poll() is None

    def log_text(self):
        with open(self.log, encoding="utf-8", errors="replace") as f:
            return f.read()

    def wait_ready(self, seconds=60):
        def ready():
            assert self.running(), f"inferd ended with {self.process.returncode}:\n{self.log_text()[-3000:]}"
            try:
                return self.get("/readyz").status == 200
            except OSError:
                return False

        wait_for(ready, seconds, "readyz answers 200")
        return self

    def signal(self, number=signal.SIGTERM):
        self.process.send_signal(number)

    def wait_exit(self, seconds=30):
        try:
            return self.process.wait(seconds * SLOW)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"inferd was still running after {seconds * SLOW:g} s:\n{self.log_text()[-3000:]}") from None

    def stop(self):
        """End it in order and see that it ended well."""
        for stream in self.streams:
            stream.close()
        if self.running():
            self.signal()
            self.wait_exit()
        log = self.log_text()
        assert self.process.returncode == 0 and not sanitizer_report(log), f"exit code {self.process.returncode}:\n{log[-6000:]}"

    def cpu_seconds(self):
        with open(f"/proc/{self.pid}/stat", encoding="ascii") as f:
            fields = f.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident_bytes(self):
        with open(f"/proc/{self.pid}/statm", encoding="ascii") as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    # --- HTTP

    def connect(self, timeout=30):
        s = socket.create_connection(("127.0.0.1", self.port), timeout=timeout * SLOW)
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return s

    def connection(self, timeout):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def request(self, method, path, body=None, headers=None, timeout=60):
        headers = dict(headers or {})
        if self.key is not None:
            headers.setdefault("Authorization", "Bearer " + self.key)
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        if body is not None:
            headers.setdefault("Content-Type", "application/json")
        connection = self.connection(timeout * SLOW)
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            data = response.read()
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, data)
        finally:
            connection.close()

    def get(self, path, **kwargs):
        return self.request("GET", path, **kwargs)

    def post(self, path, body, **kwargs):
        return self.request("POST", path, body, **kwargs)

    def chat(self, content, **fields):
        body = {"model": self.model, "messages": [{"role": "user", "content": content}], "temperature": 0, **fields}
        return self.post("/v1/chat/completions", body)

    def complete(self, prompt, timeout=60, **fields):
        body = {"model": self.model, "prompt": prompt, "temperature": 0, **fields}
        return self.post("/v1/completions", body, timeout=timeout)

    @property
    def model(self):
        if self._model is None:
            self._model = self.get("/v1/models").json()["data"][0]["id"]
        return self._model

    def open_stream(self, prompt, path="/v1/completions", **fields):
        stream = Stream(self, path, {"model": self.model, "prompt": prompt, "temperature": 0, "stream": True, **fields})
        self.streams.append(stream)
        return stream

    def client(self, **kwargs):
        import openai

        kwargs = {"api_key": self.key or "none", "max_retries": 0, "timeout": 60 * SLOW, **kwargs}
        return openai.OpenAI(base_url=f"http://127.0.0.1:{self.port}/v1", **kwargs)

    def metrics(self):
        answer = self.get("/metrics")
        assert answer.status == 200
        return parse_metrics(answer.body.decode())

    def gauge(self, name):
        """The sum over all label sets of a native series."""
        return sum(value for (series, _), value in self.metrics().items() if series == "inferd_" + name)

    def check_identity(self):
        """received = finished by reason + rejected + running + waiting, in one scrape."""
        m = self.metrics()
        total = {n: sum(v for (s, _), v in m.items() if s == "inferd_requests_" + n)
                 for n in ("received_total", "finished_total", "rejected_total", "running", "waiting")}
        assert total.pop("received_total") == sum(total.values()), total

    def wait_idle(self, seconds=5):
        def idle():
            m = self.metrics()
            return sum(v for (n, _), v in m.items() if n in ("inferd_requests_running", "inferd_requests_waiting")) == 0

        wait_for(idle, seconds, "no request runs or waits")


class Stream:
    """A raw SSE stream: the request goes out at once, events come as they are asked for."""

    def __init__(self, daemon, path, body):
        self.socket = daemon.connect(timeout=120)
        data = json.dumps(body).encode()
        key = f"Authorization: Bearer {daemon.key}\r\n" if daemon.key else ""
        self.socket.sendall(
            (f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{key}"
             f"Content-Length: {len(data)}\r\n\r\n").encode() + data
        )
        self.response = None

    def start(self):
        """Read the head of the answer."""
        if self.response is None:
            self.response = http.client.HTTPResponse(self.socket, method="POST")
            self.response.begin()
        return self.response

    def events(self):
        """The data of each event, parsed; ends after [DONE] or with the connection (`done` says which)."""
        self.done = False
        assert self.start().status == 200, self.response.read()
        for line in iter(self.response.readline, b""):
            line = line.decode("utf-8").rstrip("\r\n")
            if line.startswith("data: "):
                if line == "data: [DONE]":
                    self.done = True
                    self.response.read()
                    return
                yield json.loads(line[6:])
            else:
                assert line == "" or line.startswith(":"), line

    def text(self):
        """The rest of the text of choice 0."""
        return "".join(e["choices"][0]["text"] for e in self.events() if e["choices"])

    def close(self):
        self.socket.close()
        if self.response is not None:
            self.response.close()


SAMPLE = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)$")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')


def parse_metrics(text):
    """{(name, ((label, value), ...)): number} of a Prometheus page; fails on a line that is none of it."""
    samples = {}
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        match = SAMPLE.match(line)
        assert match, f"not a sample: {line!r}"
        key = (match[1], tuple(sorted(LABEL.findall(match[2] or ""))))
        assert key not in samples, f"twice: {line!r}"
        samples[key] = float(match[3])
    return samples


@pytest.fixture(scope="session")
def shared_daemon(tmp_path_factory):
    # half a head is waited for as long as it may take: less than the default, since several tests send one
    d = Daemon(tmp_path_factory.mktemp("inferd") / "log", max_model_len=2048, max_sequences=32, kv_tokens=32768, header_timeout=3)
    d.wait_ready()
    d.control = d.complete("The capital of France is", max_tokens=4).json()["choices"][0]["text"]
    yield d
    d.stop()


@pytest.fixture
def daemon(shared_daemon):
    """The shared daemon. After the test it is still the same process, idle, and answers as before."""
    yield shared_daemon
    assert shared_daemon.running(), f"the daemon died:\n{shared_daemon.log_text()[-3000:]}"
    shared_daemon.wait_idle()
    answer = shared_daemon.complete("The capital of France is", max_tokens=4)
    assert answer.status == 200 and answer.json()["choices"][0]["text"] == shared_daemon.control


@pytest.fixture
def start(tmp_path):
    """A function that starts a daemon; all are ended (and must have ended well) after the test."""
    daemons = []

    def start_one(ready=True, **settings):
        settings = {"max_model_len": 2048, "kv_tokens": 16384, **settings}
        d = Daemon(tmp_path / f"log{len(daemons)}", **settings)
        daemons.append(d)
        return d.wait_ready() if ready else d

    yield start_one
    try:
        for d in daemons:
            if d.running():
                d.stop()
    finally:
        for d in daemons:
            if d.running():
                d.process.kill()
                d.process.wait()


@pytest.fixture
def fake(tmp_path):
    """A function that starts a server on the fake engine; each must end well after the test."""
    if not os.path.isfile(FAKE):
        pytest.skip("fake_inferd was not built (option tests)")
    daemons = []
    model = tmp_path / "fake.gguf"
    model.touch()

    def start_one(ready=True, environment=None, program=FAKE, **settings):
        d = Daemon(tmp_path / f"fake-log{len(daemons)}", environment=environment, program=program, model=str(model), **settings)
        daemons.append(d)
        return d.wait_ready() if ready else d

    yield start_one
    for d in daemons:
        d.stop()
