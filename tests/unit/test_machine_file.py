"""Figures of machines in a file: written once, corrected by runs, never in the way."""

import json
import logging

import pytest

from hpcsgd.errors import ConfigError
from hpcsgd.products.cost import Machine
from hpcsgd.runs.choose import MOST, MachineFile, MeasuredFigures


@pytest.fixture
def file(tmp_path):
    return MachineFile(tmp_path / "machine.json")


def test_what_is_written_is_read(file):
    assert file.read("one") is None
    one, two = (
        MeasuredFigures(Machine(latency=3.0)),
        MeasuredFigures(Machine(), {"gram": 1.5}),
    )
    file.write("one", one)
    file.write("two", two)
    assert file.read("one") == one and file.read("two") == two
    assert file.read("three") is None


def test_corrections_go_half_way_and_not_too_far(file):
    file.write("one", MeasuredFigures(Machine()))
    file.correct("one", "gram", 2.0)
    assert file.read("one").corrections == {"gram": 1.5}
    for _ in range(9):
        file.correct("one", "gram", 3.5)
        file.correct("one", "direct", 0.3)
    assert file.read("one").corrections == {"gram": MOST, "direct": 1 / MOST}
    file.correct("unknown", "gram", 2.0)
    assert file.read("unknown") is None


@pytest.mark.parametrize("ratio", [MOST * 1.01, 0.99 / MOST, float("inf")])
def test_figures_that_are_off_by_more_than_noise_are_forgotten(file, ratio):
    file.write("one", MeasuredFigures(Machine()))
    file.write("two", MeasuredFigures(Machine()))
    file.correct("one", "gram", ratio)
    assert file.read("one") is not None, "a short run is no proof"
    file.correct("one", "gram", ratio, sure=True)
    assert file.read("one") is None and file.read("two") is not None


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"one": 1}', '{"one": {"machine": {}, "corrections": {}}}']
)
def test_what_is_no_such_file_is_refused(file, text):
    file.path.write_text(text)
    with pytest.raises(ConfigError, match="remove it") as raised:
        file.read("one")
    assert "\n" not in str(raised.value)


def test_a_place_that_cannot_be_written_costs_a_warning(tmp_path, caplog):
    file = MachineFile(tmp_path / "missing" / "machine.json")
    with caplog.at_level(logging.WARNING):
        file.write("one", MeasuredFigures(Machine()))
    assert "cannot be written" in caplog.text


def test_the_document_is_json(file):
    file.write("one", MeasuredFigures(Machine()))
    assert set(json.loads(file.path.read_text())["one"]) == {"machine", "corrections"}
