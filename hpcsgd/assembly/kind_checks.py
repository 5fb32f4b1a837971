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
    """What kinds of a method of their own ask for."""
    asked, update = config.agreement, config.update.kind
    replicas = config.grid.replicas
    by_leaders = asked.hierarchical != "off"
    shapes = config.update.shapes or ("clip" if config.update.clip != "none" else "")
    scaled = get_format(precision.residual).wants_scale
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
            asked.kind in (*OWN_STEPS, QADAM) and bool(shapes),
            f"tells of no mean gradient, on which [update] {shapes} works; use"
            " --agreement gradient, or leave it out",
        ),
        (
            asked.kind in (*OWN_STEPS, QADAM) and scaled,
            f"has no word beside what it tells in which residuals in"
            f" {precision.residual} could overflow; use --set precision.residual=fp32",
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
            asked.kind == QADAM and update != "adam",
            f"is Adam whose momentum travels, and [update] kind = {update!r} has none"
            " of it; use --update adam",
        ),
    )


def _takes_tail(config: RunConfig) -> bool:
    return config.average.kind != "none" and config.grid.replicas > 1


def check_asynchronous(config: RunConfig) -> None:
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
