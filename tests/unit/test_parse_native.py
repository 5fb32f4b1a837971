"""The compiled text parser and its fallback: the same values, the same bad lines."""

import struct

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hpcsgd.data.convert import parsers
from tests.fuzz.compare import outcomes

compiled = pytest.mark.skipif(not parsers.available(), reason=parsers.why())


@compiled
@settings(deadline=None)
@given(st.binary(max_size=80) | st.text("019.eE+-:#,;\t naif\n", max_size=60))
@example("")
def test_both_take_the_same_lines_for_the_same_values(text):
    data = (text if isinstance(text, bytes) else text.encode()) + b"\n"
    for name, first, second in outcomes(data):
        assert first == second, name


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    "parse", [parsers.parse_libsvm, parsers.parse_libsvm_in_python]
)
@settings(deadline=None, max_examples=300)
@given(
    st.floats(allow_nan=False, allow_infinity=False).map(repr)
    | st.from_regex(r"[0-9]{1,30}\.[0-9]{0,30}e-?[0-9]{1,2}", fullmatch=True)
)
@example("9007199254740993")
@example("5e-324")
@example("1" + "0" * 400 + "e-400")
def test_numbers_are_those_of_float(parse, token):
    found = parse(token.encode() + b" 1:" + token.encode() + b"\n", 1)
    for value in (found.labels[0], found.values[0]):
        assert struct.pack("d", value) == struct.pack("d", float(token))
