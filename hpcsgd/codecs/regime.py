"""Critical regimes: whether gradients still change from one look to the next.

ρ = | |G before| − |G now| | / |G before|,  G the sum of the gradients of an epoch

Every `interval` epochs, after the first one on, one epoch is summed. It is critical
where ρ ≥ η, where nothing was seen before, or where the rate has fallen since.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.codecs.base import Moment

Array = NDArray[Any]
NORM, LOW, EPOCH, RATE, LOWS, HIGHS = range(6)
# G, whether compression is low, the epoch that is summed, the rate then, exchanges.
FIRST = np.array([0.0, 1.0, -1.0, 0.0, 0.0, 0.0])
MODE_BYTES = 4  # of the message that says what holds from now on


def is_critical(
    before: float, now: float, eta: float, rate: float, next_rate: float
) -> bool:
    """What is no number is critical, too."""
    if before == 0.0 or next_rate < rate:
        return True
    return not abs(before - now) / before < eta


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
        before, rate = float(self.record[NORM]), float(self.record[RATE])
        return is_critical(before, square**0.5, self.eta, rate, moment.rate)

    def take_square(self) -> float:
        """|G|² of what is held here, which begins anew."""
        square = float(np.sum(np.square(self.total, dtype=np.float64)))
        self.total[...] = 0.0
        return square

    def turn(self, low: bool, moment: Moment, square: float) -> None:
        """From now on."""
        self.record[[NORM, LOW, EPOCH, RATE]] = square**0.5, low, -1.0, moment.rate

    def watches(self, moment: Moment) -> bool:
        """Whether gradients of this exchange are summed."""
        return moment.epoch % self.interval == 0

    def count(self, moment: Moment) -> None:
        """One exchange more, in the mode that is in force."""
        self.record[LOWS if self.is_low else HIGHS] += 1
        if self.watches(moment):
            self.record[EPOCH] = moment.epoch
