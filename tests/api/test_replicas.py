"""Several engines behind one front end (replicas): who takes a request, and that nobody can tell from the answer."""

import os
import re
import threading

import pytest
from conftest import Daemon, wait_for
from faults import MAGIC, Faults, write_tiny_model
from test_ranks import FAULTY

STEP = 0.03


@pytest.fixture
def tiny(tmp_path):
    return write_tiny_model(tmp_path / "tiny.gguf")


def engine(d, name, i):
    return sum(v for (n, labels), v in d.metrics().items() if n == "inferd_replica_" + name and dict(labels).get("engine") == str(i))


def ask(d, prompt, **fields):
    r = d.post("/v1/completions", {"model": d.model, "prompt": prompt, "max_tokens": 8, "temperature": 0, **fields})
    assert r.status == 200, r.body
    return r.json()


def text(answer):
    return [c["text"] for c in answer["choices"]]


def test_the_same_answers(start, tiny):
    prompts = ["The sea", "Once upon a time", "x", "Four words and more"]
    one = start(model=tiny, kv_tokens=4096)
    want = [text(ask(one, p, n=2)) for p in prompts]
    d = start(model=tiny, kv_tokens=4096, replicas=3, threads=2)
    assert [text(ask(d, p, n=2)) for p in prompts] == want
    assert sum(engine(d, "generation_tokens_total", i) > 0 for i in range(3)) == 3  # where all are idle, in turn
    assert sum(engine(d, "kv_blocks", i) for i in range(3)) == d.gauge("kv_blocks") == 3 * 256
    assert sum(engine(d, "generation_tokens_total", i) for i in range(3)) == d.gauge("generation_tokens_total") == 64
    log = d.log_text()
    assert all(f"replica {i}: " in log for i in range(3))


def test_known_prompts_go_where_they_are_known(start, tiny):
    d = start(model=tiny, kv_tokens=4096, replicas=2, threads=2)
    long = "A beginning that many requests share, long enough to fill some blocks of the cache. " * 3
    first = ask(d, long + "one")
    hits = [i for i in range(2) if engine(d, "prefix_cache_hits_total", i) > 0]
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0 and not hits
    for end in ("two", "three", "four", "five"):
        assert ask(d, long + end)["usage"]["prompt_tokens_details"]["cached_tokens"] >= 192
    assert sum(engine(d, "prefix_cache_hits_total", i) > 0 for i in range(2)) == 1


def test_work_is_spread(start):
    """On the null device, which keeps its pace: seats of both engines are taken before anybody waits."""
    d = start(device="null", null_step_time=STEP, max_sequences=2, kv_tokens=8192, replicas=2)
    streams = [d.open_stream("busy", max_tokens=600, ignore_eos=True) for _ in range(4)]
    for s in streams:
        next(s.events())
    assert [engine(d, "sequences_running", i) for i in range(2)] == [2, 2]
    waiting = [d.open_stream(f"later {i}", max_tokens=2, ignore_eos=True) for i in range(2)]
    wait_for(lambda: sum(engine(d, "sequences_waiting", i) for i in range(2)) == 2, 5, "two wait")
    assert [engine(d, "sequences_waiting", i) for i in range(2)] == [1, 1]
    d.check_identity()
    streams[0].close()  # its seat is free for who waits there
    wait_for(lambda: sum(engine(d, "sequences_waiting", i) for i in range(2)) == 1, 5, "one has it")
    for s in streams[1:] + waiting:
        s.close()
    d.wait_idle()
    assert [engine(d, "kv_blocks_used", i) for i in range(2)] == [0, 0]
    d.check_identity()


def test_a_seat_comes_before_what_waits(start):
    """In a burst: prompts that are about to begin do not send the next one to an engine that is full."""
    d = start(device="null", null_step_time=0.5, max_sequences=3, kv_tokens=8192, replicas=2)
    streams = [d.open_stream("busy", max_tokens=100, ignore_eos=True, n=3), d.open_stream("busy", max_tokens=100, ignore_eos=True)]
    wait_for(lambda: sorted(engine(d, "sequences_running", i) for i in range(2)) == [1, 3], 10, "one has no seat left, one has two")
    streams += [d.open_stream(f"more {i}", max_tokens=100, ignore_eos=True) for i in range(2)]
    wait_for(lambda: [engine(d, "sequences_running", i) for i in range(2)] == [3, 3], 10, "all run")
    for s in streams:
        s.close()
    d.wait_idle()


def test_a_full_engine_is_not_waited_for(start):
    """A prompt that one engine knows goes to the other when that one has no seat."""
    d = start(device="null", null_step_time=STEP, max_sequences=1, kv_tokens=8192, replicas=2)
    long = "A beginning that many requests share, long enough to fill some blocks of the cache. " * 8
    streams = [d.open_stream(long, max_tokens=600, ignore_eos=True) for _ in range(2)]
    for s in streams:
        next(s.events())
    assert [engine(d, "sequences_running", i) for i in range(2)] == [1, 1]
    for s in streams:
        s.close()
    d.wait_idle()


def test_seats_of_all_are_counted(start):
    """max_sequences is that of each engine, so as many more are let in before anybody has to wait, and no one else."""
    d = start(device="null", null_step_time=STEP, max_sequences=2, max_waiting=0, kv_tokens=8192, replicas=2)
    assert d.gauge("max_sequences") == 4
    assert "4 sequences at once" in d.log_text()
    streams = [d.open_stream(f"busy {i}", max_tokens=600, ignore_eos=True) for i in range(4)]
    for s in streams:
        next(s.events())
    assert [engine(d, "sequences_running", i) for i in range(2)] == [2, 2]
    fifth = d.post("/v1/completions", {"model": d.model, "prompt": "x", "max_tokens": 1})
    assert fifth.status == 429 and fifth.json()["error"]["code"] == "queue_full"
    for s in streams:
        s.close()
    d.wait_idle()
    many = d.post("/v1/completions", {"model": d.model, "prompt": "x", "max_tokens": 1, "n": 5})
    assert many.status == 400 and "this server holds 4" in many.json()["error"]["message"]
    assert d.post("/v1/completions", {"model": d.model, "prompt": list("abcd"), "max_tokens": 1}).status == 200
    d.check_identity()


def test_a_burst_goes_where_seats_are(start):
    """Who has just come and is about to start makes an engine no worse than one that has no seat."""
    d = start(device="null", null_step_time=0.2, max_sequences=6, kv_tokens=16384, replicas=2)
    long = "A beginning that many requests share, long enough to fill some blocks of the cache. " * 8
    streams = [d.open_stream(long, max_tokens=600, ignore_eos=True) for _ in range(6)]
    for s in streams:
        next(s.events())
    full = [i for i in range(2) if engine(d, "sequences_running", i) == 6]
    assert len(full) == 1
    streams.append(d.open_stream([f"{i} is new" for i in range(5)], max_tokens=600, ignore_eos=True))
    next(streams[-1].events())
    assert engine(d, "sequences_running", 1 - full[0]) == 5 and engine(d, "sequences_waiting", full[0]) == 0
    for s in streams:
        s.close()
    d.wait_idle()


@pytest.mark.parametrize("threads, of_each", [(2, [1, 1]), (3, [2, 1]), (1, [1, 1])])
def test_threads_are_shared_out(start, tiny, threads, of_each):
    d = start(model=tiny, kv_tokens=4096, replicas=2, threads=threads)
    assert [int(n) for n in re.findall(r"replica \d: .*, (\d+) threads", d.log_text())] == of_each


@pytest.mark.skipif(not os.path.isfile(FAULTY), reason="the daemon with hooks is not built")
def test_one_is_lost(tmp_path, tiny):
    """It is named, and ends all: whoever watches the process starts it again."""
    faults = Faults(tmp_path / "faults")
    d = Daemon(tmp_path / "log", environment=faults.environment, program=FAULTY, model=tiny, kv_tokens=16384, tensor_parallel=2, replicas=2)
    try:
        d.wait_ready()
        assert faults.magic == MAGIC
        stream = d.open_stream("The sea", max_tokens=900, ignore_eos=True)
        events = stream.events()
        next(events)
        busy = next(i for i in range(2) if engine(d, "sequences_running", i) == 1)
        faults.rank_fail = 2
        assert list(events)[-1]["error"]["type"] == "unavailable_error" and not stream.done
        probe = d.get("/readyz")
        assert probe.status == 503 and re.search(rf"the device is lost: replica {busy}: step \d+: rank 1: ", probe.json()["reason"])
        assert d.wait_exit(10) == 4
    finally:
        if d.running():
            d.process.kill()
            d.process.wait()


def test_many_at_once_and_the_end(start, tiny):
    d = start(model=tiny, kv_tokens=8192, replicas=2, threads=2, max_waiting=64)
    want = text(ask(d, "The sea", max_tokens=40))
    got, threads = [], []

    def one(i):
        got.append(text(ask(d, "The sea", max_tokens=40, user=str(i))))

    for i in range(24):
        threads.append(threading.Thread(target=one, args=(i,)))
        threads[-1].start()
    for t in threads:
        t.join()
    assert got == [want] * 24
    d.wait_idle()
    d.check_identity()
    stream = d.open_stream("The sea", max_tokens=200, ignore_eos=True)
    next(stream.events())
    d.signal()  # what runs may end
    assert d.wait_exit(20) == 0


@pytest.mark.parametrize("n", ["0", "65", "two"])
def test_other_numbers_are_refused(tmp_path, tiny, n):
    d = Daemon(tmp_path / "log", model=tiny, replicas=n)
    assert d.wait_exit(10) == 2 and "replicas" in d.log_text()
