"""A loss of one's own: what is complete becomes a family, what is not says why."""

import numpy as np
import pytest

import hpcsgd
from hpcsgd.comm.threads import SerialCommunicator
from hpcsgd.errors import ConfigError, DataError
from hpcsgd.glm import FAMILIES, Family, get_family, register
from hpcsgd.runs.opened_run import resolve_names

LOG2 = np.log(2.0)


class LogCosh(Family):
    """ℓ = log cosh(t − y)."""

    name, targets, curvature = "logcosh", "real", 1.0

    def loss(self, t, y):
        return np.logaddexp(t - y, y - t) - t.dtype.type(LOG2)

    def residual(self, t, y, out=None):
        return np.tanh(np.subtract(t, y, out=out), out=out)

    def mean(self, t):
        return t


@pytest.fixture(autouse=True)
def table():
    """The table is left as it was."""
    before = dict(FAMILIES)
    yield
    FAMILIES.clear()
    FAMILIES.update(before)


def rows(n=300):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 4))
    return X, X @ [1.0, 2.0, 0.0, -1.0] + 1.0 + rng.standard_t(2, size=n)


def slope(X, y, weights, intercept, l2):
    """The gradient of F in plain NumPy."""
    r = np.tanh(X @ weights + intercept - y)
    return X.T @ r / len(y) + l2 * weights, r.mean()


def test_fit_path_estimator_and_recipe_find_the_optimum():
    register("logcosh", LogCosh)
    X, y = rows()
    found = hpcsgd.fit(X, "logcosh", y, tol=1e-9)
    l2 = found.config["problem"]["l2"]
    assert np.abs(slope(X, y, found.weights, found.intercept, l2)[0]).max() < 1e-7
    assert found.report["converged"] and found.report["gap"] < 1e-8
    model = hpcsgd.GLM(family="logcosh").fit(X, y)
    np.testing.assert_allclose(model.coef_, found.weights, atol=1e-6)
    np.testing.assert_allclose(
        hpcsgd.fit(X, "logcosh", y, precision="c").weights, found.weights, atol=1e-4
    )
    path = hpcsgd.path(X, y, family="logcosh", n_alphas=4)
    assert (path.gaps < 1e-5).all() and np.count_nonzero(path.coefs[0]) == 0
    g, g0 = slope(X, y, path.coefs[-1], path.intercepts[-1], 0.0)
    inside = path.coefs[-1] == 0.0
    assert (np.abs(g[inside]) <= path.alphas[-1] * (1 + 1e-6)).all()


def test_s_steps_have_the_iterates_of_sgd():
    register("logcosh", LogCosh)
    X, y = rows()
    made = [
        hpcsgd.train(
            {
                "problem": {"family": "logcosh"},
                "schedule": {"steps": steps},
                "products": {"kind": kind},
                "precision": {"recipe": "fp64"},
            },
            X=X,
            y=y,
        ).weights
        for steps, kind in ((1, "direct"), (8, "gram"))
    ]
    np.testing.assert_allclose(*made, rtol=1e-11)


def test_a_saved_model_needs_its_family(tmp_path):
    register("logcosh", LogCosh)
    X, y = rows()
    hpcsgd.GLM(family="logcosh").fit(X, y).save(tmp_path / "m.h5")
    assert hpcsgd.load(tmp_path / "m.h5").family == "logcosh"
    del FAMILIES["logcosh"]
    with pytest.raises(DataError, match="'logcosh'.* call hpcsgd.glm.register before"):
        hpcsgd.load(tmp_path / "m.h5")


def changed(**attributes):
    return type("Changed", (LogCosh,), attributes)


def without(name):
    """The class without an attribute."""
    space = {k: v for k, v in vars(LogCosh).items() if not k.startswith("_")}
    del space[name]
    return type("Without", (Family,), space)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (without("loss"), r"define the method loss\(self, t, y\)"),
        (without("residual"), r"define the method residual\(self, t, y, out=None\)"),
        (without("mean"), r"define the method mean\(self, t\)"),
        (type("Plain", (), {}), "define the method loss"),
        (LogCosh(), "is no class"),
        (changed(name="other"), "set name = 'logcosh'"),
        (changed(targets="numbers"), "set targets in the class to one of real, counts"),
        (changed(curvature=0.0), "set curvature .* upper bound"),
        (changed(__init__=lambda self, scale: None), "give its arguments defaults"),
        (changed(loss=lambda self, t, y: (t - y).sum()), r"loss returns shape \(\)"),
        (
            changed(mean=lambda self, t: t.astype(np.float64)),
            r"mean returns .* float64 for scores of .* float32",
        ),
        (
            changed(residual=lambda self, t, y, out=None: np.tanh(t - y)),
            "must write the residual into t and return it",
        ),
        (
            changed(residual=lambda self, t, y: np.tanh(t - y)),
            "a method fails at scores",
        ),
        (
            changed(loss=lambda self, t, y: LogCosh.loss(self, t, y) * 2),
            "residual is .* and the loss has the slope",
        ),
        (
            changed(loss=lambda self, t, y: LogCosh.loss(self, t, y) - 1),
            "add a constant so that the least loss of every y is 0",
        ),
    ],
)
def test_what_is_missing_is_said(kind, says):
    with pytest.raises(ConfigError, match=says):
        register("logcosh", kind)
    assert "logcosh" not in FAMILIES


def test_a_name_that_is_taken():
    register("logcosh", LogCosh)
    register("logcosh", LogCosh)  # the same once more
    with pytest.raises(ConfigError, match="a family 'logcosh' already; take another"):
        register("logcosh", changed())
    with pytest.raises(ConfigError, match="a family 'huber' already"):
        register("huber", LogCosh)


@pytest.mark.parametrize("name", list(FAMILIES))
def test_every_family_of_the_package_is_complete(name):
    own = FAMILIES.pop(name)
    register(name, type(get_family_of(own)))


def get_family_of(where):
    FAMILIES["this"] = where
    return get_family("this")


def test_a_gpu_has_no_kernels_of_it():
    register("logcosh", LogCosh)
    tables = {"problem": {"family": "logcosh"}, "run": {"device": "cuda"}}
    with pytest.raises(ConfigError, match="'logcosh' has no kernels .* --device cpu"):
        resolve_names(hpcsgd.RunConfig.parse(tables), SerialCommunicator())
