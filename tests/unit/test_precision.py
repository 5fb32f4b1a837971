"""Formats: bit-exact casts, roundoffs, recipes."""

import ml_dtypes
import numpy as np
import pytest

from hpcsgd.formats import FORMATS
from hpcsgd.precision import RECIPES, make_precision
from hpcsgd.rounding import round_through
from hpcsgd.storage import decode, encode, widen_bf16

EVERY_BF16 = np.arange(2**16, dtype=np.uint16)


def test_widening_is_exact_for_every_bf16():
    wide = widen_bf16(EVERY_BF16, np.float32)
    expected = EVERY_BF16.view(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(wide.view(np.uint32) >> 16, EVERY_BF16)
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(wide[finite], expected[finite])


def test_rounding_is_to_nearest_even():
    """Midpoints of neighbours go to the even one, an ulp either side to the nearer."""
    low = EVERY_BF16[:0x7F7F]  # finite and positive, the largest left out
    here, after = widen_bf16(low, np.float64), widen_bf16(low + 1, np.float64)
    middle = ((here + after) / 2).astype(np.float32)
    even = np.where(low % 2 == 0, low, low + 1)
    np.testing.assert_array_equal(encode(middle, "bf16"), even)
    down = np.nextafter(middle, np.float32(0))
    up = np.nextafter(middle, np.float32(np.inf))
    np.testing.assert_array_equal(encode(down, "bf16"), low)
    np.testing.assert_array_equal(encode(up, "bf16"), low + 1)


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_roundoff_is_the_worst_relative_error(name):
    values = 1 + np.random.default_rng(0).uniform(size=20000)
    stored = decode(encode(values, name), name, np.float64)
    worst = np.max(np.abs(stored - values) / values)
    unit = FORMATS[name].unit_roundoff
    assert worst <= unit
    assert worst > 0.4 * unit or name == "fp64"


def test_round_through_keeps_the_dtype():
    values = np.array([1.0 + 2**-9, 3.0], dtype=np.float32)
    round_through(values, "bf16")
    assert values.dtype == np.float32
    assert values.tolist() == [1.0, 3.0]
    values = np.array([1.0 + 2**-30])
    round_through(values, "fp32")
    assert values.tolist() == [1.0]


def test_recipes_are_what_the_table_says():
    c = RECIPES["c"]
    assert (c.matrix, c.margin) == ("bf16", "bf16")
    assert {c.margin_sum, c.gram_sum, c.gram_wire, c.inner, c.weights} == {"fp32"}
    assert c.one_message
    assert not make_precision("c", {"gram_wire": "fp64"}).one_message
    assert make_precision("c", {"gram_sum": "fp64"}).working == np.float64
