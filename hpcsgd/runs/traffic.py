"""The traffic of a run: calls, words and bytes of rank 0, from its configuration."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from hpcsgd.agreements.base import (
    Agreement,
    AgreementSettings,
    RunShape,
    get_agreement,
)
from hpcsgd.comm.ledger import SentWords, totals
from hpcsgd.formats import get_format
from hpcsgd.products import get_product
from hpcsgd.products.base import ExchangeMessage, ExchangeShape, product_facts

# The traffic of rank 0 follows from the configuration alone.
#
# Each product has a formula for the messages of an exchange, and each agreement has one
# for the messages after an exchange. This module sums them over the exchanges of a run.
#
# The recurrence monitor checks every `gap_every`-th exchange. The exchange after it
# sends more words with its margins: as many as the largest batch of the checked
# exchange has rows, and at least two. A leg is the part of a run from a start or a
# resume to its end. Legs are counted one by one, because look-ahead, cached and
# gather-once send some messages again after a resume.

Leg = dict[str, Any]
Count = dict[str, dict[str, int]]


def kind_of(settings: AgreementSettings) -> type[Agreement] | None:
    """Return the class of an agreement; None for a user's class without a formula.

    Such a class does not define `messages` itself.
    """
    kind = get_agreement(settings.kind)
    # A formula that a user's class inherits is the formula of another agreement.
    is_own = kind.__module__.startswith("hpcsgd.") or "messages" in vars(kind)
    return kind if is_own else None


def of_leg(shape: RunShape, leg: Leg) -> RunShape:
    """Return the shape of a run in one leg, from a start or a resume to its end.

    From the leg are its members, the nested groups of replicas of rank 0 (`circles`),
    whether members gather all columns, and whether sums are reproducible.
    """
    return replace(
        shape,
        grid=replace(
            shape.grid,
            members=leg["members"],
            circles=tuple(leg.get("circles", ())),
        ),
        gathers=product_facts(leg["product"]).holds_all_columns,
        reproducible=leg["reproducible"],
    )


def expected(shape: RunShape, legs: list[Leg]) -> Count:
    """Return calls, words and bytes of rank 0 in a whole run, by purpose.

    The purpose "agreement" is left out if an agreement has no formula, or if the data
    or the time decide what it sends. A purpose has bytes alone where a codec hides the
    number of calls and words.
    """
    products = [s for leg in legs for s in _products(shape, leg, leg is legs[-1])]
    counts = {"products": totals(products)}
    by_leg = [_agreement(shape, leg, leg is legs[-1]) for leg in legs]
    agreements = [messages for messages in by_leg if messages is not None]
    if len(agreements) == len(by_leg):
        counts["agreement"] = totals(s for messages in agreements for s in messages)
    return counts


def why_uncounted(shape: RunShape, leg: Leg, update: Mapping[str, Any]) -> str:
    """Return why the sizes of a run do not decide what it sends; "" if they do.

    Norms of gradients and their means need sums beside those of products and
    agreements, and so does SVRG. In rounds of a fixed time, members agree on the number
    of steps. `update` is the section [update].
    """
    members = leg["members"]
    settings = shape.settings
    gathers = product_facts(leg["product"]).holds_all_columns
    if shape.data.sparse and members > 1 and (gathers or shape.replicas > 1):
        return "members store different numbers of values"
    shapes_gradients = (
        update["clip"] in ("norm", "percentile")
        or update["normalise"]
        or update.get("trust", 0.0) > 0.0
        or update["centre"] == "columns"
    )
    if shapes_gradients and (members > 1 or settings.slices):
        return "changes of a mean gradient need sums of their own"
    if update["kind"] == "svrg":
        return "snapshots of svrg need sums of their own"
    if settings.takes_rounds and members > 1:
        return "members agree on the steps of each round"
    return ""


def gap_in(legs: list[Leg], exchanges: int, resumes: int) -> str:
    """Return why the legs do not cover the whole run, whose traffic is then unknown.

    The text is empty if they cover it. `resumes` is the number of resumes.
    """
    if len(legs) != resumes + 1:
        return f"the run was started {resumes + 1} times and recorded {len(legs)} times"
    edges = [0, *(leg["last"] for leg in legs[:-1])]
    if edges != [leg["first"] for leg in legs] or legs[-1]["last"] != exchanges:
        return "a part of the run left no record"
    return ""


def _agreement(shape: RunShape, leg: Leg, at_end: bool) -> list[SentWords] | None:
    """Return the messages of agreements in one leg; None if there is no formula.

    With `at_end`, those after the last exchange of the run are included.
    """
    kind = kind_of(shape.settings)
    if kind is None:
        return None
    if shape.replicas == 1 and not shape.settings.asks_members:
        return []
    shape = of_leg(shape, leg)
    messages: list[SentWords] = []
    for number in range(leg["first"] + 1, leg["last"] + 1):
        sent = kind.messages(shape, number)
        if sent is None:
            return None
        messages += sent
    if at_end:
        messages += kind.last_messages(shape, leg["last"])
    return messages


def _products(shape: RunShape, leg: Leg, at_end: bool) -> Iterator[SentWords]:
    """Yield the messages of products in one leg, exchange by exchange.

    `at_end` is True for the last leg of the run.
    """
    if leg["members"] == 1:
        return
    shape = of_leg(shape, leg)
    leg = _by_batches(shape, leg)
    groups = shape.groups()
    product = get_product(leg["product"], leg["look_ahead"])
    stored = shape.data.stored
    seen: set[int] = set()
    last = _before(shape, leg["first"])
    for number in range(leg["first"], leg["last"]):
        if not _trains(shape, number):
            continue
        before = last
        last = number
        epoch, index = divmod(number, len(groups))
        sizes = ExchangeShape(
            sizes=groups[index],
            scores=shape.classes,
            states=shape.states,
            local_columns=shape.member_columns,
            stored=stored and stored(number, shape.member_columns),
            one_message=shape.precision.one_message,
            monitor_words=_monitored(leg, groups, before, _before(shape, before)),
            epoch=epoch,
            is_kept=index in seen,
        )
        seen.add(index)
        for message in product.messages(sizes):
            yield from _sent(shape, leg, message)
    is_partial = leg["first"] < leg["last"] < leg["planned"]
    ends = (leg["last"] - 1, leg["last"])
    # An exchange that the monitor checks begins no Gram ahead.
    is_checked = _monitored(leg, groups, ends[0], _before(shape, ends[0]))
    looks_ahead = leg["look_ahead"] and is_partial and not is_checked
    if looks_ahead and all(_trains(shape, n) for n in ends):
        gram = ExchangeShape(groups[leg["last"] % len(groups)]).gram
        posted = list(_sent(shape, leg, gram))
        # The look-ahead has started the next sum. A narrow sum has a second message, a
        # gather at the wait for it. The last leg counts this message. A leg before it
        # has saved its counts when it waits.
        is_narrow = get_format(shape.precision.gram_wire).dtype.itemsize < 4
        yield from posted[:1] if is_narrow and not at_end else posted


def _trains(shape: RunShape, number: int) -> bool:
    """Return whether replica 0 takes part in exchange `number`, from 0."""
    return get_agreement(shape.settings.kind).rank_0_trains(shape, number)


def _sent(shape: RunShape, leg: Leg, message: ExchangeMessage) -> Iterator[SentWords]:
    return message.sent(shape.precision, leg["members"], leg["reproducible"])


def _by_batches(shape: RunShape, leg: Leg) -> Leg:
    """Return the leg with its exchanges renumbered as products count them.

    Where replicas share gradients, products count batches.
    """
    if not shape.settings.shares_gradients:
        return leg
    batches = len(shape.groups())
    each = shape.each()
    together = 1 if shape.is_at_once else shape.together

    def place(exchange: int) -> int:
        epoch, rest = divmod(exchange, each)
        return epoch * batches + min(rest * together, batches)

    return {**leg, **{key: place(leg[key]) for key in ("first", "last", "planned")}}


def _before(shape: RunShape, first: int) -> int:
    """Return the last exchange before `first` in which replica 0 took part, or -1."""
    numbers = (n for n in range(first - 1, -1, -1) if _trains(shape, n))
    return next(numbers, -1)


def _monitored(
    leg: Leg, groups: list[tuple[int, ...]], before: int, earlier: int
) -> int:
    """Return the words that the monitor adds to an exchange to check `before`.

    They are 0 if exchange `before` is not checked. `earlier` is the exchange before
    `before`.
    """
    every = leg.get("gap_every", 0)
    if not every or before < 0 or (before + 1) // every == (earlier + 1) // every:
        return 0
    return max(*groups[before % len(groups)], 2)
