"""Ranks and threads that ask for one kernel at once: one builds it, the others wait."""

import time
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from tests.helpers.kernels.emulator import made


def test_one_of_many_callers_builds(tmp_path):
    path, meeting, builds = tmp_path / "kernel.so", Barrier(4), []

    def build(part):
        builds.append(part)
        time.sleep(0.1)  # the others ask meanwhile
        part.write_text("built")

    def ask(_):
        meeting.wait()
        return made(path, build).read_text()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(ask, range(4))) == ["built"] * 4
    assert len(builds) == 1


def test_a_build_that_fails_leaves_nothing_that_counts_as_built(tmp_path):
    path = tmp_path / "kernel.so"

    def fail(part):
        part.write_text("half of it")
        raise RuntimeError("the compiler has failed")

    with pytest.raises(RuntimeError):
        made(path, fail)
    assert not path.exists()
    assert made(path, lambda part: part.write_text("built")).read_text() == "built"
