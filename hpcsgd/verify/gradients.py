"""What rank 0 must have sent to agree on gradients, from the settings alone.

In every exchange the d_0·K words of the gradient that it holds, in so many buckets of
whole columns, and behind the first of them K words for the intercept and the count. An
intercept of more than two replicas of more than one member is broadcast behind that.

Where words are encoded, the tail goes ahead as a float64 sum, and each bucket takes the
bytes that its codec says; only those are counted, and only where data decide nothing. A
codec that clips has members sum one float64 word before that.
"""

from math import ceil
from typing import Any

import numpy as np

from hpcsgd.agreement.buckets import bucket_count
from hpcsgd.codecs import Bucket, make_codec
from hpcsgd.config import RunConfig
from hpcsgd.data.partition import split_range
from hpcsgd.products import GATHERS
from hpcsgd.verify.traffic import Count, Shape, expected

KIND = "gradient"
Legs = list[dict[str, Any]]


def is_plain(config: RunConfig, replicas: int) -> bool:
    """Whether the sums travel as they are, in place."""
    agreement = config.agreement
    bare = agreement.codec == "identity" and config.codec.feedback != "on"
    return bare or replicas == 1


def is_lossless(config: RunConfig, replicas: int) -> bool:
    """Whether a step is that of the sums themselves."""
    return config.agreement.codec == "identity" or replicas == 1


def exchanges_of(shape: Shape) -> int:
    """Of an epoch: batches that travel together are one."""
    rows: int = split_range(shape.rows, shape.replicas, 0).stop
    together = shape.schedule.batch * int(shape.agreement["accumulate"])
    return ceil(rows / together)


def gradient_traffic(
    shape: Shape, epochs: int, members: int, product: str, buckets: int, twice: bool
) -> Count:
    """Calls, words and bytes of agreement; `twice`: sums are reproducible."""
    exchanges = epochs * exchanges_of(shape)
    told = (exchanges, members, product, buckets, twice)
    return {"agreement": plain_traffic(shape, *told)}


def plain_traffic(
    shape: Shape, exchanges: int, members: int, product: str, buckets: int, twice: bool
) -> dict[str, int]:
    """The same of so many exchanges."""
    if shape.replicas == 1:
        return dict.fromkeys(("calls", "words", "bytes"), 0)
    tail = shape.classes * shape.intercept + 1
    words = _held(shape, members, product) * shape.classes + tail
    size, times = _size(shape), 1 + twice
    shared = int(_is_shared(shape, members))
    return {
        "calls": exchanges * (buckets * times + shared),
        "words": exchanges * (words * times + tail * shared),
        "bytes": exchanges * (words * times * size + tail * shared * 8),
    }


def coded_bytes(
    shape: Shape, config: RunConfig, members: int, product: str, buckets: int
) -> int | None:
    """Bytes of agreement in one exchange; None where the data or the time decide."""
    sent, measures = 0, False
    for number in range(buckets):
        part = split_range(_held(shape, members, product), buckets, number)
        bucket = Bucket(
            number,
            part.stop - part.start,
            shape.classes,
            np.dtype(f"f{_size(shape)}"),
        )
        codec = make_codec(config.agreement.codec, bucket, config.codec)
        payload = codec.payload_bytes(shape.replicas, 0)
        if payload is None:
            return None
        sent += payload
        measures = codec.wants_norm and members > 1
    tail = shape.classes * shape.intercept + 1
    sent += 8 * int(measures)
    return sent + 8 * tail * (1 + int(_is_shared(shape, members)))


def expected_of(shape: Shape, config: RunConfig, legs: Legs, sparse: bool) -> Count:
    """Of a whole run: products by their batches, and what its agreement must be."""
    each = exchanges_of(shape)
    counts = expected(shape, [_by_batches(shape, leg, each) for leg in legs])
    parts = [_agreement(shape, config, leg, sparse) for leg in legs]
    found = {"products": counts["products"]}
    if all(parts):
        found["agreement"] = {key: sum(p[key] for p in parts) for key in parts[0]}
    return found


def _agreement(
    shape: Shape, config: RunConfig, leg: dict[str, Any], sparse: bool
) -> dict[str, int]:
    """Of one leg; nothing where no formula holds."""
    if config.agreement.hierarchical != "off":
        return {}
    members, product = leg["members"], leg["product"]
    exchanges = leg["last"] - leg["first"]
    buckets = _buckets(shape, config, members, product, sparse)
    if is_plain(config, shape.replicas):
        told = (exchanges, members, product, buckets, leg["reproducible"])
        return plain_traffic(shape, *told)
    sent = coded_bytes(shape, config, members, product, buckets)
    if sent is None or leg["reproducible"]:
        return {}
    return {"bytes": exchanges * sent}


def _buckets(
    shape: Shape, config: RunConfig, members: int, product: str, sparse: bool
) -> int:
    if sparse or shape.replicas == 1:
        return 1
    held, cap = _held(shape, members, product), config.agreement.bucket
    return bucket_count(held, shape.classes, _size(shape), cap)


def _by_batches(shape: Shape, leg: dict[str, Any], each: int) -> dict[str, Any]:
    """The leg as products see it, batch by batch."""
    batches, together = len(shape.groups()), int(shape.agreement["accumulate"])

    def place(exchange: int) -> int:
        epoch, rest = divmod(exchange, each)
        return epoch * batches + min(rest * together, batches)

    return {**leg, **{key: place(leg[key]) for key in ("first", "last", "planned")}}


def _held(shape: Shape, members: int, product: str) -> int:
    """Columns of rank 0."""
    if product in GATHERS:
        return shape.columns
    own: int = split_range(shape.columns, members, 0).stop
    return own


def _size(shape: Shape) -> int:
    return 8 if shape.precision.weights == "fp64" else 4


def _is_shared(shape: Shape, members: int) -> bool:
    """Whether members are told what one of them summed for the intercept."""
    return shape.intercept and shape.replicas > 2 and members > 1
