"""Which agreements are about gradients, and which about weights."""

GRADIENTS = ("gradient", "growing", "decentralized", "decentralized-low", "qadam")
# Their replicas step by their own gradients, and tell each other of weights.
OWN_STEPS = ("decentralized", "decentralized-low")


def takes_gradients(kind: str) -> bool:
    """Whether replicas of this agreement share gradients, and step together."""
    return kind in GRADIENTS
