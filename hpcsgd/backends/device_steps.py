"""The s steps of an exchange on a device, from summed products to factors of rows."""

from typing import Any

import numpy as np

from hpcsgd.backends import launch_recurrence
from hpcsgd.backends.device import Device
from hpcsgd.backends.device_buffers import Coefficients, Sampled
from hpcsgd.backends.device_products import Tiles, Widths
from hpcsgd.backends.kernel_table import build_of
from hpcsgd.families.base import Family, exp_bound
from hpcsgd.schedule import Blocks


class Recurrence:
    """Residuals of all steps, and what the update multiplies rows with."""

    def __init__(
        self,
        device: Device,
        blocks: Blocks,
        family: Family,
        tiles: Tiles,
        widths: Widths,
    ) -> None:
        self.device, self.blocks, self.tiles, self.widths = (
            *(device, blocks),
            *(tiles, widths),
        )
        m = blocks.rows
        self.residuals = device.empty((m, widths.classes), np.float32)
        self.factors = device.empty((m, widths.weights), np.float32)
        if widths.classes > 1:
            self._plan_softmax()
        else:
            self._plan_one_score(family)

    def take_steps(
        self,
        gram: Any,
        margins: Any,
        sampled: Sampled,
        intercept: Any,
        coefficients: Coefficients,
    ) -> None:
        """One launch; the intercept moves on, too."""
        plan, widths, tiles = self.launch, self.widths, self.tiles
        arguments = (
            *(gram, tiles.places, tiles.across, tiles.shift, margins),
            *(sampled.targets, sampled.weights, sampled.offsets, intercept),
            *(coefficients.starts, np.int32(len(self.blocks.sizes))),
            *(np.int32(widths.states), np.int32(widths.read), *self._classes),
            *(*coefficients.arrays, *self._setting),
            *(self.residuals, self.factors, *self._pitch),
        )
        build = build_of(self._kernel, "fp32", self.device.arch)
        kernel = self.device.kernel(build)
        kernel(plan.grid, plan.block, arguments, plan.shared, cluster=plan.grid)

    def _plan_one_score(self, family: Family) -> None:
        """One block or a cluster of them, and how much they hold."""
        arch, blocks = self.device.arch, self.blocks
        cluster = launch_recurrence.cluster_for(blocks.rows, arch)
        largest = max(blocks.sizes)
        self._kernel = launch_recurrence.kernel_for(family.name, cluster)
        self.launch = launch_recurrence.recurrence_launch(
            blocks.rows, largest, self.widths.states, cluster, arch
        )
        self._classes: tuple[Any, ...] = ()
        bound = getattr(family, "delta", exp_bound(np.float32))
        self._setting: tuple[Any, ...] = (np.float32(bound),)
        self._pitch: tuple[Any, ...] = (np.int32(launch_recurrence.pitch_of(largest)),)

    def _plan_softmax(self) -> None:
        """One block, whatever the number of classes."""
        widths = self.widths
        self._kernel = "softmax"
        self.launch = launch_recurrence.softmax_launch(self.blocks.rows, widths.states)
        self._classes, self._setting = (np.int32(widths.classes),), ()
        self._pitch = ()
