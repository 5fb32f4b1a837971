"""ZeRO-Infinity: the agreement of replicas whose weights and states are on disk.

The method is that of Rajbhandari et al. (2021). A rank has d columns and K classes, and
S = 2 with momentum, else 1.

Needs    product direct, a folder (`store` or run.out), s = 1, τ = 1, update sgd,
         momentum, nesterov, nesterov-classic, adagrad or adam, one model, a smooth
         penalty, and weights of at least 32 bits.
Refuses  codecs, `hierarchical`, scaled residuals, changes and clipping of gradients,
         8-bit states, gradients of all rows, stop.on = validation, [average], [polish],
         initial weights, run.on_failure = shrink, `--emulate-members`, and GPUs.
Keeps    on disk, twice, 1/R of S·d·K words of weights and of d·K words of each array of
         the rule (adam 2, adagrad 1); in memory buffers of `tile` MiB.
Sends    for each tile an all-gather of the weights, to which a rank gives about d·K/R
         words in all, and a reduce-scatter of the gradient, d·K words in all; an
         all-reduce of the tail, K·i + 1 words in float64 (i = 1 with an intercept, else
         0). Where R > 2 member 0 broadcasts the tail to the members.
"""

import logging
import shutil
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

import numpy as np

from hpcsgd.agreements.base import (
    MIB,
    PURPOSE,
    AgreementSettings,
    GradientSettings,
    Overlap,
    Requires,
    RunShape,
    StateShape,
    Supports,
)
from hpcsgd.agreements.buckets import Buffer
from hpcsgd.agreements.gradient import Gradient, GradientInputs
from hpcsgd.agreements.more.infinity import RUN, OnDisk
from hpcsgd.agreements.more.infinity.store import (
    CHECKSUMS,
    RING,
    Generation,
    TileLayout,
    TileStore,
    generations,
    place_in,
    remove,
)
from hpcsgd.agreements.more.infinity.tiles import (
    PAGE,
    Stamp,
    TileLock,
    TilePlan,
    columns_for,
    step_bytes,
    unreadable,
)
from hpcsgd.agreements.zero import TileWorkspace
from hpcsgd.backends.exchange import probed
from hpcsgd.backends.task import State, Task
from hpcsgd.comm.communicator import Communicator, Pending
from hpcsgd.comm.grid import Grid
from hpcsgd.comm.ledger import Sent
from hpcsgd.errors import DataError
from hpcsgd.files import own_folder
from hpcsgd.formats import Array
from hpcsgd.glm.updates import ColumnViews
from hpcsgd.precision import Precision
from hpcsgd.products.direct import TiledRows
from hpcsgd.settings import setting

# Tiles of weights and of gradients between replicas: one travels while one is used.
#
#     forward     gather tile i + 1  |  scores of tile i
#     backward    sum of tile i      |  Yᵀr of tile i + 1, then the step of tile i
#
# With several replicas, two tiles of each are in memory at a time.

ALONE, TOGETHER = 2, 5  # tiles of w and G in memory at a time, with own parts of w
Owned = Iterable[tuple[int, Array]]
Sizes = Callable[[int], Sequence[int]]  # tile -> words of all replicas


class Between:
    """The messages of tiles of weights and gradients between replicas.

    All replicas post them in the same order.
    """

    def __init__(
        self, replicas: Communicator, height: int, width: int, dtype: np.dtype
    ) -> None:
        self.replicas = replicas
        self.overlap = Overlap(replicas)
        self._whole, self._sums = (
            TileWorkspace(height * width, 2, dtype) for _ in range(2)
        )
        self._own = TileWorkspace(-(-height // replicas.size) * width, 2, dtype)
        self._travelling: list[Pending] = []
        self._begun = 0  # tiles of G in this exchange

    def gathered(
        self, parts: Owned, sizes: Sizes, purpose: str
    ) -> Iterator[tuple[int, Array]]:
        """Yield number and words of every tile, gathered over replicas. Collective.

        `parts` yields number and words of this replica's part of every tile, and
        `sizes` returns the words of the parts of a tile on all replicas. The words are
        flat, and valid until the next tile is requested.
        """
        last = -1
        for number, part in parts:
            self._gather(number, part, sizes(number), purpose)
            if last >= 0:
                yield last, self._arrived()
            last = number
        if last >= 0:
            yield last, self._arrived()

    def restart(self) -> None:
        """Start the gradient of another exchange at its first tile."""
        self._begun = 0

    def sums(self, number: int, count: int, sizes: Sizes, add: "Add") -> Array:
        """Return this replica's part of a gradient tile, summed over replicas.

        Collective. `add` computes this replica's own gradient of the tile. With several
        replicas, the sum of the next of the `count` tiles, if any, has been started
        when the method returns.
        """
        if self.replicas.size == 1:
            return self._added(number, sum(sizes(number)), add)
        while self._begun <= min(number + 1, count - 1):
            self._send_sums(self._begun, sizes(self._begun), add)
            self._begun += 1
        return self._arrived()

    def _gather(
        self, number: int, own: Array, counts: Sequence[int], purpose: str
    ) -> None:
        """Start to gather a tile from a copy of this replica's part.

        A copy is sent because the reader reuses the buffer `own` meanwhile.
        """
        part = self._own.tile(number, own.size)
        part.reshape(own.shape)[...] = own
        out = self._whole.tile(number, sum(counts))
        with self.overlap.posting():
            pending = self.replicas.start_gather(part, counts, out, purpose)
        self._travelling.append(pending)

    def _send_sums(self, number: int, counts: Sequence[int], add: "Add") -> None:
        flat = self._added(number, sum(counts), add)
        with self.overlap.posting():
            pending = self.replicas.start_sum_parts(flat, counts, PURPOSE)
        self._travelling.append(pending)

    def _added(self, number: int, words: int, add: "Add") -> Array:
        flat: Array = self._sums.tile(number, words)
        flat[...] = 0.0
        add(number, flat)
        return flat

    def _arrived(self) -> Array:
        """Wait for the oldest message, and return its result."""
        with self.overlap.waiting():
            return self._travelling.pop(0).wait()


Add = Callable[[int, Array], None]  # adds Yᵀr of a tile to its flat words


# The place of the states of a run, and how a resumed run opens them.

log = logging.getLogger(__name__)
TEMPORARY = 4  # temporary arrays of a tile in the step of a rule
FOLDER = "tiles"


def store_in(out: str | None) -> Path:
    """Return the folder of weights and states in the run folder `out`."""
    return Path(out or "") / FOLDER


@dataclass(frozen=True)
class InfinityPlace:
    """The folder of the tiles of a run, their layout, and how the run writes them."""

    folder: Path
    columns: int  # of the data
    parts: tuple[slice, ...]  # of all members
    height: int  # columns of a tile
    direct: bool
    sync: bool
    is_of_a_run: bool = False  # whether the folder is in the run folder

    def check(self) -> None:
        """Raise DataError if a link or a file is in place of the run's own folder.

        The folder is checked if it is in the run folder, not if the user has named it.
        """
        if self.is_of_a_run:
            try:
                own_folder(self.folder.parent, self.folder.name)
            except OSError as error:
                raise unreadable(self.folder, error) from error

    def layout(
        self, grid: Grid, widths: dict[str, int], dtype: np.dtype[Any]
    ) -> TileLayout:
        """Return the layout of the files of this rank."""
        part = self.parts[grid.member]
        return TileLayout(
            columns=self.columns,
            widths=widths,
            dtype=dtype.str,
            height=self.height,
            replicas=grid.replicas.size,
            first=part.start,
            held=part.stop - part.start,
        )

    def store(self, grid: Grid, layout: TileLayout, generation: int) -> TileStore:
        """Return the store of this rank's files in generation number `generation`."""
        folder = place_in(self.folder, generation, grid.replica, grid.member)
        return TileStore(folder, layout, grid.replica, self.direct, self.sync)

    def fresh(
        self, grid: Grid, layout: TileLayout, document: dict[str, Any]
    ) -> TileStore:
        """Create the files of a run that begins, and return their store. Collective.

        Files of earlier runs in the folder are removed. `document` describes the state
        before the first step.
        """
        world = grid.world
        world.together(lambda: self._clear(grid, 0))
        store = self.store(grid, layout, 1)
        world.together(lambda: store.create(document))
        return store

    def earlier(self, grid: Grid, layout: TileLayout, run: str) -> TileStore:
        """Return the store of run `run`, which resumes. Collective.

        The store is open at the newest step that is intact on all ranks. States of
        another layout are copied into new files.
        """
        world = grid.world
        of_all = world.exchange_objects(world.together(self._generations))
        for number in sorted(set().union(*of_all), reverse=True):
            store = self._same(grid, layout, number, run) or self._dealt(
                grid, layout, number, max(map(max, filter(None, of_all))), run
            )
            if store is not None:
                return store
        raise _nothing(self.folder)

    def _generations(self) -> list[int]:
        return generations(self.folder)

    def _same(
        self, grid: Grid, layout: TileLayout, number: int, run: str
    ) -> TileStore | None:
        """Return the store of generation `number` if it has this `layout`. Collective.

        Return None if a rank has no such files, or if no step is stored on all ranks.
        """
        world = grid.world
        store = self.store(grid, layout, number)
        stamps = world.together(store.versions)
        of_all = world.exchange_objects([stamp.version for stamp in stamps])
        common = set(of_all[0]).intersection(*of_all[1:])
        if not common:
            return None
        world.together(lambda: self._check(stamps[0].document["state"], run))
        _note_unchecked(self.folder, stamps[0])
        version = self._whole(grid, store, sorted(common, reverse=True))
        world.together(lambda: store.open_at(version))
        return store

    def _whole(self, grid: Grid, store: TileStore, versions: list[int]) -> int:
        """Return the newest step whose checksums are right on all ranks. Collective.

        Raise DataError if there is none.
        """
        reports = []
        for version in versions:
            difference = grid.world.together(partial(store.differs_at, version))
            differ = list(filter(None, grid.world.exchange_objects(difference)))
            if not differ:
                return version
            reports.append(f"{differ[0]}, step {version},")
            log.warning(
                "%s does not match its checksum; the run goes on from the step before,"
                " if that one is intact",
                reports[-1],
                extra={"on_all_ranks": True},
            )
        raise _torn(reports)

    def _dealt(
        self, grid: Grid, layout: TileLayout, number: int, newest: int, run: str
    ) -> TileStore | None:
        """Return a new store, filled from files of another layout. Collective.

        Return None if a rank cannot read the files of all ranks, or if ranks read
        different steps.
        """
        world = grid.world
        old = world.together(lambda: self._seen(number, layout))
        versions = world.exchange_objects(None if old is None else old.version)
        if old is None or None in versions or len(set(versions)) > 1:
            return None
        version, store = versions[0], self.store(grid, layout, newest + 1)
        world.together(lambda: self._check(old.document(version), run))

        _note_unchecked(self.folder, old.held[0].stamps[0])

        def fill(name: str, columns: slice, out: Array) -> None:
            old.fill(name, version, columns, out)

        world.together(lambda: store.create(old.document(version), fill))
        world.together(lambda: self._clear(grid, newest + 1))
        return store

    def _seen(self, number: int, layout: TileLayout) -> Generation | None:
        folder = self.folder / f"{number:06d}"
        generation = Generation(folder) if folder.is_dir() else None
        if generation is None or generation.version is None:
            return None
        then = generation.held[0].layout
        if (then.columns, then.widths, then.dtype) != (
            layout.columns,
            layout.widths,
            layout.dtype,
        ):
            raise DataError(
                f"{folder} holds states of {then.columns} columns ({then.widths} words"
                f" a column, {then.dtype}) and this run has {layout.columns} columns"
                f" ({layout.widths} words, {layout.dtype}); set agreement.store to the"
                " folder of this run, or start anew with --resume no"
            )
        return generation

    def _check(self, document: dict[str, Any], run: str) -> None:
        """Raise DataError if `document` is that of another run than `run`.

        The other run began in the same folder later, or the settings name another
        folder than before.
        """
        if document.get(RUN) != run:
            raise DataError(
                f"{self.folder} holds the states of another run than the one to resume;"
                " set agreement.store to the folder with the states of that run, or"
                " start anew with --resume no"
            )

    def _clear(self, grid: Grid, but: int) -> None:
        """Remove all generations but number `but`.

        Rank 0 removes the folders of all ranks, and every rank also removes its own
        folders, which may be on a drive of its node.
        """
        for number in generations(self.folder):
            if number != but:
                if grid.world.rank == 0:
                    remove(self.folder / f"{number:06d}")
                folder = place_in(self.folder, number, grid.replica, grid.member)
                shutil.rmtree(folder, ignore_errors=True)


def _nothing(folder: Path) -> DataError:
    error = DataError(
        f"{folder} holds no step that is complete on all ranks; restore its files,"
        " resume with the --grid and agreement.tile that wrote them, or start anew with"
        " --resume no"
    )
    error.on_all_ranks = True
    return error


def _note_unchecked(folder: Path, stamp: Stamp) -> None:
    if CHECKSUMS not in stamp.document:
        log.warning(
            "the states in %s have no checksums, which earlier versions did not write;"
            " they are used without a check, and get checksums from the next step on",
            folder,
            extra={"on_all_ranks": True},
        )


def _torn(told: list[str]) -> DataError:
    error = DataError(
        f"the words of {' and '.join(told)} do not match their checksums: a drive, or"
        " another program, has changed them; restore the files of all ranks, or start"
        " anew with --resume no"
    )
    error.on_all_ranks = True
    return error


def tile_height(
    budget: float,
    widest: int,
    columns: int,
    words: int,
    rows: int,
    itemsize: int,
    replicas: int = 1,
) -> int:
    """Return the number of columns of a tile whose buffers take at most `budget` MiB.

    The buffers are the ring of states (`words` words a column), w and G whole (both
    twice where they are sent; `columns` words a column each), temporary arrays of the
    rule, `rows` words a column of the batch, and the tile in float64 for a loss. A
    member has at most `widest` columns.
    """
    whole = TOGETHER if replicas > 1 else ALONE
    column_words = RING * words + (whole + TEMPORARY) * columns + rows
    height = columns_for(budget, column_words * itemsize + 8 * columns, widest)
    page = PAGE // itemsize
    return height if height < 8 * page else height // page * page


def document_of(state: State, exchanges: int, each: int) -> dict[str, Any]:
    """Return the state that is not in tiles, as a JSON document.

    It contains the shared arrays, the intercept, the number of exchanges done, and
    `each`, the exchanges of an epoch.
    """
    arrays = dict(state.shared)
    if state.intercept is not None:
        arrays["intercept"] = state.intercept
    return {
        "exchanges": exchanges,
        "of_an_epoch": each,
        "arrays": {name: _text(array) for name, array in sorted(arrays.items())},
    }


def restore_state(document: dict[str, Any], state: State) -> None:
    """Copy the shared arrays and the intercept of `document` into `state`."""
    arrays = document["arrays"]
    for name, array in state.shared.items():
        array[...] = _array(arrays[name], array)
    if state.intercept is not None:
        state.intercept[...] = _array(arrays["intercept"], state.intercept)


def _text(array: Array) -> str:
    return b64encode(np.ascontiguousarray(array).tobytes()).decode()


def _array(text: str, like: Array) -> Array:
    return np.frombuffer(b64decode(text), dtype=like.dtype).reshape(like.shape)


# ZeRO-Infinity: weights and the arrays of the rule are on disk, in tiles.
#
#     forward:    read w_b | gather it over replicas | z += Y_b w_b
#     r = residual(z)
#     backward:   G_b = Y_bᵀ r | reduce-scatter | read (w, m, v)_b | step | write
#
# Every tile is split over the replicas: each reads, steps and writes its own part of
# each of them. No more than a tile of w, of G or of the batch is ever in memory. Yᵀr
# needs no weights, so they are gathered once a step.

WEIGHTS = "weights"


@dataclass(frozen=True)
class InfinitySettings(GradientSettings):
    """The settings of weights and optimizer state on disk, read in tiles."""

    tile: float = setting(
        64.0,
        "MiB of all buffers together; fewer need less memory",
        above=0,
        remedy="64 is usual",
    )
    store: str = setting(
        "",
        "folder of weights and states on disk; empty takes the run folder",
        becomes=lambda facts: (
            str(store_in(facts.config.run.out)),
            "in the run folder",
        ),
    )
    sync: bool = setting(
        True, "wait until data is on the drive; false is faster and less safe"
    )
    direct: bool = setting(False, "bypass the page cache if the drive supports it")

    on_disk: ClassVar[bool] = True
    works_alone: ClassVar[bool] = True
    reads: ClassVar[frozenset[str]] = frozenset()
    ignores: ClassVar[frozenset[str]] = frozenset({"bucket"})
    requires: ClassVar[Requires] = replace(
        GradientSettings.requires, products=("direct",)
    )
    supports: ClassVar[Supports] = Supports(
        codecs=False,
        leaders=False,
        loss_scale=False,
        shaping=False,
        clipping=False,
        packed_states=False,
        gradients_of_all_rows=False,
        refinement=False,
        lost_ranks=False,
        emulated_members=False,
        gpus=False,
    )

    @property
    def states_folder(self) -> str:
        """Return the folder that `store` names, or ""."""
        return self.store

    def conflicts_with(self, config: Any, precision: Precision) -> Iterator[str]:
        """Yield refusals of a missing folder, of [average], and of validation."""
        if not (self.store or config.run.out):
            yield (
                "keeps its states on disk and no folder is given; add --out DIR, or set"
                " agreement.store"
            )
        if config.average.kind != "none":
            yield (
                "holds a tile of the weights and [average] would hold a mean of all;"
                " set average.kind = 'none'"
            )
        if config.stop.on == "validation":
            yield (
                "takes the loss tile by tile, of the rows that are trained on; set"
                " stop.on = 'none' or 'loss'"
            )


class Infinity(Gradient):
    """ZeRO-Infinity: weights and states on disk, read and stepped tile by tile.

    It is a `GradientReducer`.
    """

    settings: ClassVar[type[AgreementSettings]] = InfinitySettings

    def __init__(self, grid: Grid, share: float, inputs: GradientInputs) -> None:
        super().__init__(grid, share, inputs)
        self.place: InfinityPlace = inputs.more
        self.height = self.place.height  # columns of a tile
        self.opened: TileStore | None = None
        self.run = ""  # the identity of the run, in its states
        self.lock = TileLock(self.place.folder / f".r{grid.replica}c{grid.member}")
        self.is_broken = False
        self.kept: int | None = None  # the copy to read weights from, if any
        self._task: Task | None = None

    def open_weights(self, task: Task, columns: int, dtype: np.dtype[Any]) -> OnDisk:
        """Return the weights of a run, which are read from disk tile by tile."""
        self._task = task
        shape = columns, task.states * task.columns
        return OnDisk(shape, task.columns, dtype, self)

    def prepare(self, state: State) -> None:
        """Allocate buffers of tiles, and the optimizer arrays of the intercept."""
        dtype = state.weights.dtype
        has_intercept = state.intercept is not None
        self.buffer = Buffer((0, self.columns), dtype, (), has_intercept)
        state_widths = dict.fromkeys(self.steps.rule.state_names, self.columns)
        widths = {WEIGHTS: state.weights.shape[1], **state_widths}
        if has_intercept:
            for name in state_widths:
                state.shared.setdefault(name, np.zeros((1, self.columns)))
        self.layout = self.place.layout(self.grid, widths, dtype)
        self.between = Between(self.grid.replicas, self.height, self.columns, dtype)
        self._state = state

    def plan_in_words(self, state: State) -> dict[str, str]:
        """Return the plan of `Gradient` and the height of tiles, but not the folder.

        Ranks compare their plans, and each may have a folder of its own.
        """
        tiles = f"{self.height} columns each"
        return {**super().plan_in_words(state), "tiles": tiles}

    def open(self) -> None:
        """Create the files of a run that begins. Collective.

        Do nothing if they are open.
        """
        if not self.is_open:
            self.grid.world.together(self._take_place)
            self.run = str(self.grid.world.share_object(uuid4().hex))
            document = self._document(0)
            self.opened = self.place.fresh(self.grid, self.layout, document)

    def _take_place(self) -> None:
        self.place.check()
        self.lock.take()

    @property
    def is_open(self) -> bool:
        """Return whether the files are open."""
        return self.opened is not None

    @property
    def store(self) -> TileStore:
        """Return the store of this rank's files, which have to be open."""
        assert self.opened is not None
        return self.opened

    def reopen(self, state: State, run: str) -> tuple[int, int]:
        """Open the files of a resumed run at the newest step intact on all ranks.

        Collective. Return the number of exchanges done until then, and the number of
        exchanges of an epoch in the run that stored the step.
        """
        self.grid.world.together(self._take_place)
        self.run = run
        self.opened = self.place.earlier(self.grid, self.layout, run)
        document = self.store.document
        restore_state(document, state)
        return int(document["exchanges"]), int(document["of_an_epoch"])

    def scores(
        self, task: Task, state: State, rows: Any, point: Any, out: Array
    ) -> None:
        """Compute out ← Σ_b Y_b w_b over all tiles. Collective.

        The weights w are read from disk, and `point` is not used. The first tile
        overwrites `out`, the others are added.
        """
        more = None
        for part, tile in self.tiles(PURPOSE):
            if more is None:
                task.backend.scores(rows.tile(part), tile, out)
                more = np.empty_like(out)
            else:
                task.backend.scores(rows.tile(part), tile, more)
                out += more

    def apply_update(
        self, task: Task, state: State, rows: Any, residuals: Array, plan: Any
    ) -> None:
        """Sum Y_bᵀr over replicas by tiles, and step this rank's part of each tile."""
        self.buffer.count_in(residuals)
        self._update(state, task, rows, residuals)

    def after_exchange(self, state: State, exchanges: int) -> None:
        """Take the step of an exchange in which this replica had no rows. Collective.

        The other replicas gather its parts of the weights, and it steps its parts with
        the gradient of their rows.
        """
        if self._done == exchanges - 1:
            return
        self._begin(exchanges - 1)
        for _ in self.tiles(PURPOSE):  # other replicas gather them
            continue
        self._update(state, None, None, None)

    def holds_one_state(self, state: State, exchanges: int) -> bool:
        """Return True: the state in memory is the same on all replicas."""
        return True

    def memory(self, state: State) -> dict[str, Array]:
        """Return an empty dict: the arrays of the rule are on disk."""
        return {}

    @classmethod
    def messages(cls, shape: RunShape, exchanges: int) -> Sent:
        """Return the all-reduce of the tail, what each tile sends, and a broadcast.

        The tail is [Σr | count of rows], which member 0 broadcasts where members may
        differ in it. A tile sends an all-gather of its weights and a reduce-scatter of
        its gradient. The height of a tile is `shape.tiling.columns`.
        """
        plan = TilePlan(shape.local_columns, shape.tiling.columns, shape.replicas)
        sent = shape.sum(shape.tail, 8)
        for number in plan:
            own_columns, *others = plan.sizes(number)
            sent += [
                shape.sent(own_columns * shape.classes),
                shape.sent(sum([own_columns, *others]) * shape.classes),
            ]
        return sent + shape.to_members(shape.tail)

    @classmethod
    def holds(cls, shape: StateShape) -> Iterator[tuple[str, int]]:
        """Yield name and bytes of the buffers of tiles that are in memory at a time."""
        yield "tiles", int(shape.settings.tile * MIB)

    def facts(self) -> dict[str, Any]:
        """Return the entries about tiles and disk traffic for the report of a run."""
        traffic = self.store.traffic
        plan = self.store.plan
        return {
            "tiles": plan.count,
            "tile_columns": plan.height,
            "bytes_read": traffic.read,
            "bytes_written": traffic.written,
            "bytes_of_padding": traffic.padding,
            "bytes_of_a_step": list(self.bytes_of_a_step),
            "seconds_reading": traffic.seconds_read,
            "seconds_writing": traffic.seconds_written,
            "seconds_of_checksums": traffic.seconds_summed,
            "seconds_flushing": traffic.seconds_flushed,
            "seconds_waiting": traffic.stood,
            "past_the_page_cache": self.store.is_direct,
            "synced": self.store.sync,
            **self.between.overlap.facts(),
        }

    @property
    def bytes_of_a_step(self) -> tuple[int, int]:
        """Return how many bytes this rank reads in a step, and how many it writes."""
        words = sum(self.store.layout.widths.values())
        forward = self.store.layout.widths[WEIGHTS]
        size = np.dtype(self.store.layout.dtype).itemsize
        return step_bytes(self.store.plan.total, words, size, forward)

    def release(self) -> None:
        """Close the files, and release the lock; the states stay on disk."""
        if self.opened is not None:
            self.opened.close()
        self.lock.release()

    def close(self) -> None:
        """Close the files and release the lock; there are no communicators to close."""
        self.release()

    # ------------------------------------------------------------- weights on disk

    def tiles(self, purpose: str) -> Iterator[tuple[slice, Array]]:
        """Yield the columns and the weights (columns, K) of each tile. Collective.

        Every replica reads its part of a tile, and the parts are gathered. For a step
        (`purpose` agreement) the weights are q · (w, v), at which scores are computed.
        """
        plan = self.store.plan
        alone = self.grid.replicas.size == 1
        parts = (
            (number, self._seen(words[WEIGHTS], purpose))
            for number, words in self._source(purpose == PURPOSE)
        )
        all_of = parts if alone else self.between.gathered(parts, self._sizes, purpose)
        for number, words in all_of:
            yield plan.tile(number), words.reshape(-1, self.columns)

    def _sizes(self, number: int) -> list[int]:
        """Return the number of words of each replica's part of a tile."""
        return [size * self.columns for size in self.store.plan.sizes(number)]

    def check_reads(self) -> None:
        """Raise on all ranks the read error of any of them. Collective.

        In a step, `TileStore.commit` raises read errors instead.
        """
        self.grid.world.together(self.store.pipeline.check)

    def _seen(self, words: Array, purpose: str) -> Array:
        """Return w, or for a step the point q · (w, v) at which scores are computed."""
        assert self._task is not None
        return (
            probed(self._task, words)
            if purpose == PURPOSE
            else words[:, : self.columns]
        )

    def _source(self, is_step: bool) -> Iterator[tuple[int, dict[str, Array]]]:
        if self.kept is None:
            return self.store.read(WEIGHTS, is_step)
        return self.store.read_copy(self.kept)

    def copy_weights(self) -> int:
        """Copy the weights on disk; return the copy's number. Collective."""
        return self.grid.world.together(lambda: self.store.copy(WEIGHTS))

    def restore_copy(self, kept: int) -> None:
        """Read the weights of copy `kept` from now on: the run has ended."""
        self.kept = kept

    # ------------------------------------------------------------------- the step

    def _update(
        self,
        state: State,
        task: Task | None,
        rows: TiledRows | None,
        residuals: Array | None,
    ) -> None:
        """Step all tiles and the intercept, and commit the new state. Collective."""
        tail = self._tail()
        plan = self.store.plan
        between = self.between
        factor = 1.0 / float(tail[-1])
        between.restart()
        add = self._add_tile_of(rows, residuals)

        def step(number: int, words: dict[str, Array]) -> None:
            sums = between.sums(number, plan.count, self._sizes, add)
            gradient = sums.reshape(-1, self.columns)
            if not len(gradient):
                return  # fewer columns than replicas
            arrays = {name: words[name] for name in self.steps.rule.state_names}
            part = ColumnViews(words[WEIGHTS], arrays)
            self.steps.step(part, gradient, factor, self._moment)
            self.is_broken |= not np.isfinite(words[WEIGHTS]).all()

        self.store.update(step)
        self._step_intercept(state, tail)
        document = self._document(self._moment.number + 1)
        self.grid.world.together(lambda: self.store.commit(document))
        if task is not None:
            task.clock.lap("update")

    def _add_tile_of(self, rows: TiledRows | None, residuals: Array | None) -> Add:
        """Return the function that adds Y_bᵀr of a tile to its flat words.

        The function adds nothing if this replica had no rows in the exchange.
        """

        def add(number: int, flat: Array) -> None:
            if rows is not None and residuals is not None:
                tile = rows.tile(self.store.plan.tile(number))
                self.add_gradient(flat.reshape(-1, self.columns), tile, residuals)

        return add

    def _document(self, exchanges: int) -> dict[str, Any]:
        """Return the document that is stored with the states of an exchange.

        `exchanges` is the number of exchanges done. The document contains the identity
        of the run.
        """
        document = document_of(self._state, exchanges, self.steps.each)
        return {RUN: self.run, **document}

    def _tail(self) -> Array:
        """Return [Σr | count of rows] summed over replicas. Collective.

        All members have the same sums: where their results may differ, member 0's are
        used.
        """
        tail = self.buffer.tail.astype(np.float64)
        return self._same_on_members(self.grid.replicas.sum(tail, PURPOSE))
