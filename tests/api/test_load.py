"""The load generator against the null device: a soak of some seconds, after which nothing may be left."""

import json
import os
import subprocess

import pytest
from conftest import INFERD, SLOW, wait_for

LOAD = os.path.join(os.path.dirname(INFERD), "tests", "bench", "load")


def run_load(d, *options):
    ran = subprocess.run([LOAD, "--port", str(d.port), *options], stdout=subprocess.PIPE, timeout=60 + 10 * SLOW, check=False)
    report = json.loads(ran.stdout)
    assert ran.returncode == 0, report
    return report


def total(metrics, name):
    return sum(v for (n, _), v in metrics.items() if n == name)


@pytest.mark.skipif(not os.path.isfile(LOAD), reason="the load generator is not built")
@pytest.mark.parametrize("more", [[], ["--completions", "--reconnect"]])
def test_mixed_load_leaves_nothing(start, more):
    """Streams, plain answers, a fifth of them left by the client, some wrong; KV memory for a part of them only."""
    d = start(device="null", max_sequences=64, kv_tokens=2048, max_waiting=200, null_step_time="1ms")
    report = run_load(d, "--connections=100", "--max-tokens=40", "--warmup=0.2", "--duration=3", "--exact", "--aborts=0.2",
                      "--malformed=0.05", "--plain=0.1", *more)
    assert report["finished"] > 50 and report["aborted"] > 10 and report["malformed_refused"] > 3, report
    assert report["rejected"] == 0, report
    wait_for(lambda: total(d.metrics(), "inferd_requests_running") + total(d.metrics(), "inferd_requests_waiting") == 0, 20,
             "all requests end")
    m = d.metrics()
    assert total(m, "inferd_kv_blocks_used") == 0
    assert total(m, "inferd_requests_received_total") == total(m, "inferd_requests_finished_total") + total(
        m, "inferd_requests_rejected_total")
    assert total(m, "inferd_requests_cancelled_total") > 0


@pytest.mark.skipif(not os.path.isfile(LOAD), reason="the load generator is not built")
def test_many_streams_at_once(start):
    d = start(device="null", max_sequences=1000, max_batched_tokens=4096, kv_tokens=200000, max_waiting=1000,
              null_step_time="100ms")
    report = run_load(d, "--connections=1000", "--max-tokens=100", "--warmup=4", "--duration=2")
    assert report["streams_least"] == report["streams_most"] == 1000, report
    assert report["tokens"] > 1000, report
