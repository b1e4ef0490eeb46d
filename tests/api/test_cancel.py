"""A request may be ended in any state, in any way: at once, without a trace, and others go on.

The states are held long enough to be hit: on the null device (the real scheduler, at a known pace) and, for tokenising and
for an answer that nobody reads, on the fake engine.
"""

import http.client
import json
import signal
import socket
import time

import pytest
from conftest import SLOW, wait_for

STEP = 0.04  # s, of the null device
LONG = "The sea is wide and deep. " * 120  # some 850 tokens: 50 steps of prefill with 16 tokens a step


def gauge(d, name, **labels):
    return sum(v for (n, ls), v in d.metrics().items() if n == name and labels.items() <= dict(ls).items())


class Client:
    """One request as raw bytes, so that it can be left at any point."""

    def __init__(self, d, body, headers="", small_buffer=False):
        self.socket = socket.socket()
        self.socket.settimeout(30 * SLOW)
        if small_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.connect(("127.0.0.1", d.port))
        data = json.dumps(body).encode()
        self.socket.sendall((f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{headers}"
                             f"Content-Length: {len(data)}\r\n\r\n").encode() + data)

    def leave(self):
        self.socket.close()

    def refused(self, stream):
        """The answer is an error: a 503 where none had begun, else an event and no [DONE]."""
        response = http.client.HTTPResponse(self.socket, method="POST")
        response.begin()
        data = response.read()
        if response.status == 200:
            assert stream and b"[DONE]" not in data
            last = [line for line in data.split(b"\n") if line.startswith(b"data: ")][-1]
            assert json.loads(last[6:])["error"]["type"] == "unavailable_error"
        else:
            assert response.status == 503 and json.loads(data)["error"]["type"] == "unavailable_error"
            assert int(response.getheader("Retry-After")) >= 1
        return response.status


class Scene:
    """A daemon with a request in the wanted state, which `there` tells."""

    def __init__(self, state, start, fake, settings):
        self.state = state
        self.busy = None
        if state == "tokenising":
            self.d = fake(**settings)
            self.prompt, self.fields = "@tokenise=700 @loop", {"max_tokens": 1000}
        else:
            self.d = start(device="null", null_step_time=STEP, max_batched_tokens=16, max_sequences=16, kv_tokens=8192, **settings)
            self.prompt = LONG if state == "prefill" else "Once"
            self.fields = {"max_tokens": 900, "ignore_eos": True}
        self.model = self.d.model
        if state == "queued":  # all seats are taken
            self.busy = [self.d.open_stream("busy", n=8, max_tokens=900, ignore_eos=True) for _ in range(2)]
            for b in self.busy:
                next(b.events())
            self.blocks = None
        else:
            self.blocks = self.d.gauge("kv_blocks_used")

    def body(self, stream, n):
        return {"model": self.model, "prompt": self.prompt, "stream": stream, "n": n, "temperature": 0, **self.fields}

    def there(self):
        running = 2 if self.busy else 0
        d = self.d
        if self.state == "tokenising":
            return d.gauge("requests_waiting") == 1
        if self.state == "queued":
            # in the engine's queue, not still on its way there
            return d.gauge("requests_waiting") == 1 and gauge(d, "vllm:num_requests_waiting_by_reason", reason="capacity") >= 1
        if self.state == "prefill":
            return d.gauge("requests_running") == running + 1
        return gauge(d, "vllm:generation_tokens_total") > 3

    def wait_there(self):
        wait_for(self.there, 5, f"it is {self.state}", every=0.005)

    def gone_within(self, seconds):
        """Nothing of it is left: no request, no sequence, no block, no token that waits."""
        d = self.d

        def clean():
            running = 2 if self.busy else 0
            return (d.gauge("requests_running") == running and d.gauge("requests_waiting") == 0
                    and gauge(d, "vllm:num_requests_running") == (16 if self.busy else 0)
                    and gauge(d, "vllm:num_requests_waiting") == 0 and d.gauge("waiting_prompt_tokens") == 0
                    and (self.busy or d.gauge("kv_blocks_used") == self.blocks))

        wait_for(clean, seconds, "it leaves no trace", every=0.005)
        d.check_identity()

    def close(self):
        """The others went on all the while; then all is as in the beginning."""
        if self.busy:
            for b in self.busy:
                made = gauge(self.d, "vllm:generation_tokens_total")
                wait_for(lambda: gauge(self.d, "vllm:generation_tokens_total") > made, 5, "the others go on")
                b.close()
        self.d.wait_idle()
        if self.state != "tokenising":
            assert self.d.gauge("kv_blocks_used") == 0
        self.d.check_identity()


STATES = ["queued", "tokenising", "prefill", "decode"]
# How long the last piece of work may take: a step, or the tokenising that cannot be broken off.
LAST = {"queued": 2 * STEP, "tokenising": 0.7, "prefill": 2 * STEP, "decode": 2 * STEP}


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("state", STATES)
def test_by_disconnect(start, fake, state, stream, n):
    scene = Scene(state, start, fake, {})
    client = Client(scene.d, scene.body(stream, n))
    scene.wait_there()
    client.leave()
    scene.gone_within(LAST[state] + 0.5)
    assert gauge(scene.d, "inferd_requests_cancelled_total") == 1
    if state != "tokenising":
        # the loop counts an end when it has its event, which the engine sends behind its own gauges
        wait_for(lambda: gauge(scene.d, "vllm:request_success_total", finished_reason="abort") == n, 2, "its end is counted")
    scene.close()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("state", STATES)
def test_by_deadline(start, fake, state, stream):
    scene = Scene(state, start, fake, {})
    began = time.monotonic()
    client = Client(scene.d, scene.body(stream, 2), "X-Request-Timeout: 0.4\r\n")
    scene.wait_there()
    status = client.refused(stream)
    assert 0.4 <= time.monotonic() - began < 0.4 + 0.5 * SLOW
    assert status == (200 if stream and state == "decode" else 503)
    scene.gone_within(LAST[state] + 0.5)
    if state in ("queued", "tokenising"):
        assert gauge(scene.d, "inferd_requests_rejected_total", reason="deadline") == 1
    else:
        assert gauge(scene.d, "inferd_requests_finished_total", reason="deadline") == 1
    scene.close()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("state", STATES)
def test_by_drain(start, fake, state, stream):
    scene = Scene(state, start, fake, {"drain_timeout": 0.2})
    client = Client(scene.d, scene.body(stream, 2))
    scene.wait_there()
    scene.d.signal(signal.SIGTERM)
    client.refused(stream)
    for b in scene.busy or []:
        assert "error" in list(b.events())[-1] and not b.done
    assert scene.d.wait_exit(10) == 0


# --- one of n


def test_one_of_n_finishes_and_the_rest_is_left(fake):
    """Choices that have ended stay ended; what still runs is cancelled, and only that."""
    d = fake()
    client = Client(d, {"model": "fake", "prompt": ["@say x", "@delay=20 @loop", "@delay=20 @loop"], "max_tokens": 2000, "stream": True})
    wait_for(lambda: gauge(d, "vllm:request_success_total", finished_reason="stop") == 1, 5, "the first is done")
    assert d.gauge("requests_running") == 1 and gauge(d, "vllm:num_requests_running") == 2
    client.leave()
    d.wait_idle(1)
    assert gauge(d, "vllm:request_success_total", finished_reason="abort") == 2
    assert gauge(d, "inferd_requests_finished_total", reason="cancelled") == 1 and d.gauge("kv_blocks_used") == 0
    d.check_identity()


@pytest.mark.parametrize("stream", [True, False])
def test_one_of_n_fails_and_ends_the_request(fake, stream):
    """There is no error of a single choice in the API: the request fails, its other choices end, other requests go on."""
    d = fake()
    other = d.open_stream("@delay=20 @say another request goes on", max_tokens=100)
    answer = d.post("/v1/completions", {"model": "fake", "prompt": ["@delay=20 @loop", "@delay=20 @error=5"], "max_tokens": 2000,
                                        "stream": stream})
    if stream:
        assert answer.status == 200 and b"[DONE]" not in answer.body
        assert json.loads(answer.body.strip().split(b"\n")[-1][6:])["error"]["type"] == "server_error"
    else:
        assert answer.status == 500 and answer.error()["type"] == "server_error"
    assert other.text() == "another request goes on" and other.done
    d.wait_idle(1)
    assert gauge(d, "inferd_requests_finished_total", reason="error") == 1
    assert gauge(d, "vllm:request_success_total", finished_reason="abort") == 1
    assert gauge(d, "vllm:request_success_total", finished_reason="error") == 1 and d.gauge("kv_blocks_used") == 0
    d.check_identity()


# --- what is made and not yet read


@pytest.mark.parametrize("way", ["disconnect", "drain", "read"])
@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_that_is_not_read_yet(fake, stream, way):
    """It is finished for the engine and for the counts; leaving now changes neither."""
    d = fake(drain_timeout=0.5, max_model_len=600_000)
    # more than the sockets of both sides take, less than a stream may have unsent
    size = 4_000 if stream else 500_000
    client = Client(d, {"model": "fake", "prompt": "@loop", "max_tokens": size, "stream": stream}, "Connection: close\r\n", small_buffer=True)
    wait_for(lambda: gauge(d, "inferd_requests_finished_total", reason="length") == 1, 20, "it is finished")
    assert d.gauge("kv_blocks_used") == 0 and gauge(d, "vllm:num_requests_running") == 0
    if way == "read":
        data = b""
        while part := client.socket.recv(65536):
            data += part
        assert (b"[DONE]" in data) if stream else data.endswith(b"}\n")
    elif way == "disconnect":
        client.leave()
    else:
        d.signal(signal.SIGTERM)
        assert d.wait_exit(10) == 0  # nobody takes the rest: the drain does not wait longer than it may
        client.leave()
        return
    d.wait_idle()
    assert gauge(d, "inferd_requests_cancelled_total") == 0
    d.check_identity()


def test_many_leave_at_once(start):
    """200 requests in all states, gone in one moment: the engine is empty a step later, and serves the next."""
    d = start(device="null", null_step_time=STEP, max_sequences=16, max_waiting=300, max_batched_tokens=64, max_connections=400)
    expected = d.complete("The sea", max_tokens=5).json()["choices"][0]["text"]
    clients = [Client(d, {"model": d.model, "prompt": LONG if i % 3 else "Once", "max_tokens": 500, "stream": i % 2 == 0, "n": 1})
               for i in range(200)]
    wait_for(lambda: d.gauge("requests_running") >= 1 and d.gauge("requests_running") + d.gauge("requests_waiting") == 200, 10,
             "all are in")
    for c in clients:
        c.leave()
    wait_for(lambda: gauge(d, "vllm:num_requests_running") + gauge(d, "vllm:num_requests_waiting") == 0, 2, "the engine is empty")
    d.wait_idle()
    assert d.gauge("kv_blocks_used") == 0
    assert d.complete("The sea", max_tokens=5).json()["choices"][0]["text"] == expected
    d.check_identity()
