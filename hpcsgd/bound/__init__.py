"""How far the formats of one exchange may carry its weights from the exact ones."""

import numpy as np

from hpcsgd.bound import emulated, general
from hpcsgd.bound.accumulate import gamma
from hpcsgd.bound.case import Case
from hpcsgd.bound.exchange import ROOM, Exchange, largest_safe_rate
from hpcsgd.bound.term import Term
from hpcsgd.errors import ConfigError
from hpcsgd.formats import get_format, wider
from hpcsgd.precision import FIELDS, Precision

MODELS = ("emulated", "any")
ACCUMULATING = (
    *("margin_sum", "gram_sum", "inner", "residual", "gradient_sum", "weights"),
)


def bound(
    exchange: Exchange, precision: Precision, model: str = "emulated"
) -> dict[str, Term]:
    """First-order bounds on ‖δw‖ after one exchange, one for each field.

    Parameters
    ----------
    exchange : exact data
    precision : the nine formats
    model : "emulated" for the arithmetic of this program; "any" for machines that sum
        in another order, or round in other places

    Returns
    -------
    dict of Term by field; their sum bounds the error of the whole precision
    """
    if model not in MODELS:
        raise ConfigError(f"unknown model {model!r}; known: {', '.join(MODELS)}")
    return {field: term(exchange, precision, field, model) for field in FIELDS}


def term(
    exchange: Exchange, precision: Precision, field: str, model: str = "emulated"
) -> Term:
    """The bound for one field."""
    form = get_format(getattr(precision, field))
    sharp = model == "emulated" and _is_emulated(precision, field)
    terms = emulated.TERMS if sharp else general.TERMS
    size = 0.0
    if not _is_idle(precision, field):
        size = terms[field](_case(exchange, precision, field, model))
    update = exchange.path.update(exchange.before)
    return Term(
        field=field,
        format=form.name,
        unit_roundoff=form.unit_roundoff,
        absolute=size,
        relative=size / update if update else (float("inf") if size else 0.0),
        model="emulated" if sharp else "any",
        norms="exact" if exchange.norms.exact else "upper bound",
        condition=_condition(exchange),
    )


def _case(exchange: Exchange, precision: Precision, field: str, model: str) -> Case:
    form = get_format(getattr(precision, field))
    narrow = model == "emulated" and not form.is_wide
    members = len(exchange.parts)
    summed, carried = get_format(precision.gram_sum), np.finfo(form.carrier)
    return Case(
        exchange=exchange,
        form=form,
        working=get_format("fp64" if precision.working == "float64" else "fp32"),
        depth=min(members - 1, 1) if narrow else members - 1,
        comes_wider=model == "emulated" and 2 * summed.unit_roundoff < carried.eps,
    )


def _is_emulated(precision: Precision, field: str) -> bool:
    """True where every rounding is made here, in an order that is known."""
    form = get_format(getattr(precision, field))
    if field == "gram_wire":
        return not form.is_wide
    if field not in ACCUMULATING or precision.is_uniform:
        return False
    return form.name != ("fp64" if precision.working == "float64" else "fp32")


def _is_idle(precision: Precision, field: str) -> bool:
    """Margins that are stored as they were summed are not rounded again."""
    return field == "margin" and precision.margin == wider(
        precision.margin, precision.margin_sum
    )


def _condition(exchange: Exchange) -> str:
    first = "to first order in the unit roundoff; nothing overflows"
    if exchange.family.curvature < float("inf"):
        return first
    return f"{first}; no score is off by more than {ROOM:g} or clipped"


__all__ = [
    "Exchange",
    "Term",
    "bound",
    "gamma",
    "largest_safe_rate",
    "term",
]
