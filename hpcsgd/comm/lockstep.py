"""What all ranks of a group would hold after a sum, computed by one of them.

The words are those of `narrow`: the same pieces, exponents, roundings and order.
"""

from itertools import accumulate

import numpy as np

from hpcsgd.comm.narrow import Pieces, is_narrow
from hpcsgd.comm.node import share
from hpcsgd.comm.shared import add_in_order
from hpcsgd.comm.workspace import Array
from hpcsgd.formats import Format, get_format
from hpcsgd.rounding import round_through


def sum_parts(parts: list[Array], name: str) -> Array:
    """Σ of the flat parts of all ranks, as a message in format `name` sums them."""
    form = get_format(name)
    if len(parts) == 1:
        return parts[0]
    if is_narrow(form):
        return _exchanged(parts, form)
    for part in parts:
        round_through(part, name)
    return add_in_order(parts, np.empty_like(parts[0]))


def _exchanged(parts: list[Array], form: Format) -> Array:
    """Every rank adds the pieces that are its own, and gives them to all."""
    words, ranks = parts[0].size, len(parts)
    pieces = [share(words, ranks, rank) for rank in range(ranks)]
    lengths = [int(piece.stop - piece.start) for piece in pieces]
    sent, totals = [Pieces(form, lengths) for _ in parts], Pieces(form, lengths)
    for message, part in zip(sent, parts, strict=True):
        message.write(part)
    ends = [0, *accumulate(totals.counts)]
    for place, length in zip(map(slice, ends, ends[1:]), lengths, strict=False):
        received = Pieces(form, [length] * ranks)
        received.held[...] = np.concatenate([message.held[place] for message in sent])
        totals.held[place] = _added(received, ranks, length)
    total = np.empty(words, dtype=np.float32)
    totals.read(total)
    return total


def _added(received: Pieces, ranks: int, length: int) -> Array:
    """One piece of all ranks, summed in float32 and rounded again."""
    wide = np.empty((ranks, length), dtype=np.float32)
    received.read(wide.reshape(-1))
    own = Pieces(received.form, [length])
    own.write(add_in_order(list(wide), wide[0]))
    return own.held
