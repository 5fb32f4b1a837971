"""cached on a device: the Gram of every exchange stays there after the first epoch."""

from typing import Any

import numpy as np

from hpcsgd.backends.device import Device
from hpcsgd.backends.device_exchange import DeviceExchange
from hpcsgd.backends.replay import Replayed
from hpcsgd.errors import ConfigError
from hpcsgd.products.base import Array, Group, State, Task
from hpcsgd.products.cached import same_rows
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
        weights, intercept = state.on_device("weights"), state.on_device("intercept")
        task.clock.lap("sample")
        known = self.kept.get(group.index)
        is_new = known is None or not same_rows(known.rows, group.rows)
        if known is None or is_new:
            known = self.kept[group.index] = self._room(exchange, group.rows)
        exchange.use(known.message)
        if is_new:
            self._first(exchange, group, weights, intercept)
        elif task.members.size == 1:
            known.again(weights, intercept, len(self.kept) <= GRAPHS)
        else:
            exchange.sample()
            self._later(exchange, weights, intercept)
        task.clock.lap("exchange")
        state.written(exchange.residuals)
        return state

    def _first(
        self, exchange: DeviceExchange, group: Group, weights: Any, intercept: Any
    ) -> None:
        exchange.sample()
        exchange.products(weights)
        self._sum(exchange)
        if group.epoch == 0:
            exchange.iterate(intercept)
            exchange.descend(weights)
        else:
            # Goes on from a checkpoint: its margins come by the kernel and the message
            # they would have come by, so that they have the same bits.
            self._later(exchange, weights, intercept)

    def _later(self, exchange: DeviceExchange, weights: Any, intercept: Any) -> None:
        exchange.scores(weights)
        form = self.task.precision.margin_sum
        self.sum_over_members("margins", exchange.margins, form)
        exchange.iterate(intercept)
        exchange.descend(weights)

    def _room(self, exchange: DeviceExchange, rows: Array) -> "Kept":
        words = len(exchange.message)
        try:
            message = self.device.zeros((words,), np.float32)
        except ConfigError as error:
            raise ConfigError(
                "[products] kind = 'cached' keeps the Gram of every exchange on the"
                f" GPU, and {error}; use kind = 'gram'"
            ) from error
        return Kept(self.device, exchange, rows.copy(), message)


class Kept:
    """The rows of an exchange, their Gram, and room for the margins behind it."""

    def __init__(
        self, device: Device, exchange: DeviceExchange, rows: Array, message: Any
    ) -> None:
        self.device, self.exchange = device, exchange
        self.rows, self.message = rows, message
        self._replayed: Replayed | None = None

    def again(self, weights: Any, intercept: Any, recorded: bool) -> None:
        """Without a message: one launch, where that is recorded."""
        exchange = self.exchange

        def action() -> None:
            exchange.sample()
            exchange.scores(weights)
            exchange.iterate(intercept)
            exchange.descend(weights)

        if not recorded:
            action()
            return
        if self._replayed is None:
            self._replayed = Replayed(self.device, action)
        self._replayed()
