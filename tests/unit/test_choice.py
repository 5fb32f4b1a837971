"""Steps and products that are left open: measured, said, kept by a run that goes on."""

import math
import threading

import numpy as np
import pytest

from hpcsgd.api import train
from hpcsgd.comm.ledger import Clock
from hpcsgd.comm.threads import run_ranks
from hpcsgd.config import RunConfig, read_toml
from hpcsgd.data.readers import MemoryReader
from hpcsgd.errors import ConfigError
from hpcsgd.products.cost import Machine, Overheads, machine_from
from hpcsgd.runs import machine, settle
from hpcsgd.runs.build import build
from hpcsgd.runs.machine import MachineFile, MeasuredFigures, measure_machine
from hpcsgd.runs.progress import Callback, SlowerThanExpected
from hpcsgd.solvers.callbacks import Request, View
from tests.helpers.harness import (
    config_for,
    make_problem,
    oracle_for,
    relative_error,
    train_on,
)
from tests.helpers.sparse import make_sparse

OPEN = {"batch": 4, "steps": "auto", "epochs": 3}


def test_open_steps_are_chosen_and_said():
    problem = make_problem("logistic")
    config = config_for(problem, schedule=OPEN, products={"kind": "auto"})
    result = train_on(2, config, problem)
    steps = result.report["schedule"]["steps"]
    assert steps >= 1 and result.config["schedule"]["steps"] == steps
    same = config_for(
        problem, schedule={**OPEN, "steps": steps}, products={"kind": "direct"}
    )
    assert relative_error(result, oracle_for(same, problem)) <= 1e-11


@pytest.mark.parametrize(
    "more",
    [
        {"schedule": OPEN},
        {"schedule": {**OPEN, "steps": 1}, "agreement": {"kind": "gradient"}},
        {"schedule": {"epochs": "auto"}, "polish": {"kind": "auto"}},
    ],
    ids=["products", "one step", "no step"],
)
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_settings_of_a_result_have_no_open_choice(ranks, more):
    """What `settle` decides is in the settings: a run of them chooses nothing again."""
    problem = make_problem("logistic")
    tables = {"products": {"kind": "auto"}, "rate": {"value": "auto"}, **more}
    config = config_for(problem, **tables)
    result = train_on(ranks, config, problem)
    chosen = {
        (section, key): result.config[section][key]
        for section, key in [
            *[("products", "kind"), ("products", "look_ahead"), ("rate", "value")],
            *[("schedule", "steps"), ("schedule", "epochs"), ("polish", "kind")],
        ]
    }
    assert "auto" not in chosen.values(), chosen
    assert chosen["products", "kind"] == result.report["products"]
    again = train_on(ranks, result.config, problem)
    assert np.array_equal(again.weights, result.weights)
    assert {key: again.config[key[0]][key[1]] for key in chosen} == chosen


def test_replicas_take_no_open_steps():
    problem = make_problem("logistic")
    config = config_for(
        problem, schedule=OPEN, products={"kind": "auto"}, grid={"replicas": 2}
    )
    with pytest.raises(ConfigError, match="--period"):
        train_on(2, config, problem)


@pytest.mark.parametrize("matrix", ["fp8-e4m3", "int8"])
def test_columns_with_exponents_are_measured(matrix):
    """Of so many that the part without arithmetic takes the first of them alone."""
    problem = make_problem("logistic", n=40, d=60)
    precision = {"recipe": "fp32", "matrix": matrix}
    config = config_for(problem, precision=precision)
    reader = MemoryReader(problem.X, problem.y)

    def measure(world):
        live = build(config, world, lambda _: reader, [], Clock())
        return measure_machine(
            live.task, 4, world
        ), live.task.backend.scaling.exponents.shape

    assert {shape for _, shape in run_ranks(2, measure)} == {(60,)}


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("recipe", ["fp64", "fp32", "c"])
@pytest.mark.parametrize("family", ["logistic", "softmax"])
def test_figures_are_the_same_on_all_members(kind, recipe, family):
    """And no word of them is booked as a product."""
    problem = make_problem(family) if kind == "dense" else make_sparse(family)[0]
    config = config_for(problem, precision={"recipe": recipe})
    reader = MemoryReader(problem.X, problem.y)

    def measure(world):
        live = build(config, world, lambda _: reader, [], Clock())
        before = world.ledger.as_dict()["products"]
        found = measure_machine(live.task, 4, world)
        after = world.ledger.as_dict()
        return found, before, after

    found = run_ranks(3, measure)
    assert len({figures for figures, _, _ in found}) == 1
    figures, before, after = found[0]
    assert all(math.isfinite(v) and v >= 0 for v in figures.as_dict().values())
    assert min(figures.gram, figures.read, figures.again, figures.inner) > 0
    assert after["products"] == before and after["control"]["words"] > 0


def test_a_machine_file_is_made_once_and_corrected(tmp_path, monkeypatch):
    problem, path = make_problem("logistic"), tmp_path / "machine.toml"
    config = config_for(
        problem,
        schedule=OPEN,
        products={"kind": "auto", "machine": str(path)},
    )
    train_on(2, config, problem)
    first = read_toml(path)["kinds"]
    (key,) = first
    assert "C2" in key and len(first[key]["corrections"]) == 1
    monkeypatch.setattr(settle, "measure_machine", None)  # to call it again would fail
    train_on(2, config, problem)
    again = read_toml(path)["kinds"]
    assert again[key]["machine"] == first[key]["machine"]


def test_long_runs_are_measured_and_reproducible_ones_never(monkeypatch):
    problem, asked = make_problem("logistic"), []
    monkeypatch.setattr(settle, "WORTH_MEASURING", 0.0)
    monkeypatch.setattr(
        settle,
        "measure_machine",
        lambda task, batch, world: asked.append(batch) or Machine(),
    )
    config = config_for(problem, schedule=OPEN, products={"kind": "auto"})
    train_on(2, config, problem)
    assert asked == [4, 4]
    strict = config_for(
        problem,
        schedule=OPEN,
        products={"kind": "auto"},
        run={"reproducible": True},
    )
    train_on(2, strict, problem)
    assert asked == [4, 4]


def test_all_replicas_choose_alike(monkeypatch):
    """Also where their machines are not: a slow rank anywhere counts for all."""
    problem = make_problem("logistic")
    monkeypatch.setattr(settle, "WORTH_MEASURING", 0.0)
    free = machine.NetworkFigures("members", 2, 1e-9, 0.0)
    monkeypatch.setattr(machine, "measure_network", lambda *_: free)
    slow = threading.local()

    def rates(task, batch):
        return Machine(
            overheads=Overheads(step=10.0 if slow.here else 0.0, exchange=1.0)
        )

    monkeypatch.setattr(machine, "measure_rates", rates)
    config = config_for(
        problem,
        schedule={"batch": 4, "steps": 4, "epochs": 2},
        products={"kind": "auto"},
        grid={"replicas": 2, "members": 2},
    )

    def on_rank(world):
        slow.here = world.rank == 3
        done = train(config, X=problem.X, y=problem.y, world=world)
        return done.report["products"]

    (found,) = set(run_ranks(4, on_rank))
    assert found != "direct"


class StopAt(Callback):
    def __init__(self, exchange):
        self.exchange = exchange

    def on_exchange(self, view):
        return Request.STOP if view.exchanges == self.exchange else None


def test_a_run_that_goes_on_keeps_its_choice(tmp_path, monkeypatch):
    """Even where the model would now choose otherwise."""
    problem = make_problem("logistic")
    sections = {
        "schedule": OPEN,
        "products": {"kind": "auto"},
        "run": {"out": str(tmp_path), "resume": "auto", "check_every": 1},
        "checkpoint": {"every": 1},
    }
    config = config_for(problem, **sections)
    whole = train_on(2, config_for(problem, **{**sections, "run": {}}), problem)
    train_on(2, config, problem, callbacks=[StopAt(2)])
    swift = Machine(latency=0.0, per_byte=0.0, overheads=Overheads(step=0.0))
    monkeypatch.setattr(settle, "assumed_machine", lambda opened, job: swift)
    fresh = config_for(problem, **{**sections, "run": {}})
    assert train_on(2, fresh, problem).report["products"] == "direct"
    assert whole.report["products"] != "direct"
    result = train_on(2, config, problem)
    assert result.report["resumes"] == 1
    assert result.report["schedule"] == whole.report["schedule"]
    assert result.report["products"] == whole.report["products"]
    assert np.array_equal(result.weights, whole.weights)


def test_the_api_takes_open_steps():
    problem = make_problem("gaussian")
    result = train(
        {"schedule": {"steps": "auto"}, "problem": {"family": "gaussian"}},
        X=problem.X,
        y=problem.y,
    )
    assert result.report["products"] == "direct"


def test_nothing_is_measured_where_there_is_no_choice(monkeypatch):
    """One rank with its steps given takes direct, however long the run will be."""
    monkeypatch.setattr(settle, "measure_machine", None)  # to call it would fail
    problem = make_problem("logistic", n=400, d=6)
    schedule = {"batch": 8, "steps": 4, "epochs": 10**7}
    config = config_for(problem, schedule=schedule, products={"kind": "auto"})
    ended = train_on(1, config, problem, callbacks=[StopAtOnce()])
    assert ended.report["products"] == "direct"
    with pytest.raises(TypeError):  # but with steps left open there is one
        train_on(
            1,
            config_for(
                problem,
                schedule={**schedule, "steps": "auto"},
                products={"kind": "auto"},
            ),
            problem,
        )


class StopAtOnce(Callback):
    def on_exchange(self, view):
        return True


def test_a_wrong_machine_file_corrects_itself(tmp_path, monkeypatch):
    """Planted: messages for nothing, a Gram that takes for ever. The run that trusts it
    takes far longer than it said; the next run measures, and a third keeps that.
    """
    problem, path = make_problem("logistic"), tmp_path / "machine.toml"
    config = config_for(
        problem, schedule=OPEN, products={"kind": "auto", "machine": str(path)}
    )
    train_on(2, config, problem)
    (key,) = read_toml(path)["kinds"]
    free = dict.fromkeys(("gram", "read", "again", "plain", "inner"), 1e30)
    free |= dict.fromkeys(("latency", "per_byte", "link", "exchange", "alone"), 0.0)
    wrong = machine_from({**free, "step": 1e-9, "turn": 0.0})
    file = MachineFile(path)
    file.write(key, MeasuredFigures(wrong))
    monkeypatch.setattr(settle, "SURE", 0.0)
    train_on(2, config, problem)
    assert file.read(key) is None, "forgotten: off by more than any noise"
    monkeypatch.undo()
    train_on(2, config, problem)
    again = file.read(key)
    assert again is not None and again.machine.latency > 0.0


def test_figures_that_are_a_little_wrong_are_corrected(tmp_path):
    """A product that was expected to take half of what it takes is not chosen twice."""
    file = MachineFile(tmp_path / "machine.toml")
    file.write("key", MeasuredFigures(Machine(), {"gram": 0.5}))
    config = RunConfig.parse({"products": {"machine": str(file.path)}})
    chosen = settle.RunChoice("gram", 8, False, seconds=1e-5, key="key")
    settle.note_measured(config, chosen, 3e-5, rank=0)
    assert file.read("key").corrections == {"gram": pytest.approx(0.5 * (1 + 3) / 2)}


def test_a_run_that_is_slower_than_its_rival_says_so_and_goes_on(caplog):
    chosen = settle.RunChoice(
        "gram", 8, False, seconds=1e-5, rival=settle.Choice("direct", 4, 2e-5)
    )
    check = SlowerThanExpected(chosen, keeps=False)
    view = View(epochs=1, exchanges_planned=9, total_rows=9)
    with caplog.at_level("INFO"):
        view.steps, view.seconds = 10, 0.5
        check.on_exchange(view)
        assert not caplog.records, "too early to tell"
        view.steps, view.seconds = 20000, 2.0
        assert check.on_exchange(view) is None, "it asks for nothing"
        check.on_exchange(view)
    (record,) = caplog.records
    said = record.getMessage()
    assert "--products direct --steps 4" in said and "100.0 µs" in said
    swift = SlowerThanExpected(chosen, keeps=False)
    view.steps = 10**6  # 2 µs a step: nothing to say
    swift.on_exchange(view)
    assert len(caplog.records) == 1 and not swift.is_open
