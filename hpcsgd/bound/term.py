"""One of the nine parts of the error bound."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Term:
    """What one field of the precision may add to the error of w after an exchange."""

    field: str
    format: str
    unit_roundoff: float
    absolute: float  # ‖δw‖ at most this; inf: no bound
    relative: float  # to ‖Δw‖, the update of the exact exchange
    model: str  # emulated: accumulators as they are here; any: whatever their order
    norms: str  # exact, or upper bound: of ‖Y_j‖₂, where the batches are large
    condition: str = ""  # what it takes for granted

    @property
    def is_bounded(self) -> bool:
        """False where the format is too short for sums of this length."""
        return self.absolute < float("inf")
