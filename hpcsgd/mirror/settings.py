"""What a mirror map may be told."""

from dataclasses import dataclass

from hpcsgd.errors import ConfigError

KINDS = ("euclidean", "entropy", "eg", "p-norm", "diagonal")
BOUNDED = ("euclidean", "entropy", "eg")


@dataclass(frozen=True)
class MirrorConfig:
    """The geometry that steps of `anybatch` are taken in."""

    kind: str = "euclidean"  # or entropy, eg, p-norm, diagonal
    radius: float = 0.0  # of what holds the weights; 0 = none, or 1 for entropy and eg
    p: float = 0.0  # p-norm: in (1, 2]; 0 = 2 ln d / (2 ln d - 1)
    epsilon: float = 1e-08  # diagonal: beside the root that steps are divided by

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(
                f"[mirror] unknown kind: {self.kind!r}; known: {list(KINDS)}"
            )
        if not 0.0 <= self.radius < float("inf"):
            raise ConfigError(
                f"[mirror] radius = {self.radius!r} must be finite and at least 0; 0 is"
                " none, or 1 for entropy and eg"
            )
        if self.radius and self.kind not in BOUNDED:
            raise ConfigError(
                f"[mirror] kind = {self.kind!r} has no radius; leave it out, or use one"
                f" of {list(BOUNDED)}"
            )
        if self.p and not (self.kind == "p-norm" and 1.0 < self.p <= 2.0):
            raise ConfigError(
                f"[mirror] p = {self.p!r} is for kind = 'p-norm', above 1 and at most"
                " 2; 0 takes it from the number of columns"
            )
        if not 0.0 < self.epsilon < float("inf"):
            raise ConfigError(
                f"[mirror] epsilon = {self.epsilon!r} must be above 0; 1e-8 is usual"
            )
