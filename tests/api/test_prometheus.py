"""The metrics page before Prometheus's own programs: promtool's rules, a server that scrapes it, the alerts and the board."""

import json
import os
import re
import subprocess
import threading
import time
import urllib.parse
import urllib.request

import exposition
import prometheus
import pytest
from conftest import INFERD, ROOT, SLOW, free_port, wait_for
from faults import BUILD, write_tiny_model
from test_metrics import check_identity, family, total


@pytest.fixture
def tiny(start, tmp_path):
    """A daemon on a tiny model."""
    return lambda **settings: start(model=write_tiny_model(tmp_path / "tiny.gguf"), max_model_len=None, kv_tokens=4096, **settings)


def promtool(*arguments, text=None):
    return subprocess.run([prometheus.program("promtool"), *arguments], input=text, capture_output=True, text=True, timeout=60 * SLOW)


def complaints(page):
    done = promtool("check", "metrics", text=page)
    assert done.returncode in (0, 3), done.stderr  # 3: names against its rules; 1: it cannot read the page
    return set(done.stderr.strip().splitlines())


def expected_complaints(page):
    """The colons of the names that another server chose, and its one misnamed histogram."""
    families = exposition.check(page)
    colons = {f"{f} metric names should not contain ':'" for f in families if f.startswith("vllm:")}
    assert colons
    return colons | {'vllm:iteration_tokens_total non-counter metrics should not have "_total" suffix'}


def test_promtool_check_metrics(tiny):
    d = tiny(max_sequences=2, max_waiting=8)
    first = d.get("/metrics").body.decode()
    assert complaints(first) == expected_complaints(first)
    streams = [d.open_stream("hi", max_tokens=60, ignore_eos=True) for _ in range(6)]
    next(streams[0].events())
    d.complete("hi", max_tokens=-1)
    busy = d.get("/metrics").body.decode()
    assert complaints(busy) == expected_complaints(busy)
    assert set(exposition.check(busy)) == set(exposition.check(first))


def test_promtool_finds_what_is_wrong(tiny):
    """The check above can fail."""
    page = tiny().get("/metrics").body.decode()
    assert complaints(page.replace("inferd_preemptions_total", "inferd_preemptions")) - complaints(page)


def test_what_runs_and_how_it_started(tiny):
    before = time.time()
    d = tiny()
    version = d.get("/version").json()
    m = d.metrics()
    (info,) = family(m, "inferd_build_info")
    assert dict(info) == {"version": version["version"], "build_id": version["build_id"], "compiler": version["compiler"],
                          "libmicrohttpd": version["libraries"]["libmicrohttpd"]}
    assert len(version["build_id"]) == 40
    phases = {dict(labels)["phase"]: v for labels, v in family(m, "inferd_model_load_seconds").items()}
    assert set(phases) == {"text", "device", "weights", "memory", "warm_up", "self_test"}
    assert all(v >= 0 for v in phases.values()) and phases["weights"] > 0 and phases["self_test"] > 0
    assert 0 < sum(phases.values()) < time.time() - before

    # the process as the system sees it
    started = total(m, "process_start_time_seconds")
    assert before - 1 < started < before + 5 * SLOW and started != int(started)
    with open(f"/proc/{d.pid}/limits", encoding="ascii") as f:
        (files,) = [line.split() for line in f if line.startswith("Max open files")]
    assert total(m, "process_max_fds") == int(files[3])
    assert total(m, "process_threads") == len(os.listdir(f"/proc/{d.pid}/task"))
    assert abs(total(m, "process_open_fds") - len(os.listdir(f"/proc/{d.pid}/fd"))) <= 2  # the connections that ask
    with open(f"/proc/{d.pid}/statm", encoding="ascii") as f:
        pages = [int(n) for n in f.read().split()[:2]]
    page_size = os.sysconf("SC_PAGE_SIZE")
    assert total(m, "process_virtual_memory_bytes") == pytest.approx(pages[0] * page_size, rel=0.1)
    assert total(m, "process_resident_memory_bytes") == pytest.approx(pages[1] * page_size, rel=0.1)
    assert d.metrics()[("process_start_time_seconds", ())] == started

    # a restart shows
    d.stop()
    assert total(tiny().metrics(), "process_start_time_seconds") > started


def test_the_age_of_the_last_step(start, tmp_path):
    d = start(model=write_tiny_model(tmp_path / "tiny.gguf"), device="null", max_model_len=None, null_step_time="450ms")
    time.sleep(0.2)
    assert total(d.metrics(), "inferd_engine_last_step_age_seconds") == 0  # nothing to do
    stream = d.open_stream("hi", max_tokens=3, ignore_eos=True)
    next(stream.events())
    ages = []
    for _ in range(6):
        ages.append(total(d.metrics(), "inferd_engine_last_step_age_seconds"))
        time.sleep(0.07)
    assert max(ages) > 0.15 and all(0 <= a < 2 * SLOW for a in ages)
    stream.close()
    wait_for(lambda: total(d.metrics(), "inferd_engine_last_step_age_seconds") == 0, 5, "an idle engine has no age")


def test_sequences_of_a_step(tiny):
    d = tiny(device="null", null_step_time="30ms", max_sequences=4)
    threads = [threading.Thread(target=d.complete, args=("hi",), kwargs={"max_tokens": 5, "ignore_eos": True, "n": 2}) for _ in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    d.wait_idle()
    m = d.metrics()
    check_identity(m)
    buckets = {dict(labels)["le"]: v for labels, v in family(m, "inferd_step_sequences_bucket").items()}
    assert buckets["4.0"] > buckets["2.0"] and buckets["4.0"] == buckets["+Inf"] == total(m, "inferd_step_tokens_count")


# --- the GPU: the emulated CUDA module beside a fake management library (tests/unit/fake_nvml.c)

MODULE = os.path.join(BUILD, "tests", "emu", "inferd-cuda.so")
FAKE_DRIVER = os.path.join(BUILD, "tests", "unit")
needs_gpu = pytest.mark.skipif(not (os.path.exists(MODULE) and os.path.exists(os.path.join(FAKE_DRIVER, "libnvidia-ml.so.1"))),
                               reason="the emulated CUDA module or the fake management library is not built")


def with_gpu(tiny, orders, **settings):
    environment = {"INFERD_EMU": "fast,memory=512M", "LD_LIBRARY_PATH": FAKE_DRIVER, "FAKE_NVML": str(orders)}
    return tiny(device="cuda", cuda_module=MODULE, max_sequences=4, max_batched_tokens=32, environment=environment, **settings)


def tell(path, text):
    with open(f"{path}.next", "w", encoding="ascii") as f:
        f.write(text)
    os.replace(f"{path}.next", path)


@needs_gpu
def test_figures_of_the_gpu(tiny, tmp_path):
    d = with_gpu(tiny, tmp_path / "orders", ready=False)

    def page():
        try:
            return d.get("/metrics").body.decode()
        except OSError:
            return None

    first = wait_for(page, 20, "the first page")  # the model is being loaded
    gpu = {f for f in exposition.check(first) if f.startswith("inferd_gpu_")}
    assert len(gpu) == 11
    d.wait_ready()
    wait_for(lambda: total(d.metrics(), "inferd_gpu_energy_joules_total") > 0, 10, "figures of the GPU")
    last = d.get("/metrics").body.decode()
    assert set(exposition.check(last)) == set(exposition.check(first))
    m = d.metrics()
    label = (("gpu", "0"),)
    assert m["inferd_gpu_memory_used_bytes", label] == 2**30 + 1  # NVML's second: CUDA says where its first is on the bus
    assert m["inferd_gpu_temperature_celsius", label] == 41 and m["inferd_gpu_power_watts", label] == 123.5
    assert m["inferd_gpu_busy_ratio", label] == 0.75 and m["inferd_gpu_up", label] == 1
    assert m["inferd_gpu_ecc_errors_total", (*label, ("severity", "uncorrected"))] == 2
    held = {dict(labels)["reason"] for labels, v in family(m, "inferd_gpu_throttled").items() if v == 1}
    assert held == {"sw_power_cap", "hw_thermal"}
    assert complaints(last) == expected_complaints(last)


@needs_gpu
def test_nvidia_container_toolkit_48_and_ollama_7771(tiny, tmp_path):
    """The driver stops answering: not ready, with the reason. It hangs: the process ends all the same."""
    orders = tmp_path / "orders"
    d = with_gpu(tiny, orders)
    assert d.get("/readyz").status == 200
    tell(orders, "rc=999\nxid=79\n")
    wait_for(lambda: d.get("/readyz").status == 503, 10, "readyz is 503")
    assert d.get("/readyz").json()["reason"] == "the GPU's driver gives an error for it"
    assert d.get("/livez").status == 200 and d.gauge("ready") == 0 and d.gauge("gpu_up") == 0 and d.gauge("gpu_last_xid") == 79
    assert "Xid 79" in d.log_text() and "Unknown Error" in d.log_text()
    assert d.complete("hi", max_tokens=3).status == 200
    tell(orders, "hang=1\n")
    time.sleep(1.5)  # a look begins, and does not end
    began = time.monotonic()
    d.signal()
    assert d.wait_exit(20) == 0
    assert time.monotonic() - began < 5 * SLOW
    assert "the GPU's driver does not answer; ending without it" in d.log_text()


def test_no_figures_of_a_gpu_that_is_not_used(tiny):
    d = tiny(environment={"LD_LIBRARY_PATH": FAKE_DRIVER}, device="cpu")
    assert not [n for n, _ in d.metrics() if n.startswith("inferd_gpu_")]


# --- what is shipped in conf/

RULES = os.path.join(ROOT, "conf", "prometheus-rules.yml")
BOARD = os.path.join(ROOT, "conf", "grafana-dashboard.json")
METRIC_NAME = re.compile(r"\b(?:(?:inferd|http|process)_\w+|vllm:\w+)")


def board_panels():
    with open(BOARD, encoding="utf-8") as f:
        return json.load(f)["panels"]


def board_queries():
    return [t["expr"] for p in board_panels() for t in p.get("targets", [])]


def rule_queries():
    """By indentation: the tests need no YAML of their own, and promtool has read the whole."""
    with open(RULES, encoding="utf-8") as f:
        text = f.read()
    found = re.findall(r"^        expr: (?:\|\n((?:          .*\n)+)|(.*)\n)", text, re.MULTILINE)
    assert len(found) == text.count("- alert:") > 10
    return [a or b for a, b in found]


def test_rules_and_their_tests():
    done = promtool("check", "rules", RULES)
    assert done.returncode == 0, done.stdout + done.stderr
    done = promtool("test", "rules", os.path.join(os.path.dirname(__file__), "data", "prometheus_rules_test.yml"))
    assert done.returncode == 0, done.stdout + done.stderr
    with open(os.path.join(os.path.dirname(__file__), "data", "prometheus_rules_test.yml"), encoding="utf-8") as f:
        tested = set(re.findall(r'alertname="(\w+)"', f.read()))
    with open(RULES, encoding="utf-8") as f:
        assert tested == set(re.findall(r"- alert: (\w+)", f.read()))


def test_the_board_can_be_read(tmp_path):
    """Panels beside one another, and queries that Prometheus understands (as rules, since promtool checks those)."""
    panels = board_panels()
    assert len({p["id"] for p in panels}) == len(panels)
    taken = set()
    for p in panels:
        at = p["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24 and not cells & taken, p["title"]
        taken |= cells
        assert p["type"] == "row" or (p["targets"] and all(t["expr"] and t["refId"] for t in p["targets"])), p["title"]
    queries = [q.replace("$__rate_interval", "1m").replace("$instance", ".*") for q in board_queries()]
    assert len(queries) > 60 and not [q for q in queries if "$" in q]
    rules = tmp_path / "board.yml"
    rules.write_text(json.dumps({"groups": [{"name": "board", "rules": [{"record": f"panel{i}", "expr": q} for i, q in enumerate(queries)]}]}))
    done = promtool("check", "rules", "--lint=none", str(rules))
    assert done.returncode == 0, done.stdout + done.stderr


def make_keys(path, **scopes):
    """A keys file, and the keys by name."""
    made = {name: json.loads(subprocess.run([INFERD, "key", name, "--json", "--scopes", scope], capture_output=True, check=True).stdout)
            for name, scope in scopes.items()}
    path.write_text("".join(m["lines"] for m in made.values()))
    return {name: m["key"] for name, m in made.items()}


@needs_gpu
def test_boards_and_rules_name_what_there_is(tiny, tmp_path):
    keys = make_keys(tmp_path / "keys", prometheus="metrics")
    d = with_gpu(tiny, tmp_path / "orders", api_keys_file=str(tmp_path / "keys"))
    d.key = keys["prometheus"]
    page = exposition.check(d.get("/metrics").body.decode())
    there = {name for _, samples in page.values() for name, _, _ in samples}
    names = {n for q in board_queries() + rule_queries() for n in METRIC_NAME.findall(q)}
    assert len(names) > 50 and names <= there, names - there
    labels = {(name, label, value) for _, samples in page.values() for name, ls, _ in samples for label, value in ls}
    for query in board_queries() + rule_queries():
        for name, selector in re.findall(r"([a-z][\w:]+)\{([^}]*)\}", query):
            for label, operator, value in re.findall(r'(\w+)(=~?)"([^"]*)"', selector):
                for one in value.split("|") if label not in ("instance", "job") else []:
                    assert (name, label, one) in labels, (name, label, one)


# --- a real one

class Prometheus:
    def __init__(self, folder, target, key):
        self.port = free_port()
        config = folder / "prometheus.yml"
        config.write_text(json.dumps({
            "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"}, "rule_files": [RULES],
            "scrape_configs": [{"job_name": "inferd", "authorization": {"credentials": key}, "static_configs": [{"targets": [f"127.0.0.1:{target}"]}]}]}))
        self.log = open(folder / "prometheus.log", "wb")
        self.process = subprocess.Popen(
            [prometheus.program("prometheus"), f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}",
             f"--web.listen-address=127.0.0.1:{self.port}"], stdout=self.log, stderr=self.log, cwd=folder)

    def ask(self, path, **parameters):
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=10 * SLOW) as answer:
            return json.load(answer)["data"]

    def query(self, expression):
        """{(name, labels): value}, as parse_metrics has it; without the labels that Prometheus adds."""
        return {(r["metric"].get("__name__", ""), tuple(sorted((k, v) for k, v in r["metric"].items() if k not in ("__name__", "job", "instance")))):
                float(r["value"][1]) for r in self.ask("query", query=expression)["result"]}

    def stop(self):
        self.process.terminate()
        self.process.wait(30)
        self.log.close()


def test_a_real_prometheus(start, tmp_path):
    """It scrapes during load, with a key for that alone; rules evaluate, the target is up, and what it keeps is what the page says."""
    keys = make_keys(tmp_path / "keys", prometheus="metrics", client="infer")
    d = start(model=write_tiny_model(tmp_path / "tiny.gguf"), device="null", max_model_len=None, null_step_time="5ms", max_sequences=4,
              api_keys_file=str(tmp_path / "keys"))
    d.key = keys["client"]
    assert d.get("/metrics").status == 403
    server = Prometheus(tmp_path, d.port, keys["prometheus"])
    over = threading.Event()

    def load():
        while not over.is_set():
            d.complete("hi there", max_tokens=30, ignore_eos=True)

    threads = [threading.Thread(target=load) for _ in range(6)]
    try:
        for t in threads:
            t.start()

        def seen():
            try:
                return server.query('rate(inferd_generation_tokens_total{job="inferd"}[3s]) > 0')
            except OSError:
                return None

        wait_for(seen, 30, "Prometheus sees tokens", every=0.2)
        assert server.query('up{job="inferd"}') == {("up", ()): 1}
        (target,) = server.ask("targets")["activeTargets"]
        assert target["health"] == "up" and target["lastError"] == ""
        (group,) = server.ask("rules")["groups"]
        wait_for(lambda: all(r["lastEvaluation"] > "2000" for g in server.ask("rules")["groups"] for r in g["rules"]), 10, "rules ran")
        (group,) = server.ask("rules")["groups"]
        assert len(group["rules"]) == len(rule_queries())
        assert [r for r in group["rules"] if r["health"] != "ok"] == []
        over.set()
        for t in threads:
            t.join()
        d.key = keys["prometheus"]
        d.wait_idle()
        page = {k: v for k, v in d.metrics().items() if not k[0].startswith("process_")}

        def kept():
            there = server.query('{job="inferd",__name__=~"(inferd_|http_|vllm:).*"}')
            return there if there == page else None

        wait_for(kept, 5, "Prometheus keeps what the page says", every=0.2)
        assert [a for a in server.ask("alerts")["alerts"] if a["state"] == "firing"] == []
        # and the alert when the server is gone: pending at once, firing a minute later (promtool's tests see that)
        d.stop()
        wait_for(lambda: [a["labels"]["alertname"] for a in server.ask("alerts")["alerts"]] == ["InferdDown"], 10, "it is missed", every=0.2)
    finally:
        over.set()
        server.stop()
        for t in threads:
            t.join()
