"""How a gradient becomes a step."""

from typing import Any

from hpcsgd.errors import ConfigError
from hpcsgd.updates.in_eight_bits import InEightBits, Velocity
from hpcsgd.updates.linear import (
    HeavyBall,
    LinearUpdate,
    Nesterov,
    NesterovClassic,
    Sgd,
)
from hpcsgd.updates.moments import Adagrad, Adam
from hpcsgd.updates.rules import Linear, Part, Rule, Turn
from hpcsgd.updates.svrg import Svrg
from hpcsgd.updates.unroll import Unrolled, unroll

UPDATES: dict[str, type[LinearUpdate]] = {
    "sgd": Sgd,
    "momentum": HeavyBall,
    "nesterov": Nesterov,
    "nesterov-classic": NesterovClassic,
    "svrg": Svrg,
}

# Words a weight that they keep. None of these is affine in the state: they need the
# gradient of every step.
ADAPTIVE = {"adagrad": len(Adagrad.kept), "adam": len(Adam.kept)}


def make_update(name: str, momentum: float, bits: int = 32) -> LinearUpdate:
    """The update called `name`; plain sgd has no momentum to set."""
    if name in ADAPTIVE or (name in UPDATES and bits == 8):
        return Sgd()  # what recurrences would do, which do not run with these
    if name not in UPDATES:
        known = sorted([*UPDATES, *ADAPTIVE])
        raise ConfigError(f"[update] unknown: {name!r}; known: {known}")
    if not 0.0 <= momentum < 1.0:
        raise ConfigError(
            f"[update] momentum = {momentum!r} must lie in [0, 1); 0.9 is usual"
        )
    return UPDATES[name](momentum)


def make_rule(settings: Any, update: LinearUpdate) -> Rule:
    """The step of replicas that agree on gradients, from the section [update]."""
    if settings.kind == "adam":
        rule: Rule = Adam(settings.beta1, settings.beta2, settings.epsilon)
    elif settings.kind == "adagrad":
        rule = Adagrad(settings.epsilon)
    elif settings.bits == 8 and settings.kind != "sgd":
        rule = Velocity(settings.momentum, settings.kind == "nesterov")
    else:
        rule = Linear(update)
    return InEightBits(rule) if settings.bits == 8 and rule.kept else rule


__all__ = [
    "ADAPTIVE",
    "UPDATES",
    "LinearUpdate",
    "Part",
    "Rule",
    "Turn",
    "Unrolled",
    "make_rule",
    "make_update",
    "unroll",
]
