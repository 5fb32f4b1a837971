"""What SVRG takes besides its steps, and what it is not offered with."""

from hpcsgd.columns import Columns
from hpcsgd.config import RunConfig
from hpcsgd.errors import ConfigError
from hpcsgd.evaluation import Evaluation
from hpcsgd.products.hooks import Hook
from hpcsgd.snapshot import Snapshots

KIND = "svrg"


def check_svrg(config: RunConfig) -> None:
    """Refuse what would not be SVRG, before any data is read."""
    if config.update.kind != KIND:
        return
    refused = (
        (config.run.device != "cpu", "its steps are not on GPUs; use --device cpu"),
        (
            config.update.clip != "none",
            "its gradients are differences, which clipping would bias; set"
            " update.clip = 'none'",
        ),
        (
            config.sweep.is_many,
            "a sweep has one snapshot for each model; train them one by one",
        ),
        (
            bool(config.run.emulate_members),
            "a snapshot needs the rows of all members, and --emulate-members has those"
            " of one; use --update sgd",
        ),
    )
    for is_asked, sentence in refused:
        if is_asked:
            raise ConfigError(f"--update svrg: {sentence}")


def snapshot_hooks(
    config: RunConfig,
    exchanges_per_epoch: int,
    evaluation: Evaluation,
    columns: Columns,
) -> list[Hook]:
    """The hook that takes snapshots; none for other updates."""
    if config.update.kind != KIND:
        return []
    every = config.update.snapshot
    return [Snapshots(every, exchanges_per_epoch, evaluation, columns)]
