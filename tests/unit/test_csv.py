"""CSV as a source: layouts, missing values, and every bad input."""

import sys

import numpy as np
import pytest

from hpcsgd.data import parse_native
from hpcsgd.data.csv import CsvSource
from hpcsgd.errors import DataError


@pytest.fixture(params=["native", "arrow", "python"], autouse=True)
def parser(request, monkeypatch):
    if request.param != "native":
        monkeypatch.setattr(parse_native, "available", lambda: False)
    if request.param == "arrow":
        pytest.importorskip("pyarrow")
    if request.param == "python":
        monkeypatch.setitem(sys.modules, "pyarrow", None)


def read(folder, text, **options):
    path = folder / "x.csv"
    path.write_bytes(text)
    source = CsvSource(path, **options)
    return list(source.blocks(source.outline(lambda end: None), 10**4))[0]


@pytest.mark.parametrize("mark", [b",", b"\t", b";"])
def test_layouts(tmp_path, mark):
    text = b'a,"y",w\r\n1,2,3\n\n 4 ,"5",6'.replace(b",", mark)
    rows = read(tmp_path, text, label_column="y", weight_column="last")
    np.testing.assert_array_equal(rows.X, [[1], [4]])
    np.testing.assert_array_equal([rows.y, rows.weights], [[2, 5], [3, 6]])


def test_missing_values_become_the_mean(tmp_path):
    rows = read(tmp_path, b"1,2\n3,\n1,6\n", missing="mean")
    np.testing.assert_array_equal(rows.X, [[2], [4], [6]])


BAD = {
    b"": "is empty",
    b"y,a\n": "header and no rows",
    b"1,2\n3\n": r"line 2 \(byte 4\).*not as many fields",
    b"1,2\n3,\n": r"line 2 \(byte 6\).*missing",
    b"1,2\n3,x\n": "'x' is not a number",
    b"1,2\n3,inf\n": "not finite",
    b"1,x\n": "mixes numbers",
}


@pytest.mark.parametrize("text", BAD)
def test_bad_input_is_one_sentence(tmp_path, text):
    with pytest.raises(DataError, match=BAD[text]):
        read(tmp_path, text)
