"""The tuning budget: one list of trials, drawn once, the same for every method."""

from collections.abc import Iterable, Sequence

import numpy as np

Setting = dict[str, float]
RATES = 1e-2, 1e3  # times 1 / mean ‖a‖²
BATCHES = 8, 512
FORGETTING = 1e-2, 0.5  # 1 − μ, in the half of the trials that have momentum
SEED = 20


def settings(trials: int, row_square: float) -> list[Setting]:
    """What is tried, in this order: each method takes the fields that it has."""
    drawn = np.random.default_rng(SEED).random((trials, 6))
    return [_setting(row, row_square) for row in drawn]


def _setting(drawn: Sequence[float], row_square: float) -> Setting:
    rate, batch, has_momentum, forgetting, decays, averages = drawn
    return {
        "rate": log_uniform(rate, *RATES) / row_square,
        "batch": round(log_uniform(batch, *BATCHES)),
        "momentum": 1 - log_uniform(forgetting, *FORGETTING)
        if has_momentum < 0.5
        else 0.0,
        "decays": int(decays < 0.5),
        "averages": int(averages < 0.5),
    }


def log_uniform(share: float, low: float, high: float) -> float:
    """From a uniform number to one whose logarithm is."""
    return float(low * (high / low) ** share)


def taken(tried: Iterable[Setting], fields: Sequence[str]) -> list[Setting]:
    """Only these fields; what then comes twice is tried once."""
    own = [{field: setting[field] for field in fields} for setting in tried]
    return [setting for n, setting in enumerate(own) if setting not in own[:n]]
