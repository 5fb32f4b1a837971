"""Several models in one run: which they are, and what they cannot be trained with."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from hpcsgd.config import RunConfig
from hpcsgd.errors import ConfigError
from hpcsgd.formats import get_format
from hpcsgd.models import Models
from hpcsgd.precision import AUTO
from hpcsgd.products.base import Array
from hpcsgd.rates import RateConfig, make_rate


def many_models(config: RunConfig, scores: int) -> Models | None:
    """Those of `[sweep]`, with so many scores a row; None where there is one model."""
    if not config.sweep.is_many:
        return None
    return config.sweep.models(config.problem.l2, config.rate.value, scores)


def check_many(config: RunConfig) -> None:
    """Refuse what is not offered for several models, before any data is read."""
    if not config.sweep.is_many:
        return
    residual = config.precision.resolve().residual
    refused = (
        (
            config.run.device != "cpu",
            "run.device = 'cuda' trains one model at a time; use --device cpu",
        ),
        (
            config.precision.recipe == AUTO,
            "pilots of --precision auto train one model; name a recipe, as --precision"
            " fp32",
        ),
        (
            config.rate.per_batch > 0 and bool(config.sweep.rate),
            "rate.per_batch is about rate.value, and sweep.rate names other rates;"
            " scale those by hand, and leave rate.per_batch out",
        ),
        (
            config.update.clip != "none",
            f"update.clip = {config.update.clip!r} has one size for all models; use"
            " update.clip = 'none'",
        ),
        (
            get_format(residual).wants_scale,
            f"residuals in {residual} have one scale for all models; use"
            " --set precision.residual=fp32",
        ),
    )
    for is_asked, sentence in refused:
        if is_asked:
            raise ConfigError(f"[sweep] is not offered here: {sentence}")


def rates_of(
    config: RateConfig, models: Models | None, total_steps: int, epochs: int
) -> Callable[[int, int], Array]:
    """(first step, count) -> rates, (s,) of one model or (s, settings) of several."""
    if models is None:
        return make_rate(config, total_steps, epochs).at
    shape = make_rate(replace(config, value=1.0), total_steps, epochs)
    values = np.array([rate for _, rate in models.settings])
    return lambda first, count: np.multiply.outer(shape.at(first, count), values)
