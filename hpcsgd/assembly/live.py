"""The live objects of a run, put together."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hpcsgd.agreement.gradient import Gradient
from hpcsgd.agreement.infinity import Infinity
from hpcsgd.agreement.kinds import batches_together, takes_gradients
from hpcsgd.assembly.agreed import in_exchanges, make_gradient, of_feed
from hpcsgd.assembly.casting import Place, cast
from hpcsgd.assembly.choice import choose_run
from hpcsgd.assembly.engine_parts import Earlier, Live, Parts, Vocabulary
from hpcsgd.assembly.feed import Feed, make_feed, steps_in
from hpcsgd.assembly.first_state import first_state
from hpcsgd.assembly.gpu_product import make_gradient_on_gpu, make_on_gpu
from hpcsgd.assembly.many import many_models, rates_of
from hpcsgd.assembly.motor import make_engine
from hpcsgd.assembly.proximal import settle_steps
from hpcsgd.backends.base import Backend
from hpcsgd.backends.device import Device
from hpcsgd.callbacks.base import Callback
from hpcsgd.columns import Columns
from hpcsgd.comm.grid import Grid
from hpcsgd.config import RunConfig
from hpcsgd.data.sampling import plan_groups
from hpcsgd.data.stream import Streamed
from hpcsgd.errors import ConfigError
from hpcsgd.families.grouped import for_models
from hpcsgd.formats import get_format
from hpcsgd.loading import Loaded
from hpcsgd.products import GATHERS, RECURS, get_product
from hpcsgd.products.base import Product, Task
from hpcsgd.products.clip import Clip, make_clip
from hpcsgd.products.gap import GapMonitor
from hpcsgd.products.lookahead import LookAheadGram
from hpcsgd.products.plan import Planner
from hpcsgd.products.tiled import Tiled
from hpcsgd.products.watcher import UNWATCHED, Unwatched
from hpcsgd.timing import Clock


def assemble(
    config: RunConfig,
    words: Vocabulary,
    grid: Grid,
    loaded: Loaded,
    callbacks: list[Callback],
    earlier: Earlier | None = None,
    device: Device | None = None,
    undo: list[Callable[[], None]] | None = None,
) -> Live:
    """Everything from what is named and what was loaded.

    `earlier` is what a run that goes on had chosen, `device` the GPU that it is for;
    what closes the groups that were opened on the way goes into `undo`.
    """
    config = settle_steps(config)
    task = _task(config, words, grid, loaded)
    chosen = choose_run(config, words, task, loaded, earlier)
    schedule = replace(config.schedule, steps=chosen.steps)
    config = replace(config, schedule=schedule)
    name, look_ahead = chosen.product, chosen.look_ahead
    feed = _feed(of_feed(config), words, task, grid, loaded)
    # A look holds residuals against their scores, not against two of them.
    watched = UNWATCHED if task.anchored else _monitor(config, name, feed)
    task = replace(task, monitor=watched)
    if takes_gradients(words.agreement):
        gradient = make_gradient(config, words, grid, loaded, task, feed, device)
        task = replace(task, gradient=gradient)
        if device is None:
            product = _sharing(config, name, task, gradient)
        else:
            one = make_gradient_on_gpu(config, task, feed, grid, device, gradient)
            product = in_exchanges(one, gradient, batches_together(config.agreement))
    elif device is None:
        product = _product(name, look_ahead, task)
    else:
        product = make_on_gpu(config, name, look_ahead, task, feed, grid, device)
    columns = Columns(grid, loaded.shard.parts, product.holds_all_columns)
    parts = Parts(
        *(config, words, grid, loaded, task, product, name, look_ahead, feed, columns),
        undo=[] if undo is None else undo,
    )
    capture, engine = make_engine(parts, callbacks)
    return Live(
        config=config,
        grid=grid,
        loaded=loaded,
        task=task,
        product=product,
        chosen=chosen,
        feed=feed,
        columns=columns,
        capture=capture,
        engine=engine,
        state=first_state(config, task, product, columns, engine),
    )


def _task(config: RunConfig, words: Vocabulary, grid: Grid, loaded: Loaded) -> Task:
    shard, backend = loaded.shard, words.backend
    backend = backend.for_sparse() if shard.is_sparse else backend
    models = many_models(config, loaded.columns)
    columns = loaded.columns if models is None else models.columns
    family: Any = words.family
    if models is not None:
        family = for_models(words.family, len(models), loaded.columns)
    seed = (config.sampling.seed, grid.replica)
    place = Place(seed, shard.columns, shard.total_columns)
    cast(backend, config.precision, place)
    return Task(
        shard=shard,
        backend=backend,
        members=grid.members,
        family=family,
        precision=words.precision,
        columns=columns,
        states=words.update.states,
        probe=words.update.probe(),
        clock=Clock(),
        clip=_clip(config, backend),
        anchored=words.update.is_anchored,
        models=models,
    )


def _clip(config: RunConfig, backend: Backend) -> Clip | None:
    update = config.update
    clip = make_clip(update.clip, update.limit, update.clip_over)
    if takes_gradients(config.agreement.kind):
        return None  # that of all replicas together is clipped, where they agree
    weights = get_format(backend.precision.weights)
    if clip is not None and not weights.is_wide:
        raise ConfigError(
            f"[update] clip = {update.clip!r} is not offered for weights in"
            f" {weights.name}; use --set precision.weights=fp32"
        )
    return clip


def _monitor(config: RunConfig, name: str, feed: Feed) -> Unwatched:
    """Who looks at the recurrence, where there is one and it is that of all ranks."""
    run = config.run
    if name not in RECURS or not run.gap_every or run.emulate_members:
        return UNWATCHED
    return GapMonitor(run.gap_every, feed.exchanges_per_epoch, config.sampling.seed)


def _sharing(config: RunConfig, name: str, task: Task, gradient: Gradient) -> Product:
    """For gradients that replicas agree on."""
    if isinstance(gradient, Infinity):
        return Tiled(task, gradient)
    one = _product(name, False, task)
    return in_exchanges(one, gradient, batches_together(config.agreement))


def _product(name: str, look_ahead: bool, task: Task) -> Product:
    if look_ahead:
        return LookAheadGram(task)
    product: Product
    if name in GATHERS:
        widths = tuple(part.stop - part.start for part in task.shard.parts)
        product = get_product(name)(task, widths)
    else:
        product = get_product(name)(task)
    return product


def _feed(
    config: RunConfig, words: Vocabulary, task: Task, grid: Grid, loaded: Loaded
) -> Feed:
    schedule, rows = config.schedule, loaded.shard.total_rows
    own = plan_groups(loaded.shard.height, schedule.batch, schedule.steps)
    epochs = schedule.epochs
    rates = rates_of(config.rate, task.models, epochs * steps_in(own), epochs)
    l2, backend = config.problem.l2, words.backend
    planner = Planner(words.update, l2, rates, backend, task.models)
    matrix = loaded.shard.matrix
    follow = matrix.follow if isinstance(matrix, Streamed) else None
    return make_feed(config, planner, rows, grid.replicas.size, grid.replica, follow)
