"""Where CSR stops paying: one exchange of sparse rows against the same rows dense.

Part "exchange": gather, Gram, scores and gradient of m sampled rows, each as CSR and as
a dense array by what is used here, and as CSR by SciPy, in turns, over densities and
widths, columns drawn evenly or as words are in texts (Zipf). Part "gram": SciPy's
sparse Gram with several shares of rows from which a column counts as heavy, which is
what `HEAVY` in hpcsgd/backends/numpy_rows.py is chosen by.
"""

import time

import numpy as np
from scipy.sparse import csr_array

from hpcsgd.backends import make_backend, numpy_rows
from hpcsgd.backends.numpy_rows import HostBackend
from hpcsgd.data.matrix import Csr, DenseMatrix, from_scipy
from hpcsgd.glm import make_update
from hpcsgd.glm.unrolling import uniform_blocks, unroll
from hpcsgd.precision import RECIPES

BATCH, STEPS, ROWS = 32, 8, 1024
DENSITIES = (0.001, 0.003, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5)
WIDTHS = (300, 1000, 3000, 30000)
SHARES = (0.0, 0.02, 0.03, 0.04, 0.06, 0.1, 0.2, 1.0)
PHASES = ("gather", "gram", "scores", "update")
REPEATS = 7
CELLS = 4e7  # a dense matrix of more is not worth the waiting


def measure() -> list[dict]:
    """Rows of both parts, printed as they come."""
    rng = np.random.default_rng(0)
    figures = []
    for columns in ("even", "zipf"):
        for width in WIDTHS:
            for density in DENSITIES:
                if width * density >= 1:
                    figures.append(_exchange_row(rng, columns, width, density))
                    print(_shown(figures[-1]), flush=True)
    for columns, width, density in (
        *(("even", 3000, 0.01), ("even", 3000, 0.1), ("zipf", 3000, 0.03)),
        *(("zipf", 47000, 0.0015), ("zipf", 300000, 0.001)),
    ):
        figures.append(_gram_row(rng, columns, width, density))
        print(figures[-1], flush=True)
    return figures


def make_rows(
    rng: np.random.Generator, columns: str, rows: int, width: int, density: float
) -> Csr:
    """Rows of about density · width values each, float32."""
    each = max(round(density * width), 1)
    chance = np.ones(width) if columns == "even" else 1.0 / (np.arange(width) + 10.0)
    # The largest keys of a weighted draw without replacement.
    parts = []
    for _ in range(rows):
        key = np.log(rng.random(width)) / chance
        parts.append(np.sort(np.argpartition(key, -each)[-each:]))
    indices = np.concatenate(parts).astype(np.int32)
    data = rng.normal(size=len(indices)).astype(np.float32)
    indptr = np.arange(rows + 1) * each
    return from_scipy(csr_array((data, indices, indptr), shape=(rows, width)))


def _exchange_row(rng, columns, width, density):
    rows = min(ROWS, int(CELLS // width))
    matrix = make_rows(rng, columns, rows, width, density)
    chosen = rng.permutation(rows)[: BATCH * STEPS]
    host, used = HostBackend(RECIPES["fp32"]), make_backend(RECIPES["fp32"])
    ways = {
        "csr": (used, matrix),
        "scipy": (host, matrix),
        "dense": (used, DenseMatrix(matrix.to_dense())),
    }
    found = _phases(ways, chosen, width)
    total = {name: sum(phases.values()) for name, phases in found.items()}
    bare = {name: total[name] - found[name]["gram"] for name in found}
    return {
        "part": "exchange",
        "columns": columns,
        "width": width,
        "density": density,
        "rows": len(chosen),
        **{f"{name}_us": phases for name, phases in found.items()},
        "dense_over_csr": total["dense"] / total["csr"],
        "scipy_over_csr": total["scipy"] / total["csr"],
        "dense_over_csr_without_gram": bare["dense"] / bare["csr"],
    }


def _phases(ways, chosen, width):
    """Way -> median µs of each phase of an exchange; all ways in every turn."""
    seconds = {name: [] for name in ways}
    for _ in range(REPEATS + 1):
        for name, (backend, matrix) in ways.items():
            seconds[name].append(_exchange(backend, matrix, chosen, width))
    medians = {name: 1e6 * np.median(s[1:], axis=0) for name, s in seconds.items()}
    return {
        name: dict(zip(PHASES, found.round(1).tolist(), strict=True))
        for name, found in medians.items()
    }


def _exchange(backend, matrix, chosen, width):
    """Seconds of each phase."""
    blocks, m = uniform_blocks(len(chosen) // STEPS, STEPS), len(chosen)
    gram = np.empty(blocks.gram_words, dtype=np.float32)
    plan = backend.prepare(
        unroll(make_update("sgd", 0.0), [1e-9] * STEPS, blocks.sizes, 0.0), blocks
    )
    w, z = np.zeros((width, 1), np.float32), np.empty((m, 1), np.float32)
    r, out = np.ones((m, 1), np.float32), None
    if not matrix.is_sparse:
        out = np.empty((m, width), dtype=np.float32)
    marks = [time.perf_counter()]
    rows = matrix.gather(backend, chosen, out)
    marks.append(time.perf_counter())
    backend.strict_gram(rows, blocks, gram)
    marks.append(time.perf_counter())
    backend.scores(rows, w, z)
    marks.append(time.perf_counter())
    backend.apply_update(w, rows, r, plan)
    marks.append(time.perf_counter())
    return np.diff(marks)


def _gram_row(rng, columns, width, density):
    """µs of the Gram for every share; 0 makes all columns dense, 1 none."""
    matrix = make_rows(rng, columns, BATCH * STEPS, width, density)
    backend, kept = HostBackend(RECIPES["fp32"]), numpy_rows.HEAVY
    found = {}
    for share in SHARES:
        numpy_rows.HEAVY = share
        chosen = np.arange(BATCH * STEPS)
        ways = {"scipy": (backend, matrix)}
        found[f"{share:.3g}"] = _phases(ways, chosen, width)["scipy"]["gram"]
    numpy_rows.HEAVY = kept
    return {
        "part": "gram",
        "columns": columns,
        "width": width,
        "density": density,
        "gram_us": found,
    }


def _shown(row):
    return (
        f"{row['columns']} d {row['width']:5d} density {100 * row['density']:5.1f} %:"
        f" CSR {sum(row['csr_us'].values()):8.0f} µs,"
        f" dense {sum(row['dense_us'].values()):8.0f},"
        f" ratio {row['dense_over_csr']:.2f}, SciPy's CSR {row['scipy_over_csr']:.2f}"
        f" (without Gram {row['dense_over_csr_without_gram']:.2f})"
    )
