"""Where the time went, and the energy."""

from collections.abc import Sequence

from hpcsgd.charts.model import CROWDED, EMULATED, Axis, Bar, Bars, Chart
from hpcsgd.study.report.groups import Problem, Setting
from hpcsgd.study.report.scaling import lines_of
from hpcsgd.study.report.verdict import fastest_of_each

MOST = 16  # bars of one chart
PARTS = ("compute", "network", "I/O", "Python")
NOTES = {CROWDED: "> cores", EMULATED: "emulated"}


def shown(problem: Problem) -> list[Setting]:
    """All where they are few; else the scaling lines; else the fastest of each."""
    settings = list(problem.settings)
    if len(settings) > MOST:
        settings = [s for _, line in lines_of(settings) for s in line]
    if not settings or len(settings) > MOST:
        settings = fastest_of_each(problem.settings)[:MOST]
    order = list(dict.fromkeys(s.label for s in settings))
    return sorted(settings, key=lambda s: (order.index(s.label), s.width))


def split_chart(problem: Problem) -> list[Chart]:
    """The parts of an epoch, stacked, for each setting."""
    settings = [s for s in shown(problem) if s.middle.phases]
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


def _split(setting: Setting, others: Sequence[Setting]) -> Bar:
    run, spread = setting.middle, setting.per_epoch
    split = run.split()
    # Of an even number of runs none has the median time: its shares are shown.
    parts = tuple(spread.median * part / sum(split) for part in split)
    name = setting.named(others)
    return Bar(name, parts, spread.low, spread.high, _note(setting, name))


def _note(setting: Setting, name: str) -> str:
    """How it was measured, unless its name says so."""
    note = NOTES.get(setting.mark, "")
    return "" if note and note in name else note


def energy_chart(problem: Problem) -> list[Chart]:
    """Joules of a run, where they are known."""
    settings = [s for s in shown(problem) if s.over(lambda p: p.joules) is not None]
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


def _energy(setting: Setting, others: Sequence[Setting]) -> Bar:
    found = setting.over(lambda point: point.joules)
    assert found is not None
    name = setting.named(others)
    return Bar(name, (found.median,), found.low, found.high, _note(setting, name))
