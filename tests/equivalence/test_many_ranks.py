"""Up to eight ranks, sizes that divide by none of them."""

import pytest

from tests.helpers.harness import check_against_oracle, config_for, train_on
from tests.helpers.problems import make_problem


@pytest.mark.parametrize("members", [5, 6, 7, 8])
@pytest.mark.parametrize("kind", ["direct", "gram", "gather", "gather-once", "cached"])
def test_members(members, kind):
    problem = make_problem("poisson", n=53, d=11)
    config = config_for(problem, products={"kind": kind}, rate={"value": 0.05})
    check_against_oracle(members, config, problem, 1e-11)


@pytest.mark.parametrize("replicas, members", [(2, 3), (3, 2), (2, 4), (7, 1), (8, 1)])
def test_grids_do_not_depend_on_members(replicas, members):
    """The same replicas with one member each learn the same model."""
    problem = make_problem("logistic", n=53, d=11)

    def model(count):
        config = config_for(
            problem,
            problem={"intercept": True},
            grid={"replicas": replicas, "members": count},
        )
        return train_on(replicas * count, config, problem).weights

    assert abs(model(members) - model(1)).max() < 1e-12
