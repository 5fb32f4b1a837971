"""What decentralised methods have to give."""

import numpy as np

from hpcsgd.agreements.codecs.bits import piece_words
from tests.helpers.bagua import ORACLES, Momentum, to_a_byte


def expected(config, problem, row):
    if row == "qadam":
        return Momentum(config, problem, coder(config.grid)).run()
    return ORACLES[row](config, problem).run()


def coder(grid):
    """bytegrad in NumPy: pieces as bytes, their mean as bytes again, by members."""

    def one(parts):
        flat = [np.asarray(p, dtype=float).reshape(-1) for p in parts]
        each = piece_words(flat[0].size, len(flat))
        pad = [np.append(f, np.full(each * len(flat) - f.size, f[-1])) for f in flat]
        told = []
        for r in range(len(flat)):
            piece = slice(r * each, (r + 1) * each)
            told.append(to_a_byte(sum(to_a_byte(p[piece]) for p in pad) / len(flat)))
        return np.concatenate(told)[: flat[0].size].reshape(parts[0].shape)

    def whole(parts):
        if len(parts) == 1:
            return parts[0]
        cuts = [np.array_split(part, grid.members) for part in parts]
        return np.concatenate([one(list(block)) for block in zip(*cuts, strict=True)])

    return whole
