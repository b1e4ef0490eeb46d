"""Debian's nginx in front."""

import collections
import http.client
import json
import threading
import time

import pytest
from conftest import LEADER, LONG, PORT, complete, request, show, started, status, systemctl, wait_for, write

pytestmark = pytest.mark.usefixtures("installed")
FRONT = 8000

PLAIN = """
server {
    listen 127.0.0.1:8000;
    location / { proxy_pass http://127.0.0.1:8080; }
}
"""
KEEPALIVE = """
upstream inferd { server 127.0.0.1:8080; keepalive 32; keepalive_timeout 180s; }
server {
    listen 127.0.0.1:8000;
    keepalive_requests 100000;
    location / {
        proxy_pass http://inferd;
        proxy_http_version 1.1;
        proxy_set_header Connection "";
    }
}
"""


def nginx(site):
    write("/etc/nginx/sites-enabled/default", site)
    systemctl("restart", "nginx")
    wait_for(lambda: status(port=FRONT) == 200, 10, "nginx answers")


def connections():
    """Local ports of the established connections that inferd has, as the machine sees them."""
    with open(f"/proc/{LEADER}/net/tcp", encoding="ascii") as f:
        rows = [line.split() for line in f.readlines()[1:]]
    return {r[2] for r in rows if r[1].endswith(f":{PORT:04X}") and r[3] == "01"}


@pytest.fixture(autouse=True, scope="module")
def front():
    yield
    systemctl("stop", "nginx", "inferd.socket", "inferd.service", check=False)


def test_streams_are_not_buffered():
    """With nginx's defaults: each token arrives as it is made."""
    started(device="null", null_step_time="50ms")
    nginx(PLAIN)
    c = http.client.HTTPConnection("127.0.0.1", FRONT, timeout=60)
    body = {"model": "tiny", "prompt": "Once", "max_tokens": 20, "ignore_eos": True, "stream": True}
    c.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    times = [time.monotonic() for line in c.getresponse() if line.startswith(b"data: {")]
    assert len(times) >= 20
    assert times[-1] - times[0] > 0.7
    assert max(b - a for a, b in zip(times, times[1:])) < 0.5


def test_connections_are_kept():
    started(device="null")
    nginx(KEEPALIVE)
    for _ in range(5):
        assert complete(port=FRONT)[0] == 200
    kept = connections()
    assert len(kept) >= 1
    time.sleep(100 if LONG else 3)
    assert connections() == kept
    for _ in range(20):
        assert complete(port=FRONT)[0] == 200
    assert connections() == kept  # no other was opened


def test_no_502_across_a_drain_and_restart():
    started(device="null")
    systemctl("stop", "inferd.service")
    systemctl("start", "inferd.socket")
    nginx(KEEPALIVE)
    total, workers = (10000 if LONG else 1500), 8
    ends, lock = collections.Counter(), threading.Lock()
    body = json.dumps({"model": "tiny", "prompt": "Once", "max_tokens": 4})

    def worker():
        c = http.client.HTTPConnection("127.0.0.1", FRONT, timeout=60)
        for _ in range(total // workers):
            try:
                c.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
                answer = c.getresponse()
                answer.read()
                end = answer.status
            except OSError as e:
                end = repr(e)
                c.close()
            with lock:
                ends[end] += 1

    threads = [threading.Thread(target=worker, daemon=True) for _ in range(workers)]
    for t in threads:
        t.start()
    before = show("MainPID")
    for share in (0.3, 0.6):
        wait_for(lambda: sum(ends.values()) > share * total, 300, "traffic flows", every=0.01)
        systemctl("restart", "inferd.service")
    for t in threads:
        t.join()
    assert show("MainPID") != before
    # what came on a connection of nginx's to a server that was draining got that server's 503
    assert sum(ends.values()) == total // workers * workers and set(ends) <= {200, 503}, ends
    assert ends[503] < 0.05 * total, ends
