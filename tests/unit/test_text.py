"""Every line is in exactly one piece, whoever reads it and in what order."""

import gzip

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcsgd.data.convert import text as module
from hpcsgd.data.convert.text import count_pieces, pieces, read_piece
from hpcsgd.errors import DataError

SLOW = settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
LINES = st.lists(st.binary(max_size=30).map(lambda b: b.replace(b"\n", b"x")))
ENDINGS = st.sampled_from([b"\n", b"\r\n"])


def text_of(lines, ending, is_ended):
    text = ending.join(lines) + (ending if is_ended and lines else b"")
    if text[:1] in (b"", b"\r", b"\n"):
        return text
    return b"_" + text[1:]  # no mark of a compressed file, nor of UTF-8


def expected(text, number, size):
    """The lines that begin in a range, found in the plainest way."""
    starts = [0, *(k + 1 for k, byte in enumerate(text) if byte == ord("\n"))]
    ours = [s for s in starts if number * size <= s < (number + 1) * size]
    ends = [text.find(b"\n", s) + 1 or len(text) for s in ours]
    return b"".join(text[s:e] for s, e in zip(ours, ends, strict=True))


@SLOW
@given(LINES, ENDINGS, st.booleans(), st.integers(1, 50), st.integers(1, 9))
def test_every_line_is_in_one_piece(tmp_path, lines, ending, is_ended, size, tail):
    path, text = tmp_path / "x", text_of(lines, ending, is_ended) if lines else b""
    path.write_bytes(text)
    packed = tmp_path / "x.gz"
    packed.write_bytes(gzip.compress(text, 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "TAIL", tail)
        numbers = range(count_pieces(len(text), size))
        found = [read_piece(path, number, size) for number in numbers]
        in_one_go = list(pieces(packed, 0, size))
    if text:
        assert not read_piece(path, len(numbers), size).text
    for number, piece in zip(numbers, found, strict=True):
        wanted = expected(text, number, size)
        assert piece.text == wanted + (
            b"\n" if wanted[-1:] not in (b"", b"\n") else b""
        )
        if wanted:
            assert text[piece.position : piece.end] == wanted
    assert [piece for piece in found if piece.text] == in_one_go
    assert b"".join(expected(text, n, size) for n in numbers) == text
    for piece in in_one_go:  # from the middle on, as after a break
        rest = [other for other in in_one_go if other.position >= piece.position]
        assert list(pieces(path, piece.position, size)) == rest


def test_a_line_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LINE_LIMIT", 500)
    path = tmp_path / "x"
    path.write_bytes(b"1 1:2\n" + b"9" * 1000 + b"\n1 1:3\n")
    said = []
    for read in (lambda: list(pieces(path, 0, 64)), lambda: read_piece(path, 0, 64)):
        with pytest.raises(
            DataError, match="begins at byte 6 is longer than"
        ) as caught:
            read()
        said.append(str(caught.value))
    assert said[0] == said[1]
    assert not read_piece(path, 3, 64).text, "the middle of a line is nobody's"
