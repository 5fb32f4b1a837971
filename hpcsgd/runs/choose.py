"""The choice of product and steps for this machine, measured or remembered."""

import copy
import json
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import reduce
from math import log2
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from hpcsgd.backends import compiled_calls
from hpcsgd.backends.base import Rows, StepSequence
from hpcsgd.backends.exchange import HostExchanges, batch_of
from hpcsgd.backends.task import Group, State, Task
from hpcsgd.comm.communicator import Communicator, Workspace
from hpcsgd.comm.ledger import Clock
from hpcsgd.comm.network_model import DelayedCommunicator
from hpcsgd.comm.threads import SerialCommunicator
from hpcsgd.config import RunConfig
from hpcsgd.data.shard import Shard, split_range, take
from hpcsgd.data.stream import StreamedMatrix
from hpcsgd.errors import ConfigError
from hpcsgd.files import parse_json, write_text
from hpcsgd.formats import Array, get_format
from hpcsgd.glm import make_update
from hpcsgd.glm.unrolling import Blocks, uniform_blocks
from hpcsgd.products.base import Planner, may_clip, product_facts, refuse
from hpcsgd.products.cost import (
    Choice,
    CostInputs,
    Machine,
    candidates,
    machine_from,
    uses_look_ahead,
)
from hpcsgd.products.direct import take_each_step
from hpcsgd.products.gram import Gram
from hpcsgd.runs.assembled_run import Earlier, ResolvedNames, RunChoice
from hpcsgd.runs.gpu import BY_HOST
from hpcsgd.runs.load import LoadedRows

# What `auto` becomes on a GPU: the model of docs/learn/products.md, with constants of
# its own.
#
# They are assumed, in the size of an H100's, and measured nowhere: good enough to tell
# products apart that differ by a factor.

ASSUMED = Machine(
    latency=20e-6,
    per_byte=2e-11,
    gram=1e13,  # in fp32; of 16- and 8-bit rows `ON_CORES`
    read=2e12,
    again=4e12,
    plain=1.5e12,
    inner=2.5e10,  # one processor reads tiles
    link=1e-11,
    exchange=20e-6,
    step=40e-6,
    alone=5e-6,
    turn=1.5e-6,
)
ON_CORES = 5e13  # multiply-adds a second of tensor cores on tiles of 64 rows
STAGED = {"latency": 40e-6, "per_byte": 1e-10}  # sums by way of the host
EACH = 15e-6  # seconds of a plain step that is a launch of its own
NARROW = 2e-6  # of one that a single block takes, which waits for no other
BUDGET = 8 * 2**30  # bytes that a GPU may keep from the first epoch on
OF_ONE = ("direct", "gram", "cached")  # what one member has to choose from


def choose_on_gpu(
    config: RunConfig, job: CostInputs, members: Communicator, sparse: bool = False
) -> Choice:
    """The product and the steps that are left open; sparse rows are not gathered."""
    kind, steps = config.products.kind, config.schedule.steps
    machine = assumed(job, members)
    found = candidates(kind, steps, job, machine, OF_ONE, BUDGET)
    if sparse and kind == "auto":
        found = (c for c in found if not product_facts(c.product).holds_all_columns)
    return min(found, key=lambda choice: choice.seconds)


def assumed(job: CostInputs, members: Communicator) -> Machine:
    """One GPU, and what lies between it and those of others."""
    from hpcsgd.backends.cuda.exchange import ONE_BLOCK

    machine = ASSUMED
    if job.matrix < 4:  # bytes of a value
        machine = replace(machine, gram=ON_CORES)
    if job.scores * job.states > 1:
        machine = replace(machine, alone=EACH)
    elif job.batch * job.columns * job.matrix <= ONE_BLOCK:
        machine = replace(machine, alone=NARROW)
    if getattr(members, "kind", "") == BY_HOST:
        machine = replace(machine, **STAGED)
    return machine


# What machines were measured to do, in a file: later runs need not measure again.

log = logging.getLogger(__name__)
MOST = 4.0  # a correction beyond this is an accident, not a property


@dataclass(frozen=True)
class MeasuredFigures:
    """The figures of one kind of run."""

    machine: Machine
    # product -> seconds a step took, over those that the model said
    corrections: dict[str, float] = field(default_factory=dict)


class MachineFile:
    """A JSON document: kind of run -> figures. Ranks other than 0 leave it alone."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, key: str) -> MeasuredFigures | None:
        """What is known of this kind, if anything is."""
        entry = self._load().get(key)
        if entry is None:
            return None
        try:
            corrections = {k: float(v) for k, v in entry["corrections"].items()}
            return MeasuredFigures(machine_from(entry["machine"]), corrections)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise self._damaged(error) from error

    def write(self, key: str, known: MeasuredFigures) -> None:
        """Beside all other kinds; a file that cannot be written costs no run."""
        table = self._load()
        table[key] = {
            "machine": known.machine.as_dict(),
            "corrections": known.corrections,
        }
        self._store(table)

    def _forget(self, key: str) -> None:
        table = self._load()
        table.pop(key, None)
        self._store(table)

    def _store(self, table: dict[str, Any]) -> None:
        try:
            write_text(self.path, json.dumps(table, indent=1, sort_keys=True) + "\n")
        except OSError as error:
            log.warning("%s cannot be written: %s; the run goes on", self.path, error)

    def correct(self, key: str, product: str, ratio: float, sure: bool = False) -> None:
        """Half-way from what was known to what was seen: one run is noisy.

        Where a run was long enough to be `sure`, figures that are off by more than any
        noise are of another machine, or of another load: they are forgotten, and the
        next run measures them.
        """
        known = self.read(key)
        if known is None:
            return
        if sure and not 1 / MOST <= ratio <= MOST:
            log.info(
                "%s: off by a factor of %.2g, forgotten: %s", self.path, ratio, key
            )
            self._forget(key)
            return
        before = known.corrections.get(product, 1.0)
        after = min(max(before * (1 + ratio) / 2, 1 / MOST), MOST)
        self.write(
            key, replace(known, corrections={**known.corrections, product: after})
        )

    def _load(self) -> dict[str, Any]:
        try:
            table = parse_json(self.path.read_text())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise self._damaged(error) from error
        if not isinstance(table, dict):
            raise self._damaged("no table")
        return table

    def _damaged(self, why: object) -> ConfigError:
        return ConfigError(
            f"[products] machine = {str(self.path)!r} is no file of figures ({why});"
            " remove it, and it will be made anew"
        )


# Tasks as they are timed: of one member alone, on few rows and columns.

SOME = 4096  # rows of what is as good as no data


def task_alone(task: Task) -> Task:
    """The same task for one member with one column of weights and no momentum."""
    return Task(
        shard=task.shard,
        backend=task.backend,
        members=SerialCommunicator(),
        family=task.family,
        precision=task.precision,
        columns=task.columns,
        states=1,
        probe=np.ones(1),
        clock=Clock(),
        models=task.models,
    )


def of_columns(task: Task, width: int) -> Task:
    """The task on its first columns, with their exponents where they have some."""
    shard, scaling = narrowed(task.shard, width), task.backend.scaling
    if scaling is None or shard is task.shard:
        return replace(task, shard=shard)
    own, backend = scaling.exponents[scaling.own][:width], copy.copy(task.backend)
    backend.scaling = replace(scaling, exponents=own, own=slice(0, len(own)))
    return replace(task, shard=shard, backend=backend)


def narrowed(shard: Shard, width: int) -> Shard:
    """Some rows with the first columns alone; sparse rows have few values.

    Copied: kernels take rows that lie as they would in a shard of so few columns.
    """
    if shard.is_sparse or width >= shard.width:
        return shard
    few, some = slice(0, min(width, shard.width)), slice(0, min(SOME, shard.height))
    rows = np.arange(some.stop)
    return replace(
        shard,
        matrix=np.ascontiguousarray(shard.matrix[some, few]),  # type: ignore[index]
        targets=shard.targets[some],
        weights=take(shard.weights, rows),
        offsets=take(shard.offsets, rows),
        columns=few,
        parts=(few,),
    )


# What this machine can do, measured on the data at hand in well under two seconds.
#
# Every rank measures the same things in the same order, so that the sums in between
# meet; the slowest of them counts, since ranks wait for each other.

STEPS = 8  # of what is timed
LONG = 2**16  # words of a long message
PASS = 2**20  # bytes of rows that passes are timed on, where there are as many
FEW = 8  # columns of what is as good as no data
REPEATS = 5
PASSES = 9  # over rows: tens of microseconds each


def calibrate(task: Task, batch: int, world: Communicator) -> Machine:
    """The rates of the slowest rank of the world; called by all of them together.

    Of the world, not of the members alone: all replicas have to choose alike.
    """
    latency, per_byte = measure_network(task.members, task.margin_dtype, batch)
    own = Machine(latency=latency, per_byte=per_byte, **measure_rates(task, batch))
    everyone: list[Machine] = world.exchange_objects(own)
    return reduce(Machine.slowest, everyone)


def measure_network(
    members: Communicator, dtype: Any, batch: int
) -> tuple[float, float]:
    """Return α and β of sums over `members`, with all that surrounds a message."""
    if members.size == 1:
        return 0.0, 0.0
    short = _seconds_of_sum(members.workspace(batch, dtype), 4 * REPEATS)
    long = _seconds_of_sum(members.workspace(LONG, dtype), REPEATS)
    moved = 2.0 * (members.size - 1) / members.size * LONG * np.dtype(dtype).itemsize
    return short, max(long - short, 0.0) / moved


def _seconds_of_sum(workspace: Workspace, repeats: int) -> float:
    def send() -> None:
        workspace.array[...] = 0
        workspace.sum("control")

    return _seconds(send, repeats)


def measure_rates(task: Task, batch: int) -> dict[str, float]:
    """Return the rates of what one member computes between two messages, by name."""
    shard = task.shard
    blocks = uniform_blocks(batch, max(min(STEPS, shard.height // batch), 1))
    plain = task_alone(task)
    order = np.random.default_rng(0).permutation(shard.height)
    each = shard.width * value_bytes(shard)  # bytes of a row
    # Enough of narrow rows for a call of microseconds to be nothing beside them.
    sizes = (max(blocks.rows, min(shard.height, int(PASS / each))), blocks.rows)
    read, again = fastest_of(
        lambda i: time_passes(plain, np.roll(order, -i * sizes[0])[: sizes[0]])
    )
    (steps,) = fastest_of(
        lambda i: _steps(plain, np.roll(order, -i * sizes[0])[: sizes[0]], batch)
    )
    steps = min(steps, read + again)
    (gram,) = fastest_of(
        lambda i: time_gram(plain, np.roll(order, -i * sizes[1]), blocks)
    )
    words, size = blocks.gram_words, sizes[0] * each
    exchange, step = _overheads(plain, batch)
    inner, link = _recurrence(plain, blocks)
    return {
        "gram": max(words, 1) * shard.width / gram,
        "read": size / read,
        "again": size / again,
        "plain": size / max(steps - sizes[0] * link, steps / 4),
        "inner": max(words, 1) / inner,
        "link": link,
        "exchange": exchange,
        "step": step,
    }


def time_passes(task: Task, rows: Array) -> tuple[float, float]:
    """Seconds of scores on rows from memory, and of the update after them."""
    shard, backend = task.shard, task.backend
    weights = backend.zeros((shard.width, task.columns))
    margins = np.empty((len(rows), task.columns), dtype=task.margin_dtype)
    residuals = np.zeros((len(rows), task.columns), dtype=_inner(task))
    plan, room = _group(task, rows, (len(rows),)).plan, _room(task, len(rows))
    began = perf_counter()
    sampled: Rows = backend.gather(*shard.at(rows), room)
    backend.scores(sampled, weights, margins)
    read = perf_counter()
    backend.apply_update(weights, sampled, residuals, plan)
    return read - began, perf_counter() - read


def _steps(task: Task, rows: Array, batch: int) -> tuple[float]:
    """Seconds of plain steps on rows from memory, where one call takes them all."""
    sizes = [batch] * (len(rows) // batch)
    sizes += [len(rows) - sum(sizes)] if sum(sizes) < len(rows) else []
    group, belongs = _group(task, rows, tuple(sizes)), batch_of(task, rows)
    weights = task.backend.zeros((task.shard.width, task.columns))
    sampled = task.backend.gather(*task.shard.at(rows), _room(task, len(rows)))
    known = (group.blocks, group.coefficients.plain, task.family, belongs, None)
    began = perf_counter()
    found = task.backend.fused_steps(weights, StepSequence(sampled, *known))
    return (float("inf") if found is None else perf_counter() - began,)


def time_gram(task: Task, order: Array, blocks: Blocks) -> tuple[float]:
    """Seconds of the Gram of the first rows of `order`."""
    rows = order[: blocks.rows]
    packed = np.ones(blocks.gram_words, dtype=_inner(task))  # touched
    sampled: Rows = task.backend.gather(*task.shard.at(rows), _room(task, len(rows)))
    began = perf_counter()
    task.backend.strict_gram(sampled, blocks, packed)
    return (perf_counter() - began,)


def _room(task: Task, rows: int) -> Array | None:
    """Where a copy of sampled rows may go, touched: a run does that once, not here."""
    if task.shard.is_sparse:
        return None
    room = np.empty((rows, task.shard.width), dtype=task.precision.working)
    room.fill(0)
    return room


def fastest_of(sample: Callable[[int], tuple[float, ...]]) -> tuple[float, ...]:
    """Of each of its times, after one that wakes everything.

    What others do on the machine only ever adds, and hits one rate more than another:
    the shortest times say what products take beside each other.
    """
    sample(0)
    samples = [sample(i) for i in range(1, PASSES + 1)]
    return tuple(max(min(values), 1e-9) for values in zip(*samples, strict=True))


def _recurrence(task: Task, blocks: Blocks) -> tuple[float, float]:
    """Seconds of the recurrence beyond its links, and of the link of one row."""
    whole = _residuals(task, blocks)
    links = _residuals(task, uniform_blocks(blocks.rows, 1))
    return max(whole - links, 1e-9), links / blocks.rows


def _residuals(task: Task, blocks: Blocks) -> float:
    rows = np.arange(blocks.rows) % task.shard.height
    group, batch = _group(task, rows, blocks.sizes), batch_of(task, rows)
    margins = np.zeros((blocks.rows, task.columns), dtype=task.margin_dtype)
    packed = np.zeros(blocks.gram_words, dtype=_inner(task))
    return _seconds(
        lambda: task.backend.corrected_residuals(
            margins, packed, group.plan, task.family, batch, None
        ),
        REPEATS,
    )


def _overheads(task: Task, batch: int) -> tuple[float, float]:
    """Seconds around an exchange, and around a plain step that messages part.

    Of so little data that arithmetic is nothing beside them.
    """
    task = of_columns(task, FEW)
    shard = task.shard
    few = min(4, batch, shard.height)
    steps = max(min(STEPS, shard.height // few), 1)
    weights = task.backend.zeros((shard.width, task.columns))
    state = State(weights=weights, intercept=None)
    product = Gram(task, HostExchanges(task))
    rows = np.arange(few * steps, dtype=np.int64)
    group = _group(task, rows, (few,) * steps)
    exchange = _seconds(lambda: product.advance(state, group, None), REPEATS)
    one, many = (_seconds(_stepping(task, few, n), REPEATS) for n in (1, steps))
    # What surrounds all steps together is in the first of them, and counted above.
    return exchange, max((many - one) / max(steps - 1, 1), many / steps / 4)


def _stepping(task: Task, few: int, steps: int) -> Callable[[], None]:
    """So many plain steps of a few rows, one after the other, messages left out."""
    rows, exchanges = np.arange(few * steps, dtype=np.int64), HostExchanges(task)
    group = _group(task, rows, (few,) * steps)
    weights = task.backend.zeros((task.shard.width, task.columns))
    state = State(weights=weights, intercept=None)
    margins = np.empty(few * task.columns, dtype=task.margin_dtype)
    x = exchanges.plain(group.blocks)

    def step_by_step() -> None:
        x.load(group)
        x.attach(state)
        x.sample()
        by_kernel = task.backend.pipelined_steps(weights, x.step_sequence())
        if by_kernel is None:
            take_each_step(exchanges, x)
            return
        by_kernel[0](-1, None, margins)
        for j in range(steps):
            by_kernel[0](j, margins, margins)

    return step_by_step


def _group(task: Task, rows: Array, sizes: tuple[int, ...]) -> Group:
    """Steps of no length: what is timed changes nothing."""
    update = make_update("sgd", 0.0)
    planner = Planner(update, 0.0, lambda _, count: np.zeros(count), task.backend)
    return planner.group(0, 0, rows, sizes, 0)


def _inner(task: Task) -> Any:
    """The dtype that residuals are computed in."""
    return task.no_gram.dtype


def value_bytes(shard: Shard) -> float:
    """Of a value as it is stored; of sparse rows, per column."""
    if shard.is_sparse:
        matrix: Any = shard.matrix
        held = matrix.data.nbytes + matrix.indices.nbytes
        return float(max(held / (shard.height * shard.width), 1e-9))
    return float(shard.matrix.dtype.itemsize)


def _seconds(action: Callable[[], Any], repeats: int) -> float:
    """The median, after one that wakes everything."""
    from statistics import median  # with decimals and fractions: not for all runs

    action()
    times = []
    for _ in range(repeats):
        began = perf_counter()
        action()
        times.append(perf_counter() - began)
    return float(median(times))


# What `auto` becomes: the product and the steps of a run, by what they would take.

WORTH_MEASURING = 2.0  # seconds of training from which a tenth of one is no matter
SURE = 0.5  # seconds of a run whose time no accident makes
FASTER_GRAM = 2.5  # bf16 in pairs against float32
RESUMED = "as the run that resumes"  # why a setting has its value
LEFT_OPEN = ("products.kind", "schedule.steps")  # settings that may be chosen
MEASURED_FIGURES, ASSUMED_FIGURES = "measured", "assumed"  # speeds of a machine


def choose_run(
    config: RunConfig,
    words: ResolvedNames,
    task: Task,
    loaded: LoadedRows,
    earlier: Earlier | None,
) -> RunChoice:
    """Everything that is left open, the same on all members."""
    kind, steps = config.products.kind, config.schedule.steps
    if config.agreement.shares_gradients:
        return _one_step(config)
    _check(config)
    if earlier is not None:
        steps = steps or earlier.steps
        if kind == "auto" and earlier.members == task.members.size:
            return RunChoice(
                earlier.product,
                steps,
                earlier.look_ahead,
                reasons=dict.fromkeys(LEFT_OPEN, RESUMED),
            )
    over, how = config.update.clip_over, config.update.clip
    clips = how != "none"
    if clips and kind != "auto" and not may_clip(kind, steps, over):
        raise refuse(kind, how)
    if config.run.device == "cuda":
        job = job_of(config, words, task, loaded)
        there = choose_on_gpu(config, job, task.members, task.shard.is_sparse)
        ahead = uses_look_ahead(config.products, there.product, words.latency)
        return RunChoice(
            there.product,
            there.steps,
            ahead,
            there.seconds,
            reasons=dict.fromkeys(LEFT_OPEN, "least predicted time on a GPU"),
            figures=ASSUMED_FIGURES,
        )
    if kind != "auto" and steps:
        ahead = uses_look_ahead(config.products, kind, words.latency)
        return RunChoice(kind, steps, ahead)
    job = job_of(config, words, task, loaded)
    open_to = list(candidates(kind, steps, job, Machine()))
    if len(open_to) == 1:  # on one rank with steps given: nothing to ask a machine
        (only,) = open_to
        ahead = uses_look_ahead(config.products, only.product, words.latency)
        return RunChoice(
            only.product,
            only.steps,
            ahead,
            reasons={
                "products.kind": "one member has no message to save",
                "schedule.steps": "an epoch has no rows for more",
            },
        )
    known, key, figures = _machine(config, words.world, task, job)
    found = list(candidates(kind, steps, job, known.machine))
    if clips:
        found = [c for c in found if may_clip(c.product, c.steps, over)]
    ranked = sorted(_corrected(found, known), key=lambda choice: choice.seconds)
    best = ranked[0]
    rival = next((c for c in ranked if c.product != best.product), None)
    ahead = uses_look_ahead(config.products, best.product, words.latency)
    return RunChoice(
        best.product,
        best.steps,
        ahead,
        best.seconds,
        key,
        rival,
        reasons={
            "products.kind": _least_time(choice.product for choice in found),
            "schedule.steps": _least_time(choice.steps for choice in found),
        },
        figures=figures,
    )


def _least_time(candidates: Iterable[Any]) -> str:
    """Return why the fastest of these is chosen."""
    names = dict.fromkeys(map(str, candidates))
    return f"least predicted time of {', '.join(names)}"


def _one_step(config: RunConfig) -> RunChoice:
    """Replicas that agree on every gradient take one step an exchange."""
    _check_kept(config)
    uses_look_ahead(config.products, config.products.kind, 0.0)
    kind = config.products.kind
    reason = "replicas share the gradient of every step"
    return RunChoice(
        "direct" if kind == "auto" else kind,
        1,
        False,
        reasons=dict.fromkeys(LEFT_OPEN, reason),
    )


def _check(config: RunConfig) -> None:
    _check_kept(config)
    if not config.schedule.steps and config.grid.replicas > 1:
        raise ConfigError(
            "--steps auto would change what is learnt here: replicas average every"
            " --period exchanges of s steps; choose --steps, or one replica"
        )


def _check_kept(config: RunConfig) -> None:
    name, sampling = config.products.kind, config.sampling
    facts = product_facts(name)
    if facts.keeps_batches and sampling.mode != "shuffle-once":
        raise ConfigError(
            f"[products] kind = {name!r} needs batches that come again and [sampling]"
            f" mode = {sampling.mode!r} draws new ones; use mode = 'shuffle-once',"
            f" or kind = {'gather' if facts.holds_all_columns else 'gram'!r}"
        )


def job_of(
    config: RunConfig, words: ResolvedNames, task: Task, loaded: LoadedRows
) -> CostInputs:
    """What is to be done, for the cost model."""
    shard, precision = loaded.shard, words.precision
    largest = split_range(shard.total_rows, config.grid.replicas, 0)
    schedule = config.schedule
    word = get_format(precision.matrix).dtype.itemsize
    each = (word + 4) * loaded.density if shard.is_sparse else word
    return CostInputs(
        members=modelled_ranks(task.members),
        rows=largest.stop,
        columns=shard.total_columns,
        local_columns=max(part.stop - part.start for part in shard.parts),
        batch=schedule.batch,
        epochs=schedule.epochs,
        comes_again=config.sampling.mode == "shuffle-once" and schedule.epochs > 1,
        matrix=each,
        gram_wire=get_format(precision.gram_wire).dtype.itemsize,
        margin_sum=get_format(precision.margin_sum).dtype.itemsize,
        apart=not precision.one_message,
        scores=task.columns,
        states=task.states,
    )


def modelled_ranks(members: Communicator) -> int:
    """Return the number of ranks that the network model charges a message for."""
    return (
        members.modelled_ranks
        if isinstance(members, DelayedCommunicator)
        else members.size
    )


def _machine(
    config: RunConfig, world: Communicator, task: Task, job: CostInputs
) -> tuple[MeasuredFigures, str, str]:
    """Return the speeds of the machine, their key in its file, and whose they are.

    They are those of a file, measured where that is worth it, or assumed.
    """
    path = config.products.machine
    key = _key(config, task, job)
    assumed = MeasuredFigures(assumed_machine(task, job))
    if isinstance(task.shard.matrix, StreamedMatrix):
        return assumed, "", ASSUMED_FIGURES  # nothing of it is here yet
    if path:
        known = _from_file(MachineFile(Path(path)), key, config, world, task)
        return known, key, path
    if config.run.reproducible:  # figures that were measured are others every time
        return assumed, "", ASSUMED_FIGURES
    kind, steps = config.products.kind, config.schedule.steps
    best = min(c.seconds for c in candidates(kind, steps, job, assumed.machine))
    if best * job.rows / job.batch * job.epochs < WORTH_MEASURING:
        return assumed, "", ASSUMED_FIGURES
    measured = MeasuredFigures(calibrate(task, config.schedule.batch, world))
    return measured, "", MEASURED_FIGURES


def _from_file(
    file: MachineFile, key: str, config: RunConfig, world: Communicator, task: Task
) -> MeasuredFigures:
    """What rank 0 reads; where it knows nothing of the kind, all measure."""
    own = world.together(lambda: file.read(key) if world.rank == 0 else None)
    known: MeasuredFigures | None = world.exchange_objects(own)[0]
    if known is None:
        known = MeasuredFigures(calibrate(task, config.schedule.batch, world))
        if world.rank == 0:
            file.write(key, known)
    return known


def assumed_machine(task: Task, job: CostInputs) -> Machine:
    """Return the usual figures of a machine behind the network of the run."""
    machine, members = Machine(), task.members
    gram = machine.gram * 4 / task.precision.working.itemsize
    if (
        task.precision.matrix == "bf16"
        and compiled_calls.available()
        and compiled_calls.has_pairs()
    ):
        gram *= FASTER_GRAM
    machine = replace(machine, gram=gram)
    if not isinstance(members, DelayedCommunicator):
        return machine
    return replace(
        machine,
        latency=machine.latency + members.charge(0),
        per_byte=machine.per_byte + 1 / members.network.bandwidth,
    )


def _key(config: RunConfig, task: Task, job: CostInputs) -> str:
    """What figures depend on: kernels, formats, family, widths, ranks, network."""
    width = 2 ** round(log2(max(job.local_columns, 1)))
    parts = (
        compiled_calls.instructions() or "numpy",
        "sparse" if task.shard.is_sparse else "dense",
        *(task.precision.matrix, task.precision.inner, task.family.name),
        *(f"K{task.columns}", f"b{job.batch}", f"d{width}", f"C{job.members}"),
        config.run.network or "no network",
    )
    return " ".join(parts)


def _corrected(found: Iterable[Choice], known: MeasuredFigures) -> list[Choice]:
    return [
        replace(c, seconds=c.seconds * known.corrections.get(c.product, 1.0))
        for c in found
    ]


def note_measured(
    config: RunConfig, chosen: RunChoice, measured: float, rank: int, total: float = 0.0
) -> None:
    """Say what the model was worth; a machine file learns from it.

    `measured` are the seconds of a step in the run that is over, `total` all of them.
    """
    if rank or not chosen.seconds or not measured:
        return
    log.log(
        logging.INFO if chosen.key else logging.DEBUG,
        "a step of %s with s = %d was expected to take %.1f µs and took %.1f",
        *(chosen.product, chosen.steps),
        *(1e6 * chosen.seconds, 1e6 * measured),
    )
    if chosen.key:
        file = MachineFile(Path(config.products.machine))
        ratio, sure = measured / chosen.seconds, total >= SURE
        file.correct(chosen.key, chosen.product, ratio, sure)
