"""A run that another grid goes on with is a run like others: it goes on bit for bit."""

import pytest

from hpcsgd.config import METHODS
from tests.helpers.gradients import in_folder
from tests.helpers.harness import config_for, make_problem, what_is_read

FEW = ("anybatch", "alq", "local")  # by default; anybatch in a test of its own, too


def config_of(problem, name, replicas):
    """Momentum where the row has none of its own, rows in another order each epoch."""
    row, asked = METHODS[name], {"method": name, "bucket": 2.0**-15}
    if name == "hierarchical":
        asked |= {"groups": "node,all", "periods": "1,3"}
    if name == "anybatch":
        asked |= {"rounds": "full", "accumulate": 2}
    if name == "accordion-batch":
        asked |= {"accumulate": 2}
    if name in ("qadam", "onebit-adam"):
        asked |= {"warmup_steps": 3}
    adam = name in ("qadam", "onebit-adam", "infinity")
    update = {"kind": "adam"} if adam else {"kind": "momentum", "momentum": 0.5}
    period = 3 if "schedule.period" in row.defaults else 1
    tables = {
        "agreement": asked,
        "codec": {"share": 0.2, "start": 2, "min_rate": 0, "adapt": 3},
    }
    return config_for(
        problem,
        **what_is_read(tables, *tables),
        schedule={"batch": 4, "steps": 1, "epochs": 3, "period": period},
        products={"kind": "auto"},
        problem={"intercept": True, "l2": 0.05},
        update={} if "update.kind" in row.fixed and not adam else update,
        grid={"replicas": replicas, "members": 1},
        rate={"value": 0.01 if adam else 0.1},
        sampling={"mode": "reshuffle"},
        run={"evaluate_every": 0},
    )


@pytest.mark.parametrize(
    "name",
    [n if n in FEW else pytest.param(n, marks=pytest.mark.full) for n in METHODS],
)
def test_three_began_two_go_on_and_again(name, tmp_path):
    problem, found = make_problem("softmax", n=96, d=7), set()
    two = config_of(problem, name, 2)
    for stop in (None, 17):
        place = tmp_path / str(stop)
        in_folder(place, config_of(problem, name, 3), 3, problem, stop=4)
        if stop:
            first = in_folder(place, two, 2, problem, stop=stop)[0]
            assert first.status.value == "preempted"
        found |= {r.weights_sha256 for r in in_folder(place, two, 2, problem)}
    assert len(found) == 1
