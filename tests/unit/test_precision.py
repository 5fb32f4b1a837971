"""Formats: bit-exact casts, roundoffs, recipes."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from scipy.sparse import csr_array

from hpcsgd.backends.base import make_scaling
from hpcsgd.errors import ConfigError
from hpcsgd.formats import FORMATS, decode, encode, round_through, widen_bf16
from hpcsgd.precision import RECIPES, PrecisionConfig, make_precision
from tests.helpers.harness import config_for, make_problem, train_on

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
    values = np.minimum(values * max(1.0, 2.0 ** FORMATS[name].least), 127.0)
    stored = decode(encode(values, name), name, np.float64)
    worst = np.max(np.abs(stored - values) / values)
    unit = FORMATS[name].unit_roundoff
    assert worst <= unit
    assert worst > 0.4 * unit or name == "fp64"


def test_bytes_of_a_column_are_whole_numbers_of_its_scale():
    """int8: q = rint(x/s), |x − s q| ≤ s/2, zero is exact, no column beyond 127."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(50, 6)) * 10.0 ** np.arange(-3, 3)
    X[:, 4] = 0.0
    scaling = make_scaling(
        FORMATS["int8"], np.abs(X).max(axis=0), slice(0, 6), "column"
    )
    stored = encode(scaling.up(X), "int8")
    scale = np.ldexp(1.0, -scaling.exponents)
    assert stored.dtype == np.int8
    np.testing.assert_array_equal(stored, np.rint(X / scale))
    found = decode(stored, "int8", np.float64)
    scaling.down(found)
    assert (np.abs(found - X) <= scale / 2).all()
    assert not found[:, 4].any()
    assert (np.abs(stored).max(axis=0)[[0, 1, 2, 3, 5]] > 63).all()  # no bit is idle


def test_bytes_are_for_matrices_alone():
    config = PrecisionConfig(matrix="int8")
    assert config.resolve().matrix == "int8"
    with pytest.raises(ConfigError, match=r"must be one of fp64.*fp8-e5m2$"):
        PrecisionConfig(margin="int8").resolve()


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


@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize("kind", ["gram", "direct", "gather", "cached"])
def test_runs_on_bytes_stay_near_those_on_floats(members, kind):
    """Dense and sparse rows, columns of very different sizes."""
    problem = make_problem("logistic", n=60, d=9)
    rows = problem.X * 2.0 ** np.arange(-4, 5)
    for X in (rows, csr_array(np.where(np.abs(rows) > 0.1, rows, 0))):
        losses = []
        for form in ("fp32", "int8"):
            config = config_for(
                problem,
                products={"kind": kind},
                precision={"recipe": "fp32", "matrix": form},
                rate={"value": 0.005},
            )
            losses.append(train_on(members, config, replace(problem, X=X)).loss)
        assert losses[0] != losses[1]
        assert abs(losses[1] / losses[0] - 1) < 0.01
