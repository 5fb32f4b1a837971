"""Words and messages of a run, derived anew and held against its ledger."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from math import ceil
from typing import Any

import numpy as np

from hpcsgd.agreements.averaging import client_count, draw
from hpcsgd.agreements.buckets import bucket_count
from hpcsgd.agreements.codecs import make_codec
from hpcsgd.agreements.codecs.base import Bucket
from hpcsgd.agreements.zero import Cuts
from hpcsgd.config import RunConfig
from hpcsgd.data.sampling import plan_groups
from hpcsgd.data.shard import split_range
from hpcsgd.data.sparse import index_dtype
from hpcsgd.formats import get_format
from hpcsgd.glm.unrolling import Schedule
from hpcsgd.precision import Precision
from hpcsgd.products import GATHERS

# What rank 0 must have sent to agree with other replicas, from the settings alone.
#
# Of w words of state (d_0 columns held, times the K·S that travel, and the
# intercept's):
#
#   average, postlocal   one sum of w words where the period says so
#   async-average        the same, and one at the end wherever averages come late
#   hierarchical         one where any period does, in groups that may be of one replica
#   fedavg               one of w words in every round, zeros included
#   slowmo               that of the base; where a slow step is due and the slow state
#                        is in parts: an exchange of w words and the intercept R − 1
#                        times more, and a gather to which rank 0 gives ⌈d_0 / R⌉·K·S
#
# and one at the end unless the last exchange had one of all replicas. An intercept of
# more than two replicas of more than one member is broadcast behind each sum, K·S words
# of 8 bytes. Momentum that is kept or reset does not travel: then S is 1.

Settings = dict[str, Any]  # the section [agreement]
SUM, PARTS, LEFT = "sum", "parts", "left"  # left: at the end, before it was used
AVERAGES = ("average", "postlocal", "hierarchical", "fedavg", "async-average")
KNOWN = ("auto", "none", *AVERAGES, "slowmo")  # kinds whose messages are these


@dataclass(frozen=True)
class Due:
    """One agreement of a run: how it goes, and among how many replicas."""

    way: str
    size: int


@dataclass(frozen=True)
class AgreementRounds:
    """When replicas agree."""

    settings: Settings
    period: int
    each: int  # exchanges of an epoch
    replicas: int
    circles: tuple[int, ...]  # replicas of the groups that rank 0 averages in

    @property
    def base(self) -> str:
        """The row that averages."""
        return base_of(self.settings)

    def due(self, number: int) -> Due | None:
        """After exchange `number`, from 1."""
        if self._is_slow(number):
            way = PARTS if self.settings["slow_sharded"] else SUM
            return Due(way, self.replicas)
        if self.base == "hierarchical":
            sizes = zip(self.circles, self.periods, strict=True)
            due = [size for size, period in sizes if number % period == 0]
            return Due(SUM, due[-1]) if due else None
        return Due(SUM, self.replicas) if self._base_is_whole(number) else None

    def is_whole(self, number: int) -> bool:
        """Whether all replicas are one after exchange `number`."""
        if self.base == "async-average" and self.settings["delay"]:
            return False  # what was agreed on is of a while ago
        return self._is_slow(number) or self._base_is_whole(number)

    def is_late(self, number: int, last: int) -> bool:
        """Whether what set out after exchange `number` comes after the last one."""
        is_aside = self.base == "async-average"
        return is_aside and number + int(self.settings["delay"]) > last

    @property
    def periods(self) -> list[int]:
        """Of nested groups."""
        asked = self.settings["periods"]
        return [int(p) for p in asked.split(",")] if asked else [1, self.period]

    def _is_slow(self, number: int) -> bool:
        if self.settings.get("kind") != "slowmo":
            return False
        period = int(self.settings["slow_period"])
        return self._base_is_whole(number) if not period else not number % period

    def _base_is_whole(self, number: int) -> bool:
        if self.base == "hierarchical":
            return number % self.periods[-1] == 0
        early = 0
        if self.base == "postlocal":
            early = ceil(round(self.settings["switch"] * self.each, 6))
        return number <= early or number % self.period == 0


def base_of(asked: Settings) -> str:
    """The row that averages, below slow momentum where there is some."""
    kind = asked.get("kind", "auto")
    kind = asked["base"] if kind == "slowmo" else kind
    return "average" if kind == "auto" else str(kind)


def agreements(
    rounds: AgreementRounds, first: int, last: int, at_end: bool
) -> Iterator[Due]:
    """Those of exchanges `first` + 1 to `last`, and what settles the last one."""
    for number in range(first + 1, last + 1):
        due = rounds.due(number)
        if due is not None and at_end and rounds.is_late(number, last):
            due = Due(LEFT, due.size)
        if due is not None:
            yield due
    if at_end and not rounds.is_whole(last):
        yield Due(SUM, rounds.replicas)


@dataclass(frozen=True)
class StateWords:
    """Of one state of rank 0."""

    local_columns: int  # columns
    wide: int  # K·S that travel
    intercept: bool
    size: int  # bytes of a word
    replicas: int
    members: int
    reproducible: bool

    def of(self, due: Due) -> Iterator[tuple[int, int]]:
        """(words, bytes of each) of every message of it."""
        if due.size == 1 and due.way != PARTS or self.replicas == 1:
            return
        state, more = self.local_columns * self.wide, self.wide * self.intercept
        if due.way == PARTS:
            own = split_range(self.local_columns, self.replicas, 0).stop
            yield state + self.replicas * more, self.size
            yield own * self.wide, self.size
            return
        yield from [(state + more, self.size)] * (2 if self.reproducible else 1)
        shared = self.intercept and due.way != LEFT
        if shared and due.size > 2 and self.members > 1:
            yield self.wide, 8


# What rank 0 must have sent for products and agreement, from the configuration alone.
#
# For exchange k of m rows in s batches, K classes, S states, packed Gram g words:
#
#   direct     one sum of b·K in every step
#   gram       one sum of g + m·K·S, or two where gram_wire is not margin_sum
#   gather     one all-gather, to which rank 0 gives m·d_0; of sparse rows the k values
#              that it stores of them, k·(4 + e_Y) bytes as words of two
#   gather-once gather where the leg first meets the group, else nothing
#   cached     gram where the leg first meets the group, else one sum of m·K·S
#   look-ahead a sum of m·K·S, and the sum of g, which is begun one exchange early
#
# The exchange behind one that the gap monitor looks at (every `gap_every`-th) sends
# with its margins as many words more as that one's largest batch has rows, two at
# least; after a resume, too.
#
# A reproducible sum is a Reduce and a Broadcast, two calls. A sum of w words in 16 or 8
# bits is two calls too, reproducible or not: an exchange of w + C·h words and a gather,
# to which rank 0 gives ⌊w/C⌋ + h; h = 1 for the exponent before each piece of a format
# that has few of them, else 0. Every leg of the run (from a start or a resume to its
# end) is counted on its own: on a resume, look-ahead, cached and gather-once send again
# what the leg before had sent.

Message = tuple[int, int]  # words, bytes of each
Sum = tuple[int, str]  # words, the format in which they are summed


@dataclass(frozen=True)
class TrafficShape:
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

    def rounds(self, leg: dict[str, Any]) -> AgreementRounds:
        """When replicas agree."""
        return AgreementRounds(
            settings=self.agreement,
            period=self.schedule.period,
            each=len(self.groups()),
            replicas=self.replicas,
            circles=tuple(leg.get("circles", ())),
        )

    def trains(self, number: int) -> bool:
        """Whether replica 0 takes part in exchange `number`, from 0."""
        if base_of(self.agreement) != "fedavg":
            return True
        count = client_count(self.replicas, self.agreement["fraction"])
        place = number // self.schedule.period
        return 0 in draw(self.seed, place, self.replicas, count)


Count = dict[str, dict[str, int]]


def expected(shape: TrafficShape, legs: list[dict[str, Any]]) -> Count:
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


def _products(
    shape: TrafficShape, leg: dict[str, Any], at_end: bool
) -> Iterator[Message]:
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


def _before(shape: TrafficShape, leg: dict[str, Any], number: int | None = None) -> int:
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
    shape: TrafficShape,
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
    shape: TrafficShape, leg: dict[str, Any], sizes: tuple[int, ...], number: int
) -> Message:
    """What rank 0 gives of the rows of exchange `number`, from 0."""
    own = split_range(shape.columns, leg["members"], 0).stop
    size = _size(shape.precision.matrix)
    word = min(size, 2)  # bytes of a piece of sparse rows
    if shape.stored is None:
        return sum(sizes) * own, size
    pair = (index_dtype(own).itemsize + size) // word
    return shape.stored(number, own) * pair, word


def _whole(shape: TrafficShape, sizes: tuple[int, ...], more: int) -> list[Sum]:
    """G and z, in one message where their formats are equal."""
    gram, margins = _gram(shape, sizes), _margins(shape, sizes, more)
    if shape.precision.one_message:
        return [(gram[0] + margins[0], margins[1])]
    return [gram, margins]


def _gram(shape: TrafficShape, sizes: tuple[int, ...]) -> Sum:
    """Pairs of rows of different batches, each pair once."""
    m = sum(sizes)
    return (m * m - sum(b * b for b in sizes)) // 2, shape.precision.gram_wire


def _margins(shape: TrafficShape, sizes: tuple[int, ...], more: int) -> Sum:
    words = sum(sizes) * shape.classes * shape.states + more
    return words, shape.precision.margin_sum


def _agreements(
    shape: TrafficShape, leg: dict[str, Any], at_end: bool
) -> Iterator[Message]:
    """Those of `hpcsgd.studies.verify.traffic`."""
    held = split_range(shape.columns, leg["members"], 0).stop
    travels = shape.agreement.get("momentum", "average") == "average"
    words = StateWords(
        local_columns=shape.columns if leg["product"] in GATHERS else held,
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


# What rank 0 must have sent to agree on gradients, from the settings alone.
#
# In every exchange the d_0·K words of the gradient that it holds, in so many buckets of
# whole columns, and behind the first of them K words for the intercept and the count.
# An intercept of more than two replicas of more than one member is broadcast behind
# that.
#
# Where words are encoded, the tail goes ahead as a float64 sum, and each bucket takes
# the bytes that its codec says; only those are counted, and only where data decide
# nothing. A codec that clips has members sum one float64 word before that.

KIND = "gradient"
Legs = list[dict[str, Any]]


def is_plain(config: RunConfig, replicas: int) -> bool:
    """Whether the sums travel as they are, in place."""
    agreement = config.agreement
    bare = agreement.codec == "identity" and config.codec.feedback != "on"
    return bare or replicas == 1


def is_lossless(config: RunConfig, replicas: int) -> bool:
    """Whether a step is that of the sums themselves."""
    return config.agreement.codec == "identity" or replicas == 1


def exchanges_of(shape: TrafficShape) -> int:
    """Of an epoch: batches that travel together are one."""
    rows: int = split_range(shape.rows, shape.replicas, 0).stop
    together = shape.schedule.batch * int(shape.agreement["accumulate"])
    return ceil(rows / together)


def gradient_traffic(
    shape: TrafficShape,
    epochs: int,
    members: int,
    product: str,
    buckets: int,
    twice: bool,
) -> Count:
    """Calls, words and bytes of agreement; `twice`: sums are reproducible."""
    exchanges = epochs * exchanges_of(shape)
    told = (exchanges, members, product, buckets, twice)
    return {"agreement": plain_traffic(shape, *told)}


def plain_traffic(
    shape: TrafficShape,
    exchanges: int,
    members: int,
    product: str,
    buckets: int,
    twice: bool,
) -> dict[str, int]:
    """The same of so many exchanges."""
    if shape.replicas == 1:
        return dict.fromkeys(("calls", "words", "bytes"), 0)
    tail = shape.classes * shape.intercept + 1
    words = _held(shape, members, product) * shape.classes + tail
    size, times = _gradient_size(shape), 1 + twice
    shared = int(_is_shared(shape, members))
    return {
        "calls": exchanges * (buckets * times + shared),
        "words": exchanges * (words * times + tail * shared),
        "bytes": exchanges * (words * times * size + tail * shared * 8),
    }


def coded_bytes(
    shape: TrafficShape, config: RunConfig, members: int, product: str, buckets: int
) -> int | None:
    """Bytes of agreement in one exchange; None where the data or the time decide."""
    sent, measures = 0, False
    for number in range(buckets):
        part = split_range(_held(shape, members, product), buckets, number)
        bucket = Bucket(
            number,
            part.stop - part.start,
            shape.classes,
            np.dtype(f"f{_gradient_size(shape)}"),
        )
        codec = make_codec(config.agreement.codec, bucket, config.codec)
        payload = codec.payload_bytes(shape.replicas, 0)
        if payload is None:
            return None
        sent += payload
        measures = codec.wants_norm and members > 1
    tail = shape.classes * shape.intercept + 1
    sent += 8 * int(measures)
    return sent + 8 * tail * (1 + int(_is_shared(shape, members)))


def expected_of(
    shape: TrafficShape, config: RunConfig, legs: Legs, sparse: bool
) -> Count:
    """Of a whole run: products by their batches, and what its agreement must be."""
    each = exchanges_of(shape)
    counts = expected(shape, [_by_batches(shape, leg, each) for leg in legs])
    parts = [_agreement(shape, config, leg, sparse) for leg in legs]
    found = {"products": counts["products"]}
    if all(parts):
        found["agreement"] = {key: sum(p[key] for p in parts) for key in parts[0]}
    return found


def _agreement(
    shape: TrafficShape, config: RunConfig, leg: dict[str, Any], sparse: bool
) -> dict[str, int]:
    """Of one leg; nothing where no formula holds."""
    if config.agreement.hierarchical != "off":
        return {}
    members, product = leg["members"], leg["product"]
    exchanges = leg["last"] - leg["first"]
    buckets = _buckets(shape, config, members, product, sparse)
    if is_plain(config, shape.replicas):
        told = (exchanges, members, product, buckets, leg["reproducible"])
        return plain_traffic(shape, *told)
    sent = coded_bytes(shape, config, members, product, buckets)
    if sent is None or leg["reproducible"]:
        return {}
    return {"bytes": exchanges * sent}


def _buckets(
    shape: TrafficShape, config: RunConfig, members: int, product: str, sparse: bool
) -> int:
    if sparse or shape.replicas == 1:
        return 1
    held, cap = _held(shape, members, product), config.agreement.bucket
    return bucket_count(held, shape.classes, _gradient_size(shape), cap)


def _by_batches(shape: TrafficShape, leg: dict[str, Any], each: int) -> dict[str, Any]:
    """The leg as products see it, batch by batch."""
    batches, together = len(shape.groups()), int(shape.agreement["accumulate"])

    def place(exchange: int) -> int:
        epoch, rest = divmod(exchange, each)
        return epoch * batches + min(rest * together, batches)

    return {**leg, **{key: place(leg[key]) for key in ("first", "last", "planned")}}


def _held(shape: TrafficShape, members: int, product: str) -> int:
    """Columns of rank 0."""
    if product in GATHERS:
        return shape.columns
    own: int = split_range(shape.columns, members, 0).stop
    return own


def _gradient_size(shape: TrafficShape) -> int:
    return 8 if shape.precision.weights == "fp64" else 4


def _is_shared(shape: TrafficShape, members: int) -> bool:
    """Whether members are told what one of them summed for the intercept."""
    return shape.intercept and shape.replicas > 2 and members > 1


# What rank 0 must have sent where replicas hold slices, from the settings alone.
#
# In every exchange K words for the intercept and the count, and for each tile its words
# of gradient and the own slice of its weights, once: in stage 3 before the scores, else
# after the step.


def slices_traffic(
    shape: TrafficShape,
    epochs: int,
    members: int,
    product: str,
    tiles: int,
    twice: bool,
) -> Count:
    """Calls, words and bytes of agreement; `twice`: sums are reproducible."""
    if shape.replicas == 1:
        return {"agreement": dict.fromkeys(("calls", "words", "bytes"), 0)}
    rows = split_range(shape.rows, shape.replicas, 0).stop
    together = shape.schedule.batch * shape.agreement["accumulate"]
    exchanges = epochs * ceil(rows / together)
    held = split_range(shape.columns, members, 0).stop
    held = shape.columns if product in GATHERS else held
    own = Cuts(held, shape.classes, tiles, shape.replicas, 0).height
    tail, times = shape.classes * shape.intercept + 1, 1 + twice
    words = (held + own) * shape.classes + tail * times
    size = 8 if shape.precision.weights == "fp64" else 4
    shared = shape.intercept and shape.replicas > 2 and members > 1
    return {
        "agreement": {
            "calls": exchanges * (2 * tiles + times + shared),
            "words": exchanges * (words + tail * shared),
            "bytes": exchanges * (words * size + tail * shared * 8),
        }
    }
