"""Which hooks a run has: what touches its state between exchanges."""

from hpcsgd.assembly.proximal import proximal_hooks
from hpcsgd.assembly.variance import snapshot_hooks
from hpcsgd.columns import Columns
from hpcsgd.config import RunConfig
from hpcsgd.evaluation import Evaluation
from hpcsgd.products.base import Task
from hpcsgd.products.hooks import Hooks


def make_hooks(
    config: RunConfig,
    columns: Columns,
    task: Task,
    evaluation: Evaluation,
    exchanges_per_epoch: int,
) -> Hooks:
    """Those that the configuration asks for, in the order they are called."""
    total, held = columns.total, columns.own
    return Hooks(
        [
            *proximal_hooks(config, total, held, task.columns, task.backend),
            *snapshot_hooks(config, exchanges_per_epoch, evaluation, columns),
        ]
    )
