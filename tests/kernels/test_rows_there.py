"""How rows get to a GPU: through pinned memory, from a file alone, past the host."""

import os
import sys
from types import SimpleNamespace

import h5py
import numpy as np
import pytest

from hpcsgd.api import train
from hpcsgd.backends.cuda import device as uploads
from hpcsgd.backends.cuda import matrix
from hpcsgd.backends.cuda.device import CudaDevice
from hpcsgd.backends.cuda.exchange import DenseProducts
from hpcsgd.comm.grid import Grid
from hpcsgd.comm.threads import SerialCommunicator, run_ranks
from hpcsgd.config import RunConfig
from hpcsgd.data import stream
from hpcsgd.data.hdf5 import StoreLayout
from hpcsgd.data.store import StoreWriter
from hpcsgd.errors import ConfigError, DataError
from hpcsgd.runs import memory, opened_run
from tests.helpers.fake_cuda import Node
from tests.helpers.fake_cupy import FakeCupy
from tests.helpers.harness import make_problem
from tests.helpers.kernels.fake_device import FakeDevice
from tests.helpers.kernels.runs import on_gpu

WIDTHS = (37, 40)  # with rows that are whole chunks, and without


class CuFile:
    """kvikio with GPUDirect Storage: the bytes of the file, into device memory."""

    reads: list = []

    def __init__(self, file, flags="r"):
        self.file = os.open(file, os.O_RDONLY)

    def pread(self, buf, size=None, file_offset=0, task_size=None):
        self.reads.append((type(buf).__name__, size))
        return SimpleNamespace(get=lambda: self.read(buf, size, file_offset))

    def read(self, buf, size, offset):
        data = os.pread(self.file, size, offset)
        if len(data) < size:
            raise RuntimeError("EOF")
        assert buf.held.nbytes == size
        memoryview(buf.held).cast("B")[:] = data
        return size

    def close(self):
        os.close(self.file)


@pytest.fixture
def kvikio(monkeypatch):
    """Say whether the system has GPUDirect Storage."""
    known = {"is_gds_available": True}
    driver = SimpleNamespace(get=known.__getitem__)
    module = SimpleNamespace(CuFile=CuFile, cufile_driver=driver)
    monkeypatch.setattr(CuFile, "reads", [])
    monkeypatch.setitem(sys.modules, "kvikio", module)
    return known


@pytest.fixture
def devices(monkeypatch):
    given, node = [], Node()

    def take(world, share_gpus):
        given.append(FakeDevice(node, 1, f"node 0000:{len(given):02}"))
        return given[-1]

    monkeypatch.setattr("hpcsgd.runs.gpu.take_gpu", take)
    monkeypatch.setattr(uploads, "PIECE", 4096)
    monkeypatch.setattr(matrix, "PIECE", 4096)
    monkeypatch.setattr(stream, "PIECE", 2000)
    return given


@pytest.fixture
def without_room(monkeypatch):
    """The host cannot hold the matrix."""
    monkeypatch.setattr(opened_run, "check_memory", lambda *given: True)


def stored(tmp_path, width, element="fp32"):
    problem, path = make_problem("logistic", n=150, d=width), tmp_path / "x.h5"
    with StoreWriter(path, StoreLayout(width, element=element)) as writer:
        writer.append(problem.X.astype(np.float32), problem.y)
    return problem, path


def contiguous(tmp_path, width):
    problem, path = make_problem("logistic", n=150, d=width), tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file["X"], file["y"] = problem.X.astype(np.float32), problem.y
    return problem, path


def run(ranks, problem, path, recipe="fp32", **sections):
    sections = {
        "data": {"path": str(path)},
        "precision": {"recipe": recipe},
        "schedule": {"batch": 16, "steps": 4, "epochs": 2},
        **sections,
    }
    sections["run"] = {"transport": "mpi-host", **sections.get("run", {})}
    config = on_gpu(problem, **sections)
    return run_ranks(ranks, lambda world: train(config, world=world))[0]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("sampling", ["reshuffle", "blocks"])
@pytest.mark.parametrize("recipe, element", [("fp32", "fp32"), ("c", "bf16")])
@pytest.mark.parametrize("width", WIDTHS)
def test_rows_of_a_file_alone_train_alike(
    devices, tmp_path, request, ranks, sampling, recipe, element, width
):
    """Whatever the host has room for: the same bits."""
    problem, path = stored(tmp_path, width, element)
    sections = {"sampling": {"mode": sampling, "block": 8, "window": 4}}
    held = run(ranks, problem, path, recipe, **sections)
    request.getfixturevalue("without_room")
    there = run(ranks, problem, path, recipe, **sections)
    assert there.weights_sha256 == held.weights_sha256
    assert there.loss == held.loss


@pytest.mark.cases(1)
@pytest.mark.parametrize("recipe, element", [("fp32", "fp32"), ("c", "bf16")])
def test_the_gap_monitor_has_its_rows_from_the_gpu(
    devices, tmp_path, without_room, monkeypatch, recipe, element
):
    """And finds nothing, with values that it would find wrong."""
    problem, path = stored(tmp_path, 37, element)
    looks = {"run": {"gap_every": 2, "fall_back": False}}
    assert not run(2, problem, path, recipe, **looks).events
    fetched = DenseProducts.fetched
    monkeypatch.setattr(
        DenseProducts, "fetched", lambda self, numbers: 1.1 * fetched(self, numbers)
    )
    assert run(2, problem, path, recipe, **looks).events


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    "width, ranks, replicas", [(40, 1, 1), (37, 1, 1), (40, 2, 1), (40, 2, 2)]
)
def test_the_drive_reads_into_the_gpu_where_it_can(
    devices, tmp_path, without_room, kvikio, width, ranks, replicas
):
    """Whole rows of whole chunks; all else goes by way of the host."""
    problem, path = contiguous(tmp_path, width)
    sections = {"grid": {"replicas": replicas}, "schedule": {"period": 2}}
    there = run(ranks, problem, path, **sections)
    reads = list(CuFile.reads)
    kvikio["is_gds_available"] = False
    by_host = run(ranks, problem, path, **sections)
    assert CuFile.reads == reads
    assert there.weights_sha256 == by_host.weights_sha256
    if width == 40 and ranks == replicas:
        assert sum(size for _, size in reads) == 150 * 40 * 4
        assert {name for name, _ in reads} == {"Held"} and len(reads) > 10
    else:
        assert not reads


def test_what_kvikio_cannot_read_goes_by_way_of_the_host(
    devices, tmp_path, without_room, kvikio, monkeypatch, caplog
):
    problem, path = contiguous(tmp_path, 40)
    good = run(1, problem, path)
    assert CuFile.reads

    def broken(self, buf, size, offset):
        raise RuntimeError("cuFile: an internal error")

    monkeypatch.setattr(CuFile, "read", broken)
    again = run(1, problem, path)
    assert again.weights_sha256 == good.weights_sha256
    assert "an internal error" in caplog.text and "through host memory" in caplog.text


def test_a_file_of_another_format_is_rounded_on_the_way(
    devices, tmp_path, request, kvikio
):
    problem, path = stored(tmp_path, 40, "fp32")
    held = run(1, problem, path, "c")
    request.getfixturevalue("without_room")
    there = run(1, problem, path, "c")
    assert there.weights_sha256 == held.weights_sha256 and not CuFile.reads


def test_a_file_that_breaks_meanwhile_is_said_on_all_ranks(
    devices, tmp_path, without_room, monkeypatch
):
    problem, path = stored(tmp_path, 37)
    errors = []

    def fail(part, out):
        raise DataError("x.h5 ends too early; copy it again")

    def on_rank(world):
        config = on_gpu(
            problem, data={"path": str(path)}, run={"transport": "mpi-host"}
        )
        if world.rank == 1:
            made = stream.Unheld.__init__

            def make(self, read_into, *given):
                made(self, fail, *given)

            monkeypatch.setattr(stream.Unheld, "__init__", make)
        try:
            train(config, world=world)
        except DataError as error:
            errors.append(error.on_all_ranks)

    run_ranks(2, on_rank)
    assert errors == [True, True]


class Sized:
    """A reader that has nothing but sizes."""

    rows, cols = 10_000_000, 1000

    def read(self, rows, cols):
        return np.empty((0, 0))


def test_the_host_need_not_hold_what_a_gpu_holds(monkeypatch):
    """40 GB of rows, 4 of memory: a GPU gets them, a processor is told."""
    monkeypatch.setattr(memory, "process_bytes", lambda: 2**28)  # not of all tests
    grid = Grid(SerialCommunicator(), 1, 1)
    for device in ("cuda", "cpu"):
        tables = {"run": {"device": device, "memory": 4.0}}
        config = RunConfig.parse(tables | {"precision": {"recipe": "fp32"}})
        given = (grid, Sized(), config, config.precision.resolve(), 1)
        if device == "cuda":
            assert memory.check_memory(*given)
            found = memory.streamed(memory.predict(*given), *given[:4])
            assert found.matrix == 2 * uploads.PIECE and found.total < 4 * 2**30
        else:
            with pytest.raises(ConfigError, match="stream it with --sampling blocks"):
                memory.check_memory(*given)


def test_what_fits_is_held_as_before():
    grid = Grid(SerialCommunicator(), 1, 1)
    config = RunConfig.parse({"run": {"device": "cuda", "memory": 400.0}})
    given = (grid, Sized(), config, config.precision.resolve(), 1)
    assert not memory.check_memory(*given)


def test_a_large_upload_overlaps():
    """Two buffers: the third piece waits for the first copy, not for the second."""
    cupy = FakeCupy()
    device = CudaDevice(0, cupy)
    array = device.empty((3, 70_000), np.float32)
    for row in range(2):
        device.upload(array[row : row + 1], lambda host: host.fill(1))
    assert cupy.waits == 0
    device.upload(array[2:3], lambda host: host.fill(2))
    assert cupy.waits == 1
    np.testing.assert_array_equal(device.fetch(array)[:, 5], [1, 1, 2])
