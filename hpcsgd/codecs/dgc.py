"""Deep gradient compression: top-k of what momentum has gathered, on every replica.

u ← m u + (1 − m) g;  v ← v + u;  the k largest of v are sent, and are zero then

or, with `nesterov`, v ← v + m u + (1 − m) g: the next u, if g were to come again.
The momentum is that of every replica, before anything is left out, so that what waits
is moved as it would have been (momentum correction). It is a mean of gradients: λw,
which no codec touches, and gradients keep their proportions, and the optimum its place.
Factor masking, where it is asked for, lets words that were sent forget their momentum;
that part of the gradient is never sent, and replicas whose gradients differ end beside
the optimum. Where all words travel nothing is masked: this is SGD with momentum.

Y. Lin, S. Han, H. Mao, Y. Wang and W. J. Dally, "Deep Gradient Compression" (ICLR
2018). As there (section 3.2) g is clipped before u gathers it, to `clip` / √R: R such
gradients, if they were independent, have a sum of the norm `clip`. The norm is that of
all columns of a replica, in all buckets and on all members.
"""

from collections.abc import Mapping

import numpy as np

from hpcsgd.codecs.base import Array, Bucket, Codec, Finish, Line, Moment, Told
from hpcsgd.codecs.settings import CodecConfig
from hpcsgd.codecs.topk import TopK


class Dgc(Codec):
    """Top-k, with two memories of D words on every replica."""

    unbiased = False
    wants_feedback = False
    has_own_memory = True
    remembers = "momentum", "velocity"

    def __init__(self, bucket: Bucket, config: CodecConfig) -> None:
        super().__init__(bucket, config)
        self.codec = TopK(bucket, config)
        self.codec.needs_own = True
        self.wants_norm = config.clip > 0.0
        self.momentum, self.velocity = map(bucket.remember, self.remembers)

    def start(self, part: Array, line: Line, moment: Moment) -> Finish:
        """Gather, and send the largest."""
        self._clip(part, line.size, moment)
        self.momentum *= self.config.momentum
        self.momentum += (1.0 - self.config.momentum) * part
        self.velocity += self._step(part)
        part[...] = self.velocity
        sends_all = self.codec.count(moment) == self.bucket.words
        finish = self.codec.start(part, line, moment)

        def forget() -> Told:
            told = finish()
            if told.own is None or sends_all:
                self.velocity[...] = 0.0
                return told
            self.velocity -= told.own
            if self.config.masking:
                self.momentum[told.own != 0.0] = 0.0
            return told

        return forget

    @classmethod
    def owes(cls, kept: Mapping[str, Array], config: CodecConfig) -> Array:
        """v, and all that momentum would still add to it: Σ mᵏ u over steps to come."""
        keeps = config.momentum
        times = keeps / (1.0 - keeps) * (keeps if config.nesterov else 1.0)
        owed: Array = kept["velocity"] + times * kept["momentum"]
        return owed

    @property
    def dense_exchanges(self) -> int:
        """Those of top-k."""
        return self.codec.dense_exchanges

    def payload_bytes(self, ranks: int, rank: int) -> int | None:
        """Those of top-k: what is gathered stays at home."""
        return self.codec.payload_bytes(ranks, rank)

    def _step(self, part: Array) -> Array:
        """What this exchange adds to what is to be sent."""
        if not self.config.nesterov:
            return self.momentum
        keeps = self.config.momentum
        return keeps * self.momentum + (1.0 - keeps) * part

    def _clip(self, part: Array, replicas: int, moment: Moment) -> None:
        """part ← part · min(1, clip / (√R ‖g‖)); a bucket alone is all of g."""
        if not self.wants_norm:
            return
        norm = float(np.linalg.norm(part)) if moment.norm is None else moment.norm
        most = self.config.clip / replicas**0.5
        if norm > most:
            part *= most / norm
