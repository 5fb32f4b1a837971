"""Who may make the Gram by warpgroups, and what becomes of tiles that are others."""

import numpy as np
import pytest

from hpcsgd.backends.cuda import gram
from hpcsgd.backends.cuda.exchange import Widths
from hpcsgd.backends.cuda.gram import WgmmaGram, allowed, choose_gram
from hpcsgd.backends.cuda.kernels import each_of, stages_of, wgmma_launch_of
from hpcsgd.backends.cuda.matrix import sent
from hpcsgd.errors import ConfigError
from tests.helpers.kernels.wgmma_choice import COLUMNS, ROWS, STARTS, case

NUMBERS = np.random.default_rng(0).integers(0, ROWS, STARTS[-1])


def products_of(own, way, weights):
    """Tiles and margins."""
    device, columns = own.device, own.widths.margins
    numbers = sent(device, NUMBERS)
    gram = device.empty((own.tiles.words,), np.float32)
    margins = device.empty((own.count, columns), np.float32)
    way.both(numbers, weights and sent(device, weights[columns]), gram, margins)
    return device.fetch(gram), device.fetch(margins)


RNG = np.random.default_rng(3)
WEIGHTS = {k: RNG.normal(size=(COLUMNS, k)).astype(np.float32) for k in (1, 3)}


@pytest.mark.parametrize("element", ["bf16", "fp16"])
@pytest.mark.parametrize("classes", [1, 3])
def test_tiles_and_margins_are_ours(element, classes):
    own = case(element, widths=Widths(classes=classes))
    way = WgmmaGram(own)
    own.device.launched.clear()
    found = [products_of(own, one, WEIGHTS) for one in (own, way)]
    for ours, its in zip(*found, strict=True):
        assert np.abs(ours - its).max() <= 1e-5 * np.abs(ours).max()
    margins = {1: [], 3: ["margins_columns"]}[classes]
    assert own.device.launched == ["gram", *margins, "gram_wgmma", *margins]
    assert np.isnan(products_of(own, way, None)[1]).all()


def test_it_is_taken_when_it_is_asked_for(caplog):
    own = case()
    with caplog.at_level("INFO"):
        found = choose_gram("wgmma", own)
    assert found.name == "wgmma" and type(found.products) is WgmmaGram
    assert "300 rows is computed by kernel wgmma" in caplog.text
    assert allowed("wgmma", True) == allowed("wgmma", False) == "wgmma"


def test_small_tiles_stay_with_us():
    """A last exchange of an epoch may have few rows; one batch has no tiles at all."""
    assert choose_gram("wgmma", case(side=64)).name == "own"
    assert choose_gram("wgmma", case(starts=(0, 90))).name == "own"


def test_what_cannot_have_it_is_refused():
    with pytest.raises(ConfigError, match="matrix in bf16 or fp16.*in fp32.*'auto'"):
        choose_gram("wgmma", case("fp32"))
    own = case()
    own.device.arch = "100"
    with pytest.raises(ConfigError, match="sm_90 .*is of sm_100; use"):
        choose_gram("wgmma", own)


def never(_):
    raise AssertionError("asked")


def test_auto_does_not_ask_what_no_gpu_has_run(monkeypatch):
    """A fault would end the run; nothing of it is launched."""
    monkeypatch.setattr(gram, "WORTH_ASKING", 100)
    own = case()
    found = choose_gram("auto", own)
    assert "wgmma" not in found.seconds and "gram_wgmma" not in own.device.launched


@pytest.fixture
def asked(monkeypatch):
    """`auto` as it will be: on exchanges of some rows wgmma is asked, too."""
    monkeypatch.setitem(gram.ASKS, "auto", ("cublas", "wgmma"))
    monkeypatch.setattr(gram, "WORTH_ASKING", 100)
    monkeypatch.setattr(gram, "WORTH_CHANGING", 2.0)  # one launch as ours


def test_auto_measures_it_where_it_agrees(asked):
    found = choose_gram("auto", case())
    assert found.name == "wgmma" and found.seconds["wgmma"] == 1.0
    other = case()
    other.device.arch = "100"
    assert "wgmma" not in choose_gram("auto", other).seconds
    assert choose_gram("auto", case("fp16")).name == "wgmma"
    assert choose_gram("auto", case("fp32"), never).name == "own"


@pytest.mark.parametrize("wrong", [1.01, np.nan])
def test_tiles_that_are_others_are_left_out(asked, monkeypatch, caplog, wrong):
    """Of one tile alone, on one member alone: all hear of it by the seconds."""
    gram = WgmmaGram.gram

    def off(self, numbers, out):
        gram(self, numbers, out)
        held = self.device.fetch(out)
        held[-128 * 128 :] *= wrong
        self.device.fill(out, held)

    monkeypatch.setattr(WgmmaGram, "gram", off)
    own = case()
    found = choose_gram("auto", own)
    assert found.name != "wgmma" and found.seconds["wgmma"] == float("inf")
    assert "not computed by wgmma, because its results differ" in caplog.text
    with pytest.raises(ConfigError, match="'wgmma' cannot be used.*use gram_kernel"):
        choose_gram("wgmma", case())


def test_members_decide_together(asked):
    """Here it agrees, on another member it does not."""
    add = lambda own: {n: taken + 9e9 * (n == "wgmma") for n, taken in own.items()}  # noqa: E731
    assert choose_gram("auto", case(), add).name != "wgmma"
    lost = lambda own: {n: np.inf if n == "wgmma" else t for n, t in own.items()}  # noqa: E731
    with pytest.raises(ConfigError, match="cannot be used here"):
        choose_gram("wgmma", case(), lost)


def test_a_gpu_without_room_keeps_ours(asked, monkeypatch, caplog):
    own = case()
    monkeypatch.setattr(own.device.layer, "size", 4 * own.tiles.words)
    with caplog.at_level("INFO"):
        found = choose_gram("auto", own)
    assert found.name == "own" and found.seconds["wgmma"] == float("inf")
    assert "not computed by wgmma: the GPU" in caplog.text


def test_values_that_are_none_are_none_in_both(asked):
    own = case()
    rows = own.device.fetch(own.matrix.values)
    rows[5, 7] = 0x7FC0
    own.device.fill(own.matrix.values, rows)
    assert choose_gram("auto", own).name == "wgmma"


@pytest.mark.parametrize("sms", [1, 20, 132])
@pytest.mark.parametrize("cols", [512, 2000, 100_000])
@pytest.mark.parametrize("tiles", [1, 36, 136, 5000])
def test_a_line_is_shared_as_a_whole(tiles, cols, sms):
    stages = stages_of(cols, 2)
    each = each_of(tiles, stages, sms)
    shape = wgmma_launch_of(tiles, 1024, cols, itemsize=2, sms=sms, margins=False)
    assert shape.per_split == each >= 2 and shape.grid == shape.splits <= sms
    assert (shape.splits - 1) * each < tiles * stages <= shape.splits * each
    assert shape.workspace == shape.splits * 2 * 128 * 128
    assert (
        wgmma_launch_of(tiles, 1024, cols, itemsize=2, sms=sms).grid == shape.grid + 128
    )


def test_all_processors_have_as_much_to_do():
    """136 tiles of 125 stages are 1.03 each of 132: nobody waits for a second one."""
    assert each_of(136, 125, 132) == -(-136 * 125 // 132)
    assert each_of(1, 8, 132) >= 8  # no stage is worth a part of its own
    assert wgmma_launch_of(1, 9, 9, itemsize=2, sms=9).shared <= 227 * 1024
