"""Where the daemon listens: addresses, Unix sockets, the admin's listener, sockets handed over, pages of other origins.

On the fake engine (tests/unit/fake_engine.h).
"""

import http.client
import os
import re
import socket
import struct
import threading
import time

import pytest
from conftest import FAKE, SLOW, Answer, Daemon, free_port, wait_for
from test_raw import post_bytes, read_all, request, status

pytestmark = pytest.mark.skipif(not os.path.isfile(FAKE), reason="fake_inferd was not built (option tests)")


def has_ipv6():
    try:
        with socket.socket(socket.AF_INET6) as s:
            s.bind(("::1", 0))
        return True
    except OSError:
        return False


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")


class At(http.client.HTTPConnection):
    """A connection to (address, port), or to the path of a Unix socket."""

    def __init__(self, where):
        super().__init__("localhost", timeout=30 * SLOW)
        self.where = where

    def connect(self):
        if isinstance(self.where, tuple):
            self.sock = socket.create_connection(self.where, self.timeout)
        else:
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.settimeout(self.timeout)
            self.sock.connect(str(self.where))


def ask(where, path, method="GET", **headers):
    c = At(where)
    try:
        c.request(method, path, headers={k.replace("_", "-"): v for k, v in headers.items()})
        r = c.getresponse()
        return Answer(r.status, {k.lower(): v for k, v in r.getheaders()}, r.read())
    finally:
        c.close()


def refused_at_start(tmp_path, code=78, **settings):
    (tmp_path / "fake.gguf").touch()
    d = Daemon(tmp_path / "refused", program=FAKE, model=str(tmp_path / "fake.gguf"), **settings)
    assert d.wait_exit(10) == code
    text = d.log_text()
    os.unlink(tmp_path / "refused")
    return text


# --- addresses


@needs_ipv6
def test_several_addresses(fake, tmp_path):
    path = tmp_path / "http.sock"
    d = fake(host=f"127.0.0.1, [::1],unix:{path}")
    for where in (("127.0.0.1", d.port), ("::1", d.port), path):
        assert ask(where, "/v1/models").json()["data"][0]["id"] == "fake"
    # a line is written when the answer has gone, which the client may see first
    clients = wait_for(lambda: (c := re.findall(r"client=(\S+) method=GET route=/v1/models", d.log_text())) and len(c) == 3 and c,
                       5, "three lines")
    log = d.log_text()
    assert [re.sub(r":\d+$", ":PORT", c) for c in clients] == ["127.0.0.1:PORT", "[::1]:PORT", "unix"]
    for name in (f"http://127.0.0.1:{d.port}", f"http://[::1]:{d.port}", f"unix:{path}"):
        assert f"listening on {name}\n" in log
    d.signal()
    assert d.wait_exit(5) == 0 and not path.exists()


@needs_ipv6
def test_all_addresses(fake):
    d = fake(host="::", insecure=True)  # IPv4 comes to it, too
    for address in ("127.0.0.1", "::1"):
        assert ask((address, d.port), "/livez").status == 200
    d = fake(host="0.0.0.0,::", insecure=True)
    for address in ("127.0.0.1", "::1"):
        assert ask((address, d.port), "/livez").status == 200


def test_an_address_in_use(fake, tmp_path):
    d = fake()
    assert f"cannot listen on 127.0.0.1:{d.port}: Address already in use" in refused_at_start(tmp_path, code=1, port=d.port)


def test_a_public_address_wants_a_key(tmp_path):
    for settings in ({"host": "0.0.0.0"}, {"host": "127.0.0.1,0.0.0.0"}, {"host": "::"},
                     {"admin_listen": f"0.0.0.0:{free_port()}"}, {"admin_listen": f"[::]:{free_port()}"}):
        assert "anybody could use" in refused_at_start(tmp_path, **settings), settings
    with socket.create_server(("0.0.0.0", 0)) as s:
        assert f"anybody could use 0.0.0.0:{s.getsockname()[1]}" in refused_at_start(tmp_path, inherit=[s])


# --- Unix sockets


def test_a_unix_socket(fake, tmp_path):
    path = tmp_path / "http.sock"
    d = fake(ready=False, host=f"unix:{path}", unix_socket_mode="0600")
    wait_for(path.exists, 10, "the socket is there")
    wait_for(lambda: ask(path, "/readyz").status == 200, 10, "it is ready")
    assert path.stat().st_mode & 0o777 == 0o600
    s = At(path)
    s.connect()
    s.sock.sendall(post_bytes("/v1/completions", request("@delay=5 @say a stream over it", stream=True, max_tokens=50), "Connection: close\r\n"))
    answer = read_all(s.sock)
    assert answer.count(b"data: {") == len("a stream over it") + 1 and b"[DONE]" in answer
    # who leaves is noticed, here too
    s.connect()
    s.sock.sendall(post_bytes("/v1/completions", request("@stall", stream=True)))
    metric = b"inferd_requests_running 1"
    wait_for(lambda: metric in ask(path, "/metrics").body, 5, "it runs")
    s.close()
    wait_for(lambda: metric not in ask(path, "/metrics").body, 2, "it is cancelled")


def test_a_stale_unix_socket_is_replaced_and_nothing_else(fake, tmp_path):
    path = tmp_path / "http.sock"
    path.write_text("precious")
    assert "is no socket" in refused_at_start(tmp_path, code=1, host=f"unix:{path}") and path.read_text() == "precious"
    path.unlink()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        assert "another process listens there" in refused_at_start(tmp_path, code=1, host=f"unix:{path}")
        other.accept()[0].close()  # that was the question
        assert path.exists()
    d = fake(host=f"127.0.0.1,unix:{path}")  # nobody listens there now
    assert ask(path, "/livez").status == 200
    # at the end it takes away its own socket, not that of who has taken its place
    path.unlink()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        d.signal()
        assert d.wait_exit(5) == 0 and path.exists()


# --- the admin's listener


def test_the_admin_listener_has_the_metrics_and_no_model(fake):
    admin = ("127.0.0.1", free_port())
    d = fake(admin_listen=f"127.0.0.1:{admin[1]}", api_key="secret")
    key = {"Authorization": "Bearer secret"}
    public = ("127.0.0.1", d.port)
    table = [("/metrics", 404, 200), ("/v1/models", 200, 404), ("/v1/models/fake", 200, 404), ("/version", 200, 200),
             ("/nowhere", 404, 404)]
    for path, at_public, at_admin in table:
        assert (ask(public, path, **key).status, ask(admin, path, **key).status) == (at_public, at_admin), path
        assert (ask(public, path).status, ask(admin, path).status) == (401, 401), path
    for path in ("/livez", "/readyz", "/health"):
        assert (ask(public, path).status, ask(admin, path).status) == (200, 200), path
    for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"):
        assert ask(admin, path, "POST", **key).status == 404 and ask(admin, path, "POST").status == 401
    assert b"inferd_requests_received_total 0" in ask(admin, "/metrics", **key).body


def test_the_admin_listener_answers_when_clients_have_all_connections(fake, tmp_path):
    path = tmp_path / "admin.sock"
    d = fake(admin_listen=f"unix:{path}", max_connections=1)
    crowd = [d.connect()]
    for s in crowd:
        s.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        assert status(s.recv(1000)) == 200
    with d.connect() as late:
        late.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        late.settimeout(0.3)
        with pytest.raises(TimeoutError):
            late.recv(1000)
        kept = At(path)  # the admin's have a limit of their own
        kept.request("GET", "/livez")
        assert kept.getresponse().read() and ask(path, "/readyz").status == 200
        kept.close()
    for s in crowd:
        s.close()
    d.signal()
    assert d.wait_exit(5) == 0 and not path.exists()


# --- sockets that are handed over


def queued(listening):
    """Connections that nobody has accepted: Linux tells it of a listening socket as tcpi_unacked."""
    return struct.unpack_from("I", listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104), 24)[0]


@pytest.fixture
def handed():
    """A listening socket as a service manager holds it; daemons come and go."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as s:
        yield s


def get(listening, path="/v1/models"):
    s = socket.create_connection(listening.getsockname(), timeout=30 * SLOW)
    s.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    return s


def test_an_inherited_socket_is_not_accepted_before_the_model_is_loaded(fake, handed, tmp_path):
    admin = tmp_path / "admin.sock"
    early = get(handed)  # before there is a process at all
    d = fake(ready=False, inherit=[handed], admin_listen=f"unix:{admin}", environment={"FAKE_LOAD_MS": "1200"})
    wait_for(admin.exists, 10, "it has begun")
    answer = ask(admin, "/readyz")
    assert answer.status == 503 and answer.json()["reason"] == "loading"
    late = get(handed)
    assert queued(handed) == 2
    with open(f"/proc/{d.pid}/fdinfo/3", encoding="ascii") as f:
        flags = next(int(line.split()[1], 8) for line in f if line.startswith("flags:"))
    assert flags & os.O_CLOEXEC and flags & os.O_NONBLOCK
    for s in (early, late):
        assert status(read_all(s)) == 200
    assert queued(handed) == 0 and ask(admin, "/readyz").status == 200
    with pytest.raises(ConnectionRefusedError):  # in place of host and port, not beside them
        d.connect()


def test_what_waits_during_a_drain_is_for_the_next_process(fake, handed, tmp_path):
    admin = tmp_path / "admin.sock"

    def start():
        d = fake(ready=False, inherit=[handed], admin_listen=f"unix:{admin}")
        wait_for(lambda: admin.exists() and ask(admin, "/readyz").status == 200, 10, "it is ready")
        return d

    d = start()
    running = socket.create_connection(handed.getsockname(), timeout=30 * SLOW)
    running.sendall(post_bytes("/v1/completions", request("@delay=30 @say until the end", stream=True)))
    assert b"200 OK" in running.recv(1000)
    fresh = socket.create_connection(handed.getsockname(), timeout=30 * SLOW)  # has been accepted, asks nothing yet
    wait_for(lambda: queued(handed) == 0, 5, "it is accepted")
    d.signal()
    wait_for(lambda: ask(admin, "/readyz").status == 503, 5, "it drains, and its probes answer")
    waiting = get(handed)
    assert queued(handed) == 1
    fresh.sendall(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
    answer = read_all(fresh)
    assert status(answer) in (200, 503) and b"Connection: close" in answer
    assert b"[DONE]" in read_all(running)
    assert d.wait_exit(5) == 0
    assert queued(handed) == 1
    start()
    assert status(read_all(waiting)) == 200


def test_who_is_about_to_ask_is_answered_before_the_end(fake):
    d = fake()
    get_models = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"
    with d.connect() as fresh, d.connect() as pooled, d.connect() as silent:
        pooled.sendall(get_models)
        assert status(pooled.recv(1000)) == 200
        began = time.monotonic()
        d.signal()
        time.sleep(0.2)
        for s in (fresh, pooled):
            s.sendall(get_models)
            answer = read_all_strictly(s)
            assert status(answer) == 200 and b"Connection: close" in answer
        assert read_all(silent) == b"" and d.wait_exit(5) == 0  # but not for ever for who says nothing
        assert 0.9 < time.monotonic() - began < 3 * SLOW


def test_who_has_not_asked_for_long_is_not_waited_for(fake):
    d = fake()
    with d.connect() as s:
        s.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        assert status(s.recv(1000)) == 200
        time.sleep(1.1)
        began = time.monotonic()
        d.signal()
        assert d.wait_exit(5) == 0 and time.monotonic() - began < 0.5 * SLOW


def test_no_client_sees_a_reset_across_restarts(fake, handed):
    """Clients that open a connection for each request get an answer to every one: from this process, the next, or a 503."""
    results, stop = [], threading.Event()

    def client():
        while not stop.is_set():
            try:
                with get(handed) as s:
                    results.append(status(read_all_strictly(s)))
            except OSError as e:
                results.append(repr(e))

    clients = [threading.Thread(target=client) for _ in range(4)]
    d = fake(ready=False, inherit=[handed])
    for c in clients:
        c.start()
    try:
        for _ in range(5):
            n = len(results)
            wait_for(lambda: len(results) > n + 20, 30, "clients are answered")
            d.signal()
            assert d.wait_exit(10) == 0
            d = fake(ready=False, inherit=[handed])
    finally:
        stop.set()
        for c in clients:
            c.join()
    assert set(results) <= {200, 503} and results.count(200) > 100, [r for r in results if r not in (200, 503)][:5]


def read_all_strictly(s):
    parts = []
    while part := s.recv(65536):
        parts.append(part)
    assert parts, "closed without an answer"
    return b"".join(parts)


def test_an_inherited_unix_socket_and_an_admin_one(fake, tmp_path):
    public, admin = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    for s, name in ((public, "http.sock"), (admin, "admin.sock")):
        s.bind(str(tmp_path / name))
        s.listen()
    d = fake(ready=False, inherit=[public, admin], environment={"LISTEN_FDNAMES": "http:admin"})
    assert ask(tmp_path / "http.sock", "/v1/models").status == 200
    assert ask(tmp_path / "admin.sock", "/metrics").status == 200 and ask(tmp_path / "http.sock", "/metrics").status == 404
    d.signal()
    assert d.wait_exit(5) == 0
    assert (tmp_path / "http.sock").exists() and (tmp_path / "admin.sock").exists()  # not ours to remove
    public.close()
    admin.close()


def test_descriptors_that_will_not_do(fake, tmp_path):
    with open(tmp_path / "file", "w", encoding="ascii") as f:
        assert "LISTEN_FDS: descriptor 3" in refused_at_start(tmp_path, inherit=[f])
    for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
        with socket.socket(socket.AF_INET, kind) as s:
            s.bind(("127.0.0.1", 0))
            assert "is no listening stream socket" in refused_at_start(tmp_path, inherit=[s])
    with socket.create_server(("127.0.0.1", 0)) as s:
        assert "LISTEN_FDS must be a number" in refused_at_start(tmp_path, inherit=[s], environment={"LISTEN_FDS": "1x"})
        # meant for another process: left alone
        d = fake(inherit=[s], environment={"LISTEN_PID": "1"})
        assert d.get("/livez").status == 200


# --- pages of other origins

PREFLIGHT = {"Access_Control_Request_Method": "POST", "Access_Control_Request_Headers": "authorization,content-type,x-stainless-os"}


def cors(answer):
    return {k: v for k, v in answer.headers.items() if k.startswith("access-control-") or k == "vary"}


def test_pages_of_listed_origins(fake):
    d = fake(cors_origins="https://chat.example, http://localhost:3000", api_key="secret")
    where = ("127.0.0.1", d.port)
    for origin in ("https://chat.example", "http://localhost:3000"):
        answer = ask(where, "/v1/chat/completions", "OPTIONS", Origin=origin, **PREFLIGHT)  # a browser sends no key with it
        assert answer.status == 204 and answer.body == b""
        assert cors(answer) == {
            "access-control-allow-origin": origin, "access-control-allow-methods": "GET, HEAD, POST", "vary": "Origin",
            "access-control-allow-headers": "authorization,content-type,x-stainless-os", "access-control-max-age": "600"}
        answer = ask(where, "/v1/models", Origin=origin, Authorization="Bearer secret")
        assert answer.status == 200 and answer.headers["access-control-allow-origin"] == origin
        assert answer.headers["vary"] == "Origin" and "access-control-allow-credentials" not in answer.headers
        exposed = answer.headers["access-control-expose-headers"].lower().split(", ")
        assert {"x-request-id", "retry-after", "x-ratelimit-remaining-tokens"} <= set(exposed)
        refusal = ask(where, "/v1/models", Origin=origin)  # the page shall see why
        assert refusal.status == 401 and refusal.headers["access-control-allow-origin"] == origin
    for origin in ("https://evil.example", "https://chat.example.evil", "http://chat.example", "https://chat.example:444", "null"):
        answer = ask(where, "/v1/chat/completions", "OPTIONS", Origin=origin, **PREFLIGHT)
        assert answer.status == 401 and cors(answer) == {"vary": "Origin"}
        answer = ask(where, "/v1/models", Origin=origin, Authorization="Bearer secret")
        assert answer.status == 200 and cors(answer) == {"vary": "Origin"}
    assert cors(ask(where, "/v1/models", Authorization="Bearer secret")) == {"vary": "Origin"}
    # streams have them, too
    headers = "Origin: https://chat.example\r\nAuthorization: Bearer secret\r\nConnection: close\r\n"
    with d.connect() as s:
        s.sendall(post_bytes("/v1/completions", request("@say hi", stream=True), headers))
        answer = read_all(s)
        assert status(answer) == 200 and b"Access-Control-Allow-Origin: https://chat.example\r\n" in answer


def test_pages_of_all_origins(fake):
    d = fake(cors_origins="*")
    where = ("127.0.0.1", d.port)
    answer = ask(where, "/v1/models", Origin="https://anywhere.example")
    assert answer.headers["access-control-allow-origin"] == "*" and "access-control-allow-credentials" not in answer.headers
    answer = ask(where, "/v1/completions", "OPTIONS", Origin="null", Access_Control_Request_Method="POST",
                 Access_Control_Request_Headers="x\x7f<script>")
    assert answer.status == 204 and answer.headers["access-control-allow-headers"] == "Authorization, Content-Type, X-Request-Id"
    assert cors(ask(where, "/v1/models")) == {}
    assert ask(where, "/v1/models", "OPTIONS", Origin="https://anywhere.example").status == 405  # no preflight: a plain question


def test_pages_of_no_origin(fake, tmp_path):
    admin = tmp_path / "admin.sock"
    d = fake()
    where = ("127.0.0.1", d.port)
    assert cors(ask(where, "/v1/models", Origin="https://chat.example")) == {}
    assert ask(where, "/v1/models", "OPTIONS", Origin="https://chat.example", **PREFLIGHT).status == 405
    d = fake(cors_origins="*", admin_listen=f"unix:{admin}")
    assert cors(ask(admin, "/metrics", Origin="https://chat.example")) == {}  # no page has business there
