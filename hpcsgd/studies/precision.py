"""What number formats cost and gain on given data."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from hpcsgd.backends.base import emulated, make_scaling
from hpcsgd.comm.network_model import Network
from hpcsgd.config import RunConfig
from hpcsgd.data.readers import RowReader
from hpcsgd.errors import ConfigError
from hpcsgd.formats import formats_of, get_format
from hpcsgd.precision import FIELDS, RECIPES, Precision
from hpcsgd.runs.figures import make_figure, saved
from hpcsgd.runs.result import finite
from hpcsgd.tuning import pilots as trial
from hpcsgd.tuning.bound import Term, bound
from hpcsgd.tuning.exact_exchange import ExactExchange, largest_safe_rate
from hpcsgd.tuning.pilots import (
    DEFAULT_STEPS,
    Cost,
    Gap,
    Sample,
    SamplePath,
    cost_of,
    draw_sample,
    loss_gaps,
)

# One row for each field and format, and one for each recipe: bounds, errors, costs.

LEVEL = "fp32"  # what gains are counted from


@dataclass(frozen=True)
class FieldRow:
    """One field in one format, the other eight exact; medians over the groups."""

    field: str
    format: str
    roundoff: float
    bound: float  # on the error relative to the update; inf: none
    measured: float
    bytes: int  # an exchange moves in this format, one member
    bytes_saved: int  # against fp32
    seconds: float | None  # of an exchange in fp32 but for this field; None: emulated
    seconds_saved: float | None
    emulated: bool
    bound_by: str  # model and norms of the bound


@dataclass(frozen=True)
class RecipeRow:
    """A whole precision."""

    recipe: str
    fields: dict[str, str]
    bound: float  # the sum of the nine terms
    measured: float
    loss_gap: float  # of the pilot, against fp64
    predicted_gap: float  # of the whole run
    bytes_sent: int
    seconds: float | None  # of arithmetic; None where any of it is emulated
    network_seconds: float
    emulated: tuple[str, ...]


@dataclass(frozen=True)
class PrecisionQuestion:
    """What is asked."""

    config: RunConfig
    members: int
    formats: tuple[str, ...] = ("bf16",)
    groups: int = 3
    tolerance: float = 0.005
    network: Network | None = None

    def check(self) -> None:
        """Refuse what has no answer."""
        for name in self.formats:
            get_format(name)
        if self.groups < 1 or self.members < 1:
            raise ConfigError("--groups and --members must be at least 1; 3 and 1 do")
        if not 0 < self.tolerance < float("inf"):
            raise ConfigError(
                f"--tolerance {self.tolerance:g} must be above 0, as 0.005 for 0.5 %"
            )


def _scaled(exchange: ExactExchange, name: str, peaks: Any, how: str) -> ExactExchange:
    """With the exponents that a run would choose for a matrix of format `name`."""
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
    level = cost_of(exchanges[0], RECIPES[LEVEL], question.network, seconds=True)
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
    given = [
        _scaled(e, name, peaks, how) if field == "matrix" else e for e in exchanges
    ]
    terms, errors = _terms_and_errors(given, precision, field)
    alone = replace(RECIPES[LEVEL], **{field: name})
    cost = cost_of(exchanges[0], alone, question.network, seconds=True)
    made_up = field in emulated(alone)
    saved = None
    if cost.seconds is not None:
        saved = level.total - cost.total
    return FieldRow(
        field=field,
        format=name,
        roundoff=get_format(name).unit_roundoff,
        bound=median(term.relative for term in terms),
        measured=median(errors),
        bytes=cost.moved[field],
        bytes_saved=level.moved[field] - cost.moved[field],
        seconds=None if cost.seconds is None else cost.total,
        seconds_saved=saved,
        emulated=made_up,
        bound_by=f"{terms[0].model}, norms {terms[0].norms}",
    )


def _terms_and_errors(
    exchanges: Sequence[ExactExchange], precision: Precision, field: str
) -> tuple[list[Term], list[float]]:
    terms, errors = [], []
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
    schedule = question.config.schedule
    m = schedule.batch * (schedule.steps or DEFAULT_STEPS)
    planned = schedule.epochs * -(-rows // (m * question.config.grid.replicas))
    asked = {
        name: replace(question.config.precision, **_spelt_out(name)) for name in RECIPES
    }
    gaps = loss_gaps(question.config, sample, asked, question.members, planned)
    return [
        _recipe_row(question, exchanges, peaks, name, gaps[name]) for name in RECIPES
    ]


def _spelt_out(name: str) -> dict[str, Any]:
    """A recipe with none of its fields set by hand."""
    return {"recipe": name, **dict.fromkeys(FIELDS), "rounding": "nearest"}


def _recipe_row(
    question: PrecisionQuestion,
    exchanges: list[ExactExchange],
    peaks: Any,
    name: str,
    gap: Gap,
) -> RecipeRow:
    precision, how = RECIPES[name], question.config.precision.scale
    sums, errors = [], []
    for exchange in exchanges:
        scaled = _scaled(exchange, precision.matrix, peaks, how)
        begins = trial.held(scaled, precision.weights)
        sums.append(sum(term.relative for term in bound(begins, precision).values()))
        errors.append(trial.relative_error(begins, precision))
    cost = cost_of(exchanges[0], precision, question.network, seconds=True)
    return RecipeRow(
        recipe=name,
        fields=dict(vars(precision)),
        bound=median(sums),
        measured=median(errors),
        loss_gap=gap.measured,
        predicted_gap=gap.predicted,
        bytes_sent=cost.sent,
        seconds=cost.seconds,
        network_seconds=cost.network,
        emulated=tuple(emulated(precision)),
    )


# What each choice of a number format costs and gains, on the data at hand.

APART = 3  # exchanges between the groups that are looked at


@dataclass(frozen=True)
class PrecisionReport:
    """The answer."""

    question: PrecisionQuestion
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
    question: PrecisionQuestion,
    reader: RowReader,
    say: Callable[[str], None] = lambda _: None,
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
        rate=max(max(exchange.rates) for exchange in exchanges),
    )


def _peaks(sample: Sample) -> Any:
    size = abs(sample.X).max(axis=0)
    return np.asarray(size.todense() if hasattr(size, "todense") else size).ravel()


# The report as a picture.


def plot_errors(report: Mapping[str, Any], path: str | Path) -> Path:
    """Draw bound and measured error of every field, and of every recipe, as bars.

    Parameters
    ----------
    report : the document of `hpcsgd precision`
    path : where the PNG goes
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
    """Two bars a name on a logarithmic scale; what is 0 or has no bound has none."""
    for shift, key in ((-0.2, "bound"), (0.2, "measured")):
        sizes = [
            row[key] if 0 < row[key] < float("inf") else float("nan") for row in rows
        ]
        axis.bar([i + shift for i in range(len(rows))], sizes, 0.4, label=key)
    axis.set_yscale("log")
    axis.set_xticks(range(len(rows)), names, rotation=20)
    axis.set_ylabel("error / update")
    axis.legend()
