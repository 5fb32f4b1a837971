"""Agreements that no GPU serves, and what does instead."""

from hpcsgd.config import RunConfig

Wrong = tuple[bool, str]  # whether it is, and the sentence
ON_DISK = (
    "has w on disk, tile by tile, and a GPU reads what is in its memory; use --method"
    " zero3 where slices of w fit there, more replicas or members on more GPUs (--grid)"
    " where they do not, or --device cpu"
)


def of_gpus(config: RunConfig) -> tuple[Wrong, ...]:
    """What is asked of a GPU, and why it is not there."""
    is_there = config.run.device == "cuda"
    return ((is_there and config.agreement.kind == "infinity", ON_DISK),)
