"""Whether a fit is at the optimum, and what to change where it is not."""

from collections.abc import Mapping
from typing import Any

from hpcsgd.finisher import amount
from hpcsgd.optimality import gap_limit
from hpcsgd.polish.lbfgs import Ending
from hpcsgd.polish.separation import ENDLESS, NO_MINIMUM
from hpcsgd.result import Result, Status

REMEDIES = {
    Ending.PASSES.value: (
        "{passes} passes of polishing were not enough (gradient {relative_after:.2g} of"
        " the residuals, not {tol:.2g}); raise polish.passes in config, raise alpha, or"
        " raise tol"
    ),
    Ending.UNCERTIFIED.value: (
        "after {passes} passes the gradient is small ({relative_after:.2g} of the"
        " residuals, tol {tol:.2g}), but F may be {gap:.2g} above its optimum, and not"
        " {gap_limit:.2g}; rows or columns of very different size hide it: scale them,"
        " or raise alpha"
    ),
    Ending.HIDDEN.value: (
        "after {passes} passes the gradient is small ({relative_after:.2g} of the"
        " residuals, tol {tol:.2g}), but a step of Newton would lower F by"
        " {fall}, and not {fall_limit:.2g}; rows or columns of very"
        " different size hide it: scale them, or give a penalty"
    ),
    Ending.STUCK.value: (
        "after {passes} passes of polishing no lower loss was found (gradient"
        " {relative_after:.2g} of the residuals, not {tol:.2g}); scale the columns or"
        " the targets, or lower the rate"
    ),
}

NOTHING = 1e-6  # loss of all rows together: each is on its side, with a margin
BOUNDS = {"lower", "upper"}


def advise(result: Result, tol: float) -> None:
    """Put into the report how near the optimum is: `converged`, `gap`, `advice`.

    `certified` is True where the gap F − F* is at most tol · max(|F|, 1e-3 · F₀), False
    where it is known to be larger, None where the family or the penalty has no gap.
    """
    report = result.report
    report["gap"] = result.history[-1].get("gap") if result.history else None
    report["certified"] = _is_certified(result, tol)
    sentence = _sentence(result)
    report["converged"] = not sentence and result.status.is_good
    if sentence:
        report["advice"] = sentence


def _is_certified(result: Result, tol: float) -> bool | None:
    report = result.report
    gap, polish = report["gap"], report.get("polish")
    coordinate = report.get("coordinate")
    if gap is None:
        return None
    if polish is not None:
        limit = polish.get("gap_limit")
        return None if limit is None else bool(gap <= limit)
    if coordinate is not None:
        return bool(gap <= gap_limit(tol, result.loss, coordinate["null_excess"]))
    return result.status is Status.CONVERGED


def _sentence(result: Result) -> str:
    if not result.status.is_good:
        return result.status.advice
    endless = _without_minimum(result)
    if endless or result.report["certified"]:
        return endless
    if result.status is Status.CONVERGED:
        return result.status.advice
    for name, judge in (("polish", _of_polish), ("coordinate", _of_coordinates)):
        found = result.report.get(name)
        if found is not None:
            return judge(found)
    return _of_steps(result)


def _without_minimum(result: Result) -> str:
    """Where F has come down to its bound 0, which no finite weights reach."""
    problem, rows = result.config["problem"], result.report["rows"]
    polish = result.report.get("polish") or {}
    is_free = not problem["l2"] and not problem["l1"] and not problem.keys() & BOUNDS
    vanishes = abs(result.loss) * rows <= NOTHING
    if problem["family"] == "poisson" and vanishes:
        if polish.get("ended") == Ending.CONVERGED.value:
            return ""  # a minimum there is: of targets that are small
        return (
            "all counts are 0, so that F has no minimum: the intercept falls without"
            " end; add rows with counts"
        )
    if not result.report.get("has_minimum", True):
        return f"{NO_MINIMUM}, alpha > 0"
    if problem["family"] in ENDLESS and is_free and vanishes:
        return f"{NO_MINIMUM}, alpha > 0"
    return ""


def _of_polish(found: Mapping[str, Any]) -> str:
    fall = amount(found.get("expected_fall"))
    return REMEDIES.get(found["ended"], "").format(**found, fall=fall)


def _of_coordinates(found: Mapping[str, Any]) -> str:
    if found["ended"] == "converged":
        return ""
    return (
        "coordinate descent ended before its gap was small enough"
        f" (now {_known(found['gap'])}); raise epochs, or tol"
    )


def _of_steps(result: Result) -> str:
    """A run of steps alone, whose goal was not reached by the last epoch."""
    goal, epochs = result.config["stop"], result.config["schedule"]["epochs"]
    if goal["on"] == "none":
        return ""
    if goal["on"] == "validation":
        return f"the held-out loss still fell after {epochs} epochs; raise epochs"
    if goal["on"] == "loss":
        return f"the loss still fell after {epochs} epochs; raise epochs or the rate"
    gap = result.history[-1].get("gap") if result.history else None
    return (
        f"{epochs} epochs of SGD ended {_known(gap)} or less above the optimum, and tol"
        f" asks for {goal['tol']:.2g} of F; raise epochs or tol, scale the columns"
        " alike, or let polish='auto' go on where F is smooth"
    )


def _known(gap: Any) -> str:
    return "an unknown distance" if gap is None else f"{gap:.2g}"
