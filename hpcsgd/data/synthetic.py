"""Synthetic data sets with planted weights."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hpcsgd.errors import ConfigError
from hpcsgd.formats import Array

# Rows drawn around planted weights, in blocks that any rank can generate alone.

BLOCK = 2048  # rows drawn by one generator: the first rows of any two sizes agree


@dataclass(frozen=True)
class SyntheticShape:
    """The kind of a synthetic data set: default size, task, unit rows and signal."""

    rows: int
    cols: int
    task: str
    unit_rows: bool  # ‖a_i‖ = 1, as epsilon is distributed
    signal: float  # spread of the scores: larger = classes further apart


@dataclass(frozen=True)
class Knobs:
    """Settings that make a data set harder; the defaults change nothing in it."""

    condition: float = 1.0  # of the columns' variances: larger = slower to learn
    correlation: float = 0.0  # of neighbouring columns, fading with their distance
    density: float = 1.0  # share of the values that are not 0
    noise: float = 0.0  # share of labels flipped; spread added to log rates of counts
    balance: float | None = None  # share of the label 1; None: as the scores give
    # Rows in which the true weights turn once around; 0: they do not drift. Where it
    # divides the rows of each replica, all replicas see the same weights at a time.
    period: float = 0.0

    def check(self, task: str) -> None:
        """Raise ConfigError if a value is impossible, or impossible for this task."""
        sound = {
            "condition": 1 <= self.condition < float("inf"),
            "correlation": -1 < self.correlation < 1,
            "density": 0 < self.density <= 1,
            "noise": 0 <= self.noise < (0.5 if task == "binary" else float("inf")),
            "balance": self.balance is None or 0 < self.balance < 1,
            "period": self.period == 0 or 2 <= self.period < float("inf"),
        }
        ranges = {
            "condition": "at least 1 and finite",
            "correlation": "between -1 and 1",
            "density": "above 0 and at most 1",
            "noise": "at least 0, and finite for counts or below 0.5 for labels",
            "balance": "between 0 and 1",
            "period": "0, or at least 2 and finite",
        }
        for name, holds in sound.items():
            if not holds:
                raise ConfigError(
                    f"{name} = {getattr(self, name)} must be {ranges[name]}"
                )
        if self.balance is not None and task != "binary":
            raise ConfigError(
                "balance cannot be used with counts, because it is the share of one of"
                " two labels; leave it out"
            )
        if self.density < 1 and self.correlation:
            raise ConfigError(
                "correlation cannot be used with a density below 1; leave one of them"
                " out"
            )


class PlantedData:
    """A synthetic data set: its true weights, and its blocks of rows on request.

    Targets are drawn from the scores of rows before these are scaled to length 1, if
    the shape has unit rows.
    """

    def __init__(
        self, kind: SyntheticShape, cols: int, seed: int, knobs: Knobs
    ) -> None:
        knobs.check(kind.task)
        self.kind = kind
        self.cols = cols
        self.seed = seed
        self.knobs = knobs
        self.scales = _column_scales(cols, knobs.condition)
        drawn = np.random.default_rng((seed, 0)).normal(size=cols)
        self.weights = drawn * (kind.signal / self._spread(drawn))
        # Towards which weights turn: scores of both are as spread, and uncorrelated.
        self.across: Array | None = None
        if knobs.period:
            self._check_turns()
            other = np.random.default_rng((seed, 2)).normal(size=cols)
            other -= self.weights * (self._shared(other) / kind.signal**2)
            self.across = other * (kind.signal / self._spread(other))
        self.intercept = 0.0
        if knobs.balance is not None:
            self.intercept = _shift(kind.signal, knobs.balance)

    def block(self, number: int) -> tuple[Any, Array]:
        """Return block `number`: BLOCK rows from row number·BLOCK on, as (X, y).

        X is float32, a CSR array if the density is below 1. A block is always drawn
        whole, so that it does not depend on the number of rows.
        """
        rng = np.random.default_rng((self.seed, 1, number))
        X = self._sparse(rng) if self.knobs.density < 1 else self._dense(rng)
        scores = X @ self.weights.astype(np.float32)
        if self.across is not None:
            turn = self.turn_of(np.arange(number * BLOCK, (number + 1) * BLOCK))
            scores = scores * np.cos(turn) + X @ self.across * np.sin(turn)
        if self.kind.unit_rows:
            X = _unit(X)
        return X, self._targets(rng, scores)

    def turn_of(self, rows: Array) -> Array:
        """Return the angles by which the true weights have turned at these rows.

        At angle φ the true weights are `weights` cos φ + `across` sin φ.
        """
        turned: Array = 2 * np.pi * (rows % self.knobs.period) / self.knobs.period
        return turned

    def _check_turns(self) -> None:
        """Raise ConfigError if there is only one column, in which nothing turns."""
        if self.cols < 2:
            raise ConfigError(
                "period cannot be used with 1 column, because weights turn in a plane;"
                " leave it out"
            )

    def _shared(self, other: Array) -> float:
        """Return wᵀ Cov u of the weights w and those of `other`, u."""
        squares = [self._spread(self.weights + s * other) ** 2 for s in (1.0, -1.0)]
        return (squares[0] - squares[1]) / 4

    def _dense(self, rng: np.random.Generator) -> Array:
        X = rng.standard_normal((BLOCK, self.cols), dtype=np.float32)
        rho = self.knobs.correlation
        if rho:  # x_j = ρ x_{j−1} + √(1 − ρ²) z_j
            X[:, 1:] *= np.float32(np.sqrt(1 - rho**2))
            X = add_running_sum(rho, X).astype(np.float32)
        if self.knobs.condition > 1:
            X *= self.scales.astype(np.float32)
        return X

    def _sparse(self, rng: np.random.Generator) -> Any:
        """Return X of a block as CSR, drawn with `rng`.

        A column that is drawn more than once in a row counts once.
        """
        draws = _draws(self.cols, self.knobs.density)
        counts = rng.poisson(draws, size=BLOCK)
        rows = np.repeat(np.arange(BLOCK, dtype=np.int64), counts)
        drawn = rng.integers(0, self.cols, size=len(rows))
        places = np.unique(rows * self.cols + drawn)
        rows, columns = np.divmod(places, self.cols)
        values = rng.standard_normal(len(places), dtype=np.float32)
        values *= self.scales[columns].astype(np.float32)
        starts = np.searchsorted(rows, np.arange(BLOCK + 1))
        from scipy.sparse import csr_array

        return csr_array((values, columns, starts), shape=(BLOCK, self.cols))

    def _targets(self, rng: np.random.Generator, scores: Array) -> Array:
        noise = self.knobs.noise
        if self.kind.task == "counts":
            if noise:
                scores = scores + noise * rng.standard_normal(BLOCK)
            return rng.poisson(np.exp(scores)).astype(np.float64)
        from scipy.special import expit

        probability = expit(scores.astype(np.float64) + self.intercept)
        y: Array = (rng.uniform(size=BLOCK) < probability).astype(np.float64)
        if noise:
            y = np.abs(y - (rng.uniform(size=BLOCK) < noise))
        return y

    def _beside_columns(self) -> dict[str, Any]:
        """Return the knobs that do not change the columns."""
        return {n: getattr(self.knobs, n) for n in ("noise", "balance", "period")}

    def _spread(self, w: Array) -> float:
        """Return √(wᵀ Cov w), the standard deviation of the scores of weights w.

        Cov is the covariance of the columns.
        """
        knobs = self.knobs
        if knobs == replace(Knobs(), **self._beside_columns()):
            return float(np.linalg.norm(w))
        scaled = w * self.scales
        # Σ_ij ρ^|i−j| u_i u_j by one recursion over the columns.
        carried = add_running_sum(knobs.correlation, scaled)
        return float(np.sqrt(knobs.density * scaled @ (2 * carried - scaled)))


def _column_scales(cols: int, condition: float) -> Array:
    """Return scales of the columns, falling from 1 to 1/√condition.

    The largest variance of a column is then `condition` times the smallest.
    """
    return np.geomspace(1.0, condition**-0.5, cols)


def _draws(cols: int, density: float) -> float:
    """Return how many columns to draw for a row, so that a share `density` is hit.

    It is the mean of a Poisson distribution: a column is missed with probability
    exp(−draws / cols).
    """
    return float(-cols * np.log1p(-density))


def _shift(signal: float, balance: float) -> float:
    """Return the intercept b with E sigmoid(s + b) = `balance`.

    The scores s are normal with the standard deviation `signal`.
    """
    from scipy.optimize import brentq  # takes half a second
    from scipy.special import expit

    nodes, weights = np.polynomial.hermite_e.hermegauss(64)
    weights = weights / weights.sum()

    def excess(b: float) -> float:
        return float(weights @ expit(signal * nodes + b)) - balance

    return float(brentq(excess, -1e4, 1e4))


def add_running_sum(share: float, values: Any) -> Any:
    """Return s with s_j = values_j + share · s_{j−1} along the last axis."""
    from scipy.signal import lfilter  # takes half a second

    return lfilter([1.0], [1.0, -share], values)


def _unit(X: Any) -> Any:
    if isinstance(X, np.ndarray):
        X /= np.linalg.norm(X, axis=1, keepdims=True)
        return X
    from hpcsgd.data.preparation import unit_rows

    return unit_rows(X).astype(np.float32)


# Data sets in the shape of known ones, drawn in blocks so that any size streams.

ATTRIBUTE_COLUMNS = 4096  # HDF5 keeps attributes below 64 KiB
SHAPES = {
    "epsilon": SyntheticShape(400_000, 2000, "binary", True, 4.0),
    "susy": SyntheticShape(5_000_000, 18, "binary", False, 3.0),
    "higgs": SyntheticShape(11_000_000, 28, "binary", False, 2.0),
    "synth": SyntheticShape(100_000, 1000, "binary", False, 5.0),
    "poisson-synth": SyntheticShape(100_000, 500, "counts", True, 0.7),
}


def plant(
    shape: str, cols: int | None = None, seed: int = 0, knobs: Knobs | None = None
) -> PlantedData:
    """Return the data set of a shape, with its true `weights` and `block(number)`.

    Every block has a random generator of its own. A rank therefore draws only the
    blocks of its rows, and the data do not depend on the number of ranks.
    """
    kind, _, cols = _resolve(shape, None, cols, seed)
    return PlantedData(kind, cols, seed, knobs or Knobs())


def make_synthetic(
    shape: str,
    rows: int | None = None,
    cols: int | None = None,
    seed: int = 0,
    knobs: Knobs | None = None,
) -> Iterator[tuple[Any, Array]]:
    """Yield (X float32, y float64) of consecutive blocks; X is CSR if density < 1.

    Labels are drawn at random given the scores of planted weights (for shapes with unit
    rows, of the rows before they are scaled). Classes therefore overlap, and the
    optimum is finite if there are many more rows than columns.
    """
    kind, rows, cols = _resolve(shape, rows, cols, seed)
    return _blocks(PlantedData(kind, cols, seed, knobs or Knobs()), rows)


def _resolve(
    shape: str, rows: int | None, cols: int | None, seed: int
) -> tuple[SyntheticShape, int, int]:
    """Return (shape, rows, cols) with the shape's defaults; check all arguments."""
    if shape not in SHAPES:
        raise ConfigError(f"unknown shape {shape!r}; known: {list(SHAPES)}")
    kind = SHAPES[shape]
    rows = kind.rows if rows is None else rows
    cols = kind.cols if cols is None else cols
    if rows < 1 or cols < 1:
        raise ConfigError(
            f"{rows} rows x {cols} columns: both must be at least 1;"
            f" leave rows and cols out for the sizes of the shape {shape!r}"
        )
    if seed < 0:
        raise ConfigError(f"seed = {seed} must be at least 0; 0 will do")
    return kind, rows, cols


def _blocks(planted: PlantedData, rows: int) -> Iterator[tuple[Any, Array]]:
    for number, start in enumerate(range(0, rows, BLOCK)):
        X, y = planted.block(number)
        yield X[: rows - start], y[: rows - start]


def write_synthetic(
    path: str | Path,
    shape: str,
    rows: int | None = None,
    cols: int | None = None,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
    knobs: Knobs | None = None,
) -> None:
    """Write `rows` rows of a data set to a store, complete or not at all.

    `progress` is called with (rows written, rows in all) after each block. The true
    weights are `plant(...).weights`; up to ATTRIBUTE_COLUMNS of them are also stored in
    the attribute `true_weights`.
    """
    from hpcsgd.data.hdf5 import StoreLayout
    from hpcsgd.data.store import StoreWriter

    kind, rows, cols = _resolve(shape, rows, cols, seed)
    planted = PlantedData(kind, cols, seed, knobs or Knobs())
    with StoreWriter(
        path,
        StoreLayout(cols, is_sparse=planted.knobs.density < 1),
        rows=rows,
        attributes=_attributes(planted, shape),
    ) as writer:
        for X, y in _blocks(planted, rows):
            writer.append(X, y)
            if progress is not None:
                progress(writer.done, rows)


def _attributes(planted: PlantedData, shape: str) -> dict[str, Any]:
    """Return the attributes of the file: task, source, true intercept and weights."""
    attributes: dict[str, Any] = {
        "task": planted.kind.task,
        "source": f"synthetic {shape}, seed {planted.seed}",
    }
    if planted.intercept:
        attributes["true_intercept"] = planted.intercept
    if planted.cols <= ATTRIBUTE_COLUMNS:
        attributes["true_weights"] = planted.weights
    return attributes
