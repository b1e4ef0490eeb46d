"""`inferd eval` and `inferd bench`: what they tell, what they refuse, and servers that are no servers."""

import json
import math
import os
import socket
import subprocess
import threading
import time

import pytest
from conftest import INFERD, SLOW, free_port
from faults import write_tiny_model
from test_cli import refused, run

TEXT = "".join(f"Line {i}: it was a dark and stormy night; the rain fell in torrents.\n" for i in range(40))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("measure")


@pytest.fixture(scope="module")
def tiny(folder):
    return write_tiny_model(folder / "tiny.gguf")


@pytest.fixture(scope="module")
def text(folder):
    path = folder / "text.txt"
    path.write_text(TEXT)
    return str(path)


def last_line(done):
    assert done.returncode == 0, done.err
    return json.loads(done.out.splitlines()[-1])


def evaluate(tiny, text, *more):
    return last_line(run("eval", tiny, "--text", text, "--json", "--threads=2", *more))


# --- eval


def test_a_whole_window_is_what_the_prompt_logprobs_say(tiny, text, start):
    """One window over the first tokens: its perplexity is that of the logprobs which the server tells of the same prompt."""
    daemon = start(model=tiny)
    n = 200
    answer = daemon.post("/v1/completions", {"model": daemon.model, "prompt": list(TEXT[:n].replace("ab", "##").encode()), "max_tokens": 1,
                                             "echo": True, "logprobs": 1, "temperature": 0}).json()
    logprobs = [x for x in answer["choices"][0]["logprobs"]["token_logprobs"][:n] if x is not None]
    assert len(logprobs) == n - 1
    path = os.path.join(os.path.dirname(text), "plain.txt")
    with open(path, "w", encoding="ascii") as f:
        f.write(TEXT[:n].replace("ab", "##"))
    got = evaluate(tiny, path, "--context=256", "--bos=off")
    assert got["tokens"] == n - 1 and got["windows"] == 1 and got["done"] is True
    assert got["nll"] == pytest.approx(-sum(logprobs) / len(logprobs), rel=1e-4)
    assert got["perplexity"] == pytest.approx(math.exp(got["nll"]), rel=1e-6)


def test_windows_stream_and_count_every_token_once(tiny, text):
    done = run("eval", tiny, "--text", text, "--context=64", "--stride=16", "--json")
    lines = [json.loads(line) for line in done.out.splitlines()]
    n = int(run("tokenize", "-m", tiny, "--count", stdin=TEXT).out)
    assert [x["windows"] for x in lines] == list(range(1, len(lines) + 1))
    assert [x["done"] for x in lines] == [False] * (len(lines) - 1) + [True]
    assert lines[-1]["tokens"] == n - 1 and lines[0]["tokens"] == 63
    assert all(b["tokens"] - a["tokens"] <= 16 for a, b in zip(lines, lines[1:]))
    with_bos = evaluate(tiny, text, "--context=64", "--stride=16", "--bos=on")
    assert with_bos["tokens"] == n and with_bos["bos"] is True
    cut = evaluate(tiny, text, "--context=64", "--max-tokens=100")
    assert cut["tokens"] == 99 and cut["stride"] == 32


def test_against_itself_nothing_differs(tiny, text):
    got = evaluate(tiny, text, "--context=64", "--max-tokens=300", "--against-kv-dtype=f16")
    assert got["kl_max"] == 0 and got["top1"] == 1 and got["ratio"] == 1
    other = evaluate(tiny, text, "--context=64", "--max-tokens=300", "--against-kv-dtype=bf16")
    assert 0 < other["kl_mean"] <= other["kl_max"] and other["kl_median"] <= other["kl_p99"] <= other["kl_max"]
    assert other["perplexity"] == got["perplexity"]


def test_a_recorded_reference_says_what_a_second_runner_does(tiny, text, folder):
    reference = str(folder / "all.ref")
    options = ("--context=64", "--max-tokens=300")
    recorded = evaluate(tiny, text, *options, "--kv-dtype=bf16", "--record", reference, "--record-top=4096")
    by_file = evaluate(tiny, text, *options, "--reference", reference)
    by_runner = evaluate(tiny, text, *options, "--against-kv-dtype=bf16")
    for field in ("perplexity", "reference_perplexity", "ratio", "top1", "kl_mean", "kl_median", "kl_p99", "kl_max"):
        assert by_file[field] == pytest.approx(by_runner[field], rel=1e-3, abs=1e-6), field
    assert by_file["reference_perplexity"] == pytest.approx(recorded["perplexity"], rel=1e-6)
    assert not os.path.exists(reference + ".partial")
    for n in (1, 16):  # fewer ids tell no more than there is
        evaluate(tiny, text, *options, "--kv-dtype=bf16", "--record", reference, f"--record-top={n}")
        assert evaluate(tiny, text, *options, "--reference", reference)["kl_mean"] <= by_runner["kl_mean"] + 1e-6


def test_what_eval_refuses(tiny, text, folder):
    reference = str(folder / "some.ref")
    evaluate(tiny, text, "--context=64", "--max-tokens=100", "--record", reference)
    same = ["eval", tiny, "--text", text, "--context=64", "--max-tokens=100", "--reference", reference]
    assert run(*same).returncode == 0
    refused(run("eval", tiny), 2, "--text")
    refused(run("eval", tiny, "--text", "/nowhere"), 1, "/nowhere")
    refused(run("eval", "/nowhere", "--text", text), 78)
    refused(run("eval", tiny, "--text", text, "--context=64", "--stride=65"), 2, "stride")
    refused(run("eval", tiny, "--text", text, "--context=1"), 2, "context")
    refused(run("eval", tiny, "--text", "-", stdin="x"), 2, "few tokens")
    refused(run("eval", tiny, "--text", text, "--device=null"), 78, "null")
    refused(run("eval", tiny, "--text", text, "--against-kv-dtype=f16", "--reference", reference), 2, "two references")
    refused(run("eval", tiny, "--text", text, "--record", reference, "--reference", reference), 2, "--record")
    refused(run("eval", tiny, "--text", text, "--against-model=/nowhere"), 78)
    refused(run("eval", tiny, "--text", text, "--against-weights=int3"), 78, "weights must be")
    refused(run("eval", tiny, "--text", text, "--record", "/nowhere/x"), 1, "/nowhere")
    refused(run(*same[:4], "--context=60", *same[5:]), 78, "context or stride")
    refused(run(*same[:5], "--max-tokens=99", *same[6:]), 78, "text")
    refused(run(*same, "--bos=on"), 78, "BOS")
    data = bytearray(open(reference, "rb").read())
    with open(reference, "wb") as f:
        f.write(data[:-1])
    refused(run(*same), 78, "size")
    data[232:236] = (255).to_bytes(4, "little")  # another first token
    with open(reference, "wb") as f:
        f.write(data)
    assert run(*same).returncode == 78


# --- bench: a model


def bench(*arguments):
    done = run("bench", *arguments, "--json", "--repeat=2", timeout=120)
    assert done.returncode == 0, done.err
    return json.loads(done.out)


def test_bench_of_a_model_and_its_profile(tiny):
    report = bench(tiny, "--prefill=16,40", "--prefill-streams=1,3", "--decode-streams=1,5", "--context=8,20", "--generate=4", "--profile", "--threads=2")
    names = [row["name"] for row in report["rows"]]
    assert len(names) == len(set(names)) == 8
    assert report["limits"]["read_bytes_per_s"] > 0 and report["limits"]["f32_ops_per_s"] > 0
    assert report["scaled"] is False and report["random_weights"] is False
    for row in report["rows"]:
        speed = row["tokens_per_second"]
        assert 0 < speed["min"] <= speed["median"] <= speed["max"]
        assert row["read_share"] == pytest.approx(row["bytes_per_second"]["median"] / report["limits"]["read_bytes_per_s"], rel=1e-3, abs=2e-5)
        ops = row["profile"]["ops"]
        layers = report["layers"]
        steps = 4 if row["kind"] == "decode" else 1
        assert ops["attention"]["calls"] == layers * steps
        assert ops["linear"]["calls"] == (4 * layers + 1) * steps
        shares = sum(op["share"] for op in ops.values()) + row["profile"]["sampling_share"] + row["profile"]["other_share"]
        assert shares == pytest.approx(1, abs=1e-3)


def test_bytes_and_operations_are_those_of_the_shape():
    """By hand, for smol in Q8_0: 30 layers, 576, 1536, 9 and 3 heads of 64, 32000 tokens, tied."""
    report = bench("--shape=smol:q8_0", "--prefill=", "--decode-streams=2", "--context=10", "--generate=1", "--no-limits", "--threads=2")
    layer = 576 * (9 * 64) * 2 + 576 * (3 * 64) * 2 + 3 * 576 * 1536
    row = report["rows"][0]
    assert report["random_weights"] is True and report["weight_type"] == "Q8_0" and report["layers"] == 30
    assert report["parameters"] == 30 * layer + 32000 * 576
    assert report["weight_bytes"] == (30 * layer + 32000 * 576) // 32 * 34
    seconds = 2 / row["tokens_per_second"]["median"]  # both streams' token in one step, which sees 11 keys
    operations = 2 * (2 * (30 * layer + 32000 * 576) + 30 * 4 * 11 * 9 * 64)
    moved = report["weight_bytes"] + 2 * (576 // 32 * 34) + 2 * 11 * 30 * 2 * 3 * 64 * 2
    assert row["operations_per_second"]["median"] * seconds == pytest.approx(operations, rel=0.05)
    assert row["bytes_per_second"]["median"] * seconds == pytest.approx(moved, rel=0.05)


@pytest.mark.parametrize("kind", ["bf16", "f16", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k", "q5_k", "q6_k"])
def test_shapes_of_every_type_compute(kind):
    if kind.endswith("_k"):  # 576 is no multiple of 256: these types go with the larger shapes
        refused(run("bench", f"--shape=smol:{kind}", "--prefill=1", "--decode-streams="), 2, "256")
        return
    report = bench(f"--shape=smol:{kind}", "--prefill=4", "--decode-streams=", "--no-limits", "--repeat=1")
    assert report["weight_type"] == kind.upper() and report["rows"][0]["tokens_per_second"]["median"] > 0


def test_what_bench_refuses(tiny, folder):
    refused(run("bench"), 78, "model")
    refused(run("bench", tiny, "--shape=smol"), 2, "--shape")
    refused(run("bench", "--shape=huge"), 2, "llama-70b")
    refused(run("bench", "--shape=smol:q3"), 2, "q4_0")
    refused(run("bench", tiny, "--prefill=0"), 2, "prefill")
    refused(run("bench", tiny, "--prefill=,"), 2, "prefill")
    refused(run("bench", tiny, "--prefill=", "--decode-streams="), 2, "--prefill")
    refused(run("bench", tiny, "--prefill=999999", "--decode-streams="), 78, "2048")
    refused(run("bench", "--url=ftp://x"), 2, "http://")
    refused(run("bench", tiny, "--url=http://127.0.0.1:1"), 2, "--url")
    refused(run("bench", "--url=http://127.0.0.1:1"), 1, "connection")
    refused(run("bench", "--url=http://127.0.0.1:1", "--key=a b"), 2, "key")
    refused(run("bench", "--url=http://127.0.0.1:1", "--prompt-tokens=9-1"), 2, "prompt_tokens")
    refused(run("bench", "--compare", "a"), 2, "BEFORE AFTER")
    refused(run("bench", "--compare", "/nowhere", "/nowhere"), 1, "/nowhere")


def test_compare_tells_the_noise(folder):
    def report(name, rows):
        path = folder / name
        path.write_text(json.dumps({"inferd_bench": 1, "rows": [
            {"name": n, "tokens_per_second": {"median": m, "min": a, "max": b}, "ttft_p50": {"median": 1 / m, "min": 1 / b, "max": 1 / a}}
            for n, (m, a, b) in rows.items()]}))
        return str(path)

    before = report("before.json", {"same": (100, 90, 110), "faster": (100, 90, 110), "slower": (100, 90, 110), "gone": (1, 1, 1)})
    after = report("after.json", {"same": (108, 105, 115), "faster": (200, 190, 210), "slower": (50, 45, 55), "new": (1, 1, 1)})
    done = run("bench", "--compare", before, after, "--json")
    rows = {(r["name"], r["metric"]): r for r in json.loads(done.out)["rows"]}
    assert {k: r["verdict"] for k, r in rows.items()} == {
        ("same", "tokens_per_second"): "within the noise", ("same", "ttft_p50"): "within the noise",
        ("faster", "tokens_per_second"): "better", ("faster", "ttft_p50"): "better",
        ("slower", "tokens_per_second"): "worse", ("slower", "ttft_p50"): "worse",
    }
    assert rows["faster", "tokens_per_second"]["ratio"] == 2
    assert rows["faster", "tokens_per_second"]["ratio_min"] == pytest.approx(190 / 110, rel=1e-4)
    table = run("bench", "--compare", before, after).out
    assert "gone" in table and "only in the first" in table and "only in the second" in table
    for bad in ("", "[]", "{}", '{"inferd_bench": 1}', '{"inferd_bench": 1, "rows": 7}', '{"rows": []}', "{" * 1000, "\xff"):
        (folder / "bad.json").write_text(bad, encoding="latin-1")
        refused(run("bench", "--compare", before, str(folder / "bad.json")), 2)
    odd = '{"inferd_bench": 1, "rows": [7, null, {}, {"name": 3}, {"name": "same", "tokens_per_second": {"median": "x"}},' \
          ' {"name": "same", "tokens_per_second": {"median": 1, "min": 2, "max": -1e999}}]}'
    (folder / "bad.json").write_text(odd)
    assert json.loads(run("bench", "--compare", before, str(folder / "bad.json"), "--json").out)["rows"] == []


# --- bench: a server


def load(url, *more):
    return run("bench", "--url", url, "--json", "--repeat=1", "--prompt-ids=0-255", *more, timeout=120)


def test_a_closed_loop_and_arrivals(tiny, start):
    daemon = start(model=tiny)
    url = f"http://127.0.0.1:{daemon.port}"
    done = load(url, "--streams=4", "--requests=30", "--prompt-tokens=8-40", "--output-tokens=12")
    assert done.returncode == 0, done.err
    row = json.loads(done.out)["rows"][0]
    assert row["started"] == row["finished"] == row["good"] == 30 and set(row["errors"].values()) == {0}
    assert row["tokens"] == 30 * 12  # by the server's own count, end ids included
    assert 0 < row["ttft_p50"]["median"] <= row["ttft_p99"]["median"] <= row["e2e_p99"]["median"]
    metrics = daemon.get("/metrics").body.decode()
    assert 'prompt_tokens_total' in metrics
    done = load(f"http://localhost:{daemon.port}/", "--rate=40", "--warmup=0.3s", "--duration=1.5s", "--output-tokens=4", "--ttft-limit=60s")
    row = json.loads(done.out)["rows"][0]
    assert 25 <= row["started"] <= 100 and row["finished"] == row["good"] == row["started"]
    done = load(url, "--requests=3", "--ttft-limit=1ms", "--itl-limit=1ms", "--output-tokens=40")
    assert json.loads(done.out)["rows"][0]["finished"] == 3


def test_errors_are_counted_and_shown(tiny, start):
    daemon = start(model=tiny)
    done = run("bench", f"--url=http://127.0.0.1:{daemon.port}", "--requests=5", "--repeat=1", "--prompt-ids=5000-6000")
    assert done.returncode == 1 and "5 other 4xx" in done.out and "token ids" in done.out
    assert done.err == "inferd: no request ended well\n"


class Impostor:
    """Answers every connection with the same bytes."""

    def __init__(self, answer, stay=False):
        self.answer, self.stay = answer, stay
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.held = []
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            threading.Thread(target=self.answer_one, args=(connection,), daemon=True).start()

    def answer_one(self, connection):
        try:
            connection.recv(65536)
            for part in self.answer() if callable(self.answer) else [self.answer]:
                connection.sendall(part)
            if self.stay:
                self.held.append(connection)
                return
        except OSError:
            pass
        connection.close()


STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def endless(part):
    def parts():
        yield STREAM + b"100000\r\ndata: "
        for _ in range(2000):
            yield part * 1024
    return parts


@pytest.mark.parametrize("answer", [
    b"", b"hello\n", b"\x00" * 5000, b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n",
    STREAM + b"zz\r\n", STREAM + b"ffffffffffffffff\r\nx", STREAM + b"0\r\n\r\n", STREAM + b"6\r\ndata: \r\n",
    STREAM + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n", endless(b"x" * 1024), b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200000,
], ids=range(12))
def test_impostors_are_counted_as_errors(answer):
    impostor = Impostor(answer)
    done = load(f"http://127.0.0.1:{impostor.port}", "--requests=6", "--streams=3", "--served-model=x", "--request-limit=20s")
    impostor.socket.close()
    assert done.returncode == 1 and done.err == "inferd: no request ended well\n", (done.out, done.err)
    row = json.loads(done.out)["rows"][0]
    assert row["started"] == 6 and row["finished"] == 0 and sum(row["errors"].values()) == 6


def test_a_server_that_says_nothing_is_given_up():
    impostor = Impostor(STREAM, stay=True)
    began = time.monotonic()
    done = load(f"http://127.0.0.1:{impostor.port}", "--requests=4", "--streams=4", "--served-model=x", "--request-limit=500ms")
    impostor.socket.close()
    assert json.loads(done.out)["rows"][0]["errors"]["timeout"] == 4
    assert time.monotonic() - began < 20 * SLOW


def test_a_model_is_asked_for_and_may_be_missing():
    impostor = Impostor(b'HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}')
    refused(run("bench", f"--url=http://127.0.0.1:{impostor.port}"), 1, "names no model")
    impostor.socket.close()
