"""The null device: it computes nothing, says so everywhere, and is never there unless named."""

import time


def backends(d):
    return {labels: v for (name, labels), v in d.metrics().items() if name == "inferd_backend_info"}


def backend(d):
    return [labels for labels, v in backends(d).items() if v == 1]


def test_null_says_what_it_is(start):
    d = start(device="null", max_sequences=64)
    assert 'the device is "null": nothing is computed' in d.log_text()
    version = d.get("/version").json()
    assert version["backend"] == "null" and version["computes"] is False
    assert len(backend(d)) == 1 and "null" in str(backend(d)[0])
    answer = d.complete("hi", max_tokens=50, temperature=0).json()
    assert answer["usage"]["completion_tokens"] == 50
    assert answer["choices"][0]["text"] == d.complete("hi", max_tokens=50, temperature=0).json()["choices"][0]["text"]
    assert answer["choices"][0]["text"].isprintable()
    # all but the arithmetic is as ever
    assert d.complete("hi", max_tokens=5, top_p=7).error()["param"] == "top_p"
    stop = answer["choices"][0]["text"][20:24]
    cut = d.complete("hi", max_tokens=50, temperature=0, stop=stop).json()["choices"][0]
    assert cut["finish_reason"] == "stop" and stop not in cut["text"]


def test_auto_is_not_null(start):
    d = start(device="auto", max_sequences=64)
    version = d.get("/version").json()
    assert version["backend"] != "null" and version["computes"] is True
    assert len(backends(d)) > 1 and len(backend(d)) == 1 and "null" not in str(backend(d)[0])
    assert "nothing is computed" not in d.log_text()


def test_step_time(start):
    d = start(device="null", null_step_time="50ms")
    begin = time.monotonic()
    d.complete("hi", max_tokens=20)
    taken = time.monotonic() - begin
    assert taken >= 0.9, taken
