"""Groups with their coefficients: the bridge from sampled rows to an exchange."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.backends.base import Backend
from hpcsgd.products.base import Group
from hpcsgd.schedule import blocks_of
from hpcsgd.updates import LinearUpdate, Unrolled, unroll

Array = NDArray[Any]
KEPT = 16  # plans remembered; a constant rate needs two or three


class Planner:
    """Coefficients of any group; the same rates and sizes are prepared once."""

    def __init__(
        self,
        update: LinearUpdate,
        l2: float,
        rates: Callable[[int, int], Array],
        backend: Backend,
    ) -> None:
        self.update = update
        self.l2 = l2
        self.rates = rates  # (first step, count) -> rates of those steps
        self.backend = backend
        self._known: OrderedDict[Any, tuple[Any, tuple[Any, ...]]] = OrderedDict()

    def group(
        self,
        index: int,
        epoch: int,
        rows: Array,
        sizes: tuple[int, ...],
        first_step: int,
    ) -> Group:
        """The group of `rows` whose first step is number `first_step` of the run."""
        rates = self.rates(first_step, len(sizes))
        plan, steps = self._plans(rates, sizes)
        return Group(index, epoch, rows, plan, steps)

    def _plans(
        self, rates: Array, sizes: tuple[int, ...]
    ) -> tuple[Any, tuple[Any, ...]]:
        key = (rates.tobytes(), sizes)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._prepare(rates.tolist(), sizes)
            if len(self._known) > KEPT:
                self._known.popitem(last=False)
        return found

    def _prepare(
        self, rates: list[float], sizes: tuple[int, ...]
    ) -> tuple[Any, tuple[Any, ...]]:
        whole = unroll(self.update, rates, sizes, self.l2)
        plan = self.backend.prepare(whole, blocks_of(sizes))
        steps = tuple(
            self.backend.prepare(self._one_step(rate, size), blocks_of((size,)))
            for rate, size in zip(rates, sizes, strict=True)
        )
        return plan, steps

    def _one_step(self, rate: float, size: int) -> Unrolled:
        """One step whose scores arrive already read at q."""
        one = unroll(self.update, [rate], [size], self.l2)
        return Unrolled(
            lead=np.ones((1, 1)),
            couple=one.couple,
            carry=one.carry,
            gain=one.gain,
            free=one.free,
            push=one.push,
            probe=one.probe,
        )
