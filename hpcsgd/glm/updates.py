"""Step rules (SGD, momentum, Adam, Adagrad, 8-bit states, SVRG) and step sizes."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import EllipsisType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hpcsgd.errors import ConfigError
from hpcsgd.formats import Array
from hpcsgd.settings import Settings, setting

# Updates that are affine in the state (w, v), and therefore exact under s steps.
#
# Step k takes the state x to  M_k x + u_k A_kᵀ r_k  and reads its scores at q·x,
# where r_k is summed over b rows, η is the rate, λ the ridge penalty, h = η/b.


@dataclass(frozen=True)
class LinearUpdate(ABC):
    """Protocol of an update that is affine in the state, such as SGD with momentum.

    Step k takes the state x to M_k x + u_k A_kᵀ r_k. x is w alone, w and a velocity, or
    with SVRG w, its snapshot and the full gradient there. A_k is the batch of step k,
    and r_k are its residuals, computed from scores at q·x.
    """

    momentum: float = 0.0
    states = 1  # w alone; 2: (w, v); 3: (w, w̃, μ̃) of SVRG
    is_anchored = False  # True: residuals are less those at the second state

    @abstractmethod
    def transition(self, rate: float, l2: float) -> Array:
        """Return the matrix M_k for a rate and a penalty λ = `l2`, (states, states)."""

    @abstractmethod
    def gain(self, rate: float, count: int) -> Array:
        """Return u_k, the factors of A_kᵀ r_k in each state, (states,).

        `count` is the number of rows of the batch.
        """

    def probe(self) -> Array:
        """Return q, (states,): scores are computed at the point Σ q_i x_i of states."""
        first: Array = np.eye(self.states)[0]
        return first


@dataclass(frozen=True)
class Sgd(LinearUpdate):
    """SGD: w ← (1 − ηλ) w − h Aᵀr, with the rate η and h = η / rows of the batch.

    A is the batch, r are its residuals, and λ is the ridge penalty.
    """

    def transition(self, rate: float, l2: float) -> Array:
        return np.array([[1.0 - rate * l2]])

    def gain(self, rate: float, count: int) -> Array:
        return np.array([-rate / count])


@dataclass(frozen=True)
class HeavyBall(LinearUpdate):
    """Momentum: v ← μv + g, w ← w − ηv.

    v is the velocity, μ the momentum, η the rate, and g the mean gradient with penalty.
    """

    states = 2

    def transition(self, rate: float, l2: float) -> Array:
        mu = self.momentum
        return np.array([[1.0 - rate * l2, -rate * mu], [l2, mu]])

    def gain(self, rate: float, count: int) -> Array:
        return np.array([-rate, 1.0]) / count


@dataclass(frozen=True)
class Nesterov(LinearUpdate):
    """Nesterov momentum as in deep learning: v ← μv + g, w ← w − η(g + μv).

    v is the velocity, μ the momentum, η the rate, and g the mean gradient with penalty.
    """

    states = 2

    def transition(self, rate: float, l2: float) -> Array:
        mu = self.momentum
        shrink = 1.0 - rate * (1.0 + mu) * l2
        return np.array([[shrink, -rate * mu * mu], [l2, mu]])

    def gain(self, rate: float, count: int) -> Array:
        return np.array([-rate * (1.0 + self.momentum), 1.0]) / count


@dataclass(frozen=True)
class NesterovClassic(LinearUpdate):
    """Classic Nesterov momentum: v ← μv − ηg, w ← w + v, with g at w + μv.

    v is the velocity, μ the momentum, η the rate, and g the mean gradient with penalty.
    """

    states = 2

    def transition(self, rate: float, l2: float) -> Array:
        mu = self.momentum
        shrink = 1.0 - rate * l2
        return np.array([[shrink, mu * shrink], [-rate * l2, mu * shrink]])

    def gain(self, rate: float, count: int) -> Array:
        return np.array([-rate, -rate]) / count

    def probe(self) -> Array:
        return np.array([1.0, self.momentum])


# FedProx: local steps that stay near the weights a that replicas agreed on last.
#
# T. Li, A. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar and V. Smith, "Federated
# Optimization in Heterogeneous Networks" (MLSys 2020), equation 2: replica k minimises
#
#     h_k(w; a) = F_k(w) + (μ/2) |w − a|²,    ∇h_k = ∇F_k + μ (w − a)
#
# A step is affine in (x, a): with u the gain of a mean gradient, read at q·x,
# x ← M(η, λ + μ) x − μ u a, and a stays.


@dataclass(frozen=True)
class FedProx(LinearUpdate):
    """The steps of `inner` on the loss with the term (μ/2) |w − a|² of FedProx.

    μ is `pull`. The anchor a is one more state, the last one, which steps leave as it
    is.
    """

    inner: LinearUpdate = Sgd()
    pull: float = 0.0

    @property
    def states(self) -> int:  # type: ignore[override]
        """Return the number of states of `inner`, and one for the anchor."""
        return self.inner.states + 1

    def transition(self, rate: float, l2: float) -> Array:
        count = self.inner.states
        whole = np.eye(count + 1)
        whole[:count, :count] = self.inner.transition(rate, l2 + self.pull)
        whole[:count, count] = -self.pull * self.inner.gain(rate, 1)
        return whole

    def gain(self, rate: float, count: int) -> Array:
        return np.append(self.inner.gain(rate, count), 0.0)

    def probe(self) -> Array:
        return np.append(self.inner.probe(), 0.0)


# Rules: steps with the mean gradient, which all replicas take alike.
#
# A rule works entry by entry on some columns at a time. A rank can step any part of the
# weights (a bucket, a slice, a tile on disk), with the bits of a step of the whole.
# Products that take s steps at once need a `LinearUpdate`, which is affine in the
# state; a rule need not be.


@dataclass(frozen=True)
class ColumnViews:
    """Views of the weights and optimizer state of some columns, for a step."""

    weights: Array  # (columns, states · K)
    arrays: Mapping[str, Any]  # (columns, K) each, by `Rule.state_names`


@dataclass(frozen=True)
class Turn:
    """The number and the rate of one step."""

    number: int  # of steps before it, in the whole run
    rate: float


class Rule(ABC):
    """Base class of a step rule: how weights move by the mean gradient.

    All replicas take the same step. The optimizer state begins as zeros.
    """

    states: int = 1  # of K columns each, in the weights: 2 with a velocity beside them
    state_names: ClassVar[tuple[str, ...]] = ()  # of arrays with K words a column
    alignment: ClassVar[int] = 1  # parts begin at multiples of this column

    @property
    def linear(self) -> LinearUpdate | None:
        """Return the rule as an update that is affine in the state, or None."""
        return None

    def allocate(
        self, name: str, columns: int, width: int, dtype: Any, whole: int = 0
    ) -> Any:
        """Return an array of zeros, (columns, width), for the optimizer state `name`.

        It is a slice of an array of `whole` columns, or if that is 0 all of it. A
        subclass may return another object, whose slices can be converted to arrays.
        """
        return np.zeros((columns, width), dtype)

    def stored(self, array: Any) -> list[Array]:
        """Return the NumPy arrays that an object from `allocate` consists of."""
        return [array]

    @abstractmethod
    def step(
        self, part: ColumnViews, gradient: Array, factor: float, turn: Turn, l2: float
    ) -> None:
        """Update the views in `part` by one step with g = `factor` · `gradient` + λw.

        λ is `l2`, `turn` has the number and the rate of the step, and `gradient` is
        overwritten. `factor` makes it a mean over rows.
        """


@dataclass(frozen=True)
class LinearRule(Rule):
    """The rule x ← M x + u g of a linear update: plain SGD and its momenta.

    x are the weights, with their velocity if there is one, and g is the mean gradient
    without the penalty, which is part of M.
    """

    update: LinearUpdate

    @property
    def states(self) -> int:  # type: ignore[override]
        """Return the number of states of the update: 1, or 2 with a velocity."""
        return self.update.states

    @property
    def linear(self) -> LinearUpdate:
        """Return the linear update of this rule."""
        return self.update

    def step(
        self, part: ColumnViews, gradient: Array, factor: float, turn: Turn, l2: float
    ) -> None:
        """Take one step x ← M x + u g, as a step of the s-step recurrence does."""
        weights = part.weights
        carry = self.update.transition(turn.rate, l2)
        gain = self.update.gain(turn.rate, 1) * factor
        if self.update.states == 1:
            weights *= float(carry[0, 0])
            gradient *= gradient.dtype.type(gain[0])
            weights += gradient
            return
        parts = weights.reshape(len(weights), len(carry), -1)
        moved = np.einsum("pq,dqk->dpk", carry.astype(weights.dtype), parts)
        for state, share in enumerate(gain):  # one at a time: no copy of all states
            moved[:, state] += gradient.dtype.type(share) * gradient
        weights[...] = moved.reshape(weights.shape)


# Adagrad and Adam: every word has a separate rate, which its past gradients set.
#
# The penalty is part of the gradient, so that both go to the optimum of F, as SGD does.


def whole_gradient(
    part: ColumnViews, gradient: Array, factor: float, l2: float
) -> Array:
    """Return `factor` · `gradient` + λw with λ = `l2`, computed in place.

    w are the weights of `part`, and the result is `gradient` itself.
    """
    gradient *= gradient.dtype.type(factor)
    if l2:
        gradient += gradient.dtype.type(l2) * part.weights
    return gradient


@dataclass(frozen=True)
class Adagrad(Rule):
    """Adagrad: h ← h + g²; w ← w − η g / (√h + ε), entry by entry.

    h is the optimizer state, g the mean gradient with penalty, and η the rate.
    """

    epsilon: float = 1e-8
    state_names: ClassVar[tuple[str, ...]] = ("adagrad_h",)

    def step(
        self, part: ColumnViews, gradient: Array, factor: float, turn: Turn, l2: float
    ) -> None:
        """Update h and the weights of `part`, entry by entry."""
        g = whole_gradient(part, gradient, factor, l2)
        h = part.arrays["adagrad_h"]
        h += np.square(g)
        below = np.sqrt(h)
        below += below.dtype.type(self.epsilon)
        g *= g.dtype.type(turn.rate)
        g /= below
        part.weights[...] -= g


@dataclass(frozen=True)
class Adam(Rule):
    """Adam: w ← w − η m̂ / (√v̂ + ε), with means m of gradients g and v of g².

    m ← β₁m + (1 − β₁)g and v ← β₂v + (1 − β₂)g². m̂ and v̂ are m and v after the bias
    correction, η is the rate, and g includes the penalty.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    state_names: ClassVar[tuple[str, ...]] = ("adam_m", "adam_v")

    def step(
        self, part: ColumnViews, gradient: Array, factor: float, turn: Turn, l2: float
    ) -> None:
        """Update m, v and the weights of `part`, entry by entry.

        The bias corrections are those of step `turn.number` + 1.
        """
        g = whole_gradient(part, gradient, factor, l2)
        m = part.arrays["adam_m"]
        v = part.arrays["adam_v"]
        real = g.dtype.type
        v *= real(self.beta2)
        v += real(1.0 - self.beta2) * np.square(g)
        m *= real(self.beta1)
        g *= real(1.0 - self.beta1)
        m += g
        self.walk(part, turn)

    def steps_of_squares(self, steps: int) -> int:
        """Return the number of steps that v is a mean of; here all `steps`."""
        return steps

    def walk(self, part: ColumnViews, turn: Turn) -> None:
        """Compute w ← w − η m̂ / (√v̂ + ε) in place, without a change of m and v."""
        m = part.arrays["adam_m"]
        v = part.arrays["adam_v"]
        real = m.dtype.type
        t = turn.number + 1
        squares = self.steps_of_squares(t)
        below = np.sqrt(v * real(1.0 / (1.0 - self.beta2**squares)))
        below += real(self.epsilon)
        np.divide(m, below, out=below)
        below *= real(turn.rate / (1.0 - self.beta1**t))
        part.weights[...] -= below


# Eight bits for numbers of very different sizes: a table of 256 values in [−1, 1].
#
# Values are spread over seven decades, with more of them in the upper ones: a decade
# 10⁻ᵉ has 2^(6 − e) of them (arXiv 1511.04561, 2110.02861). Zero is a value, so that
# zeros stay zero: otherwise the weight of a column without entries would drift. Numbers
# are stored in blocks, each divided by its largest size, which is stored as its scale.

BLOCK = 256  # columns that share a scale, score by score


def _decades(bits: int) -> Array:
    """Return the positive values of the 8-bit table, ascending.

    The uppermost decade has 2 ** `bits` of them, and each decade below half as many.
    """
    decades = [
        10.0**-e * (0.1 + 0.9 * np.arange(1, 2**f + 1) / 2**f)
        for e, f in enumerate(range(bits, -1, -1))
    ]
    return np.sort(np.concatenate(decades))


def _table(signed: bool) -> Array:
    above = _decades(6 if signed else 7)
    if not signed:
        return np.concatenate([[0.0], above])
    return np.concatenate([-above[::-1], [0.0, 1e-8], above])


@dataclass(frozen=True)
class Code:
    """A table of 256 values in [−1, 1], and the bounds for rounding to them."""

    values: Array
    bounds: Array
    zero: int  # index of the value 0
    rooted: bool  # only 0 is encoded as 0, since steps divide by roots

    @classmethod
    def of(cls, signed: bool) -> "Code":
        """Return the code of values in [−1, 1] if `signed`, else of those in [0, 1].

        A number in the middle of two values rounds to the larger one.
        """
        values = _table(signed)
        bounds = (values[1:] + values[:-1]) / 2
        return cls(values, bounds, int(np.searchsorted(values, 0.0)), not signed)

    def nearest(self, numbers: Array) -> NDArray[np.uint8]:
        """Return the index of the value nearest to each number in [−1, 1].

        The unsigned code maps only 0 to the value 0.
        """
        places = np.searchsorted(self.bounds, numbers, side="right")
        if self.rooted:
            places += (places == self.zero) & (numbers > 0.0)
        return places.astype(np.uint8)


SIGNED, UNSIGNED = Code.of(signed=True), Code.of(signed=False)


@dataclass
class EightBitArray:
    """A (columns, K) array with eight bits for each number, and a scale for each block.

    If `rooted`, the numbers are squares, and their roots are stored, which span fewer
    decades. A slice of whole blocks is a view.
    """

    codes: NDArray[np.uint8]  # (columns, K)
    scales: Array  # (blocks, K)
    rooted: bool

    @classmethod
    def zeros(
        cls, columns: int, width: int, dtype: Any, rooted: bool
    ) -> "EightBitArray":
        """Return a (columns, width) array of zeros."""
        place = (UNSIGNED if rooted else SIGNED).zero
        codes = np.full((columns, width), place, dtype=np.uint8)
        return cls(codes, np.zeros((-(-columns // BLOCK), width), dtype), rooted)

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the array, (columns, K)."""
        return self.codes.shape

    @property
    def nbytes(self) -> int:
        """Return the bytes of codes and scales together."""
        return int(self.codes.nbytes + self.scales.nbytes)

    def __getitem__(self, columns: slice) -> "EightBitArray":
        """Return a view of a slice of columns, which begins at a block.

        It ends at a block or at the last column.
        """
        first = columns.start // BLOCK
        last = -(-columns.stop // BLOCK)
        return EightBitArray(self.codes[columns], self.scales[first:last], self.rooted)

    def __setitem__(
        self, everything: EllipsisType, other: "EightBitArray | Array"
    ) -> None:
        """Copy the codes and scales of another `EightBitArray`, or encode an array."""
        if isinstance(other, EightBitArray):
            self.codes[...] = other.codes
            self.scales[...] = other.scales
        else:
            self.encode(other)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Return the decoded numbers, for `numpy.asarray`."""
        return np.asarray(self.decoded(), dtype=dtype)

    def copy(self) -> "EightBitArray":
        """Return a copy of the array; `array[...] = copy` restores the same bits."""
        return EightBitArray(self.codes.copy(), self.scales.copy(), self.rooted)

    def decoded(self) -> Array:
        """Return the numbers as an array, in the dtype of the scales."""
        code = UNSIGNED if self.rooted else SIGNED
        values: Array = code.values.astype(self.scales.dtype)[self.codes]
        values *= np.repeat(self.scales, BLOCK, axis=0)[: len(values)]
        return np.square(values) if self.rooted else values

    def encode(self, numbers: Array) -> None:
        """Encode `numbers`, which replace all numbers of the array.

        If a number is not finite, all numbers of its block decode as not finite.
        """
        code = UNSIGNED if self.rooted else SIGNED
        values = np.sqrt(numbers) if self.rooted else numbers
        starts = np.arange(0, len(values), BLOCK)
        self.scales[...] = np.maximum.reduceat(np.abs(values), starts, axis=0)
        below = np.where(self.scales > 0.0, self.scales, 1.0)
        self.codes[...] = code.nearest(
            values / np.repeat(below, BLOCK, axis=0)[: len(values)]
        )


# Optimizer state in eight bits a word between steps (arXiv 2110.02861).

SMALL = 4096  # words; smaller arrays are not encoded
SQUARES = ("adam_v", "adagrad_h")  # names of states that are never negative


@dataclass(frozen=True)
class InEightBits(Rule):
    """The rule `inner`, whose optimizer state is stored in eight bits.

    A step decodes the state of some columns, updates it, and encodes it again.
    """

    inner: Rule
    alignment: ClassVar[int] = BLOCK

    @property
    def state_names(self) -> tuple[str, ...]:  # type: ignore[override]
        """Return the names of the arrays of the inner rule's optimizer state."""
        return self.inner.state_names

    def stored(self, array: Any) -> list[Array]:
        """Return codes and scales of an `EightBitArray`, or a plain array itself."""
        if isinstance(array, EightBitArray):
            return [array.codes, array.scales]
        return [array]

    def allocate(
        self, name: str, columns: int, width: int, dtype: Any, whole: int = 0
    ) -> Any:
        """Return zeros for the state `name`, in 8 bits from `SMALL` words on.

        The words are those of the array of `whole` columns of which this is a slice.
        """
        if (whole or columns) * width < SMALL:
            return np.zeros((columns, width), dtype)
        return EightBitArray.zeros(columns, width, dtype, name in SQUARES)

    def step(
        self, part: ColumnViews, gradient: Array, factor: float, turn: Turn, l2: float
    ) -> None:
        """Take the step of the inner rule on decoded state, then encode the state."""
        wide = {name: np.asarray(array) for name, array in part.arrays.items()}
        self.inner.step(ColumnViews(part.weights, wide), gradient, factor, turn, l2)
        for name, array in part.arrays.items():
            if array is not wide[name]:
                array[...] = wide[name]


@dataclass(frozen=True)
class Velocity(Rule):
    """Momentum with the velocity v in an array beside w: v ← μv + g; w ← w − ηv.

    If `looks_ahead`, w ← w − η(g + μv). μ is the momentum, η the rate, and g the mean
    gradient with penalty.
    """

    momentum: float
    looks_ahead: bool = False
    state_names: ClassVar[tuple[str, ...]] = ("velocity",)

    def step(
        self, part: ColumnViews, gradient: Array, factor: float, turn: Turn, l2: float
    ) -> None:
        """Update v and the weights of `part`, entry by entry."""
        g = whole_gradient(part, gradient, factor, l2)
        v = part.arrays["velocity"]
        real = g.dtype.type
        v *= real(self.momentum)
        v += g
        along = g + real(self.momentum) * v if self.looks_ahead else v
        part.weights[...] -= real(turn.rate) * along


# Variance reduction: steps that come to rest at the optimum, at a constant rate.
#
#   g = A_kᵀ(r(w) − r(w̃))/b + μ̃ + λw        μ̃ = the gradient of the data at w̃, all rows
#
# At w = w̃ = the optimum the first term is 0 and the rest is ∇F = 0. The state
# (w, w̃, μ̃) takes an affine step, so s of them are exact; w̃ and μ̃ stay until the
# next snapshot is taken (`hpcsgd.solvers.evaluation`).


@dataclass(frozen=True)
class Svrg(LinearUpdate):
    """SVRG: w ← (1 − ηλ) w − ημ̃ − h Aᵀ(r(w) − r(w̃)), with h = η / rows of the batch.

    w̃ is the last snapshot, μ̃ the full gradient there without the penalty λ, r the
    residuals of the batch A, and η the rate.
    """

    states = 3
    is_anchored = True

    def transition(self, rate: float, l2: float) -> Array:
        return np.array([[1.0 - rate * l2, 0.0, -rate], [0, 1, 0], [0, 0, 1]])

    def gain(self, rate: float, count: int) -> Array:
        return np.array([-rate / count, 0.0, 0.0])


# Step sizes as a function of the step's number.
#
# With the first rate η, steps k from 0 on, n of them in all and N epochs:
#
#     constant      η
#     inverse       η / (1 + c k)
#     inverse-sqrt  η / √(1 + c k)
#     cosine        η (1 + cos(π k / n)) / 2
#     milestones    η fᵐ, where m milestones are at most k N / n epochs
#     step          η fᵐ, where m = ⌊k N / (n E)⌋: a milestone after every E epochs
#
# A run of milestones is constant between them, and drops at each: step decay, as
# networks are trained by. All others are smooth.

# kind -> factors on the first rate of a run, in steps of these numbers
RATES: dict[str, Callable[["Rate", Array], Array]] = {
    "constant": lambda rate, k: np.ones(len(k)),
    "inverse": lambda rate, k: 1.0 / (1.0 + rate.config.decay * k),
    "inverse-sqrt": lambda rate, k: 1.0 / np.sqrt(1.0 + rate.config.decay * k),
    "cosine": lambda rate, k: (
        0.5 * (1.0 + np.cos(np.pi * np.minimum(k / rate.total_steps, 1.0)))
    ),
    "milestones": lambda rate, k: rate.config.factor ** rate.passed(k),
    "step": lambda rate, k: rate.config.factor ** rate.passed(k),
}
NORMS = ("rows", "batches")
DROPPING = ("milestones", "step")  # kinds whose rate drops after whole epochs


@dataclass(frozen=True)
class RateConfig(Settings, section="rate"):
    """Learning rate and its schedule."""

    kind: str = setting(
        "constant",
        "schedule of the learning rate over the steps",
        choices=tuple(RATES),
    )
    value: float = setting(
        0.1,
        "learning rate, or auto to derive it from the data; a larger rate learns faster"
        " until the run diverges",
        above=0,
        auto=0.0,
        remedy="0.1 is a cautious start",
    )
    decay: float = setting(
        0.0,
        "c in the rate schedules 1/(1 + c k) and 1/√(1 + c k) of step k (inverse,"
        " inverse-sqrt)",
        at_least=0,
        remedy="0 is none",
        read_if={"rate.kind": ("inverse", "inverse-sqrt")},
    )
    warmup: int = setting(
        0,
        "steps in which the rate grows linearly to its schedule",
        at_least=0,
        remedy="0 is none",
    )
    per_batch: int = setting(
        0,
        "rows of a step that the value is meant for; the rate is in proportion to the"
        " rows of a step, but at most 2 / curvature; 0 does not scale it",
        at_least=0,
        remedy="0 leaves the value as it is",
    )
    norm: str = setting(
        "rows",
        "curvature that an automatic rate is derived from: the longest row (rows), or"
        " sampled batches (batches), which gives larger rates",
        choices=NORMS,
    )
    milestones: tuple[float, ...] = setting(
        (),
        "epochs after which the rate schedule `milestones` multiplies the rate by"
        " rate.factor",
        read_if={"rate.kind": ("milestones",)},
    )
    factor: float = setting(
        0.1,
        "factor of the rate at each milestone",
        above=0,
        below=1,
        remedy="0.1 is usual",
        read_if={"rate.kind": DROPPING},
    )
    every: int = setting(
        30,
        "epochs from one drop to the next of the rate schedule `step`, each by"
        " rate.factor",
        is_whole=True,
        at_least=1,
        remedy="30 is usual",
        read_if={"rate.kind": ("step",)},
    )

    def conflicts(self) -> Iterator[str]:
        """Yield sentences on per_batch without a rate, and on bad or no milestones."""
        if self.per_batch and self.is_open:
            yield (
                f"[rate] per_batch = {self.per_batch} must be the rows of a step that"
                " [rate] value is for, and value is auto; give it a number, or set"
                " per_batch = 0"
            )
        epochs = list(self.milestones)
        is_positive = all(0.0 < m < float("inf") for m in epochs)
        if not is_positive or sorted(set(epochs)) != epochs:
            yield (
                f"[rate] milestones = {epochs} must be positive numbers of epochs in"
                " rising order, as [30, 60, 90]"
            )
        if self.kind == "milestones" and not epochs:
            yield (
                "[rate] kind = 'milestones' drops at epochs and was given none; set"
                " rate.milestones, as --milestones 30,60,90"
            )

    @property
    def is_open(self) -> bool:
        """True where the first rate is automatic: a run derives it from the data."""
        return self.value == 0.0


@dataclass(frozen=True)
class Rate:
    """The learning rate of every step of a run."""

    config: RateConfig
    total_steps: int
    epochs: int = 1  # of these steps

    def passed(self, steps: Array) -> Array:
        """Return how many milestones are at or before the beginning of each step.

        `steps` are numbers of steps, from 0 on. A schedule `step` has a milestone after
        every `every` epochs.
        """
        if self.config.kind == "step":
            between = self.config.every * self.total_steps
            drops: Array = steps * self.epochs // between
            return drops
        places = np.array(self.config.milestones) * self.total_steps
        counts: Array = np.searchsorted(places, steps * self.epochs, side="right")
        return counts

    def drops(self, step: int) -> int:
        """Return how many milestones have lowered the rate when `step` begins.

        The result is 0 unless the kind of the schedule is `milestones` or `step`.
        """
        if self.config.kind not in DROPPING:
            return 0
        return int(self.passed(np.array([step]))[0])

    def at(self, first_step: int, count: int) -> Array:
        """Return the rates of `count` steps from `first_step` on, in float64."""
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
    """Return the rates of a run of `total_steps` steps in `epochs` epochs.

    Raise ConfigError if the rate is automatic and not derived from the data yet.
    """
    if config.is_open:
        raise ConfigError(
            "[rate] value = 'auto' cannot be used here, because only a run derives the"
            " rate, from all of its rows; give a number, for example the rate of an"
            " earlier run"
        )
    return Rate(config, max(total_steps, 1), epochs)
