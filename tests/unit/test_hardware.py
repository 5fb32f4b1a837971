"""Machine files: each figure has a mark and a source, and what is wrong is said."""

import tomllib

import pytest

from hpcsgd.cli import main
from hpcsgd.config import read_toml
from hpcsgd.errors import ConfigError
from hpcsgd.runs.machine import (
    FOLDER,
    MARKS,
    RANK,
    known_machines,
    load_hardware,
    parse_hardware,
)


@pytest.mark.parametrize("name", known_machines())
def test_every_figure_has_a_mark_and_a_source(name):
    hardware = load_hardware(name)
    numbers = dict(hardware.numbers())
    assert {f"rank.{key}" for key in RANK} < set(numbers) and hardware.levels
    for key, number in numbers.items():
        assert number.mark in MARKS and len(number.source) > 10, key
    assert hardware.machine().gram <= 1e16


def test_the_machines_that_are_promised_are_there():
    assert {"laptop", "two-core-server", "perlmutter-a100", "h200-nvlink"} <= set(
        known_machines()
    )
    marks = {n.mark for _, n in load_hardware("two-core-server").numbers()}
    assert marks == {"measured"}


@pytest.mark.parametrize("name", known_machines())
def test_what_is_written_is_read(name):
    hardware = load_hardware(name)
    again = parse_hardware(read_toml(FOLDER / f"{name}.toml"), name)
    assert again == hardware and f'name = "{hardware.name}"' in hardware.toml()
    assert parse_hardware(tomllib.loads(hardware.toml()), name) == hardware


def test_levels_join_what_the_nearer_ones_left():
    spans = load_hardware("perlmutter-a100").spans(64)
    assert [(level.name, parts) for level, parts in spans] == [
        ("NVLink", 4),
        ("Slingshot 11", 16),
    ]
    assert load_hardware("perlmutter-a100").spans(1) == []


BREAKS = [
    (("rank", "gram", "mark"), "guessed", "must be one of"),
    (("rank", "gram", "source"), " ", "must name the origin"),
    (("rank", "gram", "value"), 0.0, "must be finite and positive"),
    (("rank", "link", "value"), -1.0, "at least 0"),
    (("rank", "gram"), 4e10, "write { value"),
    (("rank", "flops"), {}, "unknown: ['flops']"),
    (("colour",), "red", "unknown: ['colour']"),
    (("levels",), "none", "must have [rank]"),
    (("sum",), 4.4e-6, "write [sum]"),
    (("sum",), {}, "write { value"),
    (("sum",), {"depth": 2}, "unknown: ['depth']"),
]


@pytest.mark.parametrize("place, value, said", BREAKS)
def test_what_is_no_machine_file_is_refused(place, value, said):
    tables = read_toml(FOLDER / "laptop.toml")
    table = tables
    for key in place[:-1]:
        table = table[key]
    table[place[-1]] = value
    with pytest.raises(ConfigError) as raised:
        parse_hardware(tables, "laptop.toml")
    assert said in str(raised.value) and "\n" not in str(raised.value)


def test_more_ranks_than_levels_join_are_refused():
    tables = read_toml(FOLDER / "laptop.toml")
    tables["levels"] = tables["levels"][:1]
    with pytest.raises(ConfigError, match="more than the 4"):
        parse_hardware(tables, "laptop.toml").spans(8)


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--machine", "nowhere", "--data", "100,10"], "no machine of this name"),
        (["--machine", "laptop", "--data", "100,10", "--ranks", "8..x"], "write 1.."),
        (["--machine", "laptop", "--data", "100,10", "--ranks", "0"], "write 1.."),
        (["--machine", "laptop", "--data", "many"], "ROWS,COLUMNS"),
        (["--machine", "laptop", "--data", "0,10"], "at least 1"),
        (["--machine", "laptop", "--data", "100,10", "--batch", "0"], "--batch 0"),
        (["--machine", "laptop", "--data", "100,2", "--ranks", "64"], "ask for fewer"),
    ],
)
def test_wrong_questions_are_one_sentence(arguments, said, capsys):
    assert main(["study", "predict", *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
