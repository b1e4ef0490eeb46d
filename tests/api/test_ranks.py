"""Tensor parallelism on CPU ranks, seen from outside: the same answers, a report at the start, and an end when a rank is lost."""

import os
import re
import time

import pytest
from conftest import INFERD, SLOW, Daemon, wait_for
from faults import BUILD, MAGIC, Faults, has_hooks, write_tiny_model

FAULTY = INFERD if has_hooks() else os.path.join(BUILD, "tests", "faulty_inferd")


@pytest.fixture
def tiny(tmp_path):
    return write_tiny_model(tmp_path / "tiny.gguf")


def answer(d, **fields):
    r = d.post("/v1/completions", {"model": d.model, "prompt": "The sea is", "max_tokens": 24, **fields})
    assert r.status == 200, r.body
    return [c["text"] for c in r.json()["choices"]]


def test_the_same_answers(start, tiny):
    one = answer(start(model=tiny, kv_tokens=4096), temperature=0)
    for n in (2, 4):
        d = start(model=tiny, kv_tokens=4096, tensor_parallel=n, threads=n)
        assert answer(d, temperature=0) == one
        seeded = answer(d, temperature=0.9, seed=7, n=3)
        assert len(set(seeded)) == 3 and answer(d, temperature=0.9, seed=7, n=3) == seeded
        lines = re.findall(r"rank (\d) of (\d): .*, 1 threads; to its peers by shared memory; [\d.]+ MiB of weights; memory for (\d+) KV blocks, "
                           r"of which (\d+) are used", d.log_text())
        assert [(int(a), int(b)) for a, b, _, _ in lines] == [(i, n) for i in range(n)]
        assert all(a == b == "256" for _, _, a, b in lines)


def test_other_numbers_are_refused(tmp_path, tiny):
    d = Daemon(tmp_path / "log", model=tiny, tensor_parallel=3)
    assert d.wait_exit(10) == 78
    assert "tensor_parallel cannot be 3" in d.log_text() and "1, 2, 4 ranks" in d.log_text()


@pytest.mark.skipif(not os.path.isfile(FAULTY), reason="the daemon with hooks is not built")
@pytest.mark.parametrize("fault, reason", [("rank_stall", "rank 1 of 2 did not come within 1"), ("rank_fail", "rank 1: the device is gone")])
def test_a_rank_is_lost(tmp_path, tiny, fault, reason):
    """Whoever streams hears of it, /readyz says which rank and step, and the process ends with code 4, nothing left behind."""
    faults = Faults(tmp_path / "faults")
    d = Daemon(tmp_path / "log", environment=faults.environment, program=FAULTY, model=tiny, kv_tokens=16384, tensor_parallel=2,
               rank_timeout=1)
    try:
        d.wait_ready()
        assert faults.magic == MAGIC
        stream = d.open_stream("The sea", max_tokens=400, n=8, ignore_eos=True)  # long enough to be caught
        events = stream.events()
        next(events)
        faults.stall = 1
        wait_for(lambda: faults.stalled, 10, "a step is held")
        setattr(faults, fault, 2)
        began = time.monotonic()
        faults.stall = 0
        rest = list(events)
        probe = d.get("/readyz")
        assert rest[-1]["error"]["type"] == "unavailable_error" and not stream.done
        assert probe.status == 503 and re.search(rf"the device is lost: step \d+: .*{reason}", probe.json()["reason"])
        assert d.wait_exit(10) == 4 and time.monotonic() - began < 8 * SLOW
        wait_for(lambda: not os.path.exists(f"/proc/{d.pid}"), 2, "nothing is left")
    finally:
        if d.running():
            d.process.kill()
            d.process.wait()
