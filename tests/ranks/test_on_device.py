"""Device arrays between real MPI ranks; their GPUs are made of NumPy."""

import numpy as np
import pytest

from hpcsgd.api import train
from hpcsgd.comm import gpu_mpi
from hpcsgd.comm.gpu import fetched, open_transport
from hpcsgd.comm.gpu_mpi import DeviceNarrowSum, check_support
from hpcsgd.comm.messages import open_message
from hpcsgd.comm.mpi import MpiCommunicator, reads_device_memory
from hpcsgd.errors import ConfigError
from tests.helpers.fake_cuda import FakeLayer, Node
from tests.helpers.harness import make_problem
from tests.helpers.kernels import emulator
from tests.helpers.kernels.fake_device import FakeDevice
from tests.helpers.kernels.gradient_runs import near, shared


def opened(comm, kind, monkeypatch):
    """What MPI is handed is NumPy's, so any MPI reads it."""
    monkeypatch.setattr(gpu_mpi, "check_support", lambda: None)
    layer = FakeLayer(Node(), f"GPU of rank {comm.rank}")
    return open_transport(kind, MpiCommunicator(comm.Dup()), layer)


@pytest.mark.ranks(1, 2, 3)
def test_sums_gathers_and_exchanges(comm, monkeypatch):
    monkeypatch.setattr(gpu_mpi, "CHUNK", 4096)
    for kind in ("mpi-host", "mpi-cuda"):
        world = opened(comm, kind, monkeypatch)
        layer, p = world.layer, world.size
        for words in (0, 1, 1025, 9000):
            buffers = [layer.empty(words, np.float32) for _ in range(3)]
            for buffer in buffers:
                layer.later(buffer, np.arange(words) + world.rank)
            world.sum(buffers[0], "products")
            one, two = (world.start_sum(b, "products") for b in buffers[1:])
            two.wait(), one.wait()
            for buffer in buffers:
                total = fetched(layer, buffer, layer.main)
                expected = p * np.arange(words) + p * (p - 1) // 2
                np.testing.assert_array_equal(total, expected)
        counts = [2 * rank for rank in range(p)]
        out = layer.empty(sum(counts), np.uint16)
        part = layer.empty(counts[world.rank], np.uint16)
        layer.later(part, world.rank)
        if p > 1:
            world.gather(part, counts, out, "products")
            np.testing.assert_array_equal(
                fetched(layer, out, layer.main), np.repeat(np.arange(p), counts)
            )
        entry = world.ledger.entries["products"]
        assert entry.calls == (4 * 3 + 1 if p > 1 else 0)
        world.close()


@pytest.mark.ranks(2, 3)
def test_bf16_sums_have_the_bits_of_the_host(comm, monkeypatch):
    rng = np.random.default_rng(comm.rank)
    values = rng.normal(size=5001).astype(np.float32)
    for kind in ("mpi-host", "mpi-cuda"):
        world = opened(comm, kind, monkeypatch)
        device, host = DeviceNarrowSum(world, 5001), open_message(world, 5001, "bf16")
        world.layer.later(device.array, values)
        host.array[...] = values
        expected, total = host.sum("evaluate"), device.sum("products")
        np.testing.assert_array_equal(
            fetched(world.layer, total, world.layer.main), expected
        )
        of_host, of_device = (
            {**vars(world.ledger.entries[purpose]), "seconds": 0}
            for purpose in ("evaluate", "products")
        )
        assert of_host == of_device and of_host["calls"] == 2
        world.close()


@pytest.mark.ranks(2)
def test_an_mpi_says_whether_it_reads_device_memory(comm):
    """Whatever this one says: a no is a refusal before any address is given."""
    said = reads_device_memory()
    assert len(set(comm.allgather(said))) == 1
    if said is False:
        with pytest.raises(ConfigError, match="CUDA-aware MPI .* mpi-host"):
            check_support()
    else:
        check_support()


KINDS = (
    {"kind": "offload"},
    {"kind": "sharded", "stage": 1},
    {"kind": "sharded", "stage": 2},
    {"kind": "sharded", "stage": 3},
    {"kind": "scheduled", "partition": 2.0**-17, "credit": 2.0**-16},
    {"kind": "ticktock"},
    {"kind": "ticktock", "mode": "delayed"},
    {"kind": "decentralized", "peers": "shift_one"},
    {"kind": "anybatch", "accumulate": 2, "rounds": "full"},
)


@pytest.mark.ranks(2, 4)
def test_gradients_of_devices_are_shared(comm, monkeypatch):
    """Runs of the host to roundoff, the same bits on all ranks, the same messages."""
    if emulator.COMPILER is None:
        pytest.skip("no C++ compiler")
    monkeypatch.setattr(gpu_mpi, "check_support", lambda: None)
    place = f"GPU of rank {comm.rank}"
    take = lambda world, share_gpus: FakeDevice(Node(), comm.rank, place)  # noqa: E731
    monkeypatch.setattr("hpcsgd.runs.gpu.take_gpu", take)
    problem, members = make_problem("logistic", n=13, d=13), comm.size // 2
    alone = {"grid": {"replicas": comm.size, "members": 1}}  # no members
    by_host = {"run": {"transport": "mpi-host"}, "update": {"kind": "adam"}}
    for sections in (
        {"run": {"transport": "mpi-cuda"}},
        {"run": {"transport": "mpi-cuda"}, "update": {"kind": "momentum"}},
        {"run": {"transport": "mpi-host"}, "agreement": {"codec": "topk"}},
        *({"run": {"transport": "mpi-cuda"}, "agreement": kind} for kind in KINDS),
        *({"agreement": kind, **by_host, **alone} for kind in KINDS[1:4]),
    ):
        found = []
        for device in ("cuda", "cpu"):
            more = {**sections, "run": {**sections["run"], "device": device}}
            config = shared(problem, 2, members, **more)
            world = MpiCommunicator(comm.Dup())
            found.append(train(config, X=problem.X, y=problem.y, world=world))
        near(*found)
        assert len(set(comm.allgather(found[0].weights_sha256))) == 1
