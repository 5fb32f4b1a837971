"""Data that a model tells apart without an error, whose F has no minimum.

Where every row of weight c_i > 0 is on the side of its own class by the score less its
offset, so it is for any multiple of the weights: the loss falls to 0 as they grow, and
no finite weights reach that. A penalty, or bounds, give F a minimum again.
"""

import numpy as np

from hpcsgd.penalties import Penalty
from hpcsgd.polish.rows import AllRows, Array

# Losses of these families are above 0 at every score.
ENDLESS = ("logistic", "probit", "softmax")
NO_MINIMUM = (
    "the columns tell the classes apart without an error, so that F has no minimum: the"
    " coefficients grow without end; give a penalty"
)


def may_lack_minimum(family: str, penalty: Penalty) -> bool:
    """Return whether F may have no minimum: nothing holds the weights."""
    return family in ENDLESS and penalty.is_nothing and not penalty.is_bounded


def is_separated(rows: AllRows, scores: Array) -> bool:
    """Return whether each local score (n, K) is on its side, on all ranks. Collective.

    One flag over all ranks; no pass over the matrix.
    """
    offsets = rows.objective.shard.offsets
    own = scores if offsets is None else scores - offsets
    counts = rows.share[:, 0] > 0.0
    if rows.objective.family.targets == "classes":
        label = rows.targets.astype(np.intp)
        mine = np.take_along_axis(own, label, axis=1)
        others = own.copy()
        np.put_along_axis(others, label, -np.inf, axis=1)
        margins = mine[:, 0] - others.max(axis=1)
    else:
        margins = ((2.0 * rows.targets - 1.0) * own)[:, 0]
    is_wrong = bool((counts & ~(margins > 0.0)).any())
    return not rows.grid.world.max_flag(int(is_wrong))
