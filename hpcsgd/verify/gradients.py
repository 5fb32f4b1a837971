"""What rank 0 must have sent to agree on gradients, from the settings alone.

In every exchange the d_0·K words of the gradient that it holds, in so many buckets of
whole columns, and behind the first of them K words for the intercept and the count. An
intercept of more than two replicas of more than one member is broadcast behind that.
"""

from math import ceil

from hpcsgd.data.partition import split_range
from hpcsgd.products import GATHERS
from hpcsgd.verify.traffic import Count, Shape

KIND = "gradient"


def gradient_traffic(
    shape: Shape, epochs: int, members: int, product: str, buckets: int, twice: bool
) -> Count:
    """Calls, words and bytes of agreement; `twice`: sums are reproducible."""
    if shape.replicas == 1:
        return {"agreement": dict.fromkeys(("calls", "words", "bytes"), 0)}
    rows = split_range(shape.rows, shape.replicas, 0).stop
    together = shape.schedule.batch * shape.agreement["accumulate"]
    exchanges = epochs * ceil(rows / together)
    held = split_range(shape.columns, members, 0).stop
    held = shape.columns if product in GATHERS else held
    tail = shape.classes * shape.intercept + 1
    words = held * shape.classes + tail
    size, times = 8 if shape.precision.weights == "fp64" else 4, 1 + twice
    shared = shape.intercept and shape.replicas > 2 and members > 1
    return {
        "agreement": {
            "calls": exchanges * (buckets * times + shared),
            "words": exchanges * (words * times + tail * shared),
            "bytes": exchanges * (words * times * size + tail * shared * 8),
        }
    }
