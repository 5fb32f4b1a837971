"""Whether a fit is at the optimum, and what to change where it is not."""

from collections.abc import Mapping
from typing import Any

from hpcsgd.polish.lbfgs import Ending
from hpcsgd.result import Result, Status

FALLS = 1e-3  # of |F| in the last epoch: it would go on falling
REMEDIES = {
    Ending.PASSES.value: (
        "{passes} passes of L-BFGS were not enough (gradient {relative_after:.2g} of"
        " the residuals, not {tol:.2g}); raise polish.passes in config, raise alpha, or"
        " raise tol"
    ),
    Ending.STUCK.value: (
        "after {passes} passes of L-BFGS no lower loss was found (gradient"
        " {relative_after:.2g} of the residuals, not {tol:.2g}); scale the columns or"
        " the targets, or lower the rate"
    ),
}


def advise(result: Result) -> None:
    """Put `converged` and a sentence of advice into the report."""
    said = _sentence(result)
    result.report["converged"] = not said and result.status is Status.COMPLETED
    if said:
        result.report["advice"] = said


def _sentence(result: Result) -> str:
    if result.status is not Status.COMPLETED:
        return result.status.advice
    polished = result.report.get("polish")
    if polished is not None:
        return REMEDIES.get(polished["ended"], "").format(**polished)
    found = result.report.get("coordinate")
    if found is not None:
        return _of_coordinates(found)
    losses = [record["loss"] for record in result.history]
    if len(losses) < 2:
        return ""
    fall = losses[-2] - losses[-1]
    if fall <= FALLS * abs(losses[-1]):
        return ""
    return (
        f"the loss still fell by {100 * fall / max(abs(losses[-1]), 1e-300):.2g} % in"
        " the last epoch; raise epochs, scale the columns alike, or let polish='auto'"
        " go on"
    )


def _of_coordinates(found: Mapping[str, Any]) -> str:
    if found["ended"] == "converged":
        return ""
    gap = "unknown" if found["gap"] is None else f"{found['gap']:.2g}"
    return (
        f"coordinate descent ended before its gap was small enough (now {gap}); raise"
        " epochs, or tol"
    )
