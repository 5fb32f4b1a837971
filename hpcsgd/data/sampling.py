"""Which rows come when: a function of mode, seed, epoch and replica, nothing else."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.errors import ConfigError

Array = NDArray[Any]
MODES = ("shuffle-once", "reshuffle", "replacement")


@dataclass(frozen=True)
class SamplingConfig:
    """How rows are drawn."""

    mode: str = "shuffle-once"  # one order for all epochs, a new one each, or draws
    seed: int = 0

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ConfigError(
                f"[sampling] unknown mode: {self.mode!r}; known: {list(MODES)}"
            )
        if self.seed < 0:
            raise ConfigError(
                f"[sampling] seed = {self.seed} must be at least 0; 0 will do"
            )


@dataclass(frozen=True)
class Sampler:
    """The row order of one replica; members of it agree without a message.

    The generator is `default_rng((seed, replica, key))` with key 0 for shuffle-once and
    epoch + 1 otherwise. Batch, steps, product and members have no part in it, so that
    runs which differ in them take the same rows in the same order.
    """

    mode: str
    seed: int
    rows: int
    replica: int

    def order(self, epoch: int) -> Array:
        """Local row numbers of `epoch`, int64."""
        # Shuffle-once must not know the epoch; the others draw anew in each.
        key = 0 if self.mode == "shuffle-once" else epoch + 1
        rng = np.random.default_rng((self.seed, self.replica, key))
        if self.mode == "replacement":
            return rng.integers(self.rows, size=self.rows, dtype=np.int64)
        return rng.permutation(np.arange(self.rows, dtype=np.int64))


def plan_groups(rows: int, batch: int, steps: int) -> list[tuple[int, ...]]:
    """The batch sizes of each exchange of an epoch; only the last may be ragged."""
    sizes = [batch] * (rows // batch)
    if rows % batch:
        sizes.append(rows % batch)
    return [tuple(sizes[i : i + steps]) for i in range(0, len(sizes), steps)]
