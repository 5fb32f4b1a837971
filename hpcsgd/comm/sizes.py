"""Whether the arrays of a collective fit together, each said in one sentence."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcsgd.comm.hooks import Array
from hpcsgd.errors import TransportError


def check_summable(dtype: np.dtype[Any]) -> None:
    """MPI has no 16-bit float, and a sum of integers that hold some is nonsense."""
    if dtype.char not in "fdg":
        raise TransportError(
            f"a buffer of {dtype} cannot be summed over ranks; sum float32 or float64"
        )


def check_parts(rank: int, part: Array, counts: Sequence[int], out: Array) -> None:
    """A part of every rank, and all of them."""
    if part.size != counts[rank] or out.size != sum(counts):
        raise TransportError(
            f"rank {rank} gathers {part.size} words into {out.size} and the"
            f" counts are {list(counts)}; partition once, and pass the same counts"
        )


def check_part(rank: int, part: Array, counts: Sequence[int]) -> None:
    """A part of every rank, where one rank alone gets all of them."""
    if part.size != counts[rank]:
        raise TransportError(
            f"rank {rank} gives {part.size} words and the counts are"
            f" {list(counts)}; pass the same counts on all ranks"
        )


def check_cut(rank: int, ranks: int, buffer: Array, counts: Sequence[int]) -> None:
    """What is summed in parts, one of each rank."""
    check_summable(buffer.dtype)
    if buffer.size != sum(counts) or len(counts) != ranks:
        raise TransportError(
            f"rank {rank} sums {buffer.size} words in parts of {list(counts)}"
            f" on {ranks} ranks; pass the same counts on all ranks"
        )


def check_pieces(
    rank: int, ranks: int, pieces: Array, counts: Sequence[int], out: Array
) -> None:
    """A piece for every rank, and as many of one size."""
    if pieces.size != sum(counts) or out.size != ranks * counts[rank]:
        raise TransportError(
            f"rank {rank} exchanges {pieces.size} words for {out.size} and the"
            f" counts are {list(counts)}; pass the same counts on all ranks"
        )


def check_dealt(
    rank: int,
    pieces: Array,
    counts: Sequence[int],
    out: Array,
    received: Sequence[int],
) -> None:
    """Pieces of any sizes, and what comes."""
    if pieces.size != sum(counts) or out.size != sum(received):
        raise TransportError(
            f"rank {rank} deals {pieces.size} words by counts of"
            f" {sum(counts)} and takes {out.size} by counts of {sum(received)};"
            " plan both once, from what all ranks have"
        )


def check_swap(rank: int, ranks: int, array: Array, out: Array, peer: int) -> None:
    """What two ranks give each other."""
    if not 0 <= peer < ranks:
        raise TransportError(
            f"rank {rank} would swap with rank {peer} of {ranks}; name a"
            " rank of the group"
        )
    if array.dtype != out.dtype:
        raise TransportError(
            f"rank {rank} gives words of {array.dtype} and takes {out.dtype};"
            " swap words of one type"
        )


def check_swapped(rank: int, peer: int, got: int, wanted: int) -> None:
    """A peer that says less than there is room for would leave old words in it."""
    if got != wanted:
        raise TransportError(
            f"rank {peer} gave rank {rank} {got} bytes in a swap, not {wanted}; both"
            " must know what the other gives"
        )
