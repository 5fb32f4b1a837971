"""Which setting is best, in one sentence, and what the sentence rests on."""

from collections.abc import Sequence
from dataclasses import dataclass

from hpcsgd.charts.scales import figures, with_unit
from hpcsgd.study.report.groups import Problem, Setting, Spread
from hpcsgd.study.report.point import Point
from hpcsgd.study.report.scaling import lines_of

ENOUGH = 3  # repeats from which a spread says something


@dataclass(frozen=True)
class Reached:
    """A setting, and the seconds that it took to the common loss."""

    setting: Setting
    seconds: Spread


def common_loss(settings: Sequence[Setting]) -> float | None:
    """The lowest loss that every run of every setting reaches."""
    bests = [_best(point) for s in settings for point in s.points]
    known = [best for best in bests if best is not None]
    return max(known) if known else None


def _best(point: Point) -> float | None:
    """The lowest loss after the first exchange; None where there is none."""
    losses = [r["loss"] for r in point.history if "loss" in r and r.get("exchanges", 1)]
    return min(losses, default=None)


def learnt_nothing(setting: Setting) -> bool:
    """Return whether a run of it has no loss below the one that it began with."""
    return any(_never_fell(point) for point in setting.points)


def _never_fell(point: Point) -> bool:
    first = next((r["loss"] for r in point.history if "loss" in r), None)
    best = _best(point)
    return first is not None and best is not None and best >= first


def time_to(point: Point, loss: float) -> float | None:
    """Seconds at the first loss that is as low; no value between two is made up."""
    for record in point.history:
        if record.get("loss", float("inf")) <= loss and "seconds" in record:
            return record["seconds"]
    return None


def ranking(settings: Sequence[Setting]) -> tuple[float, list[Reached]] | None:
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
            found.append(Reached(setting, seconds))
    return loss, sorted(found, key=lambda reached: reached.seconds.median)


def fastest_of_each(settings: Sequence[Setting]) -> list[Setting]:
    """Of every method the setting that is first at the common loss; of one, all."""
    ranked = ranking(settings)
    order = [r.setting for r in ranked[1]] if ranked else []
    rest = sorted(settings, key=lambda s: s.per_epoch.median)
    if len({s.label for s in settings}) == 1:
        known = {id(setting) for setting in order}
        return order + [setting for setting in rest if id(setting) not in known]
    chosen: dict[str, Setting] = {}
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


def _left_out(settings: Sequence[Setting]) -> str:
    """Return the sentence on settings whose loss never fell, behind the others."""
    names = [s.named(settings) for s in settings if learnt_nothing(s)]
    if not names:
        return ""
    return (
        f" Left out, as the loss never fell below where it began: {', '.join(names)};"
        " lower the rate."
    )


def _of_weak(settings: Sequence[Setting]) -> str:
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
        f" {_ranks(first)} to {times[1]} on {_ranks(last)}, {ideal} % of the ideal."
    )


def _growth(first: Setting, last: Setting) -> float:
    return last.per_epoch.median / first.per_epoch.median


def _ranks(setting: Setting) -> str:
    return f"{setting.width} rank{'' if setting.width == 1 else 's'}"


def _without_loss(settings: Sequence[Setting]) -> str:
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


def _how_sure(best: Reached, second: Reached) -> str:
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


def _seconds(reached: Reached) -> str:
    return with_unit(reached.seconds.median, "s")


def _name(reached: Reached, settings: Sequence[Setting]) -> str:
    return reached.setting.named(settings)
