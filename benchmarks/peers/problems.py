"""The sets: one that is timed, and a second draw of it that methods are tuned on."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.losses import Objective, optimum
from benchmarks.text_files import REAL

TUNING_SEED, TIMED_SEED = 1, 0
SPARSE = 0.2  # density up to which those who can are given CSR as well


@dataclass(frozen=True)
class Kind:
    """How a set is made."""

    shape: str  # of `hpcsgd data synth`, or the name of a file
    family: str

    @property
    def file(self) -> Path | None:
        """A real set: the file that holds it."""
        return None if "." not in self.shape else REAL / self.shape


KINDS = {
    "epsilon": Kind("epsilon", "logistic"),
    "susy": Kind("susy", "logistic"),
    "higgs": Kind("higgs", "logistic"),
    "synth": Kind("synth", "logistic"),
    "a9a": Kind("a9a.txt", "logistic"),
    "poisson-synth": Kind("poisson-synth", "poisson"),
    "synth-linear": Kind("synth", "gaussian"),
}


@dataclass(frozen=True)
class Problem:
    """Rows in memory, float32, and the objective on them (λ = 1/n, no intercept)."""

    name: str
    family: str
    X: Any  # (n, d) float32, C order; CSR where `layout` says so
    y: np.ndarray  # (n,) float32
    best: float | None = None  # F*, once known
    layout: str = "dense"

    @property
    def l2(self) -> float:
        """λ: scikit-learn's C = 1."""
        return 1.0 / len(self.y)

    @cached_property
    def objective(self) -> Objective:
        """What everybody minimises."""
        return Objective(self.family, self.X, self.y.astype(np.float64), self.l2)

    @cached_property
    def row_square(self) -> float:
        """Mean ‖a_i‖²: the natural unit of 1/rate."""
        square = self.X.multiply(self.X) if self.layout == "csr" else np.square(self.X)
        return float(square.sum(dtype=np.float64) / len(self.y))

    @cached_property
    def doubled(self) -> "Problem":
        """With X in float64, for those who take nothing else."""
        return replace(self, X=self.X.astype(np.float64))

    def gap(self, weights: np.ndarray) -> float:
        """(F(w) − F*) / |F*|."""
        assert self.best is not None
        return (self.objective.value(weights) - self.best) / abs(self.best)


def solved(problem: Problem) -> tuple[Problem, dict[str, Any]]:
    """The problem with its optimum, and how that was found."""
    found = optimum(problem.objective)
    return replace(problem, best=found["loss"]), found


def is_there(name: str) -> bool:
    """Whether the set can be had on this machine."""
    file = KINDS[name].file
    return file is None or file.exists()


def layouts(problem: Problem) -> list[Problem]:
    """The problem, and as CSR too where few values are not 0."""
    if np.count_nonzero(problem.X) > SPARSE * problem.X.size:
        return [problem]
    from scipy.sparse import csr_matrix

    return [problem, replace(problem, X=csr_matrix(problem.X), layout="csr")]


def make(name: str, rows: int, tuning: bool) -> Problem:
    """One draw of a set."""
    kind = KINDS[name]
    seed = TUNING_SEED if tuning else TIMED_SEED
    X, y = make_of(kind, rows, seed)
    return Problem(name, kind.family, X, y)


def make_of(kind: Kind, rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows and targets in float32."""
    maker: Callable[..., tuple[np.ndarray, np.ndarray]] = (
        _drawn if kind.file is None else _shuffled
    )
    X, y = maker(kind, rows, seed)
    return np.ascontiguousarray(X, dtype=np.float32), y.astype(np.float32)


def _drawn(kind: Kind, rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    from hpcsgd.data.synthetic import make_synthetic, plant

    parts = list(make_synthetic(kind.shape, rows, seed=seed))
    X = np.concatenate([part for part, _ in parts])
    if kind.family != "gaussian":
        return X, np.concatenate([part for _, part in parts])
    noise = np.random.default_rng((seed, 2)).normal(size=rows)
    return X, X @ plant(kind.shape, seed=seed).weights + noise


def _shuffled(kind: Kind, rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of a real file: the first after a shuffle, another one for each seed."""
    X, y = read_libsvm(kind.file)
    order = np.random.default_rng((seed, 3)).permutation(len(y))[:rows]
    y = y if kind.family == "gaussian" else (y > 0).astype(np.float64)
    return X[order], y[order]


def read_libsvm(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Labels as they are, rows dense."""
    labels, entries = [], []
    with path.open() as lines:
        for number, line in enumerate(lines):
            label, *pairs = line.split()
            labels.append(float(label))
            for pair in pairs:
                column, value = pair.split(":")
                entries.append((number, int(column) - 1, float(value)))
    rows, columns, values = (np.array(part) for part in zip(*entries, strict=True))
    X = np.zeros((len(labels), int(columns.max()) + 1), dtype=np.float32)
    X[rows.astype(int), columns.astype(int)] = values
    return X, np.array(labels)
