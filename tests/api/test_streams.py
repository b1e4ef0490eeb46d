"""Many streams at once: each as if it were alone, and a client that leaves takes nothing from the others."""

import threading

import pytest
from conftest import SLOW, wait_for

TOPICS = [
    "The sea", "A list of fruit:", "Once upon a time", "def fibonacci(n):", "The capital of France is", "In 1969,",
    "Dear Sir or Madam,", "1, 2, 3, 4,", "The recipe for bread:", "Ein Haus ist", "Il était une fois", "天气",
    "El perro", "#include <stdio.h>", "SELECT name FROM", "Roses are red,", "A cat sat", "To be or not to be",
    "The moon landing", "Why is the sky blue?", "Water boils at", "Q: What is 2+2? A:", "My favourite colour",
    "😀 means", "import numpy as np", "The quick brown fox", "He said: \"", "Chapter 1", "<html>", "Winter in Rome",
    "Music is", "A long time ago",
]


def run_all(jobs):
    """Each job in a thread of its own; the first failure is raised here."""
    failures = []

    def guarded(job):
        try:
            job()
        except BaseException as e:  # noqa: BLE001 - handed to the test's thread
            failures.append(e)

    threads = [threading.Thread(target=guarded, args=(job,)) for job in jobs]
    for t in threads:
        t.start()
    for t in threads:
        t.join(180 * SLOW)
        assert not t.is_alive(), "a stream did not end"
    if failures:
        raise failures[0]


@pytest.fixture(scope="module")
def alone(shared_daemon):
    """The text of each topic when nothing else runs."""
    return [shared_daemon.complete(t, max_tokens=24).json()["choices"][0]["text"] for t in TOPICS]


def test_32_streams_say_what_each_says_alone(daemon, alone):
    texts = [None] * len(TOPICS)

    def read(i):
        stream = daemon.open_stream(TOPICS[i], max_tokens=24)
        texts[i] = stream.text()
        assert stream.done
        stream.close()

    run_all([lambda i=i: read(i) for i in range(len(TOPICS))])
    assert texts == alone


def test_sampled_streams_of_one_seed_are_equal_in_any_company(daemon):
    fields = {"temperature": 1.0, "top_p": 0.9, "seed": 11, "max_tokens": 24}
    expected = daemon.complete("Once upon a time", **fields).json()["choices"][0]["text"]
    texts = {}

    def read(i):
        # half of them the same request, half others
        prompt = "Once upon a time" if i % 2 == 0 else TOPICS[i]
        texts[i] = daemon.open_stream(prompt, **fields).text()

    run_all([lambda i=i: read(i) for i in range(16)])
    assert [texts[i] for i in range(0, 16, 2)] == [expected] * 8


def test_closing_half_midway_frees_them_and_leaves_the_rest_alone(daemon, alone):
    daemon.wait_idle()
    before = daemon.metrics()
    streams = [daemon.open_stream(t, max_tokens=24 if i % 2 else 400, ignore_eos=i % 2 == 0) for i, t in enumerate(TOPICS)]
    iterators = [s.events() for s in streams]
    texts = ["" for _ in TOPICS]

    def leave(i):
        for _ in range(3):
            next(iterators[i])
        streams[i].close()

    def finish(i):
        texts[i] = "".join(e["choices"][0]["text"] for e in iterators[i] if e["choices"])
        assert streams[i].done

    run_all([lambda i=i: (finish if i % 2 else leave)(i) for i in range(len(TOPICS))])
    assert [texts[i] for i in range(1, 32, 2)] == alone[1::2]
    daemon.wait_idle(5)
    after = daemon.metrics()
    assert daemon.gauge("requests_running") == 0 and kv_used(after) == 0
    cancelled = total(after, "inferd_requests_finished_total", "cancel") - total(before, "inferd_requests_finished_total", "cancel")
    assert cancelled == 16


def kv_used(metrics):
    return sum(v for (n, _), v in metrics.items() if n == "vllm:kv_cache_usage_perc")


def total(metrics, name, reason_prefix):
    return sum(v for (n, labels), v in metrics.items() if n == name and dict(labels).get("reason", "").startswith(reason_prefix))


def test_leaving_while_waiting_and_while_prefilling(start):
    d = start(max_sequences=1, max_model_len=2048)
    busy = d.open_stream("Once upon a time", max_tokens=1500, ignore_eos=True)
    next(busy.events())
    waiting = [d.open_stream("Once upon a time", max_tokens=5) for _ in range(3)]
    wait_for(lambda: d.gauge("requests_waiting") == 3, 5, "three requests wait")
    for stream in waiting:
        stream.close()
    wait_for(lambda: d.gauge("requests_waiting") == 0, 5, "the waiting ones are gone")
    assert d.gauge("requests_running") == 1
    busy.close()
    d.wait_idle()
    prefilling = d.open_stream("word " * 1500, max_tokens=5)
    wait_for(lambda: d.gauge("requests_running") == 1, 20, "the long prompt is taken", every=0.002)
    prefilling.close()
    d.wait_idle(20)


def test_characters_come_whole(daemon):
    """Every event is valid UTF-8 JSON without a replacement character, and the parts are the whole."""
    for prompt in ("Repeat: 😀 🎉 🚀 你好 世界 שלום 😀 🎉 🚀 你好", "日本語で", "Příliš žluťoučký kůň"):
        fields = {"max_tokens": 40, "logit_bias": {}}
        plain = daemon.complete(prompt, **fields).json()["choices"][0]["text"]
        stream = daemon.open_stream(prompt, **fields)
        parts = [e["choices"][0]["text"] for e in stream.events() if e["choices"]]
        assert "".join(parts) == plain
        # only a character that the length limit cut in two may be replaced, and only at the end
        assert "\ufffd" not in plain.rstrip("\ufffd")


def test_stream_headers(daemon):
    stream = daemon.open_stream("hi", max_tokens=2)
    head = stream.start()
    assert head.getheader("Content-Type") == "text/event-stream; charset=utf-8"
    assert head.getheader("Cache-Control") == "no-cache" and head.getheader("X-Accel-Buffering") == "no"
    list(stream.events())
    assert stream.done


def test_events_come_as_they_are_made(daemon):
    """The first event arrives long before the last one is computed."""
    import time

    stream = daemon.open_stream("Once upon a time", max_tokens=120, ignore_eos=True)
    began = time.monotonic()
    times = [time.monotonic() - began for _ in stream.events()]
    assert len(times) > 60
    assert times[len(times) // 2] < 0.8 * times[-1] and times[1] < 0.5 * times[-1]
