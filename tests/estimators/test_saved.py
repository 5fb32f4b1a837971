"""One file: every class there and back, anywhere, and damaged ones refused."""

import subprocess
import sys

import numpy as np
import pytest
from sklearn.base import clone

import hpcsgd
from hpcsgd.errors import ConfigError, DataError
from hpcsgd.estimators.saved import Predictor
from tests.helpers.limits import HANG
from tests.helpers.zoo import ALL, CHOOSING, name_of, problem_for

EVERY = [*ALL, CHOOSING[0], CHOOSING[1]]
# A process in which none of these can be imported.
BARE = """
import sys, warnings
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
import numpy as np, hpcsgd
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    models = [hpcsgd.load(path) for path in {paths!r}]
rows = np.load({rows!r})
np.savez({out!r}, *[m.predict(rows) for m in models])
print(type(models[0]).__name__, len(said), said[0].message if said else "")
"""


def fitted(estimator, classes=2):
    X, y = problem_for(estimator, n=41, classes=classes)
    return clone(estimator).set_params(tol=1e-6).fit(X, y), X


def in_bare_process(blocked, models, X, folder):
    """Predictions of the saved models where `blocked` cannot be imported."""
    paths = [str(folder / f"{number}.h5") for number in range(len(models))]
    for model, path in zip(models, paths, strict=True):
        model.save(path)
    rows, out = str(folder / "rows.npy"), str(folder / "out.npz")
    np.save(rows, X)
    code = BARE.format(blocked=blocked, paths=paths, rows=rows, out=out)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG
    )
    assert done.returncode == 0, done.stderr
    found = np.load(out)
    return [found[f"arr_{number}"] for number in range(len(models))], done.stdout


@pytest.mark.parametrize("estimator", EVERY, ids=name_of)
def test_there_and_back(estimator, tmp_path):
    model, X = fitted(estimator)
    model.save(tmp_path / "model.h5")
    again = hpcsgd.load(tmp_path / "model.h5")
    assert type(again) is type(model)
    assert again.get_params() == model.get_params()
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    for name in ("coef_", "intercept_", "n_iter_", "classes_", "alpha_"):
        if hasattr(model, name):
            np.testing.assert_array_equal(getattr(again, name), getattr(model, name))
            assert np.shape(getattr(again, name)) == np.shape(getattr(model, name))
    assert again.history_ == model.history_
    assert again.n_features_in_ == model.n_features_in_
    assert again.result_.weights_sha256 == model.result_.weights_sha256
    if hasattr(model, "predict_proba"):
        np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    if hasattr(model, "cv_results_"):
        for name, values in model.cv_results_.items():
            np.testing.assert_array_equal(again.cv_results_[name], values)
    again.fit(X, model.predict(X) if not model._labelled else problem_for(model, 41)[1])


@pytest.mark.parametrize("kind", [str, object, bool, np.int32, np.float64])
def test_classes_of_any_kind(kind, tmp_path):
    X, y = problem_for(hpcsgd.LinearSVC(), n=41, classes=2)
    names = {str: ["no", "ja ✓"], object: ["no", "ja ✓"], bool: [False, True]}
    labels = np.array(names.get(kind, [-3, 7]), dtype=kind)[(y == y[0]).astype(int)]
    model = hpcsgd.LinearSVC(tol=1e-5).fit(X, labels)
    model.save(tmp_path / "m.h5")
    again = hpcsgd.load(tmp_path / "m.h5")
    assert again.classes_.dtype == model.classes_.dtype
    assert again.predict(X).tolist() == model.predict(X).tolist()


def test_classes_without_a_place_are_refused(tmp_path):
    X, y = problem_for(hpcsgd.LinearSVC(), n=41)
    model = hpcsgd.LinearSVC().fit(X, y)
    model.classes_ = np.array([b"a", b"b"])
    with pytest.raises(ConfigError, match="strings or numbers"):
        model.save(tmp_path / "m.h5")
    assert not (tmp_path / "m.h5").exists()


def test_it_loads_without_mpi_and_without_a_gpu(tmp_path):
    models, rows = [], None
    for estimator in (hpcsgd.LogisticRegression(), hpcsgd.LinearSVC()):
        model, rows = fitted(estimator, classes=3)
        models.append(model)
    found, said = in_bare_process(("mpi4py", "cupy"), models, rows, tmp_path)
    assert said.startswith("LogisticRegression 0")
    for values, model in zip(found, models, strict=True):
        np.testing.assert_array_equal(values, model.predict(rows))


def test_it_predicts_without_scikit_learn(tmp_path):
    models = [fitted(estimator)[0] for estimator in EVERY]
    rows = fitted(EVERY[0])[1]
    blocked = ("mpi4py", "cupy", "sklearn", "pandas", "polars")
    found, said = in_bare_process(blocked, models, rows, tmp_path)
    assert said.startswith("Predictor") and "pip install 'hpcsgd[sklearn]'" in said
    for values, model in zip(found, models, strict=True):
        np.testing.assert_array_equal(values, model.predict(rows))


def test_a_predictor_says_all_that_the_estimator_does(tmp_path, monkeypatch):
    monkeypatch.setattr("hpcsgd.estimators.saved.has_sklearn", lambda: False)
    model, X = fitted(hpcsgd.LogisticRegression(alpha=0.25), classes=3)
    model.save(tmp_path / "m.h5")
    with pytest.warns(UserWarning, match="loaded as a Predictor"):
        found = hpcsgd.load(tmp_path / "m.h5")
    assert isinstance(found, Predictor) and found.parameters["alpha"] == 0.25
    np.testing.assert_array_equal(found.predict_proba(X), model.predict_proba(X))
    scores = found.decision_function(X)
    np.testing.assert_array_equal(scores, model.decision_function(X))
    assert found.result_.loss == model.result_.loss
    assert found.attributes["history_"] == model.history_
    rate, X = fitted(hpcsgd.PoissonRegressor())
    rate.save(tmp_path / "p.h5")
    with pytest.warns(UserWarning):
        found = hpcsgd.load(tmp_path / "p.h5")
    e = np.linspace(1, 2, len(X))
    wanted = rate.predict(X, exposure=e)
    np.testing.assert_array_equal(found.predict(X, exposure=e), wanted)
    with pytest.raises(ConfigError, match="no probabilities"):
        found.predict_proba(X)


def test_what_stays_behind(tmp_path):
    """Callbacks and generators; arrays of bounds become lists."""
    model = hpcsgd.Ridge(
        callbacks=[hpcsgd.Callback()],
        random_state=np.random.RandomState(0),
        bounds=(np.full(5, -9.0), np.inf),
        tol=1e-13,
    )
    X, y = problem_for(model, n=41)
    model.fit(X, y).save(tmp_path / "m.h5")
    again = hpcsgd.load(tmp_path / "m.h5")
    assert again.callbacks is None and again.random_state == 0
    assert again.bounds == ([-9.0] * 5, np.inf)
    np.testing.assert_allclose(again.fit(X, y).coef_, model.coef_, atol=1e-7)


def test_names_of_columns(tmp_path):
    import pandas as pd

    X, y = problem_for(hpcsgd.Ridge(), n=41)
    frame = pd.DataFrame(X, columns=list("abcdé"))
    hpcsgd.Ridge().fit(frame, y).save(tmp_path / "m.h5")
    again = hpcsgd.load(tmp_path / "m.h5")
    assert again.feature_names_in_.tolist() == list("abcdé")
    with pytest.raises(ValueError, match="feature names"):
        again.predict(frame.rename(columns={"a": "z"}))


def test_damage_is_one_sentence(tmp_path):
    model, _ = fitted(hpcsgd.Ridge())
    path = tmp_path / "m.h5"
    model.save(path)
    good = path.read_bytes()
    for content, said in (
        (good[:-100], "bytes"),
        (good[:2000] + bytes([good[2000] ^ 1]) + good[2001:], "not those"),
        (b"something else", "not a"),
        (good.replace(b"estimator 1", b"estimator 9", 1), "version 9"),
    ):
        path.write_bytes(content)
        with pytest.raises(DataError, match=said):
            hpcsgd.load(path)
    with pytest.raises(DataError, match="does not exist"):
        hpcsgd.load(tmp_path / "none.h5")
    with pytest.raises(DataError, match="cannot be written"):
        model.save(tmp_path / "no" / "folder" / "m.h5")


def test_what_no_longer_fits_is_refused(tmp_path, monkeypatch):
    from hpcsgd.estimators import saved

    model, _ = fitted(hpcsgd.Ridge())
    write = saved.write_sealed
    for change, said in (
        (lambda d, a: d.update({"class": "Lasso2"}), "does not know"),
        (lambda d, a: d.update({"class": 3}), "its class"),
        (lambda d, a: a.pop("coef"), "no complete coefficients"),
        (lambda d, a: a.update(intercept=np.zeros(3)), "no complete coefficients"),
        (lambda d, a: d.update(classes={"dtype": "V8", "values": []}), "unknown type"),
        (lambda d, a: d.update(family="cauchy"), "glm.register"),
    ):

        def changed(path, kind, version, document, arrays, change=change):
            change(document, arrays)
            write(path, kind, version, document, arrays)

        monkeypatch.setattr(saved, "write_sealed", changed)
        model.save(tmp_path / "m.h5")
        with pytest.raises(DataError, match=said):
            hpcsgd.load(tmp_path / "m.h5")


def test_runs_load_too(tmp_path):
    """A run folder, and the file in it."""
    X, y = problem_for(hpcsgd.Ridge(), n=41)
    result = hpcsgd.fit(X, "gaussian", y)
    result.save(tmp_path)
    for path in (tmp_path, tmp_path / "result.h5"):
        assert hpcsgd.load(path).weights_sha256 == result.weights_sha256


def test_subclasses_save_as_what_they_descend_from(tmp_path):
    class Mine(hpcsgd.Ridge):
        pass

    model, X = fitted(Mine())
    model.save(tmp_path / "m.h5")
    assert type(hpcsgd.load(tmp_path / "m.h5")) is hpcsgd.Ridge


@pytest.mark.parametrize("weights", [{0: 1.0, 1: 2.0}, {False: 1.0, True: 2.0}])
def test_weights_of_classes_that_are_no_strings(tmp_path, weights):
    X, y = problem_for(hpcsgd.LogisticRegression(), n=41)
    labels = np.array(list(weights))[(y == y[0]).astype(int)]
    model = hpcsgd.LogisticRegression(class_weight=weights).fit(X, labels)
    model.save(tmp_path / "m.h5")
    again = hpcsgd.load(tmp_path / "m.h5")
    assert again.class_weight == weights
    np.testing.assert_array_equal(again.fit(X, labels).coef_, model.coef_)
