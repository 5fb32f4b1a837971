"""Plain SGD on a device: s steps in one launch where one member has all columns."""

from hpcsgd.backends.device import Device
from hpcsgd.products.base import Group, State, Task
from hpcsgd.products.device_alone import Alone
from hpcsgd.products.held import HeldState
from hpcsgd.products.on_device import DeviceDirect


class DeviceWalk(DeviceDirect):
    """Over several members as `DeviceDirect`: a message lies between two steps."""

    def __init__(self, task: Task, device: Device) -> None:
        super().__init__(task, device)
        self.alone = Alone(task, device, self.matrix, self.order)

    def advance(self, state: State, group: Group, upcoming: Group | None) -> State:
        """No synchronisation, or one per step."""
        task = self.task
        if task.members.size > 1:
            return super().advance(state, group, upcoming)
        assert isinstance(state, HeldState)
        self.order.seek(*group.place, group.blocks.rows)
        weights, intercept = state.on_device("weights"), state.on_device("intercept")
        residuals = self.alone.advance(group, weights, intercept)
        task.clock.lap("steps")
        state.written(residuals)
        return state
