"""The plan of a run: every open setting decided, from facts on ranks, rows and machine.

`find_facts` is collective and reads ranks and rows; `settle` decides without messages.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import log2
from pathlib import Path
from typing import Any

from hpcsgd.backends import compiled_calls
from hpcsgd.comm.communicator import Communicator
from hpcsgd.comm.network_model import DelayedCommunicator
from hpcsgd.config import RunConfig
from hpcsgd.data.shard import split_range
from hpcsgd.formats import get_format
from hpcsgd.glm.unrolling import OPEN_EPOCHS
from hpcsgd.glm.updates import RateConfig
from hpcsgd.products.base import ReplicaSize, may_clip, product_facts, refuse
from hpcsgd.products.cost import (
    Choice,
    CostInputs,
    Machine,
    Overheads,
    ValueBytes,
    candidates,
    look_ahead_reason,
    uses_look_ahead,
)
from hpcsgd.runs.agreements import settle_privacy
from hpcsgd.runs.auto_rate import find_steepness, rate_of, rate_reason
from hpcsgd.runs.checks import takes_one_step
from hpcsgd.runs.gpu import BY_HOST
from hpcsgd.runs.machine import MachineFile, MeasuredFigures, measure_machine
from hpcsgd.runs.opened_run import OpenedRun, make_task, score_columns
from hpcsgd.settings import remembered

log = logging.getLogger(__name__)
WORTH_MEASURING = 2.0  # seconds of training from which a tenth of one is no matter
SURE = 0.5  # seconds of a run whose time no accident makes
FASTER_GRAM = 2.5  # bf16 in pairs against float32
RESUMED = "as the run that resumes"  # why a setting has its value
LEFT_OPEN = ("products.kind", "schedule.steps")  # settings that may be chosen
MEASURED_FIGURES, ASSUMED_FIGURES = "measured", "assumed"  # speeds of a machine


# What a plan is made from, and the plan.


@dataclass(frozen=True)
class EarlierChoice:
    """The product and steps that a resumed run had chosen before it was stopped."""

    product: str
    steps: int
    look_ahead: bool
    members: int


@dataclass(frozen=True)
class MachineFacts:
    """The speed of the machine for one kind of run.

    Attributes
    ----------
    figures : MeasuredFigures
        Constants of the cost model, and corrections of what it predicted before.
    origin : str
        "measured", "assumed", or the machine file that they are from.
    key : str
        The kind of run in that file; "" where no file learns from the run.
    """

    figures: MeasuredFigures
    origin: str
    key: str = ""


@dataclass(frozen=True)
class ProblemSize:
    """The size of a problem, which decides how a run gets to the optimum."""

    variables: int
    is_sparse: bool = False
    is_in_memory: bool = False


@dataclass(frozen=True)
class ChoiceFacts:
    """The facts on ranks, rows and machine of a run, the same on all ranks.

    Attributes
    ----------
    members : int
        Ranks that hold the columns of a replica.
    latency : float
        Seconds that a message takes at least, as far as is known.
    steepness : float or None
        The largest curvature L of F along a step; None where no rate depends on it.
    job : CostInputs or None
        The inputs of the cost model; None where it decides nothing.
    machine : MachineFacts or None
        The speed of the machine; None where it decides nothing.
    gathers : bool
        Whether products for which a member holds all columns may be chosen.
    earlier : EarlierChoice or None
        What a resumed run had chosen before it was stopped; None for a new run.
    size : ProblemSize or None
        What the way to the optimum depends on.
    rows : int
        All rows that are trained on.
    """

    members: int
    latency: float
    steepness: float | None = None
    job: CostInputs | None = None
    machine: MachineFacts | None = None
    gathers: bool = True
    earlier: EarlierChoice | None = None
    size: ProblemSize | None = None
    rows: int = 0


@dataclass(frozen=True)
class RunChoice:
    """The product and steps that will run, and the expected time of a step."""

    product: str
    steps: int
    look_ahead: bool
    seconds: float = 0.0  # of a step, by the cost model; 0 = not computed
    key: str = ""  # of this kind of run in the machine file
    rival: Choice | None = None  # the best of the other products
    reasons: Mapping[str, str] = field(default_factory=dict)  # of settings left open
    figures: str = ""  # of the machine behind `seconds`: measured, assumed, or a file


@dataclass(frozen=True)
class Plan:
    """The decided plan of a run: nothing about it is decided later.

    Attributes
    ----------
    config : RunConfig
        The settings, with the product, the steps, the rate and the epochs that run.
    choice : RunChoice
        The product that runs, and the time that a step is expected to take.
    reasons : mapping
        section.key -> why its value was chosen.
    """

    config: RunConfig
    choice: RunChoice
    reasons: Mapping[str, str]


def find_facts(
    config: RunConfig, opened: OpenedRun, earlier: EarlierChoice | None = None
) -> ChoiceFacts:
    """Return the facts that the open settings of `config` are decided from. Collective.

    `earlier` is what a resumed run had chosen before; None for a new run.
    """
    shard = opened.loaded.shard
    columns = shard.total_columns + config.problem.intercept
    facts = ChoiceFacts(
        members=opened.grid.members.size,
        latency=opened.words.latency,
        earlier=earlier,
        size=ProblemSize(
            variables=columns * score_columns(config, opened.loaded.columns),
            is_sparse=shard.is_sparse,
            is_in_memory=shard.matrix.is_in_memory,
        ),
        rows=shard.total_rows,
    )
    if not epochs_of(config, facts):  # no step, of which anything would be chosen
        return facts
    family = opened.words.family
    steepness = find_steepness(config, opened.grid, opened.loaded, family)
    facts = replace(facts, steepness=steepness)
    if not _asks_the_model(config, facts):
        return facts
    job = job_of(config, opened)
    if config.run.device == "cuda":
        machine = MeasuredFigures(assumed(job, opened.grid.members))
        return replace(
            facts,
            job=job,
            machine=MachineFacts(machine, ASSUMED_FIGURES),
            gathers=not opened.loaded.shard.is_sparse,
        )
    kind = config.products.kind
    steps = open_steps(config, earlier)
    choices = candidates(kind, steps, job, Machine())
    is_decided = len(list(choices)) == 1  # by one rank and given steps: by no figure
    machine_facts = None if is_decided else find_machine(config, opened, job)
    return replace(facts, job=job, machine=machine_facts)


@remembered
def settle(config: RunConfig, facts: ChoiceFacts) -> Plan:
    """Return the plan of a run, in which every open setting is decided."""
    epochs = epochs_of(config, facts)
    average = config.average
    polish = config.polish
    reasons = {}
    if config.schedule.has_open_epochs:
        reasons["schedule.epochs"] = _reason_of_epochs(facts.size)
        is_newton = facts.size is not None and takes_newton(facts.size)
        if is_newton and not epochs and polish.kind == "auto":
            polish = replace(polish, kind="newton")
            reasons["polish.kind"] = reasons["schedule.epochs"]
    if epochs:
        choice = _choose(config, facts)
        rate = rate_of(config, facts.steepness)
        reasons |= _reasons_of_choice(config, choice, rate)
    else:
        choice = RunChoice("direct", config.schedule.steps or 1, look_ahead=False)
        rate = replace(config.rate, value=config.rate.value or 1.0, per_batch=0)
        average = replace(average, kind="none")
        reasons |= dict.fromkeys((*LEFT_OPEN, "rate.value", "average.kind"), NO_STEP)
        reasons |= _reason_of_look_ahead(config, choice)
    look_ahead = "on" if choice.look_ahead else "off"
    privacy, reason = settle_privacy(config, facts.rows)
    if reason:
        reasons["privacy.noise"] = reason
    config = replace(
        config,
        products=replace(config.products, kind=choice.product, look_ahead=look_ahead),
        rate=rate,
        schedule=replace(config.schedule, steps=choice.steps, epochs=epochs),
        average=average,
        polish=polish,
        privacy=privacy,
    )
    return Plan(config, choice, reasons)


def _reasons_of_choice(
    config: RunConfig, choice: RunChoice, rate: RateConfig
) -> dict[str, str]:
    """Return why the settings that the plan changes have their values.

    They are product, look-ahead, steps and rate where they were left open, and a rate
    that is scaled to the batch. The keys are names of settings, section.key.
    """
    reasons = {}
    if rate != config.rate:
        reasons["rate.value"] = rate_reason(config)
    if config.products.kind == "auto":
        reasons["products.kind"] = choice.reasons.get("products.kind", "")
    if config.schedule.steps != choice.steps:
        reason = choice.reasons.get("schedule.steps", "")
        one_step = "l1 and bounds act behind every step"
        reasons["schedule.steps"] = one_step if takes_one_step(config) else reason
    return reasons | _reason_of_look_ahead(config, choice)


def _reason_of_look_ahead(config: RunConfig, choice: RunChoice) -> dict[str, str]:
    """Return the reason for products.look_ahead; nothing if the user decided it."""
    if config.products.look_ahead != "auto":
        return {}
    reason = look_ahead_reason(config.products, choice.product, choice.look_ahead)
    return {"products.look_ahead": reason}


# Whether a run goes to the optimum at once, or by steps of SGD first.
#
# Steps of SGD bring L-BFGS near the optimum, and save it some passes: as many as five
# epochs read, where a pass is slow because rows come from a disk. In memory an epoch
# takes the time of several passes, since a step has few rows, and SGD is the slower
# way (benchmarks/bench_fit.py times both). Few variables go to the optimum in some
# eight passes of Newton's method, from wherever these begin. A pass costs n P²/2
# multiply-adds for P variables; sparse rows are multiplied as dense ones.

NEWTON_VARIABLES = {"dense": 320, "sparse": 128}  # up to which Newton is the method
NO_STEP = "no step is taken"


def takes_newton(size: ProblemSize) -> bool:
    """Return whether Newton's method is the fastest, from whichever weights.

    It is up to a number of variables, `NEWTON_VARIABLES`.
    """
    return size.variables <= NEWTON_VARIABLES["sparse" if size.is_sparse else "dense"]


def _goes_at_once(size: ProblemSize | None) -> bool:
    return size is not None and (takes_newton(size) or size.is_in_memory)


def epochs_of(config: RunConfig, facts: ChoiceFacts) -> int:
    """Return the number of epochs of SGD; 0 means that only a refinement runs."""
    if not config.schedule.has_open_epochs:
        return config.schedule.epochs
    return 0 if _goes_at_once(facts.size) else OPEN_EPOCHS


def _reason_of_epochs(size: ProblemSize | None) -> str:
    if size is None or not _goes_at_once(size):
        return "SGD saves passes of L-BFGS over rows that are read from a file"
    if takes_newton(size):
        return f"Newton's method takes few passes for {size.variables} variables"
    return "L-BFGS takes less time from the start, since the rows are in memory"


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
    overheads=Overheads(exchange=20e-6, step=40e-6, alone=5e-6, turn=1.5e-6),
)
ON_CORES = 5e13  # multiply-adds a second of tensor cores on tiles of 64 rows
STAGED = {"latency": 40e-6, "per_byte": 1e-10}  # sums by way of the host
EACH = 15e-6  # seconds of a plain step that is a launch of its own
NARROW = 2e-6  # of one that a single block takes, which waits for no other
BUDGET = 8 * 2**30  # bytes that a GPU may keep from the first epoch on
OF_ONE = ("direct", "gram", "cached")  # what one member has to choose from


def choose_on_gpu(
    config: RunConfig, job: CostInputs, machine: Machine, gathers: bool = True
) -> Choice:
    """Return the product and steps that are fastest on a GPU, by the cost model.

    Without `gathers`, no product for which a member holds all columns is chosen.
    """
    kind = config.products.kind
    steps = open_steps(config, None)
    choices = candidates(kind, steps, job, machine, OF_ONE, BUDGET)
    if not gathers and kind == "auto":
        choices = (c for c in choices if not product_facts(c.product).holds_all_columns)
    return min(choices, key=lambda choice: choice.seconds)


def assumed(job: CostInputs, members: Communicator) -> Machine:
    """Return the assumed speed of a GPU, and of the network between GPUs."""
    from hpcsgd.backends.cuda.exchange import ONE_BLOCK

    machine = ASSUMED
    if job.value_bytes.matrix < 4:
        machine = replace(machine, gram=ON_CORES)
    overheads = machine.overheads
    if job.scores * job.states > 1:
        overheads = replace(overheads, alone=EACH)
    elif job.batch * job.replica.columns * job.value_bytes.matrix <= ONE_BLOCK:
        overheads = replace(overheads, alone=NARROW)
    machine = replace(machine, overheads=overheads)
    if getattr(members, "kind", "") == BY_HOST:
        machine = replace(
            machine, latency=STAGED["latency"], per_byte=STAGED["per_byte"]
        )
    return machine


# What `auto` becomes: the product and the steps of a run, by what they would take.


def open_steps(config: RunConfig, earlier: EarlierChoice | None) -> int:
    """Return the steps of an exchange; 0 if the cost model is to decide them."""
    steps = config.schedule.steps
    if not steps and takes_one_step(config):
        return 1
    return steps or (earlier.steps if earlier else 0)


def _kept_choice(config: RunConfig, facts: ChoiceFacts) -> EarlierChoice | None:
    """Return the earlier choice that a resumed run keeps, or None.

    It is kept if the product is left open and the number of members is the same.
    """
    earlier = facts.earlier
    if config.products.kind != "auto" or earlier is None:
        return None
    return earlier if earlier.members == facts.members else None


def _asks_the_model(config: RunConfig, facts: ChoiceFacts) -> bool:
    """Return whether the cost model is evaluated for the product and the steps.

    It is if one of them is open, on a GPU also if both are set; never if replicas share
    gradients, or if a resumed run keeps its choice.
    """
    if config.agreement.shares_gradients or _kept_choice(config, facts):
        return False
    is_named = config.products.kind != "auto" and open_steps(config, facts.earlier)
    return not is_named or config.run.device == "cuda"


def _choose(config: RunConfig, facts: ChoiceFacts) -> RunChoice:
    """Return the product and the steps that run, the same on all ranks."""
    kind = config.products.kind
    steps = open_steps(config, facts.earlier)
    if config.agreement.shares_gradients:
        return _one_step(config)
    earlier_choice = _kept_choice(config, facts)
    if earlier_choice is not None:
        reasons = dict.fromkeys(LEFT_OPEN, RESUMED)
        return RunChoice(
            earlier_choice.product, steps, earlier_choice.look_ahead, reasons=reasons
        )
    over = config.update.clip_over
    how = config.update.clip
    clips = how != "none"
    if clips and kind != "auto" and not may_clip(kind, steps, over):
        raise refuse(kind, how)

    def chosen(best: Choice, *reasons: str, **facts_of_time: Any) -> RunChoice:
        ahead = uses_look_ahead(config.products, best.product, facts.latency)
        by_setting = dict(zip(LEFT_OPEN, reasons, strict=False))
        if facts.earlier is not None and facts.earlier.steps == steps == best.steps:
            by_setting["schedule.steps"] = RESUMED
        return RunChoice(
            best.product,
            best.steps,
            ahead,
            best.seconds,
            reasons=by_setting,
            **facts_of_time,
        )

    if facts.job is None:
        return chosen(Choice(kind, steps, 0.0))
    if facts.machine is None:  # no figure decides anything
        (only,) = candidates(kind, steps, facts.job, Machine())
        return chosen(
            replace(only, seconds=0.0),
            "one member has no message to save",
            "an epoch has no rows for more",
        )
    if config.run.device == "cuda":
        machine = facts.machine.figures.machine
        best = choose_on_gpu(config, facts.job, machine, facts.gathers)
        reason = "least predicted time on a GPU"
        return chosen(best, reason, reason, figures=facts.machine.origin)
    figures = facts.machine.figures
    choices = [
        replace(c, seconds=c.seconds * figures.corrections.get(c.product, 1.0))
        for c in candidates(kind, steps, facts.job, figures.machine)
        if not clips or may_clip(c.product, c.steps, over)
    ]
    ranked = sorted(choices, key=lambda choice: choice.seconds)
    best = ranked[0]
    return chosen(
        best,
        _least_time(choice.product for choice in choices),
        _least_time(choice.steps for choice in choices),
        key=facts.machine.key,
        rival=next((c for c in ranked if c.product != best.product), None),
        figures=facts.machine.origin,
    )


def _least_time(candidates: Iterable[Any]) -> str:
    """Return the text of the reason for the fastest of `candidates`."""
    names = dict.fromkeys(map(str, candidates))
    return f"least predicted time of {', '.join(names)}"


def _one_step(config: RunConfig) -> RunChoice:
    """Return the choice for replicas that share every gradient: one step an exchange.

    The product is "direct" if it is left open.
    """
    uses_look_ahead(config.products, config.products.kind, 0.0)
    kind = config.products.kind
    reason = "replicas share the gradient of every step"
    return RunChoice(
        "direct" if kind == "auto" else kind,
        1,
        False,
        reasons=dict.fromkeys(LEFT_OPEN, reason),
    )


# The figures of the machine, by which the cost model decides.


def job_of(config: RunConfig, opened: OpenedRun) -> CostInputs:
    """Return the inputs of the cost model for this run."""
    shard = opened.loaded.shard
    precision = opened.words.precision
    members = opened.grid.members
    schedule = config.schedule
    largest = split_range(shard.total_rows, config.grid.replicas, 0)
    word = get_format(precision.matrix).dtype.itemsize
    each = (word + 4) * opened.loaded.density if shard.is_sparse else word
    return CostInputs(
        replica=ReplicaSize(
            rows=largest.stop,
            columns=shard.total_columns,
            local_columns=shard.widest,
            members=modelled_ranks(members),
        ),
        value_bytes=ValueBytes(
            matrix=each,
            gram_wire=get_format(precision.gram_wire).dtype.itemsize,
            margin_sum=get_format(precision.margin_sum).dtype.itemsize,
        ),
        batch=schedule.batch,
        epochs=schedule.most_epochs,
        comes_again=config.sampling.mode == "shuffle-once" and schedule.most_epochs > 1,
        apart=not precision.one_message,
        scores=score_columns(config, opened.loaded.columns),
        states=opened.words.update.states,
    )


def modelled_ranks(members: Communicator) -> int:
    """Return the number of members that the network model charges a message for."""
    return (
        members.modelled_ranks
        if isinstance(members, DelayedCommunicator)
        else members.size
    )


def find_machine(config: RunConfig, opened: OpenedRun, job: CostInputs) -> MachineFacts:
    """Return the speed of the machine for this run. Collective.

    With a machine file it is read from there; if the file has no figures for such runs,
    it is measured and written there. Without one it is measured if the run is long
    enough and need not be reproducible. Otherwise, and if X is streamed, it is assumed.
    """
    path = config.products.machine
    world = opened.world
    assumed = MeasuredFigures(assumed_machine(opened, job))

    def measure() -> MeasuredFigures:
        task = make_task(config, opened)
        return MeasuredFigures(measure_machine(task, config.schedule.batch, world))

    if not opened.loaded.shard.matrix.is_in_memory:
        return MachineFacts(assumed, ASSUMED_FIGURES)  # no row is in memory yet
    if path:
        file, key = MachineFile(Path(path)), _key(config, opened, job)
        # Rank 0 reads; where the file has no figures of the kind, all ranks measure.
        figures = world.of_root(lambda: file.read(key))
        if figures is None:
            figures = measure()
            if world.rank == 0:
                file.write(key, figures)
        return MachineFacts(figures, path, key)
    if config.run.reproducible:  # figures that were measured are others every time
        return MachineFacts(assumed, ASSUMED_FIGURES)
    kind = config.products.kind
    steps = open_steps(config, None)
    best = min(c.seconds for c in candidates(kind, steps, job, assumed.machine))
    if best * job.replica.rows / job.batch * job.epochs < WORTH_MEASURING:
        return MachineFacts(assumed, ASSUMED_FIGURES)
    return MachineFacts(measure(), MEASURED_FIGURES)


def assumed_machine(opened: OpenedRun, job: CostInputs) -> Machine:
    """Return the assumed speed of a machine and of the network of the run."""
    machine = Machine()
    members = opened.grid.members
    precision = opened.words.precision
    gram = machine.gram * 4 / precision.working.itemsize
    if (
        precision.matrix == "bf16"
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


def _key(config: RunConfig, opened: OpenedRun, job: CostInputs) -> str:
    """Return the key of a run in the machine file: all that its speed depends on."""
    precision = opened.words.precision
    width = 2 ** round(log2(max(job.replica.local_columns, 1)))
    parts = (
        compiled_calls.instructions() or "numpy",
        "sparse" if opened.loaded.shard.is_sparse else "dense",
        precision.matrix,
        precision.inner,
        opened.words.family.name,
        f"K{job.scores}",
        f"b{job.batch}",
        f"d{width}",
        f"C{job.replica.members}",
        config.run.network or "no network",
    )
    return " ".join(parts)


def note_measured(
    config: RunConfig, chosen: RunChoice, measured: float, rank: int, total: float = 0.0
) -> None:
    """Log predicted and measured time of a step; correct the machine file by them.

    Only rank 0 does so, and only if the time of a step was predicted. The file is
    corrected only if the prediction used it. `measured` is the seconds of a step in the
    run that is over, `total` the seconds of its training.
    """
    if rank or not chosen.seconds or not measured:
        return
    log.log(
        logging.INFO if chosen.key else logging.DEBUG,
        "a step of %s with s = %d was expected to take %.1f µs and took %.1f",
        chosen.product,
        chosen.steps,
        1e6 * chosen.seconds,
        1e6 * measured,
    )
    if chosen.key:
        file = MachineFile(Path(config.products.machine))
        ratio = measured / chosen.seconds
        sure = total >= SURE
        file.correct(chosen.key, chosen.product, ratio, sure)
