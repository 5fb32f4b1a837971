"""What CuPy is asked for where launches are recorded; CuPy is made up."""

from types import SimpleNamespace
from weakref import ref

import pytest

from hpcsgd.backends.cuda.device import CudaDevice

RELAXED = 2


class Stream:
    """cupy.cuda.Stream, as far as a capture goes."""

    def __init__(self):
        self.modes, self.ended, self.made = [], 0, None

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None

    def begin_capture(self, mode):
        self.modes.append(mode)

    def end_capture(self):
        self.ended += 1
        if self.made == "broken":
            raise RuntimeError("the capture was invalidated")
        graph = Recorded()
        self.made = ref(graph)
        return graph


class Recorded:
    """cupy.cuda.Graph."""

    launched = 0

    def launch(self, stream):
        Recorded.launched += 1


@pytest.fixture
def device():
    device = object.__new__(CudaDevice)
    runtime = SimpleNamespace(streamCaptureModeRelaxed=RELAXED)
    device.cupy = SimpleNamespace(cuda=SimpleNamespace(runtime=runtime))
    device.stream = Stream()
    device.faults = SimpleNamespace(as_package_error=lambda error: error)
    return device


def test_a_graph_is_launched_until_it_is_released(device):
    said, before = [], Recorded.launched
    graph = device.capture(lambda: said.append("recorded"))
    assert said == ["recorded"] and device.stream.modes == [RELAXED]
    graph()
    graph()
    assert Recorded.launched == before + 2
    graph.release()
    assert device.stream.made() is None  # CuPy has let go of it
    with pytest.raises(AssertionError, match="after its release"):
        graph()


@pytest.mark.parametrize("made", [None, "broken"])
def test_what_fails_while_it_is_recorded_is_said_and_the_capture_ended(device, made):
    device.stream.made = made

    def fail():
        raise ValueError("the first error")

    with pytest.raises(ValueError, match="the first error"):
        device.capture(fail)
    assert device.stream.ended == 1
