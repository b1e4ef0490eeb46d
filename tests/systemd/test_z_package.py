"""Upgrade, removal, purge; the last, since nothing is left then."""

import glob
import os

import pytest
from conftest import PACKAGES, ROOT, package, run, show, started, status, systemctl, write

pytestmark = pytest.mark.usefixtures("installed")


def version(name="inferd"):
    return run("dpkg-query", "-W", "-f", "${Version}", name).stdout


def test_lintian():
    import subprocess

    debs = glob.glob(f"{PACKAGES}/packages/*.deb")
    got = subprocess.run(["lintian", "--allow-root", "--fail-on", "error", *debs], capture_output=True, text=True)
    assert got.returncode == 0, got.stdout + got.stderr


def test_upgrade():
    started()
    before = show("MainPID")
    conf = open(ROOT + "/etc/inferd/inferd.conf", encoding="utf-8").read()
    run("dpkg", "--force-confold", "--install", package("newer"))
    assert version() == "99.0-1"
    assert show("ActiveState") == "active" and show("MainPID") != before and status() == 200
    assert open(ROOT + "/etc/inferd/inferd.conf", encoding="utf-8").read() == conf
    systemctl("stop", "inferd.service")
    run("dpkg", "--force-confold", "--install", package("newer"))
    assert show("ActiveState") == "inactive"  # what did not run is not started


def test_cuda_package():
    if not glob.glob(f"{PACKAGES}/packages/inferd-cuda_*.deb"):
        pytest.skip("INFERD_CUDA_MODULE names no module")
    run("dpkg", "--force-depends", "--install", package("newer", "inferd-cuda"))
    systemctl("daemon-reload")
    assert "nvidia-modprobe" in show("ExecStartPre")
    started()  # there is neither a GPU nor nvidia-modprobe here: the CPU serves
    assert status() == 200
    run("dpkg", "--purge", "inferd-cuda")
    assert not glob.glob(ROOT + "/usr/lib/*/inferd/*")


def test_remove_and_purge():
    started()
    write("/etc/inferd/credentials/other", "secret", mode=0o600)
    run("dpkg", "--remove", "inferd")
    assert status() == 0
    assert not os.path.exists(ROOT + "/usr/bin/inferd")
    assert show("LoadState") in ("not-found", "masked")
    assert os.path.exists(ROOT + "/etc/inferd/inferd.conf")  # a removal keeps the configuration
    write("/var/lib/inferd/models/precious.gguf", "x")
    for path in glob.glob(ROOT + "/etc/inferd/other.conf"):
        os.remove(path)  # the test's own
    got = run("dpkg", "--purge", "inferd")
    assert "warning" not in got.stdout.replace("not empty so not removed", "").lower() or "precious" in got.stdout, got.stdout
    assert not os.path.exists(ROOT + "/etc/inferd") and not os.path.exists(ROOT + "/var/cache/inferd")
    assert os.path.exists(ROOT + "/var/lib/inferd/models/precious.gguf")  # what others put there stays
    assert run("dpkg-query", "-W", "inferd", check=False).returncode != 0
    left = run("find", "/etc/systemd", "/usr/lib", "/lib/systemd", "-name", "*inferd*", check=False).stdout.split()
    assert [p for p in left if "test.conf" not in p and not p.endswith("inferd.service.d")] == []
