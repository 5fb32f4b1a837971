"""An agreement with a setting, a refusal and its bytes: the trimmed mean."""

from dataclasses import dataclass

import numpy as np

from hpcsgd import agreements
from hpcsgd.agreements import Agreement, AgreementSettings
from hpcsgd.settings import setting


@dataclass(frozen=True)
class TrimmedSettings(AgreementSettings):
    """The settings of `[agreement] kind = "trimmed"`."""

    trim: int = setting(1, "extreme values left out at each end", at_least=0)

    def conflicts_with(self, config, precision):
        """Refuse a grid of so few replicas that no value is left."""
        least = 2 * self.trim + 1
        if config.grid.replicas < least:
            yield f"needs {least} replicas; use --grid {least}x1, or agreement.trim = 0"


class Trimmed(Agreement):
    """The trimmed mean of Yin et al. (2018), Definition 2, word by word.

    Every `--period` exchanges replicas take the mean of what is left when the `trim`
    smallest and the `trim` largest of their values are left out.
    """

    settings = TrimmedSettings

    @classmethod
    def of(cls, terms):
        """Make the agreement of a run."""
        made = cls(terms.grid, terms.share, terms.period)
        made.trim = terms.settings.trim
        return made

    def agree(self, state, purpose):
        """Gather what all replicas hold; all of them take the same mean."""
        replicas, own = self.grid.replicas, state.portion(1.0, self.grid.replicas)
        every = np.empty((replicas.size, own.size), dtype=own.dtype)
        replicas.gather(own, [own.size] * replicas.size, every.reshape(-1), purpose)
        state.become(np.sort(every, axis=0)[self.trim : len(every) - self.trim].mean(0))

    @classmethod
    def messages(cls, shape, exchanges):
        """Return what rank 0 sends: one gather after every `period` exchanges."""
        words = (shape.local_columns + shape.intercept) * shape.classes * shape.states
        return [] if exchanges % shape.period else [shape.sent(words)]

    @classmethod
    def last_messages(cls, shape, exchanges):
        """Return the gather at the end of a run whose last exchange had none."""
        return cls.messages(shape, 0) if exchanges % shape.period else []


agreements.register("trimmed", Trimmed)
