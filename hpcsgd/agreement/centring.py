"""Gradients without their mean, or of length one."""

from dataclasses import dataclass

import numpy as np

from hpcsgd.agreement.clipping import norm_of
from hpcsgd.agreement.shaping import Shaper, Whole
from hpcsgd.codecs import Moment
from hpcsgd.products.base import Array


class OverClasses(Shaper):
    """Less the mean over the K scores of a column.

    Of softmax that mean is 0 but for rounding, so that the optimum stays.
    """

    def shape(self, gradient: Array, whole: Whole, moment: Moment) -> None:
        """Column by column."""
        gradient -= gradient.mean(axis=1, keepdims=True, dtype=gradient.dtype)


@dataclass
class OverColumns(Shaper):
    """Less the mean over all columns, score by score (gradient centralisation)."""

    total: int  # columns

    def shape(self, gradient: Array, whole: Whole, moment: Moment) -> None:
        """One sum of K words."""
        sums = whole.total(gradient.sum(axis=0, dtype=np.float64))
        gradient -= (sums / self.total).astype(gradient.dtype)


class ToLengthOne(Shaper):
    """g / ‖g‖: a step is as long as the rate says; of zeros there is none."""

    def shape(self, gradient: Array, whole: Whole, moment: Moment) -> None:
        """One factor for all."""
        size = norm_of(gradient, whole)
        if size > 0.0:
            # In float64: of a size near the least number 1 / size would be infinite.
            gradient[...] = gradient.astype(np.float64) / size
