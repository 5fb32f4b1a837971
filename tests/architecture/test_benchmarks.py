"""What `python -m benchmarks.run` needs of every benchmark that it finds."""

import importlib
import inspect

import pytest

from benchmarks.run import APART, HERE

FOUND = sorted(path.stem for path in HERE.glob("bench_*.py"))


def test_what_is_left_out_is_there():
    assert set(APART) < set(FOUND)


@pytest.mark.parametrize("name", [name for name in FOUND if name not in APART])
def test_every_benchmark_measures_when_nothing_is_said(name):
    """Without arguments: one that asks for some would stop `make bench`."""
    measure = importlib.import_module(f"benchmarks.{name}").measure
    inspect.signature(measure).bind()
