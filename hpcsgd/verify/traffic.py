"""What rank 0 must have sent for products and agreement, from the configuration alone.

For exchange k of m rows in s batches, K classes, S states, packed Gram g words:

    direct     one sum of b·K in every step
    gram       one sum of g + m·K·S, or two where gram_wire is not margin_sum
    gather     one all-gather, to which rank 0 gives m·d_0; of sparse rows the k values
               that it stores of them, k·(4 + e_Y) bytes as words of two
    gather-once gather where the leg first meets the group, else nothing
    cached     gram where the leg first meets the group, else one sum of m·K·S
    look-ahead a sum of m·K·S, and the sum of g, which is begun one exchange early

The exchange behind one that the gap monitor looks at (every `gap_every`-th) sends with
its margins as many words more as that one's largest batch has rows, two at least; after
a resume, too.

A reproducible sum is a Reduce and a Broadcast, two calls. A sum of w words in 16 or 8
bits is two calls too, reproducible or not: an exchange of w + C·h words and a gather,
to which rank 0 gives ⌊w/C⌋ + h; h = 1 for the exponent before each piece of a format
that has few of them, else 0. Every leg of the run (from a start or a resume to its end)
is counted on its own: on a resume, look-ahead, cached and gather-once send again what
the leg before had sent.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from hpcsgd.agreement.fedavg import draw, drawn_of
from hpcsgd.csr import index_dtype
from hpcsgd.data.partition import split_range
from hpcsgd.data.sampling import plan_groups
from hpcsgd.formats import get_format
from hpcsgd.precision import Precision
from hpcsgd.products import GATHERS
from hpcsgd.schedule import Schedule
from hpcsgd.verify.agreements import Rounds, Words, agreements, base_of

Message = tuple[int, int]  # words, bytes of each
Sum = tuple[int, str]  # words, the format in which they are summed


@dataclass(frozen=True)
class Shape:
    """What the words depend on."""

    schedule: Schedule
    precision: Precision
    rows: int
    columns: int
    classes: int
    states: int
    intercept: bool
    replicas: int
    seed: int = 0
    agreement: dict[str, Any] = field(default_factory=dict)  # the section
    # Of sparse rows: (exchange from 0, first columns) -> values that it stores there
    stored: Callable[[int, int], int] | None = None

    def groups(self) -> list[tuple[int, ...]]:
        """The batch sizes of each exchange of an epoch of replica 0."""
        part = split_range(self.rows, self.replicas, 0)
        return plan_groups(part.stop, self.schedule.batch, self.schedule.steps)

    def rounds(self, leg: dict[str, Any]) -> Rounds:
        """When replicas agree."""
        return Rounds(
            asked=self.agreement,
            period=self.schedule.period,
            each=len(self.groups()),
            replicas=self.replicas,
            circles=tuple(leg.get("circles", ())),
        )

    def trains(self, number: int) -> bool:
        """Whether replica 0 takes part in exchange `number`, from 0."""
        if base_of(self.agreement) != "fedavg":
            return True
        count = drawn_of(self.replicas, self.agreement["fraction"])
        place = number // self.schedule.period
        return 0 in draw(self.seed, place, self.replicas, count)


Count = dict[str, dict[str, int]]


def expected(shape: Shape, legs: list[dict[str, Any]]) -> Count:
    """Purpose -> calls, words, bytes of a whole run."""
    products = [m for leg in legs for m in _products(shape, leg, leg is legs[-1])]
    agreement = [m for leg in legs for m in _agreements(shape, leg, leg is legs[-1])]
    return {"products": _add(products), "agreement": _add(agreement)}


def gap_in(legs: list[dict[str, Any]], exchanges: int, resumes: int) -> str:
    """Why the traffic of this run cannot be counted, or nothing."""
    if len(legs) != resumes + 1:
        return f"the run was started {resumes + 1} times and recorded {len(legs)} times"
    edges = [0, *(leg["last"] for leg in legs[:-1])]
    if edges != [leg["first"] for leg in legs] or legs[-1]["last"] != exchanges:
        return "a part of the run left no record"
    return ""


def _add(messages: Iterable[Message]) -> dict[str, int]:
    calls = words = size = 0
    for count, each in messages:
        calls, words, size = calls + 1, words + count, size + count * each
    return {"calls": calls, "words": words, "bytes": size}


def _sums(leg: dict[str, Any], *sums: Sum) -> Iterator[Message]:
    """Each in one message, or as Reduce and Broadcast, or in pieces."""
    for words, name in sums:
        form = get_format(name)
        size = form.dtype.itemsize
        if not _is_narrow(name):
            yield from [(words, size)] * (2 if leg["reproducible"] else 1)
        else:
            head, members = int(form.wants_scale), leg["members"]
            yield words + members * head, size
            yield words // members + head, size


def _is_narrow(name: str) -> bool:
    """Whether a word on the wire is smaller than the one it is computed with."""
    form = get_format(name)
    return form.dtype.itemsize < form.carrier.itemsize


def _products(shape: Shape, leg: dict[str, Any], at_end: bool) -> Iterator[Message]:
    if leg["members"] == 1:
        return
    groups = shape.groups()
    met: set[int] = set()
    last = _before(shape, leg)
    for number in range(leg["first"], leg["last"]):
        if not shape.trains(number):
            continue
        before, last = last, number
        epoch, index = divmod(number, len(groups))
        fresh = index not in met
        met.add(index)
        if leg["product"] in GATHERS:
            if fresh or leg["product"] == "gather":
                yield _gathered(shape, leg, groups[index], number)
        else:
            more = _looked(leg, groups, before, _before(shape, leg, before))
            yield from _exchange(shape, leg, groups[index], epoch, fresh, more)
    begun = leg["first"] < leg["last"] < leg["planned"]
    ends = (leg["last"] - 1, leg["last"])
    if leg["look_ahead"] and begun and all(shape.trains(n) for n in ends):
        gram = _gram(shape, groups[leg["last"] % len(groups)])
        posted = list(_sums(leg, gram))
        # A narrow sum is gathered where it is waited for: here at the very end, when a
        # leg that others follow has saved its counts.
        yield from posted if at_end or not _is_narrow(gram[1]) else posted[:1]


def _before(shape: Shape, leg: dict[str, Any], number: int | None = None) -> int:
    """The exchange, from 0, that replica 0 took part in before this one, or the leg."""
    first = leg["first"] if number is None else number
    there = (n for n in range(first - 1, -1, -1) if shape.trains(n))
    return next(there, -1)


def _looked(
    leg: dict[str, Any], groups: list[tuple[int, ...]], before: int, earlier: int
) -> int:
    """Words of the monitor in an exchange: of its look at the one `before` it."""
    every = leg.get("gap_every", 0)
    if not every or before < 0 or (before + 1) // every == (earlier + 1) // every:
        return 0
    return max(*groups[before % len(groups)], 2)


def _exchange(
    shape: Shape,
    leg: dict[str, Any],
    sizes: tuple[int, ...],
    epoch: int,
    fresh: bool,
    more: int,
) -> Iterator[Message]:
    """What one exchange sends, with `more` words behind the first margins."""
    kind, form = leg["product"], shape.precision.margin_sum
    if kind == "direct":
        yield from _sums(leg, *((b * shape.classes, form) for b in sizes))
    elif kind == "cached":
        if fresh:
            yield from _sums(leg, *_whole(shape, sizes, more))
        if not fresh or epoch:
            rest = 0 if fresh else more
            yield from _sums(leg, _margins(shape, sizes, rest))
    elif leg["look_ahead"]:
        yield from _sums(leg, _margins(shape, sizes, more), _gram(shape, sizes))
    else:
        yield from _sums(leg, *_whole(shape, sizes, more))


def _gathered(
    shape: Shape, leg: dict[str, Any], sizes: tuple[int, ...], number: int
) -> Message:
    """What rank 0 gives of the rows of exchange `number`, from 0."""
    own = split_range(shape.columns, leg["members"], 0).stop
    size = _size(shape.precision.matrix)
    word = min(size, 2)  # bytes of a piece of sparse rows
    if shape.stored is None:
        return sum(sizes) * own, size
    pair = (index_dtype(own).itemsize + size) // word
    return shape.stored(number, own) * pair, word


def _whole(shape: Shape, sizes: tuple[int, ...], more: int) -> list[Sum]:
    """G and z, in one message where their formats are equal."""
    gram, margins = _gram(shape, sizes), _margins(shape, sizes, more)
    if shape.precision.one_message:
        return [(gram[0] + margins[0], margins[1])]
    return [gram, margins]


def _gram(shape: Shape, sizes: tuple[int, ...]) -> Sum:
    """Pairs of rows of different batches, each pair once."""
    m = sum(sizes)
    return (m * m - sum(b * b for b in sizes)) // 2, shape.precision.gram_wire


def _margins(shape: Shape, sizes: tuple[int, ...], more: int) -> Sum:
    words = sum(sizes) * shape.classes * shape.states + more
    return words, shape.precision.margin_sum


def _agreements(shape: Shape, leg: dict[str, Any], at_end: bool) -> Iterator[Message]:
    """Those of `hpcsgd.verify.agreements`."""
    held = split_range(shape.columns, leg["members"], 0).stop
    travels = shape.agreement.get("momentum", "average") == "average"
    words = Words(
        held=shape.columns if leg["product"] in GATHERS else held,
        wide=shape.classes * (shape.states if travels else 1),
        intercept=shape.intercept,
        # Weights are averaged as they are computed with, however low they are stored.
        size=8 if shape.precision.weights == "fp64" else 4,
        replicas=shape.replicas,
        members=leg["members"],
        reproducible=leg["reproducible"],
    )
    rounds = shape.rounds(leg)
    for due in agreements(rounds, leg["first"], leg["last"], at_end):
        yield from words.of(due)


def _size(name: str) -> int:
    return get_format(name).dtype.itemsize


__all__ = ["Shape", "expected", "gap_in"]
