"""An exchange in two phases: everybody adds one piece, and says what came of it.

D words are padded to R pieces of ⌈D/R⌉ (BAGUA's C_LP_S). Every replica encodes its
pieces and gives piece r to replica r, which decodes them, takes their mean in full
precision, encodes that again and gives it to all. However many replicas there are, a
replica sends every word twice, and never the records of all others.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hpcsgd.codecs.base import Array, Line


class Pieces(Protocol):
    """How pieces are said: rows of words as rows of bytes, all of one length."""

    def encode(self, pieces: Array) -> NDArray[np.uint8]:
        """(rows, words) as (rows, bytes)."""

    def decode(self, records: NDArray[np.uint8], words: int) -> Array:
        """And back, in float64."""


@dataclass(frozen=True)
class Said:
    """What came of it, flat and without the padding."""

    mean: Array  # the same bits on all replicas, float64
    # Of this replica, so that the mean over replicas of these is `mean`: its own words
    # as they were decoded, less R times what the encoding of its piece's mean lost.
    own: Array


def piece_words(words: int, ranks: int) -> int:
    """⌈D/R⌉."""
    return -(-words // ranks)


def start_two_phase(
    part: Array, line: Line, form: Pieces, needs_own: bool = False
) -> Callable[[], Said]:
    """Begin to exchange pieces of `part`; what comes back waits, adds and gathers.

    Gradients or anything else of which replicas want the mean. `Said.own` is empty
    unless somebody needs it.
    """
    pieces = _padded(part, line.size)
    sent = form.encode(pieces)
    arrive = line.start_exchange(sent)

    def finish() -> Said:
        each = pieces.shape[1]
        piece = form.decode(arrive(), each).sum(axis=0) / line.size
        record = form.encode(piece[None])
        records = np.stack(line.start_gather(record.reshape(-1))())
        means = form.decode(records, each)
        if not needs_own:
            return Said(means.reshape(-1)[: part.size], np.empty(0))
        own = form.decode(sent, each)
        own[line.rank] -= line.size * (piece - means[line.rank])
        return Said(means.reshape(-1)[: part.size], own.reshape(-1)[: part.size])

    return finish


def _padded(part: Array, ranks: int) -> Array:
    """(R, ⌈D/R⌉); filled with the last word, which widens no range."""
    each = piece_words(part.size, ranks)
    pieces = np.full(ranks * each, part[-1], dtype=part.dtype)
    pieces[: part.size] = part
    return pieces.reshape(ranks, each)
