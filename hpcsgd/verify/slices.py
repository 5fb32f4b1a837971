"""What rank 0 must have sent where replicas hold slices, from the settings alone.

In every exchange K words for the intercept and the count, and for each tile its words
of gradient and the own slice of its weights, once: in stage 3 before the scores, else
after the step.
"""

from math import ceil

from hpcsgd.agreement.cuts import Cuts
from hpcsgd.data.partition import split_range
from hpcsgd.products import GATHERS
from hpcsgd.verify.traffic import Count, Shape


def slices_traffic(
    shape: Shape, epochs: int, members: int, product: str, tiles: int, twice: bool
) -> Count:
    """Calls, words and bytes of agreement; `twice`: sums are reproducible."""
    if shape.replicas == 1:
        return {"agreement": dict.fromkeys(("calls", "words", "bytes"), 0)}
    rows = split_range(shape.rows, shape.replicas, 0).stop
    together = shape.schedule.batch * shape.agreement["accumulate"]
    exchanges = epochs * ceil(rows / together)
    held = split_range(shape.columns, members, 0).stop
    held = shape.columns if product in GATHERS else held
    own = Cuts(held, shape.classes, tiles, shape.replicas, 0).height
    tail, times = shape.classes * shape.intercept + 1, 1 + twice
    words = (held + own) * shape.classes + tail * times
    size = 8 if shape.precision.weights == "fp64" else 4
    shared = shape.intercept and shape.replicas > 2 and members > 1
    return {
        "agreement": {
            "calls": exchanges * (2 * tiles + times + shared),
            "words": exchanges * (words + tail * shared),
            "bytes": exchanges * (words * size + tail * shared * 8),
        }
    }
