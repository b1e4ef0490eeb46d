"""Faults made on purpose, in builds with -Dfault_hooks=true: a NaN, a step that stalls, clocks that jump, no descriptors."""

import json
import os
import resource
import socket
import threading
import time

import pytest
from conftest import INFERD, SLOW, Daemon, wait_for
from faults import BUILD, MAGIC, Faults, check_nothing_is_held, has_hooks, write_tiny_model

hooks = pytest.mark.skipif(not has_hooks(), reason="built without -Dfault_hooks=true")


def test_hooks_are_where_they_were_asked_for_alone():
    options = os.path.join(BUILD, "meson-info", "intro-buildoptions.json")
    if not os.path.exists(options):
        pytest.skip("the build folder is not there")
    with open(options, encoding="utf-8") as f:
        asked = {o["name"]: o["value"] for o in json.load(f)}["fault_hooks"]
    assert has_hooks() == asked
    with open(INFERD, "rb") as f:  # -Wl,--wrap leaves these names in the symbol table
        assert (b"__wrap_malloc" in f.read()) == asked


@pytest.fixture
def faulty(tmp_path):
    """A function that starts a daemon with switches, on a tiny model; each must end well after the test."""
    daemons = []

    def start(**settings):
        faults = Faults(tmp_path / f"faults{len(daemons)}")
        settings = {"model": write_tiny_model(tmp_path / "tiny.gguf"), "kv_tokens": 16384, **settings}
        d = Daemon(tmp_path / f"log{len(daemons)}", environment=faults.environment, **settings)
        daemons.append(d)
        d.wait_ready()
        assert faults.magic == MAGIC
        return d, faults

    yield start
    for d in daemons:
        d.stop()


# --- a NaN


def answers(d, seeds, **fields):
    """What requests that differ in their seeds get, all at once."""
    got = {}

    def ask(seed):
        got[seed] = d.complete(f"number {seed}", temperature=1, seed=seed, max_tokens=40, ignore_eos=True, **fields)

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in seeds]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return got


def texts(got):
    return {seed: answer.json()["choices"][0]["text"] for seed, answer in got.items() if answer.status == 200}


@hooks
def test_a_nan_ends_its_request_alone(faulty):
    d, faults = faulty()
    seeds = range(1, 9)
    before = texts(answers(d, seeds))
    assert len(before) == 8 and len(set(before.values())) == 8
    for row in (1, 2, 17):
        faults.nan_seed, faults.nan_row = 5, row
        got = answers(d, seeds)
        assert got[5].status == 500 and got[5].error()["type"] == "server_error"
        assert "finite" in got[5].error()["message"]
        del got[5]
        assert texts(got) == {seed: text for seed, text in before.items() if seed != 5}
    assert d.gauge("nonfinite_logits_total") == faults.nan_struck == 3
    assert d.metrics()[("inferd_requests_finished_total", (("reason", "error"),))] == 3
    check_nothing_is_held(d)


@hooks
def test_a_nan_in_a_stream_is_an_error_event(faulty):
    d, faults = faulty()
    faults.nan_seed, faults.nan_row = 7, 10
    stream = d.open_stream("hi", temperature=1, seed=7, max_tokens=40, ignore_eos=True)
    events = list(stream.events())
    assert "finite" in events[-1]["error"]["message"] and events[-1]["error"]["type"] == "server_error"
    assert not stream.done and all("choices" in e for e in events[:-1])
    assert faults.nan_row == 0
    # one of two choices: the answer cannot be whole
    faults.nan_row = 30
    answer = d.complete("hi", temperature=1, seed=7, n=2, max_tokens=40, ignore_eos=True)
    assert answer.status == 500
    assert d.complete("hi", temperature=1, seed=7, max_tokens=40).status == 200
    check_nothing_is_held(d)


# --- a step that does not end


@hooks
def test_a_stalled_step(faulty):
    d, faults = faulty(stall_timeout=1)
    expected = d.complete("hi", max_tokens=30, ignore_eos=True).json()["choices"][0]["text"]
    faults.stall = 1
    began = time.monotonic()
    stream = d.open_stream("hi", max_tokens=30, ignore_eos=True)
    other = d.open_stream("ho", max_tokens=30, ignore_eos=True)
    wait_for(lambda: d.get("/readyz").status == 503, 5, "readyz notices")
    assert time.monotonic() - began >= 0.9
    answer = d.get("/readyz")
    assert answer.status == 503 and answer.headers["retry-after"]
    assert answer.json()["reason"] == "the engine makes no progress"
    assert d.gauge("ready") == 0
    times = []
    for _ in range(100):
        began = time.monotonic()
        assert d.get("/livez").status == 200
        times.append(time.monotonic() - began)
        assert d.get("/readyz").status == 503
    assert sorted(times)[98] < 0.05 * SLOW
    other.close()  # leaves meanwhile
    # what the log says of it: once, with the requests that wait for the step
    wait_for(lambda: "no step" in d.log_text(), 5, "the stall is in the log")
    faults.stall = 0
    assert stream.text() == expected and stream.done
    wait_for(lambda: d.get("/readyz").status == 200, 5, "readyz is well again")
    wait_for(lambda: "goes on" in d.log_text(), 5, "so is its end")
    log = d.log_text()
    assert log.count("no step") == 1
    assert "cmpl-" in log  # the ids of the two
    check_nothing_is_held(d)


@hooks
def test_a_step_that_never_ends_ends_the_process(faulty):
    d, faults = faulty(stall_timeout=1, stall_exit=3)
    stream = d.open_stream("hi", max_tokens=200, ignore_eos=True)
    events = stream.events()
    next(events)
    faults.stall = 1
    plain = {}
    thread = threading.Thread(target=lambda: plain.update(answer=d.complete("hi", max_tokens=3)))
    thread.start()
    began = time.monotonic()
    assert d.wait_exit(20) == 4
    assert 1.5 < time.monotonic() - began
    thread.join()
    # everybody was told
    rest = list(events)
    assert rest[-1]["error"]["type"] == "unavailable_error" and not stream.done
    assert plain["answer"].status == 503
    assert "stall_exit" in d.log_text()
    d.process.returncode = 0  # as it should be, for the fixture


# --- clocks


@hooks
def test_a_wall_clock_that_jumps_does_no_harm(faulty):
    d, faults = faulty(header_timeout=2, idle_timeout=5, request_timeout=20, stall_timeout=5)
    expected = d.complete("hi", max_tokens=100, ignore_eos=True).json()["choices"][0]["text"]
    waiting = d.connect()  # a connection on which nothing was sent yet
    for years in (10, -10, 30, 0):
        stream = d.open_stream("hi", max_tokens=100, ignore_eos=True)
        events = stream.events()
        first = next(events)
        faults.clock_offset_s = years * 365 * 86400
        text = first["choices"][0]["text"] + "".join(e["choices"][0]["text"] for e in events if e["choices"])
        assert text == expected and stream.done
        assert d.get("/readyz").status == 200
        answer = d.complete("hi", max_tokens=100, ignore_eos=True)
        assert answer.json()["choices"][0]["text"] == expected
        assert abs(answer.json()["created"] - time.time() - faults.clock_offset_s) < 60
    waiting.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert b"200 OK" in waiting.recv(4096)
    waiting.close()
    m = d.metrics()
    assert m[("inferd_e2e_request_latency_seconds_sum", ())] < 60 * SLOW
    check_nothing_is_held(d)


# --- descriptors


def descriptors(d):
    return len(os.listdir(f"/proc/{d.pid}/fd"))


def cpu_share(d, seconds=2.0):
    before, began = d.cpu_seconds(), time.monotonic()
    time.sleep(seconds)
    return (d.cpu_seconds() - before) / (time.monotonic() - began)


@pytest.mark.parametrize("spare", [0, 1, 20])
def test_no_descriptor_left(start, spare):
    """accept() fails with EMFILE: nothing spins, those that are in are served, and the others are when there is room."""
    d = start()
    held = [d.connect() for _ in range(8 if spare else 0)]
    wait_for(lambda: descriptors(d) >= 8, 5, "they are accepted")
    time.sleep(0.2)
    soft, hard = resource.prlimit(d.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(d.pid, resource.RLIMIT_NOFILE, (descriptors(d) + spare, hard))
    outside = [d.connect() for _ in range(40)]
    time.sleep(0.3)
    assert cpu_share(d) < 0.1
    assert d.log_text().count("no descriptor is left") == 1
    body = json.dumps({"model": "x", "prompt": "hi"}).encode()
    for s in held:
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                  b"Content-Length: %d\r\n\r\n" % len(body) + body)
        assert b"404" in s.recv(4096)
    for s in held:
        s.close()
    resource.prlimit(d.pid, resource.RLIMIT_NOFILE, (soft, hard))
    for s in outside:
        s.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    for s in outside:
        assert b"200 OK" in s.recv(4096)
        s.close()
    assert d.complete("hi", max_tokens=1).status == 200
    d.check_identity()


def test_beyond_max_connections(start):
    """Those that do not fit are accepted as soon as others leave, with no need of another event."""
    d = start(max_connections=4)
    for _ in range(3):
        inside = [d.connect() for _ in range(4)]
        for s in inside:
            s.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        for s in inside:
            assert b"200 OK" in s.recv(4096)
        outside = d.connect(5)
        outside.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert cpu_share(d, 1) < 0.2
        for s in inside:
            s.close()
        assert b"200 OK" in outside.recv(4096)
        outside.close()
