"""Predictions of scaling from a machine file."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from math import ceil, log2
from pathlib import Path
from typing import Any

from hpcsgd.comm import communicator
from hpcsgd.errors import ConfigError
from hpcsgd.formats import get_format
from hpcsgd.precision import make_precision
from hpcsgd.products.cost import Choice, CostInputs, Machine, candidates, terms
from hpcsgd.runs.figures import STYLES, make_figure, saved
from hpcsgd.runs.machine import Hardware

# What a sum over many ranks takes: as a tree, or as rings, across levels of a machine.
#
# Ranks of one node sum among themselves first, then one of each node (or each with its
# share) goes on to the next level.
#
#   tree    Σ over levels of ⌈log2 f⌉ (α + n / B): partners exchange all of n, doubling
#   halves  Σ over levels of 2 ⌈log2 f⌉ α, and the bytes of rings: shares are halved on
#           the way out and doubled on the way back
#   rings   Σ over levels of 2 (f − 1) (α + n / (f F B)): a share of n travels at a
#           level with f parts, in which F ranks hold one already
#
# Short sums go by trees, long ones by halves or rings: a sum takes what the fastest of
# them takes.
#
# Where the machine file has the base β₀ of a sum, sums are those of NCCL, as
# src/graph/tuning.cc has them (ncclTopoTuneModel): β₀ before the first hop, no halves,
# and a tree that goes up and down again, as a chain within a node (a level with a
# number of ranks) and as a tree over nodes:
#
#   tree    β₀ + 2 × Σ over levels of h α + 2 n / B of the slowest level,
#           h = f − 1 within a node, ⌊log2 f⌋ over nodes
#   rings   β₀ + Σ over levels of 2 (f − 1) (α + n / (f F B))


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
    if hardware.base is not None:
        base = hardware.base.value
        rings = _shares("rings", hardware, ranks, lambda parts: parts - 1)
        sums = [_tree_of_nccl(hardware, ranks), rings]
        return [replace(one, latency=base + one.latency) for one in sums]
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


def _tree_of_nccl(hardware: Hardware, ranks: int) -> Sum:
    """Return the sum up a tree and down again, without its base."""
    latency, times = 0.0, {}
    for level, parts in hardware.spans(ranks):
        hops = parts - 1 if level.ranks else parts.bit_length() - 1
        latency += 2 * hops * level.latency.value
        times[level.name] = 2.0 / level.bandwidth.value
    return Sum("tree", latency, max(times.values()) / _unit(ranks), _most(times))


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
    return communicator.sum_bytes(1, ranks)


def _most(times: dict[str, float]) -> str:
    return max(times, key=lambda name: times[name])


# What a step would take on ranks that are not here, by the cost model.

WINS = 1.05  # times faster than plain SGD, from which that is worth a word
EFFICIENT = 0.5  # of the ideal speed-up, below which more ranks are badly used
WORD = 4  # bytes of a weight that replicas average


@dataclass(frozen=True)
class PredictedRun:
    """The run whose time is asked for."""

    rows: int
    columns: int
    batch: int = 32
    epochs: int = 10
    steps: int = 0  # 0 = those that are fastest
    recipe: str = "fp32"
    scores: int = 1  # columns of weights, K
    period: int = 8  # exchanges between agreements, where there are replicas

    def __post_init__(self) -> None:
        if min(self.rows, self.columns) < 1:
            raise ConfigError("--data: rows and columns must be at least 1")
        if self.batch > self.rows:
            raise ConfigError(
                f"--batch {self.batch} is more than the {self.rows} rows; use fewer"
            )


@dataclass(frozen=True)
class PredictedPoint:
    """A number of ranks: plain SGD, CA-SGD, and what limits the latter."""

    ranks: int
    grid: tuple[int, int]
    sgd: float  # seconds of a step
    best: Choice  # of CA-SGD: what it takes, with which product and s
    by: str  # how its sums go: tree, rings
    terms: Mapping[str, float]  # of a step of `best`, in seconds
    agreement: float  # of them, what replicas add

    @property
    def speed_up(self) -> float:
        """CA-SGD over plain SGD."""
        return self.sgd / self.best.seconds

    @property
    def seconds(self) -> float:
        """Of a step of the faster method."""
        return min(self.sgd, self.best.seconds)

    @property
    def method(self) -> str:
        """The faster method."""
        return "SGD" if self.sgd <= self.best.seconds else "CA-SGD"

    @property
    def limit(self) -> str:
        """The term that takes longest."""
        return max(self.terms, key=lambda name: self.terms[name])

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "ranks": self.ranks,
            "grid": {"replicas": self.grid[0], "members": self.grid[1]},
            "sgd_seconds": self.sgd,
            "ca_sgd_seconds": self.best.seconds,
            "product": self.best.product,
            "steps": self.best.steps,
            "sums_by": self.by,
            "speed_up": self.speed_up,
            "limit": self.limit,
            "terms": dict(self.terms),
            "agreement_seconds": self.agreement,
        }


@dataclass(frozen=True)
class Prediction:
    """All numbers of ranks that were asked about."""

    hardware: Hardware
    asked: PredictedRun
    points: tuple[PredictedPoint, ...]
    one_rank: PredictedPoint  # what all are held to, whether it was asked for or not

    def wins(self) -> list[int]:
        """Ranks at which CA-SGD is faster than plain SGD by more than a word."""
        return [p.ranks for p in self.points if p.speed_up >= WINS]

    def fastest(self) -> PredictedPoint:
        """Return the point with the shortest step; of equal ones that of fewest ranks.

        A step of several replicas is one step of each: its seconds are not divided by
        their number, for averaged weights do not get as far as so many steps of one.
        """
        return min(self.points, key=lambda p: (p.seconds, p.ranks))

    def speed_up(self, point: PredictedPoint) -> float:
        """Return how many times faster a step is than the best one of one rank."""
        return self.one_rank.seconds / point.seconds

    def efficiency(self, point: PredictedPoint) -> float:
        """Return the speed-up over the ranks that it takes."""
        return self.speed_up(point) / point.ranks

    def efficient(self) -> PredictedPoint | None:
        """Return the point of the most ranks whose efficiency is at least a half."""
        points = [p for p in self.points if self.efficiency(p) >= EFFICIENT]
        return max(points, key=lambda p: p.ranks, default=None)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        numbers = {
            name: {"value": n.value, "mark": n.mark, "source": n.source}
            for name, n in self.hardware.numbers()
        }
        return {
            "schema": 1,
            "machine": {"name": self.hardware.name, "numbers": numbers},
            "asked": dict(vars(self.asked)),
            "one_rank_seconds": self.one_rank.seconds,
            "points": [
                {
                    **point.as_dict(),
                    "speed_up_one_rank": self.speed_up(point),
                    "efficiency": self.efficiency(point),
                }
                for point in self.points
            ],
            "wins_at": self.wins(),
            "fastest_at": self.fastest().ranks,
            "efficient_to": best.ranks if (best := self.efficient()) else None,
        }


def predict(
    hardware: Hardware, asked: PredictedRun, ranks: Sequence[int]
) -> Prediction:
    """A step of plain SGD and of CA-SGD on each number of ranks."""
    return Prediction(
        hardware,
        asked,
        points=tuple(_point(hardware, asked, p) for p in sorted(ranks)),
        one_rank=_point(hardware, asked, 1),
    )


def grid_of(asked: PredictedRun, ranks: int) -> tuple[int, int]:
    """R x C: one replica as long as every rank has a column, then as few as it takes.

    Of the numbers of members that divide the ranks, the largest with a column each.
    """
    members = next(
        ranks // r
        for r in range(1, ranks + 1)
        if ranks % r == 0 and ranks // r <= asked.columns
    )
    replicas = ranks // members
    if replicas * asked.batch > asked.rows:
        raise ConfigError(
            f"{ranks} ranks are {replicas} replicas of {members}, more than"
            f" {asked.rows} rows have batches of {asked.batch} for; ask for fewer"
        )
    return replicas, members


def job_on(asked: PredictedRun, grid: tuple[int, int]) -> CostInputs:
    """What the cost model is asked about on this grid."""
    precision, (replicas, members) = make_precision(asked.recipe), grid
    sizes = {f: get_format(getattr(precision, f)).dtype.itemsize for f in FIELDS}
    return CostInputs(
        members=members,
        rows=ceil(asked.rows / replicas),
        columns=asked.columns,
        local_columns=ceil(asked.columns / members),
        batch=asked.batch,
        epochs=asked.epochs,
        comes_again=asked.epochs > 1,
        matrix=sizes["matrix"],
        gram_wire=sizes["gram_wire"],
        margin_sum=sizes["margin_sum"],
        apart=not precision.one_message,
        scores=asked.scores,
    )


FIELDS = ("matrix", "gram_wire", "margin_sum")


def _point(hardware: Hardware, asked: PredictedRun, ranks: int) -> PredictedPoint:
    grid = grid_of(asked, ranks)
    job = job_on(asked, grid)
    alone = hardware.machine(narrow=job.matrix < WORD)
    ways = [
        (one, replace(alone, latency=one.latency, per_byte=one.per_byte))
        for one in sums_over(hardware, grid[1])
    ]
    agreement = _agreement(hardware, asked, job, grid)
    plain = min(c.seconds for _, m in ways for c in _plain(asked, job, m))
    best, way, machine = min(
        ((c, one.way, m) for one, m in ways for c in _avoiding(asked, job, m)),
        key=lambda found: found[0].seconds,
    )
    each = agreement / (asked.period * best.steps)
    spent = terms(best.product, best.steps, job, machine)
    spent["agreement"] = each
    # One replica's agreements are as many, whatever it does between them.
    return PredictedPoint(
        ranks=ranks,
        grid=grid,
        sgd=plain + each,
        best=replace(best, seconds=best.seconds + each),
        by=way,
        terms=spent,
        agreement=each,
    )


def _plain(asked: PredictedRun, job: CostInputs, machine: Machine) -> Iterator[Choice]:
    """Plain SGD, whose groups of steps change nothing between members."""
    return candidates("direct", asked.steps, job, machine)


def _avoiding(
    asked: PredictedRun, job: CostInputs, machine: Machine
) -> Iterator[Choice]:
    """CA-SGD: all that `auto` has to choose from; plain SGD on one member."""
    if job.members == 1:
        return candidates("direct", asked.steps, job, machine)
    return (
        choice
        for choice in candidates("auto", asked.steps, job, machine)
        if choice.product != "direct"
    )


def _agreement(
    hardware: Hardware, asked: PredictedRun, job: CostInputs, grid: tuple[int, int]
) -> float:
    """Seconds of one averaging over replicas, whose ranks lie as far as may be."""
    if grid[0] == 1:
        return 0.0
    size = WORD * job.local_columns * asked.scores
    return min(_sum_seconds(one, size, grid[0]) for one in _far(hardware, grid))


def _far(hardware: Hardware, grid: tuple[int, int]) -> list[Sum]:
    """Sums over replicas: the levels beyond those that members fill."""
    levels = tuple(
        replace(level, ranks=level.ranks and max(level.ranks // grid[1], 1))
        for level in hardware.levels
    )
    return sums_over(replace(hardware, levels=levels), grid[0])


def _sum_seconds(one: Sum, size: float, ranks: int) -> float:
    return one.latency + one.per_byte * communicator.sum_bytes(int(size), ranks)


def parse_ranks(text: str) -> list[int]:
    """Of "1..64", powers of two, or "1,2,6".

    >>> parse_ranks("1..8")
    [1, 2, 4, 8]
    """
    first, dots, last = text.partition("..")
    try:
        if dots:
            found, top = [int(first)], int(last)
            while found[-1] * 2 <= top:
                found.append(found[-1] * 2)
            found = found if found[0] <= top else [0]
        else:
            found = sorted({int(word) for word in text.split(",")})
    except ValueError:
        found = [0]
    if min(found) < 1:
        raise ConfigError(f"--ranks {text}: write 1..65536 for powers of two, or 1,2,4")
    return found


# The prediction as a picture.


def plot_prediction(report: Mapping[str, Any], path: str | Path) -> Path:
    """Draw seconds of a step over ranks, and what CA-SGD's are spent on.

    Parameters
    ----------
    report : the document of `hpcsgd study predict`
    path : where the PNG goes
    """
    figure, ((left, right),) = make_figure(1)
    points = report["points"]
    ranks = [point["ranks"] for point in points]
    for key, style in (("sgd_seconds", "--s"), ("ca_sgd_seconds", "-o")):
        name = {"sgd_seconds": "SGD", "ca_sgd_seconds": "CA-SGD"}[key]
        left.plot(ranks, [1e6 * point[key] for point in points], style, label=name)
    for name, style in zip(points[0]["terms"], cycle(STYLES), strict=False):
        shares = [p["terms"].get(name, 0.0) / p["ca_sgd_seconds"] for p in points]
        right.plot(ranks, shares, style, label=name)
    left.set(title=report["machine"]["name"], xlabel="ranks", ylabel="µs of a step")
    right.set(title="what CA-SGD's time goes into", xlabel="ranks", ylabel="share")
    for axis in (left, right):
        axis.set_xscale("log", base=2)
        axis.legend(fontsize="small")
    left.set_yscale("log")
    return saved(figure, path)
