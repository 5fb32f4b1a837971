"""One exchange on a device and its messages, in as few launches as there can be."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hpcsgd.backends.device import Device
from hpcsgd.backends.recorded import Recorded
from hpcsgd.products.device_sums import DeviceSums


@dataclass(frozen=True)
class Travelling:
    """What members sum: an array of the device, and the format it travels in."""

    name: str
    array: Any
    form: str


class Cycle:
    """`before`, the sums, `after`: one graph where a graph may hold sums, else two."""

    def __init__(
        self,
        device: Device,
        sums: DeviceSums,
        before: Callable[[], None],
        messages: Sequence[Travelling],
        after: Callable[[], None],
        once: bool = False,
    ) -> None:
        self.before, self.after, self.messages = before, after, messages
        self.sums, self.once = sums, once  # once: it does not come again
        if sums.captures(*(message.form for message in messages)):
            self._whole: Recorded | None = Recorded(sums, self.by_hand, self._record)
        else:
            self._whole = None
            self._parts = Recorded(device, before), Recorded(device, after)

    def run(self) -> None:
        """Once more."""
        if self.once:
            self.by_hand()
        elif self._whole is not None:
            arrays = [message.array for message in self.messages]
            self._whole.run(lambda graph: self.sums.replay(graph, arrays))
        else:
            first, last = self._parts
            first.run()
            self.send()
            last.run()

    def by_hand(self) -> None:
        """Launch by launch."""
        self.before()
        self.send()
        self.after()

    def send(self) -> None:
        """The sums, each waited for in the order of the device."""
        for message in self.messages:
            self.sums.sum(message.name, message.array, message.form)

    def _record(self) -> None:
        self.before()
        for message in self.messages:
            self.sums.queue(message.array)
        self.after()
