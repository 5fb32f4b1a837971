"""The bound is never passed, and no part of it could be much smaller."""

from dataclasses import replace

import numpy as np
import pytest

from hpcsgd.backends.base import StepBatch
from hpcsgd.errors import ConfigError
from hpcsgd.formats import formats_of
from hpcsgd.glm import get_family
from hpcsgd.precision import FIELDS, RECIPES, make_precision
from hpcsgd.tuning import bound as bounds
from hpcsgd.tuning.bound import bound, gamma, term
from hpcsgd.tuning.exact_exchange import ExactExchange, SgdSteps, largest_safe_rate
from hpcsgd.tuning.pilots import EXACT, perform, relative_error, with_one_field
from tests.precision import draws

DRAWN = [(seed, draws.TINY) for seed in range(160)]
DRAWN += [(seed, draws.SMALL) for seed in range(240)]
NOISE = 1e-11  # of float64, in which "exact" is computed
USEFUL = ("matrix", "margin", "gram_wire", "inner", "residual", "weights")


def ratios(drawn, name):
    """field -> bound/measured, where there is anything to measure."""
    found = {field: [] for field in FIELDS}
    for seed, limits in drawn:
        for field, exchange, precision in draws.cases(seed, limits, name):
            error = relative_error(exchange, precision)
            said = term(exchange, precision, field).relative
            assert error <= said + NOISE, (field, name, seed, limits, error, said)
            if error > NOISE:
                found[field].append(said / error)
    return found


@pytest.mark.cases(1)
@pytest.mark.parametrize("name", draws.LOW)
def test_no_error_passes_its_bound(name):
    """On 200 exchanges or more, and on some the error is half of it at least.

    G, and what is sent, need several batches and several members.
    """
    found = ratios(DRAWN, name)
    for field, values in found.items():
        if name not in formats_of(field):
            assert not values
            continue
        least = 4.0 if (field, name) == ("residual", "fp32") else 2.0
        enough = 120 if field.startswith("gram") else 200
        assert len(values) >= enough and min(values) < least, (field, min(values))


def test_the_bound_is_of_use_at_larger_sizes():
    """m up to 256 and d up to 512: the worst case is not orders away."""
    found = ratios([(seed, draws.LARGE) for seed in range(30)], "bf16")
    medians = {field: float(np.median(values)) for field, values in found.items()}
    assert all(medians[field] <= 60 for field in USEFUL), medians


@pytest.mark.cases(3)
@pytest.mark.parametrize("recipe", ["fp32", "c", "d", "bf16", "fp16", "fp8"])
def test_the_terms_add_up_to_a_bound_on_a_recipe(recipe):
    """All fields at once; values lie in float32 meanwhile."""
    precision = RECIPES[recipe]
    for seed in range(60):
        exchange = draws.draw_exchange(seed, draws.SMALL)
        exchange = draws.held(exchange, precision.weights)
        said = sum(one.relative for one in bound(exchange, precision).values())
        error = relative_error(exchange, precision)
        assert error <= said, (seed, error, said)


def test_exact_formats_give_exact_sgd():
    """What is called exact is: two ways to the same weights."""
    for seed in range(40):
        exchange = draws.draw_exchange(seed, draws.SMALL)
        assert relative_error(exchange, EXACT) <= NOISE


@pytest.mark.parametrize("field", ["matrix", "margin", "gradient_sum"])
def test_underflow_is_within_the_bound(field):
    """Below the smallest normal number more is lost than u of the value.

    tf32 has the u of fp16 and no such loss: its bound is passed, the format's is not.
    """
    passed = 0
    for seed in range(40):
        drawn = draws.draw_exchange(seed, draws.SMALL, "logistic")
        rates = (2.0**-4,) * len(drawn.steps.sizes)
        small = draws.with_rates(drawn, rates)
        small = replace(small, rows=drawn.rows * 2.0**-20)
        for name in ("fp16", "fp8-e4m3", "fp8-e5m2"):
            precision = with_one_field(field, name)
            said = term(small, precision, field).relative
            # Updates are 2⁻²⁴ of the weights: so much less is known of them.
            assert relative_error(small, precision) <= said * (1 + 2.0**-24)
        without = term(small, with_one_field(field, "tf32"), field).relative
        passed += relative_error(small, with_one_field(field, "fp16")) > without
    assert passed > 5


@pytest.mark.parametrize("name", ["fp16", "fp8-e4m3", "fp8-e5m2"])
def test_one_message_of_loud_and_soft_values_is_within_the_bound(name):
    """G is divided until it fits; z, in the same message, loses its small values."""
    precision = make_precision("fp64", {"gram_wire": name, "margin_sum": name})
    for seed in range(40):
        drawn = draws.draw_exchange(seed, draws.SMALL, "logistic")
        parts = draws.parts_of(drawn.rows.shape[1], min(2, drawn.rows.shape[1]))
        loud = replace(drawn, rows=drawn.rows * 512, before=drawn.before / 2**16)
        loud = replace(loud, parts=parts)
        loud = draws.with_rates(loud, (2.0**-34,) * len(loud.steps.sizes))
        said = sum(one.relative for one in bound(loud, precision).values())
        assert relative_error(loud, precision) <= said, seed


@pytest.mark.parametrize("field", ["margin_sum", "gram_sum", "inner", "gradient_sum"])
def test_sums_that_stall_are_within_the_bound(field):
    """1024 equal terms: once the sum is 16 chunks large, fp8-e4m3 adds no more."""
    tall = field in ("inner", "gradient_sum")
    rows = np.full((1025, 1) if tall else (2, 1024), 2.0**-4)
    exchange = ExactExchange(
        rows=rows,
        batch=StepBatch(np.full((len(rows), 1), -1.0), None, None),
        steps=SgdSteps(
            sizes=(1024, 1) if tall else (1, 1),
            rates=(64.0, 0.25) if tall else (0.25, 0.25),
        ),
        before=np.full((rows.shape[1], 1), 0.0 if tall else 2.0**-4),
        family=get_family("gaussian"),
    )
    precision = with_one_field(field, "fp8-e4m3")
    error, said = relative_error(exchange, precision), term(exchange, precision, field)
    assert said.relative / 8 < error <= said.relative


@pytest.mark.parametrize("field", ["inner", "gradient_sum"])
def test_small_terms_after_a_large_one_are_lost(field):
    """Chunks of 16: the first is 1, fifteen are just below half of bf16's next step."""
    u = 2.0**-8
    terms = np.repeat([1.0] + [u * 31 / 32] * 15, 16)[:, None] / 16
    exchange = ExactExchange(
        rows=np.ones((257, 1)),
        batch=StepBatch(np.vstack([-256 * terms, [[0.0]]]), None, None),
        steps=SgdSteps(sizes=(256, 1), rates=(1.0, 0.25)),
        before=np.zeros((1, 1)),
        family=get_family("gaussian"),
    )
    precision = with_one_field(field, "bf16")
    error = relative_error(exchange, precision)
    said = term(exchange, precision, field).relative
    assert said / 1.5 < error <= said


def test_parts_and_totals_are_rounded_both():
    """Two parts just below half of a step, and a total that lies on one: 4 u of 2."""
    u = 2.0**-8
    exchange = ExactExchange(
        rows=np.array([[1.0, 1.0], [1 + 0.99 * u, 1 + 2.99 * u]]),
        batch=StepBatch(np.array([[-1.0], [0.0]]), None, None),
        steps=SgdSteps(sizes=(1, 1), rates=(0.1, 0.1)),
        before=np.zeros((2, 1)),
        family=get_family("gaussian"),
        parts=draws.parts_of(2, 2),
    )
    precision = with_one_field("gram_wire", "bf16")
    error = relative_error(exchange, precision)
    said = term(exchange, precision, "gram_wire").relative
    assert said / 1.05 < error <= said


def test_errors_of_any_machine_are_at_least_those_of_this_one():
    """The usual constants are larger wherever the model here is sharper."""
    for seed in range(40):
        exchange = draws.draw_exchange(seed, draws.SMALL)
        for field in set(FIELDS) - {"gram_wire"}:
            precision = with_one_field(field, "bf16")
            here, anywhere = (
                term(exchange, precision, field, m) for m in bounds.MODELS
            )
            assert here.absolute <= 1.05 * anywhere.absolute, field


def test_a_short_format_has_no_bound_for_long_sums_in_any_order():
    assert gamma(255, 2.0**-8) < float("inf") and gamma(256, 2.0**-8) == float("inf")
    exchange = draws.draw_exchange(3, (600, 3, 3))
    exchange = replace(exchange, parts=())
    wide = replace(
        exchange,
        rows=np.hstack([exchange.rows] * 300),
        before=np.vstack([exchange.before] * 300),
        parts=(),
    )
    low = with_one_field("margin_sum", "bf16")
    assert not term(wide, low, "margin_sum", "any").is_bounded
    assert term(wide, low, "margin_sum").is_bounded
    assert term(wide, low, "margin").is_bounded


def test_momentum_is_refused():
    with pytest.raises(ConfigError, match="covers plain SGD"):
        SgdSteps(sizes=(1,), rates=(0.1,), momentum=0.9)


def test_unknown_models_are_refused():
    exchange = draws.draw_exchange(0, draws.SMALL)
    with pytest.raises(ConfigError, match="unknown model 'best'"):
        bound(exchange, EXACT, "best")


def test_shapes_that_do_not_match_are_refused():
    drawn = draws.draw_exchange(0, draws.SMALL)
    with pytest.raises(ConfigError, match="do not match"):
        replace(drawn, steps=replace(drawn.steps, sizes=(*drawn.steps.sizes, 1)))


@pytest.mark.parametrize("intercept", [None, np.zeros(1)])
@pytest.mark.parametrize("l2", [0.0, 0.3])
def test_up_to_the_safe_rate_no_step_stretches(l2, intercept):
    """‖I − η(λ + YᵀY/b)‖ is 1 at the limit; a little above it is more."""
    rng = np.random.default_rng(4)
    Y = rng.normal(size=(6, 4))
    exchange = ExactExchange(
        rows=Y,
        batch=StepBatch(np.zeros((6, 1)), None, None),
        steps=SgdSteps((6,), (0.1,), l2),
        before=np.ones((4, 1)),
        family=get_family("gaussian"),
        intercept=intercept,
    )
    if intercept is not None:
        Y = np.hstack([Y, np.ones((6, 1))])
    penalty = l2 * np.diag([1.0] * 4 + [0.0] * (Y.shape[1] - 4))
    for factor in (0.5, 1.0, 1.01):
        rate = factor * largest_safe_rate(exchange)
        step = np.eye(Y.shape[1]) - rate * (penalty + Y.T @ Y / 6)
        stretch = np.linalg.norm(step, 2)
        if factor <= 1:
            assert stretch <= 1 + 1e-12
        elif intercept is None:
            assert stretch > 1.01


def test_above_the_safe_rate_the_bound_grows_with_the_error():
    """It holds there too; it says how errors grow."""
    grown = 0
    for seed in range(40):
        drawn = draws.draw_exchange(seed, (20, 8, 6), "gaussian")
        wild = draws.at_share_of_safe_rate(drawn, 4.0)
        precision = with_one_field("margin", "bf16")
        said = term(wild, precision, "margin")
        assert relative_error(wild, precision) <= said.relative + NOISE
        grown += wild.growth.max() > 2
    assert grown > 5


def test_norms_of_large_batches_are_upper_bounds_and_called_so(monkeypatch):
    drawn = draws.draw_exchange(5, draws.LARGE)
    precision = with_one_field("margin", "bf16")
    exact = term(drawn, precision, "margin")
    monkeypatch.setattr("hpcsgd.tuning.exact_exchange.SMALL", 1)
    above = term(replace(drawn), precision, "margin")
    assert (exact.norms, above.norms) == ("exact", "upper bound")
    assert exact.absolute < above.absolute < 20 * exact.absolute


def test_unbounded_slopes_are_a_condition_of_the_term():
    for family, word in (("poisson", "clipped"), ("logistic", "overflows")):
        exchange = draws.draw_exchange(2, draws.SMALL, family)
        said = term(exchange, with_one_field("margin", "bf16"), "margin")
        assert said.condition.endswith(word)


def test_unit_roundoffs_are_those_of_the_formats():
    exchange = draws.draw_exchange(1, draws.SMALL)
    precision = make_precision("c", {"gram_wire": "fp8-e5m2"})
    found = bound(exchange, precision)
    assert tuple(found) == FIELDS
    assert found["matrix"].unit_roundoff == 2.0**-8
    assert found["gram_wire"].unit_roundoff == 2.0**-3
    assert found["weights"].unit_roundoff == 2.0**-24


def test_margins_that_are_stored_as_summed_add_nothing():
    exchange = draws.draw_exchange(1, draws.SMALL)
    for recipe, adds in (("fp32", False), ("c", True), ("bf16", False)):
        said = bound(exchange, RECIPES[recipe])["margin"].absolute
        assert (said > 0) is adds


def test_outcomes_are_finite():
    """Nothing overflows in what is drawn, in any format."""
    for name in draws.LOW:
        for seed in range(10):
            for _, exchange, precision in draws.cases(seed, draws.SMALL, name):
                assert np.isfinite(perform(exchange, precision).after).all()
