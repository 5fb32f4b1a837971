"""What is asked of a coordinate form."""

from dataclasses import dataclass

from hpcsgd.errors import ConfigError

COORDINATE = "coordinate"  # [update] kind
FORMS = ("auto", "primal", "dual", "newton")


@dataclass(frozen=True)
class CoordinateConfig:
    """Used by [update] kind = "coordinate" alone."""

    tol: float = 1e-6  # of the gap, relative to F of the null model; smaller = closer
    form: str = "auto"  # primal, dual, newton

    def __post_init__(self) -> None:
        if self.form not in FORMS:
            raise ConfigError(
                f"[coordinate] form = {self.form!r}; known: {', '.join(FORMS)}"
            )
        if not 0.0 <= self.tol < 1.0:
            raise ConfigError(
                f"[coordinate] tol = {self.tol!r} must be at least 0 and below 1; 1e-6"
                " is usual, 0 takes all epochs"
            )
