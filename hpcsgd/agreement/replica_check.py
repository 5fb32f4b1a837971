"""Replicas that take the same steps hold the same bits, or are mended.

MPI does not promise that a sum gives every rank the same bits. Replicas that never
speak of weights would drift apart unseen; every N exchanges they compare a hash of all
they hold, and where it differs all take what replica 0 holds.
"""

import logging
import zlib
from collections.abc import Sequence

from hpcsgd.comm.base import Communicator
from hpcsgd.products.base import Array, State

log = logging.getLogger(__name__)


class ReplicaCheck:
    """Of the replicas of one column block."""

    def __init__(self, replicas: Communicator, every: int) -> None:
        self.replicas = replicas
        self.every = every  # exchanges; 0 = never
        self.mended = 0

    def is_due(self, exchanges: int) -> bool:
        """Whether they compare after so many exchanges."""
        return bool(
            self.every and self.replicas.size > 1 and exchanges % self.every == 0
        )

    def after_exchange(
        self, state: State, exchanges: int, more: Sequence[Array] = ()
    ) -> None:
        """Compare when due; `more` is what else all replicas hold alike."""
        if not self.is_due(exchanges):
            return
        prints = _fingerprint(_held(state.glance(), more))
        if len(set(self.replicas.exchange_objects(prints))) > 1:
            self._mend(_held(state, more), exchanges)

    def _mend(self, held: Sequence[Array], exchanges: int) -> None:
        self.mended += 1
        for array in held:
            self.replicas.broadcast(array, 0, "control")
        if self.replicas.rank == 0:
            log.warning(
                "replicas differed after exchange %d and were mended from replica 0"
                " (%d times so far); --reproducible prevents it",
                exchanges,
                self.mended,
            )


def _held(state: State, more: Sequence[Array]) -> list[Array]:
    intercept = [] if state.intercept is None else [state.intercept]
    return [state.weights, *more, *intercept]


def _fingerprint(held: Sequence[Array]) -> int:
    value = 0
    for array in held:
        value = zlib.crc32(array.tobytes(), value)
    return value
