"""cached on a device: the Gram of every exchange stays there after the first epoch."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hpcsgd.backends.device import Device
from hpcsgd.backends.device_exchange import DeviceExchange
from hpcsgd.errors import ConfigError
from hpcsgd.products.base import Array, Group, State, Task
from hpcsgd.products.cached import same_rows
from hpcsgd.products.device_cycle import Cycle, Travelling
from hpcsgd.products.held import HeldState
from hpcsgd.products.on_device import DeviceGram

GRAPHS = 1024  # exchanges whose launches are recorded; more of them would fill memory


class DeviceCached(DeviceGram):
    """Epoch 1 as gram; later one sum of the margins, and no Gram."""

    def __init__(self, task: Task, device: Device) -> None:
        super().__init__(task, device)
        self.kept: dict[int, Kept] = {}

    def advance(self, state: State, group: Group, upcoming: Group | None) -> State:
        """Look the Gram up, or sum it and keep it."""
        assert isinstance(state, HeldState)
        task, exchange = self.task, self.exchange_of(group.blocks)
        self.order.seek(*group.place, group.blocks.rows)
        exchange.coefficients.load(group.coefficients.whole)
        steps = self._steps_of(state, group, exchange)
        task.clock.lap("sample")
        if not self.watch.run(state, group, exchange, steps):
            steps.run()
        task.clock.lap("exchange")
        state.written(exchange.residuals)
        return state

    def _steps_of(
        self, state: HeldState, group: Group, exchange: DeviceExchange
    ) -> Cycle:
        """The first time as gram, later with what was kept."""
        weights, intercept = state.on_device("weights"), state.on_device("intercept")
        known = self.kept.get(group.index)
        if known is not None and same_rows(known.rows, group.rows):
            exchange.use(known.message)
            return known.cycle
        known = self._room(exchange, group.rows)
        exchange.use(known.message)
        known.cycle = self._later(exchange, weights, intercept)
        self.kept[group.index] = known
        return self._first(exchange, group, weights, intercept)

    def _first(
        self, exchange: DeviceExchange, group: Group, weights: Any, intercept: Any
    ) -> Cycle:
        device, sums, messages = self.device, self.sums, self.messages(exchange)
        after = lambda: exchange.after(weights, intercept)  # noqa: E731

        def begin() -> None:
            exchange.before(weights)

        if group.epoch == 0:
            return Cycle(device, sums, begin, messages, after, once=True)

        def again() -> None:
            # Goes on from a checkpoint: its margins come by the kernel and the message
            # they would have come by, so that they have the same bits.
            begin()
            for message in messages:
                sums.sum(message.name, message.array, message.form)
            exchange.scores(weights)

        return Cycle(device, sums, again, [self._margins(exchange)], after, once=True)

    def _later(self, exchange: DeviceExchange, weights: Any, intercept: Any) -> Cycle:
        """Without a Gram: one launch, where that is recorded."""

        def before() -> None:
            exchange.sample()
            exchange.scores(weights)

        return Cycle(
            *(self.device, self.sums, before, [self._margins(exchange)]),
            lambda: exchange.after(weights, intercept),
            once=len(self.kept) >= GRAPHS,
        )

    def _margins(self, exchange: DeviceExchange) -> Travelling:
        form = self.task.precision.margin_sum
        return Travelling("margins", exchange.margins, form)

    def _room(self, exchange: DeviceExchange, rows: Array) -> "Kept":
        words = len(exchange.message)
        try:
            message = self.device.zeros((words,), np.float32)
        except ConfigError as error:
            raise ConfigError(
                "[products] kind = 'cached' keeps the Gram of every exchange on the"
                f" GPU, and {error}; use kind = 'gram'"
            ) from error
        return Kept(rows.copy(), message)


@dataclass
class Kept:
    """The rows of an exchange, their Gram, and room for the margins behind it."""

    rows: Array
    message: Any
    cycle: Cycle = field(init=False)
