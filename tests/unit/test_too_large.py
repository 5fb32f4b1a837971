"""Targets and offsets that no loss can be computed of: no rate is to blame."""

import numpy as np
import pytest

import hpcsgd
from tests.helpers.harness import run_ranks


def draw():
    X = np.random.default_rng(0).normal(size=(60, 3))
    return X, np.abs(X[:, 0]).round() + 1.0


@pytest.mark.parametrize("family", ["gaussian", "huber", "poisson", "gamma"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_targets_whose_squares_overflow(family, ranks):
    X, y = draw()
    y[41] = 1e200

    def on_rank(world):
        with pytest.raises(hpcsgd.DataError, match=r"y has 1e\+200 at row 41") as error:
            hpcsgd.fit(X, family, y, comm=world, grid=(ranks, 1))
        return str(error.value)

    for sentence in run_ranks(ranks, on_rank):
        assert "divide the targets" in sentence and "rate" not in sentence


@pytest.mark.parametrize(
    ("family", "offset", "most"),
    [("poisson", 800.0, "700"), ("gamma", -1e4, "700"), ("gaussian", 1e200, "1e+150")],
)
def test_offsets_that_leave_the_range(family, offset, most):
    X, y = draw()
    with pytest.raises(
        hpcsgd.DataError, match="offset has .* subtract a const"
    ) as error:
        hpcsgd.fit(X, family, y, offset=np.full(60, offset))
    assert f"above {most};" in str(error.value)


def test_targets_that_less_than_float64_cannot_hold():
    X, y = draw()
    y *= 1e100
    assert hpcsgd.fit(X, "gaussian", y).report["converged"]
    with pytest.raises(hpcsgd.DataError, match="losses overflow above 3.4e"):
        hpcsgd.fit(X, "gaussian", y, precision="fp32")


def test_labels_may_be_any_numbers():
    X, y = draw()
    labels = np.where(y > 1.0, 1e200, -1e200)
    assert hpcsgd.fit(X, "logistic", labels).report["converged"]
