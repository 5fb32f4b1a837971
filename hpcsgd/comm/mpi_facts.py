"""What MPI says of itself: its library, its standard, and whether it knows CUDA."""

import ctypes
import os
from typing import Any

from hpcsgd.comm.mpi import INSTALL, library_name, load_mpi


def mpi_facts() -> dict[str, str]:
    """What `info` says of MPI, without initialising it."""
    try:
        import mpi4py

        mpi4py.rc.initialize = False
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        return {"library": "none", "why": f"{error}; {INSTALL}".replace("\n", " ")}
    return {
        "library": library_name(MPI),
        "standard": ".".join(map(str, MPI.Get_version())),
        "mpi4py": mpi4py.__version__,
        "cuda_aware": _cuda_aware(MPI),
    }


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
