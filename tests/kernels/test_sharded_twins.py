"""ZeRO on devices: without an essential part, runs are not those of the host."""

from dataclasses import replace
from functools import lru_cache

import pytest

from hpcsgd.agreements.zero import ColumnAssembler, Scatter
from hpcsgd.backends.cuda.weights import DeviceMemory
from hpcsgd.backends.task import State
from tests.helpers.harness import make_problem, train_on
from tests.helpers.kernels.fake_device import FakeDevice
from tests.helpers.kernels.gradient_runs import near, shared
from tests.helpers.kernels.slices import ADAM, STAGES, zero


def twice(self, rule, l2, part, gradient, factor, turn):
    """The first slice of all is stepped again."""
    step(self, rule, l2, part, gradient, factor, turn)
    if turn.number == 1:
        again = replace(part, weights=part.to)
        step(self, rule, l2, again, gradient, factor, turn)


def whole_chunks_alone(self, rule, l2, part, gradient, factor, turn):
    """What lies before the first 16 bytes of a slice is left out."""
    skip = -(gradient.held.ctypes.data // 4) % 4
    kept = {name: one[skip:] for name, one in part.arrays.items()}
    rest = replace(part, weights=part.weights[skip:], to=part.to[skip:], arrays=kept)
    step(self, rule, l2, rest, gradient[skip:], factor, turn)


step = DeviceMemory.step
on_device = State.on_device


def beginning_anew(self, name):
    held = on_device(self, name)
    if name in self.memory:
        self.copies.device.clear(held)
    return held


def without_a_gather(self, own, cut, tile, purpose, rounds=False):
    if purpose != "agreement":
        start(self, own, cut, tile, purpose, rounds)


start = ColumnAssembler.start


TWINS = {
    "no gather": (STAGES, ColumnAssembler, "start", without_a_gather),
    "a slice that is stepped twice": (STAGES, DeviceMemory, "step", twice),
    "a head that is skipped": (STAGES, DeviceMemory, "step", whole_chunks_alone),
    "sums that are not cleared": (STAGES, FakeDevice, "clear", lambda *_: None),
    "slices that stay in a tile": (
        (2, 3),
        Scatter,
        "keep_slice",
        lambda *_: None,
    ),
    "sums that nobody waits for": (
        STAGES,
        Scatter,
        "wait_for",
        lambda _, pending, host_wait: pending.buffer,
    ),
    "states that begin anew": (STAGES, State, "on_device", beginning_anew),
    "scores of the last tile alone": (
        (3,),
        DeviceMemory,
        "add",
        DeviceMemory.copy,
    ),
}


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    "what, stage", [(what, stage) for what, row in TWINS.items() for stage in row[0]]
)
def test_each_is_found(devices, monkeypatch, what, stage):
    _, where, attribute, broken = TWINS[what]
    problem, here = of_hosts(stage)
    monkeypatch.setattr(where, attribute, broken)
    with pytest.raises(AssertionError):
        near(train_on(2, shared(problem, 2, **zero(stage, **ADAM)), problem), here)


@lru_cache
def of_hosts(stage):
    """What devices have to come to."""
    problem, run = make_problem("logistic", n=13, d=13), {"device": "cpu"}
    config = shared(problem, 2, run=run, **zero(stage, **ADAM))
    return problem, train_on(2, config, problem)
