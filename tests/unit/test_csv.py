"""CSV as a source: layouts, missing values, and every bad input."""

import numpy as np
import pytest

from hpcsgd.data.convert import parsers
from hpcsgd.data.convert.csv import CsvOptions, CsvSource
from hpcsgd.errors import DataError, HpcsgdError


@pytest.fixture(params=["native", "python"], autouse=True)
def parser(request, monkeypatch):
    if request.param == "python":
        monkeypatch.setattr(parsers, "available", lambda: False)


def read(folder, text, **options):
    path = folder / "x.csv"
    path.write_bytes(text)
    source = CsvSource(path, CsvOptions(**options))
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


TABLES = {
    "blanks": b"a y   w\n1 2 3\n\n  4   5 6",
    "blanks and tabs": b" a \t y w \r\n1\t2 \t3\r\n \t \r\n4 \t 5 6 \r\n",
    "quotes": b'"a" "y" "w"\n"1" 2 3\n4 "5" 6\n',
}


@pytest.mark.cases("all")
@pytest.mark.parametrize("name", TABLES)
def test_fields_may_be_apart_by_blanks(tmp_path, name):
    for delimiter in ("auto", "whitespace"):
        rows = read(
            tmp_path,
            TABLES[name],
            delimiter=delimiter,
            label_column="y",
            weight_column="last",
        )
        np.testing.assert_array_equal(rows.X, [[1], [4]])
        np.testing.assert_array_equal([rows.y, rows.weights], [[2, 5], [3, 6]])


def test_blanks_in_a_field_of_a_comma_separated_file_separate_nothing(tmp_path):
    assert read(tmp_path, b"1, 2 ,3\n4 ,5, 6\n").X.tolist() == [[2, 3], [5, 6]]
    with pytest.raises(DataError, match=r"line 2 .*, column 1: '5' is not a number"):
        read(tmp_path, b"1,2\n4,5 6\n")


TEXTS = (
    'age,color,y,city\n30,red,1,"Berlin, Mitte"\n40, blue ,0,Köln\n'
    '50,red,1,Köln\n20,"green",0,"""Ulm"""\n'
)
ONE_HOT = {
    "age": [30, 40, 50, 20],
    "color=blue": [0, 1, 0, 0],
    "color=green": [0, 0, 0, 1],
    "color=red": [1, 0, 1, 0],
    'city="Ulm"': [0, 0, 0, 1],
    "city=Berlin, Mitte": [1, 0, 0, 0],
    "city=Köln": [0, 1, 1, 0],
}


def csv_source(folder, text, **options):
    path = folder / "x.csv"
    path.write_text(text, encoding="utf-8")
    return CsvSource(path, CsvOptions(**options))


@pytest.mark.parametrize("piece", [1, 30, 2**20])
def test_columns_of_text_become_a_column_for_each_level(tmp_path, piece):
    source = csv_source(tmp_path, TEXTS, categories=("city", "color"))
    source.piece = piece
    outline = source.outline(lambda end: None)
    assert outline.columns.names == tuple(ONE_HOT) and outline.rows == 4
    assert outline.columns.categories == {
        "color": ["blue", "green", "red"],
        "city": ['"Ulm"', "Berlin, Mitte", "Köln"],
    }
    blocks = list(source.blocks(outline, 10**4))
    X = np.concatenate([block.X for block in blocks])
    np.testing.assert_array_equal(X, np.array(list(ONE_HOT.values())).T)
    assert np.concatenate([block.y for block in blocks]).tolist() == [1, 0, 1, 0]


def test_levels_that_are_numbers_are_in_their_order_and_may_lack_a_header(tmp_path):
    source = csv_source(tmp_path, "1,10,x\n0,9,y\n", categories=("1", "2"), header="no")
    outline = source.outline(lambda end: None)
    assert outline.columns.categories == {"1": ["9", "10"], "2": ["x", "y"]}
    assert outline.columns.names is None
    assert next(source.blocks(outline, 10**4)).X.tolist() == [
        [0, 1, 1, 0],
        [1, 0, 0, 1],
    ]


def test_a_missing_text_is_refused_or_the_share_of_each_level(tmp_path):
    text = "y,color,a\n1,red,5\n0,?,7\n1,blue,6\n0,red,6\n"
    with pytest.raises(DataError, match=r"line 3 .*, column 'color': .*missing"):
        csv_source(tmp_path, text, categories=("color",)).outline(lambda end: None)
    source = csv_source(tmp_path, text, categories=("color",), missing="mean")
    outline = source.outline(lambda end: None)
    X = next(source.blocks(outline, 10**4)).X
    np.testing.assert_allclose(
        X, [[0, 1, 5], [1 / 3, 2 / 3, 7], [1, 0, 6], [0, 1, 6]], rtol=1e-15
    )


def test_labels_may_be_text(tmp_path):
    text = "a,income\n1, >50K\n2,<=50K\n3,>50K\n"
    pairs = ((">50K", 1.0), ("<=50K", -1.0))
    source = csv_source(tmp_path, text, label_column="income", label=pairs)
    outline = source.outline(lambda end: None)
    assert outline.label_numbers == {">50K": 1.0, "<=50K": -1.0}
    rows = next(source.blocks(outline, 10**4))
    assert rows.y.tolist() == [1, -1, 1] and rows.X.tolist() == [[1], [2], [3]]


# options, text, what the sentence says
REFUSED_TEXTS = {
    "a text": (
        {},
        "y,color\n1,red\n",
        "line 2 .*, column 'color': 'red' is not a number.*--categories color",
    ),
    "a text label": ({}, "y,a\nyes,2\n", "column 'y': 'yes' is not a number.*--label"),
    "no header": ({}, "1,2\n3,4x\n", "line 2 .*, column 1: '4x' is not a number"),
    "a missing value": ({}, "y,a\n1,\n", "column 'a': a value is missing"),
    "not finite": ({}, "y,a,b\n1,2,inf\n", "column 'b': 'inf' is not finite"),
    "an unknown label": (
        {"label": (("yes", 1.0), ("no", 0.0))},
        "y,a\nyes,2\nmaybe,3\n",
        "line 3 .*, column 'y': the label 'maybe' has no number .*are yes, no",
    ),
    "an unknown column": (
        {"categories": ("hue",)},
        "y,color\n1,red\n",
        "no --categories column 'hue'; its column names: y, color",
    ),
    "the labels": (
        {"categories": ("y",)},
        "y,color\n1,red\n",
        "--categories names column y, which is the label column",
    ),
    "twice": (
        {"categories": ("color", "1")},
        "y,color\n1,red\n",
        "column 1, which is named twice",
    ),
    "no labels": (
        {"label": (("yes", 1.0),), "label_column": "none"},
        "y,a\n1,2\n",
        "--label needs a label column",
    ),
    "numbers of rows": (
        {"categories": ("id",)},
        "y,id\n" + "".join(f"1,r{n}\n" for n in range(10_001)),
        "column 'id' has more than 10000 different values",
    ),
}


@pytest.mark.cases("all")
@pytest.mark.parametrize("name", REFUSED_TEXTS)
def test_what_is_wrong_with_a_text_names_its_column(tmp_path, name):
    options, text, said = REFUSED_TEXTS[name]
    with pytest.raises(HpcsgdError, match=said):
        source = csv_source(tmp_path, text, **options)
        list(source.blocks(source.outline(lambda end: None), 10**4))


def test_a_text_that_is_not_utf_8_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"line 2 .*, column 'color': .*not UTF-8"):
        read(tmp_path, b"y,color\n1,gr\xfcn\n", categories=("color",))


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
    assert outline.label == f"column {name!r}" and outline.columns.names == ("a", "b")


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
        assert outline.columns.names is None
