"""What a machine can do, all of it in one value."""

from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

from hpcsgd.calibrate import calibrate
from hpcsgd.comm.base import Communicator
from hpcsgd.cost import Machine
from hpcsgd.data.readers import RowReader, is_sparse, row_words
from hpcsgd.tuner.budget import Budget
from hpcsgd.tuner.kernels import Rate, measure_kernels
from hpcsgd.tuner.network import Direction, measure_direction
from hpcsgd.tuner.stage import Stage

PIECE = 16 * 2**20  # bytes read to see how fast that is
SAMPLE = 192 * 2**20  # bytes of float64 of all ranks: larger than a last-level cache
OF_READING = 0.5  # of the time that is set aside for it


@dataclass(frozen=True)
class Figures:
    """Of one grid, in one precision."""

    machine: Machine  # each constant alone, before any fit
    directions: tuple[Direction, ...]  # members, replicas
    kernels: tuple[Rate, ...]
    reading: float  # bytes a second of a rank, as its file has them

    def as_dict(self) -> dict[str, Any]:
        """For the report."""
        return {
            "machine": self.machine.as_dict(),
            "directions": [d.as_dict() for d in self.directions],
            "kernels": [rate.as_dict() for rate in self.kernels],
            "bytes_read_per_second": self.reading,
        }


def measure_reading(reader: RowReader, world: Communicator) -> float:
    """Bytes of float64 a second of the slowest rank, all ranks reading at once."""
    each = 8 * row_words(reader)
    rows, every = min(max(PIECE // each, 1), reader.rows), slice(0, reader.cols)
    began = perf_counter()
    if is_sparse(reader):
        reader.read_csr(slice(0, rows), every)
    else:
        reader.read(slice(0, rows), every)
    own = rows * each / max(perf_counter() - began, 1e-9)
    return float(min(world.exchange_objects(own)))


def sampled_rows(reader: RowReader, rate: float, seconds: float, least: int) -> int:
    """As many as tell what memory takes, and can be read in about so many seconds."""
    size = min(SAMPLE, int(OF_READING * seconds * rate))
    return min(max(size // (8 * row_words(reader)), least), reader.rows)


def measure_figures(
    stage: Stage, batch: int, reading: float, budget: Budget, share: float
) -> Figures:
    """α and β of both directions, constants one by one, rates over sizes."""
    opened = stage.opened
    task, grid, world = stage.task, opened.grid, stage.world
    network = budget.until(share) / 4
    directions = (
        measure_direction("members", grid.members, network),
        measure_direction("replicas", grid.replicas, network),
    )
    machine = calibrate(task, min(batch, stage.rows), world)
    members = directions[0]
    machine = replace(machine, latency=members.latency, per_byte=members.per_byte)
    kernels = measure_kernels(task, world, budget.until(share) / 2)
    return Figures(machine, directions, tuple(kernels), reading)
