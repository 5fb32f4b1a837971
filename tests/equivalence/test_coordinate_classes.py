"""Softmax with l1: the minimum of an accelerated proximal gradient, and its gap."""

import numpy as np
import pytest
from scipy.sparse import csr_matrix

import hpcsgd
from hpcsgd.comm.threads import run_ranks
from hpcsgd.estimators import LogisticRegression
from tests.helpers.coordinate import descend
from tests.helpers.problems import FAMILIES, make_problem


class Oracle:
    """F of softmax in float64, and FISTA with restarts (Beck and Teboulle, 2009)."""

    def __init__(self, X, y, c, l1, l2, bounds, intercept):
        self.A = np.hstack([X, np.full((len(X), 1), float(intercept))])
        self.Y, self.c = np.eye(int(y.max()) + 1)[y.astype(int)], c / c.sum()
        self.l1, self.l2, self.bounds = l1, l2, bounds

    def value(self, Z):
        t = self.A @ Z
        top = t.max(axis=1)
        losses = np.log(np.exp(t - top[:, None]).sum(axis=1)) + top
        losses -= (t * self.Y).sum(axis=1)
        w = Z[:-1]
        return self.c @ losses + self.l1 * abs(w).sum() + self.l2 / 2 * (w**2).sum()

    def slope(self, Z):
        t = self.A @ Z
        p = np.exp(t - t.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        G = self.A.T @ ((p - self.Y) * self.c[:, None])
        G[:-1] += self.l2 * Z[:-1]
        return G

    def minimise(self, steps=30000):
        root = self.A * np.sqrt(self.c)[:, None]
        L = np.linalg.norm(root, 2) ** 2 / 2 + self.l2
        Z = np.zeros((self.A.shape[1], self.Y.shape[1]))
        Z[:-1] = np.clip(Z[:-1], *self.bounds)
        V, momentum = Z, 1.0
        for _ in range(steps):
            U = V - self.slope(V) / L
            U[:-1] -= np.clip(U[:-1], -self.l1 / L, self.l1 / L)
            U[:-1] = np.clip(U[:-1], *self.bounds)
            if np.vdot(V - U, U - Z) > 0.0:  # it goes uphill
                momentum = 1.0
            after = (1.0 + np.sqrt(1.0 + 4.0 * momentum**2)) / 2.0
            V = U + (momentum - 1.0) / after * (U - Z)
            if abs(U - Z).max() < 1e-15:
                break
            Z, momentum = U, after
        return Z


FREE = (-np.inf, np.inf)
CASES = [
    pytest.param(0.02, 0.0, FREE, True, id="l1"),
    pytest.param(0.02, 0.01, FREE, True, id="elastic net"),
    pytest.param(0.015, 0.0, FREE, False, id="no intercept"),
    pytest.param(0.01, 0.0, (-0.1, 0.4), True, id="bounds"),
]


def of_three_classes(n=90, d=15, seed=1):
    """Columns that are not centred; an odd number of classes has one minimum."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) * (rng.random((n, d)) < 0.6) + 0.5
    W = rng.normal(size=(d, 3)) * (rng.random((d, 1)) < 0.4)
    y = (X @ W + rng.gumbel(size=(n, 3))).argmax(axis=1).astype(float)
    return X, y, rng.uniform(0.5, 2.0, n)


@pytest.mark.parametrize("l1, l2, bounds, intercept", CASES)
@pytest.mark.parametrize("layout", ["alone", "sparse", "rows"])
def test_softmax_ends_where_proximal_gradients_do(l1, l2, bounds, intercept, layout):
    X, y, c = of_three_classes()
    asked = {
        "alpha": l1 + l2,
        "l1_ratio": l1 / (l1 + l2),
        "fit_intercept": intercept,
        "bounds": bounds,
        "tol": 1e-8,
        "classes": [0, 1, 2],
    }

    def on_rank(world):
        rows = slice(world.rank * 40, 40 * (world.rank + 1) if world.rank < 2 else None)
        return hpcsgd.fit(
            X[rows], "softmax", y[rows], sample_weight=c[rows], comm=world,
            layout="rows", **asked,
        )  # fmt: skip

    if layout == "rows":
        found = run_ranks(3, on_rank)
        assert len({one.weights_sha256 for one in found}) == 1
        result = found[0]
    else:
        matrix = csr_matrix(X) if layout == "sparse" else X
        result = hpcsgd.fit(matrix, "softmax", y, sample_weight=c, **asked)
    oracle = Oracle(X, y, c, l1, l2, bounds, intercept)
    best = oracle.minimise()
    F = oracle.value(best)
    Z = np.vstack([result.weights, np.zeros(3)])
    if intercept:
        Z[-1] = result.intercept
    assert oracle.value(Z) == pytest.approx(result.loss, rel=1e-12)
    assert abs(result.loss - F) <= 1e-6 * F
    np.testing.assert_array_equal(result.weights == 0.0, best[:-1] == 0.0)
    np.testing.assert_allclose(result.weights, best[:-1], atol=1e-4)
    assert 0 < np.count_nonzero(result.weights) < result.weights.size
    assert result.report["converged"] and result.report["gap"] <= 1e-8 * F
    for record in result.history:
        assert record["gap"] >= record["loss"] - F - 1e-9


def test_the_estimator_has_a_gap_and_the_support_of_the_minimum():
    X, y, _ = of_three_classes()
    names = np.array(["high", "low", "middle"])[y.astype(int)]
    model = LogisticRegression(alpha=0.02, l1_ratio=1.0).fit(X, names)
    best = Oracle(X, y, np.ones(len(y)), 0.02, 0.0, FREE, True).minimise()
    np.testing.assert_array_equal(model.coef_.T == 0.0, best[:-1] == 0.0)
    report = model.result_.report
    assert report["converged"] and 0.0 <= report["gap"] <= 1e-9 * model.result_.loss


@pytest.mark.parametrize("ranks, steps", [(1, 5), (3, 2), (2, 8)])
@pytest.mark.parametrize("sparse", [False, True])
def test_classes_are_the_same_for_every_number_of_steps(ranks, steps, sparse):
    X, y, c = of_three_classes(n=40, d=6)
    problem = make_problem("softmax", n=40, d=6)
    problem = type(problem)(**{**vars(problem), "X": X, "y": y, "weights": c})
    one, other = (
        descend(
            problem,
            count,
            X=csr_matrix(X) if sparse else None,
            problem={"family": "softmax", "l1": 0.02, "l2": 0.01, "intercept": True},
            schedule={"batch": 2, "steps": s, "epochs": 3},
        )
        for count, s in ((1, 1), (ranks, steps))
    )
    np.testing.assert_allclose(other.weights, one.weights, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(other.intercept, one.intercept, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("intercept", [False, True])
def test_gaps_with_l1_alone_are_no_less_than_what_is_left(family, intercept):
    """At every look of every family, and small at the end; no ridge helps."""
    problem = make_problem(family, n=50, d=8)
    result = descend(
        problem,
        2,
        problem={"family": family, "l1": 0.03, "intercept": intercept},
        schedule={"batch": 1, "steps": 4, "epochs": 100},
        coordinate={"tol": 1e-13, "form": "newton"},
    )
    assert result.report["coordinate"]["ended"] == "converged"
    for record in result.history:
        assert record["gap"] >= (record["loss"] - result.loss) * (1 - 1e-9) - 1e-14
    assert result.history[0]["gap"] > 1e-3
