"""The problems of bench_fit: their rows, their objectives, and F in float64.

All of them minimise

    F(w, β) = Σ c_i ℓ(a_i·w + β + o_i, y_i) / Σ c_i + l1 ‖w‖₁ + (l2/2) ‖w‖²

with an intercept β, which is not penalised. Rows are float64. Real sets are those of
scikit-learn, and LIBSVM files of the folder of real data; the others are drawn with a
seed in the shape of a published set.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from benchmarks.text_files import REAL


@dataclass(frozen=True)
class FitProblem:
    """One problem: how its rows are made, and what is minimised on them."""

    family: str  # logistic, gaussian, poisson, gamma, softmax
    make: Callable[[], tuple]  # -> X, y
    l2: float = 1e-4
    l1: float = 0.0
    file: str = ""  # a LIBSVM file that has to be there
    fits_hessian: bool = True  # a dense matrix of all pairs of columns, in memory

    @property
    def is_there(self) -> bool:
        """Return whether its rows can be had."""
        return not self.file or (REAL / self.file).exists()


def objective(problem: FitProblem, X, y, weights, intercept) -> float:
    """Return F in float64, from textbook formulas; y as the family has it."""
    w = np.asarray(weights, np.float64)
    b = np.asarray(intercept, np.float64)
    penalty = problem.l1 * np.abs(w).sum() + 0.5 * problem.l2 * np.square(w).sum()
    scores = X @ w + b
    return float(LOSSES[problem.family](scores, y).mean() + penalty)


def _softmax(scores, y):
    top = scores.max(axis=1)
    total = np.log(np.exp(scores - top[:, None]).sum(axis=1)) + top
    return total - scores[np.arange(len(y)), y.astype(int)]


LOSSES = {
    "logistic": lambda t, y: np.logaddexp(0.0, np.where(y > 0, -t, t)),
    "gaussian": lambda t, y: 0.5 * np.square(t - y),
    "poisson": lambda t, y: np.exp(t) - y * t,
    "gamma": lambda t, y: y * np.exp(-t) + t,
    "softmax": _softmax,
}


# Rows that are drawn: correlated columns of different size, as measurements have.


def _columns(rng, rows, columns, correlation=0.5):
    X = rng.standard_normal((rows, columns))
    X[:, 1:] += correlation * X[:, :-1]
    return X * np.exp(rng.uniform(-0.7, 0.7, columns))


def dense(family, rows, columns, nonzero=None, seed=0, classes=7):
    """Return a maker of dense rows with targets of a family."""

    def make():
        rng = np.random.default_rng(seed)
        X = _columns(rng, rows, columns)
        w = rng.standard_normal(columns) / np.sqrt(nonzero or columns)
        if nonzero is not None:
            w[rng.permutation(columns)[nonzero:]] = 0.0
        t = X @ w / (X @ w).std()
        return X, _targets(rng, family, t, X, classes)

    return make


def _targets(rng, family, t, X, classes):
    if family == "logistic":
        return (rng.uniform(size=len(t)) < 1 / (1 + np.exp(-2 * t))).astype(float)
    if family == "poisson":
        return rng.poisson(np.exp(0.5 * t - 1.0)).astype(float)
    if family == "gamma":
        return rng.gamma(2.0, np.exp(0.5 * t) / 2.0) + 1e-3
    if family == "softmax":
        W = rng.standard_normal((X.shape[1], classes)) / np.sqrt(X.shape[1])
        return (X @ W + rng.gumbel(size=(len(X), classes))).argmax(axis=1).astype(float)
    return t + 0.5 * rng.standard_normal(len(t))


def claims():
    """Insurance claims: counts, seven numbers and four one-hot columns of levels."""
    rng = np.random.default_rng(3)
    rows = 163_000
    numbers = rng.standard_normal((rows, 7))
    levels = [np.eye(k)[rng.integers(0, k, rows)][:, 1:] for k in (11, 22, 6, 2)]
    X = np.hstack([numbers, *levels])
    t = X @ (0.2 * rng.standard_normal(X.shape[1])) - 2.3
    return X, rng.poisson(np.exp(t)).astype(float)


def sparse_rows(rows, columns, each, seed=0):
    """Return a maker of sparse rows of about `each` values, as words of texts."""

    def make():
        rng = np.random.default_rng(seed)
        counts = np.maximum(rng.poisson(each, rows), 1)
        # A few columns are in many rows, most in few.
        places = (columns * rng.uniform(size=counts.sum()) ** 3).astype(np.int64)
        number = np.repeat(np.arange(rows), counts)
        values = rng.uniform(0.5, 1.5, counts.sum())
        X = sparse.csr_matrix((values, (number, places)), shape=(rows, columns))
        X = sparse.diags(1 / np.sqrt(X.multiply(X).sum(axis=1).A1)) @ X
        w = rng.standard_normal(columns) * (rng.uniform(size=columns) < 0.1)
        t = X @ w
        y = rng.uniform(size=rows) < 1 / (1 + np.exp(-4 * t / t.std()))
        return sparse.csr_matrix(X), y.astype(float)

    return make


def libsvm(name):
    """Return a maker of the rows of a LIBSVM file: sparse, labels 0 and 1."""

    def make():
        from sklearn.datasets import load_svmlight_file

        X, y = load_svmlight_file(str(REAL / name))
        is_label = len(np.unique(y)) == 2
        return sparse.csr_matrix(X), (y > 0).astype(float) if is_label else y

    return make


def abalone():
    """Age from eight measurements, as dense columns."""
    X, y = libsvm("abalone.txt")()
    return X.toarray(), y


def of_sklearn(name, squares=False):
    """Return a maker of a set that scikit-learn brings along, columns of size 1."""

    def make():
        from sklearn import datasets, preprocessing

        X, y = getattr(datasets, f"load_{name}")(return_X_y=True)
        if squares:
            X = preprocessing.PolynomialFeatures(2, include_bias=False).fit_transform(X)
        X = preprocessing.StandardScaler().fit_transform(X)
        return X, y.astype(float)

    return make


PROBLEMS = {
    "higgs": FitProblem("logistic", dense("logistic", 7000, 28)),
    "claims": FitProblem("poisson", claims),
    "abalone": FitProblem("gaussian", abalone, 1e-3, file="abalone.txt"),
    "covtype": FitProblem("softmax", dense("softmax", 58_000, 54)),
    "a9a": FitProblem("logistic", libsvm("a9a.txt"), file="a9a.txt"),
    "w1a": FitProblem("logistic", libsvm("w1a.txt"), file="w1a.txt"),
    "cancer": FitProblem("logistic", of_sklearn("breast_cancer"), 1e-2),
    "diabetes": FitProblem("gaussian", of_sklearn("diabetes", squares=True), 1e-2),
    "digits": FitProblem("softmax", of_sklearn("digits"), 1e-3),
    "costs": FitProblem("gamma", dense("gamma", 20_000, 30)),
    "wide": FitProblem("logistic", dense("logistic", 200_000, 500)),
    "words": FitProblem(
        "logistic", sparse_rows(100_000, 50_000, 60), 1e-5, fits_hessian=False
    ),
    "higgs-l1": FitProblem("logistic", dense("logistic", 7000, 28), 0.0, 1e-2),
    "lasso": FitProblem("gaussian", dense("gaussian", 5000, 500, 30), 0.0, 1e-2),
    "elastic": FitProblem("gaussian", dense("gaussian", 2000, 2000, 50), 5e-3, 5e-3),
    "words-l1": FitProblem("logistic", sparse_rows(1000, 47_117, 70), 0.0, 1e-3),
}
