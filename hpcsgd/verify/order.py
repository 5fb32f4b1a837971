"""The order of rows as docs/train.md defines it, written down a second time."""

from typing import Any

import numpy as np

from hpcsgd.families.base import Array


def order_of(sampling: Any, rows: int, replica: int, epoch: int) -> Array:
    """The local rows of a replica that holds so many, in one epoch."""
    key = 0 if sampling.mode == "shuffle-once" else epoch + 1
    rng = np.random.default_rng((sampling.seed, replica, key))
    if sampling.mode == "replacement":
        drawn: Array = rng.integers(rows, size=rows)
        return drawn
    if sampling.mode == "blocks":
        return _by_windows(rng, rows, sampling.block, sampling.window)
    return rng.permutation(np.arange(rows))


def _by_windows(rng: np.random.Generator, rows: int, block: int, window: int) -> Array:
    """Blocks in random order, the rows of each window of them shuffled."""
    blocks = np.split(np.arange(rows), range(block, rows, block))
    order = rng.permutation(len(blocks))
    windows = np.split(order, range(window, len(order), window))
    return np.concatenate(
        [rng.permutation(np.concatenate([blocks[b] for b in part])) for part in windows]
    )
