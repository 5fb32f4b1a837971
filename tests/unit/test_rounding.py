"""Rounding in place: bit for bit what ml_dtypes casts, without its double roundings."""

import ml_dtypes
import numpy as np
import pytest

from hpcsgd.formats import (
    FORMATS,
    count_lost,
    decode,
    encode,
    get_format,
    round_randomly,
    round_through,
    wider,
)

THEIRS = {
    "bf16": ml_dtypes.bfloat16,
    "fp16": np.float16,
    "fp8-e4m3": ml_dtypes.float8_e4m3fn,
    "fp8-e5m2": ml_dtypes.float8_e5m2,
}


def all_of(name):
    """Every number that the format has, ascending, as float32: -inf and NaN too."""
    bits = np.arange(2 ** (8 * np.dtype(THEIRS[name]).itemsize), dtype=np.uint32)
    kind = np.uint8 if np.dtype(THEIRS[name]).itemsize == 1 else np.uint16
    return bits.astype(kind).view(THEIRS[name]).astype(np.float32)


def edges(name):
    """For neighbours: the midpoint and one ulp of float32 either side, both signs."""
    finite = np.unique(all_of(name)[np.isfinite(all_of(name))].astype(np.float64))
    middle = ((finite[:-1] + finite[1:]) / 2).astype(np.float32)
    low, high = np.float32(-np.inf), np.float32(np.inf)
    return np.concatenate(
        [middle, np.nextafter(middle, low), np.nextafter(middle, high)]
    )


def specials(name):
    form = get_format(name)
    one = np.array(
        [0.0, form.tiny, form.tiny / 2, 2.0**form.least, form.largest, np.inf],
        dtype=np.float32,
    )
    around = [
        one,
        np.nextafter(one, np.float32(0)),
        np.nextafter(one, np.float32(np.inf)),
    ]
    with np.errstate(over="ignore"):
        beyond = np.array([1.02, 1.04, 1.07, 2.0, 1e3]) * form.largest
        around.append(beyond.astype(np.float32))
    positive = np.concatenate([*around, np.array([np.nan], dtype=np.float32)])
    return np.concatenate([positive, -positive])


def same(found, wanted):
    """The same bits, where NaN is NaN."""
    nan = np.isnan(wanted)
    np.testing.assert_array_equal(np.isnan(found), nan)
    np.testing.assert_array_equal(
        found[~nan].view(np.uint32), wanted[~nan].view(np.uint32)
    )


@pytest.mark.parametrize("draw", [edges, specials, all_of])
@pytest.mark.parametrize("name", THEIRS)
def test_bit_for_bit(name, draw):
    values = draw(name)
    with np.errstate(all="ignore"):
        wanted = values.astype(THEIRS[name]).astype(np.float32)
        found = values.copy()
        round_through(found, name)
        same(found, wanted)
        same(decode(encode(values, name), name, np.float32), wanted)


@pytest.mark.parametrize("name", THEIRS)
def test_random_bits(name):
    bits = np.random.default_rng(3).integers(0, 2**32, size=200_000, dtype=np.uint32)
    values = bits.view(np.float32)
    with np.errstate(all="ignore"):
        wanted = values.astype(THEIRS[name]).astype(np.float32)
        round_through(values, name)
    same(values, wanted)


def test_tf32_keeps_ten_bits():
    """Against rounding by arithmetic in float64: no library has the format."""
    rng = np.random.default_rng(4)
    fractions = rng.integers(2**10, 2**11, size=4000) / 2.0**10
    exact = fractions * 2.0 ** rng.integers(-130, 120, size=4000)
    half = 2.0 ** (np.floor(np.log2(exact)) - 11)
    even = np.where((fractions * 2**10) % 2 == 0, exact, exact + 2 * half)
    normal = exact > 2.0**-125
    for shift, wanted in ((0, exact), (half, even), (0.99 * half, exact)):
        values = (exact + shift).astype(np.float32)
        round_through(values, "tf32")
        np.testing.assert_array_equal(values[normal], wanted[normal].astype(np.float32))
    assert encode(np.array([1 + 2.0**-11 + 2.0**-40]), "tf32") == np.float32(1 + 2**-10)


@pytest.mark.parametrize("name", ["tf32", *THEIRS])
def test_float64_is_rounded_once(name):
    """By way of float32, a hair above a midpoint would become one, and go to even."""
    form = get_format(name)
    even = 1.0  # its fraction is even: a tie with its neighbour goes to it
    above = even + form.unit_roundoff + 2.0**-45
    values = np.array([above, -above, even + form.unit_roundoff])
    assert values.astype(np.float32)[0] == even + np.float32(form.unit_roundoff)
    round_through(values, name)
    up = even + 2 * form.unit_roundoff
    assert values.tolist() == [up, -up, even]
    assert decode(encode(np.array([above]), name), name, np.float64) == up


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_what_a_table_row_says(name):
    """Largest, smallest, roundoff: numbers of the format whose neighbours are not."""
    form = FORMATS[name]
    one = max(1.0, 2.0**form.least)  # of int8, below which all is one apart
    values = np.array([form.largest, form.tiny, one * (1 + 2 * form.unit_roundoff)])
    held = values.copy()
    round_through(held, name)
    np.testing.assert_array_equal(held, values)
    others = np.array([one * (1 + form.unit_roundoff), form.tiny / 2])
    if name != "fp64":
        round_through(others, name)
        assert others.tolist() == [one, 0]
    with np.errstate(over="ignore"):
        beyond = np.array([form.largest * (1 + 1.01 * form.unit_roundoff)])
    if name != "fp64":
        with np.errstate(over="ignore"):
            round_through(beyond, name)
        assert not np.isfinite(beyond[0]) and np.isnan(beyond[0]) != form.has_infinity


def test_wider():
    assert wider("bf16", "fp32") == "fp32" == wider("fp32", "tf32")
    assert wider("fp8-e5m2", "fp8-e4m3") == "fp8-e4m3"


def test_what_is_lost_is_counted():
    values = np.array([0.0, 500.0, -449.0, 448.0, 2.0**-10, 2.0**-9, -1e-30])
    assert count_lost(values, "fp8-e4m3") == (2, 2)


class TestAtRandom:
    """Up or down, the nearer the likelier."""

    @pytest.mark.parametrize("name", ["tf32", *THEIRS])
    def test_only_neighbours_and_the_mean_is_right(self, name):
        rng, unit = np.random.default_rng(0), FORMATS[name].unit_roundoff
        for value in (1 + 0.6 * unit, -3.3, 2.0 ** FORMATS[name].least * 0.3):
            exact = np.full(40_000, value, dtype=np.float64)
            draws = rng.random(len(exact), dtype=np.float32)
            held = exact.copy()
            round_randomly(held, name, draws)
            found = np.unique(held)
            assert len(found) == 2 and found[0] < value < found[1]
            nearest = held.copy()
            round_through(nearest, name)
            np.testing.assert_array_equal(nearest, held)
            spread = (found[1] - found[0]) / np.sqrt(len(exact))
            assert abs(held.mean() - value) < 4 * spread

    def test_what_fits_stays(self):
        values = np.array([1.0, -0.0, 0.0, 448.0, np.nan, 2.0**-9], dtype=np.float32)
        for draw in (0.0, 0.999):
            held = values.copy()
            round_randomly(held, "fp8-e4m3", np.full(6, draw, dtype=np.float32))
            np.testing.assert_array_equal(held, values)
            np.testing.assert_array_equal(np.signbit(held), np.signbit(values))

    def test_it_never_leaves_the_format(self):
        values = np.array([447.0, -447.9, 1e9], dtype=np.float32)
        round_randomly(values, "fp8-e4m3", np.zeros(3, dtype=np.float32))
        assert values.tolist() == [448.0, -448.0, 448.0]

    @pytest.mark.parametrize("name", ["fp32", "tf32", *THEIRS])
    def test_values_beyond_the_largest_number_become_it(self, name):
        values = np.array([1e60, -1e60, np.inf, np.nan, 3.0])
        with np.errstate(invalid="ignore"):  # infinity less infinity
            round_randomly(values, name, np.full(5, 0.5, dtype=np.float32))
        most = FORMATS[name].largest
        np.testing.assert_array_equal(values, [most, -most, most, np.nan, 3.0])
