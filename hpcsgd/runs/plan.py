"""The plan of a run: its settings and who chose them, its messages, memory and time."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from textwrap import wrap
from typing import Any

from hpcsgd.agreements.base import DataSize, GridSize, RunShape, Tiling
from hpcsgd.comm.grid import Grid
from hpcsgd.comm.ledger import TRAINING
from hpcsgd.config import FOREIGN, RunConfig, is_in, is_read, value_of
from hpcsgd.config import get_method as method_called
from hpcsgd.data.readers import RowReader
from hpcsgd.files import finite, format_bytes, toml_literal
from hpcsgd.runs.assembled_run import AssembledRun
from hpcsgd.runs.feed import steps_in
from hpcsgd.runs.load import LoadedRows
from hpcsgd.runs.memory import GIB, predict, streamed, system_limits
from hpcsgd.runs.settle import ASSUMED_FIGURES, MEASURED_FIGURES, RESUMED
from hpcsgd.runs.traffic import expected, why_uncounted
from hpcsgd.settings import Resolved, RunFacts, declarations
from hpcsgd.solvers.coordinate import COORDINATE

# What a run will do, printed by `hpcsgd train --plan`.

NAMED, DEFAULT, CHOSEN = "named", "default", "chosen"  # who chose a setting
WIDTH = 100  # of a line
BOUND = "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}"  # where no line ends
NOT_PREDICTED = "no formula for coordinate descent"


@dataclass(frozen=True)
class PlannedSetting:
    """A setting of a run, who chose its value, and why.

    Attributes
    ----------
    name : str
        section.key.
    value : value
        The value that runs, never one that is replaced by another.
    source : {"named", "default", "chosen"}
        Whether the user named the value, nobody did, or hpcsgd chose it.
    reason : str
        Why it was chosen, where that is known; else "".
    """

    name: str
    value: Any
    source: str
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.name} = {toml_literal(self.value)}"


@dataclass(frozen=True)
class PlannedTraffic:
    """Messages of rank 0 in the exchanges that are left.

    Attributes
    ----------
    exchanges : int
        Exchanges that are left, if no goal or fault ends the run earlier.
    counts : mapping
        Purpose -> calls, words and bytes; bytes alone where the calls are not known.
    unknown : mapping
        Purpose -> why it cannot be counted before the run.
    """

    exchanges: int
    counts: Mapping[str, Mapping[str, int]]
    unknown: Mapping[str, str]

    def lines(self) -> Iterator[str]:
        """Yield a line for each purpose."""
        for purpose in TRAINING:
            if purpose in self.unknown:
                yield f"{purpose:12} not known: {self.unknown[purpose]}"
                continue
            count = self.counts[purpose]
            if not count["bytes"]:
                yield f"{purpose:12} nothing"
                continue
            whole = ", ".join(f"{size} {unit}" for unit, size in count.items())
            each = ", ".join(
                f"{size / max(self.exchanges, 1):.6g} {unit}"
                for unit, size in count.items()
            )
            yield f"{purpose:12} {whole}; an exchange {each}"


@dataclass(frozen=True)
class PlannedTime:
    """Seconds by the cost model; None where they are not predicted.

    Attributes
    ----------
    step, exchange, training : float or None
        Seconds of a step, of an exchange, and of all exchanges that are left.
    figures : str
        Where the speed of the machine is from, or why nothing is predicted.
    """

    step: float | None
    exchange: float | None
    training: float | None
    figures: str

    def __str__(self) -> str:
        if self.step is None or self.exchange is None or self.training is None:
            return f"not predicted: {self.figures}"
        return (
            f"{1e6 * self.step:.3g} µs a step, {1e6 * self.exchange:.3g} µs an"
            f" exchange, {self.training:.3g} s of training ({self.figures})"
        )


@dataclass(frozen=True)
class PlanReport:
    """The settings of a run, and the messages, memory and time that it needs.

    Attributes
    ----------
    grid : tuple of (int, int)
        Replicas and members.
    rows, columns : int
        The rows that are trained on, and their columns.
    first, last : int
        Exchanges that are done where the run begins, and at its end.
    settings : tuple of PlannedSetting
        Every setting that the run reads and that has a value.
    sends : PlannedTraffic
        Messages of rank 0 for products and agreements. Evaluations, checks and the
        refinement send more.
    holds : mapping
        Use, or "total" -> bytes of the rank with most; empty where not predicted.
    takes : PlannedTime
        Seconds by the cost model.
    """

    grid: tuple[int, int]
    rows: int
    columns: int
    first: int
    last: int
    settings: tuple[PlannedSetting, ...]
    sends: PlannedTraffic
    holds: Mapping[str, int]
    takes: PlannedTime

    def as_dict(self) -> dict[str, Any]:
        """Return the document of `hpcsgd train --plan --json`."""
        settings: dict[str, dict[str, Any]] = {}
        for setting in self.settings:
            section, key = setting.name.split(".")
            entry = {k: v for k, v in asdict(setting).items() if k != "name"}
            settings.setdefault(section, {})[key] = entry
        return {
            "schema": 1,
            "grid": {"replicas": self.grid[0], "members": self.grid[1]},
            "rows": self.rows,
            "columns": self.columns,
            "first_exchange": self.first,
            "last_exchange": self.last,
            "settings": settings,
            "sends": {**self.sends.counts, "unknown": dict(self.sends.unknown)},
            "holds_bytes": dict(self.holds),
            "takes_seconds": asdict(self.takes),
        }

    def json(self) -> str:
        """Return the document as JSON."""
        return json.dumps(finite(self.as_dict()), indent=2, allow_nan=False)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        replicas, members = self.grid
        resumes = f", {self.first} of them done" if self.first else ""
        yield (
            f"{'plan':13} {self.rows} rows of {self.columns} columns on {replicas} x"
            f" {members} ranks, {self.last} exchanges{resumes}; nothing was trained"
        )
        for source in (CHOSEN, NAMED, DEFAULT):
            yield from _block(source, self._settings(source))
        yield from _block("sends", self.sends.lines())
        sizes = [f"{name} {format_bytes(size)}" for name, size in self.holds.items()]
        yield from _block("holds", [", ".join(sizes) or NOT_PREDICTED])
        yield from _block("takes", [str(self.takes)])

    def _settings(self, source: str) -> list[str]:
        """Return a line for each section and reason of settings from `source`."""
        lines: dict[tuple[str, str], list[str]] = {}
        for setting in self.settings:
            if setting.source == source:
                section, _, text = str(setting).partition(".")
                lines.setdefault((section, setting.reason), []).append(text)
        return [
            f"[{section}] {', '.join(texts)}{reason and f': {reason}'}"
            for (section, reason), texts in lines.items()
        ]


def _block(title: str, lines: Iterable[str]) -> Iterator[str]:
    """Yield `lines`, the first of them behind `title`.

    Long lines are wrapped, but never between the name and the value of a setting.
    """
    for line in lines:
        pieces = wrap(
            line.replace(" = ", BOUND),
            WIDTH,
            initial_indent=f"{title:14}",
            subsequent_indent=" " * 18,
            break_long_words=False,
            break_on_hyphens=False,
        )
        yield from (piece.replace(BOUND, " = ") for piece in pieces)
        title = ""


# Settings whose value is automatic: the value that it becomes, and why.


@dataclass(frozen=True)
class PlanFacts:
    """Facts on an opened run and its choices, whatever its solver."""

    config: RunConfig  # that runs
    grid: Grid
    loaded: LoadedRows
    form: str = ""  # of coordinate descent
    product: str = ""  # of coordinate descent
    gram_kernel: str = ""  # of a GPU
    loss_scale: float = 0.0


def _transport(facts: PlanFacts) -> Resolved:
    return facts.grid.world.kind, "what every rank has"


def _memory(facts: PlanFacts) -> Resolved:
    least = min(system_limits(), key=lambda limit: limit.free)
    return round(least.free / GIB, 2), f"GiB that are free {least.where}"


# section.key -> what finds the value that its default stands for. Other settings
# declare what their automatic value becomes, since it follows from simple facts.
# A plan of SGD has a product and look-ahead in its settings: the values here are those
# of coordinate descent.
AUTOMATIC: dict[str, Callable[[PlanFacts], Resolved]] = {
    "products.kind": lambda facts: (facts.product, "by what memory can keep"),
    "products.look_ahead": lambda _: ("off", "coordinate descent sums no Gram ahead"),
    "products.gram_kernel": lambda facts: (
        facts.gram_kernel or "none",
        "faster for these rows",
    ),
    "coordinate.form": lambda facts: (
        facts.form,
        f"for {facts.config.problem.family}",
    ),
    "precision.loss_scale": lambda facts: (facts.loss_scale, "adapts during the run"),
    "run.transport": _transport,
    "run.memory": _memory,
}
# Settings that a run has no use for, which `is_read` does not know.
OF_GPUS = ("products.gram_kernel", "run.transport", "run.share_gpus")
OF_COORDINATES = (  # the sections that coordinate descent reads
    *("problem", "data", "products", "coordinate", "sampling", "precision", "grid"),
    *("run", "schedule", "update"),
)


def _names(facts: PlanFacts) -> Iterator[str]:
    """Yield section.key of every setting that the run reads."""
    config = facts.config
    is_coordinate = config.update.kind == COORDINATE
    for section, settings in vars(config).items():
        if is_coordinate and section not in OF_COORDINATES:
            continue
        for key in vars(settings):
            name = f"{section}.{key}"
            is_idle = name in OF_GPUS and config.run.device == "cpu"
            if name == "precision.loss_scale" and not facts.loss_scale:
                continue
            if key != FOREIGN and not is_idle and is_read(name, config):
                yield name


def _resolve(name: str, value: Any, facts: PlanFacts) -> Resolved | None:
    """Return what an automatic value becomes, and why; None for any other value."""
    section, key = name.split(".")
    declared = declarations(type(getattr(facts.config, section)))[key]
    if name in AUTOMATIC:
        return AUTOMATIC[name](facts) if value == declared.default else None
    if not declared.is_automatic(value):
        return None
    shard = facts.loaded.shard
    return declared.resolve(
        RunFacts(
            config=facts.config,
            ranks=facts.grid.world.size,
            members=facts.grid.members.size,
            columns=shard.total_columns,
            is_sparse=shard.is_sparse,
        )
    )


def plan_settings(
    request: Mapping[str, Mapping[str, Any]],
    before: RunConfig,
    facts: PlanFacts,
    reasons: Mapping[str, str],
) -> tuple[PlannedSetting, ...]:
    """Return every setting that a run reads and that has a value, with who chose it.

    Parameters
    ----------
    request : mapping of mappings
        What the user named.
    before : RunConfig
        All settings before any was chosen from the ranks and the data.
    facts : PlanFacts
        What runs.
    reasons : mapping
        section.key -> why its value was chosen.
    """
    method = before.agreement.method
    row = method_called(method) if method else None
    by_method = {} if row is None else {**row.defaults, **row.fixed}
    settings = []
    for name in _names(facts):
        value = value_of(name, facts.config)
        usual = value_of(name, before)
        reason = reasons.get(name, "")
        source = CHOSEN if reason else DEFAULT
        if name == "rate.per_batch":
            value = usual  # it is applied, and is in the rate
        if resolved := _resolve(name, value, facts):
            value, why = resolved
            source = CHOSEN
            reason = reason or why
        elif value != usual:
            resumes = before.run.resume != "no"
            source = CHOSEN
            reason = reason or (RESUMED if resumes else "")
        elif not reason and is_in(name, request):
            source = NAMED
        elif not reason and name in by_method:
            source = CHOSEN
            reason = f"method {method}"
        if value is not None:
            settings.append(PlannedSetting(name, value, source, reason))
    return tuple(settings)


# The plan of an assembled run of SGD.


def plan_run(
    live: AssembledRun,
    reader: Callable[[Any], RowReader],
    request: Mapping[str, Mapping[str, Any]],
    before: RunConfig,
    reasons: Mapping[str, str],
    process: int,
) -> PlanReport:
    """Return the plan of a run that is assembled. Collective.

    `reader` opens the rows of the run once more, and only their sizes are read.
    `process` is the number of bytes that this process held before the run was
    assembled. The other arguments are those of `plan_settings`.
    """
    scale = live.task.backend.loss_scale
    exchanges = getattr(live.product, "exchanges", None)
    facts = PlanFacts(
        config=live.config,
        grid=live.grid,
        loaded=live.loaded,
        gram_kernel=getattr(exchanges, "gram_kernel", ""),
        loss_scale=0.0 if scale is None else scale.value,
    )
    last = live.feed.exchanges_per_epoch * live.config.schedule.epochs
    done = live.view.exchanges
    return PlanReport(
        grid=(live.grid.replicas.size, live.grid.members.size),
        rows=live.loaded.shard.total_rows,
        columns=live.loaded.shard.total_columns,
        first=done,
        last=last,
        settings=plan_settings(
            request, before, facts, {**live.plan.reasons, **reasons}
        ),
        sends=_sends(live, done, last),
        holds=_holds(live, reader, process),
        takes=_takes(live, last - done),
    )


def plan_form(
    facts: PlanFacts,
    exchanges: int,
    request: Mapping[str, Mapping[str, Any]],
    before: RunConfig,
    reasons: Mapping[str, str],
) -> PlanReport:
    """Return the plan of a coordinate descent of `exchanges` exchanges.

    The other arguments are those of `plan_settings`.
    """
    grid = facts.grid
    shard = facts.loaded.shard
    return PlanReport(
        grid=(grid.replicas.size, grid.members.size),
        rows=shard.total_rows,
        columns=shard.total_columns,
        first=0,
        last=exchanges,
        settings=plan_settings(request, before, facts, reasons),
        sends=PlannedTraffic(exchanges, {}, dict.fromkeys(TRAINING, NOT_PREDICTED)),
        holds={},
        takes=PlannedTime(None, None, None, "coordinate descent has no cost model"),
    )


def _sends(live: AssembledRun, first: int, last: int) -> PlannedTraffic:
    """Return what rank 0 sends after exchange `first`, up to exchange `last`."""
    config = live.config
    shard = live.loaded.shard
    grid = live.grid
    settings = config.agreement
    agreement: Any = live.agreement
    shape = RunShape(
        config=config,
        precision=live.task.precision,
        data=DataSize(
            rows=shard.total_rows,
            columns=shard.total_columns,
            sparse=shard.is_sparse,
        ),
        grid=GridSize(grid.replicas.size),
        classes=live.task.columns,
        states=live.task.states,
        tiling=Tiling(
            count=agreement.facts()["buckets"] if settings.zero_stage else 0,
            columns=agreement.height if settings.on_disk else 1,
        ),
    )
    is_watched = live.task.monitor is not None
    leg = {
        "first": first,
        "last": last,
        "planned": last,
        "members": grid.members.size,
        "product": live.product_name,
        "look_ahead": live.look_ahead,
        "reproducible": grid.world.reproducible,
        "gap_every": config.run.gap_every if is_watched else 0,
        "circles": live.agreement.circle_sizes,
    }
    why = why_uncounted(shape, leg, config.tables()["update"])
    counts = {} if why else expected(shape, [leg])
    unknown = {
        purpose: why
        or "the data, the time, the place of ranks or a class of your own decide"
        for purpose in TRAINING
        if purpose not in counts
    }
    return PlannedTraffic(last - first, counts, unknown)


def _holds(
    live: AssembledRun, reader: Callable[[Any], RowReader], process: int
) -> dict[str, int]:
    """Return name -> predicted bytes of the rank that needs most memory. Collective."""
    config = live.config
    grid = live.grid
    task = live.task
    rows = grid.world.together(lambda: reader(grid.world))
    try:
        sizes = (grid, rows, config, task.precision)
        need = predict(*sizes, task.states)
        if not live.loaded.shard.matrix.is_in_memory:
            need = streamed(need, *sizes)
    finally:
        rows.close()
    everyone = grid.world.exchange_objects(replace(need, process=process))
    largest = max(everyone, key=lambda one: one.total)
    return {**largest.counted, "total": largest.total}


def _takes(live: AssembledRun, exchanges: int) -> PlannedTime:
    """Return the seconds of `exchanges` exchanges by the cost model.

    They are None, with the reason, if the model chose nothing or the machine was not
    measured.
    """
    chosen = live.chosen
    if not chosen.seconds:
        why = "product and steps were not chosen by the cost model"
        return PlannedTime(None, None, None, why)
    if chosen.figures == ASSUMED_FIGURES:
        why = (
            "the machine was not measured, which --machine FILE does on a CPU with rows"
            " in memory"
        )
        return PlannedTime(None, None, None, why)
    epochs = live.config.schedule.epochs
    each = live.feed.exchanges_per_epoch
    steps = steps_in(live.feed.plans) * epochs * exchanges / max(each * epochs, 1)
    figures = "measured now" if chosen.figures == MEASURED_FIGURES else chosen.figures
    return PlannedTime(
        step=chosen.seconds,
        exchange=chosen.seconds * chosen.steps,
        training=chosen.seconds * steps,
        figures=figures,
    )
