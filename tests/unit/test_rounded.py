"""The backend that emulates formats: each value rounded where its field says."""

import numpy as np
import pytest
from scipy import sparse

from hpcsgd.backends import make_backend
from hpcsgd.backends.base import (
    FIRST,
    LEAST,
    PATIENCE,
    ColumnDraws,
    LossScale,
    emulated,
    emulated_fields,
    make_loss_scale,
    make_scaling,
)
from hpcsgd.backends.emulated import TOGETHER, RoundedBackend, accumulate, round_values
from hpcsgd.backends.numpy_rows import HostBackend
from hpcsgd.config import RunConfig
from hpcsgd.data.matrix import from_scipy
from hpcsgd.errors import ConfigError
from hpcsgd.formats import FORMATS, formats_of, get_format, round_through
from hpcsgd.glm import get_family
from hpcsgd.glm.unrolling import blocks_of
from hpcsgd.precision import FIELDS, RECIPES, make_precision
from tests.helpers.harness import (
    config_for,
    make_problem,
    oracle_for,
    relative_error,
    train_on,
)

NARROW = sorted(set(FORMATS) - {"fp64", "fp32"})
PAIRS = [(f, n) for f in FIELDS for n in NARROW if n in formats_of(f)]


def rounded(values, name):
    values = np.array(values, dtype=np.float64)
    round_through(values, name)
    return values


@pytest.mark.parametrize("name", NARROW)
def test_an_accumulator_is_rounded_after_every_sixteen_products(name):
    rng = np.random.default_rng(0)
    left, right = rng.normal(size=(5, 50)), rng.normal(size=(50, 3))
    total = np.zeros((5, 3))
    for first in range(0, 50, TOGETHER):
        part = left[:, first : first + TOGETHER] @ right[first : first + TOGETHER]
        total = rounded(total + part, name)
    np.testing.assert_array_equal(accumulate(left, right, name), total)
    assert (total != left @ right).any()


def test_the_kernel_rounds_as_the_definition_does():
    """Every float32 exponent, ties, infinities and NaN."""
    bits = np.random.default_rng(1).integers(0, 2**32, size=100_000, dtype=np.uint32)
    bits[::3] = bits[::3] & 0xFFFF0000 | 0x8000
    values = np.append(bits.view(np.float32), np.float32([np.inf, -np.inf, np.nan]))
    with np.errstate(all="ignore"):
        wanted, found = values.copy(), values.copy()
        round_through(wanted, "bf16")
        round_values(found, "bf16")
    np.testing.assert_array_equal(found, wanted)
    for kind in (np.float64, np.float32):  # transposed: no kernel takes it
        square = np.random.default_rng(2).normal(size=(9, 9)).astype(kind).T
        wanted = square.copy()
        round_through(wanted, "bf16")
        round_values(square, "bf16")
        np.testing.assert_array_equal(square, wanted)


def test_an_accumulator_as_wide_as_the_values_is_the_library_s():
    left, right = np.random.default_rng(0).normal(size=(2, 5, 5))
    np.testing.assert_array_equal(accumulate(left, right, "fp64"), left @ right)


def trained(field, name, *, members=2, kind="gram", **sections):
    problem = make_problem("logistic", n=200, d=24)
    config = config_for(
        problem,
        problem={"l2": 1e-3, "intercept": True},
        schedule={"batch": 8, "steps": 4, "epochs": 2},
        products={"kind": kind},
        **{"precision": {"recipe": "fp64", field: name}, **sections},
    )
    return train_on(members, config, problem), config, problem


# Errors of the weights after two epochs are about the roundoff times this; the Gram's
# share of the update is small at this rate.
LEAST_SHARE = {"gram_sum": 1e-5, "margin": 1e-4, "inner": 1e-4}


@pytest.mark.parametrize(
    ("field", "name"), [pair for pair in PAIRS if pair[0] != "gram_wire"]
)
def test_every_field_in_every_format_is_really_that_low(field, name):
    """The error is far above float64's and no larger than the format explains."""
    result, config, problem = trained(field, name)
    error = relative_error(result, oracle_for(config, problem))
    unit = FORMATS[name].unit_roundoff
    assert LEAST_SHARE.get(field, 1e-3) * unit < error < 10 * unit


@pytest.mark.parametrize("kind", ["direct", "gather", "gather-once", "cached"])
def test_every_product_takes_the_emulation(kind):
    result, config, problem = trained("residual", "bf16", kind=kind)
    error = relative_error(result, oracle_for(config, problem))
    assert 1e-6 < error < 1e-2


def test_precisions_of_one_format_are_not_emulated():
    for recipe in ("fp32", "fp64", "c", "d", "fp8"):
        assert RECIPES[recipe].is_uniform
        assert not isinstance(make_backend(RECIPES[recipe]), RoundedBackend)
    for recipe in ("bf16", "fp16"):
        assert isinstance(make_backend(RECIPES[recipe]), RoundedBackend)
    mixed = make_precision("fp32", {"weights": "fp64"})
    assert isinstance(make_backend(mixed), RoundedBackend)


def test_what_is_emulated_is_said():
    assert emulated(RECIPES["c"]) == {}
    assert emulated(RECIPES["d"]) == {}
    assert emulated(RECIPES["fp8"]) == {"matrix": "fp8-e4m3"}
    assert set(emulated(RECIPES["bf16"])) == set(FIELDS) - {
        *("matrix", "margin", "gram_wire")
    }
    assert emulated(make_precision("fp32", {"gram_wire": "tf32"})) == {
        "gram_wire": "tf32"
    }
    result, *_ = trained("inner", "bf16")
    assert result.report["precision_runs"] == {
        **dict.fromkeys(FIELDS, "native"),
        "inner": "emulated",
    }
    assert emulated_fields(RECIPES["fp64"]) == dict.fromkeys(FIELDS, "native")


@pytest.mark.parametrize("kind", ["gram", "direct", "gather", "cached"])
@pytest.mark.parametrize("recipe", ["bf16", "fp16", "fp8"])
def test_sparse_rows_are_rounded_as_dense_ones_are(recipe, kind):
    """Up to the order of sums: columns that do not occur are left out."""
    rng = np.random.default_rng(5)
    problem = make_problem("logistic", n=120, d=30)
    X = problem.X * (rng.uniform(size=problem.X.shape) < 0.3)
    config = config_for(
        problem,
        schedule={"batch": 8, "steps": 3, "epochs": 2},
        products={"kind": kind},
        precision={"recipe": recipe, "scale": "global"},
    )
    found = []
    for matrix in (X, sparse.csr_array(X)):
        object.__setattr__(problem, "X", matrix)
        found.append(train_on(2, config, problem))
    dense, thin = found
    assert thin.report["sparse"] and not dense.report["sparse"]
    distance = np.linalg.norm(thin.weights - dense.weights)
    most = {"bf16": 2e-2, "fp16": 2e-3, "fp8": 1e-5}[recipe]
    assert distance <= most * np.linalg.norm(dense.weights)


class TestScaling:
    """Powers of two for matrices in fp16 and fp8."""

    @pytest.mark.parametrize("name", ["fp16", "fp8-e4m3", "fp8-e5m2"])
    @pytest.mark.parametrize("how", ["column", "global", "none"])
    def test_what_is_stored_comes_back_rounded_and_nothing_else(self, name, how):
        rng = np.random.default_rng(1)
        X = rng.normal(size=(60, 5)) * [1e-6, 1, 30, 1e4, 0]
        scaling = make_scaling(
            get_format(name), np.abs(X).max(axis=0), slice(0, 5), how
        )
        stored = scaling.up(X)
        assert np.abs(stored).max() <= get_format(name).largest
        back = rounded(stored, name)
        scaling.down(back)
        form = get_format(name)
        fits = np.abs(stored) >= 2.0**form.least
        inside = fits & (np.abs(stored) < form.largest)
        share = np.abs(back - X)[inside] / np.abs(X)[inside]
        assert share.max() <= form.unit_roundoff
        if how == "column":
            assert scaling.saturated == scaling.flushed == 0
            peak = np.abs(stored[:, :4]).max(axis=0)
            assert (peak > form.largest / 4).all()
        if how == "none" and name == "fp8-e4m3":
            assert scaling.saturated and scaling.flushed >= 60

    def test_a_peak_that_rounds_up_stays_within(self):
        """448 is largest: 2 · 225 would be 450, which is not, so 225 is not doubled."""
        form = get_format("fp8-e4m3")
        scaling = make_scaling(form, np.array([225.0, 224.0]), slice(0, 2), "column")
        assert scaling.exponents.tolist() == [0, 1]

    @pytest.mark.parametrize("members", [1, 3])
    @pytest.mark.parametrize("kind", ["gram", "gather", "gather-once", "direct"])
    def test_columns_of_all_sizes_train_as_well(self, kind, members):
        """Without scales the small column would be lost; gathered rows know all."""
        problem = make_problem("gaussian", n=300, d=7)
        X = problem.X * [1, 1, 1e-4, 1, 1, 1, 2e3]
        scale = {}
        for how in ("column", "none"):
            object.__setattr__(problem, "X", X)
            config = config_for(
                problem,
                products={"kind": kind},
                rate={"value": 1e-7},
                precision={"recipe": "fp32", "matrix": "fp8-e4m3", "scale": how},
            )
            result = train_on(members, config, problem)
            error = relative_error(result, oracle_for(config, problem))
            scale[how] = (error, result.report["matrix_saturated"])
        assert scale["column"][0] < 0.1 and scale["column"][1] == 0
        assert scale["none"][0] > 0.3 and scale["none"][1] > 0

    def test_replicas_share_their_exponents(self):
        """Else one would know the rows of another by other numbers."""
        problem = make_problem("gaussian", n=64, d=5)
        problem.X[40] *= 1000  # in the rows of the second replica alone
        config = config_for(
            problem,
            precision={"recipe": "fp8"},
            rate={"value": 1e-8},
            grid={"replicas": 2, "members": 2},
        )
        assert train_on(4, config, problem).report["matrix_saturated"] == 0


class TestLossScale:
    """Residuals of fp16 keep what is small, and overflow costs an exchange."""

    def test_it_grows_and_backs_off(self):
        scale = LossScale()
        good, bad = np.ones((3, 1)), np.array([[1.0], [np.inf]])
        assert (
            not scale.accepts(bad) and scale.value == FIRST / 2 and scale.skipped == 1
        )
        for _ in range(PATIENCE - 1):
            assert scale.accepts(good)
        assert scale.value == FIRST / 2
        assert scale.accepts(good) and scale.value == FIRST

    def test_its_growth_is_set(self):
        """It doubles after every so many exchanges, as in a list of its values."""
        scale = make_loss_scale(0.0, 4.0, 3)
        good, bad = np.ones((3, 1)), np.array([[np.nan]])
        seen = []
        for rows in [good] * 7 + [bad] + [good] * 3:
            scale.accepts(rows)
            seen.append(scale.value)
        assert seen == [4, 4, 8, 8, 8, 16, 16, 8, 8, 8, 16]

    def test_a_run_grows_as_it_is_set(self):
        problem = make_problem("logistic")
        tables = {
            "precision": {
                "recipe": "fp16",
                "loss_scale_start": 64.0,
                "loss_scale_growth": 2,
            },
            "rate": {"value": 0.05},
        }
        result = train_on(1, config_for(problem, **tables), problem)
        scales = result.report["loss_scale"], result.report["skipped_exchanges"]
        assert scales == (64.0 * 2 ** (result.exchanges // 2), 0)

    def test_what_is_not_finite_at_the_least_scale_is_let_through(self):
        """The run then ends as diverged, and does not skip for ever."""
        scale = LossScale(value=2 * LEAST)
        bad = np.array([[np.nan]])
        assert not scale.accepts(bad) and scale.accepts(bad) and scale.accepts(bad)

    def test_a_fixed_one_stays(self):
        scale = make_loss_scale(64.0)
        assert scale.accepts(np.array([[np.inf]])) and scale.value == 64

    def test_what_is_no_power_of_two_is_refused(self):
        for value in (3.0, -2.0, 2.0**40):
            with pytest.raises(ConfigError, match="power of two"):
                make_loss_scale(value)
        with pytest.raises(ConfigError, match="loss_scale_start = 3 must be"):
            make_loss_scale(0.0, 3.0)

    def test_small_residuals_survive(self):
        """8e-7 is a subnormal of fp16 with few bits; times 2^10 it is a normal one."""
        problem = make_problem("poisson", n=80, d=5)
        object.__setattr__(problem, "y", problem.y * 0)
        object.__setattr__(problem, "offset", problem.offset - 14)
        errors = []
        for value in (1.0, 0.0):
            config = config_for(
                problem,
                precision={"recipe": "fp64", "residual": "fp16", "loss_scale": value},
            )
            result = train_on(1, config, problem, offset=True)
            expected = oracle_for(config, problem, offset=True)
            errors.append(relative_error(result, expected))
        assert errors[1] < 5e-3 < 0.01 < errors[0]

    def test_an_overflow_leaves_the_steps_out_and_is_counted(self):
        """Residuals of 1000 times 2^10 are too large; times 2^6 or less they fit."""
        problem = make_problem("gaussian", n=80, d=5)
        object.__setattr__(problem, "y", problem.y * 1e3)
        config = config_for(
            problem,
            problem={"intercept": True},
            precision={"recipe": "fp64", "residual": "fp16"},
            schedule={"batch": 4, "steps": 2, "epochs": 3},
        )
        result = train_on(2, config, problem)
        assert result.status.value == "completed"
        skipped, scale = (result.report[k] for k in ("skipped_exchanges", "loss_scale"))
        assert 0 < skipped < 10 and scale == FIRST / 2**skipped
        assert np.isfinite(result.weights).all() and np.isfinite(result.intercept)
        full = config_for(problem, problem={"intercept": True}, schedule={"epochs": 3})
        assert result.loss < 1.5 * train_on(2, full, problem).loss


class TestDice:
    """Weights that are rounded at random."""

    def test_members_and_holders_of_all_columns_agree(self):
        whole = ColumnDraws(7, 0, slice(0, 10), 10).draw_uniform(np.empty((10, 2)))
        part = ColumnDraws(7, 0, slice(3, 6), 10).draw_uniform(np.empty((3, 2)))
        np.testing.assert_array_equal(whole[3:6], part)
        other = ColumnDraws(7, 1, slice(0, 10), 10).draw_uniform(np.empty((10, 2)))
        again = ColumnDraws(7, 0, slice(0, 10), 10)
        again.draw_uniform(np.empty((10, 2)))
        assert (whole != other).all()
        assert (again.draw_uniform(np.empty((10, 2))) != whole).all()

    @pytest.mark.cases(1)
    @pytest.mark.parametrize("kind", ["gram", "gather"])
    def test_small_updates_are_not_lost(self, kind):
        """Nearest rounding stalls where updates are below half a step; draws do not."""
        problem = make_problem("gaussian", n=400, d=6)
        losses = {}
        for rounding in ("nearest", "stochastic"):
            config = config_for(
                problem,
                products={"kind": kind},
                rate={"value": 2e-3},
                schedule={"batch": 8, "steps": 2, "epochs": 20},
                precision={
                    "recipe": "fp64",
                    "weights": "bf16",
                    "rounding": rounding,
                },
            )
            losses[rounding] = train_on(2, config, problem).loss
        config = config_for(
            problem,
            rate={"value": 2e-3},
            schedule={"batch": 8, "steps": 2, "epochs": 20},
        )
        best = train_on(2, config, problem).loss
        assert losses["stochastic"] - best < 0.2 * (losses["nearest"] - best)

    def test_it_needs_narrow_weights(self):
        problem = make_problem("gaussian")
        config = config_for(problem, precision={"rounding": "stochastic"})
        with pytest.raises(ConfigError, match="narrow format, as bf16"):
            train_on(1, config, problem)


@pytest.mark.parametrize(
    ("key", "value"), [("scale", "row"), ("rounding", "up"), ("matrix", "fp4")]
)
def test_unknown_words_are_refused(key, value):
    with pytest.raises(ConfigError, match=f"{key} = '{value}' must be one of"):
        RunConfig.parse({"precision": {key: value}}).precision.resolve()


def test_residuals_of_low_scores():
    """The score is rounded, then the residual: two roundings, at the right places."""
    precision = make_precision("fp64", {"residual": "bf16"})
    backend, host = RoundedBackend(precision), HostBackend(RECIPES["fp64"])
    rng = np.random.default_rng(2)
    score, y = rng.normal(size=(50, 1)), (rng.uniform(size=(50, 1)) < 0.5) * 1.0
    family = get_family("logistic")
    wanted = rounded(score, "bf16").astype(np.float32)
    wanted = rounded(family.residual(wanted, y.astype(np.float32)), "bf16")
    found = score.copy()
    backend._residual(family, found, y)
    np.testing.assert_array_equal(found, wanted)
    exact = score.copy()
    host._residual(family, exact, y)
    assert (np.abs(found - exact) <= 2 * 2.0**-8).all() and (found != exact).any()


def test_a_sparse_picture_of_rows_keeps_its_columns():
    X = sparse.csr_array(np.array([[0, 2.0, 0, 1], [0, 0, 0, 3.0]]))
    backend = RoundedBackend(RECIPES["bf16"])
    stored = from_scipy(X)
    stored = stored.with_data(backend.store(stored.data))
    rows = backend.gather_sparse(stored, np.array([1, 0]))
    np.testing.assert_array_equal(rows.values, [[0, 3], [2, 1]])
    np.testing.assert_array_equal(rows.columns, [1, 3])
    packed = np.empty(1, dtype=np.float32)
    backend.strict_gram(rows, blocks_of((1, 1)), packed)
    assert packed[0] == 3.0
