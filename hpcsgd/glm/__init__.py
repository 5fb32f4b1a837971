"""The mathematics: families, penalties, step rules, and how s steps unroll."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import numpy as np

from hpcsgd.errors import ConfigError, NameTable, nearest
from hpcsgd.formats import Array
from hpcsgd.glm.families import LOG_LINK_TARGETS, SYNONYMS, Family, LikelihoodFamily
from hpcsgd.glm.unrolling import UnrolledSteps, unroll
from hpcsgd.glm.updates import (
    Adagrad,
    Adam,
    ColumnViews,
    FedProx,
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

FAMILIES: dict[str, str | type[Family]] = NameTable(
    {
        "gaussian": "hpcsgd.glm.families:Gaussian",
        "logistic": "hpcsgd.glm.families:Logistic",
        "poisson": "hpcsgd.glm.families:Poisson",
        "softmax": "hpcsgd.glm.families:Softmax",
        "squared-hinge": "hpcsgd.glm.families:SquaredHinge",
        "huber": "hpcsgd.glm.families:Huber",
        "gamma": "hpcsgd.glm.families:Gamma",
        "probit": "hpcsgd.glm.families:Probit",
        "tweedie": "hpcsgd.glm.families:Tweedie",
        "negative-binomial": "hpcsgd.glm.families:NegativeBinomial",
        "binomial": "hpcsgd.glm.families:Binomial",
    },
    """The families of losses: name -> "module:Class", or the class.

    A family gives the loss ℓ(t, y) of a row with score t. The names are the values of
    `family` in `hpcsgd.fit`, `hpcsgd.GLM` and the setting `problem.family`.
    `hpcsgd.glm.register` adds a family of your own.

    Examples
    --------
    >>> import hpcsgd
    >>> "poisson" in hpcsgd.FAMILIES
    True
    """,
)


def nearest_family(name: str) -> str:
    """Return the name of the family that an unknown name probably means, or "".

    Synonyms are tried first, then names of similar spelling.
    """
    plain = str(name).strip().lower().replace("_", "-").replace(" ", "-")
    meant = SYNONYMS.get(plain, plain)
    return meant if meant in FAMILIES else nearest(plain, FAMILIES)


def get_family(name: str, settings: Mapping[str, Any] | None = None) -> Family:
    """Return the family called `name`; raise ConfigError if there is none.

    `settings` is the section [problem]. It contains the parameter of a family that has
    one, such as the power of tweedie; without `settings` the parameter has its default.
    """
    if name not in FAMILIES:
        near = nearest_family(name)
        remedy = f"take {near!r}; " if near else ""
        raise ConfigError(
            f"[problem] unknown family: {name!r}; {remedy}known: {list(FAMILIES)}"
        )
    kind = FAMILIES[name]
    if isinstance(kind, str):
        module, attribute = kind.split(":")
        kind = getattr(import_module(module), attribute)
    made: Callable[..., Family] = kind
    parameter = getattr(kind, "parameter", "")
    values = {} if settings is None else settings
    return made(values[parameter]) if parameter in values else made()


# A family of the caller's own, and the check that it is complete.

# targets -> some that a family of this kind must take.
PROBES = {
    "real": (-2.0, 0.0, 0.5, 3.0),
    "counts": (0.0, 1.0, 2.0, 7.0),
    "positive": (0.1, 1.0, 2.0, 7.0),
    "nonnegative": (0.0, 0.1, 1.0, 7.0),
    "proportions": (0.0, 0.25, 1.0),
    "binary": (0.0, 1.0),
    "signed": (-1.0, 1.0),
    "classes": (0.0, 1.0, 2.0),
}
STEP = 1e-4  # of the central difference that the residual is compared with
CLOSE = 1e-5  # relative difference of the two that is allowed


def register(name: str, kind: type[Family]) -> None:
    """Make a loss of your own a family, in this process.

    Settings, `hpcsgd.fit`, `hpcsgd.path`, `hpcsgd.GLM(family=name)`, penalties, number
    formats and certified gaps then work with it. In a program that runs on several
    ranks every rank must call this before it trains.

    Parameters
    ----------
    name : str
        A name that no other family has; `kind.name` must be equal to it.
    kind : subclass of Family
        The family. Its instances are made without arguments.

    Raises
    ------
    ConfigError
        If the name is taken, if the class lacks an attribute or a method, or if a
        method is wrong at one of a few scores: another shape or dtype, a negative loss,
        or a residual that is not the derivative of the loss. The message names what is
        missing.

    See Also
    --------
    Family : What a family defines.

    Examples
    --------
    >>> import numpy as np
    >>> import hpcsgd
    >>> from hpcsgd.glm import Family, register
    >>> class LogCosh(Family):
    ...     name, targets, curvature = "log-cosh", "real", 1.0
    ...     def loss(self, t, y):
    ...         return np.logaddexp(t - y, y - t) - t.dtype.type(np.log(2))
    ...     def residual(self, t, y, out=None):
    ...         return np.tanh(np.subtract(t, y, out=out), out=out)
    ...     def mean(self, t):
    ...         return t
    >>> register("log-cosh", LogCosh)
    >>> X = np.arange(8.0)[:, None]
    >>> hpcsgd.fit(X, "log-cosh", 2 * X[:, 0] + 1, alpha=0.0).weights.round(4)
    array([2.])
    >>> del hpcsgd.FAMILIES["log-cosh"]
    """
    if FAMILIES.get(name, kind) is not kind:
        raise ConfigError(f"there is a family {name!r} already; take another name")
    fault = _family_fault(name, kind)
    if fault:
        raise ConfigError(f"the family {name!r} is not complete: {fault}")
    FAMILIES[name] = kind


def _family_fault(name: str, kind: Any) -> str:
    """Return why `kind` is not a complete family, or "" if it is."""
    if not isinstance(kind, type):
        return f"{kind!r} is no class; give the class itself"
    for method, arguments in (
        ("loss", "t, y"),
        ("residual", "t, y, out=None"),
        ("mean", "t"),
        ("clipped", "t"),
    ):
        function = getattr(kind, method, None)
        inherited = getattr(Family, method) if method != "clipped" else None
        if not callable(function) or function is inherited:
            return f"define the method {method}(self, {arguments})"
    if getattr(kind, "name", None) != name:
        return f"set name = {name!r} in the class"
    if getattr(kind, "targets", None) not in PROBES:
        return f"set targets in the class to one of {', '.join(PROBES)}"
    bound = getattr(kind, "curvature", None)
    if not isinstance(bound, int | float) or not bound > 0.0:
        return (
            "set curvature in the class to an upper bound of the second derivative of"
            " the loss, float('inf') where there is none"
        )
    try:
        family = kind()
    except TypeError as error:
        return f"{kind.__name__}() fails ({error}); give its arguments defaults"
    for dtype in (np.float64, np.float32):
        fault = _arithmetic_fault(family, np.dtype(dtype))
        if fault:
            return fault
    return ""


def _arithmetic_fault(family: Family, dtype: np.dtype[Any]) -> str:
    """Return what is wrong with the methods of `family` at a few scores, or ""."""
    t, y = _probes(family.targets, dtype)
    try:
        losses = family.loss(t.copy(), y)
        slopes = family.residual(t.copy(), y)
        buffer = t.copy()
        in_place = family.residual(buffer, y, out=buffer)
        means = family.mean(t.copy())
    except (TypeError, ValueError, AttributeError) as error:
        return f"a method fails at scores of shape {t.shape} ({error})"
    shapes = {"loss": y.shape, "residual": t.shape, "mean": t.shape}
    for method, values in (("loss", losses), ("residual", slopes), ("mean", means)):
        if np.shape(values) != shapes[method] or values.dtype != dtype:
            return (
                f"{method} returns shape {np.shape(values)} of"
                f" {getattr(values, 'dtype', type(values).__name__)} for scores of"
                f" shape {t.shape} of {dtype}; return {shapes[method]} of {dtype}"
            )
    if in_place is not buffer or not np.array_equal(buffer, slopes):
        return "residual(t, y, out=t) must write the residual into t and return it"
    return _derivative_fault(family, t, y) if dtype == np.float64 else ""


def _derivative_fault(family: Family, t: Array, y: Array) -> str:
    """Return a sentence about a negative loss or a wrong residual, or "".

    The residual must be the derivative of the loss with respect to the score. For
    targets of a log link and proportions, the sign of the loss is not checked.
    """
    losses = family.loss(t.copy(), y)
    slopes = family.residual(t.copy(), y)
    varies = family.targets in (*LOG_LINK_TARGETS, "proportions")  # the least loss
    if not varies and losses.min() < 0.0:
        row = int(losses.argmin())
        return (
            f"loss is {losses[row, 0]:.3g} at t = {t[row, 0]:g}, y = {y[row, 0]:g}; add"
            " a constant so that the least loss of every y is 0"
        )
    for column in range(t.shape[1]):
        ahead = t.copy()
        behind = t.copy()
        ahead[:, column] += STEP
        behind[:, column] -= STEP
        slope = (family.loss(ahead, y) - family.loss(behind, y))[:, 0] / (2 * STEP)
        residual = slopes[:, column]
        away = np.abs(slope - residual) > CLOSE * (1.0 + np.abs(residual))
        if away.any():
            row = int(away.argmax())
            return (
                f"residual is {residual[row]:.6g} at t = {t[row, column]:g},"
                f" y = {y[row, 0]:g} and the loss has the slope {slope[row]:.6g};"
                " return the derivative of the loss with respect to t"
            )
    return ""


def _probes(targets: str, dtype: np.dtype[Any]) -> tuple[Array, Array]:
    """Return scores (m, K) away from any kink, and targets (m, 1), to test a family.

    `targets` is the kind of targets, such as "real" or "classes".
    """
    values = PROBES[targets]
    scores = np.linspace(-3.07, 2.93, 13)
    y = np.repeat(values, len(scores)).astype(dtype)[:, None]
    t = np.tile(scores, len(values)).astype(dtype)[:, None]
    if targets == "classes":
        t = np.hstack([t, np.flip(t) / 2, np.ones_like(t)])
    return t, y


# How a gradient becomes a step.

UPDATES: dict[str, type[LinearUpdate]] = NameTable(
    {
        "sgd": Sgd,
        "momentum": HeavyBall,
        "nesterov": Nesterov,
        "nesterov-classic": NesterovClassic,
        "svrg": Svrg,
    },
    """The updates that are linear in the state: name -> class.

    An update turns a gradient into a step. The names are the values of `update` in
    `hpcsgd.fit` and of the setting `update.kind`. All of them work with s steps for one
    all-reduce. Adagrad and Adam are not linear; the setting takes their names, too.

    Examples
    --------
    >>> import hpcsgd
    >>> "nesterov" in hpcsgd.UPDATES
    True
    """,
)

# Words of optimizer state for each weight. None of these updates is affine in the
# state: they need the gradient of every step.
ADAPTIVE = {"adagrad": len(Adagrad.state_names), "adam": len(Adam.state_names)}


def make_update(
    name: str, momentum: float, bits: int = 32, pull: float = 0.0
) -> LinearUpdate:
    """Return the linear update called `name`, with the coefficient `momentum`.

    A `pull` above 0 is μ of FedProx, whose steps have the anchor as one more state.
    Adaptive rules and optimizer states in 8 bits have no linear update: for them the
    result is plain SGD, and no recurrence runs.
    """
    if name in ADAPTIVE or (name in UPDATES and bits == 8):
        return Sgd()  # for recurrences, which do not run with these
    if name not in UPDATES:
        names = sorted([*UPDATES, *ADAPTIVE])
        raise ConfigError(f"[update] unknown kind: {name!r}; known: {names}")
    if not 0.0 <= momentum < 1.0:
        raise ConfigError(
            f"[update] momentum = {momentum!r} must lie in [0, 1); 0.9 is usual"
        )
    update = UPDATES[name](momentum)
    return FedProx(inner=update, pull=pull) if pull else update


def make_rule(settings: Any, update: LinearUpdate) -> Rule:
    """Return the optimizer rule for replicas that agree on gradients.

    `settings` is the section [update]; `update` is the rule unless `settings` choose an
    adaptive rule or a state in 8 bits.
    """
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
    "FAMILIES",
    "UPDATES",
    "Family",
    "LikelihoodFamily",
    "LinearUpdate",
    "ColumnViews",
    "Rule",
    "Turn",
    "UnrolledSteps",
    "make_rule",
    "get_family",
    "make_update",
    "register",
    "unroll",
]
