"""Codecs that say some of the words; all of them where records would be larger.

Without its other words a part is not itself on average: what was left out has to be
kept and sent later (error feedback), but for the codecs that say so.
"""

from abc import abstractmethod

import numpy as np

from hpcsgd.codecs.base import Array, Bucket, Codec, Finish, Line, Moment, Told
from hpcsgd.codecs.settings import CodecConfig


class Sparse(Codec):
    """What they share: how many words, the way of all words, and its count."""

    unbiased = False
    wants_feedback = True
    reads: tuple[str, ...] = ("share", "warm_up", "dense")

    def __init__(self, bucket: Bucket, config: CodecConfig) -> None:
        super().__init__(bucket, config)
        self._dense = 0

    @property
    def dense_exchanges(self) -> int:
        """So many, since this process began."""
        return self._dense

    def share(self, moment: Moment) -> float:
        """share^((e + 1) / (W + 1)) in epoch e of W that warm up."""
        done = min((moment.epoch + 1) / (self.config.warm_up + 1), 1.0)
        return float(self.config.share**done)

    def count(self, moment: Moment) -> int:
        """k: the share of the words, one at least."""
        return max(round(self.share(moment) * self.bucket.words), 1)

    def start_dense(self, part: Array, line: Line, ahead: int = 0) -> Finish:
        """All words by a sum, after so many bytes: nothing is lost."""
        self._dense += 1
        part /= line.size
        arrive = line.start_sum(part)
        return lambda: Told(arrive(), None, ahead + part.nbytes)

    def nothing(self) -> Array:
        """The part that says nothing."""
        return np.zeros(self.bucket.words, dtype=self.bucket.dtype)


class Recorded(Sparse):
    """They travel by records, which are gathered and added in rank order."""

    @abstractmethod
    def add(self, record: Array, head: Array, total: Array) -> None:
        """total ← total + what the record says; `head` is what went ahead of it."""

    def start_records(
        self,
        record: Array,
        heads: list[Array],
        lengths: list[int],
        line: Line,
        ahead: int = 0,
    ) -> Finish:
        """Begin to gather records of known lengths, after so many bytes of heads."""
        arrive = line.start_gather(record, lengths)

        def finish() -> Told:
            records = arrive()
            own, mean = None, self.nothing()
            if self.needs_own:
                own = self.nothing()
                self.add(records[line.rank], heads[line.rank], own)
            for said, head in zip(records, heads, strict=True):
                self.add(said, head, mean)
            mean /= line.size
            return Told(mean, own, ahead + record.nbytes)

        return finish
