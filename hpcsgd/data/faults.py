"""What can be wrong with a text: the kinds, and one sentence for each."""

from enum import IntEnum

from hpcsgd.errors import DataError


class Kind(IntEnum):
    """Numbers as in kernels/cpu/parse.c."""

    NUMBER = 1
    NONFINITE = 2
    LABEL = 3
    PAIR = 4
    INDEX = 5
    LARGE = 6
    BELOW = 7
    DUPLICATE = 8
    UNSORTED = 9
    QID = 10
    RAGGED = 11
    MISSING = 12
    ROOM = 13  # the caller's arrays are too small: never the fault of a text
    UNENDED = 14  # no newline at the end: never either
    MIXED = 15


SENTENCES = {
    Kind.NUMBER: "{token} is not a number; mend or leave out that line",
    Kind.NONFINITE: "{token} is not finite in float64; clean the file",
    Kind.LABEL: "the label is missing before {token}; begin each line with one",
    Kind.PAIR: "{token} is not index:value; mend that line",
    Kind.INDEX: "{token} has no whole number before its colon; mend that line",
    Kind.LARGE: "the index of {token} is beyond 2^31 - 1; number the columns from 1",
    Kind.BELOW: "{token} has index 0 where columns count from 1; say that the index"
    " base is 0, or mend that line",
    Kind.DUPLICATE: "the index of {token} comes twice in its row; leave one of them",
    Kind.UNSORTED: "the index of {token} is lower than the one before it; sort the row",
    Kind.QID: "{token} is not qid: and a whole number below 2^63; mend that line",
    Kind.MIXED: "some rows have qid:, as the first has or has not, and this one is not"
    " like it ({token}); give every row one, or none",
    Kind.RAGGED: "this row has not as many fields as the first one; mend that line",
    Kind.MISSING: "a value is missing ({token}); fill it in, or ask for the mean of its"
    " column where it is a feature",
}
SHOWN = 40  # characters of a token in a message


class Fault(Exception):
    """A parser's refusal: the kind, and the first byte in the text it was given."""

    def __init__(self, kind: int, position: int) -> None:
        super().__init__(kind, position)
        self.kind, self.position = Kind(kind), position


def refusal(place: str, kind: Kind, text: bytes) -> DataError:
    """The error for `text`, which begins with what was refused."""
    if kind not in SENTENCES:
        raise AssertionError(f"{kind.name} in {place}")
    token = text.split(b"\n", 1)[0]
    control = next((b for b in token if b < 9 or 13 < b < 32 or b > 126), None)
    if control is not None and kind is not Kind.RAGGED:
        return DataError(
            f"{place}: byte 0x{control:02x} does not belong to numbers in text; is this"
            " a binary file, or text that is not UTF-8?"
        )
    return DataError(f"{place}: {SENTENCES[kind].format(token=_shown(token, kind))}")


def _shown(token: bytes, kind: Kind) -> str:
    """The token alone, cut where it is long, in quotes."""
    if kind is not Kind.MISSING:
        token = (token.split() or [b""])[0]
    word = token[:SHOWN].decode("ascii", "replace").strip()
    return repr(word + ("..." if len(token) > SHOWN else ""))
