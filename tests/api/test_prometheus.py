"""The metrics page before Prometheus's own programs: promtool's rules, a server that scrapes it, the alerts and the board."""

import os
import subprocess
import threading
import time

import exposition
import prometheus
import pytest
from conftest import SLOW, wait_for
from faults import write_tiny_model
from test_metrics import check_identity, family, total


@pytest.fixture
def tiny(start, tmp_path):
    """A daemon on a tiny model."""
    return lambda **settings: start(model=write_tiny_model(tmp_path / "tiny.gguf"), max_model_len=None, kv_tokens=4096, **settings)


def promtool(*arguments, text=None):
    return subprocess.run([prometheus.program("promtool"), *arguments], input=text, capture_output=True, text=True, timeout=60 * SLOW)


def complaints(page):
    done = promtool("check", "metrics", text=page)
    assert done.returncode in (0, 3), done.stderr  # 3: names against its rules; 1: it cannot read the page
    return set(done.stderr.strip().splitlines())


def expected_complaints(page):
    """The colons of the names that another server chose, and its one misnamed histogram."""
    families = exposition.check(page)
    colons = {f"{f} metric names should not contain ':'" for f in families if f.startswith("vllm:")}
    assert colons
    return colons | {'vllm:iteration_tokens_total non-counter metrics should not have "_total" suffix'}


def test_promtool_check_metrics(tiny):
    d = tiny(max_sequences=2, max_waiting=8)
    first = d.get("/metrics").body.decode()
    assert complaints(first) == expected_complaints(first)
    streams = [d.open_stream("hi", max_tokens=60, ignore_eos=True) for _ in range(6)]
    next(streams[0].events())
    d.complete("hi", max_tokens=-1)
    busy = d.get("/metrics").body.decode()
    assert complaints(busy) == expected_complaints(busy)
    assert set(exposition.check(busy)) == set(exposition.check(first))


def test_promtool_finds_what_is_wrong(tiny):
    """The check above can fail."""
    page = tiny().get("/metrics").body.decode()
    assert complaints(page.replace("inferd_preemptions_total", "inferd_preemptions")) - complaints(page)


def test_what_runs_and_how_it_started(tiny):
    before = time.time()
    d = tiny()
    version = d.get("/version").json()
    m = d.metrics()
    (info,) = family(m, "inferd_build_info")
    assert dict(info) == {"version": version["version"], "build_id": version["build_id"], "compiler": version["compiler"],
                          "libmicrohttpd": version["libraries"]["libmicrohttpd"]}
    assert len(version["build_id"]) == 40
    phases = {dict(labels)["phase"]: v for labels, v in family(m, "inferd_model_load_seconds").items()}
    assert set(phases) == {"text", "device", "weights", "memory", "warm_up", "self_test"}
    assert all(v >= 0 for v in phases.values()) and phases["weights"] > 0 and phases["self_test"] > 0
    assert 0 < sum(phases.values()) < time.time() - before

    # the process as the system sees it
    started = total(m, "process_start_time_seconds")
    assert before - 1 < started < before + 5 * SLOW and started != int(started)
    with open(f"/proc/{d.pid}/limits", encoding="ascii") as f:
        (files,) = [line.split() for line in f if line.startswith("Max open files")]
    assert total(m, "process_max_fds") == int(files[3])
    assert total(m, "process_threads") == len(os.listdir(f"/proc/{d.pid}/task"))
    assert abs(total(m, "process_open_fds") - len(os.listdir(f"/proc/{d.pid}/fd"))) <= 2  # the connections that ask
    with open(f"/proc/{d.pid}/statm", encoding="ascii") as f:
        pages = [int(n) for n in f.read().split()[:2]]
    page_size = os.sysconf("SC_PAGE_SIZE")
    assert total(m, "process_virtual_memory_bytes") == pytest.approx(pages[0] * page_size, rel=0.1)
    assert total(m, "process_resident_memory_bytes") == pytest.approx(pages[1] * page_size, rel=0.1)
    assert d.metrics()[("process_start_time_seconds", ())] == started

    # a restart shows
    d.stop()
    assert total(tiny().metrics(), "process_start_time_seconds") > started


def test_the_age_of_the_last_step(start, tmp_path):
    d = start(model=write_tiny_model(tmp_path / "tiny.gguf"), device="null", max_model_len=None, null_step_time="900ms")
    time.sleep(0.3)
    assert total(d.metrics(), "inferd_engine_last_step_age_seconds") == 0  # nothing to do
    stream = d.open_stream("hi", max_tokens=3, ignore_eos=True)
    next(stream.events())
    ages = []
    for _ in range(5):
        ages.append(total(d.metrics(), "inferd_engine_last_step_age_seconds"))
        time.sleep(0.1)
    assert max(ages) > 0.2 and all(0 <= a < 2 * SLOW for a in ages)
    stream.close()
    wait_for(lambda: total(d.metrics(), "inferd_engine_last_step_age_seconds") == 0, 5, "an idle engine has no age")


def test_sequences_of_a_step(tiny):
    d = tiny(device="null", null_step_time="30ms", max_sequences=4)
    threads = [threading.Thread(target=d.complete, args=("hi",), kwargs={"max_tokens": 5, "ignore_eos": True, "n": 2}) for _ in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    d.wait_idle()
    m = d.metrics()
    check_identity(m)
    buckets = {dict(labels)["le"]: v for labels, v in family(m, "inferd_step_sequences_bucket").items()}
    assert buckets["4.0"] > buckets["2.0"] and buckets["4.0"] == buckets["+Inf"] == total(m, "inferd_step_tokens_count")
