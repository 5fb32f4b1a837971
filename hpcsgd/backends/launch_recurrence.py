"""How the recurrence of an exchange is launched on a GPU, and what it is given.

Shapes and coefficients alone, with no GPU in sight: a run and the tests ask here.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.backends.kernel_table import CLUSTER, number_of
from hpcsgd.errors import ConfigError
from hpcsgd.updates.unroll import Unrolled

Array = NDArray[Any]

MOST_ROWS = 8192  # of an exchange
MOST_STATES = 4  # of an update
CLUSTER_ROWS = 1024  # from so many rows on, a cluster is worth its barriers
THREADS = {1: 512, CLUSTER: 256}  # of a block, by the blocks of a cluster
FRONT, BUFFERS = 64, 3  # bytes of the intercept, residuals that are kept apart
# What a block may have of shared memory, in KiB.
SHARED = {70: 96, 75: 64, 80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99}


@dataclass(frozen=True)
class Launch:
    """The shape of one launch."""

    grid: int  # blocks, all of one cluster
    block: int  # threads of each
    shared: int  # bytes of each


@dataclass(frozen=True)
class Coefficients:
    """Those of an exchange, as the kernels read them: float32, in this order.

    They stay in device memory: whoever writes others there needs no other launch.
    """

    lead: Array  # (s, states)
    couple: Array  # entry j (j - 1) / 2 + i
    free: Array  # (s, states, states), of the intercept
    push: Array  # (s, states)
    probe: Array  # (states,)
    gain: Array  # (s, states)

    @property
    def arrays(self) -> tuple[Array, ...]:
        """All of them, in the order of the kernels' parameters."""
        return (self.lead, self.couple, self.free, self.push, self.probe, self.gain)


def coefficients(unrolled: Unrolled) -> Coefficients:
    """What `unrolled` says, in float32; couple has one entry too many for s = 1."""
    couple = np.concatenate([*unrolled.couple, np.zeros(1)])
    own = (unrolled.lead, couple, unrolled.free, unrolled.push, unrolled.probe)
    kept = (np.ascontiguousarray(each, np.float32) for each in (*own, unrolled.gain))
    return Coefficients(*kept)


def cluster_for(rows: int, arch: str) -> int:
    """How many blocks take an exchange of so many rows: one, or a cluster."""
    return CLUSTER if rows >= CLUSTER_ROWS and number_of(arch) >= 90 else 1


def kernel_for(family: str, cluster: int) -> str:
    """Its name in the table of kernels."""
    return f"recurrence-{family}" if cluster == 1 else f"recurrence-cluster-{family}"


def pitch_of(batch: int) -> int:
    """Words of a buffer: a batch may begin at any of four columns."""
    return (batch + 6) // 4 * 4


def recurrence_launch(
    rows: int, batch: int, states: int, cluster: int, arch: str
) -> Launch:
    """For at most `rows` rows in batches of at most `batch`."""
    _check(rows, states)
    own = -(-rows // cluster)
    shared = FRONT + 4 * BUFFERS * pitch_of(batch) + (4 + 2) * own
    most = shared_of(arch)
    if shared > most:
        raise ConfigError(
            f"[schedule] an exchange of {rows} rows in batches of {batch} needs"
            f" {shared} bytes of shared memory of {most} on sm_{arch};"
            " lower [schedule] batch or steps, or use --device cpu"
        )
    return Launch(cluster, THREADS[cluster], shared)


def softmax_launch(rows: int, states: int) -> Launch:
    """For at most `rows` rows; classes take no shared memory."""
    _check(rows, states)
    return Launch(1, 1024, 2 * rows)


def shared_of(arch: str) -> int:
    """Bytes that a block may have; of a GPU not listed, as the nearest older one."""
    known = [number for number in SHARED if number <= number_of(arch)]
    return 1024 * SHARED[max(known, default=min(SHARED))]


def _check(rows: int, states: int) -> None:
    if rows > MOST_ROWS:
        raise ConfigError(
            f"[schedule] an exchange of {rows} rows: a GPU takes {MOST_ROWS} at most;"
            " lower [schedule] batch or steps, or use --device cpu"
        )
    if not 1 <= states <= MOST_STATES:
        raise ConfigError(
            f"an update of {states} states: a GPU takes 1 to {MOST_STATES};"
            " use --device cpu"
        )
