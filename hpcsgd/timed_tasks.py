"""Tasks as they are timed: of one member alone, on few rows and columns."""

import copy
from dataclasses import replace

import numpy as np

from hpcsgd.comm.serial import SerialCommunicator
from hpcsgd.data.shard import Shard, take
from hpcsgd.products.base import (
    Task,
)
from hpcsgd.timing import Clock

SOME = 4096  # rows of what is as good as no data


def task_alone(task: Task) -> Task:
    """The same task for one member with one column of weights and no momentum."""
    return Task(
        shard=task.shard,
        backend=task.backend,
        members=SerialCommunicator(),
        family=task.family,
        precision=task.precision,
        columns=task.columns,
        states=1,
        probe=np.ones(1),
        clock=Clock(),
        models=task.models,
    )


def of_columns(task: Task, width: int) -> Task:
    """The task on its first columns, with their exponents where they have some."""
    shard, scaling = narrowed(task.shard, width), task.backend.scaling
    if scaling is None or shard is task.shard:
        return replace(task, shard=shard)
    own, backend = scaling.exponents[scaling.own][:width], copy.copy(task.backend)
    backend.scaling = replace(scaling, exponents=own, own=slice(0, len(own)))
    return replace(task, shard=shard, backend=backend)


def narrowed(shard: Shard, width: int) -> Shard:
    """Some rows with the first columns alone; sparse rows have few values.

    Copied: kernels take rows that lie as they would in a shard of so few columns.
    """
    if shard.is_sparse or width >= shard.width:
        return shard
    few, some = slice(0, min(width, shard.width)), slice(0, min(SOME, shard.height))
    rows = np.arange(some.stop)
    return replace(
        shard,
        matrix=np.ascontiguousarray(shard.matrix[some, few]),  # type: ignore[index]
        targets=shard.targets[some],
        weights=take(shard.weights, rows),
        offsets=take(shard.offsets, rows),
        columns=few,
        parts=(few,),
    )
