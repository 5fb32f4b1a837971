"""Products on GPUs: the parts of an exchange in order, captured as CUDA graphs."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hpcsgd.backends.cuda.device import Device, GraphAction, LaunchGraph
from hpcsgd.backends.cuda.exchange import (
    DenseProducts,
    DeviceCsr,
    DeviceExchange,
    DeviceFusedSteps,
    Widths,
    has_fused_kernel,
    put_csr,
)
from hpcsgd.backends.cuda.gram import Seconds, choose_gram
from hpcsgd.backends.cuda.kernels import build_of
from hpcsgd.backends.cuda.matrix import (
    DeviceMatrix,
    DeviceMemberRows,
    DeviceSampled,
    Order,
    put_matrix,
    whole_matrix,
)
from hpcsgd.comm.communicator import Message, Pending
from hpcsgd.comm.gpu import DeviceCommunicator
from hpcsgd.comm.gpu import DeviceCommunicator as CarriesArrays
from hpcsgd.comm.gpu_mpi import DeviceNarrowSum
from hpcsgd.data.sparse import Csr
from hpcsgd.data.stream import Unheld
from hpcsgd.errors import ConfigError
from hpcsgd.formats import Array, get_format
from hpcsgd.glm.unrolling import Blocks, blocks_of
from hpcsgd.products import GATHERS
from hpcsgd.products.base import Group, Scratch, State, Task
from hpcsgd.products.cuda_state import DeviceWatch
from hpcsgd.products.gram import same_rows

# Sums over members of arrays on a device, in whatever format they travel.

PURPOSE = "products"
BF16 = "bf16"  # what transports round on the device


class DeviceSums:
    """array ← Σ over members, in place; there where that can be, else by the host.

    Whoever sums an array sums it again and again: what that needs is kept with it.
    """

    def __init__(self, task: Task, device: Device) -> None:
        self.members = task.members
        self.clock = task.clock
        self.device = device
        self._scratch = Scratch()
        self._narrow: dict[int, tuple[Any, DeviceNarrowSum]] = {}

    def sum(self, name: str, array: Any, form: str) -> None:
        """All members call it in one order, with one name for one kind of message."""
        members = self.members
        if members.size == 1:
            return
        if self._goes_wide(form):
            members.sum(array, PURPOSE)
        elif form == BF16 and isinstance(members, DeviceCommunicator):
            self._message(members, array).sum(PURPOSE)
        else:
            message = self._written(name, array, form)
            self._read(message.sum(PURPOSE), array)
        self.clock.lap("communicate")

    def start(self, name: str, array: Any, form: str) -> Pending:
        """Begin it; the array belongs to it until `wait`, which gives it back."""
        members = self.members
        if members.size == 1:
            return Pending(array)
        if self._goes_wide(form):
            return members.start_sum(array, PURPOSE)
        if form == BF16 and isinstance(members, DeviceCommunicator):
            return self._message(members, array).start(PURPOSE)
        travelling = self._written(name, array, form, travels=True).start(PURPOSE)
        return Pending(array, lambda: self._read(travelling.wait(), array))

    def captures(self, *forms: str) -> bool:
        """Whether sums in these formats may be part of a graph of the device."""
        if self.members.size == 1:
            return True
        can = isinstance(self.members, DeviceCommunicator) and self.members.captures
        return can and all(self._goes_wide(form) for form in forms)

    def capture(self, action: Callable[[], None]) -> LaunchGraph:
        """A graph of what `action` launches and queues, which has run once."""
        graph = self.device.capture(action)
        if isinstance(self.members, DeviceCommunicator):
            self.members.adopt(graph)
        return graph

    def queue(self, array: Any) -> None:
        """Its sum, into the graph that is being recorded; `captures` was asked."""
        if self.members.size > 1:
            assert isinstance(self.members, DeviceCommunicator)
            self.members.queue_sum(array)

    def replay(self, graph: LaunchGraph, arrays: Sequence[Any]) -> None:
        """Launch a graph that holds the sums of these arrays, in this order."""
        if self.members.size == 1:
            graph()
            return
        assert isinstance(self.members, DeviceCommunicator)
        self.members.replay(graph, arrays, PURPOSE)
        self.clock.lap("communicate")

    def _goes_wide(self, form: str) -> bool:
        """As it is, by a transport that knows arrays of the device."""
        return isinstance(self.members, DeviceCommunicator) and get_format(form).is_wide

    def _message(self, members: DeviceCommunicator, array: Any) -> DeviceNarrowSum:
        kept = self._narrow.get(id(array))
        if kept is None:  # the array is kept, too, and so its number stays its own
            message = DeviceNarrowSum(members, len(array), array)
            kept = self._narrow[id(array)] = array, message
        return kept[1]

    def _written(
        self, name: str, array: Any, form: str, travels: bool = False
    ) -> Message:
        """A message of the host that holds the array."""
        message: Message = self._scratch.message(
            self.members, name, len(array), form, travels
        )
        message.array[:] = self.device.fetch(array)
        self.clock.lap("copy")
        return message

    def _read(self, total: Array, array: Any) -> None:
        self.device.fill(array, np.ascontiguousarray(total, dtype=np.float32))


# One exchange on a device and its messages, in as few launches as there can be.


@dataclass(frozen=True)
class DeviceMessage:
    """What members sum: an array of the device, and the format it travels in."""

    name: str
    array: Any
    form: str


class Cycle:
    """`before`, the sums, `after`: one graph where a graph may hold sums, else two."""

    def __init__(
        self,
        device: Device,
        sums: DeviceSums,
        before: Callable[[], None],
        messages: Sequence[DeviceMessage],
        after: Callable[[], None],
        once: bool = False,
    ) -> None:
        self.before, self.after, self.messages = before, after, messages
        self.sums, self.once = sums, once  # once: it does not come again
        if sums.captures(*(message.form for message in messages)):
            self._whole: GraphAction | None = GraphAction(
                sums, self.by_hand, self._record
            )
        else:
            self._whole = None
            self._parts = GraphAction(device, before), GraphAction(device, after)

    def run(self) -> None:
        """Once more."""
        if self.once:
            self.by_hand()
        elif self._whole is not None:
            arrays = [message.array for message in self.messages]
            self._whole.run(lambda graph: self.sums.replay(graph, arrays))
        else:
            first, last = self._parts
            first.run()
            self.send()
            last.run()

    def by_hand(self) -> None:
        """Launch by launch."""
        self.before()
        self.send()
        self.after()

    def send(self) -> None:
        """The sums, each waited for in the order of the device."""
        for message in self.messages:
            self.sums.sum(message.name, message.array, message.form)

    def _record(self) -> None:
        self.before()
        for message in self.messages:
            self.sums.queue(message.array)
        self.after()


# Products whose arithmetic a device does: exchanges of CA-SGD, and plain steps.

REMEDY = "use --device cpu"


class DeviceProduct(ABC):
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

    def messages(self, exchange: DeviceExchange) -> list[DeviceMessage]:
        """What members sum in one exchange."""
        return []

    def finish(self) -> None:  # noqa: B027
        """Nothing is begun early."""

    def cycle_of(self, exchange: DeviceExchange, state: State) -> Cycle:
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


class DeviceGram(DeviceProduct):
    """CA-SGD: tiles of the Gram and the margins in one buffer, summed as one."""

    def __init__(self, task: Task, device: Device) -> None:
        super().__init__(task, device)
        self.watch = DeviceWatch(task, device)

    def advance(self, state: State, group: Group, upcoming: Group | None) -> State:
        """Products, one message, s steps."""
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

    def messages(self, exchange: DeviceExchange) -> list[DeviceMessage]:
        """One, unless its halves travel in different formats."""
        wire, sums = self.task.precision.gram_wire, self.task.precision.margin_sum
        if self.task.precision.one_message:
            return [DeviceMessage("products", exchange.message, sums)]
        gram = DeviceMessage("gram", exchange.gram, wire)
        return [gram, DeviceMessage("margins", exchange.margins, sums)]


class DeviceDirect(DeviceProduct):
    """Plain SGD: every step is an exchange of its own, without a Gram."""

    @property
    def widths(self) -> Widths:
        """Margins where a step reads them, so that no more than these travel."""
        return Widths(self.task.columns, self.task.states, 1)

    def advance(self, state: State, group: Group, upcoming: Group | None) -> State:
        """One synchronisation per step."""
        self.order.seek(*group.place, group.blocks.rows)
        for j, size in enumerate(group.blocks.sizes):
            exchange = self.exchange_of(blocks_of((size,)))
            exchange.coefficients.load(group.steps[j].unrolled)
            self.cycle_of(exchange, state).run()
        self.task.clock.lap("steps")
        state.written(exchange.residuals)
        return state

    def messages(self, exchange: DeviceExchange) -> list[DeviceMessage]:
        """Margins alone."""
        form = self.task.precision.margin_sum
        return [DeviceMessage("margins", exchange.margins, form)]


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


# Plain steps of one who holds all columns on a device: nothing lies between them.


class OneMemberDirect:
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
        self._walks: dict[Blocks, tuple[DeviceFusedSteps, GraphAction] | None] = {}
        self._steps: dict[Blocks, tuple[DeviceExchange, GraphAction]] = {}

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
    ) -> tuple[DeviceFusedSteps, GraphAction] | None:
        if blocks not in self._walks:
            self._walks[blocks] = self._made(blocks, weights, intercept)
        return self._walks[blocks]

    def _made(
        self, blocks: Blocks, weights: Any, intercept: Any
    ) -> tuple[DeviceFusedSteps, GraphAction] | None:
        task, device, matrix = self.task, self.device, self.matrix
        how = blocks, task.family, task.precision, self.in_order
        if task.states * task.columns > 1 or isinstance(matrix, DeviceCsr):
            return None
        if not has_fused_kernel(device, matrix, *how):
            return None
        sampled = DeviceSampled(device, self.order, blocks.rows)
        walk = DeviceFusedSteps(device, matrix, sampled, *how)
        sample = device.kernel(build_of("sample", "fp32", device.arch))

        def all_of_it() -> None:
            sample(1, 1024, sampled.arguments)
            walk.launch(weights, intercept)

        return walk, GraphAction(device, all_of_it)

    def _step_by_step(self, group: Group, weights: Any, intercept: Any) -> Any:
        for size, plan in zip(group.blocks.sizes, group.steps, strict=True):
            exchange, step = self._step_of(blocks_of((size,)), weights, intercept)
            exchange.coefficients.load(plan.unrolled)
            step.run()
        return exchange.residuals

    def _step_of(
        self, blocks: Blocks, weights: Any, intercept: Any
    ) -> tuple[DeviceExchange, GraphAction]:
        found = self._steps.get(blocks)
        if found is None:
            exchange = self._exchange_of(blocks)

            def all_of_it() -> None:
                exchange.before(weights)
                exchange.after(weights, intercept)

            step = GraphAction(self.device, all_of_it)
            found = self._steps[blocks] = exchange, step
        return found

    def _exchange_of(self, blocks: Blocks) -> DeviceExchange:
        task = self.task
        return DeviceExchange(
            *(self.device, self.matrix, self.order, blocks),
            *(task.family, task.precision),
            Widths(task.columns, task.states, 1),
        )


# Plain SGD on a device: s steps in one launch where one member has all columns.


class DeviceWalk(DeviceDirect):
    """Over several members as `DeviceDirect`: a message lies between two steps."""

    def __init__(self, task: Task, device: Device) -> None:
        super().__init__(task, device)
        self.alone = OneMemberDirect(task, device, self.matrix, self.order)

    def advance(self, state: State, group: Group, upcoming: Group | None) -> State:
        """No synchronisation, or one per step."""
        task = self.task
        if task.members.size > 1:
            return super().advance(state, group, upcoming)
        self.order.seek(*group.place, group.blocks.rows)
        weights, intercept = state.on_device("weights"), state.on_device("intercept")
        residuals = self.alone.advance(group, weights, intercept)
        task.clock.lap("steps")
        state.written(residuals)
        return state


# cached on a device: the Gram of every exchange stays there after the first epoch.

GRAPHS = 1024  # exchanges whose launches are recorded; more of them would fill memory


class DeviceCached(DeviceGram):
    """Epoch 1 as gram; later one sum of the margins, and no Gram."""

    def __init__(self, task: Task, device: Device) -> None:
        super().__init__(task, device)
        self.kept: dict[int, CachedExchange] = {}

    def advance(self, state: State, group: Group, upcoming: Group | None) -> State:
        """Look the Gram up, or sum it and keep it."""
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

    def _steps_of(self, state: State, group: Group, exchange: DeviceExchange) -> Cycle:
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

    def _margins(self, exchange: DeviceExchange) -> DeviceMessage:
        form = self.task.precision.margin_sum
        return DeviceMessage("margins", exchange.margins, form)

    def _room(self, exchange: DeviceExchange, rows: Array) -> "CachedExchange":
        words = len(exchange.message)
        try:
            message = self.device.zeros((words,), np.float32)
        except ConfigError as error:
            raise ConfigError(
                "[products] kind = 'cached' keeps the Gram of every exchange on the"
                f" GPU, and {error}; use kind = 'gram'"
            ) from error
        return CachedExchange(rows.copy(), message)


@dataclass
class CachedExchange:
    """The rows of an exchange, their Gram, and room for the margins behind it."""

    rows: Array
    message: Any
    cycle: Cycle = field(init=False)


# CA-SGD on a device with the next Gram under way.
#
# G of the next group does not depend on w. One member alone computes it beside the
# steps of this one, which keep a single multiprocessor busy. Several compute it while
# the margins travel, and send it while the steps are taken.


@dataclass(frozen=True)
class DeviceAheadGroup:
    """A group whose rows are known and whose Gram is there, or on its way."""

    group: Group
    exchange: DeviceExchange
    pending: Pending | None


class DeviceLookAhead(DeviceProduct):
    """Two sums per exchange, of which the larger one is not waited for."""

    def __init__(self, task: Task, device: Device) -> None:
        super().__init__(task, device)
        self.watch = DeviceWatch(task, device)
        # Two of each size: the steps of one are taken while the next is made.
        self._turn = 0
        self._recorded: dict[tuple[Any, ...], GraphAction] = {}
        self._prepared: DeviceAheadGroup | None = None

    @property
    def variant(self) -> int:
        """Which of the two is made next."""
        return self._turn

    def advance(self, state: State, group: Group, upcoming: Group | None) -> State:
        """The steps of this group, and what the next one can have early."""
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

    def messages(self, exchange: DeviceExchange) -> list[DeviceMessage]:
        """Both; each goes its own way."""
        precision = self.task.precision
        gram = DeviceMessage("gram", exchange.gram, precision.gram_wire)
        margins = DeviceMessage("margins", exchange.margins, precision.margin_sum)
        return [gram, margins]

    def repeated(self, key: tuple[Any, ...], action: Callable[[], None]) -> GraphAction:
        """One launch of what is asked for under this name from the third time on."""
        found = self._recorded.get(key)
        if found is None:
            found = self._recorded[key] = GraphAction(self.device, action)
        return found

    def _take(self, group: Group) -> DeviceAheadGroup:
        if self._prepared is not None and self._prepared.group is not group:
            self.finish()
        ready = self._prepared
        if ready is None:
            exchange = self._next(group)
            self._make(exchange)()
            ready = DeviceAheadGroup(group, exchange, self._send_gram(exchange))
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
        self._prepared = DeviceAheadGroup(upcoming, exchange, None)

    def _between_messages(self, now: "Now", upcoming: Group) -> None:
        """Margins travel beside the next Gram, which travels beside the steps."""
        self.repeated(("before", *now.key), now.before).run()
        margins = now.start()
        exchange = self._next(upcoming)
        self.repeated(("gram", id(exchange)), self._make(exchange)).run()
        margins.wait()
        now.wait()
        self._prepared = DeviceAheadGroup(upcoming, exchange, self._send_gram(exchange))
        self.repeated(("after", *now.key), now.after).run()

    def _send_gram(self, exchange: DeviceExchange) -> Pending | None:
        gram, _ = self.messages(exchange)
        if self.task.members.size == 1:
            return None
        return self.sums.start(gram.name, gram.array, gram.form)


class Now:
    """What is left to do of a group that is prepared."""

    def __init__(
        self, product: DeviceLookAhead, state: State, ready: DeviceAheadGroup
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


# gather and gather-once on a device: rows travel, then steps without a message.
#
# Of several members: one has all columns of all rows as it is.


class DeviceGather(DeviceProduct):
    """One all-gather of the members' sampled rows, as they are stored."""

    holds_all_columns = True

    def __init__(self, task: Task, device: Device) -> None:
        super().__init__(task, device)
        self.gatherer = RowGatherer(self)
        self._blocks: dict[int, OfRows] = {}

    def advance(self, state: State, group: Group, upcoming: Group | None) -> State:
        """Rows of all columns, then plain steps on them."""
        rows, task = group.blocks.rows, self.task
        block = self._blocks.get(rows)
        if block is None:
            block = self._blocks[rows] = OfRows(self, rows)
        self.order.seek(*group.place, rows)
        self.gatherer.gather_rows(block.sampled, block.whole)
        block.order.seek(block.numbers, 0, rows)
        weights, intercept = state.on_device("weights"), state.on_device("intercept")
        residuals = block.alone.advance(group, weights, intercept)
        task.clock.lap("steps")
        state.written(residuals)
        return state


class DeviceGatherOnce(DeviceProduct):
    """The first epoch as gather; rows stay at their numbers, for all later ones.

    What follows is plain SGD of one member: no message, one launch an exchange.
    """

    holds_all_columns = True

    def __init__(self, task: Task, device: Device) -> None:
        super().__init__(task, device)
        self.gatherer = RowGatherer(self)
        height = task.shard.height
        self.whole = self._room(height)
        self.alone = OneMemberDirect(task, device, self.whole, self.order)
        self._is_here = np.zeros(height, dtype=bool)
        self._sampled: dict[int, DeviceSampled] = {}

    def advance(self, state: State, group: Group, upcoming: Group | None) -> State:
        """Rows that are not here yet, then plain steps on them."""
        if not self._is_here[group.rows].all():
            self._bring(group)
        self.order.seek(*group.place, group.blocks.rows)
        weights, intercept = state.on_device("weights"), state.on_device("intercept")
        residuals = self.alone.advance(group, weights, intercept)
        self.task.clock.lap("steps")
        state.written(residuals)
        return state

    def _room(self, height: int) -> DeviceMatrix:
        width = sum(self.gatherer.widths)
        try:
            return whole_matrix(self.device, self.gatherer.own, height, width)
        except ConfigError as error:
            raise ConfigError(
                "[products] kind = 'gather-once' keeps all rows on each GPU, and"
                f" {error}; use kind = 'gather', or 'gram'"
            ) from error

    def _bring(self, group: Group) -> None:
        rows = group.blocks.rows
        if rows not in self._sampled:
            self._sampled[rows] = DeviceSampled(self.device, self.order, rows)
        sampled = self._sampled[rows]
        self.order.seek(*group.place, rows)
        self.gatherer.gather_rows(sampled, self.whole, sampled.numbers)
        self._is_here[group.rows] = True


class OfRows:
    """A block of so many rows, with what belongs to them: filled anew each time."""

    def __init__(self, product: DeviceGather, rows: int) -> None:
        device, width = product.device, sum(product.gatherer.widths)
        self.sampled = DeviceSampled(device, product.order, rows)
        self.whole = whole_matrix(device, product.gatherer.own, rows, width)
        self.numbers: Array = np.arange(rows, dtype=np.int64)
        self.order = Order.of(device, self.sampled)
        self.alone = OneMemberDirect(
            product.task, device, self.whole, self.order, in_order=True
        )


class RowGatherer:
    """Sampled rows with the columns of all members, on all of them."""

    def __init__(self, product: DeviceProduct) -> None:
        assert isinstance(product.matrix, DeviceMatrix)  # sparse rows are refused
        self.task, self.device, self.own = product.task, product.device, product.matrix
        self.widths = tuple(part.stop - part.start for part in self.task.shard.parts)
        self._pieces: dict[int, DeviceMemberRows] = {}

    def gather_rows(
        self, sampled: DeviceSampled, whole: DeviceMatrix, places: Any = None
    ) -> None:
        """Gather the next rows of the order into `whole`: in order, or at `places`."""
        task, rows = self.task, len(sampled.numbers)
        pieces = self._pieces.get(rows)
        if pieces is None:
            pieces = self._pieces[rows] = DeviceMemberRows(
                self.device, self.own, rows, self.widths
            )
        build = build_of("sample", "fp32", self.device.arch)
        self.device.kernel(build)(1, 1024, sampled.arguments)
        pieces.pack(sampled.numbers)
        task.clock.lap("gather")
        self._gather(pieces)
        task.clock.lap("communicate")
        pieces.join(whole, places)
        task.clock.lap("gather")

    def _gather(self, pieces: DeviceMemberRows) -> None:
        """One message; by the host where members carry nothing else."""
        members, device = self.task.members, self.device
        counts, packed, flat = pieces.counts, pieces.packed, pieces.flat
        if isinstance(members, CarriesArrays):
            members.gather(packed, counts, flat, "products")
            return
        out = np.empty(sum(counts), dtype=flat.dtype)
        members.gather(device.fetch(packed), counts, out, "products")
        device.fill(flat, out)


# The products that a device computes, by name.

ON_DEVICE: dict[str, type[DeviceProduct]] = {
    "direct": DeviceWalk,
    "gram": DeviceGram,
    "gather": DeviceGather,
    "gather-once": DeviceGatherOnce,
    "cached": DeviceCached,
}


def make_on_device(
    name: str, task: Task, device: Device, look_ahead: bool = False
) -> DeviceProduct:
    """The product called `name` on this device."""
    if look_ahead:
        return DeviceLookAhead(task, device)
    if name not in ON_DEVICE:
        raise ConfigError(
            f"[products] kind = {name!r} is not offered on a GPU; use"
            f" {' or '.join(ON_DEVICE)}, or --device cpu"
        )
    if name in GATHERS and task.shard.is_sparse:
        raise ConfigError(
            f"[products] kind = {name!r} does not move sparse rows between GPUs; use"
            " kind = 'gram', or --device cpu"
        )
    if name in GATHERS and task.members.size == 1:
        name = "direct"  # all columns are here: nothing is brought
    return ON_DEVICE[name](task, device)
