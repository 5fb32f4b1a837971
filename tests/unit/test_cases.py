"""Which cases of a test `make test` runs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.cases import covering, spread, usual_size

ROOT = Path(__file__).parents[2]


def test_every_value_of_every_parameter_is_used():
    cases = [{"a": a, "b": b, "c": c} for a in "xyz" for b in range(4) for c in "pq"]
    chosen = [cases[i] for i in covering(cases)]
    assert len(chosen) == 4
    for name in "abc":
        assert {one[name] for one in chosen} == {one[name] for one in cases}


def test_all_values_of_a_single_parameter_are_used():
    assert covering([{"a": a} for a in "xyz"]) == [0, 1, 2]


def test_ranks_are_the_fewest_above_one():
    assert usual_size([1, 4, 2, 3]) == 2
    assert usual_size([4]) == 4
    assert usual_size([1]) == 1
    assert usual_size([None, None]) is None


def test_few_of_many_are_spread_evenly():
    assert spread(3, 5) == [0, 1, 2]
    assert spread(4, 2) == [1, 3]
    assert spread(9, 1) == [4]
    assert spread(559, 150)[-1] > 550


FILES = {
    "pytest.ini": """
[pytest]
markers =
    full: left out
    cases(n): how many
""",
    "conftest.py": """
import pytest
from tests.helpers.cases import mark_repeats

@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    mark_repeats(items)
""",
    "test_it.py": """
import pytest
first = pytest.mark.parametrize("a", range(3))
second = pytest.mark.parametrize("b", range(3))

@first
@second
def test_product(a, b): pass

@pytest.mark.cases(2)
@pytest.mark.parametrize("a", range(9))
def test_few(a): pass

@pytest.mark.cases("all")
@first
@second
def test_all(a, b): pass

@pytest.mark.parametrize("_ranks", [1, 4, 2, 3])
@first
def test_ranks(_ranks, a): pass
""",
}


@pytest.mark.parametrize(
    "chosen, count", [("not full", 3 + 2 + 9 + 3), ("", 9 + 9 + 9 + 12)]
)
def test_repeats_are_left_to_make_test_all(chosen, count, tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-m", chosen, "--rootdir=."]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert f"{count} passed" in done.stdout, done.stdout + done.stderr
