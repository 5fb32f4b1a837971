"""The loss, against what it costs: time, steps, words."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from hpcsgd.charts.model import Axis, Lines, Series
from hpcsgd.study.report.groups import Problem, Setting
from hpcsgd.study.report.point import Point
from hpcsgd.study.report.verdict import fastest_of_each

MOST = 6  # curves of one chart
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
            "words that rank 0 has sent for products",
        ),
        lambda point, record: words_at(point, record),
    ),
)


def loss_curves(problem: Problem) -> list[Lines]:
    """A chart for each kind of cost that is known."""
    settings = [s for s in chosen(problem.settings) if len(s.middle.history) > 1]
    if problem.is_weak or not settings:
        return []
    charts = [_chart(problem, settings, *kind) for kind in KINDS]
    return [chart for chart in charts if chart is not None]


def chosen(settings: Sequence[Setting]) -> list[Setting]:
    """All where they are few, else the fastest of each method."""
    real = [s for s in settings if not s.first.emulated]
    return list(real) if len(real) <= MOST else fastest_of_each(real)[:MOST]


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
    named = [(s.named(settings), _points(s.middle, cost)) for s in settings]
    lines = [(said, points) for said, points in named if len(points) > 1]
    if not any(x for _, points in lines for x, _ in points):
        return None  # one rank alone sends nothing
    log_x = _is_wide([points[-1][0] for _, points in lines])
    losses = [loss for _, points in lines for _, loss in points]
    log_y = min(losses) > 0 and max(losses) / min(losses) > APART
    few = (
        "" if len(problem.settings) <= MOST else " Of each method, its fastest setting."
    )
    estimate = _is_estimate(name, settings)
    return Lines(
        name=f"loss-{name}",
        title=f"Loss against {'words sent' if name == 'words' else title}",
        caption=f"Loss on all rows against {what}; for each setting the run of median"
        f" time.{few}{estimate}",
        x=Axis(title, unit, log=log_x, from_zero=not log_x),
        y=Axis("loss on all rows", log=log_y),
        series=tuple(
            Series(said, *zip(*_shown(points, log_x), strict=True))
            for said, points in lines
        ),
    )


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
