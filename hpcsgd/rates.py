"""Step sizes as a function of the step's number."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.errors import ConfigError

Array = NDArray[Any]

# kind -> factor on the first rate, from step numbers k, decay c and the total n
RATES: dict[str, Callable[[Array, float, int], Array]] = {
    "constant": lambda k, c, n: np.ones(len(k)),
    "inverse": lambda k, c, n: 1.0 / (1.0 + c * k),
    "inverse-sqrt": lambda k, c, n: 1.0 / np.sqrt(1.0 + c * k),
    "cosine": lambda k, c, n: 0.5 * (1.0 + np.cos(np.pi * np.minimum(k / n, 1.0))),
}
NORMS = ("rows", "batches")


@dataclass(frozen=True)
class RateConfig:
    """A first rate and how it changes."""

    kind: str = "constant"
    value: float = 0.1  # larger = faster, until it diverges; or auto, from the data
    decay: float = 0.0  # c of 1/(1 + c k) and of 1/√(1 + c k), per step
    warmup: int = 0  # steps over which the rate grows linearly to its schedule
    per_batch: int = 0  # rows of a step that value is for; of more, it grows with them
    norm: str = "rows"  # what auto goes by: the longest row, or batches (bolder)

    def __post_init__(self) -> None:
        if self.kind not in RATES:
            raise ConfigError(
                f"[rate] unknown kind: {self.kind!r}; known: {list(RATES)}"
            )
        if self.norm not in NORMS:
            raise ConfigError(f"[rate] norm = {self.norm!r}; known: {', '.join(NORMS)}")
        if not 0.0 <= self.value < float("inf"):
            raise ConfigError(
                f"[rate] value = {self.value!r} must be positive and finite,"
                " or auto; 0.1 is a cautious start"
            )
        if not 0.0 <= self.decay < float("inf"):
            raise ConfigError(
                f"[rate] decay = {self.decay!r} must be at least 0; 0 is none"
            )
        if self.per_batch < 0 or (self.per_batch and self.value == 0.0):
            raise ConfigError(
                f"[rate] per_batch = {self.per_batch} must be the rows of a step that"
                " [rate] value is for, and needs one; 0 leaves the value as it is"
            )
        if self.warmup < 0:
            raise ConfigError(
                f"[rate] warmup = {self.warmup!r} must be at least 0; 0 is none"
            )

    @property
    def is_open(self) -> bool:
        """True where the first rate is to be found from the data."""
        return self.value == 0.0


@dataclass(frozen=True)
class Rate:
    """The rates of a whole run."""

    config: RateConfig
    total_steps: int

    def at(self, first_step: int, count: int) -> Array:
        """Rates of steps first_step .. first_step + count − 1, in float64."""
        config = self.config
        if config.kind == "constant" and not config.warmup:
            return np.full(count, config.value)
        k = np.arange(first_step, first_step + count, dtype=np.float64)
        rates = config.value * RATES[config.kind](k, config.decay, self.total_steps)
        if config.warmup:
            # From 1/warmup on: a first rate of 0 would divide by zero elsewhere.
            rates = rates * np.minimum((k + 1.0) / config.warmup, 1.0)
        return rates


def make_rate(config: RateConfig, total_steps: int) -> Rate:
    """The rates of a run of `total_steps`."""
    if config.is_open:
        raise ConfigError(
            "[rate] value = 'auto' is found by a run, from all of its rows; give a"
            " number here, for example that of an earlier run"
        )
    return Rate(config, max(total_steps, 1))
