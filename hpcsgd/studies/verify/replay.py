"""Recorded exchanges, replayed in longdouble."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import hypot
from pathlib import Path
from typing import Any

import numpy as np

from hpcsgd.backends.base import ColumnExponents, make_scaling
from hpcsgd.backends.numpy_rows import weigh
from hpcsgd.config import RunConfig, agreement_in
from hpcsgd.data.checksums import Fingerprint
from hpcsgd.data.readers import CHUNK_BYTES, RowReader, is_sparse
from hpcsgd.data.sampling import FoldSplit, plan_groups
from hpcsgd.data.shard import column_peaks, sparse_pieces, split_range
from hpcsgd.data.sparse import Csr
from hpcsgd.data.targets import encode_targets
from hpcsgd.errors import DataError
from hpcsgd.formats import Array, decode, encode, get_format
from hpcsgd.glm import ADAPTIVE, get_family
from hpcsgd.glm.families import Family
from hpcsgd.glm.updates import make_rate
from hpcsgd.precision import FIELDS, RECIPES, Precision
from hpcsgd.products.base import product_facts
from hpcsgd.runs.plan import TrafficShape
from hpcsgd.runs.recording import NAME, Recording, read_recording
from hpcsgd.runs.result import Result, load_result
from hpcsgd.solvers.coordinate import COORDINATE
from hpcsgd.studies.verify.allowance import (
    PARTS,
    Allowance,
    L,
    Point,
    RecordedExchange,
    clip_of,
    look,
    residual,
    step,
)

# Plain mini-batch SGD in longdouble, step by step: what an exchange must equal.
#
# Rows are those that the run stored. Margins are rounded where the run stored them low
# (recipe `c`): the run computed a z within ε of the exact one, and stored fl(z). Where
# fl(z − ε) = fl(z + ε) that is known, in whatever order the run summed, and the replay
# goes on with it; elsewhere it goes on with z, and the distance to the farther of the
# two is allowed. What else is allowed is counted in `allowance.py`. Where a
# few such margins leave an exchange undecided, it is replayed with one of the two and
# with the other: whatever a right run stored is among them.
#
# An exchange is decided where no more than `DECISIVE` of a step is allowed: a result
# that is wrong by more than that cannot pass.

GRADIENT = "gradient"  # the one agreement on gradients whose steps are replayed
DECISIVE = 1 / 50  # of a step: what may be allowed where an exchange is decided
CHOSEN = 5  # doubtful margins of which both numbers are tried
GROUPS = {"w": ("w", "b"), "b": ("w", "b"), "v": ("v", "bv"), "bv": ("v", "bv")}


@dataclass(frozen=True)
class Replay:
    """Where an exchange ends, and what of it the formats leave open."""

    end: Point
    allowed: dict[str, float]  # how far a run may be from each part of `end`
    doubtful: int  # margins that may have been stored as either of two numbers


def replay(
    exchange: RecordedExchange, start: Point, choices: tuple[bool, ...] = ()
) -> Replay:
    """Return the replay of all steps.

    Parameters
    ----------
    exchange, start : what the run worked on
    choices : of the first doubtful margins, whether the larger number is taken
    """
    with np.errstate(all="ignore"):
        allowance = Allowance(exchange, start, choices)
        point = {name: value.astype(L) for name, value in start.items()}
        for j, batch in enumerate(allowance.batches):
            at = look(exchange, point["w"], point["v"])
            shift = look(exchange, point["b"], point["bv"]) + exchange.offsets[batch]
            z, off = allowance.margins(j, at)
            t = z + shift
            y, c = exchange.targets[batch], exchange.weights[batch]
            r = residual(exchange.family, t, y, exchange.clip) * c
            count = len(r)
            g = exchange.rows[batch].T @ r / count + L(exchange.l2) * at
            before = point
            point = step(
                exchange, point, g, r.sum(axis=0) / count, L(exchange.rates[j])
            )
            allowance.take(j, before, point, (t, shift + 0 * t), off, r)
        return Replay(point, allowance.bounds(point), allowance.doubtful)


@dataclass(frozen=True)
class ReplayDifference:
    """Both relative to the step taken, of the part where they are closest."""

    part: str
    deviation: float
    tolerance: float

    @property
    def is_within(self) -> bool:
        """Whether the formats explain the deviation; one that is no number is not."""
        return self.deviation <= self.tolerance

    @property
    def is_decided(self) -> bool:
        """Whether a result that is wrong would have been seen."""
        return not self.is_within or self.tolerance <= DECISIVE


def compare(
    exchange: RecordedExchange, start: Point, end: Point, parts: tuple[str, ...] = PARTS
) -> ReplayDifference:
    """Return the distance of what the run had at the end from the replay.

    Of several parts the one that is wrong; where none is, one that is not decided; else
    the one that is off by most of what is allowed.
    """
    first = _compare(start, end, replay(exchange, start), parts)
    if first.is_decided:
        return first
    return _search(exchange, start, end, parts) or first


def _search(
    exchange: RecordedExchange, start: Point, end: Point, parts: tuple[str, ...]
) -> ReplayDifference | None:
    """The replay that meets the run, where margins were stored one way or the other.

    Every choice is one that the format leaves to the run. None of them explains a run
    that is wrong: then the closest one is returned. None where there are too many.
    """
    waiting: list[tuple[bool, ...]] = [()]
    failed: list[ReplayDifference] = []
    while waiting:
        choices = waiting.pop()
        one = replay(exchange, start, choices)
        met = _compare(start, end, one, parts)
        if not met.is_within:
            failed.append(met)
        elif met.is_decided:
            return met
        elif len(choices) < min(one.doubtful, CHOSEN):
            waiting += [(*choices, False), (*choices, True)]
        else:
            return None
    return min(failed, key=lambda one: one.deviation)


def _compare(
    start: Point, end: Point, one: Replay, parts: tuple[str, ...]
) -> ReplayDifference:
    exact, allowed = one.end, one.allowed
    there = [name for name in parts if exact[name].any() or end[name].any()]
    found = []
    for name in there:
        group = [n for n in GROUPS[name] if n in there]
        taken = hypot(*(_norm(exact[n] - start[n]) for n in group)) or 1.0
        deviation = _norm(end[name].astype(L) - exact[name])
        found.append(ReplayDifference(name, deviation / taken, allowed[name] / taken))
    return max(found, key=_order, default=ReplayDifference("w", 0.0, 0.0))


def _order(found: ReplayDifference) -> tuple[bool, bool, float]:
    """What is wrong comes first, then what is not decided, then what is close."""
    if not np.isfinite(found.deviation):
        return True, True, np.inf
    share = found.deviation / max(found.tolerance, np.finfo(float).tiny)
    return not found.is_within, not found.is_decided, share


def _norm(values: Array) -> float:
    return float(np.sqrt(np.sum(np.square(values))))


def deciding(exchange: RecordedExchange, start: Point, parts: tuple[str, ...]) -> str:
    """Return the setting with which an exchange like this one would be decided.

    One field in float32 where that is enough, else a whole recipe; nothing where
    float64 is not enough.
    """
    now = exchange.precision
    candidates: dict[str, Precision] = {}
    for name in FIELDS[1:]:  # the matrix is replayed as it was stored
        wider = replace(now, **{name: "fp32"})
        if _unit(now, name) > _unit(wider, name):
            candidates[f"--set precision.{name}=fp32"] = wider
    for recipe in ("fp32", "fp64"):
        wider = RECIPES[recipe]
        if any(_unit(now, name) > _unit(wider, name) for name in FIELDS[1:]):
            candidates[f"--precision {recipe}"] = wider
    for words, precision in candidates.items():
        one = replay(replace(exchange, precision=precision), start)
        if _compare(start, one.end, one, parts).is_decided:
            return words
    return ""


def _unit(precision: Precision, field: str) -> float:
    return get_format(getattr(precision, field)).unit_roundoff


# The data of a run, read once more by one process.

WHOLE = FoldSplit()


@dataclass(frozen=True)
class Sides:
    """What belongs to the rows, as it was given: a loss is that of the data."""

    targets: Array  # (n, 1), encoded for the family
    weights: Array  # (n, 1), mean 1; ones where there are none
    offsets: Array  # (n, 1)

    def rounded(self, dtype: Any) -> "Sides":
        """As steps have it that compute in `dtype`."""
        columns = (self.targets, self.weights, self.offsets)
        return Sides(*(column.astype(dtype) for column in columns))


@dataclass(frozen=True)
class RecordedSource:
    """Rows as they are in the file, and columns as the run stored them."""

    reader: RowReader
    precision: Precision
    given: Sides
    scale: str = "column"  # [precision] scale

    @cached_property
    def stored(self) -> Sides:
        """What steps take."""
        return self.given.rounded(self.precision.working)

    def rows(self, numbers: Array) -> Array:
        """These rows of X in longdouble, rounded as the run rounded them."""
        whole = slice(0, self.reader.cols)
        # One read a run of neighbours, and every row once: files like neither more.
        wanted, place = np.unique(numbers, return_inverse=True)
        cuts = np.flatnonzero(np.diff(wanted) != 1) + 1
        parts = [
            self.reader.read(slice(int(p[0]), int(p[-1]) + 1), whole)
            for p in np.split(wanted, cuts)
        ]
        name, scaling = self.precision.matrix, self._scaling
        values = np.concatenate(parts)
        stored = encode(values if scaling is None else scaling.up(values), name)
        widened = decode(stored, name, self.precision.working)
        if scaling is not None:
            scaling.down(widened)
        return widened[place].astype(L)

    @cached_property
    def _scaling(self) -> ColumnExponents | None:
        """Formats with few exponents have one for each column, or one for all."""
        form, whole = get_format(self.precision.matrix), slice(0, self.reader.cols)
        if not form.wants_scale:
            return None
        peaks = column_peaks(self.reader, slice(0, self.reader.rows), whole)
        is_one = is_sparse(self.reader) and self.scale == "column"
        return make_scaling(form, peaks, whole, "global" if is_one else self.scale)

    def blocks(self) -> Any:
        """(slice, X) over all rows."""
        step = max(CHUNK_BYTES // (16 * self.reader.cols), 1)
        for start in range(0, self.reader.rows, step):
            rows = slice(start, min(start + step, self.reader.rows))
            yield rows, self.reader.read(rows, slice(0, self.reader.cols))

    def lengths(self, columns: int) -> Array:
        """Stored values of every row of a sparse matrix in its first columns."""
        return np.concatenate([p.lengths for _, p in self._pieces(columns)])

    def _pieces(self, columns: int) -> Iterator[tuple[int, Csr]]:
        rows, cols = slice(0, self.reader.rows), slice(0, columns)
        return sparse_pieces(self.reader, rows, cols, CHUNK_BYTES)

    def fingerprint(self) -> str:
        """Of every value, as training takes it."""
        seen, every = Fingerprint(weigh), slice(0, self.reader.rows)
        if is_sparse(self.reader):
            for start, piece in self._pieces(self.reader.cols):
                seen.add_sparse(piece, start, 0)
        else:
            for rows, X in self.blocks():
                seen.add(X, rows.start, 0)
        columns = (self.reader.targets, self.reader.sample_weight, self.reader.offset)
        for number, column in enumerate(columns):
            seen.add_column(number, column(every), 0)
        return seen.total(self.reader.rows, self.reader.cols, lambda own: [own])


def open_source(
    reader: RowReader,
    family: Family,
    precision: Precision,
    split: FoldSplit = WHOLE,
    scale: str = "column",
) -> RecordedSource:
    """The columns of the whole data, encoded as a run does."""
    every = slice(0, reader.rows)
    encoded, _ = encode_targets(
        reader.targets(every), family.targets, 0, lambda own: [own]
    )
    c, o = reader.sample_weight(every), reader.offset(every)
    c = np.ones(reader.rows) if c is None else c
    if not split.is_whole:
        c = c * ~split.kept_apart(every)[:, 0]
    c = c * (reader.rows / float(c.sum()))
    o = np.zeros(reader.rows) if o is None else o
    given = Sides(encoded.astype(np.float64), c[:, None], o[:, None])
    return RecordedSource(reader, precision, given, scale)


# The order of rows as docs/reference/runs.md defines it, written down a second time.


def order_of(sampling: Any, rows: int, replica: int, epoch: int) -> Array:
    """The local rows of a replica that holds so many, in one epoch."""
    key = 0 if sampling.mode == "shuffle-once" else epoch + 1
    rng = np.random.default_rng((sampling.seed, replica, key))
    if sampling.mode == "replacement":
        drawn: Array = rng.integers(rows, size=rows)
        return drawn
    if sampling.mode == "blocks":
        return _by_windows(rng, rows, sampling.block, sampling.window)
    return rng.permutation(np.arange(rows))


def _by_windows(rng: np.random.Generator, rows: int, block: int, window: int) -> Array:
    """Blocks in random order, the rows of each window of them shuffled."""
    blocks = np.split(np.arange(rows), range(block, rows, block))
    order = rng.permutation(len(blocks))
    windows = np.split(order, range(window, len(order), window))
    return np.concatenate(
        [rng.permutation(np.concatenate([blocks[b] for b in part])) for part in windows]
    )


# What all replicas together work on in an exchange of agreed gradients.
#
# Which rows a replica takes is a function of seed, epoch and replica: one process reads
# those of all, and replays the one step that they take together, Σ_p s_p / Σ_p n_p.


@dataclass(frozen=True)
class Union:
    """Of a run whose replicas take one step together in every exchange."""

    config: RunConfig
    rows: int  # of the data
    replicas: int

    @property
    def each(self) -> int:
        """Exchanges of an epoch, those of the largest replica."""
        return len(self._batches(0))

    def taken(self, number: int) -> Array:
        """The rows of exchange `number`, from 0, of all replicas in turn."""
        epoch, index = divmod(number, self.each)
        parts = [self._of(replica, epoch, index) for replica in range(self.replicas)]
        return np.concatenate(parts)

    def rates(self, number: int) -> Array:
        """That of the exchange: a step is one, of however many batches."""
        epochs = self.config.schedule.epochs
        return make_rate(self.config.rate, epochs * self.each, epochs).at(number, 1)

    def _of(self, replica: int, epoch: int, index: int) -> Array:
        """None of a replica that has used up its rows."""
        batches, part = self._batches(replica), self._part(replica)
        first = sum(batches[:index])
        local = order_of(self.config.sampling, part.stop - part.start, replica, epoch)
        taken: Array = (
            part.start + local[first : first + sum(batches[index : index + 1])]
        )
        return taken

    def _batches(self, replica: int) -> list[int]:
        """Rows of each exchange of an epoch: batches that travel together are one."""
        part, schedule = self._part(replica), self.config.schedule
        together = self.config.agreement.accumulate
        sizes = plan_groups(part.stop - part.start, schedule.batch, together)
        return [sum(group) for group in sizes]

    def _part(self, replica: int) -> slice:
        return split_range(self.rows, self.replicas, replica)


# What a finished run worked on: read from its folder, its configuration, its data.


@dataclass(frozen=True)
class RecordedRun:
    """A run folder, read."""

    folder: Path
    result: Result
    recording: Recording
    config: RunConfig
    precision: Precision
    family: Family

    @property
    def shape(self) -> TrafficShape:
        """What the words of the run depend on."""
        report, update = self.result.report, self.config.update.kind
        return TrafficShape(
            schedule=self.config.schedule,
            precision=self.precision,
            rows=report["rows"],
            columns=report["columns"],
            classes=report["classes"],
            states=1 if update == "sgd" else 2,
            intercept=self.config.problem.intercept,
            replicas=report["grid"]["replicas"],
            settings=self.config.agreement,
            codec=self.config.codec,
            mirror=self.config.mirror.kind,
            seed=self.config.sampling.seed,
            sparse=bool(report.get("sparse")),
        )

    def model(self) -> tuple[Array, Array]:
        """w (d, K) and the intercept (K,), zero where there is none."""
        w = self.result.weights
        w = w.reshape(len(w), -1)
        b = self.result.intercept
        return w, np.zeros(w.shape[1]) if b is None else np.reshape(b, w.shape[1])

    def exchange(self, number: int, source: RecordedSource) -> RecordedExchange:
        """The rows, rates and settings of exchange `number`, from 1."""
        config, update = self.config, self.config.update
        rows, sizes, rates = self._steps(number - 1)
        leg = self._leg(number)
        gathers = product_facts(leg["product"]).holds_all_columns
        agrees = self.agrees_on_gradients
        return RecordedExchange(
            family=self.family,
            rows=source.rows(rows),
            targets=source.stored.targets[rows].astype(L),
            weights=source.stored.weights[rows].astype(L),
            offsets=source.stored.offsets[rows].astype(L),
            sizes=sizes,
            rates=rates,
            l2=config.problem.l2,
            update=update.kind,
            momentum=0.0 if update.kind == "sgd" else update.momentum,
            intercept=config.problem.intercept,
            clip=clip_of(get_format(self.precision.residual).carrier),
            precision=self.precision,
            in_steps=agrees or gathers or leg["product"] == "direct",
            members=1 if gathers else leg["members"],
            replicas=self.shape.replicas if agrees else 1,
        )

    def _leg(self, number: int) -> dict[str, Any]:
        """The part of the run, from a start to its end, that took exchange `number`."""
        legs = self.recording.legs
        return next((leg for leg in legs if number <= leg["last"]), legs[-1])

    @property
    def agrees_on_gradients(self) -> bool:
        """Whether all replicas take one step together."""
        return self.config.agreement.kind == GRADIENT

    @property
    def replayed(self) -> tuple[str, ...]:
        """What of an exchange can be: what codecs made of the weights' part cannot."""
        is_exact = self.config.agreement.codec == "identity" or self.shape.replicas == 1
        if self.agrees_on_gradients and not is_exact:
            return ("b", "bv") if self.shape.intercept else ()
        return PARTS

    def _steps(self, number: int) -> tuple[Array, tuple[int, ...], Array]:
        """Rows, batch sizes and rates of exchange `number`, from 0."""
        shape = self.shape
        if self.agrees_on_gradients:
            union = Union(self.config, shape.rows, shape.replicas)
            rows = union.taken(number)
            return rows, (len(rows),), union.rates(number)
        groups = shape.groups()
        epoch, index = divmod(number, len(groups))
        return self._rows(number), groups[index], self._rates(epoch, index)

    def counting(self, source: RecordedSource) -> TrafficShape:
        """The shape of a run on sparse rows, which knows how many values they store."""
        known: dict[int, Array] = {}

        def stored(number: int, columns: int) -> int:
            if columns not in known:
                known[columns] = source.lengths(columns)
            return int(known[columns][self._rows(number)].sum())

        return replace(self.shape, stored=stored)

    def _rows(self, number: int) -> Array:
        """The rows of exchange `number` of replica 0, from 0."""
        groups = self.shape.groups()
        epoch, index = divmod(number, len(groups))
        first = sum(map(sum, groups[:index]))
        return self._order(epoch)[first : first + sum(groups[index])]

    def points(self, number: int) -> tuple[Point, Point]:
        """The recorded state before and after exchange `number`."""
        found, K = self.recording.states[number], self.result.report["classes"]
        return _point(found, "before", K), _point(found, "after", K)

    def _order(self, epoch: int) -> Array:
        """The local rows of replica 0."""
        rows = split_range(self.shape.rows, self.shape.replicas, 0).stop
        return order_of(self.config.sampling, rows, 0, epoch)

    def _rates(self, epoch: int, index: int) -> Array:
        schedule = self.config.schedule
        rows = split_range(self.shape.rows, self.shape.replicas, 0).stop
        steps = [len(g) for g in plan_groups(rows, schedule.batch, schedule.steps)]
        epochs = schedule.epochs
        rate = make_rate(self.config.rate, epochs * sum(steps), epochs)
        return rate.at(epoch * sum(steps) + sum(steps[:index]), steps[index])


def open_recorded_run(folder: Path) -> RecordedRun:
    """Read a run folder for replay; a run without a recording is refused."""
    result = load_result(folder)
    _check_replayable(folder, result)
    recording = read_recording(folder / NAME)
    config = RunConfig.parse(result.config)
    scene = RecordedRun(
        folder,
        result,
        recording,
        config,
        config.precision.resolve(),
        get_family(config.problem.family),
    )
    _check_report(scene)
    return scene


def _check_replayable(folder: Path, result: Result) -> None:
    """Refuse what has no recording, and steps that are not those of plain SGD."""
    update, kind = result.config["update"], result.config["agreement"]["kind"]
    shares_gradients = agreement_in(result.config).shares_gradients
    is_recorded = (folder / NAME).exists()
    for is_wrong, why in (
        (
            update["kind"] == COORDINATE,
            "is of a coordinate form, and verify replays SGD; what it found has its gap"
            " in the history, and hpcsgd evaluate takes the loss again",
        ),
        (
            update.get("clip", "none") != "none",
            "is of a run that clipped its gradients, and verify replays plain SGD;"
            " verify a run with update.clip = 'none'",
        ),
        (
            update["kind"] in ADAPTIVE,
            f"is of {update['kind']}, and verify replays plain SGD; hpcsgd evaluate"
            " takes its loss again",
        ),
        (
            update["kind"] == "svrg",
            "is of SVRG, and verify replays plain SGD; the gradient in its history says"
            " how far it is from the optimum",
        ),
        (
            "models" in result.report,
            "is of a sweep, and verify replays one model; train the model in question"
            " with hpcsgd train and verify that run",
        ),
        (
            shares_gradients and kind != GRADIENT and not is_recorded,
            f"is of --agreement {kind}, whose steps are not recorded; hpcsgd evaluate"
            " takes its loss again",
        ),
        (
            not is_recorded,
            f"holds no {NAME}, so no exchange can be replayed; train with --out and"
            " --record of at least 1, and with plain steps: others are not recorded",
        ),
    ):
        if is_wrong:
            raise DataError(f"{folder} {why}")


def _check_report(scene: RecordedRun) -> None:
    """Refuse a result of an older package, or a recording of another run."""
    report, said = scene.result.report, scene.recording.facts
    wanted = {"rows", "columns", "classes", "grid", "data_fingerprint", "resumes"}
    if not wanted <= set(report):
        raise DataError(f"{scene.folder} was written by another hpcsgd; train it again")
    if said["fingerprint"] != report["data_fingerprint"]:
        raise DataError(
            f"{scene.folder / NAME} belongs to a run on other data; train it again"
        )
    wide = scene.shape.classes * scene.shape.states
    for number, state in scene.recording.states.items():
        shape = state["weights_before"].shape
        if shape != (report["columns"], wide) or number > scene.result.exchanges:
            raise DataError(
                f"{scene.folder / NAME} holds exchange {number} of another run;"
                " train it again"
            )


def _point(found: dict[str, Array], moment: str, classes: int) -> Point:
    weights = found[f"weights_{moment}"]
    none: Array = np.zeros((1, classes))
    intercept: Any = found.get(f"intercept_{moment}", none)
    speed = weights[:, classes:]
    return {
        "w": weights[:, :classes],
        "v": speed if speed.size else np.zeros_like(weights),
        "b": intercept[0],
        "bv": intercept[1] if len(intercept) > 1 else none[0],
    }
