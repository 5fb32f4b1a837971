"""ZeRO-Offload: optimizer state on the host, steps beside the GPU (Ren et al., 2021).

Needs    s = 1, τ = 1, update sgd, momentum, nesterov, adagrad or adam, product direct,
         gather or gather-once, one model, a smooth penalty, and weights of at least 32
         bits.
Refuses  codecs, `hierarchical`, 8-bit states, and scaled residuals.
Keeps    d·K words of weights of d columns and K classes; on the host 1/R of as many for
         the weights, a velocity, each array of the rule (adam 2, adagrad 1), the
         gradient, and with `delay_after` = N ≥ 0 a gradient that is late.
Sends    an all-reduce of the tail, K·i + 1 words (i = 1 with an intercept, else 0); for
         each tile a reduce-scatter of the gradient, d·K words in all, and an all-gather
         of the weights, to which a rank gives about d·K/R words in all. With the delay
         exchange N + 1 gathers nothing, and the end once more. Where R > 2 member 0
         broadcasts the tail to the members if i = 1 or a step is late.
"""

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any, ClassVar

import numpy as np

from hpcsgd.agreements.base import (
    PURPOSE,
    AgreementSettings,
    RunShape,
    StateShape,
    copied,
)
from hpcsgd.agreements.codecs.base import Moment
from hpcsgd.agreements.gradient import GradientInputs
from hpcsgd.agreements.zero import (
    Cut,
    ShardedAgreement,
    SlicedSettings,
    TileWorkspace,
    sent_for_sums,
    sent_for_weights,
)
from hpcsgd.backends.base import HOST, Wait, WordRange
from hpcsgd.backends.task import State, Task
from hpcsgd.comm.gpu import Layer
from hpcsgd.comm.grid import Grid
from hpcsgd.comm.ledger import Sent
from hpcsgd.formats import Array
from hpcsgd.settings import setting

# The way between a device and its host, for slices of gradient and of weights.
#
#     down    a gradient slice, into memory of the host, which takes the step
#     up      the weights that came of it
#
# On a CPU both are memory of the host: the same calls copy, and count the same bytes.


class SliceLink:
    """Copies whole slices between a device and its host, and counts their bytes.

    The `host` arrays must come from `Memory.host_zeros`. Neither array may be used
    until the wait of its copy has returned. A device has one stream for each direction,
    beside the stream `kernels`. On a host, which has no `layer`, copies are done at
    once.
    """

    def __init__(self, layer: Layer | None = None, kernels: Any = None) -> None:
        self.layer = layer
        self._kernels = kernels
        self.down_bytes = self.up_bytes = 0
        if layer is not None:
            self._down = layer.new_stream()
            self._up = layer.new_stream()

    def down(self, part: Any, host: Array) -> Wait:
        """Start the copy host ← part; return a function that waits for it.

        The copy starts after all kernels that have been launched so far.
        """
        self.down_bytes += host.nbytes
        layer = self.layer
        if layer is None:
            return HOST.start_to_host(part, host)
        layer.stream_wait_event(self._down, layer.record(self._kernels))
        layer.to_host(part.reshape(-1), host.reshape(-1), self._down)
        return partial(layer.wait, layer.record(self._down))

    def up(self, host: Array, part: Any) -> Wait:
        """Start the copy part ← host; return a function that waits for it.

        Kernels that are launched from now on start after the copy.
        """
        self.up_bytes += host.nbytes
        layer = self.layer
        if layer is None:
            return HOST.start_to_host(host, part)
        layer.stream_wait_event(self._up, layer.record(self._kernels))
        layer.to_device(host.reshape(-1), part.reshape(-1), self._up)
        done = layer.record(self._up)
        layer.stream_wait_event(self._kernels, done)
        return partial(layer.wait, done)


# The thread of the host that takes steps while the device does something else.


class Worker:
    """A thread that runs actions in order, and counts seconds of work and waits."""

    def __init__(self) -> None:
        self.seconds = self.waited = 0.0
        self._pool: ThreadPoolExecutor | None = None

    def give(self, action: Callable[[], None]) -> "Future[None]":
        """Submit an action, to run after those submitted before; return its future."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "hpcsgd-offload")
        return self._pool.submit(self._timed, action)

    def wait(self, future: "Future[None]") -> None:
        """Wait until an action is done; raise the exception that it raised, if any."""
        began = perf_counter()
        future.result()
        self.waited += perf_counter() - began

    def close(self) -> None:
        """End the thread; actions that have not started are dropped."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None

    def _timed(self, action: Callable[[], None]) -> None:
        began = perf_counter()
        # Each thread has its own; guards look for what overflows.
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            action()
        self.seconds += perf_counter() - began


# ZeRO-Offload: the slices of stage 2, with the state and the steps on the host.
#
# A gradient slice goes down, the host steps its own weights, and the slice of w goes up
# and to all replicas. With a delay, the host takes the step of one gradient while the
# device computes the next:
#
#     w_{t+1} = w_t − η opt(g_{t−1})        from exchange N0 on, which itself takes none
#
# The penalty is of the weights that are stepped. What is still to be taken is saved,
# and taken at the end of a run.
#
# With a GPU, that holds w and adds up the gradient, whole; replicas sum on their
# devices, each its slices of every tile. D/R words a step cross between host and
# device, each way.

log = logging.getLogger(__name__)
PENDING = "pending"  # the mean gradient that is late, in the memory; its Σr beside it


@dataclass(frozen=True)
class OffloadSettings(SlicedSettings):
    """The settings of ZeRO-Offload: slices of state and gradient, steps on the host."""

    delay_after: int = setting(
        -1,
        "exchanges after which steps are applied one exchange late; -1 never delays"
        " them",
        at_least=-1,
        remedy="-1 for never",
    )

    works_alone: ClassVar[bool] = True

    @property
    def steps_late(self) -> bool:
        """Return whether the host steps one exchange late, from some exchange on."""
        return self.delay_after >= 0


class Offload(ShardedAgreement):
    """ZeRO-Offload: stage 2 of ZeRO, with the steps of each rank's slices on its host.

    The host takes them in a thread of its own.
    """

    settings: ClassVar[type[AgreementSettings]] = OffloadSettings
    steps_on_host: ClassVar[bool] = True
    adds_tiles: ClassVar[bool] = False

    def __init__(self, grid: Grid, share: float, inputs: GradientInputs) -> None:
        super().__init__(grid, share, inputs)
        self.slice_memory = HOST
        self.delay = int(inputs.settings.delay_after)
        self.late: Moment | None = None  # of the gradient that is still to be taken
        self.link = SliceLink(inputs.memory.layer, inputs.memory.stream)
        self.worker = Worker()
        self._under_way: Future[None] | None = None

    @property
    def takes_at_once(self) -> bool:
        """Return whether all batches of an exchange are taken as one.

        They are on a host, which with several replicas keeps no whole gradient. A
        device keeps one.
        """
        return not self.inputs.memory.on_device

    @property
    def keeps_gradient_whole(self) -> bool:
        """Return whether all tiles of the gradient are kept until the step.

        They are on a device, and with one replica.
        """
        return self.inputs.memory.on_device or super().keeps_gradient_whole

    def prepare(self, state: State) -> None:
        """Allocate the host's weights and gradient, and a late gradient if needed."""
        super().prepare(state)
        self._memory = state.memory
        memory = self.inputs.memory
        shape = (self.cuts.height, self.columns)
        dtype = state.weights.dtype
        self.master = memory.host_zeros(shape, dtype)
        if self.delay >= 0:
            state.memory[PENDING] = memory.host_zeros(shape, dtype)
            state.shared[PENDING] = np.zeros((1, self.columns))
        # Copies to a device begin later: the host may step on meanwhile. They are over
        # when the next gradient has come down, which does so behind them.
        self.rising = self.master
        rooms = 2
        if memory.on_device:
            self.rising = memory.host_zeros(shape, dtype)
            rooms = len(self.cuts)
        self.risen = TileWorkspace(
            self._widest_slice(), len(self.cuts), dtype, memory, rooms
        )

    def plan_in_words(self, state: State) -> dict[str, str]:
        """Return the plan, with the exchange after which steps are late, or −1."""
        return {**super().plan_in_words(state), "delay": repr(self.delay)}

    def _sliced(self) -> tuple[str, ...]:
        return (*self._stepped(), *((PENDING,) if self.delay >= 0 else ()))

    def _stepped(self) -> tuple[str, ...]:
        """Return the names of arrays in `state.memory` that a step reads and writes."""
        return super()._sliced()

    def start(self, state: State, exchanges: int) -> None:
        """Copy the weights to the host, and resume a late gradient, if there is one."""
        if self.delay >= 0:
            log.info(
                "from exchange %d on (agreement.delay_after), each step uses the"
                " gradient of the step before; this is stable for at most half of the"
                " learning rate that is stable without the delay",
                self.delay + 1,
                extra={"on_all_ranks": True},
            )
        self.master[...] = self.cuts.of(state.weights)
        if 0 <= self.delay < exchanges:
            self.late = self.steps.moment(exchanges - 1)

    def is_whole(self, exchanges: int) -> bool:
        """Return whether the steps of all gradients have been taken: none is late."""
        return self.late is None

    def _begin(self, number: int) -> None:
        """Start an exchange, and the step along a late gradient, if there is one.

        The host takes that step while the device computes the next gradient.
        """
        super()._begin(number)
        if self.late is not None:
            host = _Host(self.master, self._memory)
            late = self.late
            gradient = self._memory[PENDING]
            action = partial(self._apply, host, gradient, late)
            self._under_way = self.worker.give(action)

    def _step(self, state: State, task: Task | None) -> None:
        """Copy the gradient to the host, and take its step now, or one exchange late.

        The stepped weights are sent to the device.
        """
        factor = 1.0 / float(self.scatter.tail.total()[-1])
        is_late = 0 <= self.delay <= self._moment.number
        shapes = self.inputs.shapers
        if is_late or shapes:
            for number, cut in enumerate(self.cuts):
                self._fetch(number, cut)
            self.incoming *= self.incoming.dtype.type(factor)
        if shapes:
            self._shape_mean(self.incoming)
        if is_late:
            self._step_late(state)
        else:
            self._step_now(state, None if shapes else factor)

    def _step_now(self, state: State, factor: float | None) -> None:
        """Step slice by slice: copy a slice to the host, step it, and send its weights.

        `factor` multiplies the gradient, whose slices are copied to the host here.
        None: the mean gradient is on the host already.
        """
        host = _Host(self.master, state.memory)
        moment = self._moment
        under_way: list[tuple[Cut, Future[None]]] = []
        for number, cut in enumerate(self.cuts):
            if factor is not None:
                self._fetch(number, cut)
            gradient = self.incoming[cut.place]
            of = factor or 1.0
            action = partial(self._apply_slice, host, cut, gradient, of, moment)
            under_way.append((cut, self.worker.give(action)))
            if number:
                self._raise(state, *under_way.pop(0))
        self._raise(state, *under_way.pop(0))
        self.joining.wait(behind=0)
        self._step_intercept(state)

    def _step_late(self, state: State) -> None:
        """Finish the step along the late gradient; the new gradient is late now.

        The host takes its step during the next exchange.
        """
        if self._under_way is not None:
            self.worker.wait(self._under_way)
            self._under_way = None
            self._raise_all(state)
        memory = state.memory
        tail = self._tail()
        memory[PENDING], self.incoming = self.incoming, memory[PENDING]
        if state.intercept is not None:
            state.shared[PENDING][0] = tail[:-1] / tail[-1]
        self.late = self._moment

    def _raise_all(self, state: State) -> None:
        """Send all weights that the host has stepped, and step the intercept."""
        for cut in self.cuts:
            self._raise(state, cut)
        self.joining.wait(behind=0)
        self._step_late_intercept(state)

    def _step_late_intercept(self, state: State) -> None:
        """Step the intercept along its late gradient, if there is one."""
        if state.intercept is not None and self.late is not None:
            late = state.shared[PENDING][0].copy()
            self.steps.take_intercept(state, late, self.late)

    def _fetch(self, number: int, cut: Cut) -> None:
        """Copy a slice of the gradient from the device to the host, and wait for it."""
        local_slice = self.scatter.own(number, cut)
        self.link.down(local_slice, self.incoming[cut.place])()

    def _raise(
        self, state: State, cut: Cut, stepped: "Future[None] | None" = None
    ) -> None:
        """Send a slice of the weights from the host to this device and to all replicas.

        If `stepped` is given, first wait until the host has stepped the slice.
        """
        if stepped is not None:
            self.worker.wait(stepped)
        self.send_up(state, cut)
        self.joining.wait(behind=1)

    def send_up(self, state: State, cut: Cut) -> None:
        """Start to send a stepped slice from the host to all devices that need it.

        Rows are stored on devices times `state.scale`, so weights are divided by it.
        """
        rising = self.rising[cut.place]
        tile = state.on_device("weights")[cut.columns]
        if self.rising is not self.master:
            np.divide(self.master[cut.place], state.scale, out=rising)
        if self.replicas.size == 1:
            self.link.up(rising, tile)
        else:
            self._turn += 1
            buffer = self.risen.tile(self._turn, rising.size)
            local_slice = buffer.reshape(-1, self.columns)
            self.link.up(rising, local_slice)
            self.joining.start(local_slice, cut, tile, PURPOSE)
        state.mark_written("weights")

    def _apply(self, host: "_Host", gradient: Array, moment: Moment) -> None:
        """Step all slices of the weights on the host along `gradient`."""
        for cut in self.cuts:
            self._apply_slice(host, cut, gradient[cut.place], 1.0, moment)

    def _apply_slice(
        self, host: "_Host", cut: Cut, gradient: Array, factor: float, moment: Moment
    ) -> None:
        """Step one slice along `factor` times its gradient, as all stages of ZeRO do.

        The step overwrites `gradient`.
        """
        weights = host.weights[cut.place]
        memory = {name: host.memory[name][cut.place] for name in self._stepped()}
        self.steps.step_slice(
            WordRange(weights, weights, memory), gradient, factor, moment
        )

    def consensus(self, state: State, exchanges: int) -> State:
        """Return `state`, or if a gradient is late a copy with its step. Collective."""
        if self.late is None:
            return state
        seen = copied(state, self._sliced())
        master = self.master.copy()
        self._apply(_Host(master, seen.memory), seen.memory[PENDING], self.late)
        seen.weights = self.joining.join(master, "evaluate")
        self._step_late_intercept(seen)
        return seen

    def settle(self, state: State, exchanges: int) -> None:
        """Take the step along the last gradient, if it is late. Collective."""
        if self.late is None:
            return
        self.inputs.memory.settle()  # the last slices may still be on their way up
        self._apply(_Host(self.master, state.memory), state.memory[PENDING], self.late)
        self._raise_all(state)
        self.late = None

    def _check(self, state: State, exchanges: int) -> None:
        """Compare replicas, and copy repaired weights to the host."""
        before = self.check.mended
        super()._check(state, exchanges)
        if self.check.mended != before:
            self.master[...] = self.cuts.of(state.weights)

    def facts(self) -> dict[str, Any]:
        """Return bytes copied and seconds of the host, for the report of a run."""
        worker = self.worker
        hidden = max(worker.seconds - worker.waited, 0.0)
        up, down = self.replicas.copied  # to be carried, where hosts do that
        more = {
            "device_bytes_up": self.link.up_bytes + up,
            "device_bytes_down": self.link.down_bytes + down,
        }
        crossed = self.inputs.memory.facts()
        return super().facts() | {
            "down_bytes": self.link.down_bytes,
            "up_bytes": self.link.up_bytes,
            "host_seconds": worker.seconds,
            "hidden_host_seconds": hidden,
            **{name: size + more[name] for name, size in crossed.items()},
        }

    @classmethod
    def messages(cls, shape: RunShape, exchanges: int) -> Sent | None:
        """Return the numbers of words and bytes that rank 0 sends after an exchange.

        `exchanges` is the number of the exchange. Where steps are late, the weights are
        those of the step of the exchange before.
        """
        late = shape.settings.delay_after
        if not 0 <= late < exchanges:
            return super().messages(shape, exchanges)
        sent = sent_for_sums(shape)
        if exchanges > late + 1:
            sent += sent_for_weights(shape)
        return sent + shape.to_members(shape.tail)

    @classmethod
    def last_messages(cls, shape: RunShape, exchanges: int) -> Sent:
        """Return what rank 0 sends at the end: the weights of a late step, if any."""
        is_late = 0 <= shape.settings.delay_after < exchanges
        return sent_for_weights(shape) if is_late else []

    @classmethod
    def stage_of(cls, shape: StateShape) -> int:
        """Return 2, the stage of ZeRO in which gradients are stored in slices."""
        return 2

    @classmethod
    def beside(cls, shape: StateShape) -> int:
        """Return how many more slices the host keeps: 2, or 3 if steps are late."""
        return 2 + int(shape.settings.delay_after >= 0)

    def release(self) -> None:
        """End the thread of the host."""
        self.worker.close()

    def close(self) -> None:
        """End the thread of the host, and close the communicators. Collective."""
        self.release()
        super().close()


@dataclass(frozen=True)
class _Host:
    """The slices of weights that the host steps, and the arrays of the step rule."""

    weights: Array
    memory: dict[str, Array]
