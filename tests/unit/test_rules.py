"""A step of some columns has the bits that a step of all of them has."""

import numpy as np
import pytest

from hpcsgd.glm import ColumnViews, Turn, make_rule, make_update
from tests.helpers.harness import config_for, make_problem

KINDS = ("sgd", "momentum", "nesterov", "nesterov-classic", "adagrad", "adam")
CUTS = [0, 1, 2, 5, 12, 29, 64, 101]


def rule_of(kind):
    config = config_for(make_problem("logistic"), update={"kind": kind}).update
    return make_rule(config, make_update(kind, 0.0 if kind == "sgd" else 0.9))


def stepped(rule, held, gradients, cuts):
    """Five steps of the columns between these."""
    weights, *kept = (array.copy() for array in held)
    for number, gradient in enumerate(gradients):
        for first, last in zip(cuts, cuts[1:], strict=False):
            own = slice(first, last)
            named = dict(zip(rule.state_names, (one[own] for one in kept), strict=True))
            part = ColumnViews(weights[own], named)
            rule.step(part, gradient[own].copy(), 0.37, Turn(number, 0.1), 0.03)
    return [weights, *kept]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_parts_have_the_bits_of_the_whole(kind, dtype):
    """Wherever columns are cut: buckets, slices and tiles are."""
    rule, rng = rule_of(kind), np.random.default_rng(0)
    for width in (1, 2, 3):
        words = [rule.states * width, *(width for _ in rule.state_names)]
        held = [rng.normal(size=(CUTS[-1], w)).astype(dtype) for w in words]
        held[1:] = [np.abs(one) for one in held[1:]]
        gradients = rng.normal(size=(5, CUTS[-1], width)).astype(dtype)
        whole = stepped(rule, held, gradients, [0, CUTS[-1]])
        parts = stepped(rule, held, gradients, CUTS)
        for one, other in zip(whole, parts, strict=True):
            np.testing.assert_array_equal(one, other)
