"""Which way arrays on GPUs can go, told from folders and settings that are made up."""

import pytest

from hpcsgd.cli import info
from hpcsgd.cli.info import describe, nccl_version, probe_mpi_device_memory
from hpcsgd.comm.gpu_mpi import (
    PathCheck,
    adapters_in,
    has_dmabuf,
    is_loaded,
    mpi_way,
    rdma_way,
    storage_way,
    version_text,
)
from hpcsgd.comm.nccl import NcclCommunicator
from hpcsgd.comm.threads import run_ranks
from tests.helpers.fake_cuda import FakeLayer, Node

OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65"
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65"


def machine(root, *folders, **texts):
    """A root directory with these folders and files; "__" in a name is "/"."""
    for folder in folders:
        (root / folder).mkdir(parents=True)
    for name, text in texts.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


ADAPTERS = ("sys/class/infiniband/mlx5_1", "sys/class/infiniband/mlx5_0")


def test_adapters_and_a_module_are_a_way(tmp_path):
    root = machine(tmp_path, *ADAPTERS, "sys/module/nvidia_peermem")
    assert adapters_in(root) == ["mlx5_0", "mlx5_1"]
    way = rdma_way(root, {"NCCL_IB_DISABLE": "0", "NCCL_NET_GDR_LEVEL": "PHB"})
    assert way == (True, "mlx5_0 mlx5_1 by nvidia_peermem")
    assert str(way) == "possible (mlx5_0 mlx5_1 by nvidia_peermem)"


@pytest.mark.parametrize(
    "name, value", [("NCCL_IB_DISABLE", "1"), ("NCCL_NET_GDR_LEVEL", "loc")]
)
def test_settings_close_it(tmp_path, name, value):
    root = machine(tmp_path, *ADAPTERS, "sys/module/nvidia_peermem")
    way = rdma_way(root, {name: value})
    assert way == (False, f"{name}={value}; unset it")


def test_without_an_adapter_or_a_module_there_is_none(tmp_path):
    way = rdma_way(tmp_path, {})
    assert str(way) == "no (no adapter in /sys/class/infiniband)"
    way = rdma_way(machine(tmp_path, *ADAPTERS), {})
    assert not way.possible and "nvidia_peermem is not loaded" in way.why


def test_the_list_of_modules_says_it_too(tmp_path):
    lines = "nvidia_uvm 99 0 - Live 0x0\nnv_peer_mem 13163 0 - Live 0x0 (OE)\n"
    root = machine(tmp_path, *ADAPTERS, proc__modules=lines)
    assert is_loaded(root, "nv_peer_mem") and not is_loaded(root, "nv_peer")
    assert rdma_way(root, {}).why.endswith("by nv_peer_mem")


@pytest.mark.parametrize(
    "driver, linux, setting, there",
    [
        (OPEN, "5.12.0-99-generic", None, True),
        (OPEN, "6.1-rc3", "1", True),
        (OPEN, "6.1.0", "0", False),
        (OPEN, "5.11.22", None, False),
        (OPEN, "", None, False),
        (CLOSED, "6.1.0", None, False),
    ],
)
def test_dmabuf_needs_the_open_modules_and_a_kernel(
    tmp_path, driver, linux, setting, there
):
    files = {"proc__driver__nvidia__version": driver}
    files["proc__sys__kernel__osrelease"] = linux
    root = machine(tmp_path, *ADAPTERS, **files)
    environment = {} if setting is None else {"NCCL_DMABUF_ENABLE": setting}
    assert has_dmabuf(root, environment) is there
    way = rdma_way(root, environment)
    assert way.possible is there and ("by dmabuf" in way.why) is there


def test_what_storage_needs(tmp_path):
    given = {}, "26.2", "libcufile.so.0"
    assert "/run/udev" in storage_way(tmp_path, *given).why
    machine(tmp_path, "run/udev")
    assert "nvidia_fs is not loaded" in storage_way(tmp_path, *given).why
    machine(tmp_path, "sys/module/nvidia_fs")
    assert storage_way(tmp_path, *given) == (True, "kvikio 26.2 by nvidia_fs")
    for other, why in (
        (({"KVIKIO_COMPAT_MODE": "on"}, *given[1:]), "KVIKIO_COMPAT_MODE=on"),
        (({}, None, given[2]), "pip install kvikio"),
        (({}, given[1], None), "libcufile"),
    ):
        way = storage_way(tmp_path, *other)
        assert not way.possible and why in way.why
    assert storage_way(tmp_path, {"KVIKIO_COMPAT_MODE": "AUTO"}, *given[1:]).possible


@pytest.mark.parametrize(
    "reads, environment, said",
    [
        (True, {}, "possible (MPI says so)"),
        (False, {"UCX_TLS": "rc"}, "no (MPI denies it, UCX_TLS=rc)"),
        (None, {}, "no (MPI cannot be asked)"),
        (
            *(None, {"MPICH_GPU_SUPPORT_ENABLED": "1"}),
            "possible (MPI cannot be asked, MPICH_GPU_SUPPORT_ENABLED=1)",
        ),
        (
            *(None, {"MPICH_GPU_SUPPORT_ENABLED": "0"}),
            "no (MPI cannot be asked, MPICH_GPU_SUPPORT_ENABLED=0)",
        ),
    ],
)
def test_what_mpi_says(reads, environment, said):
    assert str(mpi_way(reads, environment)) == said


def test_versions():
    assert [version_text(n) for n in (22703, 2803, 22910)] == [
        *("2.27.3", "2.8.3", "2.29.10")
    ]
    assert nccl_version(None) is None and nccl_version("/no/such/library") is None


@pytest.mark.parametrize(
    "nccl, cupy, gpus, auto",
    [
        (
            "2.27.3",
            True,
            4,
            "nccl where every rank has a GPU of its own, else mpi-host",
        ),
        (None, True, 4, "mpi-host: NCCL is not found"),
        ("2.27.3", False, 4, "none: CuPy is not installed"),
        ("2.27.3", True, 0, "none: no GPU is here"),
    ],
)
def test_what_auto_takes(nccl, cupy, gpus, auto):
    way = PathCheck(False, "a reason")
    said = describe(nccl, cupy, gpus, way, way, way)
    assert said["auto"] == auto
    assert said["nccl"].startswith(nccl or "not found")
    assert ("needs CuPy" in said["nccl"]) is not cupy
    for name in ("mpi-cuda", "gpudirect rdma", "gpudirect storage"):
        assert said[name] == "no (a reason)"


def test_ranks_of_a_launcher_do_not_start_another_mpi(monkeypatch):
    monkeypatch.setattr(info, "ASK", "print(True)")
    for name in info.LAUNCHED:
        monkeypatch.delenv(name, raising=False)
    assert probe_mpi_device_memory() is True
    monkeypatch.setenv("PMI_RANK", "0")
    assert probe_mpi_device_memory() is None
    monkeypatch.delenv("PMI_RANK")
    monkeypatch.setattr(info, "ASK", "raise SystemExit('MPI is not here')")
    assert probe_mpi_device_memory() is None


def test_the_report_says_which_nccl_and_which_way(tmp_path, monkeypatch):
    root = machine(tmp_path, *ADAPTERS, "sys/module/nvidia_peermem")
    way = rdma_way(root, {})
    monkeypatch.setattr("hpcsgd.comm.nccl.rdma_way", lambda *_: way)

    def on_rank(host):
        return NcclCommunicator(host, FakeLayer(Node())).transport

    (alone,) = run_ranks(1, on_rank)
    assert alone.startswith("nccl beside ")
    node = Node()
    for said in run_ranks(2, lambda h: NcclCommunicator(h, FakeLayer(node)).transport):
        assert said.startswith(
            "nccl 2.27.3, GPUDirect RDMA possible (mlx5_0 mlx5_1 by nvidia_peermem),"
            " beside "
        )
