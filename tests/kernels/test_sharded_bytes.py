"""ZeRO on devices: the bytes that cross, between ranks and between host and device."""

import pytest

from hpcsgd.studies.folder import expected_traffic
from tests.helpers.harness import make_problem, train_on
from tests.helpers.kernels.copies import copies_of_steps
from tests.helpers.kernels.gradient_runs import crossed, shared
from tests.helpers.kernels.slices import ADAM, STAGES, zero


@pytest.mark.cases(2)
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
    assert own == 7
    assert crossed(result) == (3 * (offset + shaped), 3 * shaped + residuals)


@pytest.mark.parametrize("stage", STAGES)
def test_no_copy_is_as_large_as_a_slice(devices, monkeypatch, stage):
    """By the copies there were, not by what was said: w and states go up once."""
    problem = make_problem("logistic", n=48, d=101)
    sizes = copies_of_steps(monkeypatch)
    sections = zero(stage, agreement={"bucket": 4.0}, **ADAM)
    train_on(2, shared(problem, 2, **sections), problem)
    large = sorted(size for size in sizes if size >= 4 * 50)
    own = [4 * 50, 4 * 51]
    first = [4 * 101] * 2 if stage < 3 else own
    assert large == sorted([*own * 2, *first])
