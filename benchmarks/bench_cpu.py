"""The compiled CPU kernels beside NumPy on the same rows, in one run, in turns.

One thread. NumPy gathers the rows as float32 and multiplies by BLAS, as the package
does without the kernels: `Y @ Y.T` is one triangle there too. Matrices are far larger
than the caches. `gram` counts the multiply-adds of the strict block triangle, the
others the bytes of the sampled rows once, as float32; `read_GB_s` is what a dot product
of two long float32 vectors reads. Every figure is the median of REPEATS turns; seconds
of the CPU lie beside those of the wall.
"""

import statistics
import time
from collections.abc import Callable

import numpy as np

from hpcsgd.backends import compiled_calls
from hpcsgd.backends.base import StepBatch
from hpcsgd.backends.compiled import NativeBackend
from hpcsgd.backends.compiled_calls import tile_peak
from hpcsgd.backends.numpy_rows import HostBackend
from hpcsgd.formats import encode
from hpcsgd.glm import get_family, make_update
from hpcsgd.glm.unrolling import uniform_blocks, unroll
from hpcsgd.precision import RECIPES

REPEATS, LEAST = 9, 0.02  # turns, seconds of each
GRAMS = ((8, 8, 1000), (32, 8, 1000), (32, 16, 1000), (32, 16, 4000), (64, 32, 8000))
RECURRENCES = ((32, 16), (32, 32))
BYTES = 200 * 2**20  # of a matrix in float32


def measure() -> dict:
    """All figures."""
    figures = {
        "instructions": compiled_calls.instructions(),
        "read_GB_s": round(read_bandwidth(), 2),
        "sgemm_GF_s": round(sgemm(), 1),
        "tiles_GF_s": round(tiles(), 1),
        "gram": [gram(*shape) for shape in GRAMS],
        "rows": [rows(d) for d in (1000, 4000)],
        "recurrence": [recurrence(*shape) for shape in RECURRENCES],
        "direct": [direct(recipe) for recipe in ("fp32", "c")],
    }
    for name, value in figures.items():
        print(name, value, flush=True)
    if figures["tiles_GF_s"]:
        share_of_peak(figures)
    return figures


def share_of_peak(figures: dict) -> None:
    """Beside every bf16 Gram, its share of what the tiles of AMX can do."""
    for row in figures["gram"]:
        share = row["bf16"]["GF_s"] / figures["tiles_GF_s"]
        row["bf16"]["share_of_tiles"] = round(share, 3)
        print(f"bf16 Gram {row['columns']} columns: {share:.1%} of the tiles' peak")


def turns(ways: dict[str, Callable[[], object]]) -> dict[str, tuple[float, float]]:
    """name -> (wall, CPU) seconds of one call, every way in every turn."""
    counts = {}
    for name, way in ways.items():
        way()
        began = time.perf_counter()
        way()
        counts[name] = max(int(LEAST / (time.perf_counter() - began)), 1)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(REPEATS):
        for name, way in ways.items():
            wall, used = time.perf_counter(), time.process_time()
            for _ in range(counts[name]):
                way()
            ended = (time.perf_counter() - wall, time.process_time() - used)
            found[name].append(tuple(t / counts[name] for t in ended))
    return {
        name: tuple(statistics.median(column) for column in zip(*taken, strict=True))
        for name, taken in found.items()
    }


def said(times: dict[str, tuple[float, float]], unit: str, amount: float) -> dict:
    """Microseconds, rates and ratios against NumPy."""
    base = times["numpy"][0]
    return {
        name: {
            "us": round(1e6 * wall, 1),
            "cpu_us": round(1e6 * used, 1),
            unit: round(amount / wall / 1e9, 1),
            "times_numpy": round(base / wall, 2),
        }
        for name, (wall, used) in times.items()
    }


def matrix(d: int) -> tuple[np.ndarray, np.ndarray]:
    """float32 values, and the bits of the same rounded to bf16."""
    rng = np.random.default_rng(d)
    X = rng.standard_normal((BYTES // (4 * d), d), dtype=np.float32)
    return X, encode(X, "bf16")


def draws(n: int, m: int) -> Callable[[], np.ndarray]:
    """Row numbers of one sample after the other, without end."""
    order = np.random.default_rng(0).permutation(n)[: n // m * m].reshape(-1, m)
    place = iter(range(10**9))
    return lambda: order[next(place) % len(order)]


def backends(m: int, d: int) -> dict[str, tuple]:
    """name -> (backend, matrix); what NumPy does in float32 is the base."""
    X, B = matrix(d)
    return {
        "numpy": (HostBackend(RECIPES["fp32"]), X),
        "fp32": (NativeBackend(RECIPES["fp32"]), X),
        "bf16": (NativeBackend(RECIPES["c"]), B),
    }


def gram(b: int, s: int, d: int) -> dict:
    """Gather and strict Gram."""
    m, blocks = b * s, uniform_blocks(b, s)
    out, room = np.empty(blocks.gram_words, np.float32), np.empty((m, d), np.float32)
    ways = {}
    for name, (backend, X) in backends(m, d).items():
        next_rows = draws(len(X), m)
        ways[name] = lambda one=backend, X=X, draw=next_rows: one.strict_gram(
            one.gather(X, draw(), room), blocks, out
        )
    shape = {"batch": b, "steps": s, "columns": d}
    return {**shape, **said(turns(ways), "GF_s", 2.0 * blocks.gram_words * d)}


def rows(d: int, m: int = 512) -> dict:
    """Margins and update of rows that no cache holds."""
    blocks, room = uniform_blocks(32, 16), np.empty((m, d), np.float32)
    unrolled = unroll(make_update("sgd", 0.0), [1e-9] * 16, [32] * 16, 0.0)
    w, z = np.zeros((d, 1), np.float32), np.empty((m, 1), np.float32)
    r = np.ones((m, 1), np.float32)
    margins, updates = {}, {}
    for name, (backend, X) in backends(m, d).items():
        draw, plan = draws(len(X), m), backend.prepare(unrolled, blocks)
        margins[name] = lambda one=backend, X=X, draw=draw: one.scores(
            one.gather(X, draw(), room), w, z
        )
        updates[name] = lambda one=backend, X=X, draw=draw, plan=plan: one.apply_update(
            w, one.gather(X, draw(), room), r, plan
        )
    size = 4.0 * m * d
    return {
        "columns": d,
        "margins": said(turns(margins), "fp32_GB_s", size),
        "updates": said(turns(updates), "fp32_GB_s", size),
    }


def recurrence(b: int, s: int) -> dict:
    """The s steps of an exchange, logistic, without a row."""
    m, blocks = b * s, uniform_blocks(b, s)
    unrolled = unroll(make_update("sgd", 0.0), [0.1] * s, [b] * s, 0.0)
    rng = np.random.default_rng(0)
    packed = (1e-3 * rng.standard_normal(blocks.gram_words)).astype(np.float32)
    z = rng.standard_normal((m, 1), dtype=np.float32)
    batch = StepBatch((z > 0).astype(np.float32), None, None)
    family, ways = get_family("logistic"), {}
    for name, kind in (("numpy", HostBackend), ("fp32", NativeBackend)):
        one = kind(RECIPES["fp32"])
        plan = one.prepare(unrolled, blocks)
        ways[name] = lambda one=one, plan=plan: one.corrected_residuals(
            z, packed, plan, family, batch, None
        )
    return {"batch": b, "steps": s, **said(turns(ways), "GB_s", packed.nbytes)}


def direct(recipe: str, d: int = 2000) -> dict:
    """Plain steps of 32 rows, 64 of them a call, each row counted once."""
    from hpcsgd.api import train

    X, _ = matrix(d)
    y = (X[:, 0] > 0).astype(np.float64)
    config = {
        "schedule": {"batch": 32, "steps": 64, "epochs": 3},
        "products": {"kind": "direct"},
        "precision": {"recipe": recipe},
        "rate": {"value": 1e-3},
        "run": {"evaluate_every": 0},
    }
    taken = [train(config, X=X, y=y).report["seconds_total"] / 3 for _ in range(5)]
    seconds = statistics.median(taken)
    size = X.nbytes if recipe == "fp32" else X.nbytes / 2
    return {
        "recipe": recipe,
        "seconds_of_an_epoch": round(seconds, 4),
        "GB_s": round(size / seconds / 1e9, 2),
        "steps_per_second": round(len(X) / 32 / seconds),
    }


def read_bandwidth() -> float:
    """GB/s of one thread."""
    one, two = (np.ones(BYTES // 4, np.float32) for _ in range(2))
    return 2 * BYTES / turns({"read": lambda: one @ two})["read"][0] / 1e9


def tiles(rounds: int = 10**5) -> float:
    """GF/s of AMX tiles that are multiplied in their registers; 0 without them."""
    peak = tile_peak()
    if peak is None:
        return 0.0
    multiplied = peak(rounds)
    seconds = turns({"tiles": lambda: peak(rounds)})["tiles"][0]
    return 2.0 * multiplied / seconds / 1e9


def sgemm(n: int = 1024) -> float:
    """GF/s of BLAS on a square product."""
    A = np.ones((n, n), np.float32)
    return 2.0 * n**3 / turns({"sgemm": lambda: A @ A})["sgemm"][0] / 1e9
