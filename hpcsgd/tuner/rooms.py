"""One grid in one recipe: its stage, its figures, its model, its candidates."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from statistics import median

from hpcsgd.comm.base import Communicator
from hpcsgd.config import RunConfig
from hpcsgd.cost import Machine
from hpcsgd.data.readers import RowReader
from hpcsgd.products.choose import WORTH_HIDING, candidates
from hpcsgd.products.clip import may_clip
from hpcsgd.schedule import MOST_ROWS
from hpcsgd.sections import GridConfig
from hpcsgd.tuner.budget import Budget
from hpcsgd.tuner.figures import Figures, measure_figures
from hpcsgd.tuner.learning import Learnt
from hpcsgd.tuner.model import Model
from hpcsgd.tuner.question import Question, probing_steps
from hpcsgd.tuner.sample import FirstRows
from hpcsgd.tuner.stage import Burst, Setting, Stage

BURST, SHORTEST = 0.05, 0.005  # seconds of one
FIRST = 6  # times a burst: a first epoch in which all is kept
OVERHEAD = 2.0  # times a burst, to put up what it is of
ROUNDS = 3  # of bursts for a fit, in turns; the middle one counts
AROUND = ("exchange", "step", "alone", "turn")
WORD = 4  # bytes of a weight that replicas average


@dataclass(frozen=True)
class Candidate:
    """A setting on a grid, and what is expected of it."""

    grid: tuple[int, int]
    recipe: str
    learnt: Learnt
    setting: Setting
    predicted: float  # seconds of a step
    measured: float = 0.0  # the same; 0 = not yet

    @property
    def seconds(self) -> float:
        """Of a step, as well as is known."""
        return self.measured or self.predicted

    @property
    def score(self) -> float:
        """Seconds for as much learning as one row of the first way gives."""
        return self.seconds / self.learnt.way.rows * self.learnt.penalty


@dataclass
class Room:
    """Where bursts of one grid and recipe are made."""

    grid: tuple[int, int]
    recipe: str
    stage: Stage
    figures: Figures
    model: Model
    bursts: list[Burst] = field(default_factory=list)

    @property
    def told(self) -> Machine:
        """What another machine may be compared with.

        Rates are those of each kernel alone: a fit on one width of rows may lay what
        one of them takes upon another. What surrounds kernels shows in a fit alone.
        """
        fitted = self.model.start
        around = {name: getattr(fitted, name) for name in AROUND}
        return replace(self.figures.machine, **around)

    def candidates(self, question: Question, ways: Sequence[Learnt]) -> list[Candidate]:
        """All that is open to a run, by what the model says."""
        return [
            Candidate(self.grid, self.recipe, way, setting, self._step(setting))
            for way in ways
            if way.way.replicas == self.grid[0]
            for setting in self.settings(question, way.way.batch, way.way.local)
        ]

    def settings(
        self, question: Question, batch: int, local: int = 0
    ) -> Iterator[Setting]:
        """Products and steps; with replicas, steps that divide `local`."""
        config, model = question.config, self.model
        job, replicas = replace(model.job, batch=batch), self.grid[0]
        fixed = config.schedule.steps if replicas == 1 or local == 0 else 0
        for one in candidates(config.products.kind, fixed, job, Machine()):
            if replicas > 1 and local % one.steps:
                continue
            clip = config.update.clip != "none"
            over = config.update.clip_over
            if clip and not may_clip(one.product, one.steps, over):
                continue
            period = local // one.steps if replicas > 1 else 0
            plain = Setting(one.product, one.steps, batch, period=period)
            if not self.stage.fits(plain):
                continue
            if not (one.product == "gram" and config.products.look_ahead == "on"):
                yield plain
            if self._may_look_ahead(question, one.product):
                yield replace(plain, look_ahead=True)

    def fit(
        self, question: Question, batches: Sequence[int], budget: Budget, share: float
    ) -> None:
        """Bursts of a few settings, in turns, until the time is spent; then the fit."""
        wanted = self._probes(question, batches)
        each = budget.until(share) / (OVERHEAD * ROUNDS * max(len(wanted), 1))
        each = min(max(each, SHORTEST), BURST)
        self.stage.first_epoch = FIRST * each
        taken: dict[Setting, list[Burst]] = {}
        for _ in range(ROUNDS):
            for setting in wanted:
                if taken and budget.until(share) <= 0.0:
                    break
                taken.setdefault(setting, []).append(self.stage.burst(setting, each))
        found = [self._typical(bursts) for bursts in taken.values()]
        found += [self.stage.first(b.setting) for b in found if b.later]
        self.stage.forget()
        self.bursts += found
        self.model = self.model.fitted(self.bursts)

    def _typical(self, bursts: list[Burst]) -> Burst:
        return replace(bursts[-1], seconds=median(b.seconds for b in bursts))

    def _probes(self, question: Question, batches: Sequence[int]) -> list[Setting]:
        """Of every product that may be chosen: few and many steps, ends of batches."""
        found: dict[str, list[Setting]] = {}
        for batch in sorted({min(batches), max(batches)}):
            every = [replace(s, period=0) for s in self.settings(question, batch)]
            steps = probing_steps(batch, self.stage.rows, MOST_ROWS)
            chosen = [s for s in every if s.steps in steps] or every
            for setting in dict.fromkeys(chosen):
                found.setdefault(setting.kind, []).append(setting)
        # One of each kind before a second of any: time may be short.
        turns = zip_longest(*found.values())
        return [setting for turn in turns for setting in turn if setting is not None]

    def _may_look_ahead(self, question: Question, product: str) -> bool:
        wish = question.config.products.look_ahead
        if product != "gram" or self.model.job.members == 1 or wish == "off":
            return False
        return wish == "on" or self.figures.directions[0].latency >= WORTH_HIDING

    def _step(self, setting: Setting) -> float:
        """By the model, with what replicas say to one another."""
        found = self.model.step(replace(setting, period=0))
        replicas, words = self.figures.directions[1], self.model.job.held
        if replicas.ranks == 1 or not setting.period:
            return found
        size = WORD * words * self.model.job.scores * self.model.job.states
        return found + replicas.seconds(size) / (setting.period * setting.steps)


def open_room(
    question: Question,
    grid: tuple[int, int],
    recipe: str,
    world: Communicator,
    rows: int,
    reading: float,
    budget: Budget,
    share: float,
) -> Room:
    """Load the sample onto the grid and measure what it can do."""
    config, whole = on_grid(question.config, grid, recipe), question.reader()

    def reader(_: Communicator) -> RowReader:
        return FirstRows(whole, rows, config.problem.family)

    stage = Stage(config, world, reader)
    figures = measure_figures(stage, min(question.batches), reading, budget, share)
    job = stage.job(whole.rows, config.schedule.epochs)
    return Room(grid, recipe, stage, figures, Model(job, figures.machine))


def on_grid(config: RunConfig, grid: tuple[int, int], recipe: str) -> RunConfig:
    """The run there, in this recipe."""
    return replace(
        config,
        grid=GridConfig(*grid),
        precision=replace(config.precision, recipe=recipe),
    )
