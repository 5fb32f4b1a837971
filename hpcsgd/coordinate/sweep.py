"""Sweeps over the columns of a quadratic model on one process, compiled.

One process has no message to save: instead of a Gram, the residuals are kept up to date
after every single step, and a column costs as much as it has values
(`kernels/cpu/sweep.c`). The iterates are those of exchanges with blocks of one.
"""

import ctypes
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.compiled import load
from hpcsgd.penalties import Penalty

Array = NDArray[Any]
KINDS = {"f": "f32", "d": "f64"}
_POINTERS = (
    *("edges", "rows", "values", "h", "shares", "v", "moves", "mixed", "shift"),
    *("bends", "means", "curvatures", "x", "lower", "upper"),
)


class _Quadratic(ctypes.Structure):
    """The struct `quadratic` of kernels/cpu/sweep.c."""

    _fields_ = (
        ("height", ctypes.c_int64),
        ("classes", ctypes.c_int64),
        ("columns", ctypes.c_void_p),
        *((name, ctypes.c_void_p) for name in _POINTERS),
        ("scale", ctypes.c_double),
        ("l1", ctypes.c_double),
        ("l2", ctypes.c_double),
    )


@lru_cache(maxsize=1)
def library() -> Any:
    """Return the compiled sweeps, or None."""
    found, _ = load(Path(__file__).parent, "_sweep", "NumPy")
    if found is None:
        return None
    place, count = ctypes.c_void_p, ctypes.c_int64
    for kind in KINDS.values():
        sweep = getattr(found, f"hpcsgd_sweep_{kind}")
        sweep.argtypes, sweep.restype = (place, place, count), ctypes.c_double
        squares = getattr(found, f"hpcsgd_curvatures_{kind}")
        squares.argtypes, squares.restype = (place, place, count, place), None
    return found


def available() -> bool:
    """Return whether the compiled sweeps are in use."""
    return library() is not None


@dataclass(frozen=True)
class Values:
    """The columns of the data, one behind the other.

    Parameters
    ----------
    values : ndarray, (stored,), or (d, n) where they are dense; float32 or float64
    edges : ndarray of int64, (d + 1,), where each column begins; None: dense
    rows : ndarray of int32, (stored,), the row of each value; None: dense
    """

    values: Array
    edges: Array | None
    rows: Array | None


def values_of(columns: Any) -> Values:
    """Return the values of columns that are held as rows, dense or SciPy CSR."""
    if not hasattr(columns, "tocsr"):
        return Values(np.ascontiguousarray(columns), None, None)
    edges = columns.indptr.astype(np.int64)
    return Values(columns.data, edges, columns.indices.astype(np.int32, copy=False))


@dataclass(frozen=True)
class Model:
    """A quadratic model about a point, for m columns with K items each.

    Parameters
    ----------
    columns : ndarray of int64, (m,), their numbers in the data
    residuals : ndarray, (n, K), c r
    h : ndarray, (n, K), ∂r/∂t times c; of classes c p
    shares : ndarray, (n, K), p of classes; None: one score a row
    bends : ndarray, (m K, K), Σ_i a_ij H_i e_k; zeros without an intercept
    means : ndarray, (m K, K), S⁺ of them
    pull : ndarray, (K,), what the intercept gives up where nothing else moves
    """

    columns: Array
    residuals: Array
    h: Array
    shares: Array | None
    bends: Array
    means: Array
    pull: Array


class Sweeper:
    """Steps over the items of a model, one exact minimum after the other.

    Parameters
    ----------
    values : Values
    model : Model
    x : ndarray, (m K,), where the items begin; changed in place
    penalty : Penalty, of all items of the model
    scale : float, σ
    """

    def __init__(
        self, values: Values, model: Model, x: Array, penalty: Penalty, scale: float
    ) -> None:
        height, classes = model.residuals.shape
        self._kind = KINDS[values.values.dtype.char]
        empty = np.empty(0)
        is_one = model.shares is None
        self._arrays: dict[str, Array | None] = {
            "columns": model.columns,
            "edges": values.edges,
            "rows": values.rows,
            "values": values.values,
            "h": np.ascontiguousarray(model.h),
            "shares": model.shares,
            "v": np.array(model.residuals, order="C"),
            "moves": empty if is_one else np.zeros((height, classes)),
            "mixed": empty if is_one else np.zeros(height),
            "shift": -model.pull,
            "bends": np.ascontiguousarray(model.bends),
            "means": np.ascontiguousarray(model.means),
            "curvatures": np.empty(len(x)),
            "x": x,
            "lower": self._bound(penalty.lower, len(x)),
            "upper": self._bound(penalty.upper, len(x)),
        }
        places = {
            name: None if array is None else array.ctypes.data
            for name, array in self._arrays.items()
        }
        self._quadratic = _Quadratic(
            height=height,
            classes=classes,
            scale=scale,
            l1=penalty.l1,
            l2=penalty.l2,
            **places,
        )
        self._find_curvatures(model)

    def _find_curvatures(self, model: Model) -> None:
        """Σ a² h less what centring takes off, and never below 0."""
        h = model.h if model.shares is None else model.h * (1.0 - model.shares)
        h = np.ascontiguousarray(h)
        found = self._arrays["curvatures"]
        assert found is not None
        squares = getattr(library(), f"hpcsgd_curvatures_{self._kind}")
        place = ctypes.byref(self._quadratic)
        squares(place, h.ctypes.data, len(model.columns), found.ctypes.data)
        found -= np.einsum("ij,ij->i", model.bends, model.means)
        np.maximum(found, 0.0, out=found)

    def sweep(self, order: Array) -> float:
        """Take a step over each of these items (int64, contiguous) in turn.

        Return the largest move times its curvature.
        """
        run = getattr(library(), f"hpcsgd_sweep_{self._kind}")
        place = ctypes.byref(self._quadratic)
        return float(run(place, order.ctypes.data, len(order)))

    @staticmethod
    def _bound(bound: Any, count: int) -> Array | None:
        if np.ndim(bound) == 0 and np.isinf(bound):
            return None
        return np.broadcast_to(np.asarray(bound, dtype=np.float64), count).copy()
