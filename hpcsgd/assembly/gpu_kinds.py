"""Agreements that no GPU serves, and what does instead."""

from hpcsgd.config import RunConfig

Wrong = tuple[bool, str]  # whether it is, and the sentence
HOST = "or --device cpu"
WHOLE = (
    "and a GPU reads scores at all of its columns; use --method offload where w fits"
    f" there, more members on more GPUs (--grid) where it does not, {HOST}"
)
SLICES = (
    "steps slices, which begin anywhere, and the steps of a GPU read four words at a"
    " time; use --method offload, which takes the same steps and keeps the slices of"
    f" state on the host, {HOST}"
)


def of_gpus(config: RunConfig) -> tuple[Wrong, ...]:
    """What is asked of a GPU, and why it is not there."""
    kind, stage = config.agreement.kind, config.agreement.stage
    is_there = config.run.device == "cuda"
    return (
        (is_there and kind == "sharded" and stage < 3, SLICES),
        (
            is_there and kind == "sharded",
            f"holds slices of w in stage {stage}, {WHOLE}",
        ),
        (is_there and kind == "infinity", f"has w on disk, tile by tile, {WHOLE}"),
    )
