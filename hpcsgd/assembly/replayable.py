"""Which runs are recorded: those whose exchanges plain SGD in longdouble can repeat."""

from hpcsgd.agreement import Agreement, Gradient
from hpcsgd.config import RunConfig
from hpcsgd.formats import get_format
from hpcsgd.precision import Precision


def is_replayable(
    config: RunConfig, precision: Precision, agreement: Agreement, several: bool
) -> bool:
    """One model, whose steps are neither clipped, nor anchored, nor of another rule."""
    update = config.update
    if update.clip != "none" or update.kind == "svrg" or several:
        return False
    if not isinstance(agreement, Gradient):
        return True
    # Others say more than sums, or leave steps out where residuals overflow.
    plain = (
        type(agreement) is Gradient and not get_format(precision.residual).wants_scale
    )
    return plain and not agreement.steps.rule.kept and not agreement.means.shapers
