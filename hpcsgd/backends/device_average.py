"""What a replica gives to an average, and takes from it, on its device."""

from typing import Any

import numpy as np

from hpcsgd.backends.device import Device
from hpcsgd.backends.kernel_table import build_of
from hpcsgd.backends.launch_average import average


class DeviceAverage:
    """One buffer for the weights in fp32 and, behind them, the intercept in fp64."""

    def __init__(
        self, device: Device, weights: Any, intercept: Any, scale: float = 1.0
    ) -> None:
        """`scale` is what weights on the device are divided by."""
        self.device = device
        self._scale = np.float32(scale)
        self._held = np.int64(weights.size)
        self._more = np.int32(0 if intercept is None else intercept.size)
        words = int(self._held) + int(self._more)
        self.buffer = device.empty((words,), np.float32)
        self._shape = average(int(self._held), int(self._more))

    def portion(self, weights: Any, intercept: Any, share: float) -> Any:
        """The buffer ← both, times the share, rounded as the host rounds them."""
        own = weights, self._held, self._scale, intercept, self._more
        self._launch("portion", (*own, np.float32(share), self.buffer))
        return self.buffer

    def become(self, weights: Any, intercept: Any) -> None:
        """Both ← the buffer."""
        sizes = self._held, self._scale, self._more
        self._launch("become", (self.buffer, *sizes, weights, intercept))

    def _launch(self, kernel: str, arguments: Any) -> None:
        launch = self.device.kernel(build_of(kernel, "fp32", self.device.arch))
        launch(self._shape.grid, self._shape.block, arguments)
