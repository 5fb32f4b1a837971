"""Where a run begins: its first state, on the host or on its device."""

from typing import Any

import numpy as np

from hpcsgd.agreement.infinity import Infinity
from hpcsgd.assembly.gpu_product import on_gpu
from hpcsgd.columns import Columns
from hpcsgd.config import RunConfig
from hpcsgd.engine import Engine
from hpcsgd.products.base import Product, State, Task
from hpcsgd.products.device_gradient import DeviceGradient
from hpcsgd.products.held import HeldState
from hpcsgd.products.on_device import OnDevice


def first_state(
    config: RunConfig,
    task: Task,
    product: Product,
    columns: Columns,
    engine: Engine,
) -> State:
    """Weights and intercept before any step; whoever keeps more is told of them."""
    whole = columns.own.stop - columns.own.start, task.states * task.columns
    intercept = np.zeros((task.states, task.columns))
    holder = _holder(product)
    kind = HeldState if holder else State
    weights: Any
    if isinstance(engine.agreement, Infinity):
        dtype = task.backend.zeros((0, whole[1])).dtype
        weights = engine.agreement.holds(task, whole[0], dtype)
    else:
        weights = task.backend.zeros(engine.agreement.shape(*whole))
    state = kind(
        weights=weights,
        intercept=intercept if config.problem.intercept else None,
    )
    if holder:
        state.hold(holder.device, holder.scale)  # type: ignore[attr-defined]
    engine.agreement.prepare(state)
    engine.hooks.prepare(state)
    return state


def _holder(product: Product) -> OnDevice | None:
    """Where the weights of the run are between exchanges; None: on the host."""
    found = on_gpu(product)
    if isinstance(found, DeviceGradient) and not found.holds_weights:
        return None
    return found
