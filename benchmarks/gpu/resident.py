"""Registers and shared memory of kernels: how many of their blocks run at once."""

import re
from typing import Any

from hpcsgd.backends.cuda import kernels
from hpcsgd.backends.cuda.kernels import build_of, number_of
from tests.helpers.kernels import nvrtc
from tests.helpers.kernels.emulator import source_of

REGISTERS, WARPS, OF_CUDA = 65536, 64, 1024  # of a processor; bytes of every block
WHOLE = 1024  # bytes: a processor has so much more than a block may have, sm_80 and 90
GRAIN = 256  # registers of a warp, that come at once
# kernel, element, threads, bytes of shared memory
LAUNCHES = (
    ("margin", "bf16", kernels.BLOCK, 0),
    ("update", "bf16", kernels.BLOCK, kernels.update(512, 2000, 2).shared),
    ("gram-64", "bf16", 128, kernels.shared_bytes()),
    ("gram-128", "bf16", 256, kernels.shared_bytes()),
    ("recurrence-logistic", "fp32", kernels.RECURRENCE_THREADS[1], 4096),
    ("direct-steps-logistic", "fp32", kernels.BLOCK, kernels.PLAIN_SHARED),
)


def residents() -> list[dict[str, Any]]:
    """Of every launch, for the GPUs of data centres."""
    return [resident(*launch, arch) for arch in ("80", "90") for launch in LAUNCHES]


def resident(
    kernel: str, element: str, threads: int, shared: int, arch: str
) -> dict[str, Any]:
    """Blocks that a processor has room for, as ptxas says what they take."""
    used, warps = registers_of(kernel, element, arch), threads // 32
    whole = kernels.shared_of(arch) + WHOLE
    each = -(-32 * used // GRAIN) * GRAIN
    room = {
        "registers": REGISTERS // (each * warps),
        "shared memory": whole // (shared + OF_CUDA),
        "warps": WARPS // warps,
    }
    blocks = min(room.values())
    return {
        "kernel": kernel,
        "arch": f"sm_{number_of(arch)}",
        "registers": used,
        "shared": shared,
        "resident_blocks": blocks,
        "resident_warps": blocks * warps,
        "least": min(room, key=lambda name: room[name]),
    }


def registers_of(kernel: str, element: str, arch: str) -> int:
    """Of a thread."""
    build, major = build_of(kernel, element, arch), nvrtc.major_for(arch)
    given = (*nvrtc.options_for(build, arch), "--ptxas-options=-v")
    made = nvrtc.compile_text(source_of(build.source), build.entry, given, major)
    return max(int(count) for count in re.findall(r"Used (\d+) registers", made.log))
