"""As process 1 of a container: signals without a handler do not reach it, and it inherits the processes of others."""

import os
import signal
import subprocess
import time

import pytest
from conftest import FAKE, INFERD, wait_for


def can_unshare():
    return subprocess.run(["unshare", "--pid", "--fork", "true"], stderr=subprocess.DEVNULL).returncode == 0


pytestmark = pytest.mark.skipif(not can_unshare(), reason="process namespaces need root")


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as f:
        return [int(p) for p in f.read().split()]


def in_namespace(tmp_path, program):
    """A program that runs `program` as process 1."""
    path = tmp_path / "as-process-1"
    path.write_text(f'#!/bin/sh\nexec unshare --pid --fork --kill-child "{program}" "$@"\n')
    path.chmod(0o755)
    return str(path)


def process_one(d):
    (pid,) = children(d.pid)
    with open(f"/proc/{pid}/status") as f:
        assert any(line.split() == ["NSpid:", str(pid), "1"] for line in f)
    return pid


def test_orphans_are_no_zombies(fake, tmp_path):
    d = fake(ready=False, program=in_namespace(tmp_path, FAKE))
    d.wait_ready()
    pid = process_one(d)
    subprocess.run(["nsenter", "--target", str(pid), "--pid", "sh", "-c", "sleep 0.3 & exit 0"], check=True)
    assert len(children(pid)) == 1
    wait_for(lambda: not children(pid), 5, "the orphan is gone")
    os.kill(pid, signal.SIGTERM)
    assert d.wait_exit(10) == 0


def test_second_signal_ends_at_once(start, tmp_path):
    d = start(program=in_namespace(tmp_path, INFERD), device="null", null_step_time="200ms")
    stream = d.open_stream("Once upon a time", max_tokens=1000)
    next(stream.events())
    pid = process_one(d)
    began = time.monotonic()
    os.kill(pid, signal.SIGTERM)
    wait_for(lambda: d.get("/readyz").status == 503, 5, "it drains")
    os.kill(pid, signal.SIGTERM)
    assert d.wait_exit(10) == 0
    assert time.monotonic() - began < 10
