"""Predictions of scaling from a machine file."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from math import ceil
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
    terms,
)
from hpcsgd.runs.figures import STYLES, html, make_figure, new_axes, saved, to_frame
from hpcsgd.runs.machine import Hardware, Sum, sums_over

# The cost model predicts the time of a step on any number of ranks.

WINS = 1.05  # a speed-up of CA-SGD over plain SGD that counts as faster
EFFICIENT = 0.5  # the least efficiency that counts as a good use of the ranks
WORD = 4  # bytes of a weight that replicas average


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
    """

    rows: int
    columns: int
    batch: int = 32
    epochs: int = 10
    steps: int = 0
    recipe: str = "fp32"
    scores: int = 1
    period: int = 8

    def __post_init__(self) -> None:
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
    """

    hardware: Hardware
    asked: PredictedRun
    points: tuple[PredictedPoint, ...]
    one_rank: PredictedPoint

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

    def as_dict(self) -> dict[str, Any]:
        """Return the document of `hpcsgd study predict --json`."""
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
        """Write a PNG: the time of a step, and the shares of its parts for CA-SGD."""
        figure, ((left, right),) = make_figure(1)
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
        return saved(figure, path)

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
    return Prediction(
        hardware,
        asked,
        points=tuple(_point(hardware, asked, p) for p in sorted(ranks)),
        one_rank=_point(hardware, asked, 1),
    )


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
    return CostInputs(
        replica=ReplicaSize(
            rows=ceil(asked.rows / replicas),
            columns=asked.columns,
            local_columns=ceil(asked.columns / members),
            members=members,
        ),
        value_bytes=ValueBytes(
            matrix=get_format(precision.matrix).dtype.itemsize,
            gram_wire=get_format(precision.gram_wire).dtype.itemsize,
            margin_sum=get_format(precision.margin_sum).dtype.itemsize,
        ),
        batch=asked.batch,
        epochs=asked.epochs,
        comes_again=asked.epochs > 1,
        apart=not precision.one_message,
        scores=asked.scores,
    )


def _point(hardware: Hardware, asked: PredictedRun, ranks: int) -> PredictedPoint:
    grid = grid_of(asked, ranks)
    job = job_on(asked, grid)
    alone = hardware.machine(narrow=job.value_bytes.matrix < WORD)
    machines = {
        s.way: replace(alone, latency=s.latency, per_byte=s.per_byte)
        for s in sums_over(hardware, grid[1])
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
    parts["agreement"] = agreement
    return PredictedPoint(
        ranks=ranks,
        grid=grid,
        sgd=plain + agreement,
        best=replace(best, seconds=best.seconds + agreement),
        by=algorithm,
        terms=parts,
        agreement=agreement,
    )


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
