"""CSV as a source: layouts, missing values, and every bad input."""

import numpy as np
import pytest

from hpcsgd.data.convert import parsers
from hpcsgd.data.convert.csv import CsvSource
from hpcsgd.errors import DataError


@pytest.fixture(params=["native", "python"], autouse=True)
def parser(request, monkeypatch):
    if request.param == "python":
        monkeypatch.setattr(parsers, "available", lambda: False)


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


@pytest.mark.parametrize("name", ["label", "Y", "TARGET", "Class"])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_column_whose_name_says_so_holds_the_labels(tmp_path, name, place):
    names = ["a", "b"]
    names.insert(place, name)
    text = ",".join(names).encode() + b"\n1,2,3\n4,5,6\n"
    (tmp_path / "x.csv").write_bytes(text)
    source = CsvSource(tmp_path / "x.csv")
    outline = source.outline(lambda end: None)
    rows = next(source.blocks(outline, 10**4))
    table = np.array([[1, 2, 3], [4, 5, 6]])
    np.testing.assert_array_equal(rows.y, table[:, place])
    np.testing.assert_array_equal(rows.X, np.delete(table, place, axis=1))
    assert outline.label == f"column {name!r}" and outline.names == ("a", "b")


ASKED = {
    b"a,b,c\n1,2,3\n": "none of its columns is called label, y, target or class: a, b",
    b"y,label,c\n1,2,3\n": "several columns may hold its labels: 'y' and 'label'",
    b"class,Class,c\n1,2,3\n": "several columns",
}


@pytest.mark.parametrize("text", ASKED)
def test_labels_that_no_name_says_are_asked_for(tmp_path, text):
    with pytest.raises(DataError, match=f"{ASKED[text]}.*--label-column"):
        read(tmp_path, text)
    assert read(tmp_path, text, label_column=0).y.tolist() == [1]
    assert read(tmp_path, text, label_column="none").y is None


def test_without_a_header_labels_are_in_the_first_column(tmp_path):
    rows = read(tmp_path, b"7,2,3\n8,5,6\n")
    assert rows.y.tolist() == [7, 8]


def test_names_that_do_not_tell_columns_apart_are_none(tmp_path):
    for header in (b"y,a,a", b"y,a,"):
        (tmp_path / "x.csv").write_bytes(header + b"\n1,2,3\n")
        outline = CsvSource(tmp_path / "x.csv").outline(lambda end: None)
        assert outline.names is None
