"""CPU seconds of a choice of the penalty by five folds, beside scikit-learn's.

Seven penalties and the same folds for all. One process for each fit, one thread, in
turns; the first fit of a process is not counted. Medians of `TURNS`. `loss` is the mean
loss of the chosen model on the rows that it has not seen.

python -m benchmarks.run bench_cv
"""

import json
import os
import subprocess
import sys
import time
import warnings
from statistics import median

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np  # noqa: E402

from benchmarks.fit_problems import LOSSES, PROBLEMS  # noqa: E402

TURNS, FITS = 3, 3
ALPHAS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
CHOSEN = ("cancer", "higgs", "diabetes", "abalone", "digits")


def measure() -> list[dict]:
    """Return a row for each problem and method."""
    rows = []
    for name in CHOSEN:
        if not PROBLEMS[name].is_there:
            continue
        names = list(methods(PROBLEMS[name].family))
        found: dict[str, list] = {one: [] for one in names}
        for _ in range(TURNS):
            for one in names:
                found[one].append(child(name, one))
        for one, runs in found.items():
            row = {"problem": name, "method": one, "alpha": runs[0]["alpha"]}
            row["loss"] = runs[0]["loss"]
            for unit in ("cpu_ms", "wall_ms"):
                row[unit] = median(run[unit] for run in runs)
            print(row, flush=True)
            rows.append(row)
    return rows


def methods(family):
    """Return the functions (X, y, folds) -> alpha of every method for a family."""
    known = {"GLM_CV": lambda X, y, cv: _glm_cv(family, X, y, cv)}
    if family == "gaussian":
        return known | {"RidgeCV": _ridge}
    solvers = ("lbfgs", "newton-cholesky", "newton-cg")
    return known | {
        f"LogisticRegressionCV {solver}": _logistic(solver) for solver in solvers
    }


def _glm_cv(family, X, y, cv):
    from hpcsgd import GLM_CV

    return GLM_CV(family=family, alphas=ALPHAS, cv=cv).fit(X, y).alpha_


def _ridge(X, y, cv):
    from sklearn.linear_model import RidgeCV

    # Its penalty counts the rows of a fold's model: those of four folds of five.
    rows = 0.8 * len(y)
    scoring = "neg_mean_squared_error"
    model = RidgeCV(alphas=[a * rows for a in ALPHAS], cv=cv, scoring=scoring)
    return float(model.fit(X, y).alpha_) / rows


def _logistic(solver):
    def fit(X, y, cv):
        from sklearn.linear_model import LogisticRegressionCV

        rows = 0.8 * len(y)
        model = LogisticRegressionCV(
            Cs=[1 / (a * rows) for a in ALPHAS],
            cv=cv,
            scoring="neg_log_loss",
            solver=solver,
            max_iter=20_000,
        ).fit(X, y)
        return float(np.ravel(model.C_)[0]) ** -1 / rows

    return fit


def child(problem: str, method: str) -> dict:
    """Return what a process of its own measures."""
    words = [sys.executable, "-m", "benchmarks.bench_cv", problem, method]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def in_child(name: str, method: str) -> dict:
    """Choose the penalty of a problem some times."""
    from sklearn.model_selection import KFold

    warnings.simplefilter("ignore")
    problem = PROBLEMS[name]
    choose = methods(problem.family)[method]
    X, y = problem.make()
    folds = list(KFold(5, shuffle=True, random_state=0).split(X))
    choose(X, y, folds)
    spent = []
    for _ in range(FITS):
        cpu, wall = time.process_time(), time.perf_counter()
        alpha = choose(X, y, folds)
        spent.append((time.process_time() - cpu, time.perf_counter() - wall))
    cpu, wall = (1e3 * median(one) for one in zip(*spent, strict=True))
    near = min(ALPHAS, key=lambda one: abs(np.log(one / alpha)))
    loss = held_loss(problem.family, X, y, folds, near)
    return {"cpu_ms": cpu, "wall_ms": wall, "alpha": near, "loss": loss}


def held_loss(family, X, y, folds, alpha) -> float:
    """Return the mean over folds of the loss on the rows that are held out."""
    import hpcsgd

    losses = []
    for kept, held in folds:
        model = hpcsgd.fit(X[kept], family, y[kept], alpha=alpha)
        weights, intercept = np.asarray(model.weights), model.intercept
        losses.append(LOSSES[family](X[held] @ weights + intercept, y[held]).mean())
    return float(np.mean(losses))


if __name__ == "__main__":
    print(json.dumps(in_child(*sys.argv[1:])))
