"""The products that a device computes, by name."""

from hpcsgd.backends.device import Device
from hpcsgd.errors import ConfigError
from hpcsgd.products import GATHERS
from hpcsgd.products.base import Task
from hpcsgd.products.device_ahead import DeviceLookAhead
from hpcsgd.products.device_cached import DeviceCached
from hpcsgd.products.device_direct import DeviceWalk
from hpcsgd.products.device_gather import DeviceGather, DeviceGatherOnce
from hpcsgd.products.on_device import DeviceGram, OnDevice

ON_DEVICE: dict[str, type[OnDevice]] = {
    "direct": DeviceWalk,
    "gram": DeviceGram,
    "gather": DeviceGather,
    "gather-once": DeviceGatherOnce,
    "cached": DeviceCached,
}


def make_on_device(
    name: str, task: Task, device: Device, look_ahead: bool = False
) -> OnDevice:
    """The product called `name` on this device."""
    if look_ahead:
        return DeviceLookAhead(task, device)
    if name not in ON_DEVICE:
        raise ConfigError(
            f"[products] kind = {name!r} is not offered on a GPU; use"
            f" {' or '.join(ON_DEVICE)}, or --device cpu"
        )
    if name in GATHERS and task.shard.is_sparse:
        raise ConfigError(
            f"[products] kind = {name!r} does not move sparse rows between GPUs; use"
            " kind = 'gram', or --device cpu"
        )
    if name in GATHERS and task.members.size == 1:
        name = "direct"  # all columns are here: nothing is brought
    return ON_DEVICE[name](task, device)
