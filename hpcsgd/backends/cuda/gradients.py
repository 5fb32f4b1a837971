"""Steps on a GPU up to their gradients, which replicas share before they step."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from hpcsgd.backends.base import Memory
from hpcsgd.backends.cuda.device import Device
from hpcsgd.backends.cuda.exchange import DenseProducts, SparseProducts, Widths
from hpcsgd.backends.cuda.kernels import blend, build_of
from hpcsgd.backends.cuda.matrix import sent
from hpcsgd.backends.cuda.sequences import (
    CudaExchange,
    CudaExchanges,
    CudaPlainSteps,
    CudaSequence,
    CudaStep,
    DeviceMessage,
)
from hpcsgd.backends.exchange import Part, probed
from hpcsgd.backends.task import Task
from hpcsgd.formats import Array
from hpcsgd.glm.unrolling import Blocks, gradient_step

# A device computes scores, residuals and Yᵀr of a batch. The consumer of gradients,
# which is an agreement of replicas, takes the step, on the host or on the device.


class GradientSums(Protocol):
    """The sums to which a device adds the gradients of an exchange."""

    device_values: Any  # float32: the gradient, row by row, and more behind it
    memory: Memory  # of the sums; counts the bytes that cross

    @property
    def takes_residuals(self) -> bool:
        """Return whether the residuals are summed; otherwise they are only counted."""

    def gradient_columns(self, complete: bool) -> Any:
        """Return a stand-in for rows whose gradient the device has added.

        `complete` means that no batch follows.
        """


class GradientConsumer(Protocol):
    """A consumer of gradients that shares them with other replicas before it steps."""

    adds_tiles: bool  # requests Yᵀr tile by tile; else a device adds it whole

    @property
    def holds_weights_on_device(self) -> bool:
        """Return whether the weights stay on the device between exchanges."""

    @property
    def slices_weights(self) -> bool:
        """Return whether each rank stores a slice of the weights.

        The consumer then computes the scores itself.
        """

    @property
    def is_last(self) -> bool:
        """Return whether the consumer takes a step after the next batch."""

    @property
    def is_full(self) -> bool:
        """Return whether the sums are complete after the next batch."""

    @property
    def sums(self) -> GradientSums:
        """Return the sums to which the gradient of the next batch is added."""

    def ready(self, task: Any, state: Any) -> Iterator[slice]:
        """Yield ranges of columns of w, each when scores may read them."""

    def scores(self, task: Any, state: Any, rows: Any, point: Any, out: Any) -> None:
        """Compute the scores out ← Y w of the rows Y."""

    def apply_update(
        self, task: Any, state: Any, rows: Any, residuals: Array, plan: Any
    ) -> None:
        """Receive the gradient Yᵀr of one batch of rows Y with residuals r."""


@dataclass(frozen=True)
class DeviceRowViews:
    """Rows of one batch on a device, or some of their columns."""

    products: DenseProducts | SparseProducts
    numbers: Any
    factors: Any  # what Yᵀ is multiplied with
    carry: Any  # 1: the gradient is added

    def part(self, columns: slice) -> "DeviceRowViews":
        """Return the same rows, in the columns of one tile."""
        return replace(self, products=self.products.part(columns))

    def add_gradient(self, gradient: Any) -> None:
        """Compute gradient ← gradient + Yᵀr for these rows Y and their residuals r."""
        self.products.update(self.numbers, self.factors, self.carry, gradient)

    def scores(self, weights: Any, out: Any) -> None:
        """Compute the scores out ← Y w of these rows Y."""
        self.products.margins(self.numbers, weights, out)


class DevicePoint:
    """The weights and the intercept with which a device computes scores.

    They are read from the state once before each step of the consumer.
    """

    weights: Any = None  # (columns of this member, K), divided by `scale`
    intercept: Any = None

    def __init__(
        self, task: Task, device: Device, consumer: GradientConsumer, scale: float
    ) -> None:
        self.task = task
        self.device = device
        self.scale = scale
        self.consumer = consumer
        self.is_old = True  # weights have changed since `follow`
        self._probe: Any = None

    def follow(self, state: Any, memory: Memory) -> None:
        """Read weights and intercept from the state, after a step has changed them."""
        if self.consumer.holds_weights_on_device:
            self._blend(state.on_device("weights"))
        else:
            self._copy(state, memory)
        if state.intercept is not None:
            self._copy_intercept(state.intercept, memory)

    def _blend(self, weights: Any) -> None:
        """Set the point from `weights`, which are on the device.

        If they have several states of the update rule, such as a velocity, the point is
        a combination of these with the factors `task.probe`.
        """
        task = self.task
        device = self.device
        if weights.shape[1] == task.columns:  # momenta are stored elsewhere
            self.weights = weights
            return
        count = task.shard.width * task.columns
        if self._probe is None:
            self.weights = device.empty((task.shard.width, task.columns), np.float32)
            self._probe = sent(device, task.probe.astype(np.float32))
        sizes = np.int32(count), np.int32(task.states), np.int32(task.columns)
        launch = device.kernel(build_of("blend", "fp32", device.arch))
        launch(*blend(count)[:2], (weights, *sizes, self._probe, self.weights))

    def _copy(self, state: Any, memory: Memory) -> None:
        """Copy the point from the host, range by range as the columns become ready."""
        task = self.task
        if self.weights is None:
            shape = len(state.weights), task.columns
            self.weights = self.device.empty(shape, np.float32)
        for columns in self.consumer.ready(task, state):
            point = probed(task, state.weights[columns])
            out = self.weights[columns]
            if self.scale != 1.0:
                point = point / point.dtype.type(self.scale)
            memory.from_host(np.ascontiguousarray(point, dtype=np.float32), out)

    def _copy_intercept(self, intercept: Array, memory: Memory) -> None:
        point = np.ascontiguousarray(self.task.probe @ intercept)[None]
        if self.intercept is None:
            self.intercept = self.device.empty(point.shape, np.float64)
        memory.from_host(point, self.intercept)


class CudaGradientStep(CudaStep):
    """A step of one batch up to its gradient Yᵀr, which is added to sums.

    The sums are those of the consumer of gradients, on the device.
    """

    maker: "CudaGradientExchanges"
    sums: GradientSums

    def add_to(self, sums: GradientSums) -> None:
        """Have the next batch add its gradient to these sums."""
        self.sums = sums
        self.launches.coefficients.load(self.maker.coefficients)

    def arrays(self, is_stepped: bool) -> tuple[Any, ...]:
        """Return the arrays that may change from step to step: the sums.

        All other arrays of the step stay in their place in memory.
        """
        return (self.sums,)

    def scores(self) -> None:
        """Launch the kernels that compute this member's margins."""
        self.launches.scores(self.maker.point.weights)

    def steps(self) -> None:
        """Launch the kernels that compute residuals; the intercept does not change."""
        self.launches.iterate(self.maker.point.intercept)

    def update(self) -> None:
        """Launch the kernels that add Yᵀr to the sums."""
        self.launches.apply_update(self.sums.device_values)

    def columns(self, is_full: bool) -> Any:
        """Return a stand-in for the rows, whose gradient the sums contain already.

        `is_full` means that the sums are complete.
        """
        return self.sums.gradient_columns(is_full)

    def residuals(self) -> Array:
        """Return the residuals on the host if they are summed, or compared by members.

        Otherwise, if a single member's sums do not take them, return zeros of their
        shape, since the consumer reads only their number.
        """
        residuals = self.launches.residuals
        if not self.sums.takes_residuals and self.task.members.size == 1:
            return np.broadcast_to(np.float32(0.0), residuals.shape)
        self.state.residuals = values = self.sums.memory.fetch(residuals)
        return values


class CudaTileStep(CudaGradientStep):
    """A step of one batch up to its residuals; the consumer adds Yᵀr tile by tile.

    The device adds Yᵀr of one tile while the previous tile is sent. Where each rank has
    a slice of the weights, the consumer also computes the scores tile by tile.
    """

    def scores(self) -> None:
        """Launch the margins, or have the consumer gather weights and compute them."""
        consumer = self.maker.consumer
        if not consumer.slices_weights:
            super().scores()
            return
        weights = self.state.on_device("weights")
        margins = self.launches.margins
        consumer.scores(self.task, self.state, self.columns(True), weights, margins)

    def update(self) -> None:
        """Do nothing: the consumer requests the gradient tile by tile."""

    def columns(self, is_full: bool) -> DeviceRowViews:
        """Return views of the rows, from which the consumer requests tiles.

        `is_full` is not used.
        """
        launches = self.launches
        products = launches.rows
        factors = launches.recurrence.factors
        assert isinstance(products, DenseProducts | SparseProducts)  # no Gram
        return DeviceRowViews(
            products, launches.sampled.numbers, factors, launches.coefficients.carry
        )


class CudaGradientSteps(CudaPlainSteps):
    """One step on a GPU whose gradient is passed to the consumer.

    It implements `hpcsgd.backends.task.PlainStepSequence`. The gradient is passed on
    after the kernels of the step have been launched.
    """

    maker: "CudaGradientExchanges"

    def fused_steps(self) -> bool:
        """Return False: no kernel takes all steps, since replicas sum each gradient."""
        return False

    def each_step(self) -> Iterator[CudaGradientStep]:
        """Yield the step, and then pass its gradient to the consumer."""
        task = self.task
        consumer = self.maker.consumer
        point = self.maker.point
        step = self.maker.step_of(self.blocks)
        sums = consumer.sums
        if point.is_old:
            point.follow(self.state, sums.memory)
        point.is_old = consumer.is_last
        is_full = consumer.is_full
        step.state = self.state
        step.add_to(sums)
        yield step
        residuals = step.residuals()
        task.clock.lap("steps")
        columns = step.columns(is_full)
        consumer.apply_update(task, self.state, columns, residuals, None)
        task.clock.lap("update")

    def finish(self) -> None:
        """Do nothing: the consumer marks the arrays of the state that it writes."""


class CudaGradientExchanges(CudaExchanges):
    """The exchanges of one member on its GPU, for a consumer of gradients.

    The consumer is `task.gradient`.
    """

    def __init__(self, task: Task, device: Device) -> None:
        super().__init__(task, device)
        gradient: Any = task.gradient  # that of a run on GPUs consumes gradients
        self.consumer: GradientConsumer = gradient
        self.holds_weights = self.consumer.holds_weights_on_device
        self.point = DevicePoint(task, device, self.consumer, self.scale)
        self.coefficients = gradient_step(self.scale)
        self._gradient_steps: dict[int, CudaGradientStep] = {}  # by rows of a batch

    def widths(self, read: int) -> Widths:
        """Return the numbers of columns for scores at one point and for a gradient.

        `read` is not used.
        """
        return Widths(self.task.columns)

    def make_plain(self, blocks: Blocks) -> CudaGradientSteps:
        """Return new steps of plain SGD, whose gradients go to the agreement."""
        return CudaGradientSteps(self, blocks, self.shard, is_alone=False)

    def step_of(self, blocks: Blocks) -> CudaGradientStep:
        """Return the step for batches of as many rows as `blocks` has.

        Its kernels and buffers are made once for each number of rows.
        """
        step = self._gradient_steps.get(blocks.rows)
        if step is None:
            launches = self.launches_of(blocks, self.shard, 1)
            self.choose_kernel(launches)
            kind = CudaTileStep if self.consumer.adds_tiles else CudaGradientStep
            step = self._gradient_steps[blocks.rows] = kind(self, launches)
        return step

    def sequence(
        self,
        exchange: CudaExchange,
        before: Sequence[Part],
        sums: Sequence[DeviceMessage],
        after: Sequence[Part],
        once: bool = False,
    ) -> CudaSequence:
        """Return the sequence of these parts and sums.

        If ranks have slices of the weights, the parts are not recorded, since messages
        are sent between the scores of tiles.
        """
        once = once or self.consumer.slices_weights
        return super().sequence(exchange, before, sums, after, once)
