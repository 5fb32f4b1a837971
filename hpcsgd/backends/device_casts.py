"""What sums of bf16 bits need of a GPU besides messages: three launches."""

from collections.abc import Callable
from typing import Any

import numpy as np

from hpcsgd.backends import launch_steps
from hpcsgd.backends.kernel_table import Build, build_of

ITEM = 2  # bytes of the bits of one number
OnStream = Callable[..., None]  # of stream, grid, block, arguments


class DeviceCasts:
    """Those of a GPU of `arch`, whose kernels `get` finds."""

    def __init__(self, arch: str, get: Callable[[Build], OnStream]) -> None:
        self._arch, self._get = arch, get

    def narrow(self, stream: Any, values: Any, bits: Any) -> None:
        """bits ← values as bf16."""
        arguments = (values, np.int64(bits.size), None, bits)
        self._launch(stream, "narrow", bits.size, arguments)

    def widen(self, stream: Any, bits: Any, values: Any) -> None:
        """values ← bits."""
        arguments = (bits, np.int64(bits.size), None, values)
        self._launch(stream, "widen", bits.size, arguments)

    def add(self, stream: Any, parts: Any, ranks: int, total: Any) -> None:
        """total ← Σ over ranks of their parts, from the first on, rounded once."""
        arguments = (parts, np.int32(ranks), np.int64(total.size), total)
        self._launch(stream, "add_parts", total.size, arguments)

    def _launch(self, stream: Any, name: str, count: int, arguments: Any) -> None:
        if count:  # a grid of no blocks is an error
            shape = launch_steps.cast(count, ITEM)
            kernel = self._get(build_of(name, "bf16", self._arch))
            kernel(stream, *shape[:2], arguments)
