"""Which fields of a precision run as such, and which are emulated here."""

from hpcsgd.formats import get_format
from hpcsgd.precision import FIELDS, Precision

NATIVE, EMULATED = "native", "emulated"
# where a narrow format is only stored or sent: what the host can do that with
STORED = {"matrix": ("bf16",), "margin": ("bf16",)}
SENT = ("bf16", "fp16", "fp8-e4m3", "fp8-e5m2")


def ways(precision: Precision) -> dict[str, str]:
    """Field -> native or emulated; numbers are the same, speed is of native ones."""
    return {name: _way(precision, name) for name in FIELDS}


def emulated(precision: Precision) -> dict[str, str]:
    """Field -> its format, of those that are emulated."""
    how = ways(precision)
    return {n: getattr(precision, n) for n in FIELDS if how[n] == EMULATED}


def _way(precision: Precision, name: str) -> str:
    form = get_format(getattr(precision, name))
    if name == "gram_wire":
        fits = form.is_wide or form.name in SENT
    elif name in STORED:
        fits = form.is_wide or form.name in STORED[name]
    else:
        fits = form.is_wide and form.carrier == precision.working
    return NATIVE if fits else EMULATED
