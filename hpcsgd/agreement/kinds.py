"""Which agreements are about gradients, and which about weights."""

GRADIENTS = ("gradient", "sharded")
# These take the same steps, and save one vector for each word of state: a run may go on
# as another of them.
ALIKE = ("gradient", "sharded")


def takes_gradients(kind: str) -> bool:
    """Whether replicas of this agreement share gradients, and step together."""
    return kind in GRADIENTS
