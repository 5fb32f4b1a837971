"""Which agreements are about gradients, and which about weights."""

from typing import Any

GRADIENTS = (
    "gradient",
    "growing",
    "decentralized",
    "decentralized-low",
    "qadam",
    "anybatch",
    "scheduled",
    "ticktock",
)
# Their replicas step by their own gradients, and tell each other of weights.
OWN_STEPS = ("decentralized", "decentralized-low")


def takes_gradients(kind: str) -> bool:
    """Whether replicas of this agreement share gradients, and step together."""
    return kind in GRADIENTS


def batches_together(settings: Any) -> int:
    """Batches of an exchange, by the section [agreement]: the tick's and the tock's."""
    items = 2 if (settings.kind, settings.mode) == ("ticktock", "exact-sum") else 1
    return items * int(settings.accumulate)
