"""Agreements that average, against the same in longdouble, and their laws."""

import numpy as np
import pytest

from hpcsgd.agreement.fedavg import draw, drawn_of
from hpcsgd.agreement.nested import Level, label, plan_levels
from hpcsgd.agreement.slowmo import slow_step
from hpcsgd.comm.address import Address, own_address
from hpcsgd.errors import ConfigError
from hpcsgd.result import Status
from tests.harness import config_for, make_problem, relative_error, train_on
from tests.sparse import make_sparse
from tests.swarm import Swarm

ROWS = {
    "average": {"kind": "average"},
    "postlocal": {"kind": "postlocal", "switch": 0.5},
    "hierarchical": {"kind": "hierarchical", "groups": "2,4", "periods": "1,3"},
    "fedavg": {"kind": "fedavg", "fraction": 0.5},
    "slowmo": {"kind": "slowmo", "slow_momentum": 0.6, "slow_rate": 0.8},
    "sharded": {"kind": "slowmo", "slow_momentum": 0.6, "slow_sharded": True},
    "slow hierarchical": {
        **{"kind": "slowmo", "base": "hierarchical", "groups": "2,4"},
        **{"periods": "1,3", "slow_period": 6},
    },
    "slow fedavg": {"kind": "slowmo", "base": "fedavg", "fraction": 0.5},
}


def config_of(problem, row, replicas=4, members=1, period=3, **sections):
    """A run of this row with uneven shards, and an epoch that no period divides."""
    if "hierarchical" in row:
        period = 1
    return config_for(
        problem,
        **{
            "problem": {"intercept": True, "l2": 0.05},
            "schedule": {"batch": 4, "steps": 2, "epochs": 2, "period": period},
            "products": {"kind": "direct" if members == 1 else "gram"},
            "grid": {"replicas": replicas, "members": members},
            "agreement": ROWS[row],
            **sections,
        },
    )


def error_of(problem, config, replicas=4, members=1):
    result = train_on(replicas * members, config, problem)
    assert result.status is Status.COMPLETED
    return relative_error(result, Swarm(config, problem, replicas).run())


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("members, n", [(1, 58), (2, 58), (1, 117)])
def test_equals_the_same_step_by_step(row, members, n):
    """Last batches are smaller, and some replicas have fewer exchanges than others."""
    problem = make_problem("logistic", n=n, d=7)
    config = config_of(problem, row, members=members)
    assert error_of(problem, config, members=members) < 1e-11


@pytest.mark.parametrize("row", ["average", "hierarchical", "fedavg", "sharded"])
@pytest.mark.parametrize("momentum", ["average", "keep", "reset"])
@pytest.mark.parametrize("kind", ["momentum", "nesterov-classic"])
def test_momentum_is_averaged_kept_or_reset(row, momentum, kind):
    problem = make_problem("softmax", n=58, d=5)
    agreement = {**ROWS[row], "momentum": momentum}
    update = {"kind": kind, "momentum": 0.7}
    config = config_of(problem, row, agreement=agreement, update=update)
    assert error_of(problem, config) < 1e-11


@pytest.mark.parametrize("row", ROWS)
def test_sparse_rows_and_gathers(row):
    problem = make_problem("logistic", n=58, d=7)
    dense = config_of(problem, row, 4, 2, products={"kind": "gather"})
    wanted = Swarm(dense, problem, 4).run()
    assert relative_error(train_on(8, dense, problem), wanted) < 1e-11
    sparse = make_sparse("logistic", n=58, d=9)
    config = config_of(sparse, row, 4, 1)
    wanted = Swarm(config, as_dense(sparse), 4).run()
    assert relative_error(train_on(4, config, sparse), wanted) < 1e-11


def as_dense(problem):
    from dataclasses import replace

    return replace(problem, X=np.asarray(problem.X.todense()))
