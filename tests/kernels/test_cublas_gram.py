"""The Gram by a library: the same tiles in the same places, and who is to make it."""

import numpy as np
import pytest

from hpcsgd.backends.cuda import gram
from hpcsgd.backends.cuda.exchange import DenseProducts
from hpcsgd.backends.cuda.gram import CublasGram, allowed, choose_gram
from hpcsgd.backends.cuda.matrix import DeviceMatrix, sent
from hpcsgd.errors import ConfigError, MissingPackage
from tests.helpers.kernels.cublas_gram import COLUMNS, ROWS, STARTS, case, products_of


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_tiles_and_margins_are_ours(parts):
    own = case()
    device, matrix = own.device, own.matrix
    m, rng = STARTS[-1], np.random.default_rng(1)
    numbers = sent(device, rng.permutation(ROWS)[:m].astype(np.int64))
    weights = sent(device, rng.normal(size=(COLUMNS, 1)).astype(np.float32))
    words = own.tiles.count * 64 * 64
    grams = [device.empty((words,), np.float32) for _ in range(3)]
    margins = device.empty((m,), np.float32)
    own.gram(numbers, grams[0])
    device.launched.clear()
    first = CublasGram(own)
    cublas = CublasGram(own, parts, first)
    assert cublas._square is first._square and cublas._rows is first._rows
    cublas.both(numbers, weights, grams[1], margins)
    cublas.both(numbers, None, grams[2], None)
    ours, theirs, again = (device.fetch(gram) for gram in grams)
    assert np.abs(ours - theirs).max() <= 1e-4 * np.abs(ours).max()
    np.testing.assert_array_equal(theirs, again)
    held = (device.fetch(matrix.values).astype(np.uint32) << 16).view(np.float32)
    wanted = held[device.fetch(numbers), :COLUMNS] @ device.fetch(weights)[:, 0]
    np.testing.assert_allclose(device.fetch(margins), wanted, atol=1e-4)
    assert device.launched.count("gemm_bf16") == 2 * len(cublas.strips)


def choice(kind, seconds, monkeypatch, add=dict, starts=(0, 600, 1100)):
    """What is chosen where each way takes so long."""
    monkeypatch.setattr(gram, "measured_seconds", lambda *_: dict(seconds))
    return choose_gram(kind, case(starts), add)


TIMES = {"own": 2.0, "cublas in 1": 1.5, "cublas in 2": 1.0, "cublas in 4": 3.0}


def test_the_faster_one_is_taken_and_said(monkeypatch, caplog):
    with caplog.at_level("INFO"):
        found = choice("auto", TIMES, monkeypatch)
    assert found.name == "cublas in 2" and len(found.products.strips) == 2
    assert found.seconds == TIMES
    assert "1100 rows is computed by kernel cublas in 2" in caplog.text
    slower = {**TIMES, "cublas in 2": 1.99}
    slower["cublas in 1"] = 1.98
    found = choice("auto", slower, monkeypatch)
    assert found.name == "own" and type(found.products) is DenseProducts
    assert choice("cublas", slower, monkeypatch).name == "cublas in 1"


def test_members_decide_together(monkeypatch):
    """This one is faster with cuBLAS, the others are not, and all do the same."""
    others = {"own": 1.0, "cublas in 1": 9.0, "cublas in 2": 9.0, "cublas in 4": 9.0}
    add = lambda own: {name: own[name] + others[name] for name in own}  # noqa: E731
    assert choice("auto", TIMES, monkeypatch, add).name == "own"


def test_nobody_is_asked_where_nothing_is_open(monkeypatch):
    def never(_):
        raise AssertionError("asked")

    assert choice("own", TIMES, monkeypatch, never).name == "own"
    assert choice("auto", TIMES, monkeypatch, never, STARTS).name == "own"
    assert choice("cublas", TIMES, monkeypatch, never, (0, 40)).name == "own"
    assert allowed("auto", True) == "own" and allowed("auto", False) == "auto"
    with pytest.raises(ConfigError, match="without --reproducible"):
        allowed("cublas", True)
    own, starts = case(), (0, 600, 1100)
    held = sent(own.device, np.zeros((ROWS, 40), np.float32))
    exact = DeviceMatrix(held, "fp32", ROWS, COLUMNS)
    exact = products_of(own.device, exact, starts)
    with pytest.raises(ConfigError, match="use --precision c"):
        choose_gram("cublas", exact)
    assert choose_gram("auto", exact, never).name == "own"


def test_they_are_measured_on_rows_of_the_matrix():
    """On the fake a way takes as long as it has launches: ours is one."""
    found = choose_gram("auto", case((0, 600, 1100)))
    assert found.name == "own"
    wanted = {"own": 1.0, "cublas in 1": 3.0, "cublas in 2": 4.0, "cublas in 4": 6.0}
    assert found.seconds == wanted


def test_a_gpu_without_room_keeps_ours(monkeypatch, caplog):
    """All members hear of it by the seconds that it would take there."""
    own = case((0, 600, 1100))
    monkeypatch.setattr(own.device.layer, "size", 8 * own.tiles.words)
    said = []
    with caplog.at_level("INFO"):
        found = choose_gram(
            "auto", own, lambda seconds: said.append(seconds) or seconds
        )
    assert found.name == "own" and found.products is own
    assert [name for name, taken in said[0].items() if taken < np.inf] == ["own"]
    assert "not computed by cuBLAS: the GPU" in caplog.text
    with pytest.raises(ConfigError, match="has no room for"):
        choose_gram("cublas", own)


def test_a_machine_without_cublas_keeps_ours(monkeypatch):
    def missing(*_):
        raise MissingPackage("CuPy finds no cuBLAS")

    own = case()
    monkeypatch.setattr(gram, "WORTH_ASKING", 100)
    monkeypatch.setattr(own.device, "gemm_bf16", missing, raising=False)
    found = choose_gram("auto", own)
    assert found.name == "own" and found.seconds["cublas in 1"] == float("inf")
