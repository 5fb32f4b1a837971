"""CA-SGD on a device with the next Gram under way.

G of the next group does not depend on w. One member alone computes it beside the steps
of this one, which keep a single multiprocessor busy. Several compute it while the
margins travel, and send it while the steps are taken.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hpcsgd.backends.device import Device
from hpcsgd.backends.device_exchange import DeviceExchange
from hpcsgd.backends.recorded import Recorded
from hpcsgd.comm.pending import Pending
from hpcsgd.products.base import Group, State, Task
from hpcsgd.products.device_cycle import Travelling
from hpcsgd.products.device_watch import DeviceWatch
from hpcsgd.products.held import HeldState
from hpcsgd.products.on_device import OnDevice


@dataclass(frozen=True)
class Prepared:
    """A group whose rows are known and whose Gram is there, or on its way."""

    group: Group
    exchange: DeviceExchange
    pending: Pending | None


class DeviceLookAhead(OnDevice):
    """Two sums per exchange, of which the larger one is not waited for."""

    def __init__(self, task: Task, device: Device) -> None:
        super().__init__(task, device)
        self.watch = DeviceWatch(task, device)
        # Two of each size: the steps of one are taken while the next is made.
        self._turn = 0
        self._recorded: dict[tuple[Any, ...], Recorded] = {}
        self._prepared: Prepared | None = None

    @property
    def variant(self) -> int:
        """Which of the two is made next."""
        return self._turn

    def advance(self, state: State, group: Group, upcoming: Group | None) -> State:
        """The steps of this group, and what the next one can have early."""
        assert isinstance(state, HeldState)
        ready = self._take(group)
        ready.exchange.coefficients.load(group.coefficients.whole)
        now = Now(self, state, ready)
        self.task.clock.lap("sample")
        if self.watch.run(state, group, ready.exchange, now):
            pass  # by hand, and the next one when it comes
        elif upcoming is None:
            now.by_hand()
        elif self.task.members.size == 1:
            self._beside(now, upcoming)
        else:
            self._between_messages(now, upcoming)
        self.task.clock.lap("exchange")
        state.written(ready.exchange.residuals)
        return state

    def finish(self) -> None:
        """A Gram that nobody will read still has to arrive."""
        if self._prepared is not None and self._prepared.pending is not None:
            self._prepared.pending.wait()
        self._prepared = None

    def messages(self, exchange: DeviceExchange) -> list[Travelling]:
        """Both; each goes its own way."""
        precision = self.task.precision
        gram = Travelling("gram", exchange.gram, precision.gram_wire)
        margins = Travelling("margins", exchange.margins, precision.margin_sum)
        return [gram, margins]

    def repeated(self, key: tuple[Any, ...], action: Callable[[], None]) -> Recorded:
        """One launch of what is asked for under this name from the third time on."""
        found = self._recorded.get(key)
        if found is None:
            found = self._recorded[key] = Recorded(self.device, action)
        return found

    def _take(self, group: Group) -> Prepared:
        if self._prepared is not None and self._prepared.group is not group:
            self.finish()
        ready = self._prepared
        if ready is None:
            exchange = self._next(group)
            self._make(exchange)()
            ready = Prepared(group, exchange, self._send_gram(exchange))
        self._prepared = None
        return ready

    def _next(self, group: Group) -> DeviceExchange:
        """Its buffers, and its rows named as those that come."""
        exchange = self.exchange_of(group.blocks)
        self._turn = 1 - self._turn
        self.order.seek(*group.place, group.blocks.rows)
        return exchange

    def _make(self, exchange: DeviceExchange) -> Callable[[], None]:
        def action() -> None:
            exchange.sample()
            exchange.gram_alone()

        return action

    def _beside(self, now: "Now", upcoming: Group) -> None:
        """One graph: the next Gram is a branch of it."""
        exchange = self._next(upcoming)
        make = self._make(exchange)

        def action() -> None:
            with self.device.aside():
                make()
            now.before()
            now.after()
            self.device.join()

        self.repeated(("beside", *now.key, id(exchange)), action).run()
        self._prepared = Prepared(upcoming, exchange, None)

    def _between_messages(self, now: "Now", upcoming: Group) -> None:
        """Margins travel beside the next Gram, which travels beside the steps."""
        self.repeated(("before", *now.key), now.before).run()
        margins = now.start()
        exchange = self._next(upcoming)
        self.repeated(("gram", id(exchange)), self._make(exchange)).run()
        margins.wait()
        now.wait()
        self._prepared = Prepared(upcoming, exchange, self._send_gram(exchange))
        self.repeated(("after", *now.key), now.after).run()

    def _send_gram(self, exchange: DeviceExchange) -> Pending | None:
        gram, _ = self.messages(exchange)
        if self.task.members.size == 1:
            return None
        return self.sums.start(gram.name, gram.array, gram.form)


class Now:
    """What is left to do of a group that is prepared."""

    def __init__(
        self, product: DeviceLookAhead, state: HeldState, ready: Prepared
    ) -> None:
        self.product, self.ready, self.exchange = product, ready, ready.exchange
        self.weights = state.on_device("weights")
        self.intercept = state.on_device("intercept")

    @property
    def key(self) -> tuple[int, ...]:
        """What launches depend on."""
        return id(self.exchange), id(self.weights), id(self.intercept)

    def before(self) -> None:
        """Margins of this member."""
        self.exchange.scores(self.weights)

    def by_hand(self) -> None:
        """All of it, launch by launch."""
        self.before()
        self.send()
        self.after()

    def start(self) -> Pending:
        """Their sum, begun."""
        _, margins = self.product.messages(self.exchange)
        return self.product.sums.start(margins.name, margins.array, margins.form)

    def send(self) -> None:
        """Both sums, waited for."""
        self.start().wait()
        self.wait()

    def wait(self) -> None:
        """For the Gram, which travels since it was made."""
        if self.ready.pending is not None:
            self.ready.pending.wait()

    def after(self) -> None:
        """The steps."""
        self.exchange.after(self.weights, self.intercept)
