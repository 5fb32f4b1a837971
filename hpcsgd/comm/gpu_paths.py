"""Which way arrays on GPUs can go on this node: what its kernel and its settings say.

Pure functions of a root directory ("/" of this machine) and an environment. They say
what is possible; what a transport really does its own log says (NCCL_DEBUG=INFO).
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

PEER_MEMORY = ("nvidia_peermem", "nv_peer_mem")  # modules that lend GPU memory to RDMA
STORAGE = "nvidia_fs"  # the one that lends it to drives
DMABUF_SINCE = (5, 12)  # of Linux
FAR = ("LOC", "0")  # NCCL_NET_GDR_LEVEL at which no adapter is near enough
ON = ("1", "ON", "TRUE", "YES")
MPI_SETTINGS = ("MPICH_GPU_SUPPORT_ENABLED", "UCX_TLS", "OMPI_MCA_opal_cuda_support")


class Way(NamedTuple):
    """Whether something can be, and what that hangs on."""

    possible: bool
    why: str

    def __str__(self) -> str:
        return f"{'possible' if self.possible else 'no'} ({self.why})"


def rdma_way(root: Path, environment: Mapping[str, str]) -> Way:
    """Whether NCCL can send GPU memory through an adapter without the host's."""
    adapters = adapters_in(root)
    if environment.get("NCCL_IB_DISABLE", "0") not in ("", "0"):
        return Way(False, f"NCCL_IB_DISABLE={environment['NCCL_IB_DISABLE']}; unset it")
    if not adapters:
        return Way(False, "no adapter in /sys/class/infiniband")
    level = environment.get("NCCL_NET_GDR_LEVEL", "")
    if level.upper() in FAR:
        return Way(False, f"NCCL_NET_GDR_LEVEL={level}; unset it")
    lender = _lender(root, environment)
    if not lender:
        return Way(False, f"{PEER_MEMORY[0]} is not loaded; have it loaded: modprobe")
    return Way(True, f"{' '.join(adapters)} by {lender}")


def adapters_in(root: Path) -> list[str]:
    """InfiniBand and RoCE."""
    folder = root / "sys/class/infiniband"
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def is_loaded(root: Path, module: str) -> bool:
    """Whether the kernel has it."""
    if (root / "sys/module" / module).is_dir():
        return True
    lines = _text(root / "proc/modules").splitlines()
    return any(line.split()[:1] == [module] for line in lines)


def lends_by_dmabuf(root: Path, environment: Mapping[str, str]) -> bool:
    """The kernel's own way, which only the open modules of the driver know."""
    if environment.get("NCCL_DMABUF_ENABLE", "1") == "0":
        return False
    is_open = "Open Kernel Module" in _text(root / "proc/driver/nvidia/version")
    return is_open and _linux(root) >= DMABUF_SINCE


def storage_way(
    root: Path, environment: Mapping[str, str], kvikio: str | None, cufile: str | None
) -> Way:
    """Whether drives can write to GPU memory without the host's.

    `kvikio` is its version, `cufile` the library that is found; None: there is none.
    """
    mode = environment.get("KVIKIO_COMPAT_MODE", "")
    for missing, why in (
        (kvikio is None, "kvikio is not installed: pip install kvikio-cu13, or -cu12"),
        (mode.upper() in ON, f"KVIKIO_COMPAT_MODE={mode}; unset it"),
        (cufile is None, "libcufile is not found: install CUDA's cufile"),
        (not (root / "run/udev").is_dir(), "/run/udev is not there; mount it"),
        (not is_loaded(root, STORAGE), f"{STORAGE} is not loaded; have it loaded"),
    ):
        if missing:
            return Way(False, why)
    return Way(True, f"kvikio {kvikio} by {STORAGE}")


def mpi_way(reads: bool | None, environment: Mapping[str, str]) -> Way:
    """Whether MPI can be given addresses on GPUs; `reads` is its own word on it."""
    said = {None: "MPI cannot be asked", True: "MPI says so", False: "MPI denies it"}
    found = [
        f"{name}={environment[name]}" for name in MPI_SETTINGS if name in environment
    ]
    switched_on = environment.get("MPICH_GPU_SUPPORT_ENABLED") == "1"
    possible = switched_on if reads is None else reads
    return Way(possible, ", ".join([said[reads], *found]))


def version_text(number: int) -> str:
    """2.27.3 of what NCCL calls 22703, and 2.8.3 of 2803."""
    major = 10000 if number >= 10000 else 1000
    return f"{number // major}.{number % major // 100}.{number % 100}"


def _lender(root: Path, environment: Mapping[str, str]) -> str:
    for module in PEER_MEMORY:
        if is_loaded(root, module):
            return module
    return "dmabuf" if lends_by_dmabuf(root, environment) else ""


def _linux(root: Path) -> tuple[int, int]:
    release = re.match(r"(\d+)\.(\d+)", _text(root / "proc/sys/kernel/osrelease"))
    return (int(release[1]), int(release[2])) if release else (0, 0)


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
