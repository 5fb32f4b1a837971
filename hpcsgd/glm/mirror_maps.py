"""Mirror maps: the geometries in which weights are stepped and averaged."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import log
from typing import ClassVar

import numpy as np

from hpcsgd.formats import Array
from hpcsgd.settings import Resolved, RunFacts, Settings, setting

# Mirror descent takes a step in the geometry of a mirror map ψ:
#
#     y = argmin_x η ⟨g, x⟩ + D_ψ(x, x_now)
#
# Each of the K columns of the weights (one for each class) is a separate point x. A map
# that needs sums over all d entries of a point gathers the partial sums of all members:
# `gather` returns them in rank order, so that all members add in the same order.


@dataclass(frozen=True)
class ReplicaViews:
    """Views of one replica's weights on one member, that a map writes to."""

    weights: Array  # (local columns, K): w of the scores
    arrays: Mapping[
        str, Array
    ]  # (local columns, K) each, named by `MirrorMap.state_names`
    shared: Mapping[str, Array]  # (1, K) each, the same on every member


class MirrorMap(ABC):
    """Protocol of a mirror map: a step in its geometry, and the arrays to average."""

    state_names: ClassVar[tuple[str, ...]] = ()  # K words a column, beside the weights
    shared: ClassVar[tuple[str, ...]] = ()  # K words in all
    logarithms: ClassVar[bool] = False  # whether replicas average logarithms
    totals: int = 0  # gathers over members in a step

    def __init__(self, columns: int, gather: Callable[[Array], Array]) -> None:
        self.columns = columns  # d, of all members
        self.gather = gather  # (words,) -> (members, words)

    def begin(self, point: ReplicaViews) -> None:  # noqa: B027
        """Write initial weights and state into `point`; by default, do nothing."""

    @abstractmethod
    def step(self, point: ReplicaViews, gradient: Array, rate: float) -> None:
        """Replace the weights x of `point` by y = argmin_x η⟨g, x⟩ + D_ψ(x, x_now).

        g is `gradient`, which includes the penalty and may be overwritten, and η is
        `rate`.
        """

    def travels(self, point: ReplicaViews) -> list[Array]:
        """Return the arrays that replicas average, as views of `point`."""
        return [point.weights]

    def arrive(self, point: ReplicaViews) -> None:  # noqa: B027
        """Compute the weights of `point` from its arrays, which replicas averaged."""

    def repair(self, point: ReplicaViews) -> None:
        """Make `point` valid after its arrays became means over other replicas."""
        self.arrive(point)

    def total(self, own: Array) -> Array:
        """Return Σ over members of `own` (K,), added in float64 and in rank order."""
        sums: Array = self.gather(own.astype(np.float64)).sum(axis=0)
        return sums


def log_sum(parts: Array) -> Array:
    """Return log Σ exp over the first axis, where some or all may be −∞."""
    top = parts.max(axis=0)
    top = np.where(np.isneginf(top), 0.0, top)
    with np.errstate(divide="ignore"):
        log_sums: Array = top + np.log(np.exp(parts - top).sum(axis=0))
    return log_sums


# ψ = ½|x|²: SGD, projected onto a ball where there is a radius.


class Euclidean(MirrorMap):
    """The Euclidean map: y = x − η g, then y · min(1, radius / |y|₂) if radius > 0."""

    def __init__(
        self, columns: int, gather: Callable[[Array], Array], radius: float
    ) -> None:
        super().__init__(columns, gather)
        self.radius = radius
        self.totals = 1 if radius else 0

    def step(self, point: ReplicaViews, gradient: Array, rate: float) -> None:
        """Take the step; with a radius, sum |y|² over the columns of all members."""
        gradient *= gradient.dtype.type(rate)
        point.weights[...] -= gradient
        if not self.radius:
            return
        square = self.total(np.square(point.weights.astype(np.float64)).sum(axis=0))
        with np.errstate(divide="ignore"):
            shrink = np.minimum(self.radius / np.sqrt(square), 1.0)
        point.weights[...] *= shrink.astype(point.weights.dtype)


# ψ = Σ x ln x on the simplex: weights of at least zero, whose sum is the radius.
#
#     y = radius · x exp(−η g) / Σ x exp(−η g)
#
# The state contains logarithms, and replicas average the points through them: a weight
# that underflows can grow again, whereas a weight that is stored as 0 would remain 0.

LOG = "mirror_log"  # ln(x / radius)


class Entropy(MirrorMap):
    """The entropy map on the simplex: exponentiated gradients, y ∝ x exp(−η g)."""

    state_names = (LOG,)
    logarithms = True
    totals = 1

    def __init__(
        self, columns: int, gather: Callable[[Array], Array], radius: float
    ) -> None:
        super().__init__(columns, gather)
        self.radius = radius

    def begin(self, point: ReplicaViews) -> None:
        """Set all weights to radius / d."""
        point.arrays[LOG][...] = -np.log(self.columns)
        self.arrive(point)

    def step(self, point: ReplicaViews, gradient: Array, rate: float) -> None:
        """Take the step; scale the weights to a sum of `radius` over all members."""
        gradient *= gradient.dtype.type(rate)
        point.arrays[LOG][...] -= gradient
        self.repair(point)

    def travels(self, point: ReplicaViews) -> list[Array]:
        """Return a list of one array, ln(x / radius), (local columns, K)."""
        return [point.arrays[LOG]]

    def arrive(self, point: ReplicaViews) -> None:
        """Compute the weights; the mean of points of the simplex needs no scaling."""
        point.weights[...] = self.radius * np.exp(point.arrays[LOG])

    def repair(self, point: ReplicaViews) -> None:
        """Scale the weights so that their sum over all members is the radius."""
        logs = point.arrays[LOG]
        local_log_sum = log_sum(logs.astype(np.float64))
        logs -= log_sum(self.gather(local_log_sum)).astype(logs.dtype)
        self.arrive(point)


# EG±: weights of either sign with |w|₁ ≤ radius, as entropy on 2d + 1 coordinates.
#
#     w = radius (u⁺ − u⁻),   u⁺ ∝ u⁺ exp(−η g),  u⁻ ∝ u⁻ exp(η g),  u⁰ as it is
#
# u⁰ is the slack, the share of neither sign. All 2d + 1 start equal, so that w = 0.

PLUS = "mirror_plus"
MINUS = "mirror_minus"
SLACK = "mirror_slack"


class SignedMap(MirrorMap):
    """The map EG±: weights of either sign with |w|₁ ≤ radius.

    Its state consists of the logarithms of u⁺, u⁻ and u⁰, which replicas average.
    """

    state_names = (PLUS, MINUS)
    shared = (SLACK,)
    logarithms = True
    totals = 1

    def __init__(
        self, columns: int, gather: Callable[[Array], Array], radius: float
    ) -> None:
        super().__init__(columns, gather)
        self.radius = radius

    def begin(self, point: ReplicaViews) -> None:
        """Set all 2d + 1 coordinates to the same value, so that w = 0."""
        for array in self.travels(point):
            array[...] = -np.log(2 * self.columns + 1)
        self.arrive(point)

    def step(self, point: ReplicaViews, gradient: Array, rate: float) -> None:
        """Take the step, and divide u⁺, u⁻ and u⁰ by their sum over all members."""
        gradient *= gradient.dtype.type(rate)
        point.arrays[PLUS][...] -= gradient
        point.arrays[MINUS][...] += gradient
        self.repair(point)

    def travels(self, point: ReplicaViews) -> list[Array]:
        """Return a list of the logarithms of u⁺, u⁻ and u⁰, which replicas average.

        The first two have the shape (local columns, K), the last (1, K).
        """
        return [point.arrays[PLUS], point.arrays[MINUS], point.shared[SLACK]]

    def arrive(self, point: ReplicaViews) -> None:
        """Compute w = radius (u⁺ − u⁻)."""
        weights = point.weights
        np.exp(point.arrays[PLUS], out=weights)
        weights -= np.exp(point.arrays[MINUS])
        weights *= weights.dtype.type(self.radius)

    def repair(self, point: ReplicaViews) -> None:
        """Divide u⁺, u⁻ and u⁰ by their sum over all members, so that they sum to 1.

        The slack, which every member stores, is counted once.
        """
        plus, minus, slack = self.travels(point)
        pair = np.concatenate([plus, minus]).astype(np.float64)
        terms = np.concatenate([self.gather(log_sum(pair)), slack.astype(np.float64)])
        whole = log_sum(terms)
        for array in (plus, minus, slack):
            array -= whole.astype(array.dtype)
        self.arrive(point)


# ψ = ½|x|_p²: p near 1 for weights of which few are not zero, p = 2 for SGD.
#
#   θ = ∇ψ(x) = sign(x) |x|^(p−1) / |x|_p^(p−2),  θ ← θ − η g
#   y = sign(θ) |θ|^(q−1) / |θ|_q^(q−2)
#
# with 1/p + 1/q = 1. Vectors are divided by their Euclidean norm before they are raised
# to a power: for large d, q is large, and small entries would underflow otherwise.


def usual_power(columns: int) -> float:
    """Return p = 2 ln d / (2 ln d − 1), at most 2, for d columns."""
    twice = 2.0 * log(columns)
    return twice / (twice - 1.0) if twice > 2.0 else 2.0


class PNorm(MirrorMap):
    """The p-norm map; every step computes the dual θ anew from the weights.

    Weights are its only state.
    """

    totals = 4

    def __init__(
        self, columns: int, gather: Callable[[Array], Array], power: float
    ) -> None:
        super().__init__(columns, gather)
        self.power = power or usual_power(columns)

    def step(self, point: ReplicaViews, gradient: Array, rate: float) -> None:
        """Take the step; |x|₂, |x|_p, |θ|₂ and |θ|_q are norms over all members."""
        dual = self._link(point.weights.astype(np.float64), self.power)
        dual -= rate * gradient.astype(np.float64)
        back = self.power / (self.power - 1.0)
        point.weights[...] = self._link(dual, back)

    def _link(self, x: Array, power: float) -> Array:
        """Return ∇ ½|x|_p² at x with p = `power`; its dual norm is |x|_p."""
        size = np.sqrt(self.total(np.square(x).sum(axis=0)))
        unit = np.abs(x) / np.where(size == 0.0, 1.0, size)
        norm = self.total((unit**power).sum(axis=0)) ** (1.0 / power)
        norm = np.where(norm == 0.0, 1.0, norm)
        gradient: Array = np.sign(x) * (unit / norm) ** (power - 1.0) * (norm * size)
        return gradient


# ψ = ½ Σ (√h + ε) x², h = Σ g² so far: Adagrad, with a separate h in each replica.

SQUARES = "mirror_h"


class Diagonal(MirrorMap):
    """The diagonal map (Adagrad): h ← h + g², then y = x − η g / (√h + ε).

    Replicas average the weights; each replica keeps its own h.
    """

    state_names = (SQUARES,)

    def __init__(
        self, columns: int, gather: Callable[[Array], Array], epsilon: float
    ) -> None:
        super().__init__(columns, gather)
        self.epsilon = epsilon

    def step(self, point: ReplicaViews, gradient: Array, rate: float) -> None:
        """Take the step entry by entry; it needs nothing from other members."""
        squares = point.arrays[SQUARES]
        squares += np.square(gradient)
        below = np.sqrt(squares)
        below += below.dtype.type(self.epsilon)
        gradient *= gradient.dtype.type(rate)
        gradient /= below
        point.weights[...] -= gradient


# The settings of mirror maps.

KINDS = ("euclidean", "entropy", "eg", "p-norm", "diagonal")
LOGARITHMIC = ("entropy", "eg")
BOUNDED = ("euclidean", *LOGARITHMIC)


def automatic_radius(facts: RunFacts) -> Resolved:
    """Return what an unset radius becomes, 1 (entropy, eg) or "none", and why."""
    mirror = facts.config.mirror
    if mirror.kind in LOGARITHMIC:
        return mirror.bound, f"usual for {mirror.kind}"
    return "none", "the weights have no bound"


def automatic_power(facts: RunFacts) -> Resolved:
    """Return the exponent p of the p-norm for the columns of the data, and why."""
    columns = facts.columns
    return usual_power(columns), f"2 ln d / (2 ln d - 1) for {columns} columns"


@dataclass(frozen=True)
class MirrorConfig(Settings, section="mirror"):
    """Geometry of the steps of `anybatch` (mirror descent)."""

    kind: str = setting(
        "euclidean",
        "mirror map of the steps: euclidean is ordinary SGD",
        choices=KINDS,
        read_by="mirror",
    )
    radius: float = setting(
        0.0,
        "radius of the ball or simplex that contains the weights; 0 sets no bound, or 1"
        " for entropy and eg",
        at_least=0,
        remedy="0 is none, or 1 for entropy and eg",
        becomes=automatic_radius,
        read_by="mirror",
    )
    p: float = setting(
        0.0,
        "p-norm: exponent p in (1, 2]; 0 takes 2 ln d / (2 ln d - 1) for d columns",
        becomes=automatic_power,
        read_by="mirror",
    )
    epsilon: float = setting(
        1e-08,
        "diagonal: small number added to the root that steps are divided by",
        above=0,
        remedy="1e-8 is usual",
        read_by="mirror",
        read_if={"mirror.kind": ("diagonal",)},
    )

    @property
    def bound(self) -> float:
        """Return the radius that bounds the weights; 0 sets no bound.

        For entropy and eg a radius of 0 becomes 1.
        """
        return self.radius or float(self.kind in LOGARITHMIC)

    def conflicts(self) -> Iterator[str]:
        """Yield a message for each of radius and p that is out of place or range."""
        if self.radius and self.kind not in BOUNDED:
            yield (
                f"[mirror] kind = {self.kind!r} has no radius; leave it out, or use one"
                f" of {list(BOUNDED)}"
            )
        if self.p and not (self.kind == "p-norm" and 1.0 < self.p <= 2.0):
            yield (
                f"[mirror] p = {self.p!r} is for kind = 'p-norm', above 1 and at most"
                " 2; 0 takes it from the number of columns"
            )


# Geometries in which replicas step: mirror maps.

Gather = Callable[[Array], Array]
MIRRORS: dict[str, Callable[[MirrorConfig, int, Gather], MirrorMap]] = {
    "euclidean": lambda own, d, gather: Euclidean(d, gather, own.bound),
    "entropy": lambda own, d, gather: Entropy(d, gather, own.bound),
    "eg": lambda own, d, gather: SignedMap(d, gather, own.bound),
    "p-norm": lambda own, d, gather: PNorm(d, gather, own.p),
    "diagonal": lambda own, d, gather: Diagonal(d, gather, own.epsilon),
}


def make_mirror(settings: MirrorConfig, columns: int, gather: Gather) -> MirrorMap:
    """Return the mirror map of the section [mirror].

    `columns` counts the columns of all members. `gather` all-gathers over the members
    of a replica: it returns their arrays in rank order.
    """
    return MIRRORS[settings.kind](settings, columns, gather)
