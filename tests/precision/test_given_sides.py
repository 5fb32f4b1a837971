"""Losses are those of the targets, weights and offsets that were given.

Steps in float32 have them rounded. Where a target is large beside its noise that is
another problem, with another optimum: no loss, bound or polished model may be of it.
"""

import numpy as np
import pytest

from hpcsgd.comm.threads import run_ranks
from hpcsgd.estimators.fit import fit

L2, ROWS = 1e-2, 60


def draw():
    """Targets of which float32 keeps no more than the noise's first digit."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(ROWS, 3)).astype(np.float32)
    offset = 1e4 * rng.uniform(1.0, 2.0, size=ROWS)
    y = offset + 0.01 * (X @ [1.0, -2.0, 3.0] + rng.normal(size=ROWS))
    return X, y, rng.uniform(0.1, 3.0, size=ROWS), offset


def loss_of(weights, X, y, c, offset):
    """F in float64, from what was given."""
    residuals = X.astype(np.float64) @ weights + offset - y
    return np.average(np.square(residuals), weights=c) / 2 + L2 / 2 * weights @ weights


def optimum_of(X, y, c, offset):
    X, p = X.astype(np.float64), c / c.sum()
    H = (X * p[:, None]).T @ X + L2 * np.eye(3)
    return np.linalg.solve(H, X.T @ (p * (y - offset)))


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
    """What is left of it is far less than what rounding adds to these losses."""
    X, y, c, offset = data = draw()
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
    above = loss_of(found.weights, *data) - loss_of(optimum_of(*data), *data)
    assert above * (1.0 - 1e-6) <= found.report["gap"] <= 1e-11
    assert found.loss == pytest.approx(loss_of(found.weights, *data), rel=1e-9)
