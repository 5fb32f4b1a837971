"""What a larger batch, or replicas that agree seldom, cost in rows: short real runs.

All of them start at zero on the same sample of rows. The first, with the smallest batch
and no replicas, says which loss is to be reached: that of half of its epochs. The
others have all of them, twice as many rows, to reach it; one that does not is out.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, log
from time import perf_counter
from typing import Any

from hpcsgd.agreement.settings import AgreementConfig
from hpcsgd.assembly.notices import settle_grid
from hpcsgd.comm.base import Communicator
from hpcsgd.comm.threads import run_ranks
from hpcsgd.config import RunConfig
from hpcsgd.data.memory import MemoryReader
from hpcsgd.errors import ConfigError
from hpcsgd.polish.settings import PolishConfig
from hpcsgd.precision import PrecisionConfig
from hpcsgd.products.choose import ProductsConfig
from hpcsgd.result import Result, Status
from hpcsgd.sections import GridConfig, RunSection
from hpcsgd.session import Session
from hpcsgd.stopping import StopConfig
from hpcsgd.timing import Clock
from hpcsgd.trials.pilot import Sample, in_silence

log_ = logging.getLogger(__name__)
AT_ONCE = 8  # steps between two looks at the clock; they change nothing that is learnt
EPOCHS = 6  # of a run; the loss is that of the first one after half of them


@dataclass(frozen=True)
class Way:
    """What decides how much is learnt from a row."""

    batch: int  # rows a step of one replica
    rate: float
    replicas: int = 1
    local: int = 1  # steps between agreements

    @property
    def rows(self) -> int:
        """Of all replicas, in one step."""
        return self.batch * self.replicas

    def __str__(self) -> str:
        text = f"batch {self.batch}, rate {self.rate:g}"
        if self.replicas == 1:
            return text
        return f"{text}, {self.replicas} replicas agreeing every {self.local} steps"


@dataclass(frozen=True)
class Learnt:
    """Rows that a way needs for the loss, over those of the first."""

    way: Way
    penalty: float  # infinite where it did not get there in time
    loss: float = float("nan")  # at the end of its run


def ways_of(
    config: RunConfig, batches: Sequence[int], grids: Sequence[tuple[int, int]]
) -> list[Way]:
    """The first is what the others are held to.

    A rate that suits one batch is small for a larger one: both are tried, the same and
    one that grows with the rows of a step.
    """
    first = Way(min(batches), config.rate.value)
    found = {first: None}
    for replicas, _ in grids:
        for batch in batches:
            for local in LOCAL if replicas > 1 else (1,):
                way = replace(first, batch=batch, replicas=replicas, local=local)
                grown = first.rate * way.rows / first.rows
                found |= {way: None, replace(way, rate=grown): None}
    return list(found)


LOCAL = (8, 32)  # steps between agreements that are tried


def learn(
    config: RunConfig, sample: Sample, ways: Sequence[Way], seconds: float
) -> list[Learnt]:
    """Each way's penalty, as long as there is time; on one rank, for all of them.

    What is learnt hangs on batches and replicas alone, not on how many ranks share the
    columns: replicas are threads here, and nobody waits for a network.
    """
    found: list[Learnt] = []
    goal, needed, longest, end = 0.0, 1.0, 0.0, perf_counter() + seconds
    for number, way in enumerate(ways):
        began = perf_counter()
        if found and began + longest > end:
            said = (
                "no time to try %d of %d batches, rates or grids; give more --seconds"
            )
            log_.warning(said, len(ways) - number, len(ways))
            break
        result = _result(config, sample, way)
        if not found:
            goal, needed = _goal(result), rows_to(result, _goal(result))
        found.append(Learnt(way, rows_to(result, goal) / needed, result.loss))
        longest = max(longest, perf_counter() - began)
    return found


def _result(config: RunConfig, sample: Sample, way: Way) -> Result:
    """A short run this way, without a word of it."""
    short, columns = _short(config, way), _columns(sample)
    with in_silence():
        found = run_ranks(way.replicas, lambda world: _run(short, columns, world))
    first: Result = found[0]
    return first


def _run(config: RunConfig, columns: dict[str, Any], world: Communicator) -> Result:
    """Train on one rank of `world`."""
    config = settle_grid(config, world.size)
    reader = MemoryReader(**columns)
    session = Session(config, world, lambda _: reader, [], perf_counter(), Clock())
    return session.run()


def rows_to(result: Result, goal: float) -> float:
    """Epochs until the loss was `goal`: between looks its logarithm is a line."""
    if result.status is Status.DIVERGED:
        return inf
    looks = [(float(r["epoch"]), float(r["loss"])) for r in result.history]
    for (begin, above), (end, below) in zip(looks, looks[1:], strict=False):
        if below <= goal:
            return begin + (end - begin) * _part(above, below, goal)
    return inf


def _part(above: float, below: float, goal: float) -> float:
    """How much of the way from `above` to `below` lies above the goal."""
    if below <= 0.0:
        return (above - goal) / (above - below)
    return log(above / goal) / log(above / below) if above > below else 1.0


def _goal(result: Result) -> float:
    """The loss that the first way has after half of its epochs."""
    losses = {int(r["epoch"]): float(r["loss"]) for r in result.history}
    goal = losses.get(EPOCHS // 2, inf)
    if result.status is Status.DIVERGED or not goal < losses[0]:
        raise ConfigError(
            f"the loss does not fall with {result.config['schedule']['batch']} rows a"
            f" step and rate {result.config['rate']['value']:g}, so that batches cannot"
            " be compared; give another --rate, or one --batch"
        )
    return goal


def _columns(sample: Sample) -> dict[str, Any]:
    return {
        "X": sample.X,
        "y": sample.y,
        "sample_weight": sample.weights,
        "offset": sample.offsets,
    }


def _short(config: RunConfig, way: Way) -> RunConfig:
    """A run that says how much is learnt, as fast as may be, and no more."""
    steps = way.local if way.replicas > 1 else AT_ONCE
    schedule = replace(
        config.schedule, batch=way.batch, steps=steps, period=1, epochs=EPOCHS
    )
    run = RunSection(
        comm="threads", record=0, timeout=0.0, gap_every=0, fall_back=False
    )
    return replace(
        config,
        schedule=schedule,
        rate=replace(config.rate, value=way.rate),
        grid=GridConfig(replicas=way.replicas),
        products=ProductsConfig(kind="direct", look_ahead="off"),
        agreement=AgreementConfig(),
        polish=PolishConfig(),
        stop=StopConfig(),
        precision=PrecisionConfig(recipe="fp32"),
        run=run,
    )
