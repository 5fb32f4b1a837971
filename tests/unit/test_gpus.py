"""Which GPU a rank uses, as a table of launchers; what opens a layer without a GPU."""

import os
import shutil
import sys
import threading
from dataclasses import replace
from importlib.abc import MetaPathFinder
from itertools import permutations
from threading import get_ident
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcsgd.backends.cuda import driver as device_layer
from hpcsgd.backends.cuda.device import CudaDevice
from hpcsgd.backends.cuda.driver import DeviceLayer, count_gpus, load_cupy
from hpcsgd.backends.cuda.kernels import build_of
from hpcsgd.cli import info
from hpcsgd.comm.gpu import (
    GpuRequest,
    PciDevice,
    adapters,
    as_ranges,
    check_own_gpu,
    choose_gpus,
    gpu_of_rank,
    gpu_request,
    local_place,
    nearest,
    numbers_of,
    rank_place,
)
from hpcsgd.comm.threads import run_ranks
from hpcsgd.config import RunConfig
from hpcsgd.errors import ConfigError, MissingPackage
from hpcsgd.runs.gpu import choose_gpu, open_gpu
from tests.helpers.fake_cupy import (
    CompileException,
    CUDADriverError,
    CUDARuntimeError,
    FakeCupy,
    OutOfMemoryError,
)
from tests.helpers.fake_sysfs import BOOSTER, CROSSED, sysfs

FEW = settings(max_examples=60, deadline=None)
OMPI = {"OMPI_COMM_WORLD_LOCAL_RANK": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}
HYDRA = {"MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
SLURM = {"SLURM_JOB_ID": "7", "SLURM_LOCALID": "3", "SLURM_GPUS_ON_NODE": "4"}
OWN_SCRIPT = {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
BOUND = {"CUDA_VISIBLE_DEVICES": "GPU-4f1c"}  # srun --gpus-per-task=1

CASES = {  # environment, visible GPUs, ranks on the node -> GPU
    "nobody says": ({}, 4, None, 0),
    "one rank": ({}, 1, 1, 0),
    "open mpi": (OMPI, 4, 4, 2),
    "open mpi says how many": (OMPI, 4, None, 2),
    "mpich or intel": (HYDRA, 2, 2, 1),
    "slurm": (SLURM, 4, 4, 3),
    "slurm binds": ({**SLURM, **BOUND}, 1, 4, 0),
    "somebody binds": ({**OMPI, **BOUND}, 1, 4, 0),
    "two of four are left": ({**HYDRA, "CUDA_VISIBLE_DEVICES": "2,3"}, 2, 2, 1),
    "a script of one's own": (OWN_SCRIPT, 4, 4, 1),
    "more gpus than ranks": (HYDRA, 8, 2, 1),
    # One Slurm task that starts four ranks: all inherit its local id.
    "mpiexec in a task of slurm": ({**OMPI, "SLURM_LOCALID": "0"}, 4, 4, 2),
    "not a number": ({"OMPI_COMM_WORLD_LOCAL_RANK": "", **HYDRA}, 2, 2, 1),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_each_rank_has_its_gpu(case):
    environment, visible, ranks, expected = case
    assert gpu_of_rank(environment, visible, ranks) == expected


REFUSED = {
    "four on two": (OMPI, 2, 4, "4 ranks on this node and 2 GPUs; start fewer"),
    "four on one": (OMPI, 1, 4, "4 ranks on this node and 1 GPU; start fewer"),
    "the node has one": (
        {**SLURM, **BOUND, "SLURM_GPUS_ON_NODE": "1"},
        1,
        4,
        "4 ranks on this node and 1 GPU; start fewer",
    ),
    "a number too high": (SLURM, 2, None, "4 ranks on this node and 2 GPUs"),
    "which one is this": ({}, 4, 4, "no launcher says which one this is"),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_is_refused(case):
    environment, visible, ranks, message = case
    with pytest.raises(ConfigError, match=message):
        gpu_of_rank(environment, visible, ranks)


@pytest.mark.parametrize(
    "rank, visible, expected", [(0, 2, 0), (1, 2, 1), (2, 2, 0), (3, 1, 0), (3, 4, 3)]
)
def test_gpus_are_shared_where_that_is_asked_for(rank, visible, expected):
    environment = {"MPI_LOCALRANKID": str(rank)}
    assert gpu_of_rank(environment, visible, 4, share_gpus=True) == expected


@pytest.mark.parametrize(
    "environment, message",
    [
        ({}, "see what nvidia-smi says"),
        ({"CUDA_VISIBLE_DEVICES": ""}, "CUDA_VISIBLE_DEVICES=; unset it"),
        ({"SLURM_JOB_ID": "7"}, "add --gpus-per-node"),
        (SLURM, "see what nvidia-smi says"),
    ],
)
def test_no_gpu_at_all(environment, message):
    with pytest.raises(ConfigError, match=message):
        gpu_of_rank(environment, 0, 1, share_gpus=True)


def test_who_says_what():
    assert local_place({}) == (None, None)
    assert local_place({**SLURM, "SLURM_NTASKS_PER_NODE": "8"}) == (3, 8)
    assert local_place({"PALS_LOCAL_RANKID": "5"}) == (5, None)


def test_ranks_that_met_on_one_gpu():
    """Each of them sees one GPU: only together they can tell that it is the same."""
    places = ["a 01", "a 02", "b 01", "a 02"]
    check_own_gpu(places[:3], False, "nccl")
    check_own_gpu(places, True, "mpi-host")
    with pytest.raises(
        ConfigError, match=r"2 ranks use one GPU \(a 02\), .* nccl; use"
    ):
        check_own_gpu(places, False, "nccl")
    with pytest.raises(ConfigError, match="mpi-cuda; let each rank see another GPU"):
        check_own_gpu(places, False, "mpi-cuda")


def fake_cupy(monkeypatch, major, gpus=1, **more):
    cupy = FakeCupy(major=major, gpus=gpus, **more)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    return cupy


def driver(monkeypatch, major):
    monkeypatch.setattr(device_layer, "driver_major", lambda: major)


@pytest.mark.parametrize(
    "major, command",
    [
        (12, "pip install cupy-cuda12x$"),
        (13, "pip install cupy-cuda13x$"),
        (14, "pip install cupy-cuda13x$"),
    ],
)
def test_a_missing_cupy_names_the_command(monkeypatch, major, command):
    monkeypatch.setitem(sys.modules, "cupy", None)
    driver(monkeypatch, major)
    with pytest.raises(MissingPackage, match=f"a GPU needs CuPy .*{command}"):
        load_cupy()


def test_a_cupy_that_cannot_work_is_refused(monkeypatch):
    fake_cupy(monkeypatch, 13)
    driver(monkeypatch, None)
    with pytest.raises(ConfigError, match="no NVIDIA driver is here"):
        load_cupy()
    driver(monkeypatch, 12)
    with pytest.raises(
        ConfigError, match="uninstall cupy-cuda13x && pip install cupy-cuda12x"
    ):
        load_cupy()


def test_a_driver_that_is_too_old_is_named(monkeypatch):
    fake_cupy(monkeypatch, 12)
    driver(monkeypatch, 11)
    with pytest.raises(ConfigError, match="supports CUDA 11 at most .* update the"):
        load_cupy()


class Breaks(MetaPathFinder):
    """`import cupy` as a wheel without its libraries raises it."""

    def find_spec(self, name, path, target=None):
        if name == "cupy":
            raise ImportError(
                "\n====\nCuPy is not correctly installed.\n\nOriginal error:\n"
                "  ImportError: libcudart.so.12: cannot open shared object file\n===="
            )


class Unwritable(MetaPathFinder):
    """CuPy makes the folder when it is imported."""

    def find_spec(self, name, path, target=None):
        if name == "cupy":
            raise PermissionError(13, "Permission denied", "/home/me/.cupy")


def test_a_folder_that_cannot_be_written_is_named(monkeypatch):
    """At the import, or where the first kernel is to be kept."""
    driver(monkeypatch, 13)
    said = "denied: '/home/me/.cupy'.*; set CUPY_CACHE_DIR"
    with monkeypatch.context() as own:
        own.delitem(sys.modules, "cupy", raising=False)
        own.setattr(sys, "meta_path", [Unwritable()])
        with pytest.raises(ConfigError, match=said):
            load_cupy()
    cupy = FakeCupy()

    def refuse(entry):
        raise PermissionError(13, "Permission denied", "/home/me/.cupy/kernel_cache")

    cupy.RawModule = lambda code, options: SimpleNamespace(get_function=refuse)
    with pytest.raises(ConfigError, match="kernel_cache.*; set CUPY_CACHE_DIR"):
        CudaDevice(0, cupy).kernel(build_of("sample", "fp32", "90"))


def test_libraries_of_cuda_that_are_missing_are_named(monkeypatch):
    """At the import, at the first call, or where kernels would be compiled."""
    driver(monkeypatch, 12)
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Breaks()])
    said = 'libcudart.so.12: cannot .* pip install "cupy-cuda12x\\[ctk\\]"$'
    with pytest.raises(MissingPackage, match=said) as found:
        load_cupy()
    assert "\n" not in str(found.value)

    def missing(error):
        raise error

    driver(monkeypatch, 13)
    cupy = fake_cupy(monkeypatch, 12)
    error = RuntimeError("CuPy failed to load libnvrtc.so.12: OSError: cannot open")
    monkeypatch.setattr(cupy.cuda.nvrtc, "getVersion", lambda: missing(error))
    said = 'libnvrtc.so.12: .* pip install "cupy-cuda12x\\[ctk\\]"$'
    with pytest.raises(MissingPackage, match=said):
        load_cupy()
    error = OSError("libcudart.so.12: cannot open shared object file")
    runtime = cupy.cuda.runtime
    monkeypatch.setattr(runtime, "runtimeGetVersion", lambda: missing(error))
    with pytest.raises(MissingPackage, match="libcudart.so.12: .*cupy-cuda13x"):
        load_cupy()


@pytest.mark.parametrize(
    "arch, built, said",
    [
        ("70", 13, "sm_70, which CUDA 13 no longer .* pip install cupy-cuda12x$"),
        ("61", 12, "sm_61 and kernels need sm_70 or newer; use --device cpu"),
    ],
)
def test_a_gpu_that_is_too_old_is_refused(arch, built, said):
    with pytest.raises(ConfigError, match=said):
        CudaDevice(0, FakeCupy(major=built, capability=arch))


@pytest.mark.parametrize("arch, built", [("70", 12), ("75", 13), ("120", 13)])
def test_a_gpu_that_serves_is_taken(arch, built):
    assert CudaDevice(0, FakeCupy(major=built, capability=arch)).arch == arch


def test_a_gpu_that_others_hold_is_refused():
    for name in ("use", "memGetInfo"):  # some drivers look only when it is used
        cupy = FakeCupy()
        place = cupy.cuda.Device(0) if name == "use" else cupy.cuda.runtime
        setattr(place, name, lambda cupy=cupy: cupy.fail(46))
        with pytest.raises(ConfigError, match="be opened .cudaErrorDevicesUnavailable"):
            CudaDevice(0, cupy)


def test_gpus_that_do_not_answer_are_not_taken_for_none(monkeypatch):
    cupy = fake_cupy(monkeypatch, 13)
    driver(monkeypatch, 13)
    monkeypatch.setattr(cupy.cuda.runtime, "getDeviceCount", lambda: cupy.fail(802))
    with pytest.raises(ConfigError, match="do not answer .cudaErrorSystemNotReady"):
        count_gpus()


def test_memory_that_cannot_be_pinned_is_no_fault_of_the_gpu():
    device = CudaDevice(0, cupy := FakeCupy())
    cupy.cuda.alloc_pinned_memory = lambda size: cupy.fail(2)
    with pytest.raises(ConfigError, match="cannot page-lock 400 bytes .* ulimit -l"):
        device.layer.pinned(100, np.float32)


def test_a_kernel_that_nvrtc_refuses_is_one_sentence():
    cupy = FakeCupy(capability="75")

    def refuse(entry):
        raise CompileException("invalid value for --gpu-architecture\nand more\n")

    cupy.RawModule = lambda code, options: SimpleNamespace(get_function=refuse)
    said = "compile the kernel sample for sm_75 .invalid value for --gpu-arch.*newest"
    with pytest.raises(ConfigError, match=said) as found:
        CudaDevice(0, cupy).kernel(build_of("sample", "fp32", "75"))
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("built, knows", [(12, 12), (12, 13), (13, 13)])
def test_a_cupy_that_suits_is_loaded(monkeypatch, built, knows):
    cupy = fake_cupy(monkeypatch, built, gpus=3)
    driver(monkeypatch, knows)
    assert load_cupy() is cupy and count_gpus() == 3
    fake_cupy(monkeypatch, built, gpus=0)
    assert count_gpus() == 0


def test_the_driver_of_this_machine_is_asked():
    """A number of a CUDA version, or none: whatever this machine has."""
    major = device_layer.driver_major()
    assert major is None or 9 <= major < 99


class Chip:
    """cupy.cuda, as far as a layer uses it; `asked` is what reached the runtime."""

    def __init__(self, status=0):
        self.asked, self.status = [], status
        self.runtime = SimpleNamespace(
            memcpyDeviceToHost=2,
            memcpyHostToDevice=1,
            memcpyAsync=lambda *given: self.asked.append(given),
            eventQuery=lambda address: self.status,
            getDeviceProperties=lambda number: {"uuid": b"\x01\xff"},
            runtimeGetVersion=lambda: 13020,
            memGetInfo=lambda: (1, 1),
            CUDARuntimeError=CUDARuntimeError,
        )
        self.driver = SimpleNamespace(CUDADriverError=CUDADriverError)
        self.memory = SimpleNamespace(OutOfMemoryError=OutOfMemoryError)

    def Device(self, number):  # noqa: N802
        use = lambda: self.asked.append(("use", number))  # noqa: E731
        return SimpleNamespace(id=number, use=use, pci_bus_id="0000:3B:00.0")

    def alloc_pinned_memory(self, size):
        return bytearray(size)


def layer_on(chip):
    return DeviceLayer(2, SimpleNamespace(cuda=chip, ndarray=SimpleNamespace))


def test_a_layer_copies_what_it_is_told():
    """From there to here, so many bytes, on that stream; nothing for nothing."""
    chip = Chip()
    layer, stream = layer_on(chip), SimpleNamespace(ptr=7)
    flags = SimpleNamespace(c_contiguous=True)
    array = SimpleNamespace(data=SimpleNamespace(ptr=4096), nbytes=24, flags=flags)
    host = layer.pinned(3, np.float64)
    layer.to_host(array, host, stream)
    layer.to_device(host, array, stream)
    here = host.ctypes.data
    copies = [(here, 4096, 24, 2, 7), (4096, here, 24, 1, 7)]
    assert chip.asked == [("use", 2), *copies]
    array.nbytes, empty = 0, layer.pinned(0, np.float64)
    assert empty.size == 0
    layer.to_host(array, empty, stream)
    assert len(chip.asked) == 3
    assert layer.owns(array) and not layer.owns(host)
    assert layer.place.endswith("0000:3B:00.0 01ff")


def test_an_event_of_a_broken_gpu_is_not_waited_for_for_ever():
    def fail():
        raise RuntimeError("cudaErrorIllegalAddress")

    event = SimpleNamespace(ptr=1, synchronize=fail)
    for status, expected in ((0, True), (600, False)):
        assert layer_on(Chip(status)).is_done(event) is expected
    with pytest.raises(RuntimeError, match="IllegalAddress"):
        layer_on(Chip(700)).is_done(event)


def test_a_missing_nccl_names_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(MissingPackage, match="pip install nvidia-nccl-cu13, or use tr"):
        _ = layer_on(Chip()).nccl


def test_what_is_missing_on_one_rank_is_heard_by_all(monkeypatch):
    """A GPU is tried with one kernel when it is taken: later others would wait."""
    monkeypatch.setattr(device_layer, "gpu_buses", lambda: ["0000:3B:00.0"])
    good, bad = FakeCupy(), FakeCupy()

    def refuse(entry):
        raise CompileException("cannot open libnvrtc-builtins.so")

    bad.RawModule = lambda code, options: SimpleNamespace(get_function=refuse)
    chips, heard = {}, []
    monkeypatch.setattr(
        "hpcsgd.backends.cuda.device.device_of_rank",
        lambda number: CudaDevice(0, chips[get_ident()]),
    )

    def on_rank(world):
        chips[get_ident()] = bad if world.rank == 1 else good
        config = RunConfig.parse({"run": {"device": "cuda", "share_gpus": True}})
        try:
            open_gpu(config, world)
        except ConfigError as error:
            heard.append((str(error), error.on_all_ranks))

    run_ranks(3, on_rank)
    assert len(heard) == 3 and len(set(heard)) == 1
    assert "libnvrtc-builtins.so" in heard[0][0] and heard[0][1]


# The GPU of a rank by NUMA node, from a played sysfs.


def requests(monkeypatch, root, buses, cpusets, environment=None, share=False):
    """What ranks of one node report, each with its cores."""
    found = []
    for rank, cores in enumerate(cpusets):
        monkeypatch.setattr(os, "sched_getaffinity", lambda process, c=cores: set(c))
        own = {"SLURM_LOCALID": str(rank), "SLURM_NTASKS_PER_NODE": str(len(cpusets))}
        own |= environment(rank) if environment else {}
        seen = buses(rank) if callable(buses) else buses
        found.append(gpu_request(own, seen, share, root))
    return found


def chosen(asked):
    return [(choice.number, choice.is_far) for choice in choose_gpus(asked)]


def test_crossed_gpus_are_the_nearest_ones(monkeypatch, tmp_path):
    """On Perlmutter rank 0 takes GPU 3, and not that of its local number."""
    root = sysfs(tmp_path, **CROSSED)
    buses = [bus.upper() for bus in CROSSED["gpus"]]
    cores = [range(16 * n, 16 * n + 16) for n in range(4)]
    asked = requests(monkeypatch, root, buses, cores)
    assert chosen(asked) == [(3, False), (2, False), (1, False), (0, False)]
    assert {c.why for c in choose_gpus(asked)} == {"it is nearest to its cores"}
    assert chosen(asked[:2]) == [(3, False), (2, False)], "of two ranks alone"


def test_ranks_of_several_nodes_do_not_mix(monkeypatch, tmp_path):
    root = sysfs(tmp_path, **CROSSED)
    cores = [range(16 * n, 16 * n + 16) for n in range(4)]
    asked = requests(monkeypatch, root, list(CROSSED["gpus"]), cores)
    mixed = [replace(r, host=host) for r in asked for host in ("n1", "n2")]
    assert [n for n, _ in chosen(mixed)] == [3, 3, 2, 2, 1, 1, 0, 0]


def test_a_numa_node_without_a_gpu_takes_one_of_its_socket(monkeypatch, tmp_path):
    root = sysfs(tmp_path, **BOOSTER)
    buses = list(BOOSTER["gpus"])
    cores = [range(0, 6), range(12, 18), range(24, 30), range(36, 42)]  # 0, 2, 4, 6
    # Both of a socket are equally near: those of the local numbers.
    assert chosen(requests(monkeypatch, root, buses, cores)) == [
        (n, False) for n in range(4)
    ]
    crossed = [range(24, 30), range(36, 42), range(0, 6), range(12, 18)]
    found = choose_gpus(requests(monkeypatch, root, buses, crossed))
    assert [c.number for c in found] == [2, 3, 0, 1]


def test_no_gpu_is_taken_twice_where_all_want_the_same(monkeypatch, tmp_path):
    """All ranks on one NUMA node: one has its GPU, and those of the others are far."""
    root = sysfs(tmp_path, **CROSSED)
    cores = [range(4 * n, 4 * n + 4) for n in range(4)]  # all of node 0
    found = choose_gpus(requests(monkeypatch, root, list(CROSSED["gpus"]), cores))
    assert sorted(c.number for c in found) == [0, 1, 2, 3]
    assert [c.number for c in found if not c.is_far] == [3]
    assert {c.why for c in found if c.is_far} == {"nearer GPUs serve other ranks"}


def test_a_rank_moves_for_one_that_has_no_other_choice(monkeypatch, tmp_path):
    """Rank 0 may have either of its socket, rank 1 only that of its NUMA node."""
    root = sysfs(tmp_path, **BOOSTER)
    asked = requests(
        monkeypatch, root, list(BOOSTER["gpus"]), [range(0, 6), range(18, 24)]
    )
    assert [c.number for c in choose_gpus(asked)] == [1, 0]


def test_shared_gpus_are_near_and_evenly_used(monkeypatch, tmp_path):
    root = sysfs(tmp_path, **CROSSED)
    cores = [range(8 * n, 8 * n + 8) for n in range(8)]
    buses = list(CROSSED["gpus"])
    asked = requests(monkeypatch, root, buses, cores, share=True)
    assert [c.number for c in choose_gpus(asked)] == [3, 3, 2, 2, 1, 1, 0, 0]


def test_gpus_that_slurm_has_bound_stay(monkeypatch, tmp_path):
    """--gpus-per-task shows each rank one GPU, wherever it is."""
    root = sysfs(tmp_path, **CROSSED)
    cores = [range(16 * n, 16 * n + 16) for n in range(4)]
    bound = lambda rank: {"CUDA_VISIBLE_DEVICES": "0", "SLURM_GPUS_ON_NODE": "4"}  # noqa: E731
    buses = list(CROSSED["gpus"])
    asked = requests(monkeypatch, root, lambda rank: [buses[rank]], cores, bound)
    found = choose_gpus(asked)
    assert [choice.number for choice in found] == [0] * 4
    assert "only GPU that this rank sees" in found[0].why
    assert all(choice.is_far for choice in found), "by local number, as Slurm does it"
    near = requests(monkeypatch, root, lambda rank: [buses[3 - rank]], cores, bound)
    assert chosen(near) == [(0, False)] * 4


def test_ranks_that_slurm_shows_two_gpus_take_the_nearer(monkeypatch, tmp_path):
    root = sysfs(tmp_path, **CROSSED)
    buses = list(CROSSED["gpus"])
    seen = lambda rank: buses[2:] if rank == 0 else buses[:2]  # noqa: E731
    own = lambda rank: {"SLURM_NTASKS_PER_NODE": "2"}  # noqa: E731
    asked = requests(monkeypatch, root, seen, [range(0, 16), range(48, 64)], own)
    assert chosen(asked) == [(1, False), (0, False)]


UNKNOWN = "sys/bus/pci/devices/0000:82:00.0/numa_node"


@pytest.mark.parametrize("spoil, why", [
    (lambda root: (root / UNKNOWN).write_text("-1"),
     "sysfs states no NUMA node of the GPU 0000:82:00.0"),
    (lambda root: shutil.rmtree(root / "sys/bus"),
     "sysfs states no NUMA node of the GPU 0000:03:00.0"),
    (lambda root: shutil.rmtree(root / "sys/devices"),
     "sysfs lists no NUMA node of this rank's cores"),
])  # fmt: skip
def test_the_local_number_where_sysfs_tells_nothing(spoil, why, monkeypatch, tmp_path):
    root = sysfs(tmp_path, **CROSSED)
    spoil(root)
    cores = [range(16 * n, 16 * n + 16) for n in range(4)]
    found = choose_gpus(requests(monkeypatch, root, list(CROSSED["gpus"]), cores))
    assert [c.number for c in found] == [0, 1, 2, 3]
    assert {c.why for c in found} == {why}


def test_ranks_that_are_not_bound_keep_their_local_numbers(monkeypatch, tmp_path):
    root = sysfs(tmp_path, **CROSSED)
    buses = list(CROSSED["gpus"])
    found = choose_gpus(requests(monkeypatch, root, buses, [range(128)] * 4))
    assert [c.number for c in found] == [0, 1, 2, 3]
    assert {c.why for c in found} == {"the rank may run on every NUMA node of its node"}


@FEW
@given(data=st.data())
def test_the_choice_is_a_law(data):
    """Any distances: GPUs differ, all ranks agree, and none could move nearer alone."""
    gpus = data.draw(st.integers(1, 5))
    ranks = data.draw(st.integers(1, gpus))
    far = st.lists(st.sampled_from([10, 12, 32]), min_size=gpus, max_size=gpus)
    table = [tuple(data.draw(far)) for _ in range(ranks)]
    names = tuple(PciDevice(f"0000:{n:02x}:00.0", 0) for n in range(gpus))
    asked = [GpuRequest("n", r, names, row) for r, row in enumerate(table)]
    found = choose_gpus(asked)
    taken = [choice.number for choice in found]
    assert len(set(taken)) == ranks and found == choose_gpus(asked)
    most = max(  # the number of ranks with a nearest GPU, by trying every assignment
        sum(row[n] == min(row) for row, n in zip(table, order, strict=True))
        for order in permutations(range(gpus), ranks)
    )
    near = [row[n] == min(row) for row, n in zip(table, taken, strict=True)]
    assert sum(near) == most and [not c.is_far for c in found] == near
    free = set(range(gpus)) - set(taken)
    for row, number in zip(table, taken, strict=True):
        assert all(row[number] <= row[other] for other in free)


def test_a_run_takes_the_gpu_that_ranks_have_agreed_on(monkeypatch, tmp_path):
    """Through CuPy: four ranks that are threads, each bound as srun would do it."""
    root = sysfs(tmp_path, **CROSSED)
    cupy = fake_cupy(monkeypatch, 13, gpus=4)
    driver(monkeypatch, 13)
    buses = [bus.upper() for bus in CROSSED["gpus"]]
    cupy.cuda.Device = lambda number: SimpleNamespace(pci_bus_id=buses[number])
    local = threading.local()
    cores = lambda process: set(range(16 * local.rank, 16 * local.rank + 16))  # noqa: E731
    monkeypatch.setattr(os, "sched_getaffinity", cores)

    def on_rank(world):
        local.rank = world.rank
        own = {"MPI_LOCALRANKID": str(world.rank), "MPI_LOCALNRANKS": "4"}
        request, choice = choose_gpu(world, False, own, root)
        return request.gpus[choice.number].name, choice.number

    taken = run_ranks(4, on_rank)
    assert [number for _, number in taken] == [3, 2, 1, 0]
    assert [name for name, _ in taken] == list(reversed(CROSSED["gpus"]))


def test_adapters_and_the_nearest_of_them(tmp_path):
    nics = {"infiniband/mlx5_0": 3, "infiniband/mlx5_1": 1, "cxi/cxi0": 0}
    root = sysfs(tmp_path, {n: str(n) for n in range(4)}, nics=nics)
    found = adapters(root)
    assert [(nic.name, nic.node) for nic in found] == [
        ("cxi0", 0), ("mlx5_0", 3), ("mlx5_1", 1),
    ]  # fmt: skip
    assert [nic.name for nic in nearest(found, [3], root)] == ["mlx5_0"]
    assert [nic.name for nic in nearest(found, [2], root)] == [
        nic.name for nic in found
    ]
    lost = [PciDevice("a", -1)]
    assert nearest(lost, [0], root) == [] and adapters(tmp_path / "none") == []


@pytest.mark.parametrize("text", ["", "0", "0-3", "0-3,8", "1,3,5-6,9-10"])
def test_lists_of_cores(text):
    assert as_ranges(numbers_of(f"{text}\n")) == text


def test_this_machine_can_be_asked():
    place = rank_place()
    assert set(place.cores) == set(os.sched_getaffinity(0)) and place.host
    assert len(place.nodes) <= place.of_nodes


# What `hpcsgd info` shows of it: one process, the GPUs of nvidia-smi.

SMI = """00000000:03:00.0, GPU-aa, NVIDIA A100-SXM4-40GB, 40960 MiB
00000000:41:00.0, GPU-bb, NVIDIA A100-SXM4-40GB, 40960 MiB
00000000:82:00.0, GPU-cc, NVIDIA A100-SXM4-40GB, 40960 MiB
00000000:C1:00.0, GPU-dd, NVIDIA A100-SXM4-40GB, 40960 MiB
"""


def program(folder, name, text, code=0):
    path = folder / name
    path.write_text(f"#!/bin/sh\ncat << 'END'\n{text}END\nexit {code}\n")
    path.chmod(0o755)


def test_info_shows_the_nearest_gpu_and_adapter(monkeypatch, tmp_path):
    root = sysfs(tmp_path / "root", **CROSSED, nics={"cxi/cxi0": 0, "cxi/cxi3": 3})
    program(tmp_path, "nvidia-smi", SMI)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(48, 64)))
    cards = info.query_gpus()
    assert [card.label for card in cards] == ["NVIDIA A100-SXM4-40GB, 40960 MiB"] * 4
    facts = info.binding_facts(cards, {}, root)
    assert facts == {
        "cores": "48-63",
        "numa": "3 of 4",
        "adapters": {"cxi0": 0, "cxi3": 3},
        "nearest_adapter": "cxi3",
        "gpus": CROSSED["gpus"],
        "gpu": "0000:03:00.0 because it is nearest to its cores",
    }
    shown = info.binding_facts(cards, {"CUDA_VISIBLE_DEVICES": "3"}, root)
    assert shown["gpu"] == "0000:c1:00.0 because it is the only GPU that this rank sees"


def test_info_says_why_it_is_the_local_number(monkeypatch, tmp_path):
    root = sysfs(tmp_path, CROSSED["nodes"], dict.fromkeys(CROSSED["gpus"], -1))
    cards = [
        info.GpuCard("A100", bus, f"GPU-{n}") for n, bus in enumerate(CROSSED["gpus"])
    ]
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0})
    facts = info.binding_facts(cards, {"LOCAL_RANK": "2"}, root)
    why = "sysfs states no NUMA node of the GPU 0000:03:00.0"
    assert facts["gpu"] == f"0000:82:00.0 because {why}"


@pytest.mark.parametrize("variable, seen", [
    (None, "aa bb"), ("1,0", "bb aa"), ("GPU-bb", "bb"), ("", ""), ("1,x,0", "bb"),
    ("7", ""),
])  # fmt: skip
def test_gpus_that_cuda_visible_devices_leaves(variable, seen):
    cards = [info.GpuCard("A100", "", f"GPU-{name}") for name in ("aa", "bb")]
    own = {} if variable is None else {"CUDA_VISIBLE_DEVICES": variable}
    found = [card.uuid.removeprefix("GPU-") for card in info.visible_cards(cards, own)]
    assert " ".join(found) == seen


def test_a_slurm_that_does_not_answer_is_told(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert info.slurm() == "not found"
    program(tmp_path, "sinfo", "", code=1)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert info.slurm() == "sinfo --version does not answer, in job 7"
