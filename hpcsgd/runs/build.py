"""Assembling a run: its live objects, made from its plan, its ranks and its rows.

This is the only place that names the concrete classes of a run. Errors are detected
here, on all ranks together, before the first exchange.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcsgd.agreements.gradient import Gradient
from hpcsgd.backends.exchange import HostExchanges
from hpcsgd.backends.task import Monitor, State, Task
from hpcsgd.comm.communicator import Communicator
from hpcsgd.comm.grid import close_on_agreed_error
from hpcsgd.comm.ledger import Clock
from hpcsgd.config import RunConfig
from hpcsgd.data.readers import RowReader
from hpcsgd.data.sampling import plan_groups
from hpcsgd.products import get_product
from hpcsgd.products.base import Planner, Product, product_facts
from hpcsgd.products.direct import TiledProduct
from hpcsgd.products.monitor import GapMonitor
from hpcsgd.products.observers import Observers
from hpcsgd.runs.agreements import make_gradient, wrap_in_exchanges
from hpcsgd.runs.assembled_run import AssembledRun, Parts
from hpcsgd.runs.feed import Feed, make_feed, rates_of, steps_in, steps_together
from hpcsgd.runs.gpu import make_gradient_on_gpu, make_on_gpu, on_gpu
from hpcsgd.runs.make_training import make_training
from hpcsgd.runs.opened_run import OpenedRun, make_task, open_run
from hpcsgd.runs.settle import EarlierChoice, Plan, find_facts, settle
from hpcsgd.solvers.callbacks import Callback
from hpcsgd.solvers.evaluation import Columns

if TYPE_CHECKING:  # a run without a GPU needs none of it
    from hpcsgd.backends.cuda.sequences import CudaExchanges

# Where a run begins: its first state, on the host or on its device.


def first_state(
    config: RunConfig,
    task: Task,
    product: Product,
    columns: Columns,
    agreement: Any,
    observers: Observers,
) -> State:
    """Return the state before any step, with the arrays of agreement and observers."""
    whole = columns.own.stop - columns.own.start, task.states * task.columns
    intercept = np.zeros((task.states, task.columns))
    holder = _holder(product)
    weights: Any
    if config.agreement.on_disk:
        dtype = task.backend.zeros((0, whole[1])).dtype
        weights = agreement.open_weights(task, whole[0], dtype)
    else:
        weights = task.backend.zeros(agreement.shape(*whole))
    state = State(
        weights=weights,
        intercept=intercept if config.problem.intercept else None,
    )
    if holder:
        from hpcsgd.backends.cuda.weights import DeviceCopies

        state.place(DeviceCopies(holder.device, weights, state.intercept, holder.scale))
    agreement.prepare(state)
    observers.prepare(state)
    return state


def _holder(product: Product) -> "CudaExchanges | None":
    """Return the exchanges of `product` if their GPU stores the weights, else None."""
    exchanges = on_gpu(product)
    return exchanges if exchanges is not None and exchanges.holds_weights else None


# The live objects of a run, put together.


def assemble(
    plan: Plan,
    opened: OpenedRun,
    callbacks: list[Callback],
    undo: list[Callable[[], None]],
) -> AssembledRun:
    """Return the live run of `plan` on the opened ranks and rows.

    Functions that close the communicators which are opened here are appended to `undo`.
    """
    config = plan.config
    device = opened.device
    name = config.products.kind
    look_ahead = config.products.look_ahead == "on"
    task = make_task(config, opened)
    feed = _feed(config, opened, task)
    # The monitor compares residuals with one score each; anchored steps have two.
    watched = None if task.anchored else _monitor(config, name, feed)
    if watched is not None:
        task = replace(task, monitor=watched)
    if config.agreement.shares_gradients:
        gradient = make_gradient(config, opened, task, feed, name)
        task = replace(task, gradient=gradient)
        if device is None:
            product = _sharing(config, name, task, gradient)
        else:
            gpu_product = make_gradient_on_gpu(
                task, feed, opened.grid, device, gradient
            )
            product = wrap_in_exchanges(
                gpu_product, gradient, config.agreement.batches_together
            )
    elif device is None:
        product = _product(name, look_ahead, task)
    else:
        product = make_on_gpu(config, name, look_ahead, task, feed, opened.grid, device)
    columns = Columns(opened.grid, opened.loaded.shard.parts, product.holds_all_columns)
    parts = Parts(plan, opened, task, product, feed, columns, undo)
    capture, solver, training = make_training(parts, callbacks)
    return AssembledRun(
        plan=plan,
        opened=opened,
        task=task,
        solver=solver,
        feed=feed,
        columns=columns,
        capture=capture,
        training=training,
        state=first_state(
            config, task, product, columns, solver.agreement, training.loop.observers
        ),
    )


def _monitor(config: RunConfig, name: str, feed: Feed) -> Monitor | None:
    """Return the monitor of the recurrence, or None.

    It is None if the settings or the product need no monitor, and for emulated ranks.
    """
    run = config.run
    is_monitored = product_facts(name).is_monitored and not run.emulate_members
    if not is_monitored or not run.gap_every:
        return None
    return GapMonitor(run.gap_every, feed.exchanges_per_epoch, config.sampling.seed)


def _sharing(config: RunConfig, name: str, task: Task, gradient: Gradient) -> Product:
    """Return the product, on the host, of a run whose replicas share gradients."""
    if config.agreement.on_disk:
        reducer: Any = gradient
        return TiledProduct(task, reducer)
    product = _product(name, False, task)
    return wrap_in_exchanges(product, gradient, config.agreement.batches_together)


def _product(name: str, look_ahead: bool, task: Task) -> Product:
    kind: Callable[..., Product] = get_product(name, look_ahead)
    return kind(task, HostExchanges(task))


def _feed(config: RunConfig, opened: OpenedRun, task: Task) -> Feed:
    schedule = config.schedule
    shard = opened.loaded.shard
    groups = plan_groups(shard.height, schedule.batch, steps_together(config))
    epochs = schedule.epochs
    rates = rates_of(config.rate, task.models, epochs * steps_in(groups), epochs)
    planner = Planner(
        opened.words.update, config.problem.l2, rates, opened.words.backend, task.models
    )
    return make_feed(config, planner, shard, opened.grid)


def build(
    config: RunConfig,
    world: Communicator,
    reader: Callable[[Communicator], RowReader],
    callbacks: list[Callback],
    setup: Clock,
    earlier: EarlierChoice | None = None,
) -> AssembledRun:
    """Open a run, settle its plan and assemble it. Collective.

    `earlier` is the choice of the run that is resumed, or None. Errors are raised on
    all ranks alike.
    """
    opened = open_run(config, world, reader, setup)
    with close_on_agreed_error(opened.grid.close):
        live = assemble_run(config, opened, callbacks, earlier)
    setup.lap("build")
    return live


def assemble_run(
    config: RunConfig,
    opened: OpenedRun,
    callbacks: list[Callback],
    earlier: EarlierChoice | None = None,
) -> AssembledRun:
    """Settle the plan of an opened run, and assemble the run. Collective.

    `earlier` is the choice of the run that is resumed, or None.
    """
    undo: list[Callable[[], None]] = []

    def close() -> None:
        for action in undo:
            action()

    def work() -> AssembledRun:
        plan = settle(config, find_facts(config, opened, earlier))
        return assemble(plan, opened, callbacks, undo)

    with close_on_agreed_error(close):
        return opened.world.together(work)
