"""Medians, speed-ups and efficiencies, from lines with figures that are easy."""

import json

import pytest

from hpcsgd.cli.study import account_text
from hpcsgd.studies.account import account, is_expected
from hpcsgd.studies.plan import StudyAxes, StudyPlan
from hpcsgd.studies.run import waiting


def ledger(calls, words):
    entry = {"calls": calls, "words": words}
    other = {"calls": 100, "words": 1000}
    return {
        "products": entry,
        "agreement": {"calls": 1, "words": 5},
        "evaluate": other,
        "control": other,
    }


def line_of(point, seconds, **more):
    return {
        "key": point.key,
        "status": "finished",
        "error": None,
        "seconds": seconds,
        "steps": point.steps,
        "loss": 0.5,
        "ledger": ledger(10, 320),
        "expected": {"calls": 11, "words": 325},
        "oversubscribed": False,
        **more,
    }


def found(plan, seconds, **more):
    """The account where `seconds` says how long (method, ranks, repeat) took."""
    lines = {
        point.key: line_of(
            point, seconds[point.method, point.ranks][point.repeat - 1], **more
        )
        for point in plan.runs()
    }
    return account(plan, lines, "there")


def rows(account):
    return {(row.method, row.ranks): row for row in account.rows}


STRONG = {
    ("sgd", 1): (8.0, 9.0, 7.0),
    ("sgd", 4): (4.0, 4.0, 100.0),
    ("casgd", 1): (10.0, 10.0, 10.0),
    ("casgd", 4): (2.0, 2.5, 2.5),
}


def test_strong():
    plan = StudyPlan("strong", (1, 4), rows=100)
    seen = rows(found(plan, STRONG))
    sgd, casgd = seen["sgd", 4], seen["casgd", 4]
    assert (sgd.seconds, sgd.spread, sgd.runs) == (4.0, (4.0, 100.0), 3)
    assert (sgd.speed_up, sgd.efficiency, sgd.speed_up_sgd) == (2.0, 0.5, 2.0)
    assert (sgd.gain, seen["sgd", 1].gain) == (1.0, 1.0)
    assert (casgd.speed_up, casgd.efficiency) == (4.0, 1.0)
    assert (casgd.speed_up_sgd, casgd.gain) == (8 / 2.5, 4 / 2.5)
    assert seen["casgd", 1].speed_up == 1.0 and seen["casgd", 1].gain == 0.8
    assert found(plan, STRONG).best is not None
    assert found(plan, STRONG).best.setting == "casgd/p4/s8/b32/1x4/fp32"


def test_speed_up_and_efficiency_against_the_best_run_on_one_rank():
    """SGD is the faster one on one rank, and CA-SGD is held to it."""
    seen = rows(found(StudyPlan("strong", (1, 4), rows=100), STRONG))
    casgd = seen["casgd", 4]
    assert (casgd.speed_up_one_rank, casgd.efficiency_one_rank) == (3.2, 0.8)
    assert seen["casgd", 1].speed_up_one_rank == 0.8
    assert seen["sgd", 1].speed_up_one_rank == seen["sgd", 1].efficiency_one_rank == 1
    weak = StudyPlan("weak", (1, 4), rows=100, repeats=1)
    took = {("sgd", 1): [8], ("sgd", 4): [16], ("casgd", 1): [10], ("casgd", 4): [10]}
    casgd = rows(found(weak, took))["casgd", 4]
    assert (casgd.speed_up_one_rank, casgd.efficiency_one_rank) == (3.2, 0.8)
    without = StudyPlan("strong", (4,), rows=100)
    lone = found(without, {k: v for k, v in STRONG.items() if k[1] == 4})
    assert all(row.speed_up_one_rank is None for row in lone.rows)
    assert "add 1 to --ranks" in account_text(lone)
    assert "vs 1 rank" in account_text(found(StudyPlan("strong", (1, 4)), STRONG))


def test_no_run_is_held_to_one_on_another_machine():
    """A study that was resumed elsewhere: its one rank ran on an older processor."""
    plan = StudyPlan("strong", (1, 4), rows=100)
    lines = {
        p.key: line_of(
            p,
            STRONG[p.method, p.ranks][p.repeat - 1],
            processor="old" if p.ranks == 1 else "new",
        )
        for p in plan.runs()
    }
    apart = account(plan, lines, "there")
    for row in apart.rows:
        alone = row.ranks == 1
        assert (row.speed_up_one_rank is None) == (row.speed_up_sgd is None) != alone
    assert "speed-ups compare runs on one of them only" in account_text(apart)
    lines = {key: line | {"processor": "new"} for key, line in lines.items()}
    assert rows(account(plan, lines, "there")) == rows(found(plan, STRONG))


def test_a_preempted_run_has_not_failed():
    plan = StudyPlan("strong", (1,), repeats=1)
    lines = {p.key: line_of(p, 2.0) for p in plan.runs()}
    key = next(p.key for p in plan.runs() if p.method == "casgd")
    lines[key] |= {"status": "preempted", "error": "an early end was asked for"}
    whole = account(plan, lines, "there")
    assert whole.failures == ()
    assert json.loads(whole.json())["preempted"] == [
        {"key": key, "status": "preempted"}
    ]
    assert rows(whole)["casgd", 1].seconds is None
    assert [p.key for p in waiting(plan, lines)] == [key], "it runs again"


def test_weak_counts_the_work_that_grew():
    plan = StudyPlan("weak", (1, 4), rows=100, repeats=1)
    took = {("sgd", 1): [8], ("sgd", 4): [16], ("casgd", 1): [10], ("casgd", 4): [10]}
    seen = rows(found(plan, took))
    assert (seen["sgd", 4].speed_up, seen["sgd", 4].efficiency) == (2.0, 0.5)
    assert (seen["casgd", 4].speed_up, seen["casgd", 4].efficiency) == (4.0, 1.0)
    assert (seen["casgd", 4].speed_up_sgd, seen["casgd", 4].gain) == (3.2, 1.6)


def test_the_best_of_a_weak_study_does_most_in_its_time():
    plan = StudyPlan(
        "weak", (1, 4), rows=100, repeats=1, axes=StudyAxes(methods=("casgd",))
    )
    assert found(plan, {("casgd", 1): [10], ("casgd", 4): [30]}).best.ranks == 4
    assert found(plan, {("casgd", 1): [10], ("casgd", 4): [50]}).best.ranks == 1


def test_weak_with_a_batch_that_grows_finds_its_baselines():
    plan = StudyPlan(
        "weak",
        (2, 4),
        rows=100,
        repeats=1,
        batch_grows=True,
        axes=StudyAxes(batch=(32, 64)),
    )
    took = {("sgd", 2): [8], ("sgd", 4): [16], ("casgd", 2): [10], ("casgd", 4): [10]}
    seen = {r.setting: r for r in found(plan, took).rows}
    assert seen["casgd/p4/s8/b64/1x4/fp32"].speed_up == 2.0
    assert seen["casgd/p4/s8/b128/1x4/fp32"].speed_up_sgd == 1.6


def test_the_fewest_ranks_of_a_method_and_its_best_grid():
    plan = StudyPlan("sweep", (4, 8), repeats=1, axes=StudyAxes(methods=("hybrid",)))
    lines = {}
    for point in plan.runs():
        seconds = {(1, 4): 6.0, (2, 2): 4.0, (4, 1): 5.0}.get(point.grid, 2.0)
        lines[point.key] = line_of(point, seconds)
    seen = account(plan, lines, "there").rows
    assert {r.speed_up for r in seen if r.ranks == 8} == {2.0}
    assert {r.efficiency for r in seen if r.ranks == 8} == {1.0}
    assert {r.grid: r.speed_up for r in seen if r.ranks == 4}["1x4"] == 4 / 6
    assert all(r.gain is None and r.speed_up_sgd is None for r in seen), "no sgd"


def test_the_baseline_is_sgd_in_the_first_recipe_at_the_same_batch():
    plan = StudyPlan(
        "strong",
        (1,),
        repeats=1,
        axes=StudyAxes(batch=(8, 16), precision=("fp32", "c")),
    )
    took = {"fp32": {8: 8.0, 16: 16.0}, "c": {8: 2.0, 16: 2.0}}
    lines = {p.key: line_of(p, took[p.recipe][p.batch]) for p in plan.runs()}
    seen = {row.setting: row for row in account(plan, lines, "there").rows}
    assert seen["casgd/p1/s8/b8/1x1/c"].gain == 4.0
    assert seen["casgd/p1/s8/b16/1x1/c"].gain == 8.0


def test_bad_runs_are_counted_and_cost_no_good_one():
    plan = StudyPlan("strong", (1,), repeats=3)
    lines = {p.key: line_of(p, 2.0) for p in plan.runs()}
    keys = [p.key for p in plan.runs() if p.method == "casgd"]
    lines[keys[0]] |= {"status": "diverged", "error": "lower the rate", "seconds": 1}
    lines[keys[1]] |= {"status": "timeout", "error": "late", "seconds": None}
    del lines[keys[2]]
    whole = account(plan, lines, "there")
    row = rows(whole)["casgd", 1]
    assert (row.runs, row.planned, row.seconds) == (1, 3, None)
    assert [bad["key"] for bad in whole.failures] == keys[:2]
    assert (whole.runs, whole.missing) == (3, 1)
    document = json.loads(whole.json())
    assert document["failures"][1] == {
        "key": keys[1],
        "status": "timeout",
        "error": "late",
    }


def test_traffic_is_that_of_training_and_held_against_the_formula():
    plan = StudyPlan("strong", (1,), repeats=2)
    took = {("sgd", 1): (1, 1), ("casgd", 1): (1, 1)}
    row = rows(found(plan, took))["sgd", 1]
    assert (row.calls, row.words, row.expected) == (11, 325, True)
    wrong = {"calls": 11, "words": 326}
    assert rows(found(plan, took, expected=wrong))["sgd", 1].expected is False
    assert rows(found(plan, took, expected=None))["sgd", 1].expected is None


@pytest.mark.parametrize("figure", ["calls", "words"])
def test_one_wrong_ledger_of_many_is_seen(figure):
    good = {"ledger": ledger(10, 320), "expected": {"calls": 11, "words": 325}}
    bad = {**good, "expected": {**good["expected"], figure: 1}}
    assert is_expected([good, good]) is True
    assert is_expected([good, bad]) is False


def test_emulated_settings_are_never_the_best():
    plan = StudyPlan(
        "strong", (1,), emulated=(4,), repeats=1, axes=StudyAxes(methods=("casgd",))
    )
    whole = found(plan, {("casgd", 1): [3], ("casgd", 4): [1]}, loss=None)
    assert whole.best is not None and whole.best.ranks == 1
    assert rows(whole)["casgd", 4].speed_up == 3.0 and whole.rows[0].loss is None


def test_times_without_cores_are_no_baseline_of_others():
    plan = StudyPlan("strong", (2,), emulated=(4,), repeats=1)
    took = {("sgd", 2): 50.0, ("sgd", 4): 8.0, ("casgd", 2): 100.0, ("casgd", 4): 2.0}
    lines = {
        p.key: line_of(p, took[p.method, p.ranks], oversubscribed=p.ranks == 2)
        for p in plan.runs()
    }
    seen = rows(account(plan, lines, "there"))
    assert (seen["casgd", 4].speed_up, seen["casgd", 4].gain) == (1.0, 4.0)
    assert seen["casgd", 4].speed_up_sgd is None
    assert (seen["casgd", 2].speed_up, seen["casgd", 2].gain) == (1.0, 0.5)
    assert seen["casgd", 2].oversubscribed and not seen["casgd", 4].oversubscribed
