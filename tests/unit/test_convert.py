"""A conversion keeps every row, in bounded blocks, whatever breaks in between."""

import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse

from hpcsgd.data.convert import sink as sink_module
from hpcsgd.data.convert.pipeline import convert, identity, test_path
from hpcsgd.data.convert.sources import Outline, SourceColumns, SourceRows
from hpcsgd.data.convert.transform import Recipe, RowSelection
from hpcsgd.data.hdf5 import Hdf5Reader
from hpcsgd.data.preparation import count_test, is_test, unit_rows
from hpcsgd.errors import ConfigError, DataError
from tests.helpers.conversion import Quiet

test_path.__test__ = False  # a path of a test set, no test
ROWS, COLS = 700, 5


class InMemory:
    """Rows with positions that are no row numbers, in blocks that may break off."""

    def __init__(self, path, X, y, block=64, weights=None):
        self.path, self.X, self.y, self.block = path, X, y, block
        self.weights, self.break_at = weights, None
        self.passes, self.break_in = 0, 1  # large passes so far; the one that breaks
        path.write_text("a source")

    def outline(self, progress):
        nnz = self.X.nnz if scipy.sparse.issparse(self.X) else None
        return Outline(*self.X.shape, nnz, self.y is not None, 10 * len(self.y))

    def blocks(self, outline, budget, start=0):
        self.passes += budget > 65536
        for row in range(start // 10, self.X.shape[0], self.block):
            late = self.break_at is not None and row >= self.break_at
            if late and self.passes == self.break_in:
                raise KeyboardInterrupt
            part = slice(row, min(row + self.block, self.X.shape[0]))
            weights = None if self.weights is None else self.weights[part]
            yield SourceRows(self.X[part], self.y[part], 10 * part.stop, weights)


@pytest.fixture
def source(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(3, [1, 2, 3, 4, 5], size=(ROWS, COLS)).astype(np.float32)
    return InMemory(tmp_path / "source", X, rng.normal(size=ROWS))


def content(path):
    reader = Hdf5Reader(path)
    every = slice(0, reader.rows)
    read = reader.read(every, slice(0, reader.cols)), reader.targets(every)
    reader.close()
    return read


def test_every_row_arrives_as_it_was(source, tmp_path):
    said = convert(source, tmp_path / "a.h5", Recipe(), Quiet())
    X, y = content(tmp_path / "a.h5")
    assert (source.X == X).all() and (source.y == y).all()
    assert said["files"][0]["rows"] == ROWS and not said["sparse"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.h5", "source"]


def test_weights_come_along(source, tmp_path):
    source.weights = np.arange(ROWS, dtype=float)
    convert(source, tmp_path / "a.h5", Recipe(), Quiet())
    reader = Hdf5Reader(tmp_path / "a.h5")
    assert (reader.sample_weight(slice(0, ROWS)) == source.weights).all()


def test_no_more_than_two_passes_and_scales_of_the_training_rows(source, tmp_path):
    quiet = Quiet()
    recipe = Recipe(
        standardize=True, element="fp64", selection=RowSelection(test_fraction=0.3)
    )
    convert(source, tmp_path / "a.h5", recipe, quiet)
    X, _ = content(tmp_path / "a.h5")
    assert np.allclose(X.mean(axis=0), 0, atol=1e-12)
    assert np.allclose(X.std(axis=0), 1, atol=1e-12)
    test = is_test(np.arange(ROWS), 0.3, 0)
    mean, scale = (
        source.X[~test].mean(0, dtype=float),
        source.X[~test].std(0, dtype=float),
    )
    tested, _ = content(tmp_path / "a-test.h5")
    assert np.allclose(tested, (source.X[test] - mean) / scale)
    reader = Hdf5Reader(tmp_path / "a.h5")
    assert np.allclose(reader.file["column_means"], mean)
    assert np.allclose(reader.file["column_scales"], scale)


def test_sparse_columns_are_scaled_only(source, tmp_path):
    source.X = scipy.sparse.csr_array(source.X * (source.X > 4))
    said = convert(source, tmp_path / "a.h5", Recipe(standardize=True), Quiet())
    X, _ = content(tmp_path / "a.h5")
    assert "scaled only" in said["standardized"] and said["sparse"]
    assert ((X != 0) == (source.X.toarray() != 0)).all()
    assert np.allclose(np.sqrt((X.astype(float) ** 2).mean(axis=0)), 1)
    reader = Hdf5Reader(tmp_path / "a.h5")
    assert reader.is_sparse and "column_means" not in reader.file


@pytest.mark.parametrize("block", [1, 64, 699, 5000])
def test_the_split_is_of_rows_and_not_of_blocks(source, tmp_path, block):
    source.block = block
    recipe = Recipe(selection=RowSelection(test_fraction=0.2, seed=3))
    convert(source, tmp_path / "a.h5", recipe, Quiet())
    test = is_test(np.arange(ROWS), 0.2, 3)
    for path, chosen in (("a.h5", ~test), ("a-test.h5", test)):
        X, y = content(tmp_path / path)
        assert (source.X[chosen] == X).all() and (y == source.y[chosen]).all()


def test_shares_and_seeds_of_the_split():
    assert 9500 < count_test(100_000, 0.1, 0) < 10500
    rows = np.arange(1000)
    assert (is_test(rows, 0.5, 0) != is_test(rows, 0.5, 1)).any()
    # More rows never change the verdict on those before.
    assert (is_test(rows, 0.5, 0) == is_test(np.arange(2000), 0.5, 0)[:1000]).all()


@pytest.mark.cases(2)
@pytest.mark.parametrize("break_at", [0, 64, 320, 640])
@pytest.mark.parametrize("fraction", [0.0, 0.2])
@pytest.mark.parametrize("flush", [0.0, 1e9])
def test_what_broke_off_is_gone_on_with(
    source, tmp_path, monkeypatch, break_at, fraction, flush
):
    monkeypatch.setattr(sink_module, "SEAL_SECONDS", flush)
    recipe = Recipe(standardize=True, selection=RowSelection(test_fraction=fraction))
    convert(source, tmp_path / "whole.h5", recipe, Quiet())
    source.break_at, source.passes, source.break_in = break_at, 0, 2
    target = tmp_path / "a.h5"
    with pytest.raises(KeyboardInterrupt):
        convert(source, target, recipe, Quiet())
    monkeypatch.undo()
    assert not target.exists() and not test_path(target).exists()
    source.break_at, source.block = None, 50
    convert(source, target, recipe, Quiet(), resume=True)
    names = ["whole.h5", "whole-test.h5"] if fraction else ["whole.h5"]
    for name in names:
        mine = tmp_path / name.replace("whole", "a")
        for one, other in zip(content(mine), content(tmp_path / name), strict=True):
            assert (one == other).all()
    assert not list(tmp_path.glob(".*"))
    assert source.passes == 3, "what broke off was measured already"


def test_only_the_same_conversion_is_gone_on_with(source, tmp_path):
    source.break_at = 320
    with pytest.raises(KeyboardInterrupt):
        convert(source, tmp_path / "a.h5", Recipe(), Quiet())
    source.break_at = None
    with pytest.raises(ConfigError, match="had another seed; give"):
        other = Recipe(selection=RowSelection(seed=1))
        convert(source, tmp_path / "a.h5", other, Quiet(), resume=True)
    with pytest.raises(ConfigError, match="had another requested_rows; give"):
        fewer = Recipe(selection=RowSelection(rows=300))
        convert(source, tmp_path / "a.h5", fewer, Quiet(), resume=True)


def interrupted(source, target, recipe, break_at=320):
    """A conversion that breaks off after `break_at` rows, at a row of its choice."""
    source.break_at, source.passes, source.break_in = break_at, 0, 1
    with pytest.raises(KeyboardInterrupt):
        convert(source, target, recipe, Quiet())
    source.break_at = None
    return target.parent / f".{target.name}.parts"


@pytest.mark.parametrize("seconds", [0.0, 1e9])
def test_complete_parts_are_not_read_from_the_source_again(
    source, tmp_path, monkeypatch, seconds
):
    monkeypatch.setattr(sink_module, "SEAL_SECONDS", seconds)
    folder = interrupted(source, tmp_path / "a.h5", Recipe())
    sealed = sorted(path.name for path in folder.glob("part-*"))
    assert len(sealed) == (5 if seconds == 0.0 else 1)
    source.X[:320] = np.nan  # whoever reads these rows again is refused
    convert(source, tmp_path / "a.h5", Recipe(), Quiet(), resume=True)
    X, y = content(tmp_path / "a.h5")
    assert (X[320:] == source.X[320:]).all() and np.isfinite(X).all()
    assert (y == source.y).all()


def test_rows_of_a_part_that_is_not_complete_are_converted_again(source, tmp_path):
    folder = interrupted(source, tmp_path / "a.h5", Recipe())
    (folder / "part-000000").rename(folder / "unsealed")
    convert(source, tmp_path / "a.h5", Recipe(), Quiet(), resume=True)
    assert (content(tmp_path / "a.h5")[0] == source.X).all()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.h5", "source"]


def test_a_part_that_is_damaged_is_refused(source, tmp_path):
    folder = interrupted(source, tmp_path / "a.h5", Recipe())
    part = folder / "part-000000"
    part.write_bytes(part.read_bytes()[:-9])
    with pytest.raises(DataError, match="part-000000 is damaged.*leave --resume out"):
        convert(source, tmp_path / "a.h5", Recipe(), Quiet(), resume=True)
    convert(source, tmp_path / "a.h5", Recipe(), Quiet())
    assert (content(tmp_path / "a.h5")[0] == source.X).all()


def test_without_resume_a_conversion_begins_again(source, tmp_path):
    interrupted(source, tmp_path / "a.h5", Recipe())
    source.X += 1
    convert(source, tmp_path / "a.h5", Recipe(), Quiet())
    assert (content(tmp_path / "a.h5")[0] == source.X).all()


def test_parts_that_have_no_room_are_given_up(source, tmp_path, monkeypatch):
    """The stores need it more; what breaks off then begins again."""

    def full(number):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sink_module, "SEAL_SECONDS", 0.0)
    monkeypatch.setattr(sink_module.os, "fsync", full)
    with pytest.raises(DataError, match="cannot be written"):  # the store needs it, too
        convert(source, tmp_path / "a.h5", Recipe(), Quiet())
    monkeypatch.undo()
    monkeypatch.setattr(sink_module, "SEAL_SECONDS", 0.0)
    publish = sink_module.publish
    monkeypatch.setattr(sink_module, "publish", lambda *file: full(publish(*file)))
    convert(source, tmp_path / "a.h5", Recipe(), Quiet())
    assert (content(tmp_path / "a.h5")[0] == source.X).all()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.h5", "source"]


def test_parts_are_not_followed_through_a_planted_link(source, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "conversion").write_text("precious")
    (tmp_path / ".a.h5.parts").symlink_to(elsewhere)
    for resume in (False, True):
        convert(source, tmp_path / "a.h5", Recipe(), Quiet(), resume=resume, force=True)
        assert (content(tmp_path / "a.h5")[0] == source.X).all()
    assert (elsewhere / "conversion").read_text() == "precious"
    assert [path.name for path in elsewhere.iterdir()] == ["conversion"]


# Forks of a process that has imported all of it: a kill costs no start of Python.
PROGRAM = """
import os, signal, sys, time
from pathlib import Path
import numpy as np
from hpcsgd.data.convert import sink
from hpcsgd.data.convert.pipeline import convert
from hpcsgd.data.convert.libsvm import LibsvmSource
from hpcsgd.data.convert.transform import Recipe, RowSelection
from tests.helpers.conversion import Quiet

text, target = Path(sys.argv[1]), Path(sys.argv[2])
waits = np.random.default_rng(1).uniform(0.0, 0.15, size=int(sys.argv[3]))
sink.SEAL_SECONDS = 0.0
LibsvmSource.piece = 8192
recipe = Recipe(standardize=True, selection=RowSelection(test_fraction=0.3))

def write(say):
    source = LibsvmSource(text)
    load = source.load
    source.load = lambda task: (time.sleep(0.001), load(task))[1]
    say()
    convert(source, target, recipe, Quiet(), resume=True, force=True)

kills = 0
for wait in waits:
    heard, said = os.pipe()
    child = os.fork()
    if not child:
        write(lambda: os.write(said, b"."))
        os._exit(0)
    os.close(said)
    assert os.read(heard, 1) == b"."
    os.close(heard)
    time.sleep(wait)
    os.kill(child, signal.SIGKILL)
    kills += os.waitpid(child, 0)[1] != 0
write(lambda: None)
print(kills)
"""


def test_killed_at_any_moment_and_resumed_is_as_undisturbed(tmp_path):
    X = np.random.default_rng(0).normal(size=(4000, 12)).round(5)
    text = tmp_path / "a.svm"
    text.write_text(
        "".join(
            f"{k % 2} " + " ".join(f"{j}:{v}" for j, v in enumerate(row, 1)) + "\n"
            for k, row in enumerate(X.tolist())
        )
    )
    kills = []
    for name, times in (("a.h5", 15), ("b.h5", 0)):
        command = [sys.executable, "-c", PROGRAM, str(text), str(tmp_path / name)]
        done = subprocess.run(
            [*command, str(times)],
            check=True,
            timeout=90,
            capture_output=True,
            text=True,
        )
        kills.append(int(done.stdout))
    assert kills[0] > 3 and kills[1] == 0
    for ending in (".h5", "-test.h5"):
        killed = (tmp_path / f"a{ending}").read_bytes()
        assert killed == (tmp_path / f"b{ending}").read_bytes()
    assert not list(tmp_path.glob(".*"))


def test_wrong_rows_leave_nothing(source, tmp_path):
    def blocks(outline, budget, start=0):
        yield SourceRows(source.X[:100], source.y[:100], 1000)
        if budget > 65536:
            raise DataError("line 101 is no row; mend it")

    source.blocks = blocks
    with pytest.raises(DataError, match="line 101"):
        convert(source, tmp_path / "a.h5", Recipe(), Quiet())
    assert [p.name for p in tmp_path.iterdir()] == ["source"]


def test_rows_and_unit_rows(source, tmp_path):
    source.X[3] = 0
    recipe = Recipe(unit_rows=True, element="fp64", selection=RowSelection(rows=100))
    convert(source, tmp_path / "a.h5", recipe, Quiet())
    X, y = content(tmp_path / "a.h5")
    norms = np.linalg.norm(X, axis=1)
    assert len(X) == 100 and norms[3] == 0
    assert np.allclose(np.delete(norms, 3), 1) and (y == source.y[:100]).all()
    sparse = unit_rows(scipy.sparse.csr_array(source.X[:9]))
    assert np.allclose(sparse.toarray(), X[:9])


@pytest.mark.parametrize(
    "wrong, said",
    [
        ({"test_fraction": 1.0}, "below 1"),
        ({"rows": 0}, "at least 1"),
        ({"seed": -1}, "0 will do"),
        ({"rows": ROWS + 1}, "the source has 700"),
        ({"test_fraction": 1e-9}, "choose another"),
    ],
)
def test_rows_that_cannot_be_selected(source, tmp_path, wrong, said):
    with pytest.raises(ConfigError, match=said):
        recipe = Recipe(selection=RowSelection(**wrong))
        convert(source, tmp_path / "a.h5", recipe, Quiet())
    assert not (tmp_path / "a.h5").exists()


def test_a_recipe_with_too_little_memory_is_refused():
    with pytest.raises(ConfigError, match="too little"):
        Recipe(memory=1)


def test_a_target_is_replaced_only_on_demand(source, tmp_path):
    target = tmp_path / "a.h5"
    target.write_text("mine")
    with pytest.raises(ConfigError, match="add --force"):
        convert(source, target, Recipe(), Quiet())
    convert(source, target, Recipe(), Quiet(), force=True)
    assert len(content(target)[1]) == ROWS


def test_a_resume_compares_every_setting_and_fact():
    """A field that is added later is compared, too, or named here as left out."""
    outline = Outline(rows=3, cols=2, nnz=None, labelled=True, size=9)
    said = identity(SimpleNamespace(path=Path(__file__)), outline, Recipe())
    kinds = (Recipe, RowSelection, Outline, SourceColumns)
    wanted = {field.name for kind in kinds for field in fields(kind)}
    left_out = {"memory", "selection", "columns", "preparation"}
    assert wanted - left_out <= set(said) and "requested_rows" in said
