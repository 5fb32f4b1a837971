"""What rank 0 must have sent to agree with other replicas, from the settings alone.

Of w words of state (d_0 columns held, times the K·S that travel, and the intercept's):

    average, postlocal   one sum of w words where the period says so
    async-average        the same, and one at the end wherever averages come late
    hierarchical         one where any period does, in groups that may be of one replica
    fedavg               one of w words in every round, zeros included
    slowmo               that of the base; where a slow step is due and the slow state
                         is in parts: an exchange of w words and the intercept R − 1
                         times more, and a gather to which rank 0 gives ⌈d_0 / R⌉·K·S

and one at the end unless the last exchange had one of all replicas. An intercept of
more than two replicas of more than one member is broadcast behind each sum, K·S words
of 8 bytes. Momentum that is kept or reset does not travel: then S is 1.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import Any

from hpcsgd.data.partition import split_range

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
class Rounds:
    """When replicas agree."""

    asked: Settings
    period: int
    each: int  # exchanges of an epoch
    replicas: int
    circles: tuple[int, ...]  # replicas of the groups that rank 0 averages in

    @property
    def base(self) -> str:
        """The row that averages."""
        return base_of(self.asked)

    def due(self, number: int) -> Due | None:
        """After exchange `number`, from 1."""
        if self._is_slow(number):
            way = PARTS if self.asked["slow_sharded"] else SUM
            return Due(way, self.replicas)
        if self.base == "hierarchical":
            sizes = zip(self.circles, self.periods, strict=True)
            due = [size for size, period in sizes if number % period == 0]
            return Due(SUM, due[-1]) if due else None
        return Due(SUM, self.replicas) if self._base_is_whole(number) else None

    def is_whole(self, number: int) -> bool:
        """Whether all replicas are one after exchange `number`."""
        if self.base == "async-average" and self.asked["delay"]:
            return False  # what was agreed on is of a while ago
        return self._is_slow(number) or self._base_is_whole(number)

    def is_late(self, number: int, last: int) -> bool:
        """Whether what set out after exchange `number` comes after the last one."""
        is_aside = self.base == "async-average"
        return is_aside and number + int(self.asked["delay"]) > last

    @property
    def periods(self) -> list[int]:
        """Of nested groups."""
        asked = self.asked["periods"]
        return [int(p) for p in asked.split(",")] if asked else [1, self.period]

    def _is_slow(self, number: int) -> bool:
        if self.asked.get("kind") != "slowmo":
            return False
        period = int(self.asked["slow_period"])
        return self._base_is_whole(number) if not period else not number % period

    def _base_is_whole(self, number: int) -> bool:
        if self.base == "hierarchical":
            return number % self.periods[-1] == 0
        early = 0
        if self.base == "postlocal":
            early = ceil(round(self.asked["switch"] * self.each, 6))
        return number <= early or number % self.period == 0


def base_of(asked: Settings) -> str:
    """The row that averages, below slow momentum where there is some."""
    kind = asked.get("kind", "auto")
    kind = asked["base"] if kind == "slowmo" else kind
    return "average" if kind == "auto" else str(kind)


def agreements(rounds: Rounds, first: int, last: int, at_end: bool) -> Iterator[Due]:
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
class Words:
    """Of one state of rank 0."""

    held: int  # columns
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
        state, more = self.held * self.wide, self.wide * self.intercept
        if due.way == PARTS:
            own = split_range(self.held, self.replicas, 0).stop
            yield state + self.replicas * more, self.size
            yield own * self.wide, self.size
            return
        yield from [(state + more, self.size)] * (2 if self.reproducible else 1)
        shared = self.intercept and due.way != LEFT
        if shared and due.size > 2 and self.members > 1:
            yield self.wide, 8
