"""How the loss moved, and what would lower it."""

from collections.abc import Iterator
from typing import Any

from hpcsgd.result import Result

FLAT = 1e-4  # relative change of the loss in an epoch that nobody would wait for


def falls(result: Result) -> list[tuple[int, float]]:
    """(epoch, relative fall in an epoch until then) of each stretch of the history."""
    records, found = _looks(result), []
    for before, after in zip(records, records[1:], strict=False):
        scale = max(abs(before["loss"]), 1e-3 * abs(records[0]["loss"]), 1e-300)
        fall = (before["loss"] - after["loss"]) / scale
        found.append((after["epoch"], fall / (after["epoch"] - before["epoch"])))
    return found


def motion(result: Result) -> str:
    """Whether it still moves, in a few words."""
    stretches = falls(result)
    if len(stretches) < 2:
        return _whole_fall(result)
    last = stretches[-1][1]
    if result.is_worse:
        return _whole_fall(result)
    if abs(last) < FLAT:
        return f"flat since epoch {flat_since(result)}"
    return f"{'still falling' if last > 0 else 'now rising'} {_percent(last)} an epoch"


def _whole_fall(result: Result) -> str:
    """What one stretch can tell, which is no trend."""
    first = result.history[0]["loss"] if result.history else result.loss
    return f"{'from' if result.loss <= first else 'up from'} {first:.4g} at the start"


def flat_since(result: Result) -> int:
    """The epoch after which no stretch changed the loss."""
    since = epochs_done(result)
    records = _looks(result)
    for before, (_, fall) in zip(records[::-1][1:], falls(result)[::-1], strict=False):
        if abs(fall) >= FLAT:
            break
        since = before["epoch"]
    return since


def about_loss(result: Result) -> Iterator[str]:
    """What would lower the loss, from its last stretch."""
    stretches = falls(result)
    epochs, rate = epochs_done(result), result.config["rate"]["value"]
    if not stretches:
        return
    last = stretches[-1][1]
    if last <= -FLAT:
        yield f"the loss rises: a smaller rate (--rate {rate / 3:.3g})"
    elif result.is_worse:
        yield (
            "the loss ended above where it began: a smaller rate (--rate"
            f" {rate / 10:.3g})"
        )
    elif last >= FLAT:
        yield (
            f"the loss still falls: more epochs (--epochs {2 * epochs})"
            f" or a larger rate (--rate {2 * rate:.3g})"
        )
    elif (since := flat_since(result)) == 0:
        yield f"the loss hardly moved: a larger rate (--rate {10 * rate:.3g})"
    elif len(stretches) > 1:
        enough = f"--epochs {since} is enough, or " if since < epochs else ""
        yield (
            f"the loss is flat: {enough}a rate that decays"
            " (--rate-kind inverse-sqrt) may end lower"
        )


def _looks(result: Result) -> list[dict[str, Any]]:
    """The records of the history that stand at the ends of epochs, once each."""
    return list({record["epoch"]: record for record in result.history}.values())


def epochs_done(result: Result) -> int:
    """Of all that were asked for."""
    return int(result.history[-1]["epoch"]) if result.history else 0


def _percent(share: float) -> str:
    return f"{100 * abs(share):.2g} %"
