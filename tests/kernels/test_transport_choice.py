"""What `--transport auto` takes, and what it says where that is not NCCL."""

import logging

import pytest

from hpcsgd.comm.threads import run_ranks
from hpcsgd.config import RunConfig
from hpcsgd.errors import MissingPackage
from hpcsgd.runs.gpu import open_gpu
from tests.helpers.fake_cuda import Node
from tests.helpers.kernels.fake_device import FakeDevice

RANKS = 2


def opened(run, places=("n 1", "n 2"), lacking=()):
    """The transport of all ranks on GPUs at `places`, some of them without NCCL."""
    node = Node()

    def no_nccl(layer):
        raise MissingPackage("transport nccl needs NCCL (libnccl.so.2: cannot open)")

    def on_rank(world):
        device = FakeDevice(node, world.rank + 1, places[world.rank])
        if world.rank in lacking:
            kind = type(device.layer)
            bare = type("Bare", (kind,), {"nccl": property(no_nccl)})
            device.layer.__class__ = bare
        config = RunConfig.parse({"run": {"device": "cuda", **run}})
        world.together = lambda take: device  # there is no GPU to take
        return open_gpu(config, world)[1].kind

    found = set(run_ranks(RANKS, on_rank))
    assert len(found) == 1
    return found.pop()


def warnings(caplog):
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]


def test_auto_is_nccl_and_silent_where_all_ranks_have_it(caplog):
    assert opened({}) == "nccl" and warnings(caplog) == []


@pytest.mark.parametrize("lacking, rank", [((1,), 1), ((0, 1), 0)])
def test_auto_without_nccl_warns_once_and_says_why(lacking, rank, caplog):
    assert opened({}, lacking=lacking) == "mpi-host"
    (said,) = warnings(caplog)
    assert "slower than NCCL" in said and f"rank {rank} has no NCCL" in said
    assert "libnccl.so.2: cannot open" in said


def test_auto_with_shared_gpus_says_so(caplog):
    assert opened({"share_gpus": True}) == "mpi-host"
    (said,) = warnings(caplog)
    assert "share_gpus = true" in said


def test_one_gpu_for_all_and_a_transport_by_name_are_silent(caplog):
    run = {"share_gpus": True}
    assert opened(run, places=("n 1", "n 1")) == "mpi-host"
    run = {"transport": "mpi-host"}
    assert opened(run, lacking=(0, 1)) == "mpi-host"
    assert warnings(caplog) == []
