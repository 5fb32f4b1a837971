"""The tuner: products, steps, grid, recipe and batch for this machine."""

import logging
import math
import os
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from math import inf
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import hpcsgd
from hpcsgd.agreements import AUTO, settings_of
from hpcsgd.backends import compiled_calls
from hpcsgd.comm.communicator import Communicator
from hpcsgd.config import GridConfig, RunConfig, rehearsal
from hpcsgd.data.readers import RowReader, open_reader, row_words
from hpcsgd.errors import ConfigError
from hpcsgd.formats import get_format
from hpcsgd.glm.unrolling import MOST_ROWS
from hpcsgd.precision import PrecisionConfig, make_precision
from hpcsgd.products.base import may_clip, product_facts
from hpcsgd.products.cost import (
    STEPS,
    WORTH_HIDING,
    Machine,
    ProductsConfig,
    candidates,
)
from hpcsgd.runs.checks import product_refusals
from hpcsgd.runs.machine import (
    NetworkFigures,
    measure_machine,
    measure_network,
    measure_reading,
    measured_hardware,
    timed_rows,
)
from hpcsgd.runs.result import Result, Status
from hpcsgd.settings import refuse
from hpcsgd.tuning.pilots import (
    THREADS,
    Sample,
    affordable,
    draw_sample,
    draw_sample_of,
    loss_gaps,
    on_first_rank,
    planned_exchanges,
    run_pilot,
)
from hpcsgd.tuning.timed_exchanges import (
    Burst,
    FirstRows,
    MachineModels,
    Stage,
    TimeBudget,
    TimedSetting,
)

# The question of a tuning: a run, and its open settings.

log = logging.getLogger(__name__)
BATCHES = (8, 16, 32, 64, 128)  # of --batch auto
LEAST_SECONDS = 1.0
KINDS = ("auto", "none", "average")  # agreements whose times are modelled


@dataclass(frozen=True)
class TuningQuestion:
    """A request to `tune`: the settings of a run, and which of them it may choose."""

    config: RunConfig
    batches: tuple[int, ...]  # to choose from; a single one is fixed
    seconds: float = 30.0
    any_recipe: bool = False  # the recipe may be chosen
    any_replicas: bool = False  # grids of several replicas may be chosen

    def __post_init__(self) -> None:
        if not LEAST_SECONDS <= self.seconds < float("inf"):
            raise ConfigError(
                f"--seconds {self.seconds:g}: a finite number of at least"
                f" {LEAST_SECONDS:g} is needed; 30 is usual"
            )
        if not self.batches or min(self.batches) < 1:
            raise ConfigError("--batch: give whole numbers of at least 1, as 8,16,32")
        if self.config.run.device != "cpu":
            raise ConfigError(
                "tune cannot be used with --device cuda, because it measures CPUs; use"
                " hpcsgd train, where --products auto and --steps auto choose by the"
                " figures of docs/learn/products.md"
            )
        if self.config.run.emulate_members:
            raise ConfigError(
                "tune cannot be used with --emulate-members, because it measures real"
                " ranks; leave --emulate-members out, or use `hpcsgd study predict` for"
                " other numbers of ranks"
            )
        self._check_kind()
        # The timed runs begin with another product, and would not refuse this one.
        refuse(product_refusals(self.config))

    def _check_kind(self) -> None:
        """Raise ConfigError for an agreement whose time is not modelled or measured."""
        agreement = self.config.agreement
        if agreement.kind in KINDS:
            return
        by = (
            f"method={agreement.method}"
            if agreement.method
            else f"agreement={agreement.kind}"
        )
        bucket = " agreement.bucket=1" if agreement.shares_gradients else ""
        rows = " ".join(
            f"--setting '{name}: {by} batch={batch}{more}'"
            for name, batch, more in (("a", 16, ""), ("b", 32, bucket))
        )
        raise ConfigError(
            f"tune cannot be used with --{by.replace('=', ' ')}, only with one replica"
            " or --agreement average; compare its settings in full runs, as hpcsgd"
            f" compare --allow-unequal {rows}"
        )

    def reader(self) -> RowReader:
        """Return a reader of all the data."""
        return open_reader(Path(self.config.data.path))

    def grids(self, ranks: int) -> list[tuple[int, int]]:
        """Return the grids (R, C) of `ranks` ranks to choose from.

        It is the grid of the settings alone, if they name one. Else R is 1, or with
        `any_replicas` every divisor of `ranks`.
        """
        grid = self.config.grid
        if grid.members or grid.replicas > 1:
            return [(grid.replicas, grid.members or max(ranks // grid.replicas, 1))]
        if not self.any_replicas:
            return [(1, ranks)]
        return [(r, ranks // r) for r in range(1, ranks + 1) if ranks % r == 0]


def parse_batches(text: str) -> tuple[int, ...]:
    """Return the batches of "auto", "32" or "8,16,32".

    >>> parse_batches("32,8")
    (8, 32)
    """
    if text == "auto":
        return BATCHES
    try:
        batches = {int(word) for word in text.split(",")}
    except ValueError:
        batches = {0}
    if min(batches) < 1:
        raise ConfigError(
            f"--batch {text}: give a whole number, several as 8,16,32, or auto"
        )
    return tuple(sorted(batches))


def probing_steps(batch: int, rows: int, most: int) -> list[int]:
    """Return the numbers of steps of `PROBED` that are timed for the fit.

    Their exchanges have at most `rows` rows, those of a replica, and at most `most`. If
    there are none, only the largest of `STEPS` that fits is returned, if any does.
    """
    fits = [s for s in STEPS if s * batch <= min(rows, most)]
    steps = [s for s in PROBED if s in fits]
    return steps or fits[-1:]


PROBED = (2, 6, 20, 48, 128)


# The cost in rows of a larger batch, or of replicas that agree seldom, by short runs.
#
# All runs start at zero on the same sample of rows. The first run, with the smallest
# batch and one replica, defines the loss to reach: that after half of its epochs. The
# others have all epochs, twice as many rows, to reach it; a run that does not is
# excluded.

AT_ONCE = 8  # steps of an exchange, which do not change the iterates
EPOCHS = 6  # of a run; half of them define the loss to reach


@dataclass(frozen=True)
class LearningSetting:
    """Settings that determine the decrease of the loss by a row."""

    batch: int  # rows a step of one replica
    rate: float
    replicas: int = 1
    local: int = 1  # steps between agreements

    @property
    def rows(self) -> int:
        """Return the rows of all replicas in one step."""
        return self.batch * self.replicas

    def __str__(self) -> str:
        text = f"batch {self.batch}, rate {self.rate:g}"
        if self.replicas == 1:
            return text
        return f"{text}, {self.replicas} replicas agreeing every {self.local} steps"


@dataclass(frozen=True)
class Learnt:
    """The rows that a setting needs to reach a loss, relative to the first setting."""

    way: LearningSetting
    penalty: float  # inf if the run did not reach the loss
    loss: float = float("nan")  # at the end of its run


def ways_of(
    config: RunConfig, batches: Sequence[int], grids: Sequence[tuple[int, int]]
) -> list[LearningSetting]:
    """Return the learning settings to try; the others are compared with the first.

    A rate that suits one batch is small for a larger one, so two rates are tried: the
    rate of `config`, and a rate that is proportional to the rows of a step.
    """
    first = LearningSetting(min(batches), config.rate.value)
    settings = {first: None}
    for replicas, _ in grids:
        for batch in batches:
            for local in LOCAL if replicas > 1 else (1,):
                setting = replace(first, batch=batch, replicas=replicas, local=local)
                grown = first.rate * setting.rows / first.rows
                settings |= {setting: None, replace(setting, rate=grown): None}
    return list(settings)


LOCAL = (8, 32)  # steps between agreements that are tried


def learn(
    config: RunConfig, sample: Sample, ways: Sequence[LearningSetting], seconds: float
) -> list[Learnt]:
    """Return the penalty of each setting, for as many as there is time, on one rank.

    A penalty is the number of rows to reach a loss, relative to the first setting,
    whose loss after half of its epochs is the one to reach.

    The iterates depend on batches and replicas only, not on the number of ranks that
    share the columns: replicas are threads of this process, without a network.
    """
    penalties: list[Learnt] = []
    goal = 0.0
    needed = 1.0
    longest = 0.0
    end = perf_counter() + seconds
    for number, setting in enumerate(ways):
        began = perf_counter()
        if penalties and began + longest > end:
            message = (
                "tune has no time to try %d of %d batches, rates or grids; give more"
                " --seconds"
            )
            log.warning(message, len(ways) - number, len(ways))
            break
        result = learning_run(config, sample, setting)
        if not penalties:
            goal = _goal(result)
            needed = rows_to(result, _goal(result))
        penalties.append(Learnt(setting, rows_to(result, goal) / needed, result.loss))
        longest = max(longest, perf_counter() - began)
    return penalties


def learning_run(config: RunConfig, sample: Sample, way: LearningSetting) -> Result:
    """Return the result of a short silent run with one batch, rate and grid."""
    steps = way.local if way.replicas > 1 else AT_ONCE
    values = {
        "schedule.batch": way.batch,
        "schedule.steps": steps,
        "schedule.period": 1,
        "schedule.epochs": EPOCHS,
        "rate.value": way.rate,
    }
    short = rehearsal(
        config,
        values,
        run=THREADS,
        evaluated=True,
        grid=GridConfig(replicas=way.replicas, members=1),
        products=ProductsConfig(kind="direct", look_ahead="off"),
        agreement=settings_of(AUTO)(),
        precision=PrecisionConfig(recipe="fp32"),
    )
    return run_pilot(short, sample)


def rows_to(result: Result, goal: float) -> float:
    """Return the epochs until the loss was `goal`; inf if it was not reached.

    A run that diverged returns inf, too. Between evaluations, the logarithm of the loss
    is interpolated linearly, or the loss itself if the later one is not positive.
    """
    if result.status is Status.DIVERGED:
        return inf
    evaluations = [(float(r["epoch"]), float(r["loss"])) for r in result.history]
    for (begin, above), (end, below) in zip(evaluations, evaluations[1:], strict=False):
        if below <= goal:
            return begin + (end - begin) * _part(above, below, goal)
    return inf


def _part(above: float, below: float, goal: float) -> float:
    """Return the fraction of the decrease from `above` to `below` until `goal`."""
    if below <= 0.0:
        return (above - goal) / (above - below)
    return math.log(above / goal) / math.log(above / below) if above > below else 1.0


def _goal(result: Result) -> float:
    """Return the loss of the first setting after half of its epochs."""
    losses = {int(r["epoch"]): float(r["loss"]) for r in result.history}
    goal = losses.get(EPOCHS // 2, inf)
    if result.status is Status.DIVERGED or not goal < losses[0]:
        raise ConfigError(
            f"the loss does not fall with {result.config['schedule']['batch']} rows a"
            f" step and rate {result.config['rate']['value']:g}, so that batches"
            " and grids cannot be compared; give another --rate, or only one value as"
            " --batch and one replica"
        )
    return goal


# One grid in one recipe: its data, figures, model and candidates.

BURST, SHORTEST = 0.05, 0.005  # most and least seconds of a burst
FIRST = 6  # seconds of a first epoch of a product that stores batches, in bursts
OVERHEAD = 2.0  # seconds of a burst with its preparation, in bursts
ROUNDS = 3  # of bursts for a fit, in turns; their median is used
WORD = 4  # bytes of a weight that replicas average
WIDE = 4  # bytes of a value of the matrix; narrower ones have another rate of Gram


@dataclass(frozen=True)
class TimedRows:
    """The number of first rows of the data on which settings are timed."""

    rows: int
    total: int  # of all the data
    reading: float  # bytes of float64 that a rank reads in a second


@dataclass(frozen=True)
class GridFigures:
    """Measured figures of the machine, for one grid and one recipe of formats."""

    machine: Machine  # each constant measured separately, before any fit
    directions: tuple[NetworkFigures, ...]  # members, replicas
    kernels: tuple[dict[str, Any], ...]  # each rate with the rows it was measured on


@dataclass(frozen=True)
class Candidate:
    """A setting on a grid, with its predicted and measured seconds of a step."""

    grid: tuple[int, int]
    recipe: str
    learnt: Learnt
    setting: TimedSetting
    predicted: float  # seconds of a step
    measured: float = 0.0  # seconds of a step; 0 = not measured

    @property
    def place(self) -> tuple[tuple[int, int], str]:
        """Return the grid and the recipe."""
        return self.grid, self.recipe

    @property
    def kind(self) -> tuple[Any, ...]:
        """Return grid, recipe and product, with " ahead" if the product looks ahead.

        Candidates of one kind share a ratio of measured to predicted seconds.
        """
        return *self.place, self.setting.kind

    @property
    def seconds(self) -> float:
        """Return the seconds of a step: measured, or else predicted."""
        return self.measured or self.predicted

    @property
    def score(self) -> float:
        """Return the seconds for as much progress as by one row of the first setting.

        The first setting is the first `LearningSetting`, whose penalty is 1.
        """
        return self.seconds / self.learnt.way.rows * self.learnt.penalty


@dataclass
class CandidateGroup:
    """The candidates of one grid and recipe, their bursts, and the fitted model."""

    grid: tuple[int, int]
    recipe: str
    stage: Stage
    figures: GridFigures
    model: MachineModels
    bursts: list[Burst] = field(default_factory=list)

    @property
    def comparison_machine(self) -> Machine:
        """Return a machine that can be compared with other machines.

        Its rates are measured for each kernel separately, as a fit on one width of rows
        may confuse them. Overheads around kernels are fitted.
        """
        return replace(self.figures.machine, overheads=self.model.start.overheads)

    def candidates(
        self, question: TuningQuestion, ways: Sequence[Learnt]
    ) -> list[Candidate]:
        """Return all candidates for the open settings, with seconds by the model."""
        return [
            Candidate(self.grid, self.recipe, learnt, setting, self._step(setting))
            for learnt in ways
            if learnt.way.replicas == self.grid[0]
            for setting in self.settings(question, learnt.way.batch, learnt.way.local)
        ]

    def settings(
        self, question: TuningQuestion, batch: int, local: int = 0
    ) -> Iterator[TimedSetting]:
        """Yield the settings of products and steps that fit the rows of the sample.

        With replicas, `local` is the number of steps between agreements, which the
        steps of an exchange divide; 0: it is open.
        """
        config = question.config
        model = self.model
        job = replace(model.job, batch=batch)
        replicas = self.grid[0]
        fixed = config.schedule.steps if replicas == 1 or local == 0 else 0
        for choice in candidates(config.products.kind, fixed, job, Machine()):
            if replicas > 1 and local % choice.steps:
                continue
            clip = config.update.clip != "none"
            over = config.update.clip_over
            if clip and not may_clip(choice.product, choice.steps, over):
                continue
            period = local // choice.steps if replicas > 1 else 0
            plain = TimedSetting(choice.product, choice.steps, batch, period=period)
            if not self.stage.fits(plain):
                continue
            if not (choice.product == "gram" and config.products.look_ahead == "on"):
                yield plain
            if self._may_look_ahead(question, choice.product):
                yield replace(plain, look_ahead=True)

    def fit(
        self,
        question: TuningQuestion,
        batches: Sequence[int],
        budget: TimeBudget,
        share: float,
    ) -> None:
        """Time bursts of some settings in turns, and fit the model to them. Collective.

        It ends when `share` of the budget is spent, but times one burst at least.
        """
        probes = self._probes(question, batches)
        each = budget.until(share) / (OVERHEAD * ROUNDS * max(len(probes), 1))
        each = min(max(each, SHORTEST), BURST)
        self.stage.first_epoch = FIRST * each
        taken: dict[TimedSetting, list[Burst]] = {}
        for _ in range(ROUNDS):
            for setting in probes:
                if taken and budget.until(share) <= 0.0:
                    break
                taken.setdefault(setting, []).append(self.stage.burst(setting, each))
        new_bursts = [self._typical(bursts) for bursts in taken.values()]
        new_bursts += [self.stage.first(b.setting) for b in new_bursts if b.later]
        self.stage.forget()
        self.bursts += new_bursts
        self.model = self.model.fitted(self.bursts)

    def _typical(self, bursts: list[Burst]) -> Burst:
        return replace(bursts[-1], seconds=median(b.seconds for b in bursts))

    def _probes(
        self, question: TuningQuestion, batches: Sequence[int]
    ) -> list[TimedSetting]:
        """Return the settings of each product that are timed for the fit.

        They have few and many steps, and the smallest and the largest batch.
        """
        probes: dict[str, list[TimedSetting]] = {}
        for batch in sorted({min(batches), max(batches)}):
            every = [replace(s, period=0) for s in self.settings(question, batch)]
            steps = probing_steps(batch, self.stage.rows, MOST_ROWS)
            chosen = [s for s in every if s.steps in steps] or every
            for setting in dict.fromkeys(chosen):
                probes.setdefault(setting.kind, []).append(setting)
        # One setting of each kind precedes a second one, as time may be short.
        turns = zip_longest(*probes.values())
        return [setting for turn in turns for setting in turn if setting is not None]

    def _may_look_ahead(self, question: TuningQuestion, product: str) -> bool:
        look_ahead = question.config.products.look_ahead
        has_messages = self.model.job.replica.members > 1
        if product != "gram" or not has_messages or look_ahead == "off":
            return False
        return look_ahead == "on" or self.figures.directions[0].latency >= WORTH_HIDING

    def _step(self, setting: TimedSetting) -> float:
        """Return the seconds of a step by the model, with averages of replicas."""
        seconds = self.model.step(replace(setting, period=0))
        replicas = self.figures.directions[1]
        words = self.model.job.replica.local_columns
        if replicas.ranks == 1 or not setting.period:
            return seconds
        size = WORD * words * self.model.job.scores * self.model.job.states
        return seconds + replicas.seconds(size) / (setting.period * setting.steps)


def open_candidate_group(
    question: TuningQuestion,
    grid: tuple[int, int],
    recipe: str,
    world: Communicator,
    sample: TimedRows,
    budget: TimeBudget,
    share: float,
) -> CandidateGroup:
    """Load the sample onto the grid, and measure the machine; return a new group.

    Collective. `share` is the part of the budget that is spent at the end of it.
    """
    config = question.config
    whole = question.reader()

    def reader(_: Communicator) -> RowReader:
        return FirstRows(whole, sample.rows, config.problem.family)

    stage = Stage(config, place_values(grid, recipe), world, reader)
    figures = measure_figures(stage, min(question.batches), budget, share)
    job = stage.job(whole.rows, config.schedule.epochs)
    return CandidateGroup(
        grid, recipe, stage, figures, MachineModels(job, figures.machine)
    )


def measure_figures(
    stage: Stage, batch: int, budget: TimeBudget, share: float
) -> GridFigures:
    """Measure the network among members and among replicas, and the rates of a rank.

    Collective. The network figures are those of the slowest rank, so that all ranks
    choose alike.
    """
    task = stage.task
    grid = stage.opened.grid
    world = stage.world
    seconds = budget.until(share) / 4
    directions = []
    for name, group in (("members", grid.members), ("replicas", grid.replicas)):
        own_network = measure_network(name, group, seconds=seconds)
        everyone = world.exchange_objects(own_network)
        directions.append(max(everyone, key=lambda network: network.latency))
    batch = min(batch, stage.rows)
    machine = measure_machine(task, batch, world, directions[0])
    blocks, rows = timed_rows(task.shard, batch)
    kernels = [
        {"kernel": name, "rows": n, "columns": task.shard.width, "rate": rate}
        for name, n, rate in (
            ("read", rows, machine.read),
            ("again", rows, machine.again),
            ("gram", blocks.rows, machine.gram),
        )
    ]
    return GridFigures(machine, tuple(directions), tuple(kernels))


def place_values(grid: tuple[int, int], recipe: str) -> dict[str, Any]:
    """Return section.key -> value of a grid and a recipe in a configuration."""
    replicas, members = grid
    return {
        "grid.replicas": replicas,
        "grid.members": members,
        "precision.recipe": recipe,
    }


# The choice of open settings: measure, predict, run the best, choose.

BEST = 5  # candidates that are run
TURNS = 3  # of each of them
LONGEST = 0.2  # seconds of a burst of a candidate
ROOM_SECONDS = 2.0  # for the bursts of one grid and recipe before a fit
CLOSE = 1.15  # candidates with at most this ratio to the best score are run as well
SAMPLE = 192 * 2**20  # bytes of float64 of all ranks: larger than a last-level cache
MOST_RECIPES = 3  # that are timed, the cheapest of the good ones
# The share of the time that is spent at the end of each part.
LEARNT = 0.2
RECIPES = 0.27
OPENED = 0.37
FITTED = 0.65
RUN = 0.88


@dataclass(frozen=True)
class TuningResult:
    """The fastest settings, and the measurements by which they were chosen."""

    question: TuningQuestion
    ranks: int
    best: tuple[Candidate, ...]  # that were run, the best first
    considered: int
    learnt: tuple[Learnt, ...]
    gaps: dict[str, float]  # recipe -> expected gap to fp64's loss
    groups: tuple[CandidateGroup, ...]
    sample: TimedRows
    seconds: float  # of the tuning

    @property
    def chosen(self) -> Candidate:
        """Return the candidate with the best score."""
        return self.best[0]

    def config(self) -> RunConfig:
        """Return the configuration of the chosen candidate, with all its choices."""
        best = self.chosen
        return self.question.config.with_values(
            {
                **place_values(*best.place),
                **best.setting.values(),
                "rate.value": best.learnt.way.rate,
            }
        )


def tune(question: TuningQuestion, world: Communicator) -> TuningResult:
    """Choose the settings that `question` leaves open, in its seconds. Collective."""
    check_rate(question.config)
    budget = TimeBudget(world, question.seconds)
    reader = world.together(question.reader)
    try:
        sample = rows_to_time(question, reader, world, budget.seconds / 10)
        learnt = _learn(question, reader, world, budget)
        gaps = _gaps(question, reader, world, budget)
    finally:
        reader.close()
    groups = _open_groups(question, gaps, world, sample, budget)
    usable = [setting for setting in learnt if setting.penalty < float("inf")]
    batches = sorted({setting.way.batch for setting in usable})
    for number, group in enumerate(groups, start=1):
        ends = OPENED + (FITTED - OPENED) * number / len(groups)
        group.fit(question, batches, budget, ends)
    every = [c for group in groups for c in group.candidates(question, usable)]
    if not every:
        raise ConfigError(
            "tune has no setting to time: one exchange of all replicas needs more than"
            f" {sample.rows} rows, or no run with so many replicas reached the loss of"
            " one replica; use a smaller --batch or --steps, or another --rate"
        )
    best = time_best_candidates(every, groups, budget)
    for group in groups:
        group.stage.close()
    return TuningResult(
        question=question,
        ranks=world.size,
        best=tuple(best),
        considered=len(every),
        learnt=tuple(learnt),
        gaps=gaps,
        groups=tuple(groups),
        sample=sample,
        seconds=budget.spent,
    )


def rows_to_time(
    question: TuningQuestion, reader: RowReader, world: Communicator, seconds: float
) -> TimedRows:
    """Return how many rows settings are timed on. Collective.

    They are as many as are read in half of the seconds, up to `SAMPLE` bytes, which no
    cache holds; but at least those of 8 steps of the largest batch (`MOST_ROWS` if that
    is fewer), where the data have so many.
    """
    reading = measure_reading(reader, world)
    least = min(max(question.batches) * 8, MOST_ROWS)
    size = min(SAMPLE, int(seconds * reading / 2))
    rows = min(max(size // (8 * row_words(reader)), least), reader.rows)
    return TimedRows(rows, reader.rows, reading)


def check_rate(config: RunConfig) -> None:
    """Refuse an automatic rate, which would differ between the trials."""
    if config.rate.is_open:
        raise ConfigError(
            "tune compares batches at one rate, and --rate auto chooses another one for"
            " each batch; give --rate a number, for example that of a run with --rate"
            " auto"
        )


def _learn(
    question: TuningQuestion, reader: Any, world: Communicator, budget: TimeBudget
) -> list[Learnt]:
    """Return the penalties of the learning settings to choose from. Collective.

    Those for which there is no time are left out.
    """
    config = question.config
    settings = ways_of(config, question.batches, question.grids(world.size))
    if len(settings) == 1:
        return [Learnt(settings[0], 1.0)]
    seconds = budget.until(LEARNT)

    def measure() -> list[Learnt]:
        seed = config.sampling.seed
        family = config.problem.family
        return learn(config, draw_sample(reader, 1, seed, family), settings, seconds)

    return on_first_rank(world, measure)


def _gaps(
    question: TuningQuestion, reader: Any, world: Communicator, budget: TimeBudget
) -> dict[str, float]:
    """Return recipe -> predicted relative loss difference to fp64.

    Collective. Rank 0 runs pilots of the recipes for which there is time. If the recipe
    is set, it is returned alone with 0.
    """
    config = question.config
    if not question.any_recipe:
        return {config.precision.recipe: 0.0}

    end = perf_counter() + budget.until(RECIPES) / 2  # read by rank 0 alone

    def measure() -> dict[str, float]:
        batch = max(question.batches)
        sample = draw_sample_of(config, reader, batch)
        planned = planned_exchanges(config, reader.rows, batch)
        recipes = affordable(config.precision)
        predictions = {"fp64": 0.0}
        for name in [n for n in PREFERRED if n in recipes and n != "fp64"]:
            if len(predictions) > 1 and perf_counter() > end:
                break
            precisions = {name: recipes[name]}
            gaps = loss_gaps(config, sample, precisions, world.size, planned, batch)
            predictions[name] = gaps[name].predicted
        return predictions

    return on_first_rank(world, measure)


def _open_groups(
    question: TuningQuestion,
    gaps: dict[str, float],
    world: Communicator,
    sample: TimedRows,
    budget: TimeBudget,
) -> list[CandidateGroup]:
    """Return a group for each grid and each good recipe, as time allows. Collective.

    A recipe is good if its loss difference to fp64 is within the tolerance. If it may
    be chosen, fp64 is used only if no other is good.
    """
    limit = question.config.precision.tolerance
    good = [name for name, gap in gaps.items() if gap <= limit]
    if question.any_recipe:  # the widest recipe is taken only if no other is good
        good = [n for n in PREFERRED[:-1] if n in good][:MOST_RECIPES] or ["fp64"]
    places = [(g, r) for r in good for g in question.grids(world.size)]
    # A fit with too few bursts is worse than one grid or recipe less.
    most = max(int((FITTED - OPENED) * budget.seconds / ROOM_SECONDS), 1)
    if len(places) > most:
        message = (
            "tune has time for only %d of %d grids and recipes; give more --seconds"
        )
        log.warning(message, most, len(places), extra={"on_all_ranks": True})
    places = places[:most]
    groups: list[CandidateGroup] = []
    slowest = 0.0
    for grid, recipe in places:
        before = budget.until(FITTED)
        if groups and before <= slowest:
            message = "tune has no time for grid %dx%d in %s; give more --seconds"
            log.warning(message, *grid, recipe, extra={"on_all_ranks": True})
            continue
        ends = RECIPES + (OPENED - RECIPES) * (len(groups) + 1) / len(places)
        groups.append(
            open_candidate_group(question, grid, recipe, world, sample, budget, ends)
        )
        slowest = max(slowest, before - budget.until(FITTED))
    return groups


# The order in which recipes are tried as long as there is time: that of their usual
# seconds, `pilots.ORDER`, but for d. It differs from c by the words of G alone,
# so that fp32 is the better second trial.
PREFERRED = ("c", "fp32", "d", "fp8", "fp16", "bf16", "fp64")


def time_best_candidates(
    every: Sequence[Candidate], groups: Sequence[CandidateGroup], budget: TimeBudget
) -> list[Candidate]:
    """Time the candidates with the best scores, in turns; return up to five of them.

    They are the best by measured times, the best first. Measured times also correct the
    scores, so that more candidates may be timed.
    """
    timings: dict[Candidate, list[float]] = {}
    ratios: dict[tuple[Any, ...], float] = {}
    each = budget.until(RUN) / (OVERHEAD * 2 * BEST * TURNS)
    each = min(max(each, SHORTEST), LONGEST)
    shortlist = sorted(every, key=lambda c: c.score)[:BEST]
    while shortlist:
        timings |= {candidate: [] for candidate in shortlist}
        _take_turns(timings, shortlist, groups, budget, each)
        for candidate in shortlist:
            seen = median(timings[candidate])
            ratios[candidate.kind] = seen / candidate.predicted
        best = min(_measured(c, times).score for c, times in timings.items())
        ranked = sorted(every, key=lambda c: _corrected(c, ratios))[:BEST]
        shortlist = [
            c
            for c in ranked
            if c not in timings and _corrected(c, ratios) < CLOSE * best
        ]
        if budget.until(RUN) <= OVERHEAD * TURNS * each * len(shortlist):
            break
    results = sorted(
        (_measured(c, t) for c, t in timings.items()), key=lambda c: c.score
    )
    return results[:BEST]


def _take_turns(
    known: dict[Candidate, list[float]],
    wanted: Sequence[Candidate],
    groups: Sequence[CandidateGroup],
    budget: TimeBudget,
    each: float,
) -> None:
    """Time bursts of the candidates `wanted`, and add seconds of a step to `known`.

    Each is timed once, and up to `TURNS` times while there is time.
    """
    for turn in range(TURNS):
        for candidate in wanted:
            if turn and budget.until(RUN) <= 0.0:
                break
            group = next(g for g in groups if (g.grid, g.recipe) == candidate.place)
            known[candidate].append(_step_seconds(candidate, group, each))
    for group in groups:
        group.stage.forget()


def _measured(candidate: Candidate, times: Sequence[float]) -> Candidate:
    return replace(candidate, measured=median(times))


def _step_seconds(candidate: Candidate, group: CandidateGroup, each: float) -> float:
    """Time a burst; return the seconds of a step, on average over a run.

    If the product stores batches, the first epoch is timed apart from later ones.
    """
    setting = candidate.setting
    job = group.model.job
    burst = group.stage.burst(setting, each)
    if not product_facts(setting.product).keeps_batches:
        return burst.seconds / setting.steps
    first = group.stage.first(setting)
    share = 1.0 / job.epochs
    return (share * first.seconds + (1 - share) * burst.seconds) / setting.steps


def _corrected(candidate: Candidate, ratios: dict[tuple[Any, ...], float]) -> float:
    """Return the score, corrected by the measured ratio of its kind."""
    return candidate.score * ratios.get(candidate.kind, 1.0)


# A tuning as a document, as a configuration file, and in sentences.

SCHEMA = 1


def document(found: TuningResult) -> dict[str, Any]:
    """Return the result as a JSON object."""
    return {
        "schema": SCHEMA,
        "chosen": row(found.chosen, found.ranks),
        "best": [row(item, found.ranks) for item in found.best],
        "considered": found.considered,
        "learning": [_learnt(item) for item in found.learnt],
        "recipes": found.gaps,
        "tolerance": found.question.config.precision.tolerance,
        "figures": {
            f"{found.ranks} ranks {g.grid[0]}x{g.grid[1]} {g.recipe}": _figures(
                g, found.sample
            )
            for g in found.groups
        },
        "rows_timed": found.sample.rows,
        "rows": found.sample.total,
        "seconds": found.seconds,
        "kernels": compiled_calls.instructions() or "numpy",
        "processor": platform.machine(),
        "version": hpcsgd.__version__,
        "config": found.config().tables(),
        "toml": _toml(found),
        "machine_toml": _machine_toml(found),
    }


def _figures(group: CandidateGroup, sample: TimedRows) -> dict[str, Any]:
    """Return the figures of a grid and recipe for the report."""
    figures = group.figures
    return {
        "machine": figures.machine.as_dict(),
        "directions": [network.as_dict() for network in figures.directions],
        "kernels": list(figures.kernels),
        "bytes_read_per_second": sample.reading,
        "fitted": group.model.start.as_dict(),
    }


def row(one: Candidate, ranks: int) -> dict[str, Any]:
    """Return the figures of one candidate, a row of the table."""
    setting = one.setting
    learning_setting = one.learnt.way
    return {
        "ranks": ranks,
        "grid": f"{one.grid[0]}x{one.grid[1]}",
        "recipe": one.recipe,
        "product": setting.product,
        "look_ahead": setting.look_ahead,
        "steps": setting.steps,
        "batch": setting.batch,
        "period": setting.period,
        "rate": learning_setting.rate,
        "predicted": one.predicted,
        "measured": one.measured,
        "penalty": one.learnt.penalty,
        "seconds_per_row": one.score,  # for the same progress
    }


def merged(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return one report from those of several numbers of ranks, with all measurements.

    Its choice is the fastest of their choices.
    """
    first = min(parts, key=lambda part: float(part["chosen"]["seconds_per_row"]))
    rows = [one for part in parts for one in part["best"]]
    figures = {k: v for part in parts for k, v in part["figures"].items()}
    return {
        **first,
        "best": sorted(rows, key=lambda one: float(one["seconds_per_row"])),
        "considered": sum(part["considered"] for part in parts),
        "figures": figures,
        "seconds": sum(part["seconds"] for part in parts),
    }


def explained(found: dict[str, Any], path: str | None) -> Iterator[str]:
    """Yield sentences on the choice, its reasons, and the next command."""
    best = found["chosen"]
    yield (
        f"{best['product']} with s = {best['steps']} and batch {best['batch']} on a"
        f" {best['grid']} grid in {best['recipe']}: {1e6 * best['measured']:.1f} µs a"
        f" step, the best of {found['considered']} settings by the model and of"
        f" {len(found['best'])} that were run"
    )
    tried = [entry for entry in found["learning"] if entry["penalty"] is not None]
    if len(found["learning"]) > 1:
        penalties = [f"{entry['way']}: {entry['penalty']:.2f}" for entry in tried]
        yield f"rows for the same loss, over those of the first: {'; '.join(penalties)}"
    yield (
        f"timed on {found['rows_timed']} of {found['rows']} rows,"
        f" {found['seconds']:.1f} s in all"
    )
    if path:
        yield f"hpcsgd train {path}{_ranks(best)} runs it"


def _ranks(best: dict[str, Any]) -> str:
    return "" if best["ranks"] == 1 else f" --ranks {best['ranks']}"


def _learnt(one: Learnt) -> dict[str, Any]:
    endless = one.penalty == float("inf")
    return {
        "way": str(one.way),
        "batch": one.way.batch,
        "rate": one.way.rate,
        "replicas": one.way.replicas,
        "local_steps": one.way.local,
        "penalty": None if endless else one.penalty,
    }


def _toml(found: TuningResult) -> str:
    """Return the configuration for `train`, with a line on its origin."""
    best = found.chosen
    return (
        f"# hpcsgd tune on {found.ranks} ranks: a step was predicted to take"
        f" {1e6 * best.predicted:.1f} us and took {1e6 * best.measured:.1f}\n"
        f"{found.config().toml()}"
    )


def _machine_toml(found: TuningResult) -> str:
    """Return the machine file: rates of wide and of narrow rows on the chosen grid."""
    groups = [g for g in found.groups if g.grid == found.chosen.grid]
    wide = [g for g in groups if _word(g.recipe) >= WIDE] or groups
    narrow = [g for g in groups if _word(g.recipe) < WIDE] or wide
    directions = wide[0].figures.directions
    kernels = compiled_calls.instructions() or "numpy"
    return measured_hardware(
        machine=wide[0].comparison_machine,
        narrow=narrow[0].comparison_machine.gram,
        network=next((d for d in directions if d.ranks > 1), directions[0]),
        source=f"hpcsgd tune, {found.ranks} ranks, {os.cpu_count()} cores, {kernels}",
    ).toml()


def _word(recipe: str) -> int:
    """Return the bytes of a stored value of the matrix in `recipe`."""
    return int(get_format(make_precision(recipe).matrix).dtype.itemsize)
