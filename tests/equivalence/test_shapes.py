"""Hypothesis draws the shapes: any rows, columns, batch, steps, members."""

from hypothesis import given, settings
from hypothesis import strategies as st

from hpcsgd.products.base import product_facts
from tests.helpers.harness import check_against_oracle, config_for
from tests.helpers.problems import FAMILIES, make_problem


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    family=st.sampled_from(FAMILIES),
    n=st.integers(8, 70),
    d=st.integers(1, 12),
    batch=st.integers(1, 20),
    steps=st.integers(1, 9),
    members=st.integers(1, 4),
    kind=st.sampled_from(["direct", "gram", "gather", "gather-once", "cached"]),
    update=st.sampled_from(["sgd", "nesterov"]),
    rate=st.sampled_from(["constant", "inverse", "cosine"]),
    mode=st.sampled_from(["shuffle-once", "reshuffle", "replacement"]),
)
def test_any_shape(family, n, d, batch, steps, members, kind, update, rate, mode):
    problem = make_problem(family, n=n, d=d)
    config = config_for(
        problem,
        problem={"l2": 0.01, "intercept": True},
        schedule={"batch": batch, "steps": steps},
        update={"kind": update, "momentum": 0.5},
        products={"kind": kind},
        rate={"kind": rate, "value": 0.05, "decay": 0.1},
        sampling={
            "mode": "shuffle-once" if product_facts(kind).keeps_batches else mode
        },
    )
    check_against_oracle(min(members, d), config, problem, 1e-11, offset=True)
