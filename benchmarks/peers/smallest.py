"""The fewest iterations that are enough, in few tries."""

from collections.abc import Callable

MOST = 4096  # iterations


def smallest(
    is_enough: Callable[[int], bool],
    may_double: Callable[[int], bool] = lambda count: True,
    start: int = 1,
    most: int = MOST,
) -> int | None:
    """The smallest count that is enough, if more of it never is too little.

    Counts are doubled from `start` while `may_double` allows it, then bisected;
    None where none was enough.
    """
    low, high = 0, min(start, most)
    while not is_enough(high):
        if high >= most or not may_double(high):
            return None
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        if is_enough(middle):
            high = middle
        else:
            low = middle
    return high
