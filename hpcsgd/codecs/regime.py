"""Critical regimes: whether gradients still change from one look to the next.

ρ = | |G before| − |G now| | / |G before|,  G the sum of the gradients of an epoch

Every `interval` epochs, after the first one on, one epoch is summed. It is critical
where ρ ≥ η, where nothing was seen before, or where the rate has fallen since.

S. Agarwal, H. Wang, K. Lee, S. Venkataraman and D. Papailiopoulos, "Accordion: Adaptive
Gradient Communication via Critical Learning Regime Identification" (MLSys 2021),
algorithm 1. It is written for step decay, where a rate is constant but for a few drops
that change what gradients do. A smooth schedule falls in every step, and no ratio of
rates tells its fall from a drop (1/(1 + c k) may fall a thousandfold in a step). So the
rate has fallen where it has passed a milestone (`hpcsgd.rates`), and only there: from
that exchange on, which all replicas know of, and at the first look after it.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.codecs.base import Moment

Array = NDArray[Any]
NORM, LOW, EPOCH, DROPS, LOWS, HIGHS = range(6)
# |G|, whether compression is low, the epoch that is summed, milestones that were passed
# at the last look, exchanges in either mode.
FIRST = np.array([0.0, 1.0, -1.0, 0.0, 0.0, 0.0])
MODE_BYTES = 4  # of the message that says what holds from now on


def is_critical(before: float, now: float, eta: float) -> bool:
    """Return whether norms of two looks differ so much; what is no number does."""
    return before == 0.0 or not abs(before - now) / before < eta


class Regime:
    """What is in force, and what was seen; `record` holds it, for checkpoints."""

    def __init__(self, total: Array, eta: float, interval: int) -> None:
        self.total = total  # G so far
        self.eta, self.interval = eta, interval
        self.record: Array = FIRST.copy()

    @property
    def is_low(self) -> bool:
        """Low compression, or small batches: now is critical."""
        return bool(self.record[LOW])

    def is_due(self, moment: Moment) -> bool:
        """An epoch that was summed is over: the same on all replicas."""
        return bool(0 <= self.record[EPOCH] < moment.epoch)

    def verdict(self, moment: Moment, square: float) -> bool:
        """Whether it is critical, by |G|²; one rank's word is everybody's."""
        before = float(self.record[NORM])
        return self.has_dropped(moment) or is_critical(before, square**0.5, self.eta)

    def has_dropped(self, moment: Moment) -> bool:
        """Return whether the rate has passed a milestone since the last look."""
        return moment.drops > float(self.record[DROPS])

    def note_drop(self, moment: Moment) -> None:
        """Compress little from a milestone on; no replica has to be told."""
        if self.has_dropped(moment):
            self.record[LOW] = True

    def take_square(self) -> float:
        """|G|² of what is held here, which begins anew."""
        square = float(np.sum(np.square(self.total, dtype=np.float64)))
        self.total[...] = 0.0
        return square

    def turn(self, low: bool, moment: Moment, square: float) -> None:
        """From now on."""
        self.record[[NORM, LOW, EPOCH, DROPS]] = square**0.5, low, -1.0, moment.drops

    def watches(self, moment: Moment) -> bool:
        """Whether gradients of this exchange are summed."""
        return moment.epoch % self.interval == 0

    def count(self, moment: Moment) -> None:
        """One exchange more, in the mode that is in force."""
        self.record[LOWS if self.is_low else HIGHS] += 1
        if self.watches(moment):
            self.record[EPOCH] = moment.epoch
