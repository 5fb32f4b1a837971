"""An agreement: the median of what replicas hold, word by word."""

import numpy as np

from hpcsgd import agreements
from hpcsgd.agreements import Agreement


class Median(Agreement):
    """Every `--period` exchanges; one wild replica of three is outvoted."""

    def agree(self, state, purpose):
        """Gather what all replicas hold; all of them take the same middle."""
        replicas = self.grid.replicas
        own = state.portion(1.0, replicas)
        found = np.empty((replicas.size, own.size), dtype=own.dtype)
        replicas.gather(own, [own.size] * replicas.size, found.reshape(-1), purpose)
        state.become(np.median(found, axis=0))


agreements.register("median", Median)
