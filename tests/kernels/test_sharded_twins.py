"""ZeRO on devices: without an essential part, runs are not those of the host."""

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest

from hpcsgd.agreements.cuda import DeviceTileScatter
from hpcsgd.agreements.zero import ColumnAssembler
from hpcsgd.backends.cuda.weights import DeviceRules, WordRange
from hpcsgd.products.cuda_state import MirroredMemory
from tests.helpers.harness import make_problem, train_on
from tests.helpers.kernels.fake_device import FakeDevice
from tests.helpers.kernels.gradient_runs import near, shared
from tests.helpers.kernels.slices import ADAM, STAGES, zero


def twice(self, piece, gradient, factor, turn):
    """The first slice of all is stepped again."""
    step(self, piece, gradient, factor, turn)
    if turn.number == 1:
        step(self, replace(piece, weights=piece.to), gradient, factor, turn)


def whole_chunks_alone(self, piece, gradient, factor, turn):
    """What lies before the first 16 bytes of a slice is left out."""
    skip = -(gradient.held.ctypes.data // 4) % 4
    kept = {name: one[skip:] for name, one in piece.arrays.items()}
    part = WordRange(piece.weights[skip:], piece.to[skip:], kept)
    step(self, part, gradient[skip:], factor, turn)


step = DeviceRules.step
add = DeviceRules.add


def beginning_anew(self, name):
    mirror = self._mirrors[name]
    return mirror._device.zeros(mirror._host.shape, np.float32)


def without_a_gather(self, own, cut, tile, purpose):
    if purpose != "agreement":
        start(self, own, cut, tile, purpose)


start = ColumnAssembler.start


TWINS = {
    "no gather": (STAGES, ColumnAssembler, "start", without_a_gather),
    "a slice that is stepped twice": (STAGES, DeviceRules, "step", twice),
    "a head that is skipped": (STAGES, DeviceRules, "step", whole_chunks_alone),
    "sums that are not cleared": (STAGES, FakeDevice, "clear", lambda *_: None),
    "slices that stay in a tile": (
        (2, 3),
        DeviceTileScatter,
        "keep_slice",
        lambda *_: None,
    ),
    "sums that nobody waits for": (
        STAGES,
        DeviceTileScatter,
        "wait_for",
        lambda _, pending: pending.buffer,
    ),
    "states that begin anew": (STAGES, MirroredMemory, "on_device", beginning_anew),
    "scores of the last tile alone": (
        (3,),
        DeviceRules,
        "add",
        lambda self, part, total, is_first: add(self, part, total, True),
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
