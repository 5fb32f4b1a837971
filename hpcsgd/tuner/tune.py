"""From what is open to what is settled: measure, predict, run the best, choose."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter
from typing import Any

from hpcsgd.auto_precision import affordable
from hpcsgd.comm.base import Communicator
from hpcsgd.config import RunConfig
from hpcsgd.cost import Machine
from hpcsgd.errors import ConfigError
from hpcsgd.products import KEEPS
from hpcsgd.schedule import MOST_ROWS
from hpcsgd.trials.pilot import draw_sample, loss_gaps
from hpcsgd.tuner.budget import Budget
from hpcsgd.tuner.figures import measure_reading, sampled_rows
from hpcsgd.tuner.learning import Learnt, learn, ways_of
from hpcsgd.tuner.network import Direction
from hpcsgd.tuner.question import Question
from hpcsgd.tuner.rooms import OVERHEAD, SHORTEST, Candidate, Room, on_grid, open_room

log = logging.getLogger(__name__)
BEST = 5  # candidates that are run
TURNS = 3  # of each of them
LONGEST = 0.2  # seconds of a burst of a candidate
ROOM_SECONDS = 2.0  # that the bursts of one grid and recipe need for a fit
CLOSE = 1.15  # one that is expected within this of the best is run, too
MOST_RECIPES = 3  # that are timed, the cheapest of the good ones
# What of the time is spent when each part ends.
LEARNT, RECIPES, OPENED, FITTED, RUN = 0.2, 0.27, 0.37, 0.65, 0.88


@dataclass(frozen=True)
class Tuning:
    """What was found, and what it rests on."""

    question: Question
    ranks: int
    chosen: Candidate
    best: tuple[Candidate, ...]  # that were run, the best first
    considered: int
    learnt: tuple[Learnt, ...]
    gaps: dict[str, float]  # recipe -> expected gap to fp64's loss
    figures: dict[str, dict[str, Any]]  # grid and recipe -> what was measured there
    rooms: dict[tuple[Any, ...], tuple[Machine, tuple[Direction, ...]]]
    sampled: tuple[int, int]  # rows that were timed on, of all
    seconds: float  # that it took

    def config(self) -> RunConfig:
        """The run with nothing left open."""
        best, config = self.chosen, self.question.config
        setting, way = best.setting, best.learnt.way
        settled = on_grid(config, best.grid, best.recipe)
        return replace(
            settled,
            schedule=replace(
                config.schedule,
                batch=setting.batch,
                steps=setting.steps,
                period=setting.period or config.schedule.period,
            ),
            products=replace(
                config.products,
                kind=setting.product,
                look_ahead="on" if setting.look_ahead else "off",
            ),
            rate=replace(config.rate, value=way.rate),
        )


def tune(question: Question, world: Communicator) -> Tuning:
    """Choose what is open, in the seconds that were given; called by all ranks."""
    check_rate(question.config)
    budget = Budget(world, question.seconds)
    reader = world.together(question.reader)
    try:
        reading = measure_reading(reader, world)
        most = min(max(question.batches) * 8, MOST_ROWS)
        sampled = sampled_rows(reader, reading, budget.seconds / 10, most)
        total = reader.rows
        learnt = _learn(question, reader, world, budget)
        gaps = _gaps(question, reader, world, budget)
    finally:
        reader.close()
    rooms = _rooms(question, gaps, world, sampled, reading, budget)
    usable = [one for one in learnt if one.penalty < float("inf")]
    batches = sorted({one.way.batch for one in usable})
    for number, room in enumerate(rooms, start=1):
        ends = OPENED + (FITTED - OPENED) * number / len(rooms)
        room.fit(question, batches, budget, ends)
    every = [c for room in rooms for c in room.candidates(question, usable)]
    if not every:
        raise ConfigError(
            f"{sampled} rows are fewer than one exchange needs;"
            " use a smaller --batch or --steps"
        )
    best = run_best(every, rooms, budget)
    figures = {
        f"{room.grid[0]}x{room.grid[1]} {room.recipe}": room.figures.as_dict()
        | {"fitted": room.model.start.as_dict()}
        for room in rooms
    }
    for room in rooms:
        room.stage.close()
    return Tuning(
        question=question,
        ranks=world.size,
        chosen=best[0],
        best=tuple(best),
        considered=len(every),
        learnt=tuple(learnt),
        gaps=gaps,
        figures=figures,
        rooms={(r.grid, r.recipe): (r.told, r.figures.directions) for r in rooms},
        sampled=(sampled, total),
        seconds=budget.spent,
    )


def check_rate(config: RunConfig) -> None:
    """Refuse a rate that every trial would find for itself."""
    if config.rate.is_open:
        raise ConfigError(
            "tune compares batches at one rate, and --rate auto finds another for each;"
            " give a number, for example that of a run with --rate auto"
        )


def _learn(
    question: Question, reader: Any, world: Communicator, budget: Budget
) -> list[Learnt]:
    """The penalty of every batch and of every number of replicas that is open."""
    config = question.config
    ways = ways_of(config, question.batches, question.grids(world.size))
    if len(ways) == 1:
        return [Learnt(ways[0], 1.0)]
    seconds = budget.until(LEARNT)

    def on_first() -> list[Learnt]:
        if world.rank:
            return []
        seed, family = config.sampling.seed, config.problem.family
        return learn(config, draw_sample(reader, 1, seed, family), ways, seconds)

    found: list[Learnt] = world.exchange_objects(world.together(on_first))[0]
    return found


def _gaps(
    question: Question, reader: Any, world: Communicator, budget: Budget
) -> dict[str, float]:
    """Recipes that may be chosen, each with its expected gap; rank 0 tries them."""
    config = question.config
    if not question.any_recipe:
        return {config.precision.recipe: 0.0}

    end = perf_counter() + budget.until(RECIPES) / 2  # read by rank 0 alone

    def measure() -> dict[str, float]:
        if world.rank:
            return {}
        steps = config.schedule.steps or 8
        batch = max(question.batches)
        asked = replace(config, schedule=replace(config.schedule, batch=batch))
        sample = draw_sample(
            reader, batch * steps, config.sampling.seed, config.problem.family
        )
        planned = config.schedule.epochs * -(-reader.rows // (batch * steps))
        names, found = affordable(config.precision), {"fp64": 0.0}
        for name in [n for n in PREFERRED if n in names and n != "fp64"]:
            if len(found) > 1 and perf_counter() > end:
                break
            wanted = {name: replace(config.precision, recipe=name)}
            gaps = loss_gaps(asked, sample, wanted, world.size, planned)
            found[name] = gaps[name].predicted
        return found

    found: dict[str, float] = world.exchange_objects(world.together(measure))[0]
    return found


def _rooms(
    question: Question,
    gaps: dict[str, float],
    world: Communicator,
    sampled: int,
    reading: float,
    budget: Budget,
) -> list[Room]:
    """One for each grid and each recipe that is good enough, as time allows."""
    limit = question.config.precision.tolerance
    good = [name for name, gap in gaps.items() if gap <= limit]
    if question.any_recipe:  # the widest is what is left where no other will do
        good = [n for n in PREFERRED[:-1] if n in good][:MOST_RECIPES] or ["fp64"]
    places = [(g, r) for r in good for g in question.grids(world.size)]
    # A fit of a few bursts says less than none of another place.
    most = max(int((FITTED - OPENED) * budget.seconds / ROOM_SECONDS), 1)
    if len(places) > most:
        said = "time for %d of %d grids and recipes; give more --seconds"
        log.warning(said, most, len(places), extra={"on_all_ranks": True})
    places = places[:most]
    rooms: list[Room] = []
    slowest = 0.0
    for grid, recipe in places:
        before = budget.until(FITTED)
        if rooms and before <= slowest:
            said = "no time for %dx%d in %s; give more --seconds"
            log.warning(said, *grid, recipe, extra={"on_all_ranks": True})
            continue
        ends = RECIPES + (OPENED - RECIPES) * (len(rooms) + 1) / len(places)
        found = (question, grid, recipe, world, sampled, reading, budget, ends)
        rooms.append(open_room(*found))
        slowest = max(slowest, before - budget.until(FITTED))
    return rooms


PREFERRED = ("c", "fp32", "d", "fp8", "fp16", "bf16", "fp64")  # usually cheapest first


def run_best(
    every: Sequence[Candidate], rooms: Sequence[Room], budget: Budget
) -> list[Candidate]:
    """Run those that promise most, in turns; what was seen may bring up others."""
    known: dict[Candidate, list[float]] = {}
    ratios: dict[tuple[Any, ...], float] = {}
    each = budget.until(RUN) / (OVERHEAD * 2 * BEST * TURNS)
    each = min(max(each, SHORTEST), LONGEST)
    wanted = sorted(every, key=lambda c: c.score)[:BEST]
    while wanted:
        known |= {candidate: [] for candidate in wanted}
        _take_turns(known, wanted, rooms, budget, each)
        for candidate in wanted:
            seen = median(known[candidate])
            ratios[_kind(candidate)] = seen / candidate.predicted
        best = min(_measured(c, times).score for c, times in known.items())
        ranked = sorted(every, key=lambda c: _corrected(c, ratios))[:BEST]
        wanted = [
            c for c in ranked if c not in known and _corrected(c, ratios) < CLOSE * best
        ]
        if budget.until(RUN) <= OVERHEAD * TURNS * each * len(wanted):
            break
    found = sorted((_measured(c, t) for c, t in known.items()), key=lambda c: c.score)
    return found[:BEST]


def _take_turns(
    known: dict[Candidate, list[float]],
    wanted: Sequence[Candidate],
    rooms: Sequence[Room],
    budget: Budget,
    each: float,
) -> None:
    """A burst of each, and again, as long as there is time."""
    for turn in range(TURNS):
        for candidate in wanted:
            if turn and budget.until(RUN) <= 0.0:
                break
            room = next(r for r in rooms if (r.grid, r.recipe) == _place(candidate))
            known[candidate].append(_step_seconds(candidate, room, each))
    for room in rooms:
        room.stage.forget()


def _measured(candidate: Candidate, times: Sequence[float]) -> Candidate:
    return replace(candidate, measured=median(times))


def _step_seconds(candidate: Candidate, room: Room, each: float) -> float:
    """Of a real run: its first epoch and its later ones, as many as are planned."""
    setting, job = candidate.setting, room.model.job
    burst = room.stage.burst(setting, each)
    if setting.product not in KEEPS:
        return burst.seconds / setting.steps
    first, share = room.stage.first(setting), 1.0 / job.epochs
    return (share * first.seconds + (1 - share) * burst.seconds) / setting.steps


def _corrected(candidate: Candidate, ratios: dict[tuple[Any, ...], float]) -> float:
    """Its score, with what others of its kind took beside what was expected."""
    return candidate.score * ratios.get(_kind(candidate), 1.0)


def _kind(candidate: Candidate) -> tuple[Any, ...]:
    return (*_place(candidate), candidate.setting.kind)


def _place(candidate: Candidate) -> tuple[Any, ...]:
    return candidate.grid, candidate.recipe
