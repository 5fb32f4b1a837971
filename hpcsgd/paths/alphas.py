"""The penalties of a path, given or chosen from the data."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.errors import ConfigError

Array = NDArray[Any]
LEAST_RATIO = 1e-3  # of l1, where the largest alpha is chosen: ridge alone has none
BEYOND = 1 + 1e-12  # so that rounding leaves no weight at the largest alpha


@dataclass
class Alphas:
    """The penalties, given or chosen."""

    given: Sequence[float] | None
    count: int
    eps: float
    l1_ratio: float

    def check(self) -> None:
        """Refuse what makes no path."""
        if not 0.0 <= self.l1_ratio <= 1.0:
            raise ConfigError(
                f"l1_ratio = {self.l1_ratio!r} must lie in [0, 1]; 1 is the lasso"
            )
        if self.count < 1 or not 0.0 < self.eps < 1.0:
            raise ConfigError(
                f"n_alphas = {self.count} must be at least 1, and eps = {self.eps!r}"
                " lie between 0 and 1; 50 and 1e-3 are usual"
            )
        if self.given is not None:
            values = np.asarray(self.given, dtype=np.float64)
            good = values.ndim == 1 and values.size > 0 and bool(np.all(values > 0.0))
            if not good or not np.isfinite(values).all():
                raise ConfigError("alphas must be finite numbers above 0")

    def choose(self, steepest: Callable[[], float]) -> Array:
        """Descending; `steepest` is asked where none are given."""
        if self.given is not None:
            self.chosen: Array = np.sort(np.asarray(self.given, dtype=float))[::-1]
            return self.chosen
        largest = steepest() / max(self.l1_ratio, LEAST_RATIO) * BEYOND
        if not largest > 0.0:
            raise ConfigError("no column has a slope at the null model; give alphas")
        self.chosen = largest * np.geomspace(1.0, self.eps, self.count)
        return self.chosen
