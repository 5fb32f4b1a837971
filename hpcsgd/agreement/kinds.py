"""Which agreements are about gradients, and which about weights."""

GRADIENTS = ("gradient", "growing", "infinity")


def takes_gradients(kind: str) -> bool:
    """Whether replicas of this agreement share gradients, and step together."""
    return kind in GRADIENTS


def is_on_disk(kind: str) -> bool:
    """Whether weights and states of this agreement are on disk."""
    return kind == "infinity"
