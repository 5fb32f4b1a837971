"""What several replicas had not sent yet, and the one that goes on alone pays.

One replica encodes nothing. A step that is linear in the state can take what is owed
before the next gradient, and momenta move by it as they would have done; any other
takes it along with that gradient: what a codec would have said, had it said all.
"""

from collections.abc import Callable, Mapping

import numpy as np

from hpcsgd.agreement.buckets import Tile
from hpcsgd.codecs import Moment
from hpcsgd.products.base import Array, State
from hpcsgd.updates import Rule
from hpcsgd.updates.rules import Linear

# What codecs that remembered this still owe at a rate, as a gradient.
Owes = Callable[[Mapping[str, Array], float], Array | None]


class Debts:
    """Those of codecs, until they are paid."""

    def __init__(self, owes: Owes) -> None:
        self.owes = owes
        self._kept: dict[str, Array] = {}  # by codecs of replicas that there were
        self._owed: Array | None = None

    def note(self, name: str, kept: Array) -> None:
        """One array that codecs remembered."""
        self._kept[name] = kept

    def settle(self, state: State, rule: Rule, moment: Moment) -> None:
        """Pay, or have the next step pay; at a rate of 0 there is none to come."""
        if not self._kept or not moment.rate:
            return
        owed, self._kept = self.owes(self._kept, moment.rate), {}
        if owed is None or not isinstance(rule, Linear):
            self._owed = owed
            return
        gain = rule.update.gain(moment.rate, 1)
        more = np.multiply.outer(gain, owed).swapaxes(0, 1)
        state.weights[...] += more.reshape(state.weights.shape)

    def add_to(self, tile: Tile, factor: float) -> None:
        """To a gradient that is taken `factor` times, once."""
        if self._owed is None:
            return
        owed = self._owed[tile.columns]
        tile.gradient[...] += (owed / factor).astype(tile.gradient.dtype)
        owed[...] = 0.0
