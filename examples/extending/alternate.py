"""A codec: every other word of a gradient, the even ones first, then the odd ones."""

import numpy as np

from hpcsgd.agreements import codecs
from hpcsgd.agreements.codecs import Codec, Decoded


class Alternate(Codec):
    """Half the bytes by one sum; error feedback keeps the words that wait."""

    unbiased = False
    wants_feedback = True

    def start(self, part, line, moment):
        """Begin the sum of this exchange's words; what is returned finishes it."""
        now = slice(moment.number % 2, None, 2)
        own = np.zeros_like(part)
        own[now] = part[now]
        arrive = line.start_sum(part[now] / line.size)

        def finish():
            mean = np.zeros_like(part)
            mean[now] = words = arrive()
            return Decoded(mean, own, words.nbytes)

        return finish

    def payload_bytes(self, ranks, rank):
        """Half of the words; of an odd number it depends on the exchange."""
        words, size = self.bucket.words, self.bucket.dtype.itemsize
        return None if words % 2 else words // 2 * size


codecs.register("alternate", Alternate)
