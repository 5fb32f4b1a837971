"""Every row of FAMILIES: a derivative of its loss, safe everywhere, true to dtypes."""

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcsgd.errors import ConfigError
from hpcsgd.glm import FAMILIES, get_family
from hpcsgd.glm.families import Huber, exp_bound
from tests.helpers.oracle import residual as textbook

CANONICAL = ("gaussian", "logistic", "poisson")
NO_LONGDOUBLE = ("probit",)  # SciPy has no longdouble Φ
CLIPS_ABOVE, CLIPS_BELOW = ("poisson",), ("gamma",)
BOTH = (np.float32, np.float64)


def targets(kind, rows, dtype, classes=4):
    """Targets that suit, cycling through the values that differ in kind."""
    values = {
        "real": [-3.0, 0.0, 2.5],
        "binary": [0.0, 1.0],
        "signed": [-1.0, 1.0],
        "counts": [0.0, 1.0, 7.0],
        "positive": [0.1, 1.0, 6.0],
        "nonnegative": [0.0, 0.5, 6.0],
        "proportions": [0.0, 0.3, 1.0],
        "classes": list(range(classes)),
    }[kind]
    return np.resize(np.array(values, dtype=dtype), rows).reshape(-1, 1)


def scores(family, dtype, rows=60, spread=3.0, seed=0):
    columns = 4 if family.targets == "classes" else 1
    t = np.random.default_rng(seed).normal(scale=spread, size=(rows, columns))
    return t.astype(dtype), targets(family.targets, rows, dtype)


@pytest.fixture(params=FAMILIES)
def family(request):
    return get_family(request.param)


def test_the_table_names_what_the_classes_call_themselves():
    assert [get_family(name).name for name in FAMILIES] == list(FAMILIES)
    kinds = {get_family(name).targets for name in FAMILIES}
    assert kinds == {
        *("real", "binary", "signed", "counts", "positive", "classes"),
        *("nonnegative", "proportions"),
    }


def test_an_unknown_family_shows_the_known():
    with pytest.raises(ConfigError, match="'cauchy'.*logistic.*probit"):
        get_family("cauchy")


def test_residual_is_the_derivative_of_the_loss(family):
    """Central differences; kinks of Huber and the hinge are smoothed by their order."""
    wide = np.float64 if family.name in NO_LONGDOUBLE else np.longdouble
    step = wide(1e-5)
    t, y = scores(family, wide)
    derivative = np.empty_like(t)
    for k in range(t.shape[1]):
        up, down = t.copy(), t.copy()
        up[:, k] += step
        down[:, k] -= step
        rise = family.loss(up, y) - family.loss(down, y)
        derivative[:, k] = (rise / (2 * step))[:, 0]
    scale = 1 + np.abs(derivative)
    np.testing.assert_array_less(
        np.abs(family.residual(t, y) - derivative) / scale, 1e-8
    )


def test_residual_equals_the_textbook_formula(family):
    t, y = scores(family, np.float64, rows=300)
    expected = textbook(family.name, t.astype(np.longdouble), y)
    np.testing.assert_allclose(
        family.residual(t, y), expected.astype(float), rtol=1e-12, atol=1e-15
    )


def steepest(family):
    """The slope of the residual far out, and at a large target: log links have no
    bound.
    """
    t, y = np.array([[-40.0], [40.0], [0.0]]), np.array([[1.0], [1.0], [1e8]])
    change = family.residual(t + 1e-3, y) - family.residual(t - 1e-3, y)
    return np.abs(change / 2e-3).max()


def test_slope_of_the_residual_stays_below_the_curvature(family):
    if not np.isfinite(family.curvature):
        assert steepest(family) > 1e6, "a bound would be wrong"
        return
    t, y = scores(family, np.float64, rows=2000)
    rng = np.random.default_rng(1)
    move = rng.normal(size=t.shape)
    change = family.residual(t + move, y) - family.residual(t, y)
    ratio = np.linalg.norm(change, axis=1) / np.linalg.norm(move, axis=1)
    assert ratio.max() <= family.curvature * (1 + 1e-12)
    assert ratio.max() >= 0.5 * family.curvature, "the bound is not a loose one"


@pytest.mark.parametrize("dtype", BOTH)
def test_safe_at_scores_of_a_thousand(family, dtype):
    columns = 4 if family.targets == "classes" else 1
    extremes = np.array([-1000, -88.8, -40, 0, 40, 88.8, 1000], dtype=dtype)
    grid = np.stack(np.meshgrid(*[extremes] * columns), axis=-1).reshape(-1, columns)
    with warnings.catch_warnings(), np.errstate(over="raise", invalid="raise"):
        warnings.simplefilter("error")
        for first in targets(family.targets, 8, dtype):
            y = np.full((len(grid), 1), first[0], dtype=dtype)
            assert np.isfinite(family.loss(grid, y)).all()
            assert np.isfinite(family.residual(grid, y)).all()
            assert np.isfinite(family.mean(grid)).all()


@pytest.mark.parametrize("dtype", BOTH)
def test_probit_tails_are_exact(dtype):
    """Towards −∞ the hazard φ/Φ approaches |t|, where a quotient would be 0/0."""
    family, y = get_family("probit"), np.ones((3, 1), dtype=dtype)
    t = np.array([[-1000.0], [-100.0], [-50.0]], dtype=dtype)
    expected = t - 1 / -t  # two terms of the asymptotic series
    np.testing.assert_allclose(family.residual(t, y), expected, rtol=1e-6)
    np.testing.assert_allclose(family.residual(-t, 1 - y), -expected, rtol=1e-6)
    assert (family.residual(-t, y) == 0).all(), "far on the right side"


@pytest.mark.parametrize("dtype", (*BOTH, np.longdouble))
def test_dtype_and_shape_are_kept(family, dtype):
    if dtype is np.longdouble and family.name in NO_LONGDOUBLE:
        with pytest.raises(TypeError):  # SciPy has no longdouble Φ
            family.loss(*scores(family, dtype, rows=9))
        return
    t, y = scores(family, dtype, rows=9)
    for result, shape in (
        (family.loss(t, y), y.shape),
        (family.residual(t, y), t.shape),
        (family.mean(t), t.shape),
    ):
        assert result.dtype == dtype and result.shape == shape


@pytest.mark.parametrize("dtype", BOTH)
def test_out_may_be_the_scores_and_nothing_else_is_touched(family, dtype):
    t, y = scores(family, dtype)
    before, kept = t.copy(), y.copy()
    expected = family.residual(t, y)
    assert (t == before).all() and (y == kept).all()
    out = np.empty_like(t)
    assert family.residual(t, y, out=out) is out and (out == expected).all()
    assert (t == before).all()
    assert family.residual(t, y, out=t) is t and (t == expected).all()
    assert (y == kept).all()


def test_out_may_be_a_slice_of_more_rows(family):
    t, y = scores(family, np.float64)
    whole = np.full((80, t.shape[1]), np.pi)
    family.residual(t, y, out=whole[10:70])
    assert (whole[10:70] == family.residual(t, y)).all()
    assert (whole[:10] == np.pi).all() and (whole[70:] == np.pi).all()


def test_no_rows_are_fine(family):
    t, y = scores(family, np.float64, rows=3)
    assert family.residual(t[:0], y[:0]).shape == t[:0].shape
    assert family.loss(t[:0], y[:0]).shape == (0, 1)


@pytest.mark.parametrize("name", CANONICAL)
def test_canonical_residual_is_mean_minus_target(name):
    family = get_family(name)
    t, y = scores(family, np.float64)
    np.testing.assert_allclose(family.residual(t, y), family.mean(t) - y, rtol=1e-14)


def test_softmax_residual_is_mean_minus_one_hot():
    family = get_family("softmax")
    t, y = scores(family, np.float64)
    hot = np.eye(4)[y[:, 0].astype(int)]
    np.testing.assert_allclose(family.residual(t, y), family.mean(t) - hot, rtol=1e-14)
    np.testing.assert_allclose(family.mean(t).sum(axis=1), 1.0, rtol=1e-14)


def test_gamma_residual_vanishes_at_its_mean():
    family = get_family("gamma")
    t, _ = scores(family, np.float64)
    np.testing.assert_allclose(family.residual(t, family.mean(t)), 0, atol=1e-12)


@pytest.mark.parametrize("name", ("squared-hinge", "logistic", "probit"))
def test_loss_falls_towards_the_right_side(name):
    family = get_family(name)
    t = np.linspace(-50, 50, 201).reshape(-1, 1)
    y = np.ones_like(t)
    assert (np.diff(family.loss(t, y), axis=0) <= 0).all()
    assert (family.loss(t, y) >= 0).all()


@given(st.floats(-1000, 1000), st.floats(-1000, 1000))
def test_softmax_of_two_is_logistic(a, b):
    t, y = np.array([[a, b]]), np.array([[1.0]])
    two, one = get_family("softmax"), get_family("logistic")
    gap = np.array([[b - a]])
    np.testing.assert_allclose(two.loss(t, y), one.loss(gap, y), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(
        two.residual(t, y)[:, 1:], one.residual(gap, y), atol=1e-14
    )


@given(st.floats(-20, 20), st.floats(-20, 20), st.floats(0.1, 5))
def test_huber_is_quadratic_inside_and_linear_outside(t, y, delta):
    family = Huber(delta)
    error = abs(t - y)
    near, far = error**2 / 2, delta * (error - delta / 2)
    loss = family.loss(np.array([[t]]), np.array([[y]]))[0, 0]
    expected = near if error <= delta else far
    assert loss == pytest.approx(expected, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("delta", (0.0, -1.0, float("inf"), float("nan")))
def test_huber_refuses_a_delta_that_bends_nowhere(delta):
    with pytest.raises(ConfigError, match="positive and finite"):
        Huber(delta)


@pytest.mark.parametrize("dtype", BOTH)
def test_clips_are_counted_where_the_exponential_is_cut(family, dtype):
    bound = exp_bound(dtype)
    t = np.array([[-2 * bound], [-bound], [0], [bound], [2 * bound]], dtype=dtype)
    t[1], t[3] = np.nextafter(t[1], dtype(0)), np.nextafter(t[3], dtype(0))
    assert family.clipped(t) == int(family.name in CLIPS_ABOVE + CLIPS_BELOW)
    if family.name in CLIPS_ABOVE:
        assert family.clipped(t[-1:]) == 1
    if family.name in CLIPS_BELOW:
        assert family.clipped(t[:1]) == 1


def test_the_bound_is_the_stated_one():
    assert exp_bound(np.float32) == pytest.approx(44.36, abs=0.01)
    assert exp_bound(np.float64) == pytest.approx(354.89, abs=0.01)
    # The square of the largest exponential is still finite.
    for dtype in BOTH:
        top = np.exp(dtype(exp_bound(dtype)))
        assert np.isfinite(top * (top * dtype(0.99)))
