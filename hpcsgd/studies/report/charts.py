"""Charts of a report: bars, curves, heat maps, scaling."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from hpcsgd.studies.plots.charts import (
    CROWDED,
    EMULATED,
    Axis,
    Bar,
    Bars,
    Chart,
    Heat,
    Lines,
    Series,
    figures,
    with_unit,
)
from hpcsgd.studies.report.points import Problem, ReportPoint, RunSetting, Spread

# Time, speed-up and efficiency over ranks, beside the ideal.

Line = tuple[str, list[RunSetting]]
Ratio = Callable[[float, int, int], float]  # time over time, ranks, ranks at first


EMULATED_NETWORK = " (emulated)"


def scaling_charts(problem: Problem) -> list[Chart]:
    """Nothing where no method was measured on two numbers of ranks."""
    lines = lines_of(problem.settings)
    if not lines:
        return []
    charts = [_times(lines, problem.is_weak)]
    if problem.is_weak:
        charts += [_weak_efficiency(lines)]
    else:
        charts += [_speed_ups(lines), _efficiency(lines)]
    return [_looking_alike(chart, lines, problem.labels) for chart in charts]


def _looking_alike(chart: Lines, lines: Sequence[Line], labels: list[str]) -> Lines:
    """Every method as it looks in the other charts; emulated, as none."""
    looks = [
        labels.index(line[-1].label) + len(labels) * bool(line[-1].first.emulated)
        for _, line in lines
    ]
    pairs = zip(chart.series, looks, strict=True)
    return replace(chart, series=tuple(replace(s, look=look) for s, look in pairs))


def lines_of(settings: Sequence[RunSetting]) -> list[Line]:
    """Of each method the setting with the shortest epoch at each number of ranks.

    Emulated and real runs are apart, but for where emulated ones begin: one rank alone
    has no others to make up.
    """
    found: dict[str, dict[int, RunSetting]] = {}
    for setting in settings:
        name = setting.label + EMULATED_NETWORK * bool(setting.first.emulated)
        best = found.setdefault(name, {}).get(setting.width)
        if best is None or setting.per_epoch.median < best.per_epoch.median:
            found[name][setting.width] = setting
    for name, by_width in found.items():
        _begin_as_real(by_width, found.get(name.removesuffix(EMULATED_NETWORK), {}))
    return [
        (name, [by_width[width] for width in sorted(by_width)])
        for name, by_width in found.items()
        if len(by_width) > 1
    ]


def _begin_as_real(
    by_width: dict[int, RunSetting], real: dict[int, RunSetting]
) -> None:
    """Give emulated settings the one rank that is the same for both."""
    if 1 in real:
        by_width.setdefault(1, real[1])


def _widths(lines: Sequence[Line]) -> tuple[float, ...]:
    return tuple(float(w) for w in sorted({s.width for _, line in lines for s in line}))


def _ranks(lines: Sequence[Line]) -> Axis:
    return Axis("ranks", log=True, ticks=_widths(lines))


def _times(lines: Sequence[Line], weak: bool) -> Lines:
    widths = _widths(lines)
    first = min(
        (s for _, line in lines for s in line if s.width == widths[0]),
        key=lambda s: s.per_epoch.median,
    ).per_epoch.median
    falls = tuple(first if weak else first * widths[0] / width for width in widths)
    return Lines(
        name="time-ranks",
        title="Time of an epoch over ranks",
        caption="Seconds of one pass over the rows, on logarithmic axes; medians, bars"
        " from the shortest to the longest repeat. The thin line is the ideal from the"
        " fastest setting on the fewest ranks."
        + (" The rows grow with the ranks." if weak else ""),
        x=_ranks(lines),
        y=Axis("time of an epoch", "s", log=True),
        series=tuple(
            _scaling_series(name, line, lambda s: s.per_epoch) for name, line in lines
        ),
        ideal=Series("ideal", widths, falls),
    )


def _speed_ups(lines: Sequence[Line]) -> Lines:
    widths = _widths(lines)
    return Lines(
        name="speed-up",
        title="Speed-up",
        caption="Time of an epoch on the fewest ranks of the same method, times these"
        " ranks, over the time; the thin line is the ideal. Medians, bars from the"
        " slowest to the fastest repeat.",
        x=_ranks(lines),
        y=Axis("speed-up", log=True),
        series=tuple(_ratios(line, name, _speed_up) for name, line in lines),
        ideal=Series("ideal", widths, widths),
    )


def _efficiency(lines: Sequence[Line]) -> Lines:
    return _percent(
        lines,
        "Speed-up over ranks: 100 % is the ideal. Medians, bars from the slowest to the"
        " fastest repeat.",
        lambda ratio, width, first: 100.0 * ratio * first / width,
    )


def _weak_efficiency(lines: Sequence[Line]) -> Lines:
    return _percent(
        lines,
        "Time of an epoch on the fewest ranks of the same method over the time, where"
        " the rows grow with the ranks: 100 % is the ideal. Medians, bars from the"
        " slowest to the fastest repeat.",
        lambda ratio, width, first: 100.0 * ratio,
    )


def _percent(lines: Sequence[Line], caption: str, ratio: Ratio) -> Lines:
    widths = _widths(lines)
    return Lines(
        name="efficiency",
        title="Efficiency",
        caption=caption,
        x=_ranks(lines),
        y=Axis("efficiency", "%", from_zero=True, shows_bars=False),
        series=tuple(_ratios(line, name, ratio) for name, line in lines),
        ideal=Series("ideal", widths, tuple(100.0 for _ in widths)),
    )


def _speed_up(ratio: float, width: int, first: int) -> float:
    return ratio * first


def _ratios(line: Sequence[RunSetting], name: str, ratio: Ratio) -> Series:
    """Of medians; the slowest repeat is the low end."""
    base, first = line[0].per_epoch.median, line[0].width

    def figure(setting: RunSetting) -> Spread:
        time = setting.per_epoch
        return Spread(
            *(
                ratio(base / t, setting.width, first)
                for t in (time.median, time.high, time.low)
            )
        )

    return _scaling_series(name, line, figure)


def _scaling_series(
    name: str, line: Sequence[RunSetting], figure: Callable[[RunSetting], Spread]
) -> Series:
    spreads = [figure(setting) for setting in line]
    return Series(
        name=name,
        x=tuple(float(setting.width) for setting in line),
        y=tuple(s.median for s in spreads),
        low=tuple(s.low for s in spreads),
        high=tuple(s.high for s in spreads),
        marks=tuple(setting.mark for setting in line),
    )


# Which setting is best, in one sentence, and what the sentence rests on.

ENOUGH = 3  # repeats from which a spread says something


@dataclass(frozen=True)
class TimeToLoss:
    """A setting, and the seconds that it took to the common loss."""

    setting: RunSetting
    seconds: Spread


def common_loss(settings: Sequence[RunSetting]) -> float | None:
    """The lowest loss that every run of every setting reaches."""
    bests = [_best(point) for s in settings for point in s.points]
    known = [best for best in bests if best is not None]
    return max(known) if known else None


def _best(point: ReportPoint) -> float | None:
    """The lowest loss after the first exchange; None where there is none."""
    losses = [r["loss"] for r in point.history if "loss" in r and r.get("exchanges", 1)]
    return min(losses, default=None)


def learnt_nothing(setting: RunSetting) -> bool:
    """Return whether a run of it has no loss below the one that it began with."""
    return any(_never_fell(point) for point in setting.points)


def _never_fell(point: ReportPoint) -> bool:
    first = next((r["loss"] for r in point.history if "loss" in r), None)
    best = _best(point)
    return first is not None and best is not None and best >= first


def time_to(point: ReportPoint, loss: float) -> float | None:
    """Seconds at the first loss that is as low; no value between two is made up."""
    for record in point.history:
        if record.get("loss", float("inf")) <= loss and "seconds" in record:
            return record["seconds"]
    return None


def ranking(settings: Sequence[RunSetting]) -> tuple[float, list[TimeToLoss]] | None:
    """The common loss, and who reached it, fastest first; None where nobody has one.

    Settings with a run that never came below where it began are in neither.
    """
    learnt = [
        s
        for s in settings
        if any(_best(p) is not None for p in s.points) and not learnt_nothing(s)
    ]
    loss = common_loss(learnt)
    if loss is None:
        return None
    found = []
    for setting in learnt:
        seconds = setting.over(lambda point: time_to(point, loss))
        if seconds is not None:
            found.append(TimeToLoss(setting, seconds))
    return loss, sorted(found, key=lambda reached: reached.seconds.median)


def fastest_of_each(settings: Sequence[RunSetting]) -> list[RunSetting]:
    """Of every method the setting that is first at the common loss; of one, all."""
    ranked = ranking(settings)
    order = [r.setting for r in ranked[1]] if ranked else []
    rest = sorted(settings, key=lambda s: s.per_epoch.median)
    if len({s.label for s in settings}) == 1:
        known = {id(setting) for setting in order}
        return order + [setting for setting in rest if id(setting) not in known]
    chosen: dict[str, RunSetting] = {}
    for setting in [*order, *rest]:
        chosen.setdefault(setting.label, setting)
    return list(chosen.values())


def verdict(problem: Problem) -> str:
    """One sentence, or two: which is best, by how much, and how sure that is."""
    settings, ranked = problem.settings, ranking(problem.settings)
    if not settings:
        return "No run of it was finished, so there is nothing to choose from."
    if problem.is_weak:
        return _of_weak(settings)
    if ranked is None or not ranked[1]:
        return _without_loss(settings)
    loss, order = ranked
    left_out = _left_out(settings)
    if len(order) < 2:
        return (
            f"Only one setting was measured, {_name(order[0], settings)}; it takes at"
            f" least two to say which is better.{left_out}"
        )
    best, second = order[0], order[1]
    times = second.seconds.median / best.seconds.median if best.seconds.median else 1.0
    return (
        f"Fastest to the loss {figures(loss, 4)}, the lowest that all {len(order)}"
        f" settings reach, is {_name(best, settings)}: {_seconds(best)}, against"
        f" {_seconds(second)} of {_name(second, settings)} ({figures(times)} times)."
        f" {_how_sure(best, second)}".rstrip()
        + left_out
    )


def _left_out(settings: Sequence[RunSetting]) -> str:
    """Return the sentence on settings whose loss never fell, behind the others."""
    names = [s.named(settings) for s in settings if learnt_nothing(s)]
    if not names:
        return ""
    return (
        f" Left out, as the loss never fell below where it began: {', '.join(names)};"
        " lower the rate."
    )


def _of_weak(settings: Sequence[RunSetting]) -> str:
    """Whose time grows least, where the rows grow with the ranks."""
    said = "The rows grow with the ranks, so no loss is common to all settings."
    ends = [(line[0], line[-1]) for _, line in lines_of(settings)]
    if not ends:
        return f"{said} No method was measured on two numbers of ranks yet."
    first, last = min(ends, key=lambda pair: _growth(*pair))
    times = [with_unit(s.per_epoch.median, "s") for s in (first, last)]
    ideal = figures(100 / _growth(first, last), 2)
    return (
        f"{said} The time of an epoch grows least with {last.label}: from {times[0]} on"
        f" {_ranks_of_verdict(first)} to {times[1]} on {_ranks_of_verdict(last)},"
        f" {ideal} % of the ideal."
    )


def _growth(first: RunSetting, last: RunSetting) -> float:
    return last.per_epoch.median / first.per_epoch.median


def _ranks_of_verdict(setting: RunSetting) -> str:
    return f"{setting.width} rank{'' if setting.width == 1 else 's'}"


def _without_loss(settings: Sequence[RunSetting]) -> str:
    """Emulated runs learn nothing; their steps have times all the same."""
    if any(learnt_nothing(s) for s in settings):
        return f"No setting ended below where it began.{_left_out(settings)}"
    if len(settings) < 2:
        return "Only one setting was measured, without a loss; there is no choice yet."
    best = min(settings, key=lambda s: s.per_epoch.median)
    return (
        "No run has a loss after its first exchange, so the best is only the one with"
        f" the shortest epoch: {best.named(settings)},"
        f" {with_unit(best.per_epoch.median, 's')}."
    )


def _how_sure(best: TimeToLoss, second: TimeToLoss) -> str:
    """What stands against the sentence before."""
    if best.setting.mark:
        return "It ran with more ranks than cores, so its times say little."
    fewest = min(len(best.setting.points), len(second.setting.points))
    if fewest < ENOUGH:
        runs = "one run" if fewest == 1 else f"{fewest} runs"
        return f"That rests on {runs} of a setting: repeat it to know how sure it is."
    if second.seconds.low <= best.seconds.high:
        return "Their repeats overlap: the order of these two may be chance."
    return ""


def _seconds(reached: TimeToLoss) -> str:
    return with_unit(reached.seconds.median, "s")


def _name(reached: TimeToLoss, settings: Sequence[RunSetting]) -> str:
    return reached.setting.named(settings)


# Where the time went, and the energy.

MOST = 16  # bars of one chart
PARTS = ("compute", "network", "I/O", "Python")
NOTES = {CROWDED: "> cores", EMULATED: "emulated"}


def selected_settings(problem: Problem) -> list[RunSetting]:
    """Return the settings to draw: all where they are few, else the scaling lines, else
    the fastest of each.
    """
    settings = list(problem.settings)
    if len(settings) > MOST:
        settings = [s for _, line in lines_of(settings) for s in line]
    if not settings or len(settings) > MOST:
        settings = fastest_of_each(problem.settings)[:MOST]
    order = list(dict.fromkeys(s.label for s in settings))
    return sorted(settings, key=lambda s: (order.index(s.label), s.width))


def split_chart(problem: Problem) -> list[Chart]:
    """The parts of an epoch, stacked, for each setting."""
    settings = [s for s in selected_settings(problem) if s.middle.phases]
    if not settings:
        return []
    return [
        Bars(
            name="time-split",
            title="Where the time of an epoch went",
            caption="Median seconds of one epoch, shared out as on rank 0 of the middle"
            " run: compute (products, recurrence, update), network (sums and"
            " agreements, waiting for others included), I/O (rows gathered from memory"
            " or from the file), Python (drawing rows, and all between). Thin bars:"
            " shortest to longest repeat.",
            axis=Axis("time of an epoch", "s"),
            parts=PARTS,
            bars=tuple(_split(s, settings) for s in settings),
        )
    ]


def _split(setting: RunSetting, others: Sequence[RunSetting]) -> Bar:
    run, spread = setting.middle, setting.per_epoch
    split = run.split()
    # Of an even number of runs none has the median time: its shares are shown.
    parts = tuple(spread.median * part / sum(split) for part in split)
    name = setting.named(others)
    return Bar(name, parts, spread.low, spread.high, _note(setting, name))


def _note(setting: RunSetting, name: str) -> str:
    """How it was measured, unless its name says so."""
    note = NOTES.get(setting.mark, "")
    return "" if note and note in name else note


def energy_chart(problem: Problem) -> list[Chart]:
    """Joules of a run, where they are known."""
    settings = [
        s for s in selected_settings(problem) if s.over(lambda p: p.joules) is not None
    ]
    if not settings:
        return []
    sources = {p.energy_source for s in settings for p in s.points if p.energy_source}
    return [
        Bars(
            name="energy",
            title="Energy to solution",
            caption="Joules of one run over all its nodes, counted by"
            f" {' and '.join(sorted(sources)).upper() or 'the machine'}, evaluations"
            " left out;"
            " medians, thin bars from the smallest to the largest repeat.",
            axis=Axis("energy of a run", "J"),
            parts=("energy",),
            bars=tuple(_energy(s, settings) for s in settings),
        )
    ]


def _energy(setting: RunSetting, others: Sequence[RunSetting]) -> Bar:
    found = setting.over(lambda point: point.joules)
    assert found is not None
    name = setting.named(others)
    return Bar(name, (found.median,), found.low, found.high, _note(setting, name))


# The loss, against what it costs: time, steps, words.

MOST_CURVES = 6  # curves of one chart
FASTEST = (
    " Of each method its fastest setting (of one method alone, the fastest ones), on"
    " the largest number of ranks that all have."
)
APART = 20.0  # how many times one line may be longer before the axis is logarithmic
Record = Mapping[str, float]
KINDS: tuple[
    tuple[str, str, str, str, Callable[[ReportPoint, Record], float | None]], ...
] = (
    (
        *("time", "training time", "s", "seconds of training, evaluations left out"),
        lambda point, record: record.get("seconds"),
    ),
    (
        *("steps", "steps of a replica", "", "steps of SGD that each replica has done"),
        lambda point, record: record.get("iterations"),
    ),
    (
        *(
            "words",
            "sent by rank 0",
            "words",
            "words that rank 0 has sent",
        ),
        lambda point, record: words_at(point, record),
    ),
)


def loss_curves(problem: Problem) -> list[Lines]:
    """A chart for each kind of cost that is known."""
    settings = [s for s in chosen(problem) if len(s.middle.history) > 1]
    if problem.is_weak or not settings:
        return []
    charts = [_chart(problem, settings, *kind) for kind in KINDS]
    return [chart for chart in charts if chart is not None]


def chosen(problem: Problem) -> list[RunSetting]:
    """All where they are few; else the fastest of each method, on as many ranks."""
    real = [s for s in problem.settings if not s.first.emulated]
    if len(real) > MOST_CURVES:
        widths = [{s.width for s in real if s.label == one} for one in problem.labels]
        common = set.intersection(*(width for width in widths if width))
        if common:
            real = [s for s in real if s.width == max(common)]
        real = fastest_of_each(real)[:MOST_CURVES]
    return sorted(real, key=lambda s: (problem.labels.index(s.label), s.width))


def words_at(point: ReportPoint, record: Record) -> float | None:
    """What was sent until then; older results know the sum alone."""
    if "words" in record:
        return record["words"]
    total, last = point.traffic("words"), point.history[-1].get("exchanges", 0.0)
    if total is None or not last:
        return None
    return total * record.get("exchanges", 0.0) / last


def _chart(
    problem: Problem,
    settings: Sequence[RunSetting],
    name: str,
    title: str,
    unit: str,
    what: str,
    cost: Callable[[ReportPoint, Record], float | None],
) -> Lines | None:
    looks = _looks(problem, settings)
    named = [(s.named(settings), _points(s.middle, cost)) for s in settings]
    lines = [(n, p, look) for (n, p), look in zip(named, looks, strict=True) if p]
    # One rank alone sends nothing, and one point is no curve.
    lines = [one for one in lines if len(one[1]) > 1 and one[1][-1][0] > 0]
    if not lines:
        return None
    log_x = _is_wide([points[-1][0] for _, points, _ in lines])
    losses = [loss for _, points, _ in lines for _, loss in points]
    log_y = min(losses) > 0 and max(losses) / min(losses) > APART
    few = "" if len(settings) == len(problem.settings) else FASTEST
    few += " A logarithmic axis does not show the loss before the first step." * log_x
    estimate = _is_estimate(name, settings)
    return Lines(
        name=f"loss-{name}",
        title=f"Loss against {'words sent' if name == 'words' else title}",
        caption=f"Loss on all rows against {what}; for each setting the run of median"
        f" time.{few}{estimate}",
        x=Axis(title, unit, log=log_x, from_zero=not log_x),
        y=Axis("loss on all rows", log=log_y),
        series=tuple(
            _series(said, _shown(points, log_x), look) for said, points, look in lines
        ),
    )


def _series(name: str, points: Sequence[tuple[float, float]], look: int) -> Series:
    x, y = zip(*points, strict=True)
    return Series(name, tuple(x), tuple(y), look=look)


def _looks(problem: Problem, settings: Sequence[RunSetting]) -> list[int]:
    """That of the method, unless one method has several lines."""
    if len({s.label for s in settings}) < len(settings):
        return list(range(len(settings)))
    return [problem.labels.index(s.label) for s in settings]


def _is_estimate(name: str, settings: Sequence[RunSetting]) -> str:
    records = [r for s in settings for r in s.middle.history]
    if name != "words" or all("words" in record for record in records):
        return ""
    return (
        " Words between start and end are in proportion to the exchanges: these results"
        " do not hold them."
    )


def _points(
    point: ReportPoint, cost: Callable[[ReportPoint, Record], float | None]
) -> list[tuple[float, float]]:
    found = [(cost(point, r), r.get("loss")) for r in point.history]
    known = [(x, y) for x, y in found if x is not None and y is not None]
    # The loss that a resumed run takes again stands where the first one stood.
    return known[:1] + [b for a, b in pairwise(known) if b != a]


def _is_wide(ends: Sequence[float]) -> bool:
    """Whether the longest line would squeeze the shortest into the axis."""
    known = [end for end in ends if end > 0]
    return bool(known) and max(known) / min(known) > APART


def _shown(
    points: Sequence[tuple[float, float]], log: bool
) -> Sequence[tuple[float, float]]:
    """A logarithmic axis has no 0."""
    return [p for p in points if p[0] > 0] if log else points


# Heat maps: over s and b, and over grids R x C.

Pair = Callable[[RunSetting], tuple[int, int]]  # (row, column)
FEWEST = 3  # cells from which a map says more than a table


def heat_maps(problem: Problem) -> list[Chart]:
    """Time of a step and loss, for each method where two things were varied."""
    if problem.is_weak:
        return []
    by_ranks: dict[tuple[str, int], list[RunSetting]] = {}
    by_label: dict[str, list[RunSetting]] = {}
    for setting in problem.settings:
        key = setting.label, setting.width
        by_ranks.setdefault(key, []).append(setting)
        by_label.setdefault(setting.label, []).append(setting)
    charts: list[Chart] = []
    for (label, width), group in by_ranks.items():
        ranks = "1 rank" if width == 1 else f"{width} ranks"
        charts += _maps(group, f"{label}, {ranks}", len(charts), "s-b")
    for label, group in by_label.items():
        charts += _maps(group, label, len(charts), "grid")
    return charts


def _maps(
    group: Sequence[RunSetting], name: str, number: int, kind: str
) -> list[Chart]:
    over = _steps if kind == "s-b" else _grids
    pairs = {over(setting) for setting in group}
    rows, columns = {r for r, _ in pairs}, {c for _, c in pairs}
    if len(pairs) < FEWEST or min(len(rows), len(columns)) < 2:
        return []
    return [
        chart
        for chart in (
            _time_map(group, name, number, kind),
            _loss_map(group, name, number, kind),
        )
        if chart is not None
    ]


def _steps(setting: RunSetting) -> tuple[int, int]:
    return setting.first.steps, setting.first.batch


def _grids(setting: RunSetting) -> tuple[int, int]:
    return setting.first.replicas, setting.first.members


def _time_map(
    group: Sequence[RunSetting], name: str, number: int, kind: str
) -> Heat | None:
    return _map(
        group,
        lambda s: s.per_step.median if s.per_step else None,
        kind,
        name=f"time-{kind}-{number}",
        title=f"Time of a step: {name}",
        caption="Median seconds of one step of a replica; of several settings of one"
        " cell the fastest. A larger batch does more in a step.",
        unit="s",
    )


def _loss_map(
    group: Sequence[RunSetting], name: str, number: int, kind: str
) -> Heat | None:
    return _map(
        group,
        lambda s: s.middle.loss,
        kind,
        name=f"loss-{kind}-{number}",
        title=f"Final loss: {name}",
        caption="Loss on all rows at the end of the run of median time, after as many"
        " epochs for all; of several settings of one cell the lowest.",
        unit="",
    )


def _map(
    group: Sequence[RunSetting],
    figure: Callable[[RunSetting], float | None],
    kind: str,
    name: str,
    title: str,
    caption: str,
    unit: str,
) -> Heat | None:
    over: Pair = _steps if kind == "s-b" else _grids
    cells: dict[tuple[int, int], float] = {}
    for setting in group:
        value = figure(setting)
        if value is not None:
            cells[over(setting)] = min(value, cells.get(over(setting), value))
    if len(cells) < FEWEST:
        return None
    rows, columns = sorted({r for r, _ in cells}), sorted({c for _, c in cells})
    x, y = ("batch b", "steps s") if kind == "s-b" else ("members C", "replicas R")
    return Heat(
        *(name, title, caption, x, y),
        columns=tuple(str(c) for c in columns),
        rows=tuple(str(r) for r in rows),
        cells=tuple(tuple(cells.get((r, c)) for c in columns) for r in rows),
        unit=unit,
    )
