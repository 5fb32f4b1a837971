"""One small sum at the start: whether a transport of device arrays works here."""

import numpy as np

from hpcsgd.comm.layer import fetched
from hpcsgd.comm.on_device import OnDevice
from hpcsgd.errors import DeviceLost, TransportError

PROOF = 64  # words of the sum at the start


def prove(world: OnDevice) -> None:
    """One small sum on the device, checked; its failure is an error on all ranks."""
    world.together(lambda: _prove(world))


def _prove(world: OnDevice) -> None:
    words = np.arange(PROOF, dtype=np.float32)
    layer, stream = world.layer, world.stream
    host, buffer = layer.pinned(PROOF, np.float32), layer.empty(PROOF, np.float32)
    host[...] = words * (world.rank + 1)
    layer.to_device(host, buffer, stream)
    try:
        world.sum(buffer, "control")
        world.settle()
    except DeviceLost:
        raise
    except RuntimeError as error:  # mpi4py's own are RuntimeErrors, and so are ours
        raise TransportError(_no(world, f"failed ({error})")) from error
    found = fetched(layer, buffer, stream)
    expected = words * (world.size * (world.size + 1) // 2)
    wrong = np.flatnonzero(found != expected)
    if wrong.size:
        shown = f"gave {found[wrong[0]]:g} instead of {expected[wrong[0]]:g}"
        raise TransportError(_no(world, shown))


def _no(world: OnDevice, what: str) -> str:
    return (
        f"transport {world.kind} does not work here: a small sum of arrays on the GPUs"
        f" {what}; {world.remedy}"
    )
