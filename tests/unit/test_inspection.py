"""`hpcsgd data inspect`: what it shows of columns and sides, and what it suggests."""

import numpy as np
import pytest
from scipy.sparse import csr_array

from hpcsgd.data.inspection import inspect
from hpcsgd.data.readers import MemoryReader

ROWS = 400
RNG = np.random.default_rng(11)
X = RNG.normal(size=(ROWS, 3))
COUNTS = RNG.poisson(1.0, size=ROWS).clip(0, 6).astype(float)
EXPOSURE = RNG.uniform(0.5, 4.0, size=ROWS)
# y, offset, what is suggested and why
SUGGESTIONS = {
    "two labels": (COUNTS > 1, None, "logistic", "two labels"),
    "signs": (np.sign(X[:, 0]), None, "logistic", "two labels"),
    "some whole labels": (COUNTS, None, "softmax", "whole labels; poisson if"),
    "counts with an exposure": (COUNTS, np.log(EXPOSURE), "poisson", "exposure"),
    "counts beside one offset": (COUNTS, np.ones(ROWS), "softmax", "whole labels"),
    "many counts": (np.arange(ROWS) % 50, None, "poisson", "many whole numbers"),
    "positive and skewed": (RNG.gamma(0.7, size=ROWS) + 1e-3, None, "gamma", "skewed"),
    "positive and even": (RNG.uniform(1, 2, size=ROWS), None, "gaussian", "real"),
    "skewed about 0": (RNG.gamma(0.7, size=ROWS) - 1, None, "gaussian", "real"),
    "far from 0": (1e6 + RNG.normal(size=ROWS), None, "gaussian", "real"),
    "one value": (np.full(ROWS, 3.0), None, "gaussian", "one value only"),
}


@pytest.mark.cases("all")
@pytest.mark.parametrize("name", SUGGESTIONS)
def test_a_family_is_suggested_by_labels_and_offsets(name):
    y, offset, family, why = SUGGESTIONS[name]
    reader = MemoryReader(X, np.asarray(y, dtype=float), offset=offset)
    for budget in (2**26, 500):  # at once, and some rows at a time
        found = inspect(reader, budget)["suggested"]
        assert found["family"] == family and why in found["because"]


def test_labels_that_were_text_are_classes():
    reader = MemoryReader(X, COUNTS, offset=np.log(EXPOSURE))
    reader.label_numbers = {f"kind {n}": float(n) for n in range(7)}
    said = inspect(reader)
    assert said["suggested"]["family"] == "softmax"
    assert said["label_numbers"]["kind 3"] == 3.0


def test_weights_and_offsets_are_shown():
    weights = np.where(np.arange(ROWS) % 4, EXPOSURE, 0.0)
    said = inspect(MemoryReader(X, COUNTS, weights, np.log(EXPOSURE)), 500)
    for name, values in (("weights", weights), ("offsets", np.log(EXPOSURE))):
        found = said[name]
        assert (found["min"], found["max"]) == (values.min(), values.max())
        assert found["mean"] == pytest.approx(values.mean(), rel=1e-12)
        assert found["zeros"] == (values == 0).sum()
    plain = inspect(MemoryReader(X, COUNTS))
    assert plain["weights"] is None and plain["offsets"] is None


@pytest.mark.parametrize("is_sparse", [False, True])
def test_spreads_are_shown_with_the_names_of_their_columns(is_sparse):
    wide = np.hstack([X * [1.0, 1e-3, 50.0], np.full((ROWS, 1), 0.0)])
    held = csr_array(wide) if is_sparse else wide
    reader = MemoryReader(held, COUNTS, names=["a", "small", "large", "empty"])
    said = inspect(reader, 10_000)
    spread = np.sqrt((wide**2).mean(axis=0)) if is_sparse else wide.std(axis=0)
    low, high = said["spreads"]["min"], said["spreads"]["max"]
    assert (low["name"], high["name"]) == ("small", "large")
    assert (low["column"], high["column"]) == (1, 2)
    assert low["value"] == pytest.approx(spread[1], rel=1e-9)
    assert high["value"] == pytest.approx(spread[2], rel=1e-9)
    assert said["spreads"]["constant_columns"] == 1
    assert said["suggested"]["standardize"] is True
    assert said["column_names"] == ["a", "small", "large", "empty"]
    assert inspect(MemoryReader(X, COUNTS))["suggested"]["standardize"] is False
