"""Exchanges of one member on a GPU: their parts in order, recorded as CUDA graphs."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcsgd.backends.base import HostPlan, Rows
from hpcsgd.backends.cuda.device import Device, GraphAction, LaunchGraph
from hpcsgd.backends.cuda.exchange import (
    DenseProducts,
    DeviceFusedSteps,
    DeviceShard,
    ExchangeKernels,
    Widths,
    has_fused_kernel,
    put_csr,
)
from hpcsgd.backends.cuda.gram import OtherGram, Seconds, choose_gram
from hpcsgd.backends.cuda.kernels import build_of
from hpcsgd.backends.cuda.matrix import (
    DeviceMatrix,
    DeviceMemberRows,
    DeviceSampled,
    Order,
    put_matrix,
    whole_matrix,
)
from hpcsgd.backends.exchange import (
    NO_SUMS,
    NOTHING,
    Part,
    Scratch,
    gather_rows,
    room_for_rows,
    wait_for_all,
)
from hpcsgd.backends.numpy_rows import DenseRows
from hpcsgd.backends.task import Group, State, Task
from hpcsgd.comm.communicator import Message, Pending
from hpcsgd.comm.gpu import DeviceCommunicator
from hpcsgd.comm.gpu_mpi import DeviceNarrowSum
from hpcsgd.errors import ConfigError
from hpcsgd.formats import Array, get_format
from hpcsgd.glm.unrolling import Blocks, blocks_of

# Sums over members of arrays on a device, in whatever format they travel.

PURPOSE = "products"
BF16 = "bf16"  # what transports round on the device


class DeviceSums:
    """Sums of device arrays over members, in place: on the device, or through the host.

    An array is summed again and again: the buffers of its sum are kept with it.

    Attributes
    ----------
    members : Communicator
        The members of the replica.
    device_members : DeviceCommunicator or None
        The members, if arrays of devices travel between them; None if the host sends.
    """

    def __init__(self, task: Task, device: Device) -> None:
        self.members = members = task.members
        self.device_members: DeviceCommunicator | None = None
        if isinstance(members, DeviceCommunicator):
            self.device_members = members
        self.clock = task.clock
        self.device = device
        self._scratch = Scratch()
        self._narrow: dict[int, tuple[Any, DeviceNarrowSum]] = {}

    def sum(self, name: str, array: Any, form: str) -> None:
        """Sum `array` over members, in place, with words of format `form`.

        All members call it in the same order; `name` identifies a kind of message.
        """
        members = self.members
        if members.size == 1:
            return
        if self._goes_wide(form):
            members.sum(array, PURPOSE)
        elif form == BF16 and self.device_members is not None:
            self._message(self.device_members, array).sum(PURPOSE)
        else:
            message = self._written(name, array, form)
            self._read(message.sum(PURPOSE), array)
        self.clock.lap("communicate")

    def start(self, name: str, array: Any, form: str) -> Pending:
        """Start to sum `array` over members, in place; return the pending sum.

        The array must not be used until `wait` of the pending sum has returned it.
        """
        members = self.members
        if members.size == 1:
            return Pending(array)
        if self._goes_wide(form):
            return members.start_sum(array, PURPOSE)
        if form == BF16 and self.device_members is not None:
            return self._message(self.device_members, array).start(PURPOSE)
        travelling = self._written(name, array, form, travels=True).start(PURPOSE)
        return Pending(array, lambda: self._read(travelling.wait(), array))

    def captures(self, *forms: str) -> bool:
        """Return whether sums in all of these formats may be part of a CUDA graph."""
        if self.members.size == 1:
            return True
        captures = self.device_members is not None and self.device_members.captures
        return captures and all(self._goes_wide(form) for form in forms)

    def capture(self, action: Callable[[], None]) -> LaunchGraph:
        """Return a CUDA graph of what `action` launches and queues.

        `action` must have run once before.
        """
        graph = self.device.capture(action)
        if self.device_members is not None:
            self.device_members.adopt(graph)
        return graph

    def queue(self, array: Any) -> None:
        """Queue the sum of an array over members in the CUDA graph under recording.

        This is possible only where `captures` is true.
        """
        if self.members.size > 1:
            assert self.device_members is not None
            self.device_members.queue_sum(array)

    def replay(self, graph: LaunchGraph, arrays: Sequence[Any]) -> None:
        """Launch a CUDA graph that contains the sums of `arrays`, in this order.

        All members call it.
        """
        if self.members.size == 1:
            graph()
            return
        assert self.device_members is not None
        self.device_members.replay(graph, arrays, PURPOSE)
        self.clock.lap("communicate")

    def _goes_wide(self, form: str) -> bool:
        """Return whether arrays are summed on the device without a conversion."""
        return self.device_members is not None and get_format(form).is_wide

    def _message(self, members: DeviceCommunicator, array: Any) -> DeviceNarrowSum:
        entry = self._narrow.get(id(array))
        if entry is None:  # the array is kept, too, so that no other array gets its id
            message = DeviceNarrowSum(members, len(array), array)
            entry = self._narrow[id(array)] = array, message
        return entry[1]

    def _written(
        self, name: str, array: Any, form: str, travels: bool = False
    ) -> Message:
        """Return a message on the host that contains a copy of the array."""
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
    """An array on the device that members sum, and the format in which it is sent."""

    name: str
    array: Any
    form: str
    travels: bool = False  # it is started, and waited for later


class CudaSequence:
    """The `PartSequence` of `hpcsgd.backends.task` for a GPU.

    Its second run records CUDA graphs, which later runs launch. The sequence is one
    graph if a graph may contain the sums; otherwise it is two graphs, before and after
    the sums. With `once`, or on its first run, the parts are launched one by one.
    """

    def __init__(
        self,
        device: Device,
        sums: DeviceSums,
        before: Sequence[Part],
        messages: Sequence[DeviceMessage],
        after: Sequence[Part],
        once: bool = False,
    ) -> None:
        self.device = device
        self.sums = sums
        self.messages = messages
        self.before = before
        self.after = after
        self.once = once
        self._whole: GraphAction | None = None
        if not messages:
            self._whole = GraphAction(device, self._by_hand)
        elif sums.captures(*(message.form for message in messages)):
            self._whole = GraphAction(sums, self._by_hand, self._record)
        self._first = GraphAction(device, lambda: call(before))
        self._last = GraphAction(device, lambda: call(after))
        self._beside: dict[int, tuple[CudaSequence, GraphAction]] = {}

    def run(self) -> None:
        """Launch all parts and sums."""
        if self.once:
            self._by_hand()
        elif self._whole is not None and not self.messages:
            self._whole.run()
        elif self._whole is not None:
            arrays = [message.array for message in self.messages]
            self._whole.run(lambda graph: self.sums.replay(graph, arrays))
        else:
            self._first.run()
            self._send()
            self._last.run()

    def up_to_sums(self) -> None:
        """Launch the parts before the sums one by one, then sum all messages."""
        call(self.before)
        self._send()

    def start(self) -> Pending:
        """Launch the parts before the sums, start the sums, and return them pending."""
        self._first.run()
        return self._begin()

    def run_beside(self, ahead: "CudaSequence | None", earlier: Pending) -> Pending:
        """Launch all parts and sums, and start `ahead` while sums are in transit.

        Of `ahead`, the parts before its sums are launched and the sums are started.
        They are returned pending. The parts after the own sums wait for the sums
        `earlier`, too. If `ahead` is None, the parts are launched one by one. A single
        member has no sums: `ahead` is then a branch of one CUDA graph, beside the
        steps, which keep a single multiprocessor busy.
        """
        if ahead is None:
            call(self.before)
            self._begin().wait()
            earlier.wait()
            call(self.after)
            return NO_SUMS
        if self.sums.members.size == 1:
            self._branched(ahead).run()
            return NO_SUMS
        own_sums = self.start()
        ahead._first.run()
        own_sums.wait()
        earlier.wait()
        following = ahead._begin()
        self._last.run()
        return following

    def _branched(self, ahead: "CudaSequence") -> GraphAction:
        entry = self._beside.get(id(ahead))
        if entry is None:

            def action() -> None:
                with self.device.aside():
                    call(ahead.before)
                call(self.before)
                call(self.after)
                self.device.join()

            entry = self._beside[id(ahead)] = ahead, GraphAction(self.device, action)
        return entry[1]

    def _begin(self) -> Pending:
        pending = [self.sums.start(m.name, m.array, m.form) for m in self.messages]
        return Pending(NOTHING, lambda: wait_for_all(pending))

    def _by_hand(self) -> None:
        """Launch all parts and sums one by one, without a CUDA graph."""
        self.up_to_sums()
        call(self.after)

    def _send(self) -> None:
        """Sum all messages, one after the other."""
        for message in self.messages:
            arguments = message.name, message.array, message.form
            if message.travels:
                self.sums.start(*arguments).wait()
            else:
                self.sums.sum(*arguments)

    def _record(self) -> None:
        call(self.before)
        for message in self.messages:
            self.sums.queue(message.array)
        call(self.after)


def call(parts: Sequence[Part]) -> None:
    """Call `parts` one after the other."""
    for part in parts:
        part()


# One member's part of an exchange, as products order it.


class CudaExchange:
    """The `Exchange` of `hpcsgd.backends.task` for a GPU: kernels on arrays of a state.

    The words of the monitor are sent in a message of their own, by the host, so that
    the messages of the device, and the CUDA graphs that contain them, stay the same.
    """

    group: Group
    state: State  # weights and intercept have copies on the device

    def __init__(self, maker: "CudaExchanges", launches: ExchangeKernels) -> None:
        self.maker = maker
        self.launches = launches
        self.task = maker.task
        self.device = maker.device
        self.blocks = launches.blocks
        self._is_kept = False  # the buffer was kept: the next Gram goes to the spare
        self._spare: Any = None

    def load(self, group: Group) -> None:
        """Use the rows of this group from now on."""
        self.group = group
        self.maker.shard.order.seek(group.order, group.first, self.blocks.rows)

    def attach(self, state: State) -> None:
        """Advance this state in the steps that follow.

        Load the coefficients of the group, and sum the words of the monitor's last
        check over members.
        """
        self.state = state
        self.launches.coefficients.load(self.group.coefficients.whole)
        self.maker.sum_words()
        self.task.clock.lap("sample")

    def sample(self) -> None:
        """Launch the kernel that samples the rows: numbers, targets and others."""
        self.launches.sample()

    def products(self) -> None:
        """Launch the kernels that compute this member's parts of Gram and margins."""
        self.launches.products(self.state.on_device("weights"))

    def gram_alone(self) -> None:
        """Launch the kernels that compute this member's part of the Gram."""
        self.launches.gram_alone()

    def scores(self) -> None:
        """Launch the kernels that compute this member's part of the margins."""
        self.launches.scores(self.state.on_device("weights"))

    def arrays(self, is_stepped: bool) -> tuple[Any, ...]:
        """Return the arrays of recorded launches that may be replaced by others.

        `is_stepped` is True if the launches advance a state.
        """
        message = self.launches.message
        if not is_stepped:
            return (message,)
        on_device = self.state.on_device
        return message, on_device("weights"), on_device("intercept")

    def messages(self, *names: str, travels: bool = False) -> Sequence[DeviceMessage]:
        """Return the messages that contain `names`: "gram", "margins", or both.

        Both are one message if they are sent in the same format. If `travels`, their
        sums are started, and waited for later.
        """
        launches = self.launches
        precision = self.task.precision
        wire = precision.gram_wire
        sums = precision.margin_sum
        if "gram" in names and self._is_kept:
            self.launches.use(self._spare)
            self._is_kept = False
        if len(names) > 1 and precision.one_message:
            return [DeviceMessage("products", launches.message, sums, travels)]
        arrays = {
            "gram": DeviceMessage("gram", launches.gram, wire, travels),
            "margins": DeviceMessage("margins", launches.margins, sums, travels),
        }
        return [arrays[name] for name in names]

    def steps(self) -> None:
        """Launch the kernel that computes the residuals of the s steps."""
        self.launches.iterate(self.state.on_device("intercept"))

    def update(self) -> None:
        """Launch the update of the weights."""
        self.launches.apply_update(self.state.on_device("weights"))

    def finish(self) -> None:
        """Mark the arrays of the state as written on the device."""
        self.task.clock.lap("exchange")
        self.state.written(self.launches.residuals)

    def keep(self) -> Any:
        """Return the buffer of the summed Gram, for `use`; allocate another.

        The next Gram is computed in the other buffer. Raise ConfigError if the GPU has
        no memory for it.
        """
        gram = self.launches.message
        self._is_kept = True
        try:
            self._spare = self.device.zeros((len(gram),), np.float32)
        except ConfigError as error:
            raise ConfigError(
                "[products] kind = 'cached' cannot be used here, because it keeps the"
                f" Gram matrices of all exchanges on the GPU and {error}; or use kind ="
                " 'gram'"
            ) from error
        return gram

    def use(self, kept: Any) -> None:
        """Use the buffer `kept`, which `keep` returned, for Gram and margins."""
        self._is_kept = True
        self.launches.use(kept)

    def host_margins(self) -> Array:
        """Return the summed margins on the host."""
        margins = self.device.fetch(self.launches.margins)
        return margins.reshape(self.blocks.rows, -1)

    def host_rows(self) -> Rows:
        """Return the sampled rows in this member's columns on the host.

        They are copied from the GPU if the matrix is not in the memory of the host.
        """
        if not self.task.shard.matrix.is_in_memory:
            rows = self.launches.rows
            assert isinstance(rows, DenseProducts | OtherGram)
            return DenseRows(rows.fetched(self.launches.sampled.numbers))
        buffer = room_for_rows(self.task, self.maker.scratch, self.blocks)
        return gather_rows(self.task, self.group, buffer)

    def host_gram(self) -> Array:
        """Return the summed Gram on the host, packed, of rows that are not scaled."""
        tiles = self.device.fetch(self.launches.gram)
        scale = np.float32(self.launches.matrix.scale)
        packed: Array = self.launches.tiles.packed(tiles) / scale**2
        return packed

    def host_state(self) -> State:
        """Return the weights before the update, and the residuals of the steps."""
        weights = self.state.host_array("weights").astype(self.task.precision.working)
        residuals = self.device.fetch(self.launches.residuals)
        return State(weights=weights, intercept=None, residuals=residuals)


class CudaStep(CudaExchange):
    """The exchange of a single plain step on one batch.

    With `is_alone` the margins need no sum over members.
    """

    is_alone = False

    def take(self, state: State, plan: HostPlan) -> None:
        """Use this state and these coefficients in the step that follows."""
        self.state = state
        self.launches.coefficients.load(plan.unrolled)

    def messages(self, *names: str, travels: bool = False) -> Sequence[DeviceMessage]:
        """Return the message of the margins in a list, or () if they need no sum."""
        return () if self.is_alone else super().messages(*names, travels=travels)


# Plain steps: a member that stores all columns sends nothing between two of them.


class CudaPlainSteps:
    """The `PlainStepSequence` of `hpcsgd.backends.task` for a GPU.

    The steps are one launch if a kernel takes all of them. With `is_alone` the rows
    have the columns of all members, and nothing is summed.
    """

    group: Group
    state: State

    def __init__(
        self,
        maker: "CudaExchanges",
        blocks: Blocks,
        shard: DeviceShard,
        is_alone: bool,
    ) -> None:
        self.maker = maker
        self.blocks = blocks
        self.shard = shard
        self.is_alone = is_alone
        self.task = maker.task
        self.device = maker.device
        self.residuals: Any = None
        self._fused: tuple[DeviceFusedSteps, CudaSequence] | None = None
        self._is_asked = False  # whether there is such a kernel
        self._steps: dict[int, CudaStep] = {}

    def load(self, group: Group) -> None:
        """Take the steps of this group from now on."""
        self.group = group
        self.maker.shard.order.seek(group.order, group.first, self.blocks.rows)

    def attach(self, state: State) -> None:
        """Advance this state in the steps that follow."""
        self.state = state

    def fused_steps(self) -> bool:
        """Take all steps by one kernel; return False, without a step, if none does."""
        if not self.is_alone:
            return False
        # Arrays that changed on the host are sent to the device ahead of the launches.
        self.state.on_device("weights"), self.state.on_device("intercept")
        if not self._is_asked:
            self._fused = self._make_fused()
            self._is_asked = True
        if self._fused is None:
            return False
        fused, launches = self._fused
        fused.load(self.group.coefficients.plain)
        launches.run()
        self.residuals = fused.residuals
        return True

    def _make_fused(self) -> tuple[DeviceFusedSteps, CudaSequence] | None:
        task = self.task
        device = self.device
        matrix = self.shard.matrix
        in_order = self.shard.in_order
        if task.states * task.columns > 1 or matrix.is_sparse:
            return None
        if not has_fused_kernel(device, matrix, self.blocks, task, in_order):
            return None
        sampled = DeviceSampled(device, self.shard.order, self.blocks.rows)
        fused = DeviceFusedSteps(device, matrix, sampled, self.blocks, task, in_order)
        kernel = device.kernel(build_of("sample", "fp32", device.arch))

        def sample() -> None:
            kernel(1, 1024, sampled.arguments)

        def launch() -> None:
            state = self.state
            fused.launch(state.on_device("weights"), state.on_device("intercept"))

        sums = self.maker.sums
        return fused, CudaSequence(device, sums, (sample, launch), (), ())

    def each_step(self) -> Iterator[CudaStep]:
        """Yield the steps one by one; the caller runs each before the next one."""
        for size, plan in zip(self.blocks.sizes, self.group.steps, strict=True):
            step = self._step_of(size)
            step.take(self.state, plan)
            yield step
            self.residuals = step.launches.residuals

    def _step_of(self, size: int) -> CudaStep:
        key = id(self.shard.matrix), size
        step = self.maker.steps.get(key)
        if step is None:
            launches = self.maker.launches_of(blocks_of((size,)), self.shard, 1)
            if not self.is_alone:
                self.maker.choose_kernel(launches)
            step = self.maker.steps[key] = CudaStep(self.maker, launches)
            step.is_alone = self.is_alone
        return step

    def finish(self) -> None:
        """Mark the arrays of the state as written on the device."""
        self.task.clock.lap("steps")
        self.state.written(self.residuals)


# Rows of all members: they travel, and then steps on them need no message.


class CudaRows:
    """A buffer on a GPU of gathered rows, with the columns of all members.

    With `keeps` it contains all rows of the replica, by local row number; otherwise the
    rows of one exchange, in their order.
    """

    def __init__(self, maker: "CudaExchanges", rows: int, keeps: bool) -> None:
        own_matrix = maker.shard.matrix
        assert not own_matrix.is_sparse  # a choice of a product refuses sparse rows
        self.maker = maker
        self.keeps = keeps
        self.own = own_matrix
        self.widths = tuple(part.stop - part.start for part in maker.task.shard.parts)
        self.pieces: dict[int, tuple[DeviceSampled, DeviceMemberRows]] = {}
        self.matrix = self._room(self.own, rows)
        order = maker.shard.order
        if not keeps:
            order = Order.of(maker.device, self.pieces_of(rows)[0])
        self.shard = DeviceShard(
            self.matrix, order, self.matrix.width, in_order=not keeps
        )
        self.numbers: Array = np.arange(rows, dtype=np.int64)
        self.is_here = np.zeros(rows, dtype=bool)

    def _room(self, own: DeviceMatrix, rows: int) -> DeviceMatrix:
        device = self.maker.device
        width = sum(self.widths)
        if not self.keeps:
            return whole_matrix(device, own, rows, width)
        try:
            return whole_matrix(device, own, rows, width)
        except ConfigError as error:
            raise ConfigError(
                "[products] kind = 'gather-once' cannot be used here, because it keeps"
                f" all rows on each GPU and {error}; or use kind = 'gather', or"
                " 'gram'"
            ) from error

    def pieces_of(self, rows: int) -> tuple[DeviceSampled, DeviceMemberRows]:
        """Return the buffers for the all-gather of `rows` rows."""
        pieces = self.pieces.get(rows)
        if pieces is None:
            maker = self.maker
            sampled = DeviceSampled(maker.device, maker.shard.order, rows)
            member = DeviceMemberRows(maker.device, self.own, rows, self.widths)
            pieces = self.pieces[rows] = sampled, member
        return pieces


class CudaGatheredSteps(CudaPlainSteps):
    """The `GatheredSteps` of `hpcsgd.backends.task` for a GPU.

    Rows are sent in the format in which they are stored.
    """

    def __init__(self, maker: "CudaExchanges", blocks: Blocks, whole: CudaRows) -> None:
        super().__init__(maker, blocks, whole.shard, is_alone=True)
        self.whole = whole
        self.sampled, self.pieces = whole.pieces_of(blocks.rows)

    def has_rows(self) -> bool:
        """Return whether the rows of this group are on this GPU already."""
        return bool(self.whole.is_here[self.group.rows].all())

    def pack(self) -> None:
        """Launch the kernels that pack the sampled rows of this member."""
        build = build_of("sample", "fp32", self.device.arch)
        self.device.kernel(build)(1, 1024, self.sampled.arguments)
        self.pieces.pack(self.sampled.numbers)
        self.task.clock.lap("gather")

    def gather(self) -> None:
        """Gather the packed rows of all members. Collective.

        They are sent through the host if members cannot send arrays of devices.
        """
        sums = self.maker.sums
        device = self.device
        counts = self.pieces.counts
        packed = self.pieces.packed
        flat = self.pieces.flat
        if sums.device_members is not None:
            sums.device_members.gather(packed, counts, flat, PURPOSE)
        else:
            out = np.empty(sum(counts), dtype=flat.dtype)
            sums.members.gather(device.fetch(packed), counts, out, PURPOSE)
            device.fill(flat, out)
        self.task.clock.lap("communicate")

    def place(self) -> None:
        """Launch the kernel that puts the columns of all members side by side.

        The steps that follow use the rows that it writes.
        """
        whole = self.whole
        rows = self.blocks.rows
        self.pieces.join(whole.matrix, self.sampled.numbers if whole.keeps else None)
        self.task.clock.lap("gather")
        if whole.keeps:
            whole.is_here[self.group.rows] = True
            self.shard.order.seek(self.group.order, self.group.first, rows)
        else:
            self.shard.order.seek(whole.numbers, 0, rows)


# All exchanges of a member share the matrix on the device, and one set of buffers for
# each size.

REMEDY = "use --device cpu"
GRAPHS = 1024  # sequences that are recorded; more of them would fill memory


class CudaExchanges:
    """The `MemberExchanges` of `hpcsgd.backends.task` for one member on its GPU.

    `gram_asked` is the setting `products.gram_kernel`. `gram_kernel` is the kernel that
    was chosen: the last one other than "own", else "own", and "" before a choice.
    """

    holds_weights = True  # the weights of the state stay on the device

    def __init__(self, task: Task, device: Device, gram_asked: str = "own") -> None:
        check_task(task)
        self.task = task
        self.device = device
        self.gram_asked = gram_asked
        self.gram_kernel = ""
        self.sums = DeviceSums(task, device)
        self.scratch = Scratch()  # of the monitor, on the host
        # A device outlives runs, and each run has members of its own to wait for.
        members = self.sums.device_members
        device.settle = device.wait if members is None else members.settle
        shard = task.shard
        form = task.precision.matrix
        self.scale = scale_of(task)
        matrix = shard.matrix
        self.shard = DeviceShard(
            put_csr(device, matrix, form, self.scale)
            if matrix.is_sparse
            else put_matrix(device, matrix, form, self.scale),
            Order(device, shard.targets, shard.weights, shard.offsets),
            widest=shard.widest,
        )
        self.steps: dict[tuple[int, int], CudaStep] = {}
        self._exchanges: dict[tuple[Blocks, int], CudaExchange] = {}
        self._plain: dict[Blocks, CudaPlainSteps] = {}
        self._rows: dict[int, CudaRows] = {}
        self._gathered: dict[Blocks, CudaGatheredSteps] = {}
        self._sequences: dict[tuple[Any, ...], tuple[Any, CudaSequence]] = {}

    def exchange(self, blocks: Blocks, number: int = 0) -> CudaExchange:
        """Return the exchange for batches of these sizes, the same object each time.

        `number` distinguishes several exchanges of the same sizes. The first call for
        an exchange may be collective, to choose its Gram kernel.
        """
        key = blocks, number
        exchange = self._exchanges.get(key)
        if exchange is None:
            states = self.task.states
            launches = self.launches_of(blocks, self.shard, states)
            self.choose_kernel(launches)
            exchange = self._exchanges[key] = CudaExchange(self, launches)
        return exchange

    def sequence(
        self,
        exchange: CudaExchange,
        before: Sequence[Part],
        sums: Sequence[DeviceMessage],
        after: Sequence[Part],
        once: bool = False,
    ) -> CudaSequence:
        """Return the sequence of parts `before`, `sums`, and parts `after`.

        It is made once and returned again for the same parts and arrays, unless `once`
        is set: then the parts run only once. After `GRAPHS` sequences, more are not
        recorded as CUDA graphs.
        """
        arrays = exchange.arrays(is_stepped=bool(after))
        if once:
            return CudaSequence(self.device, self.sums, before, sums, after, once=True)
        names = (part.__name__ for part in (*before, *after))
        key = id(exchange), *map(id, arrays), *names
        entry = self._sequences.get(key)
        if entry is None:
            full = len(self._sequences) >= GRAPHS
            sequence = CudaSequence(self.device, self.sums, before, sums, after, full)
            if full:
                return sequence
            entry = self._sequences[key] = arrays, sequence
        return entry[1]

    def plain(self, blocks: Blocks) -> CudaPlainSteps:
        """Return plain steps for batches of these sizes, the same object each time."""
        steps = self._plain.get(blocks)
        if steps is None:
            steps = self._plain[blocks] = self.make_plain(blocks)
        return steps

    def make_plain(self, blocks: Blocks) -> CudaPlainSteps:
        """Return new plain steps for batches of these sizes."""
        is_alone = self.task.members.size == 1
        return CudaPlainSteps(self, blocks, self.shard, is_alone)

    def gathered(self, blocks: Blocks, keeps: bool = False) -> CudaGatheredSteps:
        """Return SGD steps, taken one by one, on rows with the columns of all members.

        `keeps`: the gathered rows are stored for later epochs.
        """
        steps = self._gathered.get(blocks)
        if steps is None:
            rows = self.task.shard.height if keeps else blocks.rows
            whole = self._rows.get(rows)
            if whole is None:
                whole = self._rows[rows] = CudaRows(self, rows, keeps)
            steps = self._gathered[blocks] = CudaGatheredSteps(self, blocks, whole)
        return steps

    def launches_of(
        self, blocks: Blocks, shard: DeviceShard, read: int
    ) -> ExchangeKernels:
        """Return new kernels and buffers for batches of these sizes on `shard`.

        Each row has margins at `read` points: at all states of the weights, or at one.
        """
        task = self.task
        return ExchangeKernels(
            self.device,
            shard,
            blocks,
            task.family,
            task.precision,
            self.widths(read),
        )

    def widths(self, read: int) -> Widths:
        """Return the numbers of columns of weights and of margins.

        Each row has margins at `read` points: at all states of the weights, or at one.
        """
        return Widths(self.task.columns, self.task.states, read)

    def choose_kernel(self, launches: ExchangeKernels) -> None:
        """Choose the Gram kernel for the rows of `launches`, alike on all members.

        It may be collective. Sparse rows have only one kernel.
        """
        if not isinstance(launches.rows, DenseProducts):
            return
        choice = choose_gram(self.gram_asked, launches.rows, self._added)
        launches.rows = choice.products
        if choice.name != "own" or not self.gram_kernel:
            self.gram_kernel = choice.name

    def _added(self, seconds: Seconds) -> Seconds:
        """Return the seconds of each kernel, summed over members. Collective."""
        every = self.task.members.exchange_objects(seconds)
        return {
            name: sum(member_seconds[name] for member_seconds in every)
            for name in seconds
        }

    def sum_words(self) -> None:
        """Sum the words of the monitor's last check over members, and judge the sum.

        Do nothing if the monitor has no words to send.
        """
        task = self.task
        form = self.task.precision.margin_sum
        monitor = task.monitor
        if monitor is None or not monitor.words:
            return
        message = self.scratch.message(task.members, "gap", monitor.words, form)
        monitor.post(message.array)
        monitor.judge(message.sum(PURPOSE))
        task.clock.lap("gap")


def check_task(task: Task) -> None:
    """Raise ConfigError if no kernel on a GPU supports the task yet."""
    precision = task.precision
    low = ("matrix", "margin", "gram_wire")
    others = {getattr(precision, name) for name in vars(precision) if name not in low}
    for wrong, what in (
        (task.gradient is None and task.gradient_sink is not None, "clipped gradients"),
        (others != {"fp32"}, "the number formats of this --precision"),
        (not _is_stored(precision.margin), "margins in this number format"),
    ):
        if wrong:
            raise ConfigError(f"--device cuda does not support {what} yet; {REMEDY}")


def scale_of(task: Task) -> float:
    """Return the factor by which values of the matrix are multiplied when stored.

    The factor must be the same for all columns: with different factors, the Gram of
    stored columns is not that of the rows.
    """
    scaling = task.backend.scaling
    if scaling is None or not len(scaling.exponents):
        return 1.0
    exponents = np.unique(scaling.exponents)
    if len(exponents) > 1:
        raise ConfigError(
            "--device cuda needs columns that are scaled alike; use --set"
            f" precision.scale=global, or {REMEDY[4:]}"
        )
    return float(np.ldexp(1.0, int(exponents[0])))


def _is_stored(name: str) -> bool:
    return name in ("fp32", "bf16", "fp16")
