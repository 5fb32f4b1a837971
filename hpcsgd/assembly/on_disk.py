"""A run whose weights are on disk: where they lie, and who works with them."""

from pathlib import Path

import numpy as np

from hpcsgd.agreement.infinity_files import FOLDER, Place, tile_height
from hpcsgd.agreement.kinds import is_on_disk
from hpcsgd.config import RunConfig
from hpcsgd.data.unheld import Unheld
from hpcsgd.formats import get_format
from hpcsgd.loading import Loaded
from hpcsgd.precision import Precision
from hpcsgd.products.base import Task
from hpcsgd.updates import Rule

Wrong = tuple[bool, str]  # whether it is, and the sentence


def place_of(config: RunConfig, loaded: Loaded, task: Task, rule: Rule) -> Place | None:
    """The folder, and the tile that the budget allows; None where nothing is there."""
    asked, shard = config.agreement, loaded.shard
    if not is_on_disk(asked.kind):
        return None
    rows = 0 if shard.is_sparse else config.schedule.batch * asked.accumulate
    if isinstance(shard.matrix, Unheld):
        rows *= 2  # as they are stored, and widened
    height = tile_height(
        budget=asked.tile,
        widest=max(part.stop - part.start for part in shard.parts),
        columns=task.columns,
        words=(task.states + len(rule.kept)) * task.columns,
        rows=rows,
        itemsize=np.dtype(task.precision.working).itemsize,
        replicas=max(config.grid.replicas, 1),
    )
    return Place(
        folder=Path(asked.store)
        if asked.store
        else Path(config.run.out or "") / FOLDER,
        columns=shard.total_columns,
        parts=shard.parts,
        height=height,
        direct=asked.direct,
        sync=asked.sync,
        is_of_a_run=not asked.store,
    )


def wrong_on_disk(config: RunConfig, precision: Precision) -> tuple[Wrong, ...]:
    """What would hold all weights in memory, or lose them, with its remedy."""
    return (*_wrong_around(config), *_wrong_steps(config, precision))


def _wrong_steps(config: RunConfig, precision: Precision) -> tuple[Wrong, ...]:
    """Of the step itself."""
    update = config.update
    shapes = update.clip != "none" or update.centre != "none"
    return (
        (
            shapes or update.normalise or update.noise > 0.0,
            "steps a tile before it knows the gradient of the next, and [update] clip,"
            " centre, normalise and noise want all of it; leave them out",
        ),
        (
            update.bits != 32,
            "keeps states as they are and [update] bits = 8 packs them; leave bits out",
        ),
        (
            get_format(precision.residual).wants_scale,
            f"cannot take back a step, as residuals in {precision.residual} ask for;"
            " use --set precision.residual=fp32",
        ),
    )


def _wrong_around(config: RunConfig) -> tuple[Wrong, ...]:
    """Of what else a run may do."""
    run, stop = config.run, config.stop.on
    return (
        (
            not (config.agreement.store or run.out),
            "keeps its states on disk and no folder is given; add --out DIR, or set"
            " agreement.store",
        ),
        (
            config.products.kind not in ("auto", "direct"),
            f"has no weights in memory and [products] kind = {config.products.kind!r}"
            " wants them whole; use --products direct",
        ),
        (
            config.agreement.codec != "identity" or config.codec.feedback == "on",
            "sums gradients as they are; leave agreement.codec and codec.feedback out",
        ),
        (
            config.agreement.hierarchical != "off",
            "splits every tile over all replicas and knows no leaders of nodes; leave"
            " agreement.hierarchical out",
        ),
        (
            config.polish.kind != "none",
            "holds a tile of the weights and [polish] would hold all of them; set"
            " polish.kind = 'none'",
        ),
        (
            config.average.kind != "none",
            "holds a tile of the weights and [average] would hold a mean of all; set"
            " average.kind = 'none'",
        ),
        (
            run.evaluate != "loss" or stop in ("gradient", "gap", "validation"),
            "takes the loss tile by tile, and no gradient of all rows; set run.evaluate"
            " = 'loss', and stop.on = 'none' or 'loss'",
        ),
        (
            run.on_failure == "shrink",
            "has on its disks what no other rank has; set run.on_failure to its default"
            " and go on with --resume auto",
        ),
        (
            bool(run.emulate_members),
            "would fill a disk for members that are not there; leave --emulate-members"
            " out",
        ),
    )
