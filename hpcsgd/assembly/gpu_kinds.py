"""Agreements that no GPU serves, and what does instead."""

from hpcsgd.config import RunConfig

Wrong = tuple[bool, str]  # whether it is, and the sentence
HOST = "or --device cpu"
WHOLE = (
    "and a GPU reads scores at all of its columns; use --method offload where w fits"
    f" there, more members on more GPUs (--grid) where it does not, {HOST}"
)


def of_gpus(config: RunConfig) -> tuple[Wrong, ...]:
    """What is asked of a GPU, and why it is not there."""
    kind, is_there = config.agreement.kind, config.run.device == "cuda"
    return ((is_there and kind == "infinity", f"has w on disk, tile by tile, {WHOLE}"),)
