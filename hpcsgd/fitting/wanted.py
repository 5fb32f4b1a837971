"""What the arguments of `fit` ask for, as a configuration."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpcsgd.comm.grid import parse_grid
from hpcsgd.config import RunConfig
from hpcsgd.errors import ConfigError
from hpcsgd.fitting.settings import laid_over

Tables = dict[str, dict[str, Any]]
TIGHT = 1e-8  # the tol of polish=True
PASSES = 1000  # of L-BFGS at most: badly conditioned data take some hundred
AVERAGES = {"auto": "tail", True: "tail", False: "none"}


@dataclass(frozen=True)
class Wanted:
    """The arguments, checked where no section of the configuration does."""

    family: Any
    alpha: Any
    l1_ratio: Any
    fit_intercept: Any
    bounds: Any
    epochs: Any
    tol: Any
    batch: Any
    steps: Any
    rate: Any
    update: Any
    momentum: Any
    average: Any
    polish: Any
    hold_out: Any
    patience: Any
    seed: Any
    precision: Any
    device: Any
    solver: Any
    grid: Any
    config: Any

    def settings(self, data: Any) -> RunConfig:
        """All of them as one configuration; `config` of the caller lies over it."""
        tables: Tables = {
            "problem": self._problem(),
            "schedule": self._named("batch", "steps", "epochs"),
            "rate": {"value": plain(self.rate), "norm": "batches"},
            "update": {"kind": self.update, "momentum": plain(self.momentum)},
            "polish": self._polish(),
            "average": {"kind": AVERAGES.get(self.average, self.average)},
            "sampling": self._named("seed"),
            "precision": {"recipe": self.precision},
            "grid": self._grid(),
            "run": {"device": self.device, "record": 0},
        }
        path = path_of(data)
        if path is not None:
            tables["data"] = {"path": path}
        return RunConfig.parse(laid_over(tables, self.config))

    def _named(self, *names: str) -> dict[str, Any]:
        return {name: plain(getattr(self, name)) for name in names}

    def _problem(self) -> dict[str, Any]:
        if not isinstance(self.family, str):
            raise ConfigError(
                f"family must be a name, as 'logistic', and is of type"
                f" {type(self.family).__name__}; pass targets as y=..."
            )
        alpha, ratio = _number("alpha", self.alpha), _number("l1_ratio", self.l1_ratio)
        if not 0.0 <= ratio <= 1.0:
            raise ConfigError(f"l1_ratio = {ratio!r} must lie in [0, 1]; 0 is ridge")
        return {
            "family": self.family,
            "l2": alpha * (1.0 - ratio),
            "l1": alpha * ratio,
            "intercept": bool(self.fit_intercept),
            **self._bounds(),
        }

    def _bounds(self) -> dict[str, Any]:
        if self.bounds is None:
            return {}
        try:
            lower, upper = self.bounds
        except (TypeError, ValueError) as error:
            raise ConfigError(
                "bounds must be a pair of a lowest and a highest weight, each a number,"
                " one for each column, or None; as (0, None)"
            ) from error
        given = {"lower": _bound(lower), "upper": _bound(upper)}
        return {name: bound for name, bound in given.items() if bound is not None}

    def _polish(self) -> dict[str, Any]:
        """L-BFGS wants a smooth F; l1 and bounds bend it."""
        tol, wish = _number("tol", self.tol), self.polish
        if wish not in ("auto", True, False):
            raise ConfigError(f"polish = {wish!r} must be 'auto', True or False")
        if self._problem().keys() & {"lower", "upper"} or self._problem()["l1"]:
            if wish is True:
                raise ConfigError(
                    "polish=True needs a smooth F, and l1 and bounds bend it; leave"
                    " polish='auto'"
                )
            return {}
        if wish is False:
            return {}
        aim = min(tol, TIGHT) if wish is True else tol
        return {"kind": "lbfgs", "tol": aim, "passes": PASSES}

    def _grid(self) -> dict[str, Any]:
        if self.grid is None:
            return {}
        text = isinstance(self.grid, str)
        replicas, members = parse_grid(self.grid) if text else self.grid
        return {"replicas": replicas, "members": members}


def _bound(value: Any) -> Any:
    if value is None or np.ndim(value) == 0:
        return None if value is None else _number("bounds", value)
    return [_number("bounds", one) for one in value]


def _number(name: str, value: Any) -> float:
    value = plain(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{name} = {value!r} must be a number")
    return float(value)


def plain(value: Any) -> Any:
    """NumPy's numbers as Python's, which a configuration is made of."""
    return value.item() if isinstance(value, np.generic) else value


def path_of(data: Any) -> str | None:
    """The file that is meant, where it is one."""
    return str(data) if isinstance(data, str | Path) else None
