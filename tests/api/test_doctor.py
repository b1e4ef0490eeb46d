"""`inferd doctor` on this machine, and what `inferd serve` says of the same faults (faults.md, part G)."""

import json
import os
import shutil
import socket
import subprocess

import pytest
from conftest import INFERD, MODEL, SLOW, free_port
from faults import BUILD, write_tiny_model

MODULE = os.path.join(BUILD, "tests", "emu", "inferd-cuda.so")
FAKE_DRIVER = os.path.join(BUILD, "tests", "unit")
NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user, or have a /dev of its own")
needs_emulator = pytest.mark.skipif(not os.path.exists(MODULE), reason="the emulated CUDA module is not built")


def run(*arguments, environment=None, **kwargs):
    env = {k: v for k, v in os.environ.items() if not k.startswith("INFERD")}
    env.update(environment or {})
    return subprocess.run([INFERD, *arguments], capture_output=True, text=True, env=env, timeout=60 * SLOW, **kwargs)


def doctor(*arguments, code=0, **kwargs):
    """{check: [(status, finding, remedy), ...]}"""
    done = run("doctor", "--json", *arguments, **kwargs)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    report = json.loads(done.stdout)
    assert report["ok"] == (code == 0) == (report["faults"] == 0)
    checks = {}
    for c in report["checks"]:
        assert c["status"] in ("ok", "note", "fault") and c["finding"]
        assert c["status"] != "fault" or c["remedy"], c
        checks.setdefault(c["check"], []).append((c["status"], c["finding"], c["remedy"]))
    return checks


def test_a_sound_machine():
    port = free_port()
    checks = doctor("--model", MODEL, "--port", str(port), "--device", "cpu")
    assert {"settings", "model", "address", "processor", "memory", "cgroup", "huge pages", "/dev/shm", "limits", "clock",
            "libmicrohttpd"} == set(checks)
    assert checks["model"][0][:2] == ("ok", f"{MODEL} can be read, and its headers are sound")
    assert checks["address"][0][:2] == ("ok", f"127.0.0.1:{port} is free")
    variant = json.loads(run("version", "--json").stdout)["cpu_variant"]
    assert f"the variant {variant}" in checks["processor"][0][1]
    text = run("doctor", MODEL, "--port", str(port), "--device", "cpu")
    assert text.returncode == 0 and text.stdout.splitlines()[-1].startswith("0 faults, ")
    assert f"\nok     address        127.0.0.1:{port} is free\n" in text.stdout


def test_addresses(daemon):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        checks = doctor("--port", str(s.getsockname()[1]), code=1)
        assert checks["address"][0][0] == "fault" and "in use" in checks["address"][0][1]
    checks = doctor("--port", str(daemon.port))
    assert checks["address"][0][:2] == ("ok", f"127.0.0.1:{daemon.port} is taken, by a server that answers /livez")


def test_unix_sockets(fake, tmp_path):
    checks = doctor("--host", f"unix:{tmp_path}/new.sock")
    assert checks["address"] == [("ok", f"unix:{tmp_path}/new.sock can be made", None)] and os.listdir(tmp_path) == ["fake.gguf"]
    checks = doctor("--host", f"unix:{tmp_path}/no/new.sock", code=1)
    assert checks["address"][0][:2] == ("fault", f"unix:{tmp_path}/no/new.sock: no file can be made in {tmp_path}/no: No such file or directory")
    fake(host=f"unix:{tmp_path}/live.sock,127.0.0.1")
    checks = doctor("--host", f"unix:{tmp_path}/live.sock", "--admin-listen", f"unix:{tmp_path}/admin.sock")
    assert [c[1].partition(" ")[2] for c in checks["address"]] == ["is taken, by a server that answers /livez", "can be made"]


def test_settings_and_model(tmp_path):
    assert doctor("--kv-block-size", "24", code=1)["settings"][0][:2] == ("fault", "kv_block_size must be a power of two, not 24")
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(open(MODEL, "rb").read(5000))
    (model,) = doctor("--model", str(broken), code=1)["model"]
    assert model[0] == "fault" and str(broken) in model[1]
    config = tmp_path / "inferd.conf"
    config.write_text(f"model = {MODEL}\nport = {free_port()}\n")
    checks = doctor("--config", str(config))
    assert str(config) in checks["settings"][0][1] and checks["model"][0][0] == "ok"
    # 0 or 1 alone, whatever is wrong
    config.write_text("no_such_setting = 1\n")
    assert run("doctor", "--config", str(config)).returncode == 1
    assert run("doctor", "--no-such-option").returncode == 1
    assert run("doctor", "--help").returncode == 0


@needs_root
def test_ollama_2147_model_not_readable_by_the_service_user(tmp_path):
    """The part of the path is named, with owner, mode and user; exit code 78."""
    for folder in (tmp_path, *tmp_path.parents[:-1]):
        if os.stat(folder).st_mode & 0o055 != 0o055 and str(folder) != "/tmp":
            os.chmod(folder, 0o755)
    shut = tmp_path / "shut"
    (shut / "deep").mkdir(parents=True)
    model = write_tiny_model(shut / "deep" / "tiny.gguf")
    program = shutil.copy(INFERD, tmp_path / "inferd")
    os.chmod(shut, 0o700)
    sentence = f"model: {shut}: Permission denied (it belongs to user 0, mode 0700; inferd runs as user {NOBODY})"
    for arguments in (["serve", "--model", model], ["serve", "--check-config", "--model", model]):
        done = subprocess.run([program, *arguments], capture_output=True, text=True, user=NOBODY, group=NOBODY, extra_groups=[], timeout=30)
        assert (done.returncode, done.stderr) == (78, f"inferd: {sentence}\n")
    done = subprocess.run([program, "doctor", "--json", "--model", model], capture_output=True, text=True, user=NOBODY, group=NOBODY,
                          extra_groups=[], timeout=30)
    assert done.returncode == 1
    assert [c["finding"] for c in json.loads(done.stdout)["checks"] if c["status"] == "fault"] == [sentence]


def test_ollama_2147_home_directories():
    done = run("serve", "--model", "/home/no-such-user/model.gguf")
    assert done.returncode == 78
    assert "/home/no-such-user: No such file or directory; a unit with ProtectHome= hides home directories" in done.stderr


# --- the GPU, emulated

def cuda(*arguments, emu="fast,memory=512M", driver=True, **kwargs):
    environment = {"INFERD_EMU": emu, **({"LD_LIBRARY_PATH": FAKE_DRIVER} if driver else {})}
    return doctor("--device", "cuda", "--cuda-module", MODULE, "--port", str(free_port()), environment=environment, code=1, **kwargs)


@needs_emulator
def test_a_gpu():
    checks = cuda()
    assert checks["driver"] == [("ok", "version 580.65.06, for programs up to CUDA 13.0; it knows 2 GPUs", None)]
    assert checks["peer links"][0][0] == "ok"
    assert checks["CUDA module"][0][0] == "ok" and "made for this inferd" in checks["CUDA module"][0][1]
    assert checks["CUDA device"][0][0] == "ok" and "CUDA device 0" in checks["CUDA device"][0][1]
    assert {f for s, f, _ in checks["device node"] if s == "fault"} >= {"/dev/nvidiactl: No such file or directory"}  # emulated: none


@needs_emulator
def test_a_driver_that_is_too_old():
    checks = cuda(emu="fast,devices=0,driver=12040")
    status, finding, remedy = checks["CUDA device"][0]
    assert status == "fault" and "too old: it is made for CUDA 12.4, and the CUDA module needs 13.0" in finding and remedy


@needs_emulator
def test_a_module_of_another_version(tmp_path):
    other = tmp_path / "inferd-cuda.so"
    other.write_bytes(b"\x7fELF nothing")
    done = run("doctor", "--json", "--device", "cuda", "--cuda-module", str(other))
    (finding,) = [c["finding"] for c in json.loads(done.stdout)["checks"] if c["check"] == "CUDA module"]
    assert "cannot be loaded" in finding


# A /dev of one's own that has these nodes of NVIDIA, as empty files.
OWN_DEV = """mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3 && mknod -m 666 /dev/urandom c 1 9 && mkdir /dev/shm &&
    for node in $NODES; do : > /dev/$node; done && exec "$@" """


def own_namespace(script, *arguments, **environment):
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode != 0:
        pytest.skip("no mount namespaces here")
    done = subprocess.run(["unshare", "-m", "sh", "-c", script, "sh", INFERD, *arguments], capture_output=True, text=True,
                          env={**os.environ, **environment}, timeout=60 * SLOW)
    if "mount:" in done.stderr or "mknod:" in done.stderr:
        pytest.skip("no right to mount here")
    return done


@needs_root
def test_vllm_1710_small_shm():
    """The sentence names the flags of the container."""
    done = own_namespace('mount -t tmpfs -o size=64m none /dev/shm && exec "$@"', "doctor", "--json", "--port", str(free_port()))
    (shm,) = [c for c in json.loads(done.stdout)["checks"] if c["check"] == "/dev/shm"]
    assert shm["status"] == "note" and shm["finding"].startswith("64 MiB: ")
    assert "--shm-size=1g" in shm["remedy"] and "--ipc=host" in shm["remedy"]


@needs_root
@needs_emulator
@pytest.mark.parametrize("nodes, missing", [("", "/dev/nvidiactl"), ("nvidiactl nvidia0", "/dev/nvidia-uvm")])
def test_nixpkgs_331069_no_silent_fallback_to_the_cpu(tmp_path, nodes, missing):
    """A GPU was asked for and a node is missing: the start fails, and says which."""
    done = own_namespace(OWN_DEV, "serve", "--model", write_tiny_model(tmp_path / "tiny.gguf"), "--device", "cuda", "--cuda-module", MODULE,
                         "--port", "0", NODES=nodes, INFERD_EMU="fast,devices=0", LD_LIBRARY_PATH=FAKE_DRIVER)
    assert done.returncode == 4, done.stderr
    assert f"there is no device node {missing}" in done.stderr
