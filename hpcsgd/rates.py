"""Step sizes as a function of the step's number.

With the first rate η, steps k from 0 on, n of them in all and N epochs:

    constant      η
    inverse       η / (1 + c k)
    inverse-sqrt  η / √(1 + c k)
    cosine        η (1 + cos(π k / n)) / 2
    milestones    η fᵐ, where m milestones are at most k N / n epochs

A run of milestones is constant between them, and drops at each: step decay, as
networks are trained by. All others are smooth.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.errors import ConfigError

Array = NDArray[Any]

# kind -> factors on the first rate of a run, in steps of these numbers
RATES: dict[str, Callable[["Rate", Array], Array]] = {
    "constant": lambda rate, k: np.ones(len(k)),
    "inverse": lambda rate, k: 1.0 / (1.0 + rate.config.decay * k),
    "inverse-sqrt": lambda rate, k: 1.0 / np.sqrt(1.0 + rate.config.decay * k),
    "cosine": lambda rate, k: (
        0.5 * (1.0 + np.cos(np.pi * np.minimum(k / rate.total_steps, 1.0)))
    ),
    "milestones": lambda rate, k: rate.config.factor ** rate.passed(k),
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
    milestones: tuple[float, ...] = ()  # epochs after which the rate is multiplied
    factor: float = 0.1  # by this; nearer to 1 = smaller drops

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

        self._check_milestones()

    def _check_milestones(self) -> None:
        said = list(self.milestones)
        if any(not 0.0 < m < float("inf") for m in said) or sorted(set(said)) != said:
            raise ConfigError(
                f"[rate] milestones = {said} must be positive numbers of epochs in"
                " rising order, as [30, 60, 90]"
            )
        if self.kind == "milestones" and not said:
            raise ConfigError(
                "[rate] kind = 'milestones' drops at epochs and was given none; set"
                " rate.milestones, as --milestones 30,60,90"
            )
        if not 0.0 < self.factor < 1.0:
            raise ConfigError(
                f"[rate] factor = {self.factor!r} must be above 0 and below 1; 0.1 is"
                " usual"
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
    epochs: int = 1  # that these steps are

    def passed(self, steps: Array) -> Array:
        """Return how many milestones lie at or before the beginning of each step."""
        places = np.array(self.config.milestones) * self.total_steps
        found: Array = np.searchsorted(places, steps * self.epochs, side="right")
        return found

    def drops(self, step: int) -> int:
        """Return how often the rate has dropped by then; smooth rates never do."""
        if self.config.kind != "milestones":
            return 0
        return int(self.passed(np.array([step]))[0])

    def at(self, first_step: int, count: int) -> Array:
        """Rates of steps first_step .. first_step + count − 1, in float64."""
        config = self.config
        if config.kind == "constant" and not config.warmup:
            return np.full(count, config.value)
        k = np.arange(first_step, first_step + count, dtype=np.float64)
        rates = config.value * RATES[config.kind](self, k)
        if config.warmup:
            # From 1/warmup on: a first rate of 0 would divide by zero elsewhere.
            rates = rates * np.minimum((k + 1.0) / config.warmup, 1.0)
        return rates


def make_rate(config: RateConfig, total_steps: int, epochs: int = 1) -> Rate:
    """Return the rates of a run of `total_steps`, which are so many epochs."""
    if config.is_open:
        raise ConfigError(
            "[rate] value = 'auto' is found by a run, from all of its rows; give a"
            " number here, for example that of an earlier run"
        )
    return Rate(config, max(total_steps, 1), epochs)
