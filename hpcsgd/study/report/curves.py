"""The loss, against what it costs: time, steps, words."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from hpcsgd.charts.model import Axis, Lines, Series
from hpcsgd.study.report.groups import Problem, Setting
from hpcsgd.study.report.point import Point
from hpcsgd.study.report.verdict import fastest_of_each

MOST = 6  # curves of one chart
FASTEST = (
    " Of each method its fastest setting (of one method alone, the fastest ones), on"
    " the largest number of ranks that all have."
)
APART = 20.0  # how many times one line may be longer before the axis is logarithmic
Record = Mapping[str, float]
KINDS: tuple[
    tuple[str, str, str, str, Callable[[Point, Record], float | None]], ...
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


def chosen(problem: Problem) -> list[Setting]:
    """All where they are few; else the fastest of each method, on as many ranks."""
    real = [s for s in problem.settings if not s.first.emulated]
    if len(real) > MOST:
        widths = [{s.width for s in real if s.label == one} for one in problem.labels]
        common = set.intersection(*(width for width in widths if width))
        if common:
            real = [s for s in real if s.width == max(common)]
        real = fastest_of_each(real)[:MOST]
    return sorted(real, key=lambda s: (problem.labels.index(s.label), s.width))


def words_at(point: Point, record: Record) -> float | None:
    """What was sent until then; older results know the sum alone."""
    if "words" in record:
        return record["words"]
    total, last = point.traffic("words"), point.history[-1].get("exchanges", 0.0)
    if total is None or not last:
        return None
    return total * record.get("exchanges", 0.0) / last


def _chart(
    problem: Problem,
    settings: Sequence[Setting],
    name: str,
    title: str,
    unit: str,
    what: str,
    cost: Callable[[Point, Record], float | None],
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


def _looks(problem: Problem, settings: Sequence[Setting]) -> list[int]:
    """That of the method, unless one method has several lines."""
    if len({s.label for s in settings}) < len(settings):
        return list(range(len(settings)))
    return [problem.labels.index(s.label) for s in settings]


def _is_estimate(name: str, settings: Sequence[Setting]) -> str:
    records = [r for s in settings for r in s.middle.history]
    if name != "words" or all("words" in record for record in records):
        return ""
    return (
        " Words between start and end are in proportion to the exchanges: these results"
        " do not hold them."
    )


def _points(
    point: Point, cost: Callable[[Point, Record], float | None]
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
