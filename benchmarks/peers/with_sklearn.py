"""scikit-learn: SGD epoch by epoch, and every solver by its iterations.

Tolerances are set so small that the number of iterations alone ends a fit.
"""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from sklearn.linear_model import (
    LogisticRegression,
    PoissonRegressor,
    Ridge,
    SGDClassifier,
    SGDRegressor,
)

from benchmarks.peers.problems import Problem
from benchmarks.peers.settings import Setting

TINY = 1e-14
LOGISTIC = ("lbfgs", "newton-cg", "newton-cholesky", "sag", "saga", "liblinear")
POISSON = ("lbfgs", "newton-cholesky")
LEAST_SQUARES = ("cholesky", "sparse_cg", "lsqr", "sag", "saga")
CLASSES = np.array([0.0, 1.0], dtype=np.float32)
Fit = Callable[[Problem, int], np.ndarray]


class SklearnSgd:
    """SGDClassifier or SGDRegressor by partial_fit; it shuffles in every epoch.

    Its own schedules count single rows; a trial that decays lowers eta0 from epoch to
    epoch instead, which is what others do step by step.
    """

    def __init__(
        self, schedule: str, problem: Problem, setting: Setting, seed: int
    ) -> None:
        self.problem, self.setting, self.done = problem, setting, 0
        is_logistic = problem.family == "logistic"
        self.more = {"classes": CLASSES} if is_logistic else {}
        make = SGDClassifier if is_logistic else SGDRegressor
        self.model = make(
            loss="log_loss" if is_logistic else "squared_error",
            alpha=problem.l2,
            fit_intercept=False,
            learning_rate=schedule,
            eta0=setting.get("rate", 0.01),
            average=bool(setting["averages"]),
            random_state=seed,
        )

    def epoch(self) -> None:
        """One partial_fit."""
        if self.setting.get("decays"):
            self.model.set_params(eta0=self.setting["rate"] / (1 + self.done))
        self.model.partial_fit(self.problem.X, self.problem.y, **self.more)
        self.done += 1

    def weights(self) -> np.ndarray:
        """Averaged ones where it averages."""
        return self.model.coef_.ravel()


def solvers(family: str) -> dict[str, Fit]:
    """name -> fit of every solver that minimises this loss."""
    if family == "poisson":
        return {f"PoissonRegressor {s}": partial(_fit, _poisson, s) for s in POISSON}
    if family == "gaussian":
        return {f"Ridge {s}": partial(_fit, _ridge, s) for s in LEAST_SQUARES}
    named = {f"LogisticRegression {s}": partial(_fit, _logistic, s) for s in LOGISTIC}
    dual = partial(_fit, partial(_logistic, dual=True), "liblinear")
    return named | {"LogisticRegression liblinear dual": dual}


def _fit(make: Callable[..., Any], solver: str, problem: Problem, count: int) -> Any:
    """Weights after so many iterations."""
    model = make(solver, problem, count)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it has not converged is what is wanted
        return model.fit(problem.X, problem.y).coef_.ravel()


def _logistic(solver: str, problem: Problem, count: int, dual: bool = False) -> Any:
    return LogisticRegression(
        C=1 / (problem.l2 * len(problem.y)),
        solver=solver,
        max_iter=count,
        tol=TINY,
        fit_intercept=False,
        dual=dual,
        random_state=0,
    )


def _poisson(solver: str, problem: Problem, count: int) -> Any:
    return PoissonRegressor(
        alpha=problem.l2, solver=solver, max_iter=count, tol=TINY, fit_intercept=False
    )


def _ridge(solver: str, problem: Problem, count: int) -> Any:
    return Ridge(
        alpha=problem.l2 * len(problem.y),
        solver=solver,
        max_iter=count,
        tol=TINY,
        fit_intercept=False,
        random_state=0,
    )
