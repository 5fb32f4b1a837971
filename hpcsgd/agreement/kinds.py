"""Which agreements are about gradients, and which about weights."""

from collections.abc import Mapping
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
    "sharded",
    "offload",
    "infinity",
)
# Their replicas step by their own gradients, and tell each other of weights.
OWN_STEPS = ("decentralized", "decentralized-low")
# Of these no iterate before the last is that of all replicas.
NEVER_ONE = (*OWN_STEPS, "async-average", "anybatch")
SHARDED = ("sharded", "offload")  # of these, whose replicas hold slices
# These take the same steps, and save one vector for each word of state: a run may go on
# as another of them, with other values of these settings.
ALIKE = ("gradient", "sharded", "offload")
FREE = ("method", "kind", "stage", "bucket")


def is_alike(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether these two sections [agreement] take the same steps."""
    return all(
        asked["kind"] in ALIKE and asked["codec"] == "identity"
        for asked in (one, other)
    )


def takes_gradients(kind: str) -> bool:
    """Whether replicas of this agreement share gradients, and step together."""
    return kind in GRADIENTS


def batches_together(settings: Any) -> int:
    """Batches of an exchange, by the section [agreement]: the tick's and the tock's."""
    items = 2 if (settings.kind, settings.mode) == ("ticktock", "exact-sum") else 1
    return items * int(settings.accumulate)


def is_on_disk(kind: str) -> bool:
    """Whether weights and states of this agreement are on disk."""
    return kind == "infinity"
