"""l1 to the optimum on one process, beside scikit-learn.

Wide sparse rows, most of whose columns have no values, beside liblinear, and softmax
beside saga. Seconds of the processor, medians of fits in turn.
"""

import statistics
import time
import warnings

import numpy as np

REPEATS = 5
STRENGTHS = (1.0, 10.0, 100.0)  # C: larger = more weights that are not 0


def measure() -> list[dict]:
    """One row for each C of wide rows, and one for softmax."""
    figures = [_beside_liblinear(strength) for strength in STRENGTHS]
    figures.append(_beside_saga())
    for row in figures:
        print(row, flush=True)
    return figures


def wide_rows(rows=1000, columns=47117, filled=9738, stored=78000):
    """Rows of text, about: few columns have values, and of very different sizes."""
    from scipy.sparse import csr_matrix

    rng = np.random.default_rng(0)
    places = np.sort(rng.choice(columns, filled, replace=False))
    often = rng.lognormal(0.0, 1.8, filled)
    more = rng.choice(filled, stored - filled, p=often / often.sum())
    column = np.concatenate([more, np.arange(filled)])
    row = rng.integers(0, rows, stored)
    X = csr_matrix((np.ones(stored), (row, column)), shape=(rows, filled)).tocoo()
    values = rng.lognormal(0.0, 0.5, X.nnz) * rng.lognormal(0.0, 1.0, filled)[X.col]
    norms = np.sqrt(np.bincount(X.row, values**2, rows))
    values /= norms[X.row]
    X = csr_matrix((values, (X.row, places[X.col])), shape=(rows, columns))
    w = np.zeros(columns)
    w[rng.choice(places, 200, replace=False)] = 8.0 * rng.normal(size=200)
    y = (rng.random(rows) < 1.0 / (1.0 + np.exp(-(X @ w) - 0.3))).astype(float)
    return X, y


def _beside_liblinear(strength):
    from sklearn.linear_model import LogisticRegression

    import hpcsgd

    X, y = wide_rows()
    alpha = 1.0 / (strength * len(y))

    def objective(model):
        t = X @ model.coef_[0] + model.intercept_[0]
        return np.mean(np.logaddexp(0, t) - y * t) + alpha * abs(model.coef_).sum()

    theirs = LogisticRegression(
        l1_ratio=1, C=strength, solver="liblinear", tol=1e-6, max_iter=1000,
        intercept_scaling=100.0,
    )  # fmt: skip
    row = _beside(
        hpcsgd.LogisticRegression(alpha=alpha, l1_ratio=1), theirs, X, y, objective
    )
    filled = int(np.count_nonzero(np.bincount(X.indices, minlength=X.shape[1])))
    about = {"rows of": "text", "rows": len(y), "columns": X.shape[1], "filled": filled}
    return {**about, "C": strength, "beside": "liblinear", **row}


def _beside_saga():
    from sklearn.datasets import load_digits
    from sklearn.linear_model import LogisticRegression

    import hpcsgd

    X, y = load_digits(return_X_y=True)
    X, alpha = X / 16.0, 2e-3

    def objective(model):
        t = X @ model.coef_.T + model.intercept_
        top = t.max(axis=1)
        losses = np.log(np.exp(t - top[:, None]).sum(axis=1)) + top
        losses -= t[np.arange(len(y)), y]
        return losses.mean() + alpha * abs(model.coef_).sum()

    theirs = LogisticRegression(
        l1_ratio=1, C=1.0 / (alpha * len(y)), solver="saga", tol=1e-4, max_iter=10**4
    )
    row = _beside(
        hpcsgd.LogisticRegression(alpha=alpha, l1_ratio=1), theirs, X, y, objective
    )
    about = {"rows of": "digits", "rows": len(y), "columns": X.shape[1], "classes": 10}
    return {**about, "beside": "saga", **row}


def _beside(ours, theirs, X, y, objective):
    """Seconds, F over the lower of both, and what is not 0; fits in turn."""
    seconds = {"hpcsgd": [], "peer": []}
    ours.fit(X, y)  # everything is imported
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(REPEATS):
            for name, model in (("hpcsgd", ours), ("peer", theirs)):
                began = time.process_time()
                model.fit(X, y)
                seconds[name].append(time.process_time() - began)
    values = {"hpcsgd": objective(ours), "peer": objective(theirs)}
    best = min(values.values())
    row = {}
    for name, model in (("hpcsgd", ours), ("peer", theirs)):
        row[name] = {
            "cpu_seconds": statistics.median(seconds[name]),
            "above": values[name] / best - 1.0,
            "nonzeros": int(np.count_nonzero(model.coef_)),
        }
    row["gap"] = ours.result_.report["gap"]
    row["ratio"] = row["hpcsgd"]["cpu_seconds"] / row["peer"]["cpu_seconds"]
    return row
