"""ZeRO: replicas share the mean gradient in slices, and each steps its own.

    stage 1    what a rule keeps is held in slices
    stage 2    and the gradient
    stage 3    and the weights, which the scores of a batch gather tile by tile

Every tile of the gradient is summed so that each replica gets its slice of it, which
takes the step; the slices of w are gathered. Yᵀr does not need w: so w is gathered once
a step in stage 3, too, and 2 (R−1)/R of the words of w travel, as in an all-reduce.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from hpcsgd.agreement.cuts import Cut
from hpcsgd.agreement.line import PURPOSE
from hpcsgd.agreement.scatter import Scatter
from hpcsgd.agreement.shaping import Whole
from hpcsgd.agreement.slices import VELOCITY, Sliced
from hpcsgd.codecs import Moment
from hpcsgd.products.base import Array, Rows, State, Task
from hpcsgd.updates import Part


class Sharded(Sliced):
    """Steps on the slices of one replica, and the messages that make them whole."""

    @property
    def takes_at_once(self) -> bool:
        """No gradient is kept whole to add batches up in."""
        return self.stage > 1

    def prepare(self, state: State) -> None:
        """Room for tiles of gradient, and slices of what the rule keeps."""
        whole = self.stage == 1 or self.replicas.size == 1
        sums = state.intercept is not None
        self.scatter = self._make_scatter(whole, sums)
        for name in self._sliced():
            shape = self.cuts.height, self.columns
            state.memory[name] = np.zeros(shape, dtype=state.weights.dtype)
        for name in self.steps.rule.kept:
            if state.intercept is not None:
                state.shared[name] = np.zeros((1, self.columns))
        for shaper in self.means.shapers:
            shaper.prepare(state)

    def _make_scatter(self, whole: bool, sums: bool) -> Scatter:
        return Scatter(self.replicas, self.cuts, self.room, whole, sums)

    def plan_in_words(self, state: State) -> dict[str, str]:
        """Whole columns and their tiles: slices differ among replicas."""
        tiles = (f"{cut.columns.start}:{cut.columns.stop}" for cut in self.cuts)
        return {
            **super().plan_in_words(state),
            "columns held": repr((self.cuts.columns, self.width(state))),
            "buckets": " ".join(tiles),
            "stage": repr(self.stage),
        }

    def scores(
        self, task: Task, state: State, rows: Rows, point: Array, out: Array
    ) -> None:
        """out ← Σ over tiles of Y w; each is there while it is used."""
        if self.stage < 3:
            task.backend.scores(rows, point, out)
            return
        part = out if len(self.cuts) == 1 else np.empty_like(out)
        if part is not out:
            out[...] = 0.0
        for cut, tile in self._tiles_of(point):
            task.backend.scores(self._of_tile(rows, cut), tile, part)
            if part is not out:
                out += part

    def descend(
        self, task: Task, state: State, rows: Rows, residuals: Array, plan: Any
    ) -> None:
        """Add Yᵀr of a batch; after the last one, tile by tile, say it and step."""
        self._left -= 1
        self.scatter.tail.count_in(residuals)
        if self._left:
            self._add(self.scatter.gradient, rows, residuals)
            return
        self.scatter.tail.send()
        for number, cut in enumerate(self.cuts):
            tile = self.scatter.tile(number, cut)
            self._add(tile, self._of_tile(rows, cut), residuals)
            task.clock.lap("update")
            self.scatter.send(number, cut, tile)
            task.clock.start()  # what a sum takes is booked by the ledger
        self._step(state, task)

    def after_exchange(self, state: State, exchanges: int) -> None:
        """Where this replica had no rows: its slices of w, no sums, and its step."""
        if self._done != exchanges - 1:
            self._begin(exchanges - 1)
            if self.stage == 3:
                for _ in self._tiles_of(self._weights(state)):
                    pass
            self.scatter.tail.send()
            for number, cut in enumerate(self.cuts):
                self.scatter.send(number, cut, self.scatter.tile(number, cut))
            self._step(state, None)
        self._check(state, exchanges)

    def _check(self, state: State, exchanges: int) -> None:
        """Of what all replicas hold: no slices."""
        seen = state
        if self.stage == 3:
            seen = replace(state, weights=state.weights[:0])
        self.check.after_exchange(seen, exchanges, list(state.shared.values()))

    def _weights(self, state: State) -> Array:
        """Where steps are taken."""
        return state.weights

    def _tiles_of(self, own: Array) -> Iterator[tuple[Cut, Array]]:
        """All columns, tile by tile, where scores are made."""
        return self.joining.tiles(own, PURPOSE)

    def _begin(self, number: int) -> None:
        self.scatter.begin()
        self._moment = self.steps.moment(number)
        self._done = number

    def _of_tile(self, rows: Rows, cut: Cut) -> Rows:
        if len(self.cuts) == 1:
            return rows
        return self.backend.some_columns(rows, cut.columns)

    def _step(self, state: State, task: Task | None) -> None:
        """The own slice of each tile, then to all replicas what became of it."""
        factor = 1.0 / float(self.scatter.tail.total()[-1])
        if self.means.shapers:
            self._shape_slices(factor)
            factor = 1.0
        for number, cut in enumerate(self.cuts):
            gradient = self.scatter.own(number, cut)
            if task is not None:
                task.clock.start()
            own = self._advance(state, cut, gradient, factor)
            if task is not None:
                task.clock.lap("update")
            if self.stage < 3:
                self._spread(own, cut, self._weights(state)[cut.columns])
        self.joining.wait()
        if state.intercept is not None:
            tail = self._tail()
            self.steps.take_intercept(state, tail[:-1] / tail[-1], self._moment)

    def _spread(self, own: Array, cut: Cut, tile: Array) -> None:
        """What was stepped, to all replicas."""
        self.joining.start(own, cut, tile, PURPOSE)
        self.joining.wait(behind=1)

    def _advance(self, state: State, cut: Cut, gradient: Array, factor: float) -> Array:
        """The own slice of a tile, stepped: a view in stage 3, else a copy."""
        held = state.weights
        own = held[cut.place] if self.stage == 3 else held[cut.own].copy()
        self._step_slice(own, state.memory, cut, gradient, factor, self._moment)
        return own

    def _step_slice(
        self,
        own: Array,
        memory: dict[str, Array],
        cut: Cut,
        gradient: Array,
        factor: float,
        moment: Moment,
    ) -> None:
        """In place; a velocity lies beside the weights for as long as it takes."""
        if not len(own):  # a tile of fewer columns than replicas
            return
        kept = {name: memory[name][cut.place] for name in self.steps.rule.kept}
        if self.states == 1:
            self.steps.step(Part(own, kept), gradient, factor, moment)
            return
        velocity = memory[VELOCITY][cut.place]
        both = np.hstack([own, velocity])
        self.steps.step(Part(both, kept), gradient, factor, moment)
        own[...], velocity[...] = np.split(both, 2, axis=1)

    def _shape_slices(self, factor: float) -> None:
        """Shapers see all slices of this replica as one array."""
        found = [self.scatter.own(k, cut) for k, cut in enumerate(self.cuts)]
        mean = np.concatenate(found)
        mean *= mean.dtype.type(factor)
        self._shape_mean(mean)
        for own, cut in zip(found, self.cuts, strict=True):
            own[...] = mean[cut.place]

    def _shape_mean(self, mean: Array) -> None:
        columns = self.means.held.start + self.cuts.numbers
        whole = Whole(columns, self._total)
        for shaper in self.means.shapers:
            shaper.shape(mean, whole, self._moment)

    def _total(self, words: Array) -> Array:
        """Over members and over replicas: each holds other columns."""
        return self.replicas.sum(super()._total(words), PURPOSE)

    def _tail(self) -> Array:
        tail = self.scatter.tail.total().astype(np.float64)
        if self.replicas.size > 2 and self.grid.members.size > 1:
            self.grid.members.broadcast(tail, 0, PURPOSE)
        return tail

    def facts(self) -> dict[str, Any]:
        """For the report of a run."""
        shaped = [shaper.facts() for shaper in self.means.shapers]
        scattered, joined = (o.overlap for o in (self.scatter, self.joining))
        transfer = scattered.transfer + joined.transfer
        hidden = scattered.hidden + joined.hidden
        return {
            **{key: said for facts in shaped for key, said in facts.items()},
            "stage": self.stage,
            "buckets": len(self.cuts),
            "codec": "identity",
            "own_columns": self.cuts.height,
            "mended_replicas": self.check.mended,
            **scattered.facts(),
            "transfer_seconds": transfer,
            "hidden_seconds": hidden,
            "hidden_share": hidden / transfer if transfer else 0.0,
        }
