"""When and how replicas agree on weights."""

from hpcsgd.agreement.average import BUFFERS, Average
from hpcsgd.agreement.base import Agreement
from hpcsgd.agreement.fedavg import FedAvg
from hpcsgd.agreement.gradient import Gradient
from hpcsgd.agreement.hierarchical import Hierarchical
from hpcsgd.agreement.infinity import Infinity
from hpcsgd.agreement.none import NoAgreement
from hpcsgd.agreement.postlocal import PostLocal
from hpcsgd.agreement.slowmo import SlowMo
from hpcsgd.agreement.terms import Terms

AGREEMENTS: dict[str, type[Agreement]] = {
    "none": NoAgreement,
    "average": Average,
    "gradient": Gradient,
    "postlocal": PostLocal,
    "hierarchical": Hierarchical,
    "fedavg": FedAvg,
    "slowmo": SlowMo,
    "infinity": Infinity,
}

__all__ = [
    "AGREEMENTS",
    "BUFFERS",
    "Agreement",
    "Average",
    "FedAvg",
    "Gradient",
    "Hierarchical",
    "Infinity",
    "NoAgreement",
    "PostLocal",
    "SlowMo",
    "Terms",
]
