"""What all figures are measured with: the GPU, sizes, and its two ceilings."""

import subprocess
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from benchmarks.gpu.clock import Clock, Times, Way
from benchmarks.gpu.figure import Figure
from benchmarks.gpu.rows import random_bits
from benchmarks.gpu.sizes import Sizes

WIDE = 2048  # values of a row of what is copied
ASKED = "clocks.sm,clocks.mem,clocks.max.sm,temperature.gpu,power.draw,driver_version"


class Bench:
    """One GPU."""

    def __init__(self, device: Any, sizes: Sizes) -> None:
        self.device, self.cupy, self.sizes = device, device.cupy, sizes
        self.clock = Clock(device, sizes.turns, sizes.least)
        self.left = float("inf")  # seconds in which parts may begin

    @property
    def name(self) -> str:
        """Of the GPU."""
        facts = self.cupy.cuda.runtime.getDeviceProperties(0)
        return bytes(facts["name"]).decode()

    @property
    def is_lost(self) -> bool:
        """Whether this process can do nothing with it any more."""
        try:
            self.device.synchronize()
        except Exception:
            return True
        return False

    def state(self) -> str:
        """Clocks, temperature and power as nvidia-smi has them; empty without it."""
        command = ["nvidia-smi", f"--query-gpu={ASKED}", "--format=csv,noheader", "-i0"]
        try:
            found = subprocess.run(command, capture_output=True, text=True, timeout=20)
        except (OSError, subprocess.TimeoutExpired):
            return ""
        return found.stdout.strip()

    @cached_property
    def copy(self) -> tuple[float, dict[str, Times]]:
        """Bytes read and written a second, the best of two ways, and their times."""
        source = random_bits(self.device, self.sizes.copy_bytes // 2 // WIDE, WIDE)
        target = random_bits(self.device, *source.shape, seed=1)
        found = self.clock.measure(
            {
                "memcpy": Way(lambda: self._memcpy(target, source)),
                "kernel": Way(lambda: self._copyto(target, source)),
            }
        )
        best = min(times.median for times in found.values())
        return 2 * source.nbytes / best, found

    @cached_property
    def bf16(self) -> tuple[float, Times]:
        """Multiplications and additions a second, of square matrices by cuBLAS."""
        n, device = self.sizes.square, self.device
        left, right = (random_bits(device, n, n, seed) for seed in (1, 2))
        out = device.empty((n, n), np.float32)
        way = Way(lambda: device.gemm_bf16(out, left, right))
        times = self.clock.measure({"gemm": way})["gemm"]
        return 2 * n**3 / times.median, times

    def _memcpy(self, target: Any, source: Any) -> None:
        runtime = self.cupy.cuda.runtime
        given = target.data.ptr, source.data.ptr, source.nbytes
        kind, stream = runtime.memcpyDeviceToDevice, self.device.stream.ptr
        runtime.memcpyAsync(*given, kind, stream)

    def _copyto(self, target: Any, source: Any) -> None:
        with self.device.stream:
            self.cupy.copyto(target, source)


def ceilings(bench: Bench) -> Sequence[Figure]:
    """What others are shares of."""
    (copied, ways), (rate, times) = bench.copy, bench.bf16
    size = f"{bench.sizes.copy_bytes / 2**20:g} MiB, read and written"
    n = bench.sizes.square
    return [
        Figure(
            *("copy", size),
            reached=copied / 1e9,
            unit="GB/s",
            details={name: each.us for name, each in ways.items()},
        ),
        Figure(
            *("bf16", f"cuBLAS, {n} x {n} x {n}, random values"),
            reached=rate / 1e12,
            unit="TF/s",
            details=times.us,
        ),
    ]
