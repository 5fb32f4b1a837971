"""From a configuration to a form on the data of this rank, on all ranks together."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

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
from hpcsgd.coordinate.nonempty import Nonempty, find_nonempty
from hpcsgd.coordinate.primal import Primal
from hpcsgd.csr import Csr
from hpcsgd.data.readers import RowReader
from hpcsgd.data.sampling import plan_groups
from hpcsgd.data.shard import Shard
from hpcsgd.formats import get_format
from hpcsgd.objective import BLOCK_ROWS, BLOCK_VALUES, Objective
from hpcsgd.polish.centring import Centers, centre, find_centers
from hpcsgd.polish.rows import open_rows
from hpcsgd.precision import Precision
from hpcsgd.products.choose import CACHE_BUDGET, ProductsConfig
from hpcsgd.sections import GridConfig, UpdateConfig
from hpcsgd.timing import Clock


@dataclass(frozen=True)
class Ready:
    """A form that can be descended on."""

    config: RunConfig  # with its grid
    opened: Opened
    nonempty: Nonempty
    centers: Centers | None  # what the form's columns lack; None: nothing
    form: Form
    exchanges: Exchanges
    clock: Clock

    @property
    def is_cached(self) -> bool:
        """Whether G stays."""
        return self.exchanges.keeps

    @property
    def exchanges_planned(self) -> int:
        """Exchanges of an epoch, where it takes all items."""
        form, schedule = self.form, self.config.schedule
        if form.is_alone:
            return form.sweeps
        return form.sweeps * len(
            plan_groups(form.count, schedule.batch, schedule.steps)
        )

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
    nonempty = find_nonempty(shard, penalty, grid.replicas)
    judged = nonempty.shard(loaded.judged, grid.members)
    objective = Objective(
        grid=grid,
        family=words.family,
        shard=judged,
        penalty=nonempty.penalty(penalty),
        read=nonempty.reader(loaded, judged),
        block=_block(judged),
    )
    centers = None
    if config.problem.intercept and not judged.is_sparse:
        centers = _centers(objective, loaded.columns)
    if centers is not None:
        values = centers.centred(objective.read(slice(0, judged.height)))
        centred = centre(objective, centers)
        objective = replace(centred, shard=replace(judged, matrix=values))
    form = _make(config, objective, grid.world.size, loaded.columns)
    wire = words.precision.gram_wire
    keeps = _keeps(config, words.precision, form.count, form.name)
    exchanges = Exchanges(form.members, wire, keeps, clock)
    return Ready(config, opened, nonempty, centers, form, exchanges, clock)


def _centers(objective: Objective, classes: int) -> Centers | None:
    """Return what to subtract from columns far from zero. Collective, one pass."""
    rows = open_rows(objective, classes)
    shares = np.broadcast_to(rows.share, (rows.height, classes))
    return find_centers(rows, rows.moments(shares))


def _block(shard: Shard) -> int:
    """Rows looked at together by what they store; 0: by how wide they are.

    Of members each would choose another number, and they sum scores block by block.
    """
    if not isinstance(shard.matrix, Csr) or len(shard.parts) > 1:
        return 0
    most = BLOCK_VALUES * shard.height // max(shard.matrix.nnz, 1)
    return max(min(most, BLOCK_ROWS), 64)


def _make(config: RunConfig, objective: Objective, ranks: int, classes: int) -> Form:
    intercept = config.problem.intercept
    kind = form_of(config, ranks)
    if kind == "dual":
        return Dual(objective)
    if kind == "primal":
        return Primal(objective, intercept)
    return Newton(objective, intercept, classes, config.schedule.batch == 1)


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
