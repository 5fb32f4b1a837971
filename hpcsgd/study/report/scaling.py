"""Time, speed-up and efficiency over ranks, beside the ideal."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from hpcsgd.charts.model import Axis, Chart, Lines, Series
from hpcsgd.study.report.groups import Problem, Setting, Spread

Line = tuple[str, list[Setting]]
Ratio = Callable[[float, int, int], float]  # time over time, ranks, ranks at first


EMULATED = " (emulated)"


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


def lines_of(settings: Sequence[Setting]) -> list[Line]:
    """Of each method the setting with the shortest epoch at each number of ranks.

    Emulated and real runs are apart, but for where emulated ones begin: one rank alone
    has no others to make up.
    """
    found: dict[str, dict[int, Setting]] = {}
    for setting in settings:
        name = setting.label + EMULATED * bool(setting.first.emulated)
        best = found.setdefault(name, {}).get(setting.width)
        if best is None or setting.per_epoch.median < best.per_epoch.median:
            found[name][setting.width] = setting
    for name, by_width in found.items():
        _begin_as_real(by_width, found.get(name.removesuffix(EMULATED), {}))
    return [
        (name, [by_width[width] for width in sorted(by_width)])
        for name, by_width in found.items()
        if len(by_width) > 1
    ]


def _begin_as_real(by_width: dict[int, Setting], real: dict[int, Setting]) -> None:
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
            _series(name, line, lambda s: s.per_epoch) for name, line in lines
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


def _ratios(line: Sequence[Setting], name: str, ratio: Ratio) -> Series:
    """Of medians; the slowest repeat is the low end."""
    base, first = line[0].per_epoch.median, line[0].width

    def figure(setting: Setting) -> Spread:
        time = setting.per_epoch
        return Spread(
            *(
                ratio(base / t, setting.width, first)
                for t in (time.median, time.high, time.low)
            )
        )

    return _series(name, line, figure)


def _series(
    name: str, line: Sequence[Setting], figure: Callable[[Setting], Spread]
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
