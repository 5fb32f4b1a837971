"""The rows that average, as settings, and runs of them on small problems."""

from tests.helpers.harness import config_for, relative_error, train_on, what_is_read
from tests.helpers.swarm import Swarm

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
    "gossip": {"kind": "gossip"},
    "slow gossip": {"kind": "slowmo", "base": "gossip", "slow_momentum": 0.6},
    "proximal": {"kind": "fedavg", "fraction": 0.5, "proximal": 0.7},
    "slow proximal": {
        **{"kind": "slowmo", "slow_momentum": 0.6, "slow_sharded": True},
        "proximal": 0.7,
    },
}


PLAIN = [row for row, asked in ROWS.items() if "proximal" not in asked]
SLOW = [row for row, asked in ROWS.items() if asked["kind"] == "slowmo"]
CHANGING = {
    "inverse": {"kind": "inverse", "decay": 0.3},
    "inverse-sqrt": {"kind": "inverse-sqrt", "decay": 0.3},
    "cosine": {"kind": "cosine"},
    "warm-up": {"kind": "constant", "warmup": 9},
}


def config_of(drawn, row, replicas=4, members=1, period=3, /, **sections):
    """A run of this row that ends between two agreements, unless its length says so."""
    agreement = dict(ROWS[row])
    if "hierarchical" in row:
        period = 1
        if replicas != 4:
            inner = 2 if replicas > 2 else 1
            agreement["groups"] = f"{inner},{replicas}"
        if replicas == 1:
            agreement |= {"groups": "1", "periods": "3"}
    tables = {
        "problem": {"intercept": True, "l2": 0.05},
        "schedule": {"batch": 4, "steps": 2, "epochs": 2, "period": period},
        "products": {"kind": "direct" if members == 1 else "gram"},
        "grid": {"replicas": replicas, "members": members},
        "agreement": agreement,
    }
    for name, table in sections.items():
        tables[name] = {**tables.get(name, {}), **table}
    return config_for(drawn, **what_is_read(tables, "agreement"))


def error_of(problem, config):
    """Distance of a whole run from the same in longdouble."""
    replicas, members = config.grid.replicas, config.grid.members
    result = train_on(replicas * members, config, problem)
    assert result.status.is_finished
    return relative_error(result, Swarm(config, problem, replicas).run())
