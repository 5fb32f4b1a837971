"""What a configuration says of rounding, besides the nine formats."""

from dataclasses import dataclass

from hpcsgd.backends.base import Backend
from hpcsgd.backends.dice import Dice
from hpcsgd.backends.loss_scale import make_loss_scale
from hpcsgd.backends.rounded import RoundedBackend
from hpcsgd.errors import ConfigError
from hpcsgd.formats import get_format
from hpcsgd.precision import PrecisionConfig


@dataclass(frozen=True)
class Place:
    """Where a rank is, for draws that its members share."""

    seed: tuple[int, int]  # of the run, and the replica
    own: slice
    columns: int  # of the data


def cast(backend: Backend, config: PrecisionConfig, place: Place) -> None:
    """Tell the backend how weights are rounded and residuals scaled."""
    weights = get_format(backend.precision.weights)
    draws = config.rounding == "stochastic"
    if draws and weights.is_wide:
        raise ConfigError(
            f"[precision] rounding = 'stochastic' does nothing for weights in"
            f" {weights.name}; set weights to a narrow format, as bf16"
        )
    if not isinstance(backend, RoundedBackend):
        return
    if draws:
        backend.dice = Dice(*place.seed, place.own, place.columns)
    if backend.loss_scale is not None:
        backend.loss_scale = make_loss_scale(config.loss_scale)
