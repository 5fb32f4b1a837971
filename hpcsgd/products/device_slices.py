"""Gradients on a device for replicas that hold slices: tile by tile, as they ask.

Residuals are made first. Then replicas name columns: the device adds Yᵀr of a tile
while the one before travels. Where w is in slices, too, scores are added up alike.
"""

from dataclasses import dataclass, replace
from typing import Any

from hpcsgd.backends.device_csr import SparseProducts
from hpcsgd.backends.device_exchange import DeviceExchange
from hpcsgd.backends.device_products import DenseProducts
from hpcsgd.products.base import State
from hpcsgd.products.device_cycle import Cycle
from hpcsgd.products.device_gradient import DeviceGradient, Sums
from hpcsgd.products.held import HeldState


@dataclass(frozen=True)
class RowsThere:
    """Rows of one exchange on a device, or some of their columns."""

    products: DenseProducts | SparseProducts
    numbers: Any
    factors: Any  # what Yᵀ is multiplied with
    carry: Any  # 1: it is added

    def part(self, columns: slice) -> "RowsThere":
        """Of a tile."""
        return replace(self, products=self.products.part(columns))

    def add_gradient(self, gradient: Any) -> None:
        """gradient ← gradient + Yᵀr."""
        self.products.update(self.numbers, self.factors, self.carry, gradient)

    def scores(self, weights: Any, out: Any) -> None:
        """out ← Y w."""
        self.products.margins(self.numbers, weights, out)


class DeviceSlices(DeviceGradient):
    """Weights stay on the device, all of them or its slices."""

    gathers = False  # True: w is in slices, and scores are made tile by tile

    def _compute(self, exchange: DeviceExchange, state: State, sums: Sums) -> None:
        if not self.gathers:
            super()._compute(exchange, state, sums)
            return
        assert isinstance(state, HeldState) and self.asked.gradient is not None
        exchange.sample()
        own, rows = state.on_device("weights"), self._rows(exchange)
        self.asked.gradient.scores(self.asked, state, rows, own, exchange.margins)
        for message in self.messages(exchange):
            self.sums.sum(message.name, message.array, message.form)
        exchange.iterate(self.intercept)

    def _arriving(self, exchange: DeviceExchange, sums: Sums, complete: bool) -> Any:
        return self._rows(exchange)

    def _rows(self, exchange: DeviceExchange) -> RowsThere:
        products, numbers = exchange.rows, exchange.sampled.numbers
        assert isinstance(products, DenseProducts | SparseProducts)  # no Gram
        factors, carry = exchange.recurrence.factors, exchange.coefficients.carry
        return RowsThere(products, numbers, factors, carry)

    def _cycle(self, exchange: DeviceExchange, sums: Sums) -> Cycle:
        """Up to residuals: what follows is begun tile by tile."""
        key = exchange.blocks.rows, 0
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = Cycle(
                *(self.device, self.sums),
                lambda: exchange.before(self.point),
                self.messages(exchange),
                lambda: exchange.iterate(self.intercept),
            )
        return found
