"""Groups with their coefficients: the bridge from sampled rows to an exchange."""

from collections import OrderedDict
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.backends.base import Backend
from hpcsgd.models import Models
from hpcsgd.products.base import Group
from hpcsgd.schedule import blocks_of
from hpcsgd.updates import LinearUpdate, Unrolled, unroll
from hpcsgd.updates.many import ManyUnrolled, one_step_many, unroll_many
from hpcsgd.updates.unroll import PlainSteps, plain_steps

Array = NDArray[Any]
KEPT = 16  # coefficients remembered; a constant rate needs two or three


class Coefficients:
    """Those of one exchange, in each form that a product may ask for.

    A form is prepared when it is first asked for: with rates that change all the time
    every exchange has coefficients of its own, and uses one form of them.
    """

    def __init__(
        self,
        update: LinearUpdate,
        l2: float,
        backend: Backend,
        rates: list[float],
        sizes: tuple[int, ...],
    ) -> None:
        self.update = update
        self.l2 = l2
        self.backend = backend
        self.rates = rates
        self.blocks = blocks_of(sizes)

    @cached_property
    def whole(self) -> Unrolled:
        """Of all s steps together, in float64."""
        return unroll(self.update, self.rates, self.blocks.sizes, self.l2)

    @cached_property
    def plan(self) -> Any:
        """The same, as the backend takes it."""
        return self.backend.prepare(self.whole, self.blocks)

    @cached_property
    def steps(self) -> tuple[Any, ...]:
        """Of each step alone."""
        return tuple(
            self.backend.prepare(self._one_step(rate, size), blocks_of((size,)))
            for rate, size in zip(self.rates, self.blocks.sizes, strict=True)
        )

    @cached_property
    def plain(self) -> PlainSteps:
        """Of each step alone, as the call that takes all of them wants them."""
        return plain_steps(self.update, self.rates, self.blocks.sizes, self.l2)

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


class ManyCoefficients(Coefficients):
    """The same for models of their own penalties; `rates` are (s, settings)."""

    def __init__(
        self,
        update: LinearUpdate,
        models: Models,
        backend: Backend,
        rates: Array,
        sizes: tuple[int, ...],
    ) -> None:
        super().__init__(update, 0.0, backend, [], sizes)
        self.models = models
        self.each = rates
        self.ridges = np.array([l2 for l2, _ in models.settings])

    def only(self, number: int, model: Models) -> "ManyCoefficients":
        """Those of one of the models."""
        own = self.models.setting_of[number * self.models.scores]
        rates, sizes = self.each[:, [own]], self.blocks.sizes
        return ManyCoefficients(self.update, model, self.backend, rates, sizes)

    @cached_property
    def whole(self) -> ManyUnrolled:
        """Of all s steps together, in float64."""
        found = unroll_many(self.update, self.each, self.blocks.sizes, self.ridges)
        return found.of(self.models.setting_of)

    @cached_property
    def steps(self) -> tuple[Any, ...]:
        """Of each step alone."""
        plans = []
        for rates, size in zip(self.each, self.blocks.sizes, strict=True):
            one = one_step_many(self.update, rates, size, self.ridges)
            columns = one.of(self.models.setting_of)
            plans.append(self.backend.prepare(columns, blocks_of((size,))))
        return tuple(plans)


class Planner:
    """Coefficients of any group; the same rates and sizes are prepared once."""

    def __init__(
        self,
        update: LinearUpdate,
        l2: float,
        rates: Callable[[int, int], Array],
        backend: Backend,
        models: Models | None = None,
    ) -> None:
        self.update = update
        self.l2 = l2
        # (first step, count) -> rates of those steps; (s, settings) of several models
        self.rates = rates
        self.backend = backend
        self.models = models
        self._known: OrderedDict[Any, Coefficients] = OrderedDict()

    def group(
        self,
        index: int,
        epoch: int,
        rows: Array,
        sizes: tuple[int, ...],
        first_step: int,
        order: Array | None = None,
        first: int = 0,
    ) -> Group:
        """The group of `rows` whose first step is number `first_step` of the run."""
        rates = self.rates(first_step, len(sizes))
        coefficients = self._coefficients(rates, sizes)
        return Group(index, epoch, rows, coefficients, order, first)

    def _coefficients(self, rates: Array, sizes: tuple[int, ...]) -> Coefficients:
        key = (rates.tobytes(), sizes)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._made(rates, sizes)
            if len(self._known) > KEPT:
                self._known.popitem(last=False)
        return found

    def _made(self, rates: Array, sizes: tuple[int, ...]) -> Coefficients:
        if self.models is None:
            return Coefficients(
                self.update, self.l2, self.backend, rates.tolist(), sizes
            )
        return ManyCoefficients(self.update, self.models, self.backend, rates, sizes)
