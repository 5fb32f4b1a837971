"""The HTML page of a report: its contents, tables and style."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from html import escape as _escape
from pathlib import Path
from typing import Any

import hpcsgd
from hpcsgd.errors import ConfigError, HpcsgdError, MissingPackage
from hpcsgd.files import finite, write_text
from hpcsgd.runs.figures import clean
from hpcsgd.runs.result import Result, load_result
from hpcsgd.studies.plots.charts import (
    CROWDED,
    EMULATED,
    Chart,
    csv_text,
    figures,
    whole,
    with_unit,
)
from hpcsgd.studies.plots.svg import DARK, GROUND, INK, dark_colours, png, svg
from hpcsgd.studies.report.charts import (
    energy_chart,
    heat_maps,
    loss_curves,
    missing_split,
    scaling_charts,
    split_chart,
    verdict,
)
from hpcsgd.studies.report.points import (
    PointCosts,
    Problem,
    ReportPoint,
    RunSetting,
    Spread,
    problems_of,
    read_folders,
)

log = logging.getLogger(__name__)

# Tables of a report: settings, traffic and its formula, machines, failed runs.

NONE = "–"


@dataclass(frozen=True)
class Table:
    """A table of text; the first `texts` columns are words, the others numbers."""

    name: str
    title: str
    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    texts: int = 1
    marked: frozenset[tuple[int, int]] = frozenset()  # (row, column)


HEAD = (
    *("method", "product", "format", "network", "ranks", "R×C", "b", "s", "epochs"),
    *("runs", "epoch", "range", "vs 1 rank", "efficiency", "step"),
    *("calls", "words", "loss", "energy"),
)
TEXTS = 4  # the first of these columns are words
ALWAYS = ("vs 1 rank", "efficiency")


def settings_table(problem: Problem) -> Table | None:
    """Return the table of settings, without columns that are empty for all of them.

    It has a row for each setting. The columns `ALWAYS` stay. The result is None without
    settings.
    """
    if not problem.settings:
        return None
    settings = sorted(problem.settings, key=lambda s: (s.label, s.width))
    rows = [_setting(problem, s) for s in settings]
    filled = [
        k
        for k, name in enumerate(HEAD)
        if name in ALWAYS or any(row[k] != NONE for row in rows)
    ]
    return Table(
        name="settings",
        title="Settings",
        caption="Times are medians of the repeats; a range is from the shortest to the"
        " longest. b is the batch of all replicas together, s the steps of an exchange."
        " vs 1 rank is the speed-up of an epoch over the best run of any method on one"
        " rank with the same batch; efficiency is this speed-up divided by the ranks;"
        f" {NONE}: there is no such run. If the rows grow with the ranks, the speed-up"
        " is multiplied by the ranks, and the same batch for each rank counts, too."
        " † emulated: one rank did the work of one of several. ‡ more ranks than cores."
        " § the machine was busy: load above half of its cores in the minute before a"
        " run.",
        head=tuple(HEAD[k] for k in filled),
        rows=tuple(tuple(row[k] for k in filled) for row in rows),
        texts=sum(k < TEXTS for k in filled),
    )


def _setting(problem: Problem, s: RunSetting) -> tuple[str, ...]:
    c = s.config
    run = s.middle.costs
    speed_up = problem.speed_up(s)
    efficiency = problem.efficiency(s)
    loss = s.over(lambda point: point.outcome.loss)
    energy = s.over(lambda point: point.costs.joules)
    marks = {EMULATED: " †", CROWDED: " ‡"}.get(s.mark, "") + " §" * s.was_busy
    return (
        s.label + marks,
        c.product or NONE,
        c.recipe or NONE,
        problem.network or NONE,
        whole(s.width),
        f"{c.replicas}×{c.members}",
        whole(c.batch),
        whole(c.steps),
        f"{c.epochs:g}",
        whole(len(s.points)),
        with_unit(s.per_epoch.median, "s"),
        _range(s.per_epoch),
        NONE if speed_up is None else f"{figures(speed_up.median)}x",
        NONE if efficiency is None else f"{figures(100 * efficiency, 2)} %",
        with_unit(s.per_step.median, "s") if s.per_step else NONE,
        _count(run.traffic("calls")),
        _count(run.traffic("words")),
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
    """Return the table of calls and words of rank 0, beside those of the formula.

    Differences are marked. Settings without a formula are left out. The result is None
    if no setting has one.
    """
    rows = []
    for setting in problem.settings:
        run = _run_to_show(setting)
        if run.expected:
            rows.append(_traffic(setting.named(problem.settings), run))
    if not rows:
        return None
    marked = {
        (number, column)
        for number, row in enumerate(rows)
        for column in (3, 6)
        if row[column] not in ("=", NONE)
    }
    return Table(
        name="traffic",
        title="Messages and words against their formula",
        caption="Calls and words of rank 0 for products and agreements, beside a"
        " formula of the configuration alone. = means that all runs of the setting"
        " agree with the formula; otherwise a run that differs is shown, and marked.",
        head=(
            *("setting", "calls", "by formula", "difference"),
            *("words", "by formula", "difference"),
        ),
        rows=tuple(rows),
        marked=frozenset(marked),
    )


def _run_to_show(setting: RunSetting) -> PointCosts:
    """Return the costs of the first run that differs from its formula.

    If no run differs, they are those of the run of median time.
    """
    costs = [point.costs for point in setting.points]
    return next((run for run in costs if _differs(run)), setting.middle.costs)


def _differs(run: PointCosts) -> bool:
    return any(
        figure in run.expected and run.traffic(figure) != run.expected[figure]
        for figure in ("calls", "words")
    )


def _traffic(name: str, run: PointCosts) -> tuple[str, ...]:
    cells = [name]
    for figure in ("calls", "words"):
        measured = run.traffic(figure)
        formula = run.expected.get(figure)
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
    """Return the table of failed runs, with the reasons; None if no run failed."""
    if not problem.failed:
        return None
    return Table(
        name="failed",
        title="Runs that failed",
        caption="They are in no figure and in no other table.",
        head=("run", "ended", "why"),
        rows=tuple(
            (
                p.source.key or p.label,
                p.outcome.status or "no status",
                p.outcome.error or NONE,
            )
            for p in problem.failed
        ),
        texts=3,
    )


def saved_table(problem: Problem) -> Table | None:
    """Return the table of preempted or interrupted runs; None if there are none."""
    if not problem.saved:
        return None
    return Table(
        name="preempted",
        title="Runs that were preempted",
        caption="They were stopped before their end. hpcsgd train --resume continues a"
        " saved run, and hpcsgd study --resume repeats it. They are in no figure and in"
        " no other table.",
        head=("run", "ended"),
        rows=tuple((p.source.key or p.label, p.outcome.status) for p in problem.saved),
        texts=2,
    )


LARGEST = 10  # rows of the table of weights
MODELS = 6  # columns of it: more do not fit on a page


def weights_table(problem: Problem) -> Table | None:
    """Return the table of the largest weights, with a column for each of some models.

    The rows are the largest weights of the model of least loss. Runs whose weights were
    not saved, cannot be read or have another shape are left out, and so are models
    after the first `MODELS`. The result is None if no model is left.
    """
    models = {}
    for setting in problem.settings:
        model = _model_of(setting.middle)
        if model is not None:
            models[setting.named(problem.settings)] = model
    if not models:
        return None
    best = min(models.values(), key=lambda model: model.loss)
    shown = {n: m for n, m in models.items() if m.weights.shape == best.weights.shape}
    shown = dict(list(shown.items())[:MODELS])
    entries = best.largest_weights(LARGEST)
    by_class = "class" in entries[0]
    rows = []
    for entry in entries:
        place = [entry["column"]]
        cells = [str(entry.get("name", f"column {entry['column']}"))]
        if by_class:
            place.append(best.report["labels"].index(entry["class"]))
            cells.append(str(entry["class"]))
        cells += [figures(float(m.weights[tuple(place)]), 4) for m in shown.values()]
        rows.append(tuple(cells))
    return Table(
        name="weights",
        title="Largest weights",
        caption="The largest weights of the model with the smallest loss, beside the"
        " same weights of the other models. Weights of columns that were scaled in"
        " different ways have different units.",
        head=("column", *(("class",) if by_class else ()), *shown),
        rows=tuple(rows),
        texts=2 if by_class else 1,
    )


def _model_of(point: ReportPoint) -> Result | None:
    """Return the model of a run, or None.

    It is None if its weights were not saved or cannot be read, or if there are several
    models.
    """
    if not point.source.model:
        return None
    try:
        model = load_result(point.source.model)
    except (HpcsgdError, OSError) as error:
        log.warning(
            "the report leaves out the weights of %s: %s", point.source.model, error
        )
        return None
    return None if "models" in model.report or not model.weights.size else model


def machine_table(points: Sequence[ReportPoint]) -> Table:
    """Return the table of machines, software versions and load of all runs."""
    machines = [point.machine for point in points]
    rows = [
        ("machine", _all(m.host for m in machines)),
        ("processor", _all(m.processor for m in machines)),
        ("cores", _all(str(m.cores) for m in machines if m.cores)),
        ("network", _all(m.network or "as it is" for m in machines)),
        ("messages carried by", _all(m.transport for m in machines)),
        ("load before a run", _ends([m.load for m in machines])),
        ("share of the ranks' time on a core", _ends([_busy(p) for p in points])),
        ("energy read by", _all(p.costs.energy_source for p in points)),
        ("runs", whole(len(points))),
        ("seeds", whole(len({p.seed for p in points}))),
    ]
    names = dict.fromkeys(name for m in machines for name in m.versions)
    rows += [(name, _all(m.versions.get(name, "") for m in machines)) for name in names]
    return Table(
        name="machine",
        title="Machine and versions",
        caption="As the runs have recorded it; – if no run has recorded it.",
        head=("fact", "value"),
        rows=tuple(rows),
        texts=2,
    )


def _all(values: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(v for v in values if v)) or NONE


def _ends(values: Iterable[float | None]) -> str:
    numbers = [value for value in values if value is not None]
    if not numbers:
        return NONE
    low = figures(min(numbers), 2)
    high = figures(max(numbers), 2)
    return low if low == high else f"{low} … {high}"


def _busy(point: ReportPoint) -> float | None:
    """Return CPU seconds over seconds of the ranks; below 1 ranks waited for a core."""
    if not point.costs.cpu or not point.costs.wall:
        return None
    return point.costs.cpu / (point.costs.wall * point.config.ranks)


# A report has a verdict, charts and tables for each problem.


@dataclass(frozen=True)
class ProblemPart:
    """The part of a report on one problem."""

    problem: Problem
    verdict: str
    charts: tuple[Chart, ...]
    tables: tuple[Table, ...]
    notes: tuple[str, ...] = ()  # sentences on figures that are left out


@dataclass(frozen=True)
class Report:
    """The contents of the page of a report."""

    title: str
    lead: str
    parts: tuple[ProblemPart, ...]
    machine: Table
    foot: str

    @property
    def charts(self) -> list[Chart]:
        """The charts of all parts."""
        return [chart for part in self.parts for chart in part.charts]

    def as_dict(self) -> dict[str, Any]:
        """Return the results as a dict; numbers that are not finite become None."""
        document: Any = finite({"parts": [_document(part) for part in self.parts]})
        return dict(document)


def make_report(folders: Sequence[str | Path]) -> Report:
    """Return the report on all runs in some folders.

    Parameters
    ----------
    folders : sequence of path-like
        Folders of studies, of comparisons or of runs.
    """
    points = read_folders([Path(folder) for folder in folders])
    problems = problems_of(points)
    names = ", ".join(Path(folder).resolve().name for folder in folders)
    good = sum(point.is_good for point in points)
    saved = sum(point.is_saved for point in points)
    failed = len(points) - good - saved
    lead = f"{good} run{'s' if good != 1 else ''} in {names}"
    lead += f"; {failed} failed" if failed else ""
    lead += f"; {saved} preempted" if saved else ""
    return Report(
        title=f"hpcsgd: {names}",
        lead=lead,
        parts=tuple(_part(p, n, len(problems)) for n, p in enumerate(problems, 1)),
        machine=machine_table(points),
        foot=f"Made by hpcsgd {hpcsgd.__version__}.",
    )


def _part(problem: Problem, number: int, count: int) -> ProblemPart:
    charts = [
        *loss_curves(problem),
        *scaling_charts(problem),
        *split_chart(problem),
        *energy_chart(problem),
        *heat_maps(problem),
    ]
    if count > 1:  # the files and the anchors of several problems need different names
        charts = [replace(c, name=f"{c.name}-of-{number}") for c in charts]
    tables = [
        *(settings_table(problem), traffic_table(problem)),
        *(weights_table(problem), failed_table(problem), saved_table(problem)),
    ]
    notes = [missing_split(problem)] if problem.settings else []
    return ProblemPart(
        problem,
        verdict(problem),
        tuple(charts),
        tuple(table for table in tables if table is not None),
        tuple(note for note in notes if note),
    )


def _document(part: ProblemPart) -> dict[str, Any]:
    return {
        "problem": part.problem.title,
        "verdict": part.verdict,
        "figures": [chart.name for chart in part.charts],
        "notes": list(part.notes),
        "network": part.problem.network or None,
        "settings": [_figures(s, part.problem) for s in part.problem.settings],
        "failed": [
            {"key": p.source.key, "status": p.outcome.status, "error": p.outcome.error}
            for p in part.problem.failed
        ],
        "preempted": [
            {"key": p.source.key, "status": p.outcome.status}
            for p in part.problem.saved
        ],
    }


def _figures(setting: RunSetting, problem: Problem) -> dict[str, Any]:
    config = setting.config
    time = setting.per_epoch
    costs = setting.middle.costs
    energy = setting.over(lambda point: point.costs.joules)
    speed_up = problem.speed_up(setting)
    return {
        "name": setting.named(problem.settings),
        "method": setting.label,
        "ranks": setting.width,
        "mark": setting.mark,
        "grid": [config.replicas, config.members],
        "batch": config.batch,
        "steps": config.steps,
        "product": config.product,
        "recipe": config.recipe,
        "epochs": config.epochs,
        "runs": len(setting.points),
        "speed_up_one_rank": speed_up.median if speed_up else None,
        "efficiency": problem.efficiency(setting),
        "seconds_per_epoch": [time.low, time.median, time.high],
        "seconds_per_step": setting.per_step.median if setting.per_step else None,
        "loss": setting.middle.outcome.loss,
        "calls": costs.traffic("calls"),
        "words": costs.traffic("words"),
        "expected": dict(costs.expected) or None,
        "joules": energy.median if energy else None,
    }


# The style of the page: on a screen, light or dark as the reader prefers, and on paper.

CSS = f"""
:root {{ color-scheme: light; --ink: {INK}; --soft: #555; --rule: #d8d8d8;
  --ground: {GROUND}; --verdict: #f2f7fb; --marked: #fbe3d3; }}
@media screen and (prefers-color-scheme: dark) {{
  :root {{ color-scheme: dark; --ink: {DARK[INK]}; --soft: #a8adb2; --rule: #353a40;
    --ground: {DARK[GROUND]}; --verdict: #1b2833; --marked: #4a2a14;
    {dark_colours()} }}
}}
"""
CSS += """
* { box-sizing: border-box; }
html { background: var(--ground); }
body { margin: 0 auto; padding: 2.2rem 1.6rem 3rem; max-width: 76rem; color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Helvetica, Arial,
  "Liberation Sans", sans-serif; background: var(--ground); }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .3rem; letter-spacing: -.01em; }
h2 { font-size: 1.35rem; margin: 2.6rem 0 .6rem; padding-top: .9rem;
  border-top: 2px solid var(--ink); }
h3 { font-size: 1.05rem; margin: 1.8rem 0 .5rem; }
p.lead { color: var(--soft); margin: 0 0 1rem; }
p.verdict { border-left: 5px solid #0072b2; background: var(--verdict); margin: 1rem 0;
  padding: .8rem 1.1rem; font-size: 1.1rem; max-width: 62rem; }
.verdict span { white-space: nowrap; }
.figures { display: grid; gap: 1.6rem 2rem; align-items: start;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); }
.figures + .maps { margin-top: 1.8rem; }
.maps { display: flex; flex-wrap: wrap; gap: 1.6rem 2rem; align-items: flex-start; }
.maps figure { max-width: 34rem; }
figure { margin: 0; }
figure h3 { margin: 0 0 .3rem; }
figure svg { display: block; max-width: 100%; height: auto; }
figcaption { color: var(--soft); font-size: .84rem; line-height: 1.4;
  margin-top: .35rem;
  max-width: 40rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .84rem; line-height: 1.3;
  font-variant-numeric: tabular-nums lining-nums; }
caption { caption-side: bottom; text-align: left; color: var(--soft);
  padding-top: .45rem;
  line-height: 1.4; max-width: 62rem; }
th, td { padding: .3rem .7rem .3rem 0; text-align: right; white-space: nowrap;
  vertical-align: top; }
th.word, td.word { text-align: left; }
td.long { white-space: normal; min-width: 16rem; }
thead th { border-bottom: 1.5px solid var(--ink); vertical-align: bottom; }
tbody tr + tr > * { border-top: 1px solid var(--rule); }
tbody th { font-weight: 600; }
td.marked { font-weight: 700; background: var(--marked); outline: 1.5px solid #d55e00; }
footer { margin-top: 3rem; color: var(--soft); font-size: .84rem; }
@media print {
  @page { margin: 14mm; }
  body { max-width: none; padding: 0; font-size: 10.5pt; }
  .figures { grid-template-columns: 1fr 1fr; gap: 5mm 7mm; }
  .figures figure.bars { grid-column: 1 / -1; }
  figure.bars svg { max-width: 145mm; }
  figure, tr, p.verdict { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
  .scroll { overflow: visible; }
  table { font-size: 7pt; }
  th, td { padding: 1.2pt 4pt 1.2pt 0; }
  figcaption, caption { font-size: 8pt; }
  p.verdict, td.marked { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
"""


# The report is one HTML page that needs no network and no script.

LONG = 48  # characters from which a cell may break into lines


def page(report: Report) -> str:
    """Return the whole document; without matplotlib it has tables and no figures."""
    several = len(report.parts) > 1
    try:
        parts = "".join(
            _page_part(part, several, _page_figures(part)) for part in report.parts
        )
    except MissingPackage as missing:
        note = f'<p class="lead">{escape(capitalized(missing))}</p>\n'
        parts = "".join(_page_part(part, several, note) for part in report.parts)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # The browser refuses to load anything from outside, and reports an attempt.
        '<meta http-equiv="Content-Security-Policy"'
        " content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{escape(report.title)}</title>\n<style>{CSS}</style>\n</head>\n<body>\n"
        f"<header><h1>{escape(report.title)}</h1>\n"
        f'<p class="lead">{escape(report.lead)}</p></header>\n<main>\n{parts}'
        f"<section><h2>{escape(report.machine.title)}</h2>{_table(report.machine)}"
        f"</section>\n</main>\n<footer>{escape(report.foot)}</footer>\n</body>\n</html>\n"
    )


def escape(text: str) -> str:
    """Return any text as HTML, with special characters escaped."""
    return _escape(clean(text), quote=True)


def capitalized(missing: MissingPackage) -> str:
    """Return the message of an error with a capital letter."""
    text = str(missing)
    return f"{text[:1].upper()}{text[1:]}"


def _page_part(part: ProblemPart, with_title: bool, figures: str) -> str:
    """Return one problem as HTML: verdict, figures, tables."""
    title = part.problem.title if with_title else "Result"
    return (
        f"<section><h2>{escape(title)}</h2>\n"
        f'<p class="verdict">{_unbroken(part.verdict)}</p>\n{figures}'
        + "".join(f'<p class="lead">{escape(note)}</p>\n' for note in part.notes)
        + "".join(
            f"<h3>{escape(table.title)}</h3>{_table(table)}" for table in part.tables
        )
        + "</section>\n"
    )


def _page_figures(part: ProblemPart) -> str:
    """Return the figures of a problem as HTML: curves and bars, then heat maps."""
    curves = [chart for chart in part.charts if not chart.draws_title]
    maps = [chart for chart in part.charts if chart.draws_title]
    return _in_rows(curves, "figures") + _in_rows(maps, "maps")


def _unbroken(sentence: str) -> str:
    """Return a sentence as HTML in which words with hyphens stay on one line."""
    words = (escape(word) for word in sentence.split(" "))
    return " ".join(f"<span>{w}</span>" if "-" in w else w for w in words)


def _in_rows(charts: Sequence[Chart], kind: str) -> str:
    figures = "".join(_figure(chart) for chart in charts)
    return f'<div class="{kind}">{figures}</div>\n' if figures else ""


def _figure(chart: Chart) -> str:
    title = "" if chart.draws_title else f"<h3>{escape(chart.title)}</h3>"
    kind = type(chart).__name__.lower()
    return (
        f'<figure id="{escape(chart.name)}" class="{kind}">{title}'
        f"{svg(chart, in_page=True)}"
        f"<figcaption>{escape(chart.caption)}</figcaption></figure>\n"
    )


def _table(table: Table) -> str:
    head = "".join(
        f'<th scope="col"{_class(table, column)}>{escape(cell)}</th>'
        for column, cell in enumerate(table.head)
    )
    rows = "".join(_row(table, number) for number in range(len(table.rows)))
    return (
        '<div class="scroll" tabindex="0" role="group"'
        f' aria-label="{escape(table.title)}">'
        f"<table><caption>{escape(table.caption)}</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>\n"
    )


def _row(table: Table, number: int) -> str:
    cells = []
    for column, cell in enumerate(table.rows[number]):
        name = _class(table, column, cell, (number, column) in table.marked)
        if column == 0:
            cells.append(f'<th scope="row"{name}>{escape(cell)}</th>')
        else:
            cells.append(f"<td{name}>{escape(cell)}</td>")
    return f"<tr>{''.join(cells)}</tr>\n"


def _class(table: Table, column: int, cell: str = "", marked: bool = False) -> str:
    names = ["word"] if column < table.texts else []
    names += ["long"] if len(cell) > LONG and column < table.texts else []
    names += ["marked"] if marked else []
    return f' class="{" ".join(names)}"' if names else ""


# The page and the files of its figures.


def write_page(report: Report, path: str | Path) -> Path:
    """Write the report as an HTML page, whole or not at all; return its path."""
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, page(report))
    except OSError as error:
        raise ConfigError(
            f"cannot write the report {path}: {error.strerror}; choose a place that can"
            " be written"
        ) from error
    return path


def write_figures(report: Report, folder: str | Path) -> list[Path]:
    """Write every figure as .csv and, with matplotlib, as .svg and .png.

    Return the paths of the files.
    """
    folder = Path(folder)
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for chart in report.charts:
            written.append(folder / f"{chart.name}.csv")
            write_text(written[-1], csv_text(chart))
        for chart in report.charts:
            write_text(folder / f"{chart.name}.svg", svg(chart))
            png(chart, folder / f"{chart.name}.png")
            written += [folder / f"{chart.name}{kind}" for kind in (".svg", ".png")]
    except MissingPackage as missing:
        log.info("tables but no figures were written into %s: %s", folder, missing)
    except OSError as error:
        raise ConfigError(
            f"cannot write figures into {folder}: {error.strerror}; choose a folder"
            " that can be written"
        ) from error
    return written
