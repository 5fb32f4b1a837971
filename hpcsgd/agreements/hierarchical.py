"""Agreement in levels of groups, and by the leaders of nodes.

`Hierarchical` averages weights in nested groups (Lin, Stich, Patel and Jaggi, 2020):

Needs    an update that is linear in the state (sgd, momentum, nesterov,
         nesterov-classic or svrg), nested groups that grow to all replicas, and a
         period for each that grows with them.
Refuses  optimizer state in 8 bits, codecs, [agreement] hierarchical, `accumulate` above
         1, changes of a mean gradient, and `--emulate-members`.
Keeps    nothing beside the state.
Sends    after exchange k an all-reduce in the group of the longest period that divides
         k, unless the group is one replica; at the end one of all replicas, unless the
         last exchange had one. On d columns and K classes it has (d + i)·a·K words:
         i = 1 with an intercept, else 0; a = 1, or where momentum is averaged the
         number of arrays of the update (sgd 1, momenta 2, svrg 3). In groups of more
         than two, member 0 broadcasts the intercept, a·K words, to the members.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from hpcsgd.agreements.averaging import (
    AverageSettings,
    AverageVariant,
    sent_for_average,
)
from hpcsgd.agreements.base import (
    PURPOSE,
    AgreementInputs,
    AgreementSettings,
    Overlap,
    RunShape,
    Supports,
)
from hpcsgd.agreements.buckets import (
    Buffer,
    CodecSender,
    PlainSender,
    Sender,
    Tile,
)
from hpcsgd.agreements.codecs import is_coded, make_codec
from hpcsgd.agreements.codecs.base import Bucket, Codec, Moment, Stopwatch
from hpcsgd.backends.task import State
from hpcsgd.comm.communicator import Address, Communicator, own_address
from hpcsgd.comm.grid import Grid
from hpcsgd.comm.ledger import Sent
from hpcsgd.errors import ConfigError
from hpcsgd.formats import Array
from hpcsgd.precision import Precision
from hpcsgd.settings import setting

# Nested groups of replicas: from the settings to the members of each group.

PLACES = ("node", "rack", "all")
Labels = tuple[int, ...]  # of every replica: the first one of its group


@dataclass(frozen=True)
class GroupLevel:
    """A level of nested groups of replicas: its groups, and how often they average."""

    group: str  # node, rack, all, or a number of replicas
    period: int  # in exchanges


def plan_levels(
    groups: str, periods: str, period: int, replicas: int
) -> list[GroupLevel]:
    """Return the levels of `groups`, from the smallest groups to all replicas.

    Raise ConfigError if groups and periods do not fit. If `periods` is empty, there
    must be two levels, which average after every exchange and every `period` exchanges.
    """
    names = [part.strip() for part in groups.split(",")]
    numbers = _numbers(periods) if periods else _usual(names, period)
    if len(names) != len(numbers):
        raise ConfigError(
            f"[agreement] groups = {groups!r} names {len(names)} groups and periods ="
            f" {periods or numbers!r} has {len(numbers)} numbers; give one period for"
            " each group"
        )
    if periods and period not in (1, numbers[-1]):
        raise ConfigError(
            f"[schedule] period = {period} differs from the last number of [agreement]"
            f" periods = {periods!r}; leave one of the two settings out"
        )
    if numbers != sorted(set(numbers)) or numbers[0] < 1:
        raise ConfigError(
            f"[agreement] periods = {numbers} must be at least 1 and grow from group to"
            ' group; "1,16" is usual'
        )
    _check_names(names, replicas)
    return [GroupLevel(*pair) for pair in zip(names, numbers, strict=True)]


def _usual(names: list[str], period: int) -> list[int]:
    """Return the usual periods of two levels: 1, and `period` of [schedule].

    Raise ConfigError if there are not two levels, or `period` is 1.
    """
    if len(names) != 2:
        raise ConfigError(
            f"[agreement] groups = {','.join(names)!r} names {len(names)} groups, and"
            " periods have a default for two groups only; set agreement.periods, one"
            " for each group and each larger than the one before, as"
            f" {','.join(str(4**k) for k in range(len(names)))!r}"
        )
    if period == 1:
        raise ConfigError(
            "[schedule] period = 1 cannot be used with [agreement] kind ="
            " 'hierarchical': all replicas would average after every exchange, as often"
            " as the smaller groups; use --period 16, or set agreement.periods, as"
            " '1,16'"
        )
    return [1, period]


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(
            f'[agreement] periods = {text!r} must be numbers of exchanges, as "1,16"'
        ) from None


def _check_names(names: list[str], replicas: int) -> None:
    """Raise ConfigError unless the groups grow and the last one is all replicas.

    `names` are places in the order of `PLACES`, or sizes that grow to `replicas`.
    """
    if all(name in PLACES for name in names):
        order = [PLACES.index(name) for name in names]
        if order == sorted(set(order)) and names[-1] == "all":
            return
    elif all(name.isdecimal() for name in names):
        sizes = [int(name) for name in names]
        if sizes == sorted(set(sizes)) and sizes[0] > 0 and sizes[-1] == replicas:
            return
    by_size = ""
    if replicas > 1:
        by_size = f', or give sizes, as "{replicas // 2},{replicas}"'
    raise ConfigError(
        f"[agreement] groups = {','.join(names)!r} must grow to all {replicas}"
        ' replicas; name ever larger groups, as "node,all" or "node,rack,all"'
        f"{by_size}"
    )


def label(levels: Sequence[GroupLevel], places: Sequence[Address]) -> list[Labels]:
    """Return for each level a tuple: the first replica of each replica's group.

    `places` contains the address of every replica. Raise ConfigError if groups are not
    nested.
    """
    labels = [_labels(level.group, places) for level in levels]
    for inner, outer in zip(labels, labels[1:], strict=False):
        if any(outer[r] != outer[first] for r, first in enumerate(inner)):
            raise ConfigError(
                f"[agreement] groups = {','.join(x.group for x in levels)!r} are not"
                " nested: replicas of one group must stay together in the next; give"
                " sizes that divide each other"
            )
    return labels


def _labels(group: str, places: Sequence[Address]) -> Labels:
    replicas = range(len(places))
    if group.isdecimal():
        return tuple(r // int(group) * int(group) for r in replicas)
    if group == "all":
        return (0,) * len(places)
    if group == "rack" and not all(place.rack for place in places):
        raise ConfigError(
            "[agreement] groups by rack need the rack of every rank, and some ranks"
            " have none; set HPCSGD_RACK on every node, or give sizes"
        )
    depth = {"node": 2, "rack": 1}[group]
    keys = [(place.rack, place.node)[:depth] for place in places]
    return tuple(keys.index(key) for key in keys)


# Averages in nested groups: w ← Σ_{r in group} (n_r / Σ_{q in group} n_q) w_r.


@dataclass(frozen=True)
class Circle:
    """A group of replicas that average together, as a replica of the group uses it."""

    period: int
    group: Communicator  # the ranks of one column block
    share: float  # of this replica in the rows of the circle
    size: int


@dataclass(frozen=True)
class HierarchicalSettings(AverageSettings):
    """The settings of nested groups of replicas that average at different periods."""

    groups: str = setting(
        "node,all",
        'nested groups of replicas, from node, rack and all, or their sizes, as "2,8"',
        is_count=True,
    )
    periods: str = setting(
        "",
        'exchanges between two averages of each group, as "1,16"; empty means 1 and the'
        " period of [schedule]",
        is_count=True,
        becomes=lambda facts: (
            f"1,{facts.config.schedule.period}",
            "1 and schedule.period",
        ),
    )

    supports: ClassVar[Supports] = replace(
        AverageSettings.supports, codecs=False, emulated_members=False
    )
    reads: ClassVar[frozenset[str]] = frozenset()

    def conflicts_with(self, config: Any, precision: Precision) -> Iterator[str]:
        """Raise a ConfigError where groups, periods and replicas do not fit."""
        plan_levels(
            self.groups, self.periods, config.schedule.period, config.grid.replicas
        )
        yield from ()


class Hierarchical(AverageVariant):
    """The agreement that averages weights in nested groups of replicas.

    After an exchange it averages in the widest group whose period divides the number of
    exchanges. The last group is all replicas.
    """

    settings: ClassVar[type[AgreementSettings]] = HierarchicalSettings

    def __init__(self, terms: AgreementInputs, circles: list[Circle]) -> None:
        super().__init__(replace(terms, period=circles[-1].period))
        self.circles = circles

    @classmethod
    def of(cls, terms: AgreementInputs) -> "Hierarchical":
        """Open the groups' communicators, and return the agreement. Collective."""
        settings = terms.settings
        grid = terms.grid
        levels = plan_levels(
            settings.groups, settings.periods, terms.period, grid.replicas.size
        )
        grid.meet()
        labels = label(levels, places(grid))
        circles = [
            open_circle(grid, terms.rows, level.period, groups)
            for level, groups in zip(levels, labels, strict=True)
        ]
        return cls(terms, circles)

    @property
    def circle_sizes(self) -> list[int]:
        """Return the sizes of this replica's nested groups, the smallest first."""
        return [circle.size for circle in self.circles]

    def facts(self) -> dict[str, Any]:
        """Return `circles`, the sizes of this replica's groups, smallest first."""
        return {"circles": self.circle_sizes}

    def after_exchange(self, state: State, exchanges: int) -> None:
        """Average the weights in the largest group that is due. Collective.

        A group is due if its period divides `exchanges`. Do nothing if no group is due,
        or if the group is one replica.
        """
        due = [c for c in self.circles if exchanges % c.period == 0]
        if due and due[-1].size > 1:
            self.average(state, due[-1].share, due[-1].group, "agreement")
        if self.is_whole(exchanges):
            self.anchor(state)

    @classmethod
    def agrees(cls, shape: RunShape, exchanges: int) -> bool:
        """Return whether all replicas average after exchange `exchanges`."""
        return exchanges % _periods(shape)[-1] == 0

    @classmethod
    def messages(cls, shape: RunShape, exchanges: int) -> Sent:
        """Return what the average after exchange `exchanges` sends.

        The average is that of the widest group that is due. The list is empty where no
        group is due, or where that group is one replica. `shape.grid.circles` has the
        sizes of the groups of rank 0.
        """
        sizes = zip(shape.grid.circles, _periods(shape), strict=True)
        due = [size for size, period in sizes if exchanges % period == 0]
        return sent_for_average(shape, due[-1]) if due else []

    def close(self) -> None:
        """Close the communicators of the nested groups. Collective."""
        for circle in self.circles:
            if circle.group is not self.grid.replicas:
                circle.group.close()


def _periods(shape: RunShape) -> list[int]:
    """Return the periods of the nested groups: if none are set, 1 and that of a run."""
    periods = shape.settings.periods
    return _numbers(periods) if periods else [1, shape.period]


def places(grid: Grid) -> list[Address]:
    """Return rack and node of the first member of every replica. Collective."""
    addresses = grid.world.exchange_objects(grid.world.address or own_address())
    return [addresses[r * grid.members.size] for r in range(grid.replicas.size)]


def open_circle(
    grid: Grid, rows: tuple[int, ...], period: int, groups: Labels
) -> Circle:
    """Return the group of this replica, with its communicator. Collective.

    `groups` contains, for every replica, the first replica of its group. If all
    replicas are in one group, the communicator is `grid.replicas`.
    """
    replicas = [r for r, first in enumerate(groups) if first == groups[grid.replica]]
    share = rows[grid.replica] / sum(rows[r] for r in replicas)
    group = grid.replicas
    if len(set(groups)) > 1:
        group = grid.replicas.split(groups[grid.replica], grid.replica)
    return Circle(period, group, share, len(replicas))


# Gradients are summed inside groups of replicas, then between their leaders.
#
# Inside a group (the replicas of a node) words are reduced, uncompressed, to its first
# replica, the leader. Leaders exchange the sums, by a codec if there is one, and each
# broadcasts the result in its group. With G groups a codec serves G ranks, and the
# traffic between nodes does not grow with the replicas of a node.


@dataclass(frozen=True)
class Groups:
    """The groups of the replicas of one column block, as one replica uses them.

    All of these replicas must open and close the communicators together.
    """

    inside: Communicator
    leaders: Communicator  # on a leader: all leaders; else: all other replicas
    count: int

    @property
    def leads(self) -> bool:
        """Return whether this replica is the leader of its group."""
        return self.inside.rank == 0

    def close(self) -> None:
        """Close both communicators. Collective."""
        self.inside.close()
        self.leaders.close()


def open_groups(grid: Grid, of: str) -> Groups:
    """Open the communicators of this replica's group and of the leaders. Collective.

    `of` names the groups: "node", "rack", or a number of replicas.
    """
    grid.meet()
    replicas = grid.replicas
    (first,) = label([GroupLevel(of, 1)], places(grid))
    speakers = replicas.host_group
    inside = speakers.split(first[grid.replica], replicas.rank)
    leaders = speakers.split(int(inside.rank > 0), replicas.rank)
    return Groups(inside, leaders, len(set(first)))


def check_groups(of: str) -> None:
    """Raise ConfigError unless `of` is off, node, rack, or a number of replicas."""
    if of in ("off", "node", "rack") or of.isdecimal() and int(of) > 0:
        return
    raise ConfigError(
        f"[agreement] hierarchical = {of!r} must be off, node, rack, or how many"
        " replicas a group has"
    )


class ByLeaders:
    """A sender in two levels: sums inside groups of replicas, then between leaders.

    The leader of a group is its first replica. Leaders use the sender `sender`.
    """

    sums_in_place = False

    def __init__(self, groups: Groups, sender: Sender) -> None:
        self.groups = groups
        self.sender = sender
        self.codec = sender.codec
        self.wants_norm = sender.wants_norm
        self.overlap: Overlap = sender.overlap
        self._words = 1  # of the tail: sums of residuals, and the number of rows

    def begin(self, buffer: Buffer, moment: Moment) -> None:
        """Sum the tail inside the group; leaders begin to exchange the sums.

        The tail of a buffer contains the sums of residuals and the number of rows.
        """
        self._words = len(buffer.tail)
        self.groups.inside.reduce(buffer.tail, PURPOSE)
        if self.groups.leads:
            self.sender.begin(buffer, moment)

    def measure(self, buffer: Buffer) -> None:
        """Sum all tiles inside the group; leaders compute the norm of the sums."""
        for tile in buffer:
            self.groups.inside.reduce(tile.flat, PURPOSE)
        if self.groups.leads:
            self.sender.measure(buffer)

    def send(self, buffer: Buffer, tile: Tile) -> None:
        """Sum a tile inside the group; leaders start to send the sum to each other.

        The tile is sent between groups while the next one is computed.
        """
        if not self.wants_norm:  # it was added to be measured
            self.groups.inside.reduce(tile.flat, PURPOSE)
        if self.groups.leads:
            self.sender.send(buffer, tile)

    def receive(self, buffer: Buffer, tile: Tile) -> float:
        """Receive the mean of a tile from the leader, in place.

        Return 1, the factor by which the tile is still to be multiplied.
        """
        if self.groups.leads:
            factor = self.sender.receive(buffer, tile)
            tile.flat[...] *= tile.flat.dtype.type(factor)
        self.groups.inside.broadcast(tile.flat, 0, PURPOSE)
        return 1.0

    def tail(self) -> Array:
        """Return [sums of residuals | number of rows] of all replicas.

        The leader receives the sums and broadcasts them in its group.
        """
        parts = np.empty(self._words, dtype=np.float64)
        if self.groups.leads:
            parts[...] = self.sender.tail()
        return self.groups.inside.broadcast(parts, 0, PURPOSE)

    def facts(self) -> dict[str, int]:
        """Return the counts of the leaders' sender, and the number of groups."""
        return {**self.sender.facts(), "groups": self.groups.count}

    def uncoded(self) -> "ByLeaders":
        """Return a sender of the same groups whose leaders encode nothing."""
        return ByLeaders(self.groups, self.sender.uncoded())

    def close(self) -> None:
        """Close the communicators of the groups. Collective."""
        self.groups.close()


# The sender of a run: plain or by a codec, of all replicas or of leaders.


@dataclass(frozen=True)
class SenderOpener:
    """A callable that makes the sender for the gradient buckets of one run."""

    grid: Grid
    config: Any  # RunConfig
    sharers: Communicator  # with the other columns of this replica's gradient

    def __call__(self, state: State, buffer: Buffer) -> Sender:
        """Return the sender of the run. Collective.

        Arrays that its codecs keep between exchanges are added to `state`.
        """
        replicas = self.grid.replicas
        kind = self.config.agreement.hierarchical
        if buffer.is_summed_on_device:
            return PlainSender(replicas)
        if kind == "off" or replicas.size == 1:
            return self._between(state, buffer, replicas, replicas.size)
        groups = open_groups(self.grid, kind)
        sender = self._between(state, buffer, groups.leaders, groups.count)
        return ByLeaders(groups, sender)

    def _between(
        self, state: State, buffer: Buffer, speakers: Communicator, count: int
    ) -> Sender:
        """Return the sender between the ranks of `speakers`.

        `count` is the number of replicas, or of leaders, that send to each other. It is
        a sender without a codec if they are one, or if gradients are not encoded.
        """
        if count == 1 or not is_coded(self.config):
            return PlainSender(speakers)
        name = self.config.agreement.codec
        codecs: dict[int, Codec] = {}
        places = sorted(tile.columns.start for tile in buffer)
        exchanging = Stopwatch()
        for number, tile in enumerate(buffer):
            bucket = self._bucket(state, buffer, number, tile, exchanging)
            place = places.index(tile.columns.start)
            config = self.config.codec.of_bucket(place, len(places))
            codec = make_codec(name, bucket, config, self.config.accordion)
            codecs[tile.columns.start] = codec
            for what, array in codec.kept.items():
                state.rank_arrays[f"codec_{number}_{what}"] = array
        return CodecSender(speakers, codecs, name, self.sharers)

    def _bucket(
        self,
        state: State,
        buffer: Buffer,
        number: int,
        tile: Tile,
        exchanging: Stopwatch,
    ) -> Bucket:
        """Return the description of a tile from which its codec is made."""

        def room(name: str) -> Array:
            whole = state.remember(f"codec_{name}", buffer.width)
            part: Array = whole[tile.columns].reshape(-1)
            return part

        return Bucket(
            number=number,
            height=tile.height,
            width=buffer.width,
            dtype=buffer.flat.dtype,
            seed=self.config.sampling.seed,
            member=self.grid.member,
            part=tile.height * buffer.width / buffer.gradient.size,
            exchanging=exchanging,
            room=room,
        )
