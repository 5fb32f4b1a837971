"""When and how replicas agree on weights."""

from hpcsgd.agreement.average import BUFFERS, Average
from hpcsgd.agreement.base import Agreement
from hpcsgd.agreement.fedavg import FedAvg
from hpcsgd.agreement.gradient import Gradient
from hpcsgd.agreement.growing import Growing
from hpcsgd.agreement.hierarchical import Hierarchical
from hpcsgd.agreement.none import NoAgreement
from hpcsgd.agreement.postlocal import PostLocal
from hpcsgd.agreement.scheduled import Scheduled
from hpcsgd.agreement.slowmo import SlowMo
from hpcsgd.agreement.terms import Terms
from hpcsgd.agreement.ticktock import TickTock

AGREEMENTS: dict[str, type[Agreement]] = {
    "none": NoAgreement,
    "average": Average,
    "gradient": Gradient,
    "growing": Growing,
    "postlocal": PostLocal,
    "hierarchical": Hierarchical,
    "fedavg": FedAvg,
    "slowmo": SlowMo,
    "scheduled": Scheduled,
    "ticktock": TickTock,
}

__all__ = [
    "AGREEMENTS",
    "BUFFERS",
    "Agreement",
    "Average",
    "FedAvg",
    "Gradient",
    "Growing",
    "Hierarchical",
    "NoAgreement",
    "PostLocal",
    "Scheduled",
    "SlowMo",
    "Terms",
    "TickTock",
]
