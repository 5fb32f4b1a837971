"""Plain steps of one who holds all columns on a device: nothing lies between them."""

from typing import Any

from hpcsgd.backends.device import Device
from hpcsgd.backends.device_buffers import Order, Sampled
from hpcsgd.backends.device_exchange import DeviceExchange
from hpcsgd.backends.device_matrix import DeviceMatrix
from hpcsgd.backends.device_products import Widths
from hpcsgd.backends.device_walk import Walk, can_walk
from hpcsgd.backends.kernel_table import build_of
from hpcsgd.backends.replay import Replayed
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
        matrix: DeviceMatrix,
        order: Order,
        in_order: bool = False,
    ) -> None:
        self.task, self.device = task, device
        self.matrix, self.order, self.in_order = matrix, order, in_order
        self._walks: dict[Blocks, tuple[Walk, Replayed] | None] = {}
        self._exchanges: dict[Blocks, DeviceExchange] = {}

    def advance(self, group: Group, weights: Any, intercept: Any) -> Any:
        """The steps of `group` on the rows that the order has next; residuals."""
        walk = self._walk_of(group.blocks, weights, intercept)
        if walk is None:
            return self._step_by_step(group, weights, intercept)
        walk[0].load(group.coefficients.plain)
        walk[1]()
        return walk[0].residuals

    def _walk_of(
        self, blocks: Blocks, weights: Any, intercept: Any
    ) -> tuple[Walk, Replayed] | None:
        if blocks not in self._walks:
            self._walks[blocks] = self._made(blocks, weights, intercept)
        return self._walks[blocks]

    def _made(
        self, blocks: Blocks, weights: Any, intercept: Any
    ) -> tuple[Walk, Replayed] | None:
        task, device, matrix = self.task, self.device, self.matrix
        how = blocks, task.family, task.precision, self.in_order
        if task.states * task.columns > 1 or task.shard.is_sparse:
            return None
        if not can_walk(device, matrix, *how):
            return None
        sampled = Sampled(device, self.order, blocks.rows)
        walk = Walk(device, matrix, sampled, *how)
        sample = device.kernel(build_of("sample", "fp32", device.arch))

        def all_of_it() -> None:
            sample(1, 1024, sampled.arguments)
            walk.launch(weights, intercept)

        return walk, Replayed(device, all_of_it)

    def _step_by_step(self, group: Group, weights: Any, intercept: Any) -> Any:
        for size, plan in zip(group.blocks.sizes, group.steps, strict=True):
            exchange = self._exchange_of(blocks_of((size,)))
            exchange.coefficients.load(plan.unrolled)
            exchange.at_once(weights, intercept)
        return exchange.residuals

    def _exchange_of(self, blocks: Blocks) -> DeviceExchange:
        found = self._exchanges.get(blocks)
        if found is None:
            task = self.task
            found = self._exchanges[blocks] = DeviceExchange(
                *(self.device, self.matrix, self.order, blocks),
                *(task.family, task.precision),
                Widths(task.columns, task.states, 1),
            )
        return found
