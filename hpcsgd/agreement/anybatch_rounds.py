"""How long a round lasts: to a deadline by this rank's clock, by a script, or to A.

The clock is looked at between chunks, never inside of one. What a clock did is written
down, chunk by chunk, and a script of it gives the same run, bit for bit.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Protocol

import numpy as np

from hpcsgd.comm.grid import Grid
from hpcsgd.errors import ConfigError, DataError
from hpcsgd.files import read_entry_text
from hpcsgd.products.base import Array

NAME = "rounds.csv"  # in a run folder
CHUNKS, ROWS = "chunks_", "rows_"  # before the number of a replica


class Pace(Protocol):
    """Says when a round is over."""

    has_clock: bool  # whether it matters what has been computed by now

    def begin(self, number: int) -> None:
        """Round `number` of the run, from 0 on, begins here."""

    def goes_on(self, taken: int) -> bool:
        """Whether another chunk is taken, after so many; the same on all members."""

    def end(self) -> None:
        """The round is over on this replica; called by all ranks."""


class Full:
    """Every round is as many chunks as there may be."""

    has_clock = False

    def __init__(self, most: int) -> None:
        self.most = most

    def begin(self, number: int) -> None:
        """Nothing to note."""

    def goes_on(self, taken: int) -> bool:
        """A of them."""
        return taken < self.most

    def end(self) -> None:
        """Nothing to note."""


class Scripted(Full):
    """Chunks of every round are known before it: a replay."""

    def __init__(self, budgets: Array) -> None:
        super().__init__(0)
        self.budgets = budgets  # one for each round

    def begin(self, number: int) -> None:
        """Look it up."""
        self.most = int(self.budgets[number])


class Timed:
    """Until `deadline` seconds after the round began here; 0: found in the first round.

    A first round is then half of `most` chunks, and the deadline what these take the
    median replica: one of usual speed takes half, one twice as fast takes all of them.
    """

    has_clock = True

    def __init__(
        self,
        grid: Grid,
        most: int,
        deadline: float,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.grid = grid
        self.most = most
        self.deadline = deadline
        self.clock = clock
        self._began = 0.0
        self._looks: list[float] = []

    def begin(self, number: int) -> None:
        """The clock starts."""
        self._began = self.clock()
        self._looks = []

    def goes_on(self, taken: int) -> bool:
        """What member 0 of the replica says: they take the same chunks."""
        now = self.clock()
        self._looks.append(now)
        if self.deadline:
            ends = taken >= self.most or now - self._began >= self.deadline
        else:
            ends = taken >= half_of(self.most)
        word = np.array([ends], dtype=np.uint8)
        return not self.grid.members.broadcast(word, 0, "control")[0]

    def end(self) -> None:
        """A first round says how long others are."""
        if self.deadline:
            return
        told = self.grid.world.exchange_objects(np.diff(self._looks).tolist())
        each = [float(np.median(seconds)) for seconds in told if seconds]
        if each:
            self.deadline = half_of(self.most) * float(np.median(each))


def half_of(most: int) -> int:
    """Chunks of a round of usual length."""
    return max(most // 2, 1)


def as_csv(chunks: Sequence[Sequence[int]], rows: Sequence[Sequence[int]]) -> str:
    """One line a round: chunks, then rows, of every replica."""
    head = [f"{name}{r}" for name in (CHUNKS, ROWS) for r in range(len(chunks))]
    lines = [["round", *head]]
    for number, found in enumerate(zip(*chunks, *rows, strict=True)):
        lines.append([str(number), *map(str, found)])
    return "".join(",".join(line) + "\n" for line in lines)


def read_script(path: str, replicas: int, rounds: int, most: int) -> Array:
    """Chunks of every replica and round, (R, rounds), of such a file or its folder."""
    where = Path(path)
    where = where / NAME if where.is_dir() else where
    try:
        lines = read_entry_text(where).split()
    except OSError as error:
        raise DataError(
            f"cannot read [agreement] replay = {path!r}: {error.strerror}; give the"
            f" {NAME} of a run, or its folder"
        ) from error
    chunks = _columns(lines, str(where), replicas)
    _check_script(chunks, rounds, most, str(where))
    return chunks


def _columns(lines: list[str], path: str, replicas: int) -> Array:
    head = lines[0].split(",") if lines else []
    named = [name for name in head if name.startswith(CHUNKS)]
    if named != [f"{CHUNKS}{r}" for r in range(replicas)]:
        raise DataError(
            f"{path} has rounds of {len(named)} replicas and the run has {replicas};"
            " replay it on as many, as --grid says"
        )
    wanted = [head.index(name) for name in named]
    try:
        table = [[int(line.split(",")[k]) for k in wanted] for line in lines[1:]]
    except (ValueError, IndexError) as error:
        raise DataError(
            f"{path} is not a log of rounds ({error}); give one that a run wrote"
        ) from error
    return np.array(table, dtype=np.int64).reshape(-1, replicas).T


def _check_script(chunks: Array, rounds: int, most: int, path: str) -> None:
    if chunks.shape[1] < rounds:
        raise ConfigError(
            f"{path} has {chunks.shape[1]} rounds and the run takes {rounds}; set fewer"
            " schedule.epochs, or the batch and agreement.accumulate of that run"
        )
    if chunks.size and not 0 <= chunks.min() <= chunks.max() <= most:
        raise ConfigError(
            f"{path} has rounds of up to {chunks.max()} chunks and agreement.accumulate"
            f" = {most}; set it as in that run"
        )


def rows_of(chunks: Array, streams: list[tuple[list[int], int]]) -> Array:
    """b_i of every round, from the chunks that each stream gave, and has given now."""
    rows = np.zeros_like(chunks)
    for own, counts, (sizes, taken) in zip(rows, chunks, streams, strict=True):
        edges = taken - counts.sum() + np.concatenate([[0], np.cumsum(counts)])
        whole, each = np.concatenate([[0], np.cumsum(sizes)]), max(len(sizes), 1)
        own[...] = np.diff(edges // each * whole[-1] + whole[edges % each])
    return rows
