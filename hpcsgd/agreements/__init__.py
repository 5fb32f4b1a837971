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
    """Make a class of your own an agreement, in this process.

    The setting `agreement.kind` then takes its name. In a program that runs on several
    ranks every rank must call this before it trains.

    Parameters
    ----------
    name : str
        A name that no agreement has.
    kind : subclass of Agreement
        The agreement.

    Raises
    ------
    ConfigError
        If the name is taken.

    Examples
    --------
    >>> from hpcsgd import agreements
    >>> class Rare(agreements.Average):
    ...     def is_whole(self, exchanges):
    ...         return exchanges % (10 * self.period) == 0
    >>> agreements.register("rare", Rare)
    >>> "rare" in agreements.AGREEMENTS
    True
    >>> del agreements.AGREEMENTS["rare"]
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
