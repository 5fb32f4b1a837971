"""Rates of the kernels over rows and columns: where caches end, calls are short."""

from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

import numpy as np

from hpcsgd.calibrate import fastest_of, time_gram, time_passes, value_bytes
from hpcsgd.comm.base import Communicator
from hpcsgd.products.base import Task
from hpcsgd.schedule import uniform_blocks
from hpcsgd.timed_tasks import of_columns, task_alone

ROWS = (64, 256, 1024)  # of an exchange, in blocks of BLOCK
BLOCK = 32
WIDTHS = (1, 4, 16)  # parts of the columns held
SIZES = (2**16, 2**19, 2**22, 2**25)  # bytes of rows that a pass goes over


@dataclass(frozen=True)
class Rate:
    """What was measured of one kernel at one size."""

    kernel: str  # gram: multiply-adds a second; read, again: bytes a second
    rows: int
    columns: int
    rate: float

    def as_dict(self) -> dict[str, Any]:
        """For the report."""
        return asdict(self)


def measure_kernels(task: Task, world: Communicator, seconds: float) -> list[Rate]:
    """As many of them as fit, the slowest rank's; called by all ranks together."""
    task, began, found = task_alone(task), perf_counter(), []
    # Ranks with a row or a column less follow the same plan, as far as they can.
    for kernel, rows, columns in world.exchange_objects(_plan(task))[0]:
        spent = max(world.exchange_objects(perf_counter() - began))
        if spent > seconds:
            break
        own = _measure(task, kernel, rows, columns)
        for i, name in enumerate(("gram",) if kernel == "gram" else ("read", "again")):
            rates = [said[i] for said in world.exchange_objects(own)]
            found.append(Rate(name, rows, columns, min(rates)))
    return found


def _plan(task: Task) -> list[tuple[str, int, int]]:
    """(kernel, rows, columns), the most telling first, nothing that is not there."""
    height, width = task.shard.height, task.shard.width
    widths = [width] if task.shard.is_sparse else _widths(width)
    grams = [("gram", m, w) for w in widths for m in ROWS if m <= height]
    each = width * value_bytes(task.shard)
    rows = sorted({min(max(int(size / each), 1), height) for size in SIZES})
    return [("pass", m, width) for m in rows] + grams


def _widths(width: int) -> list[int]:
    return sorted({max(width // part, 1) for part in WIDTHS}, reverse=True)


def _measure(task: Task, kernel: str, rows: int, columns: int) -> tuple[float, ...]:
    """Rates of this rank, of rows that come in no order."""
    columns = min(columns, task.shard.width)
    task = of_columns(task, columns)
    order = np.random.default_rng(0).permutation(task.shard.height)
    rows = min(rows, task.shard.height)

    def some(number: int) -> Any:
        return np.roll(order, -number * rows)[:rows]

    if kernel == "gram":
        blocks = uniform_blocks(BLOCK, max(rows // BLOCK, 1))
        (each,) = fastest_of(lambda i: time_gram(task, some(i), blocks))
        return (max(blocks.gram_words, 1) * columns / each,)
    size = rows * columns * value_bytes(task.shard)
    read, again = fastest_of(lambda i: time_passes(task, some(i)))
    return size / read, size / again
