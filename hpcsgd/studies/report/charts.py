"""Charts of a report: scaling, verdict, shares of time, energy, losses, heat maps."""

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

# Charts of time, speed-up and efficiency over ranks, with the ideal.

Line = tuple[str, list[RunSetting]]  # name of a curve, its settings by ranks
EMULATED_NETWORK = " (emulated)"


def scaling_charts(problem: Problem) -> list[Chart]:
    """Return the charts over ranks; [] if no method ran on two numbers of ranks."""
    lines = lines_of(problem.settings)
    if not lines:
        return []
    charts = [_times(lines, problem.is_weak)]
    if problem.is_weak:
        charts += [_efficiency(problem, lines)]
    else:
        charts += [_speed_ups(problem, lines), _efficiency(problem, lines)]
    return [_with_looks(chart, lines, problem.labels) for chart in charts]


def _with_looks(chart: Lines, lines: Sequence[Line], labels: list[str]) -> Lines:
    """Return the chart with a look for each line; a method has the same in all charts.

    `labels` are the names of the methods. Emulated runs of a method have another look.
    """
    styles = [
        labels.index(line[-1].label) + len(labels) * bool(line[-1].config.emulated)
        for _, line in lines
    ]
    pairs = zip(chart.series, styles, strict=True)
    return replace(chart, series=tuple(replace(s, look=look) for s, look in pairs))


def lines_of(settings: Sequence[RunSetting]) -> list[Line]:
    """Return a line for each method: its fastest setting on each number of ranks.

    A method that ran on one number of ranks only has no line.
    Emulated and real runs have lines of their own. The line of emulated runs begins
    with the real run on one rank, because one rank emulates no others.
    """
    fastest = _fastest_by_ranks(settings)
    for name, by_width in fastest.items():
        real = fastest.get(name.removesuffix(EMULATED_NETWORK), {})
        if 1 in real:
            by_width.setdefault(1, real[1])
    return [
        (name, [by_width[width] for width in sorted(by_width)])
        for name, by_width in fastest.items()
        if len(by_width) > 1
    ]


def _fastest_by_ranks(
    settings: Sequence[RunSetting],
) -> dict[str, dict[int, RunSetting]]:
    """Return the setting with the shortest epoch, by line and number of ranks."""
    fastest: dict[str, dict[int, RunSetting]] = {}
    for setting in settings:
        name = setting.label + EMULATED_NETWORK * bool(setting.config.emulated)
        best = fastest.setdefault(name, {}).get(setting.width)
        if best is None or setting.per_epoch.median < best.per_epoch.median:
            fastest[name][setting.width] = setting
    return fastest


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


def _speed_ups(problem: Problem, lines: Sequence[Line]) -> Lines:
    widths = _widths(lines)
    base, ratios = _speed_up_of(problem, lines)
    return Lines(
        name="speed-up",
        title="Speed-up",
        caption=f"Time of an epoch {base} over the time; the thin line is the ideal."
        " Medians, bars from the slowest to the fastest repeat.",
        x=_ranks(lines),
        y=Axis("speed-up", log=True),
        series=tuple(
            _scaling_series(name, line, lambda s: ratios[id(s)]) for name, line in lines
        ),
        ideal=Series("ideal", widths, widths),
    )


def _efficiency(problem: Problem, lines: Sequence[Line]) -> Lines:
    widths = _widths(lines)
    base, ratios = _speed_up_of(problem, lines)
    weak = " (times the ranks, as the rows are)" if problem.is_weak else ""

    def percent(setting: RunSetting) -> Spread:
        ratio = ratios[id(setting)]
        share = 100.0 / setting.width
        return Spread(share * ratio.median, share * ratio.low, share * ratio.high)

    return Lines(
        name="efficiency",
        title="Efficiency",
        caption=f"Speed-up over ranks: 100 % is the ideal. The speed-up{weak} is the"
        f" time of an epoch {base} over the time. Medians, bars from the slowest to the"
        " fastest repeat.",
        x=_ranks(lines),
        y=Axis("efficiency", "%", from_zero=True, shows_bars=False),
        series=tuple(_scaling_series(name, line, percent) for name, line in lines),
        ideal=Series("ideal", widths, tuple(100.0 for _ in widths)),
    )


def _speed_up_of(
    problem: Problem, lines: Sequence[Line]
) -> tuple[str, dict[int, Spread]]:
    """Return the baseline of speed-ups in words, and the speed-up of each setting.

    The speed-ups are by the id of the setting. The baseline is the best run on one
    rank. If one of the settings has no such run with its batch, the baseline of every
    setting is the first setting of its line, the one on the fewest ranks, with its time
    multiplied by its ranks, as if one rank had done the work of all. In weak scaling
    the time is multiplied by the ranks of the setting instead.
    """
    speed_ups = {id(s): problem.speed_up(s) for _, line in lines for s in line}
    spreads = {key: spread for key, spread in speed_ups.items() if spread is not None}
    if len(spreads) == len(speed_ups):
        return "of the best run on one rank (any method, the same batch)", spreads
    for _, line in lines:
        first = line[0]
        for setting in line:
            time = setting.per_epoch
            work = setting.width if problem.is_weak else first.width
            seconds = first.per_epoch.median * work
            spreads[id(setting)] = Spread(
                *(seconds / t for t in (time.median, time.high, time.low))
            )
    return "on the fewest ranks of the same method, scaled to one rank,", spreads


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


# The verdict says in a sentence which setting is best, and how sure that is.

ENOUGH = 3  # the fewest repeats whose range means something


@dataclass(frozen=True)
class TimeToLoss:
    """A setting, and the seconds until it reached the common loss."""

    setting: RunSetting
    seconds: Spread


def common_loss(settings: Sequence[RunSetting]) -> float | None:
    """Return the lowest loss that every run of every setting reaches.

    Runs without a loss do not count; the result is None if all are such.
    """
    bests = [_best(point) for s in settings for point in s.points]
    return max((best for best in bests if best is not None), default=None)


def _best(point: ReportPoint) -> float | None:
    """Return the lowest loss after the first exchange; None without a loss."""
    losses = [
        r["loss"]
        for r in point.outcome.history
        if "loss" in r and r.get("exchanges", 1)
    ]
    return min(losses, default=None)


def learnt_nothing(setting: RunSetting) -> bool:
    """Return whether a run of the setting never had a loss below its first one."""
    return any(_never_fell(point) for point in setting.points)


def _never_fell(point: ReportPoint) -> bool:
    first = next((r["loss"] for r in point.outcome.history if "loss" in r), None)
    best = _best(point)
    return first is not None and best is not None and best >= first


def time_to(point: ReportPoint, loss: float) -> float | None:
    """Return the seconds of the first record with this loss or less, or None."""
    for record in point.outcome.history:
        if record.get("loss", float("inf")) <= loss and "seconds" in record:
            return record["seconds"]
    return None


def ranking(settings: Sequence[RunSetting]) -> tuple[float, list[TimeToLoss]] | None:
    """Return the common loss and the settings that reached it, the fastest first.

    Settings without a loss, and those that have learnt nothing, do not count. The
    result is None if no setting is left.
    """
    learnt = [
        s
        for s in settings
        if any(_best(p) is not None for p in s.points) and not learnt_nothing(s)
    ]
    loss = common_loss(learnt)
    if loss is None:
        return None
    reached = []
    for setting in learnt:
        seconds = setting.over(lambda point: time_to(point, loss))
        if seconds is not None:
            reached.append(TimeToLoss(setting, seconds))
    return loss, sorted(reached, key=lambda one: one.seconds.median)


def fastest_of_each(settings: Sequence[RunSetting]) -> list[RunSetting]:
    """Return for each method the setting that reaches the common loss first.

    For a method of which no setting reaches it, the shortest epoch counts. The methods
    that reach it come first. If there is only one method, all its settings are returned
    in this order.
    """
    ranked = ranking(settings)
    order = [r.setting for r in ranked[1]] if ranked else []
    rest = sorted(settings, key=lambda s: s.per_epoch.median)
    if len({s.label for s in settings}) == 1:
        in_order = {id(setting) for setting in order}
        return order + [setting for setting in rest if id(setting) not in in_order]
    fastest: dict[str, RunSetting] = {}
    for setting in [*order, *rest]:
        fastest.setdefault(setting.label, setting)
    return list(fastest.values())


def verdict(problem: Problem) -> str:
    """Return sentences on the best setting, its lead, and how sure that is."""
    settings = problem.settings
    ranked = ranking(settings)
    if not settings:
        return "No run has finished, so there is nothing to compare."
    if problem.is_weak:
        return _of_weak(settings)
    if ranked is None or not ranked[1]:
        return _without_loss(settings)
    loss, order = ranked
    left_out = _left_out(settings)
    if len(order) < 2:
        return (
            f"Only one setting can be compared, {_name(order[0], settings)}; it takes"
            f" at least two to say which is better.{left_out}"
        )
    best = order[0]
    rival = next((r for r in order if _algorithm(r) != _algorithm(best)), None)
    text = (
        f"Fastest to the loss {figures(loss, 4)}, the lowest that all {len(order)}"
        f" settings reach, is {_name(best, settings)}: {_seconds(best)}"
    )
    if rival is None:
        text += ". All settings have the same algorithm, so there is no comparison."
        doubt = _doubt_of_times(best, settings)
    else:
        times = rival.seconds.median / best.seconds.median if best.seconds.median else 1
        text += (
            f", against {_seconds(rival)} of {_name(rival, settings)}"
            f" ({figures(times)} times)."
        )
        doubt = _doubt_of_order(best, rival)
    sentences = (text, _over_one_rank(problem, best), doubt)
    return " ".join(filter(None, sentences)) + left_out


def _algorithm(reached: TimeToLoss) -> str:
    return reached.setting.first.algorithm or reached.setting.label


def _over_one_rank(problem: Problem, best: TimeToLoss) -> str:
    """Return the sentence on the speed-up over one rank, or ""."""
    speed_up = problem.speed_up(best.setting)
    efficiency = problem.efficiency(best.setting)
    if best.setting.width == 1 or speed_up is None or efficiency is None:
        return ""
    return (
        f"Its epoch is {figures(speed_up.median)} times as fast as that of the best run"
        f" on one rank, an efficiency of {figures(100 * efficiency, 2)} %."
    )


def _left_out(settings: Sequence[RunSetting]) -> str:
    """Return the sentence on settings whose loss never fell, or ""."""
    names = [s.named(settings) for s in settings if learnt_nothing(s)]
    if not names:
        return ""
    return (
        f" Left out, as the loss never fell below where it began: {', '.join(names)};"
        " lower the rate."
    )


def _of_weak(settings: Sequence[RunSetting]) -> str:
    """Return the verdict of weak scaling: the method whose time grows least."""
    text = "The rows grow with the ranks, so no loss is common to all settings."
    ends = [(line[0], line[-1]) for _, line in lines_of(settings)]
    if not ends:
        return f"{text} No method was measured on two numbers of ranks yet."
    first, last = min(ends, key=lambda pair: _growth(*pair))
    times = [with_unit(s.per_epoch.median, "s") for s in (first, last)]
    ideal = figures(100 / _growth(first, last), 2)
    return (
        f"{text} The time of an epoch grows least with {last.label}: from {times[0]} on"
        f" {_ranks_of_verdict(first)} to {times[1]} on {_ranks_of_verdict(last)},"
        f" {ideal} % of the ideal."
    )


def _growth(first: RunSetting, last: RunSetting) -> float:
    return last.per_epoch.median / first.per_epoch.median


def _ranks_of_verdict(setting: RunSetting) -> str:
    return f"{setting.width} rank{'' if setting.width == 1 else 's'}"


def _without_loss(settings: Sequence[RunSetting]) -> str:
    """Return the verdict if losses cannot be compared.

    No run has a loss, as of emulated ranks, or no loss fell below its first value.
    """
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


def _doubt_of_order(best: TimeToLoss, rival: TimeToLoss) -> str:
    """Return the sentence on why the order of two settings is not sure, or ""."""
    doubt = _doubt_of_times(best, [best.setting, rival.setting])
    if not doubt and rival.seconds.low <= best.seconds.high:
        return "Their repeats overlap: the order of these two may be chance."
    return doubt


def _doubt_of_times(best: TimeToLoss, settings: Sequence[RunSetting]) -> str:
    """Return the sentence on too few cores or too few repeats, or ""."""
    if best.setting.mark:
        return "It ran with more ranks than cores, so its times say little."
    fewest = min(len(setting.points) for setting in settings)
    if fewest < ENOUGH:
        runs = "one run" if fewest == 1 else f"{fewest} runs"
        return f"That rests on {runs} of a setting: repeat it to know how sure that is."
    return ""


def _seconds(reached: TimeToLoss) -> str:
    return with_unit(reached.seconds.median, "s")


def _name(reached: TimeToLoss, settings: Sequence[RunSetting]) -> str:
    return reached.setting.named(settings)


# Charts of the parts of the time, and of the energy.

MOST = 16  # bars of one chart
PARTS = ("compute", "network", "I/O", "Python")
NOTES = {CROWDED: "> cores", EMULATED: "emulated"}


@dataclass(frozen=True)
class Selection:
    """The settings of a chart of bars, and a sentence on how they were selected."""

    settings: tuple[RunSetting, ...]
    sentence: str = ""


def select_settings(problem: Problem) -> Selection:
    """Return the settings of a chart of bars, at most `MOST`.

    If there are more, they are the fastest setting of each method on each number of
    ranks. If these are too many, they are the fastest setting of each method (or the
    fastest settings of the only method) on the largest number of ranks that all methods
    have, or, if they have none in common, that any has.
    """
    settings = list(problem.settings)
    sentence = ""
    if len(settings) > MOST:
        fastest = _fastest_by_ranks(settings)
        settings = [s for by_ranks in fastest.values() for s in by_ranks.values()]
        sentence = " The fastest setting of each method on each number of ranks."
    if len(settings) > MOST:
        settings = _on_most_ranks(problem.settings)
        width = settings[0].width
        settings = fastest_of_each(settings)[:MOST]
        ranks = "one rank" if width == 1 else f"{width} ranks"
        sentence = f" The fastest setting of each method on {ranks}, the most that all"
        sentence += " methods have."
    order = list(dict.fromkeys(s.label for s in settings))
    ordered = sorted(settings, key=lambda s: (order.index(s.label), s.width))
    return Selection(tuple(ordered), sentence)


def _on_most_ranks(settings: Sequence[RunSetting]) -> list[RunSetting]:
    """Return the settings on the largest number of ranks that all methods have.

    If the methods have no number in common, it is the largest that any has.
    """
    by_label: dict[str, set[int]] = {}
    for setting in settings:
        by_label.setdefault(setting.label, set()).add(setting.width)
    common = set.intersection(*by_label.values())
    width = max(common or set.union(*by_label.values()))
    return [s for s in settings if s.width == width]


NO_SPLIT = "Where the time of an epoch went is not drawn: "


def split_chart(problem: Problem) -> list[Chart]:
    """Return the chart of the parts of an epoch, one bar for each setting, in a list.

    The list is empty if the parts are not drawn (`missing_split`).
    """
    selection = select_settings(problem) if problem.settings else Selection(())
    settings = [s for s in selection.settings if s.middle.costs.phases]
    if missing_split(problem):
        return []
    without = len(selection.settings) - len(settings)
    note = f" {without} more did not record its parts." if without else ""
    return [
        Bars(
            name="time-split",
            title="Where the time of an epoch went",
            caption="Median seconds of one epoch, divided as on rank 0 in the run of"
            " median time: compute (products, recurrence, update), network (sums and"
            " agreements, including waiting times), I/O (rows read from memory or from"
            " the file), Python (sampling, and everything else). Thin bars: shortest to"
            f" longest repeat.{selection.sentence}{note}",
            axis=Axis("time of an epoch", "s"),
            parts=PARTS,
            bars=tuple(_split(s, settings) for s in settings),
        )
    ]


def missing_split(problem: Problem) -> str:
    """Return why the parts of an epoch are not drawn, or "" if they are."""
    if not problem.settings:
        return f"{NO_SPLIT}no run ended."
    settings = select_settings(problem).settings
    recorded = [s for s in settings if s.middle.costs.phases]
    if not recorded:
        return f"{NO_SPLIT}no run has recorded its parts."
    if max(s.width for s in settings) > max(s.width for s in recorded) == 1:
        return (
            f"{NO_SPLIT}only runs on one rank have recorded its parts, and they say"
            " nothing about runs on more ranks."
        )
    return ""


def _split(setting: RunSetting, others: Sequence[RunSetting]) -> Bar:
    spread = setting.per_epoch
    split = setting.middle.costs.split()
    # In an even number of runs none has the median time, so the shares are scaled.
    parts = tuple(spread.median * part / sum(split) for part in split)
    name = setting.named(others)
    return Bar(name, parts, spread.low, spread.high, _note(setting, name))


def _note(setting: RunSetting, name: str) -> str:
    """Return the note on how a setting was measured, or "" if `name` contains it."""
    note = NOTES.get(setting.mark, "")
    return "" if note and note in name else note


def energy_chart(problem: Problem) -> list[Chart]:
    """Return a list with the chart of the joules of a run; [] if none are known."""
    if not problem.settings:
        return []
    selection = select_settings(problem)
    settings = [
        s for s in selection.settings if s.over(lambda p: p.costs.joules) is not None
    ]
    if not settings:
        return []
    sources = {
        p.costs.energy_source
        for s in settings
        for p in s.points
        if p.costs.energy_source
    }
    return [
        Bars(
            name="energy",
            title="Energy to solution",
            caption="Joules of one run over all its nodes, measured by"
            f" {' and '.join(sorted(sources)).upper() or 'the machine'}, without"
            " evaluations; medians, thin bars from the smallest to the largest repeat."
            f"{selection.sentence}",
            axis=Axis("energy of a run", "J"),
            parts=("energy",),
            bars=tuple(_energy(s, settings) for s in settings),
        )
    ]


def _energy(setting: RunSetting, others: Sequence[RunSetting]) -> Bar:
    joules = setting.over(lambda point: point.costs.joules)
    assert joules is not None
    name = setting.named(others)
    return Bar(name, (joules.median,), joules.low, joules.high, _note(setting, name))


# Charts of the loss over its cost: time, steps, words.

MOST_CURVES = 6  # curves of one chart
FASTEST = (
    " The fastest setting of each method (or the fastest settings of the only method),"
    " on the largest number of ranks that all methods have."
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
    """Return a chart of the loss for each cost that the runs have recorded.

    In weak scaling there is none, because the rows differ.
    """
    settings = [s for s in chosen(problem) if len(s.middle.outcome.history) > 1]
    if problem.is_weak or not settings:
        return []
    charts = [_chart(problem, settings, *kind) for kind in KINDS]
    return [chart for chart in charts if chart is not None]


def chosen(problem: Problem) -> list[RunSetting]:
    """Return the settings of the loss curves, at most `MOST_CURVES`.

    Settings of emulated ranks are left out. If there are more others, they are the
    fastest setting of each method (or the fastest settings of the only method) on the
    largest number of ranks that all methods have, or, if they have none in common, on
    any number.
    """
    real = [s for s in problem.settings if not s.config.emulated]
    if len(real) > MOST_CURVES:
        widths = [
            {s.width for s in real if s.label == label} for label in problem.labels
        ]
        common = set.intersection(*(width for width in widths if width))
        if common:
            real = [s for s in real if s.width == max(common)]
        real = fastest_of_each(real)[:MOST_CURVES]
    return sorted(real, key=lambda s: (problem.labels.index(s.label), s.width))


def words_at(point: ReportPoint, record: Record) -> float | None:
    """Return the words that rank 0 had sent at a record.

    Records of earlier versions have no words: those of the whole run are divided in
    proportion to the exchanges.
    """
    if "words" in record:
        return record["words"]
    total = point.costs.traffic("words")
    last = point.outcome.history[-1].get("exchanges", 0.0)
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
    styles = _looks(problem, settings)
    named = [(s.named(settings), _points(s.middle, cost)) for s in settings]
    lines = [(n, p, look) for (n, p), look in zip(named, styles, strict=True) if p]
    # One rank alone sends nothing, and one point is no curve.
    lines = [line for line in lines if len(line[1]) > 1 and line[1][-1][0] > 0]
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
            _series(label, _shown(points, log_x), look) for label, points, look in lines
        ),
    )


def _series(name: str, points: Sequence[tuple[float, float]], look: int) -> Series:
    x, y = zip(*points, strict=True)
    return Series(name, tuple(x), tuple(y), look=look)


def _looks(problem: Problem, settings: Sequence[RunSetting]) -> list[int]:
    """Return the look of each setting's line: that of its method, or one of its own.

    Lines have looks of their own if some method has more than one line.
    """
    if len({s.label for s in settings}) < len(settings):
        return list(range(len(settings)))
    return [problem.labels.index(s.label) for s in settings]


def _is_estimate(name: str, settings: Sequence[RunSetting]) -> str:
    records = [r for s in settings for r in s.middle.outcome.history]
    if name != "words" or all("words" in record for record in records):
        return ""
    return (
        " Words between start and end are in proportion to the exchanges, because these"
        " results do not contain them."
    )


def _points(
    point: ReportPoint, cost: Callable[[ReportPoint, Record], float | None]
) -> list[tuple[float, float]]:
    pairs = [(cost(point, r), r.get("loss")) for r in point.outcome.history]
    points = [(x, y) for x, y in pairs if x is not None and y is not None]
    # A resumed run evaluates the loss of its checkpoint again, at the same cost.
    return points[:1] + [b for a, b in pairwise(points) if b != a]


def _is_wide(ends: Sequence[float]) -> bool:
    """Return whether the largest of `ends` is more than `APART` times the smallest.

    `ends` are the costs at the last points of the lines, in any order.
    """
    positive = [end for end in ends if end > 0]
    return bool(positive) and max(positive) / min(positive) > APART


def _shown(
    points: Sequence[tuple[float, float]], log: bool
) -> Sequence[tuple[float, float]]:
    """Return the points that an axis can show: a logarithmic axis has no 0."""
    return [p for p in points if p[0] > 0] if log else points


# Heat maps over s and b, and over grids R x C.

FEWEST = 3  # the fewest cells of a map


@dataclass(frozen=True)
class MapAxes:
    """A kind of heat map: its axes, and the settings that all its cells share."""

    kind: str  # part of the file's name
    x: str
    y: str
    pair: Callable[[RunSetting], tuple[int, int]]  # (row, column)
    # Each facet has a map of its own, and the first `named` words begin its title.
    facet: Callable[[RunSetting], tuple[str, ...]]
    named: int
    # The map shows the settings with the most frequent value, which its caption names.
    filter: Callable[[RunSetting], str]


def _facet(setting: RunSetting) -> tuple[str, ...]:
    """Return the settings that are the same in all cells of a map, in words."""
    c = setting.config
    epochs = f"{c.epochs:g} epoch{'' if c.epochs == 1 else 's'}"
    return (c.product, c.recipe, epochs, "emulated" if c.emulated else "")


def _ranks_in_words(setting: RunSetting) -> str:
    return "1 rank" if setting.width == 1 else f"{setting.width} ranks"


MAPS = (
    MapAxes(
        kind="s-b",
        x="batch b",
        y="steps s",
        pair=lambda s: (s.config.steps, s.config.batch),
        facet=lambda s: (s.label, _ranks_in_words(s), *_facet(s)),
        named=2,
        filter=lambda s: f"the grid {s.config.replicas}×{s.config.members}",
    ),
    MapAxes(
        kind="grid",
        x="members C",
        y="replicas R",
        pair=lambda s: (s.config.replicas, s.config.members),
        facet=lambda s: (s.label, *_facet(s)),
        named=1,
        filter=lambda s: f"s = {s.config.steps} and b = {s.config.batch}",
    ),
)


def heat_maps(problem: Problem) -> list[Chart]:
    """Return maps of the time of a step and of the loss, for each method.

    The cells of a map differ only in the settings on its axes. In weak scaling there is
    no map.
    """
    if problem.is_weak:
        return []
    charts: list[Chart] = []
    for axes in MAPS:
        facets: dict[tuple[str, ...], list[RunSetting]] = {}
        for setting in problem.settings:
            facets.setdefault(axes.facet(setting), []).append(setting)
        for facet, settings in facets.items():
            name = _facet_name(facet, list(facets), axes.named)
            charts += _maps(axes, settings, name, len(charts))
    return charts


def _facet_name(
    facet: tuple[str, ...], facets: Sequence[tuple[str, ...]], named: int
) -> str:
    """Return the words of a facet: the first ones, and those in which facets differ."""
    same = [other for other in facets if other[0] == facet[0]]
    varied = [
        part
        for place, part in enumerate(facet)
        if place >= named and len({other[place] for other in same}) > 1
    ]
    return ", ".join(part for part in (*facet[:named], *varied) if part)


def _maps(
    axes: MapAxes, settings: Sequence[RunSetting], name: str, number: int
) -> list[Chart]:
    """Return the maps of time and loss for the most frequent value of the filter."""
    groups: dict[str, list[RunSetting]] = {}
    for setting in settings:
        groups.setdefault(axes.filter(setting), []).append(setting)
    value, group = max(groups.items(), key=lambda item: len(item[1]))
    pairs = {axes.pair(setting) for setting in group}
    rows = {r for r, _ in pairs}
    columns = {c for _, c in pairs}
    if len(pairs) < FEWEST or min(len(rows), len(columns)) < 2:
        return []
    epochs = group[0].config.epochs
    passes = f"{epochs:g} epoch{'' if epochs == 1 else 's'}"
    others = len(groups) - 1
    alone = (
        f" Only settings with {value}; {others} more in the table." if others else ""
    )
    maps = (
        _map(
            axes,
            group,
            lambda s: s.per_step.median if s.per_step else None,
            name=f"time-{axes.kind}-{number}",
            title=f"Time of a step: {name}",
            caption="Median seconds of one step of a replica. A larger batch does more"
            f" in a step.{alone}",
            unit="s",
        ),
        _map(
            axes,
            group,
            lambda s: s.middle.outcome.loss,
            name=f"loss-{axes.kind}-{number}",
            title=f"Final loss: {name}",
            caption="Loss on all rows at the end of the run of median time, after"
            f" {passes} for all.{alone}",
            unit="",
        ),
    )
    return [chart for chart in maps if chart is not None]


def _map(
    axes: MapAxes,
    group: Sequence[RunSetting],
    figure: Callable[[RunSetting], float | None],
    name: str,
    title: str,
    caption: str,
    unit: str,
) -> Heat | None:
    values = {axes.pair(setting): figure(setting) for setting in group}
    cells = {pair: value for pair, value in values.items() if value is not None}
    if len(cells) < FEWEST:
        return None
    rows = sorted({r for r, _ in cells})
    columns = sorted({c for _, c in cells})
    return Heat(
        name,
        title,
        caption,
        axes.x,
        axes.y,
        columns=tuple(str(c) for c in columns),
        rows=tuple(str(r) for r in rows),
        cells=tuple(tuple(cells.get((r, c)) for c in columns) for r in rows),
        unit=unit,
    )
