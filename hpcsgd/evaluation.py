"""Full losses along the way, and the last weights that had a good one."""

import logging
import math
from typing import Any

import numpy as np

from hpcsgd.agreement import Agreement
from hpcsgd.agreement.on_disk import OnDisk
from hpcsgd.backends.looks import all_finite
from hpcsgd.callbacks.base import View
from hpcsgd.objective import Losses, Objective, Slope
from hpcsgd.optimality import gap_of, gradient_of
from hpcsgd.polish.certificate import null_excess
from hpcsgd.polish.rows import open_rows
from hpcsgd.polish.separation import is_separated, may_lack_minimum
from hpcsgd.products.base import Array, State

log = logging.getLogger(__name__)
ONCE = {"on_all_ranks": True}  # the loss is that of all ranks together
BLOW_UP = 1e3  # times the scale of the first loss: no useful step goes that far up


class Evaluation:
    """Measures the model that a run would return now."""

    def __init__(
        self,
        objective: Objective,
        agreement: Agreement,
        columns: int,
        own: slice,
        takes: str = "loss",
        has_intercept: bool = False,
    ) -> None:
        self.objective = objective
        self.has_intercept = has_intercept
        self._null_excess: float | None = None
        self.known: Slope | None = None  # at the last evaluation, where it was taken
        self.takes = takes  # gradient, gap: what is taken beside the loss
        self.agreement = agreement
        self.columns = columns  # K
        self.own = own  # this member's columns within the weights it holds
        self.first_loss: float | None = None
        self.good: tuple[Array, Array | None, float] | None = None
        self.measured_at = -1
        self.clipped = 0  # scores beyond the range of exp at the last look

    def measure(self, state: State, view: View) -> bool:
        """Put the loss into the view; False when it says that the run diverged."""
        seen = self.agreement.consensus(state, view.exchanges).glance()
        intercept = None if seen.intercept is None else seen.intercept[0]
        own = seen.weights[self.own, : self.columns]
        with np.errstate(all="ignore"):
            found = self._losses(own, intercept)
            self._show(found, view)
            view.more |= self._optimality(own, intercept)
        if self.clipped and view.exchanges:
            log.warning(
                "%d scores lie beyond the range of exp and were clipped;"
                " lower the rate or scale the columns",
                self.clipped,
                extra=ONCE,
            )
        said = (view.epoch, view.exchanges, view.loss)
        log.debug("epoch %d, exchange %d: loss %.8g", *said, extra=ONCE)
        self.measured_at = view.exchanges
        if self.first_loss is None:
            self.first_loss = view.loss
        good = is_good(view.loss, self.first_loss)
        if good:
            kept = None if seen.intercept is None else seen.intercept.copy()
            self.good = (seen.weights.copy(), kept, view.loss)
        return good

    def _losses(self, own: Array, intercept: Array | None) -> Losses:
        """F, by the pass that takes its gradient where that is asked for."""
        self.known = None
        if self.takes != "gradient" or self.objective.shard.held is not None:
            return self.objective.measure(own, intercept)
        slope = self.known = self.objective.slope(own, intercept)
        return Losses(np.array([slope.loss]), None, slope.clips)

    def slope_of(self, state: State, exchanges: int) -> tuple[State, Slope]:
        """What replicas agree on now, and F with its gradient there.

        Where the last evaluation was of this state and took the gradient, no pass is
        made for it.
        """
        seen = self.agreement.consensus(state, exchanges).glance()
        if self.known is not None and self.measured_at == exchanges:
            return seen, self.known
        intercept = None if seen.intercept is None else seen.intercept[0]
        own = seen.weights[self.own, : self.columns]
        return seen, self.objective.slope(own, intercept)

    def _optimality(self, own: Array, intercept: Array | None) -> dict[str, Any]:
        """What was asked for beside the loss, each with its own pass over the rows."""
        if self.takes == "loss":
            return {}
        if self.known is not None:
            return {"gradient": self.objective.norm(self.known)}
        if self.takes == "gradient":
            return gradient_of(self.objective, own, intercept).as_dict(with_gap=False)
        return gap_of(self.objective, own, intercept).as_dict(with_gap=True)

    def null_excess(self) -> float:
        """Return F of the null model less the least that F could be, taken once.

        Collective: a few words, and no pass over the rows.
        """
        if self._null_excess is None:
            rows = open_rows(self.objective, self.columns)
            self._null_excess = null_excess(rows, self.has_intercept)
        return self._null_excess

    def lacks_minimum(self, state: State, exchanges: int) -> bool:
        """Return whether F has no minimum, since the model makes no error on any row.

        Collective. One pass over the rows, where nothing holds the weights back.
        """
        objective = self.objective
        is_plain = type(objective) is Objective and objective.models is None
        if not is_plain or not may_lack_minimum(
            objective.family.name, objective.penalty
        ):
            return False
        seen = self.agreement.consensus(state, exchanges).glance()
        intercept = None if seen.intercept is None else seen.intercept[0]
        rows = open_rows(objective, self.columns)
        own = seen.weights[self.own, : self.columns].astype(np.float64)
        return is_separated(rows, rows.start(own, intercept))

    def _show(self, found: Losses, view: View) -> None:
        """Of several models the least loss stands for all: it is their best that a run
        goes on for.
        """
        self.clipped = found.clips
        finite = found.each[np.isfinite(found.each)]
        is_one = self.objective.models is None
        view.loss = float(found.each[0] if is_one else min(finite, default=np.nan))
        view.more = {} if is_one else {"losses": numbers(found.each)}
        if found.held is not None:
            held = numbers(found.held)
            view.more["held"] = held[0] if is_one else held

    def are_broken(self, weights: Array) -> bool:
        """Whether nothing is left to train: a NaN, in each of several models."""
        models = self.objective.models
        if isinstance(weights, OnDisk):
            return weights.is_broken
        if models is None:
            return not all_finite(weights)  # without a mask as long as they are
        states = weights.shape[1] // self.columns
        return not models.are_finite(weights, states).any()

    def is_fresh(self, view: View) -> bool:
        """True where the loss in the view is that of the state now."""
        return self.measured_at == view.exchanges

    def restore(self, state: State) -> float:
        """Put the last good weights back; their loss."""
        if self.good is None:
            return math.nan
        weights, intercept, loss = self.good
        state.weights[...] = weights
        if state.intercept is not None and intercept is not None:
            state.intercept[...] = intercept
        return loss


def is_good(loss: float, first: float | None) -> bool:
    """Whether a run whose first loss was `first` has not blown up."""
    first = first or 0.0
    return math.isfinite(loss) and loss - first <= BLOW_UP * (1.0 + abs(first))


def numbers(values: Array) -> list[float | None]:
    """For a record; None where there is no number."""
    return [float(one) if math.isfinite(one) else None for one in values]
