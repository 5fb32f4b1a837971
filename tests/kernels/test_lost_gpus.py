"""A GPU that is lost in the middle of a run: one sentence, and a whole checkpoint."""

import re
from threading import get_ident as thread

import numpy as np
import pytest

from hpcsgd.api import train
from hpcsgd.checkpoint import Store
from hpcsgd.comm.threads import run_ranks
from hpcsgd.errors import DeviceLost, TransportError
from hpcsgd.result import Status
from tests.fake_cuda import Node
from tests.harness import make_problem, train_on
from tests.kernels.fake_device import FakeDevice
from tests.kernels.test_runs import on_gpu

PROBLEM = make_problem("logistic", n=37, d=13)  # two exchanges an epoch


@pytest.fixture
def breaking(monkeypatch):
    """Say which GPU is lost when: the so manieth that is opened, or of a thread."""
    given, node, plan = [], Node(), {}

    def take(share_gpus):
        number = len(given)
        given.append(FakeDevice(node, number + 1, f"node 0000:{number:02}"))
        node.faults.clear()  # of an earlier run
        asked = plan.pop(thread(), plan.get(number, {}))
        for what, count in asked.items():
            given[number].layer.break_at(what, count)
        return given[number]

    monkeypatch.setattr("hpcsgd.assembly.gpu.take_gpu", take)
    return plan


def saving(tmp_path, **sections):
    run = {"out": str(tmp_path / "run"), "resume": "auto", **sections.pop("run", {})}
    settings = {"checkpoint": {"every": 2}, "schedule": {"epochs": 4}, **sections}
    return on_gpu(PROBLEM, run=run, **settings)


def newest(tmp_path):
    path, checkpoint = Store(tmp_path / "run", 1).newest()
    return str(path), checkpoint.exchanges


# Launches are counted in Python: those of a graph are one "replay".
@pytest.mark.parametrize("what, count", [("launch", 15), ("replay", 3), ("fetch", 4)])
def test_one_rank_says_what_is_saved(breaking, tmp_path, what, count):
    breaking[1] = {what: count}
    whole = train_on(1, on_gpu(PROBLEM, schedule={"epochs": 4}), PROBLEM)
    with pytest.raises(DeviceLost) as ended:
        train_on(1, saving(tmp_path), PROBLEM)
    said, (path, exchanges) = str(ended.value), newest(tmp_path)
    assert "GPU node 0000:01 failed (cudaErrorIllegalAddress" in said
    found = re.search(r"noticed by rank 0 after exchange (\d+);", said)
    assert exchanges <= int(found[1]) <= exchanges + 2 and 2 <= exchanges < 8
    assert f"{path} has the state after exchange {exchanges}" in said
    assert said.endswith("--resume auto") and ended.value.exit_code == 1
    again = train_on(1, saving(tmp_path), PROBLEM)  # on a GPU that is well
    assert again.weights_sha256 == whole.weights_sha256


@pytest.mark.parametrize("transport", ["mpi-host", "nccl"])
@pytest.mark.parametrize("what, count", [("launch", 18), ("fetch", 4), ("sum", 9)])
def test_no_rank_waits_for_one_that_lost_its_gpu(
    breaking, tmp_path, transport, what, count
):
    if (transport, what) == ("nccl", "sum"):
        what, count = "launch", 29
    errors, config = {}, saving(tmp_path, run={"transport": transport})

    def on_rank(world):
        try:
            if world.rank == 1:
                breaking.update({thread(): {what: count}})
            return train(config, X=PROBLEM.X, y=PROBLEM.y, world=world)
        except TransportError as error:
            errors[world.rank] = error
            raise

    with pytest.raises(TransportError):
        run_ranks(2, on_rank)
    assert isinstance(errors[1], DeviceLost) and not isinstance(errors[0], DeviceLost)
    said = str(errors[1])
    assert "failed (cudaErrorIllegalAddress" in said and "by rank 1 " in said
    path, exchanges = newest(tmp_path)
    assert said.endswith("--resume auto") and exchanges >= 2
    assert train_on(2, config, PROBLEM).exchanges == 8


def test_others_go_on_without_it_where_they_can(breaking):
    """With --on-failure shrink a rank without its GPU is a rank that is lost."""

    def on_rank(world):
        if world.rank == 1:
            breaking[thread()] = {"fetch": 3}
        config = on_gpu(
            PROBLEM,
            run={"on_failure": "shrink", "transport": "mpi-host"},
            **{"checkpoint": {"every": 2}, "schedule": {"epochs": 4}},
        )
        return train(config, X=PROBLEM.X, y=PROBLEM.y, world=world)

    first, second, third = run_ranks(3, on_rank)
    assert second is None and first.status is Status.COMPLETED
    assert first.report["lost_ranks"] == 1 and first.report["resumes"] == 1
    assert first.weights_sha256 == third.weights_sha256
    whole = train_on(1, on_gpu(PROBLEM, schedule={"epochs": 4}), PROBLEM)
    assert np.abs(first.weights - whole.weights).max() <= 2e-6


def test_without_a_folder_nothing_is_promised(breaking):
    breaking[0] = {"launch": 1}
    with pytest.raises(DeviceLost, match="nothing was saved: start again, with --out"):
        train_on(1, on_gpu(PROBLEM), PROBLEM)
