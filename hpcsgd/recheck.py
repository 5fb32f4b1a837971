"""`--precision auto` while it runs: is the recipe good enough from here on?

The pilots at the start of a run begin where it begins. Losses shrink, weights grow, and
what rounding does to them may be another thing later: so pilots are tried again, from
the weights at hand and on other rows, over the exchanges that are left.
"""

import logging
import operator
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter
from typing import Any

from hpcsgd.assembly.live import Live
from hpcsgd.auto_precision import WIDEST, affordable
from hpcsgd.backends import threads
from hpcsgd.callbacks.base import View
from hpcsgd.checkpoint import ASKED
from hpcsgd.comm.base import Communicator
from hpcsgd.comm.serial import SerialCommunicator
from hpcsgd.config import RunConfig
from hpcsgd.data.readers import RowReader
from hpcsgd.fall_back import Outgrown, Rung
from hpcsgd.formats import get_format
from hpcsgd.precision import FIELDS, Precision, PrecisionConfig
from hpcsgd.products.base import State
from hpcsgd.rates import RateConfig, make_rate
from hpcsgd.start import Start
from hpcsgd.trials.pilot import Sample, draw_sample, loss_gaps
from hpcsgd.unchecked import Unchecked

log = logging.getLogger(__name__)
SMALLEST_RATE = 1e-300  # a rate may end at 0, and a pilot begins with one


class Recheck(Unchecked):
    """Pilots after epochs 1, 2, 4, 8, ...: not many, however long a run is."""

    def __init__(
        self,
        live: Live,
        reader: Callable[[Communicator], RowReader],
        found: dict[str, Any],
    ) -> None:
        self.live = live
        self.reader = reader
        self.found = found  # `precision_auto` of the result

    def is_due(self, epoch: int) -> bool:
        """Whether to look after so many epochs: a power of two."""
        return epoch > 0 and epoch & (epoch - 1) == 0

    def look(self, state: State, view: View) -> Outgrown | None:
        """What pilots from here say, on all ranks together; None: it is good enough."""
        began, live, world = perf_counter(), self.live, self.live.grid.world
        live.engine.agreement.arrive(state)
        start = self._start(state)

        def judge() -> tuple[float, str | None]:
            return (0.0, None) if world.rank else self._judge(start, view)

        with world.working("checking the precision again"):
            gap, better = world.exchange_objects(world.together(judge))[0]
        threads.use(live.config.run.threads)  # pilots take one
        self._keep(view, gap, perf_counter() - began)
        tolerance = live.config.precision.tolerance
        if gap <= tolerance:
            return None
        return Outgrown(gap, tolerance, None if better is None else self._rung(better))

    def _keep(self, view: View, gap: float, seconds: float) -> None:
        """For the result, and for the log."""
        precision = self.live.config.precision
        self.found.setdefault("rechecks", []).append(
            {
                "epoch": view.epoch,
                "exchange": view.exchanges,
                "recipe": precision.recipe,
                "predicted_gap": gap,
                "passed": gap <= precision.tolerance,
                "seconds": seconds,
            }
        )
        log.info(
            "after epoch %d: loss of %s expected within %.2g %% of fp64's from here",
            *(view.epoch, precision.recipe, 100 * gap),
            extra={"on_all_ranks": True},
        )

    def _start(self, state: State) -> Start:
        """All columns of this replica; called by all members."""
        seen = state.glance()
        whole = self.live.engine.agreement.whole(seen)
        weights = self.live.task.backend.to_host(whole)
        intercept = None if seen.intercept is None else seen.intercept.copy()
        return Start(self.live.columns.join(weights), intercept)

    def _judge(self, start: Start, view: View) -> tuple[float, str | None]:
        """The gap that is predicted; where it is too large, what to go on with."""
        config, now = self.live.config, self.live.config.precision
        gap = self._gaps(start, view, {now.recipe: now})[now.recipe]
        if gap <= now.tolerance:
            return gap, None
        wider = self._wider()
        gaps = self._gaps(start, view, wider)
        good = [name for name in wider if gaps[name] <= config.precision.tolerance]
        last = WIDEST if WIDEST in wider else None
        return gap, min(good, key=self._cost, default=last)

    def _gaps(
        self, start: Start, view: View, asked: dict[str, PrecisionConfig]
    ) -> dict[str, float]:
        config, members = self.live.config, self.live.grid.members.size
        left = self.live.engine.pace.exchanges - view.exchanges
        sample = self._sample(view.epoch)
        rate = RateConfig(value=self._rate(view))
        config = replace(config, rate=rate)
        found = loss_gaps(config, sample, asked, members, left, start)
        return {name: gap.predicted for name, gap in found.items()}

    def _sample(self, epoch: int) -> Sample:
        """Other rows than at the start and after other epochs."""
        config = self.live.config
        rows = config.schedule.batch * config.schedule.steps
        reader = self.reader(SerialCommunicator())
        try:
            return draw_sample(
                reader, rows, config.sampling.seed + epoch, config.problem.family
            )
        finally:
            reader.close()

    def _rate(self, view: View) -> float:
        """The one that the next step has."""
        schedule = self.live.config.schedule
        total = view.steps * schedule.epochs // view.epoch
        rate = make_rate(self.live.config.rate, total).at(view.steps, 1)
        return max(float(rate[0]), SMALLEST_RATE)

    def _wider(self) -> dict[str, PrecisionConfig]:
        """Recipes none of whose fields is narrower than now, and one wider."""
        now = self.live.config.precision.resolve()
        sections = {
            name: self._section(name) for name in affordable(self.live.config.precision)
        }
        return {
            name: one
            for name, one in sections.items()
            if _is_wider(one.resolve(), now)
            and name != self.live.config.precision.recipe
        }

    def _section(self, name: str) -> PrecisionConfig:
        """The recipe with what was set by hand; what a run fell back to is in it."""
        said = self.live.capture.facts.get(ASKED) or self.live.config.tables()
        return PrecisionConfig(**{**said["precision"], "recipe": name})

    def _cost(self, name: str) -> float:
        """Seconds of an exchange, as they were found at the start."""
        known = self.found["considered"].get(name, {})
        return float(known.get("seconds", float("inf")))

    def _rung(self, name: str) -> Rung:
        config = self.live.config
        changed: RunConfig = replace(config, precision=self._section(name))
        return Rung(changed, "precision.recipe", config.precision.recipe, name)


def _is_wider(one: Precision, now: Precision) -> bool:
    ours, theirs = _roundoffs(one), _roundoffs(now)
    return ours != theirs and all(map(operator.le, ours, theirs))


def _roundoffs(precision: Precision) -> list[float]:
    return [get_format(getattr(precision, name)).unit_roundoff for name in FIELDS]
