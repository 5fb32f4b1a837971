"""What each choice of a number format costs and gains, on the data at hand."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from hpcsgd.bound import largest_safe_rate
from hpcsgd.data.readers import RowReader
from hpcsgd.result import finite
from hpcsgd.study.precision_rows import (
    FieldRow,
    Question,
    RecipeRow,
    field_rows,
    recipe_rows,
)
from hpcsgd.trials.path import Path
from hpcsgd.trials.pilot import DEFAULT_STEPS, Sample, draw_sample

APART = 3  # exchanges between the groups that are looked at


@dataclass(frozen=True)
class PrecisionReport:
    """The answer."""

    question: Question
    rows: int
    columns: int
    fields: tuple[FieldRow, ...]
    recipes: tuple[RecipeRow, ...]
    safe_rate: float
    rate: float  # the largest of the groups that were looked at

    @property
    def recommended(self) -> RecipeRow:
        """The cheapest whose predicted gap stays under the tolerance.

        Only of those that run here as such; fp64 where no other will do.
        """
        good = [row for row in self.recipes if self._will_do(row)]
        exact = next(row for row in self.recipes if row.recipe == "fp64")
        return min(good, key=_total, default=exact)

    @property
    def is_safe(self) -> bool:
        """True where the rate stays below the limit of stability."""
        return self.rate <= self.safe_rate

    @property
    def covers_update(self) -> bool:
        """False where bounds and errors are of plain SGD and the run has momentum."""
        return self.question.config.update.kind == "sgd"

    def _will_do(self, row: RecipeRow) -> bool:
        return row.seconds is not None and row.predicted_gap <= self.question.tolerance

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON, but for numbers that are not finite."""
        asked, best = self.question, self.recommended
        schedule = asked.config.schedule
        return {
            "data": asked.config.data.path,
            "family": asked.config.problem.family,
            "rows": self.rows,
            "columns": self.columns,
            "batch": schedule.batch,
            "steps": schedule.steps,
            "members": asked.members,
            "groups": asked.groups,
            "fields": [asdict(row) for row in self.fields],
            "recipes": [asdict(row) for row in self.recipes],
            "bounds_cover_update": self.covers_update,
            "rate": self.rate,
            "largest_safe_rate": self.safe_rate,
            "tolerance": asked.tolerance,
            "recommendation": {
                "recipe": best.recipe,
                "fields": best.fields,
                "predicted_gap": best.predicted_gap,
                "seconds": _total(best),
            },
        }

    def json(self) -> str:
        """One document; what is not finite is null."""
        return json.dumps(finite(self.as_dict()), indent=2, allow_nan=False)


def _total(row: RecipeRow) -> float:
    return float("inf") if row.seconds is None else row.seconds + row.network_seconds


def study(
    question: Question, reader: RowReader, say: Callable[[str], None] = lambda _: None
) -> PrecisionReport:
    """Bounds, measured errors, costs and pilots.

    Parameters
    ----------
    question : formats, groups, members, tolerance, and the run that is meant
    reader : the data; some of their rows are read
    say : is told what is being done
    """
    question.check()
    config, schedule = question.config, question.config.schedule
    steps = schedule.steps or DEFAULT_STEPS
    sample = draw_sample(
        reader, schedule.batch * steps, config.sampling.seed, config.problem.family
    )
    path = Path(config, sample, question.members)
    exchanges = path.exchanges(question.groups, APART)
    peaks = _peaks(sample)
    say(f"{len(sample.y)} of {reader.rows} rows, {question.groups} exchanges")
    fields = field_rows(question, exchanges, peaks, say)
    say("pilot runs of the recipes")
    recipes = recipe_rows(question, exchanges, peaks, sample, reader.rows)
    return PrecisionReport(
        question=question,
        rows=reader.rows,
        columns=reader.cols,
        fields=tuple(fields),
        recipes=tuple(recipes),
        safe_rate=min(largest_safe_rate(exchange) for exchange in exchanges),
        rate=max(max(exchange.rates) for exchange in exchanges),
    )


def _peaks(sample: Sample) -> Any:
    size = abs(sample.X).max(axis=0)
    return np.asarray(size.todense() if hasattr(size, "todense") else size).ravel()
