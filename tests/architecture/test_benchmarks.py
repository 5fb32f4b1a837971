"""What `python -m benchmarks.run` needs of every benchmark that it finds."""

import importlib
import inspect

from benchmarks.run import APART, HERE

FOUND = sorted(path.stem for path in HERE.glob("bench_*.py"))


def test_what_is_left_out_is_there():
    assert set(APART) < set(FOUND)


def test_every_benchmark_measures_when_nothing_is_said():
    """Without arguments: one that asks for some would stop `make bench`."""
    offenders = []
    for name in sorted(set(FOUND) - set(APART)):
        measure = importlib.import_module(f"benchmarks.{name}").measure
        try:
            inspect.signature(measure).bind()
        except TypeError as error:
            offenders.append(f"{name}: {error}")
    assert not offenders, "benchmarks that ask for arguments:\n" + "\n".join(offenders)
