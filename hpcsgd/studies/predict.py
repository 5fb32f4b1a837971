"""Predictions of scaling from a machine file."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle
from math import ceil, isfinite, log2, nan
from pathlib import Path
from typing import Any

from hpcsgd.comm import communicator
from hpcsgd.errors import ConfigError
from hpcsgd.formats import get_format
from hpcsgd.precision import make_precision
from hpcsgd.products.base import ReplicaSize
from hpcsgd.products.cost import (
    Choice,
    CostInputs,
    Machine,
    ValueBytes,
    candidates,
    costs_of,
    machine_of,
    terms,
)
from hpcsgd.runs.figures import STYLES, html, make_figure, new_axes, saved, to_frame
from hpcsgd.runs.machine import (
    SHARED_FILES,
    Hardware,
    NetworkLevel,
    Number,
    Sum,
    sums_over,
)

# The cost model predicts the time of a step on any number of ranks.

WINS = 1.05  # a speed-up of CA-SGD over plain SGD that counts as faster
EFFICIENT = 0.5  # the least efficiency that counts as a good use of the ranks
WORD = 4  # bytes of a weight that replicas average
INDEX = 4  # bytes of the column number of a value of sparse rows
NETWORK = ("latency", "bandwidth")  # the terms of a step in which ranks do not compute

# The start of a rank: file operations by benchmarks/bench_files.py and, if staged, by
# tests/jobs/test_stage.py (28 for shared libraries, 9 for the data file); seconds of a
# run of few rows by benchmarks/bench_start.py.
FILE_CALLS = 3484  # of `hpcsgd train --plain`
STAGED_CALLS = 37  # of a staged rank on the shared file system; rank 0 writes more
PROGRAM = 0.43  # seconds of `hpcsgd train` where all files are in memory
ARCHIVE = 1.3e8  # bytes of an archive of `hpcsgd jobs stage`
UNPACK = 4.0  # seconds in which a node unpacks its 0.4 GB, at 100 MB/s


@dataclass(frozen=True)
class PredictedRun:
    """Data sizes and settings of the run that is predicted.

    Attributes
    ----------
    rows, columns : int
        Size of the data.
    batch : int
        Rows of one step of one replica.
    epochs : int
        Passes over the rows.
    steps : int
        SGD steps s of one exchange; 0 for the fastest number.
    recipe : str
        Recipe of number formats.
    scores : int
        Columns of the weights: the number of classes of softmax, else 1.
    period : int
        Exchanges between two agreements of the replicas.
    density : float
        Share of the values that sparse rows store; 1 for dense rows.
    contention : float
        How many times as long each message takes because other jobs use the network.
    skew : float
        How many times as long the slowest rank computes between two exchanges as the
        ranks do on average. The others wait for it.
    """

    rows: int
    columns: int
    batch: int = 32
    epochs: int = 10
    steps: int = 0
    recipe: str = "fp32"
    scores: int = 1
    period: int = 8
    density: float = 1.0
    contention: float = 1.0
    skew: float = 1.0

    def __post_init__(self) -> None:
        for name in ("contention", "skew"):
            factor = getattr(self, name)
            if not (isfinite(factor) and factor >= 1):
                raise ConfigError(f"--{name} {factor:g} must be finite and at least 1")
        if not 0 < self.density <= 1:
            raise ConfigError(
                f"--density {self.density:g} must be above 0 and at most 1"
            )
        if min(self.rows, self.columns) < 1:
            raise ConfigError("--data: rows and columns must be at least 1")
        if self.batch > self.rows:
            raise ConfigError(
                f"--batch {self.batch} is more than the {self.rows} rows of --data; use"
                " a smaller --batch"
            )


@dataclass(frozen=True)
class PredictedPoint:
    """Predicted times of a step of SGD and of CA-SGD on one number of ranks."""

    ranks: int
    grid: tuple[int, int]  # replicas, members
    sgd: float  # seconds of a step of plain SGD
    best: Choice  # product, s and seconds of the fastest step of CA-SGD
    by: str  # all-reduce algorithm of `best`: tree, halves or rings
    terms: Mapping[str, float]  # parts of a step of `best`, in seconds
    agreement: float  # seconds of a step that the agreement of replicas adds
    steps: int  # of each replica in an epoch
    checkpoint: float  # seconds in which a checkpoint is gathered and written

    @property
    def epoch(self) -> float:
        """Seconds of an epoch of the faster method."""
        return self.steps * self.seconds

    @property
    def speed_up(self) -> float:
        """Speed-up of CA-SGD over plain SGD."""
        return self.sgd / self.best.seconds

    @property
    def seconds(self) -> float:
        """Seconds of a step of the faster method."""
        return min(self.sgd, self.best.seconds)

    @property
    def method(self) -> str:
        """Name of the faster method."""
        return "SGD" if self.sgd <= self.best.seconds else "CA-SGD"

    @property
    def limit(self) -> str:
        """Name of the longest part of a step of CA-SGD."""
        return max(self.terms, key=lambda name: self.terms[name])

    def as_dict(self) -> dict[str, Any]:
        """Return the point as a JSON object."""
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
            "epoch_seconds": self.epoch,
            "checkpoint_seconds": self.checkpoint,
        }


@dataclass(frozen=True)
class Prediction:
    """Predicted times of a step on several numbers of ranks.

    Attributes
    ----------
    hardware : Hardware
        The machine file.
    asked : PredictedRun
        The run whose steps are predicted.
    points : tuple of PredictedPoint
        One point for each number of ranks.
    one_rank : PredictedPoint
        The point of one rank, which speed-ups are relative to.
    grids : mapping of int to tuple of PredictedPoint
        One point for each grid of a number of ranks, from the fewest replicas.
    """

    hardware: Hardware
    asked: PredictedRun
    points: tuple[PredictedPoint, ...]
    one_rank: PredictedPoint
    grids: Mapping[int, tuple[PredictedPoint, ...]] = field(default_factory=dict)

    def wins(self) -> list[int]:
        """Return the numbers of ranks on which CA-SGD is faster by at least 5 %."""
        return [p.ranks for p in self.points if p.speed_up >= WINS]

    def fastest(self) -> PredictedPoint:
        """Return the point with the shortest step; of equal ones, the fewest ranks.

        In a step of several replicas, each replica makes one step. The seconds of a
        step are not divided by the number of replicas, because R replicas that average
        their weights learn less from a step each than one replica from R steps.
        """
        return min(self.points, key=lambda p: (p.seconds, p.ranks))

    def speed_up(self, point: PredictedPoint) -> float:
        """Return the speed-up of a point's step over the fastest step of one rank."""
        return self.one_rank.seconds / point.seconds

    def efficiency(self, point: PredictedPoint) -> float:
        """Return the speed-up of a point over one rank, divided by its ranks."""
        return self.speed_up(point) / point.ranks

    def efficient(self) -> PredictedPoint | None:
        """Return the point with the most ranks whose efficiency is at least 50 %."""
        points = [p for p in self.points if self.efficiency(p) >= EFFICIENT]
        return max(points, key=lambda p: p.ranks, default=None)

    def best_grid(self, ranks: int) -> PredictedPoint:
        """Return the grid of `ranks` ranks with the shortest epoch.

        All grids take equal numbers of rows in a step, which the replicas share. Equal
        epochs are not equal losses, because replicas average their weights at times.
        """
        return min(self.grids[ranks], key=lambda p: (p.epoch, p.grid[0]))

    def start(self, ranks: int, staged: bool = False) -> float:
        """Return the seconds until `ranks` ranks take their first step.

        With `staged`, they start from the archive of `hpcsgd jobs stage`.
        """
        return start_seconds(contended(self.hardware, self.asked), ranks, staged)

    def as_dict(self) -> dict[str, Any]:
        """Return the document of `hpcsgd study predict --json`."""
        numbers = dict(self.hardware.numbers())
        files = files_of(self.hardware)
        return {
            "schema": 1,
            "machine": {
                "name": self.hardware.name,
                "numbers": {name: vars(n) for name, n in numbers.items()},
                "files": {name: vars(n) for name, n in files.items()},
            },
            "asked": dict(vars(self.asked)),
            "one_rank_seconds": self.one_rank.seconds,
            "points": [
                {
                    **point.as_dict(),
                    "speed_up_one_rank": self.speed_up(point),
                    "efficiency": self.efficiency(point),
                    "start_seconds": self.start(point.ranks),
                    "staged_start_seconds": self.start(point.ranks, staged=True),
                    "grids": [
                        {
                            "replicas": p.grid[0],
                            "members": p.grid[1],
                            "method": p.method,
                            "steps": p.best.steps,
                            "epoch_seconds": p.epoch,
                        }
                        for p in self.grids[point.ranks]
                    ],
                    "best_grid": "{}x{}".format(*self.best_grid(point.ranks).grid),
                }
                for point in self.points
            ],
            "wins_at": self.wins(),
            "fastest_at": self.fastest().ranks,
            "efficient_to": best.ranks if (best := self.efficient()) else None,
        }

    def to_frame(self) -> Any:
        """Return the table as a pandas.DataFrame, one row for each number of ranks.

        Raises
        ------
        MissingPackage
            If pandas is not installed.
        """
        return to_frame(self._rows(), index="ranks")

    def plot(self, ax: Any = None) -> Any:
        """Draw the time of a step over the ranks with matplotlib.

        One curve is plain SGD, the other is CA-SGD. Both axes are logarithmic.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Where to draw. Without it there is a new figure.

        Returns
        -------
        matplotlib.axes.Axes
            The axes.

        Raises
        ------
        MissingPackage
            If matplotlib is not installed.
        """
        ax = new_axes(ax)
        ranks = [point.ranks for point in self.points]
        curves = {
            "SGD": ("--s", [point.sgd for point in self.points]),
            "CA-SGD": ("-o", [point.best.seconds for point in self.points]),
        }
        for name, (style, seconds) in curves.items():
            ax.plot(ranks, [1e6 * value for value in seconds], style, label=name)
        ax.set(title=self.hardware.name, xlabel="ranks", ylabel="µs of a step")
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        ax.legend(fontsize="small")
        return ax

    def save_figure(self, path: str | Path) -> Path:
        """Write a PNG: the time of a step, and the shares of its parts for CA-SGD.

        Below them are the epochs on all grids, and the times of starts and checkpoints.
        """
        figure, ((left, right), (lower_left, lower_right)) = make_figure(2)
        self.plot(left)
        ranks = [point.ranks for point in self.points]
        for name, style in zip(self.points[0].terms, cycle(STYLES), strict=False):
            shares = [
                point.terms.get(name, 0.0) / point.best.seconds for point in self.points
            ]
            right.plot(ranks, shares, style, label=name)
        right.set(title="what CA-SGD's time goes into", xlabel="ranks", ylabel="share")
        right.set_xscale("log", base=2)
        right.legend(fontsize="small")
        self._draw_grids(lower_left)
        curves = {
            "start": [self.start(r) for r in ranks],
            "staged start": [self.start(r, staged=True) for r in ranks],
            "checkpoint": [point.checkpoint for point in self.points],
        }
        for (name, seconds), style in zip(curves.items(), STYLES, strict=False):
            lower_right.plot(ranks, seconds, style, label=name)
        lower_right.set(title="once in a run", xlabel="ranks", ylabel="seconds")
        lower_right.set_xscale("log", base=2)
        lower_right.set_yscale("log")
        lower_right.legend(fontsize="small")
        return saved(figure, path)

    def heat_map(self) -> dict[int, dict[int, float]]:
        """Return ranks -> replicas -> the epoch, relative to that of the best grid."""
        return {
            ranks: {p.grid[0]: p.epoch / self.best_grid(ranks).epoch for p in points}
            for ranks, points in self.grids.items()
        }

    def _draw_grids(self, ax: Any) -> None:
        """Draw the heat map; the best grid of each number of ranks has a star."""
        heat = self.heat_map()
        replicas = sorted({r for row in heat.values() for r in row})
        image = [[row.get(r, nan) for row in heat.values()] for r in replicas]
        drawn = ax.imshow(image, aspect="auto", origin="lower", norm="log")
        for column, ranks in enumerate(heat):
            row = replicas.index(self.best_grid(ranks).grid[0])
            ax.plot(column, row, "*", color="white", markeredgecolor="black")
        ax.set(title="epoch / epoch on the best grid", xlabel="ranks")
        ax.set(ylabel="replicas")
        ax.set_xticks(range(len(heat)), heat, rotation=90, fontsize="small")
        ax.set_yticks(range(len(replicas)), replicas, fontsize="small")
        ax.figure.colorbar(drawn, ax=ax)

    def _repr_html_(self) -> str:
        """Return the table and a picture for a notebook."""
        names = (
            *("ranks", "grid", "sgd_seconds", "ca_sgd_seconds", "product", "steps"),
            *("speed_up", "speed_up_one_rank", "efficiency", "limit"),
        )
        rows = [{name: row[name] for name in names} for row in self._rows()]
        marks = [number.mark for _, number in self.hardware.numbers()]
        measured = marks.count("measured")
        stated = marks.count("stated")
        note = f"{measured} figures of this machine are measured, {stated} stated"
        title = f"Prediction: a step on {self.hardware.name}"
        return html(title, rows, lambda ax: self.plot(ax=ax), note)

    def _rows(self) -> list[dict[str, Any]]:
        """Return one flat row for each number of ranks."""
        return [
            {
                "ranks": point.ranks,
                "grid": f"{point.grid[0]}x{point.grid[1]}",
                "sgd_seconds": point.sgd,
                "ca_sgd_seconds": point.best.seconds,
                "product": point.best.product,
                "steps": point.best.steps,
                "sums_by": point.by,
                "speed_up": point.speed_up,
                "speed_up_one_rank": self.speed_up(point),
                "efficiency": self.efficiency(point),
                "limit": point.limit,
                "epoch_seconds": point.epoch,
                "best_grid": "{}x{}".format(*self.best_grid(point.ranks).grid),
                "best_epoch_seconds": self.best_grid(point.ranks).epoch,
                "start_seconds": self.start(point.ranks),
                "staged_start_seconds": self.start(point.ranks, staged=True),
                "checkpoint_seconds": point.checkpoint,
            }
            for point in self.points
        ]


def predict(
    hardware: Hardware, asked: PredictedRun, ranks: Sequence[int]
) -> Prediction:
    """Predict the time of a step of plain SGD and of CA-SGD.

    Parameters
    ----------
    hardware : Hardware
        The machine, as `hpcsgd.runs.machine.load_hardware` reads it.
    asked : PredictedRun
        The size of the data, and the settings of the run.
    ranks : sequence of int
        The numbers of ranks.

    Returns
    -------
    Prediction
        One point for each number of ranks.

    Examples
    --------
    >>> from hpcsgd.studies.predict import PredictedRun, predict
    >>> from hpcsgd.runs.machine import load_hardware
    >>> run = PredictedRun(rows=400_000, columns=2000)
    >>> found = predict(load_hardware("perlmutter-a100"), run, ranks=[1, 4, 64])
    >>> found.fastest().ranks
    4
    """
    slowed = contended(hardware, asked)
    grids = {
        p: tuple(
            _point(slowed, replace(asked, batch=batch), grid)
            for grid, batch in grids_of(asked, p).items()
        )
        for p in sorted(ranks)
    }
    return Prediction(
        hardware,
        asked,
        points=tuple(points[0] for points in grids.values()),
        one_rank=_point(slowed, asked, (1, 1)),
        grids=grids,
    )


def contended(hardware: Hardware, asked: PredictedRun) -> Hardware:
    """Return the machine with messages that take `asked.contention` times as long."""

    def slower(level: NetworkLevel) -> NetworkLevel:
        latency = level.latency.value * asked.contention
        bandwidth = level.bandwidth.value / asked.contention
        return replace(
            level,
            latency=replace(level.latency, value=latency),
            bandwidth=replace(level.bandwidth, value=bandwidth),
        )

    return replace(hardware, levels=tuple(map(slower, hardware.levels)))


def grids_of(asked: PredictedRun, ranks: int) -> dict[tuple[int, int], int]:
    """Return (replicas, members) -> rows of a batch, for all grids of some ranks.

    The first grid has the most members, and batches of `asked.batch` rows. The replicas
    of each other grid share as many rows evenly as all replicas of the first grid take
    in a step, so that an epoch has as many steps on every grid.
    """
    fewest = grid_of(asked, ranks)[0]
    shared = fewest * asked.batch
    return {
        (r, ranks // r): shared // r
        for r in range(fewest, min(ranks, shared) + 1)
        if ranks % r == 0 and shared % r == 0
    }


def grid_of(asked: PredictedRun, ranks: int) -> tuple[int, int]:
    """Return the grid (replicas, members) of a number of ranks.

    The members are the largest divisor of the ranks with a column for each member.
    """
    members = next(
        ranks // r
        for r in range(1, ranks + 1)
        if ranks % r == 0 and ranks // r <= asked.columns
    )
    replicas = ranks // members
    if replicas * asked.batch > asked.rows:
        raise ConfigError(
            f"{ranks} ranks form {replicas} replicas of {members} members, and"
            f" {asked.rows} rows are too few for a batch of {asked.batch} in every"
            " replica; ask for fewer ranks"
        )
    return replicas, members


def job_on(asked: PredictedRun, grid: tuple[int, int]) -> CostInputs:
    """Return the inputs of the cost model for a run on a grid."""
    precision = make_precision(asked.recipe)
    replicas, members = grid
    value = float(get_format(precision.matrix).dtype.itemsize)
    return CostInputs(
        replica=ReplicaSize(
            rows=ceil(asked.rows / replicas),
            columns=asked.columns,
            local_columns=ceil(asked.columns / members),
            members=members,
        ),
        value_bytes=ValueBytes(
            matrix=value if asked.density == 1 else asked.density * (value + INDEX),
            gram_wire=get_format(precision.gram_wire).dtype.itemsize,
            margin_sum=get_format(precision.margin_sum).dtype.itemsize,
        ),
        batch=asked.batch,
        epochs=asked.epochs,
        comes_again=asked.epochs > 1,
        apart=not precision.one_message,
        scores=asked.scores,
    )


def _point(
    hardware: Hardware, asked: PredictedRun, grid: tuple[int, int]
) -> PredictedPoint:
    replicas, members = grid
    job = job_on(asked, grid)
    skew = asked.skew if replicas * members > 1 else 1.0
    alone = _rank(hardware, asked, job, skew)
    machines = {
        s.way: replace(alone, latency=s.latency, per_byte=s.per_byte)
        for s in sums_over(hardware, members)
    }
    plain = min(c.seconds for m in machines.values() for c in _plain(asked, job, m))
    best, algorithm = min(
        (
            (c, algorithm)
            for algorithm, m in machines.items()
            for c in _avoiding(asked, job, m)
        ),
        key=lambda candidate: candidate[0].seconds,
    )
    # SGD has as many agreements in a number of steps as CA-SGD.
    agreement = _agreement(hardware, asked, job, grid) / (asked.period * best.steps)
    parts = terms(best.product, best.steps, job, machines[algorithm])
    computed = sum(value for name, value in parts.items() if name not in NETWORK)
    parts = {
        name: value if name in NETWORK else value / skew
        for name, value in parts.items()
    }
    parts["waiting"] = computed * (1 - 1 / skew)
    parts["agreement"] = agreement
    return PredictedPoint(
        ranks=replicas * members,
        grid=grid,
        sgd=plain + agreement,
        best=replace(best, seconds=best.seconds + agreement),
        by=algorithm,
        terms=parts,
        agreement=agreement,
        steps=ceil(job.replica.rows / asked.batch),
        checkpoint=checkpoint_seconds(hardware, asked, grid),
    )


def _rank(
    hardware: Hardware, asked: PredictedRun, job: CostInputs, skew: float
) -> Machine:
    """Return the speeds of the slowest rank, without messages.

    The Gram matrix of sparse rows reads from the cache what one row stores in the
    columns of a member, at least one value, for each word.
    """
    alone = hardware.machine(narrow=job.value_bytes.matrix < WORD)
    columns = job.replica.local_columns
    if asked.density < 1:
        value = job.value_bytes.matrix / asked.density
        read = max(asked.density * columns, 1) * value
        alone = replace(alone, gram=alone.again * columns / read)
    return alone if skew == 1 else machine_of(skew * costs_of(alone))


def _plain(asked: PredictedRun, job: CostInputs, machine: Machine) -> Iterator[Choice]:
    """Return the choices of plain SGD, which sums in every step whatever s is."""
    return candidates("direct", asked.steps, job, machine)


def _avoiding(
    asked: PredictedRun, job: CostInputs, machine: Machine
) -> Iterator[Choice]:
    """Return the choices of CA-SGD, which is plain SGD on one member."""
    if job.replica.members == 1:
        return candidates("direct", asked.steps, job, machine)
    return (
        choice
        for choice in candidates("auto", asked.steps, job, machine)
        if choice.product != "direct"
    )


def _agreement(
    hardware: Hardware, asked: PredictedRun, job: CostInputs, grid: tuple[int, int]
) -> float:
    """Return the seconds of one average over replicas; 0 for one replica.

    It is on the levels of the network that one replica does not fill.
    """
    replicas = grid[0]
    if replicas == 1:
        return 0.0
    words = job.replica.local_columns * asked.scores
    size = communicator.sum_bytes(WORD * words, replicas)
    sums = _sums_of_replicas(hardware, grid)
    return min(s.latency + s.per_byte * size for s in sums)


def _sums_of_replicas(hardware: Hardware, grid: tuple[int, int]) -> list[Sum]:
    """Return the costs of a sum over replicas, one for each algorithm.

    They are on the levels of the network that one replica does not fill.
    """
    levels = tuple(
        replace(level, ranks=level.ranks and max(level.ranks // grid[1], 1))
        for level in hardware.levels
    )
    return sums_over(replace(hardware, levels=levels), grid[0])


# Once in a run: the start of the ranks, and a checkpoint.
#
# A rank asks a file system n times for files, and waits o seconds for each answer if it
# is alone. The file system gives μ answers a second, so that p ranks start in
#
#   start       PROGRAM + max(n o, p n / μ) + ⌈log2 p⌉ exchanges of MPI
#   staged      the same with the few n on the shared file system, and before that
#               UNPACK + A / W + ⌈log2 f⌉ (α + A / (F B)) for an archive of A bytes
#   checkpoint  (R + 1) D K words w of weights: R D K of now, D K of the last good loss;
#               all but the share of rank 0 go to it: ⌈log2 p⌉ messages, and bytes over
#               F B; it writes all of them: bytes / W
#
# One rank writes W bytes a second. The network between f nodes of F ranks has the α and
# the B of the farthest level; a node that alone receives has all F B of its ranks.


def files_of(hardware: Hardware) -> Mapping[str, Number]:
    """Return the figures of the file system, or those assumed if the file has none."""
    return SHARED_FILES if hardware.files is None else hardware.files


def start_seconds(hardware: Hardware, ranks: int, staged: bool) -> float:
    """Return the seconds until `ranks` ranks take their first step."""
    files = {name: number.value for name, number in files_of(hardware).items()}
    calls = STAGED_CALLS if staged else FILE_CALLS
    asking = max(calls * files["operation"], ranks * calls / files["rate"])
    archive = 0.0
    if staged:
        sends, latency, per_byte = _to_nodes(hardware, ranks)
        archive = UNPACK + ARCHIVE / files["bandwidth"]
        archive += sends * (latency + ARCHIVE * per_byte)
    return PROGRAM + archive + asking + _exchanges(hardware, ranks)


def checkpoint_seconds(
    hardware: Hardware, asked: PredictedRun, grid: tuple[int, int]
) -> float:
    """Return the seconds in which rank 0 gathers and writes a checkpoint."""
    replicas, members = grid
    word = make_precision(asked.recipe).working.itemsize
    written = (replicas + 1) * asked.columns * asked.scores * word
    received = written * (1 - 2 / ((replicas + 1) * members))
    ranks = replicas * members
    gathered = 0.0
    if ranks > 1:
        gathered = _exchanges(hardware, ranks)
        gathered += received * _to_nodes(hardware, ranks)[2]
    return gathered + written / files_of(hardware)["bandwidth"].value


def _exchanges(hardware: Hardware, ranks: int) -> float:
    """Return the seconds of ⌈log2 f⌉ hops on each level that joins f groups."""
    return sum(
        ceil(log2(parts)) * level.latency.value
        for level, parts in hardware.spans(ranks)
    )


def _to_nodes(hardware: Hardware, ranks: int) -> tuple[int, float, float]:
    """Return hops to all nodes, and the seconds of a hop and of a byte to one node.

    Ranks that one level joins are on one node: no hops, and bytes over this level.
    """
    spans = hardware.spans(ranks)
    if not spans:
        return 0, 0.0, 0.0
    level, parts = spans[-1]
    inside = ceil(ranks / parts) if len(spans) > 1 else 1
    hops = ceil(log2(parts)) if level.ranks == 0 else 0
    per_byte = 1.0 / (level.bandwidth.value * inside)
    return hops, level.latency.value, per_byte


def parse_ranks(text: str) -> list[int]:
    """Return numbers of ranks: "1..64" doubles from 1 up to 64, "1,2,6" is a list.

    >>> parse_ranks("1..8")
    [1, 2, 4, 8]
    """
    first, dots, last = text.partition("..")
    try:
        ranks = [int(first)] if dots else sorted({int(w) for w in text.split(",")})
        most = int(last) if dots else ranks[-1]
    except ValueError:
        ranks = []
    if not ranks or ranks[0] < 1 or ranks[0] > most:
        raise ConfigError(f"--ranks {text}: write 1..65536 for powers of two, or 1,2,4")
    while dots and ranks[-1] * 2 <= most:
        ranks.append(ranks[-1] * 2)
    return ranks
