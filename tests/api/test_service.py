"""What a service manager hears (sd_notify(3)): the load, readiness, the watchdog, the end."""

import os
import re
import signal
import socket
import subprocess
import time

import pytest
from conftest import INFERD, ROOT, SLOW, free_port, wait_for
from faults import write_tiny_model


class Manager:
    """The manager's end: what came, as (seconds, {name: value}) in order."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(path)
        self.path = path
        self.heard = []

    def read(self):
        while True:
            try:
                message = self.socket.recv(4096, socket.MSG_DONTWAIT).decode()
            except BlockingIOError:
                return self.heard
            self.heard.append((time.monotonic(), dict(line.split("=", 1) for line in message.splitlines())))

    def all(self, name):
        return [m[name] for _, m in self.read() if name in m]

    def wait(self, name, seconds=30):
        return wait_for(lambda: self.all(name), seconds, f"the manager hears {name}")


@pytest.fixture
def manager(tmp_path):
    m = Manager(f"@inferd-test-{os.getpid()}-{time.monotonic_ns()}".replace("@", "\0"))
    m.path = m.path.replace("\0", "@")
    yield m
    m.socket.close()


def test_start_and_end(start, manager):
    d = start(ready=False, environment={"NOTIFY_SOCKET": manager.path})
    manager.wait("READY")
    assert d.get("/readyz").status == 200  # whoever waits for READY finds it so
    messages = [m for _, m in manager.read()]
    ready = next(i for i, m in enumerate(messages) if "READY" in m)
    loading = [m["STATUS"] for m in messages[:ready] if m.get("STATUS", "").startswith("Loading")]
    assert loading and not any("WATCHDOG" in m for m in messages)
    status = wait_for(lambda: [s for s in manager.all("STATUS") if s.startswith("Serving")], 5, "the state is told")
    assert re.fullmatch(r"Serving \S+: 0 requests run, 0 wait", status[0])
    stream = d.open_stream("Once", max_tokens=400, ignore_eos=True)
    next(stream.events())
    d.signal()
    manager.wait("STOPPING")
    assert re.search(r"^Draining \S+: 1 requests have 30 s to end$", manager.all("STATUS")[-1])
    assert int(manager.all("EXTEND_TIMEOUT_USEC")[-1]) == 45_000_000  # drain_timeout and some
    d.signal()  # again: at once
    assert d.wait_exit(3) == 0
    assert "told again to stop" in d.log_text()


def test_load_percentage(start, manager):
    """A model that takes a while to load (I8 weights are made of Q4_1) tells how far it is."""
    start(ready=False, environment={"NOTIFY_SOCKET": manager.path}, weights="int8", cpu_variant="generic", threads=1)
    manager.wait("READY", 60)
    shares = [float(m[1]) for s in manager.all("STATUS") if (m := re.match(r"Loading \S+: (\d+) %", s))]
    assert shares and shares == sorted(shares) and shares[-1] == 100
    extended = [int(x) for x in manager.all("EXTEND_TIMEOUT_USEC")]
    assert len(extended) >= len(shares) and min(extended) >= 60_000_000
    assert len(manager.all("READY")) == 1


def test_watchdog_is_fed_and_starved(start, manager):
    d = start(environment={"NOTIFY_SOCKET": manager.path, "WATCHDOG_USEC": "600000"}, device="null",
              null_step_time="4s", stall_timeout=1)
    heard = len(manager.wait("WATCHDOG", 5))
    used = d.cpu_seconds()
    time.sleep(1)
    assert 3 <= len(manager.all("WATCHDOG")) - heard <= 7  # idle: every 200 ms
    assert d.cpu_seconds() - used < 0.1 * SLOW
    time.sleep(4 - time.monotonic() % 4)  # steps end at multiples of 4 s: the next one lasts that long
    stream = d.open_stream("Once", max_tokens=2)
    stalled = lambda m: "the engine makes no progress" in m.get("STATUS", "")  # noqa: E731
    wait_for(lambda: any(stalled(m) for _, m in manager.read()), 10, "the stall is told")
    stream.text()
    fed = len(manager.all("WATCHDOG"))
    wait_for(lambda: len(manager.all("WATCHDOG")) > fed, 5, "fed again when the engine goes on")
    told = [m for _, m in manager.read() if "STATUS" in m or "WATCHDOG" in m]
    assert sum(map(stalled, told)) >= 3  # every 200 ms: the loop runs, and yet
    assert not any(stalled(a) and "WATCHDOG" in b and stalled(c) for a, b, c in zip(told, told[1:], told[2:]))


def test_watchdog_of_another(start, manager):
    d = start(environment={"NOTIFY_SOCKET": manager.path, "WATCHDOG_USEC": "300000", "WATCHDOG_PID": "1"}, device="null")
    manager.wait("READY")
    time.sleep(0.5)
    assert not manager.all("WATCHDOG")
    d.signal(signal.SIGTERM)
    assert d.wait_exit() == 0
    assert "STOPPING" in [name for _, m in manager.read() for name in m]


def test_ready_is_behind_the_self_test(start, manager, tmp_path):
    model = bytearray(open(write_tiny_model(tmp_path / "tiny.gguf"), "rb").read())
    model[-4000:] = b"\xff" * 4000  # loads, and computes NaN
    (tmp_path / "broken.gguf").write_bytes(model)
    d = start(ready=False, environment={"NOTIFY_SOCKET": manager.path}, model=str(tmp_path / "broken.gguf"))
    assert d.wait_exit() == 78
    assert "self-test" in d.log_text()
    assert [s for s in manager.all("STATUS") if s.startswith("Loading")] and not manager.all("READY")


def unit(name):
    with open(os.path.join(ROOT, "systemd", name), encoding="utf-8") as f:
        return [line.split("=", 1) for line in f.read().splitlines() if "=" in line and not line.startswith("#")]


def test_unit_names_what_the_program_does(tmp_path):
    """Exit codes, drain and commands of inferd.service.in are the program's."""
    service = dict(unit("inferd.service.in"))
    never = set(service["RestartPreventExitStatus"].split())
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))

    def code(*arguments):
        env = {k: v for k, v in os.environ.items() if not k.startswith("INFERD")}
        run = subprocess.run([INFERD, "serve", f"--port={free_port()}", *arguments], env=env, capture_output=True, timeout=60 * SLOW)
        return str(run.returncode)

    model = os.environ["INFERD_TEST_MODEL"]
    not_again = {code("--no-such-flag"), code(model, "--kv-tokens=1073741824", "--max-model-len=100"), code(str(broken)), code()}
    assert not_again == never == {"2", "3", "78"}
    again = code(model, "--device=cuda", f"--cuda-module={tmp_path}/none.so")  # a device that is missing may come back
    assert again == "4" and again not in never

    defaults = dict(re.findall(r"^#?(\w+) = (.*)$", subprocess.run([INFERD, "serve", "--print-config"], capture_output=True, text=True,
                                                                 check=True).stdout, re.MULTILINE))
    assert int(service["TimeoutStopSec"]) > float(defaults["drain_timeout"])
    assert service["Type"] == "notify" and int(service["WatchdogSec"]) > 0 and service["KillMode"] == "mixed"
    assert service["ExecStart"] == "@BINDIR@/inferd serve --config @CONF@" and service["ExecReload"].endswith("-HUP $MAINPID")
    address = dict(unit("inferd.socket"))["ListenStream"]
    assert address == f"{defaults['host']}:{defaults['port']}"
    newer = dict(unit("systemd-254.conf"))
    assert newer["Type"] == "notify-reload" and set(newer) == {"Type", "ExecReload", "RestartSteps", "RestartMaxDelaySec"}
