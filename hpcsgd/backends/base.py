"""What one device can do for one member of a replica."""

from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from hpcsgd.backends.scaling import Scaling
from hpcsgd.families.base import Family
from hpcsgd.precision import Precision
from hpcsgd.schedule import Blocks
from hpcsgd.updates.unroll import PlainSteps, Unrolled

Array = NDArray[Any]


@dataclass(frozen=True)
class Batch:
    """What the recurrence needs of the sampled rows besides the matrix."""

    targets: Array  # (m, 1)
    weights: Array | None  # (m, 1)
    offsets: Array | None  # (m, 1)
    anchors: Array | None = None  # (m, K), scores of whose residuals r is the excess

    def part(self, rows: slice) -> "Batch":
        """Of some of the rows."""
        return Batch(
            self.targets[rows],
            None if self.weights is None else self.weights[rows],
            None if self.offsets is None else self.offsets[rows],
            None if self.anchors is None else self.anchors[rows],
        )


@dataclass(frozen=True)
class Plain:
    """Steps to be taken one after the other, and what on."""

    rows: Any
    blocks: Blocks
    steps: PlainSteps
    family: Family
    batch: Batch
    intercept: Array | None


class Plan(Protocol):
    """The coefficients of an exchange, prepared once for one device."""

    blocks: Blocks
    unrolled: Unrolled


class Backend(Protocol):
    """Arithmetic on the local block; nothing here talks to another rank."""

    precision: Precision
    scaling: Scaling | None  # what a matrix with few exponents is stored times

    def store(self, block: Array) -> Array:
        """The block in the storage of `precision.matrix`."""

    def zeros(self, shape: tuple[int, ...]) -> Array:
        """Weights of this shape, in `precision.weights`."""

    def prepare(self, unrolled: Unrolled, blocks: Blocks) -> Any:
        """The `Plan` that the other calls take."""

    def for_sparse(self) -> "Backend":
        """The backend that does the same with rows held as `Csr`."""

    def pick(self, matrix: Any, rows: Array) -> Any:
        """The sampled rows as they are stored."""

    def widen(self, stored: Any, out: Any) -> Any:
        """Stored values, exactly, for the products: in `out`, None for sparse ones."""

    def gather(self, matrix: Any, rows: Array, out: Any) -> Any:
        """The sampled rows for the products, widened in `out` or where they lie.

        What comes back is for this backend alone; `out` is None for sparse rows.
        """

    def some_columns(self, rows: Any, part: slice) -> Any:
        """Gathered rows of these columns alone; of dense ones no copy."""

    def round(self, values: Array, name: str) -> None:
        """Each value to the nearest that format `name` has, in place."""

    def scores(self, rows: Any, weights: Array, out: Array) -> Array:
        """out ← Y W."""

    def strict_gram(self, rows: Any, blocks: Blocks, out: Array) -> Array:
        """out ← the strictly-lower blocks of Y Yᵀ, packed."""

    def corrected_residuals(
        self,
        margins: Array,
        gram: Array,
        plan: Any,
        family: Family,
        batch: Batch,
        intercept: Array | None,
    ) -> Array:
        """The residuals of s exact steps; `intercept` advances in place."""

    def descend(self, weights: Array, rows: Any, residuals: Array, plan: Any) -> None:
        """weights ← Φ weights + Σ_i gain_i Y_iᵀ r_i, in place."""

    def walk(self, weights: Array, plain: Plain) -> Array | None:
        """All steps on rows of all columns, no message between them, in one call.

        Their residuals; None, and nothing done, where the backend has no such call.
        """

    def stepwise(self, weights: Array, plain: Plain) -> tuple[Any, Array] | None:
        """The same where a sum of margins over members parts the steps.

        What to call with (j, summed margins of step j, place for those of step j + 1),
        from j = -1 on, and the residuals that it fills; None as above.
        """

    def to_host(self, array: Array) -> Array:
        """A NumPy copy or view of `array`."""

    def synchronize(self) -> None:
        """Wait until everything asked for is done."""
