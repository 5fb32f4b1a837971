"""Figures of machines in a file: written once, corrected by runs, never in the way."""

import json
import logging
from dataclasses import replace

import pytest

from hpcsgd.config import read_toml
from hpcsgd.errors import ConfigError
from hpcsgd.products.cost import Machine
from hpcsgd.runs.machine import (
    FOLDER,
    KIND,
    MOST_CORRECTION,
    MachineFile,
    MeasuredFigures,
    load_hardware,
)


@pytest.fixture
def file(tmp_path):
    return MachineFile(tmp_path / "machine.toml")


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
    assert file.read("one").corrections == {
        "gram": MOST_CORRECTION,
        "direct": 1 / MOST_CORRECTION,
    }
    file.correct("unknown", "gram", 2.0)
    assert file.read("unknown") is None


@pytest.mark.parametrize(
    "ratio", [MOST_CORRECTION * 1.01, 0.99 / MOST_CORRECTION, float("inf")]
)
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
    with pytest.raises(ConfigError, match="delete the file") as raised:
        file.read("one")
    assert "\n" not in str(raised.value)


def test_a_place_that_cannot_be_written_costs_a_warning(tmp_path, caplog):
    file = MachineFile(tmp_path / "missing" / "machine.toml")
    with caplog.at_level(logging.WARNING):
        file.write("one", MeasuredFigures(Machine()))
    assert "cannot be written" in caplog.text


def test_the_document_is_a_machine_file(file):
    """Kinds of runs stand beside the figures of the machine, which stay."""
    file.path.write_text((FOLDER / "laptop.toml").read_text())
    before = load_hardware(str(file.path))
    known = MeasuredFigures(Machine(), {"gather-once": 2.0, "my.product": 0.5})
    file.write('one "kind" \U0001f600', known)
    kinds = read_toml(file.path)["kinds"]
    assert set(kinds['one "kind" \U0001f600']) == set(KIND)
    assert file.read('one "kind" \U0001f600') == known
    after = load_hardware(str(file.path))
    assert after.kinds and replace(after, kinds={}) == before


def test_figures_of_files_are_read_written_and_checked(file):
    """Files of earlier versions have none, and stay without."""
    text = (FOLDER / "laptop.toml").read_text()
    source = 'mark = "measured", source = "a test"'
    figures = {"operation": 2e-4, "rate": 1e5, "bandwidth": 3e9}
    lines = [f"{k} = {{ value = {v}, {source} }}" for k, v in figures.items()]
    file.path.write_text("\n".join([text, "[files]", *lines]))
    read = load_hardware(str(file.path))
    assert {k: n.value for k, n in read.files.items()} == figures
    assert dict(read.numbers())["files.rate"].mark == "measured"
    file.write("one", MeasuredFigures(Machine()))
    assert load_hardware(str(file.path)).files == read.files
    assert load_hardware("laptop").files is None
    assert "[files]" not in load_hardware("laptop").toml()
    for wrong, match in (
        (["[files]", *lines[:2]], r"\[files\] bandwidth must have"),
        (["[files]", *lines, "disks = 3"], r"\[files\] unknown: \['disks'\]"),
        (["files = 3", text], r"files = 3 must be a table; write \[files\]"),
        (["[files]", lines[0].replace("0.0002", "-1.0"), *lines[1:]], "at least 0"),
        (["[files]", lines[0], lines[1].replace("100000.0", "0.0"), lines[2]], "posi"),
    ):
        parts = wrong if wrong[-1] == text else [text, *wrong]
        file.path.write_text("\n".join(parts))
        with pytest.raises(ConfigError, match=match):
            load_hardware(str(file.path))


def test_figures_of_runs_alone_make_predictions(file):
    """Those of the first kind, whose sum of so many members is a tree of hops."""
    machine = Machine(latency=6e-6, per_byte=1e-9, gram=3e10)
    file.write("avx2 dense fp64 b4 d256 C8 no network", MeasuredFigures(machine))
    hardware = load_hardware(str(file.path))
    assert hardware.machine() == replace(machine, latency=0.0, per_byte=0.0)
    (level,) = hardware.levels
    assert level.latency.value == pytest.approx(2e-6)
    assert level.bandwidth.value == pytest.approx(1e9)
    assert {number.mark for _, number in hardware.numbers()} == {"measured"}
    file.write("avx2 dense fp64 b4 d256 C8 no network", None)
    with pytest.raises(ConfigError, match="must have"):
        load_hardware(str(file.path))
    assert file.read("one") is None, "a file without any figure is no damaged one"


def test_files_of_earlier_versions_are_read_and_replaced(file):
    """Kinds alone, as JSON; the first versions had no `alone` and no `turn`."""
    table = {k: v for k, v in Machine().as_dict().items() if k not in ("alone", "turn")}
    entry = {"machine": table, "corrections": {"gram": 1.5}}
    file.path.write_text(json.dumps({"one": entry, "two": entry}))
    known = MeasuredFigures(Machine(), {"gram": 1.5})
    assert file.read("one") == known
    file.correct("one", "gram", 1.0)
    assert set(read_toml(file.path)["kinds"]) == {"one", "two"}
    assert file.read("two") == known
