"""When and how replicas agree on weights."""

from hpcsgd.agreement.anybatch import Anybatch
from hpcsgd.agreement.asynchronous import AsyncAverage
from hpcsgd.agreement.average import BUFFERS, Average
from hpcsgd.agreement.base import Agreement
from hpcsgd.agreement.decentralised import Decentralised
from hpcsgd.agreement.decentralised_low import LowPrecision
from hpcsgd.agreement.fedavg import FedAvg
from hpcsgd.agreement.gradient import Gradient
from hpcsgd.agreement.growing import Growing
from hpcsgd.agreement.hierarchical import Hierarchical
from hpcsgd.agreement.infinity import Infinity
from hpcsgd.agreement.none import NoAgreement
from hpcsgd.agreement.offload import Offload
from hpcsgd.agreement.postlocal import PostLocal
from hpcsgd.agreement.qadam import QAdam
from hpcsgd.agreement.scheduled import Scheduled
from hpcsgd.agreement.sharded import Sharded
from hpcsgd.agreement.slowmo import SlowMo
from hpcsgd.agreement.terms import Terms
from hpcsgd.agreement.ticktock import TickTock
from hpcsgd.errors import ConfigError

AGREEMENTS: dict[str, type[Agreement]] = {
    "none": NoAgreement,
    "average": Average,
    "gradient": Gradient,
    "growing": Growing,
    "postlocal": PostLocal,
    "hierarchical": Hierarchical,
    "fedavg": FedAvg,
    "slowmo": SlowMo,
    "decentralized": Decentralised,
    "decentralized-low": LowPrecision,
    "async-average": AsyncAverage,
    "qadam": QAdam,
    "anybatch": Anybatch,
    "scheduled": Scheduled,
    "ticktock": TickTock,
    "sharded": Sharded,
    "offload": Offload,
    "infinity": Infinity,
}


def register(name: str, kind: type[Agreement]) -> None:
    """Let `[agreement] kind = name` be an agreement of yours, on the rank that calls.

    Parameters
    ----------
    name : str, one that no agreement has
    kind : subclass of Agreement
    """
    if AGREEMENTS.get(name, kind) is not kind:
        raise ConfigError(f"there is an agreement {name!r} already; take another name")
    AGREEMENTS[name] = kind


__all__ = [
    "AGREEMENTS",
    "BUFFERS",
    "Agreement",
    "AsyncAverage",
    "Anybatch",
    "Average",
    "Decentralised",
    "FedAvg",
    "Gradient",
    "Growing",
    "Hierarchical",
    "LowPrecision",
    "Infinity",
    "NoAgreement",
    "Offload",
    "PostLocal",
    "QAdam",
    "Scheduled",
    "Sharded",
    "SlowMo",
    "Terms",
    "TickTock",
    "register",
]
