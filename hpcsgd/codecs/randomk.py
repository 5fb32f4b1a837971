"""k words that all replicas draw alike: no indices travel, and the k words are summed.

With error feedback the words go as they are: times D/k they would be unbiased, and what
is left, a (1 − D/k) where they were drawn, would grow without end. Without feedback
they go times D/k, for the gradient to be right on average.
"""

import numpy as np

from hpcsgd.codecs.base import Array, Bucket, Finish, Line, Moment, Told
from hpcsgd.codecs.settings import CodecConfig
from hpcsgd.codecs.sparse import Sparse


class RandomK(Sparse):
    """One sum of k words: as many words up as down, and never more than all."""

    reads = ("share", "warm_up")

    def __init__(self, bucket: Bucket, config: CodecConfig) -> None:
        super().__init__(bucket, config)
        self.unbiased = config.feedback == "off"

    def start(self, part: Array, line: Line, moment: Moment) -> Finish:
        """Draw, and begin to sum what was drawn."""
        count = self.count(moment)
        dice = self.bucket.dice(moment)
        drawn = dice.choice(part.size, count, replace=False, shuffle=False)
        values = part[drawn] * part.dtype.type(self._factor(count))
        own = self._spread(drawn, values) if self.needs_own else None
        values /= line.size
        arrive, payload = line.start_sum(values), values.nbytes
        return lambda: Told(self._spread(drawn, arrive()), own, payload)

    def payload_bytes(self, ranks: int, rank: int) -> int | None:
        """k words; a warm-up changes k."""
        if self.config.warm_up:
            return None
        return self.count(Moment(0, 0, 1.0, 1.0)) * self.bucket.dtype.itemsize

    def variance(self, part: Array) -> Array | None:
        """a² (D/k − 1), where it is unbiased; of the share after the warm-up."""
        if not self.unbiased:
            return None
        rare = part.size / self.count(Moment(0, self.config.warm_up, 1.0, 1.0))
        return np.asarray(part**2 * (rare - 1.0))

    def _factor(self, count: int) -> float:
        return self.bucket.words / count if self.unbiased else 1.0

    def _spread(self, drawn: Array, values: Array) -> Array:
        words = self.nothing()
        words[drawn] = values
        return words
