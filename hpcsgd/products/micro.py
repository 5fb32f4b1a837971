"""Batches whose gradients travel together, taken one after the other at one point."""

from dataclasses import replace
from typing import Protocol

from hpcsgd.products.base import Group, Product, State
from hpcsgd.products.plan import Coefficients


class Gathering(Protocol):
    """Who sends gradients, once all batches of an exchange have been seen."""

    def begin(self, epoch: int, index: int, batches: int) -> None:
        """An exchange begins, with so many batches on this replica."""


class MicroBatches:
    """Any product that takes single steps; it never holds rows of more than a batch."""

    def __init__(self, product: Product, gathering: Gathering, most: int) -> None:
        self.product = product
        self.gathering = gathering
        self.most = most  # batches of a group
        self.holds_all_columns = product.holds_all_columns
        self._known: dict[int, Coefficients] = {}  # by the size of a batch

    def advance(self, state: State, group: Group, upcoming: Group | None) -> State:
        """All batches of the group, at the weights that it found."""
        blocks = group.blocks
        self.gathering.begin(group.epoch, group.index, len(blocks.sizes))
        for number, size in enumerate(blocks.sizes):
            state = self.product.advance(state, self._one(group, number, size), None)
        return state

    def finish(self) -> None:
        """Nothing is begun early."""
        self.product.finish()

    def _one(self, group: Group, number: int, size: int) -> Group:
        """One batch as a group of its own."""
        first = group.blocks.starts[number]
        return replace(
            group,
            index=group.index * self.most + number,
            rows=group.rows[first : first + size],
            coefficients=self._coefficients(group.coefficients, size),
            first=group.first + first,
        )

    def _coefficients(self, of_group: Coefficients, size: int) -> Coefficients:
        """Of one step; its rate is nobody's concern here."""
        if size not in self._known:
            update, l2, backend = of_group.update, of_group.l2, of_group.backend
            self._known[size] = Coefficients(
                update, l2, backend, of_group.rates[:1], (size,)
            )
        return self._known[size]


class AtOnce(MicroBatches):
    """All batches as one, for whoever would send its tiles once for each of them."""

    def advance(self, state: State, group: Group, upcoming: Group | None) -> State:
        """One pass over the tiles serves all of them."""
        self.gathering.begin(group.epoch, group.index, 1)
        coefficients = self._coefficients(group.coefficients, len(group.rows))
        one = replace(group, coefficients=coefficients)
        return self.product.advance(state, one, None)
