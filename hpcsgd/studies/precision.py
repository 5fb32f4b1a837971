"""Errors, bounds and costs of number formats on given data."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from hpcsgd.backends.base import emulated, make_scaling
from hpcsgd.config import RunConfig
from hpcsgd.data.readers import RowReader
from hpcsgd.errors import ConfigError
from hpcsgd.files import finite
from hpcsgd.formats import formats_of, get_format
from hpcsgd.precision import FIELDS, RECIPES, Precision
from hpcsgd.runs.figures import make_figure, saved
from hpcsgd.runs.machine import Sum
from hpcsgd.tuning import pilots as trial
from hpcsgd.tuning.bound import Term, bound
from hpcsgd.tuning.exact_exchange import ExactExchange, largest_safe_rate
from hpcsgd.tuning.pilots import (
    Cost,
    Gap,
    Sample,
    SamplePath,
    cost_of,
    draw_sample_of,
    loss_gaps,
    planned_exchanges,
)

# A report has a row for each field in each format, and a row for each recipe.

LEVEL = "fp32"  # the recipe that savings are relative to


@dataclass(frozen=True)
class FieldRow:
    """Error and cost of one field in one format, with the other eight fields exact.

    Errors and bounds are medians over the sampled exchanges.
    """

    field: str
    format: str
    roundoff: float  # unit roundoff of the format
    bound: float  # bound on the error relative to the update; inf without a bound
    measured: float  # measured error relative to the update
    cost: Cost  # of an exchange with the other fields in fp32
    level: Cost  # of an exchange with all fields in fp32
    emulated: bool
    bound_by: str  # model and norms of the bound

    @property
    def bytes_saved(self) -> int:
        """Bytes of this field that a member saves in one exchange, relative to fp32."""
        return self.level.moved[self.field] - self.cost.moved[self.field]

    @property
    def seconds_saved(self) -> float | None:
        """Seconds that one exchange saves over all in fp32; None if it is emulated."""
        return None if self.cost.seconds is None else self.level.total - self.cost.total

    def as_dict(self) -> dict[str, Any]:
        """Return the row of the JSON document."""
        return {
            "field": self.field,
            "format": self.format,
            "roundoff": self.roundoff,
            "bound": self.bound,
            "measured": self.measured,
            "bytes": self.cost.moved[self.field],
            "bytes_saved": self.bytes_saved,
            "seconds": None if self.cost.seconds is None else self.cost.total,
            "seconds_saved": self.seconds_saved,
            "emulated": self.emulated,
            "bound_by": self.bound_by,
        }


@dataclass(frozen=True)
class RecipeRow:
    """Error and cost of a recipe, which has a format for each of the nine fields."""

    recipe: str
    bound: float  # sum of the bounds of the nine fields
    measured: float
    gap: Gap  # relative loss difference to fp64, of a pilot run and of the whole run
    cost: Cost

    @property
    def fields(self) -> dict[str, str]:
        """The format of each field."""
        return dict(vars(RECIPES[self.recipe]))

    def as_dict(self) -> dict[str, Any]:
        """Return the row of the JSON document."""
        return {
            "recipe": self.recipe,
            "fields": self.fields,
            "bound": self.bound,
            "measured": self.measured,
            "loss_gap": self.gap.measured,
            "predicted_gap": self.gap.predicted,
            "bytes_sent": self.cost.sent,
            "seconds": self.cost.seconds,
            "network_seconds": self.cost.network,
            "emulated": tuple(emulated(RECIPES[self.recipe])),
        }


@dataclass(frozen=True)
class PrecisionQuestion:
    """The run whose number formats are studied, and the formats to study."""

    config: RunConfig
    members: int
    formats: tuple[str, ...] = ("bf16",)
    groups: int = 3  # sampled exchanges
    tolerance: float = 0.005  # largest relative loss difference of a recommendation
    sums: tuple[Sum, ...] = ()  # all-reduce algorithms; without, messages take 0 s

    def check(self) -> None:
        """Refuse unknown formats and numbers out of range."""
        for name in self.formats:
            get_format(name)
        if self.groups < 1 or self.members < 1:
            raise ConfigError(
                "--groups and --members must be at least 1; write for example --groups"
                " 3 --members 1"
            )
        if not 0 < self.tolerance < float("inf"):
            raise ConfigError(
                f"--tolerance {self.tolerance:g} must be above 0 and finite, as 0.005"
                " for 0.5 %"
            )


def _scaled(exchange: ExactExchange, name: str, peaks: Any, how: str) -> ExactExchange:
    """Return an exchange with the scales of a run whose matrix has format `name`.

    `peaks` has the largest magnitude of each column, `how` is the setting
    precision.scale.
    """
    form = get_format(name)
    if not form.wants_scale:
        return exchange
    scaling = make_scaling(form, peaks, slice(0, len(peaks)), how)
    return replace(exchange, exponents=scaling.exponents)


def field_rows(
    question: PrecisionQuestion,
    exchanges: list[ExactExchange],
    peaks: Any,
    say: Callable[[str], None],
) -> list[FieldRow]:
    """Return a row for each field in each format of the question that it can have.

    `peaks` has the largest magnitude of each column of X.
    """
    level = cost_of(exchanges[0], RECIPES[LEVEL], question.sums, seconds=True)
    rows = []
    for name in question.formats:
        say(f"each field in {name}")
        for field in (field for field in FIELDS if name in formats_of(field)):
            rows.append(_field_row(question, exchanges, peaks, field, name, level))
    return rows


def _field_row(
    question: PrecisionQuestion,
    exchanges: list[ExactExchange],
    peaks: Any,
    field: str,
    name: str,
    level: Cost,
) -> FieldRow:
    precision = trial.with_one_field(field, name)
    how = question.config.precision.scale
    samples = exchanges
    if field == "matrix":
        samples = [_scaled(exchange, name, peaks, how) for exchange in exchanges]
    terms, errors = _terms_and_errors(samples, precision, field)
    in_fp32 = replace(RECIPES[LEVEL], **{field: name})
    cost = cost_of(exchanges[0], in_fp32, question.sums, seconds=True)
    return FieldRow(
        field=field,
        format=name,
        roundoff=get_format(name).unit_roundoff,
        bound=median(term.relative for term in terms),
        measured=median(errors),
        cost=cost,
        level=level,
        emulated=field in emulated(in_fp32),
        bound_by=f"{terms[0].model}, norms {terms[0].norms}",
    )


def _terms_and_errors(
    exchanges: Sequence[ExactExchange], precision: Precision, field: str
) -> tuple[list[Term], list[float]]:
    terms = []
    errors = []
    for exchange in exchanges:
        begins = trial.held(exchange, precision.weights)
        terms.append(bound(begins, precision)[field])
        errors.append(trial.relative_error(begins, precision))
    return terms, errors


def recipe_rows(
    question: PrecisionQuestion,
    exchanges: list[ExactExchange],
    peaks: Any,
    sample: Sample,
    rows: int,
) -> list[RecipeRow]:
    """Return a row for each recipe, with the loss difference of a pilot run.

    `peaks` has the largest magnitude of each column of X, and `rows` is the number of
    rows of the whole data.
    """
    planned = planned_exchanges(question.config, rows)
    recipes = {
        name: replace(question.config.precision, **_only_recipe(name))
        for name in RECIPES
    }
    gaps = loss_gaps(question.config, sample, recipes, question.members, planned)
    return [
        _recipe_row(question, exchanges, peaks, name, gaps[name]) for name in RECIPES
    ]


def _only_recipe(name: str) -> dict[str, Any]:
    """Return the settings of a recipe without formats that the user has set."""
    return {"recipe": name, **dict.fromkeys(FIELDS), "rounding": "nearest"}


def _recipe_row(
    question: PrecisionQuestion,
    exchanges: list[ExactExchange],
    peaks: Any,
    name: str,
    gap: Gap,
) -> RecipeRow:
    precision = RECIPES[name]
    how = question.config.precision.scale
    sums = []
    errors = []
    for exchange in exchanges:
        scaled = _scaled(exchange, precision.matrix, peaks, how)
        begins = trial.held(scaled, precision.weights)
        sums.append(sum(term.relative for term in bound(begins, precision).values()))
        errors.append(trial.relative_error(begins, precision))
    return RecipeRow(
        recipe=name,
        bound=median(sums),
        measured=median(errors),
        gap=gap,
        cost=cost_of(exchanges[0], precision, question.sums, seconds=True),
    )


# The study samples some exchanges of the run and measures all choices on them.

APART = 3  # exchanges from one sampled exchange to the next


@dataclass(frozen=True)
class PrecisionReport:
    """Errors and costs of all fields and recipes, and the recommended recipe."""

    question: PrecisionQuestion
    rows: int
    columns: int
    fields: tuple[FieldRow, ...]
    recipes: tuple[RecipeRow, ...]
    safe_rate: float
    rate: float  # the largest rate in the sampled exchanges

    @property
    def recommended(self) -> RecipeRow:
        """The fastest recipe whose predicted loss difference is within the tolerance.

        Recipes that this machine can only emulate do not count. If no recipe is left,
        it is fp64.
        """
        good = [row for row in self.recipes if self._will_do(row)]
        exact = next(row for row in self.recipes if row.recipe == "fp64")
        return min(good, key=lambda row: row.cost.total, default=exact)

    @property
    def is_safe(self) -> bool:
        """Return whether the largest rate is at most `safe_rate`, where SGD is stable.

        Both are those of the sampled exchanges.
        """
        return self.rate <= self.safe_rate

    @property
    def covers_update(self) -> bool:
        """Return whether the update is plain SGD, to which bounds and errors apply."""
        return self.question.config.update.kind == "sgd"

    def _will_do(self, row: RecipeRow) -> bool:
        is_timed = row.cost.seconds is not None
        return is_timed and row.gap.predicted <= self.question.tolerance

    def as_dict(self) -> dict[str, Any]:
        """Return the report as a JSON object, in which numbers may be inf or nan."""
        question = self.question
        best = self.recommended
        schedule = question.config.schedule
        return {
            "data": question.config.data.path,
            "family": question.config.problem.family,
            "rows": self.rows,
            "columns": self.columns,
            "batch": schedule.batch,
            "steps": schedule.steps,
            "members": question.members,
            "groups": question.groups,
            "fields": [row.as_dict() for row in self.fields],
            "recipes": [row.as_dict() for row in self.recipes],
            "bounds_cover_update": self.covers_update,
            "rate": self.rate,
            "largest_safe_rate": self.safe_rate,
            "tolerance": question.tolerance,
            "recommendation": {
                "recipe": best.recipe,
                "fields": best.fields,
                "predicted_gap": best.gap.predicted,
                "seconds": best.cost.total,
            },
        }

    def json(self) -> str:
        """Return the JSON document; numbers that are not finite become null."""
        return json.dumps(finite(self.as_dict()), indent=2, allow_nan=False)


def study(
    question: PrecisionQuestion,
    reader: RowReader,
    say: Callable[[str], None] = lambda _: None,
) -> PrecisionReport:
    """Measure errors and costs of number formats on some rows of the data.

    Parameters
    ----------
    question : PrecisionQuestion
        The run, and the formats to study.
    reader : RowReader
        The data, of which some rows are read.
    say : callable
        Receives a line of text on the progress.

    Returns
    -------
    PrecisionReport
        Bounds, measured errors, costs and the recommended recipe.
    """
    question.check()
    config = question.config
    sample = draw_sample_of(config, reader)
    path = SamplePath(config, sample, question.members)
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
        rate=max(max(exchange.steps.rates) for exchange in exchanges),
    )


def _peaks(sample: Sample) -> Any:
    size = abs(sample.X).max(axis=0)
    return np.asarray(size.todense() if hasattr(size, "todense") else size).ravel()


# The report has a picture.


def plot_errors(report: Mapping[str, Any], path: str | Path) -> Path:
    """Draw bound and measured error of every field, and of every recipe, as bars.

    Parameters
    ----------
    report : mapping
        The document of `hpcsgd precision`.
    path : path-like
        The PNG file to write.

    Returns
    -------
    Path
        The path of the file.
    """
    formats = list(dict.fromkeys(row["format"] for row in report["fields"]))
    figure, axes = make_figure(len(formats) + 1, columns=1)
    for name, (axis,) in zip(formats, axes, strict=False):
        rows = [row for row in report["fields"] if row["format"] == name]
        _bars(axis, [row["field"] for row in rows], rows)
        axis.set(title=f"one field in {name}, the others exact")
    rows = report["recipes"]
    _bars(axes[-1][0], [row["recipe"] for row in rows], rows)
    axes[-1][0].set(title="whole recipes")
    return saved(figure, path)


def _bars(axis: Any, names: list[str], rows: list[Mapping[str, Any]]) -> None:
    """Draw two bars for each name; an error of 0 and a missing bound have no bar."""
    for shift, key in ((-0.2, "bound"), (0.2, "measured")):
        sizes = [
            row[key] if 0 < row[key] < float("inf") else float("nan") for row in rows
        ]
        axis.bar([i + shift for i in range(len(rows))], sizes, 0.4, label=key)
    axis.set_yscale("log")
    axis.set_xticks(range(len(rows)), names, rotation=20)
    axis.set_ylabel("error / update")
    axis.legend()
