"""When and how replicas agree on weights."""

from hpcsgd.agreement.average import Average
from hpcsgd.agreement.base import Agreement
from hpcsgd.agreement.gradient import Gradient
from hpcsgd.agreement.none import NoAgreement

AGREEMENTS: dict[str, type[Agreement]] = {
    "none": NoAgreement,
    "average": Average,
    "gradient": Gradient,
}

__all__ = ["AGREEMENTS", "Agreement", "Average", "Gradient", "NoAgreement"]
