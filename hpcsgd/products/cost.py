"""The cost model of a step, and the choice of a product by it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.comm import communicator
from hpcsgd.errors import ConfigError
from hpcsgd.glm.unrolling import MOST_ROWS, uniform_blocks
from hpcsgd.products import PRODUCTS, get_product
from hpcsgd.products.base import (
    ExchangeMessage,
    ExchangeShape,
    GramSize,
    MemoryShape,
    ReplicaSize,
    product_facts,
)
from hpcsgd.settings import Settings, setting

# What a step costs: the model behind `auto`, in seconds, from what a machine can do.
#
# Per step, with m = s·b rows of d_c columns, g = (m² − s b²)/2 words of Gram, and r(x)
# the bytes that each member sends in a ring collective of a message of x bytes:
#
#   direct       α + β r(e_z b) + plain + c_0 / s + c_1; c_2 and no message on one
#                member
#   gram         [α + β r(e_G g + e_z m) + g d_c / F + read + inner + update + c_0] / s
#                + c_3
#   cached       the same in one epoch, without G in all others
#   gather       [α + β r(e_Y m d) + s plain steps on d columns + c_0] / s + c_2
#   gather-once  the same in one epoch, without the message in all others
#
# G and z that are summed in different formats are two messages, each with its α. A sum
# in 16 or 8 bits takes two α, its own bytes, and time for its casts.

COMPUTED = 4  # bytes of a word that sums are computed with, at least
CAST = 1e-9  # seconds of a word that is rounded, added and widened on its way
RATES = ("gram", "read", "again", "plain", "inner")  # of a machine: more is faster


@dataclass(frozen=True)
class Overheads:
    """The seconds that a rank spends around its kernels.

    Attributes
    ----------
    exchange : float
        c_0, seconds around an exchange.
    step : float
        c_1, seconds around a step that sends a message.
    alone : float
        c_2, seconds around a plain step without a message.
    turn : float
        c_3, seconds around a step of the recurrence.
    """

    exchange: float = 25e-6
    step: float = 4e-6
    alone: float = 0.0
    turn: float = 0.0


@dataclass(frozen=True)
class Machine:
    """The speeds of one rank and its network, which `hpcsgd.runs.machine` measures.

    The defaults are those of one core with AVX-512 and of a good network; they apply
    if nothing was measured.
    """

    latency: float = 5e-6  # α, seconds of a sum of one batch
    per_byte: float = 1e-10  # β, seconds a byte on the wire
    gram: float = 4e10  # F, multiply-adds a second
    read: float = 1e10  # bytes a second of rows that come from memory
    again: float = 3e10  # and of rows that were used just before
    plain: float = 7.5e9  # and of rows in plain steps, both passes together
    inner: float = 1e10  # words of Gram a second in the recurrence
    link: float = 5e-9  # seconds a row for its residual
    overheads: Overheads = Overheads()  # c_0 to c_3

    def slowest(self, other: "Machine") -> "Machine":
        """Return a `Machine` with the slower of both values of each speed.

        Ranks wait for each other, so the slowest rank decides.
        """
        others = other.as_dict()
        return machine_from(
            {
                name: (min if name in RATES else max)(speed, others[name])
                for name, speed in self.as_dict().items()
            }
        )

    def as_dict(self) -> dict[str, float]:
        """Return name -> value of all speeds and overheads, for a machine file."""
        speeds = {**vars(self), **vars(self.overheads)}
        del speeds["overheads"]
        return speeds


@dataclass(frozen=True)
class ValueBytes:
    """The bytes of a value of each kind that is read from memory or sent.

    Attributes
    ----------
    matrix : float
        Bytes of a value of the rows as it is stored; a mean over columns if sparse.
    gram_wire : int
        Bytes of a word of G in messages.
    margin_sum : int
        Bytes of a word of z in messages.
    """

    matrix: float
    gram_wire: int
    margin_sum: int


@dataclass(frozen=True)
class CostInputs:
    """The sizes and formats of a run on which the time of a step depends.

    Attributes
    ----------
    replica : ReplicaSize
        Rows, columns and members of a replica.
    value_bytes : ValueBytes
        Bytes of the values that are read and sent.
    batch : int
        Rows of a batch.
    epochs : int
        Epochs of the run.
    comes_again : bool
        Whether the same groups come in every epoch.
    apart : bool
        Whether G and z travel in two messages.
    scores : int
        K, columns of weights.
    states : int
        Arrays of the update: 1, 2 with momentum, or 3 with svrg.
    """

    replica: ReplicaSize
    value_bytes: ValueBytes
    batch: int
    epochs: int
    comes_again: bool
    apart: bool = False
    scores: int = 1
    states: int = 1


def seconds(product: str, steps: int, job: CostInputs, machine: Machine) -> float:
    """Return the predicted seconds of one step of `product`.

    `steps` is s; the result is the mean over the exchanges of the run.
    """
    if product not in _PRODUCTS:
        raise ConfigError(
            f"[products] kind = {product!r} has no formula of its time, which steps ="
            " 'auto' and --device cuda need; use --steps 8 and --device cpu"
        )
    return _PRODUCTS[product](_Exchange(steps, job, machine)) / steps


def kept_bytes(product: str, steps: int, job: CostInputs) -> int:
    """Return the bytes that a member stores in the first epoch for all later ones.

    It is 0 for a product that keeps no batches.
    """
    shape = MemoryShape(
        replica=job.replica,
        gram=GramSize(
            all_words=job.replica.rows * job.batch * (steps - 1) // 2,
            itemsize=max(job.value_bytes.gram_wire, COMPUTED),
        ),
        matrix=job.value_bytes.matrix,
    )
    return int(dict(get_product(product).holds(shape)).get("kept", 0))


@dataclass(frozen=True)
class _Exchange:
    """The predicted seconds of the parts of one exchange of s steps."""

    steps: int
    job: CostInputs
    machine: Machine

    @property
    def rows(self) -> int:
        return self.steps * self.job.batch

    @property
    def gram_words(self) -> int:
        return uniform_blocks(self.job.batch, self.steps).gram_words

    @property
    def first_share(self) -> float:
        """Return the share of exchanges without rows or products stored earlier.

        These are the exchanges of the first epoch, or all if no rows come again.
        """
        return 1.0 / self.job.epochs if self.job.comes_again else 1.0

    def messages(self, product: str, is_kept: bool = False) -> float:
        """Return the seconds of all messages of one exchange of `product`.

        `is_kept`: what the product keeps of these batches was stored earlier.
        """
        job = self.job
        shape = ExchangeShape(
            sizes=(job.batch,) * self.steps,
            scores=job.scores * job.states,
            local_columns=job.replica.columns,  # a gather has those of all members
            one_message=False,  # each of two formats has its own time
            is_kept=is_kept,
        )
        return sum(map(self._message, get_product(product).messages(shape)))

    def _message(self, message: ExchangeMessage) -> float:
        """Return the seconds of one message.

        A Gram matrix that is sent together with the margins has no latency of its own.
        """
        members = self.job.replica.members
        machine = self.machine
        size = getattr(self.job.value_bytes, message.field)
        if message.is_gathered:
            wire_bytes = communicator.gather_bytes(int(message.words * size), members)
            return machine.latency + machine.per_byte * wire_bytes
        is_narrow = size < COMPUTED
        wire_bytes = communicator.sum_bytes(message.words * size, members)
        calls = 2 if is_narrow else 1
        if message.field == "gram_wire" and not self.job.apart:
            calls = 0
        casts = CAST * message.words if is_narrow else 0.0
        return calls * machine.latency + machine.per_byte * wire_bytes + casts

    def passes(self, columns: int, rate: float) -> float:
        """Return the seconds of one pass over the sampled rows, with `columns` columns.

        It is one pass over all rows of the exchange, which reads `rate` bytes a second,
        unless arithmetic takes longer.
        """
        job = self.job
        work = self.rows * columns * job.value_bytes.matrix * job.states
        # More columns of weights: the same rows, more arithmetic.
        return max(work / rate, work * job.scores / self.machine.again)

    def twice(self, columns: int) -> float:
        """Return the seconds of scores, residuals and update of all steps together.

        They take two passes over the rows: from memory, then from the cache.
        """
        m = self.machine
        return self.passes(columns, m.read) + self.passes(columns, m.again) + self.links

    def plain(self, columns: int) -> float:
        """Return the seconds of scores, residuals and update, one step after the other.

        During each step, the next rows are fetched from memory.
        """
        job = self.job
        work = self.rows * columns * job.value_bytes.matrix * job.states
        least = 2 * work * job.scores / self.machine.again
        return max(work / self.machine.plain, least) + self.links

    @property
    def links(self) -> float:
        """Return the seconds of the link function, for the residuals of all rows."""
        return self.rows * self.job.scores * self.machine.link

    def inner(self, rate: float) -> float:
        """Return the seconds of the recurrence over the s steps.

        It reads `rate` bytes of the Gram matrix a second, unless arithmetic takes
        longer.
        """
        words = self.gram_words
        work = words * self.job.scores / self.machine.inner
        return max(work, words * max(self.job.value_bytes.gram_wire, COMPUTED) / rate)


def _direct(x: _Exchange) -> float:
    overheads = x.machine.overheads
    steps = x.plain(x.job.replica.local_columns) + overheads.exchange
    if x.job.replica.members == 1:
        return steps + x.steps * overheads.alone
    return steps + x.messages("direct") + x.steps * overheads.step


def _recurrence(x: _Exchange, rate: float) -> float:
    """Return the seconds of both passes over the rows, the recurrence and overheads.

    Messages and the computation of the Gram matrix are not included. The recurrence
    reads `rate` bytes of the Gram matrix a second.
    """
    overheads = x.machine.overheads
    around = overheads.exchange + x.steps * overheads.turn
    return x.twice(x.job.replica.local_columns) + x.inner(rate) + around


def _gram(x: _Exchange) -> float:
    flops = x.gram_words * x.job.replica.local_columns
    sent = x.messages("gram")
    return sent + _recurrence(x, x.machine.again) + flops / x.machine.gram


def _cached(x: _Exchange) -> float:
    first = x.first_share
    sent = x.messages("cached", is_kept=True)
    return first * _gram(x) + (1 - first) * (sent + _recurrence(x, x.machine.read))


def _gather(x: _Exchange) -> float:
    size = x.rows * x.job.replica.columns * x.job.value_bytes.matrix
    moved = 2 * size / x.machine.read  # picked, and put side by side
    return x.messages("gather") + moved + _once(x)


def _once(x: _Exchange) -> float:
    """Return the seconds of s plain steps on rows that are already gathered."""
    overheads = x.machine.overheads
    around = overheads.exchange + x.steps * overheads.alone
    return x.plain(x.job.replica.columns) + around


def _gather_once(x: _Exchange) -> float:
    first = x.first_share
    return first * _gather(x) + (1 - first) * _once(x)


_PRODUCTS: dict[str, Callable[[_Exchange], float]] = {
    "direct": _direct,
    "gram": _gram,
    "cached": _cached,
    "gather": _gather,
    "gather-once": _gather_once,
}


def machine_from(table: dict[str, Any]) -> Machine:
    """Return the `Machine` from a table as `Machine.as_dict` returns it.

    `alone` and `turn` are 0 if the table lacks them.
    """
    constants = {"alone": 0.0, "turn": 0.0, **table}  # older files have neither
    speeds = {name: float(constants[name]) for name in NAMES}
    overheads = {f.name: speeds.pop(f.name) for f in fields(Overheads)}
    return Machine(**speeds, overheads=Overheads(**overheads))


# Which product, and how many steps: the fewest seconds that fit in memory.

OF_SEVERAL = ("direct", "gram", "gather", "gather-once", "cached")  # several members
CACHE_BUDGET = 512 * 2**20  # bytes that each member may keep from the first epoch on
GRAM_KERNELS = ("auto", "own", "cublas", "wgmma")
WORTH_HIDING = 20e-6  # seconds of latency above which a second message pays
# Numbers of steps that are tried: neighbours differ by a few per cent in time.
STEPS = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128, 192, 256)


@dataclass(frozen=True)
class ProductsConfig(Settings, section="products"):
    """Product, i.e. what the members of a replica compute and send for s steps."""

    kind: str = setting(
        "auto",
        "product, i.e. what the members of a replica compute and send for s steps;"
        " direct is plain SGD, which synchronises in every step, and auto takes the one"
        " with the least predicted time",
        choices=lambda: (*PRODUCTS, "auto"),
    )
    look_ahead: str = setting(
        "auto",
        "send the Gram matrix of the next exchange while this one is computed; auto"
        " does so if kind = auto chooses gram and run.network has a latency of 20 µs or"
        " more",
        choices=("on", "off", "auto"),
    )
    machine: str = setting(
        "",
        "TOML file with the measured speed of this machine, which automatic choices"
        " use; a missing file is measured and written",
    )
    gram_kernel: str = setting(
        "auto",
        "kernel that computes the Gram matrix on a GPU; auto takes the faster of own"
        " and cublas",
        choices=GRAM_KERNELS,
    )


@dataclass(frozen=True)
class Choice:
    """A product, a number of steps, and the predicted seconds of one step."""

    product: str
    steps: int
    seconds: float


def choose(kind: str, steps: int, job: CostInputs, machine: Machine) -> Choice:
    """Return the choice with the fewest predicted seconds a step.

    The kind "auto" means any product, and 0 steps any number of steps.
    """
    return min(candidates(kind, steps, job, machine), key=lambda c: c.seconds)


def candidates(
    kind: str,
    steps: int,
    job: CostInputs,
    machine: Machine,
    of_one: tuple[str, ...] = ("direct",),
    budget: int = 0,
) -> Iterator[Choice]:
    """Yield every product and number of steps that may be used, with its seconds.

    The kind "auto" means any product, and 0 steps any number of `STEPS`. With "auto", a
    replica of one member may use the products `of_one`, and a member may keep `budget`
    bytes from the first epoch for later ones; 0 means `CACHE_BUDGET`.
    """
    budget = budget or CACHE_BUDGET
    for product in _products(kind, job, of_one):
        for s in [steps] if steps else _steps(product, job):
            if kind != "auto" or kept_bytes(product, s, job) <= budget:
                yield Choice(product, s, seconds(product, s, job, machine))


def _products(kind: str, job: CostInputs, of_one: tuple[str, ...]) -> list[str]:
    if kind != "auto":
        return [kind]
    several = of_one if job.replica.members == 1 else OF_SEVERAL
    return [k for k in several if job.comes_again or not product_facts(k).keeps_batches]


def _steps(product: str, job: CostInputs) -> list[int]:
    """Return the numbers of steps to try, of which 1 is always one.

    An exchange has at most the rows of an epoch, and at most `MOST_ROWS`.
    """
    most = max(min(job.replica.rows, MOST_ROWS) // job.batch, 1)
    return [s for s in STEPS if s <= most]


def uses_look_ahead(config: ProductsConfig, kind: str, latency: float) -> bool:
    """Return whether the product `kind` sends the next Gram matrix ahead.

    Only `gram` can. It does if `config` requests look-ahead, or if both product and
    look-ahead are automatic in `config` and `latency`, the seconds of a message, is at
    least `WORTH_HIDING`.
    """
    if config.look_ahead == "on" and kind != "gram":
        raise ConfigError(
            f"[products] look_ahead = 'on' needs kind = 'gram', not {kind!r}, because"
            " only 'gram' has a Gram matrix to send early; change one of the two"
            " settings"
        )
    free = config.kind == "auto" and config.look_ahead == "auto"
    return kind == "gram" and (
        config.look_ahead == "on" or (free and latency >= WORTH_HIDING)
    )


def look_ahead_reason(config: ProductsConfig, kind: str, is_ahead: bool) -> str:
    """Return why an automatic look-ahead is on (`is_ahead`) or off, as a phrase."""
    if is_ahead:
        return f"messages take {1e6 * WORTH_HIDING:g} µs or more, which it hides"
    if kind != "gram":
        return f"{kind} has no Gram to send ahead"
    if config.kind != "auto":
        return "a product that is named sends one message an exchange"
    return f"no network of {1e6 * WORTH_HIDING:g} µs or more is emulated"


# Which part of the machine the time of a step is spent on, by the cost model.

Array = NDArray[np.float64]
NAMES = tuple(Machine().as_dict())
STEP = 1e-4  # relative change of a constant, for difference quotients
SMALL = 1e-6  # seconds: the assumed size of a constant that is 0
# The names of the parts in reports, and the constants of each part.
TERMS = {
    "latency": ("latency",),
    "bandwidth": ("per_byte",),
    "gram": ("gram",),
    "memory": ("read", "again", "plain"),
    "recurrence": ("inner", "turn"),
    "overhead": ("link", "exchange", "step", "alone"),
}


def terms(
    product: str, steps: int, job: CostInputs, machine: Machine
) -> dict[str, float]:
    """Return the predicted seconds of one step by part, such as "latency".

    Casts of sums in 16 or 8 bits count as bandwidth.
    """

    def step(costs: Array) -> float:
        return seconds(product, steps, job, machine_of(costs))

    costs = costs_of(machine)
    paid = dict(zip(NAMES, parts_of(step, costs) * costs, strict=True))
    parts = {term: float(sum(paid[n] for n in names)) for term, names in TERMS.items()}
    rest = seconds(product, steps, job, machine) - sum(parts.values())
    parts["bandwidth"] += max(rest, 0.0)
    return parts


def parts_of(time: Callable[[Array], float], costs: Array) -> Array:
    """Return the derivatives of the function `time` by each constant, at `costs`.

    Apart from casts, the model is homogeneous in its constants: derivatives times
    constants add up to the time, even where the time is the larger of two terms.
    """
    here = time(costs)
    derivative = np.empty(len(costs))
    for k in range(len(costs)):
        step = STEP * costs[k] if costs[k] > 0 else STEP * SMALL
        moved = costs.copy()
        moved[k] += step
        derivative[k] = (time(moved) - here) / step
    return derivative


def costs_of(machine: Machine) -> Array:
    """Return the constants of a machine in the order of `NAMES`, as costs in seconds.

    Rates (units a second) are inverted.
    """
    speeds = machine.as_dict().items()
    return np.array([1.0 / v if name in RATES else v for name, v in speeds])


def machine_of(costs: Array) -> Machine:
    """Return the `Machine` with these costs: the inverse of `costs_of`."""
    table = dict(zip(NAMES, costs.tolist(), strict=True))
    for name in RATES:
        table[name] = 1.0 / max(table[name], 1e-30)
    return machine_from(table)
