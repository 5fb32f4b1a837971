"""How the models of a path are found: by coordinate forms, or by a fit for each."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.build import build
from hpcsgd.comm.base import Communicator
from hpcsgd.config import RunConfig
from hpcsgd.coordinate.along import along
from hpcsgd.coordinate.checks import best_form, fits, quickest_form
from hpcsgd.coordinate.settings import COORDINATE
from hpcsgd.data.frames import Matrix
from hpcsgd.fitting.fit import fit
from hpcsgd.fitting.given import Given, open_data
from hpcsgd.fitting.settings import laid_over
from hpcsgd.fitting.start import NullModel
from hpcsgd.paths.alphas import Alphas
from hpcsgd.polish.level import level
from hpcsgd.polish.rows import open_rows
from hpcsgd.problem import ProblemConfig
from hpcsgd.result import Result
from hpcsgd.timing import Clock

Array = NDArray[Any]


@dataclass
class Way:
    """How the models of a path are found, on the ranks of a world."""

    world: Communicator
    data: Any  # as it was given
    matrix: Matrix  # the same, as numbers
    sides: Mapping[str, Any]
    layout: str
    shared: dict[str, Any]  # arguments that `fit` has, too
    given: dict[str, Any]  # epochs, batch, steps, where they were given
    config: Mapping[str, Mapping[str, Any]] | None
    warm: bool

    def has_form(self, grid: Alphas, solver: str) -> bool:
        """Whether it goes by a coordinate form."""
        if solver == "auto":
            return fits(self._settings(1.0, grid.l1_ratio))
        return solver == COORDINATE

    def by_coordinates(self, grid: Alphas) -> list[Result]:
        """Data and Gram once, for all of them."""
        config = self._settings(1.0, grid.l1_ratio)
        opened = self._open(config)

        def problems(steepest: float) -> list[ProblemConfig]:
            chosen = grid.choose(lambda: steepest)
            parts: list[dict[str, Any]] = [
                _parts(float(a), grid.l1_ratio) for a in chosen
            ]
            return [replace(config.problem, **part) for part in parts]

        return list(along(config, self.world, opened.opens, problems, self.warm))

    def by_fits(self, grid: Alphas) -> list[Result]:
        """A fit for each, from the weights of the one before."""
        chosen = grid.choose(self._steepest)
        return list(self._fits(chosen, grid.l1_ratio))

    def _fits(self, alphas: Array, l1_ratio: float) -> Iterator[Result]:
        found = None
        for alpha in alphas:
            found = fit(
                self.data,
                y=self.sides["y"],
                sample_weight=self.sides["sample_weight"],
                offset=self.sides["offset"],
                alpha=float(alpha),
                l1_ratio=l1_ratio,
                start=found if self.warm else None,
                comm=self.world,
                layout=self.layout,
                config=self.config,
                **self.shared,
                **self.given,
            )
            yield found

    def _steepest(self) -> float:
        """The largest slope of a column where only an intercept is fitted."""
        config = replace(self._settings(1.0, 0.0), update=RunConfig().update)
        opened = self._open(config)
        live = build(config, self.world, opened.opens, [], Clock())
        NullModel(np.empty(0), None).put_into(live)
        objective, state = live.engine.evaluation.objective, live.state
        columns = live.task.columns
        rows = open_rows(objective, columns)
        weights = np.zeros((objective.shard.width, columns))
        scores = rows.start(
            weights, None if state.intercept is None else state.intercept[0]
        )
        if state.intercept is not None:
            scores = scores + level(rows, scores).shift
        slope, _ = rows.gradient(rows.residuals(scores))
        own = float(np.abs(slope).max(initial=0.0))
        steepest = float(max(self.world.exchange_objects(own)))
        live.close()
        return steepest

    def _open(self, config: RunConfig) -> Given:
        sides, layout = self.sides, self.layout
        return self.world.together(
            lambda: open_data(self.matrix, sides, layout, config)
        )

    def _settings(self, alpha: float, l1_ratio: float) -> RunConfig:
        """Of a coordinate form, whether the problem has one or not."""
        shared = self.shared
        schedule = {"batch": 1, "steps": 16, "epochs": 1000, **self.given}
        tables: dict[str, dict[str, Any]] = {
            "problem": {
                "family": shared["family"],
                "intercept": bool(shared["fit_intercept"]),
                **_parts(alpha, l1_ratio),
                **_bounds(shared["bounds"]),
            },
            "schedule": schedule,
            "update": {"kind": COORDINATE},
            "coordinate": {
                "tol": float(shared["tol"]),
                "form": quickest_form(shared["family"], l1_ratio, self.world.size),
            },
            "sampling": {"seed": shared["seed"], "mode": "shuffle-once"},
            "precision": {"recipe": shared["precision"]},
        }
        if self.matrix.path is not None:
            tables["data"] = {"path": self.matrix.path}
        config = RunConfig.parse(laid_over(tables, self.config))
        if best_form(config) == "dual" and "sampling" not in (self.config or {}):
            # In one order for all epochs it may take ten times as many.
            return replace(config, sampling=replace(config.sampling, mode="reshuffle"))
        return config


def _parts(alpha: float, l1_ratio: float) -> dict[str, float]:
    return {"l1": alpha * l1_ratio, "l2": alpha * (1.0 - l1_ratio)}


def _bounds(bounds: Any) -> dict[str, Any]:
    """As a configuration has them."""
    if bounds is None:
        return {}
    lower, upper = bounds
    return {
        name: float(value) if np.ndim(value) == 0 else [float(v) for v in value]
        for name, value in (("lower", lower), ("upper", upper))
        if value is not None
    }
