"""Checks of a configuration, with one sentence for each refusal."""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hpcsgd.agreements.codecs import CODECS, get_codec, make_codec
from hpcsgd.agreements.codecs.base import Bucket
from hpcsgd.agreements.hierarchical import check_groups
from hpcsgd.backends.base import Backend
from hpcsgd.config import (
    GridConfig,
    RunConfig,
    is_in,
    unread_settings,
    value_of,
)
from hpcsgd.errors import ConfigError, either, nearest
from hpcsgd.formats import get_format
from hpcsgd.glm.penalties import STEP, Penalty, ProblemConfig
from hpcsgd.precision import AUTO, Precision
from hpcsgd.products import get_product
from hpcsgd.products.base import product_facts
from hpcsgd.products.observers import Observer, Proximal
from hpcsgd.runs.auto_rate import ignores_length
from hpcsgd.settings import refuse, remembered
from hpcsgd.solvers.coordinate import COORDINATE, grid_of_form
from hpcsgd.solvers.evaluation import Columns, Evaluation, SvrgSnapshots

# What an agreement requires and supports, compared with a whole configuration.

ONE_WORD = Bucket(0, 1, 1, np.dtype(np.float32))
MOMENTA = ("momentum", "nesterov", "nesterov-classic", "adam")


@dataclass(frozen=True)
class Feature:
    """A feature that an agreement may not support.

    Attributes
    ----------
    name : str
        The feature in a sentence: "supports no ...".
    requested_by : mapping
        section.key -> whether its value in a configuration asks for the feature.
    remedy : str
        What to do instead.
    """

    name: str
    requested_by: Mapping[str, Callable[[RunConfig], bool]]
    remedy: str

    def request(self, config: RunConfig) -> str:
        """Return the first setting that asks for the feature, "" where none does."""
        for name, asks in self.requested_by.items():
            if asks(config):
                section, key = name.split(".")
                value = value_of(name, config)
                if section == "precision":  # a recipe may have chosen it
                    value = getattr(config.precision.resolve(), key)
                return f"[{section}] {key} = {value!r}"
        return ""


INSTEAD = "use --agreement gradient, or leave it out"
FEATURES = {  # fields of Supports
    "codecs": Feature(
        "codecs",
        {"agreement.codec": lambda c: c.agreement.codec != "identity"},
        "leave agreement.codec out, or use --agreement gradient",
    ),
    "leaders": Feature(
        "sums in two levels",
        {"agreement.hierarchical": lambda c: c.agreement.hierarchical != "off"},
        INSTEAD,
    ),
    "loss_scale": Feature(
        "residuals that have to be scaled",
        {
            "precision.residual": lambda c: (
                get_format(c.precision.resolve().residual).wants_scale
            )
        },
        "use --set precision.residual=fp32, or --agreement gradient",
    ),
    "shaping": Feature(
        "change of a mean gradient",
        {
            "update.centre": lambda c: c.update.centre != "none",
            "update.normalise": lambda c: c.update.normalise,
            "update.noise": lambda c: c.update.noise > 0.0,
            "update.trust": lambda c: c.update.trust > 0.0,
            "update.clip": lambda c: c.update.clip == "percentile",
        },
        INSTEAD,
    ),
    "clipping": Feature(
        "clipping",
        {"update.clip": lambda c: c.update.clip not in ("none", "percentile")},
        INSTEAD,
    ),
    "packed_states": Feature(
        "optimizer state in 8 bits",
        {"update.bits": lambda c: c.update.bits == 8},
        "use update.bits = 32, or --agreement gradient",
    ),
    "averages": Feature(
        "averages of iterates that all replicas agree on",
        {"average.kind": lambda c: c.average.kind != "none" and c.grid.replicas > 1},
        "set average.kind = 'none'",
    ),
    "gradients_of_all_rows": Feature(
        "gradient of all rows",
        {
            "run.evaluate": lambda c: c.run.evaluate != "loss",
            "stop.on": lambda c: c.stop.on in ("gradient", "gap"),
        },
        "use run.evaluate = 'loss' and stop.on = 'none' or 'loss'",
    ),
    "refinement": Feature(
        "refinement",
        {"polish.kind": lambda c: c.polish.kind != "none"},
        "set polish.kind = 'none'",
    ),
    "gathers": Feature(
        "product for which members hold all columns",
        {"products.kind": lambda c: product_facts(c.products.kind).holds_all_columns},
        "use --products direct",
    ),
    "lost_ranks": Feature(
        "run on the ranks that are left",
        {"run.on_failure": lambda c: c.run.on_failure == "shrink"},
        "set run.on_failure to its default and go on with --resume auto",
    ),
    "emulated_members": Feature(
        "emulated members",
        {"run.emulate_members": lambda c: c.run.emulate_members > 0},
        "leave --emulate-members out, or use --agreement average",
    ),
    "gpus": Feature(
        "exchange on a GPU",
        {"run.device": lambda c: c.run.device == "cuda"},
        "use --method zero3 where slices of w fit into its memory, more replicas or"
        " members on more GPUs (--grid) where they do not, or --device cpu",
    ),
}


def check_configuration(
    config: RunConfig, given: Mapping[str, Mapping[str, Any]] | None = None
) -> None:
    """Refuse settings that a run would not read, or that do not go together.

    All of them are refused at once.

    Parameters
    ----------
    config : RunConfig
        All settings of a run.
    given : mapping of mappings or None
        The settings that the user gave, if other settings are laid below them.

    Raises
    ------
    ConfigError
        If there is anything to refuse. Its message has a sentence for each thing.
    """
    unread = unread_settings(config)
    sentences = [unread[n] for n in unread if given is None or is_in(n, given)]
    if config.update.kind != COORDINATE:
        sentences += refusals(config)
    refuse(sentences)


def refusals(config: RunConfig) -> Iterator[str]:
    """Yield a sentence for each combination of settings that SGD does not support.

    Coordinate descent is refused by a single sentence, since it takes no steps of SGD.
    """
    if config.update.kind == COORDINATE:
        yield (
            f"--update {COORDINATE} takes no steps of SGD, which this is about; use"
            " hpcsgd train for it, or another --update"
        )
        return
    yield from _of_epochs(config)
    yield from _of_steps(config)
    yield from _of_svrg(config)
    yield from _of_proximal(config)
    yield from product_refusals(config)
    yield from _of_open_steps(config)
    yield from _of_agreement(config, config.precision.resolve())
    yield from _of_sweep(config)


@remembered
def refuse_combinations(config: RunConfig) -> None:
    """Raise ConfigError if there are `refusals` of these settings."""
    refuse(refusals(config))


def _of_epochs(config: RunConfig) -> Iterator[str]:
    """Yield a refusal of 0 or automatic epochs if there is no refinement either."""
    schedule = config.schedule
    if schedule.epochs <= 0 and config.polish.kind == "none":
        epochs = "'auto'" if schedule.has_open_epochs else schedule.epochs
        yield (
            f"[schedule] epochs = {epochs} takes no step of SGD, or leaves that open,"
            " and nothing else trains the model; set polish.kind = 'newton' or epochs"
            " of at least 1"
        )


def product_refusals(config: RunConfig) -> Iterator[str]:
    """Yield a sentence for an unknown product, or one that the sampling prevents.

    A product that stores batches needs batches that come again in every epoch.
    """
    name = config.products.kind
    mode = config.sampling.mode
    if name != AUTO:
        yield from _raised_by(lambda: get_product(name))
    facts = product_facts(name)
    if facts.keeps_batches and mode != "shuffle-once":
        yield (
            f"[products] kind = {name!r} needs batches that come again and [sampling]"
            f" mode = {mode!r} draws new ones; use mode = 'shuffle-once',"
            f" or kind = {'gather' if facts.holds_all_columns else 'gram'!r}"
        )


def _of_open_steps(config: RunConfig) -> Iterator[str]:
    """Yield a refusal of automatic steps that change what several replicas learn."""
    is_open = not config.schedule.steps and not takes_one_step(config)
    shares_gradients = config.agreement.shares_gradients
    if is_open and config.grid.replicas > 1 and not shares_gradients:
        yield (
            "--steps auto would change what is learnt here: replicas average every"
            " --period exchanges of s steps; choose --steps, or one replica"
        )


def _raised_by(call: Callable[[], Any]) -> Iterator[str]:
    """Call `call`, and yield the message of the ConfigError that it raises, if any."""
    try:
        call()
    except ConfigError as error:
        yield str(error)


def _of_agreement(config: RunConfig, precision: Precision) -> Iterator[str]:
    """Yield a sentence for each setting that does not go with the agreement."""
    agreement = config.agreement
    subject = f"[agreement] kind = {agreement.kind!r}"
    if agreement.shares_gradients:
        yield from _raised_by(lambda: check_groups(agreement.hierarchical))
    is_coded = agreement.supports.codecs and agreement.codec != "identity"
    if agreement.shares_gradients or is_coded:
        # One replica encodes nothing, but refuses settings that no grid could run.
        codec = agreement.codec, ONE_WORD, config.codec, config.accordion
        yield from _raised_by(lambda: make_codec(*codec))
    else:
        yield from _raised_by(lambda: get_codec(agreement.codec))
    for ending in _requirements(config, precision):
        yield f"{subject} {ending}"
    for field, feature in FEATURES.items():
        requested = feature.request(config)
        if requested and not getattr(agreement.supports, field):
            yield (
                f"{subject} supports no {feature.name}, and {requested} was given;"
                f" {feature.remedy}"
            )
    if agreement.shares_gradients:
        for is_wrong, ending in _of_gradients(config, precision):
            if is_wrong:
                yield f"{subject} {ending}"
    if agreement.averages_weights and agreement.supports.codecs:
        for is_wrong, ending in _of_changes(config):
            if is_wrong:
                yield f"{subject} {ending}"
    if not agreement.shares_gradients and agreement.accumulate > 1:
        yield (
            f"{subject} sends no gradients, and [agreement] accumulate ="
            f" {agreement.accumulate} was given; {INSTEAD}"
        )
    try:
        for ending in agreement.conflicts_with(config, precision):
            yield f"{subject} {ending}"
    except ConfigError as error:
        yield str(error)


def _requirements(config: RunConfig, precision: Precision) -> Iterator[str]:
    """Yield an end of a sentence for each unmet requirement of the agreement."""
    needs = config.agreement.requires
    schedule = config.schedule
    update = config.update.kind
    product = config.products
    if needs.steps is not None and schedule.steps > needs.steps:
        yield (
            f"needs schedule.steps = {needs.steps}, and it is {schedule.steps}; use"
            f" --steps {needs.steps}, or --agreement average for several steps between"
            " agreements"
        )
    if needs.period is not None and schedule.period > needs.period:
        yield (
            f"needs schedule.period = {needs.period}, and it is {schedule.period};"
            f" use --period {needs.period}, agreement.accumulate for fewer messages, or"
            " --agreement average"
        )
    if needs.products is not None and product.kind not in ("auto", *needs.products):
        yield (
            f"needs --products {either(needs.products)}, and {product.kind} was given;"
            f" use --products {needs.products[0]}"
        )
    if needs.updates is not None and update not in needs.updates:
        remedy = f"--update {nearest(update, needs.updates) or needs.updates[0]}"
        if not config.agreement.shares_gradients:
            remedy += ", or --agreement gradient"
        choices = either(needs.updates)
        yield f"needs --update {choices}, and it is {update}; use {remedy}"
    if needs.one_model and config.sweep.is_many:
        yield "needs one model, and [sweep] names several; train them one by one"
    if needs.smooth and not config.problem.is_smooth:
        yield (
            "needs a smooth objective, and l1 or bounds were given; use --agreement"
            " average, or leave them out"
        )
    if needs.wide_weights and not get_format(precision.weights).is_wide:
        yield (
            f"needs weights of at least 32 bits, and [precision] weights ="
            f" {precision.weights!r} was given; use --set precision.weights=fp32"
        )


def _of_gradients(
    config: RunConfig, precision: Precision
) -> Iterator[tuple[bool, str]]:
    """Yield (whether it is violated, end of a sentence) for rules on gradients.

    The rules hold for every agreement on gradients.
    """
    update = config.update
    codec = config.agreement.codec
    residual = precision.residual
    wrapped = config.accordion.codec if codec == "accordion" else codec
    product = config.products.kind
    how = ignores_length(update)
    hierarchical = config.agreement.hierarchical
    yield (
        update.clip != "none" and update.clip_over != "step",
        "has one step an exchange, and [update] clip_over = 'exchange' is for more;"
        " leave it out",
    )
    yield (
        update.bits == 8 and update.kind == "nesterov-classic",
        "keeps momentum in 8 bits for --update momentum and nesterov; use one of them,"
        " or update.bits = 32",
    )
    yield (
        config.rate.is_open and bool(how),
        f"would take steps at 1/L, which --rate auto is, and [update] {how} makes them"
        " no longer where gradients are; give a rate, --rate 0.01 is a cautious start",
    )
    yield (
        get_format(residual).wants_scale and codec != "identity",
        f"leaves a step out where residuals in {residual} overflow, of which codec ="
        f" {codec!r} would have sent a part; use codec = 'identity', or --set"
        " precision.residual=fp32",
    )
    yield (
        update.trust > 0.0 and config.agreement.slices,
        f"gives a replica a slice of the weights, and [update] trust = {update.trust:g}"
        " needs the norm of all; use --agreement gradient, or leave it out",
    )
    takes_alike = config.agreement.steps_of_gradient
    yield (
        update.trust > 0.0 and update.kind == "adam" and not takes_alike,
        f"takes steps otherwise than at once, and [update] trust = {update.trust:g} of"
        " adam scales whole steps; use --agreement gradient, or leave it out",
    )
    by = config.accordion.by if codec == "accordion" else ""
    yield (
        by == "loss" and not config.run.evaluate_every,
        "with [accordion] by = 'loss' follows the losses of evaluations, of which [run]"
        " evaluate_every = 0 makes none; use --set run.evaluate_every=1",
    )
    yield (
        by == "time" and config.run.reproducible,
        "with [accordion] by = 'time' compresses as clocks decide, and --reproducible"
        " was given; use accordion.by = 'gradient' or 'loss'",
    )
    yield (
        codec == "vote" and config.rate.is_open,
        "would take steps at 1/L, which --rate auto is, and codec = 'vote' moves each"
        " weight by the rate; give a rate, --rate 0.001 is a cautious start",
    )
    yield (
        wrapped == "dgc" and config.codec.momentum > 0 and update.kind in MOMENTA,
        f"has momentum in codec dgc already and [update] kind = {update.kind!r} takes"
        " it of that again; use --update sgd, or codec.momentum = 0",
    )
    yield (
        config.run.device == "cuda" and product_facts(product).holds_all_columns,
        f"adds gradients on GPUs where rows are, and [products] kind = {product!r}"
        " moves them; use --products direct, or --device cpu",
    )
    yield (
        hierarchical != "off" and bool(config.run.emulate_members),
        f"with hierarchical = {hierarchical!r} has groups that --emulate-members does"
        " not know; use agreement.hierarchical=off",
    )


def _of_changes(config: RunConfig) -> Iterator[tuple[bool, str]]:
    """Yield (whether it is violated, end of a sentence) for rules on coded changes.

    The rules hold for every agreement on weights that supports codecs.
    """
    settings: Any = config.agreement
    codec = settings.codec
    if codec not in CODECS:
        return
    yield (
        get_codec(codec).follows_gradients,
        f"sends changes of weights, and codec = {codec!r} follows gradients; use"
        " codec = 'topk', or --agreement gradient",
    )
    yield (
        codec == "identity" and config.codec.feedback != "auto",
        "sends weights uncompressed, so that no error is left, and [codec] feedback ="
        f" {config.codec.feedback!r} was given; name a codec, or leave codec.feedback"
        " out",
    )
    if codec == "identity":
        return
    yield (
        settings.momentum == "average" and config.update.kind not in ("sgd", "svrg"),
        f"encodes changes of weights with codec = {codec!r}, and would average momenta,"
        " too; set agreement.momentum = 'keep' or 'reset'",
    )
    yield (
        config.update.kind == "svrg",
        f"encodes changes of weights with codec = {codec!r}, and svrg averages its"
        " snapshot, too; use --update sgd, or leave agreement.codec out",
    )
    yield (
        settings.rests
        and config.codec.remembers_errors(get_codec(codec).wants_feedback),
        f"has replicas that rest, which would send what codec = {codec!r} has kept of"
        " earlier rounds; use a codec without error feedback, as qsgd",
    )


# What a run says before it begins, of settings that do nothing and of its grid.

log = logging.getLogger(__name__)


def resolve_grid(config: RunConfig, ranks: int) -> RunConfig:
    """Return `config` with the grid that its method needs, if the user chose none.

    A method for replicas gets one replica for each rank, since it would do nothing with
    one. Coordinate descent gets the grid of its form. Other methods, and runs that
    emulate members, keep their grid.
    """
    if config.grid != GridConfig() or config.run.emulate_members:
        return config
    if config.update.kind == COORDINATE:
        form = config.coordinate.best_form(config.problem)
        replicas, members = grid_of_form(form, ranks)
    elif is_for_replicas(config) and ranks > 1:
        replicas, members = ranks, 1
        _log_replicas(config, ranks)
    else:
        return config
    return replace(config, grid=GridConfig(replicas=replicas, members=members))


def _log_replicas(config: RunConfig, ranks: int) -> None:
    rows = config.schedule.batch * config.agreement.accumulate
    is_timed = config.agreement.takes_rounds
    log.info(
        "%s is for replicas and no grid was given: each of the %d ranks is a replica"
        " (--grid %dx1), so that %s %d x %d rows",
        _name(config),
        ranks,
        ranks,
        "a round of all has at most" if is_timed else "a step of all has",
        ranks,
        rows,
        extra={"on_all_ranks": True},
    )


def grid_reason(config: RunConfig) -> str:
    """Return why `resolve_grid` makes each rank a replica."""
    return f"{_name(config)} is for replicas, so that each rank is one"


def is_for_replicas(config: RunConfig) -> bool:
    """Return whether the user chose an agreement that needs several replicas."""
    return config.agreement.kind != AUTO and not config.agreement.works_alone


def _name(config: RunConfig) -> str:
    agreement = config.agreement
    return (
        f"--method {agreement.method}"
        if agreement.method
        else f"--agreement {agreement.kind}"
    )


def warn_of_one_replica(config: RunConfig, replicas: int, ranks: int) -> None:
    """Warn if the method is for replicas and all ranks are members of one."""
    if replicas > 1 or ranks == 1 or not is_for_replicas(config):
        return
    log.warning(
        "%s is for replicas, and all %d ranks are members of one replica, so that it"
        " has no effect; use --grid %dx1 to make each rank a replica",
        _name(config),
        ranks,
        ranks,
        extra={"on_all_ranks": True},
    )


# Several models in one run: what they cannot be trained with.


def _of_sweep(config: RunConfig) -> Iterator[str]:
    """Yield a sentence for each setting that several models do not support."""
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
            yield f"[sweep] is not offered here: {sentence}"


# What the settings of l1 and bounds mean for a run: its penalty, its steps, a hook.


def penalty_of(problem: ProblemConfig, columns: int) -> Penalty:
    """Return the penalty of all columns of the data: ridge, l1 and bounds.

    Raise ConfigError if bounds are given for another number of columns.
    """
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
    """Return whether l1 or bounds act after every step of SGD.

    An exchange then has one step.
    """
    problem = config.problem
    bent = not problem.is_smooth and problem.l1_at == STEP
    return bent and config.update.kind != COORDINATE


def _of_steps(config: RunConfig) -> Iterator[str]:
    """Yield refusals of l1 and bounds with a sweep or with several steps."""
    steps = config.schedule.steps
    if config.sweep.is_many and not config.problem.is_smooth:
        yield (
            "the models of a sweep have ridge penalties alone; use hpcsgd.path for l1"
            " and bounds, or leave them out"
        )
    if takes_one_step(config) and steps > 1:
        yield (
            f"l1 and bounds act behind every step, and --steps {steps} takes so many"
            " together; use --steps 1, which is exact, or --set"
            " problem.l1_at=exchange, an approximation that acts once an exchange"
        )


def proximal_observers(
    config: RunConfig, columns: int, held: slice, classes: int, backend: Backend
) -> list[Observer]:
    """Return a list with the observer that applies l1 and bounds; [] if F is smooth.

    `held` is the slice of columns of this member.
    """
    if config.problem.is_smooth:
        return []
    penalty = penalty_of(config.problem, columns).of(held)
    form = backend.precision.weights
    return [Proximal(penalty, classes, lambda w: backend.round(w, form))]


# What SVRG takes besides its steps, and what it is not offered with.

KIND = "svrg"


def _of_svrg(config: RunConfig) -> Iterator[str]:
    """Yield a sentence for each setting that the update svrg does not support."""
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
            yield f"--update svrg: {sentence}"


def _of_proximal(config: RunConfig) -> Iterator[str]:
    """Yield a sentence for each setting that the proximal term does not support."""
    if not config.agreement.proximal:
        return
    refused = (
        (config.run.device != "cpu", "its steps are not on GPUs; use --device cpu"),
        (
            config.update.kind == KIND,
            "it changes what replicas minimise, and snapshots of svrg are of F; use"
            " --update sgd",
        ),
    )
    for is_asked, sentence in refused:
        if is_asked:
            yield f"[agreement] proximal: {sentence}"


def snapshot_observers(
    config: RunConfig,
    exchanges_per_epoch: int,
    evaluation: Evaluation,
    columns: Columns,
) -> list[Observer]:
    """Return a list with the observer that takes snapshots; [] for other updates."""
    if config.update.kind != KIND:
        return []
    every = config.update.snapshot
    return [SvrgSnapshots(every, exchanges_per_epoch, evaluation, columns)]
