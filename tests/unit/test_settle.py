"""The plan of a run: decided once, from facts alone, and changed by nobody later."""

from dataclasses import replace

import numpy as np
import pytest

from hpcsgd.api import train
from hpcsgd.comm.threads import run_ranks
from hpcsgd.config import RunConfig
from hpcsgd.errors import ConfigError
from hpcsgd.products.base import ReplicaSize
from hpcsgd.products.cost import CostInputs, Machine, Overheads, ValueBytes
from hpcsgd.runs import build as assembly
from hpcsgd.runs.machine import MeasuredFigures
from hpcsgd.runs.settle import (
    ChoiceFacts,
    EarlierChoice,
    MachineFacts,
    ProblemSize,
    settle,
)
from tests.helpers.harness import make_problem

JOB = CostInputs(
    replica=ReplicaSize(
        rows=40_000,
        columns=2000,
        local_columns=500,
        members=4,
    ),
    value_bytes=ValueBytes(
        matrix=4,
        gram_wire=4,
        margin_sum=4,
    ),
    batch=32,
    epochs=10,
    comes_again=False,
)
SLOW_NETWORK = Machine(latency=1.0)
FREE_NETWORK = Machine(
    latency=0.0, per_byte=0.0, overheads=Overheads(exchange=1.0, step=0.0)
)


def facts(machine=None, **more):
    """Facts on a run whose product and steps the cost model decides."""
    known = None if machine is None else MachineFacts(MeasuredFigures(machine), "given")
    job = None if machine is None else JOB
    return ChoiceFacts(members=4, latency=0.0, job=job, machine=known, **more)


def config_of(**sections):
    tables = {"rate": {"value": 0.1}, "schedule": {"batch": 32, "epochs": 10}}
    for name, table in sections.items():
        tables[name] = {**tables.get(name, {}), **table}
    return RunConfig.parse(tables)


def test_what_is_named_is_what_runs():
    named = {"kind": "gram", "look_ahead": "on"}
    config = config_of(products=named, schedule={"steps": 4})
    plan = settle(config, facts())
    assert plan.config == config and not plan.reasons
    assert (plan.choice.product, plan.choice.steps) == ("gram", 4)


def test_the_cost_model_decides_by_the_figures_of_the_machine():
    config = config_of(schedule={"steps": "auto"})
    slow, free = (settle(config, facts(one)) for one in (SLOW_NETWORK, FREE_NETWORK))
    assert slow.choice.product != "direct" and slow.config.schedule.steps > 1
    assert free.choice.product == "direct"
    assert "least predicted time of" in slow.reasons["products.kind"]
    assert slow.config.products.kind == slow.choice.product
    assert free.config.products.look_ahead == "off"
    assert free.reasons["products.look_ahead"] == "direct has no Gram to send ahead"
    assert slow.choice.figures == "given"


def test_corrections_of_the_machine_file_count():
    config = config_of(schedule={"steps": 8})
    first = settle(config, facts(SLOW_NETWORK)).choice.product
    figures = MeasuredFigures(SLOW_NETWORK, {first: 1e6})
    known = replace(facts(SLOW_NETWORK), machine=MachineFacts(figures, "given", "key"))
    plan = settle(config, known)
    assert plan.choice.product != first and plan.choice.key == "key"


def test_an_open_rate_is_that_of_the_curvature():
    plan = settle(config_of(rate={"value": "auto"}), facts(steepness=4.0))
    assert plan.config.rate.value == 0.25
    assert plan.reasons["rate.value"].startswith("1/L")


def test_a_rate_per_batch_is_scaled_once():
    config = config_of(rate={"value": 0.1, "per_batch": 16})
    plan = settle(config, facts(steepness=1.0))
    assert plan.config.rate.value == pytest.approx(0.2)
    assert settle(plan.config, facts(steepness=None)).config == plan.config


def test_l1_behind_every_step_leaves_one_step_of_an_exchange():
    config = config_of(problem={"l1": 0.1}, schedule={"steps": "auto"})
    plan = settle(config, facts(SLOW_NETWORK))
    assert plan.config.schedule.steps == 1
    assert plan.reasons["schedule.steps"] == "l1 and bounds act behind every step"


@pytest.mark.parametrize("members, product", [(4, "cached"), (2, "direct")])
def test_a_run_that_goes_on_keeps_its_product_on_as_many_members(members, product):
    earlier = EarlierChoice("cached", 16, look_ahead=False, members=members)
    config = config_of(schedule={"steps": "auto"})
    plan = settle(config, replace(facts(FREE_NETWORK), earlier=earlier))
    assert (plan.choice.product, plan.config.schedule.steps) == (product, 16)


@pytest.mark.parametrize("machine", [None, FREE_NETWORK])
def test_steps_of_an_earlier_run_have_that_as_their_reason(machine):
    """On other members the product is chosen again, and the steps are kept."""
    earlier = EarlierChoice("cached", 16, look_ahead=False, members=4)
    job = replace(JOB, replica=replace(JOB.replica, members=1, local_columns=64))
    alone = replace(facts(machine), members=1, job=job, earlier=earlier)
    plan = settle(config_of(schedule={"steps": "auto"}), alone)
    assert plan.config.schedule.steps == 16
    assert plan.reasons["schedule.steps"] == "as the run that resumes"
    assert plan.reasons["products.kind"] != "as the run that resumes"


@pytest.mark.parametrize(
    "update, bound",
    [
        ({}, ", and at most 2/L"),
        ({"kind": "momentum", "momentum": 0.75}, ", and at most 0.5/L"),
        ({"kind": "adam"}, ""),
        ({"normalise": True}, ""),
    ],
)
def test_a_scaled_rate_names_the_bound_that_it_has(update, bound):
    config = config_of(
        rate={"value": 0.1, "per_batch": 16},
        update=update,
        agreement={"kind": "gradient"},
        grid={"replicas": 2},
    )
    plan = settle(config, facts(steepness=1.0))
    reason = plan.reasons["rate.value"]
    assert reason == f"scaled from 16 to 64 rows a step{bound}"


def test_shared_gradients_take_one_step_of_an_exchange():
    config = config_of(agreement={"method": "ddp"}, grid={"replicas": 4})
    plan = settle(config, facts())
    assert (plan.choice.product, plan.config.schedule.steps) == ("direct", 1)


def test_a_product_without_the_gradient_of_a_step_is_not_clipped():
    named = config_of(
        products={"kind": "gram"}, schedule={"steps": 4}, update={"clip": "norm"}
    )
    with pytest.raises(ConfigError, match="clip = 'norm' needs the gradient"):
        settle(named, facts())
    auto = config_of(schedule={"steps": 4}, update={"clip": "norm"})
    assert settle(auto, facts(SLOW_NETWORK)).choice.product in ("direct", "gather")


# After `settle` no configuration is made, whatever runs.

RUNS = [
    {"products": {"kind": "gram"}, "schedule": {"steps": 4}},
    {"schedule": {"steps": "auto"}, "rate": {"value": "auto"}},
    {"agreement": {"method": "ddp"}},
    {"agreement": {"method": "powersgd"}},
    {"agreement": {"method": "slowmo"}, "schedule": {"steps": 2}},
    {"agreement": {"method": "zero3"}},
    {"polish": {"kind": "auto"}},
    {"run": {"fall_back": True, "gap_every": 2}, "schedule": {"steps": 4}},
    {"update": {"kind": "svrg"}},
    {"average": {"kind": "tail"}},
    {"rate": {"value": 100.0}, "run": {"fall_back": False}},  # is told what to do
]


@pytest.mark.parametrize("more", RUNS, ids=str)
def test_no_configuration_is_made_after_the_plan(more, monkeypatch):
    problem = make_problem("logistic", n=53, d=7)
    tables = {"schedule": {"batch": 4, "epochs": 2}, "rate": {"value": 0.1}}
    for name, table in more.items():
        tables[name] = {**tables.get(name, {}), **table}
    config, made, plans = RunConfig.parse(tables), [], []
    whole, make = assembly.settle, RunConfig.__init__

    def settle_and_watch(*given):
        plan = whole(*given)
        monkeypatch.setattr(RunConfig, "__init__", count)
        plans.append(plan)
        return plan

    def count(self, *given, **named):
        made.append(named)
        make(self, *given, **named)

    monkeypatch.setattr(assembly, "settle", settle_and_watch)

    def on_rank(world):
        with np.errstate(all="ignore"):
            return train(config, X=problem.X, y=problem.y, world=world)

    result = run_ranks(1, on_rank)[0]
    assert len(plans) == 1 and not made
    assert result.config["rate"] == plans[0].config.tables()["rate"]


OF_FIT = {
    "schedule": {"epochs": "auto"},
    "polish": {"kind": "auto"},
    "rate": {"value": "auto"},
    "average": {"kind": "tail"},
}


@pytest.mark.parametrize(
    "known, epochs, kind",
    [
        ({"variables": 30}, 0, "newton"),
        ({"variables": 300, "is_sparse": True, "is_in_memory": True}, 0, "auto"),
        ({"variables": 5000, "is_in_memory": True}, 0, "auto"),
        ({"variables": 5000}, 5, "auto"),
    ],
    ids=["few", "sparse", "in memory", "on a disk"],
)
def test_how_a_fit_goes_to_the_optimum(known, epochs, kind):
    """By Newton at once, by L-BFGS at once, or by steps of SGD first."""
    plan = settle(config_of(**OF_FIT), facts(steepness=2.0, size=ProblemSize(**known)))
    assert plan.config.schedule.epochs == epochs
    assert plan.config.polish.kind == kind
    assert plan.reasons["schedule.epochs"]
    assert (plan.config.average.kind == "none") == (epochs == 0)
    assert not plan.config.rate.is_open


def test_no_epoch_without_a_refinement_is_refused():
    for epochs in (0, "auto"):
        with pytest.raises(ConfigError, match="nothing else trains the model"):
            train(config_of(schedule={"epochs": epochs}), X=np.eye(3), y=np.ones(3))
