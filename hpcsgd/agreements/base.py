"""The protocol and settings of agreements, and the checks that all of them share."""

import json
import logging
import zlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from math import ceil
from time import perf_counter
from typing import Any, ClassVar

from hpcsgd.agreements.codecs import CODECS, CodecConfig
from hpcsgd.backends.task import State
from hpcsgd.comm.communicator import Communicator
from hpcsgd.comm.grid import Grid
from hpcsgd.comm.ledger import Sent, SentWords
from hpcsgd.data.sampling import plan_groups
from hpcsgd.data.shard import split_range
from hpcsgd.errors import ConfigError, did_you_mean
from hpcsgd.formats import Array, get_format
from hpcsgd.glm import ADAPTIVE, UPDATES
from hpcsgd.glm.updates import BLOCK
from hpcsgd.precision import Precision
from hpcsgd.settings import Condition, Resolved, RunFacts, Settings, setting

# The inputs of an agreement; each kind reads those that it needs.


@dataclass(frozen=True)
class AgreementInputs:
    """The inputs of an agreement of one run.

    All ranks have the same values, except that `grid` contains the place of this rank.
    """

    grid: Grid
    rows: tuple[int, ...]  # of every replica
    classes: int  # K
    period: int  # τ, in exchanges
    exchanges_per_epoch: int
    seed: int
    settings: Any  # the section [agreement], of the class of this agreement
    # Exchanges done, from 1 -> rate of the last step of the replica with most rows.
    last_rate: Callable[[int], float]
    codec: CodecConfig | None = None  # the section [codec]; None: nothing is encoded

    @property
    def share(self) -> float:
        """Return this replica's share of all rows."""
        return self.rows[self.grid.replica] / sum(self.rows)


ROUNDS_FILE = "rounds.csv"  # in the folder of a run whose exchanges are rounds
MIB = 2**20
PURPOSE = "agreement"  # of the messages of agreements, in the ledger

# The table of agreements.

AUTO = "auto"  # average where there are several replicas, none where there is one
# name -> "module:Class", or a class that was registered
AGREEMENTS: dict[str, "str | type[Agreement]"] = {
    "none": "hpcsgd.agreements.averaging:NoAgreement",
    "average": "hpcsgd.agreements.averaging:Average",
    "gradient": "hpcsgd.agreements.gradient:Gradient",
    "growing": "hpcsgd.agreements.gradient:Growing",
    "postlocal": "hpcsgd.agreements.averaging:PostLocal",
    "gossip": "hpcsgd.agreements.averaging:Gossip",
    "hierarchical": "hpcsgd.agreements.hierarchical:Hierarchical",
    "fedavg": "hpcsgd.agreements.averaging:FedAvg",
    "slowmo": "hpcsgd.agreements.slowmo:SlowMo",
    "local-steps": "hpcsgd.agreements.more.decentralized:LocalSteps",
    "decentralized": "hpcsgd.agreements.more.decentralized:Decentralized",
    "decentralized-low": "hpcsgd.agreements.more.decentralized:LowPrecision",
    "async-average": "hpcsgd.agreements.averaging:AsyncAverage",
    "qadam": "hpcsgd.agreements.more.qadam:QAdam",
    "anybatch": "hpcsgd.agreements.more.anybatch:Anybatch",
    "scheduled": "hpcsgd.agreements.more.scheduled:Scheduled",
    "ticktock": "hpcsgd.agreements.more.tick_tock:TickTock",
    "sharded": "hpcsgd.agreements.zero:ShardedAgreement",
    "offload": "hpcsgd.agreements.more.offload:Offload",
    "infinity": "hpcsgd.agreements.more.infinity.agreement:Infinity",
}


def usual_kind(replicas: int) -> str:
    """Return what "auto" stands for: "average" for several replicas, "none" for 1."""
    return "average" if replicas > 1 else "none"


def agreement_name(config: Any) -> str:
    """Return the kind of agreement that runs.

    "auto" becomes "none" for one replica, and "average" for several.
    """
    kind: str = config.agreement.kind
    return usual_kind(config.grid.replicas) if kind == AUTO else kind


def automatic_kind(facts: RunFacts) -> Resolved:
    """Return the kind that "auto" stands for in a run, and the reason as text."""
    kind = usual_kind(facts.config.grid.replicas)
    if kind == "none":
        return kind, "one replica has nothing to agree on"
    return kind, "there are several replicas"


# The settings of a kind of agreement, what it requires, and what it supports.


@dataclass(frozen=True)
class Requires:
    """The values of other settings of a run that an agreement requires.

    A field that is None requires nothing.

    Attributes
    ----------
    steps, period : int or None
        Steps of an exchange, and exchanges between two agreements.
    updates : tuple of str or None
        The update rules, of which the run has one.
    products : tuple of str or None
        The products, of which the run has one.
    smooth : bool
        Whether the penalty must be smooth: no l1, no bounds.
    one_model : bool
        Whether a sweep of several models is refused.
    wide_weights : bool
        Whether weights must have at least 32 bits.
    """

    steps: int | None = None
    period: int | None = None
    updates: tuple[str, ...] | None = None
    products: tuple[str, ...] | None = None
    smooth: bool = False
    one_model: bool = False
    wide_weights: bool = False


@dataclass(frozen=True)
class Supports:
    """The features of a run with which an agreement can be combined.

    Attributes
    ----------
    codecs : bool
        Compressed gradients, with error feedback.
    leaders : bool
        Sums in two levels (`hierarchical`).
    loss_scale : bool
        Residuals in a format that has to be scaled.
    shaping : bool
        A mean gradient that is centred, normalised, made noisy or clipped by
        percentile.
    clipping : bool
        Gradients of steps that are clipped by value or norm.
    packed_states : bool
        Optimizer state in 8 bits.
    averages : bool
        Averages of iterates that all replicas agree on.
    gradients_of_all_rows : bool
        Evaluations and stops that need the gradient of the objective.
    refinement : bool
        The refinement of [polish].
    gathers : bool
        Products for which every member holds all columns.
    lost_ranks : bool
        Runs that continue with the other ranks after some ranks were lost.
    emulated_members : bool
        Runs of a single rank that is timed as one of many members
        (`--emulate-members`).
    gpus : bool
        Exchanges on GPUs.
    """

    codecs: bool = True
    leaders: bool = True
    loss_scale: bool = True
    shaping: bool = True
    clipping: bool = True
    packed_states: bool = True
    averages: bool = True
    gradients_of_all_rows: bool = True
    refinement: bool = True
    gathers: bool = True
    lost_ranks: bool = True
    emulated_members: bool = True
    gpus: bool = True


@dataclass(frozen=True)
class AgreementSettings(Settings, section="agreement"):
    """How replicas synchronise their weights or gradients.

    A subclass, a frozen dataclass, declares the settings of one kind of agreement with
    `hpcsgd.settings.setting`, and states facts about it as class attributes. An
    agreement names its settings class in its class attribute `settings`.

    Attributes
    ----------
    proximal : float
        Weight μ of FedProx: how strongly steps are drawn to the last average. Kinds
        that average weights have a setting of this name.
    averages_weights : bool
        Whether replicas average their weights, by a codec if the kind supports it.
    shares_gradients : bool
        Whether the agreement receives gradients and takes the steps itself, as
        `Gradient` and its subclasses do.
    slices : bool
        Whether each replica stores only a slice of the optimizer state, from
        `zero_stage` 2 on also of the gradient, in 3 also of the weights.
    on_disk : bool
        Whether weights and optimizer state are on disk.
    works_alone : bool
        Whether the agreement can be of use even if there is only one replica.
    steps_of_gradient : bool
        Whether steps and state are those of the kind `gradient`, so that a run may be
        resumed as another of these kinds.
    asks_members : bool
        Whether the members of a replica exchange messages for the agreement even if
        there is only one replica.
    takes_rounds : bool
        Whether an exchange is a round of any number of rows, not of batches.
    reads : frozenset of str
        The subjects of other sections whose settings the agreement reads.
    ignores : frozenset of str
        Settings of its own class that it does not read.
    requires : Requires
        What the other settings of a run must be.
    supports : Supports
        What the agreement can be combined with.
    foreign : tuple of (str, value)
        Keys of other kinds that were given values which are not their defaults.

    See Also
    --------
    hpcsgd.agreements.register : Gives an agreement its name.
    """

    method: str = setting(
        "",
        "named method that sets agreement, codec and the settings that belong to them"
        " (`hpcsgd info` lists the methods; sgd, casgd and hybrid are those of studies"
        " and comparisons alone)",
    )
    kind: str = setting(
        "auto",
        "how replicas synchronise their weights or gradients (`hpcsgd info` lists the"
        " agreements)",
        choices=lambda: (*AGREEMENTS, AUTO),
        becomes=automatic_kind,
    )
    codec: str = setting(
        "identity",
        "compression of the gradients that replicas send (`hpcsgd info` lists the"
        " codecs)",
        choices=lambda: tuple(CODECS),
    )
    bucket: float = setting(
        4.0,
        "MiB of gradient in one message; smaller buckets overlap better with"
        " computation",
        above=0,
        remedy="4 is usual",
    )
    accumulate: int = setting(
        1,
        "batches whose gradients are added up before they are sent",
        at_least=1,
        remedy="1 sends every gradient",
    )
    hierarchical: str = setting(
        "off",
        "sum gradients, or mix weights, in two levels: first inside a node, a rack, or"
        " groups of N replicas (node, rack or N), then between groups; off uses one"
        " level",
        is_count=True,
    )
    foreign: tuple[tuple[str, Any], ...] = ()

    proximal: ClassVar[float] = 0.0
    averages_weights: ClassVar[bool] = False
    shares_gradients: ClassVar[bool] = False
    slices: ClassVar[bool] = False
    on_disk: ClassVar[bool] = False
    works_alone: ClassVar[bool] = False
    steps_of_gradient: ClassVar[bool] = False
    asks_members: ClassVar[bool] = False
    takes_rounds: ClassVar[bool] = False
    reads: ClassVar[frozenset[str]] = frozenset()
    ignores: ClassVar[frozenset[str]] = frozenset({"bucket"})
    requires: ClassVar[Requires] = Requires(updates=tuple(UPDATES))
    supports: ClassVar[Supports] = Supports(
        codecs=False, leaders=False, shaping=False, packed_states=False
    )

    @property
    def tile_size(self) -> float:
        """Return the MiB of gradient in one tile, which is the setting `bucket`."""
        return self.bucket

    @property
    def batches_together(self) -> int:
        """Return the largest number of batches whose gradients are sent as one sum."""
        return self.accumulate

    @property
    def batches_of_first_step(self) -> int:
        """Return the number of batches of a step at the beginning of a run."""
        return self.batches_together

    @property
    def steps_late(self) -> bool:
        """Return whether a gradient is applied one exchange late."""
        return False

    @property
    def rests(self) -> bool:
        """Return whether only a part of the replicas trains in an exchange."""
        return False

    @property
    def slices_weights(self) -> bool:
        """Return whether each replica stores only a slice of the weights."""
        return False

    @property
    def zero_stage(self) -> int:
        """Return the stage of ZeRO, or 0 without it.

        Stage 1 divides states over replicas, 2 also gradients, 3 also weights.
        """
        return 0

    @property
    def states_folder(self) -> str:
        """Return the folder of states on disk that the settings name, or ""."""
        return ""

    @property
    def beginning(self) -> tuple[str, int, str] | None:
        """Return the first phase of the method; None if the method has no phases.

        The tuple contains the name of the setting that sets the phase, its number of
        exchanges, and a phrase that describes these exchanges.
        """
        return None

    def conditions(self) -> dict[str, Condition]:
        """Return the settings of this class that are read only under a condition.

        The keys are names of settings, the values their conditions.
        """
        return {}

    def conflicts_with(self, config: Any, precision: Precision) -> Iterator[str]:
        """Yield the conflicts of this kind of agreement with other settings of a run.

        Parameters
        ----------
        config : RunConfig
            All settings of the run.
        precision : Precision
            The number formats of the run.

        Yields
        ------
        str
            The end of a sentence that begins with the name of the kind: a fact, a
            semicolon, a remedy.
        """
        yield from ()


@dataclass(frozen=True)
class GradientSettings(AgreementSettings):
    """The settings of `Gradient` and its subclasses, which take steps themselves."""

    shares_gradients: ClassVar[bool] = True
    reads: ClassVar[frozenset[str]] = frozenset({"feedback"})
    ignores: ClassVar[frozenset[str]] = frozenset()
    requires: ClassVar[Requires] = Requires(
        steps=1,
        period=1,
        updates=("sgd", "momentum", "nesterov", "nesterov-classic", *ADAPTIVE),
        products=("direct", "gather", "gather-once"),
        smooth=True,
        one_model=True,
        wide_weights=True,
    )
    supports: ClassVar[Supports] = Supports()


# The protocol of an agreement.


class Agreement(ABC):
    """Base class of the ways in which replicas synchronise.

    A subclass defines `agree`, and overrides other methods where it differs. The
    methods marked Collective are called by all replicas (and members) at the same
    time, so they may communicate; the others are local calls.

    Parameters
    ----------
    grid : Grid
        The ranks. `grid.replicas` is the communicator of the ranks that hold the same
        columns, one of each replica.
    share : float
        The part of all rows that this replica holds.
    period : int
        Exchanges from one synchronisation to the next.

    See Also
    --------
    hpcsgd.agreements.register : Gives an agreement its name.

    Examples
    --------
    An agreement on the median of the weights of all replicas, made for one replica:

    >>> import numpy as np
    >>> from hpcsgd.agreements import Agreement
    >>> from hpcsgd.comm.grid import Grid
    >>> from hpcsgd.comm import open_world
    >>> class Middle(Agreement):
    ...     def agree(self, state, purpose):
    ...         replicas = self.grid.replicas
    ...         own = state.portion(1.0, replicas)
    ...         every = np.empty((replicas.size, own.size), dtype=own.dtype)
    ...         lengths = [own.size] * replicas.size
    ...         replicas.gather(own, lengths, every.reshape(-1), purpose)
    ...         state.become(np.median(every, axis=0))
    >>> Middle(Grid(open_world("serial"), 1, 1), 1.0, 4).is_whole(8)
    True
    """

    settings: ClassVar[type[AgreementSettings]] = AgreementSettings

    def __init__(self, grid: Grid, share: float, period: int) -> None:
        self.grid = grid
        self.share = share
        self.period = period

    @classmethod
    def of(cls, terms: AgreementInputs) -> "Agreement":
        """Make the agreement of a run. Collective.

        Parameters
        ----------
        terms : AgreementInputs
            Grid, rows of every replica, classes, period, seed, and the section
            [agreement] of the settings.

        Returns
        -------
        Agreement
        """
        return cls(terms.grid, terms.share, terms.period)

    @property
    def workers(self) -> int:
        """Return the number of replicas that train in an exchange."""
        return self.grid.replicas.size

    @property
    def circle_sizes(self) -> list[int]:
        """Return how many replicas each nested group of this one has; [] for none."""
        return []

    def trains(self, number: int) -> bool:
        """Return whether this replica takes steps in an exchange.

        Parameters
        ----------
        number : int
            Number of the exchange, from 1.

        Returns
        -------
        bool
        """
        return True

    def shape(self, columns: int, width: int) -> tuple[int, int]:
        """Return the shape of the weights that this rank holds.

        Parameters
        ----------
        columns : int
            Columns of this member.
        width : int
            Words of each column.

        Returns
        -------
        tuple of (int, int)
        """
        return columns, width

    def whole(self, state: State) -> Array:
        """Return the weights of all columns of this member. Collective.

        Parameters
        ----------
        state : State
            Weights, intercept, and what is kept between calls.

        Returns
        -------
        ndarray of shape (columns, width)
        """
        return state.weights

    def put_whole(self, state: State, whole: Array) -> None:
        """Store weights of all columns of this member.

        Parameters
        ----------
        state : State
            Weights, intercept, and what is kept between calls.
        whole : ndarray of shape (columns, width)
            The weights.
        """
        state.weights[...] = whole

    def width(self, state: State) -> int:
        """Return the number of words per column of the array that `whole` returns.

        Parameters
        ----------
        state : State
            Weights, intercept, and what is kept between calls.

        Returns
        -------
        int
        """
        return int(state.weights.shape[1])

    def joined(self, held: Array) -> Array:
        """Return all columns of an array that is stored as the weights are. Collective.

        Parameters
        ----------
        held : ndarray
            The local part of the array.

        Returns
        -------
        ndarray
        """
        return held

    def parted(self, whole: Array) -> Array:
        """Return the part of an array of all columns that this rank stores.

        Parameters
        ----------
        whole : ndarray
            All columns of this member.

        Returns
        -------
        ndarray
        """
        return whole

    def prepare(self, state: State) -> None:  # noqa: B027
        """Allocate the arrays that the agreement keeps between calls. Collective.

        Called once. `state.remember(name, words)` makes an array of `words` words for
        each local column, which checkpoints save.

        Parameters
        ----------
        state : State
            Weights, intercept, and what is kept between calls.
        """

    def start(self, state: State, exchanges: int) -> None:  # noqa: B027
        """Begin a run, or resume it after `exchanges` exchanges. Collective.

        Parameters
        ----------
        state : State
            Weights, intercept, and what is kept between calls.
        exchanges : int
            Number of exchanges that are done.
        """

    def plan_in_words(self, state: State) -> dict[str, str]:
        """Return the facts that decide which messages a run sends, as text.

        Parameters
        ----------
        state : State
            Weights, intercept, and what is kept between calls.

        Returns
        -------
        dict of str
            Replicas compare it before the first message; if they differ, all of
            them raise an error.
        """
        return {
            "agreement": type(self).__name__,
            "period": repr(self.period),
            "workers": repr(self.workers),
            "columns held": repr(state.weights.shape),
            "format of the weights": str(state.weights.dtype),
        }

    def is_whole(self, exchanges: int) -> bool:
        """Return whether all replicas hold the same weights after an exchange.

        Parameters
        ----------
        exchanges : int
            Number of exchanges that are done.

        Returns
        -------
        bool
        """
        return exchanges % self.period == 0

    def after_exchange(self, state: State, exchanges: int) -> None:
        """Synchronise the replicas if that is due after this exchange. Collective.

        Parameters
        ----------
        state : State
            Weights, intercept, and what is kept between calls.
        exchanges : int
            Number of exchanges that are done.
        """
        if self.is_whole(exchanges):
            self.conclude(state, exchanges, "agreement")

    def arrive(self, state: State) -> None:  # noqa: B027
        """Wait for messages that are under way. Collective.

        Called before the state is read or saved. It must not change what training does.

        Parameters
        ----------
        state : State
            Weights, intercept, and what is kept between calls.
        """

    def settle(self, state: State, exchanges: int) -> None:
        """Synchronise at the end of a run, unless replicas are equal. Collective.

        Parameters
        ----------
        state : State
            Weights, intercept, and what is kept between calls.
        exchanges : int
            Number of exchanges that are done.
        """
        if not self.is_whole(exchanges):
            self.conclude(state, exchanges, "agreement")

    def consensus(self, state: State, exchanges: int) -> State:
        """Return the state that a synchronisation would give now. Collective.

        Parameters
        ----------
        state : State
            Weights, intercept, and what is kept between calls.
        exchanges : int
            Number of exchanges that are done.

        Returns
        -------
        State
            `state` itself if all replicas hold the same weights, else a copy; `state`
            stays as it is.
        """
        if self.is_whole(exchanges):
            return state
        copy = copied(state)
        self.conclude(copy, exchanges, "evaluate")
        return copy

    def holds_one_state(self, state: State, exchanges: int) -> bool:
        """Return whether all replicas have the same state: then one of them is saved.

        Parameters
        ----------
        state : State
            Weights, intercept, and what is kept between calls.
        exchanges : int
            Number of exchanges that are done.

        Returns
        -------
        bool
        """
        if self.grid.replicas.size == 1:
            return True
        return self.is_whole(exchanges) and not self.keeps_own(state)

    def keeps_own(self, state: State) -> bool:
        """Return whether replicas keep arrays that differ after a synchronisation.

        Parameters
        ----------
        state : State
            Weights, intercept, and what is kept between calls.

        Returns
        -------
        bool
        """
        return bool(state.memory)

    def memory(self, state: State) -> dict[str, Array]:
        """Return the arrays of `state.memory` as checkpoints save them. Collective.

        Parameters
        ----------
        state : State
            Weights, intercept, and what is kept between calls.

        Returns
        -------
        dict of ndarray
            The arrays by name, with one row for each column of this member.
        """
        return state.memory

    def widths(self, state: State) -> dict[str, int]:
        """Return the number of words per column of each array of `memory`.

        Parameters
        ----------
        state : State
            Weights, intercept, and what is kept between calls.

        Returns
        -------
        dict of int
        """
        return {name: array.shape[1] for name, array in state.memory.items()}

    def remember(self, state: State, name: str, kept: Array) -> None:
        """Store an array that `memory` has returned.

        Parameters
        ----------
        state : State
            Weights, intercept, and what is kept between calls.
        name : str
            The name of the array.
        kept : ndarray
            The array, with one row for each column of this member.
        """
        state.memory[name][...] = kept

    def inherit(self, state: State, name: str, kept: Array) -> None:  # noqa: B027
        """Use a saved array for which this agreement has none; here it is dropped.

        A checkpoint of a run on another grid may contain such an array.

        Parameters
        ----------
        state : State
            Weights, intercept, and what is kept between calls.
        name : str
            The name of the array.
        kept : ndarray
            The array, with one row for each column of this member.
        """

    def conclude(self, state: State, exchanges: int, purpose: str) -> None:
        """Synchronise now, whether it is due or not. Collective.

        Parameters
        ----------
        state : State
            Weights, intercept, and what is kept between calls.
        exchanges : int
            Number of exchanges that are done.
        purpose : str
            Where the ledger counts the messages.
        """
        self.agree(state, purpose)

    def visited(self, dealt: int) -> int:
        """Return the number of rows that are counted for an exchange of all replicas.

        Every replica that trains counts as many rows as this one.

        Parameters
        ----------
        dealt : int
            Rows of this replica in the exchange.

        Returns
        -------
        int
        """
        return dealt * self.workers

    def logs(self) -> dict[str, Array]:
        """Return the logs of all exchanges so far, by name, the same on all ranks.

        Collective.

        Returns
        -------
        dict of ndarray
        """
        return {}

    def recall(self, name: str, log: Array) -> None:  # noqa: B027
        """Restore a log from an array that `logs` has returned.

        Parameters
        ----------
        name : str
            The name of the array.
        log : ndarray
            The array.
        """

    def updates(self, batches: int) -> int:
        """Return the number of steps that an exchange takes.

        Parameters
        ----------
        batches : int
            Batches of the exchange.

        Returns
        -------
        int
        """
        return batches

    def steps_taken(self, planned: int) -> int:
        """Return the number of steps that a resumed run has taken so far.

        Parameters
        ----------
        planned : int
            Steps by the schedule.

        Returns
        -------
        int
        """
        return planned

    def facts(self) -> dict[str, Any]:
        """Return facts about the agreement for the report of a run. Collective.

        Returns
        -------
        dict
        """
        return {}

    @abstractmethod
    def agree(self, state: State, purpose: str) -> None:
        """Give all replicas the same weights. Collective.

        Parameters
        ----------
        state : State
            Weights, intercept, and what is kept between calls.
        purpose : str
            Where the ledger counts the messages; passed to every collective.
        """

    @classmethod
    def messages(cls, shape: "RunShape", exchanges: int) -> Sent | None:
        """Return the collectives of rank 0 for the synchronisation after an exchange.

        They follow from sizes and settings alone. `hpcsgd verify` and the tables of
        studies compare their sum with the ledger of a run. A method that a class of
        your own inherits is not used, because that class may send something else.

        Parameters
        ----------
        shape : RunShape
            Sizes and settings of a run.
        exchanges : int
            Number of exchanges that are done.

        Returns
        -------
        sequence of SentWords or None
            None where the data, the time or the place of ranks decide.
        """
        return None

    @classmethod
    def rank_0_trains(cls, shape: "RunShape", number: int) -> bool:
        """Return whether replica 0 trains in an exchange.

        Parameters
        ----------
        shape : RunShape
            Sizes and settings of a run.
        number : int
            Number of the exchange, from 0.

        Returns
        -------
        bool
        """
        return True

    @classmethod
    def last_messages(cls, shape: "RunShape", exchanges: int) -> Sent:
        """Return the collectives of rank 0 after the last exchange of a run.

        Parameters
        ----------
        shape : RunShape
            Sizes and settings of a run.
        exchanges : int
            Number of exchanges that are done.

        Returns
        -------
        sequence of SentWords
        """
        return ()

    @classmethod
    def holds(cls, shape: "StateShape") -> Iterator[tuple[str, int]]:
        """Yield name and bytes of each kind of array that a rank keeps for training.

        Parameters
        ----------
        shape : StateShape
            Sizes and settings of a run.

        Yields
        ------
        tuple of (str, int)
        """
        yield "states", shape.copies * shape.state

    @classmethod
    def saves(cls, shape: "StateShape") -> int:
        """Return the bytes of the state in a checkpoint, of all replicas that it has.

        One replica stands for all if they synchronise after each exchange, and keep
        nothing beside their weights.

        Parameters
        ----------
        shape : StateShape
            Sizes and settings of a run, with all columns of the data.

        Returns
        -------
        int
        """
        each = shape.state + shape.moments * shape.vector
        is_one = shape.config.schedule.period == 1 and not shape.moments
        return each if is_one else shape.replicas * each

    def release(self) -> None:  # noqa: B027
        """Release files and threads, however the run ended."""

    def close(self) -> None:  # noqa: B027
        """Close the communicators that the agreement has opened. Collective."""


def copied(state: State, names: Iterable[str] | None = None) -> State:
    """Return a state on the host whose weights and intercept are copies.

    Without `names`, it shares all other arrays with `state`. With `names`, its `memory`
    contains copies of the arrays with these names alone, and its `shared` copies of all
    arrays.
    """
    seen = state.host_state()
    intercept = None if seen.intercept is None else seen.intercept.copy()
    copy = replace(seen, weights=seen.weights.copy(), intercept=intercept)
    if names is not None:
        copy.memory = {name: state.memory[name].copy() for name in names}
        copy.shared = {name: array.copy() for name, array in state.shared.items()}
    return copy


def same_on_members(
    grid: Grid, words: Array, replicas: int, purpose: str = PURPOSE
) -> None:
    """Broadcast `words` of member 0 to all members of a replica if they may differ.

    Collective.

    Each member has summed its own copy over `replicas` replicas. The order of a sum of
    more than two terms, and so its last bit, may differ from member to member.
    """
    if replicas > 2 and grid.members.size > 1:
        grid.members.broadcast(words, 0, purpose)


# Agreements by name.


def get_agreement(name: str) -> type[Agreement]:
    """Return the class of the agreement called `name`; "auto" stands for "average"."""
    place = AGREEMENTS.get("average" if name == AUTO else name)
    if place is None:
        hint = did_you_mean(name, AGREEMENTS)
        names = sorted([*AGREEMENTS, AUTO])
        raise ConfigError(f"[agreement] unknown kind: {name!r}{hint}; known: {names}")
    if not isinstance(place, str):
        return place
    module, _, attribute = place.partition(":")
    kind: type[Agreement] = getattr(import_module(module), attribute)
    return kind


def settings_of(name: str) -> type[AgreementSettings]:
    """Return the settings class of the agreement called `name`."""
    return get_agreement(name).settings


def register(name: str, kind: type[Agreement]) -> None:
    """Make a class of your own an agreement, in this process.

    The setting `agreement.kind` then takes its name, and [agreement] the settings of
    its class attribute `settings`. In a program that runs on several ranks every rank
    must call this before it trains; `[run] plugins` names modules that each rank
    imports for that.

    Parameters
    ----------
    name : str
        A name that no agreement has, and not "auto".
    kind : subclass of Agreement
        The agreement.

    Raises
    ------
    ConfigError
        If the name is taken.

    Examples
    --------
    >>> from hpcsgd import agreements
    >>> class Rare(agreements.Average):
    ...     def is_whole(self, exchanges):
    ...         return exchanges % (10 * self.period) == 0
    >>> agreements.register("rare", Rare)
    >>> "rare" in agreements.AGREEMENTS
    True
    >>> del agreements.AGREEMENTS["rare"]
    """
    if name == AUTO or AGREEMENTS.get(name, kind) is not kind:
        raise ConfigError(f"there is an agreement {name!r} already; take another name")
    AGREEMENTS[name] = kind


# Facts that decide what is sent have to be the same on all ranks.
#
# Ranks with different settings would wait for each other in different messages, for
# ever. So these facts are compared once, before the first message, by a hash: its
# minimum and maximum over all ranks are equal where all facts are, at two words of
# control. Only where they differ are the facts exchanged, and the first one that
# differs is named.

SharedFacts = Mapping[str, str]  # name -> value, in words


def check_same(world: Communicator, facts: SharedFacts) -> None:
    """Raise ConfigError on all ranks if `facts` differ between ranks. Collective."""
    if differs(world, facts):
        everybody = world.exchange_objects(dict(facts))
        raise alike(_difference(everybody, "rank"))


def check_plan(grid: Grid, facts: SharedFacts) -> None:
    """Raise ConfigError on all ranks if `facts` differ between replicas. Collective.

    Ranks with the same columns are compared; the members of one replica may have
    different facts.
    """
    if grid.replicas.size == 1:
        return
    if not grid.world.max_flag(int(differs(grid.replicas, facts))):
        return
    everybody = grid.world.exchange_objects((grid.member, dict(facts)))
    columns = [[s for m, s in everybody if m == member] for member, _ in everybody]
    column = next(same for same in columns if any(s != same[0] for s in same))
    raise alike(_difference(column, "replica"))


def differs(group: Communicator, facts: SharedFacts) -> bool:
    """Return whether the ranks of `group` have different facts. Collective."""
    if group.size == 1:
        return False
    return not group.has_equal(hash_of(facts))


def hash_of(facts: SharedFacts) -> int:
    """Return a hash of `facts`.

    It is the same in every process and for every order of the names.
    """
    return zlib.crc32(json.dumps(dict(facts), sort_keys=True).encode())


def alike(sentence: str) -> ConfigError:
    """Return a ConfigError with the text `sentence`, marked as raised on all ranks."""
    return ConfigError(sentence, on_all_ranks=True)


def _difference(everybody: list[dict[str, Any]], who: str) -> str:
    """Return a message with the first fact that differs from that of the first rank.

    `everybody` contains the facts of all ranks, or those of one rank of each replica if
    `who` is "replica".
    """
    first = everybody[0]
    for rank, other in enumerate(everybody):
        for name in (*first, *other):
            if other.get(name) != first.get(name):
                return (
                    f"{name} is {first.get(name)} on {who} 0 and {other.get(name)} on"
                    f" {who} {rank}; give all ranks the same"
                )
    raise AssertionError(
        "all ranks have equal settings, but the checksums of these settings differ;"
        " report this bug of hpcsgd"
    )  # pragma: no cover


# Replicas that take the same steps have the same bits, or are mended.
#
# MPI does not promise that a sum gives every rank the same bits. Replicas that never
# send weights would drift apart unnoticed; so every N exchanges they compare a hash of
# their state, and if it differs, replica 0 broadcasts its state to all.

log = logging.getLogger(__name__)


class ReplicaCheck:
    """A consistency check of the ranks, one of each replica, with the same columns.

    If their states differ, all of them receive the state of replica 0.
    """

    def __init__(self, replicas: Communicator, every: int) -> None:
        self.replicas = replicas
        self.every = every  # exchanges; 0 = never
        self.mended = 0

    def is_due(self, exchanges: int) -> bool:
        """Return whether replicas compare their states after `exchanges` exchanges."""
        return bool(
            self.every and self.replicas.size > 1 and exchanges % self.every == 0
        )

    def after_exchange(
        self, state: State, exchanges: int, more: Sequence[Array] = ()
    ) -> None:
        """Compare weights, intercept and `more` between replicas if due. Collective.

        `more` contains all other arrays that are the same on all replicas. If a hash of
        the arrays differs, all replicas receive those of replica 0.
        """
        if not self.is_due(exchanges):
            return
        if not self.replicas.has_equal(_fingerprint(_held(state.host_state(), more))):
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


# The part of transfers that computation hides, measured message by message.
#
# The time of a transfer is what the emulated network, if there is one, charges for it;
# else it is the time from its start to the end of the wait for it, an upper limit. The
# exposed part is the time that this rank waits for it, even if the wait is for another
# rank that is late: the hidden part is a lower limit.


@dataclass
class MessageUnderWay:
    """A message under way: the time of its start, and its costs in seconds so far."""

    posted: float
    stood: float = 0.0  # seconds of waiting for it
    charged: float = 0.0  # seconds that the network takes, where that is known


class Overlap:
    """The seconds that transfers took, and how many of them computation has hidden."""

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
        """Record a message that starts in this context.

        The time spent in the context counts as waiting.
        """
        message = MessageUnderWay(self.clock())
        self._under_way.append(message)
        with self._standing(message):
            yield

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Record a wait in this context, for the oldest message not waited for yet."""
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
        charged = self.replicas.charged or 0.0
        began = self.clock()
        yield
        message.stood += self.clock() - began
        message.charged += (self.replicas.charged or 0.0) - charged

    def facts(self, *others: "Overlap") -> dict[str, float | str]:
        """Return seconds of transfers, and how many were hidden, for the report.

        The transfers of `others` are included.
        """
        transfer = sum((overlap.transfer for overlap in others), self.transfer)
        hidden = sum((overlap.hidden for overlap in others), self.hidden)
        return {
            "transfer_seconds": transfer,
            "hidden_seconds": hidden,
            "hidden_share": hidden / transfer if transfer else 0.0,
            "transfer_by": "clock" if self.replicas.charged is None else "network",
        }


# Columns in tiles: those of a bucket, or of a message of slices.


def bucket_count(columns: int, width: int, itemsize: int, cap: float) -> int:
    """Return the number of buckets of a gradient: ⌈bytes / cap⌉, from 1 to `columns`.

    The gradient has `width` words of `itemsize` bytes for each column; `cap` is in MiB.
    """
    size = columns * width * itemsize
    return max(min(ceil(size / (cap * MIB)), columns), 1)


def tiles_of(columns: int, count: int, alignment: int = 1) -> list[slice]:
    """Split the columns into at most `count` tiles; return one slice for each.

    Tiles begin at multiples of `alignment`, and have equal numbers of columns, give or
    take `alignment` columns.
    """
    units = -(-columns // alignment)
    count = min(count, units)
    parts = (split_range(units, count, number) for number in range(count))
    return [
        slice(part.start * alignment, min(part.stop * alignment, columns))
        for part in parts
    ]


# What a run sends and holds, from sizes and settings alone.


@dataclass(frozen=True)
class DataSize:
    """The size of the data of a run.

    Attributes
    ----------
    rows, columns : int
        Rows and columns of the data.
    sparse : bool
        Whether rows are sparse.
    stored : callable or None
        (exchange from 0, columns) -> number of values that are stored in so many
        columns of the sparse rows of the exchange.
    first_columns : callable or None
        Members -> number of columns of member 0; None where members share the columns
        equally.
    """

    rows: int
    columns: int
    sparse: bool = False
    stored: Callable[[int, int], int] | None = None
    first_columns: Callable[[int], int] | None = None


@dataclass(frozen=True)
class GridSize:
    """The size of a grid of ranks.

    Attributes
    ----------
    replicas : int
        Replicas of the grid.
    members : int
        Members of each replica.
    circles : tuple of int
        Sizes of the nested groups of replicas to which rank 0 belongs.
    """

    replicas: int
    members: int = 1
    circles: tuple[int, ...] = ()


@dataclass(frozen=True)
class Tiling:
    """The sizes of tiles of weights that a run has chosen.

    Attributes
    ----------
    count : int
        Tiles of slices in a sharded method; 0 in others.
    columns : int
        Columns of a tile of weights on disk.
    """

    count: int = 0
    columns: int = 1


@dataclass(frozen=True, eq=False)
class RunShape:
    """The settings and sizes that decide what rank 0 sends.

    Attributes
    ----------
    config : RunConfig
        The settings that run.
    precision : Precision
        The number formats.
    data : DataSize
        Rows and columns of the data.
    grid : GridSize
        Replicas and members.
    classes : int
        K, columns of the gradient.
    states : int
        Arrays of the update: weights, and momenta where the rule has them.
    gathers : bool
        Whether every member holds all columns.
    reproducible : bool
        Whether the run is reproducible, so that a sum takes two collectives.
    tiling : Tiling
        Number and size of the tiles of weights.
    """

    config: Any
    precision: Precision
    data: DataSize
    grid: GridSize
    classes: int
    states: int
    gathers: bool = False
    reproducible: bool = False
    tiling: Tiling = Tiling()

    @property
    def replicas(self) -> int:
        """Return the number of replicas."""
        return self.grid.replicas

    @property
    def members(self) -> int:
        """Return the number of members of a replica."""
        return self.grid.members

    @property
    def settings(self) -> Any:
        """Return the section [agreement]."""
        return self.config.agreement

    @property
    def intercept(self) -> bool:
        """Return whether the model has an intercept."""
        return bool(self.config.problem.intercept)

    @property
    def period(self) -> int:
        """Return the number of exchanges from one synchronisation to the next."""
        return int(self.config.schedule.period)

    @property
    def own_rows(self) -> int:
        """Return the number of rows of replica 0, which has the most rows."""
        return int(split_range(self.data.rows, self.replicas, 0).stop)

    @property
    def member_columns(self) -> int:
        """Return the number of columns of the rows of member 0."""
        if self.data.first_columns is not None:
            return self.data.first_columns(self.members)
        return int(split_range(self.data.columns, self.members, 0).stop)

    @cached_property
    def local_columns(self) -> int:
        """Return how many columns the weights of member 0 have: all if it `gathers`."""
        return self.data.columns if self.gathers else self.member_columns

    @cached_property
    def itemsize(self) -> int:
        """Return the bytes of one weight in the format in which weights are sent."""
        return get_format(self.precision.weights).carrier.itemsize

    @property
    def flagged(self) -> bool:
        """Return whether one word that reports overflow is sent with each gradient."""
        return bool(get_format(self.precision.residual).wants_scale)

    @property
    def tail(self) -> int:
        """Return the number of words that are sent with a gradient.

        They are the gradient of the intercept, if there is one, a flag of overflow, if
        residuals are scaled, and the number of rows.
        """
        return self.classes * self.intercept + self.flagged + 1

    @property
    def together(self) -> int:
        """Return the largest number of batches whose gradients are sent as one sum.

        It is 1 for agreements that receive no gradients.
        """
        settings = self.settings
        return settings.batches_together if settings.shares_gradients else 1

    @property
    def is_at_once(self) -> bool:
        """Return whether products treat the batches of an exchange as one batch.

        They do in agreements on disk, and from stage 2 of ZeRO on.
        """
        return bool(self.settings.on_disk or self.settings.zero_stage > 1)

    def groups(self) -> list[tuple[int, ...]]:
        """Return the batch sizes of each exchange of an epoch, on replica 0.

        Exchanges are those of products; `each` counts those of agreements.
        """
        schedule = self.config.schedule
        if self.is_at_once:
            return plan_groups(self.own_rows, schedule.batch * self.together, 1)
        return plan_groups(self.own_rows, schedule.batch, schedule.steps)

    def each(self) -> int:
        """Return the number of exchanges of an epoch, as agreements count them.

        In agreements that receive gradients, an exchange has the batches that are sent
        together.
        """
        if not self.settings.shares_gradients:
            return len(self.groups())
        return -(-self.own_rows // int(self.config.schedule.batch * self.together))

    @property
    def buckets(self) -> int:
        """Return the number of messages of a gradient, or in sharded methods of tiles.

        It is 1 for one replica, and for sparse rows in methods that are not sharded.
        """
        if self.replicas == 1 or (self.data.sparse and not self.settings.slices):
            return 1
        words = self.local_columns, self.classes, self.itemsize
        return self.tiling.count or bucket_count(*words, self.settings.tile_size)

    @property
    def alignment(self) -> int:
        """Return the number of columns of which every tile begins at a multiple.

        It is the length of a block if optimizer state has 8 bits, else 1.
        """
        return BLOCK if self.config.update.bits == 8 else 1

    @cached_property
    def tile_words(self) -> list[int]:
        """Return the number of words of each bucket, in the order of columns."""
        parts = tiles_of(self.local_columns, self.buckets, self.alignment)
        return [(part.stop - part.start) * self.classes for part in parts]

    @property
    def shares_tail(self) -> bool:
        """Return whether member 0 broadcasts a tail that all members use.

        Sums over more than two replicas may differ in a bit from member to member.
        Without an intercept members use no tail, and none is broadcast.
        """
        return self.replicas > 2 and self.members > 1

    def to_members(self, words: int) -> list[SentWords]:
        """Return the broadcast of a tail of `words` float64 words to the members.

        Member 0 sends it. The list is empty if the tail is not broadcast.
        """
        return [self.sent(words, 8)] if self.shares_tail else []

    def sent(self, words: int, itemsize: int = 0) -> SentWords:
        """Return one collective of `words` words of `itemsize` bytes.

        Without `itemsize`, a word has the size of a weight.
        """
        return SentWords(words, words * (itemsize or self.itemsize))

    def sum(self, words: int, itemsize: int = 0) -> list[SentWords]:
        """Return the collectives of a sum of `words` words: 2 if reproducible, else 1.

        Without `itemsize`, a word has the size of a weight.
        """
        return [self.sent(words, itemsize)] * (2 if self.reproducible else 1)


@dataclass(frozen=True)
class StateShape:
    """The settings and sizes that decide what a rank keeps between exchanges.

    Attributes
    ----------
    config : RunConfig
        The settings of the run.
    precision : Precision
        The number formats.
    columns : int
        Columns that this rank holds.
    states : int
        Words of a column of the state: weights, and momenta where the rule has them.
    copies : int
        Copies of the state in memory, the state itself included.
    sparse : bool
        Whether rows are sparse.
    """

    config: Any
    precision: Precision
    columns: int
    states: int = 1
    copies: int = 2
    sparse: bool = False

    @property
    def settings(self) -> Any:
        """Return the section [agreement]."""
        return self.config.agreement

    @property
    def replicas(self) -> int:
        """Return the number of replicas of the run."""
        return max(int(self.config.grid.replicas), 1)

    @property
    def itemsize(self) -> int:
        """Return the bytes of one weight."""
        return get_format(self.precision.weights).carrier.itemsize

    @property
    def moments(self) -> int:
        """Return the number of arrays that the update rule keeps beside the state.

        It is 0 for a rule whose momenta are in the state. All arrays in 8 bits together
        count as 1.
        """
        update = self.config.update
        return 1 if update.bits == 8 else ADAPTIVE.get(update.kind, 0)

    @property
    def snapshots(self) -> int:
        """Return how many copies of an array beside the state are kept for a fall-back.

        The number is 4 with [run] fall_back, else 0.
        """
        return 4 * int(self.config.run.fall_back)

    @property
    def vector(self) -> int:
        """Return the bytes of an array with one weight for each column of the rank."""
        return self.columns * self.itemsize

    @property
    def state(self) -> int:
        """Return the bytes of one copy of the state."""
        return self.vector * self.states
