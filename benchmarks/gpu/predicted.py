"""From what a launch asks for to how long it takes at least, on a GPU that is not here.

Every limit alone: bytes from memory, bytes from L2, instructions, passes over banks,
tensor cores, and what has to happen one after the other. The longest binds. Limits add
up only where one waits for the other; what overlaps is taken to overlap wholly: a
measurement will be above, not below.
"""

from dataclasses import dataclass
from typing import Any

from benchmarks.gpu.counted import Asked
from tests.helpers.kernels.ptx.chain import SCHEDULERS, Latencies

FROM_MEMORY = 479  # cycles of a load, arXiv:2402.13499, table IV (H100)
MMA_SHARE = 0.629  # of the rate of wgmma that mma.sync reaches, 2402.13499
NODE_US = 1.0  # from the end of a kernel of a graph to the next: taken, not published
LAUNCH_US = 2.5  # of a graph: taken, not published


@dataclass(frozen=True)
class Gpu:
    """Rates; a copy moves `copied` bytes a second, counted twice."""

    name: str
    processors: int
    clock: float  # Hz
    copied: float
    tensor: float  # FLOP/s in bf16 by wgmma


H100 = Gpu("H100 SXM", 132, 1.83e9, 3.35e12 * 0.9, 989e12)
H200 = Gpu("H200", 132, 1.98e9, 4.3e12, 989e12)
GPUS = (H100, H200)


def limits(given: Asked, gpu: Gpu, *, resident: bool = False) -> dict[str, float]:
    """Limit -> microseconds; `resident`: what is read lies in L2."""
    busy = min(given.blocks, gpu.processors)
    tail = -(-given.blocks // gpu.processors) * gpu.processors / given.blocks
    if given.blocks < gpu.processors:
        tail = 1.0
    per = 1e6 / (busy * gpu.clock) * tail
    mma = MMA_SHARE * gpu.tensor / gpu.processors / gpu.clock
    found = {
        "memory": 0.0 if resident else 1e6 * given.memory / gpu.copied,
        "L2": per * given.from_l2 / Latencies.l2_bytes,
        "instructions": per * given.issued / SCHEDULERS,
        "banks": per * given.passes,
        "tensor cores": per * given.flops / mma,
    }
    if given.chain:
        found["chain"] = chain_us(given, gpu)
    return found


def chain_us(given: Asked, gpu: Gpu) -> float:
    """Of the intervals between barriers."""
    return 1e6 / gpu.clock * sum(one.cycles(Latencies()) for one in given.chain)


def waits_us(gpu: Gpu, loads: int, memory: int = 0, cycles: int = 0) -> float:
    """Loads that wait for each other, from L2 and from memory, and more cycles."""
    waited = loads * Latencies().l2 + memory * FROM_MEMORY + cycles
    return 1e6 * waited / gpu.clock


def binding(found: dict[str, float]) -> str:
    """The limit that takes longest."""
    return max(found, key=lambda name: found[name])


def row(
    name: str,
    given: Asked,
    gpu: Gpu,
    *,
    resident: bool = False,
    waits: float = 0.0,
    **more: float,
) -> dict[str, Any]:
    """One line of the table; `waits`: microseconds of loads one behind the other.

    The floor is what nothing can do without: bytes from memory once, operations at the
    rate of tensor cores, or a chain that is given as `floor`.
    """
    found = limits(given, gpu, resident=resident)
    found["waits"] = waits
    least = (
        *(0.0 if resident else 1e6 * given.memory / gpu.copied,),
        *(1e6 * given.flops / gpu.tensor, more.pop("floor", 0.0)),
    )
    longest = max(found.values())
    return {
        "kernel": name,
        "gpu": gpu.name,
        "us": {limit: round(float(value), 2) for limit, value in found.items()},
        "binds": binding(found),
        "predicted_us": round(float(longest), 2),
        "floor_us": round(float(max(least)), 2),
        "blocks": given.blocks,
        "useful_share": round(given.useful, 3),
        "conflicts": round(given.conflicts, 2),
        **{key: round(float(value), 3) for key, value in more.items()},
    }
