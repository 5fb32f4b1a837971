"""What is learnt: the family, and what keeps its weights small or within bounds."""

from dataclasses import dataclass

import numpy as np

from hpcsgd.errors import ConfigError

STEP, EXCHANGE = "step", "exchange"
PLACES = (STEP, EXCHANGE)  # behind which of them l1 and bounds act
Bound = float | tuple[float, ...] | None


@dataclass(frozen=True)
class ProblemConfig:
    """What is learnt."""

    family: str = "logistic"
    l2: float = 0.0  # ridge penalty λ; the intercept is never penalised
    intercept: bool = False
    l1: float = 0.0  # larger = more weights are exactly 0
    l1_at: str = "step"  # exchange: l1 and bounds act once for s steps, approximately
    lower: Bound = None  # of all weights, or a list with one for each column
    upper: Bound = None  # the same from above

    def __post_init__(self) -> None:
        for name in ("l2", "l1"):
            value = getattr(self, name)
            if not 0.0 <= value < float("inf"):
                raise ConfigError(
                    f"[problem] {name} = {value!r} must be finite and at least 0;"
                    " 0 is none, 1e-5 is usual"
                )
        if self.l1_at not in PLACES:
            raise ConfigError(
                f"[problem] l1_at = {self.l1_at!r}; known: {', '.join(PLACES)}"
            )
        self._check_bounds()

    def _check_bounds(self) -> None:
        """Some finite number lies between the bounds of every column."""
        lower, upper = (
            np.atleast_1d(free if bound is None else bound)
            for bound, free in ((self.lower, -np.inf), (self.upper, np.inf))
        )
        fits = lower.size == 1 or upper.size == 1 or lower.size == upper.size
        if not (
            fits and np.all((lower <= upper) & (lower < np.inf) & (upper > -np.inf))
        ):
            raise ConfigError(
                "[problem] lower and upper leave some weight no value; give lower <="
                " upper, one number each, or one for each column"
            )

    @property
    def is_smooth(self) -> bool:
        """True without l1 and bounds."""
        return self.l1 == 0.0 and self.lower is None and self.upper is None
