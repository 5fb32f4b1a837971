"""bf16 sums of device arrays: the two collectives of `narrow`, on the GPU's own bits.

The same pieces, roundings and order, and so the same bits as on the host, through any
transport: MPI adds no 16-bit floats, and NCCL rounds at every rank that it passes.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcsgd.comm.narrow import NarrowSum, Pieces
from hpcsgd.comm.node import share
from hpcsgd.comm.on_device import OnDevice


class DeviceNarrowSum(NarrowSum):
    """A message of `words` float32 words on the device that travels as bf16."""

    group: OnDevice

    def __init__(self, group: OnDevice, words: int, array: Any = None) -> None:
        """`array`, of so many words, is summed in place; None: one of its own is."""
        self.group, layer = group, group.layer
        pieces = [share(words, group.size, rank) for rank in range(group.size)]
        lengths = [int(piece.stop - piece.start) for piece in pieces]
        own = lengths[group.rank]
        self._array: Any = layer.empty(words, np.float32) if array is None else array
        self._sent: Pieces = DevicePieces(group, lengths)
        self._received: Pieces = DevicePieces(group, [own] * group.size)
        self._own: Pieces = DevicePieces(group, [own])
        self._totals: Pieces = DevicePieces(group, lengths)

    def _finish(self, purpose: str) -> None:
        group, totals, own = self.group, self._totals, self._own
        group.layer.add_bits(self._received.held, group.size, own.held, group.stream)
        group.gather(own.held, totals.counts, totals.held, purpose)
        totals.read(self._array)


class DevicePieces(Pieces):
    """Pieces one after the other; bf16 needs no exponents before them."""

    def __init__(self, group: OnDevice, lengths: Sequence[int]) -> None:
        self.group = group
        self.counts = list(lengths)
        self.held = group.layer.empty(sum(lengths), np.uint16)

    def write(self, values: Any) -> None:
        """held ← the values, rounded."""
        self.group.layer.narrow(values, self.held, self.group.stream)

    def read(self, out: Any) -> None:
        """out ← the values that are held."""
        self.group.layer.widen(self.held, out, self.group.stream)
