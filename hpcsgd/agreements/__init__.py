"""Agreements: how replicas combine gradients or weights (`--agreement`, `--method`)."""

from hpcsgd.agreements.averaging import (
    BUFFERS,
    AsyncAverage,
    Average,
    FedAvg,
    NoAgreement,
    PostLocal,
)
from hpcsgd.agreements.base import Agreement, AgreementInputs
from hpcsgd.agreements.gradient import Gradient, Growing
from hpcsgd.agreements.hierarchical import Hierarchical
from hpcsgd.agreements.more.anybatch import Anybatch
from hpcsgd.agreements.more.decentralized import Decentralized, LowPrecision
from hpcsgd.agreements.more.infinity.agreement import Infinity
from hpcsgd.agreements.more.offload import Offload
from hpcsgd.agreements.more.qadam import QAdam
from hpcsgd.agreements.more.scheduled import Scheduled
from hpcsgd.agreements.more.tick_tock import TickTock
from hpcsgd.agreements.slowmo import SlowMo
from hpcsgd.agreements.zero import ShardedAgreement
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
    "decentralized": Decentralized,
    "decentralized-low": LowPrecision,
    "async-average": AsyncAverage,
    "qadam": QAdam,
    "anybatch": Anybatch,
    "scheduled": Scheduled,
    "ticktock": TickTock,
    "sharded": ShardedAgreement,
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
    "Decentralized",
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
    "ShardedAgreement",
    "SlowMo",
    "AgreementInputs",
    "TickTock",
    "register",
]
