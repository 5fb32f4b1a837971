"""ByteScheduler: tiles of gradients in order of priority (Peng et al., 2019).

A rank has d columns and K classes, and t = K·i + f + 1 words of tail: i = 1 with an
intercept, f = 1 where residuals are scaled, else 0.

Needs    s = 1, τ = 1, update sgd, momentum, nesterov, nesterov-classic, adagrad or
         adam, product direct, gather or gather-once, one model, a smooth penalty, and
         weights of at least 32 bits.
Refuses  combinations alone, as scaled residuals with a codec, or `hierarchical` with
         `--emulate-members`.
Keeps    on every replica a gradient and the arrays of the rule (adam 2, adagrad 1, a
         momentum in 8 bits 1, others 0), d·K words each, and what the codec keeps;
         with `tune_schedule` also up to 15 measured costs.
Sends    d·K + t words in an exchange, each bucket in ⌈bytes / `partition`⌉ all-reduces;
         with a codec or `hierarchical` whole buckets, as `Gradient` sends them, which
         have at most `partition` MiB. With an intercept and R > 2 member 0 broadcasts
         the tail to the members. Time decides the number of messages where
         `tune_schedule` is on.
"""

import heapq
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from math import erfc, exp, inf, log, pi, sqrt
from time import perf_counter
from typing import Any, ClassVar, Protocol

import numpy as np

from hpcsgd.agreements.base import (
    PURPOSE,
    AgreementSettings,
    GradientSettings,
    RunShape,
)
from hpcsgd.agreements.buckets import (
    Buffer,
    PlainSender,
    Sender,
    Tile,
    pieces_of,
)
from hpcsgd.agreements.codecs import is_coded
from hpcsgd.agreements.gradient import Gradient, sent_for_gradient
from hpcsgd.backends.base import Rows
from hpcsgd.backends.exchange import probed
from hpcsgd.backends.task import State, Task
from hpcsgd.comm.communicator import Communicator, Pending
from hpcsgd.comm.grid import duplicate
from hpcsgd.comm.ledger import Sent
from hpcsgd.formats import Array
from hpcsgd.settings import setting

# The order in which pieces of the gradient are sent: priorities, and credit in bytes.
#
# A piece that is ready waits in a queue until there is credit: it starts if credit is
# above zero, however large it is, so that less than credit + one piece is under way.
# No piece that has started is interrupted. Collectives have to begin in one order on
# all ranks. So the order may depend on what this program has sent and waited for so
# far, and never on a clock. Where pieces become ready in the order of their priorities,
# they start in that order anyhow, and credit returns as soon as a poll finds a transfer
# complete; otherwise it returns where all ranks wait for the same piece.


@dataclass(frozen=True, order=True)
class TilePiece:
    """A part of a tile that travels as one message.

    The piece with the lowest number as its priority is sent first.
    """

    priority: int  # of its tile in the next forward pass, 0 = needed first
    part: int  # of the tile, in the order of its words
    words: Array = field(compare=False)

    @property
    def size(self) -> int:
        """Return the bytes of the piece."""
        return int(self.words.nbytes)


class Wire(Protocol):
    """The protocol of transfers of pieces, which end in the order of their starts."""

    can_tell: bool  # False: only a wait finds whether a piece has arrived

    def start(self, piece: TilePiece) -> None:
        """Start to send a piece."""

    def finish(self, piece: TilePiece) -> None:
        """Wait for the oldest transfer, which is that of `piece`."""

    def has_arrived(self) -> bool:
        """Return whether a wait for the oldest transfer would not block."""


class Queue:
    """The pieces that are ready to be sent, and those under way, within a credit."""

    # Called with each event, by tests and to draw time lines.
    watchers: ClassVar[list[Callable[[str, TilePiece], None]]] = []

    def __init__(self, wire: Wire, credit: float, polls: bool) -> None:
        self.wire = wire
        self.polls = polls and wire.can_tell
        self.messages = 0
        self.most = 0  # bytes under way at a time
        self._waiting: list[TilePiece] = []
        self._travelling: deque[TilePiece] = deque()
        self._open: Counter[int] = Counter()  # pieces of a tile that have not arrived
        self.allow(credit)

    def allow(self, credit: float) -> None:
        """Set the credit in bytes; no piece may be under way."""
        self.limit = self.credit = credit

    @property
    def in_flight(self) -> int:
        """Return the bytes under way."""
        return sum(piece.size for piece in self._travelling)

    def push(self, piece: TilePiece) -> None:
        """Add a piece that is ready to be sent; `pump` starts it."""
        self._tell("ready", piece)
        self._open[piece.priority] += 1
        heapq.heappush(self._waiting, piece)

    def pump(self) -> None:
        """If the queue polls, finish complete transfers; start pieces within credit."""
        while self.polls and self._travelling and self.wire.has_arrived():
            self._finish()
        while self._waiting and self.credit > 0:
            self._start(heapq.heappop(self._waiting))

    def take(self, priority: int) -> None:
        """Wait for all pieces of the tile with this priority.

        Other pieces start meanwhile as credit returns.
        """
        self.pump()
        while self._open[priority]:
            self._finish()
            self.pump()

    def _start(self, piece: TilePiece) -> None:
        self._tell("start", piece)
        self.credit -= piece.size
        self._travelling.append(piece)
        self.messages += 1
        self.most = max(self.most, self.in_flight)
        self.wire.start(piece)

    def _finish(self) -> None:
        piece = self._travelling.popleft()
        self.wire.finish(piece)
        self.credit = min(self.credit + piece.size, self.limit)
        self._open[piece.priority] -= 1
        self._tell("finish", piece)

    def _tell(self, event: str, piece: TilePiece) -> None:
        for watch in self.watchers:
            watch(event, piece)


# Pieces of a gradient on the network: uncompressed, or whole tiles by a codec.

ORDERS = ("forward", "backward", "shuffled")


class OrderedTiles(Buffer):
    """A buffer [tail | gradient] with tiles in the order in which scores need them.

    The first tile, which is needed first, is sent with the tail, which all steps need.
    A device has no tail: the host sums the tail.
    """

    def __init__(self, *sizes: Any, **more: Any) -> None:
        super().__init__(*sizes, **more)
        self.tiles.reverse()

    def _parts(self, words: int) -> tuple[Array, Array]:
        ahead = len(self.flat) - words
        return self.flat[ahead:], self.flat[:ahead]

    def with_tail(self, tile: Tile) -> Array:
        """Return the words of a tile to be sent, for the first tile with the tail."""
        if tile is not self.tiles[0]:
            return tile.flat
        return self.flat[: len(self.tail) + tile.flat.size]

    def in_order(self, order: str) -> list[int]:
        """Return the numbers of all tiles in the order in which they are computed.

        `order` is one of `ORDERS`.
        """
        numbers = list(range(len(self.tiles)))
        if order == "backward":
            return numbers[::-1]
        if order == "shuffled":  # alike on all ranks
            return [int(k) for k in np.random.default_rng(0).permutation(numbers)]
        return numbers


def cut(priority: int, words: Array, partition: float) -> Iterator[TilePiece]:
    """Yield ⌈bytes / partition⌉ pieces of `words`, of nearly equal length.

    `partition` is in MiB.
    """
    for part, piece in enumerate(pieces_of(words.size, words.itemsize, partition)):
        yield TilePiece(priority, part, words[piece])


class AsTheyAre:
    """A wire that sums uncompressed pieces of any length over replicas, in place."""

    can_tell = True

    def __init__(self, sender: PlainSender) -> None:
        self.sender = sender
        self._travelling: deque[Pending] = deque()

    def pieces(
        self, buffer: Buffer, tile: Tile, partition: float
    ) -> Sequence[TilePiece]:
        """Return the pieces of `tile`, of at most `partition` MiB each."""
        number = buffer.tiles.index(tile)
        return tuple(cut(number, buffer.with_tail(tile), partition))

    def start(self, piece: TilePiece) -> None:
        """Start the sum of a piece over replicas."""
        sender = self.sender
        with sender.overlap.posting():
            pending = sender.replicas.start_sum(piece.words, PURPOSE)
            self._travelling.append(pending)

    def finish(self, piece: TilePiece) -> None:
        """Wait until `piece` is summed; it has to be the oldest that is not."""
        with self.sender.overlap.waiting():
            self._travelling.popleft().wait()

    def has_arrived(self) -> bool:
        """Return whether the sum of the oldest piece is complete."""
        return self._travelling[0].has_arrived()

    def factor(self, number: int) -> float:
        """Return the factor that makes the summed tile `number` a mean over rows.

        It is 1 / rows of all replicas in this exchange, the same for every tile.
        """
        return 1.0 / float(self.sender.tail()[-1])


class EncodedTiles:
    """A wire that sends whole tiles, encoded by a codec or between leaders of groups.

    Tiles are not cut, because codecs keep arrays of whole tiles. The tiles themselves
    are as small as the setting `partition`.
    """

    can_tell = False

    def __init__(self, sender: Sender, buffer: Buffer) -> None:
        self.sender = sender
        self.buffer = buffer
        self._factors: dict[int, float] = {}

    def pieces(
        self, buffer: Buffer, tile: Tile, partition: float
    ) -> Sequence[TilePiece]:
        """Return a tuple of one piece, the whole tile, whatever `partition` is now."""
        return (TilePiece(buffer.tiles.index(tile), 0, tile.flat),)

    def start(self, piece: TilePiece) -> None:
        """Start to send the tile of a piece, encoded if there is a codec."""
        self.sender.send(self.buffer, self.buffer.tiles[piece.priority])

    def finish(self, piece: TilePiece) -> None:
        """Wait for the sum or mean of the tile of a piece, and store its factor."""
        tile = self.buffer.tiles[piece.priority]
        self._factors[piece.priority] = self.sender.receive(self.buffer, tile)

    def has_arrived(self) -> bool:
        """Return False: only a wait finds whether a tile has arrived."""
        return False

    def factor(self, number: int) -> float:
        """Return the factor that makes the received tile `number` the mean gradient."""
        return self._factors[number]


# Partition and credit by measuring: a grid on a log scale, then sections of it.
#
# Five partitions at the middle credit and three sections of them, then four more
# credits at the best of these and three sections: 15 points. A section is at the vertex
# of a parabola, or else golden, as Brent's. Rank 0 measures the median seconds of some
# exchanges, and broadcasts it after the same exchange to all ranks, whose searches are
# the same.

POINTS = 5
SECTIONS = 3
MOST = 2 * POINTS - 1 + 2 * SECTIONS
ROUNDS = 6  # exchanges a point; the first has messages of the point before
SMALLEST = 2.0**-4  # MiB; messages below it are all latency
GOLDEN = (3 - 5**0.5) / 2
NEAR = 1e-2  # of the bracket: a vertex so near to the middle is not used
COSTS = "schedule_costs"  # in `State.rank_arrays`, for runs that resume
Point = tuple[float, float]  # partition, credit, in MiB


def log_grid(least: float, most: float) -> list[float]:
    """Return POINTS values from `least` to `most`, in equal ratios."""
    return [float(x) for x in np.geomspace(least, most, POINTS)]


class Search:
    """A search for the partition and credit of least cost.

    It requests the cost of one `point` after the other; `best` is the result.
    """

    def __init__(self, partitions: Sequence[float], credits: Sequence[float]) -> None:
        self.costs: dict[Point, float] = {}
        self._steps = self._search(partitions, credits)
        self.point: Point | None = next(self._steps)  # to be measured; None: done

    @property
    def best(self) -> Point:
        """Return the point of least cost among those that were measured."""
        return min(self.costs, key=lambda point: self.costs[point])

    def tell(self, cost: float) -> None:
        """Store the cost of the present point, and go to the next one."""
        assert self.point is not None
        self.costs[self.point] = cost
        self.point = next(self._steps, None)

    def _search(
        self, partitions: Sequence[float], credits: Sequence[float]
    ) -> Generator[Point, None, None]:
        middle = credits[len(credits) // 2]
        for partition in partitions:
            yield from self._new((partition, middle))
        yield from self._sections(0, partitions)
        chosen = self.best[0]
        for credit in credits:
            yield from self._new((chosen, credit))
        yield from self._sections(1, credits)

    def _new(self, point: Point) -> Generator[Point, None, None]:
        if point not in self.costs:
            yield point

    def _sections(
        self, axis: int, grid: Sequence[float]
    ) -> Generator[Point, None, None]:
        """Yield points between the neighbours of the best value on one axis.

        The value on the other axis stays the best one.
        """
        centre = self.best
        place = grid.index(centre[axis])
        low = grid[max(place - 1, 0)]
        high = grid[min(place + 1, len(grid) - 1)]
        if low == high:
            return

        def at(value: float) -> Point:
            return (value, centre[1]) if axis == 0 else (centre[0], value)

        for _ in range(SECTIONS):
            before = self.best[axis]
            points = [(log(x), self.costs[at(x)]) for x in (low, before, high)]
            value = exp(between(*points))
            yield from self._new(at(value))
            worse = before if self.best[axis] == value else value
            low, high = (worse, high) if worse < self.best[axis] else (low, worse)


def between(low: Point, best: Point, high: Point) -> float:
    """Return the next place to measure, from (place, cost) of three points.

    The cost in the middle is the least. The result is the vertex of the parabola
    through the points, if it is well inside and not near the middle; else the golden
    section of the longer side.
    """
    (a, fa), (b, fb), (c, fc) = low, best, high
    left = (b - a) * (fb - fc)
    right = (b - c) * (fb - fa)
    if left != right:
        vertex = b - ((b - a) * left - (b - c) * right) / (2 * (left - right))
        if a < vertex < c and abs(vertex - b) > NEAR * (c - a):
            return vertex
    return b + GOLDEN * (c - b) if c - b > b - a else b - GOLDEN * (b - a)


# The same by Bayesian optimisation, as ByteScheduler searches.
#
# The logarithm of the cost is a Gaussian process over the logarithms of both values,
# with a Matérn 5/2 kernel (Snoek et al., 2012). After five points, the next one has the
# largest expected improvement of the least cost f among the points of a lattice,
#
#     EI = s (z Φ(z) + φ(z)),    z = (f − m) / s    with mean m and deviation s there,
#
# until `MOST` are measured, or none promises a part `LEAST_GAIN` of the cost.

PLACES = 33  # of each value, in equal ratios
FIRST = ((16, 16), (4, 28), (28, 4), (28, 28), (4, 4))  # places that are measured first
LENGTHS = (0.2, 0.4, 0.8, 1.6)  # of the kernel, in ranges of a value
NOISES = (1e-4, 1e-2)  # variances of a measurement, in those of all costs
LEAST_GAIN = 3e-4


class BayesianSearch:
    """A search like `Search`, whose points have the largest expected improvement."""

    def __init__(self, partitions: Sequence[float], credits: Sequence[float]) -> None:
        axes = [
            np.geomspace(axis[0], axis[-1], PLACES) for axis in (partitions, credits)
        ]
        self.costs: dict[Point, float] = {}
        self._values = [(float(p), float(c)) for p in axes[0] for c in axes[1]]
        unit = np.linspace(0.0, 1.0, PLACES)
        # An axis of a single value has no length.
        x_axis, y_axis = (unit * (axis[-1] > axis[0]) for axis in axes)
        self._lattice = np.array([(x, y) for x in x_axis for y in y_axis])
        self._measured: list[int] = []
        self.point: Point | None = self._first(0)

    @property
    def best(self) -> Point:
        """Return the point of least cost among those that were measured."""
        return min(self.costs, key=lambda point: self.costs[point])

    def tell(self, cost: float) -> None:
        """Store the cost of the present point, and go to the next one."""
        assert self.point is not None
        self.costs[self.point] = cost
        self._measured.append(self._values.index(self.point))
        done = len(self._measured)
        self.point = self._first(done) if done < len(FIRST) else self._promising()

    def _first(self, number: int) -> Point:
        x, y = FIRST[number]
        return self._values[x * PLACES + y]

    def _promising(self) -> Point | None:
        """Return the point of largest expected improvement; None ends the search."""
        costs = np.log([self.costs[self._values[k]] for k in self._measured])
        spread = float(costs.std())
        if len(self._measured) >= MOST or spread == 0.0:
            return None
        heights = (costs - costs.mean()) / spread
        mean, deviation = predicted(self._lattice, self._measured, heights)
        z = (heights.min() - mean) / deviation
        density = np.exp(-z * z / 2) / sqrt(2 * pi)
        below = np.array([erfc(-x / sqrt(2)) / 2 for x in z])
        gains = spread * deviation * (z * below + density)
        gains[self._measured] = 0.0
        place = int(gains.argmax())
        return self._values[place] if gains[place] >= LEAST_GAIN else None


def predicted(
    lattice: Array, measured: Sequence[int], heights: Array
) -> tuple[Array, Array]:
    """Return mean and deviation of a Gaussian process at all points of `lattice`.

    `heights` are its values at the points `measured`, with mean 0 and variance 1. Of
    `LENGTHS` and `NOISES`, those of the largest marginal likelihood are used.
    """
    points = lattice[list(measured)]
    fits = []
    for length in LENGTHS:
        for noise in NOISES:
            kernel = matern(points, points, length) + noise * np.eye(len(points))
            factor = np.linalg.cholesky(kernel)
            solved = np.linalg.solve(factor, heights)
            evidence = -solved @ solved / 2 - np.log(np.diag(factor)).sum()
            fits.append((float(evidence), length, factor, solved))
    _, length, factor, solved = max(fits, key=lambda fit: fit[0])
    across = np.linalg.solve(factor, matern(points, lattice, length))
    variance = 1.0 - np.square(across).sum(axis=0)
    return solved @ across, np.sqrt(np.maximum(variance, 1e-12))


def matern(first: Array, second: Array, length: float) -> Array:
    """Return the Matérn 5/2 kernel of all pairs of points, by their distances."""
    squares = np.square(first[:, None] - second[None]).sum(axis=2)
    r = np.sqrt(5.0 * squares) / length
    kernel: Array = (1.0 + r + r * r / 3.0) * np.exp(-r)
    return kernel


class PartitionTuner:
    """A tuner that times exchanges of a run with different partitions and credits.

    All ranks switch to the same values after the same exchange.
    """

    def __init__(self, agreement: "Scheduled", state: State) -> None:
        self.agreement = agreement
        self.replicas = agreement.grid.replicas
        buffer = agreement.buffer
        largest = max(buffer.with_tail(tile).nbytes for tile in buffer.tiles) / 2**20
        whole = buffer.flat.nbytes / 2**20
        least = min(SMALLEST, largest)
        settings = agreement.inputs.settings
        partitions = log_grid(least, largest)
        if settings.sends_whole_tiles:  # whose size is fixed
            partitions = [agreement.partition]
        self.search: Search | BayesianSearch
        if settings.search == "bayesian":
            self.search = BayesianSearch(partitions, log_grid(least, whole))
        else:
            self.search = Search(partitions, log_grid(least, whole))
        self.costs = state.rank_arrays.setdefault(COSTS, np.full(MOST, np.nan))
        self._told = -1  # costs so far; -1: no point is in use yet
        self._since = 0.0
        self._seconds: list[float] = []

    def after_exchange(self, state: State) -> None:
        """Time the exchange that ended; go to the next point if this one is measured.

        Collective.
        """
        if self._told < 0:
            self._go_on(state)
        elif self.search.point is not None:
            self._seconds.append(perf_counter() - self._since)
            if len(self._seconds) == ROUNDS:
                self._decide(state)
        self._since = perf_counter()

    def facts(self) -> dict[str, Any]:
        """Return whether tuning is done, and the number of measured points."""
        return {"tuned": self.search.point is None, "tuned_points": max(self._told, 0)}

    def _go_on(self, state: State) -> None:
        """Repeat the search with the costs of a checkpoint, and use its next point."""
        self._told = 0
        for cost in self.costs[~np.isnan(self.costs)]:
            self._told += 1
            self.search.tell(float(cost))
        self._use(state)

    def _decide(self, state: State) -> None:
        from statistics import median  # with decimals and fractions: not for all runs

        cost = np.array([median(self._seconds[1:])])
        self.replicas.broadcast(cost, 0, "control")
        self.costs[self._told] = cost[0]
        self._told += 1
        self.search.tell(float(cost[0]))
        self._use(state)

    def _use(self, state: State) -> None:
        """Use the next point to measure, or the best one if all are measured.

        Collective. Processors may round a search in different ways; all ranks use the
        point of rank 0.
        """
        self._seconds = []
        search = self.search
        goes_on = search.point is not None
        words = np.array([*(search.point or search.best), float(goes_on)])
        self.replicas.broadcast(words, 0, "control")
        partition, credit = (float(value) for value in words[:2])
        search.point = (partition, credit) if words[2] else None
        self.agreement.use(state, partition, credit)


# Transfers with priorities and credit that cross the step (after ByteScheduler).
#
# The gradient is sent in pieces, first those whose columns the next scores need first.
# No rank waits at the end of an exchange: the next one gathers its rows, receives its
# first columns, steps them, and adds their part of the scores
#
#     z ← z + Y[:, b] w[b]
#
# while other pieces are under way. Every other reader of the weights first waits for
# all pieces (`arrive`). Scores are always added up tile by tile in one order, so that
# no bit depends on the time at which a piece arrives.


@dataclass(frozen=True)
class ScheduledSettings(GradientSettings):
    """The settings of gradients that are sent by priority, behind the next step."""

    partition: float = setting(
        4.0,
        "MiB of one message; smaller messages are overtaken more easily",
        above=0,
        at_most=inf,
        remedy="4 MiB is usual",
    )
    credit: float = setting(
        16.0,
        "MiB that may be in flight; more keep the network busy",
        above=0,
        at_most=inf,
        remedy="16 MiB is usual",
    )
    order: str = setting(
        "forward",
        "order in which tiles are computed: forward, backward or shuffled, the last two"
        " for tests",
        choices=ORDERS,
    )
    tune_schedule: bool = setting(False, "tune partition and credit during the run")
    search: str = setting(
        "grid",
        "search for partition and credit: values on a grid and between them (grid), or"
        " Bayesian optimisation (bayesian)",
        choices=("grid", "bayesian"),
        read_if={"agreement.tune_schedule": (True,)},
    )

    @property
    def sends_whole_tiles(self) -> bool:
        """Return whether tiles are encoded, or summed in two levels, and so not cut."""
        return self.codec != "identity" or self.hierarchical != "off"

    @property
    def tile_size(self) -> float:
        """Return the MiB of a tile: `bucket`, or less where a tile is one message."""
        if self.sends_whole_tiles:
            return min(self.bucket, self.partition)
        return self.bucket


class Scheduled(Gradient):
    """A gradient agreement whose tiles are stepped when the next scores need them."""

    settings: ClassVar[type[AgreementSettings]] = ScheduledSettings
    buffer_kind: ClassVar[type[Buffer]] = OrderedTiles

    buffer: OrderedTiles
    own: Communicator | None = None  # for its pieces

    def prepare(self, state: State) -> None:
        """Allocate the buffer; make the wire, its queue, and the tuner. Collective."""
        super().prepare(state)
        settings = self.inputs.settings
        self.wire = self._open()
        self.order = self.buffer.in_order(settings.order)
        self.buffer.send_order = [self.buffer.tiles[number] for number in self.order]
        # No polls where two fits take turns: a turn ends only at waits of the program.
        has_turns = self.grid.world.ledger.gives_way is not None
        polls = self.order == sorted(self.order) and not has_turns
        self.partition = settings.partition
        self.queue = Queue(self.wire, settings.credit * 2**20, polls)
        self._travels = [False] * len(self.buffer.tiles)
        self._coming = 0
        self._is_begun = False
        self._is_good = True
        self.tuning = PartitionTuner(self, state) if settings.tune_schedule else None

    def _open(self) -> AsTheyAre | EncodedTiles:
        """Return the wire of the pieces. Collective.

        Uncompressed pieces that are summed in one level get a new communicator. Ranks
        start pieces whenever they have credit, some earlier than others: between
        the pieces nothing else may be sent on their communicator.
        """
        if not self.sender.sums_in_place:
            return EncodedTiles(self.sender, self.buffer)
        self.grid.meet()
        self.own = duplicate(self.grid.replicas.host_group)
        self.sender = PlainSender(self.own)
        return AsTheyAre(self.sender)

    def close(self) -> None:
        """Close the communicator of the pieces, and groups of leaders. Collective."""
        super().close()
        if self.own is not None and self.own.size > 1:
            self.own.close()

    def begin(self, epoch: int, index: int, batches: int) -> None:
        """Note the exchange that comes next, with its number of batches.

        The exchange before it may still be under way.
        """
        self._coming = epoch * self.steps.each + index
        self._is_begun = False
        self._left = batches

    def scores(
        self, task: Task, state: State, rows: Rows, point: Array, out: Array
    ) -> None:
        """Compute out ← Y w, tile by tile; each tile is stepped first.

        `point` is not used, because it is older than these steps.
        """
        tiles = self.buffer.tiles
        workspace = None
        for number, tile in enumerate(tiles):
            self._need(state, number, task)
            tile_weights = probed(task, state.weights[tile.columns])
            if number == 0:
                task.backend.scores(self._columns(rows, tile), tile_weights, out)
                continue
            workspace = np.empty_like(out) if workspace is None else workspace
            task.backend.scores(self._columns(rows, tile), tile_weights, workspace)
            out += workspace
            self.queue.pump()

    def ready(self, task: Task, state: State) -> Iterator[slice]:
        """Yield the columns of each tile after its step.

        After the last tile the buffer is free, and the next exchange starts.
        """
        for number, tile in enumerate(self.buffer.tiles):
            self._need(state, number, task)
            yield tile.columns
        self._begin(self._coming)

    def apply_update(
        self, task: Task, state: State, rows: Rows, residuals: Array, plan: Any
    ) -> None:
        """Add the gradient Yᵀr of a batch; after the last batch, start the messages."""
        if not self._is_begun:
            self._begin(self._coming)
        self._left -= 1
        self._flag_overflow()
        self.buffer.count_in(residuals)
        if self._left:
            self.add_gradient(self.buffer.gradient, rows, residuals)
            return
        self.sender.begin(self.buffer, self._moment)
        tiles = self._computed(task, self.buffer.send_order, rows, residuals)
        for number, tile in zip(self.order, tiles, strict=True):
            if not self.sender.wants_norm:
                self._is_ready(number, tile)
        if self.sender.wants_norm:
            self._all_are_ready()

    def after_exchange(self, state: State, exchanges: int) -> None:
        """Send empty tiles, in the same order, if this replica had no rows. Collective.

        Then pass the time of the exchange to the tuning of the schedule, if it is
        tuned, and compare the replicas if a comparison is due.
        """
        if self._done != exchanges - 1:
            self.arrive(state)
            self._begin(exchanges - 1)
            self.buffer.mark_empty()
            self.sender.begin(self.buffer, self._moment)
            self._all_are_ready()
        if self.tuning is not None:
            self.tuning.after_exchange(state)
        self.check.after_exchange(state, exchanges, self._alike(state))

    def arrive(self, state: State) -> None:
        """Wait for all tiles, and step them. Collective."""
        for number in range(len(self.buffer.tiles)):
            self._need(state, number, None)

    def settle(self, state: State, exchanges: int) -> None:
        """Wait for the last step at the end of a run. Collective."""
        self.arrive(state)

    def consensus(self, state: State, exchanges: int) -> State:
        """Wait for all tiles, step them, and return `state` itself. Collective."""
        self.arrive(state)
        return state

    def use(self, state: State, partition: float, credit: float) -> None:
        """Use this partition and credit, in MiB, from the next exchange on. Collective.

        All ranks pass the same values.
        """
        self.arrive(state)
        self.partition = partition
        self.queue.allow(credit * 2**20)

    def facts(self) -> dict[str, Any]:
        """Return the facts about schedule and messages for the report of a run."""
        tuned = {} if self.tuning is None else self.tuning.facts()
        return {
            **super().facts(),
            "messages": self._messages(),
            "partition": self.partition,
            "credit": self.queue.limit / 2**20,
            "most_in_flight": self.queue.most,
            **tuned,
        }

    @classmethod
    def messages(cls, shape: RunShape, exchanges: int) -> Sent | None:
        """Return what rank 0 sends for the pieces of a gradient.

        The tail is sent with the first tile.

        Return None if the partition is tuned, since time then decides how many pieces
        there are, and where the messages of `Gradient` are not known.
        """
        settings = shape.settings
        if settings.tune_schedule:
            return None
        if is_coded(shape.config) or settings.hierarchical != "off":
            return super().messages(shape, exchanges)
        return sent_for_gradient(shape, partition=settings.partition)

    def _begin(self, number: int) -> None:
        super()._begin(number)
        self._is_begun = True

    def _messages(self) -> int:
        """Return the number of pieces that are sent in an exchange."""
        pieces = (self._pieces(tile) for tile in self.buffer.tiles)
        return sum(len(of_tile) for of_tile in pieces)

    def _pieces(self, tile: Tile) -> Sequence[Any]:
        return self.wire.pieces(self.buffer, tile, self.partition)

    def _all_are_ready(self) -> None:
        if self.sender.wants_norm:
            self.sender.measure(self.buffer)
        for number in self.order:
            self._is_ready(number, self.buffer.tiles[number])

    def _is_ready(self, number: int, tile: Tile) -> None:
        self._travels[number] = True
        for piece in self._pieces(tile):
            self.queue.push(piece)
        self.queue.pump()

    def _need(self, state: State, number: int, task: Task | None) -> None:
        """Wait for tile `number` and step it, unless that is done.

        With shapers all tiles are waited for and stepped. Tile 0 has to be the first
        one, since the tail is sent with it.
        """
        if not self._travels[number]:
            return
        if self.inputs.shapers:
            self._need_all(state)
            return
        if task is not None:
            task.clock.lap("scores")
        self.queue.take(number)
        if number == 0:  # the tail is here
            self._is_good = self._counts(state)
        self._step_tile(state, number, self.wire.factor(number), task)

    def _step_tile(
        self, state: State, number: int, factor: float, task: Task | None
    ) -> None:
        self._travels[number] = False
        if not self._is_good:
            return
        self._take(state, self.buffer.tiles[number], factor, task)
        if number == 0:
            self._step_intercept(state)

    def _need_all(self, state: State) -> None:
        """Wait for all tiles, shape the whole gradient, and step all tiles."""
        self._receive_all()
        self._is_good = self._counts(state)
        self._shape(self._is_good)
        for number in range(len(self.buffer.tiles)):
            self._step_tile(state, number, 1.0, None)

    def _receive(self, tile: Tile) -> float:
        number = self.buffer.tiles.index(tile)
        self.queue.take(number)
        return self.wire.factor(number)
