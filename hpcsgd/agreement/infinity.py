"""ZeRO-Infinity: weights and what the rule keeps live on disk, tile by tile.

    forward:    read w_b | gather it over replicas | z += Y_b w_b
    r = residual(z)
    backward:   G_b = Y_bᵀ r | reduce-scatter | read (w, m, v)_b | step | write

Every tile is split over the replicas: each reads, steps and writes its own part of
each of them. No more than a tile of w, of G or of the batch is ever in memory. Yᵀr
needs no weights, so they are gathered once a step.
"""

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import numpy as np

from hpcsgd.agreement.buckets import Buffer
from hpcsgd.agreement.gradient import Gradient
from hpcsgd.agreement.infinity_files import RUN, Place, document_of, put_back
from hpcsgd.agreement.infinity_network import PURPOSE, Add, Between
from hpcsgd.agreement.means import Means
from hpcsgd.agreement.on_disk import OnDisk
from hpcsgd.comm.grid import Grid
from hpcsgd.products.base import Array, Rows, State, Task
from hpcsgd.products.direct import probed
from hpcsgd.tiles import Store
from hpcsgd.tiles.lock import Lock
from hpcsgd.tiles.traffic import step_bytes
from hpcsgd.updates import Part

WEIGHTS = "weights"


class Infinity(Gradient):
    """States on disk; as a `Sharing` it passes rows and weights tile by tile."""

    def __init__(self, grid: Grid, share: float, means: Means) -> None:
        super().__init__(grid, share, means)
        self.place: Place = means.place
        self.height = self.place.height  # columns of a tile
        self.opened: Store | None = None
        self.run = ""  # what tells its states from those of others
        self.lock = Lock(self.place.folder / f".r{grid.replica}c{grid.member}")
        self.is_broken = False
        self.kept: int | None = None  # a copy that the weights went back to
        self._task: Task | None = None

    def holds(self, task: Task, columns: int, dtype: np.dtype[Any]) -> OnDisk:
        """The weights of a run, which nobody holds in memory."""
        self._task = task
        shape = columns, task.states * task.columns
        return OnDisk(shape, task.columns, dtype, self)

    def prepare(self, state: State) -> None:
        """Room in memory for tiles and what belongs to the intercept alone."""
        dtype = state.weights.dtype
        has_intercept = state.intercept is not None
        self.buffer = Buffer(0, self.columns, dtype, 0, has_intercept)
        kept = dict.fromkeys(self.steps.rule.kept, self.columns)
        widths = {WEIGHTS: state.weights.shape[1], **kept}
        if has_intercept:
            for name in kept:
                state.shared.setdefault(name, np.zeros((1, self.columns)))
        self.layout = self.place.layout(self.grid, widths, dtype)
        self.between = Between(self.grid.replicas, self.height, self.columns, dtype)
        self._state = state

    def plan_in_words(self, state: State) -> dict[str, str]:
        """Tiles decide the messages; where they lie is each rank's own."""
        tiles = f"{self.height} columns each"
        return {**super().plan_in_words(state), "tiles": tiles}

    def open(self) -> None:
        """Make the files of a run that begins, on all ranks together."""
        if not self.is_open:
            self.grid.world.together(self._take_place)
            self.run = str(self.grid.world.exchange_objects(uuid4().hex)[0])
            said = self._document(0)
            self.opened = self.place.fresh(self.grid, self.layout, said)

    def _take_place(self) -> None:
        self.place.check()
        self.lock.take()

    @property
    def is_open(self) -> bool:
        """Whether there are files."""
        return self.opened is not None

    @property
    def store(self) -> Store:
        """The files of this rank."""
        assert self.opened is not None
        return self.opened

    def go_on(self, state: State, run: str) -> tuple[int, int]:
        """Open the files of a run that goes on, at the last step that all ranks have;
        the exchanges that it stands after, and how many were an epoch then.
        """
        self.grid.world.together(self._take_place)
        self.run = run
        self.opened = self.place.earlier(self.grid, self.layout, run)
        said = self.store.document
        put_back(said, state)
        return int(said["exchanges"]), int(said["of_an_epoch"])

    def scores(
        self, task: Task, state: State, rows: Rows, point: Any, out: Array
    ) -> None:
        """out ← Σ_b Y_b w_b; the first tile writes, the others add."""
        more = None
        for part, tile in self.tiles(PURPOSE):
            if more is None:
                task.backend.scores(rows.tile(part), tile, out)
                more = np.empty_like(out)
            else:
                task.backend.scores(rows.tile(part), tile, more)
                out += more

    def descend(
        self, task: Task, state: State, rows: Rows, residuals: Array, plan: Any
    ) -> None:
        """Y_bᵀr of every tile, summed, and the step of the own part of it."""
        self.buffer.count_in(residuals)
        self._update(state, task, rows, residuals)

    def after_exchange(self, state: State, exchanges: int) -> None:
        """Where this replica had no rows: its part of every tile, all the same."""
        if self._done == exchanges - 1:
            return
        self._begin(exchanges - 1)
        for _ in self.tiles(PURPOSE):  # others want them
            continue
        self._update(state, None, None, None)

    def holds_one_state(self, state: State, exchanges: int) -> bool:
        """What is in memory is the same on all replicas."""
        return True

    def memory(self, state: State) -> dict[str, Array]:
        """Nothing that a checkpoint would have to hold: it is on disk."""
        return {}

    def facts(self) -> dict[str, Any]:
        """For the report of a run."""
        traffic, plan = self.store.traffic, self.store.plan
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
        """(read, written) by this rank."""
        words = sum(self.store.layout.widths.values())
        forward = self.store.layout.widths[WEIGHTS]
        size = np.dtype(self.store.layout.dtype).itemsize
        return step_bytes(self.store.plan.total, words, size, forward)

    def release(self) -> None:
        """Let go of the files; the states stay on disk."""
        if self.opened is not None:
            self.opened.close()
        self.lock.release()

    def close(self) -> None:
        """There are no groups."""
        self.release()

    # ------------------------------------------------------------- weights on disk

    def tiles(self, purpose: str) -> Iterator[tuple[slice, Array]]:
        """Every tile of w, (columns, K), read by all and gathered by all.

        Of a step: of q · (w, v), where scores are read.
        """
        plan, alone = self.store.plan, self.grid.replicas.size == 1
        own = (
            (number, self._seen(words[WEIGHTS], purpose))
            for number, words in self._source(purpose == PURPOSE)
        )
        all_of = own if alone else self.between.gathered(own, self._sizes, purpose)
        for number, words in all_of:
            yield plan.tile(number), words.reshape(-1, self.columns)

    def _sizes(self, number: int) -> list[int]:
        """Words of a tile that replicas have."""
        return [size * self.columns for size in self.store.plan.sizes(number)]

    def check_reads(self) -> None:
        """Raise on all ranks what one could not read; a step asks when it commits."""
        self.grid.world.together(self.store.pipeline.check)

    def _seen(self, words: Array, purpose: str) -> Array:
        """w, or where the scores of a step are read."""
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

    def keep(self) -> int:
        """A copy of the own part of the weights, beside the states."""
        return self.grid.world.together(lambda: self.store.copy(WEIGHTS))

    def go_back(self, kept: int) -> None:
        """To such a copy: the run has ended."""
        self.kept = kept

    # ------------------------------------------------------------------- the step

    def _update(
        self, state: State, task: Task | None, rows: Rows, residuals: Array | None
    ) -> None:
        """All tiles, the intercept, and the commit that makes them the state."""
        tail, plan, between = self._tail(), self.store.plan, self.between
        factor = 1.0 / float(tail[-1])
        between.restart()
        add = self._add_tile_of(rows, residuals)

        def step(number: int, words: dict[str, Array]) -> None:
            own = between.sums(number, plan.count, self._sizes, add)
            gradient = own.reshape(-1, self.columns)
            if not len(gradient):
                return  # fewer columns than replicas
            kept = {name: words[name] for name in self.steps.rule.kept}
            part = Part(words[WEIGHTS], kept)
            self.steps.step(part, gradient, factor, self._moment)
            self.is_broken |= not np.isfinite(words[WEIGHTS]).all()

        self.store.update(step)
        self.steps.take_intercept(state, tail[:-1] / tail[-1], self._moment)
        said = self._document(self._moment.number + 1)
        self.grid.world.together(lambda: self.store.commit(said))
        if task is not None:
            task.clock.lap("update")

    def _add_tile_of(self, rows: Rows, residuals: Array | None) -> Add:
        """What adds Y_bᵀr of a tile; nothing where this replica had no rows."""

        def add(number: int, flat: Array) -> None:
            if residuals is not None:
                tile = rows.tile(self.store.plan.tile(number))
                self._add(flat.reshape(-1, self.columns), tile, residuals)

        return add

    def _document(self, exchanges: int) -> dict[str, Any]:
        """What is said of a step beside its tiles."""
        said = document_of(self._state, exchanges, self.steps.each)
        return {RUN: self.run, **said}

    def _tail(self) -> Array:
        """Σ [Σr | count], the same on all members, who each summed their own."""
        tail = self.buffer.tail.astype(np.float64)
        self.grid.replicas.sum(tail, PURPOSE)
        if self.grid.replicas.size > 2 and self.grid.members.size > 1:
            self.grid.members.broadcast(tail, 0, PURPOSE)
        return tail
