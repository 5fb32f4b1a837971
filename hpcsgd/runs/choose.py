"""The choice of product and steps for this machine, measured or remembered."""

import logging
from collections.abc import Iterable
from dataclasses import replace
from math import log2
from pathlib import Path
from typing import Any

from hpcsgd.backends import compiled_calls
from hpcsgd.backends.task import Task
from hpcsgd.comm.communicator import Communicator
from hpcsgd.comm.network_model import DelayedCommunicator
from hpcsgd.config import RunConfig
from hpcsgd.data.shard import split_range
from hpcsgd.data.stream import StreamedMatrix
from hpcsgd.errors import ConfigError
from hpcsgd.formats import get_format
from hpcsgd.products.base import may_clip, product_facts, refuse
from hpcsgd.products.cost import (
    Choice,
    CostInputs,
    Machine,
    candidates,
    uses_look_ahead,
)
from hpcsgd.runs.assembled_run import Earlier, ResolvedNames, RunChoice
from hpcsgd.runs.gpu import BY_HOST
from hpcsgd.runs.load import LoadedRows
from hpcsgd.runs.machine import MachineFile, MeasuredFigures, measure_machine

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


# What `auto` becomes: the product and the steps of a run, by what they would take.

log = logging.getLogger(__name__)
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

    def settled(best: Choice, *reasons: str, **facts: Any) -> RunChoice:
        ahead = uses_look_ahead(config.products, best.product, words.latency)
        return RunChoice(
            best.product,
            best.steps,
            ahead,
            best.seconds,
            reasons=dict(zip(LEFT_OPEN, reasons, strict=False)),
            **facts,
        )

    is_on_gpu = config.run.device == "cuda"
    if kind != "auto" and steps and not is_on_gpu:
        return settled(Choice(kind, steps, 0.0))
    job = job_of(config, words, task, loaded)
    if is_on_gpu:
        best = choose_on_gpu(config, job, task.members, task.shard.is_sparse)
        reason = "least predicted time on a GPU"
        return settled(best, reason, reason, figures=ASSUMED_FIGURES)
    choices = list(candidates(kind, steps, job, Machine()))
    if len(choices) == 1:  # one rank, given steps: no figure decides anything
        return settled(
            replace(choices[0], seconds=0.0),
            "one member has no message to save",
            "an epoch has no rows for more",
        )
    known, key, figures = _machine(config, words.world, task, job)
    choices = [
        replace(c, seconds=c.seconds * known.corrections.get(c.product, 1.0))
        for c in candidates(kind, steps, job, known.machine)
        if not clips or may_clip(c.product, c.steps, over)
    ]
    ranked = sorted(choices, key=lambda choice: choice.seconds)
    best = ranked[0]
    rival = next((c for c in ranked if c.product != best.product), None)
    return settled(
        best,
        _least_time(choice.product for choice in choices),
        _least_time(choice.steps for choice in choices),
        key=key,
        rival=rival,
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
    """Return the inputs of the cost model for this run."""
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
    """Return the figures of the machine, their kind in its file, and their origin.

    They come from the file, are measured where that is worth it, or are assumed.
    """
    path, batch = config.products.machine, config.schedule.batch
    key = _key(config, task, job)
    assumed = MeasuredFigures(assumed_machine(task, job))
    if isinstance(task.shard.matrix, StreamedMatrix):
        return assumed, "", ASSUMED_FIGURES  # nothing of it is here yet
    if path:
        file = MachineFile(Path(path))
        # What rank 0 reads; where it has no figures of the kind, all ranks measure.
        own = world.together(lambda: file.read(key) if world.rank == 0 else None)
        known: MeasuredFigures | None = world.exchange_objects(own)[0]
        if known is None:
            known = MeasuredFigures(measure_machine(task, batch, world))
            if world.rank == 0:
                file.write(key, known)
        return known, key, path
    if config.run.reproducible:  # figures that were measured are others every time
        return assumed, "", ASSUMED_FIGURES
    kind, steps = config.products.kind, config.schedule.steps
    best = min(c.seconds for c in candidates(kind, steps, job, assumed.machine))
    if best * job.rows / job.batch * job.epochs < WORTH_MEASURING:
        return assumed, "", ASSUMED_FIGURES
    measured = MeasuredFigures(measure_machine(task, batch, world))
    return measured, "", MEASURED_FIGURES


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
    """Return the kind of run, by all that figures depend on."""
    width = 2 ** round(log2(max(job.local_columns, 1)))
    parts = (
        compiled_calls.instructions() or "numpy",
        "sparse" if task.shard.is_sparse else "dense",
        *(task.precision.matrix, task.precision.inner, task.family.name),
        *(f"K{task.columns}", f"b{job.batch}", f"d{width}", f"C{job.members}"),
        config.run.network or "no network",
    )
    return " ".join(parts)


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
