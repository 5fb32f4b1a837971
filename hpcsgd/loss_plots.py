"""Loss curves over what they cost: epochs, seconds, words, messages."""

from collections.abc import Mapping, Sequence
from itertools import cycle
from math import ceil
from pathlib import Path
from typing import Any

from hpcsgd.plots import STYLES, make_figure, saved

History = Sequence[Mapping[str, Any]]
# key of a record -> what is written below the axis
COSTS = {
    "epoch": "epochs",
    "seconds": "seconds of training",
    "words": "words sent by rank 0",
    "messages": "messages of rank 0",
}
WITHIN = 6  # curves whose names fit into the first panel
IN_COLUMN = 20  # names beside the last one
APART = 20.0  # how many times one curve may be longer before the axis is logarithmic
ABOVE = 1.1  # times the loss at the start: how much of what diverges is shown


def loss_curves(
    panels: Mapping[str, Mapping[str, History]],
    path: str | Path,
    over: Sequence[str] = ("epoch", "seconds"),
) -> Path:
    """Draw loss over what it cost, a row for each panel and a column for each cost.

    Parameters
    ----------
    panels : panel title -> curve name -> history records
    path : where the PNG goes
    over : keys of COSTS
    """
    figure, axes = make_figure(len(panels), columns=len(over))
    for (title, curves), row in zip(panels.items(), axes, strict=True):
        for axis, cost in zip(row, over, strict=True):
            _draw(axis, curves, cost)
        # Names are text, also those that look like formulas.
        row[0].set_title(title, parse_math=False)
        row[0].set_ylabel("loss, all rows")
        _name_curves(row, len(curves))
    return saved(figure, path)


def _draw(axis: Any, curves: Mapping[str, History], cost: str) -> None:
    for style, (name, records) in zip(cycle(STYLES), curves.items(), strict=False):
        known = [r for r in records if cost in r]
        spent, losses = [r[cost] for r in known], [r["loss"] for r in known]
        axis.plot(spent, losses, style, label=name, markersize=3, linewidth=1)
    axis.set_xlabel(COSTS[cost])
    _scale(axis, [r[-1].get(cost, 0.0) for r in curves.values() if r])
    starts = [r[0]["loss"] for r in curves.values() if r]
    ends = [record["loss"] for r in curves.values() for record in r]
    if starts and not max(ends) <= ABOVE * max(starts):
        axis.set_ylim(top=ABOVE * max(starts))


def _scale(axis: Any, ends: Sequence[float]) -> None:
    """Logarithmic, from the shortest curve on, where that one would be a dot."""
    spent = [end for end in ends if end > 0]
    if spent and max(spent) > APART * min(spent):
        axis.set_xscale("symlog", linthresh=min(spent))


def _name_curves(row: Sequence[Any], count: int) -> None:
    """In the first panel where they are few, else at the right of the last."""
    if count <= WITHIN:
        legend = row[0].legend()
    else:
        beside = {"loc": "upper left", "bbox_to_anchor": (1.02, 1.0)}
        columns = ceil(count / IN_COLUMN)
        legend = row[-1].legend(**beside, ncols=columns, fontsize="x-small")
    for text in legend.get_texts():
        text.set_parse_math(False)
