"""The daemon on the CUDA backend, emulated (tests/emu): where it computes, and how it ends when its device is lost."""

import os
import threading
import time

import pytest
from conftest import Daemon
from faults import BUILD, write_tiny_model

MODULE = os.path.join(BUILD, "tests", "emu", "inferd-cuda.so")
pytestmark = pytest.mark.skipif(not os.path.exists(MODULE), reason="the emulated CUDA module is not built")


@pytest.fixture
def emulated(tmp_path):
    """A function that starts a daemon on emulated devices, told by INFERD_EMU what they shall do."""
    daemons = []

    def start(emu="", ready=True, **settings):
        settings = {"model": write_tiny_model(tmp_path / "tiny.gguf"), "kv_tokens": 4096, "device": "cuda",
                    "cuda_module": MODULE, "max_sequences": 4, "max_batched_tokens": 32, **settings}
        d = Daemon(tmp_path / f"log{len(daemons)}", environment={"INFERD_EMU": "fast,memory=512M" + emu}, **settings)
        daemons.append(d)
        if ready:
            d.wait_ready()
        return d

    yield start
    for d in daemons:
        d.stop()


def test_it_says_where_it_computes(emulated):
    d = emulated(device="auto")
    assert "device = auto takes the GPU: CUDA device 0" in d.log_text()
    assert d.get("/version").json()["backend"] == "cuda"
    metrics = d.metrics()
    assert [v for (name, labels), v in metrics.items() if name == "inferd_backend_info" and "cuda" in str(labels)] == [1]
    planned = [v for (name, _), v in metrics.items() if name == "inferd_memory_planned_bytes"]
    assert len(planned) == 6 and sum(planned) == 512 << 20
    used = {labels: v for (name, labels), v in metrics.items() if name == "inferd_memory_used_bytes"}
    assert len(used) == 6 and 0 < sum(used.values()) <= sum(planned)
    assert sum(v for labels, v in used.items() if "kv" in str(labels)) > 0
    answer = d.complete("hi", max_tokens=8, temperature=0, ignore_eos=True).json()
    assert answer["usage"]["completion_tokens"] == 8
    assert {labels: v for (name, labels), v in d.metrics().items() if name == "inferd_memory_used_bytes"} == used


@pytest.mark.parametrize("emu", ["graph_launch:1:700", "sync:1:719"])
def test_a_lost_device_ends_the_process(emulated, tmp_path, emu):
    trigger = tmp_path / "trigger"
    d = emulated(f",inject={emu},trigger={trigger}")
    stream = d.open_stream("hi", max_tokens=200, ignore_eos=True)
    events = stream.events()
    next(events)
    plain = {}
    thread = threading.Thread(target=lambda: plain.update(answer=d.complete("hello", max_tokens=200, ignore_eos=True)))
    thread.start()
    trigger.touch()
    began = time.monotonic()
    rest = list(events)
    assert d.get("/readyz").status == 503
    assert d.wait_exit(20) == 4
    assert time.monotonic() - began < 5
    thread.join()
    assert rest[-1]["error"]["type"] == "unavailable_error" and "CUDA device 0" in rest[-1]["error"]["message"]
    assert not stream.done
    assert plain["answer"].status == 503 and "retry-after" in plain["answer"].headers
    assert "the device is lost: CUDA device 0" in d.log_text()
    d.process.returncode = 0  # as it should be, for the fixture


def test_a_lost_device_is_exit_code_4_also_when_told_to_stop(emulated, tmp_path):
    trigger = tmp_path / "trigger"
    d = emulated(f",inject=graph_launch:1:700,trigger={trigger}")
    stream = d.open_stream("hi", max_tokens=200, ignore_eos=True)
    events = stream.events()
    next(events)
    trigger.touch()
    assert "error" in list(events)[-1]
    d.process.terminate()
    assert d.wait_exit(20) == 4
    d.process.returncode = 0


def test_a_missing_device_is_exit_code_4(emulated):
    d = emulated(ready=False, device="cuda:7")
    assert d.wait_exit(20) == 4
    assert "there is no CUDA device 7" in d.log_text()
    d.process.returncode = 0


def test_a_module_of_another_version_is_exit_code_4(emulated):
    d = emulated(ready=False, cuda_module=os.path.join(BUILD, "tests", "unit", "test-other-abi.so"))
    assert d.wait_exit(20) == 4
    assert "was built for another version of inferd" in d.log_text()
    d.process.returncode = 0
