"""LIBSVM text as a source: rows, bases, ranges, and every bad input."""

import bz2
import gzip
import lzma

import numpy as np
import pytest
import scipy.sparse

from hpcsgd.data.convert import parsers
from hpcsgd.data.convert.libsvm import LibsvmSource
from hpcsgd.errors import DataError

TEXT = b"".join(b"%d 1:%d 3:0.5 # c\n" % (k % 2, k) for k in range(50))


@pytest.fixture(params=["native", "python"], autouse=True)
def parser(request, monkeypatch):
    if request.param == "python":
        monkeypatch.setattr(parsers, "available", lambda: False)


def read(path, start=0, **options):
    source = LibsvmSource(path, **options)
    source.piece = 40
    outline = source.outline(lambda end: None)
    blocks = list(source.blocks(outline, 2**20, start))
    X = scipy.sparse.vstack([b.X for b in blocks]).toarray() if blocks else None
    return outline, X, [v for b in blocks for v in b.y], blocks


@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress, lzma.compress])
def test_rows_whatever_the_compression(tmp_path, pack):
    path = tmp_path / "x"
    path.write_bytes(pack(TEXT))
    outline, X, y, blocks = read(path)
    assert (outline.rows, outline.cols, outline.nnz) == (50, 3, 100)
    assert len(blocks) > 5 and blocks[-1].end == outline.size == len(TEXT)
    expected = [[k, 0, 0.5] for k in range(50)]
    np.testing.assert_array_equal(X, expected)
    assert y == [k % 2 for k in range(50)]
    _, rest, _, _ = read(path, start=blocks[2].end)
    np.testing.assert_array_equal(rest, X[sum(b.X.shape[0] for b in blocks[:3]) :])


def test_an_index_0_means_columns_from_0(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"1 1:2\n1 0:5 1:1")
    np.testing.assert_array_equal(read(path)[1], [[0, 2], [5, 1]])


def test_columns_that_are_nowhere_in_the_text(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"1 1:2\n")
    assert read(path, cols=5)[1].tolist() == [[2, 0, 0, 0, 0]]
    path.write_bytes(b"1 9:2\n")
    with pytest.raises(DataError, match="has 9 columns and --cols says 5"):
        read(path, cols=5)


BAD = {
    b"": "holds no rows",
    b"1 1:1\n1 1:1 1:2\n": r"line 2 \(byte 12\).*twice",
    b"1 2:1 1:2": "line 1 .*sort the row",
    b"x 1:2": "'x' is not a number",
    b"1 1:nan": "not finite",
    b"1 1:1e999": "not finite",
    b"1 3000000000:1": "beyond 2",
    b"1:2 3:4": "label is missing",
    b"1 5": "not index:value",
    b"\x00\x01\x02": "byte 0x00 does not belong",
}


@pytest.mark.parametrize("text", BAD)
def test_bad_input_is_one_sentence(tmp_path, text):
    path = tmp_path / "x"
    path.write_bytes(text)
    with pytest.raises(DataError, match=BAD[text]):
        read(path)


def test_an_index_0_in_a_file_said_to_be_1_based(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"1 0:1\n")
    with pytest.raises(DataError, match="columns count from 1"):
        LibsvmSource(path, 1).outline(lambda end: None)


def test_a_file_that_changes_is_refused(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(TEXT)
    source = LibsvmSource(path)
    source.piece = 40
    blocks = source.blocks(source.outline(lambda end: None), 300)
    next(blocks)
    with open(path, "ab") as file:
        file.write(b"1 1:1\n")
    with pytest.raises(DataError, match="changed while it was read"):
        list(blocks)


QUERIES = [7, 7, 2**63 - 1, 0]
QUERIED = (
    b"# all\n1 qid:7 1:2\n\n0 qid:007 2:1 # c\n1 qid:%d\n1\tqid:0 1:3" % QUERIES[2]
)


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_queries_are_kept(tmp_path, pack):
    path = tmp_path / "x"
    path.write_bytes(pack(QUERIED))
    outline, X, y, blocks = read(path)
    assert len(blocks) > 1 and y == [1, 0, 1, 1] and X[:, 0].tolist() == [2, 0, 0, 3]
    queries = np.concatenate([block.queries for block in blocks])
    assert queries.dtype == np.int64 and queries.tolist() == QUERIES
    path.write_bytes(pack(TEXT))
    assert all(block.queries is None for block in read(path)[3])


MIXED = {
    b"1 qid:1 1:2\n1 1:2\n1 qid:1 1:2": r"line 2 \(byte 12\).*\('1'\)",
    b"1 1:2\n" * 20 + b"1 qid:3 1:2": r"line 21 \(byte 122\).*\('qid:3'\)",
    b"1 qid:1\n1 qid:1 1:2\n" * 9 + b"  2": r"line 19 \(byte 182\).*\('2'\)",
}


@pytest.mark.parametrize("text", MIXED)
def test_queries_of_some_rows_are_refused(tmp_path, text):
    path = tmp_path / "x"
    path.write_bytes(text)
    with pytest.raises(DataError, match=MIXED[text]) as said:
        read(path)
    assert "give every row one, or none" in str(said.value)


@pytest.mark.parametrize("query", [b"", b"-1", b"1.0", b"x", b"%d" % 2**63, b"9" * 400])
def test_a_query_is_a_number(tmp_path, query):
    path = tmp_path / "x"
    path.write_bytes(b"1 qid:1 1:2\n1 qid:" + query + b" 1:2\n")
    with pytest.raises(DataError, match=r"line 2 \(byte 14\).*below 2\^63"):
        read(path)
