"""Messages in narrow formats: packing, conversion, and sums in a fixed order."""

from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcsgd.comm.communicator import Collective, Message, Pending, Workspace
from hpcsgd.comm.ledger import SentWords
from hpcsgd.comm.shared_memory import add_in_order, share
from hpcsgd.files import load_kernels
from hpcsgd.formats import (
    Array,
    Format,
    decode,
    encode,
    exponent_for,
    get_format,
    round_through,
)

if TYPE_CHECKING:
    from hpcsgd.comm.communicator import Communicator


# Conversion of values to the bits of a message and back, by compiled code if possible.

# In the order of the numbers that kernels/cpu/casts.c gives.
KINDS = ("bf16", "fp16", "fp8-e4m3", "fp8-e5m2")
SIGNATURES = {
    "hpcsgd_encode": ("", "pplif"),
    "hpcsgd_decode": ("", "ppli"),
    "hpcsgd_largest": ("f", "pl"),
}


@lru_cache(maxsize=1)
def library() -> Any:
    """Return the library of compiled casts, or None if it cannot be used."""
    return load_kernels(Path(__file__).parent, "_casts", "NumPy", SIGNATURES)[0]


def message_dtype(name: str) -> np.dtype[Any]:
    """Return the unsigned integer dtype of a message in format `name`."""
    return np.dtype(f"u{get_format(name).dtype.itemsize}")


def narrow(values: Array, name: str, factor: float, out: Array) -> None:
    """out ← the bits of values · factor in format `name`, rounded to nearest even.

    `values` are of float32.
    """
    assert values.size == out.size
    compiled = library()
    if compiled is not None:
        ends = values.ctypes.data, out.ctypes.data
        compiled.hpcsgd_encode(*ends, values.size, KINDS.index(name), factor)
        return
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = values if factor == 1.0 else values * np.float32(factor)
        out[...] = encode(scaled, name).view(out.dtype)


def widen(held: Array, name: str, out: Array) -> None:
    """out ← the float32 values of `held`, which has bits in format `name`."""
    assert held.size == out.size
    compiled = library()
    if compiled is not None:
        ends = held.ctypes.data, out.ctypes.data
        compiled.hpcsgd_decode(*ends, held.size, KINDS.index(name))
        return
    decode(held.view(get_format(name).dtype), name, np.float32, out)


def largest_finite(values: Array) -> float:
    """Return the largest absolute value among finite values; 0 if there is none."""
    compiled = library()
    if compiled is not None:
        return float(compiled.hpcsgd_largest(values.ctypes.data, values.size))
    sizes = np.abs(values[np.isfinite(values)])
    return float(sizes.max(initial=0))


# Sums in words of 16 or 8 bits: pieces are exchanged, added wide, and gathered.
#
# MPI adds no 16-bit floats. So each rank rounds its part, and sends one piece of it to
# every rank; each rank adds the pieces that it receives in float32, in rank order, and
# sends the sum, rounded once more, to all: two roundings, whatever the number of ranks,
# and the same bits on all of them. Two collectives of half or a quarter of the bytes.
#
# For a format with few exponents, a rank divides what it sends by a power of two, so
# that its largest value is just below that of the format; the exponent precedes each
# piece.


def open_message(
    group: "Communicator", words: int, name: str, travels: bool = False
) -> Message:
    """Return a message of `words` words that is summed in format `name`.

    Collective: all ranks open their messages in one order. `travels`: sums are started,
    and waited for later.
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
    """Return whether a word is smaller in a message than in arithmetic."""
    return form.dtype.itemsize < form.carrier.itemsize


def bytes_of_word(name: str, ranks: int) -> int:
    """Return the bytes that a rank allocates for each word of a summed message.

    `name` is the format in which the words are sent.
    """
    form = get_format(name)
    wide = form.carrier.itemsize
    narrow = form.dtype.itemsize
    if ranks == 1 or not is_narrow(form):
        return wide
    # The message and its parts; what is sent, received, added and gathered.
    word_bytes = 2 * wide + 4 * narrow
    return word_bytes + 2 * wide + 2 * narrow if form.wants_scale else word_bytes


class RoundedSum:
    """A sum whose parts are rounded to a format that takes as many bytes as float32."""

    def __init__(self, wide: Message, name: str) -> None:
        self.wide = wide
        self.name = name

    @property
    def array(self) -> Array:
        """Return the array of the wide message, for this rank's part."""
        return self.wide.array

    def sum(self, purpose: str) -> Array:
        """Round this rank's part, then return the sum."""
        round_through(self.wide.array, self.name)
        return self.wide.sum(purpose)

    def start(self, purpose: str) -> Pending:
        """Round this rank's part, then start the sum."""
        round_through(self.wide.array, self.name)
        return self.wide.start(purpose)


class NarrowSum:
    """A sum by two collectives of narrow words: an exchange of pieces, and a gather."""

    def __init__(self, group: "Communicator", words: int, form: Format) -> None:
        self.group = group
        self._array: Array = np.empty(words, dtype=np.float32)
        lengths = [_length(words, group.size, rank) for rank in range(group.size)]
        own_words = lengths[group.rank]
        self._sent = NarrowPieces(form, lengths)
        self._received = NarrowPieces(form, [own_words] * group.size)
        self._own = NarrowPieces(form, [own_words])
        self._totals = NarrowPieces(form, lengths)
        self._parts: Array = np.empty((group.size, own_words), dtype=np.float32)
        self._prepare()

    def _prepare(self) -> None:
        """Prepare both collectives, once for all sums."""
        sent = self._sent
        received = self._received
        totals = self._totals
        self._exchange = Collective("exchange", sent.held, received.held, sent.counts)
        self._gather = Collective("gather", self._own.held, totals.held, totals.counts)

    @property
    def array(self) -> Array:
        """Return the array for this rank's part, which a sum replaces by the totals."""
        return self._array

    def sum(self, purpose: str) -> Array:
        """Exchange pieces, add them, gather their sums; return the totals."""
        self._sent.write(self._array)
        self.group.run(self._exchange, purpose)
        self._finish(purpose)
        return self._array

    def start(self, purpose: str) -> Pending:
        """Start the exchange of pieces; `wait` adds them and gathers their sums."""
        self._sent.write(self._array)
        exchange = self.group.start(self._exchange, purpose)

        def finish() -> None:
            exchange.wait()
            self._finish(purpose)

        return Pending(self._array, finish)

    def _finish(self, purpose: str) -> None:
        total = self._parts[0]
        with np.errstate(over="ignore", invalid="ignore"):  # the monitor checks for it
            self._received.read(self._parts.reshape(-1))
            add_in_order(list(self._parts), total)
            self._own.write(total)
            self.group.run(self._gather, purpose)
            self._totals.read(self._array)


class NarrowPieces:
    """Pieces of a message in one buffer, each preceded by its exponent.

    `lengths` are the words of the pieces. Formats with the exponent range of float32
    need no exponents; the pieces are then one array.
    """

    def __init__(self, form: Format, lengths: Sequence[int]) -> None:
        self.form = form
        self.header = int(form.wants_scale)  # words; an exponent fits into one
        self.counts = [length + self.header for length in lengths]
        self.held: Array = np.empty(sum(self.counts), message_dtype(form.name))
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
        """held ← the values, rounded; all pieces have the same exponent."""
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
        """out ← the float32 values of the pieces, scaled by their exponents."""
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
        """Return the whole buffer as signed integers, some of which are exponents."""
        return self.held.view(f"i{self.held.itemsize}")


def _length(words: int, ranks: int, rank: int) -> int:
    piece = share(words, ranks, rank)
    return int(piece.stop - piece.start)


def sent_for_sum(
    words: int, name: str, ranks: int, reproducible: bool
) -> Iterator[SentWords]:
    """Yield what rank 0 of a group sends for a sum of `words` in format `name`.

    A reproducible sum is a reduction and a broadcast of all words. A sum in 16 or 8
    bits is an exchange of pieces and a gather, reproducible or not.
    """
    if ranks == 1:
        return
    form = get_format(name)
    counts = [words] * (2 if reproducible else 1)
    if is_narrow(form):
        head = int(form.wants_scale)
        counts = [words + ranks * head, _length(words, ranks, 0) + head]
    for count in counts:
        yield SentWords(count, count * form.dtype.itemsize)


# The result of a sum on all ranks of a group, computed by one of them.
#
# The words are those of `NarrowSum`: the same pieces, exponents, roundings and order.


def sum_parts(parts: list[Array], name: str) -> Array:
    """Return Σ of the flat parts of all ranks, rounded as by a message in `name`.

    `parts` may change.
    """
    form = get_format(name)
    if len(parts) == 1:
        return parts[0]
    if is_narrow(form):
        return _exchanged(parts, form)
    for part in parts:
        round_through(part, name)
    return add_in_order(parts, np.empty_like(parts[0]))


def _exchanged(parts: list[Array], form: Format) -> Array:
    """Return Σ of the parts of all ranks, as `NarrowSum` computes it."""
    words = parts[0].size
    ranks = len(parts)
    pieces = [share(words, ranks, rank) for rank in range(ranks)]
    lengths = [int(piece.stop - piece.start) for piece in pieces]
    sent = [NarrowPieces(form, lengths) for _ in parts]
    totals = NarrowPieces(form, lengths)
    for message, part in zip(sent, parts, strict=True):
        message.write(part)
    ends = [0, *accumulate(totals.counts)]
    for place, length in zip(map(slice, ends, ends[1:]), lengths, strict=False):
        received = NarrowPieces(form, [length] * ranks)
        received.held[...] = np.concatenate([message.held[place] for message in sent])
        totals.held[place] = _added(received, ranks, length)
    total = np.empty(words, dtype=np.float32)
    totals.read(total)
    return total


def _added(received: NarrowPieces, ranks: int, length: int) -> Array:
    """Return one piece of all ranks, summed in float32 and rounded again."""
    wide = np.empty((ranks, length), dtype=np.float32)
    received.read(wide.reshape(-1))
    piece = NarrowPieces(received.form, [length])
    piece.write(add_in_order(list(wide), wide[0]))
    return piece.held
