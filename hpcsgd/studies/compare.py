"""Comparisons of methods and settings on the same data and ranks."""

from __future__ import annotations

import json
import logging
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from math import lcm
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike

from hpcsgd.api import run_training
from hpcsgd.comm import open_world
from hpcsgd.comm.communicator import Communicator
from hpcsgd.comm.ledger import TRAINING
from hpcsgd.config import RunConfig, check_read
from hpcsgd.errors import ConfigError, HpcsgdError
from hpcsgd.files import finite, own_folder, reason, write_text
from hpcsgd.runs.advice import unreached_phase
from hpcsgd.runs.coordinate import form_of
from hpcsgd.runs.figures import html, plot_losses, to_frame
from hpcsgd.runs.opened_run import resolve_names
from hpcsgd.runs.progress import NotebookLine, in_notebook
from hpcsgd.runs.result import WORSE, Result, Status
from hpcsgd.solvers.callbacks import Callback
from hpcsgd.solvers.coordinate import COORDINATE
from hpcsgd.studies.folder import open_temporary_store
from hpcsgd.studies.plan import (
    OWN,
    ROWS,
    Entry,
    Grid,
    NamedSetting,
    Refusal,
    StudyMethod,
    Tables,
    check_equal_batch,
    check_names,
    check_shared,
    check_steps,
    folder_name,
    is_equal_batch,
    on_ranks,
    refusals_of,
    settings_of,
    unknown,
)
from hpcsgd.studies.report.points import RunSetting, nodes_of, problems_of, read_folder

# A comparison has a row for each setting that ran, and a refusal for each other one.

FILES = ("compare.json", "compare.png", "report.html")
REFUSED = "refused"
# The reference of methods is the first of these that ran and did not diverge.
REFERENCES = ("sgd", "ddp")
BASELINE = (
    "bf16"  # dense sums in 16 bits, the baseline of methods that send fewer bytes
)


@dataclass(frozen=True)
class ComparisonRow:
    """Results of one setting: its run of median time, and the times of all repeats."""

    setting: NamedSetting
    result: Result
    times: tuple[float, ...]  # seconds_total of each repeat, in the order they ran
    # Network -> median time behind it, and rate -> final loss of a race of rates.
    seconds_behind: Mapping[str, float] = field(default_factory=dict)
    raced: Mapping[float, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the setting."""
        return self.setting.name

    @property
    def seconds(self) -> float:
        """Median time of the repeats."""
        return statistics.median(self.times)

    @property
    def diverged(self) -> bool:
        """Return whether the run has the status `diverged`."""
        return self.result.status is Status.DIVERGED

    @property
    def worse(self) -> bool:
        """Return whether the run reached its end with a loss above its first one."""
        return self.result.is_worse

    @property
    def is_whole(self) -> bool:
        """Return whether the run finished with a loss that is not above its first."""
        return self.result.status.is_finished and not self.worse

    @property
    def data(self) -> str:
        """Name of the data file; empty for rows in memory."""
        return Path(self.setting.config.data.path or "").name

    @property
    def network(self) -> str | None:
        """The emulated network, if any."""
        return self.setting.config.run.network

    @property
    def ranks(self) -> int:
        """Number of ranks, including emulated ones."""
        report = self.result.report
        return int(report.get("emulated_members") or report["ranks"])

    @property
    def status(self) -> str:
        """Status of the run; `worse` if it reached its end above its first loss."""
        return WORSE if self.worse else self.result.status.value

    @property
    def rate(self) -> float:
        """Learning rate of the first step, also if the run has chosen it."""
        return float(self.result.config["rate"]["value"])

    @property
    def steps(self) -> int:
        """SGD steps of one exchange, s.

        It is 1 for one replica with the product `direct`, which sums in every step.
        """
        report = self.result.report
        sums_each = report["products"] == "direct" and report["grid"]["replicas"] == 1
        return 1 if sums_each else int(report["schedule"]["steps"])

    @property
    def update(self) -> str:
        """Name of the update rule."""
        return self.setting.config.update.kind

    def traffic(self, figure: str) -> int:
        """Return rank 0's calls, words or bytes for products and agreements together.

        `figure` is "calls", "words" or "bytes".
        """
        return sum(int(self.result.ledger[purpose][figure]) for purpose in TRAINING)

    def loss_within(self, cost: str, limit: float) -> float | None:
        """Return the last evaluated loss for which at most `limit` was spent.

        `cost` is "seconds" or "bytes" of training. The loss before the first step costs
        nothing. It is None for a run that was not evaluated, and for one that diverged
        or got worse.
        """
        if not self.is_whole:
            return None
        records = [r for r in self.result.history if r[cost] <= limit]
        return float(records[-1]["loss"]) if records else None

    @property
    def wire_bytes(self) -> float:
        """Bytes that rank 0 would send if sums were rings.

        They are those of products and agreements together.
        """
        each = (self.result.ledger[purpose]["wire_bytes"] for purpose in TRAINING)
        return float(sum(each))


@dataclass(frozen=True)
class OneRankRun:
    """The runs of one setting on one rank, a baseline of speed-ups."""

    name: str
    seconds: float  # median of the runs
    data: str  # name of the data file; empty for rows in memory
    rows: int
    columns: int
    batch: int
    epochs: float
    processor: str
    nodes: str  # common part of the names of the hosts

    @classmethod
    def of(cls, setting: RunSetting) -> OneRankRun:
        """Return the baseline of a setting that a report has read from files."""
        first = setting.first
        return cls(
            name=setting.label,
            seconds=statistics.median(p.costs.seconds or 0.0 for p in setting.points),
            data=Path(first.task.data).name,
            rows=first.task.rows,
            columns=first.task.columns,
            batch=first.config.batch,
            epochs=first.config.epochs,
            processor=first.machine.processor,
            nodes=nodes_of(first.machine.host),
        )

    @classmethod
    def of_row(cls, row: ComparisonRow) -> OneRankRun:
        """Return the figures of `row`, a row of a comparison that ran on one rank.

        They are the baseline of the rows on more ranks.
        """
        report = row.result.report
        return cls(
            name=row.name,
            seconds=row.seconds,
            data=row.data,
            rows=report["rows"],
            columns=report["columns"],
            batch=row.setting.global_batch,
            epochs=row.setting.config.schedule.epochs,
            processor=report["processor"],
            nodes=nodes_of(report["host"]),
        )

    def is_same_task(self, row: ComparisonRow) -> bool:
        """Return whether a row has the same data, epochs, batch and machine."""
        report = row.result.report
        config = row.setting.config
        sizes = (report["rows"], report["columns"], row.setting.global_batch)
        return (
            self.data == row.data
            and (self.rows, self.columns, self.batch) == sizes
            and self.epochs == config.schedule.epochs
            and self._is_machine_of(report)
        )

    def _is_machine_of(self, report: Mapping[str, Any]) -> bool:
        """Return whether a report is from the same processor.

        Results of earlier versions name no processor. Their hosts are compared.
        """
        if self.processor:
            return bool(self.processor == report["processor"])
        return self.nodes == nodes_of(report["host"])


def read_one_rank(folder: str | Path) -> tuple[OneRankRun, ...]:
    """Return the runs on one rank in the folder of a comparison, a study or of runs.

    Raises
    ------
    ConfigError
        If the folder has no run on one rank.
    """
    problems = problems_of(read_folder(Path(folder)))
    settings = [s for problem in problems for s in problem.settings if s.is_one_rank]
    if not settings:
        raise ConfigError(
            f"--one-rank {folder} holds no run on one rank; make one by the same"
            f" command with --ranks 1 --out {folder}"
        )
    return tuple(OneRankRun.of(setting) for setting in settings)


@dataclass(frozen=True)
class Comparison:
    """Results of a comparison, in the order in which the settings were given.

    Attributes
    ----------
    entries : tuple of ComparisonRow or Refusal
        A row for each setting that ran, and a refusal for each method that could not.
    one_rank_runs : tuple of OneRankRun
        Runs on one rank, the baselines of speed-ups.
    """

    entries: tuple[ComparisonRow | Refusal, ...]
    one_rank_runs: tuple[OneRankRun, ...] = ()

    @property
    def rows(self) -> tuple[ComparisonRow, ...]:
        """The rows of the settings that ran."""
        return tuple(
            entry for entry in self.entries if isinstance(entry, ComparisonRow)
        )

    @property
    def refused(self) -> tuple[Refusal, ...]:
        """The methods that cannot run with these settings, with the reasons."""
        return refusals_of(self.entries)

    @property
    def reference(self) -> ComparisonRow:
        """The row that losses and times of the others are compared with.

        It is that of the method sgd, or else ddp, if it ran and its loss did not grow;
        otherwise it is the first row.
        """
        by_name = {row.name: row for row in self.rows if row.setting.is_method}
        candidates = [by_name[name] for name in REFERENCES if name in by_name]
        learnt = (row for row in candidates if not row.diverged and not row.worse)
        return next(learnt, self.rows[0])

    @property
    def baseline(self) -> str | None:
        """Name of the method with dense sums in 16 bits; None if no row has it."""
        names = [row.name for row in self.rows if row.setting.is_method]
        return BASELINE if BASELINE in names else None

    @property
    def is_equal_batch(self) -> bool:
        """Return whether a step of every setting has the same number of rows."""
        return is_equal_batch([row.setting for row in self.rows])

    @property
    def diverged(self) -> list[str]:
        """Names of the settings that diverged."""
        return [row.name for row in self.rows if row.diverged]

    @property
    def worse(self) -> list[str]:
        """Names of the settings whose run ended with a loss above its first one."""
        return [row.name for row in self.rows if row.worse]

    @property
    def before(self) -> dict[str, str]:
        """Settings that ended before their method began, with a sentence on each.

        Such a run ended in the first phase of its method, for example a warm-up.
        """
        phases = {
            row.name: unreached_phase(row.setting.config, row.result.exchanges)
            for row in self.rows
        }
        return {name: why for name, why in phases.items() if why}

    @property
    def others(self) -> dict[str, list[str]]:
        """Update rules other than the reference's, with the names of their rows."""
        rules: dict[str, list[str]] = {}
        for row in self.rows:
            if row.update != self.reference.update:
                rules.setdefault(row.update, []).append(row.name)
        return rules

    def loss_gap(self, row: ComparisonRow) -> float:
        """Return (loss of `row` − loss of the reference) / |loss of the reference|.

        It is nan if the loss of the reference is 0.
        """
        loss = self.reference.result.loss
        return (row.result.loss - loss) / abs(loss) if loss else float("nan")

    def speed_up(self, row: ComparisonRow) -> float:
        """Return the time of the reference over that of `row`.

        It is nan if the reference has another network, or if `row` took no time.
        """
        if row.seconds <= 0 or row.network != self.reference.network:
            return float("nan")
        return self.reference.seconds / row.seconds

    def one_rank(self, row: ComparisonRow) -> OneRankRun | None:
        """Return the fastest run of the same task on one rank; None without one."""
        runs = [run for run in self.one_rank_runs if run.is_same_task(row)]
        return min(runs, key=lambda run: run.seconds, default=None)

    def speed_up_one_rank(self, row: ComparisonRow) -> float | None:
        """Return the speed-up of a row over the best run on one rank.

        It is None without a run of the same task on one rank.
        """
        run = self.one_rank(row)
        return run.seconds / row.seconds if run and row.seconds > 0 else None

    def efficiency(self, row: ComparisonRow) -> float | None:
        """Return the speed-up of a row over one rank, divided by its ranks.

        It is None without a run of the same task on one rank.
        """
        speed_up = self.speed_up_one_rank(row)
        return None if speed_up is None else speed_up / row.ranks

    def least(self, cost: str) -> float | None:
        """Return the least cost of the runs that learnt; None if no run did.

        `cost` is "seconds" or "bytes", and runs on one rank alone, which send nothing,
        are left out of the bytes.
        """
        spent = [_spent(row, cost) for row in self.rows if row.is_whole]
        return min((one for one in spent if one or cost == "seconds"), default=None)

    def loss_at_equal(self, cost: str, row: ComparisonRow) -> float | None:
        """Return the loss of `row` for the least cost of all runs that learnt.

        `cost` is "seconds" or "bytes". The loss is that of the last evaluation by then.
        """
        limit = self.least(cost)
        return None if limit is None else row.loss_within(cost, limit)

    def front(self, cost: str) -> list[str]:
        """Return the names of the rows on the Pareto front of loss and cost.

        `cost` is "seconds" or "bytes". No other row has a loss and a cost that are both
        at most as large, and one of them smaller.
        """
        whole = [row for row in self.rows if row.is_whole]
        points = {row.name: (row.result.loss, _spent(row, cost)) for row in whole}

        def is_beaten(name: str) -> bool:
            mine = points[name]
            return any(
                all(a <= b for a, b in zip(other, mine, strict=True)) and other != mine
                for other in points.values()
            )

        return [name for name in points if not is_beaten(name)]

    def histories(self) -> dict[str, list[dict[str, Any]]]:
        """Return the loss curve of each row, by its name."""
        return {row.name: row.result.history for row in self.rows}

    def as_dict(self) -> dict[str, Any]:
        """Return all results but the weights as a dict; numbers may be inf or nan."""
        first = self.rows[0]
        return {
            "ranks": first.result.report["ranks"],
            "repeats": len(first.times),
            "network": first.setting.config.run.network,
            "equal_global_batch": self.is_equal_batch,
            "equal_seconds": self.least("seconds"),
            "equal_bytes": self.least("bytes"),
            "front": {cost: self.front(cost) for cost in ("seconds", "bytes")},
            "held_to": self.reference.name,
            "baseline": self.baseline,
            "one_rank": [asdict(run) for run in self.one_rank_runs],
            "rows": [self._brief(entry) for entry in self.entries],
            "settings": [self._figures(row) for row in self.rows],
        }

    def json(self) -> str:
        """Return the JSON document; numbers that are not finite become null."""
        return json.dumps(finite(self.as_dict()), indent=2, allow_nan=False)

    def to_frame(self) -> Any:
        """Return the table as a pandas.DataFrame, one row for each setting."""
        return to_frame([self._brief(entry) for entry in self.entries], "method")

    def plot(self, *, over: str = "epoch", ax: Any = None) -> Any:
        """Draw the loss curve of every setting with matplotlib.

        Parameters
        ----------
        over : {"epoch", "seconds", "words", "messages"}, default="epoch"
            The horizontal axis.
        ax : matplotlib.axes.Axes, optional
            Where to draw. Without it there is a new figure.

        Returns
        -------
        matplotlib.axes.Axes
            The axes.
        """
        return plot_losses(self.histories(), over, ax)

    def _repr_html_(self) -> str:
        """Return the table and the loss curves for a notebook."""
        names = ("method", "status", "loss", "seconds", "speed_up", "messages", "words")
        briefs = [self._brief(entry) for entry in self.entries]
        rows = [{name: brief[name] for name in names} for brief in briefs]
        title = f"Comparison of {len(self.entries)} settings"
        note = "; ".join(f"{refusal.name}: {refusal.why}" for refusal in self.refused)
        return html(title, rows, lambda ax: self.plot(ax=ax), note)

    def save(self, folder: Path) -> None:
        """Write compare.json into `folder`; rename files of an earlier comparison."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            archive_earlier_comparison(folder)
            write_text(folder / "compare.json", self.json() + "\n")
        except OSError as error:
            raise ConfigError(
                f"cannot write into --out {folder}: {error.strerror};"
                " choose a folder that can be written"
            ) from error

    def _brief(self, entry: ComparisonRow | Refusal) -> dict[str, Any]:
        """Return one line of the table; a refusal has no figures."""
        if isinstance(entry, Refusal):
            refusal = {"method": entry.name, "status": REFUSED, "reason": entry.why}
            return {**refusal, **dict.fromkeys(BRIEF)}
        figures = self._figures(entry)
        grid = entry.result.report["grid"]
        figures |= {
            "grid": f"{grid['replicas']}x{grid['members']}",
            "period": entry.result.report["schedule"]["period"],
            "messages": figures["synchronisations"],
        }
        line = {"method": entry.name, "status": figures["status"], "reason": None}
        return line | {name: figures[name] for name in BRIEF}

    def _figures(self, row: ComparisonRow) -> dict[str, Any]:
        result = row.result
        report = row.result.report
        return {
            "name": row.name,
            "global_batch": row.setting.global_batch,
            "steps": row.steps,
            "products": report["products"],
            "look_ahead": report["look_ahead"],
            "precision": row.setting.config.precision.recipe,
            "update": row.update,
            "rate": row.rate,
            "status": row.status,
            "loss": result.loss,
            "loss_gap": self.loss_gap(row),
            "loss_at_equal_seconds": self.loss_at_equal("seconds", row),
            "loss_at_equal_bytes": self.loss_at_equal("bytes", row),
            "seconds_behind": dict(row.seconds_behind),
            "losses_of_rates": [list(tried) for tried in row.raced.items()],
            "synchronisations": row.traffic("calls"),
            "words": row.traffic("words"),
            "bytes": row.traffic("bytes"),
            "wire_bytes": row.wire_bytes,
            "seconds": row.seconds,
            "seconds_of_repeats": list(row.times),
            "speed_up": self.speed_up(row),
            "speed_up_one_rank": self.speed_up_one_rank(row),
            "efficiency": self.efficiency(row),
            "network": row.network,
            "iterations": result.iterations,
            "weights_sha256": result.weights_sha256,
            "ledger": result.ledger,
            "history": result.history,
            "config": result.config,
        }


# Figures of a line of the table, in `rows` of the document.
BRIEF = (
    *("loss", "loss_gap", "loss_at_equal_seconds", "loss_at_equal_bytes"),
    *("seconds", "seconds_behind", "speed_up", "speed_up_one_rank", "efficiency"),
    *("messages", "words", "bytes"),
    *("wire_bytes", "grid", "global_batch", "steps", "period", "products", "update"),
    *("rate", "losses_of_rates", "iterations"),
)


def _spent(row: ComparisonRow, cost: str) -> float:
    return row.seconds if cost == "seconds" else row.traffic("bytes")


def row_of(setting: NamedSetting, results: list[Result]) -> ComparisonRow:
    """Return the row of a setting, with the result of the repeat of median time.

    Of an even number of repeats, it is the faster one of the two in the middle.
    """
    times = [result.report["seconds_total"] for result in results]
    middle = times.index(statistics.median_low(times))
    return ComparisonRow(setting, results[middle], tuple(times))


def archive_earlier_comparison(folder: Path) -> None:
    """Rename files of an earlier comparison to compare-earlier-N, N the first free."""
    number = 1
    while any(folder.glob(f"compare-earlier-{number}.*")):
        number += 1
    for name in FILES:
        if (folder / name).exists():
            suffix = Path(name).suffix
            (folder / name).rename(folder / f"compare-earlier-{number}{suffix}")


# Methods by name become settings with the same ranks, rows and global batch.

Names = str | Sequence[str]
ALL = "all"
LINE_UP: dict[str, StudyMethod] = {
    **{name: OWN[name] for name in ("sgd", "casgd", "hybrid")},
    **ROWS,
}
# Settings that a method decides -> the flag of each.
DECIDED = {
    "grid.replicas": "--grid",
    "grid.members": "--grid",
    "agreement.method": "--method",
    "agreement.kind": "--agreement",
    "agreement.codec": "--codec",
    "agreement.accumulate": "it",
}


def parse_methods(names: Names) -> list[str]:
    """Return names of methods in the order of `LINE_UP`; "all" has all of them.

    >>> parse_methods("ddp,sgd")
    ['sgd', 'ddp']
    """
    if isinstance(names, str):
        names = [word.strip() for word in names.split(",") if word.strip()]
    choices = (ALL, *LINE_UP)
    for name in names:
        if name not in choices:
            raise unknown(name, choices)
        if list(names).count(name) > 1:
            raise ConfigError(f"--methods has {name} twice; give each name once")
    if not names:
        raise ConfigError(
            "--methods is empty; write --methods all, or names separated by commas"
        )
    return [name for name in LINE_UP if ALL in names or name in names]


def line_up(names: Names, base: Tables, ranks: int) -> list[Entry]:
    """Return a setting, or the reason why it cannot run, for each method.

    `base` has the settings that all methods share; its batch is the global batch.
    """
    methods = parse_methods(names)
    _check_base(base)
    batch = RunConfig.parse(base).schedule.batch
    grids = {name: LINE_UP[name].grids(ranks)[:1] for name in methods}
    _check_batch(batch, [grid for first in grids.values() for grid in first])
    return [
        _setting(name, base, grid[0], batch) if grid else Refusal(name, _no_grid(ranks))
        for name, grid in grids.items()
    ]


def _check_base(base: Tables) -> None:
    """Refuse settings that methods decide, and emulated ranks, which learn nothing."""
    for setting, flag in DECIDED.items():
        section, key = setting.split(".")
        if key in base.get(section, {}):
            raise ConfigError(
                f"{setting} cannot be given with --methods, which sets it for each"
                f" method; leave {flag} out, or add a run with your value to the"
                f" comparison by --setting 'NAME: {setting}=VALUE'"
            )
    if base.get("run", {}).get("emulate_members"):
        raise ConfigError(
            "--emulate-members cannot be used with --methods, because emulated ranks"
            " learn no model whose loss can be compared; leave it out, or use hpcsgd"
            " study"
        )


def _check_batch(batch: int, grids: Sequence[Grid]) -> None:
    """Refuse a global batch that the replicas of a method cannot share evenly."""
    share = lcm(*(replicas for replicas, _ in grids))
    if batch % share:
        raise ConfigError(
            f"with --methods, --batch is the global batch, and {share} replicas cannot"
            f" share {batch} rows evenly; use --batch {-(-batch // share) * share}, or"
            " another number of ranks"
        )


def _no_grid(ranks: int) -> str:
    of = f"of {ranks} rank{'' if ranks == 1 else 's'}"
    return (
        f"{of} there is no grid of several replicas with several members each; use 4,"
        " 6, 8 or another number that is not prime"
    )


def _setting(name: str, base: Tables, grid: Grid, batch: int) -> Entry:
    """Return the setting of a method, or its refusal of the shared settings."""
    method = LINE_UP[name]
    replicas, members = grid
    try:
        shares: dict[str, dict[str, Any]] = {
            **method.shares(batch, replicas, base),
            "grid": {"replicas": replicas, "members": members},
        }
        shared = _without_steps(base) if method.sums_each else base
        config = RunConfig.parse(method.tables(shared, shares))
        check_steps(name, method, grid, config)
    except ConfigError as error:
        return Refusal(name, str(error))
    return NamedSetting(name, config, is_method=True)


def _without_steps(base: Tables) -> Tables:
    """Return `base` without its steps, for a method whose s is always 1."""
    tables = {section: dict(table) for section, table in base.items()}
    tables.get("schedule", {}).pop("steps", None)
    return tables


Values = Mapping[str, Any]  # section.key -> value, which replaces that of a setting

# A race gives each setting the learning rate with which it ends lowest: a rate that is
# best for one method may be far too high for another.

FACTORS = (4.0, 2.0)  # between neighbouring rates: first far, then near
MOST_RATES = 12  # that are tried for a setting


def climb(loss_of: Callable[[float], float], start: float) -> dict[float, float]:
    """Return the losses of the rates that were tried, from `start` to the best one.

    Rates above and below are tried by factors of 4 while the loss falls, then one by a
    factor of 2 on both sides. `loss_of` returns the final loss of a rate, which may be
    inf or nan.

    >>> losses = climb(lambda rate: abs(rate - 9.0), 1.0)
    >>> min(losses, key=losses.get)
    8.0
    """
    tried = {start: _finite_loss(loss_of(start))}
    for factor in FACTORS:
        for way in (factor, 1.0 / factor):
            falls = True
            while falls and len(tried) < MOST_RATES:
                best = best_rate(tried)
                rate = best * way
                if rate in tried:
                    break
                tried[rate] = _finite_loss(loss_of(rate))
                falls = best_rate(tried) == rate
    return tried


def _finite_loss(loss: float) -> float:
    return loss if loss == loss else float("inf")


def best_rate(tried: Mapping[float, float]) -> float:
    """Return the rate with the least loss; of equal losses, the lowest rate."""
    return min(tried, key=lambda rate: (tried[rate], rate))


# A comparison runs its settings in turns, on the same data and ranks.

log = logging.getLogger(__name__)


def compare(
    settings: Sequence[Entry],
    *,
    repeats: int = 3,
    allow_unequal: bool = False,
    out: str | Path | None = None,
    X: ArrayLike | None = None,
    y: ArrayLike | None = None,
    world: Communicator | None = None,
    callbacks: Callable[[], list[Callback]] = list,
    one_rank: str | Path | None = None,
    race: bool = False,
    networks: Sequence[str] = (),
) -> Comparison:
    """Train several settings in turns, on the same ranks. Collective.

    Turns (A, B, A, B, ...) expose all settings alike to a machine whose speed varies.
    All ranks must call it.

    Parameters
    ----------
    settings : sequence of NamedSetting
        The settings. The others are compared with the method sgd, or else ddp, if it
        runs and its loss does not grow; otherwise with the first one.
    repeats : int, default=3
        Runs of each setting. Its time is their median.
    allow_unequal : bool, default=False
        Whether settings may have different global batches.
    out : path-like, optional
        Folder of the runs: NAME-1, NAME-2, ... in it.
    X : array or sparse matrix of shape (n, d), optional
        The rows. Without X the file `data.path` of the settings is read.
    y : array-like of shape (n,), optional
        The targets, where X is given.
    world : Communicator, optional
        The ranks. Without it they are those of the launcher.
    callbacks : callable, optional
        Returns the callbacks of one run, on this rank.
    one_rank : path-like, optional
        Folder of runs on one rank. Speed-ups over one rank are relative to the best of
        them and of the one-rank runs of this comparison.
    race : bool, default=False
        Whether each setting first tries learning rates, from its own one by factors of
        4 and then 2, and trains with the one that ends with the least loss.
    networks : sequence of str, optional
        Emulated networks behind which each setting trains again, for its time there.

    Returns
    -------
    Comparison
        One row a setting: seconds, messages, words, loss, speed-up.

    Examples
    --------
    >>> import numpy as np
    >>> import hpcsgd
    >>> from hpcsgd.studies import NamedSetting, compare
    >>> X = np.random.default_rng(0).normal(size=(64, 3))
    >>> configs = [
    ...     hpcsgd.RunConfig.parse({"schedule": {"steps": steps}}) for steps in (1, 4)
    ... ]
    >>> settings = [NamedSetting(f"s = {c.schedule.steps}", c) for c in configs]
    >>> found = compare(settings, X=X, y=X[:, 0] > 0, repeats=1)
    >>> [row.name for row in found.rows]
    ['s = 1', 's = 4']
    """
    check_names(settings)
    runs = read_one_rank(one_rank) if one_rank else ()
    comm = world
    if comm is None:
        # All settings have the same transport.
        comm = open_world(_runnable(settings)[0].config.run.comm)
    entries = [on_ranks(entry, comm.size) for entry in settings]
    check(entries, repeats, allow_unequal)
    refusals = {item.name: item for item in refusals_of(entries)}
    for setting in settings_of(entries):
        reason = _reason_to_refuse(setting, out, comm)
        if reason:
            refusals[setting.name] = Refusal(setting.name, reason)
    accepted = [item for item in settings_of(entries) if item.name not in refusals]
    numbers = count()
    notebook = NotebookLine() if in_notebook() else None

    def run(setting: NamedSetting, number: int) -> Result | Refusal:
        title = f"{setting.name}, run {number} of {repeats}"
        log.info("%s", title, extra={"on_all_ranks": True})
        if notebook:
            notebook.show(next(numbers) / (repeats * len(accepted)), title)
        folder = _run_folder(setting, out, number)
        changes = _best_rate_of(raced.get(setting.name, {}))
        return _run(setting, changes, folder, X, y, comm, callbacks)

    def run_apart(setting: NamedSetting, changes: Values) -> Result | Refusal:
        return _run(setting, changes, None, X, y, comm, list)

    raced = {item.name: _race(item, run_apart) for item in accepted if race}
    results = {item.name: item for item in _in_turns(accepted, repeats, run)}
    for name, entry in results.items():
        if isinstance(entry, ComparisonRow):
            results[name] = replace(entry, raced=raced.get(name, {}))
    for network in networks:
        results = _behind(network, results, repeats, run_apart)
    if notebook:
        notebook.show(1.0, f"{len(accepted)} settings, {repeats} runs each")
    comparison = Comparison(
        tuple(results.get(item.name) or refusals[item.name] for item in entries)
    )
    if not comparison.rows:
        raise _no_rows(comparison.refused)
    if world is None:
        comm.close()
    one_rank_rows = (row for row in comparison.rows if row.ranks == 1 and row.is_whole)
    runs += tuple(OneRankRun.of_row(row) for row in one_rank_rows)
    return replace(comparison, one_rank_runs=runs)


def _in_turns(
    settings: list[NamedSetting],
    repeats: int,
    run: Callable[[NamedSetting, int], Result | Refusal],
) -> list[ComparisonRow | Refusal]:
    """Run all settings in turns; return the row or the refusal of each.

    A method that refuses does not run again.
    """
    results: dict[str, list[Result]] = {setting.name: [] for setting in settings}
    refusals: dict[str, Refusal] = {}
    for number in range(1, repeats + 1):
        for setting in settings:
            if setting.name in refusals:
                continue
            outcome = run(setting, number)
            if isinstance(outcome, Refusal):
                refusals[setting.name] = outcome
            else:
                results[setting.name].append(outcome)
    return [refusals.get(s.name) or row_of(s, results[s.name]) for s in settings]


def _race(
    setting: NamedSetting, run: Callable[[NamedSetting, Values], Result | Refusal]
) -> dict[float, float]:
    """Return the final losses of the rates that a setting tried. Collective.

    The dict is empty for a setting without a learning rate, and for one that refuses:
    its first run has the reason. A rate that diverges has the loss inf.
    """
    if setting.config.update.kind == COORDINATE:
        return {}
    log.info("%s, race of rates", setting.name, extra={"on_all_ranks": True})
    # What a network delays is no part of the loss; a fall-back would hide a divergence.
    alone = {"run.network": None, "run.fall_back": False}
    outcome = run(setting, alone)
    if isinstance(outcome, Refusal):
        return {}
    first = float(outcome.config["rate"]["value"])  # the run may have chosen it
    losses = {first: _loss_of(outcome)}

    def loss_of(rate: float) -> float:
        if rate not in losses:
            losses[rate] = _loss_of(run(setting, alone | {"rate.value": rate}))
        return losses[rate]

    return climb(loss_of, first)


def _loss_of(outcome: Result | Refusal) -> float:
    if isinstance(outcome, Refusal) or outcome.status is Status.DIVERGED:
        return float("inf")
    return float(outcome.loss)


def _best_rate_of(tried: Mapping[float, float]) -> Values:
    return {"rate.value": best_rate(tried)} if tried else {}


def _behind(
    network: str,
    results: Mapping[str, ComparisonRow | Refusal],
    repeats: int,
    run: Callable[[NamedSetting, Values], Result | Refusal],
) -> dict[str, ComparisonRow | Refusal]:
    """Return the results with the median time of each row behind a network. Collective.

    A setting that refused does not run.
    """
    log.info("behind the network %s", network, extra={"on_all_ranks": True})
    rows = {
        n: entry for n, entry in results.items() if isinstance(entry, ComparisonRow)
    }

    def run_behind(setting: NamedSetting, number: int) -> Result | Refusal:
        rate = _best_rate_of(rows[setting.name].raced)
        return run(setting, {**rate, "run.network": network})

    found = dict(results)
    for row in _in_turns([row.setting for row in rows.values()], repeats, run_behind):
        if isinstance(row, ComparisonRow):
            before = rows[row.name]
            times = {**before.seconds_behind, network: row.seconds}
            found[row.name] = replace(before, seconds_behind=times)
    return found


def compare_methods(
    methods: Names = "all",
    config: Tables | None = None,
    *,
    repeats: int = 3,
    out: str | Path | None = None,
    X: ArrayLike | None = None,
    y: ArrayLike | None = None,
    world: Communicator | None = None,
    one_rank: str | Path | None = None,
    race: bool = False,
    networks: Sequence[str] = (),
) -> Comparison:
    """Train several methods in turns, on the same data and ranks. Collective.

    All ranks must call it.

    Parameters
    ----------
    methods : str or sequence of str, default="all"
        "all", or names as "a,b,c" or as a list: "sgd", "casgd", "hybrid", and those of
        the setting `agreement.method`.
    config : mapping, optional
        Settings of `train` that all methods share. Its batch is that of all replicas
        together.
    repeats : int, default=3
        Runs of each method. Its time is their median.
    out : path-like, optional
        Folder of the runs: NAME-1, NAME-2, ... in it.
    X : array or sparse matrix of shape (n, d), optional
        The rows. Without X the file `data.path` of the settings is read.
    y : array-like of shape (n,), optional
        The targets, where X is given.
    world : Communicator, optional
        The ranks. Without it they are those of the launcher.
    one_rank : path-like, optional
        Folder of runs on one rank. Speed-ups over one rank are relative to the best of
        them and of the one-rank runs of this comparison.
    race : bool, default=False
        Whether each method first tries learning rates, from its own one by factors of
        4 and then 2, and trains with the one that ends with the least loss.
    networks : sequence of str, optional
        Emulated networks behind which each method trains again, for its time there.

    Returns
    -------
    Comparison
        One row a method: seconds, messages, words, loss, speed-up.

    Examples
    --------
    >>> import numpy as np
    >>> from hpcsgd.studies import compare_methods
    >>> X = np.random.default_rng(0).normal(size=(64, 3))
    >>> found = compare_methods("sgd,ddp", X=X, y=X[:, 0] > 0, repeats=1)
    >>> [row.name for row in found.rows]
    ['sgd', 'ddp']
    """
    base = config or {}
    comm = world if world is not None else open_world(RunConfig.parse(base).run.comm)
    entries = line_up(methods, base, comm.size)
    check_shared(base, [setting.config for setting in settings_of(entries)])
    comparison = compare(
        entries,
        repeats=repeats,
        out=out,
        X=X,
        y=y,
        world=comm,
        one_rank=one_rank,
        race=race,
        networks=networks,
    )
    if world is None:
        comm.close()
    return comparison


def check(settings: Sequence[Entry], repeats: int, allow_unequal: bool) -> None:
    """Refuse a comparison without repeats or settings, before anything is trained.

    Settings with different global batches are refused unless `allow_unequal` is set.
    """
    if repeats < 1:
        raise ConfigError(f"--repeats {repeats}: at least 1 is needed; 3 is usual")
    check_names(settings)
    if not allow_unequal:
        check_equal_batch(_runnable(settings))


def _runnable(entries: Sequence[Entry]) -> list[NamedSetting]:
    """Return the settings that can run, or raise an error if there are none."""
    settings = settings_of(entries)
    if not settings:
        raise _no_rows(refusals_of(entries))
    return settings


def _no_rows(refused: Sequence[Refusal]) -> ConfigError:
    return ConfigError(
        "none of the requested methods can run with these settings;"
        f" {refused[0].name}: {refused[0].why}"
    )


def _reason_to_refuse(
    setting: NamedSetting, out: str | Path | None, world: Communicator
) -> str:
    """Return why a method cannot run on these ranks, or "". Collective.

    For a setting that is not a method by name, the reason is raised.
    """
    try:
        folder = _run_folder(setting, out, 1)
        with _settings_of_run(setting, {}, folder, world) as config:
            world.together(lambda: _check_on_ranks(config, world))
    except ConfigError as error:
        if not setting.is_method:
            error.args = (f"setting {setting.name!r}: {error}",)
            raise
        return str(error)
    return ""


def _check_on_ranks(config: RunConfig, world: Communicator) -> None:
    check_read(config)
    if config.update.kind == COORDINATE:
        form_of(config, world.size)
    else:
        resolve_names(config, world)


def _run_folder(
    setting: NamedSetting, out: str | Path | None, number: int
) -> str | None:
    """Return the path of the folder of one run of a setting; None without `out`."""
    if not out:
        return None
    name = f"{folder_name(setting.name)}-{number}"
    try:
        return str(own_folder(Path(out), name))
    except OSError as error:
        raise ConfigError(
            f"cannot write into --out {out}: {reason(error)}; remove the file or"
            " link that is in the way, or choose another folder"
        ) from error


@contextmanager
def _settings_of_run(
    setting: NamedSetting, changes: Values, folder: str | None, world: Communicator
) -> Iterator[RunConfig]:
    """Yield the settings of one run, with its places on disk. Collective.

    `changes` replace values of the setting. The run folder is `folder`, if any. Without
    it, states on disk are in a temporary folder, which is removed at the end.
    """
    config = setting.config
    with open_temporary_store(config.agreement, folder, world) as store:
        yield config.with_values({"run.out": folder, **changes, **store})


def _run(
    setting: NamedSetting,
    changes: Values,
    folder: str | None,
    X: Any,
    y: Any,
    world: Communicator,
    callbacks: Callable[[], list[Callback]],
) -> Result | Refusal:
    """Train a setting once, or return the refusal of a method on these data.

    `changes` replace values of the setting.
    """
    try:
        with _settings_of_run(setting, changes, folder, world) as config:
            return run_training(config, X, y, world=world, callbacks=callbacks())
    except HpcsgdError as error:
        if _is_refusal(error, setting, world):
            return Refusal(setting.name, str(error))
        error.args = (f"setting {setting.name!r}: {error}",)
        raise


def _is_refusal(error: HpcsgdError, setting: NamedSetting, world: Communicator) -> bool:
    """Return whether a method refuses its settings on all ranks.

    After an error of one rank alone, the other ranks could not continue.
    """
    on_all_ranks = error.on_all_ranks or world.size == 1
    return setting.is_method and isinstance(error, ConfigError) and on_all_ranks
