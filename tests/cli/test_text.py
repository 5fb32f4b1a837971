"""Text becomes a store that trains, on any number of ranks, or is one sentence."""

import bz2
import gzip
import lzma
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import scipy.sparse

import hpcsgd as package
from hpcsgd.cli import main
from hpcsgd.data.hdf5 import Hdf5Reader
from tests.helpers.command_line import only_json, start, values
from tests.helpers.limits import HANG

ROWS, COLS = 400, 60
RNG = np.random.default_rng(0)
THIN = scipy.sparse.random(ROWS, COLS, 0.04, format="csr", random_state=0)
FULL = np.round(RNG.normal(size=(ROWS, COLS)), 6)
Y = RNG.integers(0, 2, size=ROWS)


def libsvm(X):
    lines = []
    for y, row in zip(Y, X, strict=True):
        pairs = (f"{j + 1}:{row[j]!r}" for j in np.flatnonzero(row))
        lines.append(f"{y} " + " ".join(pairs).replace("np.float64", ""))
    return "\n".join(lines).replace("(", "").replace(")", "").encode()


def csv(X):
    rows = (",".join(map(repr, row)) for row in np.column_stack([Y, X]).tolist())
    return ("y," + ",".join(f"x{j}" for j in range(COLS)) + "\n").encode() + "\n".join(
        rows
    ).encode()


FILES = {
    "thin.svm": (libsvm(THIN.toarray()), THIN, []),
    "full.svm.xz": (lzma.compress(libsvm(FULL)), FULL, []),
    "thin-as-dense.libsvm": (libsvm(THIN.toarray()), THIN, ["--layout", "dense"]),
    "full.csv.gz": (gzip.compress(csv(FULL)), FULL, ["--label-column", "y"]),
    "unknown.bz2": (bz2.compress(csv(FULL)), FULL, ["--format", "csv"]),
}


@pytest.mark.cases(1)
@pytest.mark.parametrize("name", FILES)
def test_converted_text_trains_as_the_arrays_do(hpcsgd, tmp_path, name):
    content, X, flags = FILES[name]
    (tmp_path / name).write_bytes(content)
    fp64 = ["--element", "fp64", "--json"]
    made = (
        hpcsgd("data", "convert", name, "o.h5", "--cols", COLS, *flags, *fp64)
        if "svm" in name
        else hpcsgd("data", "convert", name, "o.h5", *flags, *fp64)
    )
    said = only_json(made)
    is_sparse = scipy.sparse.issparse(X) and "dense" not in flags
    assert said["sparse"] == is_sparse and said["columns"] == COLS
    settings = ["--epochs", 2, "--rate", 0.1, "--precision", "fp64", "--out", "run"]
    done = hpcsgd("train", "--data", "o.h5", "--ranks", 2, *settings)
    assert done.returncode == 0, done.stderr
    config = {
        "schedule": {"epochs": 2},
        "rate": {"value": 0.1},
        "precision": {"recipe": "fp64"},
    }
    given = X if is_sparse or not scipy.sparse.issparse(X) else X.toarray()
    expected = package.train(config, X=given, y=Y.astype(float))
    found = package.load_result(tmp_path / "run")
    np.testing.assert_allclose(found.weights, expected.weights, rtol=1e-9)
    assert found.loss == pytest.approx(expected.loss, rel=1e-12)


def test_options_of_text(hpcsgd, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("1;?;2\n3;4;5\n3;6;5\n")
    flags = ["--header", "no", "--delimiter", "semicolon", "--label-column", "-1"]
    more = ["--missing", "mean", "--map-labels", "2=0,5=1", "--element", "fp64"]
    assert main(["data", "convert", "a.txt", "o.h5", *flags, *more]) == 0
    X, y = values(tmp_path / "o.h5")
    assert X.tolist() == [[1, 5], [3, 4], [3, 6]] and y.tolist() == [0, 1, 1]
    none = ["--label-column", "none", "--missing", "mean", "--force"]
    assert main(["data", "convert", "a.txt", "o.h5", "--format", "csv", *none]) == 0
    assert Hdf5Reader(tmp_path / "o.h5").cols == 3
    (tmp_path / "a.svm").write_text("1 qid:3 1:2\n")
    assert (
        main(["data", "convert", "a.svm", "o.h5", "--index-base", "0", "--force"]) == 0
    )
    assert values(tmp_path / "o.h5")[0].tolist() == [[0, 2]]
    capsys.readouterr()
    for wrong in ("1=2=3", "a=1", ""):
        assert main(["data", "convert", "a.svm", "o.h5", "--map-labels", wrong]) == 2
        assert "write it as 1=-1,2=1" in capsys.readouterr().err
    assert main(["data", "convert", "a.svm", "o.h5", "--header", "no"]) == 2
    assert "--header is not for libsvm files" in capsys.readouterr().err


GOOD = b"1 1:2 3:4\n" * 5
AT = "line 6 (byte 50"
BAD = {
    "empty.svm": (b"", "holds no rows"),
    "empty.csv": (b"", "is empty"),
    "blank.svm": (b"\n\n# nothing\n", "holds no rows"),
    "bare.svm": (b"1\n0\n", "holds no features"),
    "header.csv": (b"y,a,b\n", "a header and no rows"),
    "short.csv": (b"1,2,3\n" * 3 + b"1,2\n", "line 4 (byte 18)"),
    "long.csv": (b"1,2,3\r\n" * 3 + b"1,2,3,4\r\n", "line 4 (byte 21)"),
    "word.csv": (
        b"1,2,3\n" * 3 + b"1,x,3\n",
        "line 4 (byte 20), column 1: 'x' is not a number",
    ),
    "hole.csv": (
        b"1,2,3\n" * 3 + b"1,,3\n",
        "line 4 (byte 20), column 1: a value is missing ('')",
    ),
    "nan.csv": (
        b"1,2,3\n" * 3 + b"1,nan,3\n",
        "line 4 (byte 20), column 1: a value is missing",
    ),
    "inf.csv": (
        b"1,2,3\n" * 3 + b"1,-inf,3\n",
        "line 4 (byte 20), column 1: '-inf' is not fi",
    ),
    "large.svm": (GOOD + b"1 2147483648:1\n", f"{AT[:-1]}2): the index of"),
    "twice.svm": (GOOD + b"1 2:1 2:3\n", "line 6 (byte 56): the index of '2:3' comes"),
    "order.svm": (GOOD + b"1 2:1 1:3\n", "line 6 (byte 56): the index of '1:3' is low"),
    "word.svm": (GOOD + b"1 2:one\n", "line 6 (byte 52): '2:one' is not a number"),
    "nan.svm": (GOOD + b"1 2:nan\n", "line 6 (byte 52): '2:nan' is not finite"),
    "inf.svm": (GOOD + b"1 2:1e400\n", "line 6 (byte 52): '2:1e400' is not finite"),
    "label.svm": (GOOD + b"2:1 3:2\n", "line 6 (byte 50): the label is missing"),
    "label2.svm": (GOOD + b"inf 3:2\n", "line 6 (byte 50): 'inf' is not finite"),
    "binary.svm": (bytes(range(256)) * 8, "line 1 (byte 0): byte 0x00 does not belong"),
    "binary.csv": (
        b"1,2\n\x7fELF\x02,\x01\n",
        "line 2 (byte 4), column 0: byte 0x7f does not",
    ),
    "not.svm.gz": (GOOD, "suffix .gz, but its first bytes are not those of gzip"),
    "other.svm.bz2": (gzip.compress(GOOD), "its first bytes are those of gzip"),
    "cut.svm.xz": (lzma.compress(GOOD * 900)[:-20], "the xz file is truncated or dam"),
    "cut.svm.gz": (gzip.compress(GOOD * 900)[:-9], "the gzip file is truncated or da"),
    "cut.csv.bz2": (bz2.compress(b"1,2\n" * 900)[:-9], "the bzip2 file is truncated"),
}


def refused(capsys, folder, source, said, *flags):
    """Code 2, one sentence with the file's name, and nothing left behind."""
    before = sorted(folder.iterdir())
    argv = ["data", "convert", str(source), str(folder / "o.h5"), *flags]
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == "" and len(err.strip().splitlines()) == 1, err
    assert source.name in err and said in err, err
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize("flags", [[], ["--standardize", "--test-fraction", "0.5"]])
@pytest.mark.parametrize("name", BAD)
def test_bad_text_is_one_sentence(capsys, tmp_path, name, flags):
    content, said = BAD[name]
    (tmp_path / name).write_bytes(content)
    refused(capsys, tmp_path, tmp_path / name, said, *flags)


def test_more_bad_text(capsys, tmp_path):
    path = tmp_path / "a.svm"
    path.write_bytes(GOOD + b"1 0:3\n")
    said = "line 6 (byte 52): '0:3' has index 0 where columns count from 1"
    refused(capsys, tmp_path, path, said, "--index-base", "1")
    refused(capsys, tmp_path, path, "--cols says 3", "--cols", "3")
    (tmp_path / "folder.svm").mkdir()
    refused(capsys, tmp_path, tmp_path / "folder.svm", "is a folder")
    refused(capsys, tmp_path, tmp_path / "none.svm", "does not exist")
    labels = tmp_path / "labels.csv"
    labels.write_bytes(b"y,a\n1,2\n")
    refused(capsys, tmp_path, labels, "no label column 'z'", "--label-column", "z")


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """40 MB of LIBSVM text."""
    path = tmp_path_factory.mktemp("large") / "large.svm"
    line = b"1 " + b" ".join(b"%d:0.%06d" % (j + 1, j * 7919) for j in range(28))
    path.write_bytes((line + b"\n") * (40_000_000 // len(line)))
    return path


def test_a_full_disk_is_one_sentence(tmp_path, large):
    process = start(["convert", large, "o.h5"], tmp_path, limit=2 * 2**20)
    out, said = process.communicate(timeout=HANG)
    assert process.returncode == 2 and out == "", said
    assert len(said.strip().splitlines()) == 1 and "cannot be written" in said, said
    assert not (tmp_path / "o.h5").exists()


def _is_midway(folder, process):
    part = folder / ".o.h5.part"
    while process.poll() is None:
        if part.exists() and part.stat().st_size > 2**20:
            return True
        time.sleep(0.002)
    return False


@pytest.mark.cases(1)
@pytest.mark.parametrize("ranks", [1, 2])
def test_an_interrupt_leaves_what_can_be_gone_on_with(hpcsgd, tmp_path, large, ranks):
    flags = ["--ranks", 2] if ranks == 2 else []
    for _ in range(5):  # one that is done before the signal comes says nothing
        process = start(["convert", large, "o.h5", "--force", *flags], tmp_path)
        _is_midway(tmp_path, process)
        process.send_signal(signal.SIGINT)
        out, said = process.communicate(timeout=HANG)
        if not (tmp_path / "o.h5").exists():
            break
        (tmp_path / "o.h5").unlink()
    assert process.returncode == 130 and out == "", said
    assert not (tmp_path / "o.h5").exists() and (tmp_path / ".o.h5.parts").exists()
    done = hpcsgd("data", "convert", large, "o.h5", "--resume")
    assert done.returncode == 0, done.stderr
    assert hpcsgd("data", "convert", large, "whole.h5").returncode == 0
    for one, other in zip(
        values(tmp_path / "o.h5"), values(tmp_path / "whole.h5"), strict=True
    ):
        assert (one == other).all()
    assert not list(tmp_path.glob(".*"))


def test_a_file_that_grows_is_refused(tmp_path, large):
    source = tmp_path / "growing.svm"
    source.write_bytes(large.read_bytes())
    for _ in range(5):  # one that is done before it grows has nothing to refuse
        process = start(["convert", source, "o.h5", "--force"], tmp_path)
        _is_midway(tmp_path, process)
        with open(source, "ab") as file:
            file.write(b"1 1:2\n")
        out, said = process.communicate(timeout=HANG)
        if process.returncode:
            break
        (tmp_path / "o.h5").unlink()
    assert process.returncode == 2 and out == "", said
    assert "growing.svm changed while it was read" in said
    assert [p.name for p in tmp_path.iterdir()] == ["growing.svm"]


def test_real_ranks_write_the_same_and_refuse_the_same(hpcsgd, tmp_path):
    lines = libsvm(FULL).split(b"\n") * 40
    (tmp_path / "a.svm").write_bytes(b"\n".join(lines))
    lines[-9] = b"1 1:2 1:3"
    (tmp_path / "b.svm").write_bytes(b"\n".join(lines))
    assert len(b"\n".join(lines)) > 5 * 2**20
    stored, said = [], set()
    for ranks in (1, 3):
        flags = ["o.h5", "--standardize", "--force", "--ranks", ranks]
        done = hpcsgd("data", "convert", "a.svm", *flags)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("o.h5: ") == 1
        stored.append(values(tmp_path / "o.h5"))
        (tmp_path / "o.h5").unlink()
        bad = hpcsgd("data", "convert", "b.svm", *flags)
        assert bad.returncode == 2 and bad.stdout == "", bad.stderr
        said.add(bad.stderr)
        assert sorted(p.name for p in tmp_path.iterdir()) == ["a.svm", "b.svm"]
    for other in stored[1:]:
        assert all((a == b).all() for a, b in zip(stored[0], other, strict=True))
    assert len(said) == 1, said
    sentence = said.pop()
    assert len(sentence.splitlines()) == 1 and "line 15992 (byte " in sentence


GROWTH = """
import sys
from pathlib import Path
from hpcsgd.cli import main
from hpcsgd.data.hdf5 import Hdf5Reader
import h5py, scipy.sparse, hpcsgd.cli.data, hpcsgd.cli.parser
import hpcsgd.data.convert.pipeline, hpcsgd.data.convert.libsvm

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(s.split()[1]) for s in lines if s.startswith("VmHWM"))

before = peak()
code = main(["data", "convert", *sys.argv[1:], "-q"])
print(code, (peak() - before) / 1024)
"""


def growth(source, *flags):
    """MiB that the peak of memory rises by while a text is converted."""
    folder = source.parent
    argv = [str(source), str(folder / "grown.h5"), "--force", *flags]
    done = subprocess.run(
        [sys.executable, "-c", GROWTH, *argv], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    code, grown = done.stdout.splitlines()[-1].split()
    assert code == "0", done.stderr
    return float(grown)


needs_proc = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="peaks are read from /proc"
)


@needs_proc
@pytest.mark.parametrize("layout", ["auto", "sparse"])
def test_memory_stays_bounded(large, layout):
    assert growth(large, "--memory", "16", "--layout", layout) < 16 + 100


@needs_proc
@pytest.mark.full
@pytest.mark.parametrize("flags", [[], ["--standardize"], ["--layout", "sparse"]])
def test_memory_stays_bounded_for_a_large_text(large, flags):
    path = large.parent / "larger.svm"
    with open(path, "wb") as file:
        for _ in range(6):
            file.write(large.read_bytes())
    assert growth(path, "--memory", "64", *flags) < 64 + 100
