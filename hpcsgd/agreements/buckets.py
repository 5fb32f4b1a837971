"""Gradients in buckets: their messages, plain or by a codec."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from hpcsgd.agreements.base import MIB, PURPOSE, Overlap
from hpcsgd.agreements.codecs.base import Codec, Finish, Moment
from hpcsgd.backends.base import HOST, Memory, Wait
from hpcsgd.comm.communicator import Communicator, Message, Pending
from hpcsgd.comm.messages import open_message
from hpcsgd.data.shard import split_range
from hpcsgd.formats import Array

# One flat buffer [gradient | Σr | count], and its tiles of columns.
#
# Nothing is copied before it is sent: a bucket is a view of the buffer, and what
# replicas sum in place is the gradient that the step reads.
#
# Where a device adds up Yᵀr of all batches of an exchange, it has an array of as many
# words. Tiles are copied to pinned memory one after the other, and the first is sent to
# other replicas while the next is copied; or replicas sum the arrays on their devices,
# and only the sum is copied to the host.


def pieces_of(words: int, itemsize: int, partition: float) -> list[slice]:
    """Return the slice of each piece of so many words; `partition` in MiB."""
    most = max(int(min(partition * MIB, words * itemsize)) // itemsize, 1)
    count = -(-words // most)
    return [split_range(words, count, part) for part in range(count)]


def add_to_tail(tail: Array, residuals: Array, sums: int) -> None:
    """Count the rows in the last word, and add their Σr to the first `sums` words."""
    tail[-1] += len(residuals)
    if sums:
        tail[:sums] += residuals.sum(axis=0, dtype=np.float64)


@dataclass(frozen=True)
class Tile:
    """One bucket: some columns of the gradient, and their place in the buffer."""

    columns: slice  # of those this member holds
    gradient: Array  # (columns, K), a view
    flat: Array  # the same words in one row

    @property
    def height(self) -> int:
        """Return the columns of the tile."""
        return int(self.columns.stop - self.columns.start)


class LinearStep(Protocol):
    """A step that is taken on a device along what replicas have summed there."""

    def to(self, target: Any, carry: Array, gain: Array) -> None:
        """Compute target ← carry · target + gain · gradient on the device."""


@dataclass(frozen=True)
class DeviceRole:
    """The work of a device on the gradients of a run; by default, none.

    Attributes
    ----------
    memory : Memory
        Where gradients are added up, and slices are stepped.
    sums : bool
        Whether replicas sum gradients there.
    linear_step : callable or None
        Makes what takes steps there, of (a row, words of it, states of each); None
        where the host takes them.
    alignment : int
        Tiles of slices begin at multiples of so many columns.
    """

    memory: Memory = HOST
    sums: bool = False
    linear_step: Callable[[Any, int, int], LinearStep] | None = None
    alignment: int = 1


class Buffer:
    """The words of a replica in an exchange: sums and a count, never means of means.

    `row` is the matrix of one row that a device adds gradients to, and `device_values`
    its words: first those of the gradient. On a host both are views of `flat`.
    """

    def __init__(
        self,
        shape: tuple[int, int],
        dtype: np.dtype,
        tiles: Sequence[slice],
        intercept: bool,
        flagged: bool = False,
        role: DeviceRole = DeviceRole(),  # noqa: B008
    ) -> None:
        """Make the words of a gradient of this shape, in tiles of these columns.

        `flagged`: a flag lies before the count.
        """
        columns, self.width = shape
        words = columns * self.width
        self.sums = self.width if intercept else 0
        self.memory = role.memory
        self.is_summed_on_device = role.sums
        self.flat = self.memory.host_zeros((words + self.sums + flagged + 1,), dtype)
        self.row = self.memory.row_of(self.flat)
        self.device_values = self.row[0][: self.flat.size]
        self._copies: dict[int, Wait] = {}  # by the first column of their tile
        gradient, self.tail = self._parts(words)
        self.gradient = gradient.reshape(shape)
        # The last columns first: what follows them in the buffer goes with them.
        self.tiles = [self._tile(part) for part in reversed(tiles)]
        self.send_order = self.tiles  # in the order in which they are sent

    def _parts(self, words: int) -> tuple[Array, Array]:
        """Return the gradient and the tail."""
        return self.flat[:words], self.flat[words:]

    def _tile(self, part: slice) -> Tile:
        gradient = self.gradient[part]
        return Tile(part, gradient, gradient.reshape(-1))

    def with_tail(self, tile: Tile) -> Array:
        """Return the words that are sent of a tile; the first takes the tail along."""
        if tile is not self.tiles[0]:
            return tile.flat
        return self.flat[tile.columns.start * self.width :]

    def clear(self) -> None:
        """Begin the sums of an exchange."""
        self.tail[...] = 0.0
        self.memory.clear(self.device_values)

    def mark_empty(self) -> None:
        """Clear the host's copy: no gradient of the device is copied to it."""
        if not self.is_summed_on_device:
            self.flat[...] = 0.0

    def on_device(self, tile: Tile) -> Any:
        """Return the words that are sent of a tile, on the device."""
        return self.device_values[self._place(tile, tile is self.tiles[0])]

    def start_copy_to_host(self, tile: Tile, with_tail: bool = False) -> None:
        """Start to copy a tile to the host; `wait_for_copy` waits for it."""
        out = self.with_tail(tile) if with_tail else tile.flat
        values = self.device_values[self._place(tile, with_tail)]
        copied = self.memory.start_to_host(values, out)
        self._copies[tile.columns.start] = copied

    def wait_for_copy(self, first: int) -> None:
        """Wait for the copy of the tile that begins at this column."""
        self._copies.pop(first)()

    def gradient_columns(self, complete: bool) -> "SummedColumns":
        """Return a stand-in for rows whose gradient the device has added.

        `complete`: no batch follows, and tiles are copied to the host, unless replicas
        sum them on their devices.
        """
        is_copied = complete and not self.is_summed_on_device
        for tile in self.send_order if is_copied else ():
            self.start_copy_to_host(tile)
        return SummedColumns(self.wait_for_copy if is_copied else None)

    def collect(self) -> None:
        """Copy the gradient to the host, where a device has it, and wait for it."""
        tiles = self.tiles if self.memory.on_device else []
        for tile in tiles:
            self.start_copy_to_host(tile)
        for tile in tiles:
            self.wait_for_copy(tile.columns.start)

    def put_tail(self) -> None:
        """Copy what the host counted behind the sums of the device."""
        self.memory.from_host(self.tail, self._tail_on_device)

    def copy_tail_to_host(self) -> None:
        """Copy the tail to the host and wait for it."""
        self.memory.start_to_host(self._tail_on_device, self.tail)
        self.memory.settle()

    @property
    def _tail_on_device(self) -> Any:
        return self.device_values[self.flat.size - self.tail.size :]

    def _place(self, tile: Tile, with_tail: bool) -> slice:
        """Return where a tile lies on the device; the tail is behind the gradient."""
        first = tile.columns.start * self.width
        last = tile.columns.stop * self.width
        return slice(first, self.flat.size if with_tail else last)

    @property
    def takes_residuals(self) -> bool:
        """Return whether residuals are summed, for an intercept, or only counted."""
        return self.sums > 0

    def count_in(self, residuals: Array) -> None:
        """Count the rows, and add their Σr where there is an intercept."""
        add_to_tail(self.tail, residuals, 0 if self.is_flagged else self.sums)

    @property
    def is_flagged(self) -> bool:
        """Return whether this replica has flagged the exchange as one not to count."""
        return len(self.tail) > self.sums + 1 and bool(self.tail[-2])

    def flag(self) -> None:
        """Flag the exchange as one that must not count."""
        self.tail[-2] = 1.0

    def settle(self) -> None:
        """Wait until all gradients have been added."""
        self.memory.settle()

    def facts(self) -> dict[str, int]:
        """Return the bytes between host and device, for the report of a run."""
        return self.memory.facts()

    def __iter__(self) -> Iterator[Tile]:
        return iter(self.tiles)


@dataclass(frozen=True)
class SummedColumns:
    """A stand-in for rows whose gradient a device has added to a buffer."""

    wait: Callable[[int], None] | None  # for the copy of a tile, by its first column
    first: int = 0

    def __len__(self) -> int:
        return 1

    def part(self, columns: slice) -> "SummedColumns":
        """Return the columns of a tile."""
        return replace(self, first=columns.start)

    def add_gradient(self, gradient: Array) -> None:
        """Wait until the tile, if it is copied, has been copied to the host."""
        if self.wait is not None:
            self.wait(self.first)


# The collectives of all replicas for one bucket, as a codec uses them.


class ReplicaChannel:
    """The `BucketChannel` of one bucket, on a communicator."""

    def __init__(self, replicas: Communicator) -> None:
        self.replicas = replicas
        self.rank = replicas.rank
        self.size = replicas.size
        # Not shared with other buckets, which are sent at the same time.
        self._messages: dict[tuple[int, str], Message] = {}

    def start_sum(self, array: Array, form: str = "") -> Callable[[], Array]:
        """Begin a sum, in `form` on the wire."""
        if not form:
            return self.replicas.start_sum(array, PURPOSE).wait
        key = array.size, form
        if key not in self._messages:
            opened = open_message(self.replicas, array.size, form, travels=True)
            self._messages[key] = opened
        message = self._messages[key]
        message.array[...] = array
        return message.start(PURPOSE).wait

    def sum(self, array: Array) -> Array:
        """Compute Σ over replicas, in place."""
        return self.replicas.sum(array, PURPOSE)

    def start_gather(
        self, record: Array, lengths: Sequence[int] | None = None
    ) -> Callable[[], list[Array]]:
        """Gather records of the length of this one, or of the lengths in `lengths`."""
        counts = list(lengths or [record.size] * self.size)
        out = np.empty(sum(counts), dtype=record.dtype)
        pending = self.replicas.start_gather(record, counts, out, PURPOSE)

        def arrive() -> list[Array]:
            pending.wait()
            return np.split(out, np.cumsum(counts)[:-1])

        return arrive

    def gather_unequal(self, record: Array) -> list[Array]:
        """Gather the lengths of the records, then the records."""
        lengths = np.empty(self.size, dtype=np.int64)
        own_length = np.array([record.size], dtype=np.int64)
        self.replicas.gather(own_length, [1] * self.size, lengths, PURPOSE)
        out = np.empty(lengths.sum(), dtype=record.dtype)
        self.replicas.gather(record, lengths.tolist(), out, PURPOSE)
        return np.split(out, np.cumsum(lengths)[:-1])

    def start_exchange(self, pieces: Array) -> Callable[[], Array]:
        """Exchange rows of one length; those for this replica come in rank order."""
        rows, length = pieces.shape
        out = np.empty_like(pieces)
        pending = self.replicas.start_exchange(
            pieces.reshape(-1), [length] * rows, out.reshape(-1), PURPOSE
        )

        def arrive() -> Array:
            pending.wait()
            return out

        return arrive

    def broadcast(self, array: Array, root: int = 0) -> Array:
        """Compute array ← that of replica `root`."""
        return self.replicas.broadcast(array, root, PURPOSE)


# Senders of buckets: uncompressed, by sums in place, or by a codec.
#
# The agreement calls `begin` when the residuals are computed, `send` when the sums of a
# tile are complete, and `receive` for the sum over all replicas, in the order of the
# tiles. With `wants_norm` all tiles are computed and measured before the first is sent.


class Sender(Protocol):
    """The protocol of a sender of gradients, which the gradient agreement calls."""

    overlap: Overlap
    codec: str  # name in the report
    wants_norm: bool  # True: `measure` comes between the last sums and the first `send`
    sums_in_place: bool  # each tile is summed where it lies, by one collective

    def begin(self, buffer: Buffer, moment: Moment) -> None:
        """Start an exchange: the tail of the buffer is complete."""

    def measure(self, buffer: Buffer) -> None:
        """Compute the norm of this replica's gradient, of which all tiles are complete.

        Collective over the members of a replica.
        """

    def send(self, buffer: Buffer, tile: Tile) -> None:
        """Start to send a tile, which is complete."""

    def receive(self, buffer: Buffer, tile: Tile) -> float:
        """Wait for a tile; the mean gradient is what it holds, times the result."""

    def tail(self) -> Array:
        """Return Σ over replicas of [Σr | count], after the first `receive`."""

    def facts(self) -> dict[str, int]:
        """Return what is counted for the report of a run."""

    def uncoded(self) -> "Sender":
        """Return a sender to the same replicas that encodes nothing."""

    def close(self) -> None:
        """Close the groups that it opened. Collective."""


class PlainSender:
    """A sender of sums in place, on the host or on devices, the tail with the first."""

    codec = "identity"
    wants_norm = False
    sums_in_place = True

    def __init__(self, replicas: Communicator) -> None:
        self.replicas = replicas
        self.overlap = Overlap(replicas)
        self._travelling: list[Pending] = []
        self._tail: Array = np.empty(0)

    def begin(self, buffer: Buffer, moment: Moment) -> None:
        """Copy the tail to the memory of the first tile, with which it is sent."""
        self._tail = buffer.tail
        if buffer.is_summed_on_device:
            buffer.put_tail()

    def measure(self, buffer: Buffer) -> None:
        """Do nothing: nothing depends on the norm."""

    def send(self, buffer: Buffer, tile: Tile) -> None:
        """Start the sum of what was just written."""
        is_there = buffer.is_summed_on_device
        words = buffer.on_device(tile) if is_there else buffer.with_tail(tile)
        with self.overlap.posting():
            self._travelling.append(self.replicas.start_sum(words, PURPOSE))

    def receive(self, buffer: Buffer, tile: Tile) -> float:
        """Return 1 / count, once the sums of a tile are on the host.

        If sums are on devices, all copies start before the first one is waited for.
        """
        if not buffer.is_summed_on_device:
            self.wait()
        else:
            with self.overlap.waiting():
                self._start_copies(buffer)
                buffer.wait_for_copy(tile.columns.start)
        return 1.0 / float(self._tail[-1])

    def finish(self, buffer: Buffer) -> None:
        """Wait for all sums on the device, and copy no more than the tail."""
        with self.overlap.waiting():
            for summed in self._travelling:
                summed.wait()
            self._travelling.clear()
            buffer.copy_tail_to_host()

    def _start_copies(self, buffer: Buffer) -> None:
        if not self._travelling:  # they were started for the first tile
            return
        for tile, summed in zip(buffer, self._travelling, strict=True):
            summed.wait()
            buffer.start_copy_to_host(tile, tile is buffer.tiles[0])
        self._travelling.clear()
        buffer.settle()  # collectives that failed raise here

    def wait(self) -> None:
        """Wait for the tile that was sent first."""
        with self.overlap.waiting():
            self._travelling.pop(0).wait()

    def tail(self) -> Array:
        """Return the tail of the buffer."""
        return self._tail

    def facts(self) -> dict[str, int]:
        """Return an empty dict."""
        return {}

    def uncoded(self) -> "PlainSender":
        """Return another sender of this kind."""
        return PlainSender(self.replicas)

    def close(self) -> None:
        """Do nothing: it opened no groups."""


@dataclass
class CodecSender:
    """A sender with a codec for every bucket; Σr and the rows are never encoded.

    What replica p encodes is R s_p / Σn, whose mean over replicas is the gradient; with
    error feedback, times the rate of this step.
    """

    sums_in_place = False

    replicas: Communicator
    codecs: dict[int, Codec]  # by the first column of their tile
    codec: str
    members: Communicator  # with the other columns of this replica's gradient
    overlap: Overlap = field(init=False)

    def __post_init__(self) -> None:
        self.wants_norm = any(codec.wants_norm for codec in self.codecs.values())
        self.overlap = Overlap(self.replicas)
        self._lines = {first: ReplicaChannel(self.replicas) for first in self.codecs}
        self._finish: list[Finish] = []
        self._moment = Moment(0, 0, 1.0, 1.0)
        self._arrive: Callable[[], Array] = lambda: np.empty(0)
        self._scale: float | None = None

    def begin(self, buffer: Buffer, moment: Moment) -> None:
        """Start the sum of the tail, which travels while a tile is computed."""
        self._moment = moment
        self._scale = None
        tail = buffer.tail.astype(np.float64)
        with self.overlap.posting():
            self._arrive = self.replicas.start_sum(tail, PURPOSE).wait

    def measure(self, buffer: Buffer) -> None:
        """Set the norm to R / Σn times that of all tiles of all members. Collective."""
        squares = [np.square(tile.flat, dtype=np.float64).sum() for tile in buffer]
        total = self.members.sum(np.array([sum(squares)]), PURPOSE)
        norm = self._scale_of_sums() * float(np.sqrt(total[0]))
        self._moment = replace(self._moment, norm=norm)

    def send(self, buffer: Buffer, tile: Tile) -> None:
        """Encode the tile and start to send it."""
        codec = self._codec(tile)
        part = tile.flat
        part *= self._scale_of_sums() * self._unit(codec)
        line = self._lines[tile.columns.start]
        with self.overlap.posting():
            self._finish.append(codec.start(part, line, self._moment))

    def receive(self, buffer: Buffer, tile: Tile) -> float:
        """Wait for the mean of a tile, store it there, and return its factor."""
        with self.overlap.waiting():
            decoded = self._finish.pop(0)()
        if decoded.mean is not tile.flat:
            tile.flat[...] = decoded.mean
        return 1.0 / self._unit(self._codec(tile))

    def tail(self) -> Array:
        """Return the tail in float64."""
        return self._arrive()

    def facts(self) -> dict[str, int]:
        """Return what the codecs of all buckets counted, in sum."""
        total: Counter[str] = Counter()
        for codec in self.codecs.values():
            total.update(codec.facts())
        return dict(total)

    def uncoded(self) -> PlainSender:
        """Return a sender of sums in place."""
        return PlainSender(self.replicas)

    def close(self) -> None:
        """Do nothing: it opened no groups."""

    def _scale_of_sums(self) -> float:
        """Return R / Σn; the first call waits for it."""
        if self._scale is None:
            with self.overlap.waiting():
                self._scale = self.replicas.size / float(self.tail()[-1])
        return self._scale

    def _codec(self, tile: Tile) -> Codec:
        return self.codecs[tile.columns.start]

    def _unit(self, codec: Codec) -> float:
        """Return the rate where parts are steps, as with error feedback; else 1."""
        return self._moment.rate if codec.in_steps else 1.0
