"""A model over the pods of a LeaderWorkerSet: processes with its variables, which NCCL brings together, on emulated GPUs."""

import os
import signal
import time

import pytest
from conftest import SLOW, Daemon, free_port, wait_for
from faults import BUILD, write_tiny_model

MODULE = os.path.join(BUILD, "tests", "emu", "inferd-cuda.so")
pytestmark = pytest.mark.skipif(not os.path.exists(MODULE), reason="the emulated CUDA module is not built")


@pytest.fixture
def pods(tmp_path):
    """Starts the daemons of a set, the leader first; they are not waited for."""
    started, model = [], write_tiny_model(tmp_path / "tiny.gguf")

    def start(n=2, which=None, environment=None, **settings):
        place = f"127.0.0.1:{free_port()}"
        pods = []
        for i in which or range(n):
            env = {"INFERD_EMU": "fast,memory=512M,devices=2", "LWS_GROUP_SIZE": str(n), "LWS_WORKER_INDEX": str(i),
                   "LWS_LEADER_ADDRESS": "127.0.0.1", "NCCL_COMM_ID": place, **(environment or {})}
            d = Daemon(tmp_path / f"log{len(started)}", environment=env, **{
                "model": model, "device": "cuda", "cuda_module": MODULE, "kv_tokens": 4096, "max_sequences": 4, "max_batched_tokens": 32,
                "batch_invariant": True, "pipeline_parallel": n, **settings})
            pods.append(d)
            started.append(d)
        return pods

    yield start
    for d in started:
        if d.running():
            d.stop()


def answers(d):
    out = []
    for body in ({"temperature": 0}, {"temperature": 0.8, "seed": 3}, {"temperature": 0, "logprobs": 2}):
        r = d.complete("Once upon a time", max_tokens=16, ignore_eos=True, **body).json()["choices"][0]
        out.append((r["text"], (r["logprobs"] or {}).get("token_logprobs")))
    return out


@pytest.mark.parametrize("tensor_parallel", [1, 2])
def test_answers_are_those_of_one_process(pods, tensor_parallel):
    (alone,) = pods(1, pipeline_parallel=1, tensor_parallel=tensor_parallel)
    want = answers(alone.wait_ready())
    leader, follower = pods(2, tensor_parallel=tensor_parallel)
    assert answers(leader.wait_ready()) == want  # to the bit: the layers are only elsewhere
    assert "node 1 of 2 follows the leader" in follower.log_text() and "listening" not in follower.log_text()
    leader.signal()
    assert leader.wait_exit(20) == 0 and follower.wait_exit(20) == 0


@pytest.mark.parametrize("victim", [0, 1])
def test_one_is_killed(pods, victim):
    nodes = pods(2, rank_timeout=3)
    nodes[0].wait_ready()
    stream = nodes[0].open_stream("The sea", max_tokens=200, ignore_eos=True)
    next(stream.events())
    began = time.monotonic()
    os.kill(nodes[victim].pid, signal.SIGKILL)
    assert nodes[1 - victim].wait_exit(20) == 4
    assert time.monotonic() - began < 8 * SLOW


def test_the_leader_may_come_late(pods, tmp_path):
    """Pods start in any order."""
    place = f"127.0.0.1:{free_port()}"
    (follower,) = pods(2, which=[1], environment={"NCCL_COMM_ID": place})
    time.sleep(1)
    (leader,) = pods(2, which=[0], environment={"NCCL_COMM_ID": place})
    leader.wait_ready()
    leader.signal()
    assert leader.wait_exit(20) == 0 and follower.wait_exit(20) == 0


def test_refusals(pods):
    for settings, environment, code, why in (
        ({"device": "cpu"}, {}, 78, "the device cpu reaches other nodes by MPI alone"),
        ({"pipeline_parallel": 3}, {}, 78, "pipeline_parallel is 3, but LeaderWorkerSet started 2 processes"),
        ({"pipeline_parallel": 1}, {}, 78, "LeaderWorkerSet started 2 processes, but pipeline_parallel is 1"),
        ({}, {"LWS_WORKER_INDEX": "2"}, 78, "does not say which of them this one is"),
        ({}, {"NCCL_COMM_ID": "", "LWS_LEADER_ADDRESS": ""}, 78, "NCCL_COMM_ID=HOST:PORT"),
    ):
        (d,) = pods(2, which=[0], environment=environment, **settings)
        assert d.wait_exit(20) == code and why in d.log_text(), d.log_text()


def test_another_setting(pods):
    """All end for the same reason."""
    place = f"127.0.0.1:{free_port()}"
    (leader,) = pods(2, which=[0], environment={"NCCL_COMM_ID": place})
    (follower,) = pods(2, which=[1], environment={"NCCL_COMM_ID": place}, kv_dtype="int8")
    assert leader.wait_exit(20) == 78 and follower.wait_exit(20) == 78
    assert wait_for(lambda: "another setting of the engine" in leader.log_text(), 5, "it says why")
