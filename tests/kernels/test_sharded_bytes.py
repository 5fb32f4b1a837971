"""ZeRO on devices: the bytes that cross, between ranks and between host and device."""

import pytest

from hpcsgd.looks import Looks
from hpcsgd.products.device_gradient import DeviceGradient
from hpcsgd.study.expected import expected_traffic
from tests.fake_cuda import FakeLayer
from tests.harness import make_problem, train_on
from tests.kernels.slices import ADAM, STAGES, zero
from tests.kernels.test_gradient_runs import crossed, shared


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("columns, replicas", [(7, 3), (14, 4)])
def test_every_word_is_counted(devices, stage, columns, replicas):
    """D words of gradient, the own slices of w once, and [Σr | count], as hosts do."""
    problem = make_problem("softmax", n=5 * replicas, d=columns)
    result = train_on(replicas, shared(problem, replicas, **zero(stage)), problem)
    entry, said = result.ledger["agreement"], result.report["agreement"]
    width, tiles = problem.classes, said["buckets"]
    own = said["own_columns"] * width
    words = (columns * width + own + width + 1) * result.exchanges
    assert said["own_columns"] == -(-columns // replicas)  # replica 0 has an odd one
    assert tiles == -(-columns // 4)  # of a chunk each, which buckets are less than
    assert (entry["words"], entry["bytes"]) == (words, 4 * words)
    assert entry["calls"] == result.exchanges * (2 * tiles + 1)
    for figure, value in expected_traffic(result.as_dict()).items():
        purposes = ("products", "agreement")
        assert sum(result.ledger[p][figure] for p in purposes) == value, figure


@pytest.mark.parametrize("intercept, clipped", [(True, False), (False, True)])
@pytest.mark.parametrize("stage", STAGES)
def test_bytes_between_host_and_device_are_those_of_the_formula(
    devices, stage, intercept, clipped
):
    """Replica 0 of two has 9 rows, in three exchanges, and seven columns of 13."""
    problem = make_problem("softmax", n=17, d=13)
    sections = zero(stage, problem={"intercept": intercept}, **ADAM)
    if clipped:
        sections["update"] = {"kind": "adam", "clip": "norm", "clip_at": 0.05}
    result = train_on(2, shared(problem, 2, **sections), problem)
    classes, own = problem.classes, result.report["agreement"]["own_columns"]
    shaped, offset = 4 * own * classes * clipped, 8 * classes * intercept
    residuals = 4 * 9 * classes * intercept  # whose sum the host makes
    assert own == 7 - (7 * 2 > 13 and own == 6)
    assert crossed(result) == (3 * (offset + shaped), 3 * shaped + residuals)


@pytest.mark.parametrize("stage", STAGES)
def test_no_copy_is_as_large_as_a_slice(devices, monkeypatch, stage):
    """By the copies there were, not by what was said: w and states go up once."""
    problem, sizes, inside = make_problem("logistic", n=48, d=101), [], set()
    advance = DeviceGradient.advance

    def between(self, *given):
        inside.add(self.device.layer)
        state = advance(self, *given)
        inside.remove(self.device.layer)
        return state

    def counted(name):
        plain = getattr(FakeLayer, name)

        def copied(self, one, other, stream):
            if self in inside:
                sizes.append(one.nbytes)
            plain(self, one, other, stream)

        monkeypatch.setattr(FakeLayer, name, copied)

    monkeypatch.setattr(Looks, "is_due", lambda self, number: False)  # but at the end
    counted("to_host")
    counted("to_device")
    monkeypatch.setattr(DeviceGradient, "advance", between)
    sections = zero(stage, agreement={"bucket": 4.0}, **ADAM)
    train_on(2, shared(problem, 2, **sections), problem)
    large = sorted(size for size in sizes if size >= 4 * 50)
    own = [4 * 50, 4 * 51]
    first = [4 * 101] * 2 if stage < 3 else own
    assert large == sorted([*own * 2, *first])
