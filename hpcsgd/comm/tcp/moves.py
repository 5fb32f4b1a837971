"""How words of a group travel: each transfer as the steps of one rank.

Every sum is in rank order, whatever its size and the number of ranks: all ranks hold
the same bits, those of ranks that are threads and of memory that a node shares. Any two
ranks have a connection, so that what others pass around a ring goes straight.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcsgd.comm.node import share
from hpcsgd.comm.shared import add_in_order
from hpcsgd.comm.tcp.engine import Engine, Moves
from hpcsgd.comm.tcp.wire import NAME, Receipt, Sent
from hpcsgd.comm.workspace import Array
from hpcsgd.errors import TransportError

# Bytes that a rank may be sent by all others in place of what a sum in pieces sends.
WHOLE_UP_TO = 1 << 16


def bytes_of(array: Array) -> memoryview:
    """The memory of an array without gaps."""
    if not array.flags.forc:
        raise TransportError(
            "an array with gaps cannot be sent; send a contiguous copy"
        )
    return array.reshape(-1, order="A").view(np.uint8).data


class Group:
    """Some ranks of the world, in their order, and the names of what they send."""

    def __init__(self, engine: Engine, number: int, members: Sequence[int], rank: int):
        self.engine, self.number, self.rank = engine, number, rank
        self.members, self.size = list(members), len(members)
        self._count = 0
        self._swaps = [0] * self.size

    def next(self) -> "Turn":
        """The next transfer of all ranks."""
        self._count += 1
        return Turn(self, self._count)

    def swap_with(self, peer: int) -> "Turn":
        """The next one of the two; others do not count along."""
        self._swaps[peer] += 1
        return Turn(self, self._swaps[peer], first_step=1 << 16)


class Turn:
    """One transfer: what this rank sends in it has its number."""

    def __init__(self, group: Group, number: int, first_step: int = 0) -> None:
        self.group, self.number, self._first = group, number, first_step
        self.rank, self.size = group.rank, group.size
        # From the next rank on: not all begin with rank 0.
        self.others = [(self.rank + k) % self.size for k in range(1, self.size)]

    def _name(self, step: int) -> bytes:
        return NAME.pack(self.group.number, self.number, self._first + step)

    def send(self, to: int, step: int, words: memoryview) -> Sent | None:
        """Put it on its way."""
        wire = self.group.engine.wires[self.group.members[to]]
        return wire.send(self._name(step), words)

    def take(self, source: int, step: int, into: memoryview | None) -> Receipt:
        """Wait for it; None: of any length, into memory of its own."""
        wire = self.group.engine.wires[self.group.members[source]]
        return wire.post(self._name(step), into)

    def share(self, words: int, rank: int) -> slice:
        """The words that a rank takes care of."""
        return share(words, self.size, rank)

    def is_short(self, size: int) -> bool:
        """Whether a message goes whole to everybody."""
        return size * (self.size - 1) <= WHOLE_UP_TO

    def collect_blocks(self, room: memoryview, size: int) -> Moves:
        """Blocks of all ranks, the own one first, those of the next ranks behind it.

        Every round doubles what a rank has, whatever the number of ranks.
        """
        have, step = 1, 0
        while have < self.size:
            count = min(have, self.size - have)
            to, source = (self.rank - have) % self.size, (self.rank + have) % self.size
            came = self.take(source, step, room[have * size : (have + count) * size])
            yield [came, self.send(to, step, room[: count * size])]
            have, step = have + count, step + 1

    def sum(self, flat: Array) -> Moves:
        """The sum of all, on all."""
        if self.is_short(flat.nbytes):
            yield from self._sum_whole(flat)
        else:
            yield from self._sum_pieces(flat, range(self.size))

    def reduce(self, flat: Array) -> Moves:
        """The sum of all, on rank 0."""
        if not self.is_short(flat.nbytes):
            yield from self._sum_pieces(flat, [0])
        elif self.rank:
            yield [self.send(0, 0, bytes_of(flat))]
        else:
            parts = [flat, *(np.empty_like(flat) for _ in self.others)]
            yield [self.take(r, 0, bytes_of(parts[r])) for r in self.others]
            add_in_order(parts, flat)

    def _sum_whole(self, flat: Array) -> Moves:
        """Everybody gets all parts, and adds them."""
        blocks: Array = np.empty((self.size, flat.size), flat.dtype)
        blocks[0] = flat
        yield from self.collect_blocks(bytes_of(blocks), flat.nbytes)
        add_in_order(
            [blocks[(r - self.rank) % self.size] for r in range(self.size)], flat
        )

    def _sum_pieces(self, flat: Array, tell: Sequence[int]) -> Moves:
        """Everybody adds one piece, and tells it those who are to know.

        A rank's total arrives after it has taken our part of it: that place is free.
        """
        cut = [self.share(flat.size, r) for r in range(self.size)]
        parts: Array = np.empty((self.size, flat[cut[self.rank]].size), flat.dtype)
        mine = [self.take(r, 0, bytes_of(parts[r])) for r in self.others]
        totals = []
        if self.rank in tell:
            totals = [self.take(r, 1, bytes_of(flat[cut[r]])) for r in self.others]
        sent = [self.send(r, 0, bytes_of(flat[cut[r]])) for r in self.others]
        yield [*mine, *sent]
        total, own = parts[self.rank], flat[cut[self.rank]]
        add_in_order(
            [own if r == self.rank else parts[r] for r in range(self.size)], total
        )
        told = [self.send(r, 1, bytes_of(total)) for r in self.others if r in tell]
        if self.rank in tell:
            own[...] = total
        yield [*totals, *told]

    def gather(self, part: Array, counts: Sequence[int], out: Array) -> Moves:
        """The parts of all, on all."""
        ends = np.cumsum([0, *counts])
        came = [self.take(r, 0, _piece(out, ends, r)) for r in self.others]
        sent = [self.send(r, 0, bytes_of(part)) for r in self.others]
        out[ends[self.rank] : ends[self.rank + 1]] = part
        yield [*came, *sent]

    def deal(
        self,
        pieces: Array,
        counts: Sequence[int],
        out: Array,
        received: Sequence[int],
    ) -> Moves:
        """Piece r goes to rank r."""
        ends, starts = np.cumsum([0, *counts]), np.cumsum([0, *received])
        came = [self.take(r, 0, _piece(out, starts, r)) for r in self.others]
        sent = [self.send(r, 0, _piece(pieces, ends, r)) for r in self.others]
        own = slice(ends[self.rank], ends[self.rank + 1])
        out[starts[self.rank] : starts[self.rank + 1]] = pieces[own]
        yield [*came, *sent]

    def collect(self, part: Array, counts: Sequence[int], out: Array) -> Moves:
        """The parts of all, on rank 0."""
        if self.rank:
            yield [self.send(0, 0, bytes_of(part))]
            return
        ends = np.cumsum([0, *counts])
        out[: counts[0]] = part
        yield [self.take(r, 0, _piece(out, ends, r)) for r in self.others]

    def broadcast(self, flat: Array, root: int) -> Moves:
        """That of one to all: a tree, or in pieces that all pass on."""
        if self.is_short(flat.nbytes):
            yield from self._pass_down(flat, root)
            return
        cut = [self.share(flat.size, r) for r in range(self.size)]
        own = bytes_of(flat[cut[self.rank]])
        rest = [r for r in self.others if r != root]
        if self.rank == root:
            yield [self.send(r, 0, bytes_of(flat[cut[r]])) for r in rest]
            yield [self.send(r, 1, own) for r in rest]
            return
        came = [self.take(r, 1, bytes_of(flat[cut[r]])) for r in self.others]
        yield [self.take(root, 0, own)]
        yield [*came, *(self.send(r, 1, own) for r in rest)]

    def _pass_down(self, flat: Array, root: int) -> Moves:
        """Who has it gives it to one more, and all of them again."""
        place, far = (self.rank - root) % self.size, 1
        while far < self.size:
            if place < far and place + far < self.size:
                yield [self.send((self.rank + far) % self.size, 0, bytes_of(flat))]
            elif far <= place < 2 * far:
                source = (self.rank - far) % self.size
                yield [self.take(source, 0, bytes_of(flat))]
            far *= 2

    def everybody(self, said: bytes, into: list[Any]) -> Moves:
        """Bytes of any length, of all to all; into[r] is what rank r said."""
        came = {r: self.take(r, 0, None) for r in self.others}
        sent = [self.send(r, 0, memoryview(said)) for r in self.others]
        yield [*came.values(), *sent]
        for r in range(self.size):
            into.append(said if r == self.rank else came[r].words)

    def swap(self, array: Array, out: Array, peer: int, told: list[int]) -> Moves:
        """One array each; told is how many bytes came."""
        came = self.take(peer, 0, bytes_of(out))
        came.any_length = True
        yield [came, self.send(peer, 0, bytes_of(array))]
        told.append(came.length)


def _piece(array: Array, ends: Any, rank: int) -> memoryview:
    return bytes_of(array[ends[rank] : ends[rank + 1]])
