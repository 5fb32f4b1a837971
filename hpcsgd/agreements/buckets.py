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
    """Split so many words into pieces of at most `partition` MiB; return their slices.

    `itemsize` is the number of bytes of a word.
    """
    most = max(int(min(partition * MIB, words * itemsize)) // itemsize, 1)
    count = -(-words // most)
    return [split_range(words, count, part) for part in range(count)]


def add_to_tail(tail: Array, residuals: Array, sums: int) -> None:
    """Add the number of rows to the last word, and Σr to the first `sums` words.

    Σr is the sum of the residuals over the rows. `tail` is the end of a `Buffer`;
    `sums` is 0 without an intercept.
    """
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
        """Return the number of columns of the tile."""
        return int(self.columns.stop - self.columns.start)


class LinearStep(Protocol):
    """A step on a device along the gradient that replicas have summed on the device."""

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
        (row of the buffer, number of words of the gradient, number of arrays of the
        update) -> what takes steps there; None if no `LinearStep` takes them.
    alignment : int
        Tiles of slices begin at multiples of so many columns.
    """

    memory: Memory = HOST
    sums: bool = False
    linear_step: Callable[[Any, int, int], LinearStep] | None = None
    alignment: int = 1


class Buffer:
    """The buffer [gradient | Σr | count] of a replica in an exchange, in one row.

    The gradient and Σr, the sum of the residuals, are sums over the rows and never
    means; they are divided by the count once replicas have summed them. Σr and the
    count are the tail. `row` is the matrix of one row to which a device adds gradients,
    and `device_values` are its words, which start with the gradient. On a host both are
    views of `flat`.
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
        """Allocate the buffer of a gradient of this shape, in tiles of these columns.

        With `flagged`, a flag is stored before the count.
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
        """Return views of the gradient and of the tail, [Σr | count]."""
        return self.flat[:words], self.flat[words:]

    def _tile(self, part: slice) -> Tile:
        gradient = self.gradient[part]
        return Tile(part, gradient, gradient.reshape(-1))

    def with_tail(self, tile: Tile) -> Array:
        """Return the words to send for a tile, with the tail if it is `tiles[0]`."""
        if tile is not self.tiles[0]:
            return tile.flat
        return self.flat[tile.columns.start * self.width :]

    def clear(self) -> None:
        """Set the tail, and the array where gradients are added up, to zero."""
        self.tail[...] = 0.0
        self.memory.clear(self.device_values)

    def mark_empty(self) -> None:
        """Set the buffer on the host to zero, unless replicas sum on their devices."""
        if not self.is_summed_on_device:
            self.flat[...] = 0.0

    def on_device(self, tile: Tile) -> Any:
        """Return the words to send for a tile, in the array of the device.

        Those of `tiles[0]`, which is sent first, include the tail.
        """
        return self.device_values[self._place(tile, tile is self.tiles[0])]

    def start_copy_to_host(self, tile: Tile, with_tail: bool = False) -> None:
        """Start to copy a tile from the device to the host; see `wait_for_copy`."""
        out = self.with_tail(tile) if with_tail else tile.flat
        values = self.device_values[self._place(tile, with_tail)]
        copied = self.memory.start_to_host(values, out)
        self._copies[tile.columns.start] = copied

    def wait_for_copy(self, first: int) -> None:
        """Wait for the copy to the host of the tile whose first column is `first`."""
        self._copies.pop(first)()

    def gradient_columns(self, complete: bool) -> "SummedColumns":
        """Return a stand-in for rows whose gradient the device has added.

        If `complete`, no batch follows: tiles start to be copied to the host, unless
        replicas sum them on their devices.
        """
        is_copied = complete and not self.is_summed_on_device
        for tile in self.send_order if is_copied else ():
            self.start_copy_to_host(tile)
        return SummedColumns(self.wait_for_copy if is_copied else None)

    def collect(self) -> None:
        """Copy the gradient from the device, if any, to the host, and wait for it."""
        tiles = self.tiles if self.memory.on_device else []
        for tile in tiles:
            self.start_copy_to_host(tile)
        for tile in tiles:
            self.wait_for_copy(tile.columns.start)

    def put_tail(self) -> None:
        """Copy the tail, [Σr | count], to the device, behind the gradient."""
        self.memory.from_host(self.tail, self._tail_on_device)

    def copy_tail_to_host(self) -> None:
        """Copy the tail, [Σr | count], to the host, and wait for the copy."""
        self.memory.start_to_host(self._tail_on_device, self.tail)
        self.memory.settle()

    @property
    def _tail_on_device(self) -> Any:
        return self.device_values[self.flat.size - self.tail.size :]

    def _place(self, tile: Tile, with_tail: bool) -> slice:
        """Return the slice of `device_values` with a tile and, on request, the tail."""
        first = tile.columns.start * self.width
        last = tile.columns.stop * self.width
        return slice(first, self.flat.size if with_tail else last)

    @property
    def takes_residuals(self) -> bool:
        """Return whether residuals are summed, for an intercept; else only counted."""
        return self.sums > 0

    def count_in(self, residuals: Array) -> None:
        """Add the rows to the count and, with an intercept, their residuals to Σr.

        Once the flag of overflow is set, residuals are not added.
        """
        add_to_tail(self.tail, residuals, 0 if self.is_flagged else self.sums)

    @property
    def is_flagged(self) -> bool:
        """Return whether the tail has a flag of overflow that is set."""
        return len(self.tail) > self.sums + 1 and bool(self.tail[-2])

    def flag(self) -> None:
        """Set the flag of overflow: no replica takes the step of this exchange."""
        self.tail[-2] = 1.0

    def settle(self) -> None:
        """Wait until the device has added all gradients."""
        self.memory.settle()

    def facts(self) -> dict[str, int]:
        """Return the bytes copied between host and device, for the report of a run."""
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
        """Return the stand-in for the columns of one tile."""
        return replace(self, first=columns.start)

    def add_gradient(self, gradient: Array) -> None:
        """Wait until the tile has been copied to the host, if it is copied.

        The device has added the gradient already, so `gradient` is not changed here.
        """
        if self.wait is not None:
            self.wait(self.first)


# The collectives of all replicas for one bucket, as a codec uses them.


class ReplicaChannel:
    """The collectives of all replicas for one bucket; implements `BucketChannel`."""

    def __init__(self, replicas: Communicator) -> None:
        self.replicas = replicas
        self.rank = replicas.rank
        self.size = replicas.size
        # Not shared with other buckets, which are sent at the same time.
        self._messages: dict[tuple[int, str], Message] = {}

    def start_sum(self, array: Array, form: str = "") -> Callable[[], Array]:
        """Start Σ over replicas; return a function that waits and returns the total.

        With a `form`, words are sent in that number format.
        """
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
        """Sum `array` over replicas in place, and return it."""
        return self.replicas.sum(array, PURPOSE)

    def start_gather(
        self, record: Array, lengths: Sequence[int] | None = None
    ) -> Callable[[], list[Array]]:
        """Start to send `record` to all replicas; return a function that waits.

        The function returns the records of all replicas in rank order. All records have
        the length of `record`, or those in `lengths`, one for each replica.
        """
        counts = list(lengths or [record.size] * self.size)
        out = np.empty(sum(counts), dtype=record.dtype)
        pending = self.replicas.start_gather(record, counts, out, PURPOSE)

        def arrive() -> list[Array]:
            pending.wait()
            return np.split(out, np.cumsum(counts)[:-1])

        return arrive

    def gather_unequal(self, record: Array) -> list[Array]:
        """Return the records of all replicas, whose lengths are gathered first."""
        lengths = np.empty(self.size, dtype=np.int64)
        own_length = np.array([record.size], dtype=np.int64)
        self.replicas.gather(own_length, [1] * self.size, lengths, PURPOSE)
        out = np.empty(lengths.sum(), dtype=record.dtype)
        self.replicas.gather(record, lengths.tolist(), out, PURPOSE)
        return np.split(out, np.cumsum(lengths)[:-1])

    def start_exchange(self, pieces: Array) -> Callable[[], Array]:
        """Start to send row r of `pieces` to replica r.

        Return a function that waits for the rows that all replicas send to this one,
        and returns them in rank order.
        """
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
        """Copy `array` of replica `root` to all replicas, and return it."""
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
        """Start an exchange, for which the tail of the buffer is complete."""

    def measure(self, buffer: Buffer) -> None:
        """Compute the norm of this replica's gradient, all of whose tiles are complete.

        Collective over the members of a replica.
        """

    def send(self, buffer: Buffer, tile: Tile) -> None:
        """Start to send a tile, whose gradient is complete."""

    def receive(self, buffer: Buffer, tile: Tile) -> float:
        """Wait until a tile contains a sum or mean over replicas; return a factor.

        The tile times this factor is the mean gradient.
        """

    def tail(self) -> Array:
        """Return Σ over replicas of the tail, [Σr | count]; call `receive` first."""

    def facts(self) -> dict[str, int]:
        """Return what the sender counted, for the report of a run."""

    def uncoded(self) -> "Sender":
        """Return a sender to the same replicas that applies no codec."""

    def close(self) -> None:
        """Close the communicators that the sender opened. Collective."""


class PlainSender:
    """A sender that sums tiles in place, without a codec, on the host or on devices.

    The tail is sent with the first tile.
    """

    codec = "identity"
    wants_norm = False
    sums_in_place = True

    def __init__(self, replicas: Communicator) -> None:
        self.replicas = replicas
        self.overlap = Overlap(replicas)
        self._travelling: list[Pending] = []
        self._tail: Array = np.empty(0)

    def begin(self, buffer: Buffer, moment: Moment) -> None:
        """Store the tail; if replicas sum on devices, also copy it to the device."""
        self._tail = buffer.tail
        if buffer.is_summed_on_device:
            buffer.put_tail()

    def measure(self, buffer: Buffer) -> None:
        """Do nothing: this sender does not use the norm."""

    def send(self, buffer: Buffer, tile: Tile) -> None:
        """Start the sum over replicas of a tile, in place."""
        is_there = buffer.is_summed_on_device
        words = buffer.on_device(tile) if is_there else buffer.with_tail(tile)
        with self.overlap.posting():
            self._travelling.append(self.replicas.start_sum(words, PURPOSE))

    def receive(self, buffer: Buffer, tile: Tile) -> float:
        """Wait until the sum of a tile is on the host, and return 1 / count.

        If replicas sum on devices, the copies of all tiles start before the first wait.
        """
        if not buffer.is_summed_on_device:
            self.wait()
        else:
            with self.overlap.waiting():
                self._start_copies(buffer)
                buffer.wait_for_copy(tile.columns.start)
        return 1.0 / float(self._tail[-1])

    def finish(self, buffer: Buffer) -> None:
        """Wait for the sums of all tiles on the device; copy the tail to the host."""
        while len(self._travelling) > 1:
            self.wait()
        with self.overlap.waiting():
            self._travelling.pop().wait()
            buffer.copy_tail_to_host()  # after all sums

    def _start_copies(self, buffer: Buffer) -> None:
        if not self._travelling:  # they were started for the first tile
            return
        for tile, summed in zip(buffer, self._travelling, strict=True):
            summed.wait()
            buffer.start_copy_to_host(tile, tile is buffer.tiles[0])
        self._travelling.clear()
        buffer.settle()  # collectives that failed raise here

    def wait(self) -> None:
        """Wait for the sum that was started first of those under way."""
        with self.overlap.waiting():
            self._travelling.pop(0).wait()

    def tail(self) -> Array:
        """Return the tail, [Σr | count]; after `receive` it is a sum over replicas."""
        return self._tail

    def facts(self) -> dict[str, int]:
        """Return an empty dict: this sender counts nothing."""
        return {}

    def uncoded(self) -> "PlainSender":
        """Return a new `PlainSender` to the same replicas."""
        return PlainSender(self.replicas)

    def close(self) -> None:
        """Do nothing: this sender opened no communicators."""


@dataclass
class CodecSender:
    """A sender with a codec for every bucket; the tail is sent without a codec.

    Replica p encodes R s_p / Σn, where s_p is its sum over rows, R the number of
    replicas and Σn the rows of all. The mean of this over the replicas is the gradient.
    With error feedback it is multiplied by the learning rate before it is encoded.
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
        """Start the sum of the tail, which is sent while a tile is computed."""
        self._moment = moment
        self._scale = None
        tail = buffer.tail.astype(np.float64)
        with self.overlap.posting():
            self._arrive = self.replicas.start_sum(tail, PURPOSE).wait

    def measure(self, buffer: Buffer) -> None:
        """Compute the norm of R / Σn times this replica's gradient, for the codecs.

        R is the number of replicas and Σn the rows of all of them. Collective over the
        members, each of which has a part of the gradient.
        """
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
        """Wait for the decoded mean of a tile, store it there, and return a factor.

        The tile times this factor is the mean gradient.
        """
        with self.overlap.waiting():
            decoded = self._finish.pop(0)()
        if decoded.mean is not tile.flat:
            tile.flat[...] = decoded.mean
        return 1.0 / self._unit(self._codec(tile))

    def tail(self) -> Array:
        """Return the sum of the tail over replicas, [Σr | count], in float64."""
        return self._arrive()

    def facts(self) -> dict[str, int]:
        """Return the sums of what the codecs of all buckets counted."""
        total: Counter[str] = Counter()
        for codec in self.codecs.values():
            total.update(codec.facts())
        return dict(total)

    def uncoded(self) -> PlainSender:
        """Return a `PlainSender` to the same replicas."""
        return PlainSender(self.replicas)

    def close(self) -> None:
        """Do nothing: this sender opened no communicators."""

    def _scale_of_sums(self) -> float:
        """Return replicas / rows of all replicas; the first call waits for the tail."""
        if self._scale is None:
            with self.overlap.waiting():
                self._scale = self.replicas.size / float(self.tail()[-1])
        return self._scale

    def _codec(self, tile: Tile) -> Codec:
        return self.codecs[tile.columns.start]

    def _unit(self, codec: Codec) -> float:
        """Return the factor of a mean gradient before it is encoded.

        It is the learning rate where the codec encodes steps, as with error feedback,
        else 1.
        """
        return self._moment.rate if codec.in_steps else 1.0
