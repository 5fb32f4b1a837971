"""How far a conversion has come: speed and time left, as a bar, as lines, or not."""

import re

import numpy as np
import pytest

from hpcsgd.cli import data, main
from hpcsgd.data.hdf5 import StoreLayout
from hpcsgd.data.store import StoreWriter
from hpcsgd.runs.progress import TERMINAL

SAID = r"\d+ %  \d+\.\d MB/s, \d+ s left"


class Clock:
    """A clock that is told what time it is."""

    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    told = Clock()
    monkeypatch.setattr(data.time, "monotonic", told)
    return told


def test_speed_and_time_left(clock):
    meter = data.ConversionMeter()
    meter.begin("reading", 100_000_000)
    assert meter.figures() == "", "nothing was done yet"
    meter.at(0)
    clock.now = 2.0
    meter.at(20_000_000)
    assert meter.figures() == "10.0 MB/s, 8 s left"


def test_what_a_resumed_pass_skips_is_not_its_speed(clock):
    meter = data.ConversionMeter()
    meter.begin("reading", 100_000_000)
    meter.at(60_000_000)
    clock.now = 4.0
    meter.at(80_000_000)
    assert meter.figures() == "5.0 MB/s, 4 s left"


def test_positions_in_rows_are_said_in_bytes(clock):
    meter = data.ConversionMeter()
    meter.file_bytes = 50_000_000
    meter.begin("reading", 1000)
    meter.at(0)
    clock.now = 1.0
    meter.at(250)
    assert meter.figures() == "12.5 MB/s, 3 s left"


def test_a_line_comes_every_so_often(clock, capsys):
    lines = data.ConversionLines(10.0)
    lines.begin("reading", 100_000_000)
    lines.at(0)
    for clock.now, position in ((5.0, 10), (10.0, 20), (15.0, 30), (20.5, 41)):
        lines.at(position * 1_000_000)
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "hpcsgd: reading  20 %  2.0 MB/s, 40 s left",
        "hpcsgd: reading  41 %  2.0 MB/s, 30 s left",
    ]


def test_a_bar_says_the_same(clock, capsys):
    with data.ConversionBar(100) as drawn:
        drawn.begin("reading", 100_000_000)
        drawn.at(0)
        clock.now = 2.0
        drawn.at(20_000_000)
        drawn.bar.progress.refresh()
    shown = capsys.readouterr().err
    assert "10.0 MB/s, 8 s left" in shown and "20%" in shown


@pytest.mark.parametrize(
    "quiet, terminal, seconds, kind",
    [
        (True, "100", 10.0, data.ConversionMeter),
        (False, "100", 10.0, data.ConversionBar),
        (False, "", 10.0, data.ConversionLines),
        (False, "", 0.0, data.ConversionMeter),
    ],
)
def test_what_suits_the_place(quiet, terminal, seconds, kind, monkeypatch):
    monkeypatch.setenv(TERMINAL, terminal)
    with data.make_meter(quiet, seconds) as meter:
        assert type(meter) is kind


def test_a_conversion_says_how_far_it_is(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv(TERMINAL, "")
    text = tmp_path / "rows.svm"
    text.write_text("1 1:2 3:4\n-1 2:3\n" * 100_000)
    command = ["data", "convert", str(text), str(tmp_path / "rows.h5")]
    assert main([*command, "--progress", "0.000001"]) == 0
    assert re.search(SAID, capsys.readouterr().err)


def test_a_check_of_a_file_says_how_far_it_is(tmp_path, monkeypatch, capsys):
    path = tmp_path / "rows.h5"
    with StoreWriter(path, StoreLayout(256)) as writer:
        writer.append(np.ones((4000, 256)), np.zeros(4000))
    meters = []

    def make_meter(quiet):
        meters.append(data.ConversionLines(1e-9))
        return meters[0]

    monkeypatch.setattr(data, "make_meter", make_meter)
    assert main(["data", "verify", str(path)]) == 0
    assert (meters[0].size, meters[0].now) == (4000, 4000)
    assert meters[0].file_bytes == path.stat().st_size
    assert re.search(SAID, capsys.readouterr().err)
