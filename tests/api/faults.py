"""The switches of the fault hooks (tests/fault/fault.h), and daemons on a tiny model that have them."""

import mmap
import os
import struct
import subprocess

from conftest import INFERD

BUILD = os.path.dirname(INFERD)
WRITE_TINY_MODEL = os.path.join(BUILD, "tests", "engine", "write_tiny_model")
FIELDS = ["magic", "stall", "stalled", "nan_row", "nan_seed", "nan_struck", "alloc_n", "alloc_more", "alloc_calls",
          "alloc_struck", "clock_offset_s"]
MAGIC = 0x746C756166
EVER = 2**62


def has_hooks(program=INFERD):
    try:
        with open(program, "rb") as f:
            return b"FAULT_FILE" in f.read()
    except OSError:
        return False


class Faults:
    """`faults.stall = 1` sets a switch of the running program, `faults.stalled` reads one."""

    def __init__(self, path):
        object.__setattr__(self, "path", str(path))
        with open(path, "wb") as f:
            f.write(bytes(4096))
        with open(path, "r+b") as f:
            object.__setattr__(self, "page", mmap.mmap(f.fileno(), 4096))

    def __getattr__(self, name):
        return struct.unpack_from("=q", self.page, 8 * FIELDS.index(name))[0]

    def __setattr__(self, name, value):
        struct.pack_into("=q", self.page, 8 * FIELDS.index(name), value)

    def fail_memory(self, n, more=0):
        """From now on the n-th call for memory fails, and as many behind it."""
        self.alloc_struck = 0
        self.alloc_more = more
        self.alloc_n = n

    def memory_is_back(self):
        """How many calls failed."""
        self.alloc_n = self.alloc_more = 0
        return self.alloc_struck

    @property
    def environment(self):
        return {"FAULT_FILE": self.path}


def write_tiny_model(path):
    subprocess.run([WRITE_TINY_MODEL, str(path)], check=True)
    return str(path)


def check_identity(d):
    """received = finished by reason + rejected + running + waiting; and nothing is held by nobody"""
    m = d.metrics()
    total = {n: sum(v for (s, _), v in m.items() if s == "inferd_requests_" + n)
             for n in ("received_total", "finished_total", "rejected_total", "running", "waiting")}
    assert total["received_total"] == sum(v for n, v in total.items() if n != "received_total"), total


def check_nothing_is_held(d, seconds=5):
    d.wait_idle(seconds)
    check_identity(d)
    assert d.gauge("kv_blocks_used") == 0
