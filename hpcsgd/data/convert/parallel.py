"""Conversion on several ranks: shares of work, and rows encoded on any rank."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from time import monotonic, perf_counter
from typing import Any, Protocol, TypeVar

import numpy as np

from hpcsgd.data.convert.sink import StoreFile, held
from hpcsgd.data.convert.sources import SourceRows
from hpcsgd.data.convert.transform import Parts, RowSelection, choose, pack, unpack
from hpcsgd.data.hdf5 import StoreLayout
from hpcsgd.data.matrix import Csr
from hpcsgd.data.preparation import count_test
from hpcsgd.data.store import StoredRows, encode_rows
from hpcsgd.errors import HpcsgdError
from hpcsgd.formats import Array

# The number of tasks of a round for each rank.
#
# Rank 0 also receives the results of all ranks. It gets fewer tasks the longer that
# takes, so that it is ready when the others are. The result of a task does not depend
# on the rank that performs it.

Task = TypeVar("Task")
MOST = 8  # tasks of one rank in a round: with fewer, ranks wait; more need memory


class Watch:
    """A stop-watch that measures the mean seconds of a repeated piece of work."""

    def __init__(self) -> None:
        self.total = 0.0
        self.count = 0
        self.began = 0.0

    @property
    def mean(self) -> float:
        """Return the mean seconds, 0 before the first measurement."""
        return self.total / max(self.count, 1)

    def __enter__(self) -> None:
        self.began = perf_counter()

    def __exit__(self, *error: object) -> None:
        self.total += perf_counter() - self.began
        self.count += 1


class WorkShares:
    """The number of tasks of each rank in a round, adapted by times on rank 0."""

    def __init__(self, workers: int, most: int = MOST) -> None:
        self.workers = workers
        self.most = most
        self.of_root = most  # tasks of rank 0 in the next round
        self.making = Watch()
        self.taking = Watch()

    def advise(self) -> int:
        """Return the number of tasks of rank 0 in the next round."""
        make = self.making.mean
        take = self.taking.mean
        others = self.workers - 1
        if others == 0 or make + take == 0.0:
            return self.most
        # k make = n make + (n + others k) take, solved for n
        return max(round(self.most * (make - others * take) / (make + take)), 0)

    @property
    def shares(self) -> list[int]:
        """Return the number of tasks of each worker in a round."""
        return [self.of_root] + [self.most] * (self.workers - 1)


def part_of_rank(
    dealt: Sequence[Task], shares: Sequence[int], rank: int
) -> Sequence[Task]:
    """Return the consecutive tasks of `dealt` for one rank, in proportion to `shares`.

    A rank beyond the end of `shares` has no tasks.
    """
    if rank >= len(shares):
        return dealt[:0]
    before = sum(shares[:rank])
    whole = sum(shares)
    first = before * len(dealt) // whole
    return dealt[first : (before + shares[rank]) * len(dealt) // whole]


# Ranks that share the work on a file in rounds; rank 0 receives the results.
#
# A round gives some tasks to every rank, and rank 0 receives the results in the order
# of the tasks. Errors and requests to stop are sent to all ranks: the first error in
# that order is raised on every rank, the same for any number of ranks.

Made = TypeVar("Made")
Fault = HpcsgdError | KeyboardInterrupt
BEAT = 2.0  # seconds between messages of rank 0 to ranks that only wait


class Ranks(Protocol):
    """The methods of a communicator that a crew uses."""

    rank: int
    size: int

    def exchange_objects(self, item: Any, purpose: str = "control") -> list[Any]:
        """Return the items of all ranks, on every rank. Collective."""

    def collect(
        self, part: Array, counts: Sequence[int], purpose: str = "control"
    ) -> Array | None:
        """Return the parts of all ranks in order on rank 0, else None. Collective."""

    def working(self, what: str) -> AbstractContextManager[None]:
        """Return a context for work without messages, such as slow writes to disk.

        Otherwise the rank would appear idle to the ranks that wait for it.
        """


class SingleRank:
    """The communicator of a single rank, without MPI."""

    rank = 0
    size = 1

    def exchange_objects(self, item: Any, purpose: str = "control") -> list[Any]:
        """Return a list of the item of this rank."""
        return [item]

    def collect(
        self, part: Array, counts: Sequence[int], purpose: str = "control"
    ) -> Array | None:
        """Return the part of this rank."""
        return part

    def working(self, what: str) -> AbstractContextManager[None]:
        """Return a context that does nothing: no other rank waits."""
        return nullcontext()


class Crew:
    """All ranks of a conversion, which share tasks; rank 0 receives the results."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.is_root = ranks.rank == 0
        self.size = ranks.size
        self.at_once = False  # True while rank 0 works outside of a collective
        self.is_asked_to_stop = False
        self._beats_at: float | None = None  # time of the last beat of rank 0

    def interrupt(self) -> None:
        """Request a stop after Ctrl-C: now if rank 0 works alone, else in `agree`."""
        self.is_asked_to_stop = True
        if self.at_once:
            raise KeyboardInterrupt

    def agree(self, fault: Fault | None, word: Any = None) -> list[Any]:
        """Return `word` of every rank, or raise the lowest rank's fault on all ranks.

        Collective. `word` is any object. A request to stop on any rank counts as a
        fault.
        """
        if self.is_asked_to_stop and self.size > 1:
            fault = fault or KeyboardInterrupt()
        reports = self.ranks.exchange_objects((fault, word))
        failed_rank = next(
            (r for r, (e, _) in enumerate(reports) if e is not None), None
        )
        if failed_rank is None:
            return [word for _, word in reports]
        # The local exception has its cause and traceback, which are not sent.
        raised: Fault = (
            fault
            if failed_rank == self.ranks.rank and fault
            else reports[failed_rank][0]
        )
        if isinstance(raised, HpcsgdError):
            raised.on_all_ranks = True
        raise raised

    def on_root(self, action: Callable[[], Made]) -> Made:
        """Return on all ranks the result of `action` on rank 0, or raise its fault.

        Collective.
        """
        made = None
        fault = None
        if self.is_root:
            with self._alone():
                made, fault = _attempt(action)
        result: Made = self.agree(fault, made)[0]
        return result

    def on_root_for_long(self, action: Callable[[], Made]) -> Made:
        """Return the result like `on_root`; rank 0 may call `beat` in `action`.

        Collective. Each `beat` is a message to the other ranks, so none waits for long.
        """
        if not self.is_root:
            while not (word := self.agree(None)[0])[0]:
                continue
            return word[1]  # type: ignore[no-any-return]
        self._beats_at = monotonic()
        with self._alone():
            made, fault = _attempt(action)
        is_told = self._beats_at is None
        self._beats_at = None
        if is_told and fault is not None:
            raise fault
        result: Made = self.agree(fault, (True, made))[0][1]
        return result

    def beat(self) -> None:
        """Send a sign of life from rank 0 to the waiting ranks, at most every BEAT s.

        Raise a fault that another rank reports. Outside of `on_root_for_long`, do
        nothing.
        """
        if self._beats_at is None or monotonic() - self._beats_at < BEAT:
            return
        self._beats_at = None
        self.at_once = False
        self.agree(None, (False, None))
        self._beats_at = monotonic()
        self.at_once = True

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Mark work of rank 0 for which the other ranks wait."""
        self.at_once = True
        try:
            with self.ranks.working("work that only rank 0 does"):
                yield
        finally:
            self.at_once = False

    def everywhere(self, action: Callable[[], Made]) -> Made:
        """Return the result of `action` on this rank; raise a fault of any rank on all.

        Collective.
        """
        made, fault = _attempt(action)
        self.agree(fault)
        return made  # type: ignore[return-value]

    def share(
        self,
        tasks: Iterable[Task],
        work: Callable[[Task], Made],
        take: Callable[[Parts], None],
        pace: WorkShares,
        finish: Callable[[list[Made], list[Any]], list[Parts]],
        say: Callable[[Made], Any] = lambda made: None,
    ) -> None:
        """Perform tasks on all ranks in rounds; rank 0 takes the results in order.

        Collective. Each rank calls `work` on its tasks of a round. `finish` converts
        its results of the round to parts; the second argument of `finish` is the list
        of the values that `say` returns for the results of all ranks. Rank 0 calls
        `take` on every part.
        """
        fault: Fault | None = None
        left = iter(tasks)
        while dealt := list(islice(left, sum(pace.shares))):
            own_tasks = part_of_rank(dealt, pace.shares, self.ranks.rank)
            made, fault = (
                ([], fault) if fault else self._made(own_tasks, work, pace.making)
            )
            words = self.agree(fault, (pace.advise(), [say(result) for result in made]))
            pace.of_root = words[0][0]
            heard = [word for _, messages in words for word in messages]
            for part in self._collected(finish(made, heard)):
                if fault is None:
                    with pace.taking, self.ranks.working("writing"):
                        _, fault = _attempt(partial(take, part))
        self.agree(fault)

    def _made(
        self, tasks: Sequence[Task], work: Callable[[Task], Made], watch: Watch
    ) -> tuple[list[Made], Fault | None]:
        """Return the results of `work` up to the first fault, and that fault or None.

        A request to stop ends the work too.
        """
        made: list[Made] = []
        for task in tasks:
            if self.is_asked_to_stop and self.size > 1:
                break
            with watch:
                result, fault = _attempt(partial(work, task))
            if fault is not None:
                return made, fault
            made.append(result)  # type: ignore[arg-type]
        return made, None

    def _collected(self, sent: list[Parts]) -> Iterator[Parts]:
        """Yield the parts of all ranks on rank 0, none on others. Collective."""
        if self.size == 1:
            yield from sent
            return
        packed = [] if self.is_root else [pack(parts) for parts in sent]
        sizes = self.ranks.exchange_objects([len(message) for message in packed])
        content = np.concatenate(packed) if packed else np.empty(0, dtype=np.uint8)
        whole = self.ranks.collect(content, [sum(of) for of in sizes], "control")
        if whole is None:
            return
        yield from sent
        at = 0
        for size in chain.from_iterable(sizes):
            yield unpack(whole[at : at + size])
            at += size


def _attempt(action: Callable[[], Made]) -> tuple[Made | None, Fault | None]:
    """Return (result, None), or (None, exception) to be raised on all ranks."""
    try:
        return action(), None
    except (HpcsgdError, KeyboardInterrupt) as raised:
        return None, raised


# Rows of a source, encoded on any rank for the stores and sent to rank 0.


@dataclass(frozen=True)
class EncodedRows:
    """Consecutive rows of the source, divided among the stores and encoded."""

    first: int  # number of the first row
    count: int
    end: int  # position of the source after these rows
    stores: list[StoredRows | None]

    def parts(self) -> Parts:
        """Return numbers and arrays by name, for a message or a file."""
        parts: Parts = {"ready": [self.first, self.count, self.end]}
        parts["stores"] = [None if s is None else s.largest for s in self.stores]
        for number, stored in enumerate(self.stores):
            named = {} if stored is None else _named(stored)
            parts |= {f"{number}/{name}": array for name, array in named.items()}
        return parts

    @classmethod
    def of(cls, parts: Parts) -> "EncodedRows":
        """Return the encoded rows from numbers and arrays as `parts` returns them."""
        stores = [
            None if largest is None else _stored(parts, f"{number}/", largest)
            for number, largest in enumerate(parts["stores"])
        ]
        first, count, end = parts["ready"]
        return cls(first, count, end, stores)


class Encoder:
    """An encoder of rows for every store; results are the same on every rank."""

    def __init__(
        self,
        files: Sequence[StoreFile],
        layout: StoreLayout,
        selection: RowSelection,
    ) -> None:
        self.files = files
        self.layout = layout
        self.selection = selection
        self._at = self._drawn = 0  # rows counted, and the test rows among them

    def encode(self, first: int, rows: SourceRows) -> EncodedRows:
        """Return rows of the source from number `first` on, encoded for every store."""
        count = rows.X.shape[0]
        test = self.selection.drawn(first, count)
        stores = [self._of(k, first, rows, test) for k in range(len(self.files))]
        return EncodedRows(first, count, rows.end, stores)

    def _of(
        self, number: int, first: int, rows: SourceRows, test: Array
    ) -> StoredRows | None:
        part = self.files[number]
        ours = test == part.test
        if not ours.any():
            return None
        chosen = rows if ours.all() else choose(rows, ours)
        at = self._before(first + int(np.argmax(ours)), part.test)
        return encode_rows(self.layout, chosen.X, held(chosen), at, part.path)

    def _before(self, row: int, test: bool) -> int:
        """Return how many test rows (if `test`, else other rows) precede `row`."""
        if not self.selection.test_fraction:
            return row
        if row < self._at:
            self._at = self._drawn = 0
        fraction = self.selection.test_fraction
        seed = self.selection.seed
        self._drawn += count_test(row, fraction, seed, self._at)
        self._at = row
        return self._drawn if test else row - self._drawn


def _named(stored: StoredRows) -> dict[str, Any]:
    """Return the arrays of stored rows by name, those of side columns as ".name"."""
    beside = {f".{name}": column for name, column in stored.columns.items()}
    matrix = stored.matrix
    if not isinstance(matrix, Csr):
        return {"X": matrix, **beside}
    return {
        "data": matrix.data,
        "indices": matrix.indices,
        "indptr": matrix.indptr,
        "width": matrix.width,
        **beside,
    }


def _stored(parts: Parts, prefix: str, largest: float) -> StoredRows:
    """Return the stored rows whose arrays have names with this prefix."""
    arrays = {
        k.removeprefix(prefix): v for k, v in parts.items() if k.startswith(prefix)
    }
    columns = {name[1:]: array for name, array in arrays.items() if name[0] == "."}
    if "X" in arrays:
        return StoredRows(arrays["X"], columns, largest)
    matrix = Csr(arrays["indptr"], arrays["indices"], arrays["data"], arrays["width"])
    return StoredRows(matrix, columns, largest)
