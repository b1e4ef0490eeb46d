"""TLS on the fake engine: what is agreed, streams, clients that leave or are slow, and a certificate that changes."""

import http.client
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import time

import openai
import pytest
from conftest import FAKE, SLOW, Daemon, wait_for
from test_raw import post_bytes, read_all, request, status

pytestmark = [
    pytest.mark.skipif(not os.path.isfile(FAKE), reason="fake_inferd was not built (option tests)"),
    pytest.mark.skipif(not shutil.which("openssl"), reason="openssl is not there to make certificates"),
]


class Pair:
    """A certificate for localhost that signs itself, and its key."""

    def __init__(self, folder, name):
        self.certificate, self.key = folder / f"{name}.crt", folder / f"{name}.key"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "3", "-subj",
             f"/CN={name}", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1,IP:::1", "-keyout", str(self.key), "-out",
             str(self.certificate)], check=True, capture_output=True)
        self.key.chmod(0o600)

    @property
    def settings(self):
        return {"tls_certificate": str(self.certificate), "tls_key": str(self.key)}

    def replace(self, other):
        for mine, theirs in ((self.certificate, other.certificate), (self.key, other.key)):
            mine.write_bytes(theirs.read_bytes())


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificates")
    return Pair(folder, "first"), Pair(folder, "second")


@pytest.fixture
def pair(pairs, tmp_path):
    """The first pair in files of its own, to be replaced at will."""
    p = Pair.__new__(Pair)
    p.certificate, p.key = tmp_path / "server.crt", tmp_path / "server.key"
    p.replace(pairs[0])
    p.key.chmod(0o600)
    return p


def trusting(*pairs):
    context = ssl.create_default_context()
    for p in pairs:
        context.load_verify_locations(p.certificate)
    return context


class Secure(Daemon):
    """A daemon whose port speaks TLS; clients trust the pairs that they are told to."""

    trusted = None

    def connect(self, timeout=30):
        return self.trusted.wrap_socket(super().connect(timeout), server_hostname="localhost")

    def connection(self, timeout):
        return http.client.HTTPSConnection("localhost", self.port, timeout=timeout, context=self.trusted)

    def common_name(self):
        with self.connect() as s:
            return dict(field[0] for field in s.getpeercert()["subject"])["commonName"]


@pytest.fixture
def secure(tmp_path):
    daemons = []

    def start(pair, ready=True, environment=None, **settings):
        (tmp_path / "fake.gguf").touch()
        d = Secure(tmp_path / f"log{len(daemons)}", program=FAKE, environment=environment, model=str(tmp_path / "fake.gguf"),
                   **pair.settings, **settings)
        d.trusted = trusting(pair)
        daemons.append(d)
        return d.wait_ready() if ready else d

    yield start
    for d in daemons:
        d.stop()


def refused_at_start(tmp_path, **settings):
    """What the daemon says when it does not start for its configuration."""
    (tmp_path / "fake.gguf").touch()
    d = Daemon(tmp_path / "refused", program=FAKE, model=str(tmp_path / "fake.gguf"), **settings)
    assert d.wait_exit(10) == 78
    text = d.log_text()
    os.unlink(tmp_path / "refused")
    return text


# --- what is agreed


def test_the_openai_client_over_tls(secure, pair):
    d = secure(pair)
    with openai.DefaultHttpxClient(verify=d.trusted) as web:
        client = openai.OpenAI(base_url=f"https://localhost:{d.port}/v1", api_key="none", max_retries=0, http_client=web)
        assert client.completions.create(model="fake", prompt="@say over TLS").choices[0].text == "over TLS"
        stream = client.completions.create(model="fake", prompt="@say a stream over TLS", stream=True, max_tokens=40)
        assert "".join(chunk.choices[0].text for chunk in stream) == "a stream over TLS"


def test_a_client_that_does_not_know_the_certificate_refuses_it(secure, pair):
    d = secure(pair)
    d.trusted = ssl.create_default_context()
    with pytest.raises(ssl.SSLCertVerificationError):
        d.connect()
    with socket.create_connection(("127.0.0.1", d.port)) as s:  # and nobody is served without TLS
        s.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"HTTP/1.1" not in read_all(s)
    d.trusted = trusting(pair)
    assert d.get("/livez").status == 200


def handshake(d, lowest, highest):
    context = trusting()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.minimum_version, context.maximum_version = lowest, highest
    context.set_ciphers("ALL:@SECLEVEL=0")  # ours to be refused, not the client's own refusal
    with socket.create_connection(("127.0.0.1", d.port), timeout=10 * SLOW) as s, context.wrap_socket(s) as t:
        return t.version(), t.cipher()[0]


def test_the_oldest_version(secure, pair):
    v = ssl.TLSVersion
    d = secure(pair)
    assert handshake(d, v.TLSv1_2, v.TLSv1_3)[0] == "TLSv1.3"
    version, cipher = handshake(d, v.TLSv1_2, v.TLSv1_2)
    assert version == "TLSv1.2" and cipher.startswith("ECDHE-") and ("GCM" in cipher or "CHACHA20" in cipher)
    with pytest.raises((ssl.SSLError, ConnectionResetError)), pytest.warns(DeprecationWarning):
        handshake(d, v.TLSv1_1, v.TLSv1_1)
    d = secure(pair, tls_min_version="1.3")
    assert handshake(d, v.TLSv1_2, v.TLSv1_3)[0] == "TLSv1.3"
    with pytest.raises((ssl.SSLError, ConnectionResetError)):
        handshake(d, v.TLSv1_2, v.TLSv1_2)


# --- what could break on the way


def test_many_streams_and_large_bodies(secure, pair):
    d = secure(pair)
    long = "x" * 300_000
    streams = [d.open_stream(f"@delay=2 @say stream {i} says {'y' * 50}", max_tokens=100) for i in range(24)]
    answer = d.post("/tokenize", {"model": "fake", "prompt": long})
    assert answer.status == 200 and answer.json()["count"] >= len(long)
    for i, s in enumerate(streams):
        assert s.text() == f"stream {i} says {'y' * 50}" and s.done
    with d.connect() as s:  # one connection for many requests, two of them sent at once
        get = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"
        for _ in range(20):
            s.sendall(get)
            answer = b""
            while not answer.endswith(b"}]}\n"):
                answer += s.recv(65536)
            assert status(answer) == 200
        s.sendall(get + get.replace(b"Host", b"Connection: close\r\nHost"))
        assert read_all(s).count(b"HTTP/1.1 200 OK") == 2


@pytest.mark.parametrize("how", ["close", "rst"])
@pytest.mark.parametrize("prompt", ["@stall", "@delay=5 @loop"])
def test_leaving(secure, pair, how, prompt):
    d = secure(pair)
    stream = d.open_stream(prompt, max_tokens=3000)
    wait_for(lambda: d.gauge("requests_running") == 1, 5, "it runs")
    if how == "rst":
        stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    stream.close()
    wait_for(lambda: d.metrics()[("inferd_requests_cancelled_total", ())] == 1, 1, "it is cancelled")
    d.wait_idle()
    d.check_identity()


def small_window(d):
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    s.settimeout(60 * SLOW)
    s.connect(("127.0.0.1", d.port))
    return d.trusted.wrap_socket(s, server_hostname="localhost")


def test_a_slow_reader_gets_all(secure, pair):
    """Records that the socket takes in part, or not now, are written to their end."""
    d = secure(pair, max_model_len=4_000_000)
    with small_window(d) as s:
        s.sendall(post_bytes("/tokenize", {"model": "fake", "prompt": "x" * 2_000_000}, "Connection: close\r\n"))
        time.sleep(0.5)
        answer = read_all(s)
    body = json.loads(answer.partition(b"\r\n\r\n")[2])
    assert body["count"] == len(body["tokens"]) >= 2_000_000 and set(body["tokens"][1:-1]) == {ord("x")}


def test_a_reader_that_stops_is_dropped(secure, pair):
    d = secure(pair, max_model_len=1_000_000)
    with small_window(d) as s:
        s.sendall(post_bytes("/v1/completions", request("@loop", stream=True, max_tokens=900_000)))
        wait_for(lambda: d.metrics()[("inferd_slow_readers_dropped_total", ())] == 1, 30, "the reader is dropped")
        d.wait_idle()
        d.check_identity()


def test_half_a_handshake_is_not_waited_for(secure, pair):
    d = secure(pair, header_timeout=0.5)
    with socket.create_connection(("127.0.0.1", d.port), timeout=20 * SLOW) as s:
        s.sendall(b"\x16\x03\x01\x02\x00\x01")
        began = time.monotonic()
        assert read_all(s) == b"" and time.monotonic() - began < 5 * SLOW


def test_drain(secure, pair):
    d = secure(pair)
    stream = d.open_stream("@delay=20 @say until the very end", max_tokens=40)
    wait_for(lambda: d.gauge("requests_running") == 1, 5, "it runs")
    d.signal()
    wait_for(lambda: d.get("/readyz").status == 503, 5, "it drains")
    assert stream.text() == "until the very end" and stream.done
    assert d.wait_exit(5) == 0


def test_what_waits_costs_nothing(secure, pair):
    """Streams, connections between two requests, and handshakes: none begun, half a message, one that stops half way."""
    d = secure(pair, max_sequences=100, header_timeout=30)
    parked = [d.open_stream("@stall") for _ in range(40)]
    idle = [d.connect() for _ in range(20)]
    for s in idle[:10]:
        s.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        assert status(s.recv(1000)) == 200
    wait_for(lambda: d.gauge("requests_running") == 40, 10, "all run")
    silent, half, stopped = [socket.create_connection(("127.0.0.1", d.port)) for _ in range(3)]
    half.sendall(b"\x16\x03\x01\x02\x00\x01")
    outgoing = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        d.trusted.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost").do_handshake()
    stopped.sendall(outgoing.read())
    assert stopped.recv(10)
    time.sleep(0.2)
    before = d.cpu_seconds()
    time.sleep(1)
    assert d.cpu_seconds() - before <= 0.03 * SLOW
    for s in parked + idle + [silent, half, stopped]:
        s.close()


# --- another certificate


def test_another_certificate_while_a_stream_runs(secure, pair, pairs):
    d = secure(pair)
    d.trusted = trusting(*pairs)
    assert d.common_name() == "first"
    kept = d.connect()
    stream = d.open_stream("@delay=20 @loop", max_tokens=80)
    events = stream.events()
    next(events)
    pair.replace(pairs[1])
    d.signal(signal.SIGHUP)
    wait_for(lambda: d.common_name() == "second", 5, "new connections see the second one")
    kept.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert status(read_all(kept)) == 200
    assert sum(1 for e in events if e["choices"][0]["text"]) == 79 and stream.done
    # a bad pair changes nothing, and the log says why
    pair.key.write_bytes(pairs[0].key.read_bytes())
    d.signal(signal.SIGHUP)
    wait_for(lambda: "is not the key of the certificate" in d.log_text(), 5, "the log says why")
    assert d.common_name() == "second"
    pair.replace(pairs[0])
    d.signal(signal.SIGHUP)
    wait_for(lambda: d.common_name() == "first", 5, "a good one is taken again")


def test_changes_under_handshakes(secure, pair, pairs):
    """A handshake ends as it began, whatever is read again meanwhile."""
    d = secure(pair)
    d.trusted = trusting(*pairs)
    for i in range(8):
        half = socket.create_connection(("127.0.0.1", d.port), timeout=10 * SLOW)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = d.trusted.wrap_bio(incoming, outgoing, server_hostname="localhost")
        with pytest.raises(ssl.SSLWantReadError):
            client.do_handshake()
        half.sendall(outgoing.read())
        incoming.write(half.recv(300))  # the server has answered
        before = d.log_text().count("is good until")
        pair.replace(pairs[i % 2])
        d.signal(signal.SIGHUP)
        wait_for(lambda: d.log_text().count("is good until") > before, 5, "the pair is read again")
        while True:
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                half.sendall(outgoing.read())
                incoming.write(half.recv(65536))
        client.write(b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        half.sendall(outgoing.read())
        while part := half.recv(65536):
            incoming.write(part)
        assert status(client.read()) == 200
        half.close()


# --- what is wrong with the files


def test_files_that_will_not_do(pair, pairs, tmp_path):
    def with_pair(certificate=pair.certificate, key=pair.key):
        return refused_at_start(tmp_path, tls_certificate=str(certificate), tls_key=str(key))

    pair.key.chmod(0o644)
    text = with_pair()
    assert "server.key: others may read or change it (mode 0644)" in text
    pair.key.chmod(0o600)
    assert "is not the key of the certificate" in with_pair(key=pairs[1].key)
    assert "server.key: there is no certificate in it" in with_pair(certificate=pair.key)
    assert "No such file" in with_pair(key=tmp_path / "nowhere.key")
    assert "it is no regular file" in with_pair(key=tmp_path)
    encrypted = tmp_path / "encrypted.key"
    subprocess.run(["openssl", "pkey", "-in", str(pair.key), "-aes256", "-passout", "pass:secret", "-out", str(encrypted)], check=True)
    encrypted.chmod(0o600)
    assert "the key is encrypted" in with_pair(key=encrypted)
    empty = tmp_path / "empty.key"
    empty.touch(0o600)
    assert "there is no private key in it" in with_pair(key=empty)
    chain = tmp_path / "chain.crt"
    chain.write_bytes(pair.certificate.read_bytes() * 17)
    assert "there are too many certificates in it" in with_pair(certificate=chain)
    assert "TLS wants both" in refused_at_start(tmp_path, tls_certificate=str(pair.certificate))
    run = subprocess.run([FAKE, "serve", "--check-config", "--model", str(tmp_path / "fake.gguf"), "--tls-certificate",
                          str(pair.certificate), "--tls-key", str(pairs[1].key)], capture_output=True, text=True)
    assert run.returncode == 78 and "is not the key" in run.stderr


def test_an_inherited_socket_speaks_tls(secure, pair):
    with socket.create_server(("127.0.0.1", 0)) as s:
        d = secure(pair, ready=False, inherit=[s], environment={"FAKE_LOAD_MS": "500"})
        d.port = s.getsockname()[1]
        with d.connect() as early:  # the handshake waits until the model is loaded
            early.sendall(b"GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert status(read_all(early)) == 200
        assert d.get("/readyz").status == 200
