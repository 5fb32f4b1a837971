"""Folders of states: whose they are, what else lies there, and what is not there."""

import gc
import os
import tracemalloc
from dataclasses import replace
from hashlib import sha256

import numpy as np
import pytest

from hpcsgd.errors import ConfigError, DataError
from tests.helpers.on_disk import go


def test_nothing_of_others_is_removed(tmp_path):
    """A name of six digits may be a date."""
    for name in ("202401", "000001", "000007"):
        (tmp_path / "store" / name).mkdir(parents=True)
        (tmp_path / "store" / name / "precious").touch()
    (tmp_path / "store" / "000009" / "r0c0").mkdir(parents=True)  # of a grid before
    go(tmp_path / "run", tmp_path / "store")
    found = {path.parent.name for path in tmp_path.rglob("precious")}
    assert found == {"202401", "000001", "000007"}
    assert not (tmp_path / "store" / "000009").exists()
    longer = go(tmp_path / "run", tmp_path / "store", "auto", epochs=2, replicas=2)
    assert longer.status.value == "completed"
    assert len(list(tmp_path.rglob("precious"))) == 3


@pytest.mark.parametrize("replicas", [1, 2])
def test_states_of_a_run_that_came_later_are_refused(tmp_path, replicas):
    """Of the same shape, so that nothing but their name tells them apart."""
    store = tmp_path / "store"
    go(tmp_path / "one", store)
    go(tmp_path / "other", store, seed=3)
    with pytest.raises(DataError, match="the states of another run"):
        go(tmp_path / "one", store, "auto", epochs=2, replicas=replicas)
    assert go(tmp_path / "other", store, "auto", seed=3, epochs=2).loss


def test_a_run_goes_on_where_its_states_are(tmp_path):
    """Not in the folder of another run, whose states lie there."""
    go(tmp_path / "one")
    go(tmp_path / "other", seed=3)
    for out in ("other", "new"):
        with pytest.raises(ConfigError, match="--resume auto, or name their folder"):
            go(tmp_path / out, resume=tmp_path / "one", epochs=2)
    there = tmp_path / "one" / "tiles"
    moved = go(tmp_path / "new", there, tmp_path / "one", epochs=2)
    assert moved.loss == go(tmp_path / "whole", epochs=2).loss


def test_what_cannot_be_written_or_found_is_one_sentence(tmp_path):
    (tmp_path / "file").touch()
    for store in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigError, match="choose another .agreement. store"):
            go(tmp_path / "run", store)
    before = len(os.listdir("/proc/self/fd"))
    for name in ("adam_m.state", "stamp"):
        go(tmp_path / name)
        lost = tmp_path / name / "tiles" / "000001" / "r0c0" / name
        lost.unlink()
        lost.mkdir()
        for replicas in (1, 2):
            with pytest.raises(DataError, match="cannot be opened .*--resume no"):
                go(tmp_path / name, "", "auto", epochs=2, replicas=replicas)
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before


def test_leaders_of_nodes_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="supports no sums in two levels"):
        go(tmp_path / "run", hierarchical="node")


def test_the_kind_of_another_run_is_said_first(tmp_path):
    """Not a setting of it that nobody chose."""
    go(tmp_path / "run", kind="gradient", bucket=1.0)
    with pytest.raises(ConfigError, match="kind = 'infinity' and the checkpoint"):
        go(tmp_path / "run", resume="auto", epochs=2)


def test_a_fingerprint_takes_some_words_at_a_time(tmp_path):
    """Of many scores too: the weights may be larger than memory."""
    path = tmp_path / "weights.npy"
    np.save(path, np.ones((300, 10_000), np.float32))
    result = replace(go(None, tmp_path / "store"), weights=np.load(path, mmap_mode="r"))
    tracemalloc.start()
    found = result.weights_sha256
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found == sha256(path.read_bytes()[-300 * 40_000 :]).hexdigest()
    assert peak < 2**20
