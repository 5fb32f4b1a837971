"""More careful settings, one rung at a time: what a run falls back to.

First fewer steps in an exchange, until there is one; then wider formats, field by
field. Every rung can be taken once, so there are not many.
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any

from hpcsgd.checkpoint import ASKED, Checkpoint
from hpcsgd.config import RunConfig
from hpcsgd.data.partition import split_range
from hpcsgd.data.sampling import plan_groups
from hpcsgd.events import Rung
from hpcsgd.formats import get_format, wider
from hpcsgd.precision import Precision
from hpcsgd.products import RECURS

RAISED = ("inner", "gram_wire", "margin", "matrix")  # in this order
NOT_OF_GRAMS = ("gram_wire",)  # fields that only a Gram has


def next_rung(config: RunConfig, product: str) -> Rung | None:
    """What to change next, None at the top; `config` has its steps decided."""
    schedule, recurs = config.schedule, product in RECURS
    if recurs and schedule.steps > 1:
        fewer = fewer_steps(schedule.steps)
        changed = replace(config, schedule=replace(schedule, steps=fewer))
        return Rung(changed, "schedule.steps", schedule.steps, fewer)
    precision = config.precision.resolve()
    widest = widest_format(precision)
    for name in RAISED:
        before = getattr(precision, name)
        is_used = recurs or name not in NOT_OF_GRAMS
        if is_used and wider(before, widest) != before:
            raised: dict[str, Any] = {name: widest}
            section = replace(config.precision, **raised)
            changed = replace(config, precision=section)
            return Rung(changed, f"precision.{name}", before, widest)
    return None


def fewer_steps(steps: int) -> int:
    """The largest divisor of s that is at most s/2: groups begin where they began."""
    return max(n for n in range(1, steps // 2 + 1) if steps % n == 0)


def widest_format(precision: Precision) -> str:
    """That of the arithmetic, fp32 at least."""
    known = {*precision.arithmetic, "fp32"}
    return min(known, key=lambda name: get_format(name).unit_roundoff)


def moved(checkpoint: Checkpoint, before: RunConfig, after: RunConfig) -> Checkpoint:
    """The checkpoint as one of a run with the settings `after`.

    Exchange k of s steps is exchange k·s/s' of s' steps; what is counted in exchanges
    stays a count of exchanges.
    """
    document = deepcopy(checkpoint.document)
    s, fewer = before.schedule.steps, after.schedule.steps
    epochs, rest = divmod(document["exchanges"], document["exchanges_per_epoch"])
    largest = split_range(document["rows"], document["replicas"], 0).stop
    each = len(plan_groups(largest, after.schedule.batch, fewer))
    document |= {
        "exchanges": epochs * each + rest * s // fewer,
        "exchanges_per_epoch": each,
        "config": after.tables(),
        # It is the same leg: `put_back` counts one more.
        "resumes": document["resumes"] - 1,
    }
    measured = document["evaluation"]["measured_at"]
    same = measured == checkpoint.exchanges
    document["evaluation"]["measured_at"] = document["exchanges"] if same else -1
    return Checkpoint(document, checkpoint.arrays)


def going_on(config: RunConfig, document: Mapping[str, Any]) -> RunConfig:
    """`config` with what the run of a checkpoint fell back to, where it asks the same.

    Whoever asks for something else than that run did gets what is asked for.
    """
    then = document.get(ASKED)
    if not then:
        return config
    now, fell = config.tables(), document["config"]
    tables = {name: dict(now[name]) for name in ("schedule", "precision")}
    kept = ("recipe", *RAISED)
    for name, key in (("schedule", "steps"), *(("precision", f) for f in kept)):
        if now[name].get(key) == then[name].get(key) and key in fell.get(name, {}):
            tables[name][key] = fell[name][key]
    merged = RunConfig.parse(now | tables)
    return replace(config, schedule=merged.schedule, precision=merged.precision)
