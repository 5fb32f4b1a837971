"""`hpcsgd train --plan`: who chose each setting, what is sent, held and taken."""

import re

import pytest

from hpcsgd.api import plan_training, train
from hpcsgd.comm.threads import run_ranks
from hpcsgd.config import RunConfig, agreement_settings
from hpcsgd.runs.plan import AUTOMATIC, OF_GPUS
from hpcsgd.settings import declarations
from tests.helpers.harness import make_problem

PROBLEM = make_problem("logistic", n=53, d=7)
SGD = {"rate": {"value": 0.1}, "schedule": {"batch": 4, "steps": 3, "epochs": 2}}


def plan_on(ranks, config):
    return run_ranks(
        ranks, lambda world: plan_training(config, PROBLEM.X, PROBLEM.y, world=world)
    )[0]


def train_on(ranks, config):
    return run_ranks(
        ranks, lambda world: train(config, X=PROBLEM.X, y=PROBLEM.y, world=world)
    )[0]


def settings_of(plan):
    return {one.name: one for one in plan.settings}


# Settings: named, default or chosen.


def test_each_setting_has_who_chose_it_and_why():
    config = {
        "rate": {"value": "auto"},
        "schedule": {"batch": 4},
        "agreement": {"method": "slowmo"},
    }
    one = settings_of(plan_on(2, config))
    assert one["schedule.batch"].source == "named"
    assert one["schedule.epochs"].source == "default"
    assert one["grid.replicas"].value == 2
    assert one["grid.replicas"].reason == (
        "--method slowmo is for replicas, so that each rank is one"
    )
    assert one["agreement.kind"].reason == "method slowmo"
    assert one["schedule.period"].reason == "method slowmo"
    assert one["rate.value"].reason == "1/L, with the curvature L of the longest row"
    assert one["run.defaults"].reason == "rate.value is a setting of SGD"
    assert {entry.source for entry in one.values()} == {"named", "default", "chosen"}
    for entry in one.values():
        assert bool(entry.reason) == (entry.source == "chosen"), entry


def test_the_cost_model_says_what_it_compared():
    config = {"schedule": {"batch": 4, "steps": "auto"}, "rate": {"value": 0.1}}
    shown = settings_of(plan_on(2, config))
    assert shown["schedule.steps"].source == shown["products.kind"].source == "chosen"
    tried = "1, 2, 3, 4, 6, 8, 10, 12"
    assert shown["schedule.steps"].reason == f"least predicted time of {tried}"
    assert re.match(
        "least predicted time of direct, gram", shown["products.kind"].reason
    )


def test_a_run_that_names_no_setting_of_sgd_has_the_defaults_of_fit():
    shown = settings_of(plan_on(1, {"problem": {"l2": 0.5}}))
    assert shown["run.defaults"].value == "fit"
    assert shown["run.defaults"].reason == "no setting of SGD is named"
    assert shown["problem.l2"].source == "named"
    assert shown["problem.intercept"].source == "default"
    assert shown["schedule.epochs"].value == 0
    reason = "Newton's method takes few passes for"
    assert shown["schedule.epochs"].reason.startswith(reason)
    assert shown["polish.kind"].reason == shown["schedule.epochs"].reason
    assert shown["rate.value"].reason == "no step is taken"


# No value that stands for another is shown.

RESOLVED = {
    **{"schedule.steps": 0, "schedule.epochs": -1},
    **{"rate.value": 0.0, "precision.recipe": "auto", "privacy.noise": 0.0},
}
STANDS_FOR = re.compile(
    r"\b(0|empty) (takes (?!all epochs)|derives|finds|measures|means)"
)
READING = {  # a configuration for each group of settings with an automatic value
    "sgd": {"schedule": {"steps": "auto"}, "rate": {"value": "auto"}},
    "pilots": {"precision": {"recipe": "auto"}, **SGD},
    "fp16": {"precision": {"recipe": "fp16"}, **SGD},
    "topk": {"agreement": {"method": "topk"}},
    "threshold": {"agreement": {"method": "threshold"}},
    "wangni": {"agreement": {"method": "wangni"}},
    "accordion": {"agreement": {"method": "accordion"}},
    "hierarchical": {
        "agreement": {"method": "hierarchical", "groups": "1,2"},
        "grid": {"replicas": 2, "members": 1},
    },
    "slowmo": {"agreement": {"method": "slowmo"}},
    "privacy": {
        "agreement": {"method": "ddp"},
        "privacy": {"kind": "dp-sgd", "epsilon": 8.0},
        "sampling": {"seed": 3},
    },
    "anybatch": {"agreement": {"method": "anybatch"}, "mirror": {"kind": "p-norm"}},
    "entropy": {"agreement": {"method": "anybatch"}, "mirror": {"kind": "entropy"}},
    "infinity": {"agreement": {"method": "infinity"}},
    "clip": {"update": {"clip": "norm", "clip_over": "exchange"}},
    "coordinate": {"update": {"kind": "coordinate"}},
    "polish": {"polish": {"kind": "auto"}, **SGD},
    "fit": {"problem": {"family": "logistic"}},
}


def declared_settings():
    """section.key -> what it declares, for all kinds of agreement."""
    kinds = {name: type(section) for name, section in vars(RunConfig()).items()}
    declared = {
        f"{section}.{key}": one
        for section, kind in kinds.items()
        for key, one in declarations(kind).items()
    }
    for key, (_, kind) in agreement_settings().items():
        declared[f"agreement.{key}"] = declarations(kind)[key]
    return declared


def values_that_stand_for_another():
    """section.key -> such a value, by the help of each setting."""
    found = {}
    for name, one in declared_settings().items():
        if one.auto is not None:
            found[name] = one.auto
        elif one.default == "auto" or STANDS_FOR.search(one.help):
            found[name] = one.default
    return found


def automatic_settings():
    """section.key -> the value that a plan replaces."""
    declared = declared_settings()
    automatic = {name: declared[name].default for name in AUTOMATIC}
    for name, one in declared.items():
        if one.becomes is not None:
            automatic[name] = (
                one.default if one.placeholder is None else one.placeholder
            )
    return automatic | RESOLVED


def test_every_automatic_setting_is_replaced_by_what_it_becomes(tmp_path):
    automatic = automatic_settings()
    assert values_that_stand_for_another().items() <= automatic.items()
    seen = set()
    for name, config in READING.items():
        run = {"out": str(tmp_path / "run")} if name == "infinity" else {}
        ranks = 1 if name == "pilots" else 2
        plan = plan_on(ranks, {**config, "run": {**run, "gap_every": 0}})
        for one in plan.settings:
            stands = automatic.get(one.name, "auto")
            assert one.value != stands or one.value is False, (name, one)
            if one.source == "chosen":
                assert one.reason, (name, one)
        seen |= {one.name for one in plan.settings}
    assert set(automatic) - seen == set(OF_GPUS) - {"run.share_gpus"}
    assert list(tmp_path.iterdir()) == []


# What is sent is what the ledger of the run counts.


@pytest.mark.parametrize(
    ("ranks", "more"),
    [
        (2, {"products": {"kind": "gram"}, "run": {"gap_every": 2}}),
        (2, {"products": {"kind": "gram"}, "run": {"reproducible": True}}),
        (4, {"products": {"kind": "cached"}, "grid": {"replicas": 2, "members": 2}}),
        (2, {"agreement": {"method": "zero2"}, "schedule": {"batch": 4, "epochs": 2}}),
    ],
    ids=["monitored", "reproducible", "averages", "slices"],
)
def test_words_and_calls_are_those_of_the_run(ranks, more):
    config = {**SGD, **more}
    sends = plan_on(ranks, config).sends
    result = train_on(ranks, config)
    assert sends.exchanges == result.exchanges and not sends.unknown
    for purpose, count in sends.counts.items():
        assert count == {key: result.ledger[purpose][key] for key in count}
    assert sends.counts["products"]["words"] + sends.counts["agreement"]["words"] > 0


def test_what_data_decide_is_said_to_be_unknown():
    plan = plan_on(2, {"agreement": {"method": "threshold"}})
    assert "agreement" in plan.sends.unknown and "agreement" not in plan.sends.counts
    assert "agreement    not known: the data" in str(plan)


def test_a_run_that_resumes_sends_what_is_left(tmp_path):
    run = {"out": str(tmp_path / "run")}
    config = {**SGD, "products": {"kind": "gram"}, "run": run}
    done = train_on(2, config)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    longer = {**config, "schedule": {**SGD["schedule"], "epochs": 4}}
    plan = plan_on(2, {**longer, "run": {**run, "resume": "auto"}})
    assert (plan.first, plan.last) == (done.exchanges, 2 * done.exchanges)
    assert plan.sends.counts["products"]["calls"] == done.exchanges
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert after == before


# What is held and taken.


def test_the_bytes_of_a_rank_add_up():
    holds = dict(plan_on(2, {**SGD, "products": {"kind": "gram"}}).holds)
    total = holds.pop("total")
    assert total == sum(holds.values())
    assert holds["matrix"] >= 53 * 3 * 4 and holds["process"] > 2**20


def test_seconds_are_those_of_a_machine_that_was_measured(tmp_path):
    open_steps = {"schedule": {"batch": 4, "steps": "auto"}, "rate": {"value": 0.1}}
    takes = plan_on(2, open_steps).takes
    assert takes.step is None and str(takes).startswith("not predicted: the machine")
    path = str(tmp_path / "machine.json")
    plan = plan_on(2, {**open_steps, "products": {"machine": path}})
    steps = settings_of(plan)["schedule.steps"].value
    assert plan.takes.figures == path and plan.takes.step > 0
    assert plan.takes.exchange == pytest.approx(steps * plan.takes.step)


def test_the_document_says_what_the_text_says():
    plan = plan_on(2, {**SGD, "products": {"kind": "gram"}})
    document = plan.as_dict()
    entry = document["settings"]["products"]["kind"]
    assert entry == {"value": "gram", "source": "named", "reason": ""}
    words = document["sends"]["products"]["words"]
    assert f"{words} words" in str(plan)
    assert '[products] kind = "gram"' in str(plan)
