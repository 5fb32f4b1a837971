"""A GPU that is lost in the middle of a run: one sentence, and a whole checkpoint."""

import re
from threading import get_ident as thread

import numpy as np
import pytest

from hpcsgd.api import train
from hpcsgd.backends.cuda.device import CudaDevice
from hpcsgd.backends.cuda.matrix import sent
from hpcsgd.comm.threads import run_ranks
from hpcsgd.errors import DeviceLost, TransportError
from hpcsgd.runs.checkpoint import CheckpointStore
from hpcsgd.runs.result import Status
from tests.helpers.contracts.device import rounds
from tests.helpers.fake_cuda import Node
from tests.helpers.fake_cupy import FakeCupy
from tests.helpers.harness import make_problem, train_on
from tests.helpers.kernels.fake_device import FakeDevice
from tests.helpers.kernels.gradient_runs import shared
from tests.helpers.kernels.runs import on_gpu

PROBLEM = make_problem("logistic", n=37, d=13)  # two exchanges an epoch


@pytest.fixture
def breaking(monkeypatch):
    """Say which GPU is lost when: the so manieth that is opened, or of a thread."""
    given, node, plan = [], Node(), {}

    def take(world, share_gpus):
        number = len(given)
        given.append(FakeDevice(node, number + 1, f"node 0000:{number:02}"))
        node.faults.clear()  # of an earlier run
        asked = plan.pop(thread(), plan.get(number, {}))
        for what, count in asked.items():
            given[number].layer.break_at(what, count)
        return given[number]

    monkeypatch.setattr("hpcsgd.runs.gpu.take_gpu", take)
    return plan


def saving(tmp_path, **sections):
    run = {"out": str(tmp_path / "run"), "resume": "auto", **sections.pop("run", {})}
    settings = {"checkpoint": {"every": 2}, "schedule": {"epochs": 4}, **sections}
    return on_gpu(PROBLEM, run=run, **settings)


def newest(tmp_path):
    path, checkpoint = CheckpointStore(tmp_path / "run", 1).newest()
    return str(path), checkpoint.exchanges


def errors_of_two(breaking, config, faults):
    """What each of two ranks ends with, of which the second loses its GPU."""
    errors = {}

    def on_rank(world):
        try:
            if world.rank == 1:
                breaking.update({thread(): faults})
            return train(config, X=PROBLEM.X, y=PROBLEM.y, world=world)
        except TransportError as error:
            errors[world.rank] = error
            raise

    with pytest.raises(TransportError):
        run_ranks(2, on_rank)
    return errors


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


def test_what_it_says_serves_where_nothing_is_saved(breaking, tmp_path):
    breaking[0] = {"launch": 3}
    with pytest.raises(DeviceLost, match="no checkpoint is in .*--resume auto$"):
        train_on(1, saving(tmp_path), PROBLEM)
    assert train_on(1, saving(tmp_path), PROBLEM).exchanges == 8


@pytest.mark.parametrize("transport", ["mpi-host", "nccl"])
@pytest.mark.parametrize("what, count", [("launch", 15), ("fetch", 4), ("sum", 9)])
def test_no_rank_waits_for_one_that_lost_its_gpu(
    breaking, tmp_path, transport, what, count
):
    if (transport, what) == ("nccl", "sum"):
        what, count = "replay", 3  # of a graph with the sum in it
    config = saving(tmp_path, run={"transport": transport})
    errors = errors_of_two(breaking, config, {what: count})
    assert isinstance(errors[1], DeviceLost) and not isinstance(errors[0], DeviceLost)
    said = str(errors[1])
    assert "failed (cudaErrorIllegalAddress" in said and "by rank 1 " in said
    path, exchanges = newest(tmp_path)
    assert said.endswith("--resume auto") and exchanges >= 2
    assert train_on(2, config, PROBLEM).exchanges == 8


@pytest.mark.cases(1)
@pytest.mark.parametrize("transport", ["mpi-host", "nccl"])
@pytest.mark.parametrize("stage, what, count", [(1, "launch", 40), (3, "launch", 60)])
def test_no_replica_waits_for_one_that_lost_its_gpu(
    breaking, tmp_path, transport, stage, what, count
):
    """Between sums of tiles, steps of slices and gathers; a run goes on from there."""
    run = {"out": str(tmp_path / "run"), "resume": "auto", "transport": transport}
    sections = {"agreement": {"kind": "sharded", "stage": stage}, "run": run}
    more = {"checkpoint": {"every": 2}, "schedule": {"epochs": 4}}
    config = shared(PROBLEM, 2, **sections, **more, update={"kind": "adam"})
    ended = errors_of_two(breaking, config, {what: count})
    assert isinstance(ended[1], DeviceLost) and not isinstance(ended[0], DeviceLost)
    assert newest(tmp_path)[1] >= 2
    again = train_on(2, config, PROBLEM)
    assert again.status is Status.COMPLETED and again.exchanges == 20


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


@pytest.mark.cases(1)
@pytest.mark.parametrize("stage", [2, 3])
def test_slices_are_cut_anew_for_those_that_are_left(breaking, stage):
    """Three replicas hold thirds of adam's states, then two hold halves."""
    slices = {"agreement": {"kind": "sharded", "stage": stage}}
    run = {"on_failure": "shrink", "transport": "mpi-host"}
    more = {"checkpoint": {"every": 2}, "schedule": {"epochs": 4}, "run": run}
    config = shared(PROBLEM, 3, **slices, **more, update={"kind": "adam"})

    def on_rank(world):
        if world.rank == 1:
            breaking[thread()] = {"launch": 60}
        return train(config, X=PROBLEM.X, y=PROBLEM.y, world=world)

    first, second, third = run_ranks(3, on_rank)
    assert second is None and first.status is Status.COMPLETED
    assert first.report["lost_ranks"] == 1 and first.report["resumes"] == 1
    assert first.report["grid"]["replicas"] == 2 and first.exchanges == 20
    assert first.weights_sha256 == third.weights_sha256


def test_without_a_folder_nothing_is_promised(breaking):
    breaking[0] = {"launch": 1}
    alone = on_gpu(PROBLEM, run={"on_failure": "shrink"})  # nobody is left to go on
    with pytest.raises(DeviceLost, match="nothing was saved: start again, with --out"):
        train_on(1, alone, PROBLEM)


STATUSES = {
    700: "cudaErrorIllegalAddress: an illegal memory access was encountered",
    214: "cudaErrorECCUncorrectable: uncorrectable ECC error encountered",
    719: "cudaErrorLaunchFailure: unspecified launch failure",
}


@pytest.fixture
def cupys(monkeypatch):
    """Runs are on our code for CuPy, each on a fake one of this list."""
    given = []

    def take(world, share_gpus):
        return CudaDevice(0, given.pop(0))

    monkeypatch.setattr("hpcsgd.runs.gpu.take_gpu", take)
    return given


# "fill": the copy of a rate; "sum": the copy of what is fetched.
@pytest.mark.cases(2)
@pytest.mark.parametrize(
    "what, count, status",
    [
        *(("launch", 10, status) for status in STATUSES),
        *((what, count, 700) for what, count in (("replay", 2), ("fill", 16))),
    ],
)
def test_what_cuda_says_is_in_the_sentence(cupys, tmp_path, what, count, status):
    well = FakeCupy()
    cupys += [well, FakeCupy(), FakeCupy()]
    cupys[1].breaks, cupys[1].status = {what: count}, status
    sections = {"rate": {"value": 0.1, "kind": "inverse", "decay": 0.1}}
    whole = train_on(1, on_gpu(PROBLEM, schedule={"epochs": 4}, **sections), PROBLEM)
    assert well.graphs == 2 and well.replayed > 4
    with pytest.raises(DeviceLost) as ended:
        train_on(1, saving(tmp_path, **sections), PROBLEM)
    said, (path, exchanges) = str(ended.value), newest(tmp_path)
    assert f"0000:3B:00.0 01ff failed ({STATUSES[status]})" in said
    assert f"{path} has the state after exchange {exchanges}" in said
    again = train_on(1, saving(tmp_path, **sections), PROBLEM)
    assert again.weights_sha256 == whole.weights_sha256


def broken_device():
    """One whose next kernel is its last, and an array there."""
    cupy = FakeCupy()
    device = CudaDevice(0, cupy)
    array = sent(device, np.zeros(64, np.float32))
    cupy.breaks = {"launch": 1}
    return device, array


def waits(device, array):
    device.wait()


def fetches(device, array):
    device.fetch(array)


def settles(device, array):
    device.synchronize()


def asks_an_event(device, array):
    event = device.layer.record(device.stream)
    while not device.layer.is_done(event):
        continue


def waits_for_an_event(device, array):
    device.layer.wait(device.layer.record(device.stream))


def fills_it_all_round(device, array):
    for _ in range(40):
        device.fill(array, np.zeros(64, np.float32))


def copies_by_hand(device, array):
    host = device.layer.pinned(64, np.float32)
    device.layer.to_host(array, host, device.stream)
    device.layer.synchronize(device.stream)


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    "notices",
    [waits, fetches, settles, asks_an_event, waits_for_an_event]
    + [fills_it_all_round, copies_by_hand],
)
def test_wherever_it_is_noticed_it_is_the_same_error(notices):
    device, array = broken_device()
    rounds(device, array)
    with pytest.raises(DeviceLost, match="01ff failed .cudaErrorIllegalAddress"):
        notices(device, array)
    with pytest.raises(DeviceLost):
        rounds(device, array)
    with pytest.raises(DeviceLost):
        device.zeros((3,), np.float32)


def test_a_graph_of_a_lost_gpu_says_so_when_it_is_launched():
    device, array = broken_device()
    device.cupy.breaks = {}
    replay = device.capture(lambda: rounds(device, array))
    device.cupy.broken = 719
    replay()
    with pytest.raises(DeviceLost, match="cudaErrorLaunchFailure"):
        device.wait()
    with pytest.raises(DeviceLost, match="cudaErrorLaunchFailure"):
        replay()


def test_what_is_no_fault_of_cuda_stays_what_it_is():
    device, array = broken_device()
    with pytest.raises(AssertionError):
        device.fill(array, np.zeros(63, np.float32))
