"""What comes after the last step: the optimum itself, where that is asked for."""

import logging
from collections.abc import Callable
from typing import Any

import numpy as np

from hpcsgd.callbacks.base import View, Wish
from hpcsgd.columns import Columns
from hpcsgd.comm.ledger import Entry
from hpcsgd.errors import ConfigError
from hpcsgd.evaluation import Evaluation
from hpcsgd.optimality import gap_at
from hpcsgd.polish import newton
from hpcsgd.polish.certificate import Certificate
from hpcsgd.polish.lbfgs import Ask, Ending, Lbfgs, Stand
from hpcsgd.polish.point import Landscape, Point
from hpcsgd.polish.rows import open_rows
from hpcsgd.polish.separation import NO_MINIMUM, is_separated, may_lack_minimum
from hpcsgd.polish.settings import PolishConfig
from hpcsgd.products.base import Array, State

log = logging.getLogger(__name__)
ONCE = {"on_all_ranks": True}  # all ranks would say it alike
WISHES = (Wish.STOP, Wish.PREEMPT, Wish.INTERRUPT)
Tell = Callable[[dict[str, Any]], Wish]

REMEDY = {
    Ending.PASSES: (
        "%d passes were not enough (gradient %.2g of the residuals, not %.2g); raise"
        " polish.passes, or set a ridge penalty (--l2)"
    ),
    Ending.UNCERTIFIED: (
        "after %d passes the gradient is small (%.2g of the residuals, tol %.2g), but F"
        " may be %.2g above its optimum, and not %.2g; rows or columns of very"
        " different size hide it: scale them, or raise the ridge penalty (--l2)"
    ),
    Ending.HIDDEN: (
        "after %d passes the gradient is small (%.2g of the residuals, tol %.2g), but a"
        " step of Newton would lower F by %s, and not %.2g; rows or columns of very"
        " different size hide it: scale them, or set a ridge penalty (--l2)"
    ),
    Ending.STUCK: (
        "after %d passes no lower loss was found (gradient %.2g of the residuals, not"
        " %.2g); scores may lie beyond the range of exp: scale the columns, or lower"
        " the rate"
    ),
}


class Unfinished:
    """The protocol, and what a run has that ends with its last step."""

    facts: dict[str, Any] | None = None  # of what was done, for the report
    has_minimum = True  # False: F falls without end

    def finish(self, state: State, view: View, tell: Tell) -> tuple[State, Wish]:
        """The state to return, and the wish that ended it early.

        `tell` takes what a record of the history says of a pass, and gives back what
        callbacks of this rank wish.
        """
        return state, Wish.NONE


UNFINISHED = Unfinished()


class Finisher(Unfinished):
    """L-BFGS or Newton from the last step's weights, in float64 on exact values."""

    def __init__(
        self,
        settings: PolishConfig,
        evaluation: Evaluation,
        columns: Columns,
        bounds_passes: bool = False,
    ) -> None:
        self.settings = settings
        self.evaluation = evaluation
        self.columns = columns
        self.bounds_passes = bounds_passes  # every pass has a gap, and costs one more
        self.gap: float | None = None  # where it was asked for, and is known

    def finish(self, state: State, view: View, tell: Tell) -> tuple[State, Wish]:
        """The optimum; every pass is told as an evaluation."""
        evaluation, settings = self.evaluation, self.settings
        said = evaluation.objective.grid.world.ledger.entries["evaluate"]
        before = Entry(said.calls, said.words)
        columns, objective = evaluation.columns, evaluation.objective
        weights, intercept = _begin(state, evaluation)
        land = Landscape(
            open_rows(objective, columns), objective.penalty.l2, intercept is not None
        )

        def ask(stand: Stand, point: Point) -> tuple[int, ...]:
            """Tell of a pass; what this rank wishes, one word for each wish."""
            if not stand.passes:
                return tuple(0 for _ in WISHES)
            view.loss = stand.loss
            known = {"gradient": stand.gradient, **self._bound(steps.land, point)}
            wish = tell({**known, "passes": stand.passes})
            return tuple(int(wish is one) for one in WISHES)

        certificate = Certificate(settings.tol) if self._has_gap else None
        steps = make_steps(land, settings, ask, certificate)
        point, ending = steps.run(weights, intercept)
        final = self._settled(point, steps)
        self._measure(final, point, steps, view)
        if certificate is not None and ending.is_good:
            # The judge is the gap of the weights as they are returned.
            is_met = certificate.meets(steps.land, self.gap, view.loss)
            ending = Ending.UNCERTIFIED if is_met is False else ending
        penalty, family = objective.penalty, objective.family.name
        endless = may_lack_minimum(family, penalty) and is_separated(
            steps.land.rows, point.scores
        )
        limit = None if certificate is None else certificate.limit
        more = {"gap": self.gap} if self._has_gap else {}
        self.facts = _facts(steps, ending, view, self.gradient) | {
            "messages": said.calls - before.calls,
            "words": said.words - before.words,
            **more,
            **({"gap_limit": limit} if self._has_gap else {}),
            **_expected(steps),
        }
        self.has_minimum = not endless
        if endless:
            log.warning("polish: %s (--l2)", NO_MINIMUM, extra=ONCE)
        else:
            self._say(steps, ending, limit)
        tell({"gradient": self.gradient, **more, "passes": steps.passes})
        return final, _granted(steps.last) if ending is Ending.ASKED else Wish.NONE

    @property
    def _has_gap(self) -> bool:
        has_ridge = self.evaluation.objective.penalty.l2 > 0.0
        return (self.settings.gap and has_ridge) or self.bounds_passes

    def _bound(self, land: Landscape, point: Point) -> dict[str, Any]:
        """The gap of a pass, where it was asked for: one pass more."""
        if not self.bounds_passes:
            return {}
        intercept = point.intercept if land.has_intercept else None
        return {"gap": gap_at(land.rows, point.weights, intercept, point.scores).gap}

    def _settled(self, point: Point, steps: Lbfgs) -> State:
        """Return the point as a state, its intercept the same bits on all ranks."""
        weights, grid = point.weights, self.columns.grid
        own = point.intercept
        if steps.centers is not None:
            own = own - steps.centers.moved(self.evaluation.objective, weights)
        if self.columns.whole:
            weights = Columns(grid, self.columns.parts, whole=False).join(weights)
        intercept = grid.world.broadcast(own, 0, "evaluate")
        return State(weights, intercept[None, :] if steps.land.has_intercept else None)

    def _measure(self, final: State, point: Point, steps: Lbfgs, view: View) -> None:
        """Take F, ‖∇F‖ and the gap of the weights as they are returned.

        The gap is that of the weights with the tangents at the point's scores.
        """
        rows = steps.land.rows
        objective, weights = rows.objective, final.weights[self.evaluation.own]
        intercept = None if final.intercept is None else final.intercept[0]
        if intercept is not None and steps.centers is not None:
            intercept = intercept + steps.centers.moved(objective, weights)
        slope = objective.slope(weights, intercept)
        self.gradient, view.loss = objective.norm(slope), slope.loss
        if self._has_gap:
            exact = rows.start(weights, intercept)
            self.gap = gap_at(rows, weights, intercept, point.scores, exact).gap
        self.evaluation.clipped = slope.clips

    def _say(self, steps: Lbfgs, ending: Ending, limit: float | None) -> None:
        stand = steps.last
        if ending in REMEDY:
            figures: tuple[Any, ...] = (stand.passes, stand.relative, self.settings.tol)
            if ending is Ending.UNCERTIFIED:
                figures += self.gap, limit
            elif steps.fall is not None and ending is Ending.HIDDEN:
                figures += amount(_fall_of(steps)), steps.fall.limit
            log.warning(f"polish: {REMEDY[ending]}", *figures, extra=ONCE)
        else:
            said = ("polish: %s after %d passes", ending.value, stand.passes)
            log.info(*said, extra=ONCE)


def make_steps(
    land: Landscape,
    settings: PolishConfig,
    ask: Ask,
    certificate: Certificate | None,
) -> Lbfgs:
    """Return steps of the kind that was asked for; `auto` where there may be both."""
    columns, scores = land.rows.objective.shard.total_columns, land.rows.columns
    small = newton.is_small(columns, scores)
    if settings.kind == "newton" and not small:
        raise ConfigError(
            f"[polish] kind = 'newton' takes at most {newton.MOST} variables, and here"
            f" are {(columns + 1) * scores}; use kind = 'lbfgs'"
        )
    if settings.kind == "lbfgs" or not small:
        return Lbfgs(land, settings, ask, certificate)
    steps = newton.Newton(land, settings, ask, certificate)
    steps.after = 0 if settings.kind == "newton" else newton.PATIENCE
    return steps


def _begin(state: State, evaluation: Evaluation) -> tuple[Array, Array | None]:
    """This member's weights and the intercept, in float64.

    Of classes, less their mean: scores that all grow by the same change nothing, and
    what rounding has put there would have to be walked back along a flat direction.
    """
    found = state.weights[evaluation.own, : evaluation.columns].astype(np.float64)
    intercept = None if state.intercept is None else state.intercept[0].copy()
    if evaluation.columns > 1:
        found -= found.mean(axis=1, keepdims=True)
        if intercept is not None:
            intercept -= intercept.mean()
    return found, intercept


def _granted(stand: Stand) -> Wish:
    """The largest that any rank has."""
    heard = zip(WISHES, stand.wishes, strict=True)
    return max((wish for wish, count in heard if count), default=Wish.NONE)


def amount(fall: float | None) -> str:
    """Return in words how much F is expected to fall; None: more than can be told."""
    return "an unknown amount" if fall is None else f"{fall:.2g}"


def _fall_of(steps: Lbfgs) -> float | None:
    """Return the fall of F that Newton expected at the end; None: it is unknown."""
    fall = None if steps.fall is None else steps.fall.gap
    return fall if fall is not None and np.isfinite(fall) else None


def _expected(steps: Lbfgs) -> dict[str, Any]:
    """Return what the report has of the fall, where a step of Newton was tried."""
    if steps.fall is None or steps.fall.gap is None:
        return {}
    return {"expected_fall": _fall_of(steps), "fall_limit": steps.fall.limit}


def _facts(steps: Lbfgs, ending: Ending, view: View, gradient: float) -> dict[str, Any]:
    return {
        "kind": steps.settings.kind,
        "ended": ending.value,
        "passes": steps.passes,
        "trials": steps.trials,
        "loss_before": steps.first.loss,
        "loss_after": view.loss,
        "gradient_before": steps.first.gradient,
        "gradient_after": gradient,
        "relative_before": steps.first.relative,
        "relative_after": steps.last.relative,
        "tol": steps.settings.tol,
    }
