"""ByteGrad: 8 bits a word on both ways, in pieces that every replica adds one of.

BAGUA's C_LP_S (arXiv 2107.01499): `hpcsgd/codecs/two_phase.py` with words as `byte` has
them, between the least and the greatest of a piece. A ring moves 2 (R − 1)/R (D + 8 R)
bytes for a replica, D padded to R pieces, where records of 8 bits that all gather move
(R − 1) D.

Both roundings are remembered where feedback is on, here the default: that of the mean
by the replica that added the piece, R times, so that the mean of errors has it once.
"""

import numpy as np
from numpy.typing import NDArray

from hpcsgd.codecs.base import Array, Codec, Finish, Line, Moment, Told
from hpcsgd.codecs.byte import from_bytes, to_bytes
from hpcsgd.codecs.chunks import SCALE_BYTES, Chunks
from hpcsgd.codecs.two_phase import piece_words, start_two_phase

HEAD = 2 * SCALE_BYTES  # the least and the greatest, float32


class Ranges:
    """Each row as its least and greatest word, and a byte a word between them."""

    def encode(self, pieces: Array) -> NDArray[np.uint8]:
        """(rows, 8 + words)."""
        rows, words = pieces.shape
        ends, codes = to_bytes(pieces.reshape(-1), Chunks(pieces.size, words))
        heads = np.ascontiguousarray(ends.T).view(np.uint8)
        return np.hstack([heads, codes.reshape(rows, words)])

    def decode(self, records: NDArray[np.uint8], words: int) -> Array:
        """(rows, words)."""
        ends = np.ascontiguousarray(records[:, :HEAD]).view(np.float32).T
        codes = records[:, HEAD:].reshape(-1)
        values = from_bytes(ends, codes, Chunks(codes.size, words))
        return values.reshape(-1, words)


class ByteGrad(Codec):
    """Two collectives of bytes: R pieces to their places, one piece to all."""

    unbiased = False
    wants_feedback = True
    reads = ()

    def start(self, part: Array, line: Line, moment: Moment) -> Finish:
        """Encode the pieces, and send them off."""
        arrive = start_two_phase(part, line, Ranges(), self.needs_own)
        payload = self.payload_bytes(line.size, line.rank)

        def finish() -> Told:
            said, kind = arrive(), self.bucket.dtype
            own = said.own.astype(kind) if self.needs_own else None
            return Told(said.mean.astype(kind), own, payload)

        return finish

    def payload_bytes(self, ranks: int, rank: int) -> int:
        """(R + 1)(⌈D/R⌉ + 8): R pieces at first, then the own."""
        return (ranks + 1) * (piece_words(self.bucket.words, ranks) + HEAD)
