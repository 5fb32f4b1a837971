"""Products whose arithmetic a device does: exchanges of CA-SGD, and plain steps."""

from abc import ABC, abstractmethod

import numpy as np

from hpcsgd.backends.device import Device
from hpcsgd.backends.device_buffers import Order
from hpcsgd.backends.device_csr import DeviceCsr, put_csr
from hpcsgd.backends.device_exchange import DeviceExchange
from hpcsgd.backends.device_matrix import DeviceMatrix, put_matrix
from hpcsgd.backends.device_products import DenseProducts, Widths
from hpcsgd.backends.gram_kernel import Seconds, choose_gram
from hpcsgd.comm.on_device import OnDevice as CarriesArrays
from hpcsgd.csr import Csr
from hpcsgd.data.unheld import Unheld
from hpcsgd.errors import ConfigError
from hpcsgd.products.base import Group, State, Task
from hpcsgd.products.device_cycle import Cycle, Travelling
from hpcsgd.products.device_sums import DeviceSums
from hpcsgd.products.device_watch import DeviceWatch
from hpcsgd.products.held import HeldState
from hpcsgd.schedule import Blocks, blocks_of

REMEDY = "use --device cpu"


class OnDevice(ABC):
    """What both have: the matrix there, and one set of buffers for each size."""

    holds_all_columns = False
    gram_asked = "own"  # who is to make the Gram of exchanges
    gram_kernel = ""  # who does

    def __init__(self, task: Task, device: Device) -> None:
        check_task(task)
        self.task = task
        self.device = device
        self.sums = DeviceSums(task, device)
        # A device outlives runs: whom it asks before it waits is for each of them.
        carried = isinstance(task.members, CarriesArrays)
        device.settle = task.members.settle if carried else device.wait  # type: ignore[attr-defined]
        shard, form = task.shard, task.precision.matrix
        self.scale = scale_of(task)
        put = put_csr if shard.is_sparse else put_matrix
        self.matrix: DeviceMatrix | DeviceCsr = put(
            *(device, shard.matrix, form, self.scale)  # type: ignore[arg-type]
        )
        self.order = Order(device, shard.targets, shard.weights, shard.offsets)
        self._exchanges: dict[tuple[Blocks, int], DeviceExchange] = {}
        self._cycles: dict[tuple[int, ...], Cycle] = {}

    @property
    def widths(self) -> Widths:
        """Margins of every state of the weights."""
        task = self.task
        return Widths(task.columns, task.states, task.states)

    @property
    def variant(self) -> int:
        """Which one of several sets of buffers is in use."""
        return 0

    @abstractmethod
    def advance(self, state: State, group: Group, upcoming: Group | None) -> State:
        """The state after the steps of `group`."""

    def messages(self, exchange: DeviceExchange) -> list[Travelling]:
        """What members sum in one exchange."""
        return []

    def finish(self) -> None:  # noqa: B027
        """Nothing is begun early."""

    def cycle_of(self, exchange: DeviceExchange, state: HeldState) -> Cycle:
        """The exchange with its messages, for the arrays of this state."""
        weights, intercept = state.on_device("weights"), state.on_device("intercept")
        key = id(exchange), id(weights), id(intercept)
        found = self._cycles.get(key)
        if found is None:
            found = self._cycles[key] = Cycle(
                *(self.device, self.sums),
                lambda: exchange.before(weights),
                self.messages(exchange),
                lambda: exchange.after(weights, intercept),
            )
        return found

    def exchange_of(self, blocks: Blocks) -> DeviceExchange:
        """Kernels and buffers of exchanges of these sizes."""
        key = blocks, self.variant
        found = self._exchanges.get(key)
        if found is None:
            task = self.task
            found = self._exchanges[key] = DeviceExchange(
                *(self.device, self.matrix, self.order, blocks),
                *(task.family, task.precision, self.widths),
            )
            self._choose_gram(found)
        return found

    def _choose_gram(self, exchange: DeviceExchange) -> None:
        """Who makes the Gram of exchanges of this size; the same on all members."""
        if not isinstance(exchange.rows, DenseProducts):
            return
        choice = choose_gram(self.gram_asked, exchange.rows, self._added)
        exchange.rows = choice.products
        if choice.name != "own" or not self.gram_kernel:
            self.gram_kernel = choice.name

    def _added(self, seconds: Seconds) -> Seconds:
        """Over members: one slow member is slow for all."""
        said = self.task.members.exchange_objects(seconds)
        return {name: sum(one[name] for one in said) for name in seconds}


class DeviceGram(OnDevice):
    """CA-SGD: tiles of the Gram and the margins in one buffer, summed as one."""

    def __init__(self, task: Task, device: Device) -> None:
        super().__init__(task, device)
        self.watch = DeviceWatch(task, device)

    def advance(self, state: State, group: Group, upcoming: Group | None) -> State:
        """Products, one message, s steps."""
        assert isinstance(state, HeldState)
        exchange = self.exchange_of(group.blocks)
        self.order.seek(*group.place, group.blocks.rows)
        exchange.coefficients.load(group.coefficients.whole)
        cycle = self.cycle_of(exchange, state)
        self.task.clock.lap("sample")
        if not self.watch.run(state, group, exchange, cycle):
            cycle.run()
        self.task.clock.lap("exchange")
        state.written(exchange.residuals)
        return state

    def messages(self, exchange: DeviceExchange) -> list[Travelling]:
        """One, unless its halves travel in different formats."""
        wire, sums = self.task.precision.gram_wire, self.task.precision.margin_sum
        if self.task.precision.one_message:
            return [Travelling("products", exchange.message, sums)]
        gram = Travelling("gram", exchange.gram, wire)
        return [gram, Travelling("margins", exchange.margins, sums)]


class DeviceDirect(OnDevice):
    """Plain SGD: every step is an exchange of its own, without a Gram."""

    @property
    def widths(self) -> Widths:
        """Margins where a step reads them, so that no more than these travel."""
        return Widths(self.task.columns, self.task.states, 1)

    def advance(self, state: State, group: Group, upcoming: Group | None) -> State:
        """One synchronisation per step."""
        assert isinstance(state, HeldState)
        self.order.seek(*group.place, group.blocks.rows)
        for j, size in enumerate(group.blocks.sizes):
            exchange = self.exchange_of(blocks_of((size,)))
            exchange.coefficients.load(group.steps[j].unrolled)
            self.cycle_of(exchange, state).run()
        self.task.clock.lap("steps")
        state.written(exchange.residuals)
        return state

    def messages(self, exchange: DeviceExchange) -> list[Travelling]:
        """Margins alone."""
        form = self.task.precision.margin_sum
        return [Travelling("margins", exchange.margins, form)]


def check_task(task: Task) -> None:
    """Refuse what no kernel does yet, in one sentence."""
    precision, shard = task.precision, task.shard
    low = ("matrix", "margin", "gram_wire")
    others = {getattr(precision, name) for name in vars(precision) if name not in low}
    for wrong, what in (
        (not isinstance(shard.matrix, np.ndarray | Csr | Unheld), "such rows"),
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
