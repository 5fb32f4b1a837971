"""ZeRO-Infinity: weights and states that are on disk, tile by tile."""

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

from hpcsgd.formats import Array

RUN = "run"  # in stamps and in checkpoints: the identity of the run of these states

# Weights on disk, which a state contains in place of an array.


class OnDisk:
    """The weights w of this member on disk, which are read tile by tile."""

    def __init__(
        self,
        shape: tuple[int, int],
        columns: int,
        dtype: np.dtype[Any],
        keeper: "WeightsOnDisk",
    ) -> None:
        self.shape = shape
        self.dtype = dtype
        self.keeper = keeper
        self.columns = columns  # K

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, part: Any) -> "OnDisk":
        """Return this object for any `part`: `tiles` selects columns and states."""
        return self

    def __setitem__(self, part: Any, kept: int) -> None:
        """Use the weights of copy `kept`, a number that `copy` returned."""
        self.keeper.restore_copy(kept)

    def copy(self) -> int:
        """Copy the present weights on disk; return the copy's number. Collective."""
        return self.keeper.copy_weights()

    def tiles(self, purpose: str) -> Iterator[tuple[slice, Array]]:
        """Yield the columns and the weights (columns, K) of each tile. Collective."""
        return self.keeper.tiles(purpose)

    def check_reads(self) -> None:
        """Raise a read error of any rank on all ranks; call it after the last tile.

        Collective.
        """
        self.keeper.check_reads()

    @property
    def is_broken(self) -> bool:
        """Return whether a step has made weights that are not finite."""
        return self.keeper.is_broken


class WeightsOnDisk(Protocol):
    """The protocol of an object that stores weights on disk."""

    is_broken: bool

    def tiles(self, purpose: str) -> Iterator[tuple[slice, Array]]:
        """Yield the columns and the weights (columns, K) of each tile. Collective."""

    def check_reads(self) -> None:
        """Raise a read error of any rank on all ranks. Collective."""

    def copy_weights(self) -> int:
        """Copy the present weights; return the number of the copy. Collective."""

    def restore_copy(self, kept: int) -> None:
        """Use the weights of copy `kept`, a number that `copy_weights` returned."""
