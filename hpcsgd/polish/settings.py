"""What is asked of the finisher."""

from dataclasses import dataclass

from hpcsgd.errors import ConfigError

KINDS = ("none", "lbfgs", "newton", "auto")


@dataclass(frozen=True)
class PolishConfig:
    """From where the steps ended to the optimum, with gradients of all rows."""

    # auto: go on to the optimum, by lbfgs, and where that takes long by newton.
    kind: str = "none"
    passes: int = 200  # gradients at most; each reads the rows twice
    tol: float = 1e-8  # of the gradient, relative to the residuals; smaller = closer
    # With a ridge a certified bound of F − F* decides, for 3 passes more; without one
    # the fall that a step of Newton expects, where columns are few.
    gap: bool = True

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(
                f"[polish] kind = {self.kind!r}; known: {', '.join(KINDS)}"
            )
        if self.passes < 1:
            raise ConfigError(
                f"[polish] passes = {self.passes} must be at least 1; 200 is usual,"
                ' and kind = "none" takes none'
            )
        if not 0.0 <= self.tol < 1.0:
            raise ConfigError(
                f"[polish] tol = {self.tol!r} must be at least 0 and below 1; 1e-8 is"
                " usual, 0 goes on to the last digit"
            )
