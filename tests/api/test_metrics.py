"""The metrics page: whole from the first scrape, and its sums hold exactly."""

import re

from conftest import parse_metrics

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
    text = answer.body.decode()
    parse_metrics(text)
    # each family: HELP, TYPE, then its samples together
    families = re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE)
    assert len(families) == len({name for name, _ in families})
    seen = {name for name, _ in families}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name = re.match(r"[a-zA-Z_:][a-zA-Z0-9_:]*", line)[0]
            assert name in seen or re.sub(r"_(bucket|sum|count)$", "", name) in seen, line
    for name, kind in families:
        assert f"# HELP {name} " in text
        assert kind != "counter" or name.endswith("_total"), name


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
