"""The two-loop recursion of L-BFGS on inner products alone.

The direction is a combination of 2M + 1 vectors: the last M moves s, the changes y of
the gradient over them, and the gradient g. Each rank holds its part of these; the
recursion needs nothing but their inner products, of which an iteration has 3(2M + 1)
new ones, in one message (Chen, Wang, Zhou 2014).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
CURVED = 1e-14  # of ‖s‖‖y‖: a pair with a smaller s·y says nothing


class Memory:
    """The vectors as this rank holds them, and the inner products of the whole ones.

    Slots 0..M−1 are moves, M..2M−1 changes, and the last is the gradient.
    """

    def __init__(self, depth: int, length: int) -> None:
        self.depth = depth
        self.vectors = np.zeros((2 * depth + 1, length))
        self.products = np.zeros((2 * depth + 1, 2 * depth + 1))
        self.order: list[int] = []  # slots of good pairs, the oldest first
        self.slot = 0  # of the newest pair

    @property
    def words(self) -> int:
        """Of new inner products, in one iteration."""
        return 3 * len(self.vectors)

    @property
    def gradient(self) -> Array:
        """The vector g."""
        found: Array = self.vectors[-1]
        return found

    @property
    def square(self) -> float:
        """g·g."""
        return float(self.products[-1, -1])

    def begin(self, gradient: Array) -> None:
        """The first one."""
        self.vectors[-1] = gradient

    def put(self, move: Array, gradient: Array) -> None:
        """One iteration more: s, and y from the gradients."""
        self.slot = (self.slot + 1) % self.depth
        if self.slot in self.order:
            self.order.remove(self.slot)
        self.vectors[self.slot] = move
        self.vectors[self.depth + self.slot] = gradient - self.gradient
        self.vectors[-1] = gradient

    def parts(self, own: slice) -> Array:
        """What `own` of these vectors adds to the new inner products, flat."""
        newest = self.vectors[[self.slot, self.depth + self.slot, -1], own]
        parts: Array = self.vectors[:, own] @ newest.T
        return parts.reshape(-1)

    def hear(self, total: Array) -> None:
        """Put the sum of these parts over all members where it belongs."""
        new = total.reshape(len(self.vectors), 3)
        for column, number in enumerate((self.slot, self.depth + self.slot, -1)):
            self.products[number] = self.products[:, number] = new[:, column]
        s, y = self.slot, self.depth + self.slot
        size = np.sqrt(self.products[s, s] * self.products[y, y])
        if self.products[s, y] > CURVED * size:
            self.order.append(s)

    def forget(self) -> None:
        """Begin again with the gradient alone."""
        self.order.clear()

    def direction(self) -> tuple[Array, float]:
        """p = −H g, this rank's part of it, and g·p of the whole."""
        found = self._coefficients()
        return found @ self.vectors, float(found @ self.products[-1])

    def _coefficients(self) -> Array:
        """Of the vectors in the direction: Nocedal's two loops."""
        found, products = np.zeros(len(self.vectors)), self.products
        found[-1] = -1.0
        shares = {}
        for s in reversed(self.order):
            y = self.depth + s
            shares[s] = found @ products[:, s] / products[s, y]
            found[y] -= shares[s]
        if self.order:
            s, y = self.order[-1], self.depth + self.order[-1]
            found *= products[s, y] / products[y, y]
        for s in self.order:
            y = self.depth + s
            found[s] += shares[s] - found @ products[:, y] / products[s, y]
        return found
