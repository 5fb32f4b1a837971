"""What residuals of a narrow format are multiplied by, so that small ones survive.

A power of two: numbers that fit are not changed by it. It doubles after a while without
overflow; after an overflow it is halved, and the steps of that exchange are left out.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcsgd.errors import ConfigError

FIRST, LEAST, MOST = 2.0**10, 2.0**-14, 2.0**24
PATIENCE = 1000  # exchanges without overflow after which it doubles


@dataclass
class LossScale:
    """The same on all members of a replica, who know the same residuals."""

    value: float = FIRST
    is_fixed: bool = False
    skipped: int = 0  # exchanges whose steps were left out
    quiet: int = 0  # exchanges since the last change
    waits: bool = False  # True: replicas decide together, when an exchange is over
    overflowed: bool = False  # where it waits: some residual of this exchange

    def keeps(self, residuals: NDArray[np.generic]) -> bool:
        """True where the steps count; adapts.

        One that is fixed, or that has come to its least, leaves nothing out: what is
        not finite then ends the run.
        """
        fits = bool(np.isfinite(residuals).all())
        if not fits and (self.is_fixed or self.value <= LEAST):
            return True
        if self.waits:
            self.overflowed |= not fits
        else:
            self.settle(not fits)
        return fits

    def settle(self, overflowed: bool) -> None:
        """Adapt to an exchange in which residuals overflowed somewhere, or nowhere."""
        self.overflowed = False
        if not overflowed:
            self._grow()
            return
        self.value, self.quiet = self.value / 2, 0
        self.skipped += 1

    def kept(self) -> NDArray[np.float64]:
        """What has to outlive a checkpoint."""
        return np.array([[self.value, self.quiet, self.skipped]])

    def put_back(self, kept: NDArray[np.float64]) -> None:
        """Such numbers, again."""
        self.value = float(kept[0, 0])
        self.quiet, self.skipped = int(kept[0, 1]), int(kept[0, 2])

    def _grow(self) -> None:
        self.quiet += 1
        if not self.is_fixed and self.quiet >= PATIENCE and self.value < MOST:
            self.value, self.quiet = self.value * 2, 0


def make_loss_scale(value: float) -> LossScale:
    """One that adapts (0), or one that stays."""
    if not value:
        return LossScale()
    if not (value > 0 and float(np.frexp(value)[0]) == 0.5 and value <= MOST):
        raise ConfigError(
            f"[precision] loss_scale = {value:g} must be a power of two up to"
            f" {MOST:g}, or 0 for one that adapts"
        )
    return LossScale(value, is_fixed=True)
