"""Replay recorded exchanges in longdouble and compare the results."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import hypot
from pathlib import Path
from typing import Any

import numpy as np

from hpcsgd.agreements.base import DataSize, GridSize, RunShape
from hpcsgd.backends.base import ColumnExponents, make_scaling
from hpcsgd.backends.numpy_rows import weigh
from hpcsgd.config import RunConfig, agreement_in
from hpcsgd.data.checksums import Fingerprint
from hpcsgd.data.matrix import Csr
from hpcsgd.data.readers import CHUNK_BYTES, RowReader, is_sparse
from hpcsgd.data.sampling import FoldSplit, plan_groups
from hpcsgd.data.shard import column_peaks, sparse_pieces, split_by_weight, split_range
from hpcsgd.data.targets import encode_targets
from hpcsgd.errors import DataError
from hpcsgd.formats import Array, decode, encode, get_format
from hpcsgd.glm import ADAPTIVE, get_family
from hpcsgd.glm.families import Family
from hpcsgd.glm.updates import make_rate
from hpcsgd.precision import FIELDS, RECIPES, Precision
from hpcsgd.products.base import product_facts
from hpcsgd.runs.recording import NAME, Recording, read_recording
from hpcsgd.runs.result import Result, load_result
from hpcsgd.solvers.coordinate import COORDINATE
from hpcsgd.studies.verify.allowance import (
    PARTS,
    Allowance,
    ExchangeSums,
    L,
    Point,
    RecordedExchange,
    RecordedSteps,
    Sides,
    clip_of,
    look,
    residual,
    step,
)

# An exchange must equal plain mini-batch SGD, which is replayed in longdouble.
#
# The replay uses the rows as the run stored them. If the run stored margins in few bits
# (recipe `c`), the replay rounds them, too: the run computed a z within ε of the exact
# margin and stored fl(z). If fl(z − ε) = fl(z + ε), this number is known, in whatever
# order the run summed, and the replay uses it. Otherwise the margin is doubtful: the
# replay uses z, and the tolerance includes the distance to the farther of the two
# numbers. `allowance.py` computes the rest of the tolerance. If a few doubtful margins
# leave an exchange undecided, it is replayed with each of the two numbers; one of these
# replays has the numbers that a correct run stored.
#
# An exchange is decided if its tolerance is at most `DECISIVE` of a step: a result with
# a larger error cannot pass.

GRADIENT = "gradient"  # the only agreement on gradients whose steps are replayed
DECISIVE = 1 / 50  # the largest tolerance of a decided exchange, in steps
CHOSEN = 5  # the most doubtful margins of which both numbers are tried
GROUPS = {"w": ("w", "b"), "b": ("w", "b"), "v": ("v", "bv"), "bv": ("v", "bv")}


@dataclass(frozen=True)
class Replay:
    """The state at the end of a replayed exchange, and its tolerances."""

    end: Point
    allowed: dict[str, float]  # the tolerance of each part of `end`
    doubtful: int  # margins that the run may have stored as either of two numbers


def replay(
    exchange: RecordedExchange, start: Point, choices: tuple[bool, ...] = ()
) -> Replay:
    """Replay all steps of an exchange.

    Parameters
    ----------
    exchange : RecordedExchange
        Rows, rates and settings of the exchange.
    start : mapping
        The state before it.
    choices : tuple of bool
        For each of the first doubtful margins, whether the larger number is used.

    Returns
    -------
    Replay
        The state after the last step, and its tolerances.
    """
    sides = exchange.sides
    steps = exchange.steps
    with np.errstate(all="ignore"):
        allowance = Allowance(exchange, start, choices)
        point = {name: value.astype(L) for name, value in start.items()}
        for j, batch in enumerate(allowance.batches):
            at = look(steps, point["w"], point["v"])
            shift = look(steps, point["b"], point["bv"]) + sides.offsets[batch]
            z, off = allowance.margins(j, at)
            t = z + shift
            y = sides.targets[batch]
            c = sides.weights[batch]
            r = residual(exchange.family, t, y, exchange.clip) * c
            count = len(r)
            g = exchange.rows[batch].T @ r / count + L(steps.l2) * at
            before = point
            point = step(exchange, point, g, r.sum(axis=0) / count, L(steps.rates[j]))
            allowance.take(j, before, point, (t, shift + 0 * t), off, r)
        return Replay(point, allowance.bounds(point), allowance.doubtful)


@dataclass(frozen=True)
class ReplayDifference:
    """Deviation and tolerance of one part of the state, relative to the step."""

    part: str
    deviation: float
    tolerance: float

    @property
    def is_within(self) -> bool:
        """Return whether the deviation is at most the tolerance; False if it is nan."""
        return self.deviation <= self.tolerance

    @property
    def is_decided(self) -> bool:
        """Return whether the result is wrong, or a wrong result could not have passed.

        A wrong result could have passed if the tolerance is above DECISIVE.
        """
        return not self.is_within or self.tolerance <= DECISIVE


def compare(
    exchange: RecordedExchange, start: Point, end: Point, parts: tuple[str, ...] = PARTS
) -> ReplayDifference:
    """Return the difference between a run's state `end` and the replay.

    It is the difference of the worst part of the state: a wrong part, or else an
    undecided one, or else the part with the largest ratio of deviation to tolerance.
    """
    first = _compare(start, end, replay(exchange, start), parts)
    if first.is_decided:
        return first
    return _search(exchange, start, end, parts) or first


def _search(
    exchange: RecordedExchange, start: Point, end: Point, parts: tuple[str, ...]
) -> ReplayDifference | None:
    """Try both numbers of the doubtful margins; return the decisive difference.

    A format allows the run either number, so a correct run equals one of the replays.
    If none of them explains the run, the closest one counts. The result is None if a
    replay explains the run, but is not decisive after all choices of the doubtful
    margins that are tried, of at most `CHOSEN` of them.
    """
    waiting: list[tuple[bool, ...]] = [()]
    failed: list[ReplayDifference] = []
    while waiting:
        choices = waiting.pop()
        candidate = replay(exchange, start, choices)
        difference = _compare(start, end, candidate, parts)
        if not difference.is_within:
            failed.append(difference)
        elif difference.is_decided:
            return difference
        elif len(choices) < min(candidate.doubtful, CHOSEN):
            waiting += [(*choices, False), (*choices, True)]
        else:
            return None
    return min(failed, key=lambda difference: difference.deviation)


def _compare(
    start: Point, end: Point, exact: Replay, parts: tuple[str, ...]
) -> ReplayDifference:
    used = [name for name in parts if exact.end[name].any() or end[name].any()]
    differences = []
    for name in used:
        group = [n for n in GROUPS[name] if n in used]
        length = hypot(*(_norm(exact.end[n] - start[n]) for n in group)) or 1.0
        deviation = _norm(end[name].astype(L) - exact.end[name])
        tolerance = exact.allowed[name]
        differences.append(
            ReplayDifference(name, deviation / length, tolerance / length)
        )
    return max(differences, key=_order, default=ReplayDifference("w", 0.0, 0.0))


def _order(difference: ReplayDifference) -> tuple[bool, bool, float]:
    """Return a sort key: wrong parts are largest, then undecided, then close ones."""
    if not np.isfinite(difference.deviation):
        return True, True, np.inf
    share = difference.deviation / max(difference.tolerance, np.finfo(float).tiny)
    return not difference.is_within, not difference.is_decided, share


def _norm(values: Array) -> float:
    return float(np.sqrt(np.sum(np.square(values))))


def deciding(exchange: RecordedExchange, start: Point, parts: tuple[str, ...]) -> str:
    """Return the setting with which an exchange like this one would be decided.

    The setting changes one field to float32 if that is enough, or else the whole
    recipe. The result is "" if float64 is not enough, either.
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
        candidate = replay(replace(exchange, precision=precision), start)
        if _compare(start, candidate.end, candidate, parts).is_decided:
            return words
    return ""


def _unit(precision: Precision, field: str) -> float:
    return get_format(getattr(precision, field)).unit_roundoff


# One process reads the data of a run again.

WHOLE = FoldSplit()


@dataclass(frozen=True)
class RecordedSource:
    """The data of a run, and the formats in which the run stored them."""

    reader: RowReader
    precision: Precision
    given: Sides  # as in the data file
    scale: str = "column"  # [precision] scale

    @cached_property
    def stored(self) -> Sides:
        """Return targets, weights and offsets as the run stored them."""
        return self.given.rounded(self.precision.working)

    def rows(self, numbers: Array) -> Array:
        """Return these rows of X in longdouble, rounded as the run rounded them."""
        whole = slice(0, self.reader.cols)
        # Each row is read once, and neighbours are read together.
        ordered, place = np.unique(numbers, return_inverse=True)
        cuts = np.flatnonzero(np.diff(ordered) != 1) + 1
        parts = [
            self.reader.read(slice(int(p[0]), int(p[-1]) + 1), whole)
            for p in np.split(ordered, cuts)
        ]
        name = self.precision.matrix
        scaling = self._scaling
        values = np.concatenate(parts)
        stored = encode(values if scaling is None else scaling.up(values), name)
        widened = decode(stored, name, self.precision.working)
        if scaling is not None:
            scaling.down(widened)
        return widened[place].astype(L)

    @cached_property
    def _scaling(self) -> ColumnExponents | None:
        """Return the exponents of columns in a format of a small range, else None."""
        form = get_format(self.precision.matrix)
        whole = slice(0, self.reader.cols)
        if not form.wants_scale:
            return None
        peaks = column_peaks(self.reader, slice(0, self.reader.rows), whole)
        is_one = is_sparse(self.reader) and self.scale == "column"
        return make_scaling(form, peaks, whole, "global" if is_one else self.scale)

    def blocks(self) -> Any:
        """Yield all rows as pairs of a slice and its X."""
        step = max(CHUNK_BYTES // (16 * self.reader.cols), 1)
        for start in range(0, self.reader.rows, step):
            rows = slice(start, min(start + step, self.reader.rows))
            yield rows, self.reader.read(rows, slice(0, self.reader.cols))

    def lengths(self, columns: int) -> Array:
        """Return the number of stored values of each sparse row.

        Only the first `columns` columns are counted.
        """
        return np.concatenate([p.lengths for _, p in self._pieces(columns)])

    @cached_property
    def column_counts(self) -> Array:
        """Return the number of stored values of each column of sparse rows."""
        counts = np.zeros(self.reader.cols)
        for _, piece in self._pieces(self.reader.cols):
            counts += np.bincount(piece.indices, minlength=self.reader.cols)
        return counts

    def _pieces(self, columns: int) -> Iterator[tuple[int, Csr]]:
        rows = slice(0, self.reader.rows)
        cols = slice(0, columns)
        return sparse_pieces(self.reader, rows, cols, CHUNK_BYTES)

    def fingerprint(self) -> str:
        """Return the fingerprint of all values, as training computes it."""
        fingerprint = Fingerprint(weigh)
        every = slice(0, self.reader.rows)
        if is_sparse(self.reader):
            for start, piece in self._pieces(self.reader.cols):
                fingerprint.add_sparse(piece, start, 0)
        else:
            for rows, X in self.blocks():
                fingerprint.add(X, rows.start, 0)
        columns = (self.reader.targets, self.reader.sample_weight, self.reader.offset)
        for number, column in enumerate(columns):
            fingerprint.add_column(number, column(every), 0)
        return fingerprint.total(self.reader.rows, self.reader.cols, lambda own: [own])


def open_source(
    reader: RowReader,
    family: Family,
    precision: Precision,
    split: FoldSplit = WHOLE,
    scale: str = "column",
) -> RecordedSource:
    """Return the whole data with targets and weights encoded as in a run.

    Rows that `split` keeps apart from training have the weight 0.
    """
    every = slice(0, reader.rows)
    encoded, _ = encode_targets(
        reader.targets(every), family.targets, 0, lambda own: [own]
    )
    c = reader.sample_weight(every)
    o = reader.offset(every)
    c = np.ones(reader.rows) if c is None else c
    if not split.is_whole:
        c = c * ~split.kept_apart(every)[:, 0]
    c = c * (reader.rows / float(c.sum()))
    o = np.zeros(reader.rows) if o is None else o
    sides = Sides(encoded.astype(np.float64), c[:, None], o[:, None])
    return RecordedSource(reader, precision, sides, scale)


# docs/reference/runs.md defines the order of rows; this is a second implementation.


def order_of(sampling: Any, rows: int, replica: int, epoch: int) -> Array:
    """Return the order of the local rows of a replica in one epoch."""
    if sampling.mode == "in-order":
        return np.arange(rows)
    key = 0 if sampling.mode == "shuffle-once" else epoch + 1
    rng = np.random.default_rng((sampling.seed, replica, key))
    if sampling.mode == "replacement":
        drawn: Array = rng.integers(rows, size=rows)
        return drawn
    if sampling.mode == "blocks":
        return _by_windows(rng, rows, sampling.block, sampling.window)
    return rng.permutation(np.arange(rows))


def _by_windows(rng: np.random.Generator, rows: int, block: int, window: int) -> Array:
    """Return the numbers 0 to `rows` − 1 as blocks in random order, then shuffled.

    A block has `block` numbers in a row. The numbers of each `window` successive blocks
    are shuffled together.
    """
    blocks = np.split(np.arange(rows), range(block, rows, block))
    order = rng.permutation(len(blocks))
    windows = np.split(order, range(window, len(order), window))
    return np.concatenate(
        [rng.permutation(np.concatenate([blocks[b] for b in part])) for part in windows]
    )


# Replicas that share gradients take one step together in an exchange.
#
# The rows of a replica are a function of seed, epoch and replica, so that one process
# can read the rows of all replicas and replay their common step, Σ_p s_p / Σ_p n_p.


@dataclass(frozen=True)
class Union:
    """The rows and rates of all replicas of a run that share gradients."""

    config: RunConfig
    rows: int  # of the data
    replicas: int

    @property
    def each(self) -> int:
        """Return the exchanges of an epoch: those of the largest replica."""
        return len(self._batches(0))

    def taken(self, number: int) -> Array:
        """Return the rows of exchange `number`, from 0, replica by replica."""
        epoch, index = divmod(number, self.each)
        parts = [self._of(replica, epoch, index) for replica in range(self.replicas)]
        return np.concatenate(parts)

    def rates(self, number: int) -> Array:
        """Return the rate of the one step of exchange `number`, from 0, (1,)."""
        epochs = self.config.schedule.epochs
        return make_rate(self.config.rate, epochs * self.each, epochs).at(number, 1)

    def _of(self, replica: int, epoch: int, index: int) -> Array:
        """Return the rows of one replica in exchange `index` of an epoch.

        There are none after its last batch of the epoch.
        """
        batches = self._batches(replica)
        part = self._part(replica)
        first = sum(batches[:index])
        local = order_of(self.config.sampling, part.stop - part.start, replica, epoch)
        taken: Array = (
            part.start + local[first : first + sum(batches[index : index + 1])]
        )
        return taken

    def _batches(self, replica: int) -> list[int]:
        """Return the number of rows in each exchange of an epoch, for one replica.

        An exchange takes `accumulate` batches.
        """
        part = self._part(replica)
        batch = self.config.schedule.batch
        accumulate = self.config.agreement.accumulate
        sizes = plan_groups(part.stop - part.start, batch, accumulate)
        return [sum(group) for group in sizes]

    def _part(self, replica: int) -> slice:
        return split_range(self.rows, self.replicas, replica)


# A finished run is read from its folder.


@dataclass(frozen=True)
class RecordedRun:
    """The result, recording and settings of a run folder."""

    folder: Path
    result: Result
    recording: Recording
    config: RunConfig
    precision: Precision
    family: Family

    @property
    def shape(self) -> RunShape:
        """Return all sizes and settings that the traffic of the run depends on."""
        report = self.result.report
        update = self.config.update.kind
        return RunShape(
            config=self.config,
            precision=self.precision,
            data=DataSize(
                rows=report["rows"],
                columns=report["columns"],
                sparse=bool(report.get("sparse")),
            ),
            grid=GridSize(report["grid"]["replicas"]),
            classes=report["classes"],
            states=1 if update == "sgd" else 2,
        )

    def model(self) -> tuple[Array, Array]:
        """Return the weights (d, K) and the intercept (K,), zero without one."""
        w = self.result.weights
        w = w.reshape(len(w), -1)
        b = self.result.intercept
        return w, np.zeros(w.shape[1]) if b is None else np.reshape(b, w.shape[1])

    def exchange(self, number: int, source: RecordedSource) -> RecordedExchange:
        """Return rows, rates and settings of exchange `number`, from 1."""
        config = self.config
        update = config.update
        rows, sizes, rates = self._steps(number - 1)
        leg = self._leg(number)
        gathers = product_facts(leg["product"]).holds_all_columns
        agrees = self.agrees_on_gradients
        return RecordedExchange(
            family=self.family,
            rows=source.rows(rows),
            sides=source.stored.of_rows(rows).rounded(L),
            steps=RecordedSteps(
                sizes=sizes,
                rates=rates,
                l2=config.problem.l2,
                update=update.kind,
                momentum=0.0 if update.kind == "sgd" else update.momentum,
            ),
            intercept=config.problem.intercept,
            clip=clip_of(get_format(self.precision.residual).carrier),
            precision=self.precision,
            sums=ExchangeSums(
                in_steps=agrees or gathers or leg["product"] == "direct",
                members=1 if gathers else leg["members"],
                replicas=self.shape.replicas if agrees else 1,
            ),
        )

    def _leg(self, number: int) -> dict[str, Any]:
        """Return the leg of the recording that contains exchange `number`, from 1.

        It is the last leg if none contains it.
        """
        legs = self.recording.legs
        return next((leg for leg in legs if number <= leg["last"]), legs[-1])

    @property
    def agrees_on_gradients(self) -> bool:
        """Return whether all replicas take one step together in an exchange."""
        return self.config.agreement.kind == GRADIENT

    @property
    def replayed(self) -> tuple[str, ...]:
        """Return the parts of the state that can be replayed.

        If replicas send gradients through a codec other than identity, only the
        intercept and its momentum can, or nothing if there is no intercept.
        """
        is_exact = self.config.agreement.codec == "identity" or self.shape.replicas == 1
        if self.agrees_on_gradients and not is_exact:
            return ("b", "bv") if self.shape.intercept else ()
        return PARTS

    def _steps(self, number: int) -> tuple[Array, tuple[int, ...], Array]:
        """Return rows, batch sizes and rates of exchange `number`, from 0."""
        shape = self.shape
        if self.agrees_on_gradients:
            union = Union(self.config, shape.data.rows, shape.replicas)
            rows = union.taken(number)
            return rows, (len(rows),), union.rates(number)
        groups = shape.groups()
        epoch, index = divmod(number, len(groups))
        return self._rows(number), groups[index], self._rates(epoch, index)

    def counting(self, source: RecordedSource) -> RunShape:
        """Return the shape of a run on sparse rows, with counts of stored values.

        `stored` is a function of an exchange, from 0, and a number of columns: it
        returns how many values the exchange's rows of replica 0 store in the first
        columns. `first_columns` divides the columns by stored values, as the run did.
        """
        lengths: dict[int, Array] = {}

        def stored(number: int, columns: int) -> int:
            if columns not in lengths:
                lengths[columns] = source.lengths(columns)
            return int(lengths[columns][self._rows(number)].sum())

        def first_columns(members: int) -> int:
            return int(split_by_weight(source.column_counts, members)[0].stop)

        shape = self.shape
        data = replace(shape.data, stored=stored)
        if self.config.data.partition != "equal":
            data = replace(data, first_columns=first_columns)
        return replace(shape, data=data)

    def _rows(self, number: int) -> Array:
        """Return the rows of exchange `number`, from 0, of replica 0."""
        groups = self.shape.groups()
        epoch, index = divmod(number, len(groups))
        first = sum(map(sum, groups[:index]))
        return self._order(epoch)[first : first + sum(groups[index])]

    def points(self, number: int) -> tuple[Point, Point]:
        """Return the recorded states before and after exchange `number`."""
        state = self.recording.states[number]
        classes = self.result.report["classes"]
        return _point(state, "before", classes), _point(state, "after", classes)

    def _order(self, epoch: int) -> Array:
        """Return the order of the rows of replica 0 in an epoch."""
        rows = self.shape.own_rows
        return order_of(self.config.sampling, rows, 0, epoch)

    def _rates(self, epoch: int, index: int) -> Array:
        schedule = self.config.schedule
        rows = self.shape.own_rows
        steps = [len(g) for g in plan_groups(rows, schedule.batch, schedule.steps)]
        epochs = schedule.epochs
        rate = make_rate(self.config.rate, epochs * sum(steps), epochs)
        return rate.at(epoch * sum(steps) + sum(steps[:index]), steps[index])


def open_recorded_run(folder: Path) -> RecordedRun:
    """Read a run folder for replay; raise DataError if it cannot be replayed."""
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
        get_family(config.problem.family, vars(config.problem)),
    )
    _check_report(scene)
    return scene


def _check_replayable(folder: Path, result: Result) -> None:
    """Refuse a run without a recording, and one whose steps cannot be replayed.

    These are steps of coordinate descent, SVRG and adaptive rules, clipped ones, and
    those of a sweep.
    """
    update = result.config["update"]
    kind = result.config["agreement"]["kind"]
    shares_gradients = agreement_in(result.config).shares_gradients
    is_recorded = (folder / NAME).exists()
    for is_wrong, why in (
        (
            update["kind"] == COORDINATE,
            "is of a coordinate form, and verify replays SGD; its history has the"
            " optimality gap, and hpcsgd evaluate computes the loss again",
        ),
        (
            update.get("clip", "none") != "none",
            "is of a run that clipped its gradients, and verify replays plain SGD;"
            " verify a run with update.clip = 'none'",
        ),
        (
            result.config.get("privacy", {}).get("kind", "none") != "none",
            "is of DP-SGD, and verify replays steps without noise; hpcsgd evaluate"
            " computes its loss again",
        ),
        (
            update["kind"] in ADAPTIVE,
            f"is of {update['kind']}, and verify replays plain SGD; hpcsgd evaluate"
            " computes its loss again",
        ),
        (
            update["kind"] == "svrg",
            "is of SVRG, and verify replays plain SGD; the gradient in its history says"
            " how far it is from the optimum",
        ),
        (
            result.config["agreement"].get("proximal", 0.0) > 0.0,
            "is of FedProx, and verify replays plain SGD; hpcsgd evaluate computes its"
            " loss again",
        ),
        (
            "models" in result.report,
            "is of a sweep, and verify replays one model; train the model in question"
            " with hpcsgd train and verify that run",
        ),
        (
            shares_gradients and kind != GRADIENT and not is_recorded,
            f"is of --agreement {kind}, whose steps are not recorded; hpcsgd evaluate"
            " computes its loss again",
        ),
        (
            not is_recorded,
            f"holds no {NAME}, so no exchange can be replayed; train with --out and"
            " --record of at least 1, by plain SGD, or with momentum if replicas do not"
            " send gradients",
        ),
    ):
        if is_wrong:
            raise DataError(f"{folder} {why}")


def _check_report(scene: RecordedRun) -> None:
    """Refuse the result of an older version, and a recording of another run."""
    report = scene.result.report
    needed = {"rows", "columns", "classes", "grid", "data_fingerprint", "resumes"}
    if not needed <= set(report):
        raise DataError(
            f"{scene.folder} was written by another version of hpcsgd; train the run"
            " again"
        )
    if scene.recording.facts["fingerprint"] != report["data_fingerprint"]:
        raise DataError(
            f"{scene.folder / NAME} was recorded on other data than those of the result"
            " in this folder; train the run again"
        )
    wide = scene.shape.classes * scene.shape.states
    for number, state in scene.recording.states.items():
        shape = state["weights_before"].shape
        if shape != (report["columns"], wide) or number > scene.result.exchanges:
            raise DataError(
                f"{scene.folder / NAME} holds exchange {number} of another run than the"
                " result in this folder; train the run again"
            )


def _point(state: dict[str, Array], moment: str, classes: int) -> Point:
    weights = state[f"weights_{moment}"]
    none: Array = np.zeros((1, classes))
    intercept: Any = state.get(f"intercept_{moment}", none)
    speed = weights[:, classes:]
    return {
        "w": weights[:, :classes],
        "v": speed if speed.size else np.zeros_like(weights),
        "b": intercept[0],
        "bv": intercept[1] if len(intercept) > 1 else none[0],
    }
