"""Data sets in the shape of known ones, drawn in blocks so that any size streams."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from hpcsgd.data.store_writer import StoreWriter
from hpcsgd.errors import ConfigError

Array = NDArray[Any]
BLOCK = 2048  # rows drawn by one generator: the first rows of any two sizes agree


@dataclass(frozen=True)
class Shape:
    """What a shape is like."""

    rows: int
    cols: int
    task: str
    unit_rows: bool  # ‖a_i‖ = 1, as epsilon is distributed
    signal: float  # spread of the scores: larger = classes further apart


SHAPES = {
    "epsilon": Shape(400_000, 2000, "binary", True, 4.0),
    "susy": Shape(5_000_000, 18, "binary", False, 3.0),
    "higgs": Shape(11_000_000, 28, "binary", False, 2.0),
    "synth": Shape(100_000, 1000, "binary", False, 5.0),
    "poisson-synth": Shape(100_000, 500, "counts", True, 0.7),
}


def make_synthetic(
    shape: str, rows: int | None = None, cols: int | None = None, seed: int = 0
) -> Iterator[tuple[Array, Array]]:
    """(X float32, y float64) of consecutive blocks of rows.

    Scores are drawn around a planted w and labels at random given the score, so that
    classes overlap and the optimum is finite as long as rows outnumber columns well.
    """
    kind, rows, cols = _resolve(shape, rows, cols, seed)
    planted = np.random.default_rng((seed, 0)).normal(size=cols)
    planted *= kind.signal / np.linalg.norm(planted)
    return _blocks(kind, planted, rows, seed)


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


def _blocks(
    kind: Shape, planted: Array, rows: int, seed: int
) -> Iterator[tuple[Array, Array]]:
    for number, start in enumerate(range(0, rows, BLOCK)):
        rng = np.random.default_rng((seed, 1, number))
        # The whole block is drawn and cut: its rows do not depend on where it ends.
        X, y = _block(kind, planted, rng)
        yield X[: rows - start], y[: rows - start]


def _block(
    kind: Shape, planted: Array, rng: np.random.Generator
) -> tuple[Array, Array]:
    X = rng.standard_normal((BLOCK, len(planted)), dtype=np.float32)
    scores = X @ planted.astype(np.float32)
    if kind.unit_rows:
        X /= np.linalg.norm(X, axis=1, keepdims=True)
    if kind.task == "counts":
        return X, rng.poisson(np.exp(scores)).astype(np.float64)
    probability = expit(scores.astype(np.float64))
    return X, (rng.uniform(size=BLOCK) < probability).astype(np.float64)


def write_synthetic(
    path: str | Path,
    shape: str,
    rows: int | None = None,
    cols: int | None = None,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Write `rows` of a shape; the file appears whole or not at all.

    `progress` hears (rows written, rows in all) after each block.
    """
    kind, rows, cols = _resolve(shape, rows, cols, seed)
    attributes = {"task": kind.task, "source": f"synthetic {shape}, seed {seed}"}
    with StoreWriter(path, cols, rows=rows, attributes=attributes) as writer:
        for X, y in make_synthetic(shape, rows, cols, seed):
            writer.append(X, y)
            if progress is not None:
                progress(writer.done, rows)
