"""Advice on a run from its figures: its loss, its time, its rows, its ending."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcsgd.agreements import settings_of
from hpcsgd.backends.numpy_rows import add_moments
from hpcsgd.config import RunConfig
from hpcsgd.errors import DataError
from hpcsgd.files import DECIMAL, format_bytes
from hpcsgd.products.base import product_facts
from hpcsgd.runs.assembled_run import AssembledRun
from hpcsgd.runs.auto_rate import ignores_length, measure_steepness, rate_of_rows
from hpcsgd.runs.result import Result, Status
from hpcsgd.solvers.full_passes import ENDLESS, NO_MINIMUM, gap_limit, open_rows
from hpcsgd.solvers.lbfgs import StopReason, null_excess
from hpcsgd.solvers.newton import amount

# How the loss moved, and what would lower it.

FLAT = 1e-4  # relative change of the loss in an epoch that counts as none


def loss_falls(result: Result) -> list[tuple[int, float]]:
    """Return how fast the loss fell between consecutive recorded epochs.

    Each entry is (later epoch, fall of the loss per epoch). The fall is relative to the
    loss at the earlier epoch, or to 1e-3 of the first loss if that is larger; it is
    negative where the loss rose.
    """
    records = _looks(result)
    falls = []
    for before, after in zip(records, records[1:], strict=False):
        scale = max(abs(before["loss"]), 1e-3 * abs(records[0]["loss"]), 1e-300)
        fall = (before["loss"] - after["loss"]) / scale
        falls.append((after["epoch"], fall / (after["epoch"] - before["epoch"])))
    return falls


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
    """Return "from F at the start", or "up from F at the start" if the loss rose."""
    first = result.history[0]["loss"] if result.history else result.loss
    return f"{'from' if result.loss <= first else 'up from'} {first:.4g} at the start"


def flat_since(result: Result) -> int:
    """Return the epoch after which the loss did not change any more.

    Relative changes below FLAT per epoch do not count. It is the last epoch if the loss
    still changed there.
    """
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
    """Yield advice on rate and epochs, from the change of the loss at the end."""
    stretches = loss_falls(result)
    epochs = epochs_done(result)
    rate = result.config["rate"]["value"]
    if not stretches:
        return
    last = stretches[-1][1]
    if last <= -FLAT:
        yield f"the loss rises: a smaller rate (--rate {rate / 3:.3g})"
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
    """Return the last record of each epoch of the history, in order."""
    return list({record["epoch"]: record for record in result.history}.values())


def epochs_done(result: Result) -> int:
    """Return the number of epochs that the run has done; 0 without a history."""
    return int(result.history[-1]["epoch"]) if result.history else 0


def _percent(share: float) -> str:
    return f"{100 * abs(share):.2g} %"


# What a run spent its time on, and what would save the most of it.

WORTH_TRYING = 0.05  # share of the training time that an estimate has to promise
PLAIN_NETWORK = 1.25e9  # bytes per second of a link, unless the run reached more
DOMINATES = 0.5  # share of the training time worth doing something about


def waiting(result: Result) -> float:
    """Return the share of the training time in collectives of products and agreements.

    It is that of the rank of the ledger in `result`.
    """
    return waiting_for(result, "products") + waiting_for(result, "agreement")


def waiting_for(result: Result, purpose: str) -> float:
    """Return the share of the training time in the collectives of `purpose`.

    It is that of the rank of the ledger in `result`, at most 1.
    """
    return _share(result, result.ledger[purpose]["seconds"])


def advise_fewer_messages(result: Result) -> str:
    """Return advice on the setting by which replicas exchange fewer messages."""
    agreement = result.config.get("agreement", {})
    kind = settings_of(agreement.get("kind", "auto"))
    if kind.slices:
        return _instead_of_slices(result)
    if kind.takes_rounds:
        deadline = 2 * (result.report["agreement"]["deadline_seconds"] or 0.0)
        longer = f"deadline={deadline:.2g}" if deadline else "accumulate="
        if not deadline:
            longer += str(2 * agreement["accumulate"])
        return (
            f"agreeing dominates: --set agreement.{longer} agrees half as often (as a"
            " batch twice as large)"
        )
    if kind.shares_gradients:
        return (
            "agreeing dominates: --set agreement.accumulate="
            f"{2 * agreement['accumulate']} sends half as often (as a batch twice as"
            " large)"
        )
    period = 2 * result.report["schedule"]["period"]
    return (
        f"agreeing dominates: --period {period} agrees half as often (replicas drift"
        " further apart)"
    )


def _instead_of_slices(result: Result) -> str:
    """Return advice for replicas with sliced weights that mostly wait for messages.

    If the global batch has fewer rows than the data has columns, members instead of
    replicas store as little and send fewer words.
    """
    report = result.report
    ranks = report["ranks"]
    batch = report["schedule"]["global_batch"]
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
    """Yield advice on agreement, product or steps, from where the time was spent."""
    schedule = result.report["schedule"]
    product = result.report["products"]
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
    """Yield advice to double or halve s, or to use look-ahead, if it may save time."""
    steps = result.report["schedule"]["steps"]
    longest = _longest(result)
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
    """Return the largest number of steps that an exchange can have.

    It is the number of steps in an epoch.
    """
    return max(result.iterations // max(epochs_done(result), 1), 1)


def saving(result: Result, steps: int) -> float:
    """Return the share of the training time that s = `steps` would save.

    It is an estimate from the figures of this run. With k = `steps` / s of the run, the
    latency of all sums is divided by k, the time to send their words grows with the
    words, and that of the Gram's arithmetic is multiplied by k. Words are sent at the
    bandwidth that the run reached, or at that of a plain network if it is larger.
    """
    products = result.ledger["products"]
    report = result.report
    waited = products["seconds"]
    old = report["schedule"]["steps"]
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
    """Return the words of Gram that a whole run with s = `steps` would sum.

    An exchange of s steps with b rows each sums b² s (s−1)/2 words, and thus b² (s−1)/2
    for each step. `cached` sums them in the first epoch only, and `gather` sums none.
    Smaller last batches of an epoch are not considered.
    """
    batch = result.report["schedule"]["batch"]
    product = result.report["products"]
    if product_facts(product).holds_all_columns:
        return 0.0
    times = result.iterations
    if product == "cached":
        times //= max(epochs_done(result), 1)
    return float(times * batch**2 * (steps - 1) / 2)


def _words(result: Result, more: float) -> str:
    words = result.ledger["products"]["words"]
    return f"about {words + more:.3g} words instead of {words:.3g}"


def _burden(result: Result) -> str:
    """Return in words which takes more of the time: the Gram or the sums."""
    gram = _share(result, result.report["seconds_by_phase"].get("gram", 0.0))
    waits = waiting_for(result, "products")
    if gram > waits:
        return f"the Gram takes {100 * gram:.0f} % of the time"
    return f"sums take {100 * waits:.0f} % of the time"


def _share(result: Result, seconds: float) -> float:
    total = result.report["seconds_total"]
    return min(seconds / total, 1.0) if total > 0 else 0.0


# What the rows themselves advise where a run ended badly.

UNLIKE = 10.0  # largest spread of a column over the least
OFF_CENTRE = 10.0  # mean of a column over its spread
OTHER = 2.0  # times the rate from the data: 2/L is where steps stop being stable
WORTH = 0.01  # of the loss of the null model, for an intercept
UNFINISHED = {
    StopReason.PASSES.value,
    StopReason.UNCERTIFIED.value,
    StopReason.HIDDEN.value,
    StopReason.STUCK.value,
}


def name_remedies(
    live: AssembledRun, status: Status, is_from_data: bool
) -> dict[str, Any]:
    """Return entries for the report of a run that ended badly, else {}. Collective.

    `remedies` is a list of advice, and `advice` a sentence if the loss hardly moved. A
    run ends badly if it diverges, ends above its first loss, hardly moves, or if its
    finisher does not reach the optimum. Only then a pass or two over the rows are made,
    which the ledger counts as "control" and "evaluate". A run whose loss is not judged,
    or whose weights are on disk, has no entries.

    Parameters
    ----------
    live : the run after its end
    status : how it ended
    is_from_data : whether its rate was found from the rows
    """
    polish = live.training.polish_facts
    is_stalled = polish is None and _is_stalled(live, status)
    is_unfinished = polish is not None and polish["ended"] in UNFINISHED
    has_failed = status in (Status.DIVERGED, Status.WORSE)
    if not (has_failed or is_stalled or (is_unfinished and live.training.has_minimum)):
        return {}
    if not live.training.has_own_loss or live.config.agreement.on_disk:
        return {}
    remedies = [] if is_from_data else _about_rate(live, is_stalled)
    remedies += _about_columns(live)
    if polish is None and status is not Status.DIVERGED:
        remedies += _about_finisher(live.config)
    remedies += _about_intercept(live)
    if not is_stalled:
        return {"remedies": remedies}
    first = live.view.history[0]["loss"]
    epochs = live.view.epoch
    advice = (
        f"the loss hardly moved from {first:.4g} in {epochs}"
        f" epoch{'' if epochs == 1 else 's'}"
    )
    return {"remedies": remedies, "advice": advice}


def _is_stalled(live: AssembledRun, status: Status) -> bool:
    """Return whether the loss of a completed run never left its first value.

    Relative changes below FLAT do not count.
    """
    losses = [record["loss"] for record in live.view.history]
    if status is not Status.COMPLETED or len(losses) < 2 or not losses[0]:
        return False
    return all(abs(loss - losses[0]) < FLAT * abs(losses[0]) for loss in losses)


def _about_rate(live: AssembledRun, is_stalled: bool) -> list[str]:
    """Return advice to take the rate from the data, or []. Collective.

    It is given if that rate is larger than that of a stalled run, or smaller than that
    of another run, by a factor above OTHER.
    """
    config = live.config
    if ignores_length(config.update):
        return []
    try:
        family = live.task.family
        steepness = measure_steepness(config, live.grid, live.loaded, family)
    except DataError:
        return []  # the squares of the rows overflow: the columns are to be scaled
    rate = config.rate.value
    usual = rate_of_rows(config, steepness)
    is_other = usual > OTHER * rate if is_stalled else rate > OTHER * usual
    if not is_other:
        return []
    return [f"take the rate from the data (--rate auto: {usual:.3g}, not {rate:.3g})"]


def _about_columns(live: AssembledRun) -> list[str]:
    """Return advice to standardize columns of unlike spreads or far from 0, or [].

    Collective, one pass over the rows. Prepared columns get no advice, and columns of
    sparse rows none for being far from 0.
    """
    if live.loaded.facts.preparation.columns != "raw":
        return []
    spreads, means = _moments(live)
    varies = spreads > 1e-7 * np.abs(means)
    own_spreads = spreads[varies]
    own_distances = np.abs(means[varies]) / own_spreads
    world = live.grid.world
    least = -world.max_number(-float(own_spreads.min(initial=np.inf)))
    if least == np.inf:  # no column of any rank varies
        return []
    ratio = world.max_number(float(own_spreads.max(initial=0.0))) / least
    distance = world.max_number(float(own_distances.max(initial=0.0)))
    findings = []
    if ratio > UNLIKE:
        findings.append(f"spreads differ by a factor of {ratio:.2g}")
    if distance > OFF_CENTRE and not live.loaded.shard.is_sparse:
        findings.append(f"means are up to {distance:.2g} spreads from 0")
    if not findings:
        return []
    return [
        "standardize the columns (hpcsgd data convert --standardize), whose"
        f" {' and whose '.join(findings)}"
    ]


def _moments(live: AssembledRun) -> tuple[Any, Any]:
    """Return the standard deviation and the mean of each local column. Collective.

    They are those over the rows of all replicas.
    """
    shard = live.loaded.shard
    sums = np.zeros((2, shard.width, 1))
    with np.errstate(over="ignore"):
        for rows in live.evaluation.objective.blocks():
            block = live.loaded.read_exact(rows)
            add_moments(block, np.ones((block.shape[0], 1)), sums[0], sums[1])
    live.grid.replicas.sum(sums, "control")
    means, squares = sums[:, :, 0] / shard.total_rows
    return np.sqrt(np.maximum(squares - means**2, 0.0)), means


def _about_finisher(config: RunConfig) -> list[str]:
    """Return advice to use the finisher, or [] where it cannot run.

    F must be smooth, no rows may be held out, and every rank must have all weights of
    its columns.
    """
    is_split = config.agreement.slices_weights
    if not config.problem.is_smooth or config.sampling.hold_out or is_split:
        return []
    return ["go on to the optimum (--polish)"]


def _about_intercept(live: AssembledRun) -> list[str]:
    """Return advice to learn an intercept, or []. Collective.

    It is given if an intercept lowers the loss of the null model, whose weights are 0,
    by more than the share WORTH. The loss counts from the least that F could be.
    """
    if live.config.problem.intercept:
        return []
    rows = open_rows(live.evaluation.objective)
    with np.errstate(all="ignore"):
        without, least = (null_excess(rows, has) for has in (False, True))
    if not least < (1.0 - WORTH) * without:
        return []
    return ["learn an intercept (--intercept)"]


# Whether a fit is at the optimum, and what to change where it is not.


@dataclass(frozen=True)
class SettingNames:
    """The names of settings in the advice, as one kind of caller knows them."""

    alpha: str
    epochs: str
    passes: str
    finisher: str


OF_FIT = SettingNames("alpha", "epochs", "polish.passes in config", "polish='auto'")
OF_TRAIN = SettingNames(
    alpha="l2 (--l2)",
    epochs="epochs (--epochs N --set run.defaults=fit)",
    passes="polish.passes (--set)",
    finisher="the finisher (--polish)",
)
REMEDIES = {
    StopReason.PASSES.value: (
        "{passes} passes of polishing were not enough (gradient {relative_after:.2g} of"
        " the residuals, not {tol:.2g}); raise {names.passes}, raise {names.alpha}, or"
        " raise tol"
    ),
    StopReason.UNCERTIFIED.value: (
        "after {passes} passes the gradient is small ({relative_after:.2g} of the"
        " residuals, tol {tol:.2g}), but F may be {gap:.2g} above its optimum, and not"
        " {gap_limit:.2g}; rows or columns of very different size hide it: scale them,"
        " or raise {names.alpha}"
    ),
    StopReason.HIDDEN.value: (
        "after {passes} passes the gradient is small ({relative_after:.2g} of the"
        " residuals, tol {tol:.2g}), but a step of Newton would lower F by"
        " {fall}, and not {fall_limit:.2g}; rows or columns of very"
        " different size hide it: scale them, or give a penalty"
    ),
    StopReason.STUCK.value: (
        "after {passes} passes of polishing no lower loss was found (gradient"
        " {relative_after:.2g} of the residuals, not {tol:.2g}); scale the columns or"
        " the targets, or lower the rate"
    ),
}

NOTHING = 1e-6  # loss of all rows together: each is on its side, with a margin
BOUNDS = {"lower", "upper"}


def judge_fit(result: Result, names: SettingNames = OF_TRAIN) -> None:
    """Write into the report how near the optimum the fit is, and what to change.

    `converged` says whether the goal is reached, or whether the run ended well if it
    has no goal. `gap` is the last upper bound of F − F*; None if there is none.
    `advice` is a sentence if the goal is not reached, in which settings have the names
    `names`. `certified` says whether the gap is at most tol · max(|F|, 1e-3 · F₀), with
    the tol of the run and F₀ the loss of the null model above the least that F could
    be. It is None if no gap is known, or if the gap has no limit, as after steps of SGD
    alone whose goal is no gap.
    """
    report = result.report
    report["gap"] = result.history[-1].get("gap") if result.history else None
    report["certified"] = _is_certified(result)
    sentence = _sentence(result, names)
    report["converged"] = not sentence and result.status.is_good
    report.pop("advice", None)
    if sentence:
        report["advice"] = sentence


def _is_certified(result: Result) -> bool | None:
    report = result.report
    gap = report["gap"]
    polish = report.get("polish")
    coordinate = report.get("coordinate")
    if gap is None:
        return None
    if polish is not None:
        limit = polish.get("gap_limit")
        return None if limit is None else bool(gap <= limit)
    if coordinate is not None:
        excess = coordinate["null_excess"]
        return bool(gap <= gap_limit(coordinate["tol"], result.loss, excess))
    if result.config["stop"]["on"] != "gap":
        return None
    return result.status is Status.CONVERGED


def _sentence(result: Result, names: SettingNames) -> str:
    if not result.status.is_good:
        return result.status.advice
    endless = _without_minimum(result, names)
    if endless or result.report["certified"]:
        return endless
    if result.status is Status.CONVERGED:
        return result.status.advice
    for name, judge in (("polish", _of_polish), ("coordinate", _of_coordinates)):
        section = result.report.get(name)
        if section is not None:
            return judge(section, names)
    return _of_steps(result, names)


def _without_minimum(result: Result, names: SettingNames) -> str:
    """Return a sentence if F has no minimum, else "".

    F then has reached its bound 0, which no finite weights reach, or is unbounded.
    """
    problem = result.config["problem"]
    rows = result.report["rows"]
    polish = result.report.get("polish") or {}
    is_free = not problem["l2"] and not problem["l1"] and not problem.keys() & BOUNDS
    vanishes = abs(result.loss) * rows <= NOTHING
    if problem["family"] in ("poisson", "negative-binomial", "tweedie") and vanishes:
        if polish.get("ended") == StopReason.CONVERGED.value:
            return ""  # F has a minimum: the targets are small
        return (
            "all targets are 0, so that F has no minimum: the intercept falls without"
            " end; add rows with larger targets"
        )
    if not result.report.get("has_minimum", True):
        return f"{NO_MINIMUM}, {names.alpha} > 0"
    if problem["family"] in ENDLESS and is_free and vanishes:
        return f"{NO_MINIMUM}, {names.alpha} > 0"
    return ""


def _of_polish(found: Mapping[str, Any], names: SettingNames) -> str:
    fall = amount(found.get("expected_fall"))
    return REMEDIES.get(found["ended"], "").format(**found, fall=fall, names=names)


def _of_coordinates(found: Mapping[str, Any], names: SettingNames) -> str:
    if found["ended"] == "converged":
        return ""
    return (
        "coordinate descent ended before its gap was small enough"
        f" (now {_known(found['gap'])}); raise {names.epochs}, or tol"
    )


def _of_steps(result: Result, names: SettingNames) -> str:
    """Return advice for SGD without refinement that did not reach its goal."""
    goal = result.config["stop"]
    epochs = result.config["schedule"]["epochs"]
    if goal["on"] == "none":
        return ""
    if goal["on"] == "validation":
        return (
            f"the held-out loss still fell after {epochs} epochs; raise {names.epochs}"
        )
    if goal["on"] == "loss":
        return (
            f"the loss still fell after {epochs} epochs; raise {names.epochs} or the"
            " rate"
        )
    gap = result.history[-1].get("gap") if result.history else None
    return (
        f"{epochs} epochs of SGD ended {_known(gap)} or less above the optimum, and tol"
        f" asks for {goal['tol']:.2g} of F; raise {names.epochs} or tol, scale"
        f" the columns alike, or let {names.finisher} go on where F is smooth"
    )


def _known(gap: Any) -> str:
    return "an unknown distance" if gap is None else f"{gap:.2g}"


# A fit warns of a goal that is not reached; the same line in the log is left out.

SPEAKERS = tuple(
    logging.getLogger(f"hpcsgd.{name}")
    for name in ("solvers.evaluation", "solvers.newton", "runs.coordinate")
)
_fits: ContextVar[bool] = ContextVar("fits", default=False)


class _Once(logging.Filter):
    """A filter that drops log records below ERROR while this thread runs a fit."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not _fits.get() or record.levelno >= logging.ERROR


_ONCE = _Once()  # a logger adds the same filter once only


@contextmanager
def suppress_repeated_logs() -> Iterator[None]:
    """Drop log records of this thread below ERROR that repeat what a fit warns of.

    They are those of the modules in `SPEAKERS`. The context is for a run whose status
    is judged and reported afterwards.
    """
    for speaker in SPEAKERS:
        speaker.addFilter(_ONCE)
    before = _fits.set(True)
    try:
        yield
    finally:
        _fits.reset(before)


# A run in three lines: reached, cost and next.


def in_short(result: Result) -> dict[str, str]:
    """Return three sentences: the loss reached, the cost, and what to try next."""
    return {"reached": reached(result), "cost": cost(result), "next": advise(result)}


def reached(result: Result) -> str:
    """Return the loss at the end in words, and whether it still changes."""
    epochs = epochs_done(result)
    epoch_limit = result.report["schedule"]["epochs"]
    done = f"{epochs} epoch{'' if epochs == 1 else 's'}"
    if result.status is Status.DIVERGED:
        return (
            f"loss {result.loss:.4g}, the last good one:"
            f" diverged after {done} of {epoch_limit}"
        )
    polish = result.report.get("polish")
    if polish is not None and result.status.is_good:
        passes = f"{done} and {polish['passes']} passes of the finisher"
        return f"loss {result.loss:.4g} after {passes}: {polish['ended']}"
    if result.status is Status.CONVERGED:
        return (
            f"loss {result.loss:.4g} after {done} of {epoch_limit}: the goal is reached"
        )
    if result.status not in (Status.COMPLETED, Status.WORSE):
        done += f" of {epoch_limit}, {result.status.value} early"
    return f"loss {result.loss:.4g} after {done}, {describe_motion(result)}"


def cost(result: Result) -> str:
    """Return in words the steps, exchanges, seconds, waiting time and bytes sent."""
    done = (
        f"{result.iterations} steps in {result.exchanges} exchanges,"
        f" {result.report['seconds_total']:.3g} s"
    )
    if result.report["ranks"] == 1:
        return f"{done} on one rank; nothing sent"
    sent = result.ledger["products"]["bytes"] + result.ledger["agreement"]["bytes"]
    return (
        f"{done}, of which {100 * waiting(result):.0f} % waiting for the network;"
        f" {format_bytes(sent, DECIMAL)} sent per rank"
    )


def advise(result: Result) -> str:
    """Return what to try next.

    It is the advice of the result if the run ended badly or missed its goal, else
    advice on its loss, its time and phases of its method that it never reached.
    """
    report = result.report
    is_judged = "remedies" in report or report.get("converged") is False
    if result.is_worse or not result.status.is_good or is_judged:
        return result.advice
    if not result.report.get("has_minimum", True):
        return "F has no minimum: give a penalty (--l2)"
    if "coordinate" in result.report:
        return _about_coordinates(result)
    # A run that reached its goal, or was refined, needs no advice on its rate.
    goes_on = result.status is Status.COMPLETED and "polish" not in result.report
    suggestions = [*(about_loss(result) if goes_on else ()), *about_time(result)]
    config = RunConfig.parse(result.config)
    suggestions += filter(None, [unreached_phase(config, result.exchanges)])
    return "; ".join(suggestions) or "nothing stands out: keep these settings"


def _about_coordinates(result: Result) -> str:
    """Return advice for coordinate descent, on epochs, tolerance or s alone."""
    if result.status is not Status.CONVERGED:
        return "more --epochs, or a larger coordinate.tol"
    if waiting(result) > DOMINATES:
        return "the network dominates: larger --steps, for fewer messages"
    return "nothing stands out: keep these settings"


# Methods that begin as another one, and runs that are over before that changes.

AS_DENSE = "all words went as they are"
# codec -> what it is until its levels adapt
ADAPT = {
    "alq": "it was nuqsgd",
    "amq": "its levels were powers of 1/2",
}


def unreached_phase(config: RunConfig, exchanges: int) -> str:
    """Return a sentence on a later phase of the method that the run never reached.

    The run had `exchanges` exchanges. Return "" if it reached all phases, or had one
    replica.
    """
    if config.grid.replicas == 1:
        return ""
    first = config.accordion.interval + 1
    epochs = config.schedule.epochs
    meanwhile = _until_a_look(config)
    if meanwhile and epochs <= first:
        return (
            f"{meanwhile} until accordion.interval + 1 = {first} epochs, and the run"
            f" had {epochs}"
        )
    for setting, first, meanwhile in _beginnings(config):
        if exchanges <= first:
            return (
                f"{meanwhile} until {setting} = {first} exchanges, and the run had"
                f" {exchanges}"
            )
    return ""


def _until_a_look(config: RunConfig) -> str:
    """Return a clause on the run before it first compares gradients of epochs.

    Return "" if its method never compares them.
    """
    if "accordion" in config.agreement.reads:
        return "its batches were small"
    if config.accordion.by == "loss":
        return ""
    return "it compressed little" if config.agreement.codec == "accordion" else ""


def _beginnings(config: RunConfig) -> Iterator[tuple[str, int, str]]:
    """Yield (setting, exchanges, description) of the first phase of a method."""
    agreement = config.agreement
    codec = config.codec
    name = config.accordion.codec if agreement.codec == "accordion" else agreement.codec
    if agreement.beginning is not None:
        yield agreement.beginning
    if name == "powersgd":
        yield "codec.start", codec.start, AS_DENSE
    if name in ADAPT:
        yield "codec.adapt", codec.adapt, ADAPT[name]
