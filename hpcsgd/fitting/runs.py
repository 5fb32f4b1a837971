"""The runs that a fit takes: one, and slower ones where a guessed rate was too high."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hpcsgd.api import open_session
from hpcsgd.callbacks import Callback
from hpcsgd.comm.base import Communicator
from hpcsgd.config import RunConfig
from hpcsgd.fitting.advice import advise
from hpcsgd.fitting.given import Given
from hpcsgd.fitting.quiet import said_once
from hpcsgd.result import Result, Status
from hpcsgd.start import Start

log = logging.getLogger(__name__)
OWN = ("path", "memory", "threads")  # what a rank may have another of
SLOWER, TRIES = 0.125, 4  # of a rate from the data with which the loss blew up


@dataclass(frozen=True)
class Runs:
    """A fit on the ranks of a world."""

    world: Communicator
    config: RunConfig
    given: Given
    callbacks: Sequence[Callback]
    start: Start
    tol: float  # of the certified gap, relative to F

    def run(self) -> Result:
        """The result of the run that held, the same bits on all ranks."""
        result = self._train(self.config)
        tries = 1
        while self._blew_up(result) and tries < TRIES:
            rate = result.config["rate"]["value"] * SLOWER
            log.warning(
                "the loss blew up with a rate of %.3g; again with %.3g",
                *(result.config["rate"]["value"], rate),
                extra={"on_all_ranks": True},
            )
            slower = replace(self.config.rate, value=rate)
            result = self._train(replace(self.config, rate=slower))
            tries += 1
        result.report["rates_tried"] = tries
        if self.given.names is not None:
            result.report["feature_names"] = self.given.names
        result.report.setdefault("feature_names", None)
        advise(result, self.tol)
        return self.alike(result)

    def _train(self, config: RunConfig) -> Result:
        callbacks = list(self.callbacks)
        opens, start = self.given.opens, self.start
        with said_once():
            return open_session(self.world, config, opens, callbacks, start).run()

    def _blew_up(self, result: Result) -> bool:
        """A rate that was given stays what it is."""
        return result.status is Status.DIVERGED and self.config.rate.is_open

    def alike(self, result: Result) -> Result:
        """As rank 0 has it: a sum over members need not give all the same bits."""
        if self.world.size == 1:
            return result
        found: dict[str, Any] = {"loss": np.array(result.loss)}
        found["weights"] = np.ascontiguousarray(result.weights)
        if result.intercept is not None:
            found["intercept"] = np.array(result.intercept)
        for array in found.values():
            self.world.broadcast(array, 0, "control")
        found["loss"] = float(found["loss"])
        if result.intercept is not None and not np.ndim(result.intercept):
            found["intercept"] = found["intercept"][()]
        return replace(result, **found)
