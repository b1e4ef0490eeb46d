"""Who is let in, how long a request may take, and whose cached prompts it may meet."""

import http.client
import json
import select
import shutil
import signal
import subprocess
import time

import pytest
from conftest import SANITIZED, SLOW, wait_for, write_keys


def body(prompt="hi", **fields):
    return {"model": "fake", "prompt": prompt, **fields}


def head_and(data):
    data = json.dumps(data).encode()
    return (f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
            ).encode() + data


class Burst:
    """Requests that are all sent before any is answered; .answers: (status, seconds, headers, body), in order."""

    def __init__(self, d, bodies):
        self.sockets = [d.connect() for _ in bodies]
        began = {}
        for s, b in zip(self.sockets, bodies):
            began[s] = time.monotonic()
            s.sendall(head_and(b))
        self.first = {}  # seconds to the first byte
        self.began = began

    def collect(self, seconds):
        waiting = set(self.sockets) - set(self.first)
        end = time.monotonic() + seconds * SLOW
        while waiting and time.monotonic() < end:
            ready, _, _ = select.select(list(waiting), [], [], end - time.monotonic())
            now = time.monotonic()
            for s in ready:
                self.first[s] = now - self.began[s]
                waiting.discard(s)
        return self

    def read(self, s):
        response = http.client.HTTPResponse(s, method="POST")
        response.begin()
        return response.status, {k.lower(): v for k, v in response.getheaders()}, response.read()

    def close(self):
        for s in self.sockets:
            s.close()


def rejected(d, reason):
    return d.metrics()[("inferd_requests_rejected_total", (("reason", reason),))]


# --- admission


def test_a_burst_on_a_short_queue(start):
    d = start(device="null", null_step_time="10ms", max_sequences=1, max_waiting=4)
    long = {**body("The sea", max_tokens=40, ignore_eos=True), "model": d.model}
    burst = Burst(d, [long] * 50).collect(30)
    assert len(burst.first) == 50
    refusals = served = 0
    refused_in = []
    for s in burst.sockets:
        status, headers, data = burst.read(s)
        if status == 429:
            refusals += 1
            error = json.loads(data)["error"]
            assert error["code"] == "queue_full" and error["type"] == "rate_limit_error" and error["param"] is None
            assert 1 <= int(headers["retry-after"]) <= 60
            refused_in.append(burst.first[s])
        else:
            served += 1
            assert status == 200 and json.loads(data)["usage"]["completion_tokens"] == 40
    assert served == 5 and refusals == 45  # one runs, four wait
    assert sorted(refused_in)[22] < 0.05 * SLOW and max(refused_in) < 0.5 * SLOW, refused_in
    assert rejected(d, "queue_full") == refusals
    d.check_identity()
    burst.close()


def test_what_is_being_tokenised_counts(fake):
    """The workers are busy, the engine is idle: a burst must not pile up between them."""
    d = fake(max_sequences=1, max_waiting=3)
    burst = Burst(d, [body("@tokenise=500 @say hi")] * 30).collect(0.4)
    assert sum(burst.read(s)[0] == 429 for s in list(burst.first)) == 26
    for s in set(burst.sockets) - set(burst.first):
        assert burst.read(s)[0] == 200
    burst.close()
    d.check_identity()


def test_a_plural_request_is_let_in_whole_or_not(fake):
    d = fake(max_sequences=1, max_waiting=4)
    first = d.open_stream("@stall", n=3)
    wait_for(lambda: d.metrics()[("vllm:num_requests_waiting", (("engine", "0"), ("model_name", "fake")))] == 2, 5, "two of three wait")
    for fields in ({"n": 3}, {"prompt": ["a", "b", "c"]}):
        answer = d.post("/v1/completions", body(**fields))
        assert answer.status == 429 and answer.error()["code"] == "queue_full"
        m = d.metrics()
        assert m[("vllm:num_requests_running", (("engine", "0"), ("model_name", "fake")))] == 1
        assert m[("vllm:num_requests_waiting", (("engine", "0"), ("model_name", "fake")))] == 2, "a part of it was queued"
    second = d.open_stream("@say x", n=2)
    wait_for(lambda: d.metrics()[("vllm:num_requests_waiting", (("engine", "0"), ("model_name", "fake")))] == 4, 5, "two more fit")
    assert d.post("/v1/completions", body()).status == 429
    first.close()
    assert len({c["index"] for e in second.events() for c in e["choices"]}) == 2 and second.done
    # more than there could ever be room for is no matter of time
    answer = d.post("/v1/completions", body(n=6))
    assert answer.status == 400 and answer.error()["param"] == "n"
    d.check_identity()


def test_queued_prompt_tokens_are_bounded(fake):
    d = fake(max_sequences=1, max_waiting=100, max_waiting_tokens=100)
    busy = d.open_stream("@stall " + "x" * 200)  # more than the bound, but nobody else waits
    wait_for(lambda: d.gauge("requests_running") == 1, 5, "it runs")
    waiting = [d.open_stream([1] * 40), d.open_stream([1] * 20, n=2)]
    wait_for(lambda: d.gauge("waiting_prompt_tokens") == 80, 5, "80 tokens wait: n counts n")
    for prompt, fields in (([1] * 21, {}), ([1] * 7, {"n": 3}), ([[1] * 11, [1] * 11], {})):
        answer = d.post("/v1/completions", body(prompt, **fields))
        assert answer.status == 429 and answer.error()["code"] == "queue_full", (prompt, fields)
    last = d.open_stream([1] * 20)
    wait_for(lambda: d.gauge("waiting_prompt_tokens") == 100, 5, "100 are let in")
    assert d.post("/v1/completions", body([1])).status == 429
    assert d.gauge("waiting_prompt_tokens") == 100
    busy.close()
    for s in [*waiting, last]:
        list(s.events())
        assert s.done
    d.wait_idle()
    assert d.gauge("waiting_prompt_tokens") == 0


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_length_that_tells_is_not_tokenised(fake, path):
    d = fake(max_sequences=1, max_waiting=100, max_waiting_tokens=1000, max_model_len=2000)
    busy = d.open_stream("@stall", max_tokens=10)
    wait_for(lambda: d.gauge("requests_running") == 1, 5, "it runs")
    waiting = d.open_stream([1] * 500, max_tokens=10)
    wait_for(lambda: d.gauge("waiting_prompt_tokens") == 500, 5, "it waits, and how long it is is known")

    def ask(length):
        text = "@tokenise=3000 " + "x" * length
        fields = {"prompt": text} if path == "/v1/completions" else {"messages": [{"role": "user", "content": text}]}
        began = time.monotonic()
        answer = d.post(path, {"model": "fake", "max_tokens": 10, **fields})
        assert time.monotonic() - began < 1.5 * SLOW, "it was tokenised first"
        return answer

    answer = ask(600)
    assert answer.status == 429 and answer.error()["code"] == "queue_full" and "retry-after" in answer.headers
    answer = ask(2000)
    assert answer.status == (400 if path == "/v1/chat/completions" else 429)
    waiting.close()
    busy.close()
    d.wait_idle()
    answer = ask(2000)
    assert answer.status == 400 and answer.error()["code"] == "context_length_exceeded" and "2000" in answer.error()["message"]


def test_retry_after_follows_the_speed(fake):
    d = fake(max_sequences=1, max_waiting=4, retry_after=7, retry_after_max=9)
    assert d.post("/v1/completions", body()).status == 200

    def full_queue(first):
        streams = [d.open_stream(first)]
        wait_for(lambda: d.gauge("requests_running") == 1, 5, "the first one runs")
        streams += [d.open_stream("@stall") for _ in range(4)]
        wait_for(lambda: d.gauge("requests_running") + d.gauge("requests_waiting") == 5, 5, "the queue is full")
        return streams

    def told():
        answer = d.post("/v1/completions", body())
        assert answer.status == 429
        return int(answer.headers["retry-after"])

    streams = full_queue("@delay=1000 @say xx")
    assert told() == 7  # nothing is known yet
    list(streams[0].events())
    streams.append(d.open_stream("@stall"))
    wait_for(lambda: d.gauge("requests_waiting") == 4, 5, "four wait again")
    # it took a second or two (two tokens a second apart), and four wait
    assert 4 <= told() <= 9 if SLOW == 1 else told()
    for s in streams:
        s.close()
    d.wait_idle()
    for _ in range(30):
        for s in [d.open_stream("@delay=2 @say x") for _ in range(5)]:
            list(s.events())
    streams = full_queue("@stall")
    assert told() <= 2
    for s in streams:
        s.close()


# --- deadlines


def error_event(stream):
    events = list(stream.events())
    assert "error" in events[-1] and not stream.done
    assert events[-1]["error"]["type"] == "unavailable_error"
    return events


def timed(what):
    began = time.monotonic()
    value = what()
    return value, time.monotonic() - began


def check_expired(answer, seconds, expected):
    assert answer.status == 503 and answer.error()["type"] == "unavailable_error" and int(answer.headers["retry-after"]) >= 1
    # the timer is exact; a client on a busy machine is not
    assert expected <= seconds < expected + 0.4 * SLOW, f"{seconds:.3f} s for a deadline of {expected} s"


WAYS = [  # fields, headers, settings; 0.4 s is the smallest each time
    ({"timeout": 0.4}, {}, {}),
    ({}, {"X-Request-Timeout": "0.4"}, {}),
    ({}, {}, {"request_timeout": "400ms"}),
    ({"timeout": 0.4}, {"X-Request-Timeout": "0.9"}, {"request_timeout": 2}),
    ({"timeout": 2}, {"X-Request-Timeout": ".4"}, {"request_timeout": "900ms"}),
    ({"timeout": 3}, {"X-Request-Timeout": "0.9"}, {"request_timeout": "0.4"}),
]


@pytest.mark.parametrize("fields,headers,settings", WAYS)
def test_a_deadline_while_it_runs(fake, fields, headers, settings):
    d = fake(**settings)
    answer, seconds = timed(lambda: d.post("/v1/completions", body("@delay=50 @loop", max_tokens=1000, **fields), headers=headers))
    check_expired(answer, seconds, 0.4)
    d.wait_idle(1)
    m = d.metrics()
    assert m[("inferd_requests_finished_total", (("reason", "deadline"),))] == 1
    assert m[("inferd_deadline_expired_total", (("phase", "running"),))] == 1
    assert d.gauge("kv_blocks_used") == 0
    d.check_identity()


QUEUED = [
    ({"timeout": 0.4}, {}, {}),
    ({}, {"X-Request-Timeout": "0.4"}, {}),
    ({"timeout": 2}, {"X-Request-Timeout": "0.4"}, {"queue_timeout": "900ms"}),
    ({"timeout": 2}, {}, {"queue_timeout": "400ms"}),
]


def gauge(d, name, **labels):
    return sum(v for (n, ls), v in d.metrics().items() if n == name and labels.items() <= dict(ls).items())


def in_queue(d):
    return gauge(d, "vllm:num_requests_waiting")


@pytest.mark.parametrize("fields,headers,settings", QUEUED)
@pytest.mark.parametrize("stream", [False, True])
def test_a_deadline_while_it_waits(fake, fields, headers, settings, stream):
    d = fake(max_sequences=1, **settings)
    busy = d.open_stream("@delay=50 @loop", max_tokens=1000)
    wait_for(lambda: d.gauge("requests_running") == 1, 5, "it runs")
    answer, seconds = timed(lambda: d.post("/v1/completions", body(n=2, stream=stream, **fields), headers=headers))
    check_expired(answer, seconds, 0.4)
    assert rejected(d, "deadline") == 1 and gauge(d, "inferd_deadline_expired_total", phase="queued") == 1
    wait_for(lambda: in_queue(d) == 0, 1, "both choices left the queue")
    assert d.gauge("requests_running") == 1  # queue_timeout is over for the other, too, but it runs
    d.check_identity()
    busy.close()
    d.wait_idle()
    d.check_identity()


def test_a_deadline_while_it_is_tokenised(fake):
    d = fake()
    for fields, headers in (({}, {"X-Request-Timeout": "0.3"}), ({"timeout": 0.3}, {})):
        answer, seconds = timed(lambda: d.post("/v1/completions", body("@tokenise=1500", **fields), headers=headers))
        check_expired(answer, seconds, 0.3)
    d.wait_idle()
    assert rejected(d, "deadline") == 2 and gauge(d, "inferd_deadline_expired_total", phase="queued") == 2
    d.check_identity()


def test_a_deadline_ends_a_stream_with_an_error_event(fake):
    d = fake()
    stream = d.open_stream("@delay=50 @loop", max_tokens=1000, n=2, timeout=0.5)
    events, seconds = timed(lambda: error_event(stream))
    assert len(events) > 5 and 0.3 < seconds < 0.5 + 0.4 * SLOW
    d.wait_idle(1)
    assert gauge(d, "inferd_requests_finished_total", reason="deadline") == 1 and d.gauge("kv_blocks_used") == 0


def test_a_stream_that_waited_long_has_its_200_already(fake):
    """It was told to wait by a ping, and is told of its end by an event."""
    d = fake(max_sequences=1, sse_ping_interval="300ms", queue_timeout=2)
    busy = d.open_stream("@stall")
    wait_for(lambda: d.gauge("requests_running") == 1, 5, "it runs")
    stream = d.open_stream("hi")
    assert stream.start().status == 200
    assert len(error_event(stream)) == 1
    assert gauge(d, "inferd_deadline_expired_total", phase="queued") == 1
    busy.close()
    d.wait_idle()
    d.check_identity()


def test_many_deadlines(fake):
    """Each at its own time, whatever the order."""
    d = fake(max_sequences=64, max_connections=300)
    seconds = [0.3 + (i * 37 % 100) / 100 for i in range(100)]
    burst = Burst(d, [body("@stall", timeout=t) for t in seconds]).collect(5)
    late = []
    for s, t in zip(burst.sockets, seconds):
        assert burst.read(s)[0] == 503
        late.append(burst.first[s] - t)
    assert min(late) >= 0 and sorted(late)[90] < 0.3 * SLOW, late
    burst.close()
    d.wait_idle()
    d.check_identity()


def test_deadlines_that_make_no_sense(fake):
    d = fake(scheduling="priority")
    for header in ("0", "-1", "nan", "inf", "1e3", "604801", "9" * 40, "1s", "", " ", "0x1"):
        answer = d.post("/v1/completions", body("@say x"), headers={"X-Request-Timeout": header})
        assert answer.status == 400 and answer.error()["param"] == "X-Request-Timeout", header
        answer = d.post("/v1/completions", body("@say x", stream=True), headers={"X-Request-Timeout": header})
        assert answer.status == 400, header
    for header in ("x", "1.5", "2147483648", "", "--1"):
        answer = d.post("/v1/completions", body("@say x"), headers={"X-Vllm-Priority": header})
        assert answer.status == 400 and answer.error()["param"] == "X-Vllm-Priority", header
    for raw in (b"NaN", b"Infinity", b"-1", b"0", b"1e999", b'"5"', b"[]", b"604800.1"):
        answer = d.post("/v1/completions", b'{"model":"fake","prompt":"hi","timeout":%s}' % raw)
        assert answer.status == 400, raw
    for headers in ({"X-Request-Timeout": "604800"}, {"X-Request-Timeout": "5.5"}, {"X-Vllm-Priority": "-2147483648"}):
        assert d.post("/v1/completions", body("@say x", timeout=600000, priority=7), headers=headers).status == 200
    d.check_identity()


def test_a_priority_that_would_change_nothing_is_refused(fake):
    d = fake()  # first come, first served
    cases = [({"priority": 7}, {}), ({"priority": -1}, {}), ({}, {"X-Vllm-Priority": "1"}), ({"priority": 0}, {"X-Vllm-Priority": "-7"})]
    for fields, headers in cases:
        for stream in (False, True):
            answer = d.post("/v1/completions", body("@say x", stream=stream, **fields), headers=headers)
            assert answer.status == 400 and answer.error()["param"] == "priority", (fields, headers)
            assert "scheduling" in answer.error()["message"]
    for fields, headers in (({"priority": 0}, {}), ({"priority": None}, {}), ({"priority": 7}, {"X-Vllm-Priority": "0"})):
        assert d.post("/v1/completions", body("@say x", **fields), headers=headers).status == 200, (fields, headers)
    d.check_identity()


JUMPS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

/* The wall clock jumps by days at every look; the monotonic one does not. */
static time_t jump(void) {
    static unsigned n;
    return (time_t)((++n * 2654435761u) >> 24) * 86400;
}
int clock_gettime(clockid_t id, struct timespec *ts) {
    int (*real)(clockid_t, struct timespec *) = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int rc = real(id, ts);
    if (rc == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) {
        ts->tv_sec += jump();
    }
    return rc;
}
time_t time(time_t *out) {
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    if (out) {
        *out = ts.tv_sec;
    }
    return ts.tv_sec;
}
int gettimeofday(struct timeval *tv, void *zone) {
    struct timespec ts;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &ts);
    tv->tv_sec = ts.tv_sec;
    tv->tv_usec = ts.tv_nsec / 1000;
    return 0;
}
"""


@pytest.mark.skipif(not shutil.which("cc") or SANITIZED, reason="needs a compiler, and a daemon without sanitizers")
def test_a_clock_that_jumps_does_no_harm(fake, tmp_path):
    (tmp_path / "jumps.c").write_text(JUMPS)
    library = tmp_path / "jumps.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "jumps.c", "-ldl"], check=True)
    d = fake(environment={"LD_PRELOAD": str(library)}, request_timeout=2, idle_timeout=5)
    created = {d.post("/v1/completions", body("@say x")).json()["created"] // 86400 for _ in range(6)}
    assert len(created) > 1, "the clock does not jump"
    answer, seconds = timed(lambda: d.post("/v1/completions", body("@stall", timeout=0.4)))
    check_expired(answer, seconds, 0.4)
    answer, seconds = timed(lambda: d.post("/v1/completions", body("@delay=100 @say ten tokens", timeout=1.9)))
    assert answer.status == 200 and seconds > 0.9
    assert d.get("/readyz").status == 200


# --- keys


def ask_as(d, key, prompt, **fields):
    d.key = key
    answer = d.complete(prompt, max_tokens=1, **fields)
    assert answer.status == 200
    return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_keys_never_share_cached_prompts(start, tmp_path):
    keys = tmp_path / "keys"
    write_keys(keys, ["alpha", "beta"])
    d = start(device="null", api_keys_file=str(keys), max_sequences=4)
    d.key = "alpha"
    prompt = "The sea is wide and deep. " * 100
    assert ask_as(d, "alpha", prompt) == 0
    shared = ask_as(d, "alpha", prompt)
    assert shared > 400
    assert ask_as(d, "beta", prompt) == 0
    assert ask_as(d, "beta", prompt) == shared
    # a client's own salt parts what one key asks, too
    assert ask_as(d, "alpha", prompt, cache_salt="one") == 0
    assert ask_as(d, "alpha", prompt, cache_salt="two") == 0
    assert ask_as(d, "alpha", prompt, cache_salt="one") == shared
    assert ask_as(d, "beta", prompt, cache_salt="one") == 0
    # a key is the same one after the keys were read again in another order
    write_keys(keys, ["gamma", "beta", "alpha"])
    d.signal(signal.SIGHUP)
    wait_for(lambda: "with 3 keys" in d.log_text(), 5, "the keys are read again")
    assert ask_as(d, "alpha", prompt) == shared
    assert ask_as(d, "gamma", prompt) == 0
    assert gauge(d, "vllm:prefix_cache_hits_total") == 4 * shared
    d.key = "alpha"


def test_without_keys_everybody_shares(start):
    d = start(device="null", max_sequences=4)
    prompt = "The sea is wide and deep. " * 100
    assert ask_as(d, None, prompt) == 0 and ask_as(d, None, prompt) > 400
    assert ask_as(d, None, prompt, cache_salt="x") == 0
    # n answers to one prompt: it counts once
    usage = d.complete(prompt, max_tokens=1, n=3).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] > 400 and usage["prompt_tokens"] < 1000


# --- who is next


def order_of_answers(d, requests):
    """Send them one after another while one seat is taken; in which order they begin to be answered."""
    busy = d.open_stream("busy", max_tokens=1000, ignore_eos=True)
    next(busy.events())
    burst = Burst(d, [])
    for i, (key, fields, headers) in enumerate(requests):
        data = json.dumps({"model": d.model, "prompt": "hi", "max_tokens": 1, "ignore_eos": True, **fields}).encode()
        s = d.connect()
        head = "".join(f"{k}: {v}\r\n" for k, v in {**headers, **({"Authorization": "Bearer " + key} if key else {})}.items())
        s.sendall((f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{head}"
                   f"Content-Length: {len(data)}\r\n\r\n").encode() + data)
        burst.sockets.append(s)
        burst.began[s] = 0
        # in the engine, not on its way there: else two could change places
        wait_for(lambda n=i + 1: gauge(d, "vllm:num_requests_waiting_by_reason", reason="capacity") == n, 20, "it waits")
    busy.close()
    burst.collect(20)
    assert len(burst.first) == len(requests)
    order = sorted(range(len(requests)), key=lambda i: burst.first[burst.sockets[i]])
    assert all(burst.read(s)[0] == 200 for s in burst.sockets)
    burst.close()
    d.wait_idle()
    return order


PRIORITIES = [
    (None, {"priority": 5}, {}),
    (None, {}, {}),  # 0
    (None, {"priority": -1}, {}),
    (None, {"priority": 9}, {"X-Vllm-Priority": "-7"}),  # the header goes before the field
    (None, {"priority": 5}, {}),
]


def test_priority(start):
    one = {"device": "null", "null_step_time": "100ms", "max_sequences": 1}
    assert order_of_answers(start(scheduling="priority", **one), PRIORITIES) == [3, 2, 1, 0, 4]
    assert order_of_answers(start(scheduling="fcfs", **one), [(None, {}, {})] * 5) == [0, 1, 2, 3, 4]


def test_a_key_with_much_to_ask_does_not_keep_others_waiting(start, tmp_path):
    keys = tmp_path / "keys"
    write_keys(keys, ["alpha", "beta"])
    d = start(device="null", null_step_time="100ms", max_sequences=1, api_keys_file=str(keys))
    d.key = "alpha"
    order = order_of_answers(d, [("alpha", {}, {})] * 6 + [("beta", {}, {})])
    assert order.index(6) <= 1, order
    assert [i for i in order if i < 6] == list(range(6))
