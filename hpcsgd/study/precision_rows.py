"""One row for each field and format, and one for each recipe: bounds, errors, costs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from hpcsgd.backends.scaling import make_scaling
from hpcsgd.backends.ways import emulated
from hpcsgd.bound import Exchange, Term, bound
from hpcsgd.comm.network import Network
from hpcsgd.config import RunConfig
from hpcsgd.errors import ConfigError
from hpcsgd.formats import formats_of, get_format
from hpcsgd.precision import FIELDS, RECIPES, Precision
from hpcsgd.trials import exchange as trial
from hpcsgd.trials.cost import Cost, cost_of
from hpcsgd.trials.pilot import DEFAULT_STEPS, Gap, Sample, loss_gaps

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
class Question:
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


def _scaled(exchange: Exchange, name: str, peaks: Any, how: str) -> Exchange:
    """With the exponents that a run would choose for a matrix of format `name`."""
    form = get_format(name)
    if not form.wants_scale:
        return exchange
    scaling = make_scaling(form, peaks, slice(0, len(peaks)), how)
    return replace(exchange, exponents=scaling.exponents)


def field_rows(
    question: Question,
    exchanges: list[Exchange],
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
    question: Question,
    exchanges: list[Exchange],
    peaks: Any,
    field: str,
    name: str,
    level: Cost,
) -> FieldRow:
    precision = trial.as_one_field(field, name)
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
    exchanges: Sequence[Exchange], precision: Precision, field: str
) -> tuple[list[Term], list[float]]:
    terms, errors = [], []
    for exchange in exchanges:
        begins = trial.held(exchange, precision.weights)
        terms.append(bound(begins, precision)[field])
        errors.append(trial.relative_error(begins, precision))
    return terms, errors


def recipe_rows(
    question: Question,
    exchanges: list[Exchange],
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
    question: Question, exchanges: list[Exchange], peaks: Any, name: str, gap: Gap
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
