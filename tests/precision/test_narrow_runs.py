"""Runs whose sums travel narrow: the loss stays, the bytes do not."""

import numpy as np
import pytest

from tests.helpers.harness import config_for, make_problem, train_on

FORMATS = ["tf32", "bf16", "fp16", "fp8-e4m3", "fp8-e5m2"]
PRODUCTS = {
    "gram": {"kind": "gram"},
    "cached": {"kind": "cached"},
    "look-ahead": {"kind": "gram", "look_ahead": "on"},
}


def trained(precision, product="gram", members=2, **sections):
    drawn = make_problem("logistic", n=400, d=24)
    sections["products"] = PRODUCTS.get(product, {"kind": product})
    schedule = {"batch": 8, "steps": 8, "epochs": 3}
    config = config_for(drawn, schedule=schedule, precision=precision, **sections)
    return train_on(members, config, drawn)


@pytest.mark.parametrize("members", [2, 3, 4])
@pytest.mark.parametrize("product", PRODUCTS)
def test_recipe_d_keeps_the_loss(members, product):
    low = trained({"recipe": "d"}, product, members)
    full = trained({"recipe": "fp32"}, product, members)
    assert low.status.value == "completed"
    assert abs(low.loss - full.loss) <= 0.005 * full.loss
    assert low.loss < 0.95 * np.log(2), "something was learnt"


@pytest.mark.parametrize("members", [2, 3, 4])
def test_recipe_d_moves_half_the_bytes_of_the_gram(members):
    """On the wire, by the ledger; the margins beside it are as they were."""
    c, d = (trained({"recipe": name}, "gram", members) for name in "cd")
    margins = trained({"recipe": "c"}, "direct", members)
    moved = [r.ledger["products"]["wire_bytes"] for r in (c, d, margins)]
    assert moved[1] - moved[2] == pytest.approx((moved[0] - moved[2]) / 2)


# An accumulator of margins is narrow on one member too.
@pytest.mark.parametrize(
    ("field", "members"),
    [("gram_wire", 1), *((f, C) for f in ("gram_wire", "margin_sum") for C in (2, 3))],
)
@pytest.mark.parametrize("form", FORMATS)
def test_a_format_is_felt_between_members_alone(members, form, field):
    """Rounding happens where words travel; one member has nobody to send them to."""
    low = trained({"recipe": "c", field: form}, "gram", members)
    kept = trained({"recipe": "c"}, "gram", members)
    assert (low.weights != kept.weights).any() == (members > 1)
    assert low.loss == pytest.approx(kept.loss, rel=0.02)


@pytest.mark.cases(6)
@pytest.mark.parametrize("members", [2, 3, 4])
@pytest.mark.parametrize("product", ["cached", "look-ahead"])
@pytest.mark.parametrize(
    "fields",
    [
        {"recipe": "c"},
        {"recipe": "d"},
        {"recipe": "d", "margin_sum": "bf16"},
        *({"recipe": "c", "gram_wire": form} for form in FORMATS if form != "bf16"),
    ],
    ids=lambda fields: "-".join(fields.values()),
)
def test_the_same_bits_as_gram(members, product, fields):
    """Two roundings do not hang on what else is in a message, nor on who adds."""
    one, other = trained(fields, "gram", members), trained(fields, product, members)
    np.testing.assert_array_equal(one.weights, other.weights)


@pytest.mark.parametrize(
    "fields", [{"recipe": "d"}, {"recipe": "d", "margin_sum": "fp16"}]
)
def test_reproducible_runs_have_the_same_bits(fields):
    """Narrow sums are in rank order already."""
    plain = trained(fields)
    exact = trained(fields, run={"reproducible": True})
    np.testing.assert_array_equal(plain.weights, exact.weights)


def test_what_overflows_is_seen():
    """A run that diverges says so, though e4m3 has no infinity to say it with."""
    fields = {"recipe": "c", "gram_wire": "fp8-e4m3", "margin_sum": "fp8-e4m3"}
    drawn = make_problem("poisson", n=400, d=24)
    config = config_for(
        drawn,
        schedule={"batch": 8, "steps": 8, "epochs": 3},
        precision=fields,
        rate={"value": 1e6},
        run={"evaluate_every": 1},
    )
    assert train_on(2, config, drawn).status.value == "diverged"
