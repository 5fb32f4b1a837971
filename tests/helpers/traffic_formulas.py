"""What rank 0 sends under every method, as the cards of docs/reference/methods have it.

Nothing here asks the package what it sends: K scores, R replicas of M members, d_0
columns, and the batches of replica 0. A message is (kind, words, bytes of a word); a
sum that has to be reproducible is sent twice.
"""

from dataclasses import dataclass
from math import ceil

import numpy as np

from tests.helpers.codec_formulas import ADAPTS, FORMULAS


@dataclass(frozen=True)
class Sizes:
    """Of one run, with an intercept, in float64."""

    rows: int
    columns: int
    replicas: int
    members: int
    scores: int
    batch: int = 4
    epochs: int = 2

    @property
    def own(self):
        """Columns of rank 0, which has one of those left over."""
        return ceil(self.columns / self.members)

    @property
    def words(self):
        return self.own * self.scores

    @property
    def tail(self):
        """Words of the intercept, and the rows."""
        return self.scores + 1

    @property
    def shares(self):
        """Whether members are told what one of them has summed."""
        return self.replicas > 2 and self.members > 1

    def batches(self, together=1):
        """Rows of each message of an epoch of replica 0."""
        left, size = ceil(self.rows / self.replicas), self.batch * together
        return [min(size, left - first) for first in range(0, left, size)]

    def exchanges(self, together=1):
        return range(1, self.epochs * len(self.batches(together)) + 1)


def summed(words, size=8):
    return [("sum", words, size)]


def told(sizes, words):
    """To the other members, in float64."""
    return [("broadcast", words, 8)] if sizes.shares else []


def average(sizes):
    return summed(sizes.words + sizes.scores) + told(sizes, sizes.scores)


def averages(due):
    """One where it is due, and at the end unless the last exchange had one."""

    def formula(sizes):
        numbers = [n for n in sizes.exchanges() if due(sizes, n)]
        last = [] if sizes.exchanges()[-1] in numbers else [0]
        return [m for _ in numbers + last for m in average(sizes)]

    return formula


def local_adam(sizes):
    """As local; behind an average after two exchanges m and v, twice as many words."""
    count = len(sizes.exchanges())
    rule = summed(2 * (sizes.words + sizes.scores)) + told(sizes, 2 * sizes.scores)
    return (average(sizes) + rule) * (count // 2) + average(sizes) * (count % 2)


def pushed(sizes):
    """All after three exchanges; after the others half to one, with its weight."""
    sent = []
    for number in sizes.exchanges():
        half = sizes.words + sizes.scores + 1
        sent += average(sizes) if number % 3 == 0 else [("deal", half, 8)]
    return sent + (average(sizes) if sizes.exchanges()[-1] % 3 else [])


def nested(sizes):
    """All after three exchanges; two of four after each other one."""
    sent, last = [], sizes.exchanges()[-1]
    for number in sizes.exchanges():
        if number % 3 == 0:
            sent += average(sizes)
        elif sizes.replicas == 4:
            sent += summed(sizes.words + sizes.scores)
    return sent + (average(sizes) if last % 3 else [])


def late(sizes, warm=0, kind="sum"):
    """Set out after three exchanges, and applied after the next one.

    One comes at once after each of the first `warm` exchanges.
    """
    sent = average(sizes) * warm
    for number in sizes.exchanges()[warm:]:
        if number % 3 == 0:
            sent += [(kind, sizes.words + sizes.scores, 8)]
        if number % 3 == 1 and number - 1 > warm:
            sent += told(sizes, sizes.scores)
    return sent + average(sizes)


def late_bytes(sizes):
    """A byte a word and two ends, and the intercept as it is."""
    record = sizes.words + 8 + 8 * sizes.scores
    return [
        ("bytes", record, 1) if kind == "coded" else (kind, words, size)
        for kind, words, size in late(sizes, kind="coded")
    ]


def slow_parts(sizes):
    """After two exchanges pieces to all, the intercept in each, and an own part."""
    part = ceil(sizes.own / sizes.replicas) * sizes.scores
    pieces = sizes.words + sizes.replicas * sizes.scores
    slow = [("pieces", pieces, 8), ("gather", part, 8)]
    count = len(sizes.exchanges())
    return slow * (count // 2) + average(sizes) * (count % 2)


def gradient(sizes, buckets=1, together=1):
    """Every word once, in so many messages, and the tail with one of them."""
    parts = pieces(sizes.words, sizes.scores, buckets)
    parts[0] += sizes.tail
    each = [m for words in parts for m in summed(words)] + told(sizes, sizes.tail)
    return each * len(sizes.exchanges(together))


def pieces(words, width, count):
    """Of whole columns."""
    columns = words // width
    edges = [columns * k // count for k in range(count + 1)]
    return [(b - a) * width for a, b in zip(edges, edges[1:], strict=False)]


def coded(name):
    """The tail ahead in float64, and what the card of the codec says: bytes alone."""

    def formula(sizes):
        sent, parts = [], np.ones((sizes.replicas, sizes.words))
        for number in sizes.exchanges():
            adapts = name in ADAPTS and number == 2
            size = FORMULAS[name](name, parts, 8, 0)
            size += 24 * ceil(sizes.words / 16) * adapts
            sent += [("bytes", size, 1), ("bytes", 8 * sizes.tail, 1)]
            sent += [
                ("bytes", words * each, 1) for _, words, each in told(sizes, sizes.tail)
            ]
        return sent

    return formula


def warm_momentum(codec):
    """Three gradients as they are, then momentum by the codec."""

    def formula(sizes):
        each = len(gradient(sizes)) // len(sizes.exchanges())
        plain = gradient(sizes)[: 3 * each]
        later = coded(codec)(sizes)
        each = len(later) // len(sizes.exchanges())
        return [("bytes", w * size, 1) for _, w, size in plain] + later[3 * each :]

    return formula


def mixed(sizes, period=1):
    """Weights in the first exchange of each period, and their mean at the end."""
    return average(sizes) * (len(sizes.exchanges()[::period]) + 1)


def records(sizes, period=1):
    """To both neighbours a byte a word, two ends and the intercept as it is."""
    record = ("swap", 8 + sizes.words + 8 * sizes.scores, 1)
    return [record] * (2 * len(sizes.exchanges()[::period])) + average(sizes)


def mixed_in_twos(sizes):
    """Weights to a leader and back, and between two leaders if there are two."""
    words = sizes.words + sizes.scores
    each = [("reduce", words, 8), ("broadcast", words, 8)]
    between = average(sizes) if sizes.replicas > 2 else []
    return (each + between) * len(sizes.exchanges()) + average(sizes)


def records_in_threes(sizes):
    """To a leader and back; of four replicas the last leads itself, in a ring of two.

    Members of a leader of three learn the intercept of its mean.
    """
    words = sizes.words + sizes.scores
    each = [("reduce", words, 8), ("broadcast", words, 8)]
    if sizes.replicas > 3:
        each += [("swap", 8 + sizes.words + 8 * sizes.scores, 1)] * 2
        each += told(sizes, sizes.scores)
    return each * len(sizes.exchanges()) + average(sizes)


def rounds(sizes):
    """To each neighbour on a ring [b y | b]; the weighted mean at the end."""
    peers, words = min(sizes.replicas - 1, 2), sizes.words + sizes.scores + 1
    swaps = [("swap", words, 8)] * (peers * len(sizes.exchanges()))
    shared = [("broadcast", sizes.scores, 8)] if sizes.members > 1 else []
    return swaps + summed(words) + shared


def scheduled(sizes, most=16):
    """A message for so many words, or a little fewer."""
    words = sizes.words + sizes.tail
    count = ceil(words / most)
    edges = [words * k // count for k in range(count + 1)]
    sent = [m for a, b in zip(edges, edges[1:], strict=False) for m in summed(b - a)]
    return (sent + told(sizes, sizes.tail)) * len(sizes.exchanges())


def two_halves(sizes):
    """A gradient of a batch and one of the next one, in one exchange."""
    each = 2 * summed(sizes.words + sizes.tail) + told(sizes, sizes.tail)
    return each * len(sizes.exchanges(together=2))


def slices(sizes, together=1, weight=8):
    """A sum of the tail, a sum of parts of the gradient, the own slice of weights."""
    own = ceil(sizes.own / sizes.replicas) * sizes.scores
    each = summed(sizes.tail)
    each += [("parts", sizes.words, 8), ("gather", own, weight)]
    return (each + told(sizes, sizes.tail)) * len(sizes.exchanges(together))


def rounded_slices(sizes):
    """Weights of 2 bytes, and at the end once the exact ones."""
    own = ceil(sizes.own / sizes.replicas) * sizes.scores
    return slices(sizes, weight=2) + [("gather", own, 8)]


def late_steps(sizes):
    """From the third exchange on weights are those of the step before."""
    # The third exchange gathers none; what the last one leaves follows at the end.
    return slices(sizes)


def in_groups(sizes):
    """Two replicas add up, their leaders sum, and tell them; the tail on its own."""
    words, tail = sizes.words, sizes.tail
    each = [("reduce", tail, 8), ("reduce", words, 8)]
    if sizes.replicas > 2:
        each += summed(words + tail)
    each += [("broadcast", words, 8), ("broadcast", tail, 8)] + told(sizes, tail)
    return each * len(sizes.exchanges())


def every(period):
    return averages(lambda sizes, n: n % period == 0)


def switched(sizes, number):
    """In the first half of an epoch after every exchange, then after three."""
    first = ceil(len(sizes.batches()) / 2)
    return number <= first or number % 3 == 0


CODECS = (
    *("fp16", "bf16", "fp8", "topk", "randomk", "dgc", "qsgd", "sign", "vote", "byte"),
    *("bytegrad", "nuqsgd", "alq", "amq", "powersgd"),
)
# Here the data say when, or how much.
DECIDED_BY_DATA = ("threshold", "wangni", "accordion", "accordion-batch")
AGREEMENTS = {
    "ddp": gradient,
    **{name: coded(name) for name in CODECS},
    "bagua": coded("bytegrad"),
    "infinity": slices,
    "decentralized": mixed,
    "decentralized-low": records,
    "qadam": warm_momentum("bytegrad"),
    "onebit-adam": warm_momentum("sign"),
    "async-average": late,
    "bytescheduler": scheduled,
    "wavelet": two_halves,
    "local": every(2),
    "sgp": pushed,
    "local-adam": local_adam,
    "postlocal": averages(switched),
    "hierarchical": nested,
    "fedavg": every(2),
    "slowmo": every(2),
    "anybatch": rounds,
    "zero1": slices,
    "zero2": slices,
    "zero3": slices,
    "offload": slices,
}


def products(sizes):
    """A sum of the scores of each batch, where there are members to sum them."""
    if sizes.members == 1:
        return []
    rows = sizes.batches() * sizes.epochs
    return [m for count in rows for m in summed(count * sizes.scores)]


def counted(sent, reproducible=False):
    """Calls, words and bytes."""
    twice = [2 if kind == "sum" and reproducible else 1 for kind, _, _ in sent]
    sizes = [(words, words * size) for _, words, size in sent]
    return {
        "calls": sum(twice),
        "words": sum(t * words for t, (words, _) in zip(twice, sizes, strict=True)),
        "bytes": sum(t * size for t, (_, size) in zip(twice, sizes, strict=True)),
    }
