"""Sampled rows that are taken where they lie."""

from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]


class Sampled:
    """Sampled rows by their numbers, with room for a copy where one is asked for."""

    def __init__(self, matrix: Array, rows: Array, room: Array) -> None:
        self.matrix = matrix
        self.rows = rows
        self.room = room
        self.is_copied = False
        self.whole: tuple[Sampled, slice] | None = None  # some columns of those rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, part: slice) -> "Sampled":
        some = Sampled(self.matrix, self.rows[part], self.room[part])
        some.is_copied = self.is_copied
        return some
