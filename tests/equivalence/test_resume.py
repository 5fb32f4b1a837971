"""A run that was interrupted ends where an undisturbed one ends.

With the same ranks bit for bit; with other members or another product to 1e-10.
"""

import numpy as np
import pytest

from hpcsgd.api import train
from hpcsgd.products.base import product_facts
from hpcsgd.runs.result import Status
from tests.helpers.harness import config_for, make_problem, oracle_for, relative_error
from tests.helpers.pairwise import pairwise
from tests.helpers.resumed import PREEMPTED_AT, interrupted, losses, run

FACTORS = {
    "product": ["direct", "gram", "gather", "gather-once", "cached", "look-ahead"],
    "update": ["sgd", "momentum", "nesterov", "nesterov-classic"],
    "sampling": ["shuffle-once", "reshuffle", "replacement"],
    "recipe": ["fp64", "fp32", "c"],
    "family": ["logistic", "softmax"],
    "intercept": [True, False],
    "grid": [(1, 1), (1, 3), (2, 1), (3, 2)],
    "period": [1, 3],
    "rate": ["constant", "inverse", "cosine"],
}


def sections_of(case):
    """The case as sections, or None where it is no run."""
    if (
        product_facts(case["product"]).keeps_batches
        and case["sampling"] != "shuffle-once"
    ):
        return None
    look_ahead = case["product"] == "look-ahead"
    return {
        "problem": {"family": case["family"], "intercept": case["intercept"]},
        "products": {
            "kind": "gram" if look_ahead else case["product"],
            "look_ahead": "on" if look_ahead else "off",
        },
        "update": {"kind": case["update"], "momentum": 0.5},
        "sampling": {"mode": case["sampling"], "seed": 5},
        "precision": {"recipe": case["recipe"]},
        "grid": {"replicas": case["grid"][0], "members": case["grid"][1]},
        "schedule": {"batch": 4, "steps": 3, "epochs": 3, "period": case["period"]},
        "rate": {"kind": case["rate"], "value": 0.2, "decay": 0.01},
    }


CASES = [case for case in pairwise(FACTORS) if sections_of(case)]


@pytest.mark.cases(3)
@pytest.mark.parametrize(
    "case", CASES, ids=lambda c: "-".join(str(v).replace(" ", "") for v in c.values())
)
def test_the_same_ranks_go_on_bit_for_bit(case, tmp_path):
    sections = sections_of(case)
    problem = make_problem(case["family"])
    ranks = case["grid"][0] * case["grid"][1]
    whole = run(ranks, problem, tmp_path / "whole", **sections)[0]
    # Replicas hold fewer rows, so that a run is shorter on them.
    at = min(PREEMPTED_AT, whole.exchanges - 1)
    results = interrupted(ranks, problem, tmp_path / "parts", at, **sections)
    assert {r.weights_sha256 for r in results} == {whole.weights_sha256}
    again = results[0]
    assert again.loss == whole.loss
    assert losses(again) == losses(whole)
    assert again.iterations == whole.iterations
    assert again.report["resumes"] == 1
    check_ledgers(case["product"], at, again, whole)


def check_ledgers(product, at, again, whole):
    """Only what had to be summed twice is counted twice."""
    a, b = again.ledger, whole.ledger
    assert a["agreement"]["calls"] == b["agreement"]["calls"]
    if product != "look-ahead" and not product_facts(product).keeps_batches:
        assert a["products"]["words"] == b["products"]["words"]
        assert a["products"]["calls"] == b["products"]["calls"]
    else:
        assert a["products"]["calls"] >= b["products"]["calls"]


@pytest.mark.parametrize(
    "product", ["direct", "gram", "gather", "gather-once", "cached"]
)
@pytest.mark.parametrize("members", [1, 2, 5])
def test_other_members_and_products_go_on_to_1e_10(product, members, tmp_path):
    problem = make_problem("logistic")
    common = {
        "update": {"kind": "momentum", "momentum": 0.5},
        "problem": {"intercept": True, "l2": 1e-3},
    }
    run(3, problem, tmp_path, stop_at=PREEMPTED_AT, **common)
    sections = {**common, "products": {"kind": product}}
    result = run(members, problem, tmp_path, **sections)[0]
    assert result.status is Status.COMPLETED
    config = config_for(problem, **sections)
    assert relative_error(result, oracle_for(config, problem)) <= 1e-10


def test_other_replicas_go_on_from_the_mean(tmp_path):
    """Not the same run any more, and said so: but no step of the work is lost."""
    problem = make_problem("logistic", n=200)
    schedule = {"batch": 4, "steps": 3, "epochs": 4, "period": 4}
    first = run(
        4, problem, tmp_path, stop_at=7, schedule=schedule, grid={"replicas": 2}
    )[0]
    result = run(2, problem, tmp_path, schedule=schedule)[0]
    assert result.status is Status.COMPLETED
    # 9 exchanges an epoch of 100 rows became 17 of 200 rows: 7/9 of an epoch are done
    began = next(r for r in result.history if r["exchanges"] > 7)
    assert began["exchanges"] == 17
    assert result.exchanges == 4 * 17
    assert result.loss < first.loss


def test_the_mean_is_weighed_by_rows(tmp_path):
    """Replicas that were apart are averaged as an agreement would have done it."""
    from hpcsgd.runs.checkpoint import CheckpointStore

    problem = make_problem("logistic", n=53)
    sections = {
        "schedule": {"batch": 4, "steps": 1, "epochs": 2, "period": 100},
        "agreement": {"kind": "average"},
    }
    first = run(2, problem, tmp_path, stop_at=5, grid={"replicas": 2}, **sections)[0]
    _, checkpoint = CheckpointStore(tmp_path, 2).newest()
    copies = checkpoint.arrays["weights"]
    assert copies.shape == (2, 7, 1)
    assert (copies[0] != copies[1]).any()
    mean = (27 * copies[0] + 26 * copies[1]) / 53
    np.testing.assert_allclose(first.weights, mean[:, 0], rtol=1e-14)


def test_checkpoints_change_no_bit(tmp_path):
    problem = make_problem("logistic")
    without = run(3, problem, tmp_path / "a", update={"kind": "momentum"})[0]
    often = run(
        3,
        problem,
        tmp_path / "b",
        update={"kind": "momentum"},
        checkpoint={"every": 1},
    )[0]
    assert often.weights_sha256 == without.weights_sha256
    assert often.report["checkpoints_written"] == often.exchanges == 10
    assert often.ledger["products"]["calls"] == without.ledger["products"]["calls"]


DECAYS = {"kind": "milestones", "milestones": [1, 2.5], "value": 0.2}


@pytest.mark.parametrize("agreement", ["average", "gradient"])
def test_milestones_stay_where_they_are_in_a_longer_run(agreement, tmp_path):
    """They are epochs: three of them, then five, are five from the start."""
    problem, sections = make_problem("logistic"), {"rate": DECAYS}
    sections |= {"agreement": {"kind": agreement}, "products": {"kind": "direct"}}
    steps = {"batch": 4, "steps": 1}
    whole = run(2, problem, tmp_path / "w", schedule={**steps, "epochs": 5}, **sections)
    run(2, problem, tmp_path / "p", schedule={**steps, "epochs": 3}, **sections)
    again = run(2, problem, tmp_path / "p", schedule={**steps, "epochs": 5}, **sections)
    assert again[0].weights_sha256 == whole[0].weights_sha256
    assert again[0].exchanges == whole[0].exchanges
    other = {**sections, "rate": {"value": 0.2}}
    plain = run(2, problem, tmp_path / "c", schedule={**steps, "epochs": 5}, **other)
    assert plain[0].weights_sha256 != whole[0].weights_sha256


OTHER = [
    ({"rate": {**DECAYS, "milestones": [2]}}, "milestones"),
    ({"rate": {**DECAYS, "factor": 0.5}}, "factor"),
    ({"rate": {"value": 0.3}}, "rate"),
    ({"schedule": {"batch": 5}}, "batch"),
    ({"schedule": {"steps": 2}}, "steps"),
    ({"update": {"kind": "sgd"}}, "kind"),
    ({"sampling": {"seed": 1}}, "seed"),
    ({"precision": {"recipe": "fp32"}}, "recipe"),
    ({"problem": {"l2": 0.1}}, "l2"),
    ({"rate": {"kind": "cosine"}, "schedule": {"epochs": 9}}, "epochs"),
]


@pytest.mark.parametrize("change, named", OTHER, ids=[named for _, named in OTHER])
def test_another_run_is_refused_and_the_setting_named(change, named, tmp_path):
    from hpcsgd.errors import ConfigError

    problem = make_problem("logistic")
    first = {"update": {"kind": "momentum"}, "rate": {"kind": "constant"}}
    if named == "epochs":
        first["rate"] = {"kind": "cosine"}
    if named in ("milestones", "factor"):
        first["rate"] = DECAYS
    run(2, problem, tmp_path, stop_at=3, **first)
    with pytest.raises(ConfigError, match=rf"\b{named}\b.*--resume no"):
        run(2, problem, tmp_path, **{**first, **change})


def test_other_data_is_refused(tmp_path):
    from hpcsgd.errors import DataError

    run(2, make_problem("logistic"), tmp_path, stop_at=3)
    other = make_problem("logistic")
    other.X[17, 3] += 1e-9
    with pytest.raises(DataError, match="not what this run was started on"):
        run(2, other, tmp_path)


def test_what_resume_may_name(tmp_path):
    from hpcsgd.errors import ConfigError, DataError

    problem = make_problem("logistic")
    run(1, problem, tmp_path / "a", stop_at=4)
    whole = run(1, problem, tmp_path / "whole")[0]
    (path,) = (tmp_path / "a" / "checkpoints").iterdir()
    for name in (path, tmp_path / "a"):
        result = run(1, problem, tmp_path / "b", resume=str(name))[0]
        assert result.weights_sha256 == whole.weights_sha256
        assert result.report["resumes"] == 1
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="does not exist"):
        run(1, problem, tmp_path / "b", resume=str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="holds no checkpoints"):
        run(1, problem, tmp_path / "b", resume=str(tmp_path / "empty"))
    with pytest.raises(DataError, match="not a checkpoint"):
        run(1, problem, tmp_path / "b", resume=str(tmp_path / "a" / "result.h5"))
    with pytest.raises(ConfigError, match="add --out"):
        train({"run": {"resume": "auto"}}, X=problem.X, y=problem.y)


def test_going_back_makes_the_older_way_the_newest(tmp_path):
    """An older checkpoint by name: what came after it is of a way not taken."""
    problem = make_problem("logistic")
    checkpoint = {"every": 1, "keep": 9}
    run(1, problem, tmp_path, stop_at=6, checkpoint=checkpoint)
    (old,) = (tmp_path / "checkpoints").glob("*-exchange-000000003.h5")
    run(1, problem, tmp_path, stop_at=5, resume=str(old), checkpoint=checkpoint)
    names = [p.name[7:] for p in sorted((tmp_path / "checkpoints").iterdir())]
    assert names[5:] == [f"exchange-00000000{n}.h5" for n in (6, 4, 5)]
    assert run(1, problem, tmp_path)[0].report["resumes"] == 2


def test_a_finished_run_has_nothing_left_to_do(tmp_path):
    problem = make_problem("logistic")
    first = run(2, problem, tmp_path)[0]
    again = run(2, problem, tmp_path)[0]
    assert again.status is Status.COMPLETED
    assert again.weights_sha256 == first.weights_sha256
    assert losses(again) == losses(first)


def test_a_finished_run_can_be_made_longer(tmp_path):
    problem = make_problem("logistic")
    long, short = {"batch": 4, "steps": 3, "epochs": 5}, {"epochs": 2}
    run(2, problem, tmp_path / "a", schedule={**long, **short}, resume="no")
    longer = run(2, problem, tmp_path / "a", schedule=long)[0]
    whole = run(2, problem, tmp_path / "b", schedule=long)[0]
    assert longer.weights_sha256 == whole.weights_sha256


def test_a_diverged_run_goes_back_to_the_same_weights(tmp_path):
    """What was the last good model is in the checkpoint too."""
    problem = make_problem("gaussian")
    sections = {
        "rate": {"value": 30.0, "kind": "constant"},
        "schedule": {"batch": 4, "steps": 3, "epochs": 40},
    }
    whole = run(2, problem, tmp_path / "whole", **sections)[0]
    assert whole.status is Status.DIVERGED
    again = interrupted(2, problem, tmp_path / "parts", 2, **sections)[0]
    assert again.status is Status.DIVERGED
    assert again.weights_sha256 == whole.weights_sha256
    assert again.loss == whole.loss


def test_what_agreements_keep_is_saved_and_put_back(tmp_path, monkeypatch):
    """Arrays that an agreement leaves in the state: its error feedback, say."""
    from hpcsgd.agreements import AGREEMENTS
    from hpcsgd.agreements.averaging import Average

    class Leaky(Average):
        """Keeps a tenth of what it sees, and adds it the next time."""

        def after_exchange(self, state, exchanges):
            kept = state.memory["leak"]
            state.weights += kept
            kept[...] = 0.1 * state.weights
            super().after_exchange(state, exchanges)

        def prepare(self, state):
            state.memory["leak"] = np.zeros_like(state.weights)

    monkeypatch.setitem(AGREEMENTS, "average", Leaky)
    problem = make_problem("logistic")
    sections = {"grid": {"replicas": 2, "members": 2}, "schedule": {"period": 2}}
    whole = run(4, problem, tmp_path / "whole", **sections)[0]
    again = interrupted(4, problem, tmp_path / "parts", 3, **sections)[0]
    assert again.weights_sha256 == whole.weights_sha256
