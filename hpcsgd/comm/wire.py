"""Bytes a ring moves for each collective, per rank: the model behind `wire_bytes`."""


def sum_bytes(payload: int, ranks: int) -> float:
    """All-reduce: 2 (p−1)/p of the payload."""
    return 2.0 * (ranks - 1) / ranks * payload


def reduce_bytes(payload: int, ranks: int) -> float:
    """Reduce to one rank: (p−1)/p of the payload, as the first half of a ring."""
    return (ranks - 1) / ranks * payload


def broadcast_bytes(payload: int, ranks: int) -> float:
    """Pipelined broadcast: the payload once."""
    return float(payload) if ranks > 1 else 0.0


def gather_bytes(total: int, ranks: int) -> float:
    """All-gather of `total` bytes over all ranks: (p−1)/p of them, on average."""
    return (ranks - 1) / ranks * total


def exchange_bytes(payload: int, ranks: int) -> float:
    """Exchange of pieces: all but the own one, (p−1)/p of the payload."""
    return (ranks - 1) / ranks * payload


def swap_bytes(payload: int) -> float:
    """Sent to one peer, straight."""
    return float(payload)
