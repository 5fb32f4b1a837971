"""What `hpcsgd info` says of transports, and of the way that arrays on GPUs take."""

import ctypes.util
import os
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hpcsgd.comm import gpu_paths

# Set by launchers: a child that starts MPI would then wait for its siblings.
LAUNCHED = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "PMI_FD")
ASK = "from hpcsgd.comm.mpi_facts import reads_device_memory as r; print(r())"
KVIKIO = ("kvikio-cu13", "kvikio-cu12", "kvikio")
BY_HOST = "mpi-host"


def transport_facts(packages: Mapping[str, str], gpus: int) -> dict[str, Any]:
    """Transport -> whether it can be had here; and the ways of theirs."""
    root, library = Path("/"), nccl_library()
    return describe(
        nccl=nccl_version(library),
        cupy=packages.get("cupy", "not installed") != "not installed",
        gpus=gpus,
        mpi=gpu_paths.mpi_way(ask_mpi(), os.environ),
        rdma=gpu_paths.rdma_way(root, os.environ),
        storage=gpu_paths.storage_way(
            root, os.environ, _version_of(KVIKIO), ctypes.util.find_library("cufile")
        ),
    )


def describe(
    nccl: str | None,
    cupy: bool,
    gpus: int,
    mpi: gpu_paths.Way,
    rdma: gpu_paths.Way,
    storage: gpu_paths.Way,
) -> dict[str, Any]:
    """The same of given facts; `nccl` is its version, None without it."""
    needs = "needs CuPy" if not cupy else ""
    has_nccl = nccl is not None and cupy
    return {
        "nccl": f"{nccl} ({needs})" if nccl and needs else nccl or "not found",
        "mpi-cuda": str(mpi),
        BY_HOST: "possible",
        "auto": _auto(has_nccl, cupy, gpus),
        "gpudirect rdma": str(rdma),
        "gpudirect storage": str(storage),
    }


def _auto(has_nccl: bool, cupy: bool, gpus: int) -> str:
    """What --transport auto would take here."""
    if not gpus:
        return "none: no GPU is here"
    if not cupy:
        return "none: CuPy is not installed"
    if not has_nccl:
        return f"{BY_HOST}: NCCL is not found"
    return f"nccl where every rank has a GPU of its own, else {BY_HOST}"


def nccl_library() -> str | None:
    """The one that is found: the system's, or that of its wheel."""
    wheel = find_spec("nvidia.nccl") if find_spec("nvidia") else None
    folders = list(wheel.submodule_search_locations or ()) if wheel else []
    for folder in folders:
        for path in sorted(Path(folder, "lib").glob("libnccl.so*")):
            return str(path)
    return ctypes.util.find_library("nccl")


def nccl_version(library: str | None) -> str | None:
    """What NCCL says of itself; None where it cannot be loaded."""
    if library is None:
        return None
    number = ctypes.c_int(0)
    try:
        failed = ctypes.CDLL(library).ncclGetVersion(ctypes.byref(number))
    except (OSError, AttributeError):
        return None
    return None if failed else gpu_paths.version_text(number.value)


def ask_mpi() -> bool | None:
    """MPI's own word on device memory, from a process of its own that starts it.

    None where MPI has no word on it, or where a launcher would start it for all ranks.
    """
    if any(name in os.environ for name in LAUNCHED):
        return None
    try:
        done = subprocess.run(
            [sys.executable, "-c", ASK],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return {"True": True, "False": False}.get(done.stdout.strip())


def _version_of(names: tuple[str, ...]) -> str | None:
    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None
