"""A model over several processes that MPI started (pipeline_parallel), each with its ranks (tensor_parallel): the answers are those of
one process, and when one of them is gone, the others do not wait for it."""

import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import time

import openai
import pytest
from conftest import INFERD, MODEL, SANITIZED, SLOW, Daemon, wait_for
from faults import BUILD, write_tiny_model

pytestmark = [
    pytest.mark.skipif(not shutil.which("mpirun"), reason="there is no mpirun"),
    pytest.mark.skipif(not os.path.isfile(os.path.join(BUILD, "inferd-mpi.so")), reason="the module for several nodes is not built"),
    pytest.mark.skipif(SANITIZED, reason="Open MPI leaks, and its module is loaded into the program"),
]

# What mpirun starts in place of the daemon: it runs it, tells its process and its end, and hands signals on.
NODE = """
import os, signal, subprocess, sys
folder, rank = sys.argv[1], os.environ.get("OMPI_COMM_WORLD_RANK", "0")
p = subprocess.Popen(sys.argv[2:] + os.environ.get("NODE_ARGUMENTS_" + rank, "").split())
for s in (signal.SIGTERM, signal.SIGINT):
    signal.signal(s, lambda number, frame: p.send_signal(number))
def write(name, value):
    with open(f"{folder}/{name}.{rank}.new", "w") as f:
        f.write(str(value))
    os.rename(f"{folder}/{name}.{rank}.new", f"{folder}/{name}.{rank}")
write("pid", p.pid)
code = p.wait()
write("code", code)
sys.exit(code if code >= 0 else 1)
"""
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--enable-recovery", "--bind-to", "none"]


class Nodes(Daemon):
    """The leader's daemon; `pid_of` and `code_of` of any node."""

    def __init__(self, folder, n, launcher=None, **settings):
        self.folder = folder
        node = folder / "node.py"
        node.write_text(NODE)
        start = folder / "start.sh"
        words = [*(launcher or MPIRUN), "-np", str(n), sys.executable, str(node), str(folder), INFERD]
        start.write_text("#!/bin/sh\nexec " + " ".join(f"'{w}'" for w in words) + ' "$@"\n')
        start.chmod(0o755)
        super().__init__(folder / "log", program=str(start), **settings)

    def read(self, name, rank):
        path = self.folder / f"{name}.{rank}"
        return int(path.read_text()) if path.exists() else None

    def pid_of(self, rank):
        return wait_for(lambda: self.read("pid", rank), 20, f"node {rank} is there")

    def code_of(self, rank, seconds):
        return wait_for(lambda: (c := self.read("code", rank)) is not None and (c, ), seconds, f"node {rank} has ended")[0]

    def end(self):
        for rank in range(8):
            pid = self.read("pid", rank)
            if pid and self.read("code", rank) is None:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        if self.running():
            self.signal()
            self.wait_exit()


@pytest.fixture
def nodes(tmp_path):
    started = []

    def start(n=2, ready=True, launcher=None, **settings):
        folder = tmp_path / f"nodes{len(started)}"
        folder.mkdir()
        d = Nodes(folder, n, launcher, **{"pipeline_parallel": n, **settings})
        started.append(d)
        return d.wait_ready() if ready else d

    yield start
    for d in started:
        d.end()


@pytest.fixture
def tiny(tmp_path):
    return write_tiny_model(tmp_path / "tiny.gguf")


def answers(d, prompts=("The sea", "Once upon a time there was", "x")):
    """Greedy and seeded texts with logprobs, several at once, by the official client."""
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{d.port}/v1", api_key="x")
    out = []
    for i, prompt in enumerate(prompts):
        for temperature in (0, 0.9):
            r = client.completions.create(model=d.model, prompt=prompt, max_tokens=24, temperature=temperature, seed=i, logprobs=2, n=2)
            out += [(c.text, c.logprobs.token_logprobs) for c in r.choices]
    return out


def test_answers_are_those_of_one_process(nodes, start, tiny):
    alone = answers(start(model=tiny, kv_tokens=4096))
    d = nodes(model=tiny, kv_tokens=4096)
    assert answers(d) == alone  # to the bit: the layers are only elsewhere
    log = d.log_text()
    assert "node 1 of 2 follows the leader" in log and log.count("listening on") == 1
    os.kill(d.pid_of(0), signal.SIGTERM)  # mpirun itself would give them no time to end
    assert d.wait_exit(20) == 0 and d.code_of(0, 1) == 0 and d.code_of(1, 1) == 0


def test_stages_of_ranks(nodes, start, tiny):
    """Two stages of two ranks, three of one: the same bits as the same number of ranks in one process."""
    two = answers(start(model=tiny, kv_tokens=4096, tensor_parallel=2))
    assert answers(nodes(model=tiny, kv_tokens=4096, tensor_parallel=2)) == two
    alone = answers(start(model=tiny, kv_tokens=4096))
    assert answers(nodes(3, model=tiny, kv_tokens=4096)) == alone


def test_wrong_numbers(nodes, start, tiny, tmp_path):
    def refused(d, why):
        d.wait_exit(30)  # mpirun forgives what it is told to survive
        assert d.code_of(0, 5) == 78 and why in d.log_text(), d.log_text()
        return d.log_text()

    for n, why in ((3, "pipeline_parallel is 3, but MPI started 2 processes"), (1, "MPI started 2 processes, but pipeline_parallel is 1")):
        log = refused(nodes(2, ready=False, model=tiny, pipeline_parallel=n), why)
        assert "listen" not in log  # before two that each take themselves for the leader want the same port
    refused(nodes(4, ready=False, model=tiny), "the model has 3 layers")
    refused(nodes(2, ready=False, model=tiny, replicas=2), "replicas (2) of a model that several nodes share (pipeline_parallel 2)")
    d = Daemon(tmp_path / "log", model=tiny, pipeline_parallel=2)
    assert d.wait_exit(10) == 78 and "started together, by mpirun, srun or a LeaderWorkerSet" in d.log_text()


def test_only_serving_has_stages(tiny):
    """A stage is not measured as if it were the model."""
    p = subprocess.run([INFERD, "bench", tiny, "--pipeline-parallel", "2"], capture_output=True, text=True, timeout=60 * SLOW)
    assert p.returncode != 0 and "pipeline_parallel is for serving alone" in p.stderr and not p.stdout, p


def test_every_kind_of_step(nodes, start, tiny):
    """Prompts in chunks and their logprobs, more logits than fit at once, drafts, forks that copy blocks: the bits of one process."""
    def ask(d):
        c = d.client()
        scored = c.completions.create(model=d.model, prompt="x y z " * 30, max_tokens=8, temperature=0, logprobs=3, echo=True)
        forked = c.completions.create(model=d.model, prompt="The sea was calm " * 20, max_tokens=8, temperature=0.7, seed=3, n=3)
        many = c.completions.create(model=d.model, prompt=["a b c a b c a b c"] * 6, max_tokens=30, temperature=0)
        return [(x.text, x.logprobs and x.logprobs.token_logprobs) for r in (scored, forked, many) for x in r.choices]

    settings = {"model": tiny, "kv_tokens": 1024, "max_model_len": 768, "max_batched_tokens": 24, "max_sequences": 4,
                "kv_dtype": "int8", "speculative_tokens": 4}
    assert ask(nodes(**settings)) == ask(start(**settings))


MODULE = os.path.join(BUILD, "tests", "emu", "inferd-cuda.so")
GPUS = {"device": "cuda", "cuda_module": MODULE, "kv_tokens": 4096, "max_sequences": 4, "max_batched_tokens": 32, "rank_timeout": 60}
emulated = pytest.mark.skipif(not os.path.exists(MODULE), reason="the emulated CUDA module is not built")


def ask_all_ways(d):
    """Tokens that the device chooses, with edits of logits and without, and that the host does; logprobs; forks; drafts."""
    c = d.client()
    out = answers(d, ("The sea", "x " * 40))
    for extra in ({"temperature": 0}, {"temperature": 0.8, "top_p": 0.9, "seed": 5}, {"temperature": 1, "seed": 6, "presence_penalty": 0.7},
                  {"temperature": 0, "logit_bias": {"65": 3, "66": -100}}, {"temperature": 0.9, "seed": 7, "n": 3},
                  {"temperature": 0.7, "seed": 8, "extra_body": {"typical_p": 0.8}},
                  {"temperature": 0, "extra_body": {"speculative_tokens": 4}}):
        r = c.completions.create(model=d.model, prompt="Once upon a time there was a time", max_tokens=20, **extra)
        out += [x.text for x in r.choices]
    scored = c.completions.create(model=d.model, prompt="x y z " * 10, max_tokens=4, temperature=0, logprobs=3, echo=True)
    return [*out, scored.choices[0].text, scored.choices[0].logprobs.token_logprobs]


@emulated
@pytest.mark.parametrize("n, settings", [(3, {"weights": "int8", "kv_dtype": "int8"}), (2, {"tensor_parallel": 2}), (2, {"cuda_graphs": False})])
def test_stages_on_gpus(nodes, start, tiny, n, settings):
    """Emulated: the bits of one process with the same number of ranks."""
    settings = {"model": tiny, **GPUS, "batch_invariant": True, "environment": {"INFERD_EMU": "fast,memory=512M,devices=2"}, **settings}
    want = ask_all_ways(start(**settings))
    d = nodes(n, **settings)
    assert ask_all_ways(d) == want
    os.kill(d.pid_of(0), signal.SIGTERM)
    assert d.wait_exit(20) == 0 and [d.code_of(i, 1) for i in range(n)] == [0] * n


@emulated
def test_a_gpu_and_a_cpu(nodes, tiny, monkeypatch):
    monkeypatch.setenv("NODE_ARGUMENTS_1", "--device=cpu")
    d = nodes(ready=False, model=tiny, **GPUS)
    assert [d.code_of(i, 15) for i in (0, 1)] == [78, 78]
    assert "node 1 was started with another device than node 0" in d.log_text()


@emulated
@pytest.mark.parametrize("victim", [0, 1])
def test_one_with_a_gpu_is_killed(nodes, tiny, victim):
    d = nodes(model=tiny, **{**GPUS, "rank_timeout": 3})
    stream = d.open_stream("The sea", max_tokens=200, ignore_eos=True)
    next(stream.events())
    os.kill(d.pid_of(victim), signal.SIGKILL)
    assert d.code_of(1 - victim, 20) == 4


def with_another_norm(gguf):
    """The same model, trained on: one bit of its last norm is another."""
    at, where = gguf.index(b"token_embd.weight") - 8, None  # the first tensor's description
    for _ in range(struct.unpack_from("<Q", gguf, 8)[0]):
        length = struct.unpack_from("<Q", gguf, at)[0]
        name = bytes(gguf[at + 8 : at + 8 + length])
        dims = struct.unpack_from("<I", gguf, at + 8 + length)[0]
        at += 8 + length + 4 + 8 * dims + 4 + 8
        if name == b"output_norm.weight":
            where = struct.unpack_from("<Q", gguf, at - 8)[0]
    out = bytearray(gguf)
    out[(at + 31) // 32 * 32 + where] ^= 1
    return out


CANNOT = {  # node -> its arguments, and how all end
    "leader_damaged": (0, "--model={bad}", 78, "node 0: "),
    "follower_damaged": (1, "--model={bad}", 78, "node 1: "),
    "no_memory": (1, "--memory-utilization=0.01", 3, "node 1: the model does not fit"),
    "another_model": (1, "--model={other}", 78, "node 1 was started with another model than node 0"),
    "another_setting": (1, "--max-sequences=7", 78, "node 1 was started with another setting of the engine than node 0"),
}


@pytest.mark.parametrize("case", CANNOT)
def test_one_cannot_load(nodes, tiny, tmp_path, monkeypatch, case):
    """All end at once, for the same reason and with the same code: none waits for who will not come."""
    node, arguments, code, why = CANNOT[case]
    bad, other = tmp_path / "bad.gguf", tmp_path / "other.gguf"
    data = bytearray(open(tiny, "rb").read())
    bad.write_bytes(data[: len(data) // 2])  # it opens as no model
    other.write_bytes(with_another_norm(data))
    monkeypatch.setenv(f"NODE_ARGUMENTS_{node}", arguments.format(bad=bad, other=other))
    d = nodes(ready=False, model=tiny, kv_tokens=3000000)
    assert [d.code_of(i, 15) for i in (0, 1)] == [code, code] and why in d.log_text(), d.log_text()
    d.wait_exit(20)


@pytest.mark.parametrize("busy", [True, False])
@pytest.mark.parametrize("victim", [0, 1])
def test_one_is_killed(nodes, tiny, victim, busy):
    """The other ends with code 4 soon after rank_timeout, its streams with an error event."""
    d = nodes(model=tiny, kv_tokens=16384, rank_timeout=2)
    if busy:
        stream = d.open_stream("The sea", max_tokens=200, ignore_eos=True)
        events = stream.events()
        next(events)
    began = time.monotonic()
    os.kill(d.pid_of(victim), signal.SIGKILL)
    if busy and victim == 1:
        rest = list(events)
        assert rest[-1]["error"]["type"] == "unavailable_error" and not stream.done
    assert d.code_of(1 - victim, 15) == 4
    assert time.monotonic() - began < 6 * SLOW
    if victim == 1:
        log = d.log_text()
        assert "the device is lost" in log and ("node 1 of 2 did not come" in log or "not all of 2 nodes came" in log)


# --- two hosts: network namespaces with names of their own, TCP between them


class Hosts:
    def __init__(self, folder):
        self.names = [f"inferd{os.getpid()}{x}" for x in "ab"]
        self.addresses = ["10.213.77.1", "10.213.77.2"]
        try:
            self.make(folder)
        except BaseException:  # nothing is left of a half
            self.close()
            raise

    def make(self, folder):
        a, b = self.names
        for name in self.names:
            self.run("ip", "netns", "add", name)
        self.run("ip", "link", "add", "veth0", "netns", a, "type", "veth", "peer", "name", "veth0", "netns", b)
        for name, address in zip(self.names, self.addresses):
            self.inside(name, "ip", "addr", "add", f"{address}/24", "dev", "veth0")
            self.inside(name, "ip", "link", "set", "veth0", "up")
            self.inside(name, "ip", "link", "set", "lo", "up")
        agent = folder / "agent.sh"  # in place of ssh: ADDRESS COMMAND...
        agent.write_text(f"#!/bin/sh\nshift\nexec ip netns exec {b} unshare --uts sh -c 'hostname {b}; exec sh -c \"$*\"' sh \"$@\"\n")
        agent.chmod(0o755)
        self.launcher = [
            "ip", "netns", "exec", a, "unshare", "--uts", "sh", "-c", f"hostname {a}; exec \"$@\"", "sh", *MPIRUN,
            "--host", ",".join(self.addresses), "--mca", "plm_rsh_agent", str(agent), "--mca", "btl", "tcp,self",
            "--mca", "btl_tcp_if_include", "10.213.77.0/24", "--mca", "oob_tcp_if_include", "10.213.77.0/24",
        ]

    @staticmethod
    def run(*command):
        subprocess.run(command, check=True, capture_output=True)

    def inside(self, name, *command):
        self.run("ip", "netns", "exec", name, *command)

    def sent_bytes(self):
        out = subprocess.run(["ip", "netns", "exec", self.names[0], "cat", "/sys/class/net/veth0/statistics/tx_bytes"],
                             check=True, capture_output=True, text=True).stdout
        return int(out)

    def close(self):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


@pytest.fixture
def hosts(tmp_path):
    h = None
    try:
        try:
            h = Hosts(tmp_path)
        except (OSError, subprocess.CalledProcessError) as e:
            pytest.skip(f"no network namespaces here: {e}")
        yield h
    finally:
        if h:
            h.close()


def ask_from(hosts, d, **body):
    """One answer from the leader, asked by the official client in the leader's namespace."""
    code = ("import json, openai, sys\n"
            f"c = openai.OpenAI(base_url='http://127.0.0.1:{d.port}/v1', api_key='x')\n"
            "b = json.loads(sys.argv[1])\n"
            "r = c.completions.create(**b)\n"
            "print(json.dumps([r.choices[0].text, r.usage.completion_tokens]))\n")
    out = subprocess.run(["ip", "netns", "exec", hosts.names[0], sys.executable, "-c", code, json.dumps(body)], check=True,
                         capture_output=True, text=True, timeout=60 * SLOW)
    return json.loads(out.stdout)


def ready_from(hosts, d, node):
    """Does /readyz answer 200 on that host?"""
    code = (f"import urllib.request\nassert urllib.request.urlopen('http://127.0.0.1:{d.port}/readyz', timeout=5).status == 200")
    return lambda: subprocess.run(["ip", "netns", "exec", hosts.names[node], sys.executable, "-c", code],
                                  capture_output=True).returncode == 0


@pytest.mark.skipif(not MODEL, reason="INFERD_TEST_MODEL does not name the demo model")
def test_two_hosts(nodes, start, hosts):
    """SmolLM2 in two stages of three ranks, a stage on each host."""
    ask = {"prompt": "The capital of France is", "max_tokens": 32, "temperature": 0}
    one = start(tensor_parallel=3)
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{one.port}/v1", api_key="x")
    want = client.completions.create(model=one.model, **ask)
    d = nodes(ready=False, launcher=hosts.launcher, tensor_parallel=3, rank_timeout=5)
    wait_for(ready_from(hosts, d, 0), 60, "the leader is ready")
    before = hosts.sent_bytes()
    text, n = ask_from(hosts, d, model=one.model, **ask)
    assert (text, n) == (want.choices[0].text, want.usage.completion_tokens)
    assert hosts.sent_bytes() - before > 32 * 576 * 4  # the stream of 32 tokens at least
    assert not ready_from(hosts, d, 1)(), "the follower listens"
    os.kill(d.pid_of(1), signal.SIGKILL)
    assert d.code_of(0, 20) == 4
