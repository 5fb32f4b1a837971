"""ZeRO-Offload with a GPU: it holds w and sums gradients, the host keeps all states.

Replicas sum on their devices, each its slices of every tile; the own slices come down
to page-locked memory, and what the host has stepped goes up and to all replicas, on
their devices, too. D/R words a step cross between host and device, each way.
"""

from typing import Any

import numpy as np

from hpcsgd.agreement.cuts import Cut, Cuts
from hpcsgd.agreement.line import PURPOSE
from hpcsgd.agreement.means import Means
from hpcsgd.agreement.offload import Offload
from hpcsgd.agreement.offload_link import PinnedLink
from hpcsgd.agreement.room import Room
from hpcsgd.agreement.scatter import Scatter
from hpcsgd.agreement.there import Arriving
from hpcsgd.backends.device import Device
from hpcsgd.comm.base import Communicator
from hpcsgd.comm.grid import Grid
from hpcsgd.comm.on_device import OnDevice
from hpcsgd.comm.pending import Pending
from hpcsgd.products.base import State
from hpcsgd.products.held import HeldState


class ScatterThere(Scatter):
    """A gradient that a device adds up, whole, and its tiles, which replicas sum."""

    keeps_slices = False

    def __init__(
        self,
        device: Device,
        replicas: Communicator,
        cuts: Cuts,
        room: Room,
        sums: bool,
    ) -> None:
        super().__init__(replicas, cuts, room, whole=False, sums=sums)
        self.device = device
        self.there = device.zeros((cuts.columns * cuts.width,), np.float32)
        self.up = self.down = 0  # bytes beside those of slices
        self._begun: list[Any] = []

    @property
    def takes_residuals(self) -> bool:
        """Whether it sums them, for an intercept; else it counts them."""
        return self.tail.words.size > 1

    @property
    def gradient(self) -> Any:
        """All of it, where batches are added up."""
        return self.there

    def arriving(self, complete: bool) -> Arriving:
        """What the agreement takes for rows: nothing comes down before it is summed."""
        return Arriving(self, False)

    def begin(self) -> None:
        """Nothing summed yet, on either side."""
        super().begin()
        self._begun.clear()
        self.device.clear(self.there)

    def tile(self, number: int, cut: Cut) -> Any:
        """Where the device has added it up."""
        width = self.cuts.width
        first, last = (end * width for end in (cut.columns.start, cut.columns.stop))
        return self.there[first:last].reshape(-1, width)

    def send(self, number: int, cut: Cut, tile: Any) -> None:
        """And what is to be waited for before the host may look at it."""
        super().send(number, cut, tile)
        if isinstance(self.replicas, OnDevice):
            self._begun.append(self.replicas.newest)

    def _wait(self, pending: Pending) -> Any:
        """And the host, too: collectives that fail are heard of here."""
        own = pending.wait()
        if isinstance(self.replicas, OnDevice):
            self.replicas.reach(self._begun.pop(0))
        return own


class OffloadThere(Offload):
    """The slices of one replica, between its host and its device."""

    takes_at_once = False  # the device holds a gradient whole

    def __init__(self, grid: Grid, share: float, means: Means, device: Device) -> None:
        super().__init__(grid, share, means)
        self.device = device
        self.link: PinnedLink = PinnedLink(device.layer, device.stream)

    @property
    def sums(self) -> Any:
        """A whole gradient, of which slices come down."""
        return self.scatter

    def prepare(self, state: State) -> None:
        """And room for slices on their way up, on both sides."""
        super().prepare(state)
        shape = self.cuts.height, self.columns
        self.rising = self.link.room(shape, self.master.dtype)
        if self.replicas.size > 1:
            self._own_there = self.device.empty(shape, np.float32)

    def _make_scatter(self, whole: bool, sums: bool) -> ScatterThere:
        given = self.device, self.replicas, self.cuts, self.room
        return ScatterThere(*given, sums)

    def _send_up(self, state: State, cut: Cut) -> None:
        """From a copy: the host may step on while it travels.

        Weights are divided by what rows are stored times. The copy is free again when
        the next gradient is there: that came down behind what goes up here.
        """
        assert isinstance(state, HeldState)
        rising, weights = self.rising[cut.place], state.on_device("weights")
        np.divide(self.master[cut.place], state.scale, out=rising)
        tile = weights[cut.columns]
        if self.replicas.size == 1:
            self.link.up(rising, tile)
        else:
            own = self._own_there[cut.place]
            self.link.up(rising, own)
            self.joining.start(own, cut, tile, PURPOSE)
        state.wrote("weights")

    def settle(self, state: State, exchanges: int) -> None:
        """No gradient has come down since the last slices went up: wait for these."""
        if self.late is not None:
            self.device.settle()
        super().settle(state, exchanges)

    def facts(self) -> dict[str, Any]:
        """For the report of a run."""
        scatter, link = self.scatter, self.link
        assert isinstance(scatter, ScatterThere)
        up, down = self.replicas.copied  # to be carried, where hosts do that
        return super().facts() | {
            "device_bytes_up": link.up_bytes + scatter.up + up,
            "device_bytes_down": link.down_bytes + scatter.down + down,
        }
