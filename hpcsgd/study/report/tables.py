"""The tables: settings, messages against their formula, machines, what failed."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hpcsgd.charts.model import CROWDED, EMULATED
from hpcsgd.charts.scales import figures, whole, with_unit
from hpcsgd.study.report.groups import Problem, Setting, Spread
from hpcsgd.study.report.point import Point

NONE = "–"


@dataclass(frozen=True)
class Table:
    """Text in cells; the first `texts` columns are words, the others figures."""

    name: str
    title: str
    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    texts: int = 1
    marked: frozenset[tuple[int, int]] = frozenset()  # (row, column)


HEAD = (
    *("method", "product", "format", "network", "ranks", "R×C", "b", "s", "runs"),
    *("epoch", "range", "step", "calls", "words", "loss", "energy"),
)
TEXTS = 4  # of these columns


def settings_table(problem: Problem) -> Table | None:
    """One row for each setting; columns that nobody knows are left out."""
    if not problem.settings:
        return None
    settings = sorted(problem.settings, key=lambda s: (s.label, s.width))
    rows = [_setting(s) for s in settings]
    known = [k for k in range(len(HEAD)) if any(row[k] != NONE for row in rows)]
    return Table(
        name="settings",
        title="Settings",
        caption="Medians of the repeats; a range is from the shortest to the longest."
        " b is the batch of all replicas together, s the steps of an exchange."
        " † emulated: one rank did the work of one of so many. ‡ more ranks than cores."
        " § the machine was busy: load above half of its cores in the minute before a"
        " run.",
        head=tuple(HEAD[k] for k in known),
        rows=tuple(tuple(row[k] for k in known) for row in rows),
        texts=sum(k < TEXTS for k in known),
    )


def _setting(s: Setting) -> tuple[str, ...]:
    p, run = s.first, s.middle
    loss, energy = s.over(lambda point: point.loss), s.over(lambda point: point.joules)
    marks = {EMULATED: " †", CROWDED: " ‡"}.get(s.mark, "") + " §" * s.was_busy
    return (
        *(s.label + marks, p.product or NONE, p.recipe or NONE, p.network or NONE),
        *(whole(s.width), f"{p.replicas}×{p.members}", whole(p.batch), whole(p.steps)),
        whole(len(s.points)),
        *(with_unit(s.per_epoch.median, "s"), _range(s.per_epoch)),
        with_unit(s.per_step.median, "s") if s.per_step else NONE,
        *(_count(run.traffic("calls")), _count(run.traffic("words"))),
        figures(loss.median, 5) if loss else NONE,
        with_unit(energy.median, "J") if energy else NONE,
    )


def _range(spread: Spread) -> str:
    if spread.low == spread.high:
        return NONE
    return f"{with_unit(spread.low, 's')} … {with_unit(spread.high, 's')}"


def _count(value: float | None) -> str:
    return NONE if value is None else whole(value)


def traffic_table(problem: Problem) -> Table | None:
    """What rank 0 sent beside what the formula says; what differs is marked."""
    runs = [_to_show(s) for s in problem.settings]
    names = [s.named(problem.settings) for s in problem.settings]
    known = [(n, r) for n, r in zip(names, runs, strict=True) if r.expected]
    if not known:
        return None
    rows = [_traffic(name, run) for name, run in known]
    marked = {
        (number, column)
        for number, row in enumerate(rows)
        for column in (3, 6)
        if row[column] not in ("=", NONE)
    }
    return Table(
        name="traffic",
        title="Messages and words against their formula",
        caption="Of rank 0, for products and agreements; the formula knows the"
        " configuration alone. = is exact for all runs of the setting; of one with a"
        " difference, that run is shown, and marked.",
        head=(
            *("setting", "calls", "by formula", "difference"),
            *("words", "by formula", "difference"),
        ),
        rows=tuple(rows),
        marked=frozenset(marked),
    )


def _to_show(setting: Setting) -> Point:
    """The first run that does not keep to its formula, else the middle one."""
    return next((p for p in setting.points if _differs(p)), setting.middle)


def _differs(run: Point) -> bool:
    formula = run.expected or {}
    return any(
        run.traffic(figure) != formula[figure]
        for figure in ("calls", "words")
        if figure in formula
    )


def _traffic(name: str, run: Point) -> tuple[str, ...]:
    cells = [name]
    for figure in ("calls", "words"):
        measured, formula = run.traffic(figure), (run.expected or {}).get(figure)
        cells += [_count(measured), _count(formula), _difference(measured, formula)]
    return tuple(cells)


def _difference(measured: float | None, formula: float | None) -> str:
    if measured is None or formula is None:
        return NONE
    if measured == formula:
        return "="
    share = f" ({100 * (measured / formula - 1):+.2g} %)" if formula else ""
    return f"≠ {measured - formula:+,.0f}{share}".replace(",", "\u202f")


def failed_table(problem: Problem) -> Table | None:
    """What was not finished, and why."""
    if not problem.failed:
        return None
    return Table(
        name="failed",
        title="Runs that failed",
        caption="They are in no figure and in no other table.",
        head=("run", "ended", "why"),
        rows=tuple(
            (p.key or p.label, p.status or "no status", p.error or NONE)
            for p in problem.failed
        ),
        texts=3,
    )


def machine_table(points: Sequence[Point]) -> Table:
    """Where all of it ran, with what."""
    rows = [
        ("machine", _all(p.host for p in points)),
        ("processor", _all(p.processor for p in points)),
        ("cores", _all(str(p.cores) for p in points if p.cores)),
        ("network", _all(p.network or "as it is" for p in points)),
        ("messages carried by", _all(p.transport for p in points)),
        ("load before a run", _ends([p.load for p in points])),
        ("share of the ranks' time on a core", _ends([_busy(p) for p in points])),
        ("energy read by", _all(p.energy_source for p in points)),
        ("runs", whole(len(points))),
        ("seeds", whole(len({p.seed for p in points}))),
    ]
    names = dict.fromkeys(name for p in points for name in p.versions)
    rows += [(name, _all(p.versions.get(name, "") for p in points)) for name in names]
    return Table(
        name="machine",
        title="Machine and versions",
        caption="As the runs said themselves; – is what none of them says.",
        head=("fact", "value"),
        rows=tuple(rows),
        texts=2,
    )


def _all(values: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(v for v in values if v)) or NONE


def _ends(values: Iterable[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return NONE
    low, high = figures(min(known), 2), figures(max(known), 2)
    return low if low == high else f"{low} … {high}"


def _busy(point: Point) -> float | None:
    """CPU seconds over those that its ranks could have had; below 1 some waited."""
    if not point.cpu or not point.wall:
        return None
    return point.cpu / (point.wall * point.ranks)
