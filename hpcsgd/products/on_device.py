"""Products whose arithmetic a device does: exchanges of CA-SGD, and plain steps."""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from hpcsgd.backends.device import Device
from hpcsgd.backends.device_buffers import Order
from hpcsgd.backends.device_exchange import DeviceExchange
from hpcsgd.backends.device_matrix import DeviceMatrix, put_matrix
from hpcsgd.backends.device_products import Widths
from hpcsgd.comm.on_device import OnDevice as CarriesArrays
from hpcsgd.comm.workspace import Message
from hpcsgd.errors import ConfigError
from hpcsgd.formats import get_format
from hpcsgd.products.base import Group, Scratch, State, Task
from hpcsgd.products.held import HeldState
from hpcsgd.schedule import Blocks, blocks_of

REMEDY = "use --device cpu"


class OnDevice(ABC):
    """What both have: the matrix there, and one set of buffers for each size."""

    holds_all_columns = False

    def __init__(self, task: Task, device: Device) -> None:
        check_task(task)
        self.task = task
        self.device = device
        self.scratch = Scratch()
        # A device outlives runs: whom it asks before it waits is for each of them.
        carried = isinstance(task.members, CarriesArrays)
        device.settle = task.members.settle if carried else device.wait  # type: ignore[attr-defined]
        shard, form = task.shard, task.precision.matrix
        self.scale = scale_of(task)
        self.matrix: DeviceMatrix = put_matrix(
            *(device, shard.matrix, form, self.scale)  # type: ignore[arg-type]
        )
        self.order = Order(device, shard.targets, shard.weights, shard.offsets)
        self._exchanges: dict[Blocks, DeviceExchange] = {}

    @property
    def widths(self) -> Widths:
        """Margins of every state of the weights."""
        task = self.task
        return Widths(task.columns, task.states, task.states)

    @abstractmethod
    def advance(self, state: State, group: Group, upcoming: Group | None) -> State:
        """The state after the steps of `group`."""

    def finish(self) -> None:  # noqa: B027
        """Nothing is begun early."""

    def exchange_of(self, blocks: Blocks) -> DeviceExchange:
        """Kernels and buffers of exchanges of these sizes."""
        found = self._exchanges.get(blocks)
        if found is None:
            task = self.task
            found = self._exchanges[blocks] = DeviceExchange(
                *(self.device, self.matrix, self.order, blocks),
                *(task.family, task.precision, self.widths),
            )
        return found

    def sum_over_members(self, name: str, array: Any, form: str) -> None:
        """array ← Σ over members; where it is rounded on the way, by the host."""
        members = self.task.members
        if members.size == 1:
            return
        if isinstance(members, CarriesArrays) and get_format(form).is_wide:
            members.sum(array, "products")
            self.task.clock.lap("communicate")
            return
        message: Message = self.scratch.message(members, name, len(array), form)
        message.array[:] = self.device.fetch(array)
        self.task.clock.lap("copy")
        total = message.sum("products")
        self.task.clock.lap("communicate")
        self.device.fill(array, np.ascontiguousarray(total, dtype=np.float32))


class DeviceGram(OnDevice):
    """CA-SGD: tiles of the Gram and the margins in one buffer, summed as one."""

    def advance(self, state: State, group: Group, upcoming: Group | None) -> State:
        """Products, one message, s steps."""
        assert isinstance(state, HeldState)
        task, exchange = self.task, self.exchange_of(group.blocks)
        self.order.seek(*group.place, group.blocks.rows)
        exchange.coefficients.load(group.coefficients.whole)
        weights, intercept = state.on_device("weights"), state.on_device("intercept")
        task.clock.lap("sample")
        if task.members.size == 1:
            exchange.at_once(weights, intercept)
        else:
            exchange.sample()
            exchange.products(weights)
            self._sum(exchange)
            exchange.iterate(intercept)
            exchange.descend(weights)
        task.clock.lap("exchange")
        state.written(exchange.residuals)
        return state

    def _sum(self, exchange: DeviceExchange) -> None:
        precision = self.task.precision
        if precision.one_message:
            form = precision.margin_sum
            self.sum_over_members("products", exchange.message, form)
        else:
            self.sum_over_members("gram", exchange.gram, precision.gram_wire)
            self.sum_over_members("margins", exchange.margins, precision.margin_sum)


class DeviceDirect(OnDevice):
    """Plain SGD: every step is an exchange of its own, without a Gram."""

    @property
    def widths(self) -> Widths:
        """Margins where a step reads them, so that no more than these travel."""
        return Widths(self.task.columns, self.task.states, 1)

    def advance(self, state: State, group: Group, upcoming: Group | None) -> State:
        """One synchronisation per step."""
        assert isinstance(state, HeldState)
        task, form = self.task, self.task.precision.margin_sum
        self.order.seek(*group.place, group.blocks.rows)
        weights, intercept = state.on_device("weights"), state.on_device("intercept")
        for j, size in enumerate(group.blocks.sizes):
            exchange = self.exchange_of(blocks_of((size,)))
            exchange.coefficients.load(group.steps[j].unrolled)
            if task.members.size == 1:
                exchange.at_once(weights, intercept)
                continue
            exchange.sample()
            exchange.products(weights)
            self.sum_over_members("margins", exchange.margins, form)
            exchange.iterate(intercept)
            exchange.descend(weights)
        task.clock.lap("steps")
        state.written(exchange.residuals)
        return state


def check_task(task: Task) -> None:
    """Refuse what no kernel does yet, in one sentence."""
    precision, shard = task.precision, task.shard
    low = ("matrix", "margin", "gram_wire")
    others = {getattr(precision, name) for name in vars(precision) if name not in low}
    for wrong, what in (
        (shard.is_sparse, "sparse rows"),
        (not isinstance(shard.matrix, np.ndarray), "streamed rows"),
        (task.clip is not None, "clipped gradients"),
        (others != {"fp32"}, "this precision"),
        (not _is_stored(precision.margin), "this format of margins"),
    ):
        if wrong:
            raise ConfigError(f"a GPU does not do {what} here yet; {REMEDY}")


def scale_of(task: Task) -> float:
    """What all columns are stored times; a Gram of columns apart is none of rows."""
    scaling = task.backend.scaling
    if scaling is None or not len(scaling.exponents):
        return 1.0
    exponents = np.unique(scaling.exponents)
    if len(exponents) > 1:
        raise ConfigError(
            "a GPU takes columns that are scaled alike; use --set"
            f" precision.scale=global, or {REMEDY[4:]}"
        )
    return float(np.ldexp(1.0, int(exponents[0])))


def _is_stored(name: str) -> bool:
    return name in ("fp32", "bf16", "fp16")
