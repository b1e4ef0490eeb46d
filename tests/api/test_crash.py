"""What a process says when a fault ends it: the report of server/crash.c, and the signal's own exit status."""

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import threading

import pytest
from conftest import INFERD, SANITIZED, Daemon, wait_for
from faults import BUILD, MAGIC, Faults, has_hooks, write_tiny_model

FAULTY = INFERD if has_hooks() else os.path.join(BUILD, "tests", "faulty_inferd")
WRITE, STACK, ABORT, DIVIDE, JUMP = range(1, 6)

pytestmark = [
    pytest.mark.skipif(SANITIZED, reason="sanitizers report faults themselves"),
    pytest.mark.skipif(not os.path.isfile(FAULTY), reason="the daemon with hooks is not built"),
]


@pytest.fixture
def faulty(tmp_path):
    daemons = []

    def start(**settings):
        faults = Faults(tmp_path / f"faults{len(daemons)}")
        model = write_tiny_model(tmp_path / "tiny.gguf")
        d = Daemon(tmp_path / f"log{len(daemons)}", environment=faults.environment, program=FAULTY, model=model, kv_tokens=16384, **settings)
        daemons.append(d)
        resource.prlimit(d.pid, resource.RLIMIT_CORE, (0, 0))
        d.wait_ready()
        assert faults.magic == MAGIC
        return d, faults

    yield start
    for d in daemons:
        if d.running():
            d.process.kill()
            d.process.wait()


def crash(d, faults, kind):
    """Two requests live, the next step crashes. The lines of the report and the ids of the requests."""
    stream = d.open_stream("a secret of the client", max_tokens=400, ignore_eos=True)
    events = stream.events()
    ids = [next(events)["id"]]
    faults.stall = 1
    wait_for(lambda: faults.stalled, 10, "the step is held")
    thread = threading.Thread(target=lambda: ask(d), daemon=True)
    thread.start()
    wait_for(lambda: d.gauge("requests_received_total") == 2, 10, "the second one is there")
    faults.crash, faults.stall = kind, 0
    d.wait_exit(20)
    thread.join()
    return ids, [line for line in d.log_text().splitlines() if "crash: " in line]


def ask(d):
    try:
        d.complete("another secret", max_tokens=5)
    except OSError:
        pass


def build_id():
    text = subprocess.run(["readelf", "-n", FAULTY], capture_output=True, text=True, check=True).stdout
    return re.search(r"Build ID: ([0-9a-f]+)", text)[1]


def functions(frames):
    """The names of those frames that lie in inferd."""
    offsets = [m[1] for f in frames if (m := re.search(r" inferd\+(0x[0-9a-f]+)", f))]
    if not shutil.which("addr2line"):
        pytest.skip("there is no addr2line")
    text = subprocess.run(["addr2line", "-f", "-e", FAULTY, *offsets], capture_output=True, text=True, check=True).stdout
    return text.splitlines()[::2]


@pytest.mark.parametrize("kind,number,named", [
    (WRITE, signal.SIGSEGV, "at address 0x10"),
    (STACK, signal.SIGSEGV, "at address 0x"),
    (ABORT, signal.SIGABRT, "sent by process"),
    (DIVIDE, signal.SIGFPE, "at address 0x"),
    (JUMP, signal.SIGSEGV, "at address 0x10"),
])
def test_a_fault_on_the_engine_thread_is_reported(faulty, kind, number, named):
    d, faults = faulty()
    ids, report = crash(d, faults, kind)
    assert d.process.returncode == -number
    assert f"signal {int(number)} ({number.name}) {named}" in report[0] and report[0].endswith("thread engine"), report
    assert "build id " + build_id() in report[0]
    frames = [line for line in report if re.search(r"crash: #\d+ ", line)]
    assert [int(re.search(r"#(\d+)", f)[1]) for f in frames] == list(range(len(frames))) and frames
    names = functions(frames)
    if kind == STACK:
        assert names.count("use_up_the_stack") > 30
    else:
        assert "__wrap_runner_run" in names or "fault_crash_now" in names, names
        assert "engine_thread" in names, names
    assert any("request " + ids[0] in line for line in report)
    assert any(line.endswith("requests: 2") for line in report)
    assert "secret" not in d.log_text()


def test_a_report_is_json_where_the_log_is(faulty):
    d, faults = faulty(log_format="json")
    _, report = crash(d, faults, WRITE)
    assert d.process.returncode == -signal.SIGSEGV
    lines = [line for line in d.log_text().splitlines() if line.startswith('{"level":"crash"')]
    assert len(lines) > 5
    messages = [json.loads(line)["message"] for line in lines]
    assert "signal 11 (SIGSEGV)" in messages[0] and "requests: 2" in messages and "#0 inferd+0x" in messages[messages.index("requests: 2") + 1]


def test_a_signal_that_was_sent_is_reported_too(faulty):
    d, _ = faulty()
    d.signal(signal.SIGBUS)
    assert d.wait_exit() == -signal.SIGBUS
    log = d.log_text()
    assert f"(SIGBUS) sent by process {os.getpid()}, thread " in log and "requests: 0" in log


def test_a_report_that_nobody_reads_does_not_keep_the_process(faulty, tmp_path):
    """Standard error is a pipe that is full."""
    faults = Faults(tmp_path / "pipe-faults")
    read, write = os.pipe()
    os.set_blocking(write, False)
    try:
        while True:
            os.write(write, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(write, True)
    model = write_tiny_model(tmp_path / "tiny.gguf")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("INFERD")} | {"INFERD_LOG_LEVEL": "info"}
    p = subprocess.Popen([FAULTY, "serve", model, "--port", "0"], stderr=write, stdout=write, env=environment)
    try:
        resource.prlimit(p.pid, resource.RLIMIT_CORE, (0, 0))
        wait_for(lambda: len(os.listdir(f"/proc/{p.pid}/task")) > 2, 20, "it serves")
        p.send_signal(signal.SIGSEGV)
        assert p.wait(60) == -signal.SIGSEGV
    finally:
        p.kill()
        p.wait()
        os.close(read)
        os.close(write)
