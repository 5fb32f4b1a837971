"""Pilots: short runs on a sample that measure recipes, and `--precision auto`."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from math import sqrt
from time import perf_counter
from typing import Any, TypeVar

import numpy as np

from hpcsgd.agreements import AUTO, settings_of
from hpcsgd.backends import make_backend
from hpcsgd.backends.base import (
    Backend,
    ColumnExponents,
    LossScale,
    StepBatch,
    emulated,
    make_scaling,
)
from hpcsgd.comm import communicator, messages
from hpcsgd.comm.communicator import Communicator
from hpcsgd.comm.messages import sum_parts
from hpcsgd.comm.network_model import Network, parse_network
from hpcsgd.comm.threads import SerialCommunicator, run_ranks
from hpcsgd.config import GridConfig, RunConfig, RunSection, rehearsal
from hpcsgd.data.readers import MemoryReader, RowReader, is_sparse, row_words
from hpcsgd.data.sampling import Sampler, plan_groups
from hpcsgd.data.shard import split_range
from hpcsgd.data.targets import LABELLED, MOST_CLASSES, encode_targets
from hpcsgd.errors import ConfigError
from hpcsgd.formats import Array, get_format, round_through
from hpcsgd.glm import get_family
from hpcsgd.glm.updates import make_rate
from hpcsgd.precision import FIELDS, RECIPES, Precision, PrecisionConfig
from hpcsgd.products.base import ExchangeShape
from hpcsgd.products.cost import Machine, ProductsConfig
from hpcsgd.products.gram import Gram
from hpcsgd.runs.checkpoint import PRECISION_AUTO
from hpcsgd.runs.machine import Sum, fastest_of, tree_of_network
from hpcsgd.runs.result import Result
from hpcsgd.runs.resume import CheckpointedRun
from hpcsgd.runs.session import RunSettings, Session
from hpcsgd.runs.settle import RESUMED
from hpcsgd.tuning.exact_exchange import ExactExchange, SgdSteps

log = logging.getLogger(__name__)

# Pilot runs: the effect of rounding on the loss on these data.
#
# A pilot trains on some rows of the data in one process, with the code of a run, once
# in float64 and once in each precision in question. docs/trust/precision.md explains
# how the gap of a long run follows from that of a short one.

ROWS = 4096  # of a sample, unless 4 exchanges need more
BYTES = 64 * 2**20  # of rows in float64
SLICES = 32  # of the file, from which the rows are taken
EXCHANGES = 48  # at least, in as many epochs as they need
MOST_MEMBERS = 4  # ranks of the pilot: more of them would not round more
DEFAULT_STEPS = 8  # if the number of steps is open
Value = TypeVar("Value")
# [run] of a pilot: thread ranks in this process, on the CPU, without a network.
THREADS = RunSection(comm="threads", timeout=0.0)


@dataclass(frozen=True)
class Sample:
    """Some rows of the data, with their targets, weights and offsets."""

    X: Any  # dense, or a scipy.sparse matrix
    y: Array
    weights: Array | None
    offsets: Array | None

    def reader(self) -> MemoryReader:
        """Return a reader of the sample for a run."""
        return MemoryReader(self.X, self.y, self.weights, self.offsets)


@dataclass(frozen=True)
class Gap:
    """The relative difference of the loss in a precision from the loss in float64."""

    measured: float  # the largest (F − F_fp64) / |F_fp64| of the pilot, in size
    predicted: float  # for the run in question
    diverged: bool = False


def draw_sample(
    reader: RowReader, group_rows: int, seed: int = 0, family: str = ""
) -> Sample:
    """Return rows from slices of the whole data; all rows if there are few.

    The sample has enough rows for two exchanges of `group_rows` rows, where the data
    have as many. If `family` has classes, the sample has a row of every class, unless
    there are more than `MOST_CLASSES`.
    """
    fits = BYTES // (8 * row_words(reader))
    sample_rows = max(min(max(ROWS, 4 * group_rows), fits), 2 * group_rows)
    parts = _places(reader.rows, min(sample_rows, reader.rows), seed)
    if family and get_family(family).targets in LABELLED:
        parts += _rare_labels(reader, parts)
    every = slice(0, reader.cols)
    weights = [reader.sample_weight(part) for part in parts]
    offsets = [reader.offset(part) for part in parts]
    return Sample(
        X=_stacked([_rows(reader, part, every) for part in parts]),
        y=np.concatenate([reader.targets(part) for part in parts]),
        weights=_joined(weights),
        offsets=_joined(offsets),
    )


def draw_sample_of(
    config: RunConfig, reader: RowReader, batch: int | None = None
) -> Sample:
    """Return a sample of the rows of a run, with enough rows for its exchanges.

    `batch` is the rows of a step, by default those of `config`.
    """
    rows = rows_of_exchange(config, batch)
    return draw_sample(reader, rows, config.sampling.seed, config.problem.family)


def rows_of_exchange(config: RunConfig, batch: int | None = None) -> int:
    """Return the rows of one exchange of one replica; open steps count as 8 steps.

    `batch` is the rows of a step, by default those of `config`.
    """
    steps = config.schedule.steps or DEFAULT_STEPS
    return (batch or config.schedule.batch) * steps


def planned_exchanges(config: RunConfig, rows: int, batch: int | None = None) -> int:
    """Return the number of exchanges of a whole run on `rows` rows.

    `batch` is the rows of a step, by default those of `config`.
    """
    each = rows_of_exchange(config, batch) * config.grid.replicas
    return config.schedule.epochs * -(-rows // each)


def _places(rows: int, wanted: int, seed: int) -> list[slice]:
    """Return slices of equal length, one at a random place in each part of the data.

    Together they have at most `wanted` rows.
    """
    if wanted >= rows:
        return [slice(0, rows)]
    count = max(min(SLICES, wanted), 1)
    length = wanted // count
    stride = rows // count
    rng = np.random.default_rng(seed)
    starts = [i * stride + int(rng.integers(stride - length + 1)) for i in range(count)]
    return [slice(start, start + length) for start in starts]


def _rare_labels(reader: RowReader, parts: list[slice]) -> list[slice]:
    """Return the first row of every label that no part contains, as slices.

    If there are more than `MOST_CLASSES` labels, return [].
    """
    y = reader.targets(slice(0, reader.rows))
    labels, firsts = np.unique(y, return_index=True)
    if len(labels) > MOST_CLASSES:
        return []  # no classes: the encoder of targets raises the error
    present = np.concatenate([np.unique(y[part]) for part in parts])
    return [slice(int(i), int(i) + 1) for i in firsts[~np.isin(labels, present)]]


def _rows(reader: RowReader, part: slice, columns: slice) -> Any:
    if is_sparse(reader):
        return reader.read_csr(part, columns)
    return reader.read(part, columns)


def _stacked(parts: list[Any]) -> Any:
    if hasattr(parts[0], "tocsr"):
        from scipy import sparse

        return sparse.vstack(parts, format="csr")
    return np.concatenate(parts)


def _joined(parts: list[Array | None]) -> Array | None:
    arrays = [part for part in parts if part is not None]
    return np.concatenate(arrays) if arrays else None


def loss_gaps(
    config: RunConfig,
    sample: Sample,
    precisions: Mapping[str, PrecisionConfig],
    members: int,
    exchanges: int,
    batch: int | None = None,
) -> dict[str, Gap]:
    """Return the gap of every precision to float64, for a run of `exchanges` exchanges.

    `batch` is the rows of a step, by default those of `config`. The gap of a precision
    in which the pilot diverges is infinite.
    """

    def run_in(precision: PrecisionConfig) -> Result:
        pilot = pilot_config(config, precision, len(sample.y), members, batch)
        return run_pilot(pilot, sample)

    exact = run_in(PrecisionConfig(recipe="fp64"))
    return {
        name: _gap(run_in(precision), exact, exchanges)
        for name, precision in precisions.items()
    }


def _gap(found: Result, exact: Result, exchanges: int) -> Gap:
    """Return the gap of a pilot, and its prediction for a run of `exchanges` exchanges.

    Errors of different exchanges are almost independent, so that the gap grows as the
    root of the number of exchanges.
    """
    if found.status.value == "diverged":
        return Gap(float("inf"), float("inf"), diverged=True)
    pairs = zip(_curve(found), _curve(exact), strict=True)
    worst = max(abs(low - true) / abs(true) for low, true in pairs if true)
    growth = sqrt(max(exchanges / max(exact.exchanges, 1), 1.0))
    return Gap(worst, worst * growth)


def _curve(result: Result) -> list[float]:
    return [float(record["loss"]) for record in result.history]


def on_first_rank(world: Communicator, action: Callable[[], Value]) -> Value:
    """Return on every rank what `action` returns on rank 0. Collective."""
    return world.of_root(action)


def run_pilot(config: RunConfig, sample: Sample) -> Result:
    """Run a pilot without log messages, on one thread for each rank of its grid.

    Return the result of rank 0.
    """

    def on_rank(world: Communicator) -> Result:
        return Session(RunSettings(config), world, lambda _: sample.reader(), []).run()

    with silence_pilots():
        results = run_ranks(config.grid.replicas * config.grid.members, on_rank)
    first: Result = results[0]
    return first


def pilot_config(
    config: RunConfig,
    precision: PrecisionConfig,
    rows: int,
    members: int,
    batch: int | None = None,
) -> RunConfig:
    """Return the settings of a pilot of `config` on `rows` rows, in a precision.

    `batch` is the rows of a step, by default those of `config`. It is smaller if an
    epoch of the sample would have less than two exchanges.
    """
    steps = config.schedule.steps or DEFAULT_STEPS
    batch = min(batch or config.schedule.batch, max(rows // (2 * steps), 1))
    each = -(-rows // (batch * steps))
    values = {
        "schedule.batch": batch,
        "schedule.steps": steps,
        "schedule.epochs": max(-(-EXCHANGES // each), 1),
        "sampling.mode": "shuffle-once",
    }
    return rehearsal(
        config,
        values,
        run=THREADS,
        evaluated=True,
        precision=precision,
        grid=GridConfig(replicas=1, members=max(min(members, MOST_MEMBERS), 1)),
        products=ProductsConfig(kind="gram", look_ahead="off"),
        agreement=settings_of(AUTO)(),
    )


@contextmanager
def silence_pilots() -> Iterator[None]:
    """Suppress the log messages of pilot runs, which may diverge."""
    log = logging.getLogger("hpcsgd")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)


# One exchange in any formats, of all members in one process, and its error.
#
# The calls are those of the products, one member after the other; messages between
# members are rounded as in a run.

EXACT = RECIPES["fp64"]


@dataclass(frozen=True)
class Outcome:
    """Weights and residuals after an exchange."""

    after: Array  # w⁺, (d, K), float64
    residuals: Array  # r, (m, K), float64


@dataclass
class Member:
    """One member: its backend, its columns of the rows, and its part of the weights."""

    backend: Backend
    rows: Any
    weights: Array


def perform(exchange: ExactExchange, precision: Precision) -> Outcome:
    """Compute one exchange of all members in the number formats of `precision`."""
    crew = [_member(exchange, precision, part) for part in exchange.parts]
    gram, margins = _products(exchange, precision, crew)
    for member in crew:
        plan = member.backend.prepare(exchange.steps.unrolled, exchange.steps.blocks)
        beta = exchange.intercept
        residuals = member.backend.corrected_residuals(
            margins.copy(),
            gram.copy(),
            plan,
            exchange.family,
            _batch(exchange, precision),
            beta if beta is None else beta[None].copy(),
        )
        member.backend.apply_update(member.weights, member.rows, residuals, plan)
    whole = np.concatenate([member.weights for member in crew])
    return Outcome(whole.astype(np.float64), residuals.astype(np.float64))


def with_one_field(field: str, name: str) -> Precision:
    """Return a precision of format `name` in one field and fp64 in eight others."""
    return replace(EXACT, **{field: name})


def held(exchange: ExactExchange, name: str) -> ExactExchange:
    """Return the exchange with the weights before it rounded to format `name`."""
    before = exchange.before.astype(np.float64)
    round_through(before, name)
    return replace(exchange, before=before)


def relative_error(exchange: ExactExchange, precision: Precision) -> float:
    """Return the relative error of the weights after an exchange in a precision.

    It is ‖w⁺ − exact w⁺‖ / ‖Δw‖, where w⁺ are the weights after the exchange, and Δw is
    their update by the exact exchange.
    """
    exact = exchange.path.after
    off = np.linalg.norm(perform(exchange, precision).after - exact)
    return float(off / exchange.path.update(exchange.before))


def _member(exchange: ExactExchange, precision: Precision, part: slice) -> Member:
    backend = make_backend(precision)
    form = get_format(precision.matrix)
    if form.wants_scale and exchange.exponents is not None:
        backend.scaling = ColumnExponents(form, exchange.exponents, part)
    if backend.loss_scale is not None:
        backend.loss_scale = LossScale(exchange.loss_scale, is_fixed=True)
    matrix = backend.store(np.ascontiguousarray(exchange.rows[:, part]))
    count = np.arange(len(exchange.rows))
    rows = backend.gather(matrix, count, np.empty(matrix.shape, precision.working))
    weights = backend.zeros((part.stop - part.start, exchange.before.shape[1]))
    weights[...] = exchange.before[part]
    return Member(backend, rows, weights)


def _batch(exchange: ExactExchange, precision: Precision) -> StepBatch:
    """Return targets, weights and offsets of the rows, in the working format."""
    kind = precision.working
    c = exchange.batch.weights
    offsets = exchange.batch.offsets
    return StepBatch(
        exchange.batch.targets.astype(kind),
        None if c is None else c.astype(kind),
        None if offsets is None else offsets.astype(kind),
    )


def _products(
    exchange: ExactExchange, precision: Precision, crew: list[Member]
) -> tuple[Array, Array]:
    """Return the packed Gram G and margins z, summed over members.

    They are rounded to the formats of the messages and of the margins.
    """
    sums = [
        sum_parts(parts, name) for parts, name in _messages(exchange, precision, crew)
    ]
    if precision.one_message:
        sums = np.split(sums[0], [exchange.steps.blocks.gram_words])
    gram, margins = sums
    margins = margins.reshape(len(exchange.rows), -1)
    summed = get_format(precision.margin_sum).unit_roundoff
    if get_format(precision.margin).unit_roundoff > summed:
        crew[0].backend.round(margins, precision.margin)
    return gram, margins


def _messages(
    exchange: ExactExchange, precision: Precision, crew: list[Member]
) -> list[tuple[list[Array], str]]:
    """Return the messages, each with the parts of all members and its format."""
    summed = precision.margin_sum
    wire = precision.gram_wire
    shape = (len(exchange.rows), exchange.before.shape[1])
    blocks = exchange.steps.blocks
    grams = []
    margins = []
    for member in crew:
        gram = np.empty(blocks.gram_words, dtype=get_format(wire).carrier)
        grams.append(member.backend.strict_gram(member.rows, blocks, gram))
        z = np.empty(shape, dtype=get_format(summed).carrier)
        margins.append(member.backend.scores(member.rows, member.weights, z).ravel())
    if precision.one_message:
        both = [np.concatenate(two) for two in zip(grams, margins, strict=True)]
        return [(both, wire)]
    return [(grams, wire), (margins, summed)]


# Exact exchanges on a sample of the data, for which error bounds are computed.

MOST_BYTES = 2**30  # of the rows of one group in float64


@dataclass(frozen=True)
class SamplePath:
    """The exchanges of a run on a sample, with the exact weights before each."""

    config: RunConfig
    sample: Sample
    members: int

    @cached_property
    def sizes(self) -> list[tuple[int, ...]]:
        """The batch sizes of an epoch, one tuple for each exchange."""
        schedule = self.config.schedule
        steps = schedule.steps or DEFAULT_STEPS
        groups = plan_groups(len(self.sample.y), schedule.batch, steps)
        if len(groups[0]) < steps or min(groups[0]) < schedule.batch:
            raise ConfigError(
                f"{len(self.sample.y)} rows are fewer than the {schedule.batch} x"
                f" {steps} rows of one exchange; use a smaller --batch or --steps"
            )
        return groups

    def exchanges(self, count: int, apart: int) -> list[ExactExchange]:
        """Return `count` exchanges: every `apart`-th exchange of a run in float64."""
        chosen: list[ExactExchange] = []
        weights: Array = np.zeros((self._cols, self._columns))
        intercept = np.zeros(self._columns) if self.config.problem.intercept else None
        for number in range(1, count * apart + 1):
            exchange = self._exchange(number - 1, weights, intercept)
            if number % apart == 0:
                chosen.append(exchange)
            weights = exchange.path.after
            if intercept is not None:
                intercept = _advanced(exchange)
        return chosen

    @cached_property
    def _columns(self) -> int:
        return len(self._encoded[1].labels) if self._family.targets == "classes" else 1

    @cached_property
    def _family(self) -> Any:
        problem = self.config.problem
        return get_family(problem.family, vars(problem))

    @cached_property
    def _encoded(self) -> Any:
        kind = self._family.targets
        return encode_targets(self.sample.y, kind, 0, lambda own: [own])

    @property
    def _cols(self) -> int:
        return int(self.sample.X.shape[1])

    @cached_property
    def _parts(self) -> tuple[slice, ...]:
        if self.members > self._cols:
            raise ConfigError(
                f"--members {self.members}: the data have {self._cols} columns; use"
                " at most as many members"
            )
        every = range(self.members)
        return tuple(split_range(self._cols, self.members, c) for c in every)

    @cached_property
    def _weights(self) -> Array | None:
        weights = self.sample.weights
        return None if weights is None else (weights / weights.mean())[:, None]

    def _exchange(
        self, number: int, weights: Array, intercept: Array | None
    ) -> ExactExchange:
        epoch, place = divmod(number, len(self.sizes))
        sizes = self.sizes[place]
        before = sum(len(s) for s in self.sizes[:place])
        steps = sum(len(s) for s in self.sizes)
        first = sum(sum(s) for s in self.sizes[:place])
        sampler = Sampler("shuffle-once", self.config.sampling.seed, self._rows, 0)
        rows = sampler.order(epoch)[first : first + sum(sizes)]
        epochs = self.config.schedule.epochs
        rate = make_rate(self.config.rate, epochs * steps, epochs)
        offsets = self.sample.offsets
        return ExactExchange(
            rows=self._dense(rows),
            batch=StepBatch(
                targets=self._encoded[0][rows],
                weights=None if self._weights is None else self._weights[rows],
                offsets=None if offsets is None else offsets[rows][:, None],
            ),
            steps=SgdSteps(
                sizes=sizes,
                rates=tuple(rate.at(epoch * steps + before, len(sizes)).tolist()),
                l2=self.config.problem.l2,
            ),
            before=weights,
            family=self._family,
            intercept=intercept,
            parts=self._parts,
        )

    @property
    def _rows(self) -> int:
        return len(self.sample.y)

    def _dense(self, rows: Array) -> Array:
        size = 8 * len(rows) * self._cols
        if size > MOST_BYTES:
            raise ConfigError(
                f"the rows of one exchange take {size / 2**30:.1f} GiB in float64, and"
                f" {MOST_BYTES / 2**30:g} GiB are allowed; use a smaller --batch or"
                " --steps"
            )
        part = self.sample.X[rows]
        block: Array = part.toarray() if hasattr(part, "toarray") else part
        return block.astype(np.float64)


def _advanced(exchange: ExactExchange) -> Array:
    """Return the intercept after the exact exchange, (K,)."""
    path = exchange.path
    h = exchange.steps.per_row
    sums = [path.residuals[part].sum(axis=0) for part in exchange.steps.slices]
    assert exchange.intercept is not None
    moved: Array = exchange.intercept - np.tensordot(h, np.array(sums), axes=1)
    return moved


# The cost of one exchange of a member in a precision: bytes, and measured seconds.

REPEATS = 7
COPIES = 64 * 2**20  # bytes of rows that an exchange samples from: more than a cache


@dataclass(frozen=True)
class Cost:
    """The bytes and seconds of one exchange of one member."""

    moved: dict[str, int]  # bytes by field: read or sent in its format
    sent: int  # bytes of the messages
    seconds: float | None  # of arithmetic, measured; None if it is emulated
    network: float  # seconds of the messages, by the network's model

    @property
    def total(self) -> float:
        """Return the seconds of arithmetic and messages; inf if they are unknown."""
        return float("inf") if self.seconds is None else self.seconds + self.network


def cost_of(
    exchange: ExactExchange,
    precision: Precision,
    sums: Sequence[Sum],
    seconds: bool,
) -> Cost:
    """Return the cost of one exchange of the first member.

    Bytes are counted. Seconds of arithmetic are measured if `seconds` is set and no
    format is emulated. Seconds of messages are those of the fastest of `sums`, the
    all-reduce algorithms between members; 0 if `sums` is empty or there is one member.
    """
    moved = bytes_of(exchange, precision)
    members = len(exchange.parts)
    sent = moved["gram_wire"] + moved["margin_sum"] if members > 1 else 0
    measured = seconds and not emulated(precision)
    return Cost(
        moved=moved,
        sent=sent,
        seconds=exchange_seconds(exchange, precision) if measured else None,
        network=_network_seconds(exchange, precision, sums, moved),
    )


def bytes_of(exchange: ExactExchange, precision: Precision) -> dict[str, int]:
    """Return the bytes that each field moves in one exchange of the first member.

    They are those of rows, margins, residuals and weights in memory, and those of sums
    of margins and Gram in messages, 0 with one member. A field is one of the nine
    formats of a precision; its bytes are 0 if its values stay in the processor.
    """
    m = len(exchange.rows)
    width = exchange.parts[0].stop - exchange.parts[0].start
    scores = exchange.before.shape[1]
    words = {
        "matrix": m * width,
        "margin": m * scores,
        "residual": m * scores,
        "weights": 2 * width * scores,
    }
    if len(exchange.parts) > 1:
        shape = ExchangeShape(exchange.steps.blocks.sizes, scores, one_message=False)
        words |= {sent.field: sent.words for sent in Gram.messages(shape)}
    return {
        name: words.get(name, 0) * get_format(getattr(precision, name)).dtype.itemsize
        for name in FIELDS
    }


def _network_seconds(
    exchange: ExactExchange,
    precision: Precision,
    sums: Sequence[Sum],
    moved: dict[str, int],
) -> float:
    """Return the seconds of the messages by the fastest of the algorithms `sums`.

    G and z are one message if they have the same format, else two. A narrow message
    needs two calls. The result is 0 for one member, or if `sums` is empty.
    """
    members = len(exchange.parts)
    if members == 1 or not sums:
        return 0.0
    parts = [("gram_wire", moved["gram_wire"]), ("margin_sum", moved["margin_sum"])]
    if precision.one_message:
        parts = [("gram_wire", sum(size for _, size in parts))]
    calls = sum(2 if _is_narrow(getattr(precision, name)) else 1 for name, _ in parts)
    carried = communicator.sum_bytes(sum(size for _, size in parts), members)
    return min(algorithm.seconds(calls, carried) for algorithm in sums)


def _is_narrow(name: str) -> bool:
    """Return whether a sum in this format needs two calls, on parts of the message."""
    return messages.is_narrow(get_format(name))


def exchange_seconds(exchange: ExactExchange, precision: Precision) -> float:
    """Return the seconds of the first member's arithmetic, with rows not in cache.

    It is the shortest of several measurements: other processes, and BLAS threads that
    wait for a core, only make them longer.
    """
    part = exchange.parts[0]
    block = np.ascontiguousarray(exchange.rows[:, part])
    backend = make_backend(precision)
    form = get_format(precision.matrix)
    if form.wants_scale:
        peaks = np.abs(block).max(axis=0)
        backend.scaling = make_scaling(form, peaks, slice(0, block.shape[1]), "column")
    copies = max(min(int(COPIES / max(block.nbytes, 1)), 64), 1)
    matrix = np.tile(backend.store(block), (copies, 1))
    once = _once(exchange, precision, backend, matrix)
    rng = np.random.default_rng(0)
    draws = [rng.permutation(len(matrix))[: len(block)] for _ in range(REPEATS + 1)]
    return fastest_of(lambda i: (once(draws[i]),), REPEATS)[0]


def _once(
    exchange: ExactExchange, precision: Precision, backend: Any, matrix: Array
) -> Any:
    """Return a function that measures the seconds of one exchange.

    Its argument is the numbers of the rows of `matrix` that the exchange takes.
    """
    blocks, batch = exchange.steps.blocks, _batch(exchange, precision)
    buffer = np.empty((blocks.rows, matrix.shape[1]), dtype=precision.working)
    gram = np.empty(blocks.gram_words, get_format(precision.gram_wire).carrier)
    shape = (blocks.rows, exchange.before.shape[1])
    margins = np.empty(shape, get_format(precision.margin_sum).carrier)
    weights = backend.zeros((matrix.shape[1], shape[1]))
    plan = backend.prepare(exchange.steps.unrolled, blocks)

    def once(numbers: Array) -> float:
        began = perf_counter()
        rows = backend.gather(matrix, numbers, buffer)
        backend.strict_gram(rows, blocks, gram)
        backend.scores(rows, weights, margins)
        if precision.margin != precision.margin_sum:
            backend.round(margins, precision.margin)
        residuals = backend.corrected_residuals(
            margins, gram, plan, exchange.family, batch, None
        )
        backend.apply_update(weights, rows, residuals, plan)
        return perf_counter() - began

    return once


# `--precision auto`: the cheapest recipe within the tolerance, by pilot runs.

WIDEST = "fp64"
# Recipes by their usual seconds, the cheapest first. A reproducible run chooses by this
# order, as measured seconds differ from run to run. The tuner's order is another one.
ORDER = ("c", "d", "fp32", "fp8", "fp16", "bf16", "fp64")


@dataclass(frozen=True)
class RecipeChoice:
    """The chosen recipe, its predicted gap, and the figures of all compared recipes."""

    recipe: str
    predicted_gap: float
    # recipe -> predicted gap, and seconds of an exchange (reproducible: place in ORDER)
    considered: dict[str, dict[str, float]]

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as a dict, for the report."""
        return dict(vars(self))


def resolve_precision(
    config: RunConfig,
    world: Communicator,
    reader: Callable[[Communicator], RowReader],
    recorded: CheckpointedRun | None = None,
) -> tuple[PrecisionConfig, dict[str, Any]]:
    """Return the formats with a recipe in place of `auto`, and facts to report.

    Rank 0 runs the pilots, and all ranks use its choice. A resumed run uses the choice
    in the checkpoint, `recorded`. Collective.
    """

    def choose() -> tuple[PrecisionConfig, dict[str, Any]]:
        if recorded is not None:
            how = recorded.precision_auto
            facts = {} if how is None else {PRECISION_AUTO: how}
            return PrecisionConfig(**recorded.requested["precision"]), facts
        ranks = config.run.emulate_members or world.size
        choice = choose_recipe(config, ranks, reader(SerialCommunicator()))
        chosen = replace(config.precision, recipe=choice.recipe)
        return chosen, {PRECISION_AUTO: choice.as_dict()}

    # Each rank needs a copy, to which the run adds facts.
    precision, report = deepcopy(on_first_rank(world, choose))
    if report:
        choice = report[PRECISION_AUTO]
        log.info(
            "precision: auto chose the recipe %s, whose loss is expected within %.2g %%"
            " of that of fp64",
            choice["recipe"],
            100 * choice["predicted_gap"],
            extra={"on_all_ranks": True},
        )
    return precision, report


def recipe_reason(config: RunConfig, notes: Mapping[str, Any]) -> str:
    """Return why `resolve_precision` chose a recipe, from what it reports."""
    if PRECISION_AUTO not in notes:
        return RESUMED
    choice = notes[PRECISION_AUTO]
    others = {n: c for n, c in choice["considered"].items() if n != WIDEST}
    tolerance = config.precision.tolerance
    if not any(c["predicted_gap"] <= tolerance for c in others.values()):
        return "no other recipe without emulation is within precision.tolerance"
    how = "first in a fixed order" if config.run.reproducible else "cheapest in pilots"
    return f"{how}, {100 * choice['predicted_gap']:.2g} % from the loss of fp64"


def choose_recipe(config: RunConfig, ranks: int, reader: RowReader) -> RecipeChoice:
    """Return the cheapest recipe that is not emulated and is within the tolerance.

    It is fp64 if no recipe is within it. `ranks` is the number of ranks of the run.
    """
    members = config.grid.members or max(ranks // config.grid.replicas, 1)
    try:
        sample = draw_sample_of(config, reader)
    finally:
        reader.close()
    planned = planned_exchanges(config, reader.rows)
    candidates = affordable(config.precision)
    gaps = loss_gaps(config, sample, candidates, members, planned)
    (exchange,) = SamplePath(config, sample, min(members, reader.cols)).exchanges(1, 1)
    sums = [_sum_of(config, members)]
    costs = {
        name: cost_of(exchange, precision.resolve(), sums, seconds=True).total
        for name, precision in candidates.items()
    }
    if config.run.reproducible:  # measured seconds differ from run to run
        costs = {name: float(ORDER.index(name)) for name in candidates}
    good = [n for n in candidates if gaps[n].predicted <= config.precision.tolerance]
    best = min(good, key=lambda name: costs[name], default=WIDEST)
    return RecipeChoice(
        recipe=best,
        predicted_gap=gaps[best].predicted,
        considered={
            name: {"seconds": costs[name], "predicted_gap": gaps[name].predicted}
            for name in candidates
        },
    )


def affordable(asked: PrecisionConfig) -> dict[str, PrecisionConfig]:
    """Return name -> recipe for all recipes that need no emulation, and for fp64.

    Formats that the user set in `asked` replace those of each recipe.
    """
    recipes = {name: replace(asked, recipe=name) for name in RECIPES}
    return {
        name: recipe
        for name, recipe in recipes.items()
        if name == WIDEST or not emulated(recipe.resolve())
    }


def _sum_of(config: RunConfig, members: int) -> Sum:
    """Return the times of sums over `members` ranks of the network `run.network`.

    Where that is not set, the network is a usual one.
    """
    usual = Machine()
    network = Network(usual.latency, 1 / usual.per_byte)
    if config.run.network:
        network = parse_network(config.run.network)
    return tree_of_network(network, members)
