"""Texts that went wrong once, and valid ones, through both parsers in every way."""

import pytest

from hpcsgd.data.convert import parsers
from tests.fuzz.compare import FOUND, cuts, differences, differences_in_files

TEXTS = sorted(FOUND.glob("*.txt"))
# Without the compiled parser its fallback is compared with itself.


@pytest.mark.cases(2)
@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.stem)
def test_both_parsers_take_the_same_lines(path):
    text = path.read_bytes()
    assert differences(text) == []
    assert differences_in_files(text, cuts(text, 0.5)) == []


def test_the_texts_are_there_and_parsers_that_differ_are_found(monkeypatch):
    assert len(TEXTS) > 10
    monkeypatch.setattr(parsers, "count_lines", lambda text, delimiter: -1)
    assert differences(b"1 1:2\n") == ["lines"] * 4


def test_a_breakdown_is_found(monkeypatch):
    def breaks(text, layout):
        raise ValueError("no refusal")

    monkeypatch.setattr(parsers, "parse_csv", breaks)
    assert "csv" in differences(b"1,2,3\n")
    found = differences_in_files(b"1,2,3\n2,3,4\n", range(0))
    assert found == ["source csv error", "source csv mean"]
