"""The mathematics: families, penalties, step rules, and how s steps unroll."""

from importlib import import_module
from typing import Any

from hpcsgd.errors import ConfigError, nearest
from hpcsgd.glm.families import SYNONYMS, Family
from hpcsgd.glm.unrolling import UnrolledSteps, unroll
from hpcsgd.glm.updates import (
    Adagrad,
    Adam,
    ColumnViews,
    HeavyBall,
    InEightBits,
    LinearRule,
    LinearUpdate,
    Nesterov,
    NesterovClassic,
    Rule,
    Sgd,
    Svrg,
    Turn,
    Velocity,
)

FAMILIES = {
    "gaussian": "hpcsgd.glm.families:Gaussian",
    "logistic": "hpcsgd.glm.families:Logistic",
    "poisson": "hpcsgd.glm.families:Poisson",
    "softmax": "hpcsgd.glm.families:Softmax",
    "squared-hinge": "hpcsgd.glm.families:SquaredHinge",
    "huber": "hpcsgd.glm.families:Huber",
    "gamma": "hpcsgd.glm.families:Gamma",
    "probit": "hpcsgd.glm.families:Probit",
}


def nearest_family(name: str) -> str:
    """Return the family that an unknown name means or is nearly written as, or ""."""
    plain = str(name).strip().lower().replace("_", "-").replace(" ", "-")
    meant = SYNONYMS.get(plain, plain)
    return meant if meant in FAMILIES else nearest(plain, FAMILIES)


def get_family(name: str) -> Family:
    """The family called `name`."""
    if name not in FAMILIES:
        near = nearest_family(name)
        remedy = f"take {near!r}; " if near else ""
        raise ConfigError(
            f"[problem] unknown family: {name!r}; {remedy}known: {list(FAMILIES)}"
        )
    module, attribute = FAMILIES[name].split(":")
    family: Family = getattr(import_module(module), attribute)()
    return family


# How a gradient becomes a step.

UPDATES: dict[str, type[LinearUpdate]] = {
    "sgd": Sgd,
    "momentum": HeavyBall,
    "nesterov": Nesterov,
    "nesterov-classic": NesterovClassic,
    "svrg": Svrg,
}

# Words a weight that they keep. None of these is affine in the state: they need the
# gradient of every step.
ADAPTIVE = {"adagrad": len(Adagrad.state_names), "adam": len(Adam.state_names)}


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
        rule = LinearRule(update)
    return InEightBits(rule) if settings.bits == 8 and rule.state_names else rule


__all__ = [
    "ADAPTIVE",
    "UPDATES",
    "LinearUpdate",
    "ColumnViews",
    "Rule",
    "Turn",
    "UnrolledSteps",
    "make_rule",
    "make_update",
    "unroll",
]
