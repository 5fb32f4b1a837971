"""Plain steps of one who holds all columns on a device: nothing lies between them."""

from typing import Any

from hpcsgd.backends.device import Device
from hpcsgd.backends.device_buffers import Order, Sampled
from hpcsgd.backends.device_csr import DeviceCsr
from hpcsgd.backends.device_exchange import DeviceExchange
from hpcsgd.backends.device_matrix import DeviceMatrix
from hpcsgd.backends.device_products import Widths
from hpcsgd.backends.device_walk import Walk, can_walk
from hpcsgd.backends.kernel_table import build_of
from hpcsgd.backends.recorded import Recorded
from hpcsgd.products.base import Group, Task
from hpcsgd.schedule import Blocks, blocks_of


class Alone:
    """s steps in one launch where a kernel has them, else one launch for each.

    `in_order`: the rows of an exchange are all those of `matrix`, in their order.
    """

    def __init__(
        self,
        task: Task,
        device: Device,
        matrix: DeviceMatrix | DeviceCsr,
        order: Order,
        in_order: bool = False,
    ) -> None:
        self.task, self.device = task, device
        self.matrix, self.order, self.in_order = matrix, order, in_order
        self._walks: dict[Blocks, tuple[Walk, Recorded] | None] = {}
        self._steps: dict[Blocks, tuple[DeviceExchange, Recorded]] = {}

    def advance(self, group: Group, weights: Any, intercept: Any) -> Any:
        """The steps of `group` on the rows that the order has next; residuals."""
        walk = self._walk_of(group.blocks, weights, intercept)
        if walk is None:
            return self._step_by_step(group, weights, intercept)
        walk[0].load(group.coefficients.plain)
        walk[1].run()
        return walk[0].residuals

    def _walk_of(
        self, blocks: Blocks, weights: Any, intercept: Any
    ) -> tuple[Walk, Recorded] | None:
        if blocks not in self._walks:
            self._walks[blocks] = self._made(blocks, weights, intercept)
        return self._walks[blocks]

    def _made(
        self, blocks: Blocks, weights: Any, intercept: Any
    ) -> tuple[Walk, Recorded] | None:
        task, device, matrix = self.task, self.device, self.matrix
        how = blocks, task.family, task.precision, self.in_order
        if task.states * task.columns > 1 or isinstance(matrix, DeviceCsr):
            return None
        if not can_walk(device, matrix, *how):
            return None
        sampled = Sampled(device, self.order, blocks.rows)
        walk = Walk(device, matrix, sampled, *how)
        sample = device.kernel(build_of("sample", "fp32", device.arch))

        def all_of_it() -> None:
            sample(1, 1024, sampled.arguments)
            walk.launch(weights, intercept)

        return walk, Recorded(device, all_of_it)

    def _step_by_step(self, group: Group, weights: Any, intercept: Any) -> Any:
        for size, plan in zip(group.blocks.sizes, group.steps, strict=True):
            exchange, step = self._step_of(blocks_of((size,)), weights, intercept)
            exchange.coefficients.load(plan.unrolled)
            step.run()
        return exchange.residuals

    def _step_of(
        self, blocks: Blocks, weights: Any, intercept: Any
    ) -> tuple[DeviceExchange, Recorded]:
        found = self._steps.get(blocks)
        if found is None:
            exchange = self._exchange_of(blocks)

            def all_of_it() -> None:
                exchange.before(weights)
                exchange.after(weights, intercept)

            step = Recorded(self.device, all_of_it)
            found = self._steps[blocks] = exchange, step
        return found

    def _exchange_of(self, blocks: Blocks) -> DeviceExchange:
        task = self.task
        return DeviceExchange(
            *(self.device, self.matrix, self.order, blocks),
            *(task.family, task.precision),
            Widths(task.columns, task.states, 1),
        )
