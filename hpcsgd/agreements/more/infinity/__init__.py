"""ZeRO-Infinity: weights and states that are on disk, tile by tile."""

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

from hpcsgd.formats import Array

RUN = "run"  # in stamps and in checkpoints: which run these states are of

# Weights that are on disk: what a state holds where others hold an array.


class OnDisk:
    """w of this member; whoever wants it takes it tile by tile."""

    def __init__(
        self,
        shape: tuple[int, int],
        columns: int,
        dtype: np.dtype[Any],
        keeper: "WeightsOnDisk",
    ) -> None:
        self.shape, self.dtype, self.keeper = shape, dtype, keeper
        self.columns = columns  # K

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, part: Any) -> "OnDisk":
        """Columns and states are chosen where tiles are taken."""
        return self

    def __setitem__(self, part: Any, kept: int) -> None:
        """Go back to what `copy` gave."""
        self.keeper.restore_copy(kept)

    def copy(self) -> int:
        """Keep the weights of now on disk; what finds them again."""
        return self.keeper.copy_weights()

    def tiles(self, purpose: str) -> Iterator[tuple[slice, Array]]:
        """Every tile of w, (columns, K), whole, on all replicas at the same time."""
        return self.keeper.tiles(purpose)

    def check_reads(self) -> None:
        """After the last tile, on all ranks: raise what one of them could not read."""
        self.keeper.check_reads()

    @property
    def is_broken(self) -> bool:
        """Whether a step has left something that is no number."""
        return self.keeper.is_broken


class WeightsOnDisk(Protocol):
    """Whoever has the weights on disk."""

    is_broken: bool

    def tiles(self, purpose: str) -> Iterator[tuple[slice, Array]]:
        """Every tile of w, whole."""

    def check_reads(self) -> None:
        """Raise on all ranks what one could not read."""

    def copy_weights(self) -> int:
        """Copy the present weights; return the number of the copy."""

    def restore_copy(self, kept: int) -> None:
        """Make the weights those of copy `kept`."""
