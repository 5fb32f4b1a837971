"""What replicas that hold slices refuse, each in one sentence."""

from hpcsgd.agreement.kinds import SHARDED
from hpcsgd.config import RunConfig
from hpcsgd.formats import get_format
from hpcsgd.precision import Precision
from hpcsgd.products import GATHERS

Wrong = tuple[bool, str]  # whether it is, and the sentence


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
