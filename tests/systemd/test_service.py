"""inferd.service under systemd: the tests run in this order, on one machine."""

import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import tempfile
import threading
import time

import pytest
from conftest import PORT, ROOT, complete, configure, journal, request, run, show, started, status, systemctl, wait_for, write

pytestmark = pytest.mark.usefixtures("installed")


class Streams:
    """n streams in threads of their own: how each ended. Begun when each has its first token."""

    def __init__(self, n, max_tokens, headers=None, port=PORT):
        self.ends, self.tokens = [], 0
        self.threads = [threading.Thread(target=self.one, args=(max_tokens, headers, port), daemon=True) for _ in range(n)]
        for t in self.threads:
            t.start()
        wait_for(lambda: self.tokens >= n, 20, "the streams have begun")

    def one(self, max_tokens, headers, port):
        import http.client

        end = "nothing"
        try:
            c = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            body = {"model": "tiny", "prompt": "Once", "max_tokens": max_tokens, "ignore_eos": True, "stream": True}
            c.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json", **(headers or {})})
            answer = c.getresponse()
            end = str(answer.status)
            for line in answer:
                if line.startswith(b"data: [DONE]"):
                    end = "done"
                elif b'"error"' in line:
                    end = line.decode()
                elif line.startswith(b"data: "):
                    self.tokens += 1
        except OSError as e:
            end = repr(e)
        self.ends.append(end)

    def join(self, seconds=60):
        for t in self.threads:
            t.join(seconds)
        return self.ends


def pid():
    return int(show("MainPID"))


# --- as installed ----------------------------------------------------------------------------------------------------


def test_installed_and_not_running():
    assert show("LoadState") == "loaded" and show("ActiveState") == "inactive"
    assert systemctl("is-enabled", "inferd.service", "inferd.socket", check=False).stdout.split() == ["disabled", "disabled"]
    assert run("stat", "-c", "%U %a", "/var/lib/inferd").stdout.split() == ["inferd", "755"]
    assert re.match(r"inferd \d", run("inferd", "--version").stdout)
    assert "inferd.conf" in run("dpkg-query", "-W", "-f", "${Conffiles}", "inferd").stdout
    assert run("dpkg", "--verify", "inferd").stdout == ""


def test_units_are_clean():
    units = ["inferd.service", "inferd@other.service", "inferd.socket"]
    assert run("systemd-analyze", "verify", "--man=no", *units).stdout == ""
    for unit in units[:2]:
        run("systemd-analyze", "security", "--threshold=20", unit)  # fails above 2.0


def test_without_a_model_it_is_not_tried_again():
    assert systemctl("start", "inferd.service", check=False).returncode != 0
    time.sleep(0.5)
    assert show("ActiveState") == "failed" and show("NRestarts") == "0" and show("ExecMainStatus") == "78"
    assert "no model" in journal()


# --- start -----------------------------------------------------------------------------------------------------------


def test_ready_is_ready():
    for _ in range(3):
        started()
        assert status() == 200  # on the first try
        assert complete()[0] == 200
        assert re.fullmatch(r"Serving tiny: \d requests run, \d wait", show("StatusText"))
        systemctl("stop", "inferd.service")
        assert show("Result") == "success" and show("ExecMainStatus") == "0"


def test_status_while_loading():
    if not os.path.exists(ROOT + "/srv/test/models/demo.gguf"):
        pytest.skip("INFERD_TEST_MODEL does not name the demo model")
    configure(model="/srv/test/models/demo.gguf", weights="int8", cpu_variant="generic", threads=1,
              unit={"TimeoutStartSec": "1s"})  # it takes longer, and is given the time
    systemctl("start", "--no-block", "inferd.service")
    seen = set()

    def over():
        seen.add(show("StatusText"))
        return show("ActiveState") != "activating" or show("NRestarts") != "0"

    wait_for(over, 60, "it has started", every=0)
    assert show("ActiveState") == "active" and status() == 200, journal()
    assert any(re.fullmatch(r"Loading demo: \d+ %", s) for s in seen), seen


def test_what_it_may_not_do():
    started()
    of = dict(line.split(":\t", 1) for line in open(f"{ROOT}/proc/{pid()}/status", encoding="utf-8").read().splitlines() if ":\t" in line)
    uid = run("id", "-u", "inferd").stdout.strip()
    assert set(of["Uid"].split()) == {uid} and uid != "0"
    assert of["NoNewPrivs"] == "1" and of["Seccomp"] == "2"
    assert int(of["CapEff"], 16) == int(of["CapPrm"], 16) == int(of["CapBnd"], 16) == 0


def test_an_instance():
    configure()
    write("/etc/inferd/other.conf", "model = /srv/test/models/tiny.gguf\nkv_tokens = 4096\nport = 8090\n")
    systemctl("start", "inferd@other.service")
    assert status(port=8090) == 200
    systemctl("stop", "inferd@other.service")
    assert show("Result", "inferd@other.service") == "success"


# --- keys and reload -------------------------------------------------------------------------------------------------


def key_file(name):
    """A new key's lines, and the header that presents it."""
    made = json.loads(run("inferd", "key", name, "--json").stdout)
    return made["lines"], {"Authorization": "Bearer " + made["key"]}


def test_keys_are_a_credential():
    lines, header = key_file("alice")
    configure()
    assert run("stat", "-c", "%U %a", "/etc/inferd/credentials").stdout.split() == ["root", "700"]
    write("/etc/inferd/credentials/api_keys", lines, mode=0o600)
    try:
        systemctl("start", "inferd.service")
        assert complete()[0] == 401
        assert complete(headers=header)[0] == 200
    finally:
        os.remove(ROOT + "/etc/inferd/credentials/api_keys")


def test_certificate_key_is_a_credential():
    """A key that only root can read, as /run/credentials has it; and a Unix socket for the rest."""
    work = tempfile.mkdtemp()
    if subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=localhost",
                       "-days", "2", "-keyout", f"{work}/key", "-out", f"{work}/crt"], capture_output=True).returncode != 0:
        pytest.skip("openssl made no certificate")
    configure(tls_certificate="/etc/inferd/tls.crt", tls_key="/run/credentials/inferd.service/inferd_tls.key",
              host="127.0.0.1, unix:/run/inferd/http.sock")
    write("/etc/inferd/tls.crt", open(f"{work}/crt", encoding="ascii").read())
    write("/etc/inferd/credentials/tls.key", open(f"{work}/key", encoding="ascii").read(), mode=0o600)
    try:
        systemctl("start", "inferd.service")
        trust = ssl.create_default_context(cafile=f"{work}/crt")
        with socket.create_connection(("localhost", PORT)) as s, trust.wrap_socket(s, server_hostname="localhost") as t:
            t.sendall(b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert t.makefile("rb").readline().startswith(b"HTTP/1.1 200")
        assert run("stat", "-c", "%U %a", "/run/inferd/http.sock").stdout.split() == ["inferd", "660"]
    finally:
        shutil.rmtree(work)
        os.remove(ROOT + "/etc/inferd/credentials/tls.key")
        os.remove(ROOT + "/etc/inferd/tls.crt")


def write_keys(text):
    write("/etc/inferd/api_keys", text, mode=0o640)
    run("chgrp", "inferd", "/etc/inferd/api_keys")


def test_reload_under_traffic():
    lines, alice = key_file("alice")
    more, bob = key_file("bob")
    write_keys(lines)
    started(device="null", null_step_time="10ms", api_keys_file="/etc/inferd/api_keys")
    before = pid()
    streams = Streams(8, 200, alice)
    assert complete(headers=bob)[0] == 401
    write_keys(lines + "\n" + more)
    systemctl("reload", "inferd.service")
    wait_for(lambda: complete(headers=bob)[0] == 200, 5, "the new key counts")
    write_keys("nonsense\n")
    systemctl("reload", "inferd.service")
    wait_for(lambda: "/etc/inferd/api_keys:1" in journal(), 5, "the log says why")
    assert complete(headers=bob)[0] == 200  # a bad file changes nothing
    assert streams.ends == [] and streams.join() == ["done"] * 8
    wait_for(lambda: show("ActiveState") == "active", 5, "the reload is over")
    assert pid() == before and show("NRestarts") == "0"


# --- the log ---------------------------------------------------------------------------------------------------------


def entries(*matches):
    """Entries of the journal that have these fields."""
    text = run("journalctl", "-u", "inferd", "-o", "json", *matches).stdout
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def test_the_journal_has_fields():
    lines, alice = key_file("alice")
    write("/etc/inferd/api_keys", lines, mode=0o644)
    started(api_keys_file="/etc/inferd/api_keys")
    assert complete(headers={**alice, "X-Request-Id": "in-the-journal"})[0] == 200
    wait_for(lambda: entries("REQUEST_ID=in-the-journal"), 10, "the entry is there")
    entry, = entries("REQUEST_ID=in-the-journal")
    assert entry["KEY"] == "alice" and entry["STATUS"] == "200" and entry["PRIORITY"] == "6" and entry["SYSLOG_IDENTIFIER"] == "inferd"
    assert entry["MODEL"] == "tiny" and float(entry["TTFT_MS"]) > 0 and "Once" not in entry["MESSAGE"]
    assert run("inferd", "healthcheck", "--config", "/etc/inferd/inferd.conf").stdout.startswith("ok: ")
    # the journal restarts: what is said meanwhile and afterwards reaches it
    systemctl("restart", "systemd-journald.service")
    assert complete(headers={**alice, "X-Request-Id": "after-that"})[0] == 200
    wait_for(lambda: entries("REQUEST_ID=after-that"), 10, "the entry is there")


def test_a_fault_is_reported_and_the_service_started_again():
    started(unit={"RestartSec": "0.1"})
    before = pid()
    run("kill", "-SEGV", str(before))
    wait_for(lambda: show("NRestarts") == "1" and show("ActiveState") == "active", 30, "it was started again")
    assert pid() != before and status() == 200
    log = journal(lines=200)
    assert re.search(r"crash: version .*, build id [0-9a-f]{40}, signal 11 \(SIGSEGV\) sent by process ", log)
    assert "crash: #0 " in log and "status=11/SEGV" in log


# --- the watchdog ----------------------------------------------------------------------------------------------------


def restarted(before, seconds=30):
    wait_for(lambda: show("NRestarts") == "1" and show("ActiveState") == "active", seconds, "it was started again")
    assert pid() != before and status() == 200
    assert "Watchdog timeout" in run("journalctl", "--no-pager", "-u", "inferd").stdout


def test_watchdog_stopped_process():
    started(unit={"WatchdogSec": "2", "RestartSec": "0.1"})
    before = pid()
    time.sleep(2.5)  # idle: fed all the same
    assert pid() == before and show("NRestarts") == "0"
    run("kill", "-STOP", str(before))
    restarted(before)


def test_watchdog_stalled_engine():
    started(unit={"WatchdogSec": "2", "RestartSec": "0.1"}, device="null", null_step_time=100, stall_timeout=1)
    before = pid()

    def hopeless():
        try:
            complete()
        except OSError:
            pass  # the server is killed

    stuck = threading.Thread(target=hopeless, daemon=True)
    stuck.start()
    wait_for(lambda: status() == 503, 10, "the stall is seen")
    assert status("/livez") == 200  # the loop runs, and yet
    restarted(before)


# --- the end ---------------------------------------------------------------------------------------------------------


def test_drain_under_traffic():
    started(device="null", null_step_time="10ms")
    streams = Streams(8, 200)
    began = time.monotonic()
    systemctl("stop", "--no-block", "inferd.service")
    wait_for(lambda: show("ActiveState") == "deactivating", 5, "it stops", every=0.01)
    assert status() in (503, 0)
    assert re.search(r"Draining tiny: \d requests", show("StatusText"))
    assert streams.join() == ["done"] * 8
    wait_for(lambda: show("ActiveState") == "inactive", 10, "it has ended")
    assert time.monotonic() - began > 1
    assert show("Result") == "success" and show("ExecMainStatus") == "0"


def test_a_drain_longer_than_the_unit_allows():
    started(device="null", null_step_time="10ms", unit={"TimeoutStopSec": "1s"}, drain_timeout=30)
    streams = Streams(2, 400)
    systemctl("stop", "inferd.service")
    assert streams.join() == ["done"] * 2
    assert show("Result") == "success"


def test_second_sigterm_ends_at_once():
    started(device="null", null_step_time="100ms", drain_timeout=60)
    streams = Streams(2, 1000)
    systemctl("stop", "--no-block", "inferd.service")
    wait_for(lambda: show("ActiveState") == "deactivating", 5, "it stops", every=0.01)
    began = time.monotonic()
    systemctl("kill", "--kill-whom=main", "inferd.service")
    wait_for(lambda: show("ActiveState") == "inactive", 5, "it has ended")
    assert time.monotonic() - began < 3 and show("Result") == "success"
    assert all("error" in end for end in streams.join(10))


# --- socket activation -----------------------------------------------------------------------------------------------


def test_socket_activation():
    configure(device="null", null_step_time="5ms")
    systemctl("start", "inferd.socket")
    assert show("ActiveState") == "inactive"
    # connected and sent at once; the answer comes when the model is there
    with socket.create_connection(("127.0.0.1", PORT), timeout=60) as s:
        s.sendall(b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answer = s.makefile("rb").readline()
    assert answer.startswith(b"HTTP/1.1 200"), answer
    assert show("ActiveState") == "active"


def test_restart_behind_the_socket_refuses_nobody():
    first = pid()
    ends, stop = [], threading.Event()

    def client():
        while not stop.is_set():
            try:
                ends.append(complete()[0])
            except OSError as e:
                ends.append(repr(e))

    threads = [threading.Thread(target=client, daemon=True) for _ in range(4)]
    for t in threads:
        t.start()
    try:
        time.sleep(0.5)
        systemctl("restart", "inferd.service")
        time.sleep(0.5)
    finally:
        stop.set()
    for t in threads:
        t.join()
    assert pid() != first
    assert set(ends) == {200} and len(ends) > 20, {e: ends.count(e) for e in set(ends)}
    systemctl("stop", "inferd.socket", "inferd.service")
