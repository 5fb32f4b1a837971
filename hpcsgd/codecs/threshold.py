"""All words of at least some size τ, however many they are (error feedback).

τ is fixed, or found in every exchange such that about the share of the words is as
large: by a sample of them, where selecting the k largest would take longer. Replicas
send records of unequal lengths; their counts go ahead, and with them the switch to all
words is decided.
"""

import numpy as np

from hpcsgd.codecs.base import COUNT_BYTES, Array, Finish, Line, Moment
from hpcsgd.codecs.records import add_record, is_sparse_smaller, pack, record_bytes
from hpcsgd.codecs.sparse import Recorded

SAMPLE = 4096  # words; of so many, all are looked at


class Threshold(Recorded):
    """A count of 8 bytes, and the record."""

    reads = (*Recorded.reads, "threshold")

    def start(self, part: Array, line: Line, moment: Moment) -> Finish:
        """Choose, tell how many, and begin to gather."""
        size = self._size(part, moment, 1 + line.rank)
        # What is no number is no smaller: it is sent, and seen.
        chosen = np.flatnonzero(~(np.abs(part) < size) & (part != 0.0))
        heads = line.start_gather(np.array([chosen.size], dtype=np.int64))()
        words, item = part.size, part.itemsize
        lengths = [record_bytes(int(head[0]), words, item) for head in heads]
        if self.config.dense == "auto" and not is_sparse_smaller(lengths, words, item):
            return self.start_dense(part, line, COUNT_BYTES)
        record = pack(part, chosen)
        return self.start_records(record, heads, lengths, line, COUNT_BYTES)

    def add(self, record: Array, head: Array, total: Array) -> None:
        """k went ahead."""
        add_record(record, int(head[0]), total)

    def payload_bytes(self, ranks: int, rank: int) -> int | None:
        """The words that are large decide."""
        return None

    def _size(self, part: Array, moment: Moment, who: int) -> float:
        """τ."""
        if self.config.threshold:
            return self.config.threshold
        sizes = np.abs(part)
        if part.size > SAMPLE:
            dice = self.bucket.dice(moment, who)
            sizes = sizes[dice.integers(part.size, size=SAMPLE)]
        above = max(round(self.share(moment) * sizes.size), 1)
        return float(np.partition(sizes, sizes.size - above)[sizes.size - above])
