"""How long a run is: epochs, exchanges, evaluations."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Pace:
    """How long a run is, and how often its loss is taken."""

    epochs: int
    exchanges_per_epoch: int
    evaluate_every: int

    @property
    def exchanges(self) -> int:
        """Of the whole run."""
        return self.epochs * self.exchanges_per_epoch
