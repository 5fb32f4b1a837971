"""The Gram of long exchanges by products of warpgroups, which GPUs of sm_90 have.

The tiles of our plain kernel, in its places, and margins in the same launch.
"""

from typing import Any

import numpy as np

from hpcsgd.backends import launch_wgmma
from hpcsgd.backends.device_products import DenseProducts
from hpcsgd.backends.kernel_table import serves
from hpcsgd.backends.launch_gram import LARGE, GramLaunch
from hpcsgd.backends.other_gram import OtherGram
from hpcsgd.errors import ConfigError

KERNEL = "gram-wgmma"
ELEMENTS = ("bf16", "fp16")  # of a matrix that it can multiply


class WgmmaGram(OtherGram):
    """Products of rows, of which `own` makes all but the Gram and what is beside it."""

    def __init__(self, own: DenseProducts) -> None:
        super().__init__(own)
        plan = self._plan(margins=False)
        self._workspace = self.device.empty((plan.workspace,), np.float32)
        self._tickets = self.device.zeros((own.tiles.count,), np.uint32)

    def gram(self, numbers: Any, out: Any) -> None:
        """Tiles of Y Yᵀ alone."""
        self._gram(numbers, out, None, None)

    def both(self, numbers: Any, weights: Any, gram: Any, margins: Any) -> None:
        """One launch, unless there are many margins a row."""
        if weights is not None and self.own.widths.margins == 1:
            self._gram(numbers, gram, weights, margins)
        else:
            super().both(numbers, weights, gram, margins)

    def _gram(self, numbers: Any, out: Any, weights: Any, margins: Any) -> None:
        matrix, tiles = self.own.matrix, self.own.tiles
        plan = self._plan(margins is not None)
        rows = matrix.values, matrix.stride, numbers
        sizes = np.int32(self.count), np.int32(matrix.width), tiles.numbers
        line = np.int32(tiles.count), np.int32(plan.splits), np.int32(plan.per_split)
        room = out, margins, self._workspace, self._tickets
        arguments = (*rows, *sizes, *line, weights, *room)
        shape = plan.grid, plan.block
        self._launch(KERNEL, matrix.element, shape, arguments, shared=plan.shared)

    def _plan(self, margins: bool) -> GramLaunch:
        matrix = self.own.matrix
        return launch_wgmma.launch_of(
            *(self.own.tiles.count, self.count, matrix.width),
            itemsize=matrix.values.dtype.itemsize,
            sms=self.device.multiprocessors,
            margins=margins,
        )


def wgmma_bytes(tiles: int, rows: int, width: int, sms: int) -> int:
    """What it works in: parts of sums, and who came last to each."""
    plan = launch_wgmma.launch_of(tiles, rows, width, itemsize=2, sms=sms)
    return 4 * (plan.workspace + plan.tickets)


def check_wgmma(own: DenseProducts) -> None:
    """Refuse a matrix or a GPU for which there is none."""
    element, arch = own.matrix.element, own.device.arch
    asked = "[products] gram_kernel = 'wgmma' needs"
    if element not in ELEMENTS:
        raise ConfigError(
            f"{asked} a matrix in {' or '.join(ELEMENTS)}, and this is in {element};"
            " use --precision c, or gram_kernel = 'auto'"
        )
    if not serves(KERNEL, element, arch):
        raise ConfigError(
            f"{asked} a GPU of sm_90 (H100, H200), and this is of sm_{arch}; use"
            " gram_kernel = 'auto'"
        )


def has_wgmma(own: DenseProducts) -> bool:
    """Whether it can make these tiles: large ones, and some."""
    tiles, matrix = own.tiles, own.matrix
    is_large = tiles.side == LARGE and tiles.count > 0
    return is_large and serves(KERNEL, matrix.element, own.device.arch)
