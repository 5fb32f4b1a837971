"""Rows held as CSR train the model of the same rows held dense, by every product."""

from dataclasses import replace

import numpy as np
import pytest

from hpcsgd.backends import numpy_rows
from hpcsgd.products.base import product_facts
from tests.helpers import resumed
from tests.helpers.harness import config_for, oracle_for, relative_error, train_on
from tests.helpers.pairwise import pairwise
from tests.helpers.problems import FAMILIES
from tests.helpers.sparse import as_csr, make_sparse

CHOICES = {
    "family": FAMILIES,
    "update": ("sgd", "momentum", "nesterov", "nesterov-classic"),
    "product": ("direct", "gram", "gather", "gather-once", "cached", "look-ahead"),
    "sampling": ("shuffle-once", "reshuffle", "replacement"),
    "members": (1, 2, 3, 4),
    "data": ("plain", "intercept", "all"),
}
SHAPES = ((48, 4, 3), (53, 4, 3), (41, 7, 5))
HEAVY = (0.0, 0.04, 0.3, 1.0)  # all columns by BLAS; most; some; none


def is_run(row):
    return (
        not product_facts(row["product"]).keeps_batches
        or row["sampling"] == "shuffle-once"
    )


def config_of(row, problem, **precision):
    ahead = row["product"] == "look-ahead"
    _, batch, steps = row["shape"]
    return config_for(
        problem,
        problem={
            "l2": 0.05 if row["data"] == "all" else 0.0,
            "intercept": row["data"] != "plain",
        },
        schedule={"batch": batch, "steps": steps},
        update={"kind": row["update"], "momentum": 0.5},
        sampling={"mode": row["sampling"]},
        products={
            "kind": "gram" if ahead else row["product"],
            "look_ahead": "on" if ahead else "off",
        },
        precision=precision,
        rate={"value": 0.1},
    )


def columns_of(row):
    return {"weights": row["data"] == "all", "offset": row["data"] == "all"}


def name_of(row):
    return "-".join(str(value).replace(" ", "") for value in row.values())


COVERING = [
    {**row, "shape": SHAPES[i % 3], "heavy": HEAVY[i % 4]}
    for i, row in enumerate(filter(is_run, pairwise(CHOICES)))
]


@pytest.mark.cases(42)
@pytest.mark.parametrize("row", COVERING, ids=name_of)
@pytest.mark.cases(3)
def test_float64_equals_sgd(row, monkeypatch):
    monkeypatch.setattr(numpy_rows, "HEAVY", row["heavy"])
    d = 300 if row["shape"][0] == 41 else 17  # of many columns few are touched
    stored, dense = make_sparse(row["family"], row["shape"][0], d, 3.4 / d)
    config, data = config_of(row, stored, recipe="fp64"), columns_of(row)
    result = train_on(row["members"], config, stored, **data)
    assert result.report["sparse"]
    assert relative_error(result, oracle_for(config, dense, **data)) <= 1e-11


# In recipe c a margin whose sum differs in its last bit may be stored as the next bf16
# number, which is no fault of either storage: there margins are stored in fp32.
RECIPES = {
    "fp64": ({}, 1e-12),
    "fp32": ({}, 1e-5),
    "c": ({"margin": "fp32"}, 1e-5),
}


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("row", COVERING[::4], ids=name_of)
def test_storages_agree(row, recipe):
    """What is rounded (bf16) is rounded alike; sums differ in their order alone."""
    stored, dense = make_sparse(row["family"], n=row["shape"][0])
    fields, most = RECIPES[recipe]
    config, data = config_of(row, stored, recipe=recipe, **fields), columns_of(row)
    one = train_on(row["members"], config, stored, **data)
    two = train_on(row["members"], config, dense, **data)
    scale = np.abs(two.weights).max()
    assert np.abs(one.weights - two.weights).max() <= most * scale
    assert one.loss == pytest.approx(two.loss, rel=most)
    assert one.report["data_fingerprint"] == two.report["data_fingerprint"]


@pytest.mark.parametrize("grid", [(2, 1), (2, 2), (3, 2)])
@pytest.mark.parametrize("kind", ["direct", "gram", "gather", "gather-once", "cached"])
def test_grids_of_replicas(grid, kind):
    stored, dense = make_sparse("logistic")
    config = config_for(
        stored,
        products={"kind": kind},
        grid={"replicas": grid[0], "members": grid[1]},
        schedule={"period": 2},
    )
    one, two = (train_on(grid[0] * grid[1], config, p) for p in (stored, dense))
    np.testing.assert_allclose(one.weights, two.weights, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("kind", ["direct", "gram", "gather", "gather-once", "cached"])
def test_columns_of_a_member_may_hold_nothing(kind):
    """Members 2 and 3 have columns without a single value."""
    stored, dense = make_sparse("logistic", d=16)
    X = dense.X.copy()
    X[:, 8:] = 0.0
    config = config_for(stored, products={"kind": kind}, data={"partition": "equal"})
    whole, empty = replace(dense, X=X), replace(dense, X=as_csr(X))
    result = train_on(4, config, empty)
    assert relative_error(result, oracle_for(config, whole)) <= 1e-11


@pytest.mark.parametrize("partition", ["equal", "stored"])
@pytest.mark.parametrize("kind", ["direct", "gram", "gather", "gather-once", "cached"])
def test_any_partition_of_the_columns_gives_the_iterates(kind, partition):
    """Columns of very different weight: members' slices of different width."""
    stored, dense = make_sparse("logistic", d=16)
    X = dense.X * (np.arange(16) % 7 < np.arange(len(dense.X))[:, None] % 8)
    grid = {"replicas": 1, "members": 3}
    sections = {"products": {"kind": kind}, "data": {"partition": partition}}
    config = config_for(stored, grid=grid, **sections)
    result = train_on(3, config, replace(dense, X=as_csr(X)))
    oracle = oracle_for(config, replace(dense, X=X))
    assert relative_error(result, oracle) <= 1e-11


RESUMED = [
    row
    for row in pairwise(
        {
            "product": CHOICES["product"],
            "update": ("sgd", "nesterov"),
            "sampling": CHOICES["sampling"],
            "recipe": ("fp64", "fp32", "c"),
            "grid": ((1, 1), (1, 3), (2, 2)),
        }
    )
    if is_run(row)
]


@pytest.mark.cases(6)
@pytest.mark.parametrize("row", RESUMED, ids=name_of)
@pytest.mark.cases(3)
def test_the_same_ranks_go_on_bit_for_bit(row, tmp_path):
    stored, _ = make_sparse("logistic")
    ahead = row["product"] == "look-ahead"
    sections = {
        "products": {
            "kind": "gram" if ahead else row["product"],
            "look_ahead": "on" if ahead else "off",
        },
        "update": {"kind": row["update"], "momentum": 0.5},
        "sampling": {"mode": row["sampling"], "seed": 5},
        "precision": {"recipe": row["recipe"]},
        "grid": {"replicas": row["grid"][0], "members": row["grid"][1]},
        "schedule": {"batch": 4, "steps": 3, "epochs": 3},
    }
    ranks, at = row["grid"][0] * row["grid"][1], 5
    whole = resumed.run(ranks, stored, tmp_path / "whole", **sections)
    ended = resumed.interrupted(ranks, stored, tmp_path / "cut", at, **sections)
    for one, two in zip(whole, ended, strict=True):
        assert two.report["resumes"] == 1
        assert one.weights.tobytes() == two.weights.tobytes()
        assert resumed.losses(one) == resumed.losses(two)
