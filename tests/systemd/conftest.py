"""The machine that run.sh has booted: commands in it, its files, HTTP to what it serves (we are in its network)."""

import glob
import http.client
import json
import os
import subprocess
import time

import pytest

LEADER = os.environ.get("INFERD_MACHINE")
PACKAGES = os.environ.get("INFERD_PACKAGES", "")
ROOT = f"/proc/{LEADER}/root"
LONG = os.environ.get("INFERD_TEST_LONG") == "1"
SLOW = float(os.environ.get("INFERD_TEST_SLOW", "1"))
PORT = 8080


def pytest_collection_modifyitems(items):
    if not LEADER:
        for item in items:
            item.add_marker(pytest.mark.skip(reason="tests/systemd/run.sh boots the machine"))


def run(*command, check=True, timeout=120):
    """In the machine."""
    got = subprocess.run(["nsenter", "-t", LEADER, "-m", "-u", "-i", "-n", "-p", "-C", "--", "env", "-i",
                          "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive", *command],
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout, stdin=subprocess.DEVNULL)
    assert not check or got.returncode == 0, f"{command}: {got.returncode}\n{got.stdout}{journal()}"
    return got


def journal(unit="inferd", lines=40):
    return subprocess.run(["nsenter", "-t", LEADER, "-m", "-p", "--", "journalctl", "--no-pager", "-n", str(lines), "-u", unit],
                          capture_output=True, text=True).stdout


def write(path, text, mode=0o644):
    whole = ROOT + path
    os.makedirs(os.path.dirname(whole), exist_ok=True)
    if os.path.islink(whole):
        os.remove(whole)  # it would lead to our own files
    with open(whole, "w", encoding="utf-8") as f:
        f.write(text)
    os.chmod(whole, mode)


def systemctl(*arguments, **kwargs):
    return run("systemctl", *arguments, **kwargs)


def show(name, unit="inferd.service"):
    return systemctl("show", "-P", name, unit).stdout.strip()


def configure(unit=None, **settings):
    """inferd.conf, and a drop-in of the unit; what ran is stopped."""
    systemctl("stop", "inferd.socket", "inferd.service", check=False)
    settings = {"model": "/srv/test/models/tiny.gguf", "kv_tokens": 8192, "threads": 2, **settings}
    write("/etc/inferd/inferd.conf", "".join(f"{k} = {v}\n" for k, v in settings.items()))
    drop_in = "/etc/systemd/system/inferd.service.d/test.conf"
    if unit:
        write(drop_in, "[Service]\n" + "".join(f"{k}={v}\n" for k, v in unit.items()))
    elif os.path.exists(ROOT + drop_in):
        os.remove(ROOT + drop_in)
    systemctl("daemon-reload")
    systemctl("reset-failed", check=False)


def started(unit=None, **settings):
    configure(unit, **settings)
    systemctl("start", "inferd.service")


def wait_for(what, seconds, why, every=0.05):
    end = time.monotonic() + seconds * SLOW
    while True:
        value = what()
        if value:
            return value
        assert time.monotonic() < end, f"not within {seconds * SLOW:g} s: {why}\n{journal()}"
        time.sleep(every)


def request(method, path, body=None, headers=None, port=PORT, timeout=60):
    """(status, body)"""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout * SLOW)
    try:
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, {"Content-Type": "application/json", **(headers or {})})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def status(path="/readyz", **kwargs):
    try:
        return request("GET", path, **kwargs)[0]
    except OSError:
        return 0


def complete(max_tokens=4, port=PORT, headers=None, **fields):
    return request("POST", "/v1/completions", {"model": model(), "prompt": "Once", "max_tokens": max_tokens, **fields}, headers, port)


def model():
    return "tiny"


def package(folder, name="inferd"):
    (path,) = glob.glob(f"{PACKAGES}/{folder}/{name}_*.deb")
    return path.replace(PACKAGES, "/srv/test")


@pytest.fixture(scope="session")
def installed():
    run("dpkg", "--install", package("packages"))
    yield
