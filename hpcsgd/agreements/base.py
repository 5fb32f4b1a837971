"""What an agreement of replicas is, and the checks that all share."""

import json
import logging
import zlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

from hpcsgd.comm.communicator import Communicator
from hpcsgd.comm.grid import Grid
from hpcsgd.errors import ConfigError
from hpcsgd.products.base import Array, State

# What is known where an agreement is made; every row takes what it needs of it.


@dataclass(frozen=True)
class AgreementInputs:
    """Of one run, the same on all ranks but for the grid's own place."""

    grid: Grid
    rows: tuple[int, ...]  # of every replica
    classes: int  # K
    period: int  # τ, in exchanges
    exchanges_per_epoch: int
    seed: int
    settings: Any  # the section [agreement]
    # Exchanges done, from 1 -> rate of the last step of the replica with most rows.
    last_rate: Callable[[int], float]

    @property
    def share(self) -> float:
        """The part of all rows that this replica holds."""
        return self.rows[self.grid.replica] / sum(self.rows)


# The protocol of an agreement.


class Agreement(ABC):
    """How replicas agree; `share` is the part of all rows that this one holds."""

    def __init__(self, grid: Grid, share: float, period: int) -> None:
        self.grid = grid
        self.share = share
        self.period = period

    @classmethod
    def of(cls, terms: AgreementInputs) -> "Agreement":
        """One that takes what it needs of what is known where a run is built."""
        return cls(terms.grid, terms.share, terms.period)

    @property
    def workers(self) -> int:
        """Replicas that train in an exchange."""
        return self.grid.replicas.size

    @property
    def circle_sizes(self) -> list[int]:
        """Replicas of the groups that this one averages in, where they are nested."""
        return []

    def trains(self, number: int) -> bool:
        """Whether this replica takes part in exchange `number`, from 1."""
        return True

    def shape(self, columns: int, width: int) -> tuple[int, int]:
        """Of the weights held here; so many columns, so many words each, if whole."""
        return columns, width

    def whole(self, state: State) -> Array:
        """The weights of all columns held, and their states; with all ranks."""
        return state.weights

    def put_whole(self, state: State, whole: Array) -> None:
        """The reverse; a local call."""
        state.weights[...] = whole

    def width(self, state: State) -> int:
        """Words a column of that."""
        return int(state.weights.shape[1])

    def joined(self, held: Array) -> Array:
        """All columns of what is held as the weights are; with all ranks."""
        return held

    def parted(self, whole: Array) -> Array:
        """The reverse; a local call."""
        return whole

    def prepare(self, state: State) -> None:  # noqa: B027
        """Put the arrays that are kept between calls into `state.memory`."""

    def start(self, state: State, exchanges: int) -> None:  # noqa: B027
        """The state that the run goes on from, after so many exchanges, is in place."""

    def plan_in_words(self, state: State) -> dict[str, str]:
        """What decides its messages, in words; replicas compare it before the first."""
        return {
            "agreement": type(self).__name__,
            "period": repr(self.period),
            "workers": repr(self.workers),
            "columns held": repr(state.weights.shape),
            "format of the weights": str(state.weights.dtype),
        }

    def is_whole(self, exchanges: int) -> bool:
        """Whether all replicas agree right after exchange number `exchanges`."""
        return exchanges % self.period == 0

    def after_exchange(self, state: State, exchanges: int) -> None:
        """Agree when `exchanges`, the number done so far, says it is due."""
        if self.is_whole(exchanges):
            self.conclude(state, exchanges, "agreement")

    def arrive(self, state: State) -> None:  # noqa: B027
        """Wait for what is under way, before anybody else reads or saves the state.

        Called by all ranks at the same time; training goes on from there as it would
        have done.
        """

    def settle(self, state: State, exchanges: int) -> None:
        """Agree at the end of a run, unless the last exchange just did."""
        if not self.is_whole(exchanges):
            self.conclude(state, exchanges, "agreement")

    def consensus(self, state: State, exchanges: int) -> State:
        """What an agreement would give now, with the state left as it is."""
        if self.is_whole(exchanges):
            return state
        seen = state.host_state()
        intercept = None if seen.intercept is None else seen.intercept.copy()
        copy = replace(seen, weights=seen.weights.copy(), intercept=intercept)
        self.conclude(copy, exchanges, "evaluate")
        return copy

    def holds_one_state(self, state: State, exchanges: int) -> bool:
        """True where all replicas hold the same just now, so that one copy says all."""
        if self.grid.replicas.size == 1:
            return True
        return self.is_whole(exchanges) and not self.keeps_own(state)

    def keeps_own(self, state: State) -> bool:
        """Whether replicas hold something of their own even when they agree."""
        return bool(state.memory)

    def memory(self, state: State) -> dict[str, Array]:
        """What is kept, one row a column held; all ranks ask at the same time."""
        return state.memory

    def widths(self, state: State) -> dict[str, int]:
        """Words a column of each array that `memory` gives; a local call."""
        return {name: kept.shape[1] for name, kept in state.memory.items()}

    def remember(self, state: State, name: str, kept: Array) -> None:
        """Put back one array that `memory` gave; a local call."""
        state.memory[name][...] = kept

    def inherit(self, state: State, name: str, kept: Array) -> None:  # noqa: B027
        """Take over what another grid has kept and this one does not; a local call."""

    def conclude(self, state: State, exchanges: int, purpose: str) -> None:
        """Make all replicas one after so many exchanges; booked under `purpose`."""
        self.agree(state, purpose)

    def visited(self, dealt: int) -> int:
        """Rows of all replicas in an exchange that dealt so many to this one."""
        return dealt * self.workers

    def logs(self) -> dict[str, Array]:
        """What is written down of all exchanges so far, the same on all ranks."""
        return {}

    def recall(self, name: str, log: Array) -> None:  # noqa: B027
        """Go on with one array that `logs` gave; a local call, before `start`."""

    def updates(self, batches: int) -> int:
        """Steps that an exchange of so many batches takes."""
        return batches

    def steps_taken(self, planned: int) -> int:
        """Steps so far, of which `planned` are those that a schedule alone knows."""
        return planned

    def facts(self) -> dict[str, Any]:
        """What it has to say in the report of a run."""
        return {}

    @abstractmethod
    def agree(self, state: State, purpose: str) -> None:
        """Make the replicas' weights one; booked under `purpose`."""

    def release(self) -> None:  # noqa: B027
        """Let go of files and threads, however the run ended; a local call."""

    def close(self) -> None:  # noqa: B027
        """Let go of the groups that it opened, with all ranks."""


# Which agreements are about gradients, and which about weights.

GRADIENTS = (
    "gradient",
    "growing",
    "decentralized",
    "decentralized-low",
    "qadam",
    "anybatch",
    "scheduled",
    "ticktock",
    "sharded",
    "offload",
    "infinity",
)
# Their replicas step by their own gradients, and tell each other of weights.
OWN_STEPS = ("decentralized", "decentralized-low")
# Of these no iterate before the last is that of all replicas.
NEVER_ONE = (*OWN_STEPS, "async-average", "anybatch")
SHARDED = ("sharded", "offload")  # of these, whose replicas hold slices
# These take the same steps, and save one vector for each word of state: a run may go on
# as another of them, with other values of these settings.
ALIKE = ("gradient", "sharded", "offload")
FREE = ("method", "kind", "stage", "bucket")


def is_alike(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether these two sections [agreement] take the same steps."""
    return all(
        asked["kind"] in ALIKE and asked["codec"] == "identity"
        for asked in (one, other)
    )


def takes_gradients(kind: str) -> bool:
    """Whether replicas of this agreement share gradients, and step together."""
    return kind in GRADIENTS


def batches_together(settings: Any) -> int:
    """Batches of an exchange, by the section [agreement]: the tick's and the tock's."""
    items = 2 if (settings.kind, settings.mode) == ("ticktock", "exact-sum") else 1
    return items * int(settings.accumulate)


def is_on_disk(kind: str) -> bool:
    """Whether weights and states of this agreement are on disk."""
    return kind == "infinity"


# All ranks hold the same plan, or none of them begins.
#
# Ranks that were told different things wait for each other in different messages, for
# ever. So what decides the messages is said once, before the first of them, as a hash:
# its MIN and MAX over all ranks are equal where all are alike, at two words of control.
# Only where they differ is the plan itself exchanged, and what differs is named.

Plan = Mapping[str, str]  # what is said -> how it is said to people


def check_same(world: Communicator, said: Plan) -> None:
    """Refused alike by all ranks where one says something else."""
    if differs(world, said):
        everybody = world.exchange_objects(dict(said))
        raise alike(_difference(everybody, "rank"))


def check_plan(grid: Grid, said: Plan) -> None:
    """The same for replicas, whose members hold columns of their own."""
    if grid.replicas.size == 1:
        return
    if not grid.world.max_flag(int(differs(grid.replicas, said))):
        return
    everybody = grid.world.exchange_objects((grid.member, dict(said)))
    columns = [[s for m, s in everybody if m == own] for own, _ in everybody]
    found = next(same for same in columns if any(s != same[0] for s in same))
    raise alike(_difference(found, "replica"))


def differs(group: Communicator, said: Plan) -> bool:
    """Whether the hash has two values in this group."""
    if group.size == 1:
        return False
    own = hash_of(said)
    largest, least = group.max_flag(own), -group.max_flag(-own)
    return largest != least


def hash_of(said: Plan) -> int:
    """The same in every process, whatever the order in which things are said."""
    return zlib.crc32(json.dumps(dict(said), sort_keys=True).encode())


def alike(sentence: str) -> ConfigError:
    """An error that all ranks raise."""
    error = ConfigError(sentence)
    error.on_all_ranks = True
    return error


def _difference(everybody: list[dict[str, Any]], who: str) -> str:
    """The first thing that somebody says otherwise than the first of them."""
    first = everybody[0]
    for rank, other in enumerate(everybody):
        for name in (*first, *other):
            if other.get(name) != first.get(name):
                return (
                    f"{name} is {first.get(name)} on {who} 0 and {other.get(name)} on"
                    f" {who} {rank}; give all ranks the same"
                )
    raise AssertionError("unlike hashes of what is alike")  # pragma: no cover


# Replicas that take the same steps hold the same bits, or are mended.
#
# MPI does not promise that a sum gives every rank the same bits. Replicas that never
# speak of weights would drift apart unseen; every N exchanges they compare a hash of
# all they hold, and where it differs all take what replica 0 holds.

log = logging.getLogger(__name__)


class ReplicaCheck:
    """Of the replicas of one column block."""

    def __init__(self, replicas: Communicator, every: int) -> None:
        self.replicas = replicas
        self.every = every  # exchanges; 0 = never
        self.mended = 0

    def is_due(self, exchanges: int) -> bool:
        """Whether they compare after so many exchanges."""
        return bool(
            self.every and self.replicas.size > 1 and exchanges % self.every == 0
        )

    def after_exchange(
        self, state: State, exchanges: int, more: Sequence[Array] = ()
    ) -> None:
        """Compare when due; `more` is what else all replicas hold alike."""
        if not self.is_due(exchanges):
            return
        prints = _fingerprint(_held(state.host_state(), more))
        if len(set(self.replicas.exchange_objects(prints))) > 1:
            self._mend(_held(state, more), exchanges)

    def _mend(self, held: Sequence[Array], exchanges: int) -> None:
        self.mended += 1
        for array in held:
            self.replicas.broadcast(array, 0, "control")
        if self.replicas.rank == 0:
            log.warning(
                "replicas differed after exchange %d and were mended from replica 0"
                " (%d times so far); --reproducible prevents it",
                exchanges,
                self.mended,
            )


def _held(state: State, more: Sequence[Array]) -> list[Array]:
    intercept = [] if state.intercept is None else [state.intercept]
    return [state.weights, *more, *intercept]


def _fingerprint(held: Sequence[Array]) -> int:
    value = 0
    for array in held:
        value = zlib.crc32(array.tobytes(), value)
    return value


# How much of the transfers lay behind computing: measured, message by message.
#
# What a transfer takes is what the emulated network charged for it, where there is one;
# else it is the time from its start to the end of the wait for it, an upper limit. What
# of it was not hidden is the time that this rank stood still for it, be it for another
# rank that was late: the hidden part is a lower limit.


@dataclass
class MessageUnderWay:
    """One message: when it was posted, and what it has cost so far."""

    posted: float
    stood: float = 0.0  # seconds of standing still for it
    charged: float = 0.0  # seconds that the network takes, where that is known


class Overlap:
    """Seconds of transfers, and how many of them were hidden."""

    def __init__(
        self, replicas: Communicator, clock: Callable[[], float] = perf_counter
    ) -> None:
        self.replicas = replicas
        self.clock = clock
        self.transfer = 0.0
        self.hidden = 0.0
        self._under_way: deque[MessageUnderWay] = deque()

    @contextmanager
    def posting(self) -> Iterator[None]:
        """A message is started inside; one that blocks is waited for here."""
        message = MessageUnderWay(self.clock())
        self._under_way.append(message)
        with self._standing(message):
            yield

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """For the message that was posted first, of those that are under way."""
        if self.replicas.ledger.gives_way is not None:
            self.replicas.ledger.gives_way()
        message = self._under_way.popleft()
        with self._standing(message):
            yield
        took = message.charged
        if self.replicas.charged is None:
            took = self.clock() - message.posted
        self.transfer += took
        self.hidden += max(took - message.stood, 0.0)

    @contextmanager
    def _standing(self, message: MessageUnderWay) -> Iterator[None]:
        charged, began = self.replicas.charged or 0.0, self.clock()
        yield
        message.stood += self.clock() - began
        message.charged += (self.replicas.charged or 0.0) - charged

    def facts(self) -> dict[str, float | str]:
        """For the report of a run."""
        return {
            "transfer_seconds": self.transfer,
            "hidden_seconds": self.hidden,
            "hidden_share": self.hidden / self.transfer if self.transfer else 0.0,
            "transfer_by": "clock" if self.replicas.charged is None else "network",
        }
