"""ZeRO on devices: where tiles begin, and how they travel."""

import threading

import numpy as np

from hpcsgd.agreements.zero import ColumnAssembler, Cuts, Scatter
from hpcsgd.backends.cuda.gradients import DeviceRowViews
from hpcsgd.backends.cuda.weights import DeviceMemory
from hpcsgd.products.direct import Direct
from tests.helpers.fake_cuda import FakeLayer
from tests.helpers.harness import make_problem, train_on
from tests.helpers.kernels.gradient_runs import shared
from tests.helpers.kernels.slices import zero


def test_a_tile_travels_while_the_next_is_computed(devices, monkeypatch):
    """Two under way at most; and the host waits for no GPU, but at the end."""
    order, inside, waited = [], set(), []
    advance, waits = Direct.advance, FakeLayer.synchronize

    def noted(owner, name, what):
        plain = getattr(owner, name)

        def action(self, *given, **named):
            if threading.get_ident() == next(iter(inside), 0):
                order.append(what)
            return plain(self, *given, **named)

        monkeypatch.setattr(owner, name, action)

    def between(self, *given):
        one = threading.get_ident()
        if self.task.gradient.replicas.rank:
            return advance(self, *given)
        inside.add(one)
        state = advance(self, *given)
        inside.remove(one)
        return state

    def waiting(self, stream):
        waited.append(threading.get_ident() in inside)
        waits(self, stream)

    noted(DeviceRowViews, "add_gradient", "compute")
    noted(Scatter, "send", "send")
    noted(Scatter, "wait_for", "wait")
    noted(DeviceMemory, "step", "step")
    noted(ColumnAssembler, "start", "spread")
    monkeypatch.setattr(Direct, "advance", between)
    monkeypatch.setattr(FakeLayer, "synchronize", waiting)
    problem = make_problem("logistic", n=8, d=13)
    sections = zero(2, problem={"intercept": False})
    train_on(2, shared(problem, 2, **sections), problem)
    tiles = ["compute", "send", "compute", "send", "wait", "compute", "send"]
    ends = ["step", "spread", "wait", "step", "spread", "wait", "step", "spread"]
    assert order == [*tiles, *ends] and waited and not any(waited)


def test_tiles_begin_with_whole_chunks():
    """Whatever is asked for; slices begin anywhere, and together they are all."""
    for columns, tiles, alignment in ((13, 3, 4), (7, 4, 8), (45, 3, 8), (100, 7, 16)):
        seen = np.zeros(columns, dtype=int)
        for replica in range(3):
            cuts = Cuts(columns, 1, tiles, 3, replica, alignment=alignment)
            assert len(cuts) == min(tiles, -(-columns // alignment))
            for cut in cuts:
                assert cut.columns.start % alignment == 0 and cut.height
                seen[cut.own] += 1
        assert (seen == 1).all()
