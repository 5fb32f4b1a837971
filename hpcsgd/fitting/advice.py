"""Whether a fit is at the optimum, and what to change where it is not."""

from collections.abc import Mapping
from typing import Any

from hpcsgd.polish.lbfgs import Ending
from hpcsgd.result import Result, Status

REMEDIES = {
    Ending.PASSES.value: (
        "{passes} passes of polishing were not enough (gradient {relative_after:.2g} of"
        " the residuals, not {tol:.2g}); raise polish.passes in config, raise alpha, or"
        " raise tol"
    ),
    Ending.STUCK.value: (
        "after {passes} passes of polishing no lower loss was found (gradient"
        " {relative_after:.2g} of the residuals, not {tol:.2g}); scale the columns or"
        " the targets, or lower the rate"
    ),
}

NOTHING = 1e-6  # loss of all rows together: each is on its side, with a margin
BOUNDS = {"lower", "upper"}
ENDLESS = ("logistic", "probit", "softmax")  # families whose loss is 0 at no score


def advise(result: Result) -> None:
    """Put `converged`, the gap and a sentence of advice into the report."""
    said = _sentence(result)
    result.report["converged"] = not said and result.status.is_good
    result.report["gap"] = result.history[-1].get("gap") if result.history else None
    if said:
        result.report["advice"] = said


def _sentence(result: Result) -> str:
    if not result.status.is_good or result.status is Status.CONVERGED:
        return result.status.advice
    endless = _without_minimum(result)
    if endless:
        return endless
    for name, judge in (("polish", _of_polish), ("coordinate", _of_coordinates)):
        found = result.report.get(name)
        if found is not None:
            return judge(found)
    return _of_steps(result)


def _without_minimum(result: Result) -> str:
    """Where F has come down to its bound 0, which no finite weights reach."""
    problem, rows = result.config["problem"], result.report["rows"]
    if abs(result.loss) * rows > NOTHING:
        return ""
    if problem["family"] == "poisson":
        polish = result.report.get("polish") or {}
        if polish.get("ended") == Ending.CONVERGED.value:
            return ""  # a minimum there is: of targets that are small
        return (
            "all counts are 0, so that F has no minimum: the intercept falls without"
            " end; add rows with counts"
        )
    is_free = not problem["l2"] and not problem["l1"] and not problem.keys() & BOUNDS
    if problem["family"] not in ENDLESS or not is_free:
        return ""
    return (
        "the columns tell the classes apart without an error, so that F has no"
        " minimum: the coefficients grow without end; give a penalty, alpha > 0"
    )


def _of_polish(found: Mapping[str, Any]) -> str:
    return REMEDIES.get(found["ended"], "").format(**found)


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
