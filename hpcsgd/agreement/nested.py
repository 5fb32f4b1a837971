"""Nested groups of replicas: from words or sizes to who speaks to whom."""

from collections.abc import Sequence
from dataclasses import dataclass

from hpcsgd.comm.address import Address
from hpcsgd.errors import ConfigError

PLACES = ("node", "rack", "all")
Labels = tuple[int, ...]  # of every replica: the first one of its group


@dataclass(frozen=True)
class Level:
    """One size of groups, and how often they agree."""

    group: str  # node, rack, all, or a number of replicas
    period: int  # in exchanges


def plan_levels(groups: str, periods: str, period: int, replicas: int) -> list[Level]:
    """The levels from the smallest groups to all replicas, checked.

    Without `periods` two levels agree after every exchange and after `period` of them.
    """
    names = [part.strip() for part in groups.split(",")]
    numbers = _numbers(periods) if periods else _usual(names, period)
    if len(names) != len(numbers):
        raise ConfigError(
            f"[agreement] groups = {groups!r} are {len(names)} and periods ="
            f" {periods or numbers!r} are {len(numbers)}; give one period a group"
        )
    if periods and period not in (1, numbers[-1]):
        raise ConfigError(
            f"[schedule] period = {period} and [agreement] periods = {periods!r} differ"
            " in the last one; leave one of them out"
        )
    if numbers != sorted(set(numbers)) or numbers[0] < 1:
        raise ConfigError(
            f"[agreement] periods = {numbers} must be at least 1 and grow from group to"
            ' group; "1,16" is usual'
        )
    _check_names(names, replicas)
    return [Level(*pair) for pair in zip(names, numbers, strict=True)]


def _usual(names: list[str], period: int) -> list[int]:
    """Of two groups: 1, and that of the schedule."""
    if len(names) != 2:
        raise ConfigError(
            f"[agreement] groups = {','.join(names)!r} are {len(names)} and no periods"
            " are given, which are known for two; set agreement.periods, one for each"
            " group and each larger than the one before, as"
            f" {','.join(str(4**k) for k in range(len(names)))!r}"
        )
    if period == 1:
        raise ConfigError(
            "[agreement] kind = 'hierarchical' has its first groups agree after every"
            " exchange and all replicas after [schedule] period = 1 of them, which is"
            " as often; use --period 16, or set agreement.periods, as '1,16'"
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
    """Words in their order with all at the end, or sizes that grow to R."""
    if all(name in PLACES for name in names):
        order = [PLACES.index(name) for name in names]
        if order == sorted(set(order)) and names[-1] == "all":
            return
    elif all(name.isdecimal() for name in names):
        sizes = [int(name) for name in names]
        if sizes == sorted(set(sizes)) and sizes[0] > 0 and sizes[-1] == replicas:
            return
    raise ConfigError(
        f"[agreement] groups = {','.join(names)!r} must grow to all {replicas}"
        ' replicas: "node,all", "node,rack,all", or sizes as'
        f' "{max(replicas // 2, 1)},{replicas}"'
    )


def label(levels: Sequence[Level], places: Sequence[Address]) -> list[Labels]:
    """For each level the group of every replica; `places` are those of replicas."""
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
            "[agreement] groups: no rack is known for some ranks; set HPCSGD_RACK on"
            " every node, or give sizes"
        )
    depth = {"node": 2, "rack": 1}[group]
    keys = [(place.rack, place.node)[:depth] for place in places]
    return tuple(keys.index(key) for key in keys)
