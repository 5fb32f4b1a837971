"""The same kernels and runs as in tests/kernels, on a GPU where there is one."""

from concurrent.futures import ThreadPoolExecutor

import h5py
import numpy as np
import pytest

from benchmarks.gpu import every_kernel
from hpcsgd.api import train
from hpcsgd.backends.cuda.device import CudaDevice
from hpcsgd.backends.cuda.driver import count_gpus
from hpcsgd.backends.cuda.kernels import all_builds
from hpcsgd.backends.cuda.weights import DeviceCopies
from hpcsgd.backends.task import State
from hpcsgd.comm.gpu_mpi import StagedCommunicator
from hpcsgd.comm.nccl import NcclCommunicator
from hpcsgd.comm.threads import SerialCommunicator, run_ranks
from hpcsgd.errors import ConfigError
from hpcsgd.products import PRODUCTS
from hpcsgd.runs import opened_run
from tests.helpers.harness import make_problem, oracle_for, relative_error, train_on
from tests.helpers.kernels.runs import FAMILIES, on_gpu
from tests.helpers.sparse import make_sparse


def test_every_kernel_is_compiled(device):
    for kernel in all_builds(device.arch):
        assert device.kernel(kernel)


def test_every_kernel_is_as_in_float64(device):
    """One small case of each: tensor cores may round otherwise than the emulation."""
    assert every_kernel.wrong(every_kernel.proved()) == 0


@pytest.mark.parametrize("kind", PRODUCTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_iterates_are_those_of_sgd(device, family, kind):
    problem = make_problem(family, n=1001, d=137)
    sections = {"problem": {"intercept": True, "l2": 0.01}, "products": {"kind": kind}}
    sections["sampling"] = {"mode": "shuffle-once"}
    sections["schedule"] = {"batch": 16, "steps": 8, "epochs": 4}
    config = on_gpu(problem, **sections)
    found = train_on(1, config, problem, weights=True, offset=True)
    exact = oracle_for(config, problem, weights=True, offset=True)
    assert relative_error(found, exact) <= 1e-4


@pytest.mark.parametrize("recipe", ["fp32", "c"])
@pytest.mark.parametrize("batch, steps", [(32, 16), (32, 64)])
def test_recipes_are_those_of_the_host(device, recipe, batch, steps):
    """One block, and a cluster of them where the GPU has any."""
    problem = make_problem("logistic", n=5000, d=300)
    sections = {
        "schedule": {"batch": batch, "steps": steps, "epochs": 3},
        "precision": {"recipe": recipe},
        "products": {"kind": "gram"},
    }
    here = train_on(1, on_gpu(problem, **sections, run={"device": "cpu"}), problem)
    there = train_on(1, on_gpu(problem, **sections), problem)
    again = train_on(1, on_gpu(problem, **sections), problem)
    size = np.abs(here.weights).max()
    assert np.abs(here.weights - there.weights).max() <= 1e-3 * size
    np.testing.assert_array_equal(there.weights, again.weights)


def test_the_next_gram_may_be_a_branch_of_the_graph(device):
    """As the Gram of its own exchange, to what another kernel of margins rounds."""
    problem = make_problem("logistic", n=5000, d=300)
    found = {}
    for ahead in ("off", "on"):
        sections = {
            "schedule": {"batch": 32, "steps": 16, "epochs": 3},
            "products": {"kind": "gram", "look_ahead": ahead},
        }
        found[ahead] = train_on(1, on_gpu(problem, **sections), problem)
    size = np.abs(found["off"].weights).max()
    gap = np.abs(found["on"].weights - found["off"].weights).max()
    assert gap <= 1e-5 * size


def test_portions_of_an_average_are_those_of_the_host(device):
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(1001, 2)).astype(np.float32)
    beta = rng.normal(size=(2, 1))
    here, there = (State(weights.copy(), beta.copy()) for _ in range(2))
    there.place(DeviceCopies(device, there.weights, there.intercept))
    group = StagedCommunicator(SerialCommunicator(), device.layer, device.stream)
    wanted = here.portion(1 / 3, group)
    buffer = there.portion(1 / 3, group)
    np.testing.assert_array_equal(device.fetch(buffer), wanted)
    here.become(wanted), there.become(buffer)
    np.testing.assert_array_equal(there.weights, here.weights)
    np.testing.assert_array_equal(there.intercept, here.intercept)


def test_a_graph_holds_sums_of_nccl(device):
    """Between two GPUs; it is let go of before NCCL ends, which would wait for it."""
    if count_gpus() < 2:
        pytest.skip("one GPU")

    def on_rank(host):
        own = CudaDevice(host.rank)
        world = NcclCommunicator(host, own.layer, own.stream)
        arrays = [own.empty((size,), np.float32) for size in (5, 70000)]
        for array in arrays:  # NCCL connects at the first sum of a size
            own.fill(array, np.ones(array.shape, np.float32))
            world.sum(array, "products")
        graph = own.capture(lambda: [world.queue_sum(array) for array in arrays])
        for _ in range(20):
            world.replay(graph, arrays, "products")
        world.settle()
        found = [own.fetch(array) for array in arrays]
        calls = world.ledger.calls("products")
        world.close()
        return calls, [(array == 2.0**21).all() for array in found]

    assert run_ranks(2, on_rank) == [(42, [True, True])] * 2


@pytest.mark.parametrize("width", [37, 40])  # of whole chunks the latter alone
def test_rows_of_a_file_alone_train_alike(device, tmp_path, monkeypatch, width):
    """Past the host's memory, by kvikio where it is there: the same bits."""
    problem = make_problem("logistic", n=20_011, d=width)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["X"], file["y"] = problem.X.astype(np.float32), problem.y
    config = on_gpu(problem, data={"path": str(tmp_path / "x.h5")})
    held = train(config)
    monkeypatch.setattr(opened_run, "check_memory", lambda *given: True)
    assert train(config).weights_sha256 == held.weights_sha256


def test_a_run_without_room_is_refused(device, monkeypatch):
    monkeypatch.setattr(CudaDevice, "memory", lambda self: (1000, 2000))
    problem = make_problem("logistic", n=1001, d=137)
    with pytest.raises(ConfigError, match="has no room: .* and 1000 bytes of 1.95 KiB"):
        train_on(1, on_gpu(problem), problem)


@pytest.mark.parametrize("kind", ["gram", "direct"])
@pytest.mark.parametrize("family", ["logistic", "softmax"])
@pytest.mark.parametrize("update", ["sgd", "momentum"])
def test_sparse_rows_train_the_model_of_dense_ones(device, update, family, kind):
    """Of more columns than a block of the update has."""
    stored, dense = make_sparse(family, n=1001, d=3000, density=0.01)
    sections = {
        "update": {"kind": update, "momentum": 0.8},
        "products": {"kind": kind},
        "problem": {"intercept": True, "l2": 0.01},
        "schedule": {"batch": 16, "steps": 8, "epochs": 4},
    }
    config = on_gpu(stored, **sections)
    found = train_on(1, config, stored, weights=True)
    exact = oracle_for(config, dense, weights=True)
    assert relative_error(found, exact) <= 1e-4
    again = train_on(1, config, stored, weights=True)
    np.testing.assert_array_equal(found.weights, again.weights)


@pytest.mark.parametrize("kind", ["gather", "gather-once", "cached", "direct"])
@pytest.mark.parametrize("d", [137, 5000])
def test_members_that_share_a_gpu(device, monkeypatch, kind, d):
    """Two ranks that are threads, each with a stream of its own."""
    take = lambda world, share_gpus: CudaDevice()  # noqa: E731
    monkeypatch.setattr("hpcsgd.runs.gpu.take_gpu", take)
    problem = make_problem("logistic", n=1001, d=d)
    sections = {
        "problem": {"intercept": True, "l2": 0.01},
        "products": {"kind": kind},
        "sampling": {"mode": "shuffle-once"},
        "schedule": {"batch": 16, "steps": 8, "epochs": 4},
        "run": {"transport": "mpi-host", "share_gpus": True},
    }
    config = on_gpu(problem, **sections)
    found = train_on(2, config, problem, weights=True)
    exact = oracle_for(config, problem, weights=True)
    assert relative_error(found, exact) <= 1e-4


@pytest.mark.parametrize("kind", ["gram", "direct"])
def test_trainings_in_two_threads_are_those_of_each_alone(device, kind):
    """Each has streams, graphs and room of its own."""
    problems = [make_problem("logistic", n=3001, d=d) for d in (137, 300)]
    sections = {
        "precision": {"recipe": "c"},
        "schedule": {"batch": 32, "steps": 8, "epochs": 3},
        "products": {"kind": kind},
    }

    def trained(problem):
        return train_on(1, on_gpu(problem, **sections), problem).weights

    alone = list(map(trained, problems))
    with ThreadPoolExecutor(2) as threads:
        for _ in range(3):
            found = threads.map(trained, problems)
            for one, own in zip(found, alone, strict=True):
                # Steps of a graph, or of blocks that meet, round margins elsewhere.
                within = {"gram": 0.0, "direct": 2e-3}[kind] * np.abs(own).max()
                assert np.abs(one - own).max() <= within


@pytest.mark.parametrize("d, batch", [(18, 8), (100_000, 32), (1_000_003, 16)])
def test_plain_steps_of_all_widths(device, d, batch):
    """Kept by its blocks, in the GPU's cache, and beyond both."""
    problem = make_problem("logistic", n=64, d=d)
    sections = {
        "precision": {"recipe": "c"},
        "schedule": {"batch": batch, "steps": 4, "epochs": 2},
        "products": {"kind": "direct"},
    }
    there = train_on(1, on_gpu(problem, **sections), problem)
    again = train_on(1, on_gpu(problem, **sections), problem)
    here = train_on(1, on_gpu(problem, **sections, run={"device": "cpu"}), problem)
    size = np.abs(here.weights).max()
    assert np.abs(here.weights - there.weights).max() <= 2e-3 * size
    np.testing.assert_array_equal(there.weights, again.weights)


ADAM = {"update": {"kind": "adam"}}
AGREED = {
    "steps there": {"agreement": {"kind": "gradient"}},
    "steps here": {"agreement": {"kind": "gradient"}, "update": {"kind": "adam"}},
    "a codec": {"agreement": {"kind": "gradient", "codec": "fp16"}},
    "offload": {"agreement": {"kind": "offload"}, "update": {"kind": "adam"}},
    "offload, late": {"agreement": {"kind": "offload", "delay_after": 2}},
    "zero1": {"agreement": {"kind": "sharded", "stage": 1}, **ADAM},
    "zero2": {"agreement": {"kind": "sharded", "stage": 2}, **ADAM},
    "zero3": {"agreement": {"kind": "sharded", "stage": 3}, **ADAM},
    "by priority": {"agreement": {"kind": "scheduled", "partition": 2.0**-14}},
    "halves": {"agreement": {"kind": "ticktock"}},
    "late": {"agreement": {"kind": "ticktock", "mode": "delayed"}},
    "mixed": {"agreement": {"kind": "decentralized"}},
    "rounds": {"agreement": {"kind": "anybatch", "accumulate": 3, "rounds": "full"}},
}


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("case", AGREED)
def test_gradients_are_agreed_on_as_on_the_host(device, monkeypatch, replicas, case):
    """One replica alone, and two that share this GPU by way of the host."""
    take = lambda world, share_gpus: CudaDevice()  # noqa: E731
    monkeypatch.setattr("hpcsgd.runs.gpu.take_gpu", take)
    problem = make_problem("logistic", n=1001, d=137)
    tables = {**AGREED[case], "grid": {"replicas": replicas}}
    tables["agreement"] = {**tables["agreement"], "bucket": 4 * 50 * 2.0**-20}
    tables["schedule"] = {"batch": 16, "steps": 1, "epochs": 2}
    tables["rate"] = {"value": 0.01}
    found = []
    for where in ("cuda", "cpu"):
        run = {"device": where, "share_gpus": True, "transport": "mpi-host"}
        config = on_gpu(problem, **tables, products={"kind": "auto"}, run=run)
        found.append(train_on(replicas, config, problem))
    there, here = found
    gap = np.abs(there.weights - here.weights).max()
    assert gap <= 1e-4 * np.abs(here.weights).max()
