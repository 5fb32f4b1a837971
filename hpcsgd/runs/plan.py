"""Words and messages of a whole run, summed from what its methods say they send."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from hpcsgd.agreements.averaging import FedAvg, client_count, draw
from hpcsgd.agreements.base import (
    Agreement,
    AgreementSettings,
    AgreementShape,
    get_agreement,
)
from hpcsgd.agreements.buckets import bucket_count
from hpcsgd.agreements.codecs import CodecConfig
from hpcsgd.comm.ledger import SentWords, totals
from hpcsgd.data.sampling import plan_groups
from hpcsgd.data.shard import split_range
from hpcsgd.formats import get_format
from hpcsgd.glm.unrolling import Schedule
from hpcsgd.precision import Precision
from hpcsgd.products import get_product
from hpcsgd.products.base import ExchangeMessage, ExchangeShape, product_facts

# What rank 0 must have sent, from the configuration alone.
#
# Each product says what an exchange of some sizes sends, each agreement what follows
# it; here are the exchanges of a run, one after the other.
#
# The exchange behind one that the recurrence monitor checks (every `gap_every`-th)
# sends with its margins as many words more as that one's largest batch has rows, two at
# least; after a resume, too. Every leg of the run (from a start or a resume to its end)
# is counted on its own: on a resume, look-ahead, cached and gather-once send again what
# the leg before had sent.

Leg = dict[str, Any]
Count = dict[str, dict[str, int]]


@dataclass(frozen=True)
class TrafficShape:
    """What the words of a run depend on."""

    schedule: Schedule
    precision: Precision
    rows: int
    columns: int
    classes: int
    states: int
    intercept: bool
    replicas: int
    settings: AgreementSettings
    codec: CodecConfig = CodecConfig()
    mirror: str = ""  # the mirror map of any-batch rounds
    seed: int = 0
    sparse: bool = False
    alignment: int = 1  # columns that stay together in what a rule keeps
    tiles: int = 0  # of slices, where a device decided
    tile_columns: int = 1  # of weights on disk
    # Of sparse rows: (exchange from 0, first columns) -> values that it stores there
    stored: Callable[[int, int], int] | None = None

    @property
    def own_rows(self) -> int:
        """Rows of replica 0, which has most."""
        return int(split_range(self.rows, self.replicas, 0).stop)

    @property
    def together(self) -> int:
        """Batches of an exchange of gradients; else 1."""
        asked = self.settings
        return asked.batches_together if asked.shares_gradients else 1

    @property
    def is_at_once(self) -> bool:
        """Whether the batches of an exchange of gradients are one for products."""
        return self.settings.on_disk or self.settings.zero_stage > 1

    def groups(self) -> list[tuple[int, ...]]:
        """The batch sizes of each exchange of an epoch of replica 0, for products."""
        batch, steps = self.schedule.batch, self.schedule.steps
        if self.is_at_once:
            batch, steps = batch * self.together, 1
        return plan_groups(self.own_rows, batch, steps)

    def each(self) -> int:
        """Exchanges of an epoch, for agreements."""
        if not self.settings.shares_gradients:
            return len(self.groups())
        return -(-self.own_rows // (self.schedule.batch * self.together))

    def trains(self, number: int) -> bool:
        """Whether replica 0 takes part in exchange `number`, from 0."""
        asked: Any = self.settings
        if get_agreement(asked.averaging_kind) is not FedAvg:
            return True
        count = client_count(self.replicas, asked.fraction)
        place = number // self.schedule.period
        return 0 in draw(self.seed, place, self.replicas, count)

    def local_columns(self, leg: Leg) -> int:
        """Columns of the weights that rank 0 holds."""
        if product_facts(leg["product"]).holds_all_columns:
            return self.columns
        return int(split_range(self.columns, leg["members"], 0).stop)

    def buckets(self, columns: int, itemsize: int) -> int:
        """Messages that a gradient is cut into; to cut sparse rows would save none."""
        if self.replicas == 1 or (self.sparse and not self.settings.slices):
            return 1
        cap = self.settings.bucket
        return self.tiles or bucket_count(columns, self.classes, itemsize, cap)

    def agreement(self, leg: Leg) -> AgreementShape:
        """What an agreement has to know."""
        # Weights travel as they are computed with, however low they are stored.
        itemsize = get_format(self.precision.weights).carrier.itemsize
        columns = self.local_columns(leg)
        return AgreementShape(
            settings=self.settings,
            replicas=self.replicas,
            members=leg["members"],
            local_columns=columns,
            classes=self.classes,
            intercept=self.intercept,
            states=self.states,
            itemsize=itemsize,
            reproducible=leg["reproducible"],
            period=self.schedule.period,
            each=self.each(),
            rows=self.own_rows,
            batch=self.schedule.batch,
            seed=self.seed,
            circles=tuple(leg.get("circles", ())),
            buckets=self.buckets(columns, itemsize),
            alignment=self.alignment,
            tile_columns=self.tile_columns,
            flagged=get_format(self.precision.residual).wants_scale,
            codec=self.codec,
            mirror=self.mirror,
        )


def kind_of(settings: AgreementSettings) -> type[Agreement] | None:
    """The agreement of a run, None where nobody has written down what it sends."""
    kind = get_agreement(settings.kind)
    # What a class of a user inherits is that of another one.
    is_own = kind.__module__.startswith("hpcsgd.") or "messages" in vars(kind)
    return kind if is_own else None


def expected(shape: TrafficShape, legs: list[Leg]) -> Count:
    """Purpose -> calls, words, bytes of a whole run.

    Without agreement where the data or the time decide; of codecs bytes alone.
    """
    sent = [s for leg in legs for s in _products(shape, leg, leg is legs[-1])]
    counts = {"products": totals(sent)}
    agreed = [_agreement(shape, leg, leg is legs[-1]) for leg in legs]
    known = [part for part in agreed if part is not None]
    if len(known) == len(agreed):
        counts["agreement"] = totals(s for part in known for s in part)
    return counts


def gap_in(legs: list[Leg], exchanges: int, resumes: int) -> str:
    """Why the traffic of this run cannot be counted, or nothing."""
    if len(legs) != resumes + 1:
        return f"the run was started {resumes + 1} times and recorded {len(legs)} times"
    edges = [0, *(leg["last"] for leg in legs[:-1])]
    if edges != [leg["first"] for leg in legs] or legs[-1]["last"] != exchanges:
        return "a part of the run left no record"
    return ""


def _agreement(shape: TrafficShape, leg: Leg, at_end: bool) -> list[SentWords] | None:
    """What agreements of one leg sent, and at the end of the run behind its last."""
    kind = kind_of(shape.settings)
    if kind is None:
        return None
    if shape.replicas == 1 and not shape.settings.asks_members:
        return []
    sizes = shape.agreement(leg)
    found: list[SentWords] = []
    for number in range(leg["first"] + 1, leg["last"] + 1):
        sent = kind.messages(sizes, number)
        if sent is None:
            return None
        found += sent
    if at_end:
        found += kind.last_messages(sizes, leg["last"])
    return found


def _products(shape: TrafficShape, leg: Leg, at_end: bool) -> Iterator[SentWords]:
    """What the exchanges of one leg sent, in the batches that products see."""
    if leg["members"] == 1:
        return
    leg, groups = _by_batches(shape, leg), shape.groups()
    product = get_product(leg["product"], leg["look_ahead"])
    met: set[int] = set()
    last = _before(shape, leg["first"])
    for number in range(leg["first"], leg["last"]):
        if not shape.trains(number):
            continue
        before, last = last, number
        epoch, index = divmod(number, len(groups))
        more = _monitored(leg, groups, before, _before(shape, before))
        sizes = _exchange(shape, leg, groups[index], number, epoch, more, index in met)
        met.add(index)
        for message in product.messages(sizes):
            yield from _sent(shape, leg, message)
    begun = leg["first"] < leg["last"] < leg["planned"]
    ends = (leg["last"] - 1, leg["last"])
    if leg["look_ahead"] and begun and all(shape.trains(n) for n in ends):
        gram = ExchangeShape(groups[leg["last"] % len(groups)]).gram
        posted = list(_sent(shape, leg, gram))
        # A narrow sum is gathered where it is waited for: here at the very end, when a
        # leg that others follow has saved its counts.
        is_narrow = get_format(shape.precision.gram_wire).dtype.itemsize < 4
        yield from posted[:1] if is_narrow and not at_end else posted


def _exchange(
    shape: TrafficShape,
    leg: Leg,
    sizes: tuple[int, ...],
    number: int,
    epoch: int,
    monitor_words: int,
    is_kept: bool,
) -> ExchangeShape:
    """The sizes of exchange `number`, from 0."""
    own = int(split_range(shape.columns, leg["members"], 0).stop)
    return ExchangeShape(
        sizes=sizes,
        scores=shape.classes,
        states=shape.states,
        local_columns=own,
        stored=shape.stored(number, own) if shape.stored else None,
        one_message=shape.precision.one_message,
        monitor_words=monitor_words,
        epoch=epoch,
        is_kept=is_kept,
    )


def _sent(
    shape: TrafficShape, leg: Leg, message: ExchangeMessage
) -> Iterator[SentWords]:
    return message.sent(shape.precision, leg["members"], leg["reproducible"])


def _by_batches(shape: TrafficShape, leg: Leg) -> Leg:
    """The leg in exchanges of products, which see batches one by one."""
    if not shape.settings.shares_gradients:
        return leg
    batches, each = len(shape.groups()), shape.each()
    together = 1 if shape.is_at_once else shape.together

    def place(exchange: int) -> int:
        epoch, rest = divmod(exchange, each)
        return epoch * batches + min(rest * together, batches)

    return {**leg, **{key: place(leg[key]) for key in ("first", "last", "planned")}}


def _before(shape: TrafficShape, first: int) -> int:
    """The last exchange ahead of this one, from 0, that replica 0 took part in."""
    numbers = (n for n in range(first - 1, -1, -1) if shape.trains(n))
    return next(numbers, -1)


def _monitored(
    leg: Leg, groups: list[tuple[int, ...]], before: int, earlier: int
) -> int:
    """Words of the monitor in an exchange: of its check of the one `before` it."""
    every = leg.get("gap_every", 0)
    if not every or before < 0 or (before + 1) // every == (earlier + 1) // every:
        return 0
    return max(*groups[before % len(groups)], 2)
