"""Agreements: how replicas combine gradients or weights (`--agreement`, `--method`)."""

from importlib import import_module
from typing import Any

from hpcsgd.agreements.base import (
    AGREEMENTS,
    AUTO,
    Agreement,
    AgreementInputs,
    AgreementSettings,
    GradientSettings,
    Requires,
    Supports,
    get_agreement,
    register,
    settings_of,
)

# Name -> module of this package, for `from hpcsgd.agreements import NAME`.
HOMES = {
    **dict.fromkeys(("AsyncAverage", "Average", "FedAvg"), "averaging"),
    **dict.fromkeys(("NoAgreement", "PostLocal", "BUFFERS"), "averaging"),
    **dict.fromkeys(("Gradient", "Growing"), "gradient"),
    "Hierarchical": "hierarchical",
    "SlowMo": "slowmo",
}


def __getattr__(name: str) -> Any:
    """Return a class or constant in `HOMES`, from its module, imported if needed."""
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{HOMES[name]}"), name)


__all__ = [
    "AGREEMENTS",
    "AUTO",
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
