"""The parts that all products share: clips, messages, memory, groups of batches."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from hpcsgd.backends.base import Backend
from hpcsgd.backends.task import (
    Clip,
    ExchangeCoefficients,
    Group,
    ManyCoefficients,
    State,
)
from hpcsgd.comm.ledger import SentWords
from hpcsgd.comm.messages import bytes_of_word, sent_for_sum
from hpcsgd.errors import ConfigError
from hpcsgd.formats import Array, get_format
from hpcsgd.glm.penalties import Models
from hpcsgd.glm.unrolling import blocks_of
from hpcsgd.glm.updates import LinearUpdate
from hpcsgd.precision import Precision
from hpcsgd.products import PRODUCTS, get_product

# Clipping: gradients that are too large are made smaller, value by value or in norm.
#
# The gradient of the data is clipped, g = Yᵀr/b, without penalty and intercept. A
# product that takes one step at a time clips the gradient of each step. Where s steps
# are taken together, no gradient of a step is known before the next step. Clipping
# `over` the exchange is another method: the sum of the s steps is clipped like one step
# with the sum of their rates, that is, the mean of their gradients, weighted by rate.

WAYS = ("none", "value", "norm", "percentile")  # the last where gradients are shared
OVERS = ("step", "exchange")


def make_clip(how: str, at: float) -> Clip | None:
    """Return the `Clip` of kind `how` with limit `at`; None if `how` is "none"."""
    return None if how == "none" else Clip(how, at)


def may_clip(product: str, steps: int, over: str) -> bool:
    """Return whether `product` with s = `steps` can clip gradients over `over`.

    `over` is "step" or "exchange". A product that takes s > 1 steps together by a
    recurrence has no gradient of each step, and can clip only over the exchange.
    """
    has_each = steps == 1 or not product_facts(product).has_recurrence
    return over == "exchange" or has_each


def refuse(product: str, how: str) -> ConfigError:
    """Return the error for a product that lacks the gradient of every step."""
    return ConfigError(
        f"[update] clip = {how!r} needs the gradient of every step, and product"
        f" {product} computes only that of s steps together; use --products direct or"
        " gather, or --steps 1, or set update.clip_over = 'exchange', which clips their"
        " mean instead"
    )


@dataclass(frozen=True)
class ExchangeMessage:
    """A message of an exchange: how many words a member sends, and in which format.

    `field` names the field of `Precision` with the format of the words. With sparse
    rows, a column number of `index` bytes goes with each word.
    """

    words: int
    field: str
    is_gathered: bool = False  # else it is summed
    index: int = 0

    def sent(
        self, precision: Precision, members: int, reproducible: bool
    ) -> Iterator[SentWords]:
        """Yield words and bytes that member 0 sends in each collective of this message.

        `members` is the number of members; one member sends nothing. `reproducible`
        sums use a reduction and a broadcast.
        """
        name = getattr(precision, self.field)
        if not self.is_gathered:
            yield from sent_for_sum(self.words, name, members, reproducible)
        elif members > 1:
            value = get_format(name).dtype.itemsize
            piece = min(value, 2) if self.index else value
            size = self.words * (self.index + value)
            yield SentWords(size // piece, size)


@dataclass(frozen=True)
class ExchangeShape:
    """The sizes of one exchange, which decide what its member 0 sends."""

    sizes: tuple[int, ...]  # rows of each batch
    scores: int = 1  # K, columns of weights
    states: int = 1  # 1, 2 with momentum, or 3 with svrg
    local_columns: int = 0  # of member 0
    stored: int | None = None  # values of sparse rows in these columns
    one_message: bool = True  # G and z travel together
    monitor_words: int = 0  # of the recurrence monitor, behind the margins
    epoch: int = 0
    is_kept: bool = False  # the product has met these rows before

    @property
    def gram(self) -> ExchangeMessage:
        """Return size and format of the message with the packed Gram matrix."""
        return ExchangeMessage(blocks_of(self.sizes).gram_words, "gram_wire")

    @property
    def margins(self) -> ExchangeMessage:
        """Return size and format of the message with the margins of all s·b rows.

        The words of the numerical monitor travel behind the margins.
        """
        words = sum(self.sizes) * self.scores * self.states + self.monitor_words
        return ExchangeMessage(words, "margin_sum")


COPIES = 8  # of sampled sparse values, with their columns and places, in words
VECTORS = 4  # margins, residuals, scaled ones, targets: words of a row and state


@dataclass(frozen=True)
class ReplicaSize:
    """The numbers of rows, columns and members of one replica.

    Attributes
    ----------
    rows : int
        Rows that are dealt to the replica.
    columns : int
        Columns of the whole matrix.
    local_columns : int
        Columns that are dealt to one member.
    members : int
        Members of the replica, or those of an emulated network.
    """

    rows: int
    columns: int
    local_columns: int
    members: int


@dataclass(frozen=True)
class GramSize:
    """The size of the packed Gram matrix, and its formats.

    Attributes
    ----------
    words : int
        Words of the Gram matrix of one exchange.
    all_words : int
        Words of the Gram matrices of all exchanges of an epoch.
    itemsize : int
        Bytes of a word in which it is computed.
    wire : str
        Format in which members sum it.
    """

    words: int = 0
    all_words: int = 0
    itemsize: int = 4
    wire: str = "fp32"


@dataclass(frozen=True)
class MemoryShape:
    """The sizes that decide how many bytes a member stores for its exchanges.

    Attributes
    ----------
    replica : ReplicaSize
        Rows of an epoch, columns and members.
    gram : GramSize
        The Gram matrix of one exchange, and those of an epoch.
    rows : int
        Rows m of one exchange.
    states : int
        Arrays of the update (1, 2 with momentum, or 3 with svrg), times the models of a
        sweep.
    working : int
        Bytes of a value that is computed with.
    matrix : float
        Bytes of a value of the rows as it is stored.
    density : float or None
        Share of the values that sparse rows store.
    """

    replica: ReplicaSize
    gram: GramSize
    rows: int = 0
    states: int = 1
    working: int = 4
    matrix: float = 4
    density: float | None = None

    def sampled(self, columns: int) -> int:
        """Return the bytes of sampled sparse rows in `columns` columns, with copies."""
        stored = int(self.rows * columns * (self.density or 0.0))
        return 2 * COPIES * stored * self.working

    def own_rows(self) -> int:
        """Return the bytes of sampled rows in local columns, as stored and widened."""
        if self.density is not None:
            return self.sampled(self.replica.local_columns)
        narrow = self.matrix if self.matrix < self.working else 0
        return int(self.rows * self.replica.local_columns * (self.working + narrow))

    def vectors(self) -> tuple[str, int]:
        """Return ("vectors", bytes) of the arrays with a word for each row and state.

        They are margins, residuals, scaled residuals and targets.
        """
        return "vectors", VECTORS * self.rows * self.states * self.working

    def message(self, ahead: bool = False) -> tuple[str, int]:
        """Return ("messages", bytes) of the buffers in which members sum the Gram.

        With `ahead`, the buffers of the next Gram, which is in transit at the same
        time, are included. If members sum words as they are computed, memory that
        ranks of a node share is counted: this rank's slot, the total, and the part of
        all other slots that this rank adds.
        """
        members = self.replica.members
        word = float(bytes_of_word(self.gram.wire, members))
        second = 2 * word if ahead else 0.0
        if members > 1 and word == self.gram.itemsize:
            word *= 3 - 1 / members
        return "messages", int(self.gram.words * max(word, second))


class Product(Protocol):
    """The base class of products, which take the s steps of an exchange on a member.

    The attributes are facts, which the choice of a product, the prediction of memory
    and the monitor read from the class. A subclass sets those that are true of it.

    Attributes
    ----------
    holds_all_columns : bool
        True if every member gathers the sampled rows with the columns of all members,
        and stores all weights.
    has_recurrence : bool
        True if the s steps follow from a Gram by a recurrence, all together.
    is_monitored : bool
        True if a monitor can check the recurrence: its words travel with the margins,
        and exchanges return their margins, rows and Gram.
    keeps_batches : bool
        True if what batches need in the first epoch is kept for all later epochs, in
        which the same batches must come again.
    """

    holds_all_columns: bool = False
    has_recurrence: bool = False
    is_monitored: bool = False
    keeps_batches: bool = False

    def advance(self, state: State, group: Group, upcoming: Group | None) -> State:
        """Take the steps of `group`; return the state, which may be changed in place.

        `upcoming` is the group of the next exchange, or None. A product that looks
        ahead also starts the sum of its Gram.
        """

    def finish(self) -> None:
        """Wait for messages that were begun early and will not be used."""
        return  # most products begin nothing early


def product_facts(name: str) -> type[Product]:
    """Return the class of the product called `name`, whose attributes are its facts.

    A name of no product, such as "auto" for one that is chosen later, gives `Product`,
    of which no fact is true.

    Examples
    --------
    >>> from hpcsgd.products.base import product_facts
    >>> product_facts("gather").holds_all_columns
    True
    >>> product_facts("auto").holds_all_columns
    False
    """
    return get_product(name) if name in PRODUCTS else Product


# Groups with their coefficients: the bridge from sampled rows to an exchange.

KEPT = 16  # coefficients remembered; a constant rate needs two or three


class Planner:
    """A maker of groups, which caches coefficients by rates and batch sizes."""

    def __init__(
        self,
        update: LinearUpdate,
        l2: float,
        rates: Callable[[int, int], Array],
        backend: Backend,
        models: Models | None = None,
    ) -> None:
        self.update = update
        self.l2 = l2
        # (first step, count) -> rates of those steps; (s, settings) of several models
        self.rates = rates
        self.backend = backend
        self.models = models
        self._known: OrderedDict[Any, ExchangeCoefficients] = OrderedDict()

    def group(
        self,
        index: int,
        epoch: int,
        order: Array,
        first: int,
        sizes: tuple[int, ...],
        first_step: int,
    ) -> Group:
        """Return the group of the batches that begin at position `first` of `order`.

        `index` is the number of the exchange in `epoch`, `order` the row order of the
        epoch, `sizes` are the rows of each batch, and `first_step` is the number of the
        group's first step in the run. All numbers count from 0.
        """
        rates = self.rates(first_step, len(sizes))
        coefficients = self._coefficients(rates, sizes)
        rows = order[first : first + sum(sizes)].astype(np.int64, copy=False)
        return Group(index, epoch, rows, coefficients, order, first)

    def _coefficients(
        self, rates: Array, sizes: tuple[int, ...]
    ) -> ExchangeCoefficients:
        key = (rates.tobytes(), sizes)
        coefficients = self._known.get(key)
        if coefficients is None:
            coefficients = self._known[key] = self._made(rates, sizes)
            if len(self._known) > KEPT:
                self._known.popitem(last=False)
        return coefficients

    def _made(self, rates: Array, sizes: tuple[int, ...]) -> ExchangeCoefficients:
        if self.models is None:
            return ExchangeCoefficients(
                self.update, self.l2, self.backend, rates.tolist(), sizes
            )
        return ManyCoefficients(self.update, self.models, self.backend, rates, sizes)
