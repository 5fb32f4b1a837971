"""Every family, penalty, update, product and grid equals step-by-step SGD.

`make test` runs rows in which every pair of choices occurs; `make test-all` runs
the whole product.
"""

from itertools import product

import pytest

from tests.helpers.harness import check_against_oracle, config_for
from tests.helpers.pairwise import pairwise
from tests.helpers.problems import FAMILIES, make_problem

CHOICES = {
    "family": FAMILIES,
    "l2": (0.0, 0.05),
    "update": ("sgd", "momentum", "nesterov", "nesterov-classic"),
    "product": ("direct", "gram", "gather", "gather-once", "cached", "look-ahead"),
    "members": (1, 2, 3, 4),
    "shape": ((48, 4, 3), (53, 4, 3), (41, 7, 5)),  # rows, batch, steps: tails ragged
    "data": ("plain", "weights", "offset", "intercept", "all"),
}
# The full product crosses the demanded factors; `data` rides on the pairwise rows.
FULL = {name: CHOICES[name] for name in CHOICES if name != "data"}


def check(row, recipe, tolerance):
    """One row of choices against the oracle."""
    rows, batch, steps = row["shape"]
    problem = make_problem(row["family"], n=rows, d=7)
    kind = "gram" if row["product"] == "look-ahead" else row["product"]
    data = row.get("data", "all")
    config = config_for(
        problem,
        problem={"l2": row["l2"], "intercept": data in ("intercept", "all")},
        schedule={"batch": batch, "steps": steps},
        update={"kind": row["update"], "momentum": 0.5},
        products={
            "kind": kind,
            "look_ahead": "on" if row["product"] == "look-ahead" else "off",
        },
        precision={"recipe": recipe},
        rate={"value": 0.1},
    )
    check_against_oracle(
        row["members"],
        config,
        problem,
        tolerance,
        weights=data in ("weights", "all"),
        offset=data in ("offset", "all"),
    )


def name_of(row):
    """A readable test id."""
    return "-".join(str(value).replace(" ", "") for value in row.values())


COVERING = pairwise(CHOICES)


@pytest.mark.parametrize("row", COVERING, ids=name_of)
def test_float64_equals_sgd(row):
    check(row, "fp64", 1e-11)


@pytest.mark.parametrize("row", COVERING, ids=name_of)
def test_float32_equals_sgd(row):
    check(row, "fp32", 1e-4)


@pytest.mark.full
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("update", CHOICES["update"])
@pytest.mark.parametrize("kind", CHOICES["product"])
def test_the_whole_product(family, update, kind):
    fixed = {"family": family, "update": update, "product": kind}
    free = {name: FULL[name] for name in FULL if name not in fixed}
    for values in product(*free.values()):
        row = {**fixed, **dict(zip(free, values, strict=True))}
        check(row, "fp64", 1e-11)


def test_pairwise_rows_cover_every_pair():
    seen = {
        (a, row[a], b, row[b]) for row in COVERING for a in CHOICES for b in CHOICES
    }
    for a in CHOICES:
        for b in CHOICES:
            if a != b:
                for x in CHOICES[a]:
                    for y in CHOICES[b]:
                        assert (a, x, b, y) in seen
