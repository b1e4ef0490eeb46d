"""The life of the process and of a request: loading, hang-ups, queues, idling, draining."""

import json
import os
import signal
import subprocess
import time

import pytest
from conftest import INFERD, MODEL, SLOW, Daemon, free_port, wait_for


def long_request(d, **fields):
    return d.open_stream("Once upon a time", max_tokens=1500, ignore_eos=True, **fields)


def test_probes_while_loading(start):
    d = start(ready=False)
    seen = set()

    def ready():
        assert d.running(), d.log_text()[-2000:]
        try:
            answer = d.get("/readyz")
        except OSError:
            return False
        seen.add(answer.status)
        if answer.status == 503:
            assert answer.headers["retry-after"] and answer.json()
            refusal = d.post("/v1/completions", {"model": "x", "prompt": "hi"})
            if refusal.status != 404:  # it may have become ready between the two
                assert refusal.status == 503 and refusal.error()["type"] == "unavailable_error"
                assert int(refusal.headers["retry-after"]) >= 1
            assert d.get("/livez").status == 200
        return answer.status == 200

    wait_for(ready, 60, "readyz answers 200", every=0.002)
    assert seen <= {200, 503}
    assert d.get("/health").status == 200


def test_sigterm_idle(start):
    d = start()
    began = time.monotonic()
    d.signal(signal.SIGTERM)
    assert d.wait_exit(10) == 0
    assert time.monotonic() - began < 3 * SLOW
    with pytest.raises(OSError):
        d.connect()


def test_sigterm_drains(start):
    d = start(drain_timeout=300)
    expected = d.complete("The sea", max_tokens=60, ignore_eos=True).json()["choices"][0]["text"]
    streams = [d.open_stream("The sea", max_tokens=60, ignore_eos=True) for _ in range(8)]
    events = [s.events() for s in streams]
    first = [next(e)["choices"][0]["text"] for e in events]
    d.signal(signal.SIGTERM)
    wait_for(lambda: refuses(d), 5, "new requests are refused")
    for i, stream in enumerate(streams):
        text = first[i] + "".join(e["choices"][0]["text"] for e in events[i] if e["choices"])
        assert text == expected and stream.done
    assert d.wait_exit(60) == 0


def refuses(d):
    """While it drains: 503, or no connection any more."""
    try:
        answer = d.post("/v1/completions", {"model": d.model, "prompt": "hi", "max_tokens": 1})
        probe = d.get("/readyz")
    except OSError:
        return True
    if answer.status != 503:
        return False
    assert answer.error()["type"] == "unavailable_error" and answer.headers["retry-after"]
    assert probe.status == 503
    return True


def test_drain_timeout(start):
    d = start(drain_timeout=1)
    stream = long_request(d)
    events = stream.events()
    next(events)
    d.signal(signal.SIGTERM)
    rest = list(events)
    # cut short: an error event, and no [DONE] that would make it look whole
    assert "error" in rest[-1] and not stream.done
    assert d.wait_exit(10) == 0


def test_second_sigterm(start):
    d = start(drain_timeout=60)
    stream = long_request(d)
    next(stream.events())
    d.signal(signal.SIGTERM)
    time.sleep(0.3)
    began = time.monotonic()
    d.signal(signal.SIGTERM)
    d.process.wait(10 * SLOW)
    assert time.monotonic() - began < 3 * SLOW
    stream.close()


def test_sigint_ends_too(start):
    d = start()
    d.signal(signal.SIGINT)
    assert d.wait_exit(10) == 0


def finished(d, prefix):
    return sum(
        v for (n, labels), v in d.metrics().items()
        if n == "inferd_requests_finished_total" and dict(labels)["reason"].startswith(prefix)
    )


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("reset", [False, True])
def test_a_client_that_leaves(start, stream, reset):
    d = start()
    assert d.gauge("requests_running") == 0
    s = d.connect()
    body = json.dumps({"model": d.model, "prompt": "Once", "max_tokens": 1500, "ignore_eos": True, "stream": stream}).encode()
    s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    wait_for(lambda: d.gauge("requests_running") == 1, 5, "it runs", every=0.005)
    time.sleep(0.1)
    if reset:
        import socket

        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    s.close()
    wait_for(lambda: d.gauge("requests_running") == 0, 1, "its sequence is freed within a step", every=0.005)
    assert finished(d, "cancel") == 1
    assert sum(v for (n, _), v in d.metrics().items() if n == "vllm:kv_cache_usage_perc") == 0
    made = sum(v for (n, _), v in d.metrics().items() if n == "vllm:generation_tokens_total")
    time.sleep(0.2)
    assert made == sum(v for (n, _), v in d.metrics().items() if n == "vllm:generation_tokens_total"), "it went on for nobody"


def test_a_pipelined_request_is_no_hang_up(start):
    d = start()
    body = json.dumps({"model": d.model, "prompt": "The sea", "max_tokens": 60, "ignore_eos": True, "temperature": 0}).encode()
    one = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    import http.client

    with d.connect() as s:
        s.sendall(one)
        time.sleep(0.05)
        s.sendall(one)
        texts = []
        for _ in range(2):
            response = http.client.HTTPResponse(s, method="POST")
            response.begin()
            assert response.status == 200
            texts.append(json.loads(response.read())["choices"][0]["text"])
    assert texts[0] == texts[1]
    assert finished(d, "cancel") == 0


def test_many_requests_on_one_connection(daemon):
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=30)
    for _ in range(200):
        connection.request("GET", "/livez")
        response = connection.getresponse()
        assert response.status == 200
        response.read()
        assert connection.sock is not None, "the connection was closed"
    connection.close()


def test_parked_requests_cost_no_cpu(start):
    """200 streams wait for a stopped engine... here: for one long request, with the engine's own share measured apart."""
    d = start(max_sequences=1, max_waiting=300, threads=1, max_connections=400)
    busy = long_request(d)
    busy_events = busy.events()
    next(busy_events)
    parked = [d.open_stream("hi", max_tokens=1) for _ in range(200)]
    wait_for(lambda: d.gauge("requests_waiting") == 200, 10, "200 requests wait")
    time.sleep(0.3)
    before = threads_cpu(d.pid)
    began = time.monotonic()
    time.sleep(2)
    share = {t: (after - before.get(t, 0)) / (time.monotonic() - began) for t, after in threads_cpu(d.pid).items()}
    # the main thread is the loop: it writes the one running stream, and nothing for the 200
    assert share[d.pid] < 0.10, share
    for stream in parked:
        stream.close()
    busy.close()
    d.wait_idle()
    time.sleep(0.2)
    before = d.cpu_seconds()
    time.sleep(2)
    assert d.cpu_seconds() - before < 0.05, "an idle daemon uses the processor"


def threads_cpu(pid):
    """Seconds of processor time of each thread."""
    seconds = {}
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/stat", encoding="ascii") as f:
            fields = f.read().rpartition(")")[2].split()
        seconds[int(task)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return seconds


def test_a_full_queue(start):
    d = start(max_sequences=1, max_waiting=4)
    busy = long_request(d)
    next(busy.events())
    waiting = [d.open_stream("hi", max_tokens=2) for _ in range(4)]
    wait_for(lambda: d.gauge("requests_waiting") == 4, 5, "four requests wait")
    rejected = d.gauge("requests_rejected_total")
    for _ in range(10):
        began = time.monotonic()
        answer = d.complete("hi", max_tokens=1)
        assert time.monotonic() - began < 3 * SLOW  # at once, not when the queue moves
        assert answer.status == 429 and answer.error()["code"] == "queue_full" and answer.error()["type"] == "rate_limit_error"
        assert int(answer.headers["retry-after"]) >= 1
    assert d.gauge("requests_rejected_total") == rejected + 10
    busy.close()
    for stream in waiting:  # those accepted are served
        list(stream.events())
        assert stream.done
        stream.close()


def test_probes_answer_under_load(start):
    d = start()
    streams = [long_request(d) for _ in range(16)]
    for s in streams:
        next(s.events())
    times = []
    for _ in range(100):
        began = time.monotonic()
        assert d.get("/readyz").status == 200 and d.get("/livez").status == 200
        times.append((time.monotonic() - began) / 2)
    assert sorted(times)[98] < 0.5 * SLOW
    for s in streams:
        s.close()


def test_version(daemon):
    version = daemon.get("/version").json()
    assert version["version"] and "libmicrohttpd" in json.dumps(version)


def run_serve(*arguments):
    return subprocess.run([INFERD, "serve", *arguments], capture_output=True, text=True, timeout=60 * SLOW, check=False)


def test_exit_codes(tmp_path):
    port = str(free_port())
    assert run_serve("--no-such-flag").returncode == 2
    assert run_serve("--model", MODEL, "--port", "99999").returncode == 2
    missing = run_serve("--model", str(tmp_path / "none.gguf"), "--port", port)
    assert missing.returncode == 78 and "none.gguf" in missing.stderr
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\xff" * 20)
    ended = run_serve("--model", str(broken), "--port", port)
    assert ended.returncode == 78 and "broken.gguf" in ended.stderr and "offset" in ended.stderr
    public = run_serve("--model", MODEL, "--host", "0.0.0.0", "--port", port)
    assert public.returncode == 78 and "insecure" in public.stderr


def test_a_port_in_use(daemon):
    ended = run_serve("--model", MODEL, "--port", str(daemon.port))
    assert ended.returncode == 1 and str(daemon.port) in ended.stderr


def test_a_public_address_with_a_key(start):
    d = start(ready=False, host="0.0.0.0", api_key="sesame")
    d.key = "sesame"
    d.wait_ready()
    assert d.get("/v1/models").status == 200


def test_settings_from_the_environment(tmp_path):
    d = Daemon(tmp_path / "log", environment={"INFERD_MAX_MODEL_LEN": "256", "INFERD_KV_TOKENS": "4096"})
    try:
        d.wait_ready()
        assert d.get("/v1/models").json()["data"][0]["max_model_len"] == 256
    finally:
        d.stop()
