"""Checkpoints: what is in them, when they are written, how a run resumes from one."""

import logging
import os
import platform
import re
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

import hpcsgd
from hpcsgd.agreements.base import Agreement
from hpcsgd.agreements.more.infinity import RUN
from hpcsgd.backends.task import MEMORY, SHARED, Snapshot, State, Task, arrays_of
from hpcsgd.comm.grid import Grid
from hpcsgd.config import CheckpointConfig, RunConfig
from hpcsgd.data.shard import split_range
from hpcsgd.errors import DataError
from hpcsgd.files import (
    DamagedFile,
    Unreadable,
    check_schema,
    own_folder,
    unreadable,
)
from hpcsgd.formats import Array
from hpcsgd.runs.recording import MemberCheck
from hpcsgd.settings import without_retired
from hpcsgd.solvers.callbacks import Request, View
from hpcsgd.solvers.evaluation import Columns, Evaluation

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

# Checkpoints on disk: where they lie, how many are kept, which is the last whole one.
#
# One file contains the state of the whole run, not of a rank: a run may resume on other
# ranks than those that saved it.

log = logging.getLogger(__name__)
FOLDER = "checkpoints"
DAMAGED = ".damaged"  # suffix of a damaged file that was passed over
REQUESTED = "asked"  # the settings before a run fell back
PRECISION_AUTO = "precision_auto"  # what pilots found, where they chose the recipe
ON_DISK = "on_disk"  # true where files of their own hold the states
MOST_EXCHANGES = 10**15  # of any run that ends
# Numbers never decrease, even after a fall-back: the newest has the highest.
NAME = re.compile(r"(\d{6,12})-exchange-\d{9,18}\.h5")

# Arrays of single ranks as bytes, (R, bytes of all members), and the bytes of each.
KEPT = "kept"
SIZES = "kept_sizes"
LOG = "log_"  # prefix of counts of each replica in each exchange

# The schema of the document of a checkpoint.
SCHEMA = {
    "config": {...: dict},
    "fingerprint": str,
    "rows": int,
    "replicas": int,
    "exchanges": int,
    "exchanges_per_epoch": int,
    "seconds": float,
    "loss": float,
    "history": [{"epoch": int, "exchanges": int, "loss": float, "seconds": float}],
    "ledger": {...: {...: float}},
    "phases": {...: float},
    "evaluation": {
        "first_loss": (float, None),
        "good_loss": (float, None),
        "measured_at": int,
        "clipped": int,
    },
    "mended": int,
    "resumes": int,
    "product": str,
    "ranks": int,
    "versions": dict,
}
# Keys that the document of a run without such events lacks.
OPTIONAL = {
    "events": [
        {"kind": str, "event": str, "exchange": int, "evaluations": int, "text": str}
    ],
    REQUESTED: {"schedule": dict, "precision": dict},
    ON_DISK: bool,
    PRECISION_AUTO: {"recipe": str, "considered": {...: dict}},
}


class CheckpointStore:
    """The checkpoints of one run folder."""

    def __init__(self, run_folder: Path, keep: int) -> None:
        self.run_folder = run_folder
        self.folder = run_folder / FOLDER
        self.keep = keep

    def write(self, checkpoint: Snapshot) -> Path:
        """Write a checkpoint, and return its path; then remove those beyond `keep`.

        The oldest are removed. OSError is raised if the checkpoint cannot be written.
        """
        own_folder(self.run_folder, FOLDER, make=True)
        for left in self.folder.glob(".*.part"):  # by a run that died while writing
            left.unlink(missing_ok=True)
        number = 1 + max(map(_number, self.paths()), default=0)
        name = f"{number:06d}-exchange-{checkpoint.exchanges:09d}.h5"
        path = self.folder / name
        checkpoint.write(path)
        # Only now: the older ones stay until the new one is on disk.
        for old in self.paths()[self.keep :]:
            old.unlink(missing_ok=True)
        return path

    def paths(self) -> list[Path]:
        """Return the paths of all checkpoints, the newest first.

        OSError is raised if the folder cannot be read.
        """
        files = [self.folder / name for name in self._names() if NAME.fullmatch(name)]
        return sorted(files, key=_number, reverse=True)

    def newest(self, tidies: bool = False) -> tuple[Path, Snapshot] | None:
        """Return (path, newest whole checkpoint); None in a folder that never had one.

        Checkpoints that are not whole are logged and skipped; with `tidies`, those that
        are proven to be damaged are renamed. Raise DataError if there are checkpoints
        and none is whole. A checkpoint that cannot be read at all raises Unreadable,
        since it may be whole, and newer than the others.
        """
        passed: dict[Path, DataError] = {}
        for path in self._readable_paths():
            try:
                checkpoint = read_checkpoint(path)
            except Unreadable:
                raise
            except DataError as error:
                passed[path] = error
            else:
                _say_what_was_passed(passed, tidies)
                return path, checkpoint
        self._check_never_had_any()
        return None

    def _readable_paths(self) -> list[Path]:
        try:
            return self.paths()
        except OSError as error:
            raise unreadable(self.folder, error) from error

    def _check_never_had_any(self) -> None:
        """Raise DataError if the folder has checkpoints, of which none is whole."""
        count = sum(
            bool(NAME.fullmatch(name.removesuffix(DAMAGED))) for name in self._names()
        )
        if count:
            raise DataError(
                f"none of the {count} checkpoints in {self.folder} is complete and"
                " undamaged; start from the beginning with --resume no"
            )

    def _names(self) -> list[str]:
        try:
            return os.listdir(own_folder(self.run_folder, FOLDER))
        except FileNotFoundError:
            return []


def read_checkpoint(path: Path) -> Snapshot:
    """Read a checkpoint; raise DataError if it is damaged or its parts do not fit."""
    checkpoint = Snapshot.read(path)
    document = checkpoint.document
    also = {key: schema for key, schema in OPTIONAL.items() if key in document}
    check_schema(path, document, SCHEMA | also)
    if not _fits(document, checkpoint.arrays):
        raise DataError(
            f"{path} is no valid checkpoint, because its arrays do not fit together or"
            " are not finite; resume from an earlier one"
        )
    for name in {"config", REQUESTED} & set(document):
        document[name] = without_retired(document[name])
    return checkpoint


def _say_what_was_passed(passed: Mapping[Path, DataError], tidies: bool) -> None:
    """Log the checkpoints that were skipped; with `tidies`, rename damaged ones."""
    for path, error in passed.items():
        log.warning("%s; falling back to the checkpoint before it", error)
        if tidies and isinstance(error, DamagedFile):
            # `paths` no longer finds it, and the user can still examine it.
            with suppress(OSError):
                path.rename(path.with_name(path.name + DAMAGED))


def _number(path: Path) -> int:
    match = NAME.fullmatch(path.name)
    return int(match[1]) if match else -1


def _fits(document: Mapping[str, Any], arrays: Mapping[str, Array]) -> bool:
    """Return whether the arrays are one finite state for all replicas or one for each.

    If the document marks the states as stored in other files, there must be no arrays,
    and only the number of exchanges is checked.
    """
    if document.get(ON_DISK):
        return not arrays and 0 <= document["exchanges"] <= MOST_EXCHANGES
    rank_bytes, sizes = (arrays.get(name) for name in (KEPT, SIZES))
    logs = [array for name, array in arrays.items() if name.startswith(LOG)]
    arrays = {
        name: array
        for name, array in arrays.items()
        if name not in (KEPT, SIZES) and not name.startswith(LOG)
    }
    weights = arrays.get("weights")
    if weights is None or any(a.dtype.kind != "f" for a in arrays.values()):
        return False
    copies = (1, document["replicas"])
    private = [a for name, a in arrays.items() if not name.startswith("good_")]
    good = arrays.get("good_weights")
    return (
        _are_packed(rank_bytes, sizes, document["replicas"])
        and all(_is_log(log, document) for log in logs)
        and 0 <= document["exchanges"] <= MOST_EXCHANGES
        and 1 <= document["replicas"] <= document["rows"]
        and document["exchanges_per_epoch"] >= 1
        and weights.size > 0
        and all(a.ndim == 3 and len(a) in copies for a in private)
        and all(a.ndim == 2 for name, a in arrays.items() if name.startswith("good_"))
        and (good is None or good.shape == weights.shape[1:])
        and (good is None) == (document["evaluation"]["good_loss"] is None)
        and all(_is_finite(a, "losses" in _last(document)) for a in arrays.values())
    )


def _are_packed(kept: Array | None, sizes: Array | None, replicas: int) -> bool:
    """Return whether `kept` and `sizes` are both None, or fit together.

    `kept` has the packed bytes of all members in a row for each replica; `sizes` has
    the number of bytes of each member.
    """
    if kept is None or sizes is None:
        return kept is sizes
    integers = kept.dtype == np.uint8 and sizes.dtype.kind == "i"
    shaped = kept.ndim == 2 and len(kept) == replicas and sizes.ndim == 1
    return bool(
        integers and shaped and (sizes >= 0).all() and sizes.sum() == kept.shape[1]
    )


def _is_log(log: Array, document: Mapping[str, Any]) -> bool:
    """Return whether `log` has a number for every replica in every exchange so far.

    Numbers are counts, or finite in floating point.
    """
    if log.shape != (document["replicas"], document["exchanges"]):
        return False
    if log.dtype.kind == "f":
        return bool(np.isfinite(log).all())
    return log.dtype.kind == "i" and bool((log >= 0).all())


def _last(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the newest record of the history; empty without one."""
    record: Mapping[str, Any] = document["history"][-1] if document["history"] else {}
    return record


def _is_finite(array: Array, is_of_many: bool) -> bool:
    """Return whether all of `array` is finite.

    With `is_of_many`, it suffices that one column, of a model of a sweep, is finite:
    some models may have diverged while others continue.
    """
    good = np.isfinite(array)
    return bool(good.all() or (is_of_many and good.all(axis=-2).any()))


# The state of a whole run as one checkpoint, and a checkpoint back into a run.


class Receivers(Enum):
    """The ranks that get a snapshot, and the replicas whose states it has."""

    WRITER = "rank 0, the states of all replicas"
    REPLICA = "all ranks, the state of their own replica"
    ALL = "all ranks, the states of all replicas"


@dataclass
class Capture:
    """Takes a snapshot of all parts of a run that evolve, and restores a run from it.

    Every rank calls its methods at the same time.
    """

    config: RunConfig
    task: Task
    columns: Columns
    agreement: Agreement
    evaluation: Evaluation
    guard: MemberCheck
    facts: dict[str, Any]  # fingerprint, rows, product: what does not evolve
    exchanges_per_epoch: int
    resumes: int = 0

    @property
    def grid(self) -> Grid:
        """Return the grid of ranks."""
        return self.columns.grid

    def add_fact(self, name: str, fact: Any) -> None:
        """Store `fact` as `name` in the document of all later snapshots."""
        self.facts[name] = fact

    def take_to_write(self, state: State, view: View) -> Snapshot | None:
        """Return a snapshot of the run after the last exchange on rank 0. Collective.

        Other ranks send their part, need no memory for the rest, and return None.
        """
        return self._take(state, view, Receivers.WRITER)

    def take(self, state: State, view: View, on_any_grid: bool = True) -> Snapshot:
        """Return a snapshot of the run after the last exchange on all ranks.

        Collective. With `on_any_grid`, it has the states of all replicas, else that of
        the replica of this rank: only the same grid can restore it.
        """
        receivers = Receivers.ALL if on_any_grid else Receivers.REPLICA
        snapshot = self._take(state, view, receivers)
        assert snapshot is not None
        return snapshot

    def _take(self, state: State, view: View, receivers: Receivers) -> Snapshot | None:
        self.agreement.arrive(state)
        arrays = self._arrays(state.host_state(), view.exchanges, receivers)
        if receivers is Receivers.WRITER and self.grid.world.rank > 0:
            return None
        taken = {name: array for name, array in arrays.items() if array is not None}
        return Snapshot(self._document(view), taken)

    def _arrays(
        self, state: State, exchanges: int, receivers: Receivers
    ) -> dict[str, Array | None]:
        """Return the arrays of a snapshot by name, None on ranks that get none."""
        # Replicas that just agreed are one; between agreements each has its own.
        apart = not self.agreement.holds_one_state(state, exchanges)
        whole = replace(
            state,
            weights=self.task.backend.to_host(self.agreement.whole(state)),
            memory=self.agreement.memory(state),
            rank_arrays={},  # only the same grid can use them
        )
        arrays = {
            name: self._assemble(
                array, name.startswith(("weights", MEMORY)), apart, receivers
            )
            for name, array in arrays_of(whole).items()
        }
        logs = {LOG + name: log for name, log in self.agreement.logs().items()}
        kept = self._kept(state, receivers)
        return arrays | logs | kept | self._good(state, receivers)

    def _assemble(
        self, array: Array, is_sliced: bool, apart: bool, receivers: Receivers
    ) -> Array | None:
        """Return `array` of all columns, (R or 1, ...); None where no rank needs it.

        With `is_sliced`, its rows are the columns of the data that this rank stores.
        """
        width = array.shape[1]
        height = self.columns.total if is_sliced else len(array)
        sizes = self.columns.sizes(width) if is_sliced else None
        rows = self._rows(array, sizes, apart, receivers)
        return None if rows is None else rows.reshape(len(rows), height, width)

    def _rows(
        self,
        words: Array,
        sizes: Sequence[int] | None,
        apart: bool,
        receivers: Receivers,
    ) -> Array | None:
        """Return what `Columns.assemble` returns for these ranks and replicas."""
        return self.columns.assemble(
            words,
            sizes,
            apart=apart and receivers is not Receivers.REPLICA,
            everywhere=receivers is not Receivers.WRITER,
        )

    def _kept(self, state: State, receivers: Receivers) -> dict[str, Array | None]:
        """Return the packed arrays of every rank, which only the same grid can restore.

        They are bytes, (R, bytes of all members), with the number of bytes of each
        member.
        """
        if not state.rank_arrays:  # on all ranks alike: settings decide it
            return {}
        rank_bytes = packed(state.rank_arrays)
        sizes = self.grid.members.exchange_objects(rank_bytes.size)
        rows = self._rows(rank_bytes, sizes, True, receivers)
        return {KEPT: rows, SIZES: np.array(sizes)}

    def _good(self, state: State, receivers: Receivers) -> dict[str, Array | None]:
        """Return the last model with a good loss, whole; {} if none is kept.

        A run that diverges returns to it.
        """
        if self.evaluation.good is None:
            return {}
        model = self.evaluation.good.arrays
        whole = self.agreement.joined(model["weights"])
        # A velocity that is stored elsewhere is left out: zeros take its columns.
        more = self.agreement.width(state) - whole.shape[1]
        if more:
            whole = np.hstack([whole, np.zeros((len(whole), more), whole.dtype)])
        weights = self._assemble(whole, True, apart=False, receivers=receivers)
        good = {"good_weights": None if weights is None else weights[0]}
        if "intercept" in model:
            good["good_intercept"] = model["intercept"].copy()
        return good

    def _document(self, view: View) -> dict[str, Any]:
        return {
            "config": self.config.tables(),
            **self.facts,
            "replicas": self.grid.replicas.size,
            "ranks": self.grid.world.size,
            "exchanges": view.exchanges,
            "exchanges_per_epoch": self.exchanges_per_epoch,
            "seconds": view.seconds,
            "loss": view.loss,
            "history": list(view.history),
            "events": list(view.events),
            "ledger": self.grid.world.ledger.as_dict(),
            "phases": dict(self.task.clock.seconds),
            "evaluation": self.evaluation.facts(),
            "mended": self.guard.mended,
            "resumes": self.resumes,
            "versions": {
                "hpcsgd": hpcsgd.__version__,
                "python": platform.python_version(),
                "numpy": np.__version__,
            },
        }

    def restore(
        self,
        checkpoint: Snapshot,
        state: State,
        view: View,
        progress: Callable[[int], tuple[int, int]],
    ) -> None:
        """Restore a run from a checkpoint: state, view, ledger, clock and evaluation.

        This is a local call. `progress` returns the steps and rows of this replica up
        to an exchange: they depend on the grid, which may differ from that of the
        checkpoint.
        """
        document = checkpoint.document
        self._put_back_state(checkpoint, state)
        self._put_back_evaluation(checkpoint)
        self.guard.mended = document["mended"]
        self.resumes = document["resumes"] + 1
        self.grid.world.ledger.add(document["ledger"])
        self.task.clock.seconds = dict(document["phases"])
        view.exchanges = self.position(document)
        view.epoch = view.exchanges // self.exchanges_per_epoch
        steps, rows = progress(view.exchanges)
        view.steps = self.agreement.steps_taken(steps)
        view.rows = rows * self.agreement.workers
        view.loss = document["loss"]
        view.seconds = document["seconds"]
        view.history[:] = document["history"]
        view.events[:] = document.get("events", [])
        if REQUESTED in document:  # it fell back before
            self.add_fact(REQUESTED, document[REQUESTED])

    def position(self, said: dict[str, Any]) -> int:
        """Return the number of exchanges done, converted to epochs of the present grid.

        `said` is the document of the checkpoint. An epoch of another grid may have
        another number of exchanges.
        """
        done = said["exchanges"]
        before = said["exchanges_per_epoch"]
        now = self.exchanges_per_epoch
        if before == now:
            return int(done)
        return int(done // before * now + done % before * now // before)

    def _put_back_state(self, checkpoint: Snapshot, state: State) -> None:
        local_columns = self.columns.own
        rows = checkpoint.document["rows"]
        for name, log in checkpoint.arrays.items():
            if name.startswith(LOG):
                self.agreement.recall(name.removeprefix(LOG), log)
        arrays = {
            name: self._of_this_replica(copies, rows)
            for name, copies in checkpoint.arrays.items()
            if name in ("weights", "intercept")
            or name.removeprefix(SHARED) in state.shared
        }
        self.agreement.put_whole(state, arrays.pop("weights")[local_columns])
        Snapshot({}, arrays).put_into(state)
        widths = self.agreement.widths(state)
        for name, copies in checkpoint.arrays.items():
            if not name.startswith(MEMORY):
                continue
            memory = self._remembered(copies)[local_columns]
            takes = name.removeprefix(MEMORY) in widths
            put = self.agreement.remember if takes else self.agreement.inherit
            put(state, name.removeprefix(MEMORY), memory)
        self._put_back_kept(checkpoint, state)

    def _remembered(self, copies: Array) -> Array:
        """Return this replica's copy of `copies`, (R, ...); on another grid the mean.

        A copy contains what its replica has yet to send. The agreement takes the mean
        over replicas, so that the mean of the copies stands for all of them.
        """
        if len(copies) == self.grid.replicas.size:
            local_copy: Array = copies[self.grid.replica]
            return local_copy
        mean: Array = copies.mean(axis=0, dtype=copies.dtype)
        return mean

    def _put_back_kept(self, checkpoint: Snapshot, state: State) -> None:
        """Restore the arrays of this rank; on another grid, leave them unchanged."""
        copies, sizes = (checkpoint.arrays.get(name) for name in (KEPT, SIZES))
        grid = self.grid
        size = packed(state.rank_arrays).size
        if copies is None or sizes is None:
            return
        before = checkpoint.document["replicas"], len(sizes)
        same = before == (grid.replicas.size, grid.members.size)
        if not same or sizes[grid.member] != size:
            return
        first = int(sizes[: grid.member].sum())
        local_copy = copies[grid.replica if len(copies) > 1 else 0]
        unpack(local_copy[first : first + size], state.rank_arrays)

    def _put_back_evaluation(self, checkpoint: Snapshot) -> None:
        model = None
        weights = checkpoint.arrays.get("good_weights")
        if weights is not None:
            local_weights = self.agreement.parted(weights[self.columns.own])
            model = State(local_weights, checkpoint.arrays.get("good_intercept"))
        self.evaluation.resume(checkpoint.document["evaluation"], model)

    def _of_this_replica(self, copies: Array, rows: int) -> Array:
        """Return this replica's copy of `copies`, (R, ...), or the only copy.

        On another grid it is the mean of the copies, weighted by the rows of the
        replicas.
        """
        local_copy: Array
        if len(copies) == 1:
            local_copy = copies[0]
        elif len(copies) == self.grid.replicas.size:
            local_copy = copies[self.grid.replica]
        else:
            local_copy = np.tensordot(_shares(rows, len(copies)), copies, axes=1)
        return local_copy


def packed(arrays: dict[str, Array]) -> Array:
    """Return the bytes of all arrays, in the order of their names."""
    parts = [np.ascontiguousarray(arrays[name]).reshape(-1) for name in sorted(arrays)]
    return np.concatenate([np.empty(0, np.uint8), *(p.view(np.uint8) for p in parts)])


def unpack(held: Array, arrays: dict[str, Array]) -> None:
    """Write bytes that `packed` returned back into the arrays, in place."""
    first = 0
    for name in sorted(arrays):
        array = arrays[name]
        part = np.ascontiguousarray(held[first : first + array.nbytes])
        array[...] = part.view(array.dtype).reshape(array.shape)
        first += array.nbytes


def _shares(rows: int, replicas: int) -> Array:
    """Return the share of each replica in all rows, (R,), its weight in a mean."""
    parts = [split_range(rows, replicas, r) for r in range(replicas)]
    return np.array([part.stop - part.start for part in parts]) / rows


# Checkpoints while training goes on: a copy now, the disk in the background.

S = TypeVar("S")  # what a run saves the state of


def _unwatched(what: str) -> AbstractContextManager[None]:
    return nullcontext()


class Saver(Generic[S]):
    """Decides when to save a run, takes snapshots, and passes them to a writer thread.

    Every rank has a saver, and all ranks call `save` together; only the rank that was
    given a store writes. A run that saves no checkpoints has no saver.
    """

    def __init__(
        self,
        config: CheckpointConfig,
        capture: Callable[[S, View], Snapshot | None],
        store: CheckpointStore | None = None,
        working: Callable[[str], AbstractContextManager[None]] | None = None,
        remember: int = 0,
    ) -> None:
        self.config = config
        self.capture = capture
        self.store = store
        # A context that names what this rank waits for, other than ranks.
        self.working = working if working is not None else _unwatched
        # The last checkpoints in memory, on every rank: survivors resume from them.
        self.remembered: deque[Snapshot] = deque(maxlen=remember)
        self.failed = 0
        self.written = 0
        self._last_good: int | None = None
        # One thread for all of them: MPI libraries that keep a cache of registered
        # memory (UCX) note the end of every thread's stack, and never forget it.
        # An interpreter that ends waits for it, so the last file is whole.
        self._thread: ThreadPoolExecutor | None = None
        self._writing: Future[None] | None = None
        self._began = time.monotonic()

    def is_due(self, number: int, at_end: bool) -> bool:
        """Return whether all ranks save after exchange `number`, whatever the time.

        They do at the end of the run, and after every `checkpoint.every` exchanges.
        """
        return at_end or (self.config.every > 0 and number % self.config.every == 0)

    def request(self) -> Request:
        """Return the request of this rank: a checkpoint if one is due by the clock.

        A rank without a store, or whose last checkpoint is still being written,
        requests nothing.
        """
        if self.store is None or not self.config.seconds:
            return Request.NONE
        late = time.monotonic() - self._began >= self.config.seconds
        return Request.SAVE if late and not self._is_writing() else Request.NONE

    def save(self, state: S, view: View) -> None:
        """Take a snapshot, and start to write it on the rank with a store. Collective.

        That rank first waits until the previous checkpoint is written, so that it never
        has two in memory.
        """
        self.finish()
        checkpoint = self.capture(state, view)
        self._began = time.monotonic()
        if checkpoint is None:
            return
        self.remembered.append(checkpoint)
        if self.store is None:
            return
        if self._thread is None:
            from concurrent.futures import ThreadPoolExecutor

            self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing = self._thread.submit(self._write, self.store, checkpoint)

    def finish(self) -> None:
        """Wait until the last checkpoint is on disk, or its write has failed."""
        if self._writing is not None:
            with self.working("writing a checkpoint"):
                self._writing.result()
            self._writing = None

    def close(self) -> None:
        """Wait for the last write, and end the thread; a later `save` restarts it."""
        self.finish()
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None

    def _is_writing(self) -> bool:
        return self._writing is not None and not self._writing.done()

    def _write(self, store: CheckpointStore, checkpoint: Snapshot) -> None:
        """Write a checkpoint; log a failure without raising it: training continues."""
        try:
            path = store.write(checkpoint)
        except (OSError, MemoryError) as error:
            self.failed += 1
            log.warning(
                "the checkpoint after exchange %d cannot be written (%s); training goes"
                " on, %s; make room or give write access in %s",
                checkpoint.exchanges,
                getattr(error, "strerror", None) or repr(error),
                self._kept(),
                store.folder,
            )
            return
        self.written += 1
        self._last_good = checkpoint.exchanges
        log.info("checkpoint after exchange %d: %s", checkpoint.exchanges, path.name)

    def _kept(self) -> str:
        if self._last_good is None:
            return "there is no earlier one"
        return f"the one after exchange {self._last_good} is kept"


# Checkpoints of a run whose states are on disk: where it stood, and no states.
#
# The files are the checkpoint: they contain the state after their last commit, from
# which a run resumes.


@dataclass
class TiledCapture(Capture):
    """A capture of a run whose states are in files of their own.

    Its snapshots contain the document alone; `restore` reads the state from the files.
    """

    def _arrays(
        self, state: State, exchanges: int, receivers: Receivers
    ) -> dict[str, Array | None]:
        return {}

    def _document(self, view: View) -> dict[str, Any]:
        agreement: Any = self.agreement
        run = {RUN: agreement.run}
        return {**super()._document(view), ON_DISK: True, **run}

    def restore(
        self,
        checkpoint: Snapshot,
        state: State,
        view: View,
        progress: Callable[[int], tuple[int, int]],
    ) -> None:
        """Restore a run: its state from the files of the tiles. Collective.

        All else is restored from the checkpoint, reset to the exchange after which the
        files were last committed.
        """
        agreement: Any = self.agreement
        run = checkpoint.document.get(RUN, "")
        exchanges, each = agreement.reopen(state, run)
        document = _until(checkpoint.document, exchanges) | {
            "exchanges_per_epoch": each
        }
        super().restore(Snapshot(document, {}), state, view, progress)

    def _put_back_state(self, checkpoint: Snapshot, state: State) -> None:
        """Restore nothing: the state is in the files, and no good copy is stored."""


def _until(document: dict[str, Any], exchanges: int) -> dict[str, Any]:
    """Return `document` reset to an earlier exchange, without later evaluations.

    The files of the states may be behind the checkpoint.
    """
    history = [
        record for record in document["history"] if record["exchanges"] <= exchanges
    ]
    earlier_document = {**document, "exchanges": exchanges, "history": history}
    if document["evaluation"]["measured_at"] > exchanges:
        earlier_document["evaluation"] = {**document["evaluation"], "measured_at": -1}
    return earlier_document
