"""Ranks that share a text write what one rank writes, and say what one rank says."""

import gzip
import hashlib

import h5py
import numpy as np
import pytest
import scipy.sparse

from hpcsgd.comm.threads import run_ranks
from hpcsgd.data.convert import sink as sink_module
from hpcsgd.data.convert import text
from hpcsgd.data.convert.csv import CsvOptions, CsvSource
from hpcsgd.data.convert.libsvm import LibsvmSource
from hpcsgd.data.convert.parallel import Crew
from hpcsgd.data.convert.pipeline import convert
from hpcsgd.data.convert.transform import Recipe, RowSelection
from hpcsgd.data.hdf5 import Hdf5Reader
from hpcsgd.errors import ConfigError, DataError
from tests.helpers.conversion import Quiet

ROWS, COLS = 500, 9
RNG = np.random.default_rng(0)
X = np.round(RNG.normal(5, [*range(1, COLS + 1)], size=(ROWS, COLS)), 3)
X *= RNG.random(X.shape) < 0.6
Y = RNG.integers(1, 3, size=ROWS)
RANKS = [1, 2, 3, 4]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(text.TextSource, "piece", 700)


@pytest.fixture
def files(tmp_path):
    svm = [
        f"{y} " + " ".join(f"{j + 1}:{v:g}" for j, v in enumerate(x) if v)
        for y, x in zip(Y, X, strict=True)
    ]
    csv = [f"{y}," + ",".join(f"{v:g}" for v in x) for y, x in zip(Y, X, strict=True)]
    (tmp_path / "a.svm").write_text("# first\n" + "\n".join(svm))
    (tmp_path / "a.csv").write_text("y," + ",".join("abcdefghi") + "\n")
    with open(tmp_path / "a.csv", "a") as file:
        file.write("\n\n".join(csv) + "\n")
    holes = [line if k % 7 else line[:2] + line[line.index(",", 2) :]
             for k, line in enumerate(csv)]  # fmt: skip
    (tmp_path / "holes.csv").write_text("\n".join(holes))
    return tmp_path


def sums(path):
    """Of every dataset and of the attributes, but for what depends on time."""
    found = {}
    with h5py.File(path) as file:

        def visit(name, node):
            if isinstance(node, h5py.Dataset):
                content = np.ascontiguousarray(node[()]).tobytes()
                found[name] = (node.dtype.str, hashlib.sha256(content).hexdigest())

        file.visititems(visit)
        found["attributes"] = sorted((k, str(v)) for k, v in file.attrs.items())
    return found


def share(ranks, make, target, recipe, **more):
    """On that many ranks; what was said on each."""

    def run(world):
        return convert(make(), target, recipe, Quiet(), crew=Crew(world), **more)

    return run_ranks(ranks, run)


RECIPES = {
    "plain": Recipe(),
    "standardized": Recipe(standardize=True, element="fp64"),
    "split": Recipe(
        standardize=True,
        element="bf16",
        selection=RowSelection(test_fraction=0.3, seed=4),
    ),
    "first rows": Recipe(
        unit_rows=True, standardize=True, selection=RowSelection(rows=321)
    ),
    "dense": Recipe(layout="dense", standardize=True),
    "sparse": Recipe(layout="sparse", standardize=True),
}


@pytest.mark.cases(2)
@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
@pytest.mark.parametrize("name", ["a.svm", "a.csv", "holes.csv"])
def test_the_same_bytes_for_every_number_of_ranks(files, name, recipe):
    def make():
        if name.endswith("svm"):
            return LibsvmSource(files / name)
        return CsvSource(
            files / name, CsvOptions(missing="mean" if "holes" in name else "error")
        )

    found = []
    for ranks in RANKS:
        said = share(ranks, make, files / "o.h5", recipe, force=True)
        assert all(one == said[0] for one in said)
        found.append([sums(part["path"]) for part in said[0]["files"]])
    assert all(one == found[0] for one in found)
    assert len(found[0]) == 1 + bool(recipe.selection.test_fraction)


@pytest.mark.cases(2)
@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_compressed_text_gives_what_plain_text_gives(files, recipe):
    packed = files / "a.svm.gz"
    packed.write_bytes(gzip.compress((files / "a.svm").read_bytes()))
    found = []
    for path in (files / "a.svm", packed):
        convert(LibsvmSource(path), files / "o.h5", recipe, Quiet(), force=True)
        found.append(sums(files / "o.h5"))
        found[-1].pop("attributes")  # they name the source
    assert found[0] == found[1]


def content(path):
    reader = Hdf5Reader(path)
    every = slice(0, reader.rows)
    read = reader.read(every, slice(0, reader.cols)), reader.targets(every)
    reader.close()
    return read


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("name", ["a.svm", "a.csv"])
def test_the_values_are_those_of_the_text(files, name, ranks):
    make = {"a.svm": LibsvmSource, "a.csv": CsvSource}[name]
    recipe = Recipe(element="fp64", labels=((1.0, -1.0), (2.0, 1.0)))
    share(ranks, lambda: make(files / name), files / "o.h5", recipe)
    stored, y = content(files / "o.h5")
    np.testing.assert_array_equal(stored, X)
    np.testing.assert_array_equal(y, 2 * Y - 3)


def test_missing_values_become_the_mean_of_the_training_rows(files):
    recipe = Recipe(element="fp64", selection=RowSelection(test_fraction=0.5))
    source = CsvSource(files / "holes.csv", CsvOptions(missing="mean"))
    convert(source, files / "o.h5", recipe, Quiet())
    test = recipe.selection.drawn(0, ROWS)
    there = (np.arange(ROWS) % 7 > 0) & ~test
    holes = np.arange(ROWS) % 7 == 0
    stored, _ = content(files / "o.h5")
    mean = X[there, 0].mean()
    np.testing.assert_allclose(stored[holes[~test], 0], mean, rtol=1e-12)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
@pytest.mark.parametrize("name", ["a.svm", "holes.csv"])
def test_a_text_is_gone_through_twice(files, monkeypatch, name, recipe):
    """Counted in bytes that were parsed, or gone through without being kept."""
    parsed = []
    load = text.TextSource.load

    def counting(self, task):
        piece = load(self, task)
        parsed.append(len(piece.text))
        return piece

    monkeypatch.setattr(text.TextSource, "load", counting)
    if name.endswith("svm"):
        source = LibsvmSource(files / name)
    else:
        source = CsvSource(files / name, CsvOptions(missing="mean"))
    quiet = Quiet()
    convert(source, files / "o.h5", recipe, quiet)
    peek = 800  # the first piece is looked at once more
    assert sum(parsed) <= 2 * (files / name).stat().st_size + 2 + peek
    assert quiet.passes == ["counting rows", "writing"]


def test_density_decides_how_text_is_stored(tmp_path):
    thin = scipy.sparse.random(300, 400, 0.02, format="csr", random_state=0)
    full = scipy.sparse.random(300, 400, 0.2, format="csr", random_state=0)
    for matrix, is_sparse in ((thin, True), (full, False)):
        lines = []
        for row in range(300):
            part = matrix[[row]].tocoo()
            pairs = sorted(zip(part.col.tolist(), part.data.tolist(), strict=True))
            lines.append("1 " + " ".join(f"{j}:{v!r}" for j, v in pairs))
        (tmp_path / "x.svm").write_text("\n".join(lines))
        source = LibsvmSource(tmp_path / "x.svm", index_base=0, cols=400)
        said = convert(source, tmp_path / "o.h5", Recipe(), Quiet(), force=True)
        assert said["sparse"] == is_sparse
        stored = content(tmp_path / "o.h5")[0]
        assert (stored == matrix.toarray().astype(np.float32)).all()


@pytest.mark.full
def test_wide_blocks_are_written_out_slice_by_slice(files, monkeypatch):
    """And a break between slices of one piece is gone on with."""
    monkeypatch.setattr(Recipe, "block", property(lambda self: 5 * 8 * COLS))
    monkeypatch.setattr(sink_module, "SEAL_SECONDS", 0.0)
    recipe = Recipe(layout="dense", element="fp64", standardize=True)
    make = lambda: LibsvmSource(files / "a.svm")  # noqa: E731
    share(2, make, files / "whole.h5", recipe)
    append, left = sink_module.Sinks.append, [10]

    def breaking(self, number, rows, position):
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        append(self, number, rows, position)
        assert len(rows) <= 5

    monkeypatch.setattr(sink_module.Sinks, "append", breaking)
    with pytest.raises(KeyboardInterrupt):
        share(1, make, files / "o.h5", recipe)
    share(3, make, files / "o.h5", recipe, resume=True)
    assert left[0] < 0
    assert sums(files / "whole.h5") == sums(files / "o.h5")


@pytest.mark.cases(1)
@pytest.mark.parametrize("break_at", [1, 4, 9])
@pytest.mark.parametrize("flush", [0.0, 1e9])
def test_what_broke_off_is_gone_on_with_on_other_ranks(
    files, monkeypatch, break_at, flush
):
    monkeypatch.setattr(sink_module, "SEAL_SECONDS", flush)
    recipe = Recipe(standardize=True, selection=RowSelection(test_fraction=0.2))
    make = lambda: LibsvmSource(files / "a.svm")  # noqa: E731
    share(1, make, files / "whole.h5", recipe)
    append, appended = sink_module.Sinks.append, [0]

    def run(world):
        crew = Crew(world)

        def asked(self, number, rows, position):
            appended[0] += 1
            if appended[0] == break_at:
                crew.interrupt()  # as the handler of SIGINT does, on this rank alone
            append(self, number, rows, position)

        if world.rank == 0:
            monkeypatch.setattr(sink_module.Sinks, "append", asked)
        with pytest.raises(KeyboardInterrupt):
            convert(make(), files / "o.h5", recipe, Quiet(), crew=crew)

    run_ranks(3, run)
    monkeypatch.undo()
    monkeypatch.setattr(text.TextSource, "piece", 700)
    assert not (files / "o.h5").exists()
    assert (files / ".o.h5.parts").exists()
    share(2, make, files / "o.h5", recipe, resume=True)
    for ending in (".h5", "-test.h5"):
        assert sums(files / f"whole{ending}") == sums(files / f"o{ending}")


@pytest.mark.cases(2)
@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_queries_go_with_their_rows(files, recipe):
    """Into both stores, whoever parsed them."""
    lines = (files / "a.svm").read_bytes().split(b"\n")
    for number in range(1, len(lines)):
        label, _, rest = lines[number].partition(b" ")
        lines[number] = label + b" qid:%d " % (number * 10**15) + rest
    (files / "q.svm").write_bytes(b"\n".join(lines))
    found = []
    for ranks in (1, 3):
        make = lambda: LibsvmSource(files / "q.svm")  # noqa: E731
        said = share(ranks, make, files / "o.h5", recipe, force=True)
        found.append([sums(part["path"]) for part in said[0]["files"]])
    assert found[0] == found[1]
    wanted = np.arange(1, 1 + (recipe.selection.rows or ROWS)) * 10**15
    drawn = recipe.selection.drawn(0, len(wanted))
    for path, own in (("o.h5", ~drawn), ("o-test.h5", drawn)):
        if own.any():
            with h5py.File(files / path) as file:
                assert file["qid"].dtype == np.int64
                assert (file["qid"][()] == wanted[own]).all()


def damaged(text, line, old, new):
    lines = text.split(b"\n")
    lines[line] = lines[line].replace(old, new, 1)
    return b"\n".join(lines)


@pytest.mark.parametrize("line", [1, 100, 250, 400, 499])
@pytest.mark.parametrize("also", [None, 25, 300])
def test_all_ranks_say_the_same_of_the_first_bad_line(files, line, also):
    text = damaged((files / "a.svm").read_bytes(), line, b" ", b" x")
    if also is not None:  # in a piece of the same round, or far behind
        text = damaged(text, min(line + also, ROWS), b" ", b" qid:y ")
    (files / "bad.svm").write_bytes(text)
    byte = sum(len(s) + 1 for s in text.split(b"\n")[:line])
    said = set()
    for ranks in RANKS:
        raised = []

        def run(world, raised=raised):
            try:
                source = LibsvmSource(files / "bad.svm")
                convert(source, files / "o.h5", Recipe(), Quiet(), crew=Crew(world))
            except DataError as error:
                assert error.on_all_ranks
                raised.append(str(error))

        run_ranks(ranks, run)
        assert len(raised) == ranks
        said |= set(raised)
        assert not list(files.glob(".*")) and not (files / "o.h5").exists()
    assert len(said) == 1
    assert f"line {line + 1} (byte {byte + 2})" in said.pop()


@pytest.mark.parametrize("row", [40, 333])
@pytest.mark.parametrize("fraction", [0.0, 0.5])
def test_a_value_too_large_is_named_by_its_row_of_the_store(files, row, fraction):
    """Whoever encodes it."""
    lines = (files / "a.csv").read_bytes().split(b"\n\n")
    lines[row] = lines[row].rpartition(b",")[0] + b",70000"
    (files / "large.csv").write_bytes(b"\n\n".join(lines))
    selection = RowSelection(test_fraction=fraction)
    recipe = Recipe(element="fp16", selection=selection)
    drawn = selection.drawn(0, row + 1)
    name = "o-test.h5" if drawn[row] else "o.h5"
    place = int((drawn == drawn[row]).sum()) - 1
    said = f"{files / name}: 70000 at row {place} is too large for fp16"
    for ranks in RANKS:
        with pytest.raises(DataError) as raised:
            share(ranks, lambda: CsvSource(files / "large.csv"), files / "o.h5", recipe)
        assert str(raised.value).startswith(said), (ranks, raised.value)
        assert not list(files.glob(".*")) and not (files / "o.h5").exists()


def test_a_fault_of_the_writer_reaches_all(files):
    recipe = Recipe(labels=((1.0, 0.0),))
    row = int(np.argmax(Y == 2))
    for ranks in RANKS:
        with pytest.raises(DataError, match=f"row {row} has the label 2"):
            share(ranks, lambda: CsvSource(files / "a.csv"), files / "o.h5", recipe)
    with pytest.raises(ConfigError, match="the source has 500"):
        rows = Recipe(selection=RowSelection(rows=501))
        share(3, lambda: CsvSource(files / "a.csv"), files / "o.h5", rows)
    (files / "o.h5").write_text("")
    with pytest.raises(ConfigError, match="--force"):
        share(3, lambda: CsvSource(files / "a.csv"), files / "o.h5", recipe)


def test_little_memory_means_few_who_parse(files):
    from hpcsgd.data.convert.pipeline import workers

    class Four:
        rank, size = 0, 4

    assert workers(Crew(Four()), Recipe(memory=40 * 2**20)) == 2
    assert workers(Crew(Four()), Recipe(memory=16 * 2**20)) == 1
    assert workers(Crew(Four()), Recipe()) == 4
    make = lambda: CsvSource(files / "a.csv")  # noqa: E731
    share(3, make, files / "o.h5", Recipe(memory=16 * 2**20))
    share(1, make, files / "p.h5", Recipe())
    assert sums(files / "o.h5") == sums(files / "p.h5")


def test_what_cannot_be_split_is_converted_by_rank_0(files, caplog):
    np.savez(files / "a.npz", X=X, y=Y.astype(float))
    from hpcsgd.data.convert.sources import NpzSource

    (files / "a.csv.gz").write_bytes(gzip.compress((files / "a.csv").read_bytes()))
    for make in (
        lambda: NpzSource(files / "a.npz"),
        lambda: CsvSource(files / "a.csv.gz"),
    ):
        with caplog.at_level("INFO"):
            said = share(3, make, files / "o.h5", Recipe(element="fp64"), force=True)
        assert said[2]["files"][0]["rows"] == ROWS
        assert [r.message for r in caplog.records].count(
            "only uncompressed text can be divided among ranks; rank 0 converts all"
            f" of {make().path}"
        ) == 1
        np.testing.assert_array_equal(content(files / "o.h5")[0], X)


def test_a_text_that_changes_between_the_passes_is_refused(files, monkeypatch):
    path = files / "a.csv"

    class Changing(Quiet):
        def begin(self, what, size):
            if what == "writing":
                with open(path, "ab") as file:
                    file.write(b"1,2\n")

    for ranks in (1, 3):

        def run(world):
            crew = Crew(world)
            return convert(
                CsvSource(path), files / "o.h5", Recipe(), Changing(), crew=crew
            )

        with pytest.raises(DataError, match="changed while it was read"):
            run_ranks(ranks, run)
        assert not list(files.glob(".*"))
        path.write_bytes(path.read_bytes()[:-4])


def test_those_that_wait_for_rank_0_hear_from_it(files, monkeypatch):
    """Often, and a key pressed elsewhere reaches it in the middle of its work."""
    from hpcsgd.data.convert import parallel as module

    monkeypatch.setattr(module, "BEAT", 0.0)
    (files / "a.csv.gz").write_bytes(gzip.compress((files / "a.csv").read_bytes()))
    make = lambda: CsvSource(files / "a.csv.gz")  # noqa: E731
    said = share(3, make, files / "whole.h5", Recipe())
    assert said[0] == said[1] == said[2]
    heard = [0, 0, 0]

    def run(world):
        crew = Crew(world)
        agree = crew.agree

        def hearing(fault, word=None):
            heard[world.rank] += 1
            if world.rank == 1 and heard[1] == 12:
                crew.interrupt()
            return agree(fault, word)

        crew.agree = hearing
        with pytest.raises(KeyboardInterrupt):
            convert(make(), files / "o.h5", Recipe(), Quiet(), crew=crew)

    run_ranks(3, run)
    assert heard[0] == heard[1] == heard[2] == 12
    assert not (files / "o.h5").exists()
    (files / "bad.csv.gz").write_bytes(gzip.compress(b"1,2\n1,x\n"))
    with pytest.raises(DataError, match="line 2"):
        share(3, lambda: CsvSource(files / "bad.csv.gz"), files / "o.h5", Recipe())
