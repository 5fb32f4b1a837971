"""ZeRO on devices: how runs end, go on, are looked at, and are mended."""

import numpy as np
import pytest

from hpcsgd.agreements.zero import ShardedAgreement
from hpcsgd.backends.task import State
from hpcsgd.runs.result import Status
from tests.helpers.gradients import in_folder
from tests.helpers.harness import make_problem, train_on
from tests.helpers.kernels.going_on import goes_on_bit_for_bit
from tests.helpers.kernels.gradient_runs import both, near, near_weights, shared
from tests.helpers.kernels.slices import ADAM, MOMENTUM, STAGES, zero


@pytest.mark.cases(2)
@pytest.mark.parametrize("stage", STAGES)
def test_runs_go_on_bit_for_bit(devices, tmp_path, stage):
    """In stage 2 from a checkpoint of the host, too, to roundoff."""
    problem = make_problem("softmax", n=12, d=13)
    update = "nesterov" if stage == 2 else "adam"
    sections = zero(stage, update={"kind": update}, rate={"value": 0.01})
    devices = ("cuda", "cpu")[: 1 + (stage == 2)]
    goes_on_bit_for_bit(problem, sections, tmp_path, devices)


@pytest.mark.cases(2)
@pytest.mark.parametrize("stages", [(1, 3), (2, 1), (3, 2)])
def test_runs_go_on_with_other_replicas_in_another_stage(devices, tmp_path, stages):
    """Slices are put together in checkpoints: of three replicas, then of two."""
    problem, found = make_problem("logistic", n=12, d=13), []
    for device in ("cuda", "cpu"):
        run = {"out": str(tmp_path / device), "resume": "auto", "device": device}
        for replicas, epochs, stage in ((3, 1, stages[0]), (2, 2, stages[1])):
            more = {**zero(stage, **ADAM), "schedule": {"epochs": epochs}, "run": run}
            last = train_on(replicas, shared(problem, replicas, **more), problem)
        assert last.report["resumes"] == 1
        found.append(last)
    near_weights(*found)


@pytest.mark.cases(2)
@pytest.mark.parametrize("stage", STAGES)
def test_runs_that_were_preempted_go_on(devices, tmp_path, stage):
    """In the middle, with looks on the way, which change nothing."""
    problem = make_problem("logistic", n=25, d=13)
    more = {"schedule": {"epochs": 2}, "run": {"transport": "mpi-host"}, **MOMENTUM}
    config = shared(problem, 2, **zero(stage, **more))
    more["run"] = {"transport": "mpi-host", "evaluate_every": 1}
    looking = shared(problem, 2, **zero(stage, **more))
    whole = in_folder(tmp_path / "whole", config, 2, problem)
    first = in_folder(tmp_path / "half", looking, 2, problem, 5)
    assert {one.status for one in first} == {Status.PREEMPTED}
    again = in_folder(tmp_path / "half", looking, 2, problem)
    for one, other in zip(again, whole, strict=True):
        np.testing.assert_array_equal(one.weights, other.weights)
        np.testing.assert_array_equal(one.intercept, other.intercept)


def test_states_that_nobody_fetched_are_found(devices, tmp_path, monkeypatch):
    """In a checkpoint what the rule keeps is that of the device."""
    marked = State.mark_written
    monkeypatch.setattr(
        State,
        "mark_written",
        lambda self, name: name in self.memory or marked(self, name),
    )
    with pytest.raises(AssertionError):
        test_runs_go_on_bit_for_bit(devices, tmp_path, 1)


@pytest.mark.parametrize("stage", STAGES)
def test_what_is_no_number_ends_runs_as_on_the_host(devices, stage):
    problem = make_problem("gaussian", n=24, d=13)
    sections = zero(stage, rate={"value": 1e30}, run={"check_every": 1})
    there, here = both(problem, 2, **sections)
    assert there.status is here.status is Status.DIVERGED
    np.testing.assert_array_equal(there.weights, here.weights)


@pytest.mark.cases(2)
@pytest.mark.parametrize("stage", STAGES)
def test_looks_see_the_weights_of_that_moment(devices, stage):
    """With means of iterates beside them, and one row that is held out of each."""
    problem = make_problem("logistic", n=13, d=13)
    sections = zero(stage, run={"evaluate_every": 1}, schedule={"epochs": 3}, **ADAM)
    there, here = both(problem, 2, **sections, average={"kind": "tail"})
    losses = [[one["loss"] for one in run.history] for run in (there, here)]
    assert len(losses[0]) == 4
    np.testing.assert_allclose(*losses, rtol=1e-5)
    near(there, here)


@pytest.mark.cases(2)
@pytest.mark.parametrize("stage", STAGES)
def test_replicas_that_differ_are_mended(devices, monkeypatch, stage):
    """Weights that are whole, or the intercept; slices are nobody else's."""
    problem = make_problem("logistic", n=16, d=13)
    after_exchange = ShardedAgreement.after_exchange

    def flipped(self, state, exchanges):
        if exchanges == 2 and self.grid.replica == 1:
            held = state.intercept if stage == 3 else state.weights
            held[0] += 1e-3
        after_exchange(self, state, exchanges)

    config = shared(problem, 2, **zero(stage, run={"check_members": 1}, **ADAM))
    plain = train_on(2, config, problem)
    monkeypatch.setattr(ShardedAgreement, "after_exchange", flipped)
    found = train_on(2, config, problem)
    said = [one.report["agreement"]["mended_replicas"] for one in (plain, found)]
    assert said == [0, 1] and found.weights_sha256 == plain.weights_sha256
