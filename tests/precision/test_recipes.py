"""What a recipe changes, and how much: loss within 0.5 % of FP32 SGD."""

import numpy as np
import pytest

from tests.helpers.harness import (
    config_for,
    make_problem,
    oracle_for,
    relative_error,
    train_on,
)

PRODUCTS = ["direct", "gram", "gather", "gather-once", "cached"]


def trained(recipe, kind="gram", members=2, **sections):
    problem = make_problem("logistic", n=400, d=24)
    config = config_for(
        problem,
        problem={"l2": 1e-3},
        schedule={"batch": 8, "steps": 4, "epochs": 3},
        products={"kind": kind},
        **{"precision": {"recipe": recipe}, **sections},
    )
    return train_on(members, config, problem), config, problem


@pytest.mark.parametrize("kind", PRODUCTS)
def test_recipe_c_keeps_the_loss(kind):
    low, _, _ = trained("c", kind)
    full, _, _ = trained("fp32", kind)
    assert abs(low.loss - full.loss) <= 0.005 * abs(full.loss)
    assert low.weights.dtype == np.float32


@pytest.mark.parametrize("kind", PRODUCTS)
def test_recipe_c_is_not_full_precision(kind):
    """The low matrix is really low: an error far above fp32's, as bf16's is."""
    result, config, problem = trained("c", kind)
    error = relative_error(result, oracle_for(config, problem))
    assert 1e-5 < error < 2e-2


def test_c_equals_sgd_on_the_rounded_matrix():
    """One rounded matrix serves G and the scores; only fp32 sums are left."""
    from hpcsgd.formats import decode, encode

    result, config, problem = trained("c", precision={"recipe": "c", "margin": "fp32"})
    rounded = decode(encode(problem.X.astype(np.float32), "bf16"), "bf16", np.float64)
    problem = make_problem("logistic", n=400, d=24)
    object.__setattr__(problem, "X", rounded)
    assert relative_error(result, oracle_for(config, problem)) < 1e-5


def test_the_loss_is_that_of_the_data_not_of_its_rounding():
    result, config, problem = trained("c")
    t = problem.X @ result.weights.astype(float)
    direct = np.mean(np.logaddexp(0, t) - problem.y * t)
    direct += 0.5e-3 * np.sum(result.weights.astype(float) ** 2)
    assert result.loss == pytest.approx(direct, rel=1e-12)


@pytest.mark.parametrize("kind", ["gram", "gather"])
def test_a_low_matrix_moves_fewer_bytes_where_rows_travel(kind):
    low, _, _ = trained("c", kind)
    full, _, _ = trained("fp32", kind)
    share = low.ledger["products"]["bytes"] / full.ledger["products"]["bytes"]
    assert share == (0.5 if kind == "gather" else 1.0)


def test_margins_are_stored_low_after_they_are_summed():
    """Sum in fp32, store in bf16: the bits of z, and none where z stays fp32."""
    from types import SimpleNamespace

    from hpcsgd.backends.exchange import store_margins
    from hpcsgd.backends.numpy_rows import HostBackend
    from hpcsgd.precision import RECIPES, make_precision

    z = np.array([[1 + 2**-10], [3 + 2**-12], [-0.1]], dtype=np.float32)
    backend = HostBackend(RECIPES["c"])
    task = SimpleNamespace(precision=RECIPES["c"], backend=backend)
    low = store_margins(task, z.copy())
    assert low.dtype == np.float32 and (low[:2, 0] == [1, 3]).all()
    assert abs(low[2, 0] + 0.1) <= 0.1 * 2**-8 and low[2, 0] != z[2, 0]
    full = make_precision("c", {"margin": "fp32"})
    kept = store_margins(SimpleNamespace(precision=full, backend=backend), z.copy())
    np.testing.assert_array_equal(kept, z)


@pytest.mark.parametrize("kind", PRODUCTS)
def test_a_low_margin_changes_the_iterates(kind):
    low, _, _ = trained("c", kind)
    kept, _, _ = trained("c", kind, precision={"recipe": "c", "margin": "fp32"})
    assert (low.weights != kept.weights).any()
