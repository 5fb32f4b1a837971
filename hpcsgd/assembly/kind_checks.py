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


def wrong_on_disk(config: RunConfig, precision: Precision) -> tuple[Wrong, ...]:
    """What would hold all weights in memory, or lose them, with its remedy."""
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
