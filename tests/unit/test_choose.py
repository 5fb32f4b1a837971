"""The rule behind `auto`: words on the wire decide, memory has a veto."""

import pytest

from hpcsgd.errors import ConfigError
from hpcsgd.precision import RECIPES
from hpcsgd.products import PRODUCTS, choose, get_product
from hpcsgd.products.choose import (
    ProductsConfig,
    Shape,
    choose_product,
    uses_look_ahead,
)
from hpcsgd.schedule import Schedule
from tests.harness import config_for, make_problem, train_on

WIDE = Shape(members=2, rows=20000, columns=2000, rows_come_again=False)


def pick(recipe="fp32", batch=32, steps=8, **changes):
    shape = Shape(**{**vars(WIDE), **changes})
    return choose_product(shape, Schedule(batch, steps), RECIPES[recipe])


def test_nothing_to_sum_or_nothing_to_save_is_direct():
    assert pick(members=1) == "direct"
    assert pick(steps=1) == "direct"


@pytest.mark.parametrize("recipe", ["fp64", "fp32"])
def test_narrow_rows_are_gathered_up_to_the_break_even(recipe):
    """Equal words: gather moves fewer bytes iff d < b(s−1) + 2."""
    even = 32 * 7 + 2
    assert pick(recipe, columns=even - 1) == "gather"
    assert pick(recipe, columns=even) == "gram"


def test_a_low_matrix_moves_the_break_even():
    """bf16 rows against an fp32 Gram: d < 2b(s−1) + 4."""
    even = 2 * 32 * 7 + 4
    assert pick("c", columns=even - 1) == "gather"
    assert pick("c", columns=even) == "gram"


def test_the_rule_is_what_the_ledger_counts():
    """At the break-even of this run the two products send as many bytes."""
    problem = make_problem("logistic", n=48, d=10)  # d = b(s−1) + 2, b 4, s 3

    def ring_bytes(kind):
        config = config_for(problem, products={"kind": kind})
        return train_on(2, config, problem).ledger["products"]["wire_bytes"]

    assert ring_bytes("gather") == pytest.approx(ring_bytes("gram"))


def test_batches_that_come_again_are_cached_while_memory_lasts(monkeypatch):
    assert pick(rows_come_again=True) == "cached"
    kept = 20000 * 32 * 7 // 2 * 4
    monkeypatch.setattr(choose, "CACHE_BUDGET", kept)
    assert pick(rows_come_again=True) == "cached"
    monkeypatch.setattr(choose, "CACHE_BUDGET", kept - 1)
    assert pick(rows_come_again=True) == "gram"


@pytest.mark.parametrize(
    "kind, asked, latency, wanted",
    [
        ("gram", "auto", 1.0, False),  # an explicit product keeps its one message
        ("gram", "on", 0.0, True),
        ("gram", "off", 1.0, False),
        ("auto", "auto", 50e-6, True),
        ("auto", "auto", 5e-6, False),
        ("auto", "off", 1.0, False),
    ],
)
def test_look_ahead(kind, asked, latency, wanted):
    assert uses_look_ahead(ProductsConfig(kind, asked), "gram", latency) == wanted


def test_look_ahead_needs_a_gram():
    assert not uses_look_ahead(ProductsConfig("auto", "auto"), "cached", 1.0)
    with pytest.raises(ConfigError, match="needs kind = 'gram'"):
        uses_look_ahead(ProductsConfig("direct", "on"), "direct", 1.0)


def test_names():
    for name in PRODUCTS:
        assert hasattr(get_product(name), "advance")
    with pytest.raises(ConfigError, match="known: .*'auto'"):
        get_product("magic")


@pytest.mark.parametrize("members, wanted", [(1, "direct"), (2, "gather")])
def test_auto_runs_what_it_chose(members, wanted):
    problem = make_problem("logistic")
    config = config_for(problem, products={"kind": "auto"})
    assert train_on(members, config, problem).report["products"] == wanted
