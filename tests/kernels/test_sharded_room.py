"""ZeRO on devices: the memory that is held, to the byte."""

import pytest

from hpcsgd.errors import ConfigError
from hpcsgd.runs import gpu
from hpcsgd.runs.gpu import device_need
from tests.helpers.fake_cuda import Node
from tests.helpers.harness import make_problem, train_on
from tests.helpers.kernels.fake_device import FakeDevice
from tests.helpers.kernels.gradient_runs import shared
from tests.helpers.kernels.room import Counting
from tests.helpers.kernels.slices import ADAM, STAGES, zero


def table(stage, kept, tiles, replicas):
    """Words of a device for each column: docs/reference/methods/sharded.md."""
    tile = 2 / tiles  # two of them
    return {
        1: 2 + kept / replicas + tile / replicas,
        2: 1 + (1 + kept) / replicas + tile + tile / replicas,
        3: (2 + kept) / replicas + tile,
    }[stage]


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("name, kept", [("sgd", 0), ("adam", 2)])
def test_memory_is_that_of_the_table(monkeypatch, stage, name, kept):
    """To the byte: of twice as many columns; and what is said before a run begins."""
    taken, said = {}, {}
    for columns in (96, 192):
        given, node = [], Node()

        def take(world, share_gpus, given=given, node=node):
            given.append(Counting(2**30, f"GPU {len(given)}", node))
            return given[-1]

        needs = []
        noting = lambda *sizes, to=needs: to.append(device_need(*sizes)) or to[-1]  # noqa: E731
        monkeypatch.setattr("hpcsgd.runs.gpu.take_gpu", take)
        monkeypatch.setattr(gpu, "device_need", noting)
        problem = make_problem("logistic", n=8, d=columns)
        asked = {"bucket": columns * 2.0**-20}  # four tiles
        sections = zero(stage, agreement=asked, update={"kind": name})
        train_on(2, shared(problem, 2, **sections), problem)
        taken[columns] = [sum(device.asked) for device in given]
        said[columns] = needs[0].weights
    words = table(stage, kept, tiles=4, replicas=2)
    assert said == {columns: 4 * columns * words for columns in said}
    for fewer, more in zip(*taken.values(), strict=True):
        assert more - fewer == 4 * 96 * (4 + words)  # of four rows, too


def test_no_room_is_said_with_what_stays(devices, monkeypatch):
    problem = make_problem("softmax", n=4, d=96)
    monkeypatch.setattr(FakeDevice, "memory", lambda self: (100, 2**20))
    with pytest.raises(ConfigError, match="use more replicas or members on more GPUs"):
        train_on(2, shared(problem, 2, **zero(3, **ADAM)), problem)
    assert not any(device.launched for device in devices)
