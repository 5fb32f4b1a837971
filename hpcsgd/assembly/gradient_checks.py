"""What the gradient agreement refuses, each in one sentence."""

from hpcsgd.agreement.by_leaders import check_groups
from hpcsgd.agreement.kinds import OWN_STEPS, takes_gradients
from hpcsgd.codecs import get_codec
from hpcsgd.config import RunConfig
from hpcsgd.errors import ConfigError
from hpcsgd.formats import get_format
from hpcsgd.precision import Precision
from hpcsgd.products import RECURS
from hpcsgd.updates import ADAPTIVE

UPDATES = ("sgd", "momentum", "nesterov", "nesterov-classic", *ADAPTIVE)
NEVER_ONE = (
    "never has all replicas agree before the end, and [average] takes means of iterates"
    " that they agree on; set average.kind=none"
)
Wrong = tuple[bool, str]  # whether it is, and the sentence


def check(config: RunConfig, precision: Precision) -> None:
    """Refuse what replicas could not agree on the gradient of."""
    get_codec(config.agreement.codec)
    if not takes_gradients(config.agreement.kind):
        _check_unused(config)
        return
    wrong = *_of_settings(config), *_of_formats(precision), *_of_kinds(config)
    check_groups(config.agreement.hierarchical)
    for is_wrong, why in wrong:
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
            config.run.device == "cuda",
            "is not built for GPUs yet; use --device cpu, or --agreement average",
        ),
        (
            how != "none",
            f"does not clip and [update] clip = {how!r}; use --set update.clip=none,"
            " or a lower --rate",
        ),
        (
            config.update.kind not in UPDATES,
            f"steps by one gradient and [update] kind = {config.update.kind!r} does"
            " not; use --update sgd, momentum or nesterov",
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


def _of_kinds(config: RunConfig) -> tuple[Wrong, ...]:
    """What kinds of a method of their own ask for."""
    asked, update = config.agreement, config.update.kind
    replicas = config.grid.replicas
    by_leaders = asked.hierarchical != "off"
    encodes = asked.codec != "identity" or config.codec.feedback == "on"
    return (
        (
            asked.kind in OWN_STEPS and encodes,
            "tells weights, and codecs are for gradients; leave agreement.codec and"
            " codec.feedback out, or use --agreement decentralized-low",
        ),
        (
            asked.kind == "decentralized"
            and asked.peers == "shift_one"
            and replicas % 2 == 1,
            f"with peers = 'shift_one' makes pairs, and {replicas} replicas leave one"
            " over; use an even number of replicas, or agreement.peers=all",
        ),
        (
            asked.kind in OWN_STEPS and by_leaders,
            f"has no sums for leaders and hierarchical = {asked.hierarchical!r}; leave"
            " it out, or use --agreement gradient",
        ),
        (
            asked.kind in OWN_STEPS and _takes_tail(config),
            NEVER_ONE,
        ),
        (
            by_leaders and bool(config.run.emulate_members),
            f"with hierarchical = {asked.hierarchical!r} has groups that"
            " --emulate-members does not know; use agreement.hierarchical=off",
        ),
        (
            asked.kind == "qadam" and update != "adam",
            f"is Adam whose momentum travels, and [update] kind = {update!r} has none"
            " of it; use --update adam",
        ),
    )


def _takes_tail(config: RunConfig) -> bool:
    return config.average.kind != "none" and config.grid.replicas > 1


def _of_formats(precision: Precision) -> tuple[Wrong, ...]:
    residual = precision.residual
    return (
        (
            not get_format(precision.weights).is_wide,
            f"sums gradients in the format of the weights, and {precision.weights} is"
            " too narrow; use --set precision.weights=fp32",
        ),
        (
            get_format(residual).wants_scale,
            f"cannot leave a step out on one replica alone, as residuals in {residual}"
            " ask for; use --set precision.residual=fp32",
        ),
    )


def _check_unused(config: RunConfig) -> None:
    """Settings of gradients that would do nothing are a misunderstanding."""
    agreement = config.agreement
    if agreement.kind == "async-average":
        _check_asynchronous(config)
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


def _check_asynchronous(config: RunConfig) -> None:
    """One average at a time, of what is on the host and belongs to steps alone."""
    delay, period = config.agreement.delay, config.schedule.period
    for is_wrong, why in (
        (
            delay > period,
            f"sends one average at a time: [agreement] delay = {delay} must be at most"
            f" [schedule] period = {period}; use a longer --period",
        ),
        (
            config.run.device == "cuda",
            "is not built for GPUs yet; use --device cpu, or --agreement average",
        ),
        (
            config.update.kind == "svrg",
            "moves what all agreed on a while ago, and svrg takes snapshots of what"
            " they agree on now; use --agreement average",
        ),
        (_takes_tail(config), NEVER_ONE),
    ):
        if is_wrong:
            raise ConfigError(f"[agreement] kind = 'async-average' {why}")
