"""What a run reached, what it cost, what to try next: three lines from its figures."""

from collections.abc import Iterator
from typing import Any

from hpcsgd.result import Result, Status

FLAT = 1e-4  # relative change of the loss in an epoch that nobody would wait for
DOMINATES = 0.5  # share of the training time worth doing something about


def in_short(result: Result) -> dict[str, str]:
    """reached, cost and next, a sentence each."""
    return {"reached": reached(result), "cost": cost(result), "next": advise(result)}


def reached(result: Result) -> str:
    """The loss, and whether it still moves."""
    epochs, asked = _epochs(result), result.report["schedule"]["epochs"]
    done = f"{epochs} epoch{'' if epochs == 1 else 's'}"
    if result.status is Status.DIVERGED:
        return (
            f"loss {result.loss:.4g}, the last good one:"
            f" diverged after {done} of {asked}"
        )
    if result.status is Status.STOPPED:
        done += f" of {asked}, stopped early"
    return f"loss {result.loss:.4g} after {done}, {_motion(result)}"


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
    if result.status is not Status.COMPLETED:
        return result.status.advice
    found = [*_about_loss(result), *_about_time(result)]
    return "; ".join(found) or "nothing stands out: keep these settings"


def waiting(result: Result) -> float:
    """The share of the training time spent in sums and agreements, on rank 0."""
    return waiting_for(result, "products") + waiting_for(result, "agreement")


def waiting_for(result: Result, purpose: str) -> float:
    """The share of the training time spent in the collectives of `purpose`."""
    return _share(result, result.ledger[purpose]["seconds"])


def falls(result: Result) -> list[tuple[int, float]]:
    """(epoch, relative fall in an epoch until then) of each stretch of the history."""
    records, found = _looks(result), []
    for before, after in zip(records, records[1:], strict=False):
        scale = max(abs(before["loss"]), 1e-3 * abs(records[0]["loss"]), 1e-300)
        fall = (before["loss"] - after["loss"]) / scale
        found.append((after["epoch"], fall / (after["epoch"] - before["epoch"])))
    return found


def _motion(result: Result) -> str:
    stretches = falls(result)
    if len(stretches) < 2:
        return _whole_fall(result)
    last = stretches[-1][1]
    if abs(last) < FLAT:
        return f"flat since epoch {flat_since(result)}"
    return f"{'still falling' if last > 0 else 'now rising'} {_percent(last)} an epoch"


def _whole_fall(result: Result) -> str:
    """What one stretch can tell, which is no trend."""
    first = result.history[0]["loss"] if result.history else result.loss
    return f"{'from' if result.loss <= first else 'up from'} {first:.4g} at the start"


def flat_since(result: Result) -> int:
    """The epoch after which no stretch changed the loss."""
    since = _epochs(result)
    records = _looks(result)
    for before, (_, fall) in zip(records[::-1][1:], falls(result)[::-1], strict=False):
        if abs(fall) >= FLAT:
            break
        since = before["epoch"]
    return since


def _about_loss(result: Result) -> Iterator[str]:
    """What would lower the loss, from its last stretch."""
    stretches = falls(result)
    epochs, rate = _epochs(result), result.config["rate"]["value"]
    if not stretches:
        return
    last = stretches[-1][1]
    if last <= -FLAT:
        yield f"the loss rises: a smaller rate (--rate {rate / 3:.2g})"
    elif last >= FLAT:
        yield (
            f"the loss still falls: more epochs (--epochs {2 * epochs})"
            f" or a larger rate (--rate {2 * rate:.2g})"
        )
    elif (since := flat_since(result)) == 0:
        yield f"the loss hardly moved: a larger rate (--rate {10 * rate:.2g})"
    elif len(stretches) > 1:
        enough = f"--epochs {since} is enough, or " if since < epochs else ""
        yield (
            f"the loss is flat: {enough}a rate that decays"
            " (--rate-kind inverse-sqrt) may end lower"
        )


def _about_time(result: Result) -> Iterator[str]:
    """What would save the most time, where one thing has most of it."""
    schedule = result.report["schedule"]
    if waiting_for(result, "agreement") >= DOMINATES:
        yield (
            f"agreeing dominates: --period {2 * schedule['period']}"
            " agrees half as often (replicas drift further apart)"
        )
    elif waiting_for(result, "products") >= DOMINATES:
        yield from _fewer_sums(result)
    elif _gram(result) >= DOMINATES and schedule["steps"] > 1:
        yield (
            f"the Gram takes {100 * _gram(result):.0f} % of the time:"
            f" --steps {schedule['steps'] // 2} halves it, for twice the messages"
        )


def _fewer_sums(result: Result) -> Iterator[str]:
    """Fewer, larger messages, and the words that they would cost."""
    report, words = result.report, result.ledger["products"]["words"]
    steps = report["schedule"]["steps"]
    if report["products"] == "direct":
        steps = max(steps, 8)
        flags = f"--products gram --steps {steps}"
        yield (
            f"waiting for sums dominates: {flags} sums once in {steps} steps,"
            f" about {words + gram_words(result, steps):.3g} words instead of {words}"
        )
        return
    more = gram_words(result, 2 * steps) - gram_words(result, steps)
    yield (
        f"waiting for sums dominates: --steps {2 * steps} halves their number,"
        f" about {words + more:.3g} words instead of {words}"
    )


def gram_words(result: Result, steps: int) -> float:
    """Words of Gram in the whole run with s = `steps`, ragged batches left out.

    An exchange of s steps sends b² s (s−1)/2, a step therefore b² (s−1)/2; `cached`
    sends them in the first epoch only, and `gather` sends rows instead.
    """
    batch, product = result.report["schedule"]["batch"], result.report["products"]
    if product == "gather":
        return 0.0
    times = result.iterations
    if product == "cached":
        times //= max(_epochs(result), 1)
    return float(times * batch**2 * (steps - 1) / 2)


def _gram(result: Result) -> float:
    return _share(result, result.report["seconds_by_phase"].get("gram", 0.0))


def _share(result: Result, seconds: float) -> float:
    total = result.report["seconds_total"]
    return min(seconds / total, 1.0) if total > 0 else 0.0


def _looks(result: Result) -> list[dict[str, Any]]:
    """The records of the history that stand at the ends of epochs, once each."""
    return list({record["epoch"]: record for record in result.history}.values())


def _epochs(result: Result) -> int:
    return int(result.history[-1]["epoch"]) if result.history else 0


def _percent(share: float) -> str:
    return f"{100 * abs(share):.2g} %"


def _size(count: float) -> str:
    """Bytes as a person says them."""
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"
