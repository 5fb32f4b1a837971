"""Who owns which range: pure functions."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

PARTITIONS = ("auto", "equal", "stored")  # how columns may be shared by members


def split_range(n: int, parts: int, index: int) -> slice:
    """Part `index` of range(n) cut into `parts`; the first n % parts get one more."""
    size, extra = divmod(n, parts)
    start = index * size + min(index, extra)
    return slice(start, start + size + (index < extra))


def lengths(n: int, parts: int) -> tuple[int, ...]:
    """Of all of those parts."""
    ranges = (split_range(n, parts, index) for index in range(parts))
    return tuple(part.stop - part.start for part in ranges)


def split_by_weight(weights: NDArray[Any], parts: int) -> list[slice]:
    """range(len(weights)) cut into consecutive parts of about equal weight.

    No part weighs more than total / parts + max(weights); none is empty where there
    are enough entries. Without any weight, parts are of equal length.
    """
    n = len(weights)
    total = weights.sum()
    if n <= parts or total <= 0:
        return [split_range(n, parts, index) for index in range(parts)]
    reached = np.cumsum(weights)
    cuts = [0]
    for index in range(1, parts):
        wanted = int(np.searchsorted(reached, total * (index / parts), side="right"))
        cuts.append(min(max(wanted, cuts[-1] + 1), n - parts + index))
    return [slice(*ends) for ends in zip(cuts, [*cuts[1:], n], strict=True)]
