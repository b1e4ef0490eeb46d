"""The metrics page: whole from the first scrape, and its sums hold exactly."""

import json
import random
import threading
import time

import exposition
import pytest
from conftest import SLOW, wait_for

HISTOGRAMS = ["time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds"]


def family(metrics, name):
    return {labels: v for (n, labels), v in metrics.items() if n == name}


def total(metrics, name):
    return sum(family(metrics, name).values())


def check_identity(m):
    """received = finished by reason + rejected + running + waiting"""
    received = total(m, "inferd_requests_received_total")
    parts = [total(m, "inferd_requests_" + p) for p in ("finished_total", "rejected_total", "running", "waiting")]
    assert received == sum(parts), (received, parts)


def test_the_page(daemon):
    answer = daemon.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    families = exposition.check(answer.body.decode())
    daemon.complete("hi", max_tokens=3, n=2)
    assert set(exposition.check(daemon.get("/metrics").body.decode())) == set(families)


GOOD = "# HELP a_total x\n# TYPE a_total counter\na_total{b=\"c\\\\d\"} 1\n"


@pytest.mark.parametrize("page", [
    GOOD[:-1], GOOD + "\n", GOOD * 2, GOOD.replace("a_total", "a"), GOOD.replace("} 1", "} 1 1700000000"), GOOD.replace("} 1", "} x"),
    GOOD.replace("} 1", "} -1"), GOOD.replace('"c', "c"), GOOD.replace("\\\\", "\\x"), GOOD.replace("{b", "{b=\"1\",b"), GOOD + "b_total 1\n",
    GOOD.replace("# TYPE a_total counter\n", ""), GOOD.replace("# HELP a_total x\n", ""), GOOD + 'a_total{b="c\\\\d"} 1\n',
    "# HELP h x\n# TYPE h histogram\nh_bucket{le=\"1\"} 2\nh_bucket{le=\"+Inf\"} 1\nh_sum 1\nh_count 1\n",
    "# HELP h x\n# TYPE h histogram\nh_bucket{le=\"1\"} 1\nh_sum 1\nh_count 1\n",
    "# HELP h x\n# TYPE h histogram\nh_bucket{le=\"+Inf\"} 1\nh_sum 1\nh_count 2\n",
    "# HELP h_ms x\n# TYPE h_ms gauge\nh_ms 1\n", "# HELP h x\n# TYPE h gauge\n",
])
def test_the_check_itself(page):
    exposition.check(GOOD)
    with pytest.raises(AssertionError):
        exposition.check(page)


# What gateways and boards know of that server, and what this one has to tell.
VLLM = """num_requests_running num_requests_waiting num_requests_waiting_by_reason kv_cache_usage_perc cache_config_info
engine_sleep_state prompt_tokens_total generation_tokens_total prompt_tokens_cached_total prompt_tokens_by_source_total
prefix_cache_queries_total prefix_cache_hits_total num_preemptions_total request_success_total corrupted_requests_total
spec_decode_num_drafts_total spec_decode_num_draft_tokens_total spec_decode_num_accepted_tokens_total
spec_decode_num_accepted_tokens_per_pos_total request_prompt_tokens request_generation_tokens request_max_num_generation_tokens
request_params_max_tokens request_prefill_kv_computed_tokens request_params_n iteration_tokens_total time_to_first_token_seconds
inter_token_latency_seconds request_time_per_output_token_seconds e2e_request_latency_seconds request_queue_time_seconds
request_inference_time_seconds request_prefill_time_seconds request_decode_time_seconds""".split()
HTTP = """http_requests_total http_request_size_bytes http_response_size_bytes http_request_duration_seconds
http_request_duration_highr_seconds""".split()


def test_all_families(daemon):
    families = exposition.check(daemon.get("/metrics").body.decode())
    assert {f"vllm:{n}" for n in VLLM} | set(HTTP) <= set(families)
    labels = {f: {n for n, _ in samples[0][1]} for f, (_, samples) in families.items()}
    assert labels["vllm:cache_config_info"] == {"block_size", "num_gpu_blocks", "kv_cache_size_tokens", "kv_cache_max_concurrency", "engine"}
    for f in families:
        if f.startswith("vllm:") and f != "vllm:cache_config_info":
            assert {"model_name", "engine"} <= labels[f], f
    values = {f: {dict(ls).get(key) for _, ls, _ in families[f][1]} for f, key in (
        ("vllm:num_requests_waiting_by_reason", "reason"), ("vllm:request_success_total", "finished_reason"),
        ("vllm:prompt_tokens_by_source_total", "source"), ("vllm:engine_sleep_state", "sleep_state"),
        ("inferd_requests_rejected_total", "reason"))}
    assert values["vllm:num_requests_waiting_by_reason"] == {"capacity", "deferred"}
    assert values["vllm:request_success_total"] == {"stop", "length", "abort", "error", "repetition"}
    assert values["vllm:prompt_tokens_by_source_total"] == {"local_compute", "local_cache_hit", "external_kv_transfer"}
    assert values["vllm:engine_sleep_state"] == {"awake", "weights_offloaded", "discard_all"}
    assert {"queue_full", "deadline", "invalid", "unavailable", "unauthorized", "too_large"} <= values["inferd_requests_rejected_total"]


def test_http_counts_what_clients_ask_and_no_probes(start):
    d = start(device="null")
    body = json.dumps({"model": d.model, "prompt": "hi", "max_tokens": 1}).encode()
    answers = [d.post("/v1/completions", body), d.post("/v1/completions", body + b"x"), d.post("/nowhere", body)]
    for path in ("/livez", "/readyz", "/health", "/version", "/metrics"):
        assert d.get(path).status == 200
    m = d.metrics()
    handlers = {dict(labels)["handler"] for labels in family(m, "http_requests_total")}
    assert "/v1/completions" in handlers and "other" in handlers
    assert not handlers & {"/livez", "/readyz", "/health", "/version", "/metrics"}

    def of(name, handler, **more):
        return sum(v for labels, v in family(m, name).items() if dict(labels)["handler"] == handler and more.items() <= dict(labels).items())

    assert of("http_requests_total", "/v1/completions", status="2xx") == 1 and of("http_requests_total", "/v1/completions", status="4xx") == 1
    assert of("http_request_size_bytes_sum", "/v1/completions") == 2 * len(body) + 1
    assert of("http_response_size_bytes_sum", "/v1/completions") == sum(len(a.body) for a in answers[:2])
    assert of("http_request_duration_seconds_count", "/v1/completions") == 2
    assert total(m, "http_request_duration_highr_seconds_count") == sum(family(m, "http_requests_total").values())


def test_steps(start):
    d = start(device="null", max_batched_tokens=64, null_step_time="20ms")
    prompt = [300] * 200  # 64 + 64 + 64 + 8 tokens, then one at a time
    d.complete(prompt, max_tokens=5, ignore_eos=True)
    wait_for(lambda: total(d.metrics(), "inferd_step_seconds_count") == 8, 2, "the last step is counted")  # after its token is told
    m = d.metrics()
    buckets = {dict(labels)["le"]: v for labels, v in family(m, "vllm:iteration_tokens_total_bucket").items()}
    assert (buckets["1.0"], buckets["8.0"], buckets["32.0"], buckets["64.0"], buckets["+Inf"]) == (4, 5, 5, 8, 8)
    assert total(m, "vllm:iteration_tokens_total_sum") == 204
    assert total(m, "inferd_step_sampling_seconds_count") == 8
    # steps end at multiples of 20 ms, so that the first may be shorter
    assert 0.13 < total(m, "inferd_step_seconds_sum") < 1 * SLOW
    assert total(m, "inferd_step_sampling_seconds_sum") < total(m, "inferd_step_seconds_sum") / 2


def test_every_series_is_there_from_the_first_scrape(start):
    d = start()
    first = d.metrics()
    for name in ("inferd_requests_received_total", "inferd_requests_finished_total", "inferd_requests_rejected_total",
                 "inferd_requests_running", "inferd_requests_waiting", "vllm:num_requests_running", "vllm:num_requests_waiting",
                 "vllm:kv_cache_usage_perc", "vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:request_success_total",
                 *[f"vllm:{h}_count" for h in HISTOGRAMS]):
        assert family(first, name), f"{name} is missing"
        assert total(first, name) == 0, f"{name} is not 0"
    # one of everything that can happen
    d.complete("hi", max_tokens=3)
    d.chat("hi", max_tokens=200)
    d.complete("hi", max_tokens=-1)
    d.post("/v1/completions", b"{")
    d.complete("hi", max_tokens=3, n=2)
    stream = d.open_stream("hi", max_tokens=400, ignore_eos=True)
    next(stream.events())
    stream.close()
    d.wait_idle()
    later = d.metrics()
    http = {k for k in later if k[0].startswith("http_")}
    assert set(later) - http == set(first) - {k for k in first if k[0].startswith("http_")}, "series came or went"
    check_identity(later)


def test_sums(start):
    d = start(max_waiting=2, max_sequences=1)
    check_identity(d.metrics())
    prompt_tokens = completion_tokens = 0
    for n in (1, 5, 9):
        usage = d.complete("The capital of France is", max_tokens=n, ignore_eos=True).json()["usage"]
        prompt_tokens += usage["prompt_tokens"]
        completion_tokens += usage["completion_tokens"]
    m = d.metrics()
    assert total(m, "vllm:prompt_tokens_total") == prompt_tokens
    assert total(m, "vllm:generation_tokens_total") == completion_tokens == 15
    assert total(m, "vllm:request_success_total") == 3
    assert total(m, "vllm:time_to_first_token_seconds_count") == 3
    assert total(m, "vllm:e2e_request_latency_seconds_count") == 3
    assert total(m, "vllm:inter_token_latency_seconds_count") == 15 - 3
    check_identity(m)

    busy = [d.open_stream("Once upon a time", max_tokens=300, ignore_eos=True)]
    next(busy[0].events())
    busy += [d.open_stream("Once upon a time", max_tokens=300, ignore_eos=True) for _ in range(5)]
    m = d.metrics()
    check_identity(m)
    assert total(m, "inferd_requests_running") == 1 and total(m, "vllm:num_requests_running") == 1
    for s in busy:
        s.close()
    d.wait_idle()
    m = d.metrics()
    check_identity(m)
    assert total(m, "vllm:kv_cache_usage_perc") == 0


def test_histograms_are_cumulative(daemon):
    daemon.complete("hi", max_tokens=3)
    m = daemon.metrics()
    for name in HISTOGRAMS:
        series = {}
        for labels, value in family(m, f"vllm:{name}_bucket").items():
            le = dict(labels)["le"]
            rest = tuple(x for x in labels if x[0] != "le")
            series.setdefault(rest, []).append((float(le.replace("+Inf", "inf")), value))
        assert series
        for rest, buckets in series.items():
            values = [v for _, v in sorted(buckets)]
            assert values == sorted(values) and values[-1] == family(m, f"vllm:{name}_count")[rest]


def test_labels(daemon):
    m = daemon.metrics()
    for name in ("vllm:num_requests_running", "vllm:kv_cache_usage_perc", "vllm:prompt_tokens_total"):
        (labels,) = family(m, name)
        assert dict(labels) == {"model_name": daemon.model, "engine": "0"}
    reasons = {dict(labels)["finished_reason"] for labels in family(m, "vllm:request_success_total")}
    assert {"stop", "length", "abort", "error"} <= reasons


def test_the_identity_holds_at_any_moment(start):
    """Every kind of request and of end, several clients at once, and a scrape whenever one can be had."""
    d = start(device="null", null_step_time="2ms", max_sequences=6, max_waiting=6, max_waiting_tokens=3000, max_batched_tokens=64)
    over = threading.Event()

    def client(seed):
        rng = random.Random(seed)
        while not over.is_set():
            body = {"model": d.model, "prompt": [300] * rng.choice([3, 200, 900]), "max_tokens": rng.choice([1, 20, 200]),
                    "n": rng.choice([1, 1, 2]), "stream": rng.random() < 0.5}
            kind = rng.randrange(6)
            headers = ""
            if kind == 0:
                body["temperature"] = 7
            elif kind == 1:
                body["timeout"] = rng.choice([0.005, 0.05, 0.2])
            elif kind == 2:
                headers = "X-Request-Timeout: 0.03\r\n"
            data = json.dumps(body).encode()
            with d.connect() as s:
                s.sendall((f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
                           f"{headers}Content-Length: {len(data)}\r\n\r\n").encode())
                s.sendall(data[: len(data) // 2] if kind == 3 else data)
                if kind in (3, 4):  # leave: in the middle of the body, or of the answer
                    time.sleep(rng.random() * 0.1)
                    continue
                while s.recv(65536):
                    pass

    threads = [threading.Thread(target=client, args=(i,)) for i in range(12)]
    for t in threads:
        t.start()
    try:
        end, scrapes = time.monotonic() + 4, 0
        while time.monotonic() < end:
            m = d.metrics()
            check_identity(m)
            waiting = total(m, "vllm:num_requests_waiting")
            assert waiting == total(m, "vllm:num_requests_waiting_by_reason") and waiting >= 0
            assert total(m, "vllm:prompt_tokens_total") == total(m, "vllm:prompt_tokens_by_source_total")
            assert total(m, "inferd_waiting_prompt_tokens") <= 3000
            scrapes += 1
    finally:
        over.set()
        for t in threads:
            t.join()
    d.wait_idle()
    m = d.metrics()
    check_identity(m)
    assert scrapes > 50
    # everything that was meant to happen did
    reasons = {dict(labels)["reason"] for labels, v in family(m, "inferd_requests_rejected_total").items() if v > 0}
    assert {"invalid", "queue_full", "deadline"} <= reasons
    reasons = {dict(labels)["reason"] for labels, v in family(m, "inferd_requests_finished_total").items() if v > 0}
    assert {"length", "cancelled", "deadline"} <= reasons
    # and nothing is left of it
    for name in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc", "inferd_waiting_prompt_tokens",
                 "inferd_kv_blocks_used"):
        assert total(m, name) == 0, name
