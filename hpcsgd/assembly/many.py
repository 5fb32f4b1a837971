"""Several models in one run: which they are, and what they cannot be trained with."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from hpcsgd.config import RunConfig
from hpcsgd.errors import ConfigError
from hpcsgd.formats import get_format
from hpcsgd.models import Models
from hpcsgd.precision import AUTO, Precision
from hpcsgd.products.base import Array
from hpcsgd.rates import RateConfig, make_rate


def many_models(config: RunConfig, scores: int) -> Models | None:
    """Those of `[sweep]`, with so many scores a row; None where there is one model."""
    if not config.sweep.is_many:
        return None
    return config.sweep.models(config.problem.l2, config.rate.value, scores)


def check_many(config: RunConfig, precision: Precision) -> None:
    """Refuse what is not offered for several models, before any data is read."""
    if not config.sweep.is_many:
        return
    refused = (
        (
            config.run.device != "cpu",
            "run.device = 'cuda' trains one model at a time; use --device cpu",
        ),
        (
            config.update.clip != "none",
            f"update.clip = {config.update.clip!r} has one size for all models; use"
            " update.clip = 'none'",
        ),
        (
            get_format(precision.residual).wants_scale,
            f"residuals in {precision.residual} have one scale for all models; use"
            " --set precision.residual=fp32",
        ),
    )
    for is_asked, sentence in refused:
        if is_asked:
            raise ConfigError(f"[sweep] is not offered here: {sentence}")


def check_recipe(config: RunConfig) -> None:
    """Refuse a recipe that pilots of one model would have to choose."""
    if config.sweep.is_many and config.precision.recipe == AUTO:
        raise ConfigError(
            "[sweep] is not offered with --precision auto, whose pilots train one"
            " model; name a recipe, as --precision fp32"
        )


def rates_of(
    config: RateConfig, models: Models | None, total_steps: int
) -> Callable[[int, int], Array]:
    """(first step, count) -> rates, (s,) of one model or (s, settings) of several."""
    if models is None:
        return make_rate(config, total_steps).at
    shape = make_rate(replace(config, value=1.0), total_steps)
    values = np.array([rate for _, rate in models.settings])
    return lambda first, count: np.multiply.outer(shape.at(first, count), values)
