"""Agreements: how replicas combine gradients or weights (`--agreement`, `--method`)."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hpcsgd.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from hpcsgd.agreements.averaging import (
        AsyncAverage,
        Average,
        FedAvg,
        NoAgreement,
        PostLocal,
    )
    from hpcsgd.agreements.base import (
        Agreement,
        AgreementInputs,
        AgreementSettings,
        GradientSettings,
        Requires,
        Supports,
    )
    from hpcsgd.agreements.gradient import Gradient, Growing
    from hpcsgd.agreements.hierarchical import Hierarchical
    from hpcsgd.agreements.slowmo import SlowMo

AUTO = "auto"  # average where there are several replicas, none where there is one
# The table of agreements: name -> "module:Class", or a class that was registered.
AGREEMENTS: "dict[str, str | type[Agreement]]" = {
    "none": "hpcsgd.agreements.averaging:NoAgreement",
    "average": "hpcsgd.agreements.averaging:Average",
    "gradient": "hpcsgd.agreements.gradient:Gradient",
    "growing": "hpcsgd.agreements.gradient:Growing",
    "postlocal": "hpcsgd.agreements.averaging:PostLocal",
    "hierarchical": "hpcsgd.agreements.hierarchical:Hierarchical",
    "fedavg": "hpcsgd.agreements.averaging:FedAvg",
    "slowmo": "hpcsgd.agreements.slowmo:SlowMo",
    "decentralized": "hpcsgd.agreements.more.decentralized:Decentralized",
    "decentralized-low": "hpcsgd.agreements.more.decentralized:LowPrecision",
    "async-average": "hpcsgd.agreements.averaging:AsyncAverage",
    "qadam": "hpcsgd.agreements.more.qadam:QAdam",
    "anybatch": "hpcsgd.agreements.more.anybatch:Anybatch",
    "scheduled": "hpcsgd.agreements.more.scheduled:Scheduled",
    "ticktock": "hpcsgd.agreements.more.tick_tock:TickTock",
    "sharded": "hpcsgd.agreements.zero:ShardedAgreement",
    "offload": "hpcsgd.agreements.more.offload:Offload",
    "infinity": "hpcsgd.agreements.more.infinity.agreement:Infinity",
}
# What `from hpcsgd.agreements import NAME` finds in the modules of this room.
HOMES = {
    **dict.fromkeys(("AsyncAverage", "Average", "FedAvg"), "averaging"),
    **dict.fromkeys(("NoAgreement", "PostLocal", "BUFFERS"), "averaging"),
    **dict.fromkeys(("Agreement", "AgreementInputs", "AgreementSettings"), "base"),
    **dict.fromkeys(("GradientSettings", "Requires", "Supports"), "base"),
    **dict.fromkeys(("Gradient", "Growing"), "gradient"),
    "Hierarchical": "hierarchical",
    "SlowMo": "slowmo",
}


def get_agreement(name: str) -> "type[Agreement]":
    """Return the class of the agreement called `name`; "auto" is that of averages."""
    place = AGREEMENTS.get("average" if name == AUTO else name)
    if place is None:
        hint, known = did_you_mean(name, AGREEMENTS), sorted([*AGREEMENTS, AUTO])
        raise ConfigError(f"[agreement] unknown kind: {name!r}{hint}; known: {known}")
    if not isinstance(place, str):
        return place
    module, _, attribute = place.partition(":")
    found: type[Agreement] = getattr(import_module(module), attribute)
    return found


def settings_of(name: str) -> "type[AgreementSettings]":
    """Return the settings class of the agreement called `name`."""
    return get_agreement(name).settings


def register(name: str, kind: "type[Agreement]") -> None:
    """Make a class of your own an agreement, in this process.

    The setting `agreement.kind` then takes its name, and [agreement] the settings of
    its class attribute `settings`. In a program that runs on several ranks every rank
    must call this before it trains; `[run] plugins` names modules that each rank
    imports for that.

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


def __getattr__(name: str) -> Any:
    """Import a class of this room when it is used first."""
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{HOMES[name]}"), name)


__all__ = [
    "AGREEMENTS",
    "Agreement",
    "AgreementInputs",
    "AgreementSettings",
    "AsyncAverage",
    "Average",
    "FedAvg",
    "Gradient",
    "GradientSettings",
    "Growing",
    "Hierarchical",
    "NoAgreement",
    "PostLocal",
    "Requires",
    "SlowMo",
    "Supports",
    "get_agreement",
    "register",
    "settings_of",
]
