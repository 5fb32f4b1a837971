"""The state of a whole run as one checkpoint, and a checkpoint back into a run."""

import platform
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import hpcsgd
from hpcsgd.agreement import Agreement
from hpcsgd.callbacks.base import View
from hpcsgd.callbacks.guards import MemberCheck
from hpcsgd.checkpoint import ASKED, KEPT, LOG, SIZES, Checkpoint
from hpcsgd.columns import Columns
from hpcsgd.comm.grid import Grid
from hpcsgd.data.partition import split_range
from hpcsgd.evaluation import Evaluation
from hpcsgd.products.base import Array, State
from hpcsgd.timing import Clock

# Before the names of what agreements and codecs keep, and of what is of all members.
MEMORY, SHARED = "memory_", "shared_"


@dataclass
class Capture:
    """Knows all parts of a run that evolve; every rank calls it at the same time."""

    grid: Grid
    columns: Columns
    agreement: Agreement
    evaluation: Evaluation
    guard: MemberCheck
    clock: Clock
    facts: dict[str, Any]  # config, fingerprint, product: what does not evolve
    exchanges_per_epoch: int
    to_host: Callable[[Array], Array]
    resumes: int = 0

    def take(self, state: State, view: View) -> Checkpoint:
        """Everything that matters after the exchange that was just done."""
        self.agreement.arrive(state)
        arrays = self._arrays(state.glance(), view.exchanges)
        return Checkpoint(self._document(view), arrays)

    def _arrays(self, state: State, exchanges: int) -> dict[str, Array]:
        # Replicas that just agreed are one; between agreements each has its own.
        apart = not self.agreement.holds_one_state(state, exchanges)
        weights = self.to_host(self.agreement.whole(state))
        arrays = {"weights": self.columns.join(weights)}
        if state.intercept is not None:
            arrays["intercept"] = state.intercept.copy()
        for name, kept in self.agreement.memory(state).items():
            arrays[MEMORY + name] = self.columns.join(kept)
        for name, kept in state.shared.items():
            arrays[SHARED + name] = kept.copy()
        arrays = {
            name: self.columns.of_all_replicas(array) if apart else array[None]
            for name, array in arrays.items()
        }
        logs = {LOG + name: log for name, log in self.agreement.logs().items()}
        return arrays | logs | self._kept(state) | self._good(state)

    def _kept(self, state: State) -> dict[str, Array]:
        """(R, bytes of all members) of what only the same grid can go on with."""
        if not state.kept:  # here and everywhere else: settings decide it
            return {}
        own = packed(state.kept)
        sizes = self.grid.members.exchange_objects(own.size)
        whole = np.empty(sum(sizes), dtype=np.uint8)
        self.grid.members.gather(own, sizes, whole, "control")
        return {KEPT: self.columns.of_all_replicas(whole), SIZES: np.array(sizes)}

    def _good(self, state: State) -> dict[str, Array]:
        """The last weights that had a good loss: what a divergence goes back to."""
        if self.evaluation.good is None:
            return {}
        weights, intercept, _ = self.evaluation.good
        whole = self.agreement.joined(weights)
        # A velocity that is held elsewhere is none of them.
        more = self.agreement.width(state) - whole.shape[1]
        if more:
            whole = np.hstack([whole, np.zeros((len(whole), more), whole.dtype)])
        good = {"good_weights": self.columns.join(whole)}
        if intercept is not None:
            good["good_intercept"] = intercept.copy()
        return good

    def _document(self, view: View) -> dict[str, Any]:
        good = self.evaluation.good
        return {
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
            "phases": dict(self.clock.seconds),
            "evaluation": {
                "first_loss": self.evaluation.first_loss,
                "good_loss": None if good is None else good[2],
                "measured_at": self.evaluation.measured_at,
                "clipped": self.evaluation.clipped,
            },
            "mended": self.guard.mended,
            "resumes": self.resumes,
            "versions": {
                "hpcsgd": hpcsgd.__version__,
                "python": platform.python_version(),
                "numpy": np.__version__,
            },
        }

    def put_back(
        self,
        checkpoint: Checkpoint,
        state: State,
        view: View,
        progress: Callable[[int], tuple[int, int]],
    ) -> None:
        """Make `state` and all that watches it what they were; a local call.

        `progress` says how many steps and rows this replica has done after an
        exchange: they depend on the grid, which may be another one now.
        """
        said = checkpoint.document
        self._put_back_state(checkpoint, state)
        self._put_back_evaluation(checkpoint)
        self.guard.mended = said["mended"]
        self.resumes = said["resumes"] + 1
        self.grid.world.ledger.add(said["ledger"])
        self.clock.seconds = dict(said["phases"])
        view.exchanges = self.position(said)
        view.epoch = view.exchanges // self.exchanges_per_epoch
        steps, rows = progress(view.exchanges)
        view.steps = self.agreement.steps_taken(steps)
        view.rows = rows * self.agreement.workers
        view.loss, view.seconds = said["loss"], said["seconds"]
        view.history[:] = said["history"]
        view.events[:] = said.get("events", [])
        if ASKED in said:  # it fell back before
            self.facts[ASKED] = said[ASKED]

    def position(self, said: dict[str, Any]) -> int:
        """Exchanges done, on this grid: another number of replicas has other epochs."""
        done, before, now = (
            said["exchanges"],
            said["exchanges_per_epoch"],
            self.exchanges_per_epoch,
        )
        if before == now:
            return int(done)
        return int(done // before * now + done % before * now // before)

    def _put_back_state(self, checkpoint: Checkpoint, state: State) -> None:
        own, rows = self.columns.own, checkpoint.document["rows"]
        arrays = {
            name: self._of_this_replica(copies, rows)
            for name, copies in checkpoint.arrays.items()
            if not name.startswith(("good_", KEPT, MEMORY, LOG))
        }
        for name, log in checkpoint.arrays.items():
            if name.startswith(LOG):
                self.agreement.recall(name.removeprefix(LOG), log)
        self.agreement.put_whole(state, arrays["weights"][own])
        if state.intercept is not None:
            state.intercept[...] = arrays["intercept"]
        widths = self.agreement.widths(state)
        for name, copies in checkpoint.arrays.items():
            if not name.startswith(MEMORY):
                continue
            kept = self._remembered(copies)[own]
            takes = name.removeprefix(MEMORY) in widths
            put = self.agreement.remember if takes else self.agreement.inherit
            put(state, name.removeprefix(MEMORY), kept)
        for name, kept in state.shared.items():
            kept[...] = arrays[SHARED + name]
        self._put_back_kept(checkpoint, state)

    def _remembered(self, copies: Array) -> Array:
        """Its own; the mean where there are other replicas now.

        What is still to be sent is one of R equal parts: their mean stays.
        """
        if len(copies) == self.grid.replicas.size:
            own: Array = copies[self.grid.replica]
            return own
        mean: Array = copies.mean(axis=0, dtype=copies.dtype)
        return mean

    def _put_back_kept(self, checkpoint: Checkpoint, state: State) -> None:
        """What another grid has kept fits nobody here: it begins anew."""
        copies, sizes = (checkpoint.arrays.get(name) for name in (KEPT, SIZES))
        grid, wanted = self.grid, packed(state.kept).size
        if copies is None or sizes is None:
            return
        same = (len(copies), len(sizes)) == (grid.replicas.size, grid.members.size)
        if not same or sizes[grid.member] != wanted:
            return
        first = int(sizes[: grid.member].sum())
        unpack(copies[grid.replica, first : first + wanted], state.kept)

    def _put_back_evaluation(self, checkpoint: Checkpoint) -> None:
        evaluation, said = self.evaluation, checkpoint.document["evaluation"]
        evaluation.first_loss = said["first_loss"]
        evaluation.measured_at = said["measured_at"]
        evaluation.clipped = said["clipped"]
        weights = checkpoint.arrays.get("good_weights")
        if weights is not None:
            intercept = checkpoint.arrays.get("good_intercept")
            kept = self.agreement.parted(weights[self.columns.own]).copy()
            evaluation.good = (kept, intercept, said["good_loss"])

    def _of_this_replica(self, copies: Array, rows: int) -> Array:
        """Its own copy; the mean by rows where there are other replicas now."""
        own: Array
        if len(copies) == 1:
            own = copies[0]
        elif len(copies) == self.grid.replicas.size:
            own = copies[self.grid.replica]
        else:
            own = np.tensordot(_shares(rows, len(copies)), copies, axes=1)
        return own


def packed(arrays: dict[str, Array]) -> Array:
    """The bytes of all of them, in the order of their names."""
    parts = [np.ascontiguousarray(arrays[name]).reshape(-1) for name in sorted(arrays)]
    return np.concatenate([np.empty(0, np.uint8), *(p.view(np.uint8) for p in parts)])


def unpack(held: Array, arrays: dict[str, Array]) -> None:
    """Such bytes back into the arrays, in place."""
    first = 0
    for name in sorted(arrays):
        array = arrays[name]
        part = np.ascontiguousarray(held[first : first + array.nbytes])
        array[...] = part.view(array.dtype).reshape(array.shape)
        first += array.nbytes


def _shares(rows: int, replicas: int) -> Array:
    """The part of all rows that each replica held, as an agreement weighs it."""
    parts = [split_range(rows, replicas, r) for r in range(replicas)]
    return np.array([part.stop - part.start for part in parts]) / rows
