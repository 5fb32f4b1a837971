"""Settings that do nothing on this grid are said, or refused as on any other."""

import pytest

from hpcsgd.errors import ConfigError
from tests.harness import config_for, make_problem, train_on

PROBLEM = make_problem("logistic", n=12, d=3)


def run(ranks, replicas, **agreement):
    plain = {"schedule": {"steps": 1, "epochs": 1}, "products": {"kind": "direct"}}
    grid = {"replicas": replicas, "members": ranks // replicas}
    tables = {**plain, "grid": grid, "agreement": agreement}
    return train_on(ranks, config_for(PROBLEM, **tables), PROBLEM)


def test_a_method_whose_ranks_are_members_of_one_replica(caplog):
    run(2, 1, method="topk")
    assert "--method topk is for replicas" in caplog.text
    assert "--grid 2x1" in caplog.text
    caplog.clear()
    run(2, 1, kind="average")
    assert "--agreement average is for replicas" in caplog.text


@pytest.mark.parametrize(
    "ranks, replicas, agreement",
    [
        (2, 2, {"method": "topk"}),
        (1, 1, {"method": "topk"}),
        (2, 1, {}),
        (2, 1, {"method": "accordion-batch"}),
    ],
)
def test_nothing_is_said_where_it_does_something(ranks, replicas, agreement, caplog):
    run(ranks, replicas, **agreement)
    assert "is for replicas" not in caplog.text


@pytest.mark.parametrize(
    "method, section, said",
    [
        ("nuqsgd", {"codec": {"bits": 32}}, "bits"),
        ("accordion", {"accordion": {"codec": "bogus"}}, "bogus"),
        ("accordion", {"accordion": {"codec": "topk", "low": "share=2"}}, "share"),
        ("dgc", {"codec": {"feedback": "on"}}, "feedback"),
    ],
)
def test_codecs_are_checked_where_nothing_is_encoded(method, section, said):
    """On one replica; another grid would refuse it."""
    tables = {
        "agreement": {"method": method},
        "schedule": {"steps": 1},
        "products": {"kind": "auto"},
    }
    config = config_for(PROBLEM, **tables, **section)
    with pytest.raises(ConfigError, match=said):
        train_on(1, config, PROBLEM)
