"""Deep gradient compression: top-k of what momentum has gathered, on every replica.

u ← m u + (1 − m) g;  v ← v + u;  the k largest of v are sent, and are zero then

or, with `nesterov`, v ← v + m u + (1 − m) g: the next u, if g were to come again.
The momentum is that of every replica, before anything is left out, so that what waits
is moved as it would have been (momentum correction). It is a mean of gradients: λw,
which no codec touches, and gradients keep their proportions, and the optimum its place.
Factor masking, where it is asked for, lets words that were sent forget their momentum;
that part of the gradient is never sent, and replicas whose gradients differ end beside
the optimum. Where all words travel nothing is masked: this is SGD with momentum.
"""

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
    reads = (*TopK.reads, "momentum", "nesterov", "masking", "clip")

    def __init__(self, bucket: Bucket, config: CodecConfig) -> None:
        super().__init__(bucket, config)
        self.codec = TopK(bucket, config)
        self.codec.needs_own = True
        self.momentum, self.velocity = map(bucket.remember, self.remembers)

    def start(self, part: Array, line: Line, moment: Moment) -> Finish:
        """Gather, and send the largest."""
        self._clip(part, line.size)
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

    def _clip(self, part: Array, replicas: int) -> None:
        """To clip / √R: R such parts, if they were independent, have the norm clip."""
        norm, most = float(np.linalg.norm(part)), self.config.clip / replicas**0.5
        if most and norm > most:
            part *= most / norm
