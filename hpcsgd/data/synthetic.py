"""Data sets in the shape of known ones, drawn in blocks so that any size streams."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from hpcsgd.data.planted import BLOCK, Knobs, Planted, Shape
from hpcsgd.errors import ConfigError

Array = NDArray[Any]
__all__ = ["BLOCK", "SHAPES", "Knobs", "make_synthetic", "plant", "write_synthetic"]
ATTRIBUTE_COLUMNS = 4096  # HDF5 keeps attributes below 64 KiB
SHAPES = {
    "epsilon": Shape(400_000, 2000, "binary", True, 4.0),
    "susy": Shape(5_000_000, 18, "binary", False, 3.0),
    "higgs": Shape(11_000_000, 28, "binary", False, 2.0),
    "synth": Shape(100_000, 1000, "binary", False, 5.0),
    "poisson-synth": Shape(100_000, 500, "counts", True, 0.7),
}


def plant(
    shape: str, cols: int | None = None, seed: int = 0, knobs: Knobs | None = None
) -> Planted:
    """The data set of a shape: its true `weights`, and `block(number)` of its rows.

    Every block is drawn by a generator of its own, so that a rank makes those of its
    rows alone and the data do not depend on the number of ranks.
    """
    kind, _, cols = _resolve(shape, None, cols, seed)
    return Planted(kind, cols, seed, knobs or Knobs())


def make_synthetic(
    shape: str,
    rows: int | None = None,
    cols: int | None = None,
    seed: int = 0,
    knobs: Knobs | None = None,
) -> Iterator[tuple[Any, Array]]:
    """(X float32, y float64) of consecutive blocks of rows; X is CSR if density < 1.

    Scores are drawn around a planted w and labels at random given the score, so that
    classes overlap and the optimum is finite as long as rows outnumber columns well.
    """
    kind, rows, cols = _resolve(shape, rows, cols, seed)
    return _blocks(Planted(kind, cols, seed, knobs or Knobs()), rows)


def _resolve(
    shape: str, rows: int | None, cols: int | None, seed: int
) -> tuple[Shape, int, int]:
    """What the shape leaves open, checked."""
    if shape not in SHAPES:
        raise ConfigError(f"unknown shape {shape!r}; known: {list(SHAPES)}")
    kind = SHAPES[shape]
    rows = kind.rows if rows is None else rows
    cols = kind.cols if cols is None else cols
    if rows < 1 or cols < 1:
        raise ConfigError(
            f"{rows} rows x {cols} columns: both must be at least 1;"
            " leave them out for those of the shape"
        )
    if seed < 0:
        raise ConfigError(f"seed = {seed} must be at least 0; 0 will do")
    return kind, rows, cols


def _blocks(planted: Planted, rows: int) -> Iterator[tuple[Any, Array]]:
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
    """Write `rows` of a shape; the file appears whole or not at all.

    `progress` hears (rows written, rows in all) after each block. The true weights are
    the attribute `true_weights` where they fit, and always `plant(...).weights`.
    """
    from hpcsgd.data.store_writer import StoreWriter

    kind, rows, cols = _resolve(shape, rows, cols, seed)
    planted = Planted(kind, cols, seed, knobs or Knobs())
    with StoreWriter(
        path,
        cols,
        rows=rows,
        is_sparse=planted.knobs.density < 1,
        attributes=_attributes(planted, shape),
    ) as writer:
        for X, y in _blocks(planted, rows):
            writer.append(X, y)
            if progress is not None:
                progress(writer.done, rows)


def _attributes(planted: Planted, shape: str) -> dict[str, Any]:
    """What the file says of itself."""
    said: dict[str, Any] = {
        "task": planted.kind.task,
        "source": f"synthetic {shape}, seed {planted.seed}",
    }
    if planted.intercept:
        said["true_intercept"] = planted.intercept
    if planted.cols <= ATTRIBUTE_COLUMNS:
        said["true_weights"] = planted.weights
    return said
