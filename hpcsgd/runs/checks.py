"""What a configuration may not ask for, each refusal in one sentence."""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from hpcsgd.agreements import AGREEMENTS
from hpcsgd.agreements.base import OWN_STEPS, SHARDED, is_on_disk, takes_gradients
from hpcsgd.agreements.codecs import get_codec, make_codec
from hpcsgd.agreements.codecs.base import Bucket
from hpcsgd.agreements.hierarchical import check_groups, plan_levels
from hpcsgd.agreements.slowmo import BASES
from hpcsgd.backends import make_backend
from hpcsgd.backends.base import Backend
from hpcsgd.backends.compiled_calls import SOFTMAX
from hpcsgd.backends.cuda import kernels
from hpcsgd.comm.communicator import Communicator
from hpcsgd.comm.grid import check_size
from hpcsgd.comm.network_model import (
    DelayedCommunicator,
    EmulatedCommunicator,
    parse_network,
)
from hpcsgd.config import GridConfig, RunConfig
from hpcsgd.errors import ConfigError
from hpcsgd.formats import get_format
from hpcsgd.glm import ADAPTIVE, get_family, make_update
from hpcsgd.glm.families import Family
from hpcsgd.glm.penalties import STEP, Models, Penalty, ProblemConfig
from hpcsgd.glm.updates import RateConfig, make_rate
from hpcsgd.precision import AUTO, Precision
from hpcsgd.products import GATHERS, RECURS, get_product
from hpcsgd.products.base import Array
from hpcsgd.products.hooks import Hook, Proximal
from hpcsgd.runs.assembled_run import ResolvedNames
from hpcsgd.runs.auto_rate import ignores_length
from hpcsgd.solvers.coordinate import COORDINATE
from hpcsgd.solvers.evaluation import Columns, Evaluation, Snapshots

# What agreements with ways of their own refuse, each in one sentence.

QADAM = "qadam"
NEVER_ONE = (
    "never has all replicas agree before the end, and [average] takes means of iterates"
    " that they agree on; set average.kind=none"
)
Wrong = tuple[bool, str]  # whether it is, and the sentence


def of_kinds(config: RunConfig, precision: Precision) -> tuple[Wrong, ...]:
    """What kinds of a way of their own ask for."""
    asked, update = config.agreement, config.update
    shapes = update.shapes or ("clip" if update.clip != "none" else "")
    scaled = get_format(precision.residual).wants_scale
    is_other = asked.kind in (*OWN_STEPS, QADAM)
    return (
        *_of_own_steps(config),
        *_of_leaders(config),
        (
            is_other and bool(shapes),
            f"tells of no mean gradient, on which [update] {shapes} works; use"
            " --agreement gradient, or leave it out",
        ),
        (
            is_other and scaled,
            f"has no word beside what it tells in which residuals in"
            f" {precision.residual} could overflow; use --set precision.residual=fp32",
        ),
        (
            asked.kind == QADAM and update.kind != "adam",
            f"is Adam whose momentum travels, and [update] kind = {update.kind!r} has"
            " none of it; use --update adam",
        ),
    )


def _of_own_steps(config: RunConfig) -> tuple[Wrong, ...]:
    asked, replicas = config.agreement, config.grid.replicas
    if asked.kind not in OWN_STEPS:
        return ()
    pairs = asked.kind == "decentralized" and asked.peers == "shift_one"
    return (
        (
            asked.codec != "identity" or config.codec.feedback == "on",
            "tells weights, and codecs are for gradients; leave agreement.codec and"
            " codec.feedback out, or use --agreement decentralized-low",
        ),
        (
            pairs and replicas > 1 and replicas % 2 == 1,
            f"with peers = 'shift_one' makes pairs, and {replicas} replicas leave one"
            " over; use an even number of replicas, or agreement.peers=all",
        ),
        (
            asked.hierarchical != "off",
            f"has no sums for leaders and hierarchical = {asked.hierarchical!r}; leave"
            " it out, or use --agreement gradient",
        ),
        (_takes_tail(config), NEVER_ONE),
    )


def _of_leaders(config: RunConfig) -> tuple[Wrong, ...]:
    of = config.agreement.hierarchical
    return (
        (
            of != "off" and bool(config.run.emulate_members),
            f"with hierarchical = {of!r} has groups that --emulate-members does not"
            " know; use agreement.hierarchical=off",
        ),
    )


def _takes_tail(config: RunConfig) -> bool:
    return config.average.kind != "none" and config.grid.replicas > 1


def check_asynchronous(config: RunConfig) -> None:
    """One average at a time, of what belongs to steps alone."""
    delay, period = config.agreement.delay, config.schedule.period
    for is_wrong, why in (
        (
            delay > period,
            f"sends one average at a time: [agreement] delay = {delay} must be at most"
            f" [schedule] period = {period}; use a longer --period",
        ),
        (
            config.update.kind == "svrg",
            "moves what all agreed on a while ago, and svrg takes snapshots of what"
            " they agree on now; use --agreement average",
        ),
        (
            bool(config.run.emulate_members),
            "has a group of its own that --emulate-members does not know; use"
            " --agreement average",
        ),
        (_takes_tail(config), NEVER_ONE),
    ):
        if is_wrong:
            raise ConfigError(f"[agreement] kind = 'async-average' {why}")


def disk_conflicts(config: RunConfig, precision: Precision) -> tuple[Wrong, ...]:
    """Return the settings that would hold all weights in memory, or lose them, each
    with its remedy.
    """
    return (*_wrong_around(config), *_wrong_steps(config, precision))


def _wrong_steps(config: RunConfig, precision: Precision) -> tuple[Wrong, ...]:
    """Of the step itself."""
    update = config.update
    shapes = update.clip != "none" or update.centre != "none"
    return (
        (
            shapes or update.normalise or update.noise > 0.0,
            "steps a tile before it knows the gradient of the next, and [update] clip,"
            " centre, normalise and noise want all of it; leave them out",
        ),
        (
            update.bits != 32,
            "keeps states as they are and [update] bits = 8 packs them; leave bits out",
        ),
        (
            get_format(precision.residual).wants_scale,
            f"cannot take back a step, as residuals in {precision.residual} ask for;"
            " use --set precision.residual=fp32",
        ),
    )


def _wrong_around(config: RunConfig) -> tuple[Wrong, ...]:
    """Of what else a run may do."""
    run, stop = config.run, config.stop.on
    return (
        (
            not (config.agreement.store or run.out),
            "keeps its states on disk and no folder is given; add --out DIR, or set"
            " agreement.store",
        ),
        (
            config.products.kind not in ("auto", "direct"),
            f"has no weights in memory and [products] kind = {config.products.kind!r}"
            " wants them whole; use --products direct",
        ),
        (
            config.agreement.codec != "identity" or config.codec.feedback == "on",
            "sums gradients as they are; leave agreement.codec and codec.feedback out",
        ),
        (
            config.agreement.hierarchical != "off",
            "splits every tile over all replicas and knows no leaders of nodes; leave"
            " agreement.hierarchical out",
        ),
        (
            config.polish.kind != "none",
            "holds a tile of the weights and [polish] would hold all of them; set"
            " polish.kind = 'none'",
        ),
        (
            config.average.kind != "none",
            "holds a tile of the weights and [average] would hold a mean of all; set"
            " average.kind = 'none'",
        ),
        (
            run.evaluate != "loss" or stop in ("gradient", "gap", "validation"),
            "takes the loss tile by tile, and no gradient of all rows; set run.evaluate"
            " = 'loss', and stop.on = 'none' or 'loss'",
        ),
        (
            run.on_failure == "shrink",
            "has on its disks what no other rank has; set run.on_failure to its default"
            " and go on with --resume auto",
        ),
        (
            bool(run.emulate_members),
            "would fill a disk for members that are not there; leave --emulate-members"
            " out",
        ),
    )


# What replicas that hold slices refuse, each in one sentence.


def of_slices(config: RunConfig, precision: Precision) -> tuple[Wrong, ...]:
    """Of all stages, of those without a whole gradient, and of that without weights."""
    agreement = config.agreement
    if agreement.kind not in SHARDED:
        return ()
    is_offload = agreement.kind == "offload"
    stage = 2 if is_offload else agreement.stage
    return (
        (
            is_offload and agreement.stage != 1,
            f"has the slices of stage 2, and stage = {agreement.stage} was given; leave"
            " agreement.stage out",
        ),
        (
            agreement.codec != "identity" or config.codec.feedback == "on",
            "sends slices as they are and knows no codec; leave --codec out, or use"
            " --agreement gradient",
        ),
        (
            agreement.hierarchical != "off",
            "cuts every tile over all replicas and knows no leaders of nodes; leave"
            " agreement.hierarchical out",
        ),
        (
            config.update.bits == 8,
            "holds slices that begin anywhere, and states in 8 bits are blocks; use"
            " update.bits = 32",
        ),
        (
            get_format(precision.residual).wants_scale,
            f"cannot leave a step out, as residuals in {precision.residual} ask for;"
            " use --set precision.residual=fp32",
        ),
        (
            config.update.kind == "nesterov-classic",
            "reads no scores at w + μv, which nobody holds; use --update nesterov",
        ),
        *(_of_stage_3(config) if stage == 3 else ()),
    )


def _of_stage_3(config: RunConfig) -> tuple[Wrong, ...]:
    kind, takes, goal = config.products.kind, config.run.evaluate, config.stop.on
    return (
        (
            kind in GATHERS,
            f"holds slices of w in stage 3 and [products] kind = {kind!r} wants all of"
            " them; use --products direct, or agreement.stage = 2",
        ),
        (
            takes != "loss" or goal in ("gradient", "gap"),
            "holds slices in stage 3, and the gradient of F is as long as w; use"
            " run.evaluate = 'loss' and stop.on = 'none' or 'loss', or agreement.stage"
            " = 2",
        ),
        (
            config.polish.kind != "none",
            "holds slices of w in stage 3, and [polish] works on all of it; set"
            " polish.kind = 'none', or agreement.stage = 2",
        ),
    )


def _family(config: RunConfig) -> Family:
    """Return the family of a run; refuse one of the caller's own on a GPU."""
    family = get_family(config.problem.family)
    if config.run.device == "cuda" and family.name not in (*kernels.FAMILIES, SOFTMAX):
        raise ConfigError(
            f"the family {family.name!r} has no kernels for a GPU, which has those of"
            f" {', '.join((*kernels.FAMILIES, SOFTMAX))}; use --device cpu"
        )
    return family


# Agreements that no GPU serves, and what does instead.

ON_DISK = (
    "has w on disk, tile by tile, and a GPU reads what is in its memory; use --method"
    " zero3 where slices of w fit there, more replicas or members on more GPUs (--grid)"
    " where they do not, or --device cpu"
)


def of_gpus(config: RunConfig) -> tuple[Wrong, ...]:
    """What is asked of a GPU, and why it is not there."""
    is_there = config.run.device == "cuda"
    return ((is_there and config.agreement.kind == "infinity", ON_DISK),)


# What the gradient agreement refuses, each in one sentence.

UPDATES = ("sgd", "momentum", "nesterov", "nesterov-classic", *ADAPTIVE)
ONE_WORD = Bucket(0, 1, 1, np.dtype(np.float32))
MOMENTA = ("momentum", "nesterov", "nesterov-classic", "adam")


def check(config: RunConfig, precision: Precision) -> None:
    """Refuse what replicas could not agree on the gradient of."""
    codec = config.agreement.codec
    get_codec(codec)
    if not takes_gradients(config.agreement.kind):
        _check_unused(config)
        return
    check_groups(config.agreement.hierarchical)
    # One replica encodes nothing, and is told of settings that no grid could run.
    make_codec(codec, ONE_WORD, config.codec, config.accordion)
    more: tuple[Wrong, ...] = ()
    if is_on_disk(config.agreement.kind):
        more = disk_conflicts(config, precision)
    for is_wrong, why in (
        *_of_settings(config),
        *_of_update(config),
        _of_rates(config),
        *_of_formats(precision, codec),
        *_of_codec(config),
        *_of_any_batch(config, precision),
        *of_kinds(config, precision),
        *_of_turns(config, precision),
        *of_slices(config, precision),
        *more,
    ):
        if is_wrong:
            raise ConfigError(f"[agreement] kind = {config.agreement.kind!r} {why}")


def _of_settings(config: RunConfig) -> tuple[Wrong, ...]:
    schedule, kind = config.schedule, config.products.kind
    return (
        (
            schedule.steps > 1,
            f"takes one step an exchange and [schedule] steps = {schedule.steps}; use"
            " --steps 1, or --agreement average for s steps between agreements",
        ),
        (
            schedule.period > 1,
            f"agrees in every step and [schedule] period = {schedule.period}; use"
            " --period 1, agreement.accumulate for fewer messages, or --agreement"
            " average",
        ),
        (
            kind in RECURS,
            f"needs the gradient of every step and [products] kind = {kind!r} is for s"
            " steps together; use --products direct or gather",
        ),
        *of_gpus(config),
        (
            config.run.device == "cuda" and kind in GATHERS,
            f"adds gradients on GPUs where rows are, and [products] kind = {kind!r}"
            " moves them; use --products direct, or --device cpu",
        ),
    )


def _of_update(config: RunConfig) -> tuple[Wrong, ...]:
    return (
        (
            config.update.clip != "none" and config.update.clip_over != "step",
            "has one step an exchange, and [update] clip_over = 'exchange' is for more;"
            " leave it out",
        ),
        (
            config.update.kind not in UPDATES,
            f"steps by one gradient and [update] kind = {config.update.kind!r} does"
            " not; use --update sgd, momentum or nesterov",
        ),
        (
            config.update.bits == 8 and config.update.kind == "nesterov-classic",
            "keeps momentum in 8 bits for --update momentum and nesterov; use one of"
            " them, or update.bits = 32",
        ),
        (
            config.sweep.is_many,
            "trains one model and [sweep] names several; train them one by one",
        ),
        (
            not config.problem.is_smooth,
            "does not know l1 and bounds; use --agreement average, or leave them out",
        ),
    )


def _of_any_batch(config: RunConfig, precision: Precision) -> tuple[Wrong, ...]:
    if config.agreement.kind != "anybatch":
        return ()
    codec, update = config.agreement.codec, config.update.kind
    shapes, residual = config.update.shapes, precision.residual
    return (
        (
            codec != "identity" or config.codec.feedback == "on",
            f"mixes weights and [agreement] codec = {codec!r} is for gradients; leave"
            " the codec out, or use --agreement gradient",
        ),
        (
            config.agreement.hierarchical != "off",
            "mixes with neighbours and has no sums for leaders, as hierarchical ="
            f" {config.agreement.hierarchical!r} asks for; leave it out",
        ),
        (
            update != "sgd",
            f"steps by its mirror map and [update] kind = {update!r} is another step;"
            " use --update sgd, and [mirror] kind for the geometry",
        ),
        (
            config.average.kind != "none",
            "takes the mean of replicas when it is asked for, not after every round;"
            " set average.kind = 'none'",
        ),
        (
            bool(shapes),
            f"has gradients of single replicas and [update] {shapes} is for those that"
            " they agree on; use --agreement gradient, or leave it out",
        ),
        (
            config.update.clip != "none",
            "steps by its mirror map and does not clip; use --set update.clip=none",
        ),
        (
            get_format(residual).wants_scale,
            f"has no scale that replicas share, as residuals in {residual} ask for; use"
            " --set precision.residual=fp32",
        ),
        (
            config.rate.per_batch > 0,
            f"has steps of any number of rows and [rate] per_batch ="
            f" {config.rate.per_batch} is for a known one; leave it out",
        ),
    )


def _of_rates(config: RunConfig) -> Wrong:
    is_open, how = config.rate.is_open, ignores_length(config.update)
    return (
        is_open and bool(how),
        f"would take steps at 1/L, which --rate auto is, and [update] {how} makes them"
        " no longer where gradients are; give a rate, --rate 0.01 is a cautious start",
    )


def _of_codec(config: RunConfig) -> tuple[Wrong, ...]:
    grows, times = config.agreement.kind == "growing", config.agreement.accumulate
    codec, kind = config.agreement.codec, config.update.kind
    wrapped = config.accordion.codec if codec == "accordion" else codec
    return (
        (
            wrapped == "dgc" and config.codec.momentum > 0 and kind in MOMENTA,
            f"has momentum in codec dgc already and [update] kind = {kind!r} takes it"
            " of that again; use --update sgd, or codec.momentum = 0",
        ),
        (
            grows and times == 1,
            "makes batches grow agreement.accumulate times, which is 1; 4 is usual",
        ),
    )


def _of_formats(precision: Precision, codec: str) -> tuple[Wrong, ...]:
    residual = precision.residual
    return (
        (
            not get_format(precision.weights).is_wide,
            f"sums gradients in the format of the weights, and {precision.weights} is"
            " too narrow; use --set precision.weights=fp32",
        ),
        (
            get_format(residual).wants_scale and codec != "identity",
            f"leaves a step out where residuals in {residual} overflow, of which"
            f" codec = {codec!r} would have sent a part; use codec = 'identity', or"
            " --set precision.residual=fp32",
        ),
    )


def _of_turns(config: RunConfig, precision: Precision) -> tuple[Wrong, ...]:
    """Two items that take turns."""
    if config.agreement.kind != "ticktock":
        return ()
    encodes = config.agreement.codec != "identity" or config.codec.feedback == "on"
    return (
        (
            config.agreement.mode == "independent",
            "runs one fit and mode = 'independent' is two; use hpcsgd.tick_tock, or"
            " --set agreement.mode=exact-sum",
        ),
        (
            encodes,
            "sends gradients as they are and [agreement] codec ="
            f" {config.agreement.codec!r}, feedback = {config.codec.feedback!r}; use"
            " --codec identity, or --agreement gradient",
        ),
        (
            config.agreement.hierarchical != "off",
            "has sums of all replicas and hierarchical ="
            f" {config.agreement.hierarchical!r} is for those of leaders; leave it"
            " out, or use --agreement gradient",
        ),
        (
            get_format(precision.residual).wants_scale,
            "does not know in time that residuals overflowed, as those in"
            f" {precision.residual} may; use --set precision.residual=fp32, or"
            " --agreement gradient",
        ),
    )


def _check_unused(config: RunConfig) -> None:
    """Settings of gradients that would do nothing are a misunderstanding."""
    agreement, shapes = config.agreement, config.update.shapes
    if shapes:
        value = getattr(config.update, shapes)
        raise ConfigError(
            f"[update] {shapes} = {value!r} works on gradients that replicas agree on,"
            f" and [agreement] kind = {agreement.kind!r} has none; use --agreement"
            " gradient, or leave it out"
        )
    if agreement.kind == "async-average":
        check_asynchronous(config)
    if config.update.kind in ADAPTIVE:
        raise ConfigError(
            f"--update {config.update.kind} needs the gradient of every step, and"
            f" [agreement] kind = {agreement.kind!r} has none to give; use --agreement"
            " gradient, or --update sgd, momentum or nesterov"
        )
    given = {"codec": "identity", "accumulate": 1, "hierarchical": "off"}
    others = [key for key, usual in given.items() if getattr(agreement, key) != usual]
    if others:
        key = others[0]
        raise ConfigError(
            f"[agreement] {key} = {getattr(agreement, key)!r} is for gradients and kind"
            f" = {agreement.kind!r} sends none; use --agreement gradient, or leave it"
            " out"
        )


# What a run says before it begins, of settings that do nothing and of its grid.

log = logging.getLogger(__name__)
# Agreements that do something on one replica, too, and what is no agreement.
ALONE = ("auto", "none", "growing", "offload", "infinity")


def resolve_grid(config: RunConfig, ranks: int) -> RunConfig:
    """Return `config` with a replica on each rank where its method is about replicas
    and no grid was given: members of one would agree on nothing.
    """
    is_open = config.grid == GridConfig() and not config.run.emulate_members
    is_other = config.agreement.kind in ALONE or config.update.kind == COORDINATE
    if ranks == 1 or not is_open or is_other:
        return config
    rows = config.schedule.batch * config.agreement.accumulate
    is_timed = config.agreement.kind == "anybatch"
    log.info(
        "%s is for replicas and no grid was given: each of %d ranks is one (--grid"
        " %dx1), so that %s %d x %d rows",
        _name(config),
        ranks,
        ranks,
        "a round of all has at most" if is_timed else "a step of all has",
        ranks,
        rows,
        extra={"on_all_ranks": True},
    )
    return replace(config, grid=GridConfig(replicas=ranks, members=1))


def _name(config: RunConfig) -> str:
    asked = config.agreement
    return f"--method {asked.method}" if asked.method else f"--agreement {asked.kind}"


def warn_of_one_replica(config: RunConfig, replicas: int, ranks: int) -> None:
    """Methods are about replicas; ranks that are members of one agree on nothing."""
    asked = config.agreement
    if replicas > 1 or ranks == 1 or asked.kind in ALONE:
        return
    log.warning(
        "%s is for replicas, and all %d ranks are members of one, so that nothing is"
        " agreed on; use --grid %dx1 for a replica on each rank",
        *(_name(config), ranks, ranks),
        extra={"on_all_ranks": True},
    )


# Several models in one run: which they are, and what they cannot be trained with.


def many_models(config: RunConfig, scores: int) -> Models | None:
    """Those of `[sweep]`, with so many scores a row; None where there is one model."""
    if not config.sweep.is_many:
        return None
    return config.sweep.models(config.problem.l2, config.rate.value, scores)


def check_many(config: RunConfig) -> None:
    """Refuse what is not offered for several models, before any data is read."""
    if not config.sweep.is_many:
        return
    residual = config.precision.resolve().residual
    refused = (
        (
            config.run.device != "cpu",
            "run.device = 'cuda' trains one model at a time; use --device cpu",
        ),
        (
            config.precision.recipe == AUTO,
            "pilots of --precision auto train one model; name a recipe, as --precision"
            " fp32",
        ),
        (
            config.rate.per_batch > 0 and bool(config.sweep.rate),
            "rate.per_batch is about rate.value, and sweep.rate names other rates;"
            " scale those by hand, and leave rate.per_batch out",
        ),
        (
            config.update.clip != "none",
            f"update.clip = {config.update.clip!r} has one size for all models; use"
            " update.clip = 'none'",
        ),
        (
            get_format(residual).wants_scale,
            f"residuals in {residual} have one scale for all models; use"
            " --set precision.residual=fp32",
        ),
    )
    for is_asked, sentence in refused:
        if is_asked:
            raise ConfigError(f"[sweep] is not offered here: {sentence}")


def rates_of(
    config: RateConfig, models: Models | None, total_steps: int, epochs: int
) -> Callable[[int, int], Array]:
    """(first step, count) -> rates, (s,) of one model or (s, settings) of several."""
    if models is None:
        return make_rate(config, total_steps, epochs).at
    shape = make_rate(replace(config, value=1.0), total_steps, epochs)
    values = np.array([rate for _, rate in models.settings])
    return lambda first, count: np.multiply.outer(shape.at(first, count), values)


# What the settings of l1 and bounds mean for a run: its penalty, its steps, a hook.


def penalty_of(problem: ProblemConfig, columns: int) -> Penalty:
    """Of all columns of the data."""
    bounds: dict[str, Any] = {"lower": -np.inf, "upper": np.inf}
    for name in bounds:
        value = getattr(problem, name)
        if isinstance(value, tuple):
            if len(value) != columns:
                raise ConfigError(
                    f"[problem] {name} has {len(value)} numbers and the data {columns}"
                    " columns; give one number, or one for each column"
                )
            bounds[name] = np.asarray(value, dtype=np.float64)
        elif value is not None:
            bounds[name] = value
    return Penalty(problem.l2, problem.l1, **bounds)


def takes_one_step(config: RunConfig) -> bool:
    """Whether something has to be done behind every single step."""
    problem = config.problem
    bent = not problem.is_smooth and problem.l1_at == STEP
    return bent and config.update.kind != COORDINATE


def check_steps(config: RunConfig) -> None:
    """Refuse l1 and bounds where no step's end is known."""
    steps = config.schedule.steps
    if config.sweep.is_many and not config.problem.is_smooth:
        raise ConfigError(
            "the models of a sweep have ridge penalties alone; use hpcsgd.path for l1"
            " and bounds, or leave them out"
        )
    if takes_one_step(config) and steps > 1:
        raise ConfigError(
            f"l1 and bounds act behind every step, and --steps {steps} takes so many"
            " together; use --steps 1, which is exact, or --set"
            " problem.l1_at=exchange, an approximation that acts once an exchange"
        )


def resolve_steps(config: RunConfig) -> RunConfig:
    """Return `config` with steps set to one where they were left open and have to be
    one.
    """
    if config.schedule.steps or not takes_one_step(config):
        return config
    return replace(config, schedule=replace(config.schedule, steps=1))


def proximal_hooks(
    config: RunConfig, columns: int, held: slice, classes: int, backend: Backend
) -> list[Hook]:
    """The hook of l1 and bounds for the columns held; none where F is smooth."""
    if config.problem.is_smooth:
        return []
    penalty = penalty_of(config.problem, columns).of(held)
    form = backend.precision.weights
    return [Proximal(penalty, classes, lambda w: backend.round(w, form))]


# What SVRG takes besides its steps, and what it is not offered with.

KIND = "svrg"


def check_svrg(config: RunConfig) -> None:
    """Refuse what would not be SVRG, before any data is read."""
    if config.update.kind != KIND:
        return
    refused = (
        (config.run.device != "cpu", "its steps are not on GPUs; use --device cpu"),
        (
            config.update.clip != "none",
            "its gradients are differences, which clipping would bias; set"
            " update.clip = 'none'",
        ),
        (
            config.sweep.is_many,
            "a sweep has one snapshot for each model; train them one by one",
        ),
        (
            bool(config.run.emulate_members),
            "a snapshot needs the rows of all members, and --emulate-members has those"
            " of one; use --update sgd",
        ),
    )
    for is_asked, sentence in refused:
        if is_asked:
            raise ConfigError(f"--update svrg: {sentence}")


def snapshot_hooks(
    config: RunConfig,
    exchanges_per_epoch: int,
    evaluation: Evaluation,
    columns: Columns,
) -> list[Hook]:
    """The hook that takes snapshots; none for other updates."""
    if config.update.kind != KIND:
        return []
    every = config.update.snapshot
    return [Snapshots(every, exchanges_per_epoch, evaluation, columns)]


# What a configuration names, before any data is seen.


def resolve_names(config: RunConfig, world: Communicator) -> ResolvedNames:
    """Look every name up; what is unknown or does not fit is refused here."""
    check_steps(config)
    if config.update.kind == COORDINATE:
        raise ConfigError(
            f"--update {COORDINATE} takes no steps of SGD, which this is about; use"
            " hpcsgd train for it, or another --update"
        )
    check_svrg(config)
    world, replicas = _as_many(config, world), config.grid.replicas
    members = config.grid.members or max(world.size // max(replicas, 1), 1)
    check_size(world.size, replicas, members)
    warn_of_one_replica(config, replicas, world.size)
    if config.products.kind != "auto":
        get_product(config.products.kind)
    precision, update = config.precision.resolve(), config.update
    check(config, precision)
    check_many(config)
    network = parse_network(config.run.network) if config.run.network else None
    # Ranks that wait for each other in shared memory would not see one die.
    shrinks = config.run.on_failure == "shrink"
    world.share_nodes("off" if shrinks else config.run.node_sharing)
    return ResolvedNames(
        world=emulate_network(config, world),
        members=members,
        family=_family(config),
        precision=precision,
        backend=make_backend(precision),
        update=make_update(
            update.kind,
            0.0 if update.kind == "sgd" else update.momentum,
            update.bits,
        ),
        agreement=_agreement(config),
        latency=network.alpha if network else 0.0,
    )


def emulate_network(config: RunConfig, world: Communicator) -> Communicator:
    """Return the world with the delays of the requested network."""
    if not config.run.network:
        return world
    return DelayedCommunicator(world, parse_network(config.run.network))


def _as_many(config: RunConfig, world: Communicator) -> Communicator:
    """The world, or this rank as one of those that are emulated."""
    run, grid = config.run, config.grid
    if not run.emulate_members:
        return world
    if world.size > 1 or run.out or run.resume != "no":
        raise ConfigError(
            "--emulate-members times one rank and learns nothing: start it on one"
            " rank, without --out and --resume"
        )
    members = grid.members or run.emulate_members // max(grid.replicas, 1)
    check_size(run.emulate_members, grid.replicas, members)
    return EmulatedCommunicator(
        run.emulate_members, (members, grid.replicas), world.ledger, world.reproducible
    )


def _agreement(config: RunConfig) -> str:
    kind, replicas = config.agreement.kind, config.grid.replicas
    if kind == "auto":
        return "average" if replicas > 1 else "none"
    if kind not in AGREEMENTS:
        known = sorted([*AGREEMENTS, "auto"])
        raise ConfigError(f"[agreement] unknown kind: {kind!r}; known: {known}")
    if kind == "none" and replicas > 1:
        raise ConfigError(
            f"[agreement] kind = 'none' with {replicas} replicas trains as many"
            " unrelated models; use kind = 'average', or --grid 1xN"
        )
    _check_base(config, kind)
    return kind


def _check_base(config: RunConfig, kind: str) -> None:
    """What a row needs besides its own settings."""
    asked, base = config.agreement, config.agreement.base
    if kind == "slowmo":
        if base not in BASES:
            known = sorted(BASES)
            raise ConfigError(f"[agreement] unknown base: {base!r}; known: {known}")
        kind = base
    if kind != "hierarchical":
        return
    plan_levels(
        asked.groups, asked.periods, config.schedule.period, config.grid.replicas
    )
    if config.run.emulate_members:
        raise ConfigError(
            "--emulate-members knows no nested groups of replicas; use --agreement"
            " average"
        )
