"""What `auto` becomes: the product and the steps of a run, by what they would take."""

import logging
from collections.abc import Iterable
from dataclasses import replace
from math import log2
from pathlib import Path

from hpcsgd.agreement.kinds import takes_gradients
from hpcsgd.assembly.engine_parts import Chosen, Earlier, Vocabulary
from hpcsgd.assembly.gpu_choice import choose_on_gpu
from hpcsgd.backends import cpu
from hpcsgd.calibrate import calibrate
from hpcsgd.comm.base import Communicator
from hpcsgd.comm.delayed import Delayed
from hpcsgd.config import RunConfig
from hpcsgd.cost import Job, Machine
from hpcsgd.data.partition import split_range
from hpcsgd.data.stream import Streamed
from hpcsgd.errors import ConfigError
from hpcsgd.formats import get_format
from hpcsgd.loading import Loaded
from hpcsgd.machine_file import Known, MachineFile
from hpcsgd.products import GATHERS, KEEPS
from hpcsgd.products.base import Task
from hpcsgd.products.choose import Choice, candidates, uses_look_ahead
from hpcsgd.products.clip import may_clip, refuse

log = logging.getLogger(__name__)
WORTH_MEASURING = 2.0  # seconds of training from which a tenth of one is no matter
SURE = 0.5  # seconds of a run whose time no accident makes
FASTER_GRAM = 2.5  # bf16 in pairs against float32


def choose_run(
    config: RunConfig,
    words: Vocabulary,
    task: Task,
    loaded: Loaded,
    earlier: Earlier | None,
) -> Chosen:
    """Everything that is left open, the same on all members."""
    kind, steps = config.products.kind, config.schedule.steps
    if takes_gradients(words.agreement):
        return _one_step(config)
    _check(config)
    if earlier is not None:
        steps = steps or earlier.steps
        if kind == "auto" and earlier.members == task.members.size:
            return Chosen(earlier.product, steps, earlier.look_ahead)
    over, how = config.update.clip_over, config.update.clip
    clips = how != "none"
    if clips and kind != "auto" and not may_clip(kind, steps, over):
        raise refuse(kind, how)
    if config.run.device == "cuda":
        job = job_of(config, words, task, loaded)
        there = choose_on_gpu(config, job, task.members, task.shard.is_sparse)
        ahead = uses_look_ahead(config.products, there.product, words.latency)
        return Chosen(there.product, there.steps, ahead, there.seconds)
    if kind != "auto" and steps:
        ahead = uses_look_ahead(config.products, kind, words.latency)
        return Chosen(kind, steps, ahead)
    job = job_of(config, words, task, loaded)
    open_to = list(candidates(kind, steps, job, Machine()))
    if len(open_to) == 1:  # on one rank with steps given: nothing to ask a machine
        (only,) = open_to
        ahead = uses_look_ahead(config.products, only.product, words.latency)
        return Chosen(only.product, only.steps, ahead)
    known, key = _machine(config, words.world, task, job)
    found = candidates(kind, steps, job, known.machine)
    if clips:
        found = (c for c in found if may_clip(c.product, c.steps, over))
    ranked = sorted(_corrected(found, known), key=lambda choice: choice.seconds)
    best = ranked[0]
    rival = next((c for c in ranked if c.product != best.product), None)
    ahead = uses_look_ahead(config.products, best.product, words.latency)
    return Chosen(best.product, best.steps, ahead, best.seconds, key, rival)


def _one_step(config: RunConfig) -> Chosen:
    """Replicas that agree on every gradient take one step an exchange."""
    _check_kept(config)
    uses_look_ahead(config.products, config.products.kind, 0.0)
    kind = config.products.kind
    return Chosen("direct" if kind == "auto" else kind, 1, False)


def _check(config: RunConfig) -> None:
    _check_kept(config)
    if not config.schedule.steps and config.grid.replicas > 1:
        raise ConfigError(
            "--steps auto would change what is learnt here: replicas average every"
            " --period exchanges of s steps; choose --steps, or one replica"
        )


def _check_kept(config: RunConfig) -> None:
    name, sampling = config.products.kind, config.sampling
    if name in KEEPS and sampling.mode != "shuffle-once":
        raise ConfigError(
            f"[products] kind = {name!r} needs batches that come again and [sampling]"
            f" mode = {sampling.mode!r} draws new ones; use mode = 'shuffle-once',"
            f" or kind = {'gather' if name in GATHERS else 'gram'!r}"
        )


def job_of(config: RunConfig, words: Vocabulary, task: Task, loaded: Loaded) -> Job:
    """What is to be done, for the cost model."""
    shard, precision = loaded.shard, words.precision
    largest = split_range(shard.total_rows, config.grid.replicas, 0)
    schedule = config.schedule
    word = get_format(precision.matrix).dtype.itemsize
    each = (word + 4) * loaded.density if shard.is_sparse else word
    return Job(
        members=felt(task.members),
        rows=largest.stop,
        columns=shard.total_columns,
        held=max(part.stop - part.start for part in shard.parts),
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


def felt(members: Communicator) -> int:
    """How many ranks a message is felt with."""
    return members.felt if isinstance(members, Delayed) else members.size


def _machine(
    config: RunConfig, world: Communicator, task: Task, job: Job
) -> tuple[Known, str]:
    """From a file, by measuring where that is worth it, or as assumed."""
    path = config.products.machine
    key = _key(config, task, job)
    assumed = Known(_assumed(task, job))
    if isinstance(task.shard.matrix, Streamed):
        return assumed, ""  # nothing of it is here yet
    if path:
        return _from_file(MachineFile(Path(path)), key, config, world, task), key
    if config.run.reproducible:
        return assumed, ""  # figures that were measured are others every time
    kind, steps = config.products.kind, config.schedule.steps
    best = min(c.seconds for c in candidates(kind, steps, job, assumed.machine))
    if best * job.rows / job.batch * job.epochs < WORTH_MEASURING:
        return assumed, ""
    return Known(calibrate(task, config.schedule.batch, world)), ""


def _from_file(
    file: MachineFile, key: str, config: RunConfig, world: Communicator, task: Task
) -> Known:
    """What rank 0 reads; where it knows nothing of the kind, all measure."""
    own = world.together(lambda: file.read(key) if world.rank == 0 else None)
    known: Known | None = world.exchange_objects(own)[0]
    if known is None:
        known = Known(calibrate(task, config.schedule.batch, world))
        if world.rank == 0:
            file.write(key, known)
    return known


def _assumed(task: Task, job: Job) -> Machine:
    """The usual, behind the network that was asked for."""
    machine, members = Machine(), task.members
    gram = machine.gram * 4 / task.precision.working.itemsize
    if task.precision.matrix == "bf16" and cpu.available() and cpu.has_pairs():
        gram *= FASTER_GRAM
    machine = replace(machine, gram=gram)
    if not isinstance(members, Delayed):
        return machine
    return replace(
        machine,
        latency=machine.latency + members.charge(0),
        per_byte=machine.per_byte + 1 / members.network.bandwidth,
    )


def _key(config: RunConfig, task: Task, job: Job) -> str:
    """What figures depend on: kernels, formats, family, widths, ranks, network."""
    width = 2 ** round(log2(max(job.held, 1)))
    parts = (
        cpu.instructions() or "numpy",
        "sparse" if task.shard.is_sparse else "dense",
        *(task.precision.matrix, task.precision.inner, task.family.name),
        *(f"K{task.columns}", f"b{job.batch}", f"d{width}", f"C{job.members}"),
        config.run.network or "no network",
    )
    return " ".join(parts)


def _corrected(found: Iterable[Choice], known: Known) -> list[Choice]:
    return [
        replace(c, seconds=c.seconds * known.corrections.get(c.product, 1.0))
        for c in found
    ]


def note_measured(
    config: RunConfig, chosen: Chosen, measured: float, rank: int, total: float = 0.0
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
