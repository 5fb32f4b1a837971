"""The profile: every rank's seconds, their mean, and who was slowest."""

import json

import pytest

from hpcsgd.comm.threads import run_ranks
from hpcsgd.runs.report import compare_ranks
from tests.helpers.harness import config_for, make_problem, train_on

FIGURES = {"seconds", "share", "us_per_exchange", "slowest_seconds", "slowest_rank"}


def profiled(ranks=2, **sections):
    problem = make_problem("logistic")
    sections["run"] = {"profile": True, **sections.get("run", {})}
    return train_on(ranks, config_for(problem, **sections), problem)


def test_mean_share_and_the_slowest_rank():
    rows = compare_ranks([{"a": 1.0, "b": 1.0}, {"a": 3.0}, {"a": 2.0}], exchanges=4)
    assert rows["a"]["seconds"] == pytest.approx(2.0)
    assert rows["a"]["slowest_seconds"] == 3.0 and rows["a"]["slowest_rank"] == 1
    assert rows["a"]["us_per_exchange"] == pytest.approx(5e5)
    assert rows["b"]["seconds"] == pytest.approx(1 / 3), "ranks without it count as 0"
    assert rows["a"]["share"] == pytest.approx(6 / 7)
    assert rows["b"]["share"] == pytest.approx(1 / 7)


def test_nothing_measured_divides_by_nothing():
    rows = compare_ranks([{"a": 0.0}], exchanges=0)
    assert rows["a"]["share"] == 0.0 and rows["a"]["us_per_exchange"] == 0.0


def test_it_is_in_the_report_only_when_asked_for():
    problem = make_problem("logistic")
    assert "profile" not in train_on(2, config_for(problem), problem).report
    assert "profile" in profiled().report


def test_the_sections_of_a_run():
    result = profiled()
    profile = result.report["profile"]
    assert set(profile) == {"whole", "training", "communication", "setup"}
    assert set(profile["whole"]) == {"setup", "training", "evaluate"}
    assert set(profile["setup"]) == {"open", "read", "build", "warm_up"}
    assert set(profile["communication"]) == set(result.ledger)
    assert {"gram", "communicate", "inner", "other"} <= set(profile["training"])
    assert "evaluate" not in profile["training"]
    for rows in profile.values():
        assert sum(row["share"] for row in rows.values()) == pytest.approx(1.0)
        for row in rows.values():
            assert set(row) == FIGURES
            assert row["seconds"] <= row["slowest_seconds"]
            assert row["slowest_rank"] in (0, 1)


def test_the_parts_add_up():
    profile = profiled().report["profile"]
    for part in ("training", "setup"):
        parts = sum(row["seconds"] for row in profile[part].values())
        assert parts == pytest.approx(profile["whole"][part]["seconds"])


def test_every_rank_gets_the_same_and_the_document_holds_it():
    problem = make_problem("logistic")
    config = config_for(problem, run={"profile": True})

    def on_rank(world):
        from hpcsgd.api import train

        return train(config, X=problem.X, y=problem.y, world=world)

    first, second = run_ranks(2, on_rank)
    assert first.report["profile"] == second.report["profile"]
    assert json.loads(first.json())["profile"] == first.report["profile"]


def test_agreements_stand_in_other_and_in_their_purpose():
    profile = profiled(4, grid={"replicas": 2}).report["profile"]
    assert profile["communication"]["agreement"]["seconds"] > 0.0
    assert profile["training"]["other"]["seconds"] > 0.0
