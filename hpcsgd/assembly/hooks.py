"""Which hooks a run has: what touches its state between exchanges."""

from collections.abc import Mapping, Sequence
from typing import Any

from hpcsgd.assembly.proximal import proximal_hooks
from hpcsgd.assembly.variance import snapshot_hooks
from hpcsgd.averaging import TailAverage
from hpcsgd.backends.rounded import RoundedBackend
from hpcsgd.best_held import BestHeld
from hpcsgd.columns import Columns
from hpcsgd.config import RunConfig
from hpcsgd.evaluation import Evaluation
from hpcsgd.products.base import Product, Task
from hpcsgd.products.hooks import Hook, Hooks
from hpcsgd.products.on_device import OnDevice
from hpcsgd.scale_kept import ScaleKept


def make_hooks(
    config: RunConfig,
    columns: Columns,
    task: Task,
    product: Product,
    evaluation: Evaluation,
    epochs: tuple[int, int],
    history: Sequence[Mapping[str, Any]],
) -> Hooks:
    """Those that the configuration asks for, in the order they are called.

    The run has so many `epochs`, of so many exchanges each.
    """
    total, held = columns.total, columns.own
    return Hooks(
        [
            *proximal_hooks(config, total, held, task.columns, task.backend),
            *snapshot_hooks(config, epochs[1], evaluation, columns),
            *_averages(config, task, product, evaluation, epochs[0] * epochs[1]),
            *_best_held(config, task, evaluation, history),
            *_scales(task),
        ]
    )


def _best_held(
    config: RunConfig,
    task: Task,
    evaluation: Evaluation,
    history: Sequence[Mapping[str, Any]],
) -> list[Hook]:
    """The weights that held-out rows liked best, where these end the run."""
    if config.stop.on != "validation":
        return []
    return [BestHeld(evaluation, task.columns, history)]


def _scales(task: Task) -> list[Hook]:
    """What residuals are multiplied by, where that adapts and is each replica's own."""
    backend = task.backend
    scale = backend.loss_scale if isinstance(backend, RoundedBackend) else None
    if scale is None or scale.is_fixed or scale.waits:
        return []
    return [ScaleKept(scale)]


def _averages(
    config: RunConfig,
    task: Task,
    product: Product,
    evaluation: Evaluation,
    planned: int,
) -> list[Hook]:
    """The mean of the last exchanges, where it is wanted."""
    average, period = config.average, evaluation.agreement.period
    if average.kind == "none":
        return []
    every = period if config.grid.replicas > 1 else 1
    if isinstance(product, OnDevice):  # each iterate has to be fetched
        every *= -(-config.run.check_every // every)
    return [
        TailAverage(
            evaluation=evaluation,
            backend=task.backend,
            first=planned - max(round(average.share * planned), 1),
            every=every,
            columns=task.columns,
            own=evaluation.own,
        )
    ]
