"""Which rows come when: a function of mode, seed, epoch and replica, nothing else."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.errors import ConfigError

Array = NDArray[Any]
MODES = ("shuffle-once", "reshuffle", "replacement", "blocks")


@dataclass(frozen=True)
class SamplingConfig:
    """How rows are drawn."""

    mode: str = "shuffle-once"  # one order for all epochs, a new one each, or draws
    seed: int = 0
    block: int = 1024  # rows read together by mode = "blocks"
    window: int = 16  # blocks shuffled together; larger = better mixed, more memory
    hold_out: float = 0.0  # share of the rows that is not trained on, but judged by

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ConfigError(
                f"[sampling] unknown mode: {self.mode!r}; known: {list(MODES)}"
            )
        if self.seed < 0:
            raise ConfigError(
                f"[sampling] seed = {self.seed} must be at least 0; 0 will do"
            )
        if self.block < 1 or self.window < 1:
            raise ConfigError(
                "[sampling] block and window must be at least 1; 1024 and 16 are usual"
            )
        if not 0.0 <= self.hold_out < 1.0:
            raise ConfigError(
                f"[sampling] hold_out = {self.hold_out!r} must lie in [0, 1); 0 holds"
                " nothing out, 0.1 is usual"
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
    block: int = 1024
    window: int = 16

    @property
    def blocks(self) -> int:
        """How many there are; only the last may be smaller."""
        return -(-self.rows // self.block)

    def rows_of(self, block: int) -> Array:
        """The local rows of a block."""
        last = min((block + 1) * self.block, self.rows)
        return np.arange(block * self.block, last, dtype=np.int64)

    def block_rows(self, block: int) -> int:
        """How many that are."""
        return min(self.block, self.rows - block * self.block)

    def windows(self, epoch: int) -> list[Array]:
        """The blocks of each window of an epoch, in the order they are gone through."""
        return self._windows(
            np.random.default_rng((self.seed, self.replica, epoch + 1))
        )

    def _windows(self, rng: np.random.Generator) -> list[Array]:
        order = rng.permutation(self.blocks)
        return [order[i : i + self.window] for i in range(0, self.blocks, self.window)]

    def _by_windows(self, rng: np.random.Generator) -> Array:
        """Blocks in random order, and the rows of each window of them shuffled."""
        parts = [
            rng.permutation(np.concatenate([self.rows_of(int(b)) for b in blocks]))
            for blocks in self._windows(rng)
        ]
        return np.concatenate(parts)

    def order(self, epoch: int) -> Array:
        """Local row numbers of `epoch`, int64."""
        if self.mode == "shuffle-once":
            return self._only_order
        rng = np.random.default_rng((self.seed, self.replica, epoch + 1))
        if self.mode == "replacement":
            return rng.integers(self.rows, size=self.rows, dtype=np.int64)
        if self.mode == "blocks":
            return self._by_windows(rng)
        return rng.permutation(np.arange(self.rows, dtype=np.int64))

    @cached_property
    def _only_order(self) -> Array:
        """That of shuffle-once, which does not know the epoch."""
        rng = np.random.default_rng((self.seed, self.replica, 0))
        order = rng.permutation(np.arange(self.rows, dtype=np.int64))
        order.flags.writeable = False
        return order


def make_sampler(config: SamplingConfig, rows: int, replica: int) -> Sampler:
    """The sampler of a replica that holds `rows` rows."""
    return Sampler(config.mode, config.seed, rows, replica, config.block, config.window)


def plan_groups(rows: int, batch: int, steps: int) -> list[tuple[int, ...]]:
    """The batch sizes of each exchange of an epoch; only the last may be ragged."""
    sizes = [batch] * (rows // batch)
    if rows % batch:
        sizes.append(rows % batch)
    return [tuple(sizes[i : i + steps]) for i in range(0, len(sizes), steps)]
