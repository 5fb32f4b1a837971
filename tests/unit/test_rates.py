"""Rates as functions of the step's number."""

import numpy as np
import pytest

from hpcsgd.errors import ConfigError
from hpcsgd.rates import RATES, RateConfig, make_rate


@pytest.mark.parametrize("kind", sorted(RATES))
@pytest.mark.parametrize("warmup", [0, 4])
def test_pieces_make_the_whole(kind, warmup):
    """Asked for in groups of any size, the same rates."""
    rate = make_rate(RateConfig(kind, 0.5, decay=0.1, warmup=warmup), 20)
    whole = rate.at(0, 20)
    pieces = np.concatenate([rate.at(k, n) for k, n in ((0, 3), (3, 7), (10, 10))])
    np.testing.assert_array_equal(whole, pieces)
    assert (whole >= 0).all() and whole.max() <= 0.5


def test_formulas():
    def at(kind, k, **more):
        return make_rate(RateConfig(kind, 2.0, **more), 10).at(k, 1)[0]

    assert at("constant", 7) == 2.0
    assert at("inverse", 4, decay=0.5) == pytest.approx(2 / 3)
    assert at("inverse-sqrt", 6, decay=0.5) == pytest.approx(1.0)
    assert at("cosine", 0) == 2.0
    assert at("cosine", 5) == pytest.approx(1.0)
    assert at("constant", 0, warmup=4) == 0.5, "the first rate is not zero"
    assert at("constant", 3, warmup=4) == 2.0


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "steep"},
        {"value": 0.0},
        {"value": float("nan")},
        {"decay": -1.0},
        {"warmup": -1},
    ],
)
def test_wrong_rates(wrong):
    with pytest.raises(ConfigError, match=r"\[rate\]"):
        RateConfig(**wrong)
