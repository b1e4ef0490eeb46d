"""The server alone, on an engine that computes nothing (tests/unit/fake_engine.h says what prompts can order).

What needs exact timing or a failing engine, and HTTP as bytes: framing, limits, hang-ups, slow readers, draining.
"""

import http.client
import json
import os
import re
import signal
import socket
import time

import pytest
from conftest import FAKE, SLOW, Daemon, wait_for, write_keys

JSON = {"Content-Type": "application/json"}

pytestmark = pytest.mark.skipif(not os.path.isfile(FAKE), reason="fake_inferd was not built (option tests)")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fake")
    (folder / "fake.gguf").touch()
    d = Daemon(folder / "log", program=FAKE, model=str(folder / "fake.gguf"), max_model_len=100000).wait_ready()
    yield d
    d.wait_idle()
    d.check_identity()
    assert d.gauge("kv_blocks_used") == 0
    d.stop()


def raw(d, data, timeout=10):
    """Send, read to the end of the connection."""
    with d.connect(timeout) as s:
        s.sendall(data)
        return read_all(s)


def read_all(s):
    parts = []
    while True:
        try:
            part = s.recv(65536)
        except ConnectionResetError:
            break
        if not part:
            break
        parts.append(part)
    return b"".join(parts)


def post_bytes(path, body, headers="", version="1.1"):
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    return (f"POST {path} HTTP/{version}\r\nHost: x\r\nContent-Type: application/json\r\n{headers}"
            f"Content-Length: {len(body)}\r\n\r\n").encode() + body


def request(prompt, **fields):
    return {"model": "fake", "prompt": prompt, **fields}


def status(answer):
    match = re.match(rb"HTTP/1\.[01] (\d{3}) ", answer)
    return int(match[1]) if match else None


# --- framing


def test_chunked_body(server):
    body = json.dumps(request("@say hi")).encode()
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(body[i : i + 7]), body[i : i + 7]) for i in range(0, len(body), 7))
    answer = raw(server, b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
                         b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n")
    assert status(answer) == 200 and b'"text":"hi"' in answer


def test_http_1_0_stream_ends_with_the_connection(server):
    answer = raw(server, post_bytes("/v1/completions", request("@say hi", stream=True), version="1.0"))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert status(answer) == 200 and b"chunked" not in head.lower()
    assert body.endswith(b"data: [DONE]\n\n")


def test_two_framings_are_never_two_requests(server):
    """Content-Length and Transfer-Encoding at once: whatever is believed, the rest is not a request of its own."""
    body = b"0\r\n\r\nGET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
    answer = raw(server, b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
                         b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n" % len(body) + body)
    assert status(answer) == 400 and answer.count(b"HTTP/1.1") == 1


def test_body_in_small_pieces(server):
    data = post_bytes("/v1/completions", request("@say slow"), "Connection: close\r\n")
    with server.connect() as s:
        for i in range(0, len(data), 20):
            s.sendall(data[i : i + 20])
            time.sleep(0.01)
        answer = read_all(s)
    assert status(answer) == 200 and b'"text":"slow"' in answer


def test_expect_100(server):
    body = json.dumps(request("@say hi")).encode()
    with server.connect() as s:
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
                  b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body))
        assert s.recv(1000).startswith(b"HTTP/1.1 100 ")
        s.sendall(body)
        assert status(read_all(s)) == 200
    with server.connect() as s:  # a refusal comes before the body
        s.sendall(b"POST /nowhere HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body))
        assert status(s.recv(1000)) == 404


def test_pipelined_requests_are_answered_in_order(server):
    answers = raw(server, post_bytes("/v1/completions", request("@delay=5 @say one")) + b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
                  + post_bytes("/v1/completions", request("@say two"), "Connection: close\r\n"))
    assert answers.count(b"HTTP/1.1 200") == 3
    assert answers.index(b'"text":"one"') < answers.index(b'"status":"ok"') < answers.index(b'"text":"two"')


def test_head_has_no_body(server):
    answer = raw(server, b"HEAD /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert status(answer) == 200 and body == b"" and int(re.search(rb"Content-Length: (\d+)", head)[1]) > 0


def test_methods(server):
    for method, path, allow in (("GET", "/v1/completions", "POST"), ("POST", "/livez", "GET, HEAD"), ("DELETE", "/v1/models", "GET, HEAD"),
                                ("PUT", "/v1/chat/completions", "POST"), ("OPTIONS", "/tokenize", "POST")):
        answer = server.request(method, path, body=b"{}" if method != "GET" else None)
        assert answer.status == 405 and answer.headers["allow"] == allow
        assert answer.error()["type"] == "invalid_request_error"
    answer = server.get("/v2")
    assert answer.status == 404 and answer.error()["type"] == "not_found_error"


def test_request_id(server):
    assert server.get("/livez", headers={"X-Request-Id": "abc-1"}).headers["x-request-id"] == "abc-1"
    for bad in ("a b", "x" * 129, "\x7f"):
        assert re.fullmatch("[0-9a-f]{32}", server.get("/livez", headers={"X-Request-Id": bad}).headers["x-request-id"])
    answer = server.post("/v1/completions", request("hi", request_id="mine"))
    assert answer.headers["x-request-id"] == "mine"
    answer = server.post("/v1/completions", request("hi", request_id="mine", max_tokens=0))
    assert answer.status == 400


def test_content_types(server):
    body = json.dumps(request("@say hi")).encode()
    for good in ("application/json", "application/json; charset=utf-8", "Application/JSON ;x=y"):
        assert server.post("/v1/completions", body, headers={"Content-Type": good}).status == 200
    for bad in ("text/plain", "application/jsonx", "", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        answer = server.post("/v1/completions", body, headers={"Content-Type": bad})
        assert answer.status == 400 and "Content-Type" in answer.error()["message"]


# --- limits


def test_a_body_over_the_cap(fake):
    d = fake(max_body_size=100_000)
    big = b'{"x":"' + b"a" * 200_000 + b'"}'
    answer = d.post("/v1/completions", big)
    assert answer.status == 413 and answer.error()["type"] == "invalid_request_error"
    before = d.resident_bytes()
    try:  # more than anybody would read to the end
        endless = raw(d, b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
                      + (b"100000\r\n" + b"a" * 0x100000 + b"\r\n") * 80)
    except OSError:
        endless = b""
    assert status(endless) in (None, 413)
    assert d.resident_bytes() - before < 4 << 20
    # announced only: nothing needs to be sent
    announced = raw(d, b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 99999999999\r\n\r\n")
    assert status(announced) == 413
    # chunked: found out on the way, answered at the end
    with d.connect() as s:
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n")
        for _ in range(40):
            s.sendall(b"2000\r\n" + b"a" * 8192 + b"\r\n")
        s.sendall(b"0\r\n\r\n")
        assert status(read_all(s)) == 413
    assert d.post("/v1/completions", request("@say hi")).status == 200
    assert d.metrics()[("inferd_requests_rejected_total", (("reason", "too_large"),))] == 3
    d.check_identity()


def test_time_for_head_body_and_idling(fake):
    d = fake(header_timeout=1, body_timeout=2, idle_timeout=1)
    for sent, least, most in ((b"", 0.5, 3), (b"GET /livez HTTP/1.1\r\nX-A", 0.5, 3),
                              (post_bytes("/v1/completions", request("hi"))[:-5], 1.5, 4),
                              (b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n", 0.5, 3)):
        began = time.monotonic()
        with d.connect() as s:
            s.sendall(sent)
            read_all(s)
        assert least < time.monotonic() - began < most * SLOW, sent
    with d.connect() as s:  # a byte now and then does not help
        began = time.monotonic()
        with pytest.raises(OSError):
            for _ in range(50):
                s.sendall(b"G")
                time.sleep(0.2)
        assert time.monotonic() - began < 5 * SLOW
    d.wait_idle()
    assert d.metrics()[("inferd_requests_cancelled_total", ())] == 1
    d.check_identity()


def test_half_open_connections_hinder_nobody(fake):
    d = fake(max_connections=600)
    half = [d.connect() for _ in range(400)]
    for s in half:
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Le")
    began = time.monotonic()
    assert d.post("/v1/completions", request("@say hi")).status == 200
    assert time.monotonic() - began < 2 * SLOW  # not one of the time limits that the half-sent ones run into
    for s in half:
        s.close()


def test_request_timeout(fake):
    d = fake(request_timeout=1)
    answer = d.post("/v1/completions", request("@stall"))
    assert answer.status == 503 and answer.headers["retry-after"] and answer.error()["type"] == "unavailable_error"
    stream = d.open_stream("@delay=100 @loop", max_tokens=1000)
    events = list(stream.events())
    assert events[-1]["error"]["type"] == "unavailable_error" and not stream.done
    d.wait_idle()
    d.check_identity()


def test_a_slow_reader_is_dropped_and_hinders_nobody(fake):
    d = fake(max_model_len=1_000_000)
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    s.connect(("127.0.0.1", d.port))
    s.sendall(post_bytes("/v1/completions", request("@loop", stream=True, max_tokens=900_000)))
    wait_for(lambda: d.metrics()[("inferd_slow_readers_dropped_total", ())] == 1, 30, "the reader is dropped")
    assert d.post("/v1/completions", request("@say hi")).status == 200
    d.wait_idle()
    assert d.metrics()[("inferd_requests_cancelled_total", ())] == 1
    assert d.gauge("kv_blocks_used") == 0
    d.check_identity()
    s.close()


def test_a_reader_that_stops_is_given_up_after_write_timeout(fake):
    """Not so much waits for it that it would be dropped for that."""
    d = fake(max_model_len=1_000_000, write_timeout=1)
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    s.connect(("127.0.0.1", d.port))
    s.sendall(post_bytes("/v1/completions", request("@delay=2 @loop", stream=True, max_tokens=900_000, logprobs=3)))
    wait_for(lambda: d.metrics()[("inferd_requests_cancelled_total", ())] == 1, 30, "the reader is given up")
    assert d.metrics()[("inferd_slow_readers_dropped_total", ())] == 0
    d.wait_idle()
    assert d.gauge("kv_blocks_used") == 0
    d.check_identity()
    s.close()


# --- streams


def chunks(d, prompt, path="/v1/completions", **fields):
    body = request(prompt, stream=True, **fields)
    if path.endswith("/chat/completions"):
        body["messages"] = [{"role": "user", "content": body.pop("prompt")}]
    answer = d.post(path, body)
    assert answer.status == 200 and answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache" and answer.headers["x-accel-buffering"] == "no"
    blocks = answer.body.decode().split("\n\n")
    assert blocks[-1] == "" and blocks[-2] == "data: [DONE]"
    assert all(b.startswith("data: ") for b in blocks[:-1])
    return [json.loads(b[6:]) for b in blocks[:-2]]


def test_chat_stream_shape(server):
    events = chunks(server, "@say hé!", "/v1/chat/completions", stream_options={"include_usage": True})
    head = {k: events[0][k] for k in ("id", "object", "created", "model", "system_fingerprint")}
    assert head["object"] == "chat.completion.chunk" and head["id"].startswith("chatcmpl-")
    assert all({k: e[k] for k in head} == head for e in events)
    choices = [e["choices"] for e in events]
    assert choices[0] == [{"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}]
    assert [c[0]["delta"] for c in choices[1:-2]] == [{"content": "h"}, {"content": "é"}, {"content": "!"}]
    assert choices[-2] == [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop", "stop_reason": None}]
    assert choices[-1] == [] and all(e["usage"] is None for e in events[:-1])
    plain = server.post("/v1/chat/completions", {"model": "fake", "messages": [{"role": "user", "content": "@say hé!"}]}).json()
    assert events[-1]["usage"] == plain["usage"] and plain["usage"]["completion_tokens"] == 4
    assert plain["choices"][0]["message"] == {"role": "assistant", "content": "hé!", "refusal": None}
    assert "usage" not in chunks(server, "@say x")[0]


def test_an_answer_that_repeats_itself(server):
    def counted():
        m = server.metrics()
        return (m[("vllm:request_success_total", (("engine", "0"), ("finished_reason", "repetition"), ("model_name", "fake")))],
                m[("inferd_requests_finished_total", (("reason", "repetition"),))])

    before = counted()
    events = chunks(server, "@repetition=4 @say lalalala", max_tokens=100)
    assert "".join(e["choices"][0]["text"] for e in events) == "lala" and events[-1]["choices"][0]["finish_reason"] == "repetition"
    plain = server.post("/v1/completions", request("@repetition=4 @say lalalala", max_tokens=100)).json()
    assert plain["choices"][0]["finish_reason"] == "repetition" and plain["usage"]["completion_tokens"] == 4
    assert counted() == (before[0] + 2, before[1] + 2)


def test_held_text_makes_no_empty_chunks(server):
    for fields in ({"stop": ["zzzz"]}, {"stop": ["dog"]}, {}):
        events = chunks(server, "@say a lazy dog sleeps", max_tokens=100, **fields)
        texts = [e["choices"][0]["text"] for e in events]
        assert all(texts[:-1]) and texts[-1] == ""
        assert "".join(texts) == ("a lazy " if fields.get("stop") == ["dog"] else "a lazy dog sleeps")


def test_logprobs_follow_the_text(server):
    for stop in (None, ["dog"], ["zzz"]):
        events = chunks(server, "@say a lazy dog", logprobs=2, stop=stop, max_tokens=100)
        text = "".join(e["choices"][0]["text"] for e in events)
        tokens, offsets = [], []
        for e in events:
            part = e["choices"][0]["logprobs"]
            if part:
                tokens += part["tokens"]
                offsets += part["text_offset"]
                assert len(part["tokens"]) == len(part["token_logprobs"]) == len(part["top_logprobs"])
                assert all(t in top for t, top in zip(part["tokens"], part["top_logprobs"]))
        assert "".join(tokens) == text and offsets == list(range(len(text)))
        whole = server.post("/v1/completions", request("@say a lazy dog", logprobs=2, stop=stop, max_tokens=100)).json()["choices"][0]
        assert whole["logprobs"]["tokens"] == tokens and whole["logprobs"]["text_offset"] == offsets
    content = server.post("/v1/chat/completions", {"model": "fake", "messages": [{"role": "user", "content": "@say né"}],
                                                   "logprobs": True}).json()["choices"][0]["logprobs"]["content"]
    assert bytes(b for c in content for b in c["bytes"]).decode() == "né" and all(c["top_logprobs"] == [] for c in content)


def test_bodies_count_as_held_until_they_are_freed(server):
    """Some 256 MB of bodies may be held; what was answered or left behind must not count against that for ever."""
    body = json.dumps(request("x" * 7_900_000)).encode()
    head = (f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n").encode()
    for i in range(40):
        if i % 2:
            with server.connect() as s:  # leaves while a worker has it
                s.sendall(head + body)
        else:
            answer = server.post("/v1/completions", body)
            assert answer.status == 400 and answer.error()["code"] == "context_length_exceeded"
    server.wait_idle()
    server.check_identity()


@pytest.mark.parametrize("framing", [
    "Content-Length: 40\r\nContent-Length: 5", "Transfer-Encoding: chunked\r\nContent-Length: 5",
    "Content-Length: 5\r\nTransfer-Encoding: chunked", "Transfer-Encoding: gzip", "Transfer-Encoding: gzip, chunked",
    "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked"])
@pytest.mark.parametrize("path", ["/v1/completions", "/livez"])
def test_a_length_said_twice_is_refused_and_the_connection_closed(server, path, framing):
    """What one server takes for a body, another takes for the next request."""
    began = time.monotonic()
    hidden = b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n"
    answer = raw(server, f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{framing}\r\n\r\n".encode()
                 + b"0\r\n\r\n" + hidden)
    assert answer.startswith(b"HTTP/1.1 400 ") and answer.count(b"HTTP/1.1") == 1, answer
    assert b"connection: close" in answer.lower() and time.monotonic() - began < 2 * SLOW


def test_several_prompts_and_choices(server):
    body = request(["@say one", "@say two", "@say three"], n=2, echo=True)
    answer = server.post("/v1/completions", body).json()
    assert [c["index"] for c in answer["choices"]] == list(range(6))
    assert [c["text"] for c in answer["choices"]] == [f"@say {w}{w}" for w in ("one", "two", "three") for _ in (0, 1)]
    assert answer["usage"]["prompt_tokens"] == sum(1 + len(p) for p in body["prompt"])
    texts = {}
    for e in chunks(server, body["prompt"], n=2):
        for c in e["choices"]:
            texts[c["index"]] = texts.get(c["index"], "") + c["text"]
    assert texts == {i: w for i, w in enumerate(("one", "one", "two", "two", "three", "three"))}


def test_token_prompts(server):
    ids = list(b"@say ids")
    assert server.post("/v1/completions", request(ids)).json()["choices"][0]["text"] == "ids"
    assert server.post("/v1/completions", request([ids, ids])).json()["choices"][1]["text"] == "ids"
    echoed = server.post("/v1/completions", request(ids, echo=True)).json()["choices"][0]["text"]
    assert echoed == "@say idsids"


def test_pings_keep_a_silent_stream_alive(fake):
    d = fake(sse_ping_interval=0.5)
    with d.connect() as s:
        s.sendall(post_bytes("/v1/completions", request("@prefill=3500 @say hi", stream=True), "Connection: close\r\n"))
        answer = read_all(s)
    assert status(answer) == 200 and answer.count(b": ping\n\n") >= 2 and answer.index(b": ping") < answer.index(b"data: {")
    assert b"data: [DONE]" in answer


# --- errors of the engine


def test_an_error_before_the_first_token_has_a_status(server):
    for fields in ({}, {"stream": True}, {"n": 3}):
        answer = server.post("/v1/completions", request("@error=0", **fields))
        assert answer.status == 500 and answer.error()["type"] == "server_error"


def test_an_error_later_is_an_event_and_no_done(server):
    stream = server.open_stream("@error=3 @say abcdef")
    events = list(stream.events())
    assert [e["choices"][0]["text"] for e in events[:-1]] == ["a", "b", "c"]
    assert set(events[-1]) == {"error"} and events[-1]["error"]["code"] is None and not stream.done
    answer = server.post("/v1/completions", request("@error=3 @say abcdef"))
    assert answer.status == 500


def test_template_refusals(server):
    answer = server.post("/v1/chat/completions", {"model": "fake", "messages": [{"role": "user", "content": "@raise"}]})
    assert answer.status == 400 and answer.error()["param"] == "messages" and "does not like" in answer.error()["message"]


def test_context_length(fake):
    d = fake(max_model_len=40)
    for fields in ({}, {"stream": True}):
        answer = d.post("/v1/completions", request("x" * 30, max_tokens=20, **fields))
        error = answer.error()
        assert answer.status == 400 and error["code"] == "context_length_exceeded"
        assert {"40", "31", "20"} <= set(re.findall(r"\d+", error["message"]))
    assert d.post("/v1/completions", request("x" * 38)).json()["choices"][0]["finish_reason"] == "length"  # 39 + 1
    assert d.post("/v1/completions", request("x" * 39)).status == 400


def test_queue_full_cancels_what_it_had_queued(fake):
    d = fake(max_sequences=1, max_waiting=2)
    stalled = d.open_stream("@stall")
    wait_for(lambda: d.gauge("requests_running") == 1, 5, "it runs")
    for fields in ({}, {"stream": True}):
        answer = d.post("/v1/completions", request("@say hi", n=3, **fields))
        assert answer.status == 429 and answer.headers["retry-after"] == "1" and answer.error()["code"] == "queue_full"
    answer = d.post("/v1/completions", request("@say hi", n=4))
    assert answer.status == 400  # would be refused for ever
    stalled.close()
    d.wait_idle()
    assert d.post("/v1/completions", request("@say hi", n=3)).status == 200
    d.check_identity()


# --- clients that leave


@pytest.mark.parametrize("how", ["fin", "rst", "half"])
@pytest.mark.parametrize("when", ["waiting", "prefilling", "streaming", "plain", "many"])
def test_leaving(fake, how, when):
    d = fake(max_sequences=8)
    blockers = []
    if when == "waiting":
        blockers = [d.open_stream("@stall") for _ in range(8)]
        wait_for(lambda: d.gauge("requests_running") == 8, 5, "all places are taken")
    prompt = "@stall" if when in ("waiting", "prefilling") else "@delay=20 @loop"
    s = d.connect()
    s.sendall(post_bytes("/v1/completions", request(prompt, max_tokens=3000, stream=when != "plain", n=3 if when == "many" else 1)))
    wait_for(lambda: d.gauge("requests_waiting") + d.gauge("requests_running") == len(blockers) + 1, 5, "it is there")
    if when in ("streaming", "many"):
        assert b"200 OK" in s.recv(100)
    time.sleep(0.1)
    if how == "half":
        s.shutdown(socket.SHUT_WR)
    else:
        if how == "rst":
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        s.close()
    wait_for(lambda: d.metrics()[("inferd_requests_cancelled_total", ())] == 1, 0.5, "it is cancelled", every=0.005)
    d.check_identity()
    for b in blockers:
        b.close()
    d.wait_idle()
    assert d.gauge("kv_blocks_used") == 0
    s.close()


def test_leaving_at_random_leaks_nothing(fake):
    import random

    d = fake(header_timeout=1)  # libmicrohttpd does not see a FIN that comes with half a head
    rng = random.Random(5)
    open_fds = ("process_open_fds", ())
    before = d.metrics()[open_fds]
    for i in range(600):
        s = d.connect()
        data = post_bytes("/v1/completions", request("@delay=1 @loop", max_tokens=200, stream=i % 2 == 0, n=1 + i % 3))
        s.sendall(data[: rng.randrange(1, len(data) + 40)])
        if rng.random() < 0.5:
            time.sleep(rng.random() * 0.01)
        if rng.random() < 0.3:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        s.close()
    d.wait_idle()
    wait_for(lambda: d.metrics()[open_fds] == before, 5, "descriptors are back")
    assert d.gauge("kv_blocks_used") == 0
    d.check_identity()


def test_parked_requests_cost_nothing(fake):
    d = fake(max_sequences=300)
    parked = [d.open_stream("@stall") for _ in range(200)]
    wait_for(lambda: d.gauge("requests_running") == 200, 10, "200 requests run")
    time.sleep(0.3)
    before = d.cpu_seconds()
    time.sleep(3)
    assert d.cpu_seconds() - before <= 0.05 * SLOW
    for s in parked:
        s.close()
    wait_for(lambda: d.metrics()[("inferd_requests_cancelled_total", ())] == 200, 2, "all are cancelled")


# --- the life of the process


def test_loading(fake):
    d = fake(ready=False, environment={"FAKE_LOAD_MS": "1500"})
    wait_for(lambda: reachable(d), 5, "it listens")
    for path in ("/readyz", "/health"):
        answer = d.get(path)
        assert answer.status == 503 and answer.json()["reason"] == "loading" and answer.headers["retry-after"]
    assert d.get("/livez").status == 200
    for answer in (d.get("/v1/models"), d.post("/v1/completions", request("hi")), d.post("/tokenize", {"prompt": "x"})):
        assert answer.status == 503 and answer.error()["type"] == "unavailable_error" and answer.headers["retry-after"]
    before = d.metrics()
    d.wait_ready()
    assert set(d.metrics()) - {k for k in before} == {k for k in d.metrics() if k[0] == "vllm:cache_config_info"}
    d.check_identity()


def reachable(d):
    try:
        return d.get("/livez").status == 200
    except OSError:
        return False


def test_sigterm_while_loading(fake):
    d = fake(ready=False, environment={"FAKE_LOAD_MS": "20000"})
    wait_for(lambda: reachable(d), 5, "it listens")
    d.signal()
    assert d.wait_exit(2) == 0


def test_a_load_that_fails(tmp_path):
    (tmp_path / "fake.gguf").touch()
    d = Daemon(tmp_path / "log", program=FAKE, model=str(tmp_path / "fake.gguf"), environment={"FAKE_LOAD_FAILS": "1"})
    assert d.wait_exit(5) == 78 and "told not to load" in d.log_text()


def test_drain(fake):
    d = fake(drain_timeout=20)
    plain, stream = d.connect(), d.open_stream("@delay=20 @loop", max_tokens=60)
    plain.sendall(post_bytes("/v1/completions", request("@delay=20 @say answer in full")))
    wait_for(lambda: d.gauge("requests_running") == 2, 5, "both run")
    idle = http.client.HTTPConnection("127.0.0.1", d.port)
    idle.request("GET", "/livez")
    assert idle.getresponse().read()
    d.signal()
    wait_for(lambda: d.get("/readyz").status == 503, 2, "readyz says so")
    assert d.get("/readyz").json()["reason"] == "draining" and d.get("/livez").status == 200
    refusal = d.post("/v1/completions", request("hi"))
    assert refusal.status == 503 and refusal.headers["retry-after"] and refusal.headers["connection"] == "close"
    answer = read_all(plain)
    assert status(answer) == 200 and b"answer in full" in answer and b"Connection: close" in answer
    assert len("".join(e["choices"][0]["text"] for e in stream.events())) == 60 and stream.done
    assert d.wait_exit(5) == 0
    plain.close()


@pytest.mark.parametrize("again", [False, True])
def test_drain_ends_what_does_not(fake, again):
    d = fake(drain_timeout=60 if again else 1)
    s, stream, parked = d.connect(), d.open_stream("@delay=20 @loop", max_tokens=4000), d.open_stream("@stall")
    s.sendall(post_bytes("/v1/completions", request("@delay=20 @loop", max_tokens=4000)))
    wait_for(lambda: d.gauge("requests_running") == 3, 5, "all run")
    events = stream.events()
    next(events)
    d.signal()
    if again:
        time.sleep(0.2)
        d.signal()
    began = time.monotonic()
    rest = list(events)
    assert rest[-1]["error"]["type"] == "unavailable_error" and not stream.done
    assert status(read_all(s)) == 503
    assert parked.start().status == 503
    assert d.wait_exit(5) == 0 and time.monotonic() - began < 4 * SLOW
    s.close()


def test_keys(fake, tmp_path):
    keys = tmp_path / "keys"
    write_keys(keys, ["first", "second"])
    d = fake(ready=False, api_keys_file=str(keys), environment={"INFERD_API_KEY": "third"})
    d.wait_ready()
    closed = [("GET", "/v1/models"), ("GET", "/v1/models/fake"), ("GET", "/metrics"), ("GET", "/version"), ("GET", "/nowhere"),
              ("POST", "/v1/completions"), ("POST", "/v1/chat/completions"), ("POST", "/tokenize"), ("POST", "/detokenize"),
              ("GET", "/livez/"), ("GET", "//livez"), ("GET", "/livez%00"), ("DELETE", "/v1/models")]
    for method, path in closed:
        for header in (None, "Bearer", "Bearer ", "Bearer wrong", "first", "Basic first", "Bearer first2", "Bearer firs"):
            headers = {"Authorization": header} if header is not None else {}
            answer = d.request(method, path, body=b"{}" if method == "POST" else None, headers=headers)
            assert (answer.status, answer.error()["code"]) == (401, "invalid_api_key"), (method, path, header)
            assert answer.error()["type"] == "authentication_error"
    for path in ("/livez", "/readyz", "/health"):
        assert d.get(path).status == 200
    for key in ("first", "second", "third"):
        assert d.get("/v1/models", headers={"Authorization": "Bearer " + key}).status == 200
    write_keys(keys, ["fourth"])
    d.signal(signal.SIGHUP)
    wait_for(lambda: d.get("/v1/models", headers={"Authorization": "Bearer fourth"}).status == 200, 2, "the keys are read again")
    assert d.get("/v1/models", headers={"Authorization": "Bearer first"}).status == 401


def test_readyz_tells_a_stuck_engine(fake):
    d = fake(stall_timeout=1)
    s = d.open_stream("@stall")
    wait_for(lambda: d.get("/readyz").status == 503, 5, "no step for a second")
    assert "progress" in d.get("/readyz").json()["reason"]
    s.close()
    wait_for(lambda: d.get("/readyz").status == 200, 2, "it recovers")


def test_strict_requests(fake):
    d = fake(strict_requests=True)
    assert d.post("/v1/completions", request("hi", user="me")).status == 200
    answer = d.post("/v1/completions", request("hi", zzz=1))
    assert answer.status == 400 and answer.error()["param"] == "zzz"
    answer = d.post("/v1/completions", request("hi", **{"<script>": 1}))
    assert answer.status == 400 and answer.error()["param"] is None


def test_tokenize(server):
    answer = server.post("/tokenize", {"prompt": "né", "return_token_strs": True}).json()
    assert answer["tokens"] == [256, *"né".encode()] and answer["count"] == 4 and answer["token_strs"][1] == "n"
    assert server.post("/tokenize", {"prompt": "n", "add_special_tokens": False}).json()["tokens"] == [ord("n")]
    chat = server.post("/tokenize", {"messages": [{"role": "user", "content": "x"}]}).json()
    assert bytes(t for t in chat["tokens"] if t < 256) == b"user:x\nassistant:"
    assert server.post("/detokenize", {"tokens": list("né".encode())}).json() == {"prompt": "né"}
    for path, bad, param in (("/tokenize", {}, "prompt"), ("/tokenize", {"prompt": ["a"]}, "prompt"), ("/detokenize", {}, "tokens"),
                             ("/detokenize", {"tokens": [258]}, "tokens"), ("/detokenize", {"tokens": "x"}, "tokens")):
        answer = server.post(path, bad)
        assert answer.status == 400 and answer.error()["param"] == param
