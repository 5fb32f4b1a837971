"""Estimators beside scikit-learn's, and small stores beside their raw size.

Lasso on the 4177 rows and 8 columns of abalone (DATA names the folder of abalone.txt):
CPU milliseconds of a fit, medians of fits in turns, and the objective of each. Huber on
the diabetes data: R² of both, and that of the delta which was the default. Bytes of
stores of 3 x 2 and of 100 x 10000 values.
"""

import os
import tempfile
import time
import warnings
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from sklearn import linear_model
from sklearn.datasets import load_diabetes
from sklearn.preprocessing import StandardScaler

import hpcsgd
from benchmarks.command import hpcsgd as run_command
from benchmarks.peers.problems import read_libsvm
from benchmarks.text_files import REAL

DATA = Path(os.environ.get("DATA", REAL))
REPEATS = 7
ALPHAS = (1e-6, 1e-4, 1e-2)
STORES = ((3, 2), (100, 10_000))
DELTA_BEFORE = 1.35  # in the units of y


def measure() -> dict[str, Any]:
    """Return the figures of all three."""
    return {"lasso": lasso(), "huber": huber(), "stores": stores()}


def lasso() -> list[dict[str, Any]]:
    """Return a row for each penalty."""
    X, y = read_libsvm(DATA / "abalone.txt")
    X = X.astype(np.float64)
    rows = []
    for alpha in ALPHAS:
        models = {
            "hpcsgd": hpcsgd.Ridge(alpha=alpha, l1_ratio=1.0),
            "scikit-learn": linear_model.Lasso(alpha, tol=1e-9, max_iter=100_000),
        }
        times: dict[str, list[float]] = {name: [] for name in models}
        loss, warned = {}, {}
        for _ in range(REPEATS):
            for name, model in models.items():
                with warnings.catch_warnings(record=True) as said:
                    warnings.simplefilter("always")
                    began = time.process_time()
                    model.fit(X, y)
                    times[name].append(1e3 * (time.process_time() - began))
                loss[name], warned[name] = objective(model, X, y, alpha), len(said)
        row = {"alpha": alpha, "cpu_ms": {n: median(t) for n, t in times.items()}}
        rows.append(row | {"objective": loss, "warnings": warned})
        print(rows[-1], flush=True)
    return rows


def objective(model: Any, X: np.ndarray, y: np.ndarray, alpha: float) -> float:
    """Return half the mean square of the residuals and the l1 penalty."""
    residuals = y - model.predict(X)
    return float(residuals @ residuals / (2 * len(y)) + alpha * abs(model.coef_).sum())


def huber() -> dict[str, float]:
    """Return R² on the rows of the fit, which the columns of both are scaled on."""
    X, y = load_diabetes(return_X_y=True)
    X = StandardScaler().fit_transform(X)
    theirs = linear_model.HuberRegressor(alpha=0.0, max_iter=1000)
    models = {
        "hpcsgd": hpcsgd.HuberRegressor(alpha=0.0),
        "scikit-learn": theirs,
        f"hpcsgd, delta = {DELTA_BEFORE}": hpcsgd.HuberRegressor(
            alpha=0.0, delta=DELTA_BEFORE
        ),
    }
    found = {name: float(model.fit(X, y).score(X, y)) for name, model in models.items()}
    print(found, flush=True)
    return found


def stores() -> list[dict[str, int]]:
    """Return bytes of the values in float32 and of the store that holds them."""
    rows = []
    for count, columns in STORES:
        with tempfile.TemporaryDirectory() as folder:
            source, path = Path(folder) / "X.npy", Path(folder) / "store.h5"
            values = np.random.default_rng(0).normal(size=(count, columns + 1))
            np.save(source, values.astype(np.float32))
            words = (str(source), str(path), "--label-column", "0", "--quiet")
            run_command("data", "convert", *words)
            size = path.stat().st_size
        raw = 4 * count * columns
        rows.append({"rows": count, "columns": columns, "raw": raw, "store": size})
        print(rows[-1], flush=True)
    return rows
