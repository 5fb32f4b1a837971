"""What a path leaves behind: every model a result of its own."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.errors import ConfigError
from hpcsgd.result import Result

Array = NDArray[Any]


@dataclass(frozen=True)
class Path:
    """One model for every alpha, the largest first.

    Attributes
    ----------
    alphas : ndarray, (n,), descending
    results : list of n Results, each a model like any other
    coefs : ndarray, (n, d) or (n, d, K)
    intercepts : ndarray, (n,) or (n, K); None without one
    losses : ndarray, (n,), F in float64
    gaps : ndarray, (n,), each no less than F − F*; NaN where nothing is known
    gradients : ndarray, (n,), norms of the smallest subgradient; NaN where not taken
    n_iter : ndarray, (n,), epochs
    messages : ndarray, (n,), sums over ranks for products
    """

    alphas: Array
    results: list[Result]

    @cached_property
    def coefs(self) -> Array:
        """Of all models."""
        return np.stack([one.weights for one in self.results])

    @cached_property
    def intercepts(self) -> Array | None:
        """Of all models."""
        if self.results[0].intercept is None:
            return None
        return np.stack([np.asarray(one.intercept) for one in self.results])

    @cached_property
    def losses(self) -> Array:
        """Of all models."""
        return np.array([one.loss for one in self.results])

    @cached_property
    def gaps(self) -> Array:
        """Of all models, at the last look."""
        return self._last("gap")

    @cached_property
    def gradients(self) -> Array:
        """Of all models, at the last look."""
        return self._last("gradient")

    @cached_property
    def n_iter(self) -> Array:
        """Of all models."""
        return np.array([one.history[-1]["epoch"] for one in self.results])

    @cached_property
    def messages(self) -> Array:
        """Of all models."""
        return np.array([one.ledger["products"]["calls"] for one in self.results])

    def at(self, alpha: float) -> Result:
        """The model of the alpha that is nearest on a logarithmic scale."""
        if not alpha > 0.0:
            raise ConfigError(f"alpha = {alpha!r} must be above 0")
        away = np.abs(np.log(self.alphas) - np.log(alpha))
        return self.results[int(np.argmin(away))]

    def _last(self, name: str) -> Array:
        found = (one.history[-1].get(name) for one in self.results)
        return np.array([np.nan if value is None else value for value in found])
