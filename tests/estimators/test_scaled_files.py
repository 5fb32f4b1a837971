"""Estimators that were fitted on a file of scaled columns predict raw rows."""

import numpy as np
import pandas as pd
import pytest

import hpcsgd
from hpcsgd import GLM, LogisticRegression
from hpcsgd.data.hdf5 import StoreLayout
from hpcsgd.data.preparation import Scales
from hpcsgd.data.store import ColumnFacts, StoreWriter
from hpcsgd.errors import DataError
from hpcsgd.estimators.saved import Predictor

NAMES = ["a", "b", "c"]
RNG = np.random.default_rng(1)
X = RNG.normal(size=(150, 3)) * [100.0, 1.0, 0.01] + [300.0, -1.0, 0.0]
Y = (RNG.normal(size=150) + X @ [0.01, -1.0, 100.0] > 4.0).astype(float)
MEAN, SCALE = X.mean(axis=0), X.std(axis=0)
pytestmark = pytest.mark.filterwarnings("ignore::hpcsgd.ConvergenceWarning")


@pytest.fixture
def path(tmp_path):
    facts = ColumnFacts(Scales(MEAN, SCALE), NAMES)
    layout = StoreLayout(3, "fp64")
    with StoreWriter(tmp_path / "train.h5", layout, column_facts=facts) as writer:
        writer.append((X - MEAN) / SCALE, Y)
    return tmp_path / "train.h5"


def test_raw_rows_are_scaled_with_the_moments_of_the_file(path, tmp_path, monkeypatch):
    model = GLM(family="logistic", alpha=0.01).fit(str(path))
    frame = pd.DataFrame(X, columns=NAMES)
    w, b = model.coef_.reshape(-1), np.ravel(model.intercept_)[0]
    expected = ((X - MEAN) / SCALE).astype(np.longdouble) @ w + b
    found = model.decision_function(frame)
    np.testing.assert_allclose(found, expected.astype(float), rtol=1e-9, atol=1e-12)
    assert model.score(frame, Y) > 0.7
    assert model.feature_names_in_.tolist() == NAMES
    with pytest.raises(ValueError, match="names"):
        model.predict(frame[NAMES[::-1]])
    model.save(tmp_path / "m.h5")
    assert (hpcsgd.load(tmp_path / "m.h5").decision_function(frame) == found).all()
    # What is loaded where there is no scikit-learn.
    monkeypatch.setattr("hpcsgd.estimators.saved.has_sklearn", lambda: False)
    with pytest.warns(UserWarning, match="loaded as a Predictor"):
        predictor = hpcsgd.load(tmp_path / "m.h5")
    assert isinstance(predictor, Predictor)
    assert (predictor.decision_function(frame) == found).all()
    with pytest.raises(DataError, match="column 0 is 'c' and was 'a'"):
        predictor.predict(frame[NAMES[::-1]])


def test_a_fit_on_rows_forgets_the_scales_of_a_file(path):
    model = GLM(family="logistic", alpha=0.01).fit(str(path))
    Z = (X - MEAN) / SCALE
    before = model.decision_function(pd.DataFrame(X, columns=NAMES))
    model.fit(Z, Y)
    assert not hasattr(model, "feature_names_in_")
    np.testing.assert_allclose(model.decision_function(Z), before, atol=1e-4)


def test_several_classes_too(path, tmp_path):
    three = np.digitize(X[:, 0], [270.0, 330.0]).astype(float)
    facts = ColumnFacts(Scales(MEAN, SCALE))
    layout = StoreLayout(3, "fp64")
    with StoreWriter(tmp_path / "three.h5", layout, column_facts=facts) as writer:
        writer.append((X - MEAN) / SCALE, three)
    model = LogisticRegression(alpha=0.001).fit(str(tmp_path / "three.h5"), None)
    expected = ((X - MEAN) / SCALE) @ model.coef_.T + model.intercept_
    np.testing.assert_allclose(model.decision_function(X), expected, rtol=1e-9)
