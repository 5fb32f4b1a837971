"""Losses are those of the targets, weights and offsets that were given.

Steps in float32 have them rounded. Where a target is large beside its noise that is
another problem, with another optimum: no loss, bound or polished model may be of it.
"""

import numpy as np
import pytest

from hpcsgd.comm.threads import run_ranks
from hpcsgd.estimators.fit import fit
from hpcsgd.solvers.full_passes import FINEST

L2, ROWS = 1e-2, 60


def draw():
    """Targets of which float32 keeps no more than the noise's first digit."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(ROWS, 3)).astype(np.float32)
    offset = 1e4 * rng.uniform(1.0, 2.0, size=ROWS)
    y = offset + 0.01 * (X @ [1.0, -2.0, 3.0] + rng.normal(size=ROWS))
    return X, y, rng.uniform(0.1, 3.0, size=ROWS), offset


def loss_of(weights, X, y, c, offset):
    """F in float64, or wider, from what was given."""
    wide = np.promote_types(X.dtype, np.float64)
    residuals = X.astype(wide) @ weights.astype(wide) + offset - y
    return np.average(np.square(residuals), weights=c) / 2 + L2 / 2 * weights @ weights


def hessian_of(X, y, c, offset):
    X, p = X.astype(np.float64), c / c.sum()
    return (X * p[:, None]).T @ X + L2 * np.eye(3)


def gradient_of(weights, X, y, c, offset):
    """The gradient of F, in the format of what was given."""
    return X.T @ (c / c.sum() * (X @ weights + offset - y)) + L2 * weights


def optimum_of(X, y, c, offset):
    p = c / c.sum()
    right = X.astype(np.float64).T @ (p * (y - offset))
    return np.linalg.solve(hessian_of(X, y, c, offset), right)


@pytest.mark.parametrize(("ranks", "grid"), [(1, "1x1"), (2, "1x2"), (2, "2x1")])
@pytest.mark.parametrize("how", [{"polish": True}, {"solver": "coordinate"}])
def test_the_optimum_is_that_of_the_data(ranks, grid, how):
    X, y, c, offset = data = draw()
    grid = None if "solver" in how else grid
    found = run_ranks(
        ranks,
        lambda world: fit(
            X,
            "gaussian",
            y,
            sample_weight=c,
            offset=offset,
            alpha=L2,
            fit_intercept=False,
            comm=world,
            grid=grid,
            tol=1e-9,
            precision="fp32",
            **how,
        ),
    )[0]
    best = optimum_of(*data)
    assert np.linalg.norm(found.weights - best) <= 1e-5 * np.linalg.norm(best)
    assert found.loss == pytest.approx(loss_of(found.weights, *data), rel=1e-9)


def test_a_gap_is_never_below_the_truth():
    """But by what float64 sums can show of F; the truth is taken in longdouble."""
    X, y, c, offset = data = draw()
    wide = tuple(part.astype(np.longdouble) for part in data)
    found = fit(
        X,
        "gaussian",
        y,
        sample_weight=c,
        offset=offset,
        alpha=L2,
        fit_intercept=False,
        polish=True,
    )
    best = optimum_of(*data).astype(np.longdouble)
    best -= np.linalg.solve(hessian_of(*data), gradient_of(best, *wide).astype(float))
    above = loss_of(found.weights, *wide) - loss_of(best, *wide)
    assert 0.0 <= above <= found.report["gap"] + FINEST * found.loss
    assert found.report["gap"] <= 1e-11
    assert found.loss == pytest.approx(loss_of(found.weights, *data), rel=1e-9)
