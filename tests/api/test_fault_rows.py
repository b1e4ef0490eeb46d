"""What other servers are known to get wrong: a test for each report of an issue tracker or an advisory, named after it.

The life of requests and processes (c), security (f), start and packaging (g). Rows that other files hold are in the table of
tests/README.md. Most run on the null device, whose steps take as long as the test wants.
"""

import json
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

import pytest
from conftest import INFERD, SANITIZED, SLOW, Daemon, wait_for
from faults import BUILD, Faults, has_hooks, write_tiny_model
from test_cuda import MODULE
from test_keys import write_keys

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


@pytest.fixture(scope="module")
def steady_daemon(tmp_path_factory):
    """A step takes 5 ms; a prompt of 4000 tokens takes 63 of them."""
    d = Daemon(tmp_path_factory.mktemp("steady") / "log", device="null", null_step_time="5ms", max_batched_tokens=64, max_model_len=8192,
               kv_tokens=65536, max_sequences=32)
    d.wait_ready()
    yield d
    d.stop()


@pytest.fixture
def steady(steady_daemon):
    yield steady_daemon
    assert steady_daemon.running()
    steady_daemon.wait_idle()
    steady_daemon.check_identity()
    assert steady_daemon.gauge("kv_blocks_used") == 0


def live(d):
    return d.gauge("requests_running") + d.gauge("requests_waiting")


def send(d, body, path=COMPLETIONS):
    """A request whose answer nobody reads yet."""
    s = d.connect()
    data = json.dumps({"model": d.model, **body}).encode()
    s.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
    return s


# --- the life of a request and of the process


@pytest.mark.parametrize("stream", [True, False])
def test_c_llamacpp_24496_disconnect_does_not_cancel(steady, stream):
    s = send(steady, {"prompt": "hi", "max_tokens": 4000, "ignore_eos": True, "stream": stream})
    generated = steady.gauge("generation_tokens_total")
    wait_for(lambda: steady.gauge("generation_tokens_total") >= generated + 3, 5, "three tokens")
    s.close()
    began = time.monotonic()
    wait_for(lambda: live(steady) == 0, 1, "it is cancelled")
    assert time.monotonic() - began < 1 * SLOW and steady.gauge("kv_blocks_used") == 0


def test_c_ik_llamacpp_1020_no_cancel_during_prefill(steady):
    prompt = list(range(1000, 1000 + 7000))  # 110 steps, 0.55 s
    s = send(steady, {"prompt": prompt, "max_tokens": 1})
    wait_for(lambda: steady.gauge("requests_running") == 1, 5, "it runs", every=0.005)
    prompts = steady.gauge("prompt_tokens_total")
    s.close()
    began = time.monotonic()
    wait_for(lambda: live(steady) == 0, 1, "it is cancelled", every=0.005)
    assert time.monotonic() - began < 0.3 * SLOW
    assert steady.gauge("prompt_tokens_total") == prompts  # it never was computed to its end


def test_c_lmdeploy_1788_aborted_streams_leak(steady):
    """At random points of their lives; ten thousand of them by tests/soak/soak.py --requests 10000 --aborts 1."""
    rng = random.Random(1)

    def abort(n):
        for _ in range(n):
            s = send(steady, {"prompt": "x " * rng.randrange(1, 300), "max_tokens": 500, "ignore_eos": True, "stream": rng.random() < 0.5})
            time.sleep(rng.random() * 0.02)
            s.close()

    def abort_together(n):
        threads = [threading.Thread(target=abort, args=(n // 8,)) for _ in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        steady.wait_idle()

    abort_together(160)
    descriptors, resident = len(os.listdir(f"/proc/{steady.pid}/fd")), steady.resident_bytes()
    abort_together(400)
    assert steady.gauge("kv_blocks_used") == 0
    wait_for(lambda: len(os.listdir(f"/proc/{steady.pid}/fd")) <= descriptors + 1, 5, "descriptors are back")
    if not SANITIZED:
        assert steady.resident_bytes() - resident < 4 << 20


def hooked(tmp_path, **settings):
    """A daemon with fault hooks (tests/fault)."""
    program = INFERD if has_hooks() else os.path.join(BUILD, "tests", "faulty_inferd")
    if not os.path.isfile(program):
        pytest.skip("the daemon with hooks is not built")
    faults = Faults(tmp_path / "faults")
    d = Daemon(tmp_path / "hooked-log", environment=faults.environment, program=program, model=write_tiny_model(tmp_path / "tiny.gguf"),
               kv_tokens=16384, **settings)
    return d.wait_ready(), faults


def test_c_vllm_39863_health_200_while_engine_hung(tmp_path):
    d, faults = hooked(tmp_path, stall_timeout=1)
    faults.stall = 1
    began = time.monotonic()
    stream = d.open_stream("hi", max_tokens=3, ignore_eos=True)
    wait_for(lambda: d.get("/readyz").status == 503, 5, "readyz notices")
    assert time.monotonic() - began < 3 * SLOW
    assert d.get("/readyz").json()["reason"] == "the engine makes no progress"
    assert d.get("/livez").status == 200
    faults.stall = 0
    stream.text()
    assert stream.done
    wait_for(lambda: d.get("/readyz").status == 200, 5, "readyz is well again")
    d.stop()


def test_c_vllm_7633_a_hang_that_nobody_ends(tmp_path):
    """One rank here: the step itself hangs."""
    d, faults = hooked(tmp_path, stall_timeout=1, stall_exit=1.5)
    stream = d.open_stream("hi", max_tokens=300, ignore_eos=True)
    events = stream.events()
    next(events)
    faults.stall = 1
    began = time.monotonic()
    rest = list(events)
    assert d.wait_exit(20) == 4 and time.monotonic() - began < 6 * SLOW
    assert rest[-1]["error"]["type"] == "unavailable_error" and not stream.done


def test_c_gonka_1421_probes_wait_for_a_busy_engine(steady):
    streams = [steady.open_stream("hi " * 50, max_tokens=2000, ignore_eos=True) for _ in range(40)]  # 32 run, 8 wait
    wait_for(lambda: steady.gauge("requests_running") == 32, 10, "it is full")
    times = []
    for _ in range(1000):
        began = time.monotonic()
        assert steady.get("/readyz").status == 200
        times.append(time.monotonic() - began)
    assert sorted(times)[990] < 0.05 * SLOW
    for s in streams:
        s.close()


def test_c_vllm_24885_sigterm_aborts_what_runs(start):
    d = start(device="null", null_step_time="5ms", drain_timeout=60)
    streams = [d.open_stream("hi", max_tokens=100, ignore_eos=True) for _ in range(8)]
    events = [s.events() for s in streams]
    for e in events:
        next(e)
    d.signal()

    def refused():
        try:
            return d.get("/readyz").status == 503 and d.complete("hi", max_tokens=1).status == 503
        except OSError:
            return True

    wait_for(refused, 5, "readyz is 503, and so is a new request")
    for stream, rest in zip(streams, events):
        assert len(list(rest)) >= 99 and stream.done
    assert d.wait_exit() == 0


def test_c_vllm_55510_sigkill_leaves_workers(start, tmp_path):
    model = write_tiny_model(tmp_path / "tiny.gguf")
    d = start(model=model)
    for task in os.listdir(f"/proc/{d.pid}/task"):
        with open(f"/proc/{d.pid}/task/{task}/children", encoding="ascii") as f:
            assert f.read() == ""  # one process
    d.process.kill()
    assert d.process.wait(5) == -signal.SIGKILL
    again = start(ready=False, model=model, port=d.port)
    again.port = d.port
    again.wait_ready()
    assert again.complete("hi", max_tokens=1).status == 200


def test_c_vllm_50150_memory_grows(steady):
    """An hour and more of it: tests/soak/soak.py --seconds 3600 --max-growth."""
    def some(n):
        for i in range(n):
            assert steady.complete(f"{i} " * 20, max_tokens=1, n=2, logprobs=3).status == 200

    some(60)
    resident = steady.resident_bytes()
    some(120)
    if not SANITIZED:
        assert steady.resident_bytes() - resident < 2 << 20


def test_c_llamacpp_10380_a_client_reaches_abort_by_length(tmp_path, start):
    d = start(model=write_tiny_model(tmp_path / "tiny.gguf"), max_model_len=128, kv_tokens=2048, max_n=2)
    room = 128 - d.complete("hi", max_tokens=1).json()["usage"]["prompt_tokens"]
    modes = [{}, {"stream": True}, {"n": 2}, {"echo": True, "logprobs": 2}, {"prompt_logprobs": 1}, {"speculative_tokens": 4},
             {"temperature": 1, "seed": 3, "repetition_penalty": 1.1}]
    for mode in modes:
        for tokens in (room, None):  # to the last place, and as far as it goes
            body = {"model": d.model, "prompt": "hi", "temperature": 0, "ignore_eos": True, **mode, **({"max_tokens": tokens} if tokens else {})}
            if mode.get("stream"):
                stream = d.open_stream("hi", ignore_eos=True, max_tokens=room)
                assert [e["choices"][0]["finish_reason"] for e in stream.events()][-1] == "length"
                continue
            answer = d.post(COMPLETIONS, body)
            assert answer.status == 200, (mode, answer.body)
            assert {c["finish_reason"] for c in answer.json()["choices"]} == {"length"}, mode
        body = {"model": d.model, "prompt": "hi", "max_tokens": room + 1, "ignore_eos": True, **mode}
        assert d.post(COMPLETIONS, {**body, "stream": False}).status in (200, 400)  # never a 5xx
    chat = d.chat("hi", ignore_eos=True)
    assert chat.status == 200 and chat.json()["choices"][0]["finish_reason"] == "length"
    assert chat.json()["usage"]["total_tokens"] == 128
    assert d.running()


# --- security

COUNT_CONNECTS = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>
static void note(void) {
    int fd = open(getenv("CONNECTS"), O_WRONLY | O_APPEND | O_CREAT, 0600);
    if (write(fd, "x", 1) == 1) {
        close(fd);
    }
}
int connect(int fd, const struct sockaddr *a, socklen_t n) {
    note();
    return ((int (*)(int, const struct sockaddr *, socklen_t))dlsym(RTLD_NEXT, "connect"))(fd, a, n);
}
ssize_t sendto(int fd, const void *p, size_t n, int flags, const struct sockaddr *a, socklen_t an) {
    if (a) {
        note();
    }
    return ((ssize_t (*)(int, const void *, size_t, int, const struct sockaddr *, socklen_t))dlsym(RTLD_NEXT, "sendto"))(fd, p, n, flags, a, an);
}
"""


@pytest.mark.skipif(not shutil.which("cc") or SANITIZED, reason="needs a compiler, and a daemon without sanitizers")
def test_f_vllm_57157_media_url_makes_the_server_connect(tmp_path):
    source, library, counts = tmp_path / "count.c", tmp_path / "count.so", tmp_path / "connects"
    source.write_text(COUNT_CONNECTS)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    environment = {"LD_PRELOAD": str(library), "CONNECTS": str(counts)}
    # that it counts
    subprocess.run([INFERD, "healthcheck", "--url=http://127.0.0.1:1"], env={**os.environ, **environment}, capture_output=True, check=False)
    assert counts.read_text() == "x"
    counts.unlink()
    d = Daemon(tmp_path / "log", environment=environment, model=write_tiny_model(tmp_path / "tiny.gguf"), kv_tokens=4096)
    try:
        d.wait_ready()
        with socket.create_server(("127.0.0.1", 0)) as target:
            target.settimeout(0.1)
            place = f"127.0.0.1:{target.getsockname()[1]}"
            urls = [f"http://{place}/cat.png", f"https://{place}/", "file:///etc/passwd", "data:image/png;base64,AAAA", "http://169.254.169.254/"]
            for url in urls:
                parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "input_audio", "input_audio": {"data": url, "format": "wav"}},
                         {"type": "file", "file": {"file_data": url}}, {"type": "video_url", "video_url": {"url": url}}]
                for part in parts:
                    messages = [{"role": "user", "content": [{"type": "text", "text": "what is it?"}, part]}]
                    answer = d.post(CHAT, {"model": d.model, "messages": messages})
                    assert answer.status == 400 and answer.error()["param"], (part, answer.body)
                    assert url not in answer.error()["message"]
                # and where it is only text
                d.post(CHAT, {"model": d.model, "max_tokens": 1, "messages": [{"role": "user", "content": f"![x]({url})"}], "webhook": url, "user": url})
            with pytest.raises(TimeoutError):
                target.accept()
    finally:
        d.stop()
    assert not counts.exists()


def test_f_vllm_17045_prefix_cache_tells_what_others_asked(start, tmp_path):
    keys = write_keys(tmp_path / "keys", {"a": ("key-a", {}), "b": ("key-b", {})})
    d = start(device="null", max_model_len=8192, api_keys_file=keys)
    prompt = "The sea is wide and deep. " * 600

    def cached(key):
        d.key = key
        usage = d.complete(prompt, max_tokens=1).json()["usage"]
        assert usage["prompt_tokens"] >= 4000
        return usage["prompt_tokens_details"]["cached_tokens"]

    assert cached("key-a") == 0 and cached("key-a") >= 4000
    assert cached("key-b") == 0
    assert cached("key-b") >= 4000


def test_f_vllm_5907_prompt_logprobs_take_memory_without_bound(start, tmp_path):
    d = start(model=write_tiny_model(tmp_path / "tiny.gguf"), max_model_len=512, kv_tokens=8192)
    full = [5] * 511
    asks = [{"prompt": full, "echo": True, "logprobs": 5, "max_tokens": 1}, {"prompt": [full] * 2, "prompt_logprobs": 20, "max_tokens": 1}]
    for fields in asks:
        assert d.post(COMPLETIONS, {"model": d.model, **fields}).status == 200
    m = d.metrics()

    def total(name):
        return sum(v for (series, _), v in m.items() if series == name)

    assert 0 < total("inferd_memory_used_bytes") <= total("inferd_memory_planned_bytes")
    resident = d.resident_bytes()
    for fields in asks:
        assert d.post(COMPLETIONS, {"model": d.model, **fields}).status == 200
    if not SANITIZED:
        assert d.resident_bytes() - resident < 16 << 20


def gguf(n_tensors, n_kv, rest=b""):
    return b"GGUF" + struct.pack("<IQQ", 3, n_tensors, n_kv) + rest


def text(s):
    return struct.pack("<Q", len(s)) + s


HOSTILE_HEADERS = {
    "kv count": gguf(0, 2**32),
    "tensor count": gguf(2**63, 0),
    "string length": gguf(0, 1, struct.pack("<Q", 2**63)),
    "value length": gguf(0, 1, text(b"a") + struct.pack("<IQ", 8, 2**62)),
    "array length": gguf(0, 1, text(b"a") + struct.pack("<IIQ", 9, 4, 2**61)),
    "array of arrays": gguf(0, 1, text(b"a") + struct.pack("<IIQ", 9, 9, 1) + struct.pack("<IQ", 9, 2**32) * 100),
    "dimensions": gguf(1, 0, text(b"t") + struct.pack("<IQQQQIQ", 4, 2**32, 2**32, 2**32, 2**32, 0, 0)),
}


# A program run by a small process: what is counted begins with the size of whoever starts it, and these tests are large.
MOST_MEMORY = """
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:], stdout=sys.stderr).returncode
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(code)
"""


@pytest.mark.parametrize("name", HOSTILE_HEADERS)
def test_f_ds4_545_counts_in_a_model_header_allocate(tmp_path, name):
    model, log = tmp_path / "hostile.gguf", tmp_path / "log"
    model.write_bytes(HOSTILE_HEADERS[name])
    with open(log, "wb") as out:
        p = subprocess.run([sys.executable, "-c", MOST_MEMORY, INFERD, "serve", str(model), "--port=0"], stdout=subprocess.PIPE, stderr=out)
    last = log.read_text().splitlines()[-1]
    assert p.returncode == 78 and str(model) in last and "offset" in last, last
    if not SANITIZED:
        assert int(p.stdout) < 50 << 10


# --- start and packaging


@pytest.mark.parametrize("utilization", ["0.01", "0.5", "0.98"])
def test_g_vllm_57475_out_of_memory_after_kv_was_sized(tmp_path, utilization):
    """On the CPU: ready with all that will ever be used, or one sentence; nothing is taken afterwards."""
    d = Daemon(tmp_path / "log", model=write_tiny_model(tmp_path / "tiny.gguf"), memory_utilization=utilization, max_sequences=64)

    def decided():
        try:
            return not d.running() or d.get("/readyz").status == 200
        except OSError:
            return False

    wait_for(decided, 60, "ready, or an error")
    if not d.running():
        assert d.process.returncode == 3 and "memory" in d.log_text().splitlines()[-1]
        return
    used = d.gauge("memory_used_bytes")
    assert 0 < used <= d.gauge("memory_planned_bytes")
    streams = [d.open_stream(f"{i}", max_tokens=40, ignore_eos=True) for i in range(64)]
    for s in streams:
        s.text()
        assert s.done
    assert d.gauge("memory_used_bytes") == used
    d.stop()


needs_emulator = pytest.mark.skipif(not os.path.exists(MODULE), reason="the emulated CUDA module is not built")


def on_a_device(tmp_path, emu, **settings):
    return Daemon(tmp_path / "log", environment={"INFERD_EMU": "fast,memory=512M" + emu}, model=write_tiny_model(tmp_path / "tiny.gguf"),
                  kv_tokens=4096, device="cuda", cuda_module=MODULE, max_sequences=4, max_batched_tokens=32, **settings)


@needs_emulator
def test_g_nixpkgs_331069_silent_fallback_to_the_cpu(tmp_path):
    d = on_a_device(tmp_path, ",devices=0")
    assert d.wait_exit(20) == 4
    assert "serving" not in d.log_text() and "device" in d.log_text().splitlines()[-1]


def lose_device(tmp_path, emu):
    trigger = tmp_path / "trigger"
    d = on_a_device(tmp_path, f",inject={emu},trigger={trigger}").wait_ready()
    stream = d.open_stream("hi", max_tokens=300, ignore_eos=True)
    events = stream.events()
    next(events)
    trigger.touch()
    began = time.monotonic()
    rest = list(events)
    probe = d.get("/readyz")
    assert probe.status == 503 and probe.json()["reason"].startswith("the device is lost: ")
    assert d.wait_exit(20) == 4 and time.monotonic() - began < 5 * SLOW
    assert rest[-1]["error"]["type"] == "unavailable_error" and not stream.done


@needs_emulator
def test_g_nvidia_container_toolkit_48_device_is_taken_away(tmp_path):
    lose_device(tmp_path, "sync:1:46")  # cudaErrorDevicesUnavailable


@needs_emulator
def test_g_ollama_7771_process_lingers_after_a_sticky_error(tmp_path):
    lose_device(tmp_path, "launch:1:719")  # cudaErrorLaunchFailure
