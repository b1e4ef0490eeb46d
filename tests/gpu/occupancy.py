"""How many blocks of a kernel a multiprocessor holds (CUDA programming guide, "Compute Capabilities")."""

from dataclasses import dataclass


@dataclass
class Multiprocessor:
    warps: int
    blocks: int
    shared: int  # bytes, all blocks together
    shared_block: int  # bytes, one block that opted in

    registers = 65536  # of all of these
    registers_unit = 256  # registers are given to a warp in such portions
    warps_unit = 4  # warps are spread over four schedulers
    shared_unit = 128
    shared_reserved = 1024  # of each block, by the system


ARCHITECTURES = {
    "sm_80": Multiprocessor(64, 32, 164 << 10, 163 << 10),
    "sm_86": Multiprocessor(48, 16, 100 << 10, 99 << 10),
    "sm_89": Multiprocessor(48, 24, 100 << 10, 99 << 10),
    "sm_90": Multiprocessor(64, 32, 228 << 10, 227 << 10),
}


def up(n, unit):
    return (n + unit - 1) // unit * unit


def blocks(architecture, registers, threads, shared):
    """Blocks of `threads` threads with `registers` each and `shared` bytes; 0: it cannot be launched."""
    m = ARCHITECTURES[architecture]
    if threads > 1024 or registers > 255 or shared > m.shared_block:
        return 0
    warps = up(threads, 32) // 32
    by_warps = m.warps // warps
    per_warp = up(max(registers, 1) * 32, m.registers_unit)
    by_registers = m.registers // per_warp // m.warps_unit * m.warps_unit // warps
    by_shared = m.shared // up(shared + m.shared_reserved, m.shared_unit)
    return min(m.blocks, by_warps, by_registers, by_shared)
