"""What a predicted loss, time or budget advises."""

from collections.abc import Iterator
from typing import Any

from hpcsgd.agreements.base import SHARDED, takes_gradients
from hpcsgd.agreements.more.qadam import unreached_phase
from hpcsgd.config import RunConfig
from hpcsgd.products import GATHERS
from hpcsgd.runs.result import Result, Status

# How the loss moved, and what would lower it.

FLAT = 1e-4  # relative change of the loss in an epoch that nobody would wait for


def loss_falls(result: Result) -> list[tuple[int, float]]:
    """Return (epoch, relative fall per epoch until then) of each stretch of the
    history.
    """
    records, found = _looks(result), []
    for before, after in zip(records, records[1:], strict=False):
        scale = max(abs(before["loss"]), 1e-3 * abs(records[0]["loss"]), 1e-300)
        fall = (before["loss"] - after["loss"]) / scale
        found.append((after["epoch"], fall / (after["epoch"] - before["epoch"])))
    return found


def describe_motion(result: Result) -> str:
    """Describe in a few words whether the loss still falls."""
    stretches = loss_falls(result)
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
    for before, (_, fall) in zip(
        records[::-1][1:], loss_falls(result)[::-1], strict=False
    ):
        if abs(fall) >= FLAT:
            break
        since = before["epoch"]
    return since


def about_loss(result: Result) -> Iterator[str]:
    """What would lower the loss, from its last stretch."""
    stretches = loss_falls(result)
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


# What a run spent its time on, and what would save the most of it.

WORTH_TRYING = 0.05  # share of the training time that an estimate has to promise
PLAIN_NETWORK = 1.25e9  # bytes per second of a link, where more was not seen
DOMINATES = 0.5  # share of the training time worth doing something about


def waiting(result: Result) -> float:
    """The share of the training time spent in sums and agreements, on rank 0."""
    return waiting_for(result, "products") + waiting_for(result, "agreement")


def waiting_for(result: Result, purpose: str) -> float:
    """The share of the training time spent in the collectives of `purpose`."""
    return _share(result, result.ledger[purpose]["seconds"])


def advise_fewer_messages(result: Result) -> str:
    """Return the next setting to try for fewer messages between replicas."""
    asked = result.config.get("agreement", {})
    if asked.get("kind") in SHARDED:
        return _instead_of_slices(result)
    if asked.get("kind") == "anybatch":
        deadline = 2 * (result.report["agreement"]["deadline_seconds"] or 0.0)
        longer = f"deadline={deadline:.2g}" if deadline else "accumulate="
        if not deadline:
            longer += str(2 * asked["accumulate"])
        return (
            f"agreeing dominates: --set agreement.{longer} agrees half as often (as a"
            " batch twice as large)"
        )
    if takes_gradients(asked.get("kind", "auto")):
        return (
            "agreeing dominates: --set agreement.accumulate="
            f"{2 * asked['accumulate']} sends half as often (as a batch twice as large)"
        )
    period = 2 * result.report["schedule"]["period"]
    return (
        f"agreeing dominates: --period {period} agrees half as often (replicas drift"
        " further apart)"
    )


def _instead_of_slices(result: Result) -> str:
    """Members hold no more, and send scores where these are fewer than the weights."""
    report = result.report
    ranks, batch = report["ranks"], report["schedule"]["global_batch"]
    if batch < report["columns"]:
        return (
            f"agreeing dominates: members (--grid 1x{ranks} --agreement gradient"
            f" --batch {batch}) hold as little, and sum {batch} scores in a step"
            f" instead of {report['columns']} columns of gradient"
        )
    return (
        f"agreeing dominates: --batch {2 * report['schedule']['batch']} sends half as"
        " often (as a batch twice as large)"
    )


def about_time(result: Result) -> Iterator[str]:
    """What would save the most time, where one thing has most of it."""
    schedule, product = result.report["schedule"], result.report["products"]
    if waiting_for(result, "agreement") >= DOMINATES:
        yield advise_fewer_messages(result)
    elif product != "direct" and result.report["grid"]["members"] == 1:
        yield "one member has nobody to sum with: --products direct needs no Gram"
    elif product != "direct":
        yield from _about_steps(result)
    elif waiting_for(result, "products") >= DOMINATES and _longest(result) > 1:
        steps = min(max(schedule["steps"], 8), _longest(result))
        yield (
            f"waiting for sums dominates: --products gram --steps {steps} sums once in"
            f" {steps} steps, {_words(result, gram_words(result, steps))}"
        )


def _about_steps(result: Result) -> Iterator[str]:
    """The s, twice or half this one, that the figures promise something of."""
    steps, longest = result.report["schedule"]["steps"], _longest(result)
    for other, number in ((2 * steps, "half as many"), (steps // 2, "twice as many")):
        is_other = 0 < min(other, longest) != min(steps, longest)
        saved = saving(result, other) if is_other else 0.0
        if saved >= WORTH_TRYING:
            more = gram_words(result, other) - gram_words(result, steps)
            yield (
                f"{_burden(result)}: --steps {other} may save"
                f" {100 * saved:.0f} % of the time by {number} sums,"
                f" {_words(result, more)}"
            )
            return
    hidden = result.report["look_ahead"] or result.report["products"] != "gram"
    if waiting_for(result, "products") >= DOMINATES and not hidden:
        yield "waiting for sums dominates: --look-ahead on hides them behind the work"


def _longest(result: Result) -> int:
    """Steps that one exchange can have: groups never straddle an epoch."""
    return max(result.iterations // max(epochs_done(result), 1), 1)


def saving(result: Result, steps: int) -> float:
    """Share of the training time that s = `steps` would save, by this run's figures.

    With k = steps / s: the latency of all sums shrinks by k, what their words take
    grows with the words, and the Gram's arithmetic grows by k. The words are charged
    to the bandwidth that was seen, or to that of a plain network if that is more.
    """
    products, report = result.ledger["products"], result.report
    waited, old = products["seconds"], report["schedule"]["steps"]
    if not products["words"] or report["seconds_total"] <= 0.0 or waited <= 0.0:
        return 0.0
    bandwidth = max(products["wire_bytes"] / waited, PLAIN_NETWORK)
    moving = products["wire_bytes"] / bandwidth
    factor = steps / old
    more = gram_words(result, steps) - gram_words(result, old)
    gram = report["seconds_by_phase"].get("gram", 0.0)
    saved = (
        (waited - moving) * (1.0 - 1.0 / factor)
        - moving * more / products["words"]
        - gram * (factor - 1.0)
    )
    return float(saved / report["seconds_total"])


def gram_words(result: Result, steps: int) -> float:
    """Words of Gram in the whole run with s = `steps`, ragged batches left out.

    An exchange of s steps sends b² s (s−1)/2, a step therefore b² (s−1)/2; `cached`
    sends them in the first epoch only, and `gather` rows instead.
    """
    batch, product = result.report["schedule"]["batch"], result.report["products"]
    if product in GATHERS:
        return 0.0
    times = result.iterations
    if product == "cached":
        times //= max(epochs_done(result), 1)
    return float(times * batch**2 * (steps - 1) / 2)


def _words(result: Result, more: float) -> str:
    words = result.ledger["products"]["words"]
    return f"about {words + more:.3g} words instead of {words:.3g}"


def _burden(result: Result) -> str:
    """What the products' time goes into, the Gram or the sums."""
    gram = _share(result, result.report["seconds_by_phase"].get("gram", 0.0))
    waits = waiting_for(result, "products")
    if gram > waits:
        return f"the Gram takes {100 * gram:.0f} % of the time"
    return f"sums take {100 * waits:.0f} % of the time"


def _share(result: Result, seconds: float) -> float:
    total = result.report["seconds_total"]
    return min(seconds / total, 1.0) if total > 0 else 0.0


# A run in three lines: reached, cost and next.


def in_short(result: Result) -> dict[str, str]:
    """Return a sentence each on the loss, the cost and the next thing to try."""
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
    return f"loss {result.loss:.4g} after {done}, {describe_motion(result)}"


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
    found += filter(None, [unreached_phase(config, result.exchanges)])
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


# What a run reached, what it cost, what to try next, from its own figures.
