"""How a gradient becomes a step."""

from hpcsgd.errors import ConfigError
from hpcsgd.updates.linear import (
    HeavyBall,
    LinearUpdate,
    Nesterov,
    NesterovClassic,
    Sgd,
)
from hpcsgd.updates.svrg import Svrg
from hpcsgd.updates.unroll import Unrolled, unroll

UPDATES: dict[str, type[LinearUpdate]] = {
    "sgd": Sgd,
    "momentum": HeavyBall,
    "nesterov": Nesterov,
    "nesterov-classic": NesterovClassic,
    "svrg": Svrg,
}


def make_update(name: str, momentum: float) -> LinearUpdate:
    """The update called `name`; plain sgd has no momentum to set."""
    if name not in UPDATES:
        raise ConfigError(f"[update] unknown: {name!r}; known: {sorted(UPDATES)}")
    if not 0.0 <= momentum < 1.0:
        raise ConfigError(
            f"[update] momentum = {momentum!r} must lie in [0, 1); 0.9 is usual"
        )
    return UPDATES[name](momentum)


__all__ = ["UPDATES", "LinearUpdate", "Unrolled", "make_update", "unroll"]
