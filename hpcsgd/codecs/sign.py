"""One bit a word: its sign, and one scale."""

import numpy as np

from hpcsgd.codecs.base import Array, Gathered, Moment
from hpcsgd.codecs.chunks import SCALE_BYTES
from hpcsgd.codecs.packing import pack, packed_bytes, unpack


class Sign(Gathered):
    """C(a) = mean|a| · sign(a), with the sign of zero positive.

    Useless without feedback, which reads the very values that others decode.
    """

    unbiased = False
    wants_feedback = True
    reads = ()

    def encode(self, part: Array, moment: Moment, replica: int) -> Array:
        """The scale of the bucket in float32, then the bits."""
        scale = np.array([np.abs(part).mean(dtype=np.float64)], dtype=np.float32)
        return np.concatenate([scale.view(np.uint8), pack(part < 0, 1)])

    def add_decoded(self, record: Array, total: Array, moment: Moment) -> None:
        """total ± scale."""
        scale = total.dtype.type(record[:SCALE_BYTES].copy().view(np.float32)[0])
        negative = unpack(record[SCALE_BYTES:], self.bucket.words, 1)
        total += np.where(negative, -scale, scale)

    def payload_bytes(self, ranks: int, rank: int) -> int:
        """ceil(D / 8) + 4."""
        return packed_bytes(self.bucket.words, 1) + SCALE_BYTES
