"""Replicas that agree on gradients take the steps of one process on their union."""

from math import ceil

import numpy as np
import pytest

from tests.helpers.gradients import UPDATES, agreed, check
from tests.helpers.harness import (
    make_problem,
    relative_error,
    train_on,
    union_oracle,
)
from tests.helpers.sparse import make_sparse


@pytest.mark.parametrize("replicas", [1, 2, 3, 4, 7])
def test_uneven_shards_are_one_process_on_the_union(replicas):
    """53 rows: batches of different sizes, and replicas that run out of rows."""
    problem = make_problem("logistic")
    for batch in (4, 8, 13):
        config = agreed(problem, replicas, schedule={"batch": batch})
        result = check(problem, config)
        each = ceil(ceil(53 / replicas) / batch)
        assert result.iterations == result.exchanges == 2 * each


@pytest.mark.parametrize("kind", UPDATES)
@pytest.mark.parametrize("family", ["logistic", "softmax"])
def test_updates_intercept_weights_and_offsets(family, kind):
    problem = make_problem(family)
    config = agreed(
        problem,
        3,
        problem={"intercept": True},
        update={"kind": kind, "momentum": 0.5},
        rate={"kind": "cosine", "warmup": 3},
    )
    check(problem, config, weights=True, offset=True)


@pytest.mark.parametrize("kind", ["direct", "gather", "gather-once"])
@pytest.mark.parametrize("family", ["logistic", "softmax"])
def test_members(family, kind):
    """R x C grids, each product that takes single steps, several buckets."""
    problem = make_problem(family)
    for replicas, members in ((2, 2), (3, 2)):
        config = agreed(
            problem,
            replicas,
            members,
            problem={"intercept": True},
            products={"kind": kind},
            agreement={"bucket": 8 * 2 * 2.0**-20},
        )
        check(problem, config)


@pytest.mark.parametrize("accumulate", [2, 3, 50])
@pytest.mark.parametrize("kind", ["direct", "gather-once"])
def test_accumulation_is_a_larger_batch(accumulate, kind):
    """The last message of an epoch has fewer batches, the last batch fewer rows."""
    problem = make_problem("softmax")
    config = agreed(
        problem,
        3,
        products={"kind": kind},
        agreement={"accumulate": accumulate, "bucket": 8 * 5 * 2.0**-20},
        rate={"kind": "inverse", "decay": 0.1},
    )
    result = check(problem, config)
    assert result.iterations == result.exchanges == 2 * ceil(18 / (4 * accumulate))


@pytest.mark.parametrize("family", ["logistic", "softmax"])
def test_sparse_rows(family):
    stored, dense = make_sparse(family)
    for members in (1, 2):
        config = agreed(dense, 2, members, problem={"intercept": True})
        check(dense, config, stored)


def test_buckets_of_every_size_give_the_same(monkeypatch):
    """Seven columns in 1, 2, 4 and 7 tiles: 1e-15 apart at most."""
    problem, found = make_problem("softmax"), []
    for columns in (7, 4, 2, 1):
        bucket = 8 * 4 * columns * 2.0**-20
        result = check(problem, agreed(problem, 3, agreement={"bucket": bucket}))
        assert result.report["agreement"]["buckets"] == ceil(7 / columns)
        found.append(result.weights)
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], rtol=0, atol=1e-14)


@pytest.mark.parametrize("recipe", ["fp32", "c"])
def test_narrower_recipes_through_the_kernels(recipe):
    """Rows that kernels take where they lie, whole and cut into tiles."""
    problem = make_problem("softmax", n=211, d=33)
    expected = None
    for bucket in (4.0, 4 * 4 * 10 * 2.0**-20):
        config = agreed(
            problem,
            2,
            precision={"recipe": recipe},
            agreement={"bucket": bucket},
            problem={"intercept": True},
        )
        result = train_on(2, config, problem)
        expected = expected or union_oracle(config, problem)
        tolerance = 1e-5 if recipe == "fp32" else 2e-2
        assert relative_error(result, expected) <= tolerance


@pytest.mark.parametrize("kind", ["gather", "gather-once"])
@pytest.mark.parametrize(
    "update",
    [
        {"clip": "norm", "clip_at": 0.1},
        {"normalise": True},
        {"centre": "columns"},
        {"noise": 0.1},
    ],
    ids=lambda update: next(iter(update)),
)
def test_a_changed_mean_gradient_is_the_same_where_members_have_all_columns(
    update, kind
):
    """Norms, column means and noise are those of the whole gradient, counted once."""
    problem = make_problem("logistic")

    def weights(product):
        config = agreed(
            problem, 2, 2, update={"kind": "sgd", **update}, products={"kind": product}
        )
        return train_on(4, config, problem).weights

    wanted = weights("direct")
    np.testing.assert_allclose(weights(kind), wanted, rtol=1e-10, atol=1e-13)
