#!/usr/bin/env python3
"""What an image is, and how it behaves when a container engine runs it: read-only, as nobody, as process 1.

systemd-nspawn stands in for the engine: an OCI bundle is made of the image's own configuration (entry point, environment, user)."""

import argparse
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

KEY = "key-of-the-docker-test"
passed = 0


def check(fact, what):
    global passed
    if not fact:
        sys.exit(f"FAIL: {what}")
    passed += 1
    print(f"ok: {what}", flush=True)


def megabytes(root):
    return sum(os.lstat(os.path.join(folder, name)).st_size for folder, _, files in os.walk(root) for name in files) / 1e6


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def stat_of(pid):
    """State and parent of a process."""
    with open(f"/proc/{pid}/stat") as f:
        state, parent = f.read().rpartition(")")[2].split()[:2]
    return state, int(parent)


def processes():
    return [int(p) for p in os.listdir("/proc") if p.isdigit()]


class Container:
    """What `docker run --read-only --cap-drop all IMAGE ARGUMENT...` would be."""

    def __init__(self, image, args=None, env=(), model=None):
        config = image["config"]
        self.port = free_port()
        self.user, self.group = map(int, config["User"].split(":"))
        self.env = config["Env"] + [f"INFERD_PORT={self.port}", *env]
        self.bundle = tempfile.mkdtemp()
        with open(os.path.join(self.bundle, "config.json"), "w") as f:
            json.dump({
                "ociVersion": "1.0.0",
                "process": {
                    "terminal": False,
                    "user": {"uid": self.user, "gid": self.group},
                    "args": config["Entrypoint"] + list(args or config["Cmd"]),
                    "env": self.env,
                    "cwd": config["WorkingDir"] or "/",
                    "capabilities": {k: [] for k in ("bounding", "effective", "inheritable", "permitted", "ambient")},
                },
                "root": {"path": image["root"], "readonly": True},
                "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
                "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}]},
            }, f)
        command = ["systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--read-only", "--no-new-privileges=yes",
                   f"--kill-signal={config['StopSignal']}", f"--machine=inferd-test-{os.getpid()}-{self.port}",
                   f"--oci-bundle={self.bundle}"]
        if model: # its folder, since nspawn makes no mount point in a root that is read-only
            command.append(f"--bind-ro={os.path.dirname(model)}:/models")
        self.log = open(os.path.join(self.bundle, "log"), "w+")
        # with control groups of the old kind, nspawn looks for more of them than a machine may have
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=subprocess.STDOUT,
                                        env={**os.environ, "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"})

    def text(self):
        """What inferd said (or nspawn, of what it could not do)."""
        self.log.seek(0)
        return "".join(line for line in self.log if not line.startswith(("Attempted to remove", "Trying to halt"))).strip()

    def pid1(self):
        """The process that is 1 inside."""
        for pid in processes():
            try:
                with open(f"/proc/{pid}/status") as f:
                    if re.search(r"^NSpid:\s+\d+\s+1$", f.read(), re.M) and self.is_ours(pid):
                        return pid
            except OSError:
                pass # it has ended meanwhile
        return None

    def is_ours(self, pid):
        while pid > 1 and pid != self.process.pid:
            pid = stat_of(pid)[1]
        return pid == self.process.pid

    def inside(self, command):
        """As `docker exec`: the same namespaces, root, user and environment."""
        enter = ["nsenter", "--target", str(self.pid1()), "--mount", "--pid", "--root", "--wd", "--setuid", str(self.user),
                 "--setgid", str(self.group)]
        return subprocess.run(enter + command, env=dict(e.split("=", 1) for e in self.env), capture_output=True, text=True, timeout=30)

    def request(self, method, path, body=None, key=KEY):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        c.request(method, path, json.dumps(body) if body else None,
                  {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})})
        return c.getresponse()

    def is_ready(self, seconds=120):
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.process.poll() is None:
            try:
                if self.request("GET", "/readyz").status == 200:
                    return True
            except OSError:
                pass
            time.sleep(0.1)
        print(self.text())
        return False

    def end(self, seconds=60):
        return self.process.wait(seconds)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pid = self.pid1() if self.process.poll() is None else None
        if pid:
            os.kill(pid, signal.SIGKILL)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()
        shutil.rmtree(self.bundle)


def check_configuration(image, top):
    config, root = image["config"], image["root"]
    files = [os.path.join(d, n) for d, _, names in os.walk(root) for n in names]
    files = [f for f in files if not os.path.islink(f)]
    check(re.fullmatch(r"[1-9]\d*:[1-9]\d*", config["User"]), f"its user is a number, and not root: {config['User']}")
    check(config["Entrypoint"] == ["/usr/bin/inferd"] and config["Cmd"] == ["serve"], "it runs inferd itself, through no shell")
    check(config["StopSignal"] == "SIGTERM", "it is stopped by SIGTERM")
    check(config["Healthcheck"]["Test"] == ["CMD", "/usr/bin/inferd", "healthcheck"], "its health check is inferd healthcheck")
    check("8080/tcp" in config["ExposedPorts"], "it tells its port")
    check(not any("KEY" in e for e in config["Env"]), "no key is in it")
    with open(os.path.join(top, "meson.build")) as f:
        version = re.search(r"version: '([\d.]+)'", f.read())[1]
    check(config["Labels"]["org.opencontainers.image.version"] == version, f"it is labelled {version}, as meson.build says")
    programs = [f for f in files if os.access(f, os.X_OK) and ".so" not in os.path.basename(f)]
    check(programs == [os.path.join(root, "usr/bin/inferd")], "inferd is the only program in it")
    loose = [f for f in files if os.stat(f).st_mode & 0o6022]
    check(not loose, f"others may write none of its files, and none is setuid {' '.join(loose)}")
    with open(os.path.join(root, "usr/share/inferd/packages")) as f:
        packages = f.read().splitlines()
    check(packages and not [p for p in packages if "of no package" in p and "/libcublas" not in p],
          f"its libraries are of {len(packages)} packages, named in it with their versions")


def inside_path(model):
    return "/models/" + os.path.basename(model)


def check_refusals(image, model):
    with Container(image, ["serve", inside_path(model)], model=model) as c:
        check(c.end() == 78 and "INFERD_API_KEY" in c.text(), f"without a key it does not start, exit code 78: {c.text()}")
    with Container(image, env=[f"INFERD_API_KEY={KEY}"]) as c:
        check(c.end() in (2, 78), f"nor without a model: {c.text()}")
    with Container(image, ["serve", inside_path(model), "--insecure"], model=model) as c:
        check(c.is_ready(), "with --insecure it starts without a key")


def check_process(c):
    pid = c.pid1()
    with open(f"/proc/{pid}/status") as f:
        status = f.read()
    check(re.search(rf"^Uid:(\t{c.user}){{4}}$", status, re.M), f"process 1 is of user {c.user}")
    check(re.search(r"^CapEff:\t0+$", status, re.M) and re.search(r"^CapBnd:\t0+$", status, re.M), "it has no capability")
    check(re.search(r"^NoNewPrivs:\t1$", status, re.M), "and can get none")
    with open(f"/proc/{pid}/mountinfo") as f:
        mounts = {line.split()[4]: line.split()[5].split(",") for line in f}
    check("ro" in mounts["/"] and "ro" in mounts["/models"], "its root and its model are read-only")


def children(pid1):
    found = []
    for pid in processes():
        try:
            if stat_of(pid)[1] == pid1:
                found.append(pid)
        except OSError:
            pass
    return found


def check_orphans(c):
    pid1 = c.pid1()
    # a shell of this machine's, in the process namespace of the container alone, leaves a child behind
    subprocess.run(["nsenter", "--target", str(pid1), "--pid", "sh", "-c", "sleep 1 & exit 0"], check=True, stdout=subprocess.DEVNULL)
    check(len(children(pid1)) == 1, "a process whose parent has gone becomes process 1's")
    end = time.monotonic() + 10
    while time.monotonic() < end and children(pid1):
        time.sleep(0.1)
    check(not children(pid1), "and is no zombie when it has ended")


class Stream(threading.Thread):
    """An answer of 100 tokens, as it comes."""

    def __init__(self, c):
        super().__init__(daemon=True)
        self.c, self.text, self.status, self.begun = c, b"", None, threading.Event()
        self.start()
        self.begun.wait(60)

    def run(self):
        try:
            response = self.c.request("POST", "/v1/completions", {"model": "model", "prompt": "Once upon a time", "max_tokens": 100,
                                                                  "min_tokens": 100, "stream": True, "temperature": 0})
            self.status = response.status
            while piece := response.read1(4096):
                self.text += piece
                self.begun.set()
        except OSError:
            pass
        self.begun.set()


def check_drain(c):
    answer = Stream(c)
    check(answer.is_alive(), "a stream has begun")
    c.process.send_signal(signal.SIGTERM)
    end, status = time.monotonic() + 10, None
    while time.monotonic() < end and status != 503:
        status = c.request("GET", "/readyz").status
    health = c.inside(["/usr/bin/inferd", "healthcheck"])
    check(status == 503 and answer.is_alive(), "after SIGTERM it is not ready")
    check(health.returncode != 0, f"nor healthy: {(health.stdout + health.stderr).strip()}")
    answer.join()
    check(answer.status == 200 and answer.text.endswith(b"data: [DONE]\n\n") and b'"finish_reason":"length"' in answer.text,
          "the stream goes on to its end")
    check(c.end() == 0, "and process 1 ends with 0")


def check_running(image, model):
    serve = ["serve", inside_path(model), "--served-model-name", "model"]
    with Container(image, serve, env=[f"INFERD_API_KEY={KEY}"], model=model) as c:
        check(c.is_ready(), "with a key it starts")
        check_process(c)
        check(c.request("GET", "/v1/models", key=None).status == 401, "who has no key gets 401")
        health = c.inside(["/usr/bin/inferd", "healthcheck"])
        check(health.returncode == 0, f"the health check passes {(health.stdout + health.stderr).strip()}")
        check_orphans(c)
        check_drain(c)
    slow = ["--device", "null", "--null-step-time", "1s"]
    with Container(image, [*serve, *slow], env=[f"INFERD_API_KEY={KEY}"], model=model) as c:
        check(c.is_ready(), "it starts with a slow device")
        answer, pid1, start = Stream(c), c.pid1(), time.monotonic()
        os.kill(pid1, signal.SIGTERM)
        time.sleep(0.5)
        check(answer.is_alive() and c.process.poll() is None, "drains")
        os.kill(pid1, signal.SIGTERM)
        check(c.end() == 0 and time.monotonic() - start < 10, "and ends at once when told again")


def check_cuda(image, model):
    root = image["root"]
    cuda = sorted(n for n in os.listdir(os.path.join(root, "usr/lib/x86_64-linux-gnu")) if n.startswith(("libcu", "libnv", "libnccl")))
    check("libcublasLt.so.13" in cuda and not set(cuda) - {"libcublas.so.13", "libcublasLt.so.13", "libcudart.so.13"},
          f"of CUDA it has {' '.join(cuda)}")
    check(os.path.exists(os.path.join(root, "usr/lib/inferd/inferd-cuda.so")), "the module is where inferd looks for it")
    with Container(image, ["version"]) as c:
        check(c.end() == 0, "inferd runs in it")
    with Container(image, ["serve", inside_path(model), "--device", "cuda"], env=[f"INFERD_API_KEY={KEY}"], model=model) as c:
        check(c.end() == 4 and "NVIDIA driver" in c.text(), f"and loads the module, which finds no driver: {c.text().splitlines()[-1]}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--inspect", required=True)
    parser.add_argument("--root", required=True)
    parser.add_argument("--top", required=True)
    parser.add_argument("--max-size", type=float, help="MB")
    parser.add_argument("--model", required=True)
    parser.add_argument("--cuda", action="store_true")
    args = parser.parse_args()
    with open(args.inspect) as f:
        image = {"config": json.load(f)["Docker"]["config"], "root": args.root}
    size = megabytes(args.root)
    check(not args.max_size or size < args.max_size, f"the image has {size:.1f} MB")
    check_configuration(image, args.top)
    if args.cuda:
        check_cuda(image, os.path.realpath(args.model))
    else:
        check_refusals(image, os.path.realpath(args.model))
        check_running(image, os.path.realpath(args.model))
    print(f"{passed} checks passed")


main()
