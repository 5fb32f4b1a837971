"""What MPI says of itself: its library, its standard, and whether it knows CUDA."""

import ctypes
import os
import re
from collections.abc import Mapping
from typing import Any

from hpcsgd.comm.mpi import library_name, load_mpi, why_not_loaded

# Variables that choose a provider of libfabric, transports of UCX, or between these.
CHOICES = (
    "FI_PROVIDER",
    "MPIR_CVAR_OFI_USE_PROVIDER",
    "I_MPI_FABRICS",
    "I_MPI_OFI_PROVIDER",
    "OMPI_MCA_pml",
    "OMPI_MCA_mtl",
    "UCX_TLS",
    "UCX_NET_DEVICES",
)


def mpi_facts() -> dict[str, str]:
    """What `info` says of MPI, without initialising it."""
    try:
        import mpi4py

        mpi4py.rc.initialize = False
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        return {"library": "none", "why": why_not_loaded(error)}
    return {
        "library": library_name(MPI),
        "provider": provider_of(MPI.Get_library_version(), os.environ),
        "standard": ".".join(map(str, MPI.Get_version())),
        "mpi4py": mpi4py.__version__,
        "cuda_aware": _cuda_aware(MPI),
    }


def provider_of(version: str, environment: Mapping[str, str]) -> str:
    """Return what carries messages between nodes, as far as it can be known.

    `version` is what MPI_Get_library_version says. MPICH names its device and the
    network modules that were built in; it takes the first unless MPIR_CVAR_CH4_NETMOD
    names another. What libfabric and UCX choose by themselves they do not say: the
    variables that restrict them are shown.
    """
    found = []
    device = re.search(r"MPICH Device:\s*(\w+):(.*)", version)
    if device:
        built_in = re.split(r"[\s,]+", device[2].strip())
        module = environment.get("MPIR_CVAR_CH4_NETMOD") or built_in[0]
        found.append(f"device {device[1]}:{module}")
    chosen = [name for name in CHOICES if environment.get(name)]
    found += [f"{name}={environment[name]}" for name in chosen]
    return ", ".join(found) or "provider not named by MPI"


def reads_device_memory() -> bool | None:
    """What MPI itself says of CUDA, once it is started; None where it cannot be asked.

    An extension of MPICH and Open MPI, which mpi4py does not have.
    """
    try:
        ask = ctypes.CDLL(load_mpi().__file__).MPIX_Query_cuda_support
    except (OSError, AttributeError):
        return None
    return bool(ask())


def _cuda_aware(mpi: Any) -> str:
    """yes, no or unknown, from what the library and the environment say."""
    said = mpi.Get_library_version()
    if "Open MPI" in said:
        value = os.environ.get("OMPI_MCA_opal_cuda_support")  # noqa: SIM112
        return "yes" if value in ("1", "true") else "unknown (ask ompi_info)"
    if os.environ.get("MPICH_GPU_SUPPORT_ENABLED") == "1":
        return "yes"
    return "no (MPICH_GPU_SUPPORT_ENABLED is not 1)"
