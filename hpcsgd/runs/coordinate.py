"""A run of coordinate descent."""

import logging
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hpcsgd.backends.base import emulated_fields
from hpcsgd.comm.communicator import Communicator
from hpcsgd.comm.grid import close_on_agreed_error
from hpcsgd.comm.ledger import Clock
from hpcsgd.config import FIT, RunConfig, UpdateConfig, table_of
from hpcsgd.data.matrix import Csr, DenseMatrix, index_dtype
from hpcsgd.data.readers import RowReader
from hpcsgd.data.sampling import make_sampler, plan_groups
from hpcsgd.data.shard import Shard
from hpcsgd.errors import ConfigError
from hpcsgd.formats import Array, get_format
from hpcsgd.glm.penalties import Penalty, ProblemConfig
from hpcsgd.glm.unrolling import blocks_of
from hpcsgd.precision import AUTO, Precision
from hpcsgd.products.cost import CACHE_BUDGET, ProductsConfig
from hpcsgd.products.observers import Observers
from hpcsgd.runs.advice import judge_fit
from hpcsgd.runs.checks import penalty_of, resolve_grid
from hpcsgd.runs.energy import make_meter, total
from hpcsgd.runs.folder import RunFolder
from hpcsgd.runs.load import LoadedRows
from hpcsgd.runs.loop import PollSchedule, Training, TrainingLoop
from hpcsgd.runs.opened_run import OpenedRun, open_run
from hpcsgd.runs.progress import History
from hpcsgd.runs.report import machine_facts, named
from hpcsgd.runs.result import Result, Status
from hpcsgd.runs.session import (
    Session,
    borrow_world,
    check_settings,
    write_result,
)
from hpcsgd.settings import refuse
from hpcsgd.solvers.callbacks import Callback, Callbacks, Request, View
from hpcsgd.solvers.coordinate import (
    COORDINATE,
    FAMILY_OF,
    CoordinatePoint,
    Exchanges,
    grid_of_form,
)
from hpcsgd.solvers.coordinate_forms import Dual, Form, FormModel, NewtonForm, Primal
from hpcsgd.solvers.evaluation import Columns, HistoryRecords
from hpcsgd.solvers.full_passes import (
    Centers,
    WeightedMoments,
    centre,
    find_centers,
    gap_scale,
    open_rows,
)
from hpcsgd.solvers.objective import BLOCK_ROWS, BLOCK_VALUES, Objective

# What a coordinate form does not do, each in a sentence that names what does.

ASK = f"--update {COORDINATE}"
KINDS = ("auto", "gram", "cached")
MODES = ("shuffle-once", "reshuffle")


def form_of(config: RunConfig, ranks: int) -> str:
    """Return the name of the form of coordinate descent for `config` on `ranks` ranks.

    Raise ConfigError if no form can run.
    """
    refuse(_refusals(config, ranks))
    return config.coordinate.best_form(config.problem)


def fits(config: RunConfig) -> bool:
    """Return whether coordinate descent has a form for the problem of `config`."""
    return not any(_of_problem(config))


def fastest_form(family: str, l1: float, ranks: int) -> str:
    """Return "newton" for least squares with l1 on one rank, else "auto".

    One rank has no message that a Gram would save. There the form newton takes the
    least time, since it computes with the columns of a working set alone.
    """
    return "newton" if ranks == 1 and l1 and family == FAMILY_OF["primal"] else "auto"


def _refusals(config: RunConfig, ranks: int) -> Iterator[str]:
    yield from _of_problem(config)
    yield from _of_method(config)
    yield from _of_run(config)
    yield from _of_grid(config, ranks)


def _of_problem(config: RunConfig) -> Iterator[str]:
    problem = config.problem
    form = config.coordinate.best_form(config.problem)
    if form in FAMILY_OF and problem.family != FAMILY_OF[form]:
        yield (
            f"the {form} form is for {FAMILY_OF[form]}, not {problem.family}; use --set"
            " coordinate.form=newton, or leave it out"
        )
    if form != "dual":
        return
    instead = "leave coordinate.form out, or set it to newton"
    if problem.l2 == 0.0:
        yield f"the dual form needs a ridge; set --l2, or {instead}"
    if not problem.is_smooth:
        yield f"the dual form knows no l1 and no bounds; {instead}"
    if problem.intercept:
        yield (
            "the dual form has no intercept: unpenalised, it would tie all dual"
            f" variables together; {instead}"
        )


def _of_method(config: RunConfig) -> Iterator[str]:
    precision = config.precision
    sampling = config.sampling
    formats = set(vars(precision.resolve()).values())
    if precision.recipe == AUTO or formats not in ({"fp32"}, {"fp64"}):
        yield f"{ASK} computes in fp32 or fp64; use --precision fp32 or fp64"
    if sampling.mode not in MODES:
        yield (
            f"{ASK} takes every item once an epoch, and --sampling {sampling.mode} does"
            f" not; use {' or '.join(MODES)}"
        )
    if config.products.kind not in KINDS:
        yield (
            f"{ASK} sums a Gram, and --products {config.products.kind} has none; use"
            f" {', '.join(KINDS)}"
        )
    if config.products.kind == "cached" and sampling.mode != "shuffle-once":
        yield (
            "--products cached needs groups that come again; use --sampling"
            " shuffle-once, or --products gram"
        )
    if not config.schedule.steps:
        yield f"{ASK} has no model of its times; choose --steps"
    if sampling.hold_out:
        yield f"{ASK} trains on all rows; use sampling.hold_out = 0"
    if config.stop.on != "none" or config.polish.kind != "none":
        yield f"{ASK} goes to its own optimum; use coordinate.tol alone"
    if config.update.clip != "none":
        yield f"{ASK} has no rate, and so nothing to clip; use update.clip = 'none'"
    if config.privacy.is_on:
        yield (
            f"{ASK} has no gradients of rows to clip; use --update sgd, or"
            " privacy.kind = 'none'"
        )
    if config.average.kind != "none":
        yield f"{ASK} has no noise to average away; use average.kind = 'none'"
    if config.products.look_ahead == "on":
        yield f"{ASK} sums no Gram ahead; use products.look_ahead = 'off'"


def _of_run(config: RunConfig) -> Iterator[str]:
    run = config.run
    if run.device != "cpu":
        yield f"{ASK} runs on the CPU; use --device cpu"
    if run.resume != "no":
        yield f"{ASK} writes no checkpoints, so there is nothing to --resume"
    if config.checkpoint.every:
        yield f"{ASK} writes no checkpoints; use checkpoint.every = 0"
    if run.emulate_members:
        yield f"{ASK} cannot be one of --emulate-members; start as many ranks"
    if run.on_failure != "stop":
        yield f"{ASK} cannot go on after the loss of a rank; use --on-failure stop"


def _of_grid(config: RunConfig, ranks: int) -> Iterator[str]:
    grid = config.grid
    form = config.coordinate.best_form(config.problem)
    replicas, members = grid_of_form(form, ranks)
    if (grid.replicas, grid.members) in ((1, 0), (replicas, members)):
        return
    axis = "rows" if replicas > 1 else "columns"
    yield (
        f"{ASK} of {config.problem.family} has ranks that hold {axis}; use --grid"
        f" {replicas}x{members}, or leave it out"
    )


# Columns of sparse rows that hold a value somewhere: all that a form is about.
#
# A column without values adds nothing to any score, so its weight is what its penalty
# and bounds alone make least: 0, where the bounds allow it. Such columns are left out
# before a form is made, so that no array of it is as long as there are columns, unless
# there are not many more columns than values.


TABLE = 8  # columns for each value, up to which a table of all columns is made


@dataclass(frozen=True)
class Nonempty:
    """The columns of this rank that a form optimizes; the others have no values.

    Parameters
    ----------
    kept : ndarray of int64, (kept,), ascending numbers of local columns; None: all
    width : int, columns that this rank holds
    """

    kept: Array | None
    width: int

    def narrow(self, values: Array) -> Array:
        """Return the rows of `values`, (width, ...), that belong to kept columns."""
        return values if self.kept is None else values[self.kept]

    def widen(self, values: Array) -> Array:
        """Return (width, ...) from (kept, ...), with zeros for the other columns."""
        if self.kept is None:
            return values
        whole = np.zeros((self.width, *values.shape[1:]), dtype=values.dtype)
        whole[self.kept] = values
        return whole

    def penalty(self, penalty: Penalty) -> Penalty:
        """Return the penalty on the kept columns alone."""
        return penalty if self.kept is None else penalty.of(self.kept)

    def shard(self, shard: Shard, members: Communicator) -> Shard:
        """Return `shard` without the columns left out. Collective over `members`.

        A dense shard, which has none, is returned as it is, without a message.
        """
        matrix = shard.matrix
        columns = self.kept
        if not matrix.is_sparse:
            return shard
        # A member that keeps all of its columns takes part: others may not.
        widths = members.exchange_objects(
            self.width if columns is None else len(columns)
        )
        edges = np.cumsum([0, *widths]).tolist()
        parts = tuple(slice(a, b) for a, b in zip(edges, edges[1:], strict=False))
        if columns is not None:
            indices = self._numbers(matrix.indices)
            matrix = Csr(matrix.indptr, indices, matrix.data, len(columns))
        return replace(shard, matrix=matrix, columns=parts[members.rank], parts=parts)

    def reader(self, loaded: LoadedRows, shard: Shard) -> Callable[[slice], Any]:
        """Return a function that reads exact values of rows in the kept columns.

        Its argument is a slice of local rows.
        """
        if self.kept is None:
            return loaded.read_exact
        matrix = shard.matrix
        read = loaded.read_exact
        if matrix.is_sparse and read(slice(0, 0)).dtype == matrix.dtype:
            whole = matrix.to_scipy()  # the values that are stored are exact
            height = shard.height
            return lambda rows: (
                whole
                if (rows.start, rows.stop) == (0, height)
                else matrix[rows].to_scipy()
            )
        return lambda rows: self._narrowed(read(rows))

    def _narrowed(self, rows: Any) -> Any:
        """Return sparse SciPy rows without the columns that are left out."""
        columns = self.kept
        assert columns is not None
        indices = self._numbers(rows.indices)
        edges = rows.indptr.astype(np.int64)
        return Csr(edges, indices, rows.data, len(columns)).to_scipy()

    def _numbers(self, columns: Array) -> Array:
        """Return the positions of these columns among the kept columns."""
        nonempty = self.kept
        assert nonempty is not None
        dtype = index_dtype(len(nonempty))
        if self.width > TABLE * len(columns):
            return np.searchsorted(nonempty, columns).astype(dtype)
        table = np.empty(self.width, dtype=dtype)
        table[nonempty] = np.arange(len(nonempty), dtype=dtype)
        numbers: Array = table[columns]
        return numbers


def distinct(columns: Array, width: int) -> Array:
    """Return the distinct numbers below `width` in `columns`, ascending, int64."""
    if width > TABLE * len(columns):
        return np.unique(columns).astype(np.int64)
    is_there = np.zeros(width, dtype=bool)
    is_there[columns] = True
    return np.flatnonzero(is_there)


def find_nonempty(shard: Shard, penalty: Penalty, replicas: Communicator) -> Nonempty:
    """Return the local columns with a value on some replica. Collective.

    With sparse rows, the ranks of `replicas` send each other the numbers of the columns
    in which they have values; of dense rows all columns are kept, without a message. A
    column whose bounds do not allow 0 is kept, and at least one column is kept in any
    case.
    """
    width = shard.width
    if not shard.matrix.is_sparse:
        return Nonempty(None, width)
    columns = distinct(shard.matrix.indices, width)
    if replicas.size > 1:
        counts = list(replicas.exchange_objects(len(columns)))
        numbers = np.empty(sum(counts))
        replicas.gather(columns.astype(np.float64), counts, numbers, "control")
        columns = np.unique(numbers).astype(np.int64)
    bounds = (penalty.lower, penalty.upper)
    if any(np.ndim(bound) for bound in bounds):
        outside = np.less(0.0, penalty.lower) | np.greater(0.0, penalty.upper)
        columns = np.union1d(columns, np.flatnonzero(np.broadcast_to(outside, width)))
    elif penalty.lower > 0.0 or penalty.upper < 0.0:
        return Nonempty(None, width)
    if len(columns) == width:
        return Nonempty(None, width)
    return Nonempty(columns if len(columns) else np.zeros(1, dtype=np.int64), width)


# From a configuration to a form on the data of this rank, on all ranks together.


@dataclass(frozen=True)
class OpenedForm:
    """A form of coordinate descent on the data of this rank."""

    config: RunConfig
    problem: ProblemConfig  # that of the form; on a path, not the one of `config`
    opened: OpenedRun
    nonempty: Nonempty
    centers: Centers | None  # subtracted from the form's columns; None: nothing is
    form: Form
    exchanges: Exchanges
    clock: Clock

    @property
    def is_cached(self) -> bool:
        """Return whether the Gram matrices G are stored after their first use."""
        return self.exchanges.caches_grams

    @property
    def exchanges_planned(self) -> int:
        """Return the number of exchanges of an epoch that takes all items.

        Where sweeps need no exchange for each group, each sweep counts as one.
        """
        form = self.form
        schedule = self.config.schedule
        if form.is_alone:
            return form.sweeps
        return form.sweeps * len(
            plan_groups(form.count, schedule.batch, schedule.steps)
        )

    def close(self) -> None:
        """Close the communicators of the grid, but not the world. Collective."""
        self.opened.grid.close()


def open_form(
    config: RunConfig,
    world: Communicator,
    reader: Callable[[Communicator], RowReader],
    setup: Clock,
) -> OpenedForm:
    """Open the data and make the form. Collective.

    `config` has the grid that `resolve_grid` gives it. Raise an error on all ranks if
    the form cannot run.
    """
    world.together(lambda: form_of(config, world.size))
    opened = open_run(_plain(config), world, reader, setup)
    with close_on_agreed_error(opened.grid.close):
        ready = _prepare(config, opened)
    setup.lap("build")
    return ready


def _plain(config: RunConfig) -> RunConfig:
    """Return `config` for opening the data: the default update, and steps = 1."""
    schedule = replace(config.schedule, steps=1)
    return replace(
        config, update=UpdateConfig(), products=ProductsConfig(), schedule=schedule
    )


def _prepare(config: RunConfig, opened: OpenedRun) -> OpenedForm:
    words = opened.words
    grid = opened.grid
    loaded = opened.loaded
    shard, clock = loaded.shard, Clock()
    penalty = grid.world.together(
        lambda: penalty_of(config.problem, shard.total_columns).of(shard.columns)
    )
    nonempty = find_nonempty(shard, penalty, grid.replicas)
    judged = nonempty.shard(loaded.judged, grid.members)
    objective = Objective(
        grid=grid,
        family=words.family,
        shard=judged,
        penalty=nonempty.penalty(penalty),
        read=nonempty.reader(loaded, judged),
        columns=loaded.columns,
        block=_block(judged),
    )
    centers = moments = None
    if config.problem.intercept and not judged.is_sparse:
        rows = open_rows(objective)
        moments = rows.moments(rows.share)
        centers = find_centers(rows, moments)
    if centers is not None:
        moments = None  # of other columns
        values = centers.centred(objective.read(slice(0, judged.height)))
        centred = centre(objective, centers)
        objective = replace(centred, shard=replace(judged, matrix=DenseMatrix(values)))
    form = _make(config, objective, grid.world.size, loaded.columns, moments)
    wire = words.precision.gram_wire
    keeps = _keeps(config, words.precision, form.count, form.name)
    exchanges = Exchanges(form.members, wire, keeps, clock)
    return OpenedForm(
        config=config,
        problem=config.problem,
        opened=opened,
        nonempty=nonempty,
        centers=centers,
        form=form,
        exchanges=exchanges,
        clock=clock,
    )


def _block(shard: Shard) -> int:
    """Return how many rows are read at once; 0 leaves the number to the objective.

    The number follows from the density of sparse rows. It is 0 for dense rows, and with
    several members: they would choose different numbers, and they sum scores block by
    block.
    """
    if not shard.matrix.is_sparse or len(shard.parts) > 1:
        return 0
    most = BLOCK_VALUES * shard.height // max(shard.matrix.nnz, 1)
    return max(min(most, BLOCK_ROWS), 64)


def _make(
    config: RunConfig,
    objective: Objective,
    ranks: int,
    classes: int,
    moments: WeightedMoments | None,
) -> Form:
    intercept = config.problem.intercept
    kind = form_of(config, ranks)
    if kind == "dual":
        return Dual(objective)
    if kind == "primal":
        return Primal(objective, intercept)
    is_single = config.schedule.batch == 1
    return NewtonForm(objective, intercept, classes, is_single, moments)


def _keeps(config: RunConfig, precision: Precision, items: int, form: str) -> bool:
    """Return whether the Gram of every group is stored for later epochs.

    The setting `products.kind` decides; "auto" stores Grams that are used again and fit
    into `CACHE_BUDGET`. `items` is the number of coordinates, `form` the name of the
    form.
    """
    kind = config.products.kind
    sampling = config.sampling
    schedule = config.schedule
    if kind != "auto":
        return kind == "cached"
    m = min(schedule.batch * schedule.steps, items)
    word = get_format(precision.gram_wire).carrier.itemsize
    fits = items * m * max(word, 8) <= CACHE_BUDGET
    again = sampling.mode == "shuffle-once" and schedule.epochs > 1
    return fits and (again or form == "newton")


# What a coordinate run leaves behind, in the words that other runs use.


def result_of(
    run: "CoordinateTraining",
    point: CoordinatePoint,
    status: Status,
    began: float,
    setup: Mapping[str, float],
) -> Result:
    """Return the model and all measurements, the same on every rank. Collective."""
    ready = run.ready
    view = run.view
    opened = ready.opened
    weights, beta = ready.form.model(point)
    if beta is not None and ready.centers is not None:
        beta = beta - ready.centers.moved(ready.form.objective, weights)
    classes = opened.loaded.columns
    columns = Columns(opened.grid, opened.loaded.shard.parts, whole=False)
    joined = columns.join(ready.nonempty.widen(weights))
    facts = _facts(run, status, began, setup)
    result = Result(
        status=status,
        loss=float(view.loss),
        weights=joined if classes > 1 else joined[:, 0],
        intercept=beta if beta is None or classes > 1 else np.asarray(beta[0]),
        iterations=view.steps,
        exchanges=view.exchanges,
        history=list(view.history),
        ledger=opened.grid.world.ledger.as_dict(),
        config={**ready.config.tables(), "problem": table_of(ready.problem)},
        report=facts,
        preparation=opened.loaded.facts.preparation,
    )
    return result.in_int8() if ready.config.run.model == "int8" else result


def _facts(
    run: "CoordinateTraining",
    status: Status,
    began: float,
    setup: Mapping[str, float],
) -> dict[str, Any]:
    ready = run.ready
    view = run.view
    grid = ready.opened.grid
    loaded = ready.opened.loaded
    words = ready.opened.words
    schedule = ready.config.schedule
    clock = ready.clock
    phases = {k: v for k, v in clock.seconds.items() if k != "evaluate"}
    return {
        "solver": "coordinate",
        "coordinate": _ending(run, status),
        "schedule": {
            "batch": schedule.batch,
            "steps": schedule.steps,
            "period": schedule.period,
            "epochs": schedule.epochs,
            "global_batch": schedule.batch,
        },
        "grid": {"replicas": grid.replicas.size, "members": grid.members.size},
        "ranks": grid.world.size,
        "emulated_members": 0,
        "products": "cached" if ready.is_cached else "gram",
        "look_ahead": False,
        "rows": loaded.shard.total_rows,
        "columns": loaded.shard.total_columns,
        "sparse": loaded.shard.is_sparse,
        "density": loaded.density,
        "classes": loaded.columns,
        "labels": list(loaded.targets.labels),
        "precision": dict(vars(words.precision)),
        "precision_runs": emulated_fields(words.precision),
        "clipped_scores": 0,
        "mended_members": 0,
        "events": list(view.events),
        "seconds_total": view.seconds,
        "seconds_setup": sum(setup.values()),
        "seconds_evaluate": clock.seconds.get("evaluate", 0.0),
        "seconds_wall": time.perf_counter() - began,
        "seconds_by_phase": phases,
        "rows_per_second": view.rows / view.seconds if view.seconds > 0 else 0.0,
        **_of_all_ranks(run),
        "transport": grid.world.transport,
        "source": loaded.facts.source,
        **named(loaded),
        "data_fingerprint": loaded.facts.fingerprint,
        "resumes": 0,
        "checkpoints_written": 0,
        "checkpoints_failed": 0,
        **machine_facts(),
    }


def _ending(run: "CoordinateTraining", status: Status) -> dict[str, Any]:
    """Return the form of the descent, its last figures, and why it ended."""
    seen = run.evaluation.seen
    form = run.ready.form
    ended = "asked to stop"
    if status in (Status.COMPLETED, Status.CONVERGED, Status.WORSE):
        is_done = run.evaluation.has_reached_goal(run.view)
        ended = "converged" if is_done else "epochs used up"
    return {
        "form": form.name,
        "columns": form.objective.shard.total_columns,
        "ended": ended,
        "tol": run.ready.config.coordinate.tol,
        "gap": None if seen is None else seen.gap,
        "null_excess": form.worst,
        "gradient": None if seen is None else seen.gradient,
    }


def _of_all_ranks(run: "CoordinateTraining") -> dict[str, Any]:
    """Return the largest resident set of any rank, and the energy of all ranks.

    Collective, in one message.
    """
    peak_rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak_rss *= 1 if sys.platform == "darwin" else 1024  # macOS counts bytes
    world = run.ready.opened.grid.world
    everyone = world.exchange_objects((peak_rss, run.training.energy))
    energy, why = total(report for _, report in everyone)
    return {
        "peak_rss_bytes": int(max(rss for rss, _ in everyone)),
        "energy": energy,
        "energy_reason": why,
    }


# The solver: epochs of exchanges, and the gap or gradient that says what is enough.


@dataclass(frozen=True)
class EpochStep:
    """The steps and exchanges of one advance, and the share `done` / `planned`.

    That share of the epoch is done after them.
    """

    steps: int
    exchanges: int
    done: int
    planned: int


class Descent:
    """The solver that takes the steps of coordinate descent in the training loop."""

    is_resumable = False  # a form writes no checkpoint to continue from
    request = Request.NONE  # the loop polls all ranks
    facts: dict[str, Any] | None = None  # a form has a section of its own

    def __init__(self, ready: OpenedForm) -> None:
        self.ready = ready
        self.clock = ready.clock
        self.sampler = make_sampler(ready.config.sampling, ready.form.count, 0)
        self.epochs = 0  # that are over
        self.is_amid = False  # an epoch has begun and is not over
        self.evaluate_every = ready.config.run.evaluate_every
        self._steps: Iterator[EpochStep] = iter(())

    @property
    def length(self) -> "Descent":
        """Return the descent itself, which knows where its epochs end."""
        return self

    def begin(self, state: CoordinatePoint, view: View) -> None:
        """Do nothing: a form writes no checkpoint to continue from."""

    def advance(self, state: CoordinatePoint, view: View) -> CoordinatePoint:
        """Take the steps of one exchange; return the state, which is changed in place.

        A form that needs no exchanges makes some sweeps instead, each of which counts
        as an exchange.
        """
        self.clock.start()
        if not self.is_amid:
            self._begin_epoch(state)
        step = next(self._steps, EpochStep(steps=0, exchanges=1, done=1, planned=1))
        view.steps += step.steps
        rows_of_epoch = view.total_rows * step.done // step.planned
        view.rows = view.total_rows * self.epochs + rows_of_epoch
        if step.done == step.planned:
            self.ready.form.settle(state)
            self.epochs = self.epochs + 1
            self.is_amid = False
        view.exchanges += step.exchanges
        return state

    def finish(self, state: CoordinatePoint, view: View) -> CoordinatePoint:
        """Settle the form in an epoch that was interrupted; return the state.

        The model of the state then contains all steps that were taken.
        """
        if self.is_amid:
            self.ready.form.settle(state)
            self.is_amid = False
        return state

    def is_over(self, done: int) -> bool:
        """Return whether all epochs are over, whatever the exchange `done` is."""
        return self.epochs >= self.ready.config.schedule.epochs

    def epochs_done_after(self, number: int) -> int | None:
        """Return the number of completed epochs; None amid an epoch.

        The exchange is the last one, whatever `number` is.
        """
        return None if self.is_amid else self.epochs

    def is_evaluated_after(self, number: int) -> bool:
        """Return whether the last exchange ended an epoch that is evaluated."""
        every = self.evaluate_every
        return not self.is_amid and every > 0 and self.epochs % every == 0

    def _begin_epoch(self, point: CoordinatePoint) -> None:
        form = self.ready.form
        exchanges = self.ready.exchanges
        items = self.sampler.order(self.epochs).astype(np.int64, copy=False)
        order = form.prepare(point, items)
        if form.renews:
            exchanges.known.clear()
        self._steps = (
            self._sweeps(point) if form.is_alone else self._exchanges(point, order)
        )
        self.is_amid = True

    def _sweeps(self, point: CoordinatePoint) -> Iterator[EpochStep]:
        """Yield what is done after each call of the form's sweeps."""
        form = self.ready.form
        clock = self.clock
        clock.lap("gather")
        done = 0
        while done < form.sweeps:
            taken = form.sweep(point)
            clock.lap("inner")
            done = form.sweeps if taken.is_still else done + taken.sweeps
            yield EpochStep(taken.steps, taken.sweeps, done, form.sweeps)

    def _exchanges(self, point: CoordinatePoint, order: Array) -> Iterator[EpochStep]:
        """Yield what is done after each exchange.

        An epoch without items has no exchanges; it counts as one exchange that sends
        nothing.
        """
        form = self.ready.form
        schedule = self.ready.config.schedule
        groups = plan_groups(len(order), schedule.batch, schedule.steps)
        for sweep in range(form.sweeps):
            first = 0
            for number, sizes in enumerate(groups):
                blocks = blocks_of(sizes)
                items = np.ascontiguousarray(order[first : first + blocks.rows])
                first += blocks.rows
                self.ready.exchanges.advance(point, number, items, blocks, form)
                done = sweep * len(groups) + number + 1
                yield EpochStep(len(blocks.sizes), 1, done, len(groups) * form.sweeps)


class CertifiedEvaluation:
    """The evaluation of loss, gradient and gap of a coordinate form."""

    has_minimum = True

    def __init__(self, ready: OpenedForm) -> None:
        self.ready = ready
        self.seen: FormModel | None = None
        self.first_gradient = ready.form.steep
        self.measured_at = -1

    def measure(self, state: CoordinatePoint, view: View) -> bool:
        """Evaluate the point, after making x the same bits on all ranks. Collective.

        Loss, gradient and gap are put into the view. Return True: no loss counts as a
        divergence.
        """
        with np.errstate(all="ignore"):  # a figure that is not finite is reported
            self.ready.opened.grid.world.broadcast(state.x, 0, "evaluate")
            seen = self.seen = self.ready.form.evaluate(state)
        self.first_gradient = self.first_gradient or seen.gradient
        self.measured_at = view.exchanges
        view.loss = seen.loss
        view.more = {"gradient": seen.gradient, "gap": seen.gap}
        return True

    def has_broken_weights(self, state: CoordinatePoint) -> bool:
        """Return False: every step of coordinate descent lowers F."""
        return False

    def is_fresh(self, view: View) -> bool:
        """Return whether the loss in the view is that of the current point."""
        return self.measured_at == view.exchanges

    def has_reached_goal(self, view: View) -> bool:
        """Return whether the last evaluation meets `coordinate.tol`.

        It does if the gap is at most tol · max(|F|, 1e-3 · F₀), F₀ the loss of the null
        model above the least that F could be. Where no gap is known, it does if the
        gradient is at most tol times the first one. A tol of 0 is never met.
        """
        seen = self.seen
        tol = self.ready.config.coordinate.tol
        if seen is None or not tol:
            return False
        if seen.gap is not None:
            return seen.gap <= tol * gap_scale(seen.loss, self.ready.form.worst)
        return seen.gradient <= tol * self.first_gradient

    def warn_of_goal(
        self, state: CoordinatePoint, view: View, has_converged: bool
    ) -> None:
        """Log a warning if the epochs were not enough to reach the goal."""
        seen = self.seen
        config = self.ready.config
        if seen is None or has_converged or not config.coordinate.tol:
            return
        figure = "gap unknown" if seen.gap is None else f"gap {seen.gap:.2g}"
        if not np.isfinite(seen.loss):
            figure = "the loss is not finite: scale the columns of X"
        # One order for all epochs may be a bad one.
        is_fixed = config.sampling.mode == "shuffle-once"
        log.warning(
            "coordinate descent has not converged: %d epochs were not enough (%s,"
            " gradient %.2g); raise --epochs or coordinate.tol%s",
            view.epoch,
            figure,
            seen.gradient,
            ", or use --sampling reshuffle" if is_fixed else "",
            extra=ONCE,
        )

    def restore(self, state: CoordinatePoint) -> float:
        """Return the last loss, NaN if there is none, and leave the state as it is.

        No earlier point is better than the last one.
        """
        return np.nan if self.seen is None else self.seen.loss


# The run of a coordinate form: what `train` does where the update is "coordinate".

log = logging.getLogger(__name__)
ONCE = {"on_all_ranks": True}  # all ranks would log the same


class CoordinateRun(Session):
    """A session that runs coordinate descent.

    It has no agreement of replicas, no checkpoints and no fall-backs.
    """

    def run(self) -> Result:
        """Descend to the optimum, or until something ends the run. Collective."""
        with self._borrowed_ranks():
            result = self._train()
        if self.most_rates > 1:  # a coordinate descent has no rate to lower
            result.report["rates_tried"] = 1
        return result

    def _train(self) -> Result:
        world = self.world
        config = self.config
        world.watch(config.run.timeout)
        with close_on_agreed_error(world.unwatch):
            check_settings(config, world)
            ready = open_form(config, world, self.reader, self.setup)
            folder = RunFolder(config.run.out if world.rank == 0 else None)
            with close_on_agreed_error(ready.close):
                world.together(folder.claim)
                try:
                    result = self._train_form(ready, folder)
                finally:
                    folder.release()
        ready.close()
        world.unwatch()
        return result

    def _train_form(self, ready: OpenedForm, folder: RunFolder) -> Result:
        """Return the result of a descent, after writing it into the run folder."""
        world = ready.opened.world
        with world.working("preparing the run folder"):
            world.together(lambda: folder.begin(ready.config, False))
        callbacks = [History(folder.history), *self.callbacks]
        run = make_coordinate_training(ready, callbacks)
        point, status = run.training.run(self._start(ready), make_meter(""))
        setup = self.setup
        result = result_of(run, point, status, setup.began, setup.seconds)
        if self.config.run.defaults == FIT:
            judge_fit(result)
        write_result(world, folder, result)
        return result

    def _start(self, ready: OpenedForm) -> CoordinatePoint:
        """Return the point of the initial weights; without them, of the null model."""
        if self.start is None or self.start.weights is None:
            return ready.form.begin()
        weights = self.start.weights
        loaded = ready.opened.loaded
        needed = (loaded.shard.total_columns, loaded.columns)
        if weights.shape != needed:
            raise ConfigError(
                f"the initial model (start) has weights of shape {weights.shape}, and"
                f" these data need {needed}; give a model of the same columns and"
                " classes"
            )
        local_weights = weights[loaded.shard.columns].astype(np.float64)
        return ready.form.begin(ready.nonempty.narrow(local_weights))


@dataclass(frozen=True)
class CoordinateTraining:
    """A form, its evaluation, and the training that descends on the form."""

    ready: OpenedForm
    evaluation: CertifiedEvaluation
    training: Training[CoordinatePoint]

    @property
    def view(self) -> View:
        """Return the view of the run: its progress and its history."""
        return self.training.loop.view


def make_coordinate_training(
    ready: OpenedForm, callbacks: list[Callback]
) -> CoordinateTraining:
    """Return a descent on the form `ready`, in the training loop of all solvers."""
    config = ready.config
    world = ready.opened.grid.world
    descent = Descent(ready)
    evaluation = CertifiedEvaluation(ready)
    view = View(
        epochs=config.schedule.epochs,
        exchanges_planned=ready.exchanges_planned * config.schedule.epochs,
        total_rows=ready.opened.loaded.shard.total_rows,
        words=lambda: world.ledger.words("products"),
        phases=lambda: dict(ready.clock.seconds),
        evaluations_planned=1 + config.schedule.epochs,
    )
    loop = TrainingLoop(
        solver=descent,
        evaluation=evaluation,
        callbacks=Callbacks(callbacks, view),
        observers=Observers([HistoryRecords(world.ledger)]),
        polls=PollSchedule(world, config.run.check_every, at_epoch_end=False),
    )
    training = Training(loop)
    return CoordinateTraining(ready, evaluation, training)


# Many penalties, one after the other, on data that are opened and a Gram made once.


def along(
    config: RunConfig,
    world: Communicator,
    reader: Callable[[Communicator], RowReader],
    problems: Callable[[float], Sequence[ProblemConfig]],
    warm: bool = True,
) -> Iterator[Result]:
    """Yield a result for each of several problems, on data that are opened once.

    `problems` returns the problems for the largest slope of a column at the null model.
    With `warm`, each fit begins where the one before it ended. The ledger of a result
    contains the traffic of its own fit. Collective.
    """
    setup = Clock()
    ready = open_form(resolve_grid(config, world.size), world, reader, setup)
    steepest = ready.form.steepest()
    point = ready.form.begin()
    for problem in problems(steepest):
        began = time.perf_counter()
        ready = _under(ready, problem)
        columns = ready.opened.loaded.shard
        penalty = penalty_of(problem, columns.total_columns).of(columns.columns)
        ready.form.become(ready.nonempty.penalty(penalty), point)
        point = point if warm else ready.form.begin()
        with borrow_world(ready.opened.grid.world, config.run.reproducible):
            run = make_coordinate_training(ready, [])
            point, status = run.training.run(point, make_meter(""))
            result = result_of(run, point, status, began, setup.seconds)
        yield result
    ready.close()


def _under(ready: OpenedForm, problem: ProblemConfig) -> OpenedForm:
    """Return a copy of `ready` for `problem`, with the same data, form and Gram.

    The clock, which both share, starts again from zero.
    """
    ready.clock.seconds.clear()
    return replace(ready, problem=problem)
