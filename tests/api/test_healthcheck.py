"""`inferd healthcheck`: 0 or 1 and nothing else, soon, where the settings say that the server is."""

import json
import os
import shutil
import socket
import subprocess
import threading
import time

import pytest
from conftest import INFERD, SLOW, free_port
from test_tls import Pair


def check(*arguments, seconds=10, **environment):
    """Exit code, standard output, standard error."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("INFERD")}
    env.update({"INFERD_" + k.upper(): str(v) for k, v in environment.items()})
    done = subprocess.run([INFERD, "healthcheck", *arguments], capture_output=True, text=True, env=env, timeout=seconds * SLOW, check=False)
    return done.returncode, done.stdout, done.stderr


def test_ready_and_not(fake, tmp_path):
    d = fake(ready=False, environment={"FAKE_LOAD_MS": "1000"})
    url = f"http://127.0.0.1:{d.port}"
    while True:  # not even listening
        code, out, err = check("--url", url)
        if "refused" not in err:
            break
        assert code == 1
    assert code == 1 and "not ready" in out and "503" in out and "loading" in out
    assert check("--url", url, "--live")[0] == 0
    d.wait_ready()
    assert check("--url", url) == (0, f"ok: {url}: 200\n", "")
    code, out, _ = check("--url", url + "/", "--json")
    assert code == 0 and json.loads(out)["ok"] is True and json.loads(out)["status"] == 200
    stream = d.open_stream("@delay=50 @loop", max_tokens=100)
    next(stream.events())
    d.signal()
    code, out, _ = check("--url", url)
    assert code == 1 and "draining" in out
    stream.close()
    d.wait_exit()
    code, out, err = check("--url", url)
    assert code == 1 and not out and "refused" in err


def test_where_the_settings_say(fake, tmp_path):
    d = fake()
    assert check(port=d.port)[0] == 0  # the environment
    assert check("--port", str(d.port), port=1)[0] == 0  # a flag
    file = tmp_path / "inferd.conf"
    file.write_text(f"host = 0.0.0.0\nport = {d.port}\n")
    assert check(config=file)[0] == 0  # a file; all addresses are ours, too
    assert check("--config", str(file), port=1)[0] == 1  # which the environment overrides
    assert check(port=0)[0] == 1


def test_a_unix_socket(fake, tmp_path):
    path = f"unix:{tmp_path}/socket"
    d = fake(ready=False, host=path + ",127.0.0.1")
    d.wait_ready()
    assert check(host=path)[0] == 0
    assert check("--url", path)[0] == 0
    assert check(host=path + ".not")[0] == 1


def test_the_admin_listener_is_asked_where_there_is_one(fake):
    admin = free_port()
    d = fake(admin_listen=f"127.0.0.1:{admin}", max_connections=1)
    with d.connect() as held:  # clients have all connections
        held.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        held.recv(4096)
        assert check(port=d.port, admin_listen=f"127.0.0.1:{admin}")[0] == 0
        assert check("--timeout", "0.3", port=d.port)[0] == 1


@pytest.mark.skipif(not shutil.which("openssl"), reason="makes its certificate with openssl")
def test_tls(fake, tmp_path):
    pair = Pair(tmp_path, "pair")
    d = fake(ready=False, **pair.settings)
    environment = {"port": d.port, **pair.settings}
    end = time.monotonic() + 10 * SLOW
    while check(**environment)[0] != 0:
        assert time.monotonic() < end
    assert check("--url", f"https://127.0.0.1:{d.port}")[0] == 0
    assert check("--url", f"http://127.0.0.1:{d.port}")[0] == 1


@pytest.mark.parametrize("answer", [b"", None, b"220 mail ready\r\n", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nX: " + b"y" * 20000,
                                    b"HTTP/1.1 204 No Content\r\n\r\n", b"HTTP/1.1 500 x\r\n\r\n\x1b[31mred"])
def test_impostors(answer):
    """None: it accepts and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        done = threading.Event()

        def serve():
            s, _ = server.accept()
            with s:
                s.recv(4096)
                if answer is None:
                    done.wait(20)
                else:
                    s.sendall(answer)
                    s.shutdown(socket.SHUT_WR)

        thread = threading.Thread(target=serve)
        thread.start()
        began = time.monotonic()
        code, out, err = check("--url", f"http://127.0.0.1:{server.getsockname()[1]}", "--timeout", "0.5")
        assert code == 1 and time.monotonic() - began < 3 * SLOW
        assert "\x1b" not in out + err and (out or err).startswith("inferd: " if err else "not ready")
        done.set()
        thread.join()


@pytest.mark.parametrize("arguments", [["--nonsense"], ["--url", "ftp://x"], ["--url", "http://"], ["--timeout", "0"], ["operand"],
                                       ["--config", "/nowhere/inferd.conf"], ["--url", "http://127.0.0.1:1"]])
def test_any_failure_is_1(arguments):
    code, _, err = check(*arguments)
    assert code == 1 and err.startswith("inferd: ")


def test_help_is_no_failure():
    assert check("--help")[0] == 0
