"""The k largest words of a bucket, by size; the others wait (error feedback).

|a − C(a)|² ≤ (1 − k/D) |a|². All replicas send as many, k of the share: no lengths go
ahead, and whether all words at once are fewer bytes is known before anything is sent.
"""

import numpy as np

from hpcsgd.codecs.base import Array, Finish, Line, Moment
from hpcsgd.codecs.records import add_record, is_sparse_smaller, pack, record_bytes
from hpcsgd.codecs.sparse import Recorded


def largest(part: Array, count: int) -> Array:
    """The indices of the largest words in rising order; no number is largest of all."""
    if count == part.size:
        return np.arange(count)
    found = np.argpartition(np.abs(part), part.size - count)[part.size - count :]
    return np.sort(found)


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
