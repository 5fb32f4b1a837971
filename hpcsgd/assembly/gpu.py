"""The GPU of this rank."""

import os

from hpcsgd.backends.device import Device


def bind(shared: bool) -> Device:
    """Open it; `shared`: more ranks of a node than it has GPUs are allowed."""
    from hpcsgd.backends.cuda import device_of_rank, load_cupy
    from hpcsgd.comm.gpus import gpu_of_rank

    count = load_cupy().cuda.runtime.getDeviceCount()
    return device_of_rank(gpu_of_rank(os.environ, count, shared))
