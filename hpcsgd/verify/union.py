"""What all replicas together work on in an exchange of agreed gradients.

Which rows a replica takes is a function of seed, epoch and replica: one process reads
those of all, and replays the one step that they take together, Σ_p s_p / Σ_p n_p.
"""

from dataclasses import dataclass

import numpy as np

from hpcsgd.config import RunConfig
from hpcsgd.data.partition import split_range
from hpcsgd.data.sampling import plan_groups
from hpcsgd.families.base import Array
from hpcsgd.rates import make_rate
from hpcsgd.verify.order import order_of


@dataclass(frozen=True)
class Union:
    """Of a run whose replicas take one step together in every exchange."""

    config: RunConfig
    rows: int  # of the data
    replicas: int

    @property
    def each(self) -> int:
        """Exchanges of an epoch, those of the largest replica."""
        return len(self._batches(0))

    def taken(self, number: int) -> Array:
        """The rows of exchange `number`, from 0, of all replicas in turn."""
        epoch, index = divmod(number, self.each)
        parts = [self._of(replica, epoch, index) for replica in range(self.replicas)]
        return np.concatenate(parts)

    def rates(self, number: int) -> Array:
        """That of the exchange: a step is one, of however many batches."""
        epochs = self.config.schedule.epochs
        return make_rate(self.config.rate, epochs * self.each, epochs).at(number, 1)

    def _of(self, replica: int, epoch: int, index: int) -> Array:
        """None of a replica that has used up its rows."""
        batches, part = self._batches(replica), self._part(replica)
        first = sum(batches[:index])
        local = order_of(self.config.sampling, part.stop - part.start, replica, epoch)
        taken: Array = (
            part.start + local[first : first + sum(batches[index : index + 1])]
        )
        return taken

    def _batches(self, replica: int) -> list[int]:
        """Rows of each exchange of an epoch: batches that travel together are one."""
        part, schedule = self._part(replica), self.config.schedule
        together = self.config.agreement.accumulate
        sizes = plan_groups(part.stop - part.start, schedule.batch, together)
        return [sum(group) for group in sizes]

    def _part(self, replica: int) -> slice:
        return split_range(self.rows, self.replicas, replica)
