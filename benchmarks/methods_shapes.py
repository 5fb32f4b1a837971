"""The rows that methods are measured on: five shapes, and the rates for each."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Shape:
    """Rows of a kind."""

    says: str
    like: str  # of hpcsgd.data.synthetic, or softmax
    rows: int
    columns: int
    epochs: int
    rate: float  # the highest that is tried; RATES are parts of it
    density: float = 1.0
    family: str = "logistic"
    l2: float = 1e-5

    def data(self) -> tuple[Any, Any]:
        """X and y, the same on every rank."""
        if self.like == "softmax":
            return _digits(self.rows, self.columns)
        return _synthetic(self)


SHAPES = {
    "susy": Shape("few columns", "susy", 2048, 18, 6, 0.5),
    "epsilon": Shape("dense", "epsilon", 2048, 2000, 6, 128.0, l2=1e-4),
    "rcv1": Shape("sparse", "epsilon", 2048, 47_236, 6, 128.0, 0.0016, l2=1e-4),
    "softmax": Shape(
        *("ten classes", "softmax", 2048, 784, 6, 128.0), family="softmax", l2=1e-3
    ),
    "wide": Shape("wide and dense", "epsilon", 1024, 20_000, 6, 128.0, l2=1e-4),
}


def _synthetic(shape: Shape) -> tuple[Any, Any]:
    import numpy as np
    import scipy.sparse

    from hpcsgd.data.synthetic import Knobs, make_synthetic

    knobs = Knobs(density=shape.density)
    blocks = make_synthetic(shape.like, shape.rows, shape.columns, knobs=knobs)
    X, y = zip(*blocks, strict=True)
    whole = scipy.sparse.vstack(X, "csr") if shape.density < 1 else np.concatenate(X)
    return whole, np.concatenate(y)


def _digits(rows: int, columns: int, classes: int = 10) -> tuple[Any, Any]:
    """Classes that overlap: labels drawn by the softmax of planted scores."""
    import numpy as np

    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, columns)).astype(np.float32) / np.float32(columns**0.5)
    scores = 4.0 * X @ rng.normal(size=(columns, classes))
    return X, np.argmax(scores + rng.gumbel(size=scores.shape), axis=1).astype(float)
