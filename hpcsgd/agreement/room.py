"""Two tiles of room that a step uses again and again, for one thing after the other."""

import numpy as np

from hpcsgd.products.base import Array


class Room:
    """Of the words of the largest tile each; the second where there are several."""

    def __init__(self, words: int, tiles: int, dtype: np.dtype) -> None:
        self.words, self.dtype = words, np.dtype(dtype)
        self._tiles: list[Array | None] = [None] * min(tiles, 2)

    def tile(self, number: int, words: int) -> Array:
        """Room for tile `number`; that of the one before stays as it is."""
        place = number % len(self._tiles)
        held = self._tiles[place]
        if held is None:  # nobody needed it before
            held = self._tiles[place] = self._make()
        return held[:words]

    def _make(self) -> Array:
        return np.empty(self.words, dtype=self.dtype)
