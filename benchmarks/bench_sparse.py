"""Where CSR stops paying: one exchange of sparse rows against the same rows dense.

Part "exchange": gather, Gram, scores and gradient of m sampled rows, each as CSR and as
a dense array, over densities and widths, columns drawn evenly or as words are in texts
(Zipf). Part "gram": the sparse Gram with several shares of rows from which a column
counts as heavy, which is what `HEAVY` in hpcsgd/backends/sparse.py is chosen by.
"""

import time

import numpy as np
from scipy.sparse import csr_array

from hpcsgd.backends import sparse
from hpcsgd.backends.host import HostBackend
from hpcsgd.csr import Csr, from_scipy
from hpcsgd.precision import RECIPES
from hpcsgd.schedule import uniform_blocks

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
    host = HostBackend(RECIPES["fp32"])
    as_csr = _phases(host.for_sparse(), matrix, chosen, width)
    dense = _phases(host, matrix.to_dense(), chosen, width)
    total_csr, total_dense = sum(as_csr.values()), sum(dense.values())
    return {
        "part": "exchange",
        "columns": columns,
        "width": width,
        "density": density,
        "rows": len(chosen),
        "csr_us": as_csr,
        "dense_us": dense,
        "dense_over_csr": total_dense / total_csr,
        "dense_over_csr_without_gram": (total_dense - dense["gram"])
        / (total_csr - as_csr["gram"]),
    }


def _phases(backend, matrix, chosen, width):
    """Median µs of each phase of an exchange."""
    blocks = uniform_blocks(len(chosen) // STEPS, STEPS)
    gram = np.empty(blocks.gram_words, dtype=np.float32)
    w = np.zeros((width, 1), dtype=np.float32)
    z, r = np.empty((len(chosen), 1), np.float32), np.ones((len(chosen), 1), np.float32)
    out = None
    if not isinstance(matrix, Csr):
        out = np.empty((len(chosen), width), dtype=np.float32)
    seconds = []
    for _ in range(REPEATS + 1):
        marks = [time.perf_counter()]
        rows = backend.gather(matrix, chosen, out)
        marks.append(time.perf_counter())
        backend.strict_gram(rows, blocks, gram)
        marks.append(time.perf_counter())
        backend.scores(rows, w, z)
        marks.append(time.perf_counter())
        backend._add_gradient(w, rows, r)
        marks.append(time.perf_counter())
        seconds.append(np.diff(marks))
    medians = 1e6 * np.median(seconds[1:], axis=0)
    return dict(zip(PHASES, medians.round(1).tolist(), strict=True))


def _gram_row(rng, columns, width, density):
    """µs of the Gram for every share; 0 makes all columns dense, 1 none."""
    matrix = make_rows(rng, columns, BATCH * STEPS, width, density)
    backend, kept = HostBackend(RECIPES["fp32"]).for_sparse(), sparse.HEAVY
    found = {}
    for share in SHARES:
        sparse.HEAVY = share
        chosen = np.arange(BATCH * STEPS)
        found[f"{share:.3g}"] = _phases(backend, matrix, chosen, width)["gram"]
    sparse.HEAVY = kept
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
        f" ratio {row['dense_over_csr']:.2f}"
        f" (without Gram {row['dense_over_csr_without_gram']:.2f})"
    )
