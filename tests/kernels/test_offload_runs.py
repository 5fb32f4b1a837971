"""ZeRO-Offload with devices: the runs of the host, and what crosses in between."""

import threading

import numpy as np
import pytest

from hpcsgd.agreements.gradient import Steps
from hpcsgd.agreements.more.offload import Offload, SliceLink, Worker
from hpcsgd.backends.cuda.sequences import CudaSequence
from hpcsgd.runs.result import Status
from tests.helpers.gradients import in_folder
from tests.helpers.harness import make_problem, train_on
from tests.helpers.kernels.copies import copies_of_steps
from tests.helpers.kernels.fake_device import FakeDevice
from tests.helpers.kernels.going_on import goes_on_bit_for_bit
from tests.helpers.kernels.gradient_runs import (
    both,
    near,
    near_weights,
    same_on_three,
    shared,
)
from tests.helpers.kernels.offload_runs import offloaded
from tests.helpers.limits import HANG
from tests.helpers.sparse import make_sparse


@pytest.mark.parametrize("transport", ["nccl", "mpi-host", "mpi-cuda"])
@pytest.mark.parametrize("replicas, members", [(1, 1), (2, 1), (1, 2), (2, 2), (3, 1)])
def test_runs_are_those_of_the_host(devices, replicas, members, transport):
    problem = make_problem("logistic", n=12 * replicas + 1, d=13)
    near(*both(problem, replicas, members, **offloaded(run={"transport": transport})))
    assert all(device.captured for device in devices)


CASES = {
    "softmax": ("softmax", {}),
    "no intercept": ("huber", {"problem": {"intercept": False}}),
    "momentum": ("logistic", {"update": {"kind": "momentum", "momentum": 0.8}}),
    "nesterov": ("softmax", {"update": {"kind": "nesterov", "momentum": 0.8}}),
    "adam": ("logistic", {"update": {"kind": "adam"}, "rate": {"value": 0.01}}),
    "adagrad": ("softmax", {"update": {"kind": "adagrad"}, "rate": {"value": 0.05}}),
    "late": ("logistic", {"delay": 0, "schedule": {"epochs": 3}}),
    "late adam": (
        "softmax",
        {
            "delay": 2,
            "schedule": {"epochs": 3},
            "update": {"kind": "adam"},
            "rate": {"value": 0.01},
        },
    ),
    "clipped": ("logistic", {"update": {"clip": "norm", "clip_at": 0.05}}),
    "late, clipped and centred": (
        "softmax",
        {"delay": 1, "update": {"clip": "norm", "clip_at": 0.05, "centre": "classes"}},
    ),
    "reproducible": ("logistic", {"run": {"reproducible": True}}),
    "reproducible, by MPI": (
        "logistic",
        {"run": {"reproducible": True, "transport": "mpi-cuda"}},
    ),
    "compared": ("logistic", {"run": {"check_members": 1}, "grid": {"members": 2}}),
    "one bucket": ("logistic", {"agreement": {"bucket": 4.0}}),
    "fp16": ("logistic", {"precision": {"matrix": "fp16", "scale": "global"}}),
    "fp8, late momentum": (
        "logistic",
        {
            "delay": 1,
            "precision": {"matrix": "fp8-e4m3", "scale": "global"},
            "update": {"kind": "momentum", "momentum": 0.8},
        },
    ),
}


@pytest.mark.cases(2)
@pytest.mark.parametrize("case", CASES)
def test_what_else_a_run_may_be(devices, case):
    family, sections = CASES[case]
    same_on_three(family, offloaded(**sections))


@pytest.mark.parametrize("recipe, most", [("fp32", 1e-5), ("c", 2e-4)])
def test_sparse_rows(devices, recipe, most):
    stored, _ = make_sparse("logistic", n=13, d=37)
    near(*both(stored, 2, **offloaded(precision={"recipe": recipe})), most)


def test_one_column_of_three_replicas(devices):
    """Two of which have no slice."""
    near(*both(make_problem("logistic", n=13, d=1), 3, **offloaded(delay=1)))


# ------------------------------------------------------------------------- bytes


@pytest.mark.parametrize("delay, intercept", [(-1, True), (1, False)])
@pytest.mark.parametrize("replicas, own", [(1, 13), (2, 7), (3, 5)])
def test_a_slice_comes_down_and_one_goes_up(devices, replicas, own, delay, intercept):
    """Of replica 0, whose 9 rows are three exchanges, in three tiles of 13 columns."""
    problem = make_problem("softmax", n=9 * replicas, d=13)
    sections = {"problem": {"intercept": intercept}}
    said = train_on(
        replicas, shared(problem, replicas, **offloaded(delay, **sections)), problem
    ).report["agreement"]
    classes = problem.classes
    words, offset = 4 * own * classes, 8 * classes * intercept
    residuals = 4 * 9 * classes * intercept  # whose sum the host makes
    assert said["own_columns"] == own
    # Exchange 1 is the first whose step is late, and takes none; the end takes it.
    assert (said["down_bytes"], said["up_bytes"]) == (3 * words, 3 * words)
    assert said["device_bytes_down"] == 3 * words + residuals
    assert said["device_bytes_up"] == 3 * words + 3 * offset


def test_no_copy_is_larger_than_a_slice(devices, monkeypatch):
    """By the copies there were, not by what was said."""
    problem = make_problem("logistic", n=48, d=101)
    large = copies_of_steps(monkeypatch)
    update = {"update": {"kind": "adam"}}
    sections = offloaded(agreement={"bucket": 4.0}, **update)
    train_on(2, shared(problem, 2, **sections), problem)
    whole = [size for size in large if size > 4 * 51]  # of 101 columns
    assert whole == [4 * 101] * 2  # the weights, at the start
    assert large.count(4 * 51) >= 2 * 6  # one way each in six exchanges


# ------------------------------------------------------------------------ overlap


def test_one_slice_comes_down_while_another_is_stepped(devices, monkeypatch):
    """The step of the first ends no sooner than the second is fetched."""
    fetched, seen = threading.Event(), []
    down, step, slices = SliceLink.down, Steps.step_slice, []

    def fetching(self, part, host):
        slices.append(host.size)
        if len(slices) == 2:
            fetched.set()
        return down(self, part, host)

    def stepping(self, *given):
        if not seen:
            seen.append(fetched.wait(HANG))
        step(self, *given)

    monkeypatch.setattr(SliceLink, "down", fetching)
    monkeypatch.setattr(Steps, "step_slice", stepping)
    problem = make_problem("logistic", n=4, d=13)
    train_on(1, shared(problem, 1, **offloaded(), grid={"replicas": 1}), problem)
    assert seen and all(seen)


def test_the_host_steps_while_the_device_computes(devices, monkeypatch):
    """A late step ends no sooner than the next gradient was asked of the device."""
    asked, seen = threading.Event(), []
    give, run = Worker.give, CudaSequence.run

    def computing(self):
        asked.set()
        return run(self)

    def giving(self, action):
        def late():
            seen.append(asked.wait(HANG))
            asked.clear()
            action()

        asked.clear()
        return give(self, late)

    monkeypatch.setattr(CudaSequence, "run", computing)
    monkeypatch.setattr(Worker, "give", giving)
    problem = make_problem("logistic", n=12, d=13)
    train_on(1, shared(problem, 1, **offloaded(delay=0)), problem)
    assert len(seen) == 2 and all(seen)


# ------------------------------------------------------------------- broken twins


def test_a_gradient_that_is_not_cleared_is_found(devices, monkeypatch):
    monkeypatch.setattr(FakeDevice, "clear", lambda self, array: None)
    there, here = both(make_problem("logistic", n=13, d=13), 2, **offloaded())
    with pytest.raises(AssertionError):
        near(there, here)


def test_a_slice_that_was_not_waited_for_is_found(devices, monkeypatch):
    """What the host steps along is what was there before."""
    down = SliceLink.down

    def at_once(self, part, host):
        down(self, part, host)
        return lambda: None

    monkeypatch.setattr(SliceLink, "down", at_once)
    there, here = both(make_problem("logistic", n=13, d=13), 2, **offloaded())
    with pytest.raises(AssertionError):
        near(there, here)


def test_weights_that_go_up_as_they_are_are_found(devices, monkeypatch):
    """Where rows are stored times a power of two."""
    problem = make_problem("logistic", n=13, d=13)
    fp16 = {"precision": {"matrix": "fp16", "scale": "global"}}
    send_up = Offload.send_up

    def unscaled(self, state, cut):
        if not self.inputs.memory.on_device:
            send_up(self, state, cut)
            return
        scale, state.copies.scale = state.scale, 1.0
        send_up(self, state, cut)
        state.copies.scale = scale

    monkeypatch.setattr(Offload, "send_up", unscaled)
    there, here = both(problem, 2, **offloaded(**fp16))
    with pytest.raises(AssertionError):
        near(there, here)


# ------------------------------------------------------------------------- endings


@pytest.mark.parametrize("delay, update", [(-1, "nesterov"), (1, "adam")])
def test_runs_go_on_bit_for_bit(devices, tmp_path, delay, update):
    """And from a checkpoint of the host, to roundoff."""
    problem = make_problem("softmax", n=12, d=13)
    sections = offloaded(delay, update={"kind": update}, rate={"value": 0.01})
    goes_on_bit_for_bit(problem, sections, tmp_path)


def test_runs_go_on_with_other_replicas(devices, tmp_path):
    """Slices are put together in checkpoints: of three replicas, then of two."""
    problem, found = make_problem("logistic", n=12, d=13), []
    sections = offloaded(update={"kind": "adam"}, rate={"value": 0.01})
    for device in ("cuda", "cpu"):
        run = {"out": str(tmp_path / device), "resume": "auto", "device": device}
        for replicas, epochs in ((3, 1), (2, 2)):
            more = {**sections, "schedule": {"epochs": epochs}, "run": run}
            last = train_on(replicas, shared(problem, replicas, **more), problem)
        assert last.report["resumes"] == 1
        found.append(last)
    near_weights(*found)


def test_what_is_no_number_ends_runs_as_on_the_host(devices):
    problem = make_problem("gaussian", n=24, d=13)
    sections = offloaded(rate={"value": 1e30}, run={"check_every": 1})
    there, here = both(problem, 2, **sections)
    assert there.status is here.status is Status.DIVERGED
    np.testing.assert_array_equal(there.weights, here.weights)


def test_looks_see_the_weights_of_that_moment(devices):
    """With the gradient that is late: on copies, which change nothing."""
    problem = make_problem("logistic", n=13, d=13)
    sections = offloaded(1, run={"evaluate_every": 1}, schedule={"epochs": 3})
    there, here = both(problem, 2, **sections)
    losses = [[one["loss"] for one in run.history] for run in (there, here)]
    assert len(losses[0]) == 4
    np.testing.assert_allclose(*losses, rtol=1e-5)
    near(there, here)


def test_batches_are_added_up_on_the_device(devices):
    """Where the gradient is whole: the steps of stage 1, which hosts accumulate in."""
    problem, asked = make_problem("logistic", n=13, d=13), {"accumulate": 2}
    more = {"schedule": {"batch": 2}, "update": {"kind": "adam"}}
    more["rate"] = {"value": 0.01}
    offloads = offloaded(agreement=asked, **more)
    there = train_on(3, shared(problem, 3, **offloads), problem)
    sliced = {"agreement": {"kind": "sharded", **asked}, "run": {"device": "cpu"}}
    near(there, train_on(3, shared(problem, 3, **sliced, **more), problem))


@pytest.mark.parametrize("delay", [-1, 1])
def test_runs_that_were_preempted_go_on(devices, tmp_path, delay):
    """In the middle, with looks on the way, which see every gradient taken."""
    problem = make_problem("logistic", n=25, d=13)
    more = {"schedule": {"epochs": 2}, "run": {"evaluate_every": 1}}
    config = shared(problem, 2, **offloaded(delay, **more))
    whole = in_folder(tmp_path / "whole", config, 2, problem)
    first = in_folder(tmp_path / "half", config, 2, problem, 5)
    assert {one.status for one in first} == {Status.PREEMPTED}
    again = in_folder(tmp_path / "half", config, 2, problem)
    for one, other in zip(again, whole, strict=True):
        np.testing.assert_array_equal(one.weights, other.weights)
