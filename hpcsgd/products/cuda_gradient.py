"""Gradients of replicas on a GPU."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from hpcsgd.backends.base import Memory
from hpcsgd.backends.cuda.device import Device
from hpcsgd.backends.cuda.exchange import DenseProducts, ExchangeKernels, SparseProducts
from hpcsgd.backends.cuda.kernels import blend, build_of
from hpcsgd.backends.cuda.matrix import sent
from hpcsgd.backends.cuda.sequences import CudaExchanges, CudaSequence, DeviceMessage
from hpcsgd.backends.exchange import probed
from hpcsgd.backends.task import Group, State, Task
from hpcsgd.formats import Array
from hpcsgd.glm.unrolling import Blocks, UnrolledSteps
from hpcsgd.products.base import Product

# Gradients of batches on a device, for replicas that share them before they step.
#
# Scores, residuals and Yᵀr are the device's; replicas agree on what it sums, and the
# host takes the step. What scores are read at goes up once an exchange.


class Shares(Protocol):
    """Who takes gradients, to share them before it steps."""

    @property
    def is_last(self) -> bool:
        """Whether a step follows the next batch."""

    @property
    def is_full(self) -> bool:
        """Whether the sums that it is added to are complete with it."""

    @property
    def sums(self) -> "Sums":
        """Those sums."""

    def ready(self, task: Task, state: State) -> Iterator[slice]:
        """Columns of w, as soon as scores may be read there."""


class Sums(Protocol):
    """Where a device adds the gradients of an exchange."""

    device_values: Any  # float32: the gradient, row by row, and more behind it
    memory: Memory  # where it is; counts what crosses

    @property
    def takes_residuals(self) -> bool:
        """Whether it sums them; else it counts them."""

    def gradient_columns(self, complete: bool) -> Any:
        """Return the columns that the agreement takes for rows; complete: no batch
        follows.
        """


class DeviceGradient(Product):
    """Plain steps up to Yᵀr; weights of the host, read at one point."""

    holds_all_columns = False

    def __init__(
        self, task: Task, device: Device, shares: Shares, holds_weights: bool = False
    ) -> None:
        self.task = replace(task, states=1, probe=np.ones(1))
        self.exchanges = CudaExchanges(self.task, device)
        self.device, self.sums = device, self.exchanges.sums
        self.order, self.scale = self.exchanges.order, self.exchanges.scale
        self.gradient_task, self.shares = task, shares
        self._exchanges: dict[int, ExchangeKernels] = {}  # by rows of a batch
        self.point: Any = None
        self.intercept: Any = None
        self.plain = adding(self.scale)
        self.holds_weights = holds_weights  # True: the state's are there, and stay
        self._is_old = True  # what is there is from before a step
        # By rows of a batch, and sums.
        self._known: dict[tuple[int, int], CudaSequence] = {}

    def advance(self, state: State, group: Group, upcoming: Group | None) -> State:
        """Add Yᵀr of one batch, and hand on what the agreement is to take."""
        sums, rows = self.shares.sums, group.blocks.rows
        if self._is_old:
            self._send(state, sums.memory)
        self._is_old, is_full = self.shares.is_last, self.shares.is_full
        exchange = self.exchange_of(group.blocks)
        self.order.seek(*group.place, rows)
        exchange.coefficients.load(self.plain)
        self._compute(exchange, state, sums)
        residuals = self._residuals(exchange, state, sums)
        task = self.gradient_task
        task.clock.lap("steps")
        assert task.gradient is not None
        arriving = self._arriving(exchange, sums, is_full)
        task.gradient.apply_update(task, state, arriving, residuals, None)
        task.clock.lap("update")
        return state

    def finish(self) -> None:
        """Nothing is begun early."""

    def exchange_of(self, blocks: Blocks) -> ExchangeKernels:
        """Return kernels and buffers of a batch."""
        exchange = self._exchanges.get(blocks.rows)
        if exchange is None:
            makers = self.exchanges
            exchange = makers.launches_of(blocks, makers.matrix, self.order, 1)
            makers.choose_kernel(exchange)
            self._exchanges[blocks.rows] = exchange
        return exchange

    def messages(self, exchange: ExchangeKernels) -> list[DeviceMessage]:
        """Return the sum of the margins."""
        form = self.task.precision.margin_sum
        return [DeviceMessage("margins", exchange.margins, form)]

    def _compute(self, exchange: ExchangeKernels, state: State, sums: Sums) -> None:
        self._cycle(exchange, sums).run()

    def _arriving(self, exchange: ExchangeKernels, sums: Sums, complete: bool) -> Any:
        """What the agreement takes for rows."""
        return sums.gradient_columns(complete)

    def _residuals(self, exchange: ExchangeKernels, state: State, sums: Sums) -> Array:
        """Where somebody sums them or compares them; else no more than how many."""
        if not sums.takes_residuals and self.task.members.size == 1:
            return np.broadcast_to(np.float32(0.0), exchange.residuals.shape)
        state.residuals = found = sums.memory.fetch(exchange.residuals)
        return found

    def _send(self, state: State, memory: Memory) -> None:
        """Where scores are read, in the units of rows that are stored times a power."""
        if self.holds_weights:
            self._read(state.on_device("weights"))
        else:
            self._send_point(state, memory)
        if state.intercept is not None:
            self._send_intercept(state.intercept, memory)

    def _read(self, weights: Any) -> None:
        """The weights, or a point of all their states."""
        task, device = self.gradient_task, self.device
        if weights.shape[1] == task.columns:  # what momenta keep is elsewhere
            self.point = weights
            return
        count = task.shard.width * task.columns
        if self.point is None:
            self.point = device.empty((task.shard.width, task.columns), np.float32)
            self._probe = sent(device, task.probe.astype(np.float32))
        sizes = np.int32(count), np.int32(task.states), np.int32(task.columns)
        launch = device.kernel(build_of("blend", "fp32", device.arch))
        launch(*blend(count)[:2], (weights, *sizes, self._probe, self.point))

    def _send_point(self, state: State, memory: Memory) -> None:
        task = self.gradient_task
        if self.point is None:
            shape = len(state.weights), task.columns
            self.point = self.device.empty(shape, np.float32)
        for columns in self.shares.ready(task, state):
            point, there = probed(task, state.weights[columns]), self.point[columns]
            if self.scale != 1.0:
                point = point / point.dtype.type(self.scale)
            memory.from_host(np.ascontiguousarray(point, dtype=np.float32), there)

    def _send_intercept(self, intercept: Array, memory: Memory) -> None:
        read = np.ascontiguousarray(self.gradient_task.probe @ intercept)[None]
        if self.intercept is None:
            self.intercept = self.device.empty(read.shape, np.float64)
        memory.from_host(read, self.intercept)

    def _cycle(self, exchange: ExchangeKernels, sums: Sums) -> CudaSequence:
        """The same launches every time: what they write to stays where it is."""
        key = exchange.blocks.rows, id(sums)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = CudaSequence(
                *(self.device, self.sums),
                (lambda: exchange.before(self.point),),
                self.messages(exchange),
                (lambda: exchange.after(sums.device_values, self.intercept),),
            )
        return found


def adding(scale: float = 1.0) -> UnrolledSteps:
    """gradient ← gradient + Yᵀr, of rows that are stored times `scale`.

    What is added there is for weights that are divided by it, and this is a gradient.
    The intercept stays where it is: replicas have to agree on its gradient, too.
    """
    one: Array = np.ones((1, 1))
    return UnrolledSteps(
        lead=one,
        couple=(np.empty(0),),
        carry=one,
        gain=scale * one,
        free=one[None],
        push=0.0 * one,
        probe=np.ones(1),
    )


# Gradients on a device for replicas that hold slices: tile by tile, as they ask.
#
# Residuals are made first. Then replicas name columns: the device adds Yᵀr of a tile
# while the one before travels. Where w is in slices, too, scores are added up alike.


@dataclass(frozen=True)
class DeviceRowViews:
    """Rows of one exchange on a device, or some of their columns."""

    products: DenseProducts | SparseProducts
    numbers: Any
    factors: Any  # what Yᵀ is multiplied with
    carry: Any  # 1: it is added

    def part(self, columns: slice) -> "DeviceRowViews":
        """Of a tile."""
        return replace(self, products=self.products.part(columns))

    def add_gradient(self, gradient: Any) -> None:
        """gradient ← gradient + Yᵀr."""
        self.products.update(self.numbers, self.factors, self.carry, gradient)

    def scores(self, weights: Any, out: Any) -> None:
        """out ← Y w."""
        self.products.margins(self.numbers, weights, out)


class DeviceSlices(DeviceGradient):
    """Weights stay on the device, all of them or its slices.

    `gathers`: w is in slices, and scores are made tile by tile.
    """

    def __init__(
        self, task: Task, device: Device, shares: Shares, gathers: bool
    ) -> None:
        super().__init__(task, device, shares, holds_weights=True)
        self.gathers = gathers

    def _compute(self, exchange: ExchangeKernels, state: State, sums: Sums) -> None:
        if not self.gathers:
            super()._compute(exchange, state, sums)
            return
        assert self.gradient_task.gradient is not None
        exchange.sample()
        own, rows = state.on_device("weights"), self._rows(exchange)
        self.gradient_task.gradient.scores(
            self.gradient_task, state, rows, own, exchange.margins
        )
        for message in self.messages(exchange):
            self.sums.sum(message.name, message.array, message.form)
        exchange.iterate(self.intercept)

    def _arriving(self, exchange: ExchangeKernels, sums: Sums, complete: bool) -> Any:
        return self._rows(exchange)

    def _rows(self, exchange: ExchangeKernels) -> DeviceRowViews:
        products, numbers = exchange.rows, exchange.sampled.numbers
        assert isinstance(products, DenseProducts | SparseProducts)  # no Gram
        factors, carry = exchange.recurrence.factors, exchange.coefficients.carry
        return DeviceRowViews(products, numbers, factors, carry)

    def _cycle(self, exchange: ExchangeKernels, sums: Sums) -> CudaSequence:
        """Up to residuals: what follows is begun tile by tile."""
        key = exchange.blocks.rows, 0
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = CudaSequence(
                *(self.device, self.sums),
                (lambda: exchange.before(self.point),),
                self.messages(exchange),
                (lambda: exchange.iterate(self.intercept),),
            )
        return found
