"""What a run must have said on the wire, by formula, from what ran."""

from collections.abc import Mapping
from typing import Any

from hpcsgd.agreement.kinds import takes_gradients
from hpcsgd.precision import Precision
from hpcsgd.products import GATHERS, RECURS
from hpcsgd.schedule import Schedule
from hpcsgd.verify.gradients import gradient_traffic
from hpcsgd.verify.slices import slices_traffic
from hpcsgd.verify.traffic import Shape, expected

Report = Mapping[str, Any]
BUCKETED = ("gradient", "scheduled")  # every word once, in so many messages


def expected_traffic(report: Report) -> dict[str, int] | None:
    """Calls, words and bytes of rank 0 for products and agreement.

    `report` is a run's JSON document. None where no formula holds: a run that did not
    get to its end, was resumed or fell back, whose gradients were encoded, or whose
    members hold unlike numbers of stored values.
    """
    if report["status"] != "completed" or report["resumes"] or report["events"]:
        return None
    if report["sparse"] and not _is_even(report):
        return None
    asked = report["config"]["agreement"]
    says_gradients = takes_gradients(asked["kind"])
    known = (*BUCKETED, "sharded")
    if says_gradients and (asked["kind"] not in known or asked["tune_schedule"]):
        return None
    shape = _shape(report)
    counts = expected(shape, [_leg(report, shape)])
    if says_gradients:
        told = report["agreement"]
        if shape.agreement.get("hierarchical", "off") != "off":
            return None
        if told["codec"] != "identity" or report["config"]["codec"]["feedback"] == "on":
            return None
        counts |= gradient_traffic(
            shape,
            epochs=report["schedule"]["epochs"],
            members=report["grid"]["members"],
            product=report["products"],
            buckets=told.get("messages", told["buckets"]),
            twice=report["config"]["run"]["reproducible"],
        )
    if shape.agreement["kind"] == "sharded":
        counts |= slices_traffic(
            shape,
            epochs=report["schedule"]["epochs"],
            members=report["grid"]["members"],
            product=report["products"],
            tiles=report["agreement"]["buckets"],
            twice=report["config"]["run"]["reproducible"],
        )
    by_purpose = counts.values()
    return {
        figure: sum(count[figure] for count in by_purpose)
        for figure in ("calls", "words", "bytes")
    }


def _is_even(report: Report) -> bool:
    """Whether the words of sparse rows depend on sizes alone."""
    if report["grid"]["members"] == 1:
        return True
    return report["products"] not in GATHERS and report["grid"]["replicas"] == 1


def _circles(report: Report) -> list[int]:
    """Sizes of the nested groups that rank 0 was in, where there were some."""
    sizes: list[int] = report["agreement"].get("circles", [])
    return sizes


def _shape(report: Report) -> Shape:
    config, schedule = report["config"], report["schedule"]
    return Shape(
        schedule=Schedule(*(schedule[k] for k in ("batch", "steps", "period"))),
        precision=Precision(**report["precision"]),
        rows=report["rows"],
        columns=report["columns"],
        classes=report["classes"],
        states=1 if config["update"]["kind"] == "sgd" else 2,
        intercept=config["problem"]["intercept"],
        replicas=report["grid"]["replicas"],
        seed=config["sampling"]["seed"],
        agreement=config["agreement"],
    )


def _leg(report: Report, shape: Shape) -> dict[str, Any]:
    """The whole run, from its start to the end of its last epoch."""
    run, exchanges = report["config"]["run"], len(shape.groups())
    total = exchanges * report["schedule"]["epochs"]
    is_watched = report["products"] in RECURS and not run["emulate_members"]
    return {
        "first": 0,
        "last": total,
        "planned": total,
        "members": report["grid"]["members"],
        "product": report["products"],
        "look_ahead": report["look_ahead"],
        "reproducible": run["reproducible"],
        "gap_every": run["gap_every"] if is_watched else 0,
        "circles": _circles(report),
    }
