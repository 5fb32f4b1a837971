"""Recordings of exchanges for `hpcsgd verify`, and checks that members are alike."""

import logging
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hpcsgd.backends.task import Group, State
from hpcsgd.comm.communicator import Communicator
from hpcsgd.errors import DataError
from hpcsgd.files import check_schema, read_sealed, write_sealed
from hpcsgd.formats import Array
from hpcsgd.products.observers import Observer
from hpcsgd.solvers.evaluation import Columns

# The states of a few exchanges of a run, which `hpcsgd verify` replays.
#
# The state of replica 0 before and after the steps of an exchange, and before replicas
# agree. Which exchanges depends on the seed and the length of the run alone.

log = logging.getLogger(__name__)
NAME = "exchanges.h5"
KIND = "exchanges"
VERSION = 1
SCHEMA = {
    "facts": {"fingerprint": str, "replicas": int, "sections": {...: dict}},
    "numbers": [int],
    "legs": [
        {
            "first": int,
            "last": int,
            "planned": int,
            "members": int,
            "product": str,
            "look_ahead": bool,
            "reproducible": bool,
        }
    ],
}


@dataclass(frozen=True)
class Recording:
    """The content of a recording of a run, which `hpcsgd verify` replays.

    Each leg describes the exchanges from one start of the run to its next end.
    """

    facts: dict[str, Any]
    legs: list[dict[str, Any]]
    states: dict[int, dict[str, Array]]  # exchange -> weights, intercept by moment


def choose_exchanges(count: int, seed: int, total: int) -> frozenset[int]:
    """Return `count` random exchange numbers of 1..total, or all if there are fewer.

    Equal arguments give equal numbers.
    """
    rng = np.random.default_rng((seed, total))
    drawn = rng.choice(total, size=min(count, total), replace=False)
    return frozenset((drawn + 1).tolist())


@dataclass
class Recorder(Observer):
    """Copies the state before and after the steps of a few exchanges, into a file.

    Every member of replica 0 has a recorder; only the rank with a `path` stores the
    copies and writes the file. The ledger counts the messages that gather the weights
    as control. The state is not changed.
    """

    chosen: frozenset[int]
    columns: Columns
    to_host: Callable[[Array], Array]
    path: Path | None
    facts_of_run: dict[str, Any]
    leg: dict[str, Any]
    states: dict[int, dict[str, Array]] = field(default_factory=dict)
    first: int = 0  # the exchange after which this leg of the run begins

    def start(self, state: State, exchanges: int) -> None:
        """Note after which exchange this leg of the run begins."""
        self.first = exchanges

    def before_exchange(self, state: State, number: int) -> None:
        """Copy the state before the steps of exchange `number`, if it was chosen."""
        if number in self.chosen:
            self._take(state, number, "before")

    def after_steps(self, state: State, number: int, group: Group | None) -> None:
        """Copy the state after the steps of exchange `number`, if it was chosen.

        Replicas have not agreed on the weights yet.
        """
        if number in self.chosen:
            self._take(state, number, "after")

    def at_end(self, state: State, number: int, is_finished: bool) -> None:
        """Write the recording of this leg, up to exchange `number`, and earlier legs.

        Only the rank with a `path` writes.
        """
        with self.columns.grid.world.working("writing what was recorded"):
            self._write(number)

    def _write(self, last: int) -> None:
        if self.path is None:
            return
        earlier = self._earlier(self.first)
        leg = {"first": self.first, "last": last, **self.leg}
        recording = Recording(
            self.facts_of_run, [*earlier.legs, leg], earlier.states | self.states
        )
        try:
            write_recording(self.path, recording)
        except OSError as error:
            # The model is worth more than its certificate.
            log.warning(
                "%s cannot be written (%s), so that this run cannot be verified; its"
                " result is not affected",
                self.path,
                error.strerror,
            )

    def _take(self, state: State, number: int, moment: str) -> None:
        weights = self.columns.join(self.to_host(state.host_array("weights")))
        if self.path is None:
            return
        arrays = self.states.setdefault(number, {})
        arrays[f"weights_{moment}"] = weights
        intercept = state.host_array("intercept")
        if intercept is not None:
            arrays[f"intercept_{moment}"] = intercept.copy()

    def _earlier(self, first: int) -> Recording:
        """Return the recording of earlier legs of this run, up to exchange `first`.

        It is empty if there is no earlier leg, or no readable file of this run.
        """
        nothing = Recording(self.facts_of_run, [], {})
        if self.path is None or first == 0 or not self.path.exists():
            return nothing
        try:
            recording = read_recording(self.path)
        except DataError as error:
            log.warning("%s; the exchanges recorded before the resume are lost", error)
            return nothing
        if recording.facts != self.facts_of_run:
            return nothing
        legs = [g | {"last": min(g["last"], first)} for g in recording.legs]
        states = {n: s for n, s in recording.states.items() if n <= first}
        return Recording(
            self.facts_of_run, [g for g in legs if g["first"] <= first], states
        )


def write_recording(path: Path, recording: Recording) -> None:
    """Write `recording` to the file `path`, whole or not at all."""
    arrays = {
        f"{name}_{number}": array
        for number, state in recording.states.items()
        for name, array in state.items()
    }
    document = {
        "facts": recording.facts,
        "numbers": sorted(recording.states),
        "legs": recording.legs,
    }
    write_sealed(path, KIND, VERSION, document, arrays)


def read_recording(path: Path) -> Recording:
    """Return the recording at `path`; refuse a damaged file, or one of another kind."""
    document, arrays = read_sealed(path, KIND, VERSION)
    check_schema(path, document, SCHEMA)
    states = {number: _state(path, number, arrays) for number in document["numbers"]}
    return Recording(document["facts"], document["legs"], states)


def _state(path: Path, number: int, arrays: dict[str, Array]) -> dict[str, Array]:
    """Return the arrays of one exchange, equal in shape before and after its steps."""
    state: dict[str, Array] = {}
    for kind, needed in (("weights", True), ("intercept", False)):
        pair = [arrays.get(f"{kind}_{m}_{number}") for m in ("before", "after")]
        before, after = pair
        if not needed and before is None and after is None:
            continue
        if before is None or after is None or before.shape != after.shape:
            raise DataError(
                f"{path} lacks the {kind} before or after exchange {number}, or they"
                " differ in shape; train the run again"
            )
        state |= {f"{kind}_before": before, f"{kind}_after": after}
    return state


# Arrays that must have the same bits on all members, and their repair.


class MemberCheck(Observer):
    """Compares every N exchanges the arrays that all members share, and repairs them.

    MPI does not promise that a sum gives every rank the same bits, and residuals that
    differ let members drift apart. If the arrays differ, all members take the
    intercept, and weights that all of them store, from member 0. Training continues
    from there, since every exchange computes its margins from the weights again.
    """

    def __init__(self, members: Communicator, every: int, whole: bool) -> None:
        self.members = members
        self.every = every
        self.whole = whole  # members hold all of w, not a slice each
        self.mended = 0

    def after_exchange(self, state: State, exchanges: int) -> None:
        """Compare the members' arrays if it is due, and repair them if they differ."""
        if not self.every or self.members.size == 1 or exchanges % self.every:
            return
        if not self.members.has_equal(self._fingerprint(state)):
            self._mend(state, exchanges)

    def facts(self) -> dict[str, Any]:
        return {"mended_members": self.mended}

    def _fingerprint(self, state: State) -> int:
        parts = [
            state.residuals,
            state.host_array("intercept"),
            state.host_array("weights") if self.whole else None,
        ]
        value = 0
        for part in parts:
            if part is not None:
                value = zlib.crc32(part.tobytes(), value)
        return value

    def _mend(self, state: State, exchanges: int) -> None:
        self.mended += 1
        if state.intercept is not None:
            self.members.broadcast(state.intercept, 0, "control")
        if self.whole:
            self.members.broadcast(state.weights, 0, "control")
        if self.members.rank:
            return  # all members have the same facts
        log.warning(
            "members had different bits of common values after exchange %d and took"
            " those of member 0 (%d times so far); --reproducible prevents it",
            exchanges,
            self.mended,
        )
