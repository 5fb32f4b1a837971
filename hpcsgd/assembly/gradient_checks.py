"""What the gradient agreement refuses, each in one sentence."""

from hpcsgd.agreement.by_leaders import check_groups
from hpcsgd.agreement.kinds import takes_gradients
from hpcsgd.assembly.kind_checks import Wrong, check_asynchronous, of_kinds
from hpcsgd.codecs import get_codec
from hpcsgd.config import RunConfig
from hpcsgd.errors import ConfigError
from hpcsgd.formats import get_format
from hpcsgd.precision import Precision
from hpcsgd.products import GATHERS, RECURS
from hpcsgd.updates import ADAPTIVE

UPDATES = ("sgd", "momentum", "nesterov", "nesterov-classic", *ADAPTIVE)
MOMENTA = ("momentum", "nesterov", "nesterov-classic", "adam")
ON_GPUS = ("gradient", "growing")


def check(config: RunConfig, precision: Precision) -> None:
    """Refuse what replicas could not agree on the gradient of."""
    codec = config.agreement.codec
    get_codec(codec)
    if not takes_gradients(config.agreement.kind):
        _check_unused(config)
        return
    check_groups(config.agreement.hierarchical)
    for is_wrong, why in (
        *_of_settings(config),
        *_of_formats(precision, codec),
        *_of_codec(config),
        *of_kinds(config, precision),
    ):
        if is_wrong:
            raise ConfigError(f"[agreement] kind = {config.agreement.kind!r} {why}")


def _of_settings(config: RunConfig) -> tuple[Wrong, ...]:
    schedule, how, kind = config.schedule, config.update.clip, config.products.kind
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
        (
            config.run.device == "cuda" and config.agreement.kind not in ON_GPUS,
            "is not built for GPUs yet; use --device cpu, or --agreement gradient",
        ),
        (
            config.run.device == "cuda" and kind in GATHERS,
            f"adds gradients on GPUs where rows are, and [products] kind = {kind!r}"
            " moves them; use --products direct, or --device cpu",
        ),
        (
            how != "none" and config.update.clip_over != "step",
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
