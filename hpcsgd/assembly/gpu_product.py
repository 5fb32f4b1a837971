"""The product of a run on the GPU of this rank."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace

from hpcsgd.agreement.gradient import Gradient
from hpcsgd.agreement.offload_there import OffloadThere
from hpcsgd.agreement.sharded_there import ShardedThere
from hpcsgd.agreement.there import GradientThere
from hpcsgd.agreement.ticktock import TickTock
from hpcsgd.assembly.feed import Feed
from hpcsgd.assembly.gpu import check_room
from hpcsgd.backends.device import Device
from hpcsgd.backends.device_faults import shown
from hpcsgd.backends.device_room import grams_bytes, rows_bytes
from hpcsgd.backends.gram_kernel import allowed, bytes_asked
from hpcsgd.comm.grid import Grid
from hpcsgd.config import RunConfig
from hpcsgd.csr import Csr
from hpcsgd.products import GATHERS, RECURS
from hpcsgd.products.base import Product, Task
from hpcsgd.products.device_gradient import DeviceGradient
from hpcsgd.products.device_kinds import make_on_device
from hpcsgd.products.device_slices import DeviceSlices
from hpcsgd.products.micro import MicroBatches
from hpcsgd.products.on_device import OnDevice

log = logging.getLogger(__name__)


def make_on_gpu(
    config: RunConfig,
    name: str,
    look_ahead: bool,
    task: Task,
    feed: Feed,
    grid: Grid,
    device: Device,
) -> OnDevice:
    """The product called `name`, if there is room for it; called by all ranks."""
    plans = feed.plans
    if name not in RECURS:  # steps one by one
        plans = [(size,) for sizes in plans for size in sizes]
    kept, sets = _kept(name, task, feed), 1 + look_ahead
    asked = allowed(config.products.gram_kernel, config.run.reproducible)
    takes = sets * _asked_bytes(asked, task, plans, device)
    insists = 0 if asked == "auto" else takes
    left = check_room(device, task, plans, grid.world, sets, kept, asked=insists)
    may_ask = asked == "auto" and takes > 0  # the same on all ranks
    if may_ask and not all(grid.world.exchange_objects(takes <= left)):
        log.info("cuBLAS is not asked: %s for its squares are not free", shown(takes))
        asked = "own"
    product = make_on_device(name, task, device, look_ahead)
    product.gram_asked = asked
    return product


def _asked_bytes(
    kind: str, task: Task, plans: Iterable[Sequence[int]], device: Device
) -> int:
    """Of what another Gram than our plain one works in."""
    shard = task.shard
    if isinstance(shard.matrix, Csr):
        return 0
    sizes = {tuple(sizes) for sizes in plans}
    return bytes_asked(kind, sizes, shard.width, task.precision.matrix, device)


def make_gradient_on_gpu(
    config: RunConfig,
    task: Task,
    feed: Feed,
    grid: Grid,
    device: Device,
    gradient: Gradient,
) -> DeviceGradient:
    """What sums the gradients that replicas share; called by all ranks."""
    plans = [(size,) for sizes in feed.plans for size in sizes]
    if isinstance(gradient, ShardedThere):
        return _make_slices(task, feed, grid, device, gradient)
    two = replace(task, states=2)  # as wide as weights and their gradient
    own = task.shard.width // grid.replicas.size + 1  # of what goes up in slices
    offloads = isinstance(gradient, OffloadThere)
    again = task.shard.width if isinstance(gradient, TickTock) else 0
    kept = 4 * (own * offloads + again) * task.columns
    check_room(device, two, plans, grid.world, kept=kept)
    product = DeviceGradient(task, device, gradient)
    product.holds_weights = offloads or isinstance(gradient, GradientThere)
    return product


def _make_slices(
    task: Task, feed: Feed, grid: Grid, device: Device, gradient: ShardedThere
) -> DeviceSlices:
    """Batches of an exchange are one where no gradient is whole to add them up in."""
    plans = [(size,) for sizes in feed.plans for size in sizes]
    if gradient.takes_at_once:
        plans = [(sum(sizes),) for sizes in feed.plans]
    one = replace(task, states=1)
    held = gradient.bytes_there(task.shard.width)
    gathers = gradient.stage == 3
    kept = 4 * task.columns * gathers * sum(rows for (rows,) in set(plans))  # scores
    check_room(device, one, plans, grid.world, kept=kept, held=held)
    product = DeviceSlices(task, device, gradient)
    product.holds_weights, product.gathers = True, gathers
    return product


def on_gpu(product: Product) -> OnDevice | None:
    """What of it computes on a GPU, if anything does."""
    inner = product.product if isinstance(product, MicroBatches) else product
    return inner if isinstance(inner, OnDevice) else None


def _kept(name: str, task: Task, feed: Feed) -> int:
    """Bytes of Grams or rows that are there beside those of this member."""
    shard = task.shard
    if name == "cached":
        return grams_bytes(feed.plans, shard.width, task.columns * task.states)
    if name not in GATHERS or task.members.size == 1:
        return 0
    item, total = shard.matrix.dtype.itemsize, shard.total_columns
    most = max(sum(sizes) for sizes in feed.plans)
    travel = most * (shard.width + total) * item
    here = shard.height if name == "gather-once" else most
    return travel + rows_bytes(here, total, item) + 4 * total * task.states
