"""A run in three lines: reached, cost and next."""

from hpcsgd.advice.of_loss import about_loss, epochs_done, motion
from hpcsgd.advice.of_time import DOMINATES, about_time, waiting
from hpcsgd.agreement.beginnings import still_before
from hpcsgd.config import RunConfig
from hpcsgd.result import Result, Status


def in_short(result: Result) -> dict[str, str]:
    """reached, cost and next, a sentence each."""
    return {"reached": reached(result), "cost": cost(result), "next": advise(result)}


def reached(result: Result) -> str:
    """The loss, and whether it still moves."""
    epochs, asked = epochs_done(result), result.report["schedule"]["epochs"]
    done = f"{epochs} epoch{'' if epochs == 1 else 's'}"
    if result.status is Status.DIVERGED:
        return (
            f"loss {result.loss:.4g}, the last good one:"
            f" diverged after {done} of {asked}"
        )
    polish = result.report.get("polish")
    if polish is not None and result.status.is_good:
        passes = f"{done} and {polish['passes']} passes of the finisher"
        return f"loss {result.loss:.4g} after {passes}: {polish['ended']}"
    if result.status is Status.CONVERGED:
        return f"loss {result.loss:.4g} after {done} of {asked}: the goal is reached"
    if result.status is not Status.COMPLETED:
        done += f" of {asked}, {result.status.value} early"
    return f"loss {result.loss:.4g} after {done}, {motion(result)}"


def cost(result: Result) -> str:
    """Steps, exchanges, seconds, and what the network had of them."""
    done = (
        f"{result.iterations} steps in {result.exchanges} exchanges,"
        f" {result.report['seconds_total']:.3g} s"
    )
    if result.report["ranks"] == 1:
        return f"{done} on one rank; nothing sent"
    sent = result.ledger["products"]["bytes"] + result.ledger["agreement"]["bytes"]
    return (
        f"{done}, of which {100 * waiting(result):.0f} % waiting for the network;"
        f" {_size(sent)} sent per rank"
    )


def advise(result: Result) -> str:
    """What to try next: what the ending says, else about the loss and the time."""
    if not result.status.is_good:
        return result.advice
    if not result.report.get("has_minimum", True):
        return "F has no minimum: give a penalty (--l2)"
    if "coordinate" in result.report:
        return _about_coordinates(result)
    # What went to its goal, or on to the optimum, has nothing to hear of its rate.
    goes_on = result.status is Status.COMPLETED and "polish" not in result.report
    found = [*(about_loss(result) if goes_on else ()), *about_time(result)]
    config = RunConfig.parse(result.config)
    found += filter(None, [still_before(config, result.exchanges)])
    return "; ".join(found) or "nothing stands out: keep these settings"


def _about_coordinates(result: Result) -> str:
    """A coordinate form has no rate: it is there, or it needs more epochs."""
    if result.status is not Status.CONVERGED:
        return "more --epochs, or a larger coordinate.tol"
    if waiting(result) > DOMINATES:
        return "the network dominates: larger --steps, for fewer messages"
    return "nothing stands out: keep these settings"


def _size(count: float) -> str:
    """Bytes as a person says them."""
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"
