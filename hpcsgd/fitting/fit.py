"""The functional door: data in, a model out."""

from collections.abc import Mapping
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hpcsgd.api import train
from hpcsgd.callbacks import Callback
from hpcsgd.comm.base import Communicator
from hpcsgd.config import RunConfig
from hpcsgd.errors import ConfigError
from hpcsgd.families import get_family
from hpcsgd.fitting.settings import laid_over
from hpcsgd.result import Result


def fit(
    data: Any,
    family: str = "logistic",
    y: ArrayLike | None = None,
    *,
    sample_weight: ArrayLike | None = None,
    offset: ArrayLike | None = None,
    alpha: float = 1e-4,
    l1_ratio: float = 0.0,
    fit_intercept: bool = True,
    bounds: Any = None,
    epochs: int = 50,
    tol: float = 1e-4,
    batch: int = 32,
    steps: int | str = "auto",
    rate: float | str = "auto",
    update: str = "sgd",
    momentum: float = 0.9,
    average: str = "auto",
    polish: bool | str = "auto",
    hold_out: float = 0.0,
    patience: int = 5,
    start: Any = None,
    seed: int = 0,
    precision: str = "fp32",
    device: str = "cpu",
    solver: str = "auto",
    comm: Communicator | Any = None,
    layout: str = "replicated",
    grid: tuple[int, int] | str | None = None,
    callbacks: list[Callback] | None = None,
    verbose: int = 0,
    config: Mapping[str, Mapping[str, Any]] | RunConfig | None = None,
) -> Result:
    """Fit a generalized linear model: as `train`, with defaults that just work."""
    if start is not None or layout != "replicated" or hold_out:
        raise ConfigError("start, layout and hold_out are not there yet")
    if l1_ratio or bounds is not None or solver not in ("auto", "sgd"):
        raise ConfigError("l1_ratio, bounds and other solvers are not there yet")
    tables = {
        "problem": {"family": family, "l2": alpha, "intercept": fit_intercept},
        "schedule": {"batch": batch, "steps": steps, "epochs": epochs},
        "rate": {"value": _rate(family, data, alpha) if rate == "auto" else rate},
        "update": {"kind": update, "momentum": momentum},
        "sampling": {"seed": seed},
        "precision": {"recipe": precision},
        "run": {"device": device},
    }
    if isinstance(data, str | PathLike):
        tables["data"] = {"path": str(data)}
    return train(
        laid_over(tables, config),
        X=None if isinstance(data, str | PathLike) else data,
        y=y,
        sample_weight=sample_weight,
        offset=offset,
        world=comm,
        callbacks=callbacks,
    )


def _rate(family: str, data: Any, l2: float) -> float:
    if isinstance(data, str | PathLike):
        return 0.1
    squares = data.multiply(data) if hasattr(data, "tocsr") else np.square(data)
    curvature = min(get_family(family).curvature, 10.0)
    return float(1.0 / (curvature * (np.max(squares.sum(axis=1)) + 1.0) + l2))
