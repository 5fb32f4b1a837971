"""What the settings of l1 and bounds mean for a run: its penalty, its steps, a hook."""

from dataclasses import replace
from typing import Any

import numpy as np

from hpcsgd.backends.base import Backend
from hpcsgd.config import RunConfig
from hpcsgd.coordinate.settings import COORDINATE
from hpcsgd.errors import ConfigError
from hpcsgd.penalties import Penalty
from hpcsgd.problem import STEP, ProblemConfig
from hpcsgd.products.hooks import Hook
from hpcsgd.products.proximal import Proximal


def penalty_of(problem: ProblemConfig, columns: int) -> Penalty:
    """Of all columns of the data."""
    bounds: dict[str, Any] = {"lower": -np.inf, "upper": np.inf}
    for name in bounds:
        value = getattr(problem, name)
        if isinstance(value, tuple):
            if len(value) != columns:
                raise ConfigError(
                    f"[problem] {name} has {len(value)} numbers and the data {columns}"
                    " columns; give one number, or one for each column"
                )
            bounds[name] = np.asarray(value, dtype=np.float64)
        elif value is not None:
            bounds[name] = value
    return Penalty(problem.l2, problem.l1, **bounds)


def takes_one_step(config: RunConfig) -> bool:
    """Whether something has to be done behind every single step."""
    problem = config.problem
    bent = not problem.is_smooth and problem.l1_at == STEP
    return bent and config.update.kind != COORDINATE


def check_steps(config: RunConfig) -> None:
    """Refuse l1 and bounds where no step's end is known."""
    steps = config.schedule.steps
    if config.sweep.is_many and not config.problem.is_smooth:
        raise ConfigError(
            "the models of a sweep have ridge penalties alone; use hpcsgd.path for l1"
            " and bounds, or leave them out"
        )
    if takes_one_step(config) and steps > 1:
        raise ConfigError(
            f"l1 and bounds act behind every step, and --steps {steps} takes so many"
            " together; use --steps 1, which is exact, or --set"
            " problem.l1_at=exchange, an approximation that acts once an exchange"
        )


def settle_steps(config: RunConfig) -> RunConfig:
    """Steps that were left open are one where it has to be one."""
    if config.schedule.steps or not takes_one_step(config):
        return config
    return replace(config, schedule=replace(config.schedule, steps=1))


def proximal_hooks(
    config: RunConfig, columns: int, held: slice, classes: int, backend: Backend
) -> list[Hook]:
    """The hook of l1 and bounds for the columns held; none where F is smooth."""
    if config.problem.is_smooth:
        return []
    penalty = penalty_of(config.problem, columns).of(held)
    form = backend.precision.weights
    return [Proximal(penalty, classes, lambda w: backend.round(w, form))]
