"""What a configuration asks to be done to gradients that replicas agreed on."""

from hpcsgd.agreement.centring import OverClasses, OverColumns, ToLengthOne
from hpcsgd.agreement.clipping import ByNorm, ByPercentile, ByValue
from hpcsgd.agreement.noise import Noise
from hpcsgd.agreement.shaping import Shaper
from hpcsgd.config import RunConfig
from hpcsgd.errors import ConfigError

CLIPS = {"value": ByValue, "norm": ByNorm, "percentile": ByPercentile}


def make_shapers(config: RunConfig, columns: int, classes: int) -> tuple[Shaper, ...]:
    """In the order in which they work; `columns` are all of the data."""
    update = config.update
    if update.centre == "classes" and classes == 1:
        raise ConfigError(
            "[update] centre = 'classes' leaves nothing of the gradient of one score;"
            " use it with --family softmax, or leave it out"
        )
    found: list[Shaper] = []
    if update.clip != "none":
        found.append(CLIPS[update.clip](update.limit))
    if update.centre == "classes":
        found.append(OverClasses())
    if update.centre == "columns":
        found.append(OverColumns(columns))
    if update.normalise:
        found.append(ToLengthOne())
    if update.noise:
        found.append(Noise(update.noise, config.sampling.seed))
    return tuple(found)
