"""What the gradient agreement refuses, each in one sentence."""

import numpy as np

from hpcsgd.agreement.by_leaders import check_groups
from hpcsgd.agreement.kinds import is_on_disk, takes_gradients
from hpcsgd.assembly.gpu_kinds import of_gpus
from hpcsgd.assembly.kind_checks import (
    Wrong,
    check_asynchronous,
    of_kinds,
    wrong_on_disk,
)
from hpcsgd.assembly.sharded_checks import of_slices
from hpcsgd.auto_rate import ignores_length
from hpcsgd.codecs import Bucket, get_codec, make_codec
from hpcsgd.config import RunConfig
from hpcsgd.errors import ConfigError
from hpcsgd.formats import get_format
from hpcsgd.precision import Precision
from hpcsgd.products import GATHERS, RECURS
from hpcsgd.updates import ADAPTIVE

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
        more = wrong_on_disk(config, precision)
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
