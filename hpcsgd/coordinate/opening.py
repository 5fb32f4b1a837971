"""From a configuration to a form on the data of this rank, on all ranks together."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from hpcsgd.assembly.proximal import penalty_of
from hpcsgd.build import Opened, open_all
from hpcsgd.comm.base import Communicator
from hpcsgd.comm.grid import let_go
from hpcsgd.config import RunConfig
from hpcsgd.coordinate.checks import form_of, grid_of
from hpcsgd.coordinate.dual import Dual
from hpcsgd.coordinate.exchange import Exchanges
from hpcsgd.coordinate.form import Form
from hpcsgd.coordinate.newton import Newton
from hpcsgd.coordinate.primal import Primal
from hpcsgd.data.readers import RowReader
from hpcsgd.data.sampling import plan_groups
from hpcsgd.formats import get_format
from hpcsgd.objective import Objective
from hpcsgd.precision import Precision
from hpcsgd.products.choose import CACHE_BUDGET, ProductsConfig
from hpcsgd.sections import GridConfig, UpdateConfig
from hpcsgd.timing import Clock


@dataclass(frozen=True)
class Ready:
    """A form that can be descended on."""

    config: RunConfig  # with its grid
    opened: Opened
    form: Form
    exchanges: Exchanges
    groups: list[tuple[int, ...]]  # block sizes of every exchange of an epoch
    clock: Clock

    @property
    def is_cached(self) -> bool:
        """Whether G stays."""
        return self.exchanges.keeps

    def close(self) -> None:
        """Let go of the groups, with all ranks; the world stays."""
        self.opened.grid.close()


def open_form(
    config: RunConfig,
    world: Communicator,
    reader: Callable[[Communicator], RowReader],
    setup: Clock,
) -> Ready:
    """Everything that can be wrong is found here."""
    world.together(lambda: form_of(config, world.size))
    config = replace(config, grid=GridConfig(*grid_of(config, world.size)))
    opened = open_all(_plain(config), world, reader, setup)
    with let_go(opened.grid.close):
        ready = _prepare(config, opened)
    setup.lap("build")
    return ready


def _plain(config: RunConfig) -> RunConfig:
    """What opening has to know: nothing of the update, one step at a time."""
    schedule = replace(config.schedule, steps=1)
    return replace(
        config, update=UpdateConfig(), products=ProductsConfig(), schedule=schedule
    )


def _prepare(config: RunConfig, opened: Opened) -> Ready:
    words, grid, loaded = opened.words, opened.grid, opened.loaded
    shard, clock = loaded.shard, Clock()
    penalty = grid.world.together(
        lambda: penalty_of(config.problem, shard.total_columns).of(shard.columns)
    )
    objective = Objective(grid, words.family, loaded.judged, penalty, loaded.read_exact)
    form = _make(config, objective, grid.world.size)
    schedule = config.schedule
    groups = plan_groups(form.items.count, schedule.batch, schedule.steps)
    wire = words.precision.gram_wire
    keeps = _keeps(config, words.precision, form.items.count, form.name)
    exchanges = Exchanges(form.members, wire, keeps, clock)
    return Ready(config, opened, form, exchanges, groups, clock)


def _make(config: RunConfig, objective: Objective, ranks: int) -> Form:
    intercept = config.problem.intercept
    kind = form_of(config, ranks)
    if kind == "dual":
        return Dual(objective)
    return (Primal if kind == "primal" else Newton)(objective, intercept)


def _keeps(config: RunConfig, precision: Precision, items: int, form: str) -> bool:
    """Whether G of every group is kept: where it comes again and there is room."""
    kind, sampling, schedule = config.products.kind, config.sampling, config.schedule
    if kind != "auto":
        return kind == "cached"
    m = min(schedule.batch * schedule.steps, items)
    word = get_format(precision.gram_wire).carrier.itemsize
    fits = items * m * max(word, 8) <= CACHE_BUDGET
    again = sampling.mode == "shuffle-once" and schedule.epochs > 1
    return fits and (again or form == "newton")
