"""gradient ← gradient + Yᵀr, as a backend's step of weight one."""

from typing import Any

import numpy as np

from hpcsgd.backends.base import Backend
from hpcsgd.products.base import Array, Rows
from hpcsgd.schedule import blocks_of
from hpcsgd.updates import Unrolled


class Adder:
    """Adds, with a plan for every size of batch."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._plans: dict[int, Any] = {}

    def add(self, gradient: Array, rows: Rows, residuals: Array) -> None:
        """In place."""
        self.backend.descend(gradient, rows, residuals, self._plan(len(residuals)))

    def _plan(self, size: int) -> Any:
        """Of one step without decay, for a batch of this size."""
        if size not in self._plans:
            one = np.ones((1, 1))
            plain = Unrolled(
                lead=one,
                couple=(np.empty(0),),
                carry=one,
                gain=one,
                free=one[None],
                push=one,
                probe=np.ones(1),
            )
            self._plans[size] = self.backend.prepare(plain, blocks_of((size,)))
        return self._plans[size]
