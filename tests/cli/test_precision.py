"""`hpcsgd precision`: what formats cost and gain on the data, and what to use."""

import json

import numpy as np
import pytest
from scipy import sparse

from hpcsgd.formats import FORMATS
from hpcsgd.precision import FIELDS, RECIPES
from hpcsgd.runs.machine import load_hardware
from tests.helpers.command_line import only_json
from tests.helpers.limits import HANG

BASE = ("--batch", 8, "--steps", 4, "--rate", 0.5, "--epochs", 5)


def asked(data, *more):
    return ["precision", "--data", data, *BASE, *more]


@pytest.fixture(scope="module")
def report(susy, tmp_path_factory):
    """One answer for several tests: it takes some seconds."""
    import subprocess
    import sys

    command = [sys.executable, "-m", "hpcsgd", *asked(susy, "--members", 3, "--json")]
    ended = subprocess.run(
        [*map(str, command), "--network", "lan"],
        cwd=tmp_path_factory.mktemp("run"),
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_every_field_has_its_row(report):
    assert [row["field"] for row in report["fields"]] == list(FIELDS)
    for row in report["fields"]:
        assert row["format"] == "bf16"
        assert row["roundoff"] == FORMATS["bf16"].unit_roundoff
        assert 0 < row["measured"] <= row["bound"] < 10
        assert row["bytes"] * 2 == row["bytes"] + row["bytes_saved"]
    assert report["members"] == 3 and report["steps"] == 4


def test_bytes_are_counted(report):
    """m = 32 rows of 18 columns on 3 members: 6 each; 384 words of Gram."""
    moved = {row["field"]: row["bytes"] for row in report["fields"]}
    assert moved["matrix"] == 32 * 6 * 2
    assert moved["gram_wire"] == 8 * 8 * 6 * 2
    assert moved["margin_sum"] == moved["margin"] == 32 * 2
    assert moved["weights"] == 2 * 6 * 2
    assert moved["inner"] == moved["gram_sum"] == moved["gradient_sum"] == 0


def test_time_is_said_of_what_runs_as_such_alone(report):
    for row in report["fields"]:
        runs = row["field"] in ("matrix", "margin", "gram_wire")
        assert (row["seconds"] is not None) == runs == (not row["emulated"])
        assert (row["seconds_saved"] is not None) == runs
    timed = {r["recipe"] for r in report["recipes"] if r["seconds"] is not None}
    assert timed == {"fp64", "fp32", "c", "d"}


def test_recipes_are_beside(report):
    rows = {row["recipe"]: row for row in report["recipes"]}
    assert list(rows) == list(RECIPES)
    assert rows["fp64"]["measured"] < 1e-14 and rows["fp64"]["loss_gap"] == 0
    assert rows["fp32"]["measured"] < rows["c"]["measured"] < rows["bf16"]["measured"]
    assert rows["c"]["bytes_sent"] == rows["fp32"]["bytes_sent"] == 4 * (384 + 32)
    assert rows["d"]["bytes_sent"] == 2 * 384 + 4 * 32
    # a narrow sum is two messages behind 50 µs and two hops each, and z's is one more
    assert rows["d"]["network_seconds"] > 2.9 * rows["c"]["network_seconds"]
    for name, row in rows.items():
        assert row["fields"] == vars(RECIPES[name])
        assert row["measured"] <= row["bound"]
        assert 0 <= row["loss_gap"] <= row["predicted_gap"]


def test_the_cheapest_good_one_is_recommended(report):
    best = report["recommendation"]
    good = [
        row["seconds"] + row["network_seconds"]
        for row in report["recipes"]
        if row["seconds"] is not None and row["predicted_gap"] <= 0.005
    ]
    assert best["seconds"] == min(good)
    assert best["recipe"] in ("fp64", "fp32", "c")  # d pays for two more messages
    assert best["predicted_gap"] <= report["tolerance"] == 0.005


def test_a_tolerance_that_nothing_low_meets(hpcsgd, susy):
    said = only_json(hpcsgd(*asked(susy, "--tolerance", 1e-9, "--groups", 1, "--json")))
    assert said["recommendation"]["recipe"] == "fp64"


def test_tables_plot_and_a_rate_that_is_too_high(hpcsgd, susy, tmp_path):
    flags = ("--groups", 1, "--format", "fp16", "--format", "fp8-e4m3")
    process = hpcsgd(
        *asked(susy, *flags, "--plot", "p.png", "--rate", 500, "--family", "gaussian")
    )
    assert process.returncode == 0, process.stderr
    for word in (*FIELDS, "fp8-e4m3", "recommended: --precision", "emulated"):
        assert word in process.stdout
    assert "largest safe rate" in process.stderr
    assert (tmp_path / "p.png").read_bytes()[:4] == b"\x89PNG"
    said = hpcsgd(*asked(susy, "--groups", 1))
    assert "largest safe rate" not in said.stderr


def test_with_momentum_it_says_what_is_covered(hpcsgd, susy):
    flags = ("--update", "momentum", "--groups", 1, "--rate", 0.05, "--json")
    process = hpcsgd(*asked(susy, *flags))
    assert not only_json(process)["bounds_cover_update"]
    assert "are of plain SGD" in process.stderr
    plain = hpcsgd(*asked(susy, "--groups", 1, "--json"))
    assert only_json(plain)["bounds_cover_update"]
    assert "plain SGD" not in plain.stderr


def test_sparse_rows_weights_offsets_and_an_intercept(hpcsgd, tmp_path):
    import h5py

    rng = np.random.default_rng(0)
    X = sparse.random_array((300, 40), density=0.2, rng=rng, format="csr")
    with h5py.File(tmp_path / "s.h5", "w") as file:
        file["X"], file["y"] = X.toarray(), rng.poisson(2.0, size=300).astype(float)
        file["sample_weight"] = rng.uniform(0.5, 2, size=300)
        file["offset"] = rng.uniform(-1, 1, size=300)
    flags = ("--family", "poisson", "--intercept", "--l2", 0.1, "--groups", 1)
    said = only_json(hpcsgd(*asked("s.h5", *flags, "--rate", 0.05, "--json")))
    for row in said["fields"]:
        assert row["measured"] <= row["bound"]


@pytest.mark.cases(3)
@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--members", 19), ("--members 19", "18 columns")),
        (("--groups", 0), ("--groups", "at least 1")),
        (("--tolerance", 0), ("--tolerance 0", "above 0")),
        (("--ranks", 2), ("one process", "--members")),
        (("--batch", 900), ("fewer than the 900 x 4", "smaller --batch")),
        (("--plot", "nowhere/p.png", "--groups", 1), ("cannot write the figure",)),
    ],
)
def test_bad_input(hpcsgd, susy, flags, words):
    process = hpcsgd(*asked(susy, *flags))
    assert process.returncode == 2, process.stderr
    last = process.stderr.strip().splitlines()[-1]
    assert last.startswith("hpcsgd: error: ")
    for word in words:
        assert word in last, last


def test_messages_take_what_the_levels_of_a_machine_file_say(hpcsgd, susy):
    """One sum of 4 (384 + 32) bytes in a ring of two: up and down one level."""
    machine = load_hardware("perlmutter-a100")
    flags = ("--members", 2, "--groups", 1, "--machine", "perlmutter-a100", "--json")
    rows = {r["recipe"]: r for r in only_json(hpcsgd(*asked(susy, *flags)))["recipes"]}
    level = machine.levels[0]
    ring = machine.base.value + 2 * level.latency.value
    ring += 4 * (384 + 32) / level.bandwidth.value
    assert rows["c"]["network_seconds"] == pytest.approx(ring)
