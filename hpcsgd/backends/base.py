"""The protocol of backends and its values, and the scaling of narrow formats."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from hpcsgd.comm.communicator import Communicator
from hpcsgd.data.matrix import Csr
from hpcsgd.errors import ConfigError
from hpcsgd.formats import Array, Format, count_lost, get_format
from hpcsgd.glm.families import Family
from hpcsgd.glm.unrolling import Blocks, PlainSteps, UnrolledSteps
from hpcsgd.glm.updates import ColumnViews, Rule, Turn
from hpcsgd.precision import FIELDS, Precision
from hpcsgd.settings import remembered

# Powers of two that bring the columns of a matrix into the range of a narrow format.
#
# fp16 and fp8 have so few exponents that data may exceed their largest number or vanish
# below the smallest. Every column is stored times 2^e, with its largest value close to
# the largest number; multiplying by 2^-e gives the rounded values back exactly.

MOST_EXPONENT = 100  # 2^e and 2^-e are numbers of float32


@dataclass
class ColumnExponents:
    """Powers of two that scale the columns of a matrix into a narrow format.

    If `counts`, `up` also counts the values that were clipped or became 0.
    """

    form: Format
    exponents: Array  # (columns of the data,)
    own: slice  # the columns of this rank
    saturated: int = 0  # values beyond the largest number: stored as that
    flushed: int = 0  # values that were not 0 and are stored as 0
    counts: bool = True

    def up(self, values: Array) -> Array:
        """Return values as they are stored: scaled, and clipped to the largest number.

        A flat array contains values of sparse rows, whose columns share one exponent.
        """
        scaled: Array = np.ldexp(values, self._of(values))
        if self.counts:
            saturated, flushed = count_lost(scaled, self.form.name)
            self.saturated += saturated
            self.flushed += flushed
        return np.clip(scaled, -self.form.largest, self.form.largest)

    def down(self, values: Array) -> None:
        """Undo in place the scaling of `up`, on values that were decoded."""
        np.ldexp(values, -self._of(values), out=values)

    def _of(self, values: Array) -> Any:
        """Return the exponents of the columns of `values`.

        `values` is flat, or has the columns of this rank or all columns of the data.
        """
        if values.ndim == 1:
            return self.exponents[0]
        exponents = self.exponents[self.own]
        return exponents if values.shape[1] == len(exponents) else self.exponents


def make_scaling(form: Format, peaks: Array, own: slice, how: str) -> ColumnExponents:
    """Return the scaling by the largest exponents that leave each peak in the format.

    `peaks` has the largest absolute value of each column of the data, and `own` are the
    columns of this rank. `how` is "column" (each column has its own exponent), "global"
    (all columns share the smallest exponent) or "none" (all exponents are 0).
    """
    _, above = np.frexp(peaks)  # peak = f · 2^above with f in [1/2, 1)
    limit = int(np.frexp(form.largest)[1])
    exponents = np.where(peaks > 0, limit - above, MOST_EXPONENT)
    # A peak that is rounded up to the next power of two may be beyond the largest.
    exponents = np.where(np.ldexp(peaks, exponents) > form.largest, -1, 0) + exponents
    exponents = np.clip(exponents, -MOST_EXPONENT, MOST_EXPONENT).astype(np.int32)
    if how == "global" and len(exponents):
        exponents = np.full_like(exponents, exponents.min())
    if how == "none":
        exponents = np.zeros_like(exponents)
    return ColumnExponents(form, exponents, own)


# What one device can do for one member of a replica.


@dataclass(frozen=True)
class StepBatch:
    """Targets, sample weights, offsets and anchors of sampled rows."""

    targets: Array  # (m, 1)
    weights: Array | None  # (m, 1); several models may have (m, K)
    offsets: Array | None  # (m, 1)
    anchors: Array | None = None  # (m, K) scores, whose residuals are subtracted

    def part(self, rows: slice) -> "StepBatch":
        """Return the batch of some of the rows."""
        return StepBatch(
            self.targets[rows],
            None if self.weights is None else self.weights[rows],
            None if self.offsets is None else self.offsets[rows],
            None if self.anchors is None else self.anchors[rows],
        )


class Rows(Protocol):
    """Sampled rows Y of one member, in one storage; made by `Backend.gather`."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice) -> "Rows": ...

    def part(self, columns: slice) -> "Rows":
        """Return the same rows in `columns` alone; dense rows are not copied."""

    def dense(self) -> tuple[Array, Array | slice]:
        """Return the values as one dense array, and the numbers of its columns.

        Columns without values may be left out. The numbers are an array or, only if no
        column is left out, a slice of all columns.
        """

    def margins(self, weights: Array, out: Array) -> None:
        """Compute out ← Y W for these rows Y and the weights W."""

    def gram(self, blocks: Blocks, out: Array) -> None:
        """Compute out ← the strictly-lower blocks of Y Yᵀ for these rows Y, packed."""

    def add_transposed(self, scaled: Array, weights: Array) -> None:
        """Add Yᵀ · `scaled` to the first columns of `weights`, in place."""

    def first_not_finite(self) -> tuple[int, int] | None:
        """Return row and column of the first value that is not finite, or None."""


@dataclass(frozen=True)
class StepSequence:
    """The rows, coefficients and batch of steps that are taken one after the other."""

    rows: Rows
    blocks: Blocks
    steps: PlainSteps
    family: Family
    batch: StepBatch
    intercept: Array | None


class Backend(Protocol):
    """Arithmetic on the local block; a backend never communicates."""

    precision: Precision
    scaling: ColumnExponents | None  # of a matrix with few exponents
    loss_scale: "LossScale | None"  # of residuals in a format with few exponents
    dice: "ColumnDraws | None"  # of weights that are rounded at random

    def store(self, block: Array) -> Array:
        """Return the values of `block` in the storage of `precision.matrix`."""

    def zeros(self, shape: tuple[int, ...]) -> Array:
        """Return weights of this shape, all 0, in the dtype of `precision.weights`."""

    def prepare(self, unrolled: UnrolledSteps, blocks: Blocks) -> "HostPlan":
        """Return the coefficients in the form that the other methods take."""

    def gather(self, matrix: Array, rows: Array, out: Array | None) -> Rows:
        """Return the rows with numbers `rows` of the stored `matrix`, for products.

        They are widened in `out`, or used where they are stored; None allocates `out`.
        Only this backend can use them.
        """

    def gather_sparse(self, matrix: Csr, rows: Array) -> Rows:
        """Return the rows with numbers `rows` of the stored `matrix`, for products.

        They are a widened copy, or used where they are stored.
        """

    def widen(self, stored: Csr) -> Rows:
        """Return all rows of `stored` for products, with exactly the stored values."""

    def some_columns(self, rows: Rows, part: slice) -> Rows:
        """Return gathered rows in the columns `part`; dense rows are not copied."""

    def round(self, values: Array, name: str) -> None:
        """Round each value to the nearest number of format `name`, in place."""

    def scores(self, rows: Rows, weights: Array, out: Array) -> Array:
        """Compute and return out ← Y W for the rows Y and the weights W."""

    def strict_gram(self, rows: Rows, blocks: Blocks, out: Array) -> Array:
        """Compute and return out ← the strictly-lower blocks of Y Yᵀ, packed.

        Y are `rows`, in batches of the sizes `blocks`.
        """

    def corrected_residuals(
        self,
        margins: Array,
        gram: Array,
        plan: "HostPlan",
        family: Family,
        batch: StepBatch,
        intercept: Array | None,
    ) -> Array:
        """Return the residuals (m, K) of s exact steps, by the s-step recurrence.

        `margins` and `gram` are summed over members. `intercept` advances in place.
        """

    def apply_update(
        self, weights: Array, rows: Rows, residuals: Array, plan: "HostPlan"
    ) -> None:
        """Compute weights ← Φ weights + Σ_i gain_i Y_iᵀ r_i over the steps i of `plan`.

        Φ is the matrix `carry` of `plan`.
        """

    def fused_steps(self, weights: Array, plain: StepSequence) -> Array | None:
        """Take all steps in one call, on rows of all columns, without a message.

        Return the residuals of the steps. Return None, without a step, if the backend
        has no such call.
        """

    def pipelined_steps(
        self, weights: Array, plain: StepSequence
    ) -> tuple[Callable[..., None], Array] | None:
        """Return the steps as a function, between whose calls members sum margins.

        The function takes (j, summed margins of step j, array for those of step j + 1),
        from j = -1 on. The second result are the residuals (m, K) that it fills. Return
        None if the backend has no such function.
        """

    def to_host(self, array: Array) -> Array:
        """Return a NumPy copy or view of `array`."""

    def synchronize(self) -> None:
        """Wait until all work that was requested is done."""


# The coefficients of an exchange as NumPy takes them.


@dataclass(frozen=True)
class HostPlan:
    """The coefficients of an exchange, each repeated for the rows that it multiplies.

    Whatever does not depend on an earlier residual is then one call for all s steps.
    """

    by_column: ClassVar[bool] = False  # True: each column has coefficients of its own

    blocks: Blocks
    states: int
    lead: tuple[Array | None, ...]  # [state]: (m, 1); None where it is all ones
    couple: tuple[Array, ...]  # [step]: (start_j, 1)
    gain: tuple[Array, ...]  # [state]: (m, 1); of the first states, which move
    carry: Array  # (states, states)
    unrolled: UnrolledSteps
    # (family, its parameter) -> the coefficients for its compiled recurrence, made when
    # first needed.
    recurrences: dict[tuple[str, float], Callable[..., Array]] = field(
        default_factory=dict
    )

    def apply_transition(self, weights: Array) -> None:
        """Apply weights ← Φ weights, where state k has K columns and Φ is `carry`."""
        carry = self.carry
        if self.states == 1:
            if carry[0, 0] != 1.0:
                weights *= float(carry[0, 0])
            return
        parts = weights.reshape(len(weights), len(carry), -1)
        mixed = np.einsum("pq,dqk->dpk", carry.astype(weights.dtype), parts)
        weights[...] = mixed.reshape(weights.shape)

    def advance(self, intercept: Array, step: int, residuals: Array) -> None:
        """Advance the intercept by step number `step`: β ← M β + u Σr.

        M is without the ridge penalty, which the intercept does not have.
        """
        unrolled = self.unrolled
        total = residuals.sum(axis=0, dtype=np.float64)
        push = np.multiply.outer(unrolled.push[step], total)
        intercept[...] = unrolled.free[step] @ intercept + push

    def scale(self, step: int, residuals: Array, out: Array) -> None:
        """Compute out ← residuals of earlier steps times their coefficients.

        The coefficients are those in the scores of step number `step`.
        """
        np.multiply(residuals, self.couple[step], out=out)


# Which fields of a precision run as such, and which are emulated here.

NATIVE = "native"
EMULATED = "emulated"
# Narrow formats that the host stores or sends without emulation:
STORED = {"matrix": ("bf16",), "margin": ("bf16",)}
SENT = ("bf16", "fp16", "fp8-e4m3", "fp8-e5m2")


def emulated_fields(precision: Precision) -> dict[str, str]:
    """Return field -> "native" or "emulated".

    Emulated results are those of a machine with the format; their speed is not.
    """
    return _ways(precision).copy()


@remembered
def _ways(precision: Precision) -> dict[str, str]:
    return {name: _way(precision, name) for name in FIELDS}


def emulated(precision: Precision) -> dict[str, str]:
    """Return field -> format of the fields that are emulated."""
    how = _ways(precision)
    return {n: getattr(precision, n) for n in FIELDS if how[n] == EMULATED}


def _way(precision: Precision, name: str) -> str:
    form = get_format(getattr(precision, name))
    if name == "gram_wire":
        fits = form.is_wide or form.name in SENT
    elif name in STORED:
        fits = form.is_wide or form.name in STORED[name]
    else:
        fits = form.is_wide and form.carrier == precision.working
    return NATIVE if fits else EMULATED


# Draws that members agree on, for weights that are rounded at random.


class ColumnDraws:
    """Random numbers for each column of the data, which members of a replica agree on.

    Replicas draw different numbers. `own` are the columns of this rank.
    """

    def __init__(self, seed: int, replica: int, own: slice, columns: int) -> None:
        self.key = np.array([seed, replica], dtype=np.uint64)
        self.own = own
        self.columns = columns
        self.throws = 0

    def draw_uniform(self, weights: Array) -> Array:
        """Return random numbers in [0, 1), one for each entry of `weights`.

        `weights` has a row for each local column, or for each column of the data. Each
        call draws new numbers, so all members must make the same calls.
        """
        counter = np.array([0, 0, 0, self.throws], dtype=np.uint64)
        self.throws += 1
        source = np.random.Generator(np.random.Philox(key=self.key, counter=counter))
        draws: Array = source.random((self.columns, weights.shape[1]), dtype=np.float32)
        return draws if len(weights) == self.columns else draws[self.own]


# What residuals of a narrow format are multiplied by, so that small ones survive.
#
# A power of two: numbers that fit are not changed by it. It doubles after a while
# without overflow; after an overflow it is halved, and the steps of that exchange are
# left out.

FIRST = 2.0**10
LEAST = 2.0**-14
MOST = 2.0**24
PATIENCE = 1000  # exchanges without overflow after which it doubles


@dataclass
class LossScale:
    """The factor of residuals in a narrow format, equal on all members of a replica.

    All members have the same residuals, and so adapt it in the same way.
    """

    value: float = FIRST
    is_fixed: bool = False
    skipped: int = 0  # exchanges whose steps were left out
    quiet: int = 0  # exchanges since the last change
    waits: bool = False  # True: replicas decide together, when an exchange is over
    overflowed: bool = False  # where it waits: some residual of this exchange
    patience: int = PATIENCE  # exchanges without overflow after which it doubles

    def accepts(self, residuals: NDArray[np.generic]) -> bool:
        """Return whether the steps of these residuals are applied; adapt the scale.

        They are if all residuals are finite. A fixed scale, or one at its least value,
        leaves no step out: residuals that are not finite then end the run. A scale that
        `waits` only notes an overflow, and `settle` adapts it.
        """
        fits = bool(np.isfinite(residuals).all())
        if not fits and (self.is_fixed or self.value <= LEAST):
            return True
        if self.waits:
            self.overflowed |= not fits
        else:
            self.settle(not fits)
        return fits

    def settle(self, overflowed: bool) -> None:
        """Halve the scale if `overflowed`, else count a quiet exchange.

        `overflowed`: some residual of the exchange was not finite. After `patience`
        quiet exchanges, a scale that is not fixed doubles, up to `MOST`.
        """
        self.overflowed = False
        if not overflowed:
            self._grow()
            return
        self.value = self.value / 2
        self.quiet = 0
        self.skipped += 1

    def kept(self) -> NDArray[np.float64]:
        """Return the state for a checkpoint: value, quiet, skipped, as (1, 3)."""
        return np.array([[self.value, self.quiet, self.skipped]])

    def restore(self, kept: NDArray[np.float64]) -> None:
        """Restore the state from a result of `kept`."""
        self.value = float(kept[0, 0])
        self.quiet = int(kept[0, 1])
        self.skipped = int(kept[0, 2])

    def _grow(self) -> None:
        self.quiet += 1
        if not self.is_fixed and self.quiet >= self.patience and self.value < MOST:
            self.value = self.value * 2
            self.quiet = 0


def make_loss_scale(
    value: float, start: float = FIRST, patience: int = PATIENCE
) -> LossScale:
    """Return a loss scale of this value, or one that adapts if `value` is 0.

    One that adapts begins with `start`, and doubles after `patience` exchanges without
    overflow.
    """
    for name, number in (("loss_scale", value), ("loss_scale_start", start)):
        is_power = number > 0 and float(np.frexp(number)[0]) == 0.5 and number <= MOST
        if number and not is_power:
            raise ConfigError(
                f"[precision] {name} = {number:g} must be a power of two up to"
                f" {MOST:g}, or 0 for one that adapts"
            )
    if not value:
        return LossScale(start, patience=patience)
    return LossScale(value, is_fixed=True)


# Where the arrays of an agreement are stored, and what is done with them.
#
# The code of an agreement is the same for hosts and devices. Its `Memory` makes,
# clears, copies, adds and steps the arrays on either.

Wait = Callable[[], None]  # returns once a copy has arrived
VELOCITY = "velocity"  # name of the momenta where they are stored apart from weights


@dataclass(frozen=True)
class WordRange:
    """A range of weights, and the arrays of an update rule for these weights."""

    weights: Any  # which a step reads
    to: Any  # where the step writes the new weights, maybe the same
    arrays: Mapping[str, Any]  # by name, read and written
    scale: float = 1.0  # weights on a device are divided by it


class Memory(Protocol):
    """Operations on the arrays of one rank, on its host or on its device."""

    on_device: ClassVar[bool]  # False: its arrays are NumPy arrays

    # The layer of the GPU for transports, and the stream of its requests; None on the
    # host.
    layer: Any
    stream: Any

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Return an array of zeros."""

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Return an array of undefined values."""

    def mirrored(
        self, kept: dict[str, Array], names: Iterable[str]
    ) -> dict[str, Array]:
        """Return the arrays `kept`, of which steps in this memory update `names`.

        On a device, reading one of `names` from the result copies it to the host.
        """

    def host_zeros(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return an array of zeros on the host, for copies from and to this memory."""

    def row_of(self, host: Array) -> Any:
        """Return a matrix of one row for the elements of `host`, of `host_zeros`.

        On the host it is a view of the flat array `host`. On a device it is another
        array, of zeros, and padded to a whole chunk of 16 bytes.
        """

    def clear(self, array: Any) -> None:
        """Set all elements of a contiguous array to 0."""

    def copy(self, array: Any, out: Any) -> None:
        """Compute out ← array."""

    def add(self, array: Any, out: Any) -> None:
        """Compute out ← out + array."""

    def step(
        self,
        rule: Rule,
        l2: float,
        part: WordRange,
        gradient: Any,
        factor: float,
        turn: Turn,
    ) -> None:
        """Take a step of `rule` with the gradient `factor` · `gradient` + λw.

        λ is `l2`, and `turn` has the number and the rate of the step. The step reads
        and writes the weights and arrays of `part`. On the host it overwrites
        `gradient`.
        """

    def host_wait(self, group: Communicator) -> Wait:
        """Return a function that waits on the host for `group`'s newest collective.

        On a device it is needed, since `wait` of a collective only makes the stream
        wait.
        """

    def start_to_host(self, array: Any, out: Array) -> Wait:
        """Start to copy `array` to `out`, an array of `host_zeros`.

        Return a function that waits until the copy is complete.
        """

    def from_host(self, values: Array, out: Any) -> None:
        """Copy `values` of the host into `out`; the caller may then change `values`."""

    def fetch(self, array: Any) -> Array:
        """Return the values of an array on the host."""

    def settle(self) -> None:
        """Wait until all work that was requested is done."""

    def facts(self) -> dict[str, int]:
        """Return name -> bytes that were copied up to a device and down from it."""


class HostMemory:
    """The `Memory` of NumPy arrays: every copy is complete when its method returns."""

    on_device: ClassVar[bool] = False
    layer: Any = None
    stream: Any = None

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return an array of zeros."""
        return np.zeros(shape, dtype=dtype)

    host_zeros = zeros

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return an array of undefined values."""
        return np.empty(shape, dtype=dtype)

    def mirrored(
        self, kept: dict[str, Array], names: Iterable[str]
    ) -> dict[str, Array]:
        """Return `kept` itself: steps on the host update its arrays in place."""
        return kept

    def row_of(self, host: Array) -> Array:
        """Return the array as a matrix of one row."""
        return host[None]

    def clear(self, array: Array) -> None:
        """Set all elements of `array` to 0."""
        array[...] = 0.0

    def copy(self, array: Array, out: Array) -> None:
        """Compute out ← array."""
        out[...] = array

    def add(self, array: Array, out: Array) -> None:
        """Compute out ← out + array."""
        out += array

    def step(
        self,
        rule: Rule,
        l2: float,
        part: WordRange,
        gradient: Array,
        factor: float,
        turn: Turn,
    ) -> None:
        """Take a step as `Memory.step` describes, and write the weights to `part.to`.

        `gradient` is overwritten. A rule with a velocity gets weights and velocity
        joined in one array during the step.
        """
        weights = part.to
        if not len(weights):
            return
        if weights is not part.weights:
            weights[...] = part.weights
        arrays = {name: part.arrays[name] for name in rule.state_names}
        if rule.states == 1:
            rule.step(ColumnViews(weights, arrays), gradient, factor, turn, l2)
            return
        velocity = part.arrays[VELOCITY]
        both = np.hstack([weights, velocity])
        rule.step(ColumnViews(both, arrays), gradient, factor, turn, l2)
        weights[...], velocity[...] = np.split(both, 2, axis=1)

    def host_wait(self, group: Communicator) -> Wait:
        """Return a function that does nothing: `wait` of a collective is enough."""
        return _has_arrived

    def start_to_host(self, array: Array, out: Array) -> Wait:
        """Copy `array` to `out` at once; return a function that does nothing."""
        out[...] = array
        return _has_arrived

    def from_host(self, values: Array, out: Array) -> None:
        """Copy `values` to `out`."""
        out[...] = values

    def fetch(self, array: Array) -> Array:
        """Return the array itself."""
        return array

    def settle(self) -> None:
        """Do nothing: the host completes each request before the next one."""

    def facts(self) -> dict[str, int]:
        """Return an empty dict: no bytes are copied to or from a device."""
        return {}


def _has_arrived() -> None: ...


HOST = HostMemory()


# The copies of a state on a device, as the owner of the state uses them.


class DeviceCopy(Protocol):
    """One array with a copy on a device and a copy on the host."""

    def on_host(self) -> Array:
        """Return the host's copy, which the caller may read and write."""

    def host_view(self) -> Array:
        """Return the host's copy, which the caller must only read."""

    def on_device(self) -> Any:
        """Return the device's copy, which the caller may read and write."""

    def written(self) -> None:
        """Mark the device's copy as written, so that reads on the host copy it."""

    def replace(self, values: Array) -> None:
        """Replace the array by `values`, an array on the host."""
