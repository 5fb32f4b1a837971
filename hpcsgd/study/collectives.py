"""What a sum over many ranks takes: as a tree, or as rings, across levels of a machine.

Ranks of one node sum among themselves first, then one of each node (or each with its
share) goes on to the next level.

    tree    Σ over levels of ⌈log2 f⌉ (α + n / B): partners exchange all of n, doubling
    halves  Σ over levels of 2 ⌈log2 f⌉ α, and the bytes of rings: shares are halved on
            the way out and doubled on the way back
    rings   Σ over levels of 2 (f − 1) (α + n / (f F B)): a share of n travels at a
            level with f parts, in which F ranks hold one already

Short sums go by trees, long ones by halves or rings: a sum takes what the fastest of
them takes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, log2

from hpcsgd.comm import wire
from hpcsgd.hardware import Hardware


@dataclass(frozen=True)
class Sum:
    """α and β of one way of summing over so many ranks."""

    way: str
    latency: float
    per_byte: float  # of the bytes that a ring moves, as the cost model counts them
    slowest: str  # the level that most of a long sum is spent on


def sums_over(hardware: Hardware, ranks: int) -> list[Sum]:
    """The ways of summing over so many ranks; one rank needs none."""
    if ranks == 1:
        return [Sum("none", 0.0, 0.0, "")]
    return [
        _tree(hardware, ranks),
        _shares("halves", hardware, ranks, lambda parts: ceil(log2(parts))),
        _shares("rings", hardware, ranks, lambda parts: parts - 1),
    ]


def _tree(hardware: Hardware, ranks: int) -> Sum:
    latency, times = 0.0, {}
    for level, parts in hardware.spans(ranks):
        hops = ceil(log2(parts))
        latency += hops * level.latency.value
        times[level.name] = hops / level.bandwidth.value
    return Sum("tree", latency, sum(times.values()) / _unit(ranks), _most(times))


def _shares(
    way: str, hardware: Hardware, ranks: int, hops: Callable[[int], int]
) -> Sum:
    """Each rank adds up its own share, then hands it round."""
    latency, times, inside = 0.0, {}, 1
    for level, parts in hardware.spans(ranks):
        latency += 2 * hops(parts) * level.latency.value
        share = 1.0 / (parts * inside)
        times[level.name] = 2 * (parts - 1) * share / level.bandwidth.value
        inside *= parts
    return Sum(way, latency, sum(times.values()) / _unit(ranks), _most(times))


def _unit(ranks: int) -> float:
    """Bytes that a ring moves of each byte of a payload."""
    return wire.sum_bytes(1, ranks)


def _most(times: dict[str, float]) -> str:
    return max(times, key=lambda name: times[name])
