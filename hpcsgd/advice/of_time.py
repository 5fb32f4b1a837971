"""What a run spent its time on, and what would save the most of it."""

from collections.abc import Iterator

from hpcsgd.advice.of_loss import epochs_done
from hpcsgd.agreement.kinds import SHARDED, takes_gradients
from hpcsgd.products import GATHERS
from hpcsgd.result import Result

WORTH_TRYING = 0.05  # share of the training time that an estimate has to promise
PLAIN_NETWORK = 1.25e9  # bytes per second of a link, where more was not seen
DOMINATES = 0.5  # share of the training time worth doing something about


def waiting(result: Result) -> float:
    """The share of the training time spent in sums and agreements, on rank 0."""
    return waiting_for(result, "products") + waiting_for(result, "agreement")


def waiting_for(result: Result, purpose: str) -> float:
    """The share of the training time spent in the collectives of `purpose`."""
    return _share(result, result.ledger[purpose]["seconds"])


def less_agreeing(result: Result) -> str:
    """The next step towards fewer messages between replicas."""
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
        yield less_agreeing(result)
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
