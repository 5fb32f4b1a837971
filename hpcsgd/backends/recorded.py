"""What a device is asked for again and again becomes one launch."""

from collections.abc import Callable
from typing import Protocol

from hpcsgd.backends.device import Graph


def _launch(graph: Graph) -> None:
    graph()


class Captures(Protocol):
    """A device, or what has to know of the graphs that it makes."""

    def capture(self, action: Callable[[], None]) -> Graph:
        """What repeats the launches of `action`, which has run once, as one launch."""


class Recorded:
    """An action that runs as it is once, is recorded, and from then on is repeated.

    The first time compiles and allocates; arrays stay where they are from then on, only
    what is in them changes. `recording` is the action where what happens besides
    launches has to be left out.
    """

    def __init__(
        self,
        recorder: Captures,
        action: Callable[[], None],
        recording: Callable[[], None] | None = None,
    ) -> None:
        self._recorder = recorder
        self._action, self._recording = action, recording or action
        self._is_warm = False
        self._graph: Graph | None = None

    def run(self, launch: Callable[[Graph], None] = _launch) -> None:
        """Once more; `launch` is given what was recorded."""
        if self._is_warm and self._graph is None:
            self._graph = self._recorder.capture(self._recording)
        if self._graph is None:
            self._action()
            self._is_warm = True
        else:
            launch(self._graph)
