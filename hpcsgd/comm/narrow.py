"""Sums that travel in 16 or 8 bits: pieces are exchanged, added wide, and gathered.

MPI adds no 16-bit floats. So each rank rounds its part and gives every rank the piece
that is this one's to add; each adds its pieces in float32, in rank order, and what it
gives to all is rounded once more: two roundings, whatever the number of ranks, and the
same bits everywhere. Two collectives of half or a quarter of the bytes.

Where a format has few exponents, what a rank sends is divided by a power of two that
takes its largest value just below the format's; the exponent stands before each piece.
"""

from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from hpcsgd.comm.casts import held_dtype, largest_finite, narrow, widen
from hpcsgd.comm.node import share
from hpcsgd.comm.pending import Pending
from hpcsgd.comm.shared import add_in_order
from hpcsgd.comm.workspace import Array, Message, Workspace
from hpcsgd.formats import Format, get_format
from hpcsgd.rounding import exponent_for, round_through

if TYPE_CHECKING:
    from hpcsgd.comm.base import Communicator


def open_message(
    group: "Communicator", words: int, name: str, travels: bool = False
) -> Message:
    """A message that is summed in format `name`, by the fastest way there is for it.

    Asked for by all ranks in one order; `travels`: it is started, and waited for later.
    """
    form = get_format(name)
    if group.size > 1 and is_narrow(form):
        return NarrowSum(group, words, form)
    if travels:
        wide: Message = Workspace(group, words, form.carrier)
    else:
        wide = group.workspace(words, form.carrier)
    emulated = form.dtype == form.carrier and not form.is_wide  # tf32
    return RoundedSum(wide, name) if group.size > 1 and emulated else wide


def is_narrow(form: Format) -> bool:
    """True where a word on the wire is smaller than the one it is computed with."""
    return form.dtype.itemsize < form.carrier.itemsize


def bytes_of_word(name: str, ranks: int) -> int:
    """What one rank holds of each word of a message, once it has been summed."""
    form = get_format(name)
    wide, narrow = form.carrier.itemsize, form.dtype.itemsize
    if ranks == 1 or not is_narrow(form):
        return wide
    # The message and its parts; what is sent, received, added and gathered.
    held = 2 * wide + 4 * narrow
    return held + 2 * wide + 2 * narrow if form.wants_scale else held


class RoundedSum:
    """Each part is rounded to a format that takes as many bytes as float32."""

    def __init__(self, wide: Message, name: str) -> None:
        self.wide = wide
        self.name = name

    @property
    def array(self) -> Array:
        """That of the wide message."""
        return self.wide.array

    def sum(self, purpose: str) -> Array:
        """Round, then sum."""
        round_through(self.wide.array, self.name)
        return self.wide.sum(purpose)

    def start(self, purpose: str) -> Pending:
        """Round, then begin the sum."""
        round_through(self.wide.array, self.name)
        return self.wide.start(purpose)


class NarrowSum:
    """Two collectives of narrow words: an exchange of pieces, and a gather."""

    def __init__(self, group: "Communicator", words: int, form: Format) -> None:
        self.group = group
        self._array: Array = np.empty(words, dtype=np.float32)
        lengths = [_length(words, group.size, rank) for rank in range(group.size)]
        own = lengths[group.rank]
        self._sent = Pieces(form, lengths)
        self._received = Pieces(form, [own] * group.size)
        self._own = Pieces(form, [own])
        self._totals = Pieces(form, lengths)
        self._parts: Array = np.empty((group.size, own), dtype=np.float32)

    @property
    def array(self) -> Array:
        """Where this rank's part goes, and the totals come."""
        return self._array

    def sum(self, purpose: str) -> Array:
        """Exchange, add, gather."""
        sent = self._sent
        sent.write(self._array)
        received = self._received.held
        self.group.exchange_pieces(sent.held, sent.counts, received, purpose)
        self._finish(purpose)
        return self._array

    def start(self, purpose: str) -> Pending:
        """Post the exchange; the rest is done where it is waited for."""
        sent = self._sent
        sent.write(self._array)
        received = self._received.held
        travelling = self.group.start_exchange(
            sent.held, sent.counts, received, purpose
        )

        def finish() -> None:
            travelling.wait()
            self._finish(purpose)

        return Pending(self._array, finish)

    def _finish(self, purpose: str) -> None:
        total, totals = self._parts[0], self._totals
        with np.errstate(over="ignore", invalid="ignore"):  # guards look for it
            self._received.read(self._parts.reshape(-1))
            add_in_order(list(self._parts), total)
            self._own.write(total)
            self.group.gather(self._own.held, totals.counts, totals.held, purpose)
            totals.read(self._array)


class Pieces:
    """Pieces of these lengths in one buffer, each behind its exponent.

    Formats with the exponents of float32 need none; the pieces are then one array.
    """

    def __init__(self, form: Format, lengths: Sequence[int]) -> None:
        self.form = form
        self.header = int(form.wants_scale)  # words; an exponent fits into one
        self.counts = [length + self.header for length in lengths]
        self.held: Array = np.empty(sum(self.counts), held_dtype(form.name))
        starts = [0, *accumulate(self.counts)]
        self._heads = np.array(starts[:-1], dtype=np.intp)
        self._bodies = [
            slice(first + self.header, last)
            for first, last in zip(starts, starts[1:], strict=False)
        ]
        ends = [0, *accumulate(lengths)]
        self._places = [slice(*two) for two in zip(ends, ends[1:], strict=False)]

    @cached_property
    def _flat(self) -> Array:
        return np.empty(self._places[-1].stop, self.held.dtype)

    @cached_property
    def _wide(self) -> Array:
        return np.empty(self.held.size, np.float32)

    def write(self, values: Array) -> None:
        """held ← the values, rounded; all pieces have one exponent."""
        name = self.form.name
        if not self.header:
            narrow(values, name, 1.0, self.held)
            return
        exponent = exponent_for(largest_finite(values), self.form)
        narrow(values, name, 2.0**-exponent, self._flat)
        for body, place in zip(self._bodies, self._places, strict=True):
            self.held[body] = self._flat[place]
        self._exponents[self._heads] = exponent

    def read(self, out: Array) -> None:
        """out ← the values that are held."""
        name = self.form.name
        if not self.header:
            widen(self.held, name, out)
            return
        widen(self.held, name, self._wide)
        factors = np.ldexp(np.float32(1), self._exponents[self._heads])
        for body, place, factor in zip(
            self._bodies, self._places, factors, strict=True
        ):
            np.multiply(self._wide[body], factor, out=out[place])

    @property
    def _exponents(self) -> Array:
        """The same words as whole numbers with a sign."""
        return self.held.view(f"i{self.held.itemsize}")


def _length(words: int, ranks: int, rank: int) -> int:
    piece = share(words, ranks, rank)
    return int(piece.stop - piece.start)
