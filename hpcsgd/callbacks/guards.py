"""Members hold the same bits, or are mended."""

import logging
import zlib

from hpcsgd.comm.base import Communicator
from hpcsgd.products.base import State

log = logging.getLogger(__name__)


class MemberCheck:
    """Compares what members hold in common every N exchanges, and mends it.

    MPI does not promise that a sum gives every rank the same bits. Residuals that
    differ let members drift apart; the replicated part of the state is then taken
    from member 0, and because margins are summed anew from w in every exchange
    the iteration goes on from there.
    """

    def __init__(self, members: Communicator, every: int, whole: bool) -> None:
        self.members = members
        self.every = every
        self.whole = whole  # members hold all of w, not a slice each
        self.mended = 0

    def after_exchange(self, state: State, exchanges: int) -> None:
        """Compare when due."""
        if not self.every or self.members.size == 1 or exchanges % self.every:
            return
        prints = self.members.exchange_objects(self._fingerprint(state))
        if len(set(prints)) > 1:
            self._mend(state, exchanges)

    def _fingerprint(self, state: State) -> int:
        parts = [
            state.residuals,
            state.look_at("intercept"),
            state.look_at("weights") if self.whole else None,
        ]
        value = 0
        for part in parts:
            if part is not None:
                value = zlib.crc32(part.tobytes(), value)
        return value

    def _mend(self, state: State, exchanges: int) -> None:
        self.mended += 1
        if state.intercept is not None:
            self.members.broadcast(state.intercept, 0, "control")
        if self.whole:
            self.members.broadcast(state.weights, 0, "control")
        if self.members.rank:
            return  # all members of a replica know the same
        log.warning(
            "members differed after exchange %d and were mended from member 0"
            " (%d times so far); --reproducible prevents it",
            exchanges,
            self.mended,
        )
