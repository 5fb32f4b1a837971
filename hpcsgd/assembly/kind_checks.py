"""What agreements with ways of their own refuse, each in one sentence."""

from hpcsgd.agreement.kinds import OWN_STEPS
from hpcsgd.config import RunConfig
from hpcsgd.errors import ConfigError
from hpcsgd.formats import get_format
from hpcsgd.precision import Precision

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
