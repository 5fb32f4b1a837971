"""The k largest words of a bucket, by size; the others wait (error feedback).

|a − C(a)|² ≤ (1 − k/D) |a|². All replicas send as many, k of the share: no lengths go
ahead, and whether all words at once are fewer bytes is known before anything is sent.
"""

from typing import Any

import numpy as np

from hpcsgd.codecs.base import Array, Finish, Line, Moment
from hpcsgd.codecs.records import add_record, is_sparse_smaller, pack, record_bytes
from hpcsgd.codecs.sparse import Recorded

SAMPLED = 2**17  # words; of so many, a sample says first which may be large
EVERY = 64  # word is in the sample
WIDER = 1.15  # so many more are taken for candidates as are to be chosen
MOST = 0.1  # of all words; more are selected as fast without


def largest(part: Array, count: int) -> Array:
    """The indices of the largest words in rising order; no number is largest of all."""
    if count == part.size:
        return np.arange(count)
    sizes = np.abs(part)
    if part.size < SAMPLED or count > MOST * part.size:
        return np.sort(_selected(sizes, count))
    candidates = np.flatnonzero(~(sizes < _low(sizes, count)))
    if candidates.size < count:  # the sample was not like the others
        return np.sort(_selected(sizes, count))
    return np.sort(candidates[_selected(sizes[candidates], count)])


def _selected(sizes: Array, count: int) -> Array:
    first = sizes.size - count
    found: Array = np.argpartition(sizes, first)[first:] if first else np.arange(count)
    return found


def _low(sizes: Array, count: int) -> Any:
    """A size that somewhat more than `count` words have, as a sample says."""
    sample = sizes[::EVERY]
    above = min(int(WIDER * count / EVERY) + 4, sample.size - 1)
    return np.partition(sample, sample.size - above)[sample.size - above]


class TopK(Recorded):
    """k values and their indices, of each replica to all."""

    def start(self, part: Array, line: Line, moment: Moment) -> Finish:
        """Choose, and begin to gather."""
        count = self.count(moment)
        if self._is_dense(count, line.size):
            return self.start_dense(part, line)
        record = pack(part, largest(part, count))
        heads = [np.array([count])] * line.size
        return self.start_records(record, heads, [record.size] * line.size, line)

    def add(self, record: Array, head: Array, total: Array) -> None:
        """k is what everybody says."""
        add_record(record, int(head[0]), total)

    def payload_bytes(self, ranks: int, rank: int) -> int | None:
        """k words and their indices, or all words; a warm-up changes k."""
        if self.config.warm_up:
            return None
        count = self.count(Moment(0, 0, 1.0, 1.0))
        words, size = self.bucket.words, self.bucket.dtype.itemsize
        if self._is_dense(count, ranks):
            return words * size
        return record_bytes(count, words, size)

    def _is_dense(self, count: int, ranks: int) -> bool:
        words, size = self.bucket.words, self.bucket.dtype.itemsize
        lengths = [record_bytes(count, words, size)] * ranks
        return self.config.dense == "auto" and not is_sparse_smaller(
            lengths, words, size
        )
